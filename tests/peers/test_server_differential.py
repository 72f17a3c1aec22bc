"""The same traffic gives equal files and responses in Apache Kafka 4.3 and in our broker.

Append times differ between the brokers, so each broker's lookups are compared with its own records.
Index files of Kafka's active segment are preallocated; the zeros after their entries are not
entries (docs/differences.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.peers.traffic import Traffic
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import until_equal

import tidelog
from tidelog.protocol.messages import DELETE_RECORDS, FETCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.record.batch_walk import walk
from tidelog.server.embedded import Broker as OurBroker

pytestmark = pytest.mark.kafka

INDEX_ENTRY_SIZES = {".index": 8, ".timeindex": 12}
SPECIAL = (-1, -2, -3, -4, -5)
PLAIN_RUN, SWEEP = 75, 3_000
# No retention and no limit for old timestamps, because the traffic's times are in the past. The
# index has an entry every 300 bytes, so that lookups use more entries.
FREE = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "index.interval.bytes": "300",
}
# Batches are at most seconds apart, so a segment ends after some dozens of batches.
ROLLED = FREE | {"segment.ms": "10000", "segment.jitter.ms": "0"}
CREATE_TIME_TOPICS = {
    "plain": FREE,
    "rolled": ROLLED,
    "uncompressed": ROLLED | {"compression.type": "uncompressed"},
}
APPEND_TIME = FREE | {"message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Kafka and our broker, and a connection to each."""

    kafka: Broker
    ours: OurBroker
    kafka_client: RawClient
    our_client: RawClient

    def create(self, topic: str, config: dict[str, str]) -> None:
        """Create the same topic in both."""
        settings = {key.replace(".", "_"): value for key, value in config.items()}
        self.kafka.create_topic(topic, 1, **settings)
        self.ours.call(lambda node: node.log_dir.create_topic(topic, partitions=1, config=config))
        # Kafka's broker gets the topic from the controller.
        until_equal(0, lambda: self.kafka_client.list_offsets(topic, -1)[0].error_code)

    def clients(self) -> tuple[RawClient, RawClient]:
        """Return both connections, Kafka's first."""
        return (self.kafka_client, self.our_client)

    def directories(self, topic: str) -> tuple[Path, Path]:
        """Return both partition folders, Kafka's first."""
        return (self.kafka.partition_dir(topic), Path(self.ours.data, f"{topic}-0"))


@pytest.fixture
def pair(kafka_broker: Broker, quick_path: Path) -> Iterator[Pair]:
    """Both brokers running."""
    with (
        tidelog.broker(str(quick_path)) as ours,
        RawClient(kafka_broker.bootstrap) as kafka_client,
        RawClient(ours.bootstrap_servers) as our_client,
    ):
        yield Pair(kafka_broker, ours, kafka_client, our_client)


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    """Number of requests per topic."""
    return SWEEP if request.config.getoption("--sweep") else PLAIN_RUN


def _send(pair: Pair, topic: str, seed: int, count: int) -> None:
    """Send each request to both brokers; compare codes, offsets, failed records and time types."""
    for number, sent in enumerate(Traffic(seed).requests(count)):
        told = []
        for client in pair.clients():
            answer = client.produce(topic, sent.batch)
            rows = [row.batch_index for row in answer.record_errors]
            offsets = (answer.base_offset, answer.log_start_offset)
            told.append((answer.error_code, offsets, rows, answer.log_append_time_ms < 0))
        assert told[0] == told[1], f"request {number} ({sent.kind})"


def _entries(file: Path) -> bytes:
    """Return a file's content; for an index, without the zeros that Kafka preallocates."""
    data = file.read_bytes()
    size = INDEX_ENTRY_SIZES.get(file.suffix)
    if size is None:
        return data
    end = len(data) // size * size
    while end and not any(data[end - size : end]):
        end -= size
    return data[:end]


def _files(directory: Path, suffix: str) -> dict[str, bytes]:
    return {file.name: _entries(file) for file in sorted(directory.glob(f"*{suffix}"))}


@pytest.mark.parametrize("topic", CREATE_TIME_TOPICS)
def test_files_and_lookups_are_equal(pair: Pair, topic: str, count: int) -> None:
    pair.create(topic, CREATE_TIME_TOPICS[topic])
    _send(pair, topic, seed=len(topic), count=count)
    kafkas, ours = pair.directories(topic)
    for suffix in (".log", ".index", ".timeindex"):
        assert _files(kafkas, suffix) == _files(ours, suffix)
    times = {record.timestamp for record in pair.our_client.read_all(topic)}
    asked = sorted({when + step for when in times for step in (-1, 0, 1)})
    for value in (*SPECIAL, *asked):
        kafka_says, we_say = (client.list_offsets(topic, value)[0] for client in pair.clients())
        assert kafka_says == we_say, value


def test_a_fetch_brings_the_batches_that_kafka_brings_whole(pair: Pair, count: int) -> None:
    """Kafka cuts the last batch at the size limit; `_fetch` drops this part of a batch."""
    topic = "fetched"
    pair.create(topic, ROLLED)
    _send(pair, topic, seed=5, count=count)
    end = pair.our_client.list_offsets(topic, -1)[0].offset
    for offset in (*range(0, end, max(1, end // 60)), end, end + 1, -1):
        for limit in (0, 1, 200, 1_000, 20_000, 1 << 20):
            kafkas, ours = (_fetch(one, topic, offset, limit) for one in pair.clients())
            assert kafkas == ours, (offset, limit)
            assert len(ours.data) <= limit or ours.batches == 1, (offset, limit)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A partition's response, without a last batch that is incomplete."""

    error: int
    places: tuple[int, int, int]
    data: bytes
    batches: int


def _fetch(client: RawClient, topic: str, offset: int, limit: int) -> Fetched:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=limit)
    message = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
        rack_id="",
    )
    found = client.ask(FETCH, 12, message).responses[0].partitions[0]
    places = (found.high_watermark, found.last_stable_offset, found.log_start_offset)
    records = bytes(found.records or b"")  # type: ignore[arg-type] # one buffer
    sizes = [batch.size_bytes for batch in walk(records)]
    return Fetched(found.error_code, places, records[: sum(sizes)], len(sizes))


def test_deletions_of_records_have_equal_effects(pair: Pair, count: int) -> None:
    topic = "deleted"
    pair.create(topic, ROLLED)
    _send(pair, topic, seed=11, count=count)
    end = pair.our_client.list_offsets(topic, -1)[0].offset
    starts = [3, end // 2, end // 2, end // 2, end]
    for offset in (3, end // 2, 1, end + 1, -1):
        partition = DeleteRecordsPartition(partition_index=0, offset=offset)
        message = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=90_000
        )
        kafka_says, we_say = (one.ask(DELETE_RECORDS, 2, message) for one in pair.clients())
        assert kafka_says.topics == we_say.topics, offset
        kafkas, ours = (client.list_offsets(topic, -2)[0].offset for client in pair.clients())
        assert kafkas == ours == starts.pop(0)
        _look_up_everything(pair, topic)


def _look_up_everything(pair: Pair, topic: str) -> None:
    """Compare lookups of each time, but not where Kafka misses our match (see test_lookups.py)."""
    times = {record.timestamp for record in pair.our_client.read_all(topic)}
    for value in (-1, -2, -4, -5, *sorted(times)):
        kafka_says, we_say = (client.list_offsets(topic, value)[0] for client in pair.clients())
        if (kafka_says.offset, we_say.offset >= 0) != (-1, True):
            assert kafka_says == we_say, value


def test_append_time_is_each_brokers_own_and_everything_else_equal(pair: Pair, count: int) -> None:
    topic = "appended"
    pair.create(topic, APPEND_TIME)
    _send(pair, topic, seed=3, count=count)
    kafkas, ours = (_timeless(directory) for directory in pair.directories(topic))
    assert kafkas == ours
    for client in pair.clients():
        records = client.read_all(topic)
        for when in sorted({record.timestamp for record in records}):
            expected = next(record.offset for record in records if record.timestamp >= when)
            found = client.list_offsets(topic, when)[0]
            assert (found.offset, found.timestamp) == (expected, when)


def _timeless(directory: Path) -> list[tuple[object, ...]]:
    """Return the batches without times and checksums, and the entries of the offset index."""
    data = b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))
    found: list[tuple[object, ...]] = [tuple(_files(directory, ".index").items())]
    for batch in walk(data):
        records = [(r.offset, r.key, r.value, r.headers) for r in batch.records()]
        found.append((batch.base_offset, batch.size_bytes, batch.attributes, records))
    return found


def test_largest_timestamp_and_empty_partition(pair: Pair) -> None:
    pair.create("empty", FREE)
    for value in (*SPECIAL, 0, 1, 2**62):
        kafka_says, we_say = (client.list_offsets("empty", value)[0] for client in pair.clients())
        assert kafka_says == we_say, value
