"""Records of `__share_group_state`: a key names a share partition, 0 for a snapshot, 1 an update.

A snapshot without a value says that nothing is known of it any more.

Source: Kafka 4.3's own records in that topic, ShareCoordinatorRecordHelpers.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.protocol.data_messages import (
    SHARE_SNAPSHOT_KEY,
    SHARE_SNAPSHOT_VALUE,
    SHARE_UPDATE_KEY,
    SHARE_UPDATE_VALUE,
)
from tidelog.protocol.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from tidelog.protocol.messages.share_state_records import StateBatch as WrittenBatch
from tidelog.protocol.wire import Reader
from tidelog.server.shares.kept import KeptState, ShareKey, Update
from tidelog.server.shares.states import RecordState, StateBatch

SNAPSHOT: Final = 0
UPDATE: Final = 1
_VALUE: Final = 0

KeyValue = tuple[bytes, bytes | None]


def snapshot_record(key: ShareKey, kept: KeptState, now_ms: int) -> KeyValue:
    """All that is kept."""
    value = ShareSnapshotValue(
        snapshot_epoch=kept.snapshot_epoch,
        state_epoch=kept.state_epoch,
        leader_epoch=kept.leader_epoch,
        start_offset=kept.start,
        delivery_complete_count=kept.complete_count,
        create_timestamp=kept.created_ms,
        write_timestamp=now_ms,
        state_batches=_written(kept.batches),
    )
    return _snapshot_key(key), SHARE_SNAPSHOT_VALUE.write(_VALUE, value)


def update_record(key: ShareKey, snapshot_epoch: int, update: Update) -> KeyValue:
    """What has changed since the snapshot of that epoch."""
    named = ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=update.start,
        delivery_complete_count=update.complete_count,
        state_batches=_written(update.batches),
    )
    return SHARE_UPDATE_KEY.write(UPDATE, named), SHARE_UPDATE_VALUE.write(_VALUE, value)


def forget_record(key: ShareKey) -> KeyValue:
    """Nothing is known any more."""
    return _snapshot_key(key), None


def _snapshot_key(key: ShareKey) -> bytes:
    named = ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return SHARE_SNAPSHOT_KEY.write(SNAPSHOT, named)


def _written(batches: Iterable[StateBatch]) -> list[WrittenBatch]:
    return [
        WrittenBatch(
            first_offset=batch.first,
            last_offset=batch.last,
            delivery_state=batch.state,
            delivery_count=batch.count,
        )
        for batch in batches
    ]


# -- reading -------------------------------------------------------------------------------------


def read_key(key: bytes | None) -> tuple[int, ShareKey] | None:
    """What a record is, and of which share partition; None for a kind that nobody knows.

    Raises:
        CorruptMessage: It breaks a rule.
    """
    if key is None:
        raise CorruptMessage("a record of a share group without a key", at=0)
    kind = Reader(key).int16()
    if kind == SNAPSHOT:
        snapshot = SHARE_SNAPSHOT_KEY.read(key)[1]
        return kind, ShareKey(snapshot.group_id, snapshot.topic_id, snapshot.partition)
    if kind == UPDATE:
        update = SHARE_UPDATE_KEY.read(key)[1]
        return kind, ShareKey(update.group_id, update.topic_id, update.partition)
    return None


def read_snapshot(value: bytes) -> KeptState:
    """All that is kept; raises CorruptMessage, UnsupportedVersion."""
    found = SHARE_SNAPSHOT_VALUE.read(value)[1]
    return KeptState(
        snapshot_epoch=found.snapshot_epoch,
        state_epoch=found.state_epoch,
        leader_epoch=found.leader_epoch,
        start=found.start_offset,
        complete_count=found.delivery_complete_count,
        batches=tuple(_read(found.state_batches)),
        created_ms=found.create_timestamp,
    )


def read_update(value: bytes) -> tuple[int, Update]:
    """The epoch of the snapshot, and what has changed since; raises as `read_snapshot`."""
    found = SHARE_UPDATE_VALUE.read(value)[1]
    update = Update(
        found.start_offset,
        found.delivery_complete_count,
        _read(found.state_batches),
        found.leader_epoch,
    )
    return found.snapshot_epoch, update


def _read(batches: Sequence[WrittenBatch]) -> list[StateBatch]:
    found = [
        StateBatch(each.first_offset, each.last_offset, _state(each), each.delivery_count)
        for each in batches
    ]
    found.sort(key=lambda each: each.first)
    behind = -1
    for each in found:
        if each.first <= behind or each.last < each.first:
            reason = f"offsets {each.first} to {each.last} of a share group behind {behind}"
            raise CorruptMessage(reason, at=0)
        behind = each.last
    return found


def _state(batch: WrittenBatch) -> RecordState:
    state = batch.delivery_state
    if state == RecordState.ACQUIRED or state not in set(RecordState):
        raise CorruptMessage(f"records of a share group in state {state}", at=0)
    return RecordState(state)
