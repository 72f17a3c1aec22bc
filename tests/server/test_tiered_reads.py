"""Reads and lookups find records that are only in the tier; ListOffsets returns the local start."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.worlds.clients.raw import RawClient

import tidelog
from tidelog.protocol.messages import DELETE_RECORDS, FETCH, LIST_OFFSETS
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.record.batch_walk import walk
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.tier_manager.mover import MoveOptions, MoveReport, tier_partition
from tidelog.types import LATEST_TIERED_TIMESTAMP, NO_OFFSET, NewRecord, TopicPartition

TOPIC = "long"
COUNT = 200


def append_to_tier(node: Node, store: Path) -> None:
    """Append records in many segments, and move all finished segments to the tier."""
    config = {
        "internal.segment.bytes": "10000",
        "remote.storage.enable": "true",
        "tidelog.tier.url": store.as_uri(),
        "retention.ms": "-1",
        "local.retention.bytes": "30000",
        "file.delete.delay.ms": "0",
    }
    node.log_dir.create_topic(TOPIC, partitions=1, config=config)
    found = node.partitions.get(TOPIC, 0)
    for number in range(COUNT):
        found.log.append([NewRecord(key=b"k", value=b"v" * 500, timestamp=number)])
    found.advance()
    tier_partition(node.log_dir, TopicPartition(TOPIC, 0), MoveOptions())


def test_records_and_times_of_the_tier(broker: Broker, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    broker.call(lambda node: append_to_tier(node, store))
    local_start = broker.call(lambda node: node.partitions.get(TOPIC, 0).log.local_start_offset)
    assert 0 < local_start < COUNT
    offset, seen = 0, []
    with RawClient(broker.bootstrap_servers) as client:
        while offset < COUNT:
            asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            what = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[asked])])
            data = client.ask(FETCH, 12, what).responses[0].partitions[0]
            assert data.error_code == 0
            seen += [record.offset for batch in walk(data.batches) for record in batch.records()]
            assert seen, "no record"
            assert seen[-1] >= offset, "only records before the requested offset"
            offset = seen[-1] + 1
        assert seen == list(range(COUNT))
        found = [
            list_offset(client, timestamp)
            for timestamp in (3, local_start + 1, -2, -3, -4, LATEST_TIERED_TIMESTAMP, -6)
        ]
    # All finished segments are in the tier. The newest finished segments are also local.
    active = broker.call(lambda node: node.partitions.get(TOPIC, 0).log.segments[-1].base_offset)
    assert found == [3, local_start + 1, 0, COUNT - 1, local_start, active - 1, active]


def test_a_missing_object_is_logged_with_its_name(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    broker.call(lambda node: append_to_tier(node, store))
    for path in store.rglob("*.log"):
        path.unlink()
    fetched = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[fetched])])
    searched = ListOffsetsPartition(partition_index=0, timestamp=3)
    topic = ListOffsetsTopic(name=TOPIC, partitions=[searched])
    with (
        caplog.at_level(logging.ERROR, "tidelog.server"),
        RawClient(broker.bootstrap_servers) as client,
    ):
        for _ in range(3):
            found = client.ask(FETCH, 12, fetch).responses[0].partitions[0]
            assert found.error_code == 56
        answer = client.ask(LIST_OFFSETS, 11, ListOffsetsRequest(topics=[topic]))
        assert answer.topics[0].partitions[0].error_code == 56
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)), "a client that asks again fills no log"
    assert any(line.startswith(f"{TOPIC}-0 can't be read: {store.as_uri()}/") for line in lines)


def test_offsets_lost_after_the_tier_are_an_error_of_a_fetch(tmp_path: Path) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    store.mkdir()
    with tidelog.broker(str(data), settings={"log.initial.task.delay.ms": "3600000"}) as broker:
        broker.call(lambda node: append_to_tier(node, store))

        def append_more(node: Node) -> list[int]:
            log = node.partitions.get(TOPIC, 0).log
            end = log.segments[-1].base_offset
            for number in range(COUNT):
                log.append([NewRecord(key=b"k", value=b"v" * 500, timestamp=number)])
            bases = [segment.base_offset for segment in log.local_segments]
            return [base for base in bases if base >= end]

        bases = broker.call(append_more)
    for path in (data / f"{TOPIC}-0").glob("*.log"):
        if int(path.stem) < bases[2]:  # copies, and the two oldest segments that the tier lacks
            path.unlink()
    start, end = bases[0], bases[2]
    with (
        tidelog.broker(str(data), settings={"log.initial.task.delay.ms": "3600000"}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        codes = fetch_codes(client, (0, start - 1, start, end - 1, end))
        assert codes == {0: 0, start - 1: 0, start: 2, end - 1: 2, end: 0}
        assert list_offset(client, LATEST_TIERED_TIMESTAMP) == start - 1
        for deleted_to in (start, start + 1, end - 1):  # the rest stays lost
            assert delete_records(client, deleted_to) == (0, deleted_to)
            assert list_offset(client, LATEST_TIERED_TIMESTAMP) == NO_OFFSET
            for _ in range(2):
                codes = fetch_codes(client, (deleted_to - 1, deleted_to, end - 1, end))
                assert codes == {deleted_to - 1: 1, deleted_to: 2, end - 1: 2, end: 0}
                report = broker.call(move)
                assert (report.copied, report.stopped is None) == (0, False)
        assert delete_records(client, end) == (0, end)
        report = broker.call(move)
        assert report.stopped is None
        assert report.copied > 0
        assert fetch_codes(client, (end - 1, end)) == {end - 1: 1, end: 0}


def move(node: Node) -> MoveReport:
    """Run a move to the tier once."""
    return tier_partition(node.log_dir, TopicPartition(TOPIC, 0), MoveOptions())


def delete_records(client: RawClient, offset: int) -> tuple[int, int]:
    """Delete the records below an offset; return the error code and the new log start."""
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    what = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[wanted])])
    answer = client.ask(DELETE_RECORDS, 2, what).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def list_offset(client: RawClient, timestamp: int) -> int:
    """Return the offset that ListOffsets returns for a time or a special value."""
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name=TOPIC, partitions=[wanted])
    answer = client.ask(LIST_OFFSETS, 11, ListOffsetsRequest(topics=[topic]))
    return answer.topics[0].partitions[0].offset


def fetch_codes(client: RawClient, offsets: Sequence[int]) -> dict[int, int]:
    """Fetch from each offset; return the error codes by offset."""
    codes = {}
    for offset in offsets:
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        what = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[asked])])
        data = client.ask(FETCH, 12, what).responses[0].partitions[0]
        codes[offset] = data.error_code
        read = [record.offset for batch in walk(data.batches) for record in batch.records()]
        assert read == [] or read[0] <= offset <= read[-1]
    return codes
