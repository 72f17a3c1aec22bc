"""Types that describe an append: its origin, the pending append, and its result.

The validator and the writer share the types of this module. `validator` owns the rules,
`append_writer` owns the order of writes, and `batch_building` builds batches of new records.

Source: Kafka 4.x AppendOrigin, LogAppendInfo.
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.config import TopicConfig
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch
from tidelog.record.header import (
    MAGIC_2,
)
from tidelog.types import (
    INT32_MAX,
    NO_TIMESTAMP,
    Buffer,
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
