"""Reads of one partition: offsets, lookups by time, records.

`LogView` reads over a `SegmentList`, and is the common base of `LogReader` and the writer's `Log`.
A `LogReader` needs no lock and writes nothing. A reader shows the partition as of the opening or
the last refresh of the reader, up to the last batch on disk that is complete and valid.
"""

import functools
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from tidelog.amounts import plural
from tidelog.errors import CorruptData, LostOffsets, OffsetOutOfRange, OffsetsGone
from tidelog.record.record import Record, with_append_time
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.segment_list import SegmentList
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.gaps import ensure_no_gap, lost_at_end
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.storage.segment.slices import AbortedFilter, LogSlice, records_of, slices
from tidelog.storage.segment.time_search import (
    TimeSearch,
    count_without_append_time,
    stamped_ms,
)
from tidelog.storage.segment.txn_index import aborted_between
from tidelog.storage.tier.log_tier import LogTier
from tidelog.storage.tier.tier_files import TierAccess
from tidelog.types import UNKNOWN_MS, ClockName, IsolationLevel, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.segment.mapped_time_search import KernelSearch
    from tidelog.storage.tier.remote_segment import RemoteSegment
    from tidelog.storage.tier.tier_record import TierView


ANY_OFFSET: Final = 2**63 - 1


def unknown_times_note(name: TopicPartition, count: int) -> str:
    """Return a sentence: a search by append time leaves out records with unknown append time."""
    return (
        f"{name}: the append time of {plural(count, 'record')} before the result is unknown;"
        f" {'this record' if count == 1 else 'each of these records'} may have been appended"
        " at or after the requested time"
    )


# Maximum number of times that a read is repeated because segments were replaced. The count of
# repetitions restarts at 0 after each record that the read returns.
_REPLACED_MAX: Final = 20

_View = TypeVar("_View", bound="LogView")
_Args = ParamSpec("_Args")
_Answer = TypeVar("_Answer")


def _typed_read(
    method: Callable[Concatenate[_View, _Args], _Answer],
) -> Callable[Concatenate[_View, _Args], _Answer]:
    """Make a method raise StorageFailure instead of an operating system error.

    If the method fails because another process has replaced segments, it is called again on the new
    segments. If a file is missing for another reason, the method raises FileNotFoundError.
    """

    @functools.wraps(method)
    def read(view: _View, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Answer:
        for _ in range(_REPLACED_MAX):
            segments = view.segments
            try:
                return method(view, *args, **kwargs)
            except (OSError, CorruptData) as error:
                view.ensure_stale(error, segments)
        return method(view, *args, **kwargs)

    return read


def _records_of(part: LogSlice, aborted: AbortedFilter) -> Iterator[Record]:
    """Yield the records of a slice; raises OffsetsGone if offsets are lost."""
    ensure_no_gap(part.segment, *(yield from records_of(part, aborted)))


class LogView(ABC):
    """Methods that read a partition through its list of segments, without any other state.

    `LogReader` is the view for processes that only read; another process may write to the
    directory. `Log` is the writer's view.
    """

    def __init__(self, segments: SegmentList) -> None:
        self._list = segments

    @abstractmethod
    def refresh(self) -> None:
        """Read the current state from disk."""

    def ensure_stale(
        self,
        error: OSError | CorruptData,
        segments: Sequence[Segment],  # noqa: ARG002 - for `LogReader`
    ) -> None:
        """Raise the error of a failed read, unless another process has replaced segments.

        If this method returns without an error, the view shows the current segments, and the caller
        can repeat the read. The view of a log that this process writes is always current, so this
        method always raises an error for it.

        Args:
            error: Error of the read.
            segments: The view's `segments` when the read began.

        Raises:
            StorageFailure: The disk failed.
            FileNotFoundError, CorruptData: The read's own error.
        """
        if isinstance(error, FileNotFoundError | CorruptData):
            raise error
        raise as_storage_failure(error, self.context.directory, "read") from error

    @abstractmethod
    def producer_states(self) -> ProducerStates:
        """Return producers and open transactions at the log end."""

    @property
    def context(self) -> SegmentContext:
        """Shared state of the segments."""
        return self._list.context

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the log."""
        return self._list.context.topic_partition

    @property
    def segments(self) -> list[Segment]:
        """Segments, oldest first; the last one is active. Empty if there is no log file."""
        return self._list.all

    def finished_segments(self) -> list[ClosedSegment]:
        """Return finished segments, oldest first, including the tier's segments."""
        return self._list.finished()

    def tiered_segments(self) -> "Sequence[RemoteSegment]":
        """Return segments that only the tier has, oldest first; each call creates new objects."""
        return self._list.tiered()

    @property
    def local_segments(self) -> list[Segment]:
        """Segments whose files are in the directory, oldest first."""
        return self._list.local

    @property
    def local_start_offset(self) -> int:
        """First offset that may be read from local files; the log start if there is no tier."""
        return self._list.local_start_offset

    @property
    def tier(self) -> "TierView | None":
        """The partition's tier from `tidelog-tier.json`.

        None if there is no such file, or no access to tiers.
        """
        return self._list.tier.view

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read, inclusive."""
        return self._list.start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets, exclusive end of the log."""
        segments = self._list.all
        return segments[-1].end_offset if segments else self._list.start_offset

    @property
    def high_watermark(self) -> int:
        """End, exclusive, of the records that readers may see; without a broker, the log end."""
        return self._list.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset below which no transaction is open; at least the log start."""
        stable = self.producer_states().last_stable_offset(self.log_end_offset)
        return max(stable, self.log_start_offset)

    def end_offset(self, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
        """Return the end, exclusive, of the records that `isolation` shows. Source: KIP-79."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset
        return self.log_end_offset

    @_typed_read
    def size_bytes(self) -> int:
        """Return the size in bytes of all log files, including log files in the tier."""
        return sum(segment.size_bytes for segment in self._list.all)

    @_typed_read
    def lost_offsets(self) -> list[LostOffsets]:
        """Return the ranges of offsets that are lost at the ends of finished segments.

        Ranges that end at or below the log start are left out.
        """
        losses = (lost_at_end(segment) for segment in self._list.all)
        return [lost for lost in losses if lost and lost.end > self._list.start_offset]

    # -- append times ------------------------------------------------------------------------

    def trusted_end(self) -> int:
        """Return the offset below which every append time on disk is right."""
        return self._list.trusted_end()

    @_typed_read
    def append_times_of(self, segment: Segment) -> AppendTimes:
        """Return a segment's append times, as far as they are proven."""
        return self._list.append_times_of(segment)

    @_typed_read
    def append_time_of(self, offset: int) -> int | None:
        """Return when the record at `offset` was appended, in ms.

        Return None if the append time is unknown, or if `offset` is outside the log.
        """
        segment = self.segment_of(offset)
        if segment is None:
            return None
        append_ms = self.append_times_of(segment).time_at(offset)
        if append_ms is not None:
            return append_ms
        for part in slices(self._list.all, offset, offset + 1):
            for _, batch in part.batches():
                return stamped_ms(batch)
        return None

    @_typed_read
    def appended_by_ms(self, offset: int) -> int | None:
        """Return an upper bound of the append time at `offset`, in ms.

        Return None if `offset` is outside the log. The append time may be unknown, for example for
        the last appends before a kill of the process; then the bound is the log file's modification
        time. This method decodes no record and reads no object of the tier.
        """
        segment = self.segment_of(offset)
        if segment is None:
            return None
        noted = segment.noted_times(UNKNOWN_MS)
        if noted is not None:
            return noted.largest_append_ms if noted.is_append_known else noted.mtime_ms
        append_ms = self.append_times_of(segment).time_at(offset)
        return segment.mtime_ms() if append_ms is None else append_ms

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment that contains `offset`, None if the offset is outside the log."""
        number = bisect_right(self._list.all, offset, key=attrgetter("base_offset"))
        if number and offset < self._list.all[number - 1].end_offset:
            return self._list.all[number - 1]
        return None

    # -- lookups by time ---------------------------------------------------------------------

    def offset_for_time(
        self,
        timestamp_ms: int,
        *,
        clock: ClockName = ClockName.RECORD,
        may_block: bool = True,
        steps_over_losses: bool = False,
        search: TimeSearch | None = None,
    ) -> OffsetAndTimestamp | None:
        """Return offset and time of the first record whose time is `timestamp_ms` or later.

        Return None if no record has such a time. Stored append times are rounded down, so on the
        append clock the result is the first record that may have been appended at `timestamp_ms` or
        later.

        Args:
            timestamp_ms: Time in ms, 0 or more.
            clock: Whether `timestamp_ms` is compared with record timestamps or with append times.
            may_block: Whether the search may wait for a disk, or take long.
            steps_over_losses: Whether lost offsets are skipped instead of raising OffsetsGone.
            search: Search to use; the view's own search if None. A thread that does not own the
                view must pass a search that `new_search` has created.

        Raises:
            ValueError: The time is negative. Source: KIP-79.
            CorruptData: A batch that the search reads is damaged.
            StorageFailure: The disk failed.
            OffsetsGone: Offsets before the result are lost, as in `records`, so the right result
                may be lost, too.
            ColdRead: The search would block, and `may_block` is false.
        """
        if timestamp_ms < 0:
            raise ValueError(f"{self.topic_partition}: time {timestamp_ms} is negative")
        log = self._list
        failures = 0
        while True:
            segments = log.all
            try:  # the decorator `_typed_read` would take as long as the search itself
                time_ms = timestamp_ms
                if clock is ClockName.APPEND:
                    log.trusted_end()
                    time_ms -= self.append_slack_ms
                return (search or log.search).find(
                    segments, time_ms, log.start_offset, clock, may_block, steps_over_losses
                )
            except (OSError, CorruptData) as error:
                if failures == _REPLACED_MAX:
                    raise
                failures += 1
                self.ensure_stale(error, segments)

    @_typed_read
    def max_timestamp(
        self,
        *,
        clock: ClockName = ClockName.RECORD,
        may_block: bool = True,
        steps_over_losses: bool = False,
        search: TimeSearch | None = None,
    ) -> OffsetAndTimestamp | None:
        """Return offset and time of the first record with the largest time.

        Return None if no record has a time. Arguments and errors are those of `offset_for_time`.
        """
        log = self._list
        return (search or log.search).find_latest(
            log.all, log.start_offset, clock, may_block, steps_over_losses
        )

    def new_search(self) -> TimeSearch:
        """Create a search for another thread.

        The new search has its own cache, and uses kernels if kernels are loaded.
        """
        kernels = self._list.kernels
        return TimeSearch() if kernels is None else TimeSearch(type(kernels)())

    @property
    def append_slack_ms(self) -> int:
        """Maximum time in ms by which an append may be later than its stored append time."""
        return self.context.config.tidelog_append_time_granularity_ms - 1

    @_typed_read
    def without_append_time(self, before: int | None = None) -> int:
        """Count the records below `before` (all records if None) whose append time is unknown."""
        end = self.log_end_offset if before is None else before
        self.trusted_end()
        return count_without_append_time(self._list.all, self._list.start_offset, end)

    def use_kernels(self) -> "KernelSearch":
        """Use kernels for searches from now on.

        The first call takes about 0.5 s, because it loads numpy and numba.

        Raises:
            MissingDependency: numpy or numba is not installed.
        """
        return self._list.use_kernels()

    def drop_caches(self) -> None:
        """Drop memory maps, zone maps and indexes of finished segments.

        The maps and indexes are loaded again at their next use.
        """
        for segment in self._list.all:
            segment.unload()
        self._list.forget_maps()

    # -- reading -----------------------------------------------------------------------------

    def slices(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        fails_on_gaps: bool = False,
    ) -> Iterator[LogSlice]:
        """Return the byte ranges of the offsets in [start, end) that are visible with `isolation`.

        Args:
            start: First offset, the log start if None.
            end: Offset after the last offset; the visible end if None.
            isolation: READ_COMMITTED stops at the last stable offset. The ranges still contain
                aborted records; use `aborted_filter` to hide these records.
            fails_on_gaps: Whether to raise OffsetsGone for an empty segment whose records are lost.

        Raises:
            OffsetOutOfRange: `start` is below the log start or beyond the log end.
            StorageFailure: The disk failed.
        """
        visible = self.end_offset(isolation)
        first = self._list.start_offset if start is None else start
        if not self._list.start_offset <= first <= self.log_end_offset:
            raise OffsetOutOfRange(
                first, self._list.start_offset, self.log_end_offset, where=str(self.topic_partition)
            )
        last = visible if end is None else min(end, visible)
        on_empty = ensure_no_gap if fails_on_gaps else None
        return slices(self._list.all, first, last, on_empty) if first < last else iter(())

    def records(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[Record]:
        """Yield the data records with offsets in [start, end), one by one.

        Use this method for small amounts only; scans are faster.

        Raises:
            OffsetOutOfRange, StorageFailure: As in `slices`.
            OffsetsGone: Offsets between two segments are missing although nothing was compacted, or
                the next offsets to read were deleted during the read.
            CorruptData: A batch is damaged; the error has file, position and offset.
        """

        def read(start: int | None, end: int) -> Iterator[Record]:
            aborted = self.aborted_filter(isolation, start, end)
            for part in self.slices(start, end, isolation=isolation, fails_on_gaps=True):
                yield from _records_of(part, aborted)

        return self._resumed(read, start, self.end_offset(isolation) if end is None else end)

    def timed_records(self, isolation: IsolationLevel) -> Iterator[Record]:
        """Yield all records that `isolation` shows, each with its append time if it is known."""

        def read(start: int | None, end: int) -> Iterator[Record]:
            aborted = self.aborted_filter(isolation, start, end)
            for part in self.slices(start, end, isolation=isolation, fails_on_gaps=True):
                times = self.append_times_of(part.segment)
                for record in _records_of(part, aborted):
                    yield with_append_time(record, times.time_at(record.offset))

        return self._resumed(read, None, self.end_offset(isolation))

    def _resumed(
        self, read: Callable[[int | None, int], Iterator[Record]], start: int | None, end: int
    ) -> Iterator[Record]:
        """Yield the records of `read`; continue at the next offset if segments were replaced.

        Raises:
            OffsetsGone: The next offsets were deleted during the read.
        """
        failures, next_offset = 0, start
        while True:
            segments = self.segments
            try:
                for record in read(next_offset, end):
                    yield record
                    failures, next_offset = 0, record.offset + 1
            except (OSError, CorruptData) as error:
                if failures == _REPLACED_MAX:
                    raise
                failures += 1
                self.ensure_stale(error, segments)
            else:
                return
            first = self._list.start_offset
            if next_offset is None or next_offset >= end:
                continue
            if next_offset < first:
                name = self.topic_partition
                reason = f"deleted, the log starts at offset {first}"
                lost = LostOffsets(name.topic, name.partition, next_offset, min(first, end), reason)
                raise OffsetsGone((lost,))

    @_typed_read
    def aborted_filter(
        self, isolation: IsolationLevel, start: int | None = None, end: int | None = None
    ) -> AbortedFilter:
        """Return the filter that hides aborted batches in [start, end) from READ_COMMITTED readers.

        For READ_UNCOMMITTED the filter hides nothing.
        """
        if isolation is IsolationLevel.READ_UNCOMMITTED:
            return AbortedFilter(())
        first = self._list.start_offset if start is None else start
        last = ANY_OFFSET if end is None else end
        indexes = (each.txn_index for each in self._list.all if each.end_offset > first)
        return AbortedFilter(aborted_between(indexes, first, last))


class LogReader(LogView):
    """View of a partition as of the opening or the last refresh. A reader needs no lock."""

    @classmethod
    def open(
        cls,
        context: SegmentContext,
        *,
        log_start_offset: int = 0,
        tiers: TierAccess | None = None,
    ) -> "LogReader":
        """Open a partition's directory for reading.

        Args:
            context: Shared state of the partition's segments.
            log_start_offset: Log start in the directory's checkpoint, 0 if it has none.
            tiers: Reads segments in the tier; if None, only local files are shown.

        Raises:
            CorruptFile, UnsupportedVersion: `tidelog-tier.json` is damaged or was written by a
                later release, or a log file is a symbolic link without a target.
            StorageFailure: The disk failed.
        """
        reader = cls(SegmentList(context, LogTier(tiers), log_start_offset=log_start_offset))
        reader.refresh()
        return reader

    def refresh(self, log_start_offset: int | None = None) -> None:
        """Read the current state from disk; see `SegmentList.refresh`.

        Args:
            log_start_offset: Log start that the directory's checkpoint has now; if None, the known
                log start stays.
        """
        if log_start_offset is not None:
            self._list.checkpointed_start = log_start_offset
        try:
            self._list.refresh()
        except OSError as error:
            super().ensure_stale(error, self.segments)

    def ensure_stale(self, error: OSError | CorruptData, segments: Sequence[Segment]) -> None:
        """Raise a read's error, unless segments were replaced or the view was refreshed meanwhile.

        For arguments and errors, see `LogView.ensure_stale`.
        """
        if isinstance(error, FileNotFoundError | CorruptData):
            with suppress(OSError):
                if self.segments is not segments or self._list.follow_changes():
                    return
        super().ensure_stale(error, segments)

    @_typed_read
    def producer_states(self) -> ProducerStates:
        """Return producers and open transactions at the log end, from snapshot and log."""
        return self._list.producer_states()

    def close(self) -> None:
        """Drop the list of segments; slices that were returned earlier stay valid."""
        self._list.keep(())
