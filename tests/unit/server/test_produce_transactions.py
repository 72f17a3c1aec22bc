"""A transactional Produce request creates guards in partitions before the coordinator check."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from tidelog.config import BrokerConfig
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.record.builder import build_batch
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo
from tidelog.server.api.produce import AppendPlan, produce, rows_of
from tidelog.server.broker import open_node
from tidelog.server.runtime.reply import start
from tidelog.types import NewRecord

PLACE = ("t", 0)


def data_of(producer_id: int, epoch: int = 0) -> memoryview:
    """Return a transactional batch of a producer."""
    return memoryview(
        build_batch(
            [NewRecord(value=b"v")],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
    )


@pytest.mark.parametrize("other", [(8, 0), (7, 1)])
def test_batches_of_two_producers_are_refused_together(
    tmp_path: Path, other: tuple[int, int]
) -> None:
    """As in Kafka's ReplicaManager, all partitions get INVALID_PRODUCER_ID_MAPPING."""
    node = open_node(str(tmp_path), BrokerConfig.parse({})[0])
    node.log_dir.create_topic("t", partitions=3, config={})
    batches = (data_of(7), data_of(7), data_of(*other))
    parts = [PartitionProduceData(index=n, records=data) for n, data in enumerate(batches)]
    request = ProduceRequest(
        transactional_id="x",
        acks=-1,
        timeout_ms=9,
        topic_data=[TopicProduceData(name="t", partition_data=parts)],
    )

    async def refused() -> list[tuple[int, str | None]]:
        answer = start(produce(RequestContext(node, PRODUCE, 11, "t", ClientInfo(1, "t")), request))
        response = await answer if isinstance(answer, Awaitable) else answer
        assert isinstance(response, ProduceResponse)
        (topic,) = response.responses
        return [(each.error_code, each.error_message) for each in topic.partition_responses]

    text = "Transactional records contained more than one producer ID"
    assert asyncio.run(refused()) == [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)] * 3
    node.close()


def test_an_open_unused_partition_has_a_guard(tmp_path: Path) -> None:
    """A partition may be open and unused: it was just created, or opened for another request."""
    node = open_node(str(tmp_path), BrokerConfig.parse({})[0])
    node.log_dir.create_topic("t", partitions=1, config={})
    node.log_dir.log(*PLACE)
    assert node.partitions.find_used(*PLACE) is None
    guards = {}
    for topic in ("t", "u"):
        records = PartitionProduceData(index=0, records=data_of(7))
        request = ProduceRequest(
            transactional_id="x",
            acks=-1,
            timeout_ms=9,
            topic_data=[TopicProduceData(name=topic, partition_data=[records])],
        )
        context = RequestContext(node, PRODUCE, 11, "t", ClientInfo(1, "t"))
        (row,) = rows_of(context, request)
        is_ready = AppendPlan(context, request, [row]).is_ready()
        guards[topic] = row.guard, is_ready
    assert guards["t"][0] is not None
    assert [is_ready for _, is_ready in guards.values()] == [False, True]
    assert guards["u"][0] is None
    node.close()
