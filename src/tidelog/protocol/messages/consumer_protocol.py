"""What consumers put into JoinGroup's metadata and SyncGroup's assignments.

These lie in the requests as bytes and begin with their version, an int16; whoever reads one takes
the highest version that both know. Source: KIP-429 (owned partitions), KIP-792 (generation),
KIP-881 (racks).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    INT32,
    STRING,
    array,
    nullable_bytes,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class OwnedPartitions:
    """Partitions of one topic that the member still has."""

    topic: str = wire(STRING, since=1)
    partitions: list[int] = wire(array(INT32), since=1)


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolSubscription:
    """What a member wants, and what it had."""

    topics: list[str] = wire(array(STRING))
    user_data: Buffer | None = wire(nullable_bytes())
    owned_partitions: list[OwnedPartitions] = wire(array(struct(OwnedPartitions)), since=1)
    generation_id: int = wire(INT32, since=2, default=-1)
    rack_id: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True)
class AssignedPartitions:
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolAssignment:
    """What a member gets."""

    assigned_partitions: list[AssignedPartitions] = wire(array(struct(AssignedPartitions)))
    user_data: Buffer | None = wire(nullable_bytes())
