"""Records of `__transaction_state`, `__share_group_state` and Kafka's cluster metadata.

- `__transaction_state`: an int16 with the version precedes each key and each value. Version 1 of
  the value has the previous and next producer ids, and the client's transaction version (KIP-890).
- `__share_group_state`: the int16 at the start of a key is 0 for a snapshot of a share partition,
  1 for an update (KIP-932; KIP-1226 for delivered records).
- Cluster metadata: users, ACLs and quotas. Three unsigned varints precede each record: the frame
  version, the key (the record's type) and the record's version. All these records have version 0,
  with compact lengths and tagged fields.

Source: Kafka 4.3's records in these topics and in `__cluster_metadata`.
"""

from typing import Final
from uuid import UUID

from tidelog.protocol.data_message import DataMessage
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.protocol.schema import INT8, INT16, INT32, INT64, message, wire
from tidelog.types import Buffer


@message
class TransactionLogKey:
    """Key of a transactional id's state."""

    transactional_id: str = wire()


@message
class PartitionsSchema:
    """Partitions of one topic in the transaction."""

    topic: str = wire()
    partition_ids: list[int] = wire(INT32)


@message
class TransactionLogValue:
    """State of a transactional id.

    Times are in ms; -1 means that the time is not set.
    """

    producer_id: int = wire(INT64)
    previous_producer_id: int = wire(INT64, since=1, tag=0, default=-1)
    next_producer_id: int = wire(INT64, since=1, tag=1, default=-1)
    producer_epoch: int = wire(INT16)
    transaction_timeout_ms: int = wire(INT32)
    transaction_status: int = wire(INT8)
    transaction_partitions: list[PartitionsSchema] | None = wire()
    transaction_last_update_timestamp_ms: int = wire(INT64)
    transaction_start_timestamp_ms: int = wire(INT64)
    client_transaction_version: int = wire(INT16, since=1, tag=2)


@message
class ShareStateKey:
    """Key of a share partition's snapshot (kind 0) or update (kind 1)."""

    group_id: str = wire()
    topic_id: UUID = wire()
    partition: int = wire(INT32)


@message
class StateBatch:
    """Range of offsets (both inclusive) in one state: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_state: int = wire(INT8)
    delivery_count: int = wire(INT16)


@message
class ShareSnapshotValue:
    """Complete state of a share partition. Timestamps are in ms since 1970."""

    snapshot_epoch: int = wire(INT32)
    state_epoch: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    start_offset: int = wire(INT64)
    delivery_complete_count: int = wire(INT32, tag=0, default=-1)
    create_timestamp: int = wire(INT64)
    write_timestamp: int = wire(INT64)
    state_batches: list[StateBatch] = wire()


@message
class ShareUpdateValue:
    """Changes since the snapshot with epoch `snapshot_epoch`. An unchanged value is -1."""

    snapshot_epoch: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    start_offset: int = wire(INT64)
    delivery_complete_count: int = wire(INT32, tag=0, default=-1)
    state_batches: list[StateBatch] = wire()


@message
class UserScramCredentialRecord:
    """SCRAM credential of a user (key 11). `repr` hides it, so that it never appears in a log."""

    __repr__ = object.__repr__  # contains a secret

    name: str = wire()
    mechanism: int = wire(INT8)
    salt: Buffer = wire()
    stored_key: Buffer = wire()
    server_key: Buffer = wire()
    iterations: int = wire(INT32)


@message
class RemoveUserScramCredentialRecord:
    """Deletion of a user's SCRAM credential (key 22)."""

    name: str = wire()
    mechanism: int = wire(INT8)


@message
class AccessControlEntryRecord:
    """ACL (key 18)."""

    id: UUID = wire()
    resource_type: int = wire(INT8)
    resource_name: str = wire()
    pattern_type: int = wire(INT8)
    principal: str = wire()
    host: str = wire()
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message
class RemoveAccessControlEntryRecord:
    """Deletion of an ACL (key 19)."""

    id: UUID = wire()


@message
class ClientQuotaRecord:
    """Value of a quota or, if `remove` is true, the deletion of the quota (key 14)."""

    entity: list[QuotaEntity] = wire()
    key: str = wire()
    value: float = wire()
    remove: bool = wire()


TRANSACTION_LOG_KEY: Final = DataMessage(TransactionLogKey, 0, 0)
TRANSACTION_LOG_VALUE: Final = DataMessage(TransactionLogValue, 0, 1, flexible=1)
SHARE_STATE_KEY: Final = DataMessage(ShareStateKey, 0, 1)
SHARE_SNAPSHOT_VALUE: Final = DataMessage(ShareSnapshotValue, 0, 0, flexible=0)
SHARE_UPDATE_VALUE: Final = DataMessage(ShareUpdateValue, 0, 0, flexible=0)
