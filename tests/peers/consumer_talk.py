"""A recorded conversation about a group with server-side assignment, to compare two brokers."""

import dataclasses
import re
import time
from collections.abc import Mapping
from uuid import UUID

from confluent_kafka.admin import AdminClient
from tests.peers.group_talk import Talk, changed
from tests.worlds.kafka.broker import Broker

from tidelog.protocol.messages import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    METADATA,
    OFFSET_FETCH,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.shared import IdPartitions
from tidelog.server.coordinator.java_hash import hash_order, uuid_hash

ROUTES, ROUTES_PARTITIONS = "routes", 5
STOPS, STOPS_PARTITIONS = "stops", 3
# A consumer's subscription to ROUTES, in the oldest form.
ROUTES_SUBSCRIBED = b"\0\0\0\0\0\1\0\x06routes\xff\xff\xff\xff"
TIMEOUT_MS = 600_000
PATIENCE_S = 90
CREATE_TRIES = 20
# An id created by a coordinator: 128 random bits in Base64.
GIVEN_ID = re.compile(r"[\w-]{22}")


class ConsumerTalk(Talk):
    """Sends requests of members that choose their ids; tracks their epochs and partitions."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__(bootstrap, group)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, list[IdPartitions]] = {}
        self._ids: dict[str, UUID] = {}
        for topic in (ROUTES, STOPS):
            self.id_of(topic)

    def _shared(self, value: object) -> object:
        if isinstance(value, str) and GIVEN_ID.fullmatch(value):
            return self._name(value)
        found = super()._shared(value)
        if dataclasses.is_dataclass(value) and isinstance(found, dict):
            # The text differs between brokers.
            found.pop("error_message", None)
            names = {topic_id: name for name, topic_id in self._ids.items()}
            if isinstance(topic_id := getattr(value, "topic_id", None), UUID):
                found["topic_id"] = names.get(topic_id, str(topic_id))
        return found

    def id_of(self, topic: str) -> UUID:
        """Return the id of a topic."""
        if topic not in self._ids:
            wanted = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            self._ids[topic] = self.client("a").ask(METADATA, 12, wanted).topics[0].topic_id
        return self._ids[topic]

    # -- members -----------------------------------------------------------------------------

    def beat_request(
        self, member: str, epoch: int, **more: object
    ) -> ConsumerGroupHeartbeatRequest:
        asked = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=member, member_epoch=epoch
        )
        return changed(asked, more)

    def raw_beat(
        self, member: str, epoch: int, *, version: int = 1, **more: object
    ) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat with the given epoch."""
        return self.send_beat(member, epoch, more, version=version)

    def send_beat(
        self, member: str, epoch: int, fields: Mapping[str, object], *, version: int = 1
    ) -> ConsumerGroupHeartbeatResponse:
        asked = self.beat_request(member, epoch, **fields)
        answer = self.ask(CONSUMER_GROUP_HEARTBEAT, version, asked)
        # With an assignment interval of 0, tidelog computes one target assignment per iteration of
        # its event loop (docs/differences.md). A heartbeat's response may arrive before that
        # iteration ends. The response to the Metadata request below is sent in a later iteration,
        # so the next heartbeat can't belong to the same iteration as this one.
        self.client("a").ask(METADATA, 12, MetadataRequest(topics=[]))
        return answer

    def enter(self, member: str, *topics: str, **more: object) -> ConsumerGroupHeartbeatResponse:
        """Let a member join; return the response."""
        fields: dict[str, object] = {
            "rebalance_timeout_ms": TIMEOUT_MS,
            "subscribed_topic_names": list(topics or (ROUTES,)),
            "topic_partitions": [],
        }
        return self._keep(member, self.send_beat(member, 0, fields | more))

    def beat(self, member: str, **more: object) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat with the member's current epoch."""
        return self._keep(member, self.send_beat(member, self.epochs[member], more))

    def beat_owning(self, member: str) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat with the partitions that the member got in its last assignment."""
        return self.beat(member, topic_partitions=self.owned.get(member, []))

    def _keep(
        self, member: str, answer: ConsumerGroupHeartbeatResponse
    ) -> ConsumerGroupHeartbeatResponse:
        if not answer.error_code:
            self.epochs[member] = answer.member_epoch
            if answer.assignment is not None:
                self.owned[member] = answer.assignment.topic_partitions
        return answer

    def part(self, topic: str, *numbers: int) -> IdPartitions:
        return IdPartitions(topic_id=self.id_of(topic), partitions=list(numbers))

    def settle(self, *members: str) -> None:
        """Send three heartbeats of each member: enough to revoke partitions and to get new ones."""
        for _ in range(3):
            for member in members:
                self.beat_owning(member)

    def await_epoch(self, member: str, asked: ConsumerGroupHeartbeatRequest, epoch: int) -> None:
        """Send heartbeats until the member is in `epoch`.

        Between heartbeats, the broker evaluates the regular expression of a subscription.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            answer = self.client("a").ask(CONSUMER_GROUP_HEARTBEAT, 1, asked)
            assert not answer.error_code, answer
            if answer.member_epoch == epoch:
                self._keep(member, self._note(answer))
                return
        raise AssertionError(f"{member} never got to epoch {epoch}")

    # -- administrators ----------------------------------------------------------------------

    def describe_consumers(self, *groups: str, version: int = 1) -> None:
        asked = ConsumerGroupDescribeRequest(
            group_ids=list(groups or (self.group,)), include_authorized_operations=True
        )
        self.ask(CONSUMER_GROUP_DESCRIBE, version, asked)

    def fetch_as(self, member: str | None, epoch: int, *, version: int = 9) -> None:
        topics = [
            OffsetFetchTopic(name=ROUTES, topic_id=self.id_of(ROUTES), partition_indexes=[0, 1])
        ]
        one = OffsetFetchGroup(
            group_id=self.group, member_id=member, member_epoch=epoch, topics=topics
        )
        self.ask(OFFSET_FETCH, version, OffsetFetchRequest(groups=[one]))


# -- topics ----------------------------------------------------------------------------------


def ids_of(bootstrap: str) -> dict[str, UUID]:
    talk = ConsumerTalk(bootstrap, "nobody")
    try:
        return {name: talk.id_of(name) for name in (ROUTES, STOPS)}
    finally:
        talk.close()


def await_topics(bootstrap: str) -> None:
    """Send heartbeats of another group until the coordinator knows both topics.

    Kafka's coordinator reads topics from a metadata image, which Kafka updates some time after a
    topic's creation. The update would raise the epoch of an existing group by one.
    """
    talk = ConsumerTalk(bootstrap, "the topics are known")
    try:
        talk.enter("A", ROUTES, STOPS)
        end = time.monotonic() + PATIENCE_S
        while len(talk.owned.get("A", [])) < len((ROUTES, STOPS)):
            assert time.monotonic() < end, "the coordinator never knew the topics"
            talk.beat_owning("A")
        talk.raw_beat("A", -1)
    finally:
        talk.close()


def create_apart(kafka: Broker) -> dict[str, UUID]:
    """Create both topics in Kafka, with ids in different buckets of a Java hash table.

    If both ids were in one bucket, the topics would be in the order in which Java iterates over an
    immutable set. This order differs between JVMs.
    """
    kafka.create_topic(ROUTES, ROUTES_PARTITIONS)
    for _ in range(CREATE_TRIES):
        kafka.create_topic(STOPS, STOPS_PARTITIONS)
        ids = ids_of(kafka.bootstrap)
        if hash_order(ids.values(), uuid_hash) == hash_order(reversed(ids.values()), uuid_hash):
            return ids
        admin = AdminClient(kafka.client_config())
        admin.delete_topics([STOPS], operation_timeout=PATIENCE_S)[STOPS].result(PATIENCE_S)
    raise AssertionError("ids fall into one place again and again")
