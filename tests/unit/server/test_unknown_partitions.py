"""Each nonexistent topic of a large request is refused quickly."""

import asyncio
import difflib
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest
from tests.worlds.brokers.running import opened_node

from tidelog.errors import UnknownTopic
from tidelog.protocol.messages import DELETE_RECORDS, PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.record.builder import build_batch
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.produce import produce
from tidelog.server.api.topics import delete_records
from tidelog.server.partitions.partition import TransactionEnd
from tidelog.server.runtime.reply import start
from tidelog.types import NewRecord, TopicPartition

UNKNOWN = 3


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Yield a broker with the topic `flights`; a search for similar names fails the test."""

    def refuse(*_arguments: object, **_options: object) -> list[str]:
        raise AssertionError("the nearest name is looked for")

    with opened_node(tmp_path) as node:
        node.log_dir.create_topic("flights", partitions=2)
        monkeypatch.setattr(difflib, "get_close_matches", refuse)
        yield node


@pytest.mark.parametrize(("topic", "number"), [("flihgts", 0), ("flights", 2), ("flights", -1)])
def test_a_partition_that_does_not_exist_is_refused_at_once(
    node: Node, topic: str, number: int
) -> None:
    with pytest.raises(UnknownTopic, match=f"{topic}-{number}"):
        node.partitions.get(topic, number)


def test_produce_to_an_unknown_topic_is_refused_by_partition(node: Node) -> None:
    batch = build_batch([NewRecord(value=b"v")])
    data = [PartitionProduceData(index=each, records=bytearray(batch)) for each in range(2)]
    topics = [TopicProduceData(name="flihgts", partition_data=data)]
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=topics)
    context = RequestContext(node, PRODUCE, 9, "test", ClientInfo(1, "test"))
    answer = start(produce(context, request))
    assert isinstance(answer, ProduceResponse)
    found = answer.responses[0].partition_responses
    assert [(each.index, each.error_code) for each in found] == [(0, UNKNOWN), (1, UNKNOWN)]


def test_delete_records_of_an_unknown_topic(node: Node) -> None:
    asked = [DeleteRecordsPartition(partition_index=0, offset=0)]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="flihgts", partitions=asked)], timeout_ms=1000
    )
    context = RequestContext(node, DELETE_RECORDS, 2, "test", ClientInfo(1, "test"))
    said = delete_records(context, request)
    assert isinstance(said, Awaitable)

    async def answered() -> list[int]:
        response = await said
        return [each.error_code for each in response.topics[0].partitions]

    assert asyncio.run(answered()) == [UNKNOWN]


def test_markers_for_an_unknown_topic(node: Node) -> None:
    place = TopicPartition("flihgts", 0)
    end = TransactionEnd(producer_id=1, producer_epoch=0, coordinator_epoch=0, commit=True)
    write = node.markers.write([place], end)
    assert asyncio.run(_of(write)) == {place: UNKNOWN}


async def _of(work: Awaitable[object]) -> object:
    return await work
