"""Conversations about groups of the consumer protocol are the same with Kafka and our broker."""

from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

import pytest
from tests.peers.consumer_talk import (
    ROUTES,
    ROUTES_PARTITIONS,
    ROUTES_SUBSCRIBED,
    STOPS,
    STOPS_PARTITIONS,
    TIMEOUT_MS,
    ConsumerTalk,
    await_topics,
    create_apart,
)
from tests.peers.consumer_walk import walk_differs
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.kafka.broker import Broker

import tidelog
from tidelog.protocol.messages import DELETE_GROUPS, OFFSET_DELETE
from tidelog.protocol.messages.classic_groups import DeleteGroupsRequest
from tidelog.protocol.messages.group_offsets import OffsetDeleteRequest, OffsetDeleteRequestTopic
from tidelog.protocol.messages.shared import GroupProtocol, PartitionIndex
from tidelog.server.api.node import Node

pytestmark = pytest.mark.kafka

WALKS = 4
MANY_WALKS = 100


def nonsense(talk: ConsumerTalk) -> None:
    """Send invalid heartbeats, in both versions."""
    right = {
        "rebalance_timeout_ms": TIMEOUT_MS,
        "subscribed_topic_names": [ROUTES],
        "topic_partitions": [],
    }
    for version in (0, 1):
        talk.raw_beat("A", 0, version=version)
        talk.raw_beat("A", 0, version=version, **(right | {"rebalance_timeout_ms": -1}))
        talk.raw_beat("A", 0, version=version, **(right | {"subscribed_topic_names": None}))
        talk.raw_beat("A", 0, version=version, **(right | {"topic_partitions": None}))
        owned = [talk.part(ROUTES, 0)]
        talk.raw_beat("A", 0, version=version, **(right | {"topic_partitions": owned}))
        talk.raw_beat("A", 0, version=version, **(right | {"instance_id": ""}))
        talk.raw_beat("A", 0, version=version, **(right | {"rack_id": " "}))
        talk.raw_beat("A", 0, version=version, **(right | {"group_id": ""}))
        talk.raw_beat("A", 0, version=version, **(right | {"server_assignor": "mine"}))
        talk.raw_beat("A", -2, version=version)
        talk.raw_beat("A", -3, version=version)
        talk.raw_beat("", -1, version=version)
        talk.raw_beat("", 3, version=version)
        talk.raw_beat("A", 1, version=version)
        talk.raw_beat("A", -1, version=version)
        talk.raw_beat("A", -2, version=version, instance_id="seat")
    talk.raw_beat("", 0, version=1, **right)
    talk.describe_consumers()
    talk.describe_consumers("", version=0)


def one_member(talk: ConsumerTalk) -> None:
    """A member joins, sends heartbeats, loses responses, is fenced and leaves."""
    talk.enter("A")
    talk.beat("A")
    talk.beat_owning("A")
    talk.describe_consumers()
    talk.describe_consumers(version=0)
    talk.beat("A", subscribed_topic_names=[ROUTES, STOPS])
    talk.raw_beat("A", 1)
    talk.raw_beat("A", 1, topic_partitions=[])
    talk.raw_beat("A", 1, topic_partitions=[talk.part(STOPS, 7)])
    talk.raw_beat("A", 0)
    talk.raw_beat("A", 9)
    talk.raw_beat("nobody", 1)
    talk.raw_beat("nobody", -1)
    talk.settle("A")
    talk.enter("A")
    talk.settle("A")
    talk.beat("A", subscribed_topic_names=["nowhere"])
    talk.settle("A")
    talk.listed()
    talk.listed([" reconciling", "STABLE "], ["CONSUMER"])
    talk.listed([], ["classic"])
    talk.describe()
    talk.describe(version=5)
    talk.raw_beat("A", -1)
    talk.listed(["empty"])
    talk.describe_consumers()
    talk.raw_beat("A", -1)


def sharing(talk: ConsumerTalk) -> None:
    """Members with too many partitions revoke some; other members wait for these partitions."""
    talk.enter("A")
    talk.enter("B")
    talk.describe_consumers()
    talk.beat("A")
    talk.describe_consumers()
    talk.beat("B")
    talk.beat("A")
    talk.enter("C")
    talk.beat_owning("A")
    talk.beat("B")
    talk.beat_owning("B")
    talk.settle("A", "B", "C")
    talk.describe_consumers()
    talk.raw_beat("B", -1)
    talk.settle("A", "C")
    talk.describe_consumers()


def many_members(talk: ConsumerTalk) -> None:
    """If partitions can't be divided equally, members' ids decide who gets one partition more."""
    names = ["kiwi", "plum-7", "fig", "Zitrone", "date_4", "a-long-name-of-a-member", "9"]
    for name in names:
        talk.enter(name, ROUTES)
        talk.describe_consumers()
    talk.settle(*names)
    talk.settle(*names)
    talk.describe_consumers()
    for name in names[::2]:
        talk.raw_beat(name, -1)
    talk.settle(*names[1::2])
    talk.describe_consumers()


def range_members(talk: ConsumerTalk) -> None:
    """`range` sorts members by instance id and member id; the members read different topics."""
    for name, topics in (("m2", [ROUTES]), ("m1", [ROUTES, STOPS]), ("m3", [STOPS])):
        talk.enter(name, *topics, server_assignor="range")
        talk.describe_consumers()
    talk.enter("m0", ROUTES, instance_id="zz", server_assignor="range")
    talk.settle("m0", "m1", "m2", "m3")
    talk.settle("m0", "m1", "m2", "m3")
    talk.describe_consumers()
    talk.beat("m1", server_assignor="uniform")
    talk.describe_consumers()


def static_members(talk: ConsumerTalk) -> None:
    """The partitions of a static member that leaves temporarily are reserved for its return."""
    talk.enter("A", instance_id="seat 1")
    talk.enter("B", instance_id="seat 2")
    talk.settle("A", "B")
    talk.enter("C", instance_id="seat 1")
    talk.raw_beat("C", 2, instance_id="seat 1")
    talk.raw_beat("C", -1, instance_id="seat 1")
    talk.raw_beat("A", 2, instance_id="seat 9")
    talk.raw_beat("A", -2, instance_id="seat 1")
    talk.describe_consumers()
    talk.raw_beat("A", 2, instance_id="seat 1")
    talk.enter("C", instance_id="seat 1")
    talk.describe_consumers()
    talk.raw_beat("A", -1, instance_id="seat 1")
    talk.settle("B", "C")
    talk.raw_beat("C", -2, instance_id="seat 1")
    talk.enter("C", STOPS, instance_id="seat 1")
    talk.settle("B", "C")
    talk.describe_consumers()
    talk.raw_beat("B", -1, instance_id="seat 2")
    talk.leave(("", "seat 1"), ("", "seat 2"), ("x", None))
    talk.describe_consumers()


def committing(talk: ConsumerTalk) -> None:
    """Members commit with their current epochs, an earlier epoch and invalid epochs."""
    talk.commit(1, topic=ROUTES)
    talk.enter("A")
    talk.commit(2, topic=ROUTES)
    talk.commit(3, "A", 1, topic=ROUTES)
    talk.commit(3, "A", 1, topic=ROUTES, version=8)
    talk.commit(3, "A", 2, topic=ROUTES)
    talk.commit(3, "A", -1, topic=ROUTES)
    talk.commit(3, "nobody", 1, topic=ROUTES)
    talk.commit(4, "A", 1, topic="", topic_id=talk.id_of(ROUTES), version=10)
    talk.fetch_as("A", 1)
    talk.fetch_as("A", 1, version=10)
    talk.fetch_as("A", 0)
    talk.fetch_as("nobody", 1)
    talk.fetch_as(None, -1)
    talk.enter("B")
    talk.beat("A")
    for name in ("A", "B"):
        talk.beat_owning(name)
    talk.settle("A", "B")
    for partition in range(ROUTES_PARTITIONS):
        talk.commit(7, "A", 1, topic=ROUTES, partition=partition)
        talk.commit(8, "B", 1, topic=ROUTES, partition=partition)
        talk.commit(9, "A", 2, topic=ROUTES, partition=partition)
    talk.commit(9, "A", 3, topic=ROUTES)
    talk.commit(9, "A", 1, topic=STOPS)
    talk.fetch_as("A", 1)
    talk.fetch_as("A", 2)


def deleting(talk: ConsumerTalk) -> None:
    """Offsets and groups are deleted, but not while members use them."""

    def offsets(topic: str) -> None:
        place = PartitionIndex(partition_index=0)
        named = OffsetDeleteRequestTopic(name=topic, partitions=[place])
        talk.ask(OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=talk.group, topics=[named]))

    def group() -> None:
        talk.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[talk.group]))

    talk.enter("A")
    talk.commit(3, "A", 1, topic=ROUTES)
    talk.commit(3, "A", 1, topic=STOPS)
    offsets(ROUTES)
    offsets(STOPS)
    group()
    talk.raw_beat("A", -1)
    offsets(ROUTES)
    group()
    talk.describe_consumers()
    group()


def expressions(talk: ConsumerTalk) -> None:
    """Topics that match a regular expression are assigned after the expression's evaluation."""
    fields: dict[str, object] = {
        "rebalance_timeout_ms": TIMEOUT_MS,
        "subscribed_topic_names": [],
        "topic_partitions": [],
    }
    for text in ("(", "*a", "[z-a]", "a**", r"\1", "(?=x)", "x{2000}"):
        talk.send_beat("A", 0, fields | {"subscribed_topic_regex": text})
    # Evaluation takes time, so the first epoch has no topics of the expression.
    talk.enter("A", subscribed_topic_names=[], subscribed_topic_regex="rou[t-v]es|(?i)STOPS")
    asked = talk.beat_request("A", 1, topic_partitions=[])
    talk.await_epoch("A", asked, 2)
    talk.describe_consumers()
    talk.enter("B", subscribed_topic_names=[], subscribed_topic_regex="rou[t-v]es|(?i)STOPS")
    talk.settle("A", "B")
    talk.describe_consumers()
    talk.beat("B", subscribed_topic_regex="", subscribed_topic_names=[STOPS])
    talk.settle("A", "B")
    talk.describe_consumers()
    talk.raw_beat("A", -1)
    talk.settle("B")
    talk.describe_consumers()


def upgrading(talk: ConsumerTalk) -> None:
    """A classic group with members is upgraded to the consumer protocol, and downgraded again."""
    protocols = [GroupProtocol(name="range", metadata=ROUTES_SUBSCRIBED)]
    old = talk.join(protocols=protocols)
    assigned = b"\0\0\0\0\0\1\0\x06routes\0\0\0\5" + b"".join(
        number.to_bytes(4, "big") for number in range(5)
    )
    talk.sync(old, {old.member_id: assigned + b"\xff\xff\xff\xff"})
    talk.commit(1, old.member_id, old.generation_id, topic=ROUTES)
    talk.describe_consumers()
    talk.enter("A")
    talk.describe_consumers()
    talk.describe()
    talk.listed()
    talk.heartbeat(old.member_id, old.generation_id)
    talk.commit(2, old.member_id, old.generation_id, topic=ROUTES)
    again = talk.join(old.member_id, protocols=protocols)
    talk.sync(again)
    talk.heartbeat(again.member_id, again.generation_id)
    talk.beat_owning("A")
    owning = GroupProtocol(
        name="range",
        metadata=b"\0\1\0\0\0\1\0\x06routes\xff\xff\xff\xff\0\0\0\1\0\x06routes\0\0\0\3"
        + b"".join(number.to_bytes(4, "big") for number in range(3)),
    )
    again = talk.join(old.member_id, protocols=[owning])
    talk.sync(again)
    talk.sync(again, protocol_name="sticky")
    talk.sync(again, generation_id=77)
    talk.heartbeat(again.member_id, again.generation_id)
    talk.settle("A")
    talk.describe_consumers()
    other = [GroupProtocol(name="sticky", metadata=ROUTES_SUBSCRIBED)]
    talk.join(protocols=other)
    talk.join(protocols=protocols, protocol_type="connect")
    talk.heartbeat("nobody", 1)
    talk.heartbeat("A", 1)
    talk.fetch_as(again.member_id, again.generation_id)
    talk.raw_beat("A", -1)
    talk.describe_consumers()
    talk.describe()
    talk.listed()
    talk.heartbeat(again.member_id, again.generation_id)
    last = talk.join(again.member_id, protocols=protocols)
    talk.sync(last, {last.member_id: b"all"})
    talk.describe()
    talk.fetch_as(None, -1)


def founding_anew(talk: ConsumerTalk) -> None:
    """A group without members gets the protocol of its next member, classic or consumer."""
    protocols = [GroupProtocol(name="range", metadata=ROUTES_SUBSCRIBED)]
    talk.commit(5, topic=ROUTES)
    talk.enter("A")
    talk.fetch_as("A", 1)
    talk.raw_beat("A", -1)
    classic = talk.join(protocols=protocols)
    talk.sync(classic, {classic.member_id: b""})
    talk.listed()
    talk.fetch_as(None, -1)
    talk.leave((classic.member_id, None))
    talk.enter("B")
    talk.listed()
    talk.beat("B")
    joined = talk.join(protocols=protocols)
    talk.sync(joined)
    talk.beat("B")
    talk.beat_owning("B")
    talk.heartbeat(joined.member_id, joined.generation_id)
    talk.describe_consumers()
    talk.leave((joined.member_id, None), ("B", None))
    talk.describe_consumers()
    talk.listed()


def create(node: Node, name: str, partitions: int, topic_id: UUID) -> None:
    node.log_dir.create_topic(name, partitions=partitions, topic_id=topic_id)


SCRIPTS = (
    nonsense,
    one_member,
    sharing,
    many_members,
    range_members,
    static_members,
    committing,
    deleting,
    expressions,
    upgrading,
    founding_anew,
)


@pytest.fixture(scope="module")
def places(
    kafka_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Return the addresses of Kafka and our broker, whose topics have the same ids.

    Kafka's assignors order topics by id if they are otherwise equal.
    """
    ids = create_apart(kafka_broker)
    await_topics(kafka_broker.bootstrap)
    topics = ((ROUTES, ROUTES_PARTITIONS), (STOPS, STOPS_PARTITIONS))
    settings = SETTINGS | {
        "group.min.session.timeout.ms": "6000",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.session.timeout.ms": str(TIMEOUT_MS),
        "group.consumer.max.session.timeout.ms": str(TIMEOUT_MS),
    }
    folder = tmp_path_factory.mktemp("ours")
    with tidelog.broker(str(folder), settings=settings) as ours:
        for name, partitions in topics:
            ours.call(partial(create, name=name, partitions=partitions, topic_id=ids[name]))
        yield kafka_broker.bootstrap, ours.bootstrap_servers


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_kafka_gives_the_same_responses(
    script: Callable[[ConsumerTalk], None], places: tuple[str, str]
) -> None:
    told = []
    for bootstrap in places:
        talk = ConsumerTalk(bootstrap, f"consumers of {script.__name__}")
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


@pytest.mark.parametrize("is_mixed", [False, True])
def test_kafka_gives_the_same_responses_on_walks(
    places: tuple[str, str], *, is_mixed: bool
) -> None:
    for seed in range(WALKS):
        assert not (differs := walk_differs(seed, places, is_mixed=is_mixed)), differs


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [False, True])
def test_kafka_gives_the_same_responses_on_many_walks(
    places: tuple[str, str], *, is_mixed: bool
) -> None:
    for seed in range(WALKS, MANY_WALKS):
        assert not (differs := walk_differs(seed, places, is_mixed=is_mixed)), differs
