"""Converts batches for clients that know only older formats, if `tidelog.legacy.clients` is true.

Batches of a format that the client knows are returned unchanged. In batches of other formats, each
record becomes a message of the newest format that the client knows. The messages of a compressed
batch are in a wrapper message, which is compressed with the same codec. Headers and producer fields
are dropped, control batches are left out. Source: Kafka 3.x RecordsUtil.
"""

from typing import Final

from tidelog.errors import UnsupportedCompression
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.compression import compress
from tidelog.record.header import TIMESTAMP_TYPE_BIT
from tidelog.record.legacy import build_legacy_message
from tidelog.record.record import Record
from tidelog.types import NO_TIMESTAMP, Buffer, Codec, TimestampType

MAGIC_2_SINCE: Final = 4
MAGIC_1_SINCE: Final = 2


def newest_magic(version: int) -> int:
    """Return the magic of the newest format known to clients that send this version of Fetch."""
    if version >= MAGIC_2_SINCE:
        return 2
    return 1 if version >= MAGIC_1_SINCE else 0


def down_convert(data: Buffer, magic: int, first_offset: int) -> bytearray:
    """Convert whole batches to format `magic`. Batches of this or an older format are unchanged.

    Args:
        data: Whole batches, back to back.
        magic: 0 or 1.
        first_offset: Uncompressed records below this offset are left out when their batch is
            converted.

    Raises:
        CorruptBatch, CorruptRecord: A batch is damaged.
        UnsupportedCompression: A batch is compressed with zstd, which formats 0 and 1 don't
            support.
    """
    converted = bytearray()
    for batch in walk(data):
        if batch.magic <= magic:
            converted += batch.view
        elif not batch.is_control:
            converted += _messages(batch, magic, first_offset)
    return converted


def _messages(batch: Batch, magic: int, first_offset: int) -> bytearray:
    """Return a batch's records as messages, in a wrapper message if the batch is compressed."""
    codec = Codec(batch.codec)
    if codec is Codec.ZSTD:
        raise UnsupportedCompression(
            f"the client reads record format {magic}, which does not support zstd"
        )
    batch.ensure_valid()
    is_plain = codec is Codec.NONE
    records = [r for r in batch.records() if not is_plain or r.offset >= first_offset]
    if not records:
        return bytearray()
    is_stamped = magic == 1 and batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    type_bit = TIMESTAMP_TYPE_BIT if is_stamped else 0
    # In format 1, offsets of messages in a wrapper are relative to the first message's offset.
    base = records[0].offset if magic == 1 and not is_plain else 0
    messages = bytearray()
    for record in records:
        messages += _message(record, record.offset - base, magic, type_bit)
    if is_plain:
        return messages
    return build_legacy_message(
        None,
        compress(codec, messages, magic=magic),
        magic=magic,
        offset=records[-1].offset,
        timestamp=NO_TIMESTAMP if magic == 0 else max(r.timestamp for r in records),
        attributes=type_bit | codec,
    )


def _message(record: Record, offset: int, magic: int, attributes: int) -> bytearray:
    return build_legacy_message(
        record.key,
        record.value,
        magic=magic,
        offset=offset,
        timestamp=NO_TIMESTAMP if magic == 0 else record.timestamp,
        attributes=attributes,
    )
