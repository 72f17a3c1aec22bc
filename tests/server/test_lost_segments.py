"""If a finished segment has lost records, requests for them fail, and no reader skips them."""

import logging
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.protocol.messages import FETCH, LIST_OFFSETS
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

TOPIC = "t"
COUNT = 60
CORRUPT_MESSAGE = 2


def make(data: Path) -> tuple[Path, int, int]:
    """Create a directory; return path, first and end offset of a segment in the log's middle."""
    with tidelog.open(str(data), writable=True) as log:
        log.create_topic(TOPIC, partitions=1, config={"internal.segment.bytes": "2000"})
        for number in range(COUNT):
            log.append(TOPIC, [NewRecord(value=b"v" * 150, timestamp=number)])
    bases = sorted(int(path.stem) for path in data.glob(f"{TOPIC}-0/*.log"))
    return data / f"{TOPIC}-0" / f"{bases[2]:020d}.log", bases[2], bases[3]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """Cut a segment to its first batch."""
    data = path.read_bytes()
    path.write_bytes(data[: int.from_bytes(data[8:12], "big") + 12])
    path.with_suffix(".zones").unlink()


def fetch(client: RawClient, offset: int) -> PartitionData:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    what = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[asked])]
    )
    return client.ask(FETCH, 12, what).responses[0].partitions[0]


def lookup(client: RawClient, time: int) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=0, timestamp=time)
    what = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    return client.ask(LIST_OFFSETS, 8, what).topics[0].partitions[0]


@pytest.fixture
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, int, int]:
    path, first, end = make(tmp_path)
    request.param(path)
    return tmp_path, first + (1 if request.param is cut else 0), end


@pytest.mark.parametrize("damaged", [Path.unlink, empty, cut], indirect=True)
def test_fetch_and_lookups_report_lost_records(
    damaged: tuple[Path, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """A Fetch or lookup that must read the segment fails each time; other requests succeed."""
    data, first, end = damaged
    with (
        caplog.at_level(logging.ERROR),
        tidelog.broker(str(data)) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        for _ in range(2):
            assert fetch(client, first - 1).error_code == 0
            for offset in (first, end - 1):
                answer = fetch(client, offset)
                assert (answer.error_code, answer.batches) == (CORRUPT_MESSAGE, b"")
            assert fetch(client, end).error_code == 0
            for time in (first, end, COUNT - 1, COUNT, -3):
                assert lookup(client, time).error_code == CORRUPT_MESSAGE
            assert lookup(client, first - 1).offset == first - 1
    assert ".log, position" in caplog.text
    assert f"offsets {first} to {end - 1}" in caplog.text


def consume(broker: Broker) -> tuple[int, list[int]]:
    """Return how many records a consumer gets, and the codes of its errors."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    count, errors = 0, list[int]()
    while not errors:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        error = message.error()
        if error is None:
            count += 1
        else:
            errors.append(error.code())
    consumer.close()
    return count, errors


@pytest.mark.parametrize("damaged", [Path.unlink, empty, cut], indirect=True)
def test_a_consumer_gets_an_error(damaged: tuple[Path, int, int]) -> None:
    data, first, _ = damaged
    with tidelog.broker(str(data)) as broker:
        count, errors = consume(broker)
    assert (count, errors) == (first, [KafkaError.INVALID_MSG])
