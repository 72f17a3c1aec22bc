"""For each split, the rows read by librdkafka equal the rows fetched directly from the leader."""

from functools import partial

import pytest
from tests.worlds.waiting import PATIENCE_S

from tidelog.env import os_env
from tidelog.errors import OffsetsGone
from tidelog.jobs.audit.state import Run
from tidelog.jobs.audit.work import broker_task
from tidelog.record.columns.key_tables import COLUMNS as AUDIT_COLUMNS
from tidelog.remote.broker_connection import connect_socket
from tidelog.remote.partition_fetch import FetchSeams, PartitionFetch
from tidelog.remote.rows import ConsumeSettings, consumed, fetched
from tidelog.scan import ScanStats, Split
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.spark.broker_tasks import BrokerTask
from tidelog.spark.options import read_source_options
from tidelog.spark.places import Place
from tidelog.types import (
    INT64_MAX,
    ClockName,
    Header,
    IsolationLevel,
    NewRecord,
    TopicPartition,
)

TOPIC = "t"
COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "createTimestamp", "headers")
RECORDS = (
    NewRecord(key=b"a", value=b"1", timestamp=0),
    NewRecord(key=None, value=None, timestamp=-1),
    NewRecord(key=b"", value=b"", timestamp=5, headers=(Header("h", b"x"), Header("h", None))),
    NewRecord(key=b"b", value=b"2", timestamp=9),
)


def put(broker: Broker, config: dict[str, str]) -> None:
    def append(node: Node) -> None:
        node.log_dir.create_topic(TOPIC, partitions=1, config=config)
        found = node.partitions.get(TOPIC, 0)
        for record in RECORDS:
            found.log.append([record])
        found.advance()

    broker.call(append)


def rows_of(
    broker: Broker, split: Split, *, by_librdkafka: bool
) -> tuple[list[dict[str, object]], int]:
    """Return a split's rows, and the number of records without a time that were read."""
    stats = ScanStats()
    if by_librdkafka:
        settings = ConsumeSettings(bootstrap=broker.bootstrap_servers, group="rows", poll_records=3)
        batches = list(consumed(split, COLUMNS, settings, stats))
    else:
        seams = FetchSeams(
            connect=partial(connect_socket, timeout_s=PATIENCE_S), clock=os_env().clock
        )
        fetch = PartitionFetch(broker.bootstrap_servers, TopicPartition(TOPIC, 0), seams)
        try:
            batches = list(fetched(split, COLUMNS, fetch, stats))
        finally:
            fetch.close()
    return [row for batch in batches for row in batch.to_pylist()], stats.without_time


@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_rows_of_a_range(broker: Broker, stamps: str) -> None:
    put(broker, {"message.timestamp.type": stamps})
    ranges = [None, (0, 5), (0, 9), (1, 10), (9, INT64_MAX)]
    offsets = []
    for time_range in ranges:
        split = Split(
            topic=TOPIC,
            partition=0,
            start_offset=0,
            end_offset=4,
            directory="",
            time_range=time_range,
            clock=ClockName.RECORD,
        )
        rows, without_time = rows_of(broker, split, by_librdkafka=True)
        by_batches, without_time_in_batches = rows_of(broker, split, by_librdkafka=False)
        if stamps == "LogAppendTime":  # librdkafka has only one time per record
            assert {row["createTimestamp"] for row in rows} <= {None}
            for row in by_batches:
                row["createTimestamp"] = None
        assert (rows, without_time) == (by_batches, without_time_in_batches), time_range
        offsets.append([row["offset"] for row in rows])
        if stamps == "CreateTime":
            assert without_time == (time_range is not None)
    if stamps == "CreateTime":
        assert offsets == [[0, 1, 2, 3], [0], [0, 2], [2, 3], [3]]


def test_audits_read_through_librdkafka(broker: Broker) -> None:
    """This setting makes the audit read through librdkafka, as TLS and SASL do."""
    put(broker, {})
    client = {"socket.keepalive.enable": "true"}
    place = Place.parse(f"kafka://{broker.bootstrap_servers}", client=client)
    run = Run(side="a", topic=TOPIC, partition=0, start=0, end=4, topic_id="")
    task = broker_task(place, run, 0, 4, IsolationLevel.READ_UNCOMMITTED, AUDIT_COLUMNS)
    rows = [row for batch in task.read() for row in batch.to_pylist()]
    times = [row["createTimestamp"] for row in rows]
    assert [time and time.timestamp() * 1000 for time in times] == [0, None, 5, 9]
    assert [row["key"] for row in rows] == [record.key for record in RECORDS]


@pytest.mark.parametrize(
    ("start", "end", "lost", "values"),
    [
        (0, 2, "offsets 0 to 1: deleted, the log starts at offset 3", []),
        (1, 4, "offsets 1 to 2: deleted, the log starts at offset 3", [b"2"]),
        (5, 8, "offsets 5 to 7: not in the log, which ends at offset 4", []),
    ],
)
def test_a_task_of_spark_names_the_lost_offsets_of_its_range(
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    start: int,
    end: int,
    lost: str,
    values: list[bytes],
) -> None:
    put(broker, {})
    broker.call(lambda node: node.partitions.get(TOPIC, 0).log.delete_records(3))
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC}

    def task(fails: str) -> BrokerTask:
        return BrokerTask(
            name=TopicPartition(TOPIC, 0),
            start_offset=start,
            end_offset=end,
            topic_id="",
            columns=("value",),
            options=read_source_options({**given, "failOnDataLoss": fails}),
        )

    with pytest.raises(OffsetsGone, match=f"t-0: {lost}"):
        list(task("true").read())
    assert not caplog.messages
    rows = [row["value"] for batch in task("false").read() for row in batch.to_pylist()]
    assert rows == values
    assert caplog.messages == [f"not in the log any more: t-0: {lost}"]


def test_a_task_of_spark_names_the_records_without_a_time(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, {})
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC}
    options = read_source_options({**given, "startingTimestamp": "0", "endingTimestamp": "10"})
    task = BrokerTask(
        name=TopicPartition(TOPIC, 0),
        start_offset=0,
        end_offset=4,
        topic_id="",
        columns=("value",),
        options=options,
        time_range=(0, 10),
    )
    rows = [row["value"] for batch in task.read() for row in batch.to_pylist()]
    assert rows == [b"1", b"", b"2"]
    assert caplog.messages == ["t-0: 1 record without a timestamp, so in no time range"]
