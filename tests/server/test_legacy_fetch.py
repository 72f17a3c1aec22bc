"""Fetch v0 to v3 and ListOffsets v0, with the setting `tidelog.legacy.clients`."""

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.protocol.messages import FETCH, LIST_OFFSETS
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.record.batch_walk import walk
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.types import Codec, NewRecord

TOPIC = "old"
CONFIG = {"internal.segment.bytes": "2000"}


def fill_all_formats(node: Node) -> None:
    node.log_dir.create_topic(TOPIC, partitions=1, config=CONFIG)
    found = node.partitions.get(TOPIC, 0)
    records = [NewRecord(key=b"k", value=b"v" * 100, timestamp=1_000) for _ in range(3)]
    found.log.follower.append(build_legacy_set(records, magic=0))
    zipped = build_legacy_set(records, magic=1, base_offset=3, codec=Codec.GZIP)
    found.log.follower.append(zipped)
    found.log.append(records)
    found.log.roll()
    found.log.append(records, codec=Codec.LZ4)
    found.advance()


# A broker for old clients, with records of all formats: 0 at offsets 0-2, 1 at 3-5, then 2. The
# records are old: the default retention of a week would delete them.
broker = broker_fixture(
    {"tidelog.legacy.clients": "true", "log.retention.ms": "-1"},
    fill=fill_all_formats,
    is_temporary=True,
)


def _fetch(broker: Broker, version: int, offset: int, max_bytes: int = 1 << 20) -> PartitionData:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    what = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[asked])])
    with RawClient(broker.bootstrap_servers) as client:
        return client.ask(FETCH, version, what).responses[0].partitions[0]


@pytest.mark.parametrize(
    ("version", "magics"), [(0, {0}), (1, {0}), (2, {0, 1}), (3, {0, 1}), (4, {0, 1, 2})]
)
def test_all_records_are_in_formats_of_the_version(
    broker: Broker, version: int, magics: set[int]
) -> None:
    offset, seen, found = 0, [], set()
    while offset < 12:
        batches = list(walk(_fetch(broker, version, offset).batches))
        assert batches
        found |= {batch.magic for batch in batches}
        for batch in batches:
            batch.ensure_valid()
            seen += [record.offset for record in batch.records() if record.offset >= offset]
        assert seen, "no record"
        assert seen[-1] >= offset, "only records before the requested offset"
        offset = seen[-1] + 1
    assert seen == list(range(12))
    assert found == magics


def test_a_message_that_is_too_large_is_cut_before_version_3(broker: Broker) -> None:
    assert len(_fetch(broker, 2, 9, max_bytes=50).batches) == 50
    assert len(_fetch(broker, 3, 9, max_bytes=50).batches) > 50


@pytest.mark.parametrize(
    ("timestamp", "count", "offsets"),
    [(-1, 1, [12]), (-1, 9, [12, 9, 0]), (-2, 9, [0]), (0, 9, []), (1 << 60, 2, [12, 9])],
)
def test_old_lists_of_offsets(
    broker: Broker, timestamp: int, count: int, offsets: list[int]
) -> None:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=count)
    what = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    with RawClient(broker.bootstrap_servers) as client:
        found = client.ask(LIST_OFFSETS, 0, what).topics[0].partitions[0]
    assert (found.error_code, found.old_style_offsets) == (0, offsets)
