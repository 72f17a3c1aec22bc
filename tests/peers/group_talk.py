"""Sends requests of group members to a broker and records the responses, to compare brokers.

Member ids are random, so the conversation replaces each id by a name, in the order of first use.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until, until_so

from tidelog.protocol.messages import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tidelog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.protocol.schema import Api
from tidelog.protocol.wire import NO_UUID

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

TOPIC = "journeys"
PARTITIONS = 2
# Timeout in ms, so long that no member expires on a busy machine.
SESSION_MS = 600_000
RANDOM_ID = re.compile(r"[\w.-]*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# A consumer's subscription to TOPIC, in the oldest form.
SUBSCRIBED = b"\0\0\0\0\0\1\0\x08journeys\xff\xff\xff\xff"
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16


def changed(message: Request, fields: Mapping[str, object]) -> Request:
    """Return the message with other values in some fields."""
    for name, value in fields.items():
        assert hasattr(message, name)
        setattr(message, name, value)
    return message


class Talk:
    """Sends requests to one broker, and records the responses.

    Attributes:
        told: The responses, in order, without the values that differ between two brokers.
    """

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._clients: dict[str, RawClient] = {}
        self._names: dict[str, str] = {}
        self.group = group
        self.told: list[object] = []
        self._await_coordinator()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def client(self, name: str) -> RawClient:
        """Return the connection of this name.

        Several connections are needed, because a connection may be waiting for a response.
        """
        if name not in self._clients:
            self._clients[name] = RawClient(self._bootstrap)
        return self._clients[name]

    def _await_coordinator(self) -> None:
        asked = FindCoordinatorRequest(coordinator_keys=[self.group])
        message = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=self.group, topics=None)])

        def is_there() -> bool:
            found = self.client("a").ask(FIND_COORDINATOR, 4, asked).coordinators[0]
            if found.error_code:
                return False
            groups = self.client("a").ask(OFFSET_FETCH, 8, message).groups
            return groups[0].error_code not in {LOADING, NOT_AVAILABLE, NOT_COORDINATOR}

        until_so(is_there, f"{self.group} has a coordinator")

    @property
    def topic_id(self) -> UUID:
        """Return the id of TOPIC."""
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        return self.client("a").ask(METADATA, 12, wanted).topics[0].topic_id

    # -- requests ----------------------------------------------------------------------------

    def ask(
        self, api: Api[Request, Response], version: int, message: Request, name: str = "a"
    ) -> Response:
        """Send a request and record the response."""
        return self._note(self.client(name).ask(api, version, message))

    def _note(self, answer: Response) -> Response:
        self.told.append(self._shared(answer))
        return answer

    def await_note(self, name: str) -> "DataclassInstance":
        """Record and return the response to the request that was sent without waiting."""
        return self._note(self.client(name).receive())

    def _shared(self, value: object) -> object:
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return {name: self._shared(getattr(value, name)) for name in names}
        if isinstance(value, list):
            shared = [self._shared(inner) for inner in value]
            return sorted(shared, key=repr)
        if isinstance(value, memoryview | bytearray):
            return bytes(value)
        if isinstance(value, str):
            return RANDOM_ID.sub(lambda found: self._name(found[0]), value)
        if isinstance(value, UUID):
            return "an id" if value.int else "no id"
        return value

    def _name(self, member_id: str) -> str:
        return self._names.setdefault(member_id, f"member {len(self._names)}")

    def until(self, question: Callable[[], int], code: int) -> None:
        """Repeat a request, without recording responses, until the error code is `code`."""
        until_so(lambda: question() == code, f"the answer is {code}")

    # -- members -----------------------------------------------------------------------------

    def join_request(self, member_id: str = "", **more: object) -> JoinGroupRequest:
        """Return a JoinGroup of a consumer; `more` replaces fields."""
        asked = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[GroupProtocol(name="range", metadata=SUBSCRIBED)],
        )
        return changed(asked, more)

    def join(self, member_id: str = "", *, version: int = 9, **more: object) -> JoinGroupResponse:
        """Join; if the broker requires an id, join again with the id that the broker returned."""
        answer = self.ask(JOIN_GROUP, version, self.join_request(member_id, **more))
        if answer.error_code == 79:
            return self.join(answer.member_id, version=version, **more)
        return answer

    def park(self, member_id: str, *, name: str) -> None:
        """Send a JoinGroup without waiting for the response; `await_note` receives it."""
        self.client(name).send(JOIN_GROUP, 9, self.join_request(member_id))

    def new_id(self, name: str) -> str:
        """Send a first JoinGroup; return the id with which the new member has to join again."""
        return self.ask(JOIN_GROUP, 9, self.join_request(), name).member_id

    def sync(
        self,
        member: JoinGroupResponse,
        assignments: dict[str, bytes] | None = None,
        *,
        name: str = "a",
        version: int = 5,
        **more: object,
    ) -> int:
        asked = SyncGroupRequest(
            group_id=self.group,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=data)
                for one, data in (assignments or {}).items()
            ],
        )
        return self.ask(SYNC_GROUP, version, changed(asked, more), name).error_code

    def stable(self, instance: str | None = None) -> JoinGroupResponse:
        """Create a group with one member, which has received an assignment."""
        member = self.join(group_instance_id=instance)
        self.sync(member, {member.member_id: b"all of it"}, group_instance_id=instance)
        return member

    def heartbeat_code(
        self, member_id: str, generation: int, instance_id: str | None = None, name: str = "a"
    ) -> int:
        asked = HeartbeatRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
        )
        return self.client(name).ask(HEARTBEAT, 4, asked).error_code

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> None:
        self.told.append(self.heartbeat_code(member_id, generation, instance_id))

    def leave(self, *members: tuple[str, str | None]) -> None:
        identities = [
            MemberIdentity(member_id=member_id, group_instance_id=instance_id)
            for member_id, instance_id in members
        ]
        asked = LeaveGroupRequest(group_id=self.group, members=identities)
        self.ask(LEAVE_GROUP, 5, asked)

    # -- offsets and groups ------------------------------------------------------------------

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        version: int = 9,
        topic: str = TOPIC,
        partition: int = 0,
        metadata: str | None = "",
        instance_id: str | None = None,
        topic_id: UUID = NO_UUID,
    ) -> None:
        place = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        asked = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[place])],
        )
        self.ask(OFFSET_COMMIT, version, asked)

    def fetch(self, *, version: int = 9, topics: bool = True) -> None:
        if version < 8:
            named = [OffsetFetchTopic(name=TOPIC, partition_indexes=[0, 1, 7])]
            asked = OffsetFetchRequest(group_id=self.group, topics=named if topics else None)
        else:
            group_topics = [
                OffsetFetchTopic(
                    name=TOPIC,
                    topic_id=self.topic_id if version >= 10 else NO_UUID,
                    partition_indexes=[0, 1, 7],
                )
            ]
            one = OffsetFetchGroup(group_id=self.group, topics=group_topics if topics else None)
            asked = OffsetFetchRequest(groups=[one])
        self.ask(OFFSET_FETCH, version, asked)

    def fetch_twice(self, version: int) -> None:
        """Send a request that names a topic twice; record the result of each partition."""
        if version < 8:
            named = [OffsetFetchTopic(name=TOPIC, partition_indexes=[one]) for one in (0, 1, 0)]
            asked = OffsetFetchRequest(group_id=self.group, topics=named)
        else:
            topics = [OffsetFetchTopic(name=TOPIC, partition_indexes=[one]) for one in (0, 1, 0)]
            asked = OffsetFetchRequest(
                groups=[OffsetFetchGroup(group_id=self.group, topics=topics)]
            )
        answer = self.client("a").ask(OFFSET_FETCH, version, asked)
        topics_told = answer.topics if version < 8 else answer.groups[0].topics
        rows = {
            (topic.name, part.partition_index, part.committed_offset, part.error_code)
            for topic in topics_told
            for part in topic.partitions
        }
        self.told.append(sorted(rows))

    def describe(self, *, version: int = 6) -> None:
        asked = DescribeGroupsRequest(groups=[self.group], include_authorized_operations=True)
        self.ask(DESCRIBE_GROUPS, version, asked)

    def listed(self, states: list[str] | None = None, types: list[str] | None = None) -> None:
        asked = ListGroupsRequest(states_filter=states or [], types_filter=types or [])
        answer = until(  # Kafka may still be loading other partitions of `__consumer_offsets`
            lambda: self.client("a").ask(LIST_GROUPS, 5, asked),
            lambda found: found.error_code != LOADING,
        )
        assert answer.error_code == 0
        mine = [one for one in answer.groups if one.group_id == self.group]
        self.told.append(self._shared(mine))
