"""Builds batches of new records for an append, and copies of batches with another codec.

The size of a batch is chosen so that the batch, with its header and the bytes that compression may
add, stays within `max.message.bytes` and `segment.bytes`.

Source: Kafka 4.x LogValidator.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest, MessageTooLarge, RecordError
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT, compress
from tidelog.record.header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    LOG_OVERHEAD,
    MAGIC_2,
    seal,
)
from tidelog.types import (
    NO_LEADER_EPOCH,
    Buffer,
    Codec,
    NewRecord,
)

# Maximum ratio of a record's encoded size to the result of `record_bytes`. `record_bytes` counts
# fixed sizes: 12 bytes for a record's lengths and deltas, and 4 bytes for a header's two lengths.
# An encoded length can take 5 bytes, and an encoded delta 10 bytes.
_OVER_MAX: Final = 4


def build_batches(
    records: Iterable[NewRecord],
    codec: Codec,
    batch_bytes: int,
    now_ms: int,
    *,
    level: int | None = None,
) -> Iterator[bytearray]:
    """Build batches of records, each of about `batch_bytes` before compression.

    Args:
        records: At least one.
        codec: Codec that compresses the batches.
        batch_bytes: Size at which a batch is closed; a larger record gets a batch of its own.
        now_ms: Timestamp in ms for records without a timestamp.
        level: Compression level; the codec's default if None.

    Raises:
        InvalidRequest: There is no record, or `batch_bytes` is below 1.
        MessageTooLarge: The records of one batch are so large that readers would refuse to
            decompress them. If the batch has only one record, the error has this record's
            reason, with the index 0.
        TidelogError: `build_batch` refuses the records of a batch.
    """
    if batch_bytes < 1:
        raise InvalidRequest(f"batch_bytes must be at least 1, got {batch_bytes}")
    limit = APPEND_DECOMPRESSION_LIMIT
    may_be_long = batch_bytes > limit // _OVER_MAX
    for group in group_records(records, batch_bytes):
        is_long = may_be_long or (len(group) == 1 and record_bytes(group[0]) > limit // _OVER_MAX)
        if is_long and codec is not Codec.NONE:
            size = len(build_batch(group, default_timestamp=now_ms)) - HEADER_SIZE
            if size > limit:
                reason = f"{size} bytes of records to compress; at most {limit} are allowed"
                errors = (RecordError(0, reason),) if len(group) == 1 else ()
                raise MessageTooLarge(reason, record_errors=errors)
        yield build_batch(group, codec=codec, level=level, default_timestamp=now_ms)


def stored_codec(config: TopicConfig, codec: Codec) -> tuple[Codec, int | None]:
    """Return the codec and level of batches that tidelog builds for a topic.

    A codec that `compression.type` names has precedence over `codec`. The level is None if the
    codec has no levels.
    """
    target = config.compression_type.target_codec
    chosen = codec if target is None else target
    return chosen, config.compression_level(chosen)


# Maximum number of bytes that compression adds to a small batch, and the part that it adds to a
# large batch: 1 byte for each 128 bytes. zstd adds most: up to 64 bytes and 1 byte for each 256.
_COMPRESSION_BYTES: Final = 128
_COMPRESSION_PART: Final = 128


def batch_bytes_for(batch_bytes: int, limit: int) -> int:
    """Return `batch_bytes`, or a smaller size if batches of that size could exceed a byte limit.

    The result is at most half of the limit, because `record_bytes` may be too small, and because
    compression may add bytes. If all batches belong to one append, callers pass `max.message.bytes`
    as the limit: with a smaller limit, there would be more batches, whose headers could make the
    append exceed `segment.bytes`. If the batches may be written to different segments, callers pass
    `batch_limit`.
    """
    fitting = (limit - HEADER_SIZE - _COMPRESSION_BYTES) // 2
    return min(batch_bytes, max(fitting, 1))


def exact_batch_bytes(batch_bytes: int, config: TopicConfig, codec: Codec) -> int:
    """Return `batch_bytes`, or less if batches of exactly this size could exceed `batch_limit`.

    The result is at most the limit minus the bytes that the codec may add: unlike in
    `batch_bytes_for`, the size of a batch before compression is known exactly.
    """
    limit = batch_limit(config)
    if codec is not Codec.NONE:
        limit -= _COMPRESSION_BYTES + limit // _COMPRESSION_PART
    return min(batch_bytes, max(limit, 1))


def batch_limit(config: TopicConfig) -> int:
    """Return the maximum size in bytes of a batch by `max.message.bytes` and `segment.bytes`."""
    return min(config.max_message_bytes, config.segment_size_limit)


def group_records(records: Iterable[NewRecord], batch_bytes: int) -> Iterable[list[NewRecord]]:
    """Yield lists of records, each of at most `batch_bytes` as estimated by `record_bytes`.

    A larger record gets a list of its own.

    Raises:
        InvalidRequest: There is no record.
    """
    group: list[NewRecord] = []
    size = 0
    for record in records:
        bytes_of = record_bytes(record)
        if group and size + bytes_of > batch_bytes:
            yield group
            group, size = [], 0
        group.append(record)
        size += bytes_of
    if not group:
        raise InvalidRequest("an append needs at least one record")
    yield group


def record_bytes(record: NewRecord) -> int:
    """Estimate how many bytes a record takes in a batch."""
    size = len(record.key or b"") + len(record.value or b"") + 12
    if record.headers:
        size += sum(len(h.key) + len(h.value or b"") + 4 for h in record.headers)
    return size


def write_anew(
    batch: RecordBatch, body: Buffer, *, codec: Codec, level: int | None = None
) -> bytearray:
    """Return a copy of a batch with another body and codec, but the same producer and times.

    As in Kafka, the copy has no delete horizon, because a producer must not set a delete horizon.
    Without a delete horizon, the base timestamp is only the base of the records' timestamp deltas.

    Args:
        batch: Batch with the header to copy.
        body: Records of the copy, not compressed.
        codec: Codec to compress the records with.
        level: Compression level; None for Kafka's default level of the codec.
    """
    payload = compress(codec, body, level=level)
    out = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        out,
        0,
        batch.base_offset,
        HEADER_SIZE - LOG_OVERHEAD + len(payload),
        NO_LEADER_EPOCH,
        MAGIC_2,
        0,  # the CRC, filled in by seal
        batch.attributes & KNOWN_ATTRIBUTES & ~CODEC_MASK & ~DELETE_HORIZON_BIT | codec,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
    )
    out += payload
    seal(out, 0)
    return out
