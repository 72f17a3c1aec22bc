"""Neither requests nor retention open a partition on the event loop."""

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S, until_so

import tidelog
from tidelog.protocol.messages import DELETE_RECORDS, FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.record.builder import build_batch
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.directory.open_partitions import OpenPartitions
from tidelog.types import NewRecord, TopicPartition

COUNT = 12
NUMBERS = range(COUNT)
NEVER = {"log.initial.task.delay.ms": "3600000"}


@pytest.fixture
def opened_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the thread in which each partition of the topic is opened."""
    threads = list[int]()
    opening = OpenPartitions._open

    def watched(self: OpenPartitions, name: TopicPartition, **more: int | None) -> object:
        if name.topic == "t":
            threads.append(threading.get_ident())
        return opening(self, name, **more)

    monkeypatch.setattr(OpenPartitions, "_open", watched)
    return threads


broker = broker_fixture(NEVER, topics={"t": COUNT})


def list_offsets(client: RawClient) -> list[int]:
    asked = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in NUMBERS]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)]
    )
    return [p.error_code for p in client.ask(LIST_OFFSETS, 9, request).topics[0].partitions]


def fetch(client: RawClient) -> list[int]:
    asked = [FetchPartition(partition=n, partition_max_bytes=1 << 20) for n in NUMBERS]
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=asked)],
    )
    return [p.error_code for p in client.ask(FETCH, 12, request).responses[0].partitions]


def epochs(client: RawClient) -> list[int]:
    asked = [OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in NUMBERS]
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=asked)]
    )
    answer = client.ask(OFFSET_FOR_LEADER_EPOCH, 4, request)
    return [p.error_code for p in answer.topics[0].partitions]


def delete_records(client: RawClient) -> list[int]:
    asked = [DeleteRecordsPartition(partition_index=n, offset=0) for n in NUMBERS]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=1000
    )
    return [p.error_code for p in client.ask(DELETE_RECORDS, 2, request).topics[0].partitions]


def produce_to_all(client: RawClient) -> list[int]:
    batch = bytes(build_batch([NewRecord(value=b"v", timestamp=1)]))
    return [client.produce("t", batch, n).error_code for n in NUMBERS]


@pytest.mark.parametrize("ask", [list_offsets, fetch, epochs, delete_records, produce_to_all])
def test_a_request_opens_its_partitions_in_threads(
    ask: Callable[[RawClient], list[int]], broker: Broker, opened_in: list[int]
) -> None:
    loop = broker.call(lambda _: threading.get_ident())
    with RawClient(broker.bootstrap_servers) as client:
        assert ask(client) == [0] * COUNT
        assert ask(client) == [0] * COUNT
    assert len(opened_in) == COUNT
    assert loop not in opened_in


def test_retention_opens_all_beside_the_loop(tmp_path: Path, opened_in: list[int]) -> None:
    with tidelog.broker(str(tmp_path), settings=NEVER) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=COUNT))
    settings = {"log.initial.task.delay.ms": "0"}
    with tidelog.broker(str(tmp_path), settings=settings) as broker:
        loop = broker.call(lambda _: threading.get_ident())
        until_so(lambda: broker.call(lambda node: len(list(node.partitions.opened()))) == COUNT)
    assert len(opened_in) == COUNT
    assert loop not in opened_in


def test_slow_reads_do_not_delay_changes(broker: Broker) -> None:
    gate, held = Event(), list["asyncio.Future[bool]"]()

    def begin(node: Node) -> None:
        held.extend(
            asyncio.ensure_future(node.reads.run(gate.wait, PATIENCE_S)) for _ in range(100)
        )

    broker.call(begin)
    try:
        with RawClient(broker.bootstrap_servers) as client:
            assert client.producer_id() >= 0
    finally:
        gate.set()


def test_broker_stops_while_retention_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with tidelog.broker(str(tmp_path), settings=NEVER) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=COUNT))
    has_begun, may_open, opening = Event(), Event(), OpenPartitions._open

    def watched(self: OpenPartitions, name: TopicPartition, **more: int | None) -> object:
        has_begun.set()
        assert may_open.wait(PATIENCE_S)
        return opening(self, name, **more)

    monkeypatch.setattr(OpenPartitions, "_open", watched)
    with tidelog.broker(str(tmp_path), settings={"log.initial.task.delay.ms": "0"}):
        assert has_begun.wait(PATIENCE_S)
        threading.Timer(0.05, may_open.set).start()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert not [line for line in caplog.messages if "t-" in line]


def test_many_openings_trigger_no_full_garbage_collection(tmp_path: Path) -> None:
    """Each opened log creates about 100 objects, so many logs could trigger full collections."""
    path, count, thresholds = str(tmp_path), 200, gc.get_threshold()
    with tidelog.broker(path, settings=NEVER) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=count))
    searches = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            searches.append(info["generation"])

    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
        for number in range(count)
    ]
    asked = FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)], max_wait_ms=0)
    with (
        tidelog.broker(path, settings=NEVER) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        gc.collect()
        # Without the objects of this process and with a low threshold, 20,000 new objects would
        # trigger a full collection.
        gc.freeze()
        gc.collect()
        gc.set_threshold(100)
        gc.callbacks.append(note)
        try:
            answer = client.ask(FETCH, 12, asked)
        finally:
            gc.callbacks.remove(note)
            gc.set_threshold(*thresholds)
            gc.unfreeze()
    assert {each.error_code for topic in answer.responses for each in topic.partitions} == {0}
    assert searches == []
