"""Deleting a disposable file changes no result of a reader, on either clock.

Some logs were created, continued or cut by another program, or compacted. They have transactions,
records without a time, a clock that pauses and jumps, and a log start inside a segment. Each kind
of file that can be rebuilt is deleted, for all segments or for one; every result of a reader must
be the same before and after.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.core import thinned
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories import logs
from tests.worlds.directories.logs import PATH, TOPIC, new_dir

from tidelog.record.builder import build_batch
from tidelog.scan import ReadOptions, RequestedRange, count, plan, to_table
from tidelog.scan.latency import latency, lateness
from tidelog.scan.split import ScanStats
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import ClockName, Codec, IsolationLevel, NewRecord, TopicPartition

NAME = TopicPartition(TOPIC, 0)
# Disposable files: files that are rebuilt from other files, or that are only informative. A file in
# WHOLE belongs to the whole partition, a file in SIDECARS to one segment.
#
# `.txnindex` is not disposable. Kafka writes none for a segment without aborted transactions, so if
# the file was deleted, only a zone map can show that it is missing.
SIDECARS = (".zones", ".index", ".timeindex")
WHOLE = ("segment-notes", "compaction-statistics", "deletion-history")
STEPS = 14
LIVES, SWEPT = 4, 1_000


@dataclass
class Life:
    """One log, created by a seed."""

    seed: int
    dice: random.Random = field(init=False)
    env: SeededEnv = field(init=False)
    directory: LogDir = field(init=False)
    serial: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.env = seeded_env(self.seed)
        self.middle = self.env.clock.now_ms()
        self.policy = self.dice.choice(("compact", "compact,delete", "delete"))
        config = {
            "cleanup.policy": self.policy,
            "internal.segment.bytes": self.dice.choice(("600", "1500", "100000")),
            "index.interval.bytes": self.dice.choice(("0", "150", "4096")),
            "message.timestamp.type": self.dice.choice(("CreateTime",) * 4 + ("LogAppendTime",)),
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "0",
            "file.delete.delay.ms": "0",
        }
        if self.dice.random() < 0.3:
            config["tidelog.compaction.scheduler"] = "generational"
        self.directory = new_dir(self.env, config)
        if self.dice.random() < 0.6:
            self.write_beside()

    @property
    def log(self) -> Log:
        """The partition."""
        return self.directory.log(TOPIC, 0)

    def run(self) -> None:
        """Take some steps, then stop cleanly."""
        steps = (
            *[self.append] * 8,
            *[self.pass_time] * 4,
            *[self.roll] * 3,
            *[self.clean] * 3,
            self.transact,
            self.write_beside,
            self.restart,
            self.move_start,
        )
        for step in self.dice.choices(steps, k=STEPS):
            step()
        self.directory.close()

    def _records(self) -> list[NewRecord]:
        found = []
        for _ in range(self.dice.randrange(1, 8)):
            self.serial += 1
            time = self.env.clock.now_ms() + self.dice.randrange(-60, 60)
            found.append(
                NewRecord(
                    key=b"k%d" % self.dice.randrange(6),
                    value=None if self.dice.random() < 0.2 else b"%d" % self.serial,
                    timestamp=-1 if self.dice.random() < 0.1 else time,
                )
            )
        return found

    def append(self) -> None:
        codec = self.dice.choice((Codec.NONE, Codec.LZ4))
        self.log.append(self._records(), codec=codec, batch_bytes=self.dice.choice((80, 1 << 20)))

    def pass_time(self) -> None:
        self.env.clock.advance(self.dice.randrange(1, 40))

    def roll(self) -> None:
        self.log.roll()

    def clean(self) -> None:
        if "compact" in self.policy:
            options = CleanerOptions(is_asked=True)
            clean_partition(self.directory, NAME, InProcess(self.env), options)

    def transact(self) -> None:
        producer_id = self.serial + 9
        data = build_batch(
            self._records(),
            transactional=True,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        self.log.append_batches(data)
        self.log.end_transaction(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=self.dice.random() < 0.5,
        )

    def move_start(self) -> None:
        if "delete" not in self.policy:
            return
        end = self.log.log_end_offset
        self.log.delete_records(self.log.log_start_offset + (end - self.log.log_start_offset) // 3)

    def restart(self) -> None:
        self.directory.close()
        self._open()

    def write_beside(self) -> None:
        """Append to the last segment as another program does that stops uncleanly."""
        end = self.log.log_end_offset
        self.directory.close()
        name = max(name for name in logs.names(self.env) if name.endswith(".log"))
        data = logs.read(self.env, name)
        for _ in range(self.dice.randrange(1, 5)):
            records = self._records()
            data += build_batch(records, base_offset=end)
            end += len(records)
        logs.write(self.env, name, data)
        mark = f"{PATH}/.kafka_cleanshutdown"
        if self.env.files.exists(mark):
            self.env.files.remove(mark)
        self._open()

    def _open(self) -> None:
        self.directory = LogDir.open(PATH, env=self.env, options=LogDirOptions(create=True))


def ranges(life: Life) -> Iterator[RequestedRange]:
    """Yield the ranges to read; they are the same before and after the deletion."""
    dice = random.Random(life.seed + 1)
    yield RequestedRange()
    yield RequestedRange(start_ms=0)
    span = life.env.clock.now_ms() - life.middle + 60
    for _ in range(3):
        start = life.middle + dice.randrange(-60, max(span, 1))
        yield RequestedRange(start_ms=start, end_ms=start + dice.randrange(1, 120))
        yield RequestedRange(start_ms=start)


def answers(life: Life, *, is_writable: bool = False) -> dict[object, object]:
    """Return every result of a reader."""
    env = life.env
    found: dict[object, object] = {}
    options = LogDirOptions(create=True) if is_writable else LogDirOptions()
    with LogDir.open(PATH, env=env, options=options) as directory:
        log = directory.log(TOPIC, 0) if is_writable else directory.reader(TOPIC, 0)
        source: str | LogDir = directory if is_writable else PATH
        found["ends"] = (log.log_start_offset, log.log_end_offset)
        found["records"] = [*log.records(log.log_start_offset)]
        found["largest"] = log.max_timestamp()
        for wanted in ranges(life):
            for clock in ClockName:
                found |= timed_answers(life, source, wanted, clock)
                if wanted.start_ms is not None:
                    place = ("lookup", wanted.start_ms, clock)
                    found[place] = log.offset_for_time(wanted.start_ms, clock=clock)
        for offset in range(log.log_start_offset, log.log_end_offset):
            found["append time", offset] = log.append_time_of(offset)
        for start_ms in (None, life.middle):
            one = latency(source, TOPIC, start_ms=start_ms, env=env)[TOPIC]
            hours = {hour: facts_of(histogram) for hour, histogram in one.by_hour.items()}
            found["latency", start_ms] = (hours, one.without)
        late = lateness(source, TOPIC, env=env)[TOPIC]
        found["late"] = (late.records, late.without_time, late.lost, late.out_of_order)
    return found


def facts_of(histogram: object) -> object:
    return {name: getattr(histogram, name) for name in ("count", "min_ms", "max_ms", "buckets")}


def timed_answers(
    life: Life, source: str | LogDir, wanted: RequestedRange, clock: ClockName
) -> dict[object, object]:
    found: dict[object, object] = {}
    for isolation in IsolationLevel:
        place = (wanted, clock, isolation)
        ways = {"requested_range": wanted, "clock": clock, "isolation": isolation, "env": life.env}
        number = count(source, TOPIC, **ways)  # type: ignore[arg-type] # as they are named
        rows = plan(source, TOPIC, **ways, split_bytes=400)  # type: ignore[arg-type] # as above
        whole = plan(source, TOPIC, **ways, strict=True)  # type: ignore[arg-type] # as above
        stats = ScanStats()
        options = ReadOptions(env=life.env, rows=3)
        columns = ["offset", "key", "value", "timestamp", "appendTimestamp"]
        table = to_table(rows, columns, options=options, stats=stats)
        found["scan", place] = table.to_pylist()
        found["count", place] = number.records
        assert number.records == table.num_rows, place
        # For a range of timestamps, only a `strict` plan reads every record without a time.
        if clock is ClockName.APPEND:
            assert number.without_time == stats.without_time, place
            assert not number.is_least
            found["without", place] = number.without_time
        every = ScanStats()
        to_table(whole, ["offset"], options=ReadOptions(env=life.env), stats=every)
        assert every.rows == number.records
        found["without, strict", place] = every.without_time
        assert number.without_time <= every.without_time
        assert number.is_least or number.without_time == every.without_time
    return found


def differing(before: dict[object, object], after: dict[object, object]) -> dict[object, object]:
    assert before.keys() == after.keys()
    return {k: (before[k], after[k]) for k in before if before[k] != after[k]}


def live(seed: int) -> None:
    life = Life(seed)
    life.run()
    before = answers(life)
    there = logs.names(life.env)
    for suffix in SIDECARS:
        names = [name for name in there if name.endswith(suffix)]
        for gone in (names, names[:1], names[-1:]):
            kept = {name: logs.read(life.env, name) for name in gone}
            for name in gone:
                life.env.files.remove(logs.path_of(name))
            assert not differing(before, answers(life)), (seed, gone)
            for name, data in kept.items():
                logs.write(life.env, name, data)
    for name in (*WHOLE, *(name for name in there if name.endswith(SIDECARS))):
        if life.env.files.exists(logs.path_of(name)):
            life.env.files.remove(logs.path_of(name))
    assert not differing(before, answers(life)), (seed, "all")
    assert not differing(before, answers(life, is_writable=True)), (seed, "opened for writing")
    assert not differing(before, answers(life)), (seed, "made again")


@pytest.mark.parametrize("chunk", range(4))
def test_a_deleted_disposable_file_changes_no_result(chunk: int) -> None:
    for seed in thinned(range(chunk, LIVES, 4)):
        live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_the_same_for_many_logs(chunk: int) -> None:
    for seed in range(LIVES + chunk, LIVES + SWEPT, 10):
        live(seed)
