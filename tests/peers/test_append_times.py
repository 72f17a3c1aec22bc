"""tidelog and Kafka append in turn, and Kafka compacts and truncates: append times stay right.

Every record's value is unique. So the model can keep each record's append time and writer by value.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.peers.ours import OurLog, Step
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import CODECS, T0
from tests.worlds.repetition import rarely

from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

SEEDS_PER_TEST = 20
SESSIONS = 6
CONFIG = {
    "internal.segment.bytes": "700",
    "index.interval.bytes": "100",
    "segment.index.bytes": "4096",
    "cleanup.policy": "compact,delete",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0.0",
    "retention.ms": "-1",
}


@dataclass(slots=True)
class Model:
    """Writer and append time of each record.

    Attributes:
        rng: Source of everything drawn.
        now_ms: Clock of both sides; it does not go back.
        ours: Append times of our records by the records' values.
        leader_epoch: Leader epoch of the log; it increases with every session.
        count: Number of values written so far; each value is unique.
    """

    rng: random.Random
    now_ms: int = T0
    ours: dict[bytes, int] = field(default_factory=dict)
    leader_epoch: int = 0
    count: int = 0

    def records(self) -> list[NewRecord]:
        """Return a batch of new values under few keys, so that compaction has work."""
        found = []
        for _ in range(self.rng.randrange(1, 5)):
            self.count += 1
            key = b"key-%d" % self.rng.randrange(6)
            value = b"value %d" % self.count
            found.append(NewRecord(key=key, value=value, timestamp=self.now_ms - 50))
        return found

    def append(self) -> tuple[Step, list[NewRecord]]:
        """Return a step that appends a batch of new values, and the records of this batch."""
        self.now_ms += self.rng.choice((0, 1, 20, 3_000))
        records = self.records()
        data = bytes(build_batch(records, codec=self.rng.choice(CODECS)))
        step = {"do": "append", "data": data, "now_ms": self.now_ms}
        return step | {"leader_epoch": self.leader_epoch}, records


def our_session(model: Model, directory: Path, *, end: str) -> int:
    """Append batches; return how many append times were known before these appends.

    Asserts that no known append time is wrong.
    """
    model.leader_epoch += 1
    ours = OurLog(Script(directory, (), CONFIG, now_ms=model.now_ms, clean=True))
    known = check(model, ours)
    for _ in range(model.rng.randrange(4)):
        step, records = model.append()
        answer = ours.step(step)
        assert isinstance(answer, dict)
        assert "error" not in answer
        model.ours.update((r.value, model.now_ms) for r in records if r.value is not None)
    check(model, ours)
    ours.end(end)
    return known


def check(model: Model, ours: OurLog) -> int:
    """Assert that no record has a wrong append time; return how many have a known append time."""
    known = 0
    for record in ours.log.records():
        told = ours.log.append_time_of(record.offset)
        if told is not None:
            assert record.value is not None
            assert told == model.ours.get(record.value), record
            known += 1
    return known


def kafka_session(model: Model, oracle: Oracle, directory: Path) -> None:
    """Let Kafka's log make some random changes to the partition."""
    model.leader_epoch += 1
    steps: list[Step] = []
    for _ in range(model.rng.randrange(1, 5)):
        match model.rng.randrange(6):
            case 0 | 1 | 2:
                steps.append(model.append()[0])
            case 3:
                steps += [{"do": "roll"}, {"do": "compact"}]
            case 4:
                steps.append({"do": "cut_back", "records": model.rng.randrange(1, 12)})
            case _:
                steps.append({"do": "roll"})
    model.now_ms += 100
    oracle.run_well(Script(directory, steps, CONFIG, now_ms=model.now_ms))


@pytest.mark.parametrize("first", [0, rarely(SEEDS_PER_TEST)])
def test_no_record_gets_anothers_append_time(
    kafka_oracle: Oracle, quick_path: Path, first: int
) -> None:
    known = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        model = Model(random.Random(seed))
        directory = quick_path / str(seed) / "events-0"
        for _ in range(SESSIONS):
            end = model.rng.choice(("close", "close", "crash"))
            known += our_session(model, directory, end=end)
            kafka_session(model, kafka_oracle, directory)
        known += our_session(model, directory, end="close")
    # Without this check, the test would pass with a log that returns no append times at all.
    assert known > 20 * SEEDS_PER_TEST


def test_an_equal_batch_appended_by_kafka_is_not_ours(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """A producer sends a batch to Kafka again, after the log has lost the batch."""
    model = Model(random.Random(0))
    directory = quick_path / "events-0"
    ours = OurLog(Script(directory, (), CONFIG, now_ms=T0))
    step, _ = model.append()
    ours.step({**step, "now_ms": T0})
    ours.end("close")
    again = {**step, "now_ms": T0 + 60_000, "leader_epoch": 7}
    steps: list[Step] = [{"do": "truncate", "offset": 0}, again]
    kafka_oracle.run_well(Script(directory, steps, CONFIG, now_ms=T0 + 60_000))
    ours = OurLog(Script(directory, (), CONFIG, now_ms=T0 + 120_000))
    times = [ours.log.append_time_of(record.offset) for record in ours.log.records()]
    ours.end("close")
    assert times
    assert set(times) == {None}
