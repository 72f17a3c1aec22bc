"""Kafka and our broker respond equally to odd requests that read or delete records.

The requests are Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords. No Kafka client sends
them like this: they have impossible offsets, epochs, sizes and isolation levels, or name a
partition twice.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import pytest
from tests.peers.test_produce_answers import create
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker as KafkaBroker
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import (
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.record.builder import build_batch
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

RECORDS = 10
NOW_MS = 1_700_000_000_000
PARTITIONS = 2
NOT_THERE = (3, 6)
Answer = tuple[object, ...]
# A deletion of records: the topic's name (empty for the existing topic), and for each partition the
# offset below which its records are deleted.
Deletion = tuple[str, tuple[tuple[int, int], ...]]
Said = TypeVar("Said")


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, and a topic on this broker with some records."""

    client: RawClient
    topic: str
    topic_id: uuid.UUID

    def fetch(self, version: int, *rows: FetchPartition, **more: int) -> Answer:
        """Fetch without a session; return the response without the records."""
        asked = FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=list(rows))
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
        message = FetchRequest(topics=[asked], rack_id="", **(limits | more))  # type: ignore[arg-type] # all are numbers
        told = self.client.ask(FETCH, version, message)
        found = [part for topic in told.responses for part in topic.partitions]
        return (
            told.error_code,
            told.session_id,
            sorted(
                (
                    part.partition_index,
                    part.error_code,
                    part.high_watermark,
                    part.last_stable_offset,
                    part.log_start_offset,
                    (part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
                    part.aborted_transactions,
                    bool(part.records),
                )
                for part in found
            ),
        )

    def offsets(self, *rows: ListOffsetsPartition, isolation: int = 0) -> Answer:
        """Return ListOffsets results for these partitions of the topic, and of a missing topic."""
        topics = [
            ListOffsetsTopic(name=self.topic, partitions=list(rows)),
            ListOffsetsTopic(name="nobody-s", partitions=list(rows)),
        ]
        message = ListOffsetsRequest(topics=topics, isolation_level=isolation)
        told = self.client.ask(LIST_OFFSETS, 7, message)
        return tuple(
            sorted(
                (topic.name == self.topic, one.partition_index, one.error_code, one.offset)
                for topic in told.topics
                for one in topic.partitions
            )
        )

    def offsets_by_topic(self, *topics: tuple[str, tuple[int, ...]]) -> Answer:
        """Return the result of ListOffsets for topics; an empty name means the existing topic."""
        asked = [
            ListOffsetsTopic(
                name=name or self.topic,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers
                ],
            )
            for name, numbers in topics
        ]
        told = self.client.ask(LIST_OFFSETS, 7, ListOffsetsRequest(topics=asked))
        return tuple(
            sorted(
                (
                    topic.name.replace(self.topic, ""),
                    sorted((p.partition_index, p.error_code, p.offset) for p in topic.partitions),
                )
                for topic in told.topics
            )
        )

    def epoch_end(self, current: int, epoch: int) -> Answer:
        """Return the result of OffsetForLeaderEpoch."""
        asked = OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=epoch
        )
        topic = OffsetForLeaderTopic(topic=self.topic, partitions=[asked])
        message = OffsetForLeaderEpochRequest(replica_id=-2, topics=[topic])
        told = self.client.ask(OFFSET_FOR_LEADER_EPOCH, 4, message)
        (found,) = told.topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    def delete(self, *topics: Deletion) -> list[Answer]:
        """Return the result of DeleteRecords."""
        asked = [
            DeleteRecordsTopic(
                name=name or self.topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=number, offset=offset)
                    for number, offset in places
                ],
            )
            for name, places in topics
        ]
        message = DeleteRecordsRequest(topics=asked, timeout_ms=90_000)
        told = self.client.ask(DELETE_RECORDS, 2, message)
        return sorted(
            (
                topic.name.replace(self.topic, ""),
                sorted(
                    (one.partition_index, one.error_code, one.low_watermark)
                    for one in topic.partitions
                ),
            )
            for topic in told.topics
        )


ours = broker_fixture({"log.retention.ms": "-1"}, is_temporary=True, scope="module")


@pytest.fixture
def places(kafka_broker: KafkaBroker, ours: Broker) -> Iterator[tuple[Place, Place]]:
    """The same topic in both brokers; the first one is Kafka's."""
    name = f"t{uuid.uuid4().hex}"
    with RawClient(kafka_broker.bootstrap) as kafka, RawClient(ours.bootstrap_servers) as own:
        yield topic_with_records(kafka, name), topic_with_records(own, name)


def topic_with_records(client: RawClient, name: str, policy: str = "delete") -> Place:
    """Create a topic with a batch of records in each partition."""
    create(client, name, {"cleanup.policy": policy}, PARTITIONS)
    records = [NewRecord(key=b"k", value=b"v", timestamp=NOW_MS) for _ in range(RECORDS)]
    for number in range(PARTITIONS):
        patience = Patience()
        while client.produce(name, bytes(build_batch(records)), number).error_code in NOT_THERE:
            patience.check("Kafka's partition has a leader")
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return Place(client, name, client.ask(METADATA, 12, asked).topics[0].topic_id)


def agree(places: tuple[Place, Place], question: Callable[[Place], Said]) -> Said:
    """Assert that both brokers give the same result; return this result."""
    theirs, ours = (question(place) for place in places)
    assert ours == theirs
    return ours


def row(
    offset: int, *, number: int = 0, current: int = -1, last: int = -1, most: int = 1 << 20
) -> FetchPartition:
    return FetchPartition(
        partition=number,
        fetch_offset=offset,
        current_leader_epoch=current,
        last_fetched_epoch=last,
        partition_max_bytes=most,
    )


def test_offsets_and_epochs_of_a_fetch(places: tuple[Place, Place]) -> None:
    """If the epochs show that logs diverged, the response reports only this, not a wrong offset."""

    def ask(place: Place) -> dict[Answer, Answer]:
        epochs = (-3, -2, -1, 0, 1)
        asked = product((-1, 0, 3, 4, 5, 10, 11, 50), epochs, epochs)
        return {
            (offset, current, last): place.fetch(12, row(offset, current=current, last=last))
            for offset, current, last in asked
        }

    agree(places, ask)
    parted = agree(places, lambda place: place.fetch(12, row(50, last=0, most=-1)))
    assert parted == (0, 0, [(0, 0, 10, 10, 0, (0, 10), None, False)])
    agree(places, lambda place: place.delete(("", ((0, 4),))))
    agree(places, ask)


def test_epochs_of_other_questions(places: tuple[Place, Place]) -> None:
    def ask(place: Place) -> list[Answer]:
        epochs = (-2, -1, 0, 1)
        asked = [time_of(-1, current=current) for current in epochs]
        return [
            *(place.epoch_end(*both) for both in product(epochs, epochs)),
            *(place.offsets(one) for one in asked),
        ]

    agree(places, ask)


TWICE: list[tuple[tuple[str, tuple[int, ...]], ...]] = [
    (("", (0,)), ("", (1,))),
    (("", (0,)), ("nobody-s", (0,)), ("", (1,))),
    (("", (0, 0)), ("", (1,))),
    (("", (0,)), ("", (0, 1))),
    (("nobody-s", (0,)), ("nobody-s", (1,))),
    (("", ()), ("nobody-s", (1,))),
]


def test_repeated_topics_get_equal_responses(places: tuple[Place, Place]) -> None:
    agree(places, lambda place: [place.offsets_by_topic(*asked) for asked in TWICE])


def time_of(time: int, *, current: int = -1) -> ListOffsetsPartition:
    return ListOffsetsPartition(partition_index=0, timestamp=time, current_leader_epoch=current)


ROWS = (
    (row(0), row(0, number=1)),
    (row(0),),
    (row(0, number=9), row(0)),
    (row(10), row(0, number=1)),
    (row(99), row(0, number=1)),
    (row(0, most=0), row(0, number=1)),
    (row(0, most=-1), row(0, number=1)),
    (row(10, most=-1), row(0, number=1)),
    (row(99, most=-1), row(0, number=1)),
)


def test_a_fetch_of_negative_limits_gets_equal_responses(places: tuple[Place, Place]) -> None:
    """Size limits of the response and of the first partition are 1, 0 or negative."""

    def ask(place: Place) -> list[Answer]:
        return [
            place.fetch(12, *rows, max_bytes=most)
            for most, rows in product((-(1 << 31), -1, 0, 1), ROWS)
        ]

    agree(places, ask)


def test_isolation_levels_that_there_are_not(places: tuple[Place, Place]) -> None:
    rows = (row(0), row(10, number=1), row(0, number=5))
    levels = (-1, 0, 1, 2, 127)

    def ask(place: Place) -> list[Answer]:
        return [
            *(
                place.fetch(version, *rows, isolation_level=level)
                for version, level in product((4, 11, 12, 13, 17), levels)
            ),
            *(
                place.fetch(version, row(0, number=5), isolation_level=level)
                for version, level in product((4, 12, 17), levels)
            ),
            *(
                place.fetch(version, *rows, isolation_level=level, session_id=7, session_epoch=3)
                for version, level in product((7, 12, 17), levels)
            ),
            *(
                place.offsets(time_of(time), isolation=level)
                for time, level in product((-1, NOW_MS), levels)
            ),
        ]

    agree(places, ask)


DELETIONS: list[tuple[Deletion, ...]] = [
    (("", ((0, 2), (0, 1))),),
    (("", ((0, 2), (0, 3))),),
    (("", ((1, 1),)), ("", ((1, 2),))),
    (("", ((1, 3),)), ("", ((0, 4),))),
    (("", ((1, 99),)), ("", ((1, 4),))),
    (("", ((1, 5),)), ("", ((1, 99),))),
    (("", ()), ("nobody-s", ())),
    (("nobody-s", ((0, 1),)), ("nobody-s", ((0, 1), (1, 1)))),
    (("__consumer_offsets", ((99, 1),)),),
    (("__cluster_metadata", ((0, 1),)), ("a b", ((0, 1),))),
]


def test_deletions_of_records_get_equal_responses(places: tuple[Place, Place]) -> None:
    """If a request names a partition several times, the last of the offsets applies."""
    agree(places, lambda place: [place.delete(*asked) for asked in DELETIONS])


@pytest.mark.parametrize("policy", ["", "compact", "compact,delete"])
def test_records_of_a_compacted_topic_cannot_be_deleted(
    policy: str, kafka_broker: KafkaBroker, ours: Broker
) -> None:
    name = f"t{uuid.uuid4().hex}"
    with RawClient(kafka_broker.bootstrap) as kafka, RawClient(ours.bootstrap_servers) as own:
        both = topic_with_records(kafka, name, policy), topic_with_records(own, name, policy)
        told = agree(both, lambda place: place.delete(("", ((0, 3),))))
    assert told == [("", [(0, 44, -1) if policy == "compact" else (0, 0, 3)])]
