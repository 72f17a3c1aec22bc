"""Conversations about share groups are the same with Kafka and with our broker.

Epochs are not compared, because Kafka starts a topic one heartbeat and one epoch later than our
broker. Texts of errors are not compared either.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

import pytest
from tests.peers.consumer_talk import ConsumerTalk
from tests.peers.group_talk import changed
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import until_so

import tidelog
from tidelog.protocol.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_GROUPS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SYNC_GROUP,
)
from tidelog.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tidelog.server.api.node import Node

pytestmark = pytest.mark.kafka

_EPOCHS = ("member_epoch", "group_epoch", "assignment_epoch", "client_id", "client_host")
ROUTES, STOPS = "shared-routes", "shared-stops"
_COUNTS = {ROUTES: 5, STOPS: 3}
Owned = dict[UUID, set[int]]


class ShareTalk(ConsumerTalk):
    """Requests of members of share groups; tracks each member's epoch and partitions."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__(bootstrap, group)
        self.has: dict[str, Owned] = {}
        self._ids.clear()
        for topic in _COUNTS:
            self.id_of(topic)

    def _shared(self, value: object) -> object:
        found = super()._shared(value)
        if dataclasses.is_dataclass(value) and isinstance(found, dict):
            for name in _EPOCHS:
                found.pop(name, None)
        return found

    def request(self, member: str, epoch: int, **more: object) -> ShareGroupHeartbeatRequest:
        asked = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=member, member_epoch=epoch
        )
        return changed(asked, more)

    def say(self, member: str, epoch: int, **more: object) -> None:
        """Send a heartbeat whose response is compared."""
        self.ask(SHARE_GROUP_HEARTBEAT, 1, self.request(member, epoch, **more))

    def quietly(self, member: str, epoch: int, *topics: str) -> ShareGroupHeartbeatResponse:
        """Send a heartbeat and apply its response to the member; the response is not compared."""
        names = {"subscribed_topic_names": list(topics)} if topics else {}
        told = self.client("a").ask(SHARE_GROUP_HEARTBEAT, 1, self.request(member, epoch, **names))
        assert told.error_code == 0, told
        self.epochs[member] = told.member_epoch
        if told.assignment is not None:
            parts = told.assignment.topic_partitions
            self.has[member] = {part.topic_id: set(part.partitions) for part in parts}
        return told

    def settle(self, *topics: str) -> None:
        """Send heartbeats until all members are in one epoch and read all of these topics."""
        wanted = {self.id_of(topic): set(range(_COUNTS[topic])) for topic in topics}

        def is_settled() -> bool:
            for member, epoch in tuple(self.epochs.items()):
                self.quietly(member, epoch)
            read: Owned = {}
            for owned in self.has.values():
                for topic_id, numbers in owned.items():
                    read.setdefault(topic_id, set()).update(numbers)
            return read == wanted and len(set(self.epochs.values())) == 1

        until_so(is_settled, f"{self.group} reads {topics}")
        self.told.append(
            {
                member: {topic: sorted(owned.get(self.id_of(topic), ())) for topic in _COUNTS}
                for member, owned in sorted(self.has.items())
            }
        )

    def go(self, member: str) -> None:
        """Let a member leave."""
        self.say(member, -1)
        del self.epochs[member], self.has[member]

    def look(self, *groups: str) -> None:
        """Describe the groups."""
        asked = ShareGroupDescribeRequest(group_ids=list(groups) or [self.group])
        self.ask(SHARE_GROUP_DESCRIBE, 1, asked)

    def list_own(self, states: list[str], types: list[str]) -> None:
        """Request a list of groups; record whether this group is in the response."""
        asked = ListGroupsRequest(states_filter=states, types_filter=types)
        told = self.client("a").ask(LIST_GROUPS, 5, asked)
        found = [self._shared(each) for each in told.groups if each.group_id == self.group]
        self.told.append((told.error_code, found))

    def offsets(self, **topics: list[int]) -> None:
        """Describe the group's offsets for these topics, or for all topics if none is named."""
        named = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
        group = DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=named or None)
        for version in (0, 1):
            request = DescribeShareGroupOffsetsRequest(groups=[group])
            self.ask(DESCRIBE_SHARE_GROUP_OFFSETS, version, request)

    def alter(self, start: int, **topics: list[int]) -> None:
        named = [
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(
                        partition_index=number, start_offset=start
                    )
                    for number in numbers
                ],
            )
            for name, numbers in topics.items()
        ]
        request = AlterShareGroupOffsetsRequest(group_id=self.group, topics=named)
        self.ask(ALTER_SHARE_GROUP_OFFSETS, 0, request)

    def forget(self, *topics: str) -> None:
        named = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
        request = DeleteShareGroupOffsetsRequest(group_id=self.group, topics=named)
        self.ask(DELETE_SHARE_GROUP_OFFSETS, 0, request)

    def delete(self) -> None:
        self.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[self.group]))


def nonsense(talk: ShareTalk) -> None:
    """Invalid heartbeats."""
    topics = {"subscribed_topic_names": [ROUTES]}
    talk.say("", 0, **topics)
    talk.say(" ", 0, **topics)
    for epoch in (0, 1):
        talk.say("A" * 37, epoch, **topics)
    talk.say("A", 0)
    talk.say("A", 0, subscribed_topic_names=[])
    talk.say("A", 0, **(topics | {"rack_id": ""}))
    talk.say("A", 0, **(topics | {"group_id": ""}))
    talk.say("A", -2)
    talk.say("A", 1)
    talk.say("A", -1)
    talk.look()
    talk.look("")
    talk.offsets()
    talk.forget(ROUTES)
    talk.delete()
    talk.alter(0, nowhere=[0])
    talk.look()
    talk.alter(0, **{ROUTES: [77]})
    talk.look()
    talk.delete()


def members(talk: ShareTalk) -> None:
    """Members join, continue, are fenced, change topics, leave."""
    talk.quietly("A", 0, ROUTES)
    talk.settle(ROUTES)
    talk.say("A", talk.epochs["A"])
    talk.say("A", talk.epochs["A"], subscribed_topic_names=[ROUTES])
    talk.say("A", 0, subscribed_topic_names=[ROUTES])
    talk.say("A", talk.epochs["A"] + 7)
    talk.say("nobody", 3)
    talk.say("nobody", -1)
    talk.look()
    talk.list_own([], [])
    talk.list_own(["stable"], ["SHARE"])
    talk.list_own(["Empty"], [])
    talk.list_own([], ["consumer", "classic"])
    talk.quietly("B", 0, ROUTES)
    talk.settle(ROUTES)
    for name in "CDEFG":
        talk.quietly(name, 0, ROUTES)
    talk.settle(ROUTES)
    talk.delete()
    for name in "BCDEFG":
        talk.go(name)
    talk.settle(ROUTES)
    talk.quietly("A", talk.epochs["A"], STOPS)
    talk.settle(STOPS)
    talk.go("A")
    talk.say("A", -1)
    talk.look()
    talk.list_own(["empty"], ["share"])
    talk.delete()
    talk.look()


def apart(talk: ShareTalk) -> None:
    """Members with different topics."""
    talk.quietly("A", 0, ROUTES)
    talk.settle(ROUTES)
    talk.quietly("B", 0, ROUTES, STOPS)
    talk.settle(ROUTES, STOPS)
    talk.quietly("C", 0, STOPS)
    talk.settle(ROUTES, STOPS)


def tools(talk: ShareTalk) -> None:
    """Requests of tools that describe and change a group's offsets."""
    talk.alter(1, **{ROUTES: [0, 99], "nowhere": [0]})
    talk.offsets()
    talk.offsets(**{ROUTES: [0, 1], "nowhere": [0]})
    talk.look()
    talk.list_own([], [])
    talk.quietly("A", 0, ROUTES)
    talk.settle(ROUTES)
    talk.offsets()
    talk.alter(1, **{ROUTES: [0]})
    talk.forget(ROUTES)
    talk.go("A")
    talk.offsets()
    talk.forget(ROUTES, STOPS, "nowhere")
    talk.offsets()
    talk.alter(0, **{STOPS: [2]})
    talk.offsets()
    talk.delete()
    talk.offsets()


def strangers(talk: ShareTalk) -> None:
    """Send requests of the other group protocols that name a share group and its member."""
    talk.quietly("A", 0, ROUTES)
    talk.settle(ROUTES)
    group = talk.group
    talk.ask(JOIN_GROUP, 9, talk.join_request("stranger"))
    asked = HeartbeatRequest(group_id=group, member_id="A", group_instance_id=None)
    talk.ask(HEARTBEAT, 4, asked)
    talk.ask(SYNC_GROUP, 5, SyncGroupRequest(group_id=group, member_id="A", protocol_type="share"))
    left = MemberIdentity(member_id="A", group_instance_id=None, reason=None)
    talk.ask(LEAVE_GROUP, 5, LeaveGroupRequest(group_id=group, members=[left]))
    talk.ask(
        CONSUMER_GROUP_HEARTBEAT,
        1,
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="C",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=[ROUTES],
            topic_partitions=[],
        ),
    )
    talk.ask(CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(group_ids=[group]))
    talk.ask(DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[group]))
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name=ROUTES, partitions=[partition])
    commit = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, group_instance_id=None, topics=[topic]
    )
    talk.ask(OFFSET_COMMIT, 9, commit)
    talk.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=group)]))
    talk.say("A", talk.epochs["A"])


SCRIPTS = (nonsense, members, apart, tools, strangers)


def create(node: Node, *, name: str, partitions: int, topic_id: UUID) -> None:
    node.log_dir.create_topic(name, partitions=partitions, topic_id=topic_id)


def id_at(bootstrap: str, name: str) -> UUID:
    with RawClient(bootstrap) as client:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        return client.ask(METADATA, 12, asked).topics[0].topic_id


@pytest.fixture(scope="module")
def places(
    kafka_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Return the addresses of Kafka and our broker; both have the topics with the same ids.

    The ids matter: Kafka's assignor orders partitions by id if they are otherwise equal.
    """
    settings = SETTINGS | {
        "group.share.assignment.interval.ms": "0",
        "group.share.session.timeout.ms": "600000",
        "group.share.max.session.timeout.ms": "600000",
    }
    with tidelog.broker(str(tmp_path_factory.mktemp("ours")), settings=settings) as ours:
        for name, partitions in _COUNTS.items():
            kafka_broker.create_topic(name, partitions)
            topic_id = id_at(kafka_broker.bootstrap, name)
            ours.call(partial(create, name=name, partitions=partitions, topic_id=topic_id))
        yield kafka_broker.bootstrap, ours.bootstrap_servers


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_kafka_gives_the_same_responses(
    script: Callable[[ShareTalk], None], places: tuple[str, str]
) -> None:
    told = []
    for bootstrap in places:
        talk = ShareTalk(bootstrap, f"sharers of {script.__name__}")
        try:
            script(talk)
        finally:
            talk.close()
        told.append(talk.told)
    theirs, ours = told
    pairs = enumerate(zip(theirs, ours, strict=True))
    differ = [
        f"{number}: {our}\n   Kafka: {their}" for number, (their, our) in pairs if our != their
    ]
    assert not differ, "\n".join(differ)
