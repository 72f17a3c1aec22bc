"""A broker sends append times: in fetched records and lookups, to a standby, and for rows."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from tests.worlds.clients.raw import RawClient
from tests.worlds.clusters.fake_leader import catch_up
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.env import Env, ManualClock, os_env
from tidelog.protocol.messages import FETCH, LIST_OFFSETS
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.remote.broker_connection import connect_socket
from tidelog.remote.partition_fetch import FetchSeams, PartitionFetch
from tidelog.remote.rows import fetched
from tidelog.remote.time_lookup import AppendRuns
from tidelog.scan import ScanStats, Split
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.pushdown import NO_LIMITS, FilterLimits
from tidelog.standby.follower import Follower
from tidelog.types import INT64_MAX, ClockName, Codec, Header, NewRecord, TopicPartition

TOPIC = "late"
NOW = 1_700_000_000_000


def put(broker: Broker, config: dict[str, str] | None = None) -> list[int]:
    """Append records with old create times, in three steps; return each record's append time."""

    def append(node: Node) -> list[int]:
        if node.topics.find(TOPIC) is None:
            node.log_dir.create_topic(TOPIC, partitions=1, config=config)
        found = node.partitions.get(TOPIC, 0)
        times = []
        for start in range(3):
            records = [NewRecord(key=b"k", value=b"v", timestamp=start * 10 + i) for i in range(4)]
            times += [found.log.append(records).append_time_ms] * 4
        found.advance()
        return times

    return broker.call(append)


def ask_times(broker: Broker, *, offset: int = 0, wants: bool = True) -> list[int]:
    what = FetchRequest(
        topics=[
            FetchTopic(
                topic=TOPIC,
                partitions=[
                    FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                ],
            )
        ],
        with_append_times=wants,
    )
    with RawClient(broker.bootstrap_servers) as client:
        return client.ask(FETCH, 12, what).responses[0].partitions[0].append_times


def lookup(broker: Broker, timestamp: int) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    what = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    with RawClient(broker.bootstrap_servers) as client:
        return client.ask(LIST_OFFSETS, 9, what).topics[0].partitions[0]


def test_append_times_are_sent_only_if_requested(broker: Broker) -> None:
    times = put(broker)
    runs = AppendRuns(ask_times(broker))
    assert [runs.time_of(offset) for offset in range(12)] == times
    assert ask_times(broker, wants=False) == []


@pytest.mark.parametrize("rows", [[1], [5, 10, 3, 20], []])
def test_impossible_rows_are_not_trusted(rows: list[int]) -> None:
    assert AppendRuns(rows).time_of(7) == -1


def test_lookups_use_the_clock_of_the_topic(broker: Broker) -> None:
    times = put(broker, {"tidelog.lookup.clock": "append"})
    assert lookup(broker, 0).offset == 0
    assert lookup(broker, 0).timestamp == times[0]
    last = lookup(broker, times[-1])
    assert (last.offset, last.timestamp) == (times.index(times[-1]), times[-1])
    assert lookup(broker, times[-1] + 1).offset == -1
    newest = lookup(broker, -3)
    assert (newest.offset, newest.timestamp) == (times.index(times[-1]), times[-1])


def test_a_standby_has_the_leaders_append_times(broker: Broker, tmp_path: Path) -> None:
    times = put(broker)
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with Follower.open(str(tmp_path / "standby"), host, int(port)) as follower:
        catch_up(follower)
        log = follower.copies[TopicPartition(TOPIC, 0)].log
        assert [log.append_time_of(offset) for offset in range(12)] == times
        times = put(broker)
        catch_up(follower)
        assert [log.append_time_of(offset) for offset in range(12, 24)] == times


def test_reader_of_rows_gets_the_column(broker: Broker) -> None:
    times = put(broker)
    columns = ("offset", "appendTimestamp")
    fetch = PartitionFetch(
        broker.bootstrap_servers,
        TopicPartition(TOPIC, 0),
        FetchSeams(connect=partial(connect_socket, timeout_s=PATIENCE_S), clock=os_env().clock),
    )
    split = Split(topic=TOPIC, partition=0, start_offset=0, end_offset=12, directory="")
    try:
        rows = [
            row
            for batch in fetched(split, columns, fetch, ScanStats())
            for row in batch.to_pylist()
        ]
    finally:
        fetch.close()
    assert [
        (row["offset"], int(row["appendTimestamp"].timestamp() * 1000 + 0.5)) for row in rows
    ] == list(enumerate(times))


@pytest.mark.parametrize("codec", list(Codec))
def test_any_client_gets_append_times_as_headers_if_the_topic_exposes_them(
    broker: Broker, codec: Codec
) -> None:
    def append(node: Node) -> list[int]:
        node.log_dir.create_topic(
            TOPIC, partitions=1, config={"tidelog.expose.append.time": "true"}
        )
        found = node.partitions.get(TOPIC, 0)
        own = Header("own", b"1")
        records = [NewRecord(key=b"k", value=b"v", timestamp=5, headers=(own,))] * 3
        times = [found.log.append(records, codec=codec).append_time_ms for _ in range(2)]
        found.advance()
        return [times[0]] * 3 + [times[1]] * 3

    times = broker.call(append)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "any"}
    consumer = Consumer(settings)
    consumer.assign([ConfluentPartition(TOPIC, 0, 0)])
    seen = consumer.consume(6, PATIENCE_S)
    consumer.close()
    assert [message.offset() for message in seen] == list(range(6))
    assert {message.timestamp()[1] for message in seen} == {5}
    assert [message.headers() for message in seen] == [
        [("own", b"1"), ("tidelog.append.time", time.to_bytes(8, "big"))] for time in times
    ]
    # Consumers get the append time as a header. If a Fetch requests append times, the response has
    # them in a field, and the batches are unchanged.
    assert AppendRuns(ask_times(broker)).time_of(0) == times[0]


def append_every(
    step_ms: int, count: int, data: str, topic: str, config: Mapping[str, str]
) -> None:
    """Create a topic in a directory, and append records, one every `step_ms` from NOW on."""
    clock = ManualClock(NOW)
    with tidelog.open(data, writable=True, env=Env(clock=clock)) as log:
        log.create_topic(topic, config=config)
        for number in range(count):
            log.append(topic, [NewRecord(value=b"%d" % number)])
            clock.advance(step_ms)


def test_ranges_of_rounded_append_times_are_those_of_the_directory(tmp_path: Path) -> None:
    """Stored append times are up to a step (1 s) early, so ranges begin up to a step early, too."""
    data = str(tmp_path / "data")
    config = {"tidelog.append.time.granularity.ms": "1000", "retention.ms": "-1"}
    append_every(330, 20, data, "rounded", config)
    with (
        tidelog.open(data) as log,
        tidelog.broker(data, settings={"log.initial.task.delay.ms": "3600000"}) as broker,
        tidelog.connect(broker.bootstrap_servers) as cluster,
    ):
        for start in range(NOW, NOW + 6_000, 700):
            for end in (start + 300, start + 1_500):
                own = log.scan("rounded", start=start, end=end, clock="append")
                expected = own.to_table()["offset"].to_pylist()
                assert expected
                wanted = cluster.scan("rounded", start=start, end=end, clock="append")
                assert wanted.to_table()["offset"].to_pylist() == expected
                assert wanted.count() == len(expected)
                tail = cluster.tail("rounded", 99, start=start, end=end, clock="append")
                assert [record.offset for _, record in tail] == expected


@pytest.mark.parametrize("lookup_clock", ["record", "append"])
def test_ranges_of_exact_timestamps_end_exactly_though_append_times_are_rounded(
    tmp_path: Path, lookup_clock: str
) -> None:
    """With librdkafka, reads get no append times; a search on the append clock rounds the time."""
    data = str(tmp_path / "data")
    config = {
        "tidelog.append.time.granularity.ms": "1000",
        "message.timestamp.type": "LogAppendTime",
        "tidelog.lookup.clock": lookup_clock,
        "retention.ms": "-1",
    }
    append_every(330, 20, data, "stamped", config)
    with (
        tidelog.open(data) as log,
        tidelog.broker(data, settings={"log.initial.task.delay.ms": "3600000"}) as broker,
        tidelog.connect(broker.bootstrap_servers, config={"check.crcs": "true"}) as cluster,
    ):
        for start in range(NOW, NOW + 6_000, 700):
            for end in (start + 300, start + 1_500):
                expected: list[object] = [n for n in range(20) if start <= NOW + 330 * n < end]
                if lookup_clock == "append":
                    own = log.scan("stamped", start=start, end=end, clock="append")
                    expected = own.to_table()["offset"].to_pylist()
                wanted = cluster.scan("stamped", start=start, end=end, clock="append")
                assert wanted.to_table()["offset"].to_pylist() == expected
                assert wanted.count() == len(expected)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_query_of_rounded_append_times_reads_from_brokers_the_rows_of_the_directory(
    tmp_path: Path, timestamp_type: str
) -> None:
    """Brokers subtract the append clock's step from each searched time, also from a range's end."""
    data = str(tmp_path / "data")
    config = {
        "tidelog.append.time.granularity.ms": "1000",
        "message.timestamp.type": timestamp_type,
        "retention.ms": "-1",
    }
    append_every(330, 20, data, "rounded", config)

    def offsets(source: dict[str, str], start: int, end: int) -> list[int | None]:
        given = source | {
            "subscribe": "rounded",
            "clock": "append",
            "timeRange": "exact",
            "startingTimestamp": str(start),
            "endingTimestamp": str(end),
        }
        with open_backend(read_source_options(given), ("offset",)) as backend:
            tasks = backend.plan_batch(NO_LIMITS).tasks
            rows = [batch for task in tasks for batch in task.read()]
        return [offset for batch in rows for offset in batch["offset"].to_pylist()]

    ranges = [(start, start + size) for start in range(NOW, NOW + 6_000, 700) for size in (0, 1500)]
    with tidelog.broker(data, settings={"log.initial.task.delay.ms": "3600000"}) as broker:
        brokers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        for start, end in ranges:
            expected = offsets({"path": data}, start, end)
            assert expected or start == end
            assert offsets(brokers, start, end) == expected, (start - NOW, end - NOW)


def test_a_query_filters_rows_of_brokers_by_append_time(tmp_path: Path) -> None:
    """Spark doesn't apply such a filter again, so the range of append times must be exact."""
    data = str(tmp_path / "data")
    append_every(10, 10, data, "filtered", {"retention.ms": "-1"})
    with tidelog.broker(data, settings={"log.initial.task.delay.ms": "3600000"}) as broker:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "filtered"}
        for start, end, expected in (
            (NOW + 20, NOW + 50, [2, 3, 4]),
            (NOW + 71, INT64_MAX, [8, 9]),
            (NOW + 100, NOW + 200, []),
        ):
            limits = FilterLimits(clock=ClockName.APPEND, times=(start, end))
            with open_backend(read_source_options(given), ("offset",)) as backend:
                tasks = backend.plan_batch(limits).tasks
                rows = [batch for task in tasks for batch in task.read()]
            assert [n for batch in rows for n in batch["offset"].to_pylist()] == expected
