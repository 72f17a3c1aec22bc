"""FindCoordinator and classic groups: JoinGroup, SyncGroup, Heartbeat, OffsetFetch, ...

Source: Kafka's protocol guide, APIs 9 to 16 and 42; KIP-62, KIP-229, KIP-345 (static members),
KIP-394 (a member id first), KIP-699 and KIP-709 (many groups at once), KIP-814 (a
leader that need not assign).
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.protocol.schema import (
    BOOLEAN,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_OPERATIONS,
    STRING,
    UUID16,
    Declaration,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer

GROUP_KEY_TYPE: Final = 0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class FindCoordinatorRequest(Declaration):
    """Who coordinates a group (key type 0) or a transactional id (1)?"""

    key: str = wire(STRING, until=3)
    key_type: int = wire(INT8, since=1)
    coordinator_keys: list[str] = wire(array(STRING), since=4)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Coordinator(Declaration):
    """A coordinator and where it listens."""

    key: str = wire(STRING, since=4)
    node_id: int = wire(INT32, since=4)
    host: str = wire(STRING, since=4)
    port: int = wire(INT32, since=4)
    error_code: int = wire(INT16, since=4)
    error_message: str | None = wire(nullable_string(since=4), since=4)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class FindCoordinatorResponse(Declaration):
    """One coordinator up to version 3, one for each key after it."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16, until=3)
    error_message: str | None = wire(nullable_string(since=1), since=1, until=3)
    node_id: int = wire(INT32, until=3)
    host: str = wire(STRING, until=3)
    port: int = wire(INT32, until=3)
    coordinators: list[Coordinator] = wire(array(struct(Coordinator)), since=4)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListGroupsRequest(Declaration):
    """Which groups does this broker coordinate? Empty filters let all pass."""

    states_filter: list[str] = wire(array(STRING), since=4)
    types_filter: list[str] = wire(array(STRING), since=5)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListedGroup(Declaration):
    """One group."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, since=4)
    group_type: str = wire(STRING, since=5)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListGroupsResponse(Declaration):
    """The groups."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    groups: list[ListedGroup] = wire(array(struct(ListedGroup)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchTopic(Declaration):
    """A topic's partitions, up to version 7."""

    name: str = wire(STRING, until=7)
    partition_indexes: list[int] = wire(array(INT32), until=7)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchGroupTopic(Declaration):
    """A topic's partitions, from version 8 on; from 10 on by id."""

    name: str = wire(STRING, since=8, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partition_indexes: list[int] = wire(array(INT32), since=8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchGroup(Declaration):
    """A group and which topics; null for all."""

    group_id: str = wire(STRING, since=8)
    member_id: str | None = wire(nullable_string(since=9), since=9)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: list[OffsetFetchGroupTopic] | None = wire(
        nullable_array(struct(OffsetFetchGroupTopic), since=8), since=8
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchRequest(Declaration):
    """What did a group commit? One group up to version 7, many after it."""

    group_id: str = wire(STRING, until=7)
    topics: list[OffsetFetchTopic] | None = wire(
        nullable_array(struct(OffsetFetchTopic), since=2), until=7
    )
    groups: list[OffsetFetchGroup] = wire(array(struct(OffsetFetchGroup)), since=8)
    require_stable: bool = wire(BOOLEAN, since=7)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchPartitionResponse(Declaration):
    """What was committed for a partition, up to version 7; offset -1 for nothing."""

    partition_index: int = wire(INT32, until=7)
    committed_offset: int = wire(INT64, until=7)
    committed_leader_epoch: int = wire(INT32, since=5, until=7, default=-1)
    metadata: str | None = wire(nullable_string(), until=7)
    error_code: int = wire(INT16, until=7)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchTopicResponse(Declaration):
    """A topic's partitions, up to version 7."""

    name: str = wire(STRING, until=7)
    partitions: list[OffsetFetchPartitionResponse] = wire(
        array(struct(OffsetFetchPartitionResponse)), until=7
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchGroupPartitionResponse(Declaration):
    """What was committed for a partition, from version 8 on; offset -1 for nothing."""

    partition_index: int = wire(INT32, since=8)
    committed_offset: int = wire(INT64, since=8)
    committed_leader_epoch: int = wire(INT32, since=8, default=-1)
    metadata: str | None = wire(nullable_string(since=8), since=8)
    error_code: int = wire(INT16, since=8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchGroupTopicResponse(Declaration):
    """A topic's partitions, from version 8 on."""

    name: str = wire(STRING, since=8, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetFetchGroupPartitionResponse] = wire(
        array(struct(OffsetFetchGroupPartitionResponse)), since=8
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchGroupResponse(Declaration):
    """What one group committed."""

    group_id: str = wire(STRING, since=8)
    topics: list[OffsetFetchGroupTopicResponse] = wire(
        array(struct(OffsetFetchGroupTopicResponse)), since=8
    )
    error_code: int = wire(INT16, since=8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetFetchResponse(Declaration):
    """What was committed."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetFetchTopicResponse] = wire(array(struct(OffsetFetchTopicResponse)), until=7)
    error_code: int = wire(INT16, since=2, until=7)
    groups: list[OffsetFetchGroupResponse] = wire(array(struct(OffsetFetchGroupResponse)), since=8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class JoinGroupRequestProtocol(Declaration):
    """A way to assign that the member knows, with its subscription."""

    name: str = wire(STRING)
    metadata: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class JoinGroupRequest(Declaration):
    """Become a member; an empty member id asks for one."""

    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, since=1, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=5)
    protocol_type: str = wire(STRING)
    protocols: list[JoinGroupRequestProtocol] = wire(array(struct(JoinGroupRequestProtocol)))
    reason: str | None = wire(nullable_string(), since=8)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class JoinGroupResponseMember(Declaration):
    """A member with its subscription."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=5)
    metadata: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class JoinGroupResponse(Declaration):
    """The generation; its leader also gets the members."""

    throttle_time_ms: int = wire(INT32, since=2)
    error_code: int = wire(INT16)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(nullable_string(), since=7)
    protocol_name: str | None = wire(nullable_string(since=7), default="")
    leader: str = wire(STRING)
    skip_assignment: bool = wire(BOOLEAN, since=9)
    member_id: str = wire(STRING)
    members: list[JoinGroupResponseMember] = wire(array(struct(JoinGroupResponseMember)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SyncGroupRequestAssignment(Declaration):
    """What a member gets."""

    member_id: str = wire(STRING)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SyncGroupRequest(Declaration):
    """What is mine? The leader brings everybody's."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    protocol_type: str | None = wire(nullable_string(), since=5)
    protocol_name: str | None = wire(nullable_string(), since=5)
    assignments: list[SyncGroupRequestAssignment] = wire(array(struct(SyncGroupRequestAssignment)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SyncGroupResponse(Declaration):
    """What this member gets."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    protocol_type: str | None = wire(nullable_string(), since=5)
    protocol_name: str | None = wire(nullable_string(), since=5)
    assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HeartbeatRequest(Declaration):
    """I am still here."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HeartbeatResponse(Declaration):
    """Go on, or join again."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MemberIdentity(Declaration):
    """A member by its id, or a static one by its instance."""

    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    reason: str | None = wire(nullable_string(), since=5)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LeaveGroupRequest(Declaration):
    """Go: one member up to version 2, many after it."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING, until=2)
    members: list[MemberIdentity] = wire(array(struct(MemberIdentity)), since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class MemberResponse(Declaration):
    """A member that has gone, or why it has not."""

    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(nullable_string(), since=3)
    error_code: int = wire(INT16, since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LeaveGroupResponse(Declaration):
    """Who has gone."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    members: list[MemberResponse] = wire(array(struct(MemberResponse)), since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeGroupsRequest(Declaration):
    """Who is in these groups?"""

    groups: list[str] = wire(array(STRING))
    include_authorized_operations: bool = wire(BOOLEAN, since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedGroupMember(Declaration):
    """A member, what it asked for and what it got."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=4)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: Buffer = wire(BYTES)
    member_assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedGroup(Declaration):
    """A group; one that is not there is dead and empty."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(), since=6)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: list[DescribedGroupMember] = wire(array(struct(DescribedGroupMember)))
    authorized_operations: int = wire(INT32, since=3, default=NO_OPERATIONS)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeGroupsResponse(Declaration):
    """The groups."""

    throttle_time_ms: int = wire(INT32, since=1)
    groups: list[DescribedGroup] = wire(array(struct(DescribedGroup)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteGroupsRequest(Declaration):
    """Delete these groups; only empty ones go."""

    groups_names: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeletableGroupResult(Declaration):
    """Whether a group was deleted."""

    group_id: str = wire(STRING)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DeleteGroupsResponse(Declaration):
    """What was deleted."""

    throttle_time_ms: int = wire(INT32)
    results: list[DeletableGroupResult] = wire(array(struct(DeletableGroupResult)))
