"""Keys and values of the records in `__share_group_state`.

A key's int16 says what the record is about: 0 all that is known of a share partition, 1 what has
changed since. Source: Kafka 4.3's own records; KIP-932, KIP-1226 (records delivered).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID16,
    array,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class ShareSnapshotKey:
    """A partition as one group shares it."""

    group_id: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partition: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class StateBatch:
    """Offsets, both inclusive, that are in one state (0 available, 2 acknowledged, 4 archived)."""

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_state: int = wire(INT8)
    delivery_count: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class ShareSnapshotValue:
    """All that is known; times are wall time in ms."""

    snapshot_epoch: int = wire(INT32)
    state_epoch: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    start_offset: int = wire(INT64)
    delivery_complete_count: int = wire(INT32, tag=0, default=-1)
    create_timestamp: int = wire(INT64)
    write_timestamp: int = wire(INT64)
    state_batches: list[StateBatch] = wire(array(struct(StateBatch)))


@dataclass(slots=True, kw_only=True)
class ShareUpdateKey:
    """A partition as one group shares it."""

    group_id: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partition: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class ShareUpdateValue:
    """What changed since the snapshot of that epoch; -1 for what did not."""

    snapshot_epoch: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    start_offset: int = wire(INT64)
    delivery_complete_count: int = wire(INT32, tag=0, default=-1)
    state_batches: list[StateBatch] = wire(array(struct(StateBatch)))
