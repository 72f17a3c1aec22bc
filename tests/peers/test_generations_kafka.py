"""Kafka cleans logs that our generational cleaner has cleaned; all delete horizons have passed.

Our cleaner skips segments with little garbage. So older records of a key may remain in such
segments, although later segments are cleaned. Kafka assumes that every key has at most one record
below the offset in `cleaner-offset-checkpoint`, and removes tombstones on this assumption.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.peers.test_compaction import (
    COMMITTED,
    CONFIG,
    NAME,
    RETENTION_MS,
    TOPIC,
    Ours,
    append_keyed,
    replayed,
    their_turn,
)
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import consume
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0

from tidelog.record.builder import build_batch
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.log import Log
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

GENERATIONAL = {
    **CONFIG,
    "tidelog.compaction.scheduler": "generational",
    "tidelog.compaction.space.factor": "1.3",
}
COLD_KEYS = 200
ROUNDS = 5
# After this many rounds our cleaner has rewritten none of the old segments; after `ROUNDS` rounds
# it has rewritten all of them.
PARTIAL_ROUNDS = 3
QUICK, SWEPT = 3, 30

Table = dict[bytes | None, bytes]


@dataclass
class Lives:
    """A log that is cleaned by generations, and the same log without cleaning.

    Attributes:
        partial: Number of cleanings that skipped dirty segments below the segments that they
            rewrote.
    """

    ours: Ours
    whole: Ours
    dice: random.Random
    partial: int = 0

    @classmethod
    def lived(cls, path: Path, seed: int, rounds: int) -> "Lives":
        """Run some rounds: each appends records, and cleans if a cleaning is due."""
        made = cls(Ours(path / "ours"), Ours(path / "whole"), random.Random(seed))
        with made.ours.open() as log_dir:
            log_dir.create_topic(TOPIC, config=GENERATIONAL)
            add_cold(log_dir.log(TOPIC, 0))
        shutil.copytree(made.ours.path, made.whole.path)
        for _ in range(rounds):
            made.go_on()
            assert made.found == made.expected
        return made

    def go_on(self) -> None:
        """Append the same records to both logs, including tombstones for keys in old segments."""
        state = self.dice.getstate()
        for side in (self.ours, self.whole):
            self.dice.setstate(state)
            side.clock.advance(RETENTION_MS // 2)
            with side.open() as log_dir:
                delete_cold(log_dir.log(TOPIC, 0), self.dice)
                append_keyed(log_dir.log(TOPIC, 0), self.dice, side.clock)
        with self.ours.open() as log_dir:
            report = clean_partition(log_dir, NAME, InProcess(log_dir.env), CleanerOptions())
            clean_to = log_dir.cleaner_offset(NAME) or 0
        self.partial += bool(report.passes) and clean_to < report.decision.end

    @property
    def expected(self) -> Table:
        return replayed(self.whole.records(COMMITTED))

    @property
    def found(self) -> Table:
        return replayed(self.ours.records(COMMITTED))

    @property
    def checkpoint(self) -> int:
        with self.ours.open() as log_dir:
            return log_dir.cleaner_offset(NAME) or 0

    @property
    def end(self) -> int:
        with self.ours.open() as log_dir:
            return log_dir.log(TOPIC, 0).log_end_offset

    def copy(self, path: Path) -> Ours:
        shutil.copytree(self.ours.path, path)
        return Ours(path, self.ours.clock)


def add_cold(log: Log) -> None:
    """Append segments whose keys are updated rarely.

    The first segment also has a transaction's record. The transaction's commit marker follows after
    all of these segments.
    """
    sent = [NewRecord(key=b"sent", value=b"once", timestamp=T0)]
    data = build_batch(sent, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_batches(data, AppendTerms(owned=True))
    for number in range(COLD_KEYS):
        log.append([NewRecord(key=b"cold-%d" % number, value=b"." * 40, timestamp=T0)])
    log.roll()
    log.end_transaction(producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=True)
    log.flush()


def delete_cold(log: Log, dice: random.Random) -> None:
    gone = dice.sample(range(COLD_KEYS), 3)
    log.append([NewRecord(key=b"cold-%d" % n, value=None, timestamp=T0) for n in gone])


def taken_over(oracle: Oracle, side: Ours, first_dirty: int, passes: int) -> None:
    """Run Kafka's cleaner `passes` times, each after all horizons have passed.

    In each run, records from the same offset on count as dirty, because Kafka skips a log without
    dirty records.
    """
    now_ms = side.clock.now_ms()
    for _ in range(passes):
        now_ms += 2 * RETENTION_MS
        steps = [{"do": "compact", "first_dirty": first_dirty}]
        oracle.run_well(Script(side.path / str(NAME), steps, CONFIG, now_ms=now_ms))


def ensure_nothing_open(oracle: Oracle, side: Ours) -> None:
    """Assert that Kafka has no open transaction after reading the whole log without a snapshot."""
    directory = side.path / str(NAME)
    for path in directory.glob("*.snapshot"):
        path.unlink()
    script = Script(directory, [{"do": "state"}], CONFIG, clean=False, now_ms=side.clock.now_ms())
    (state,) = oracle.run_well(script)
    assert isinstance(state, dict)
    assert state["last_stable_offset"] == state["log_end_offset"]


@pytest.mark.parametrize("rounds", [PARTIAL_ROUNDS, ROUNDS])
@pytest.mark.parametrize(
    "seed",
    [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, SWEPT))],
)
def test_no_deleted_key_returns(
    kafka_oracle: Oracle, quick_path: Path, seed: int, rounds: int
) -> None:
    lives = Lives.lived(quick_path, seed, rounds)
    assert lives.partial, "every cleaning was a full one"
    ensure_nothing_open(kafka_oracle, lives.copy(quick_path / "read"))
    for passes in (1, 2):
        side = lives.copy(quick_path / f"theirs-{passes}")
        taken_over(kafka_oracle, side, lives.checkpoint, passes)
        left = side.records(COMMITTED)
        assert replayed(left) == lives.expected
        assert len({seen.key for seen in left}) == len(left), "a key twice"
        if passes > 1:
            assert all(seen.value is not None for seen in left), "a tombstone has had its time"
        ensure_nothing_open(kafka_oracle, side)


def test_a_checkpoint_that_is_too_high_would_show(kafka_oracle: Oracle, quick_path: Path) -> None:
    """Kafka removes a tombstone although an older value remains, so the deleted key is back."""
    lives = Lives.lived(quick_path, 0, PARTIAL_ROUNDS)
    side = lives.copy(quick_path / "theirs")
    # The last 9 offsets count as dirty, because Kafka does not clean a log without dirty records.
    taken_over(kafka_oracle, side, lives.end - 9, 1)
    assert replayed(side.records(COMMITTED)).keys() - lives.expected.keys()


def test_a_broker_takes_over(kafka_oracle: Oracle, stopped_kafka: Broker) -> None:
    """Kafka's cleaner runs in a real broker, whose clock is years after all horizons."""
    ours = Ours(stopped_kafka.log_dir)
    try:
        stopped_kafka.start()
        stopped_kafka.create_topic(
            TOPIC, cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.0"
        )
        stopped_kafka.stop()
        whole, partial = our_turn(ours)
        assert partial
        waiting = tombstones(ours)
        stopped_kafka.start()
        end, whole[b"key-1"] = their_turn(kafka_oracle, stopped_kafka)
        assert replayed(consume(kafka_oracle, stopped_kafka, TOPIC, COMMITTED)) == whole
    finally:
        stopped_kafka.kill()
    left = [seen for seen in ours.records(COMMITTED) if seen.offset < end]
    assert len({seen.key for seen in left}) == len(left)
    # Kafka removes the tombstones whose delete horizon our cleaner had set, because this horizon
    # has passed. Other tombstones remain, and Kafka sets their horizon now.
    assert len(tombstones(ours) & waiting) < len(waiting)


def tombstones(ours: Ours) -> set[int]:
    return {seen.offset for seen in ours.records(COMMITTED) if seen.value is None}


def our_turn(ours: Ours) -> tuple[Table, int]:
    """Run rounds of records and cleanings; return the table and the count of partial cleanings."""
    dice, partial = random.Random(7), 0
    settings = {key: value for key, value in GENERATIONAL.items() if key != "cleanup.policy"}
    with ours.open() as log_dir:
        log_dir.alter_config(TOPIC, settings)
        log = log_dir.log(TOPIC, 0)
        add_cold(log)
        table: Table = {}
        for _ in range(PARTIAL_ROUNDS):
            ours.clock.advance(RETENTION_MS // 2)
            delete_cold(log, dice)
            append_keyed(log, dice, ours.clock)
            table = replayed(ours.records(COMMITTED))
            report = clean_partition(log_dir, NAME, InProcess(log_dir.env), CleanerOptions())
            assert replayed(ours.records(COMMITTED)) == table
            clean_to = log_dir.cleaner_offset(NAME) or 0
            partial += bool(report.passes) and clean_to < report.decision.end
    return table, partial
