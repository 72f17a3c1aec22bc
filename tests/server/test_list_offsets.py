"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords requests, and each API's errors."""

from pathlib import Path

import pytest
from tests.worlds.brokers.running import SETTINGS, broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.records.legacy_sets import build_legacy_set

import tidelog
from tidelog.env import OsFileSystem
from tidelog.protocol.messages import DELETE_RECORDS, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
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
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.segment.deletion_history import read_deletions
from tidelog.types import NewRecord

TOPIC = "times"
LAST = 11
# Times of the records at offsets 0 to 5. The log has two segments; the first one has the largest
# time.
TIMES = [1_000, 3_000, 2_000, 2_500, 2_600, -1]


def append_times(node: Node) -> None:
    node.log_dir.create_topic(TOPIC, partitions=3)
    found = node.partitions.get(TOPIC, 0)
    for times in (TIMES[:3], TIMES[3:]):
        found.log.append([NewRecord(key=b"k", value=b"v", timestamp=time) for time in times])
        found.log.roll()
    found.advance()
    untimed = node.partitions.get(TOPIC, 2)
    records = [NewRecord(key=b"k", value=b"v")] * 2
    untimed.log.follower.append(build_legacy_set(records, magic=0))
    untimed.advance()


filled = broker_fixture(SETTINGS, fill=append_times)


def ask(
    broker: Broker, *wanted: tuple[int, int], version: int = LAST, **more: int
) -> list[ListOffsetsPartitionResponse]:
    """Return the responses to a request for these pairs of partition and timestamp."""
    what = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=TOPIC,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=time, **more)
                    for number, time in wanted
                ],
            )
        ]
    )
    with RawClient(broker.bootstrap_servers) as client:
        return client.ask(LIST_OFFSETS, version, what).topics[0].partitions


def found(broker: Broker, timestamp: int, partition: int = 0) -> tuple[int, int, int]:
    """Assert that a response has no error; return its offset, timestamp and epoch."""
    (answer,) = ask(broker, (partition, timestamp))
    assert answer.error_code == 0
    return answer.offset, answer.timestamp, answer.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (6, -1, 0)),
        (-2, (0, -1, 0)),
        (-3, (1, 3_000, 0)),
        (-4, (0, -1, 0)),
        (-5, (-1, -1, -1)),
        (-6, (-1, -1, -1)),
        (0, (0, 1_000, 0)),
        (1_001, (1, 3_000, 0)),
        (3_000, (1, 3_000, 0)),
        (3_001, (-1, -1, -1)),
    ],
)
def test_every_time(filled: Broker, timestamp: int, expected: tuple[int, int, int]) -> None:
    assert found(filled, timestamp) == expected


def test_empty_partition(filled: Broker) -> None:
    assert found(filled, -1, 1) == (0, -1, 0)
    assert found(filled, -2, 1) == (0, -1, 0)
    assert found(filled, 0, 1) == (-1, -1, -1)
    assert found(filled, -3, 1) == (-1, -1, -1)


def test_records_without_times_cannot_be_searched(filled: Broker) -> None:
    assert [answer.error_code for answer in ask(filled, (2, 0))] == [43]
    assert found(filled, -1, 2)[0] == 2
    assert found(filled, -3, 2) == (-1, -1, -1)


def test_a_lookup_through_a_connection_finds_no_match_among_records_without_times(
    filled: Broker,
) -> None:
    """As in a directory, a partition without a match does not affect the other partitions."""
    with tidelog.connect(filled.bootstrap_servers) as cluster:
        matches = cluster.offsets_at(TOPIC, 2_500)
        assert [match and match.offset for match in matches.values()] == [1, None, None]
        names = cluster.partitions(TOPIC)
        assert [match and match.offset for match in cluster.max_timestamps(names).values()] == [
            1,
            None,
            None,
        ]
        assert cluster.scan(TOPIC, start=2_500).count() == 3


def test_mixed_formats_are_searched_if_they_have_times(filled: Broker) -> None:
    def mix(node: Node) -> None:
        later = node.partitions.get(TOPIC, 2)
        later.log.append([NewRecord(key=b"k", value=b"v", timestamp=7)])
        later.advance()

    filled.call(mix)
    assert found(filled, 0, 2) == (2, 7, 0)
    assert found(filled, 8, 2) == (-1, -1, -1)


def test_a_repeated_partition_is_refused_once_and_others_get_results(filled: Broker) -> None:
    answers = ask(filled, (0, 0), (1, -1), (0, -1))
    assert [(a.partition_index, a.error_code) for a in answers] == [(0, 42), (1, 0)]


@pytest.mark.parametrize(
    ("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, LAST), (-(2**62), LAST)]
)
def test_special_times_are_of_their_versions(filled: Broker, timestamp: int, version: int) -> None:
    assert [a.error_code for a in ask(filled, (0, timestamp), version=version)] == [35]


@pytest.mark.parametrize(("partition", "epoch", "code"), [(9, -1, 3), (0, 5, 75), (0, 0, 0)])
def test_errors(filled: Broker, partition: int, epoch: int, code: int) -> None:
    answers = ask(filled, (partition, 0), current_leader_epoch=epoch)
    assert [a.error_code for a in answers] == [code]


def test_ends_of_epochs(filled: Broker) -> None:
    what = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic=TOPIC,
                partitions=[
                    OffsetForLeaderPartition(partition=0, leader_epoch=0),
                    OffsetForLeaderPartition(partition=1, leader_epoch=0),
                    OffsetForLeaderPartition(partition=0, leader_epoch=3),
                    OffsetForLeaderPartition(partition=0, leader_epoch=0, current_leader_epoch=9),
                    OffsetForLeaderPartition(partition=7, leader_epoch=0),
                ],
            )
        ]
    )
    with RawClient(filled.bootstrap_servers) as client:
        answers = client.ask(OFFSET_FOR_LEADER_EPOCH, 4, what).topics[0].partitions
    assert [(a.error_code, a.leader_epoch, a.end_offset) for a in answers] == [
        (0, 0, 6),
        (0, 0, 0),
        (0, -1, -1),
        (75, -1, -1),
        (3, -1, -1),
    ]


def delete(broker: Broker, offset: int, *, topic: str = TOPIC, number: int = 0) -> tuple[int, int]:
    wanted = DeleteRecordsPartition(partition_index=number, offset=offset)
    what = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])])
    with RawClient(broker.bootstrap_servers) as client:
        answer = client.ask(DELETE_RECORDS, 2, what).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def test_records_are_deleted_and_stay_so(filled: Broker) -> None:
    assert delete(filled, 2) == (0, 2)
    assert delete(filled, 1) == (0, 2)
    assert found(filled, -2) == (2, -1, 0)
    # Kafka would search only the first segment, whose records are deleted, and find nothing (see
    # docs/differences.md).
    assert found(filled, 2_600)[0] == 4
    assert delete(filled, -1) == (0, 6)
    checkpoint = filled.call(lambda node: node.log_dir.path) + "/log-start-offset-checkpoint"
    assert f"{TOPIC} 0 6" in Path(checkpoint).read_text(encoding="utf-8")


def test_the_log_names_what_clients_deleted(
    filled: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tidelog.server"):
        delete(filled, 2)
        delete(filled, 1)  # deletes nothing
    assert [record.message for record in caplog.records if "DeleteRecords" in record.message] == [
        f"{TOPIC}-0: DeleteRecords moved the log start from 0 to 2"
    ]
    path = filled.call(lambda node: node.log_dir.path)
    events, _ = read_deletions(OsFileSystem(), f"{path}/{TOPIC}-0")
    assert [(event.rule, event.start_offset, event.end_offset) for event in events] == [
        ("delete-records", 0, 2)
    ]


@pytest.mark.parametrize(("offset", "code"), [(7, 1), (-2, 1)])
def test_offsets_that_do_not_exist_cannot_be_deleted(
    filled: Broker, offset: int, code: int
) -> None:
    assert delete(filled, offset) == (code, -1)


def test_impermissible_deletions_of_records_are_refused(filled: Broker) -> None:
    filled.call(
        lambda node: node.log_dir.create_topic(
            "kept", partitions=1, config={"cleanup.policy": "compact"}
        )
    )
    assert delete(filled, 0, topic="kept") == (44, -1)
    assert delete(filled, 0, number=9) == (3, -1)
    assert delete(filled, 0, topic="__consumer_offsets") == (3, -1)
    filled.call(lambda node: node.log_dir.create_topic("__consumer_offsets", partitions=1))
    assert delete(filled, 0, topic="__consumer_offsets") == (17, -1)
