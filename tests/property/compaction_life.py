"""A compacted partition and its model run the same steps, drawn by a seed.

All strategies are used. The winner of a key is its last record, its record with the highest time,
or its record with the highest version in a header.

The steps are appends of keyed records, transactions that commit, abort or stay open, rolls, clock
advances, cleanings, restarts, and power losses at any call of a cleaning. The records have few keys
(uniform or by Zipf's law), and some are tombstones. After each step:

- Every remaining record is unchanged, at its offset.
- A reader of committed records gets the model's last value of each key.
- Every removed record is superseded, aborted, or an expired tombstone.
"""

import random
from collections.abc import Callable, Iterable, Mapping

import pytest
from tests.faults import SeededEnv, reopen, seeded_env
from tests.property.compaction_entries import Entry, Model, replayed

from tidelog.env import Env
from tidelog.errors import InvalidRecord
from tidelog.record.builder import build_batch
from tidelog.record.record import Record
from tidelog.storage.compaction.cleaner import CleaningReport, Worker, clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions, inspect_log
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.log import Log
from tidelog.storage.segment.compaction_history import read_history
from tidelog.storage.segment.segment import iterate_batches
from tidelog.types import ClockName, Codec, Header, IsolationLevel, NewRecord, TopicPartition

ROOT = "/data"
NAME = TopicPartition("t", 0)
RETENTION_MS = 10_000
COMMITTED = IsolationLevel.READ_COMMITTED
MAP_BYTES = 1 << 20
VERSION_HEADER = "version"
MakeWorker = Callable[[Env, random.Random], Worker]


class Life:
    """One sequence of steps on a partition and its model."""

    def __init__(self, seed: int, make_worker: MakeWorker, settings: Mapping[str, str]) -> None:
        self.dice = random.Random(seed)
        self.env: SeededEnv = seeded_env(seed)
        self.make_worker = make_worker
        self.model = Model()
        self.has_crashed = False
        self.serial = 0
        self.strategy = settings.get("tidelog.compaction.strategy", "offset")
        # Some runs have a key map with space for few keys, so that cleaning a head takes several
        # passes.
        self.load_factor = self.dice.choice((5e-5, 1e-4, 0.9))
        self.keys = [b"key-%d" % n for n in range(self.dice.choice((2, 6, 12)))]
        self.weights = self.dice.choice(
            ([1.0] * len(self.keys), [1 / (n + 1) for n in range(len(self.keys))])
        )
        self.directory = self._open()
        config = {
            "cleanup.policy": "compact",
            # Segments are larger in runs with headers, because headers need space.
            "internal.segment.bytes": str(
                self.dice.choice((1000, 2000) if self.strategy == "header" else (500, 1000))
            ),
            "index.interval.bytes": self.dice.choice(("0", "120")),
            "delete.retention.ms": str(RETENTION_MS),
            "min.cleanable.dirty.ratio": self.dice.choice(("0", "0.3")),
            "file.delete.delay.ms": "0",
        }
        self.directory.create_topic("t", config={**config, **settings})

    def _open(self) -> LogDir:
        return LogDir.open(ROOT, env=self.env, options=LogDirOptions(create=True))

    @property
    def log(self) -> Log:
        """The partition."""
        return self.directory.log("t", 0)

    def run(self, steps: int) -> None:
        """Run steps; check everything after each step."""
        drawn = [
            (8, self.append),
            (3, self.transact),
            (2, self.end_transaction),
            (1, self.append_null_key),
            (3, self.roll),
            (3, self.pass_time),
            (4, self.clean),
            (2, self.clean_and_lose_power),
            (1, self.restart),
            (1, self.stop_hard),
        ]
        actions = [action for _, action in drawn]
        for action in self.dice.choices(actions, [weight for weight, _ in drawn], k=steps):
            action()
            self.judge()
        self.finish()
        self.directory.close()

    # -- steps -------------------------------------------------------------------------------

    def _records(self) -> list[NewRecord]:
        return [self._record() for _ in range(self.dice.randrange(1, 6))]

    def _record(self) -> NewRecord:
        self.serial += 1
        (key,) = self.dice.choices(self.keys, self.weights)
        value = None if self.dice.random() < 0.25 else b"%d" % self.serial
        time = self.env.clock.now_ms() + self.dice.randrange(-500, 500)
        return NewRecord(key=key, value=value, timestamp=time, headers=self._headers())

    def _headers(self) -> tuple[Header, ...]:
        """Return headers with a version, without a version, or with a version that is no number."""
        if self.strategy != "header":
            return ()
        version = self.dice.choice((b"", None, *((n).to_bytes(8, "big") for n in range(6))))
        return () if version is None else (Header(VERSION_HEADER, version),)

    def version_of(self, record: NewRecord | Record) -> int:
        """Return the value by which the strategy ranks a record; if equal, the offset decides."""
        if self.strategy == "timestamp":
            assert record.timestamp is not None
            return record.timestamp
        value = next((header.value for header in record.headers), None)
        return int.from_bytes(value, "big", signed=True) if value else -(2**63)

    def append(self) -> None:
        """Append records in one batch or several."""
        records, codec = self._records(), self.dice.choice((Codec.NONE, Codec.NONE, Codec.LZ4))
        result = self.log.append(records, codec=codec, batch_bytes=self.dice.choice((1, 10_000)))
        self._note(records, result.base_offset, result.append_time_ms)

    def _note(
        self, records: list[NewRecord], base: int, append_ms: int, producer: int | None = None
    ) -> None:
        for offset, record in enumerate(records, base):
            assert record.key is not None
            assert record.timestamp is not None
            entry = Entry(offset, record.key, record.value, record.timestamp, append_ms, producer)
            if self.strategy != "offset":
                entry.version = self.version_of(record)
            self.model.entries[offset] = entry
        self.model.log_end = base + len(records)

    def append_null_key(self) -> None:
        """Append a record without a key; assert Kafka's error, and that no record is written."""
        with pytest.raises(InvalidRecord) as caught:
            self.log.append([NewRecord(key=b"k", value=b""), NewRecord(value=b"without")])
        assert caught.value.code == 87
        assert self.log.log_end_offset == self.model.log_end

    def transact(self) -> None:
        """Append records of a new transaction, which stays open."""
        self.serial += 1
        producer, records = self.serial, self._records()
        data = build_batch(
            records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        result = self.log.append_batches(data, AppendTerms(owned=True))
        self.model.fates[producer] = None
        self._note(records, result.base_offset, result.append_time_ms, producer)

    def end_transaction(self) -> None:
        """Commit or abort the oldest open transaction."""
        waiting = [producer for producer, fate in self.model.fates.items() if fate is None]
        if waiting:
            self._end(waiting[0], commit=self.dice.random() < 0.6)

    def _end(self, producer: int, *, commit: bool) -> None:
        self.log.end_transaction(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, commit=commit
        )
        self.model.fates[producer] = commit
        self.model.log_end += 1

    def roll(self) -> None:
        """Start a new segment."""
        self.log.roll()

    def pass_time(self) -> None:
        """Advance the clock, sometimes beyond the retention of tombstones."""
        self.env.clock.advance(self.dice.choice((1, 700, RETENTION_MS // 2, 2 * RETENTION_MS)))

    def restart(self) -> None:
        """Stop cleanly, and start again."""
        self.directory.close()
        self.directory = self._open()

    def stop_hard(self) -> None:
        """Kill the process after a flush; no record may be missing afterwards."""
        self.log.flush()
        self.directory.abandon()
        self.directory = self._open()
        self._look_around()

    def _look_around(self) -> None:
        """Record that a crash has occurred, after which append times may be unknown."""
        self.has_crashed = True
        self.directory.accept_clock()

    def clean(self) -> None:
        """Clean the partition, if it is due or on request."""
        self._clean(is_asked=self.dice.random() < 0.5)

    def _clean(self, *, is_asked: bool) -> CleaningReport:
        end = inspect_log(self.directory, NAME, is_asked=is_asked).decision.end
        report = clean_partition(
            self.directory,
            NAME,
            self.make_worker(self.env, self.dice),
            CleanerOptions(
                is_asked=is_asked, dedupe_buffer_bytes=MAP_BYTES, load_factor=self.load_factor
            ),
        )
        assert report.stopped is None
        if report.passes:
            self._note_cleaned(end)
            assert report.cleaned_to <= end
            assert report.records_after <= report.records_before
        return report

    def _note_cleaned(self, end: int) -> None:
        self.model.cleaned_end = end
        for entry in self.model.entries.values():
            if entry.offset < end and entry.taken_ms is None:
                entry.taken_ms = self.env.clock.now_ms()

    def clean_and_lose_power(self) -> None:
        """Clean, and lose power before or after a random one of the cleaning's disk changes.

        Every record that was durable before must remain.
        """
        self.log.flush()
        files = self.env.files
        before = len(files.journal)
        end = inspect_log(self.directory, NAME, is_asked=True).decision.end
        self._clean(is_asked=True)
        self._note_cleaned(end)
        self.directory.abandon()
        moment = self.dice.randrange(before, len(files.journal) + 1)
        seed = self.dice.randrange(2**32)
        state = next(iter(files.crash_states([seed], prefix=moment)))
        clock = self.env.clock
        disk = reopen(state, clock=clock)
        self.env = SeededEnv(files=disk, clock=clock, random=random.Random(seed))
        self.directory = self._open()
        self._look_around()

    # -- checks ------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check everything."""
        model, log = self.model, self.log
        assert log.log_end_offset == model.log_end
        everything = list(log.records())
        self._judge_records(everything)
        committed = list(log.records(isolation=COMMITTED))
        self._judge_gone({record.offset for record in everything})
        assert replayed(self._entries(committed)) == model.table()
        self._judge_times(log, everything)
        if self.dice.random() < 0.3:  # slow
            with LogDir.open(ROOT, env=self.env) as readers:
                assert list(readers.reader("t", 0).records()) == everything

    def _judge_records(self, found: list[Record]) -> None:
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            entry = self.model.entries[record.offset]
            assert (record.key, record.value) == (entry.key, entry.value)
            assert record.timestamp == entry.timestamp

    def _entries(self, found: Iterable[Record]) -> list[Entry]:
        return [self.model.entries[record.offset] for record in found]

    def _judge_gone(self, left: set[int]) -> None:
        """Assert that records are removed only by the rules."""
        latest, now_ms = self.model.latest(), self.env.clock.now_ms()
        for entry in self.model.entries.values():
            if entry.offset in left:
                assert not entry.is_over, f"{entry} came back"
                continue
            assert entry.taken_ms is not None, f"{entry} was in no cleaning"
            is_aborted = entry.producer is not None and self.model.fates[entry.producer] is False
            winner = latest.get(entry.key)
            if is_aborted or (winner is not None and entry.rank < winner.rank):
                continue
            assert entry.value is None, f"{entry} was the last of its key"
            assert now_ms >= entry.taken_ms + RETENTION_MS, f"{entry} went too early"
            if not entry.is_over:
                self.model.end_tombstone(entry)

    def _judge_times(self, log: Log, found: list[Record]) -> None:
        for record in self.dice.sample(found, min(2, len(found))):
            known = log.append_time_of(record.offset)
            entry = self.model.entries[record.offset]
            assert known == entry.append_ms or (known is None and self.has_crashed)
            at = log.offset_for_time(record.timestamp)
            first = next(r.offset for r in found if r.timestamp >= record.timestamp)
            assert at is not None
            # Markers have times too, so the lookup may return a marker before the first match.
            assert at.offset == first or (at.offset < first and at.offset not in self.model.entries)
            at = log.offset_for_time(entry.append_ms, clock=ClockName.APPEND)
            assert at is None or at.timestamp >= entry.append_ms

    def finish(self) -> None:
        """Clean until each key has one value and no tombstone is left; no deleted key returns."""
        for producer in [p for p, fate in self.model.fates.items() if fate is None]:
            self._end(producer, commit=self.dice.random() < 0.5)
        self.log.roll()
        self.log.flush()
        self._clean(is_asked=True)
        self.judge()
        left = [r.key for r in self.log.records(isolation=COMMITTED)]
        assert len(left) == len(set(left)), "a key twice"
        # Expired tombstones are removed even without further appends and requests.
        self.env.clock.advance(RETENTION_MS + RETENTION_MS // 10 + 1)
        self._clean(is_asked=False)
        self.judge()
        assert all(record.value is not None for record in self.log.records(isolation=COMMITTED))
        assert inspect_log(self.directory, NAME).decision.due is None
        self._judge_history()
        self.restart()
        self.judge()
        self._judge_transactions()

    def _judge_transactions(self) -> None:
        """Assert that readers of the whole log (a follower, a recovery) see no open transaction.

        All transactions have ended. If a cleaning had removed a marker but left a batch of its
        transaction, the transaction would seem open.
        """
        opened: dict[int, int] = {}
        for segment in self.log.segments:
            for _, batch in iterate_batches(segment, 0, segment.size_bytes):
                if not batch.is_transactional:
                    continue
                if not batch.is_control:
                    opened[batch.producer_id] = batch.base_offset
                elif batch.record_count:
                    opened.pop(batch.producer_id, None)
        assert not opened, f"open for a reader of the whole log: {opened}"

    def _judge_history(self) -> None:
        """Assert that tables are right as of every time for which the history claims exactness."""
        history = read_history(self.env.files, f"{ROOT}/t-0")
        if history is None:
            return
        left = self._entries(self.log.records(isolation=COMMITTED))
        entries = [e for e in self.model.committed() if not e.is_over]
        since = history.exact_since_ms(ClockName.RECORD)
        if since is not None:
            for time in {since, *(e.timestamp for e in entries if e.timestamp >= since)}:
                assert replayed(e for e in left if e.timestamp <= time) == replayed(
                    e for e in entries if e.timestamp <= time
                )
        since = history.exact_since_ms(ClockName.APPEND)
        if since is not None:
            for time in {since, *(e.append_ms for e in entries if e.append_ms >= since)}:
                assert replayed(e for e in left if e.append_ms <= time) == replayed(
                    e for e in entries if e.append_ms <= time
                )
