"""One directory, opened by turns by tidelog and by a real broker that also compacts it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import Seen, consume, produce, read_ours
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import T0

from tidelog.env import Env, ManualClock
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log_reader import LogView
from tidelog.types import Codec, IsolationLevel, NewRecord

pytestmark = pytest.mark.kafka

TOPIC = "turns"
EVERYTHING = IsolationLevel.READ_UNCOMMITTED


@dataclass(slots=True)
class Model:
    """Everything that was ever appended.

    Attributes:
        values: Value by offset; a gap is a control record.
        keys: Key by offset.
        appended_ms: Append time by offset; missing for Kafka's appends.
        wrong: Append times that tidelog returned but that are wrong, by offset.
        known: Number of append times that tidelog returned and that are right.
        clock: Clock of our sessions.
        count: Number of values written so far; each value is unique.
    """

    values: dict[int, bytes] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    appended_ms: dict[int, int] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)
    known: int = 0
    clock: ManualClock = field(default_factory=lambda: ManualClock(T0))
    count: int = 0

    def records(self, count: int, *, key_count: int) -> list[NewRecord]:
        """Return new records a second apart, so that each batch starts a segment in Kafka."""
        found = []
        for _ in range(count):
            self.count += 1
            key, value = b"key-%d" % (self.count % key_count), b"value %d" % self.count
            found.append(NewRecord(key=key, value=value, timestamp=T0 + self.count * 1_000))
        return found

    def note(self, records: Sequence[NewRecord], first: int, now_ms: int | None) -> None:
        """Record an append at `first`; `now_ms` is None for an append by Kafka."""
        for offset, record in enumerate(records, first):
            assert record.key is not None
            assert record.value is not None
            self.keys[offset], self.values[offset] = record.key, record.value
            if now_ms is not None:
                self.appended_ms[offset] = now_ms

    def check(self, seen: Sequence[Seen]) -> None:
        """Assert that no record has changed, and that the last record of each key is present."""
        found = {record.offset: record.value for record in seen}
        assert len(found) == len(seen)
        assert {offset: self.values[offset] for offset in found} == found
        latest = {key: offset for offset, key in sorted(self.keys.items())}
        assert set(latest.values()) <= set(found)

    def check_times(self, reader: LogView) -> None:
        """Count the reader's right append times, and collect the reader's wrong append times."""
        for record in reader.records():
            told = reader.append_time_of(record.offset)
            if told is None:
                continue
            if told == self.appended_ms.get(record.offset):
                self.known += 1
            else:
                self.wrong[record.offset] = told


def create(broker: Broker) -> None:
    """Let the broker create the topic, without records."""
    broker.start()
    broker.create_topic(
        TOPIC, cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.0"
    )
    broker.stop()


def kafka_turn(model: Model, oracle: Oracle, broker: Broker, *, clean: bool) -> None:
    """Start the broker, check the records, append, wait for compaction, stop the broker."""
    broker.start()
    model.check(consume(oracle, broker, TOPIC, EVERYTHING))
    first = 0
    for codec in Codec:
        records = model.records(3, key_count=7)
        first = produce(oracle, broker, TOPIC, records, codec=codec)[0]
        model.note(records, first, None)
    # Await the cleaning of everything before the last batch, which is in the active segment.
    broker.await_cleaning(TOPIC, first)
    model.check(consume(oracle, broker, TOPIC, EVERYTHING))
    if clean:
        broker.stop()
    else:
        broker.kill()


def our_turn(model: Model, oracle: Oracle, broker: Broker) -> None:
    """Open the directory, check all records and append times, and append batches."""
    env = Env(clock=model.clock)
    options = LogDirOptions(writable=True)
    with LogDir.open(str(broker.log_dir), env=env, options=options) as directory:
        log = directory.log(TOPIC, 0)
        model.check(read_ours(log, EVERYTHING))
        model.check_times(log)
        for codec in Codec:
            model.clock.advance(10_000)
            records = model.records(2, key_count=1_000)
            first = log.append(records, codec=codec).base_offset
            model.note(records, first, model.clock.now_ms())
        model.check(read_ours(log, EVERYTHING))
    found = oracle.check_directory(broker.partition_dir(TOPIC))
    assert found.dumped
    assert found.damage == ()


@pytest.fixture(scope="module")
def model(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    """Return the model after all turns; each turn checks the earlier appends."""
    broker = Broker(kafka_jars, kafka_oracle, tmp_path_factory.mktemp("turns"))
    model = Model()
    try:
        create(broker)
        our_turn(model, kafka_oracle, broker)
        for clean in (True, False, True):
            kafka_turn(model, kafka_oracle, broker, clean=clean)
            our_turn(model, kafka_oracle, broker)
        kafka_turn(model, kafka_oracle, broker, clean=True)
    finally:
        broker.kill()
    return model


def test_both_find_all_records_of_the_other(model: Model) -> None:
    """The fixture checks the records in every turn; this test checks the totals."""
    assert sorted(model.values) == list(range(model.count))
    assert model.count == 4 * 3 * len(Codec) + 4 * 2 * len(Codec)


def test_no_append_time_is_anothers(model: Model) -> None:
    assert model.known
    assert model.wrong == {}
