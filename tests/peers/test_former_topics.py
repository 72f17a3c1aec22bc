"""Kafka and our broker respond equally about offsets of a deleted topic whose name exists again."""

from typing import Final
from uuid import UUID

import pytest
from tests.peers.test_group_offsets import TOPIC, commit_in_a_transaction, ours_on
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.either import kafka_fixture
from tests.worlds.waiting import until

from tidelog.protocol.messages import METADATA, OFFSET_COMMIT, OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.wire import NO_UUID
from tidelog.server.api.node import Node
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest

pytestmark = pytest.mark.kafka

GROUP: Final = "readers"
# Partitions, one for each kind of commit: in a transaction, by the topic's name, by the topic's id,
# by the id of a deleted topic of this name, and without a topic id.
IN_TRANSACTION, BY_NAME, BY_ID, FORMER, UNKNOWN = range(5)
LOADING: Final = {14, 15, 16}
Told = dict[int, tuple[int, int]]
kafka = kafka_fixture({"offsets.topic.num.partitions": "1"}, is_started=False, scope="function")


def id_of(bootstrap: str) -> UUID:
    with RawClient(bootstrap) as client:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        return client.ask(METADATA, 12, asked).topics[0].topic_id


def commit(bootstrap: str, version: int, number: int) -> None:
    """Commit an offset for partition `number`; the offset is the partition's number, too."""
    place = OffsetCommitRequestPartition(partition_index=number, committed_offset=number)
    named = OffsetCommitRequestTopic(name=TOPIC, topic_id=id_of(bootstrap), partitions=[place])
    request = OffsetCommitRequest(group_id=GROUP, topics=[named])
    with RawClient(bootstrap) as client:
        code = until(
            lambda: client.ask(OFFSET_COMMIT, version, request).topics[0].partitions[0].error_code,
            lambda code: code not in LOADING,
        )
    assert code == 0


def fetched(bootstrap: str, version: int, topic: OffsetFetchTopic | None) -> Told:
    """Return the committed offset and the error code of each partition in the response."""
    group = OffsetFetchGroup(group_id=GROUP, topics=None if topic is None else [topic])
    with RawClient(bootstrap) as client:
        (told,) = until(
            lambda: client.ask(OFFSET_FETCH, version, OffsetFetchRequest(groups=[group])).groups,
            lambda groups: groups[0].error_code not in LOADING,
        )
    return {
        each.partition_index: (each.committed_offset, each.error_code)
        for topic in told.topics
        for each in topic.partitions
    }


def answers(bootstrap: str) -> tuple[Told, Told, Told]:
    """Return the offsets fetched by name, by topic id, and for all topics of the group."""
    numbers = [*range(5)]
    named = OffsetFetchTopic(name=TOPIC, partition_indexes=numbers)
    by_id = OffsetFetchTopic(topic_id=id_of(bootstrap), partition_indexes=numbers)
    return fetched(bootstrap, 9, named), fetched(bootstrap, 10, by_id), fetched(bootstrap, 10, None)


def known_ids(node: Node) -> dict[int, UUID]:
    """Return the topic id in each partition's commit record."""
    group = node.groups.find(GROUP)
    assert group is not None
    return {number: found.topic_id for _, number, found in group.offsets}


def add_strangers(node: Node) -> None:
    """Commit two offsets: one with the topic id of a former topic of this name, one without an id.

    Old brokers store commits without a topic id.
    """
    commits = [
        Commit(TOPIC, FORMER, FORMER, topic_id=UUID(int=1)),
        Commit(TOPIC, UNKNOWN, UNKNOWN, topic_id=NO_UUID),
    ]
    said = node.groups.commits.commit(CommitRequest(group_id=GROUP), commits)
    assert said.value == [0, 0]


def test_offsets_of_a_former_topic(kafka: Broker) -> None:
    kafka.start()
    kafka.create_topic(TOPIC, 5)
    commit_in_a_transaction(kafka, GROUP, 50, ends="commit")
    commit(kafka.bootstrap, 9, BY_NAME)
    commit(kafka.bootstrap, 10, BY_ID)
    topic_id = id_of(kafka.bootstrap)
    kafka.stop()
    with ours_on(kafka) as (broker, _):
        until(lambda: broker.call(lambda node: node.groups.find(GROUP)), bool)
        # Commits in transactions have no topic id, even in Kafka's newest version.
        kafkas = {IN_TRANSACTION: NO_UUID, BY_NAME: topic_id, BY_ID: topic_id}
        assert broker.call(known_ids) == kafkas
        broker.call(add_strangers)
        by_name, by_id, all_by_id = answers(broker.bootstrap_servers)
    kept = {IN_TRANSACTION: (50, 0), BY_NAME: (1, 0), BY_ID: (2, 0), UNKNOWN: (4, 0)}
    assert by_name == {**kept, FORMER: (FORMER, 0)}
    assert by_id == {**kept, FORMER: (-1, 0)}
    assert all_by_id == kept
    kafka.start()
    assert answers(kafka.bootstrap) == (by_name, by_id, {**kept, FORMER: (FORMER, 0)})
