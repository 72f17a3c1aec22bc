"""Builds magic-2 batches: data batches, transaction markers, and the empty batches of a cleaner.

A built batch is complete: lengths, CRC and maximum timestamp are right.

Source: docs/format.md#batch; KIP-98; KIP-534 (delete horizon).
"""

from collections.abc import Sequence
from typing import Final

from tidelog.amounts import plural
from tidelog.errors import InvalidRecord, InvalidRequest
from tidelog.record.compression import compress
from tidelog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    seal,
)
from tidelog.record.record import (
    ControlType,
    RecordLike,
    encode_record,
    pack_end_marker,
    timestamps_of,
)
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)


def build_batch(  # noqa: PLR0913 - one keyword for each thing that a batch's header can say
    records: Sequence[RecordLike],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    default_timestamp: int = NO_TIMESTAMP,
) -> bytearray:
    """Build one sealed magic-2 batch of `records`, which must not be empty.

    Args:
        records: The records in offset order. Headers and nulls are kept.
        base_offset: Offset of the first record; with `offset_deltas`, the offset to which the
            deltas are added.
        leader_epoch: Epoch of the leader that appends the batch, -1 if unknown.
        codec: Compression of the records.
        level: The codec's level, None for Kafka's default.
        timestamp_type: Source of the visible timestamps: the producer or the log.
        append_time_ms: Append time in ms of all records. Required with LogAppendTime; must be None
            with CreateTime. The records' own timestamps stay in the batch, as timestamp deltas.
        producer_id: Id of an idempotent producer, -1 for none.
        producer_epoch: The producer's epoch, -1 for none.
        base_sequence: The producer's sequence number for offset delta 0, -1 for none.
        transactional: Whether the batch belongs to a transaction.
        control: Whether the batch contains control records instead of data.
        delete_horizon_ms: Time in ms since 1970 from which tombstones or markers may be removed.
        offset_deltas: Each record's offset minus `base_offset`, ascending; None for 0, 1, 2, ...
        last_offset_delta: Offset delta of the batch's last offset. If None, the offset delta of the
            last record is used.
        default_timestamp: Time in ms for records whose timestamp is None.

    Raises:
        InvalidRecord: A record or the batch is larger than the format allows. Also raised if a
            record has too many headers, or a header key is not valid text.
        InvalidTimestamp: A timestamp does not fit into 64 bits.
        InvalidRequest: There are no records, arguments conflict, or the codec does not support the
            level.
    """
    if not records:
        raise InvalidRequest("no records; build_empty_batch makes a batch without records")
    stamped = timestamp_type is TimestampType.LOG_APPEND_TIME
    if stamped != (append_time_ms is not None):
        raise InvalidRequest("append_time_ms and LogAppendTime require each other")
    deltas = _check_deltas(records, offset_deltas)
    last_delta = deltas[-1] if last_offset_delta is None else last_offset_delta
    if not deltas[-1] <= last_delta <= min(INT32_MAX, INT64_MAX - base_offset):
        raise InvalidRequest(f"invalid last offset delta {last_delta} at base offset {base_offset}")
    times = timestamps_of(records, default_timestamp)
    base_timestamp = times[0] if delete_horizon_ms is None else delete_horizon_ms
    body = bytearray()
    for record, delta, time in zip(records, deltas, times, strict=True):
        encode_record(body, record, timestamp_delta=time - base_timestamp, offset_delta=delta)
    attributes = _attributes(codec, stamped, transactional, control, delete_horizon_ms is not None)
    return _assemble(
        (base_offset, leader_epoch, attributes, last_delta),
        (base_timestamp, max(times) if append_time_ms is None else append_time_ms),
        (producer_id, producer_epoch, base_sequence, len(records)),
        body if codec is Codec.NONE else compress(codec, body, level=level),
    )


def _check_deltas(records: Sequence[RecordLike], deltas: Sequence[int] | None) -> Sequence[int]:
    """Return the given offset deltas, or 0, 1, 2, ... for None.

    Raises InvalidRequest if there are more or fewer deltas than records, if a delta is negative, or
    if the deltas are not ascending.
    """
    if deltas is None:
        return range(len(records))
    if len(deltas) != len(records):
        raise InvalidRequest(
            f"{plural(len(deltas), 'offset delta')} for {plural(len(records), 'record')}"
        )
    last = -1
    for delta in deltas:
        if delta <= last:
            raise InvalidRequest(f"offset delta {delta} is not above {last}")
        last = delta
    return deltas


def _attributes(
    codec: Codec, stamped: bool, transactional: bool, control: bool, has_horizon: bool
) -> int:
    return (
        int(codec)
        | (TIMESTAMP_TYPE_BIT if stamped else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
        | (DELETE_HORIZON_BIT if has_horizon else 0)
    )


def _assemble(
    frame: tuple[int, int, int, int],
    timestamps: tuple[int, int],
    producer: tuple[int, int, int, int],
    body: bytes | bytearray,
) -> bytearray:
    """Return the sealed batch with this body.

    `frame`, `timestamps` and `producer` contain header fields, in the header's order.
    """
    base_offset, leader_epoch, attributes, last_offset_delta = frame
    length = HEADER_SIZE - LOG_OVERHEAD + len(body)
    if length > INT32_MAX:
        raise InvalidRecord(f"a batch of {length} bytes; the maximum is {INT32_MAX}")
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        length,
        leader_epoch,
        MAGIC_2,
        0,  # placeholder for the CRC, which `seal` writes
        attributes,
        last_offset_delta,
        *timestamps,
        *producer,
    )
    batch += body
    seal(batch, 0)
    return batch


def build_end_marker(  # noqa: PLR0913 - one keyword for each field of the marker
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Build the control batch that ends a producer's transaction.

    The batch contains one control record (the marker), and so has one offset.

    Args:
        commit: True to commit, False to abort.
        producer_id: Id of the transaction's producer.
        producer_epoch: Epoch of the producer.
        coordinator_epoch: Epoch of the transaction coordinator.
        timestamp: Time in ms of the marker.
        base_offset: Offset of the marker.
        leader_epoch: Epoch of the leader that appends the batch, -1 if unknown.
    """
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    return _assemble(
        (base_offset, leader_epoch, TRANSACTIONAL_BIT | CONTROL_BIT, 0),
        (timestamp, timestamp),
        (producer_id, producer_epoch, NO_SEQUENCE, 1),
        pack_end_marker(kind, coordinator_epoch),
    )


def build_empty_batch(  # noqa: PLR0913 - one keyword for each thing that the header keeps
    *,
    base_offset: int,
    last_offset: int,
    max_timestamp: int,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Build a batch without records, which keeps a producer's last sequence number (KAFKA-5490).

    Args:
        base_offset: First offset of the batch that the empty batch replaces (the old batch).
        last_offset: Last offset of the old batch, inclusive.
        max_timestamp: The old batch's maximum timestamp in ms.
        timestamp_type: The old batch's timestamp type.
        leader_epoch: The old batch's leader epoch.
        producer_id: The old batch's producer id.
        producer_epoch: The old batch's producer epoch.
        base_sequence: The old batch's base sequence.
        transactional: Whether the old batch belongs to a transaction.
        control: Whether the old batch is a control batch.
    """
    assert 0 <= last_offset - base_offset <= INT32_MAX
    stamped = timestamp_type is TimestampType.LOG_APPEND_TIME
    attributes = _attributes(Codec.NONE, stamped, transactional, control, has_horizon=False)
    return _assemble(
        (base_offset, leader_epoch, attributes, last_offset - base_offset),
        (NO_TIMESTAMP, max_timestamp),
        (producer_id, producer_epoch, base_sequence, 0),
        b"",
    )


# Default batch size of Kafka's producer in bytes (batch.size).
BATCH_BYTES: Final = 16_384
