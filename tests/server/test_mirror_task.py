"""A mirror's task that sends to brokers notes every row that it has sent, once and for a retry."""

import pyarrow as pa
from tests.server.raw import RawClient

from tidelog.cluster.offset_map import Partitioning
from tidelog.server.in_process import Broker
from tidelog.spark.jobs.mirror_tasks import BrokerTask, Report, Routes, read_reports
from tidelog.spark.sink_options import SinkOptions

TASK_T0_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(first: int, count: int) -> pa.RecordBatch:
    """Records of partition 0 of the source's topic, as a mirror's query has them."""
    offsets = range(first, first + count)
    times = [(TASK_T0_MS + n) * 1_000 for n in offsets]
    return pa.RecordBatch.from_pydict(
        {
            "source": pa.array([0] * count, pa.int32()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array([b"%d" % n for n in offsets], pa.binary()),
            "headers": pa.array([None] * count, HEADERS),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def test_what_was_sent_is_noted(broker: Broker) -> None:
    broker.call(lambda node: node.topics.create("all", 1))
    options = SinkOptions(bootstrap=broker.bootstrap_servers, exactly_once=True)
    routes = Routes(
        pairs=((0, "orders", "all"),), counts=(("all", 1),), partitioning=Partitioning.KEPT
    )
    task = BrokerTask(options=options, routes=routes, mirror_id="m", batch_id=3)

    def sent() -> Report:
        (found,) = task([rows(100, 20), rows(120, 10)])
        (report,) = read_reports([str(text) for text in found.column("report")])
        return report

    first = sent()
    (row,) = first.noted.rows
    assert (row.source_start, row.source_end) == (100, 130)
    assert (row.target_start, row.target_end) == (0, 30)
    assert first.noted.copied == {(0, 0): (100, 130)}
    assert first.noted.records == 30
    again = sent()
    assert (first.was_done, again.was_done) == (False, True)
    assert again.noted == first.noted
    with RawClient(broker.bootstrap_servers) as client:
        *values, _marker = [record.value for record in client.read_all("all")]
    assert values == [b"%d" % n for n in range(100, 130)]
