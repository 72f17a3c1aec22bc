"""The same conversations about groups with Kafka and our broker give the same responses."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from tests.peers.group_talk import PARTITIONS, SUBSCRIBED, TOPIC, Talk
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.kafka.broker import Broker

import tidelog
from tidelog.protocol.messages import (
    DELETE_GROUPS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_DELETE,
    SYNC_GROUP,
)
from tidelog.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tidelog.protocol.messages.group_offsets import OffsetDeleteRequest, OffsetDeleteRequestTopic
from tidelog.protocol.messages.shared import GroupProtocol, PartitionIndex

pytestmark = pytest.mark.kafka


def joining(talk: Talk) -> None:
    """Send invalid and valid joins, also in old versions."""
    for version in (0, 1, 3, 4, 5, 7, 9):
        talk.ask(JOIN_GROUP, version, talk.join_request(group_id=""))
        talk.ask(JOIN_GROUP, version, talk.join_request(session_timeout_ms=1))
        talk.ask(JOIN_GROUP, version, talk.join_request("nobody"))
    talk.ask(JOIN_GROUP, 9, talk.join_request(protocols=[]))
    talk.ask(JOIN_GROUP, 9, talk.join_request(protocol_type=""))
    talk.ask(JOIN_GROUP, 9, talk.join_request("nobody", group_instance_id="seat"))
    member = talk.stable()
    other = [GroupProtocol(name="sticky", metadata=b"")]
    talk.ask(JOIN_GROUP, 9, talk.join_request(protocols=other), "b")
    talk.ask(JOIN_GROUP, 5, talk.join_request(protocol_type="connect"), "b")
    talk.ask(JOIN_GROUP, 9, talk.join_request("nobody"), "b")
    talk.describe()
    talk.describe(version=5)
    talk.leave((member.member_id, None))
    talk.describe()


def old_clients(talk: Talk) -> None:
    """A member joins without requesting an id, in the oldest version."""
    first = talk.join(version=0)
    talk.sync(first, {first.member_id: b"x"}, version=0)
    talk.heartbeat(first.member_id, first.generation_id)
    again = talk.join(first.member_id, version=2)
    talk.sync(again, {first.member_id: b"y"}, version=1)
    talk.describe(version=0)
    for version in (0, 2):
        gone = LeaveGroupRequest(group_id=talk.group, member_id="nobody")
        talk.ask(LEAVE_GROUP, version, gone)
    talk.ask(LEAVE_GROUP, 1, LeaveGroupRequest(group_id=talk.group, member_id=first.member_id))
    talk.listed()


def syncing(talk: Talk) -> None:
    for version in (3, 5):
        for group in ("", "none"):
            asked = SyncGroupRequest(group_id=group, generation_id=1, member_id="x")
            talk.ask(SYNC_GROUP, version, asked)
    member = talk.join()
    talk.commit(3, member.member_id, member.generation_id)
    talk.join(member.member_id)
    talk.sync(member, generation_id=7)
    talk.sync(member, member_id="nobody")
    talk.sync(member, protocol_type="connect")
    talk.sync(member, protocol_name="sticky")
    talk.sync(member, group_instance_id="seat")
    talk.sync(member, {"nobody": b"z"})
    talk.sync(member)
    talk.describe()


def rebalance(talk: Talk) -> None:
    """A second member joins and leaves; heartbeat responses notify the first member."""
    first = talk.stable()
    second_id = talk.new_id("b")
    talk.heartbeat(first.member_id, first.generation_id)
    talk.park(second_id, name="b")
    talk.until(lambda: talk.heartbeat_code(first.member_id, first.generation_id), 27)
    talk.sync(first)
    talk.commit(5, first.member_id, first.generation_id)
    talk.describe()
    talk.listed(["preparingrebalance"])
    joined = talk.join(first.member_id)
    talk.await_note("b")
    talk.heartbeat(second_id, joined.generation_id)
    talk.commit(6, first.member_id, joined.generation_id)
    talk.commit(6, first.member_id, first.generation_id)
    talk.sync(joined, {first.member_id: b"left", second_id: b"right"})
    talk.sync(joined, name="b", member_id=second_id)
    talk.describe()
    talk.leave((second_id, None), ("nobody", None), ("", "nobody"))
    talk.heartbeat(first.member_id, joined.generation_id)
    talk.join(first.member_id)


def static_members(talk: Talk) -> None:
    """A static member returns with a new id and keeps its assignment; the old id is fenced."""
    first = talk.stable("seat 1")
    back = talk.join(group_instance_id="seat 1")
    talk.sync(back, group_instance_id="seat 1")
    talk.heartbeat(first.member_id, first.generation_id, "seat 1")
    talk.heartbeat(first.member_id, first.generation_id)
    talk.heartbeat(back.member_id, back.generation_id, "seat 2")
    talk.commit(1, first.member_id, first.generation_id, instance_id="seat 1")
    talk.commit(2, back.member_id, back.generation_id, instance_id="seat 1")
    talk.sync(first, group_instance_id="seat 1")
    talk.ask(JOIN_GROUP, 9, talk.join_request(first.member_id, group_instance_id="seat 1"))
    old = talk.join(group_instance_id="seat 1", version=8)
    talk.sync(old, group_instance_id="seat 1")
    changed = [GroupProtocol(name="range", metadata=SUBSCRIBED + b"more")]
    talk.join(group_instance_id="seat 1", protocols=changed)
    talk.describe()
    talk.leave((back.member_id, "seat 1"), ("", "seat 1"))
    talk.describe()


def committing(talk: Talk) -> None:
    """Commit and fetch offsets without and with a member, in versions with different formats."""
    talk.fetch()
    talk.commit(1, "nobody", 4)
    talk.commit(1, "nobody", 4, version=8)
    talk.commit(1, "nobody", 4, version=2)
    for version in (2, 5, 6, 7, 9):
        talk.commit(10 + version, version=version, metadata=None if version > 5 else "why")
    talk.commit(30, version=10, topic="", topic_id=talk.topic_id, partition=1)
    talk.commit(30, version=10, topic="", topic_id=UUID(int=77))
    talk.commit(30, topic="nowhere")
    talk.commit(30, partition=9)
    talk.commit(30, metadata="x" * 5000)
    talk.commit(30, metadata="é" * 3000)
    talk.commit(40, "nobody", -1)
    talk.commit(40, "nobody", 3)
    for version in (1, 2, 5, 7, 8, 9, 10):
        talk.fetch(version=version)
    for version in (2, 8, 10):
        talk.fetch(version=version, topics=False)
    for version in (1, 7, 8, 9):
        talk.fetch_twice(version)
    talk.describe()
    talk.listed([" Empty"], ["CLASSIC"])
    talk.listed(["stable"])
    talk.listed([], ["consumer"])
    member = talk.stable()
    talk.commit(50)
    talk.commit(50, member.member_id, -1)
    talk.commit(50, member.member_id, 77)
    talk.commit(50, "nobody", member.generation_id)
    talk.commit(50, member.member_id, member.generation_id, instance_id="seat")
    talk.commit(51, member.member_id, member.generation_id)
    talk.fetch()


def deleting(talk: Talk) -> None:
    """Offsets and groups are deleted, but not while members use them."""

    def offsets(topic: str, *partitions: int, group: str | None = None) -> None:
        places = [PartitionIndex(partition_index=one) for one in partitions]
        topics = [OffsetDeleteRequestTopic(name=topic, partitions=places)]
        asked = OffsetDeleteRequest(group_id=talk.group if group is None else group, topics=topics)
        talk.ask(OFFSET_DELETE, 0, asked)

    def groups(*names: str) -> None:
        talk.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=list(names)))

    groups(talk.group, "nobody's", "")
    offsets(TOPIC, 0, group="")
    offsets(TOPIC, 0)
    member = talk.stable()
    talk.commit(5, member.member_id, member.generation_id)
    talk.commit(5, member.member_id, member.generation_id, partition=1)
    offsets(TOPIC, 0)
    offsets("nowhere", 0)
    groups(talk.group)
    talk.leave((member.member_id, None))
    offsets(TOPIC, 0, 9)
    talk.fetch()
    groups(talk.group)
    talk.describe()
    talk.fetch()
    talk.listed()
    other = talk.join(protocol_type="connect")
    talk.sync(other, protocol_type="connect")
    offsets(TOPIC, 0)


def finding(talk: Talk) -> None:
    """Look up coordinators by valid and empty keys; addresses are not compared."""
    for version in (0, 1, 3):
        found = talk.client("a").ask(FIND_COORDINATOR, version, FindCoordinatorRequest(key="x"))
        talk.told.append((found.error_code, found.error_message))
    several = FindCoordinatorRequest(coordinator_keys=["x", "", talk.group])
    for version in (4, 6):
        answer = talk.client("a").ask(FIND_COORDINATOR, version, several)
        talk.told.append([(c.key, c.error_code, c.error_message) for c in answer.coordinators])


SCRIPTS = (
    joining,
    old_clients,
    syncing,
    rebalance,
    static_members,
    committing,
    deleting,
    finding,
)


@pytest.fixture(scope="module")
def places(
    kafka_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Return the addresses of Kafka and our broker; both have the topic."""
    kafka_broker.create_topic(TOPIC, PARTITIONS)
    folder = tmp_path_factory.mktemp("ours")
    settings = SETTINGS | {"group.min.session.timeout.ms": "6000"}
    with tidelog.broker(str(folder), settings=settings) as ours:
        ours.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=PARTITIONS))
        yield kafka_broker.bootstrap, ours.bootstrap_servers


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_kafka_gives_the_same_responses(
    script: Callable[[Talk], None], places: tuple[str, str]
) -> None:
    told = []
    for bootstrap in places:
        talk = Talk(bootstrap, f"group of {script.__name__}")
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
