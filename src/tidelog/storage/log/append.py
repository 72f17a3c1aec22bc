"""Types that describe an append (origin, pending append, result); functions that build batches.

The validator and the writer share the types of this module. `validator` owns the rules;
`append_writer` owns the order of writes.

Source: Kafka 4.x AppendOrigin, LogAppendInfo, LogValidator.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest, MessageTooLarge
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
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
    INT32_MAX,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    NewRecord,
    TimestampType,
)

if TYPE_CHECKING:
    from tidelog.storage.segment.active_segment import ActiveSegment

# Maximum size in bytes of the records that the event loop compresses for one append.
LOOP_COMPRESSED_BYTES: Final = 256 << 10


class LongCheck(Exception):
    """Raised if checking an append takes too long for an event loop.

    A caller that catches this exception runs `Log.check_append` or `Log.check_set` in another
    thread.
    """


class AppendOrigin(Enum):
    """Origin of an append. The origin decides which checks run.

    - `CLIENT`: a producer. A producer's append may contain only one batch, and all checks run.
    - `COORDINATOR`: tidelog's own transaction or group coordinator, which may write control
      batches.
    - `SINK`: batches that tidelog has built. They are checked like a coordinator's batches, but an
      append of this origin may contain any number of batches.
    - `REPLICATION`: batches copied from a leader's log, with the leader's offsets and epochs.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    SINK = "sink"
    REPLICATION = "replication"


class AppendTerms(NamedTuple):
    """Properties of all appends of one kind: their origin, and the checks that the batches need.

    Attributes:
        origin: Origin of the append.
        owned: Whether a writable buffer may be changed in place instead of being copied.
        trusted: Whether the caller has just built and sealed the batches. The CRCs of trusted
            batches are not checked. The records of trusted batches are checked in two cases: the
            records have to be compressed with another codec, or the origin is SINK and a rule of
            the topic requires the check. Coordinators build only records that comply with the
            topic's rules.
        takes_legacy: Whether message sets of magic 0 and 1 are accepted, and kept in their format.
        is_bounded: Whether a check that takes too long raises LongCheck, before anything is
            changed.
        is_checked: Whether `check_append` has already checked the batches, and rewritten them if
            necessary. The CRCs and records of checked batches are not checked again.
    """

    origin: AppendOrigin = AppendOrigin.CLIENT
    owned: bool = False
    trusted: bool = False
    takes_legacy: bool = False
    is_bounded: bool = False
    is_checked: bool = False


# For appends of a client's batches, which must not change the buffer.
FOREIGN: Final = AppendTerms()
# For appends of batches that tidelog has built.
BUILT: Final = AppendTerms(AppendOrigin.SINK, owned=True, trusted=True)
# For appends of batches that a coordinator has built.
COORDINATED: Final = AppendTerms(AppendOrigin.COORDINATOR, owned=True, trusted=True)


@dataclass(slots=True, eq=False)
class AppendContext:
    """Input that the checks of an append need in addition to the topic's settings.

    Attributes:
        terms: Origin and required checks, the same for all appends of one kind.
        next_offset: The log end. The first record of the append gets this offset, except in a copy
            of a leader's batches.
        leader_epoch: Epoch that every batch gets, except in a copy of a leader's batches.
        now_ms: Wall time in ms, which create times are compared with.
        append_ms: Append time in ms; -1 if the time is unknown or the append clock is off.
        stamp_ms: Timestamp in ms that batches get on LogAppendTime topics. In tidelog, this
            timestamp never decreases from one data batch to the next; in Kafka it may decrease.
    """

    terms: AppendTerms
    next_offset: int
    leader_epoch: int
    now_ms: int
    append_ms: int
    stamp_ms: int


@dataclass(slots=True)
class AppendResult:
    """Result of an append.

    Attributes:
        base_offset: Offset of the first record.
        last_offset: Offset of the last record, inclusive.
        append_time_ms: Append time of the records in ms; -1 if it is unknown or the append clock is
            off.
        log_append_time_ms: Value for Kafka's produce response. On LogAppendTime topics the value is
            the batches' timestamp, on CreateTime topics -1. For a batch that the log already has,
            the value is the stored batch's timestamp.
        log_start_offset: First offset of the log.
        is_duplicate: Whether the log already had this batch of an idempotent producer before the
            append. For a duplicate, nothing was written, and `base_offset` and `last_offset` are
            the stored batch's offsets.
        other_offsets: Number of offsets between the first and the last record that belong to
            records of other producers; always 0 for an append to a directory.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False
    other_offsets: int = 0

    @property
    def record_count(self) -> int:
        """Number of records of the append."""
        return self.last_offset - self.base_offset + 1 - self.other_offsets


class PendingAppend:
    """A validated append, passed through the steps of `AppendWriter`.

    Attributes:
        data: The batches, one after the other, and no other bytes.
        batches: Views of the batches, in order, with their final offsets.
        context: Input of the checks, including the append time.
        first_offset: Offset of the first record.
        last_offset: Offset of the last record, inclusive.
        max_timestamp: Largest timestamp in ms, -1 if no record has one.
        has_producers: Whether any batch may have a producer id.
        stamp_ms: LogAppendTime of the batches in ms, for the result; -1 on CreateTime topics.
        transaction_version: Transaction version of a marker; see `ProducerStates.check`.
        segment: Segment that the append is written to; set by `AppendWriter.begin`.
    """

    segment: "ActiveSegment"
    # Defaults are class attributes, because setting all of them for each append would cost several
    # percent of the append's time.
    stamp_ms: int = NO_TIMESTAMP
    transaction_version: int = 0

    def __init__(  # noqa: PLR0913 - positional, for speed: the validator sets most of them
        self,
        data: Buffer,
        batches: Sequence[Batch],
        context: AppendContext,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        has_producers: bool,
    ) -> None:
        self.data = data
        self.batches = batches
        self.context = context
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.has_producers = has_producers

    @classmethod
    def of(cls, data: Buffer, batches: Sequence[Batch], context: AppendContext) -> "PendingAppend":
        """Create the append of `batches`, which are one or more views of `data`."""
        return cls(
            data,
            batches,
            context,
            batches[0].base_offset,
            batches[-1].last_offset,
            max(NO_TIMESTAMP, *(batch.max_timestamp for batch in batches)),
            any(batch.has_producer_id for batch in batches),
        )


def first_proven_offset(batch: Batch) -> int:
    """Return a batch's first offset; for magic 0 and 1, a lower bound of the first offset.

    To find the exact first offset of a batch of magic 0 or 1, the batch would have to be
    decompressed. Kafka also uses this lower bound.
    """
    return batch.base_offset if batch.magic == MAGIC_2 else batch.last_offset - INT32_MAX


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


def writable(data: Buffer, last: Batch, terms: AppendTerms) -> bytearray | memoryview:
    """Return the bytes of all batches up to `last`, inclusive, in a writable buffer.

    The buffer is a view of `data` if `data` is writable and `terms.owned` is true. Otherwise the
    buffer is a copy.
    """
    view = memoryview(data)[: last.at + last.size_bytes]
    return view if terms.owned and not view.readonly else bytearray(view)


def stamps_by_append_clock(config: TopicConfig) -> bool:
    """Return whether a topic has LogAppendTime, but stores no append times.

    The timestamps of such a topic come from the append clock, so that they never decrease.
    """
    is_stamped = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return is_stamped and not config.tidelog_append_time_enable


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
            decompress them.
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
                raise MessageTooLarge(
                    f"{size} bytes of records to compress; at most {limit} are allowed"
                )
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
    """Return `batch_bytes`, or fewer if batches of this exact size could exceed `batch_limit`.

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
