"""Produce v0 to v2, with the setting `tidelog.legacy.clients`."""

from pathlib import Path

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.protocol.messages import FETCH, LIST_OFFSETS, PRODUCE
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.produce import PartitionProduceResponse
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.record import Record
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.types import Buffer, Codec, NewRecord

# The records are old: the default retention of a week would delete them.
SETTINGS = {
    "tidelog.legacy.clients": "true",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
}
TOPIC = "old"
STAMPED = "stamped"
CONFIG = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
NOW = 1_700_000_000_000
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def make_topics(node: Node) -> None:
    node.log_dir.create_topic(TOPIC, partitions=1, config=CONFIG)
    node.log_dir.create_topic(
        STAMPED, partitions=1, config={"message.timestamp.type": "LogAppendTime"}
    )


# A broker for old clients.
broker = broker_fixture(SETTINGS, fill=make_topics)


def indexed_records(first: int, count: int = 3) -> list[NewRecord]:
    return [
        NewRecord(key=b"k", value=b"%d" % index * 30, timestamp=NOW + index)
        for index in range(first, first + count)
    ]


def ask_produce(
    broker: Broker, version: int, data: bytes | bytearray, topic: str = TOPIC
) -> PartitionProduceResponse:
    with RawClient(broker.bootstrap_servers) as client:
        answer = client.ask(PRODUCE, version, produce_request(topic, bytes(data)))
    return answer.responses[0].partition_responses[0]


def fetch(broker: Broker, version: int, offset: int, topic: str = TOPIC) -> Buffer:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    what = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[asked])])
    with RawClient(broker.bootstrap_servers) as client:
        found = client.ask(FETCH, version, what).responses[0].partitions[0]
    assert found.error_code == 0
    return found.batches


def read(broker: Broker, version: int, end: int, topic: str = TOPIC) -> tuple[list[Record], str]:
    """Return all records, and a text with one digit per batch: the batch's format."""
    seen: list[Record] = []
    magics = ""
    while len(seen) < end:
        batches = list(walk(fetch(broker, version, len(seen), topic)))
        assert batches
        for batch in batches:
            batch.ensure_valid()
            magics += str(batch.magic)
            seen += [record for record in batch.records() if record.offset >= len(seen)]
    return seen, magics


def send_old_sets(broker: Broker) -> int:
    """Send sets of each codec and format by Produce v0 to v2, then a batch; return the log end."""
    end = 0
    for version in (0, 1, 2):
        for magic in (0, 1):
            for codec in CODECS:
                sent = build_legacy_set(indexed_records(end), magic=magic, codec=codec)
                answer = ask_produce(broker, version, sent)
                assert (answer.error_code, answer.base_offset) == (0, end)
                assert answer.log_append_time_ms == -1
                end += 3
    assert ask_produce(broker, 9, build_batch(indexed_records(end))).base_offset == end
    return end + 3


def check(broker: Broker, end: int) -> None:
    """Read by each version of Fetch: batches keep their sent format if the version supports it."""
    sent_formats = ("000" + "000" + "111" + "111") * 3 + "2"
    for version in (0, 1, 2, 3, 4, 12):
        found, magics = read(broker, version, end)
        assert [record.offset for record in found] == list(range(end))
        assert [record.value for record in found] == [r.value for r in indexed_records(0, end)]
        if version >= 4:
            assert magics == sent_formats
            times = [r.timestamp for r in found]
            assert times == [
                -1 if n // 12 % 2 == 0 and n < end - 3 else NOW + n for n in range(end)
            ]
        elif version >= 2:
            assert set(magics) == {"0", "1"}
        else:
            assert set(magics) == {"0"}
    for offset in (12, 17, 23, 40, end - 1):  # records that have times
        assert lookup(broker, NOW + offset) == (offset, NOW + offset)


def lookup(broker: Broker, timestamp: int) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    what = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    with RawClient(broker.bootstrap_servers) as client:
        found = client.ask(LIST_OFFSETS, 1, what).topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset, found.timestamp


def test_records_of_old_producers_are_stored_and_read_by_all_clients(
    broker: Broker, tmp_path: Path
) -> None:
    end = send_old_sets(broker)
    check(broker, end)
    broker.close()
    with tidelog.broker(str(tmp_path / "data"), settings=SETTINGS) as again:
        check(again, end)
        answer = ask_produce(
            again, 2, build_legacy_set(indexed_records(end), magic=1, codec=Codec.GZIP)
        )
        assert answer.base_offset == end
        assert len(read(again, 4, end + 3)[0]) == end + 3


@pytest.mark.parametrize("codec", CODECS)
def test_the_append_time_is_returned_and_stored(broker: Broker, codec: Codec) -> None:
    sent = build_legacy_set(indexed_records(0), magic=1, codec=codec)
    assert ask_produce(broker, 1, sent, STAMPED).error_code == 0
    stamped = ask_produce(broker, 2, sent, STAMPED).log_append_time_ms
    assert stamped > NOW
    found, _ = read(broker, 3, 6, STAMPED)
    assert [record.timestamp for record in found[3:]] == [stamped] * 3


@pytest.mark.parametrize(
    ("version", "codec"), [("0.8.2", "lz4"), ("0.9.0", "gzip"), ("0.9.0", "snappy")]
)
def test_librdkafka_with_its_old_versions_writes_and_reads(
    broker: Broker, version: str, codec: str
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    topic = "t" * 100  # the client's buffer for Metadata v0 is too small for short names
    broker.call(lambda node: node.log_dir.create_topic(topic, partitions=1, config={}))
    client = {
        "bootstrap.servers": broker.bootstrap_servers,
        "api.version.request": False,
        "broker.version.fallback": version,
    }
    failures: list[object] = []
    producer = Producer({**client, "compression.type": codec, "linger.ms": 20})
    values = [b"%d" % index * 20 for index in range(40)]
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None] * 40
    assert set(read(broker, 4, 40, topic)[1]) == {"0"}
    consumer = Consumer({**client, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = [message.value() for message in consumer.consume(40, PATIENCE_S)]
    consumer.close()
    assert found == values


def test_refusals(broker: Broker) -> None:
    message = bytes(build_legacy_set(indexed_records(0, 1), magic=1))
    cases = [
        (0, b"", TOPIC, 0),  # as in Kafka, an empty append is no error
        (2, message[:-1], TOPIC, 87),
        (2, message[:-1] + b"?", TOPIC, 2),
        (2, bytes(build_batch(indexed_records(0))), TOPIC, 43),
        (3, message, TOPIC, 87),
        (9, message, TOPIC, 87),
        (1, message, "nowhere", 3),
    ]
    for version, data, topic, code in cases:
        answer = ask_produce(broker, version, data, topic)
        assert (answer.error_code, answer.base_offset) == (code, -1)


def test_brokers_without_the_setting_refuse_versions_below_3(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path / "new")) as running:
        running.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
        with pytest.raises(ConnectionResetError):
            ask_produce(running, 2, build_legacy_set(indexed_records(0), magic=1))
