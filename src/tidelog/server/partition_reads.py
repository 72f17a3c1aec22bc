"""One partition of a fetch: the checks before the read, the read, the answer.

Source: Kafka 4.x ReplicaManager.readFromLog, Partition.readRecords, UnifiedLog.read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.fetch import (
    AbortedTransaction,
    CurrentLeader,
    DivergingEpoch,
    PartitionData,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.byte_ranges import ByteRange, Limits, find_range
from tidelog.server.down_conversion import MAGIC_2_SINCE, down_convert, known_magic
from tidelog.server.epoch_checks import end_of_epoch, epoch_problem
from tidelog.server.exposed_times import expose_append_times
from tidelog.server.partitions import Partition
from tidelog.server.read_failures import tell_failure
from tidelog.server.segment_bytes import SegmentBytes
from tidelog.types import NO_OFFSET, UNKNOWN_MS, Buffer, IsolationLevel

if TYPE_CHECKING:
    from tidelog.server.fetch_sessions import CachedPartition
    from tidelog.server.file_pieces import FilePiece
    from tidelog.storage.segment import Segment

# Before these versions an answer has another form or another code.
WHOLE_FIRST_SINCE: Final = 3
_STORAGE_ERROR_SINCE: Final = 6
_LEADER_SINCE: Final = 16
# What is read of a store, or made anew, at once: it lies in memory until the client takes it.
TIER_BYTES: Final = 1 << 20
# Of a partition, where append times come along: there may be one for each batch.
TIMED_BYTES: Final = 4 << 20

Records: TypeAlias = "Buffer | FilePiece"

# An answer that says nothing, and whose parts that say nothing serve all answers: never changed.
_NOTHING: Final = PartitionData()


# Objects of the path of a fetch are not frozen: that takes three times as long to make one.
@dataclass(slots=True)
class ReadOrder:
    """What a fetch asks of all its partitions.

    Attributes:
        version: Of the request.
        isolation: Which records of transactions are seen.
        is_follower: A copy of the log asks: it sees up to the log end.
        min_bytes: How much it waits for.
        max_bytes: How much all partitions give together; the first batch comes whole even so.
        with_append_times: Whether append times are wanted beside the records.
    """

    version: int
    isolation: IsolationLevel
    is_follower: bool
    min_bytes: int
    max_bytes: int
    with_append_times: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether batches are wanted as they lie in the log, byte for byte."""
        return self.is_follower or self.with_append_times

    @property
    def is_committed(self) -> bool:
        """Whether records of open and aborted transactions are not to be seen."""
        return self.isolation is IsolationLevel.READ_COMMITTED and not self.is_follower

    def end_offset(self, partition: Partition) -> int:
        """Offset behind the last record that the asker sees."""
        if self.is_follower:
            return partition.replica_end_offset
        return partition.end_offset(self.isolation)


@dataclass(slots=True)
class Found:
    """What a read gives: bytes, the aborted transactions among them, runs of append times."""

    records: Records
    aborted: Sequence[AbortedTransaction] = ()
    append_times: Sequence[int] = ()


class PartitionRead:
    """One partition of a fetch.

    Attributes:
        topic: Its topic as the request names it.
        cached: What is asked of it.
        partition: None where it can't be had: `error_code` says why.
        error_code: 0 where it can be had.
        answer: What the last read gave.
        size_bytes: Of the records in it.
        seen_end: Offset behind the last record that the last read might give.
    """

    __slots__ = ("answer", "cached", "error_code", "partition", "seen_end", "size_bytes")

    def __init__(
        self, cached: "CachedPartition", partition: Partition | None, error_code: int = 0
    ) -> None:
        self.cached = cached
        self.partition = partition
        self.error_code = error_code
        self.answer = _NOTHING
        self.size_bytes = 0
        self.seen_end = NO_OFFSET

    @property
    def must_answer(self) -> bool:
        """Whether there is something to say that can't wait: an error, or a log that parted.

        A partition that nobody knows is no reason not to wait for the others, as in Kafka.
        """
        if self.partition is None and self.error_code != ErrorCode.KAFKA_STORAGE_ERROR:
            return False
        return self.answer.error_code != 0 or self.answer.diverging_epoch.epoch >= 0

    def refusal(self, code: int) -> PartitionData:
        """An answer that is an error."""
        return PartitionData(
            partition_index=self.cached.key[1], error_code=code, high_watermark=-1, records=b""
        )

    # -- before the read ---------------------------------------------------------------------

    def prepare(self, order: ReadOrder, left: int, *, whole_first: bool) -> Limits | None:
        """Set the answer as it is without records; the limits of the read, None for no read.

        Args:
            order: What is asked of all partitions.
            left: Bytes that are left for this one and those behind it.
            whole_first: Whether the first batch comes whole though it is larger.
        """
        self.size_bytes = 0
        partition, asked = self.partition, self.cached.asked
        code = self.error_code if partition is None else self._problem(partition)
        if code or partition is None:
            self.refuse(order, code)
            return None
        self.answer = self._without_records(order, partition)
        if asked.last_fetched_epoch >= 0 and self._has_parted(order, partition):
            return None
        log = partition.log
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            self.refuse(order, ErrorCode.OFFSET_OUT_OF_RANGE)
            return None
        self.seen_end = end_offset = order.end_offset(partition)
        if asked.fetch_offset >= end_offset:
            return None
        most = min(
            asked.partition_max_bytes, left, TIMED_BYTES if order.with_append_times else left
        )
        if most < 0:
            self.refuse(order, ErrorCode.UNKNOWN_SERVER_ERROR)
            return None
        return Limits(end_offset=end_offset, max_bytes=most, whole_first=whole_first)

    def _problem(self, partition: Partition) -> int:
        asked, log = self.cached.asked, partition.log
        topic = self.cached.key[0]
        if partition.is_gone:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not isinstance(topic, str) and topic not in (NO_UUID, log.context.topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        epoch = asked.current_leader_epoch
        return 0 if epoch < 0 else epoch_problem(log, epoch)  # here any below 0 says nothing

    def _without_records(self, order: ReadOrder, partition: Partition) -> PartitionData:
        return PartitionData(
            partition_index=self.cached.key[1],
            error_code=0,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=_NOTHING.diverging_epoch,
            current_leader=_NOTHING.current_leader,
            snapshot_id=_NOTHING.snapshot_id,
            aborted_transactions=[] if order.is_committed else None,
            records=b"",
        )

    def _has_parted(self, order: ReadOrder, partition: Partition) -> bool:
        """Whether the asker's log has parted from this one; the answer says so. Source: KIP-595."""
        asked = self.cached.asked
        epoch, end = end_of_epoch(partition.log, asked.last_fetched_epoch)
        if end == NO_OFFSET:
            self.refuse(order, ErrorCode.OFFSET_OUT_OF_RANGE)
            return True
        if epoch == asked.last_fetched_epoch and end >= asked.fetch_offset:
            return False
        if asked.fetch_offset < partition.log.log_start_offset:
            return False  # which is said first
        self.answer.diverging_epoch = DivergingEpoch(epoch=epoch, end_offset=end)
        return True

    def refuse(self, order: ReadOrder, code: int) -> None:
        """Let the answer be an error, in the form that the version knows."""
        if code == ErrorCode.KAFKA_STORAGE_ERROR and order.version < _STORAGE_ERROR_SINCE:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.answer = self.refusal(code)
        if (
            code == ErrorCode.FENCED_LEADER_EPOCH
            and order.version >= _LEADER_SINCE
            and self.partition
        ):
            # The caller adds who that is.
            self.answer.current_leader = CurrentLeader(
                leader_id=0, leader_epoch=self.partition.log.leader_epoch
            )

    # -- the read ----------------------------------------------------------------------------

    def find(self, order: ReadOrder, limits: Limits, *, may_block: bool) -> Found | None:
        """The records within the limits; None where there are none.

        Raises:
            ColdRead: They have to be waited for, and may not.
            CorruptData: A damaged frame or index.
            OSError, StorageFailure: The system failed a read.
        """
        assert self.partition is not None
        log, offset = self.partition.log, self.cached.asked.fetch_offset
        source = SegmentBytes(log.context.pool, may_block=may_block)
        segments = log.segments
        if order.version < MAGIC_2_SINCE:
            source.ensure_blocking()
            return _converted(segments, offset, limits, source, order.version)
        is_exposed = log.context.config.tidelog_expose_append_time and not order.is_copy
        if is_exposed:
            source.ensure_blocking()
        found = find_range(segments, offset, limits, source, self.partition.read_ends)
        if found is None or not found.size_bytes:
            return None
        if found.size_bytes > TIER_BYTES and (is_exposed or found.segment.is_tiered):
            small = Limits(
                end_offset=limits.end_offset, max_bytes=TIER_BYTES, whole_first=limits.whole_first
            )
            found = find_range(segments, offset, small, source) or found
        aborted = (
            aborted_transactions(segments, offset, found, source) if order.is_committed else ()
        )
        times = _append_times(found, source) if order.with_append_times else ()
        if is_exposed:
            return Found(_exposed(found, source), aborted, times)
        return Found(source.records(found.segment, found.start, found.end), aborted, times)

    def take(self, found: Found | None, order: ReadOrder) -> None:
        """Put what was found into the answer."""
        if found is None:
            return
        self.size_bytes = len(found.records)
        if self.size_bytes:
            # The writer asks for lengths only; the connection makes bytes of a piece of a file.
            self.answer.records = [cast("Buffer", found.records)]
        if order.is_committed:
            self.answer.aborted_transactions = list(found.aborted)
        if found.append_times:
            self.answer.append_times = list(found.append_times)

    def fail(self, error: Exception, order: ReadOrder) -> None:
        """Let the answer say what the read has met."""
        code: int = ErrorCode.KAFKA_STORAGE_ERROR
        if self.partition is not None:
            tell_failure(self.partition.log, error)
        if isinstance(error, TidelogError):
            code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
        self.refuse(order, code)


def _converted(
    segments: Sequence["Segment"],
    offset: int,
    limits: Limits,
    source: SegmentBytes,
    version: int,
) -> Found | None:
    """What a client of an old format is given: a part of the log at a time, converted in memory.

    Where all of a part is left out the next one is looked at, else the client would not get on.
    """
    is_whole = version >= WHOLE_FIRST_SINCE
    at = offset
    while at < limits.end_offset:
        part = Limits(
            end_offset=limits.end_offset,
            max_bytes=min(limits.max_bytes, TIER_BYTES),
            whole_first=limits.whole_first or not is_whole,
        )
        found = find_range(segments, at, part, source)
        if found is None or not found.size_bytes:
            return None
        data = source.read(found.segment, found.start, found.end)
        records = down_convert(data, known_magic(version), offset)
        if records:
            return Found(records if is_whole else records[: limits.max_bytes])
        at = found.next_offset
    return None


def _exposed(found: ByteRange, source: SegmentBytes) -> bytearray:
    """The records with their append times as headers."""
    times = source.append_times(found.segment)
    return expose_append_times(source.read(found.segment, found.start, found.end), times.time_at)


def _append_times(found: ByteRange, source: SegmentBytes) -> list[int]:
    """Of each run of offsets the first one and its append time in ms, -1 for unknown."""
    runs = source.append_times(found.segment).runs(found.first_offset, found.next_offset)
    rows: list[int] = []
    for first, _, append_ms in runs:
        rows += (first, UNKNOWN_MS if append_ms is None else append_ms)
    return rows


def aborted_transactions(
    segments: Sequence["Segment"], offset: int, found: ByteRange, source: SegmentBytes
) -> list[AbortedTransaction]:
    """The aborted transactions among the records, in the order of their markers."""
    aborted: list[AbortedTransaction] = []
    for segment in segments[segments.index(found.segment) :]:
        entries, is_complete = source.txn_index(segment).collect(offset, found.next_offset)
        aborted += (
            AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
            for entry in entries
        )
        if is_complete:
            break
    return aborted
