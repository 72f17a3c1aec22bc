"""FindCoordinator, ListGroups and OffsetFetch: groups and what they committed.

Source: Kafka's protocol guide, APIs 10, 16 and 9; KIP-699, KIP-709 (many groups at once).
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)

GROUP_KEY_TYPE: Final = 0


@dataclass(slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Who coordinates a group (key type 0) or a transactional id (1)?"""

    key: str = wire(STRING, until=3)
    key_type: int = wire(INT8, since=1)
    coordinator_keys: list[str] = wire(array(STRING), since=4)


@dataclass(slots=True, kw_only=True)
class Coordinator:
    """A coordinator and where it listens."""

    key: str = wire(STRING, since=4)
    node_id: int = wire(INT32, since=4)
    host: str = wire(STRING, since=4)
    port: int = wire(INT32, since=4)
    error_code: int = wire(INT16, since=4)
    error_message: str | None = wire(nullable_string(since=4), since=4)


@dataclass(slots=True, kw_only=True)
class FindCoordinatorResponse:
    """One coordinator up to version 3, one for each key after it."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16, until=3)
    error_message: str | None = wire(nullable_string(since=1), since=1, until=3)
    node_id: int = wire(INT32, until=3)
    host: str = wire(STRING, until=3)
    port: int = wire(INT32, until=3)
    coordinators: list[Coordinator] = wire(array(struct(Coordinator)), since=4)


@dataclass(slots=True, kw_only=True)
class ListGroupsRequest:
    """Which groups does this broker coordinate? Empty filters let all pass."""

    states_filter: list[str] = wire(array(STRING), since=4)
    types_filter: list[str] = wire(array(STRING), since=5)


@dataclass(slots=True, kw_only=True)
class ListedGroup:
    """One group."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, since=4)
    group_type: str = wire(STRING, since=5)


@dataclass(slots=True, kw_only=True)
class ListGroupsResponse:
    """The groups."""

    throttle_time_ms: int = wire(INT32, since=1)
    error_code: int = wire(INT16)
    groups: list[ListedGroup] = wire(array(struct(ListedGroup)))


@dataclass(slots=True, kw_only=True)
class OffsetFetchTopic:
    """A topic's partitions, up to version 7."""

    name: str = wire(STRING, until=7)
    partition_indexes: list[int] = wire(array(INT32), until=7)


@dataclass(slots=True, kw_only=True)
class OffsetFetchGroupTopic:
    """A topic's partitions, from version 8 on; from 10 on by id."""

    name: str = wire(STRING, since=8, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partition_indexes: list[int] = wire(array(INT32), since=8)


@dataclass(slots=True, kw_only=True)
class OffsetFetchGroup:
    """A group and which topics; null for all."""

    group_id: str = wire(STRING, since=8)
    member_id: str | None = wire(nullable_string(since=9), since=9)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: list[OffsetFetchGroupTopic] | None = wire(
        nullable_array(struct(OffsetFetchGroupTopic), since=8), since=8
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequest:
    """What did a group commit? One group up to version 7, many after it."""

    group_id: str = wire(STRING, until=7)
    topics: list[OffsetFetchTopic] | None = wire(
        nullable_array(struct(OffsetFetchTopic), since=2), until=7
    )
    groups: list[OffsetFetchGroup] = wire(array(struct(OffsetFetchGroup)), since=8)
    require_stable: bool = wire(BOOLEAN, since=7)


@dataclass(slots=True, kw_only=True)
class OffsetFetchPartitionResponse:
    """What was committed for a partition, up to version 7; offset -1 for nothing."""

    partition_index: int = wire(INT32, until=7)
    committed_offset: int = wire(INT64, until=7)
    committed_leader_epoch: int = wire(INT32, since=5, until=7, default=-1)
    metadata: str | None = wire(nullable_string(), until=7)
    error_code: int = wire(INT16, until=7)


@dataclass(slots=True, kw_only=True)
class OffsetFetchTopicResponse:
    """A topic's partitions, up to version 7."""

    name: str = wire(STRING, until=7)
    partitions: list[OffsetFetchPartitionResponse] = wire(
        array(struct(OffsetFetchPartitionResponse)), until=7
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchGroupPartitionResponse:
    """What was committed for a partition, from version 8 on; offset -1 for nothing."""

    partition_index: int = wire(INT32, since=8)
    committed_offset: int = wire(INT64, since=8)
    committed_leader_epoch: int = wire(INT32, since=8, default=-1)
    metadata: str | None = wire(nullable_string(since=8), since=8)
    error_code: int = wire(INT16, since=8)


@dataclass(slots=True, kw_only=True)
class OffsetFetchGroupTopicResponse:
    """A topic's partitions, from version 8 on."""

    name: str = wire(STRING, since=8, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetFetchGroupPartitionResponse] = wire(
        array(struct(OffsetFetchGroupPartitionResponse)), since=8
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchGroupResponse:
    """What one group committed."""

    group_id: str = wire(STRING, since=8)
    topics: list[OffsetFetchGroupTopicResponse] = wire(
        array(struct(OffsetFetchGroupTopicResponse)), since=8
    )
    error_code: int = wire(INT16, since=8)


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponse:
    """What was committed."""

    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetFetchTopicResponse] = wire(array(struct(OffsetFetchTopicResponse)), until=7)
    error_code: int = wire(INT16, since=2, until=7)
    groups: list[OffsetFetchGroupResponse] = wire(array(struct(OffsetFetchGroupResponse)), since=8)
