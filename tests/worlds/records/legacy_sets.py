"""Sets of messages of magic 0 and 1, as clients before Kafka 0.11 sent them."""

from collections.abc import Sequence

from tidelog.errors import InvalidRequest, UnsupportedForMessageFormat
from tidelog.record.compression import compress
from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.legacy import build_legacy_message
from tidelog.record.record import RecordLike, timestamps_of
from tidelog.types import NO_TIMESTAMP, Codec


def build_legacy_set(
    records: Sequence[RecordLike],
    *,
    magic: int,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    append_time_ms: int | None = None,
    default_timestamp: int = NO_TIMESTAMP,
) -> bytearray:
    """Return the messages one after the other, or in one wrapper if there is a codec.

    Args:
        records: One or more records without headers. Magic 0 drops their timestamps.
        magic: 0 or 1.
        codec: Any but zstd.
        base_offset: Offset of the first record.
        append_time_ms: LogAppendTime in ms of all records; None for CreateTime.
        default_timestamp: Time in ms for records whose timestamp is None.

    Raises:
        UnsupportedForMessageFormat: A record has headers, or an append time in magic 0.
        UnsupportedCompression: The codec is zstd.
        InvalidRequest: There are no records.
        InvalidRecord: A message is larger than the format allows.
        InvalidTimestamp: A timestamp does not fit into 64 bits.
    """
    if not records:
        raise InvalidRequest("a message set needs at least one message")
    if any(record.headers for record in records):
        raise UnsupportedForMessageFormat(f"magic {magic} has no headers")
    if magic == 0 and append_time_ms is not None:
        raise UnsupportedForMessageFormat("magic 0 has no append time")
    times = _times(records, magic, append_time_ms, default_timestamp)
    type_bit = 0 if append_time_ms is None else TIMESTAMP_TYPE_BIT
    first = 0 if codec is not Codec.NONE and magic == 1 else base_offset
    messages = bytearray()
    for index, (record, time) in enumerate(zip(records, times, strict=True)):
        messages += build_legacy_message(
            record.key,
            record.value,
            magic=magic,
            offset=first + index,
            timestamp=time,
            attributes=type_bit,
        )
    if codec is Codec.NONE:
        return messages
    return build_legacy_message(
        None,
        compress(codec, messages, magic=magic),
        magic=magic,
        offset=base_offset + len(records) - 1,
        timestamp=max(times),
        attributes=type_bit | codec,
    )


def _times(
    records: Sequence[RecordLike], magic: int, append_time_ms: int | None, default: int
) -> list[int]:
    """Return the timestamp field of each message, in ms."""
    if magic == 0:
        return [NO_TIMESTAMP] * len(records)
    if append_time_ms is not None:
        return [append_time_ms] * len(records)
    return timestamps_of(records, default)
