"""What a transactional producer's partitions hold before its coordinator is asked."""

from pathlib import Path

from tidelog.config import BrokerConfig
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.server.api.produce import Wanted, begin
from tidelog.server.broker import open_node
from tidelog.types import NewRecord

PLACE = ("t", 0)


def test_a_partition_that_is_open_and_unused_holds_a_guard(tmp_path: Path) -> None:
    """As one that was just created, or whose opening for somebody else is over."""
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
    verdicts = begin(node, [Wanted(PLACE, RecordBatch(data, 0))], 11)
    assert set(verdicts.guards) == {PLACE}
    assert not begin(node, [Wanted(("u", 0), RecordBatch(data, 0))], 11).guards
    node.close()
