"""Guards in the partitions of a transactional produce, before the coordinator is queried."""

from pathlib import Path

from tidelog.config import BrokerConfig
from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.record.builder import build_batch
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo
from tidelog.server.api.produce import AppendPlan, rows_of
from tidelog.server.broker import open_node
from tidelog.types import NewRecord

PLACE = ("t", 0)


def test_a_partition_that_is_open_and_unused_holds_a_guard(tmp_path: Path) -> None:
    """Such a partition was just created, or opened for another request before."""
    node = open_node(str(tmp_path), BrokerConfig.parse({})[0])
    node.topics.create("t", 1, {})
    node.log_dir.log(*PLACE)
    assert node.partitions.find_used(*PLACE) is None
    data = build_batch(
        [NewRecord(value=b"v")],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    guards = {}
    for topic in ("t", "u"):
        records = PartitionProduceData(index=0, records=memoryview(data))
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
