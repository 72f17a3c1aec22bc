"""DescribeGroups and DeleteGroups: classic groups with their members.

Source: Kafka's protocol guide, APIs 15 and 42; KIP-229, KIP-345 (static members).
"""

from dataclasses import dataclass

from tidelog.protocol.messages.common import NO_OPERATIONS
from tidelog.protocol.schema import (
    BOOLEAN,
    BYTES,
    INT16,
    INT32,
    STRING,
    array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class DescribeGroupsRequest:
    """Who is in these groups?"""

    groups: list[str] = wire(array(STRING))
    include_authorized_operations: bool = wire(BOOLEAN, since=3)


@dataclass(slots=True, kw_only=True)
class DescribedGroupMember:
    """A member, what it asked for and what it got."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(nullable_string(), since=4)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: Buffer = wire(BYTES)
    member_assignment: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    """A group; one that is not there is dead and empty."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string(), since=6)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    protocol_type: str = wire(STRING)
    protocol_data: str = wire(STRING)
    members: list[DescribedGroupMember] = wire(array(struct(DescribedGroupMember)))
    authorized_operations: int = wire(INT32, since=3, default=NO_OPERATIONS)


@dataclass(slots=True, kw_only=True)
class DescribeGroupsResponse:
    """The groups."""

    throttle_time_ms: int = wire(INT32, since=1)
    groups: list[DescribedGroup] = wire(array(struct(DescribedGroup)))


@dataclass(slots=True, kw_only=True)
class DeleteGroupsRequest:
    """Delete these groups; only empty ones go."""

    groups_names: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True)
class DeletableGroupResult:
    """Whether a group was deleted."""

    group_id: str = wire(STRING)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class DeleteGroupsResponse:
    """What was deleted."""

    throttle_time_ms: int = wire(INT32)
    results: list[DeletableGroupResult] = wire(array(struct(DeletableGroupResult)))
