"""A workload on a directory of topics: steps drawn by a seed, and what must hold after each step.

With the same seed, a workload takes the same steps and makes the same calls, so that a crash or a
failing call can be reproduced.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.fault.harness import Story
from tests.fault.promise import DirPromise, Kept, LogPromise, Marker
from tests.faults import DamageFileSystem, SeededEnv, seeded_env
from tests.worlds.directories.logs import use_leader_epoch

from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendResult, AppendTerms
from tidelog.storage.log.log import Log
from tidelog.types import Codec, NewRecord, TopicPartition

ROOT = "/data"
MAIN = TopicPartition("tides", 0)
SETTINGS = {
    "internal.segment.bytes": "900",
    "index.interval.bytes": "150",
    "segment.index.bytes": "96",
    "retention.bytes": "2500",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
WRITABLE = LogDirOptions(create=True)
CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP)


@dataclass(slots=True)
class Transaction:
    """An open transaction of the workload."""

    producer_id: int
    next_sequence: int = 0


class Workload:
    """Takes steps on a directory and records its promises."""

    def __init__(self, seed: int, files: DamageFileSystem | None = None) -> None:
        self.env: SeededEnv = seeded_env(seed, files=files)
        self.files = self.env.files
        self.draw = random.Random(seed)
        self.options = WRITABLE
        # With an even seed, some appends also sync the log.
        self.settings = SETTINGS if seed % 2 else {**SETTINGS, "flush.messages": "9"}
        self.story: Story[DirPromise] = Story(self.files, DirPromise())
        # The partition that the next step uses, and the workload's state of each partition.
        self.at = MAIN
        self._last_append_ms: dict[TopicPartition, int] = {}
        self._transactions: dict[TopicPartition, list[Transaction]] = {}
        self._serial = 0
        self._topics = 0
        self.directory: LogDir | None = None

    # ---- the plan

    def steps(self, count: int) -> list[Callable[[], None]]:
        """Return the first steps of every workload, then `count` drawn steps, then a clean stop."""
        weighted = self.weighted()
        weights = [weight for weight, _ in weighted]
        drawn = self.draw.choices([step for _, step in weighted], weights, k=count)
        return [self.start, self.create_main, *drawn, self.stop]

    def weighted(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the steps to draw from, with their weights."""
        return [
            (10, self.append),
            (3, self.append_in_transaction),
            (2, self.end_transaction),
            (3, self.flush),
            (2, self.roll),
            (2, self.truncate),
            (1, self.delete_records),
            (2, self.apply_retention),
            (1, self.bump_epoch),
            (1, self.create_topic),
            (1, self.delete_topic),
            (1, self.restart),
        ]

    def run(self, count: int) -> None:
        """Take all steps."""
        for step in self.steps(count):
            self.take(step)

    def take(self, step: Callable[[], None]) -> None:
        """Take one step; the clock may advance before it."""
        self.env.clock.advance(self.draw.choice((0, 0, 1, 7, 1000)))
        step()

    # ---- state

    @property
    def log(self) -> Log:
        """The partition that steps use."""
        assert self.directory is not None
        return self.directory.log(self.at.topic, self.at.partition)

    @property
    def promise(self) -> LogPromise:
        """The promise of the partition that steps use."""
        return self.story.latest.logs[self.at]

    @property
    def _open(self) -> list[Transaction]:
        """Open transactions of the partition, oldest first."""
        return self._transactions.setdefault(self.at, [])

    @property
    def last_append_ms(self) -> int:
        """The latest append time of the partition, -1 if it has none."""
        return self._last_append_ms.get(self.at, -1)

    def _tell(self, promise: LogPromise) -> None:
        """Record a promise in which all finished segments are durable, because rolls sync them."""
        self.story.tell(self.story.latest.with_log(self.at, self._after_roll(promise)))

    def _after_roll(self, promise: LogPromise) -> LogPromise:
        base = self.log.segments[-1].base_offset
        durable_end = max(promise.durable_end, min(base, promise.end))
        return replace(promise, durable_end=durable_end)

    # ---- the directory

    def start(self) -> None:
        """Create and open the directory."""
        self.directory = LogDir.open(ROOT, env=self.env, options=self.options)
        self.story.tell(DirPromise())

    def create_main(self) -> None:
        """Create the topic that most steps use."""
        assert self.directory is not None
        self.directory.create_topic(MAIN.topic, partitions=1, config=self.settings)
        self.story.tell(self.story.latest.with_topic(MAIN.topic, 1))

    def create_topic(self) -> None:
        """Create another topic, and append and flush a record in it."""
        assert self.directory is not None
        self._topics += 1
        name = f"other-{self._topics}"
        self.directory.create_topic(name, partitions=1, config=SETTINGS)
        self.story.tell(self.story.latest.with_topic(name, 1))

    def delete_topic(self) -> None:
        """Delete the oldest other topic, if any."""
        assert self.directory is not None
        others = sorted(name for name in self.story.latest.topics if name.startswith("other-"))
        if others:
            self.directory.delete_topic(others[0])
            self.story.tell(self.story.latest.without(others[0]))

    def stop(self) -> None:
        """Stop cleanly: everything is durable."""
        assert self.directory is not None
        self.directory.close()
        self.story.tell(self.story.latest.flushed())

    def restart(self) -> None:
        """Stop cleanly and open again, on a clock that may have been set back a little."""
        self.stop()
        self.env.clock.advance(self.draw.choice((0, 5000, -3000)))
        self.directory = LogDir.open(ROOT, env=self.env, options=self.options)

    # ---- appends

    def append(self) -> None:
        """Append one to six records in one or more batches; times are unordered or missing."""
        records = [self._record() for _ in range(self.draw.randrange(1, 7))]
        batch_bytes = self.draw.choice((60, 16_384))
        result = self.log.append(records, codec=self.draw.choice(CODECS), batch_bytes=batch_bytes)
        self._tell(self._appended(result, records))

    def _record(self) -> NewRecord:
        self._serial += 1
        now = self.env.clock.now_ms()
        timestamp = self.draw.choice((-1, now, now, now + self.draw.randrange(-90_000, 9_000)))
        key = None if self.draw.random() < 0.3 else b"k%d" % self.draw.randrange(5)
        value = b"%d:" % self._serial + self.draw.randbytes(self.draw.randrange(60))
        return NewRecord(key=key, value=value, timestamp=timestamp)

    def _appended(
        self, result: AppendResult, records: list[NewRecord], producer_id: int = -1
    ) -> LogPromise:
        promise = self.promise
        assert result.base_offset == promise.end
        assert result.append_time_ms == max(self.last_append_ms, self.env.clock.now_ms())
        self._last_append_ms[self.at] = result.append_time_ms
        kept = [
            Kept(
                result.base_offset + number,
                self._timestamp_of(record, result.log_append_time_ms),
                record.key,
                record.value,
                result.append_time_ms,
                self.log.leader_epoch,
                producer_id,
            )
            for number, record in enumerate(records)
        ]
        return promise.appended(
            self._batches_from(result.base_offset), kept, epoch=self.log.leader_epoch
        )

    def _timestamp_of(self, record: NewRecord, log_append_ms: int) -> int:
        """Return a record's time in the log: its own, or with LogAppendTime the append time."""
        own = -1 if record.timestamp is None else record.timestamp
        return own if log_append_ms < 0 else log_append_ms

    def _batches_from(self, offset: int) -> list[tuple[int, int]]:
        """Return the first and end offset of each batch in the log, from `offset` on."""
        return [
            (batch.base_offset, batch.next_offset)
            for part in self.log.slices(offset)
            for _, batch in part.batches()
        ]

    # ---- transactions

    def append_in_transaction(self) -> None:
        """Append a batch of an open transaction, or of a new transaction."""
        if not self._open or (len(self._open) < 2 and self.draw.random() < 0.4):
            self._serial += 1
            self._open.append(Transaction(self._serial))
        transaction = self.draw.choice(self._open)
        records = [self._record() for _ in range(self.draw.randrange(1, 4))]
        batch = build_batch(
            records,
            producer_id=transaction.producer_id,
            producer_epoch=0,
            base_sequence=transaction.next_sequence,
            transactional=True,
        )
        result = self.log.append_batches(batch, AppendTerms(owned=True))
        transaction.next_sequence += len(records)
        self._tell(self._appended(result, records, transaction.producer_id))

    def end_transaction(self) -> None:
        """Commit or abort the oldest open transaction."""
        if not self._open:
            return
        transaction, commit = self._open.pop(0), self.draw.random() < 0.5
        result = self.log.end_transaction(
            producer_id=transaction.producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
        )
        self._last_append_ms[self.at] = result.append_time_ms
        stamped_ms = result.log_append_time_ms
        marker = Marker(
            result.base_offset,
            self.env.clock.now_ms() if stamped_ms < 0 else stamped_ms,
            result.append_time_ms,
            transaction.producer_id,
            commit,
        )
        batches = self._batches_from(result.base_offset)
        epoch = self.log.leader_epoch
        self._tell(self.promise.appended(batches, markers=[marker], epoch=epoch))

    # ---- everything else

    def flush(self) -> None:
        """Make everything durable."""
        self.log.flush()
        self._tell(self.promise.flushed())

    def roll(self) -> None:
        """Start a new segment."""
        self.log.roll()
        self._tell(self.promise)

    def truncate(self) -> None:
        """Drop the last few records, as a follower does when the leader changes."""
        end = self.promise.end
        offset = self.draw.randrange(max(self.promise.start, end - 8), end + 1)
        self.log.truncate_to(offset)
        promise = self.promise.truncated(offset)
        self._open[:] = [
            Transaction(open_.producer_id, written)
            for open_ in self._open
            if (written := sum(r.producer_id == open_.producer_id for r in promise.records))
        ]
        self._reopen_transactions(promise)
        self._last_append_ms[self.at] = promise.last_append_ms
        self._tell(promise)

    def _reopen_transactions(self, promise: LogPromise) -> None:
        """Reopen transactions whose marker was cut off."""
        known = {open_.producer_id for open_ in self._open}
        for record in promise.records:
            if record.producer_id >= 0 and record.producer_id not in known:
                ended = {marker.producer_id for marker in promise.markers}
                if record.producer_id not in ended:
                    known.add(record.producer_id)
                    written = sum(r.producer_id == record.producer_id for r in promise.records)
                    self._open.append(Transaction(record.producer_id, written))

    def delete_records(self) -> None:
        """Advance the log start to an offset in the log, at most to the last stable offset."""
        promise = self.promise
        stable = promise.stable_end(promise.end)
        offset = self.draw.randrange(promise.start, max(promise.start, stable) + 1)
        self.log.delete_records(offset)
        self._tell(replace(promise, start=max(promise.start, offset)))

    def apply_retention(self) -> None:
        """Delete old segments; other tests check which segments retention must delete."""
        self.log.apply_retention()
        start = self.log.log_start_offset
        assert self.promise.start <= start <= self.promise.end
        self._tell(replace(self.promise, start=start))

    def bump_epoch(self) -> None:
        """Continue with a higher leader epoch."""
        use_leader_epoch(self.log, self.log.leader_epoch + 1)
        if self.draw.random() < 0.5:
            self.log.swaps.begin_epoch()
        self._tell(self.promise)
