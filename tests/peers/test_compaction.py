"""Our cleaner and Kafka's leave the same records, and each cleans logs that the other cleaned."""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fault.test_compaction_crash import DIRECTORY, done_once
from tests.faults import Keep
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import Seen, consume, our_view, produce, read_ours
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0

from tidelog.env import Env, ManualClock
from tidelog.record.builder import build_batch
from tidelog.storage.compaction.cleaner import CleaningReport, clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.log import Log
from tidelog.storage.segment.compaction_history import read_history
from tidelog.types import ClockName, Codec, IsolationLevel, NewRecord, TopicPartition

pytestmark = pytest.mark.kafka

TOPIC = "keys"
NAME = TopicPartition(TOPIC, 0)
RETENTION_MS = 60_000
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1500",
    "index.interval.bytes": "200",
    "segment.index.bytes": "4096",
    "delete.retention.ms": str(RETENTION_MS),
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0.0",
    "retention.ms": "-1",
}
EVERYTHING = IsolationLevel.READ_UNCOMMITTED
COMMITTED = IsolationLevel.READ_COMMITTED
SEEDS = 20


@dataclass(slots=True)
class Ours:
    """A directory of tidelog with a clock that the test sets."""

    path: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(T0))

    def open(self) -> LogDir:
        env = Env(clock=self.clock)
        return LogDir.open(str(self.path), env=env, options=LogDirOptions(create=True))

    def clean(self, log_dir: LogDir) -> CleaningReport:
        log_dir.log(TOPIC, 0).flush()
        worker = InProcess(log_dir.env)
        return clean_partition(log_dir, NAME, worker, CleanerOptions(is_asked=True))

    def records(self, isolation: IsolationLevel) -> list[Seen]:
        with LogDir.open(str(self.path)) as log_dir:
            return [our_view(r) for r in log_dir.reader(TOPIC, 0).records(isolation=isolation)]


def append_keyed(log: Log, dice: random.Random, clock: ManualClock) -> None:
    """Append keyed batches of all codecs, tombstones, and committed and aborted transactions.

    The active segment is empty afterwards, because neither Kafka nor tidelog cleans it.
    """
    for number in range(25):
        clock.advance(dice.choice((0, 5, 900)))
        records = [record(dice, number) for _ in range(dice.randrange(1, 6))]
        if dice.random() < 0.3:
            producer = 1000 * (log.log_end_offset + 1) + number
            data = build_batch(
                records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
            )
            log.append_batches(data, AppendTerms(owned=True))
            log.append([record(dice, number)])
            log.end_transaction(
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=dice.random() < 0.5,
            )
        else:
            log.append(records, codec=dice.choice(list(Codec)))
    log.roll()
    log.flush()


def record(dice: random.Random, number: int) -> NewRecord:
    key = b"key-%d" % int(dice.paretovariate(0.7) % 15)
    value = None if dice.random() < 0.2 else b"%d:" % number + dice.randbytes(dice.randrange(40))
    return NewRecord(key=key, value=value, timestamp=T0 + dice.randrange(-5_000, 5_000))


def complaints(oracle: Oracle, side: Ours) -> list[str]:
    """Return the damage that Kafka's tool reports in a directory, without the directory's path."""
    found = oracle.check_directory(side.path)
    assert found.dumped
    return sorted(line.replace(str(side.path), "") for line in found.damage)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, SEEDS))]
)
def test_both_cleaners_leave_the_same_records(
    kafka_oracle: Oracle, quick_path: Path, seed: int
) -> None:
    """Clean three times: after the first records, after more records, after tombstones expired."""
    dice = random.Random(seed)
    ours = Ours(quick_path / "ours")
    with ours.open() as log_dir:
        log_dir.create_topic(TOPIC, config=CONFIG)
        append_keyed(log_dir.log(TOPIC, 0), dice, ours.clock)
    theirs = Ours(quick_path / "theirs", ours.clock)
    shutil.copytree(ours.path, theirs.path)
    cleaned_to = 0
    for step_ms in (0, 10, RETENTION_MS + 1_000):
        ours.clock.advance(step_ms)
        if step_ms:
            again = dice.getstate()
            for side in (ours, theirs):
                dice.setstate(again)
                now_ms = ours.clock.now_ms()
                with side.open() as log_dir:
                    append_keyed(log_dir.log(TOPIC, 0), dice, ours.clock)
                ours.clock = theirs.clock = ManualClock(now_ms)
            ours.clock.advance(30_000)
        with ours.open() as log_dir:
            ours.clean(log_dir)
        steps = [{"do": "compact", "first_dirty": cleaned_to}]
        directory = theirs.path / str(NAME)
        script = Script(directory, steps, CONFIG, now_ms=ours.clock.now_ms())
        (answer,) = kafka_oracle.run_well(script)
        assert isinstance(answer, dict)
        cleaned_to = answer["cleaned_to"]
        for isolation in IsolationLevel:
            assert ours.records(isolation) == theirs.records(isolation), (step_ms, isolation)
        # Both cleaners keep empty batches for active producers. Kafka's tool complains about the
        # timestamps of such batches.
        assert complaints(kafka_oracle, ours) == complaints(kafka_oracle, theirs)
    # Each key has only one record left. The loop above has compared the records of both cleaners.
    left = ours.records(COMMITTED)
    assert len({seen.key for seen in left}) == len(left)


def test_a_producers_own_delete_horizon_counts_for_both(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """A producer may set a batch's delete horizon: its tombstones are removed after that time."""
    for horizon_ms, is_left in ((T0 - 1, False), (T0 + 10 * RETENTION_MS, True)):
        ours = Ours(quick_path / f"ours-{is_left}")
        with ours.open() as log_dir:
            log_dir.create_topic(TOPIC, config=CONFIG)
            log = log_dir.log(TOPIC, 0)
            for key in (b"a", b"b"):
                log.append([NewRecord(key=key, value=b"v", timestamp=T0)])
            gone = [NewRecord(key=b"a", value=None, timestamp=T0)]
            log.append_batches(build_batch(gone, delete_horizon_ms=horizon_ms))
            log.roll()
            log.flush()
        theirs = Ours(quick_path / f"theirs-{is_left}", ours.clock)
        shutil.copytree(ours.path, theirs.path)
        with ours.open() as log_dir:
            ours.clean(log_dir)
        steps = [{"do": "compact", "first_dirty": 0}]
        script = Script(theirs.path / str(NAME), steps, CONFIG, now_ms=ours.clock.now_ms())
        kafka_oracle.run_well(script)
        assert ours.records(EVERYTHING) == theirs.records(EVERYTHING)
        assert (b"a" in [seen.key for seen in ours.records(EVERYTHING)]) is is_left


def test_kafka_completes_a_crashed_cleaning_of_tidelog(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """After a crash at any call of a cleaning, Kafka opens the directory, and nothing is lost."""
    env, before = done_once()
    seen = set()
    for number, state in enumerate(env.files.prefixes(Keep.EVERYTHING)):
        contents = {
            Path(path).name: data
            for path, data in state.contents().items()
            if data is not None and path.startswith(f"{DIRECTORY}/")
        }
        names = frozenset(contents)
        if names in seen:
            continue
        seen.add(names)
        directory = quick_path / str(number) / "t-0"
        directory.mkdir(parents=True)
        for name, data in contents.items():
            (directory / name).write_bytes(data)
        script = Script(directory, [{"do": "state"}], CONFIG, clean=False, now_ms=T0)
        kafka_oracle.run_well(script)
        with LogDir.open(str(directory.parent)) as log_dir:
            log = log_dir.reader("t", 0)
            assert log.log_end_offset == 32
            found = [(r.offset, r.key, r.value) for r in log.records(isolation=COMMITTED)]
        assert set(found) <= set(before.records)
        table = {key: value for _, key, value in found}
        assert {k: v for k, v in table.items() if v is not None} == before.table
        left = [path.name for path in directory.iterdir()]
        assert not [name for name in left if name.endswith((".swap", ".cleaned"))]
    assert len(seen) > 20


def our_turn(ours: Ours) -> dict[bytes | None, bytes]:
    """Fill the topic and compact it; return the resulting table."""
    with ours.open() as log_dir:
        log_dir.alter_config(TOPIC, {"internal.segment.bytes": "1500"})
        log = log_dir.log(TOPIC, 0)
        append_keyed(log, random.Random(7), ours.clock)
        table = replayed(read_ours(log, COMMITTED))
        report = ours.clean(log_dir)
        assert 0 < report.records_after < report.records_before
        assert replayed(read_ours(log, COMMITTED)) == table
    return table


def their_turn(oracle: Oracle, broker: Broker) -> tuple[int, bytes]:
    """Write a key repeatedly; return the offset and the value of the last record."""
    end = 0
    for codec in Codec:
        at = T0 + 10_000_000 + 1_000 * codec  # a second apart, so that each record starts a segment
        more = [NewRecord(key=b"key-1", value=codec.config_name.encode(), timestamp=at)]
        (end,) = produce(oracle, broker, TOPIC, more, codec=codec)
    broker.await_cleaning(TOPIC, end)
    return end, Codec.ZSTD.config_name.encode()


def test_kafka_continues_with_a_topic_compacted_by_tidelog(
    kafka_oracle: Oracle, stopped_kafka: Broker
) -> None:
    """Kafka consumes the same records and compacts further, and then we clean Kafka's result."""
    ours, place = Ours(stopped_kafka.log_dir), str(stopped_kafka.partition_dir(TOPIC))
    try:
        stopped_kafka.start()
        stopped_kafka.create_topic(
            TOPIC, cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.0"
        )
        stopped_kafka.stop()
        table = our_turn(ours)
        told = {isolation: ours.records(isolation) for isolation in IsolationLevel}
        stopped_kafka.start()
        for isolation in IsolationLevel:
            assert consume(kafka_oracle, stopped_kafka, TOPIC, isolation) == told[isolation]
        end, table[b"key-1"] = their_turn(kafka_oracle, stopped_kafka)
        assert replayed(consume(kafka_oracle, stopped_kafka, TOPIC, COMMITTED)) == table
    finally:
        stopped_kafka.kill()
    # Another cleaner has cleaned the log, so tables as of earlier times are unknown.
    assert read_history(Env().files, place) is None
    ours.clock.advance(20_000_000)
    with ours.open() as log_dir:
        assert log_dir.cleaner_offset(NAME) == end
        log_dir.log(TOPIC, 0).roll()
        ours.clean(log_dir)
        assert replayed(read_ours(log_dir.log(TOPIC, 0), COMMITTED)) == table
    history = read_history(Env().files, place)
    assert history is not None
    assert history.exact_since_ms(ClockName.RECORD) is None


def replayed(seen: list[Seen]) -> dict[bytes | None, bytes]:
    """Return the table that results from these records."""
    table = {one.key: one.value for one in seen}
    return {key: value for key, value in table.items() if value is not None}
