"""The last segment of a log as a reader sees it: up to the last whole, valid batch on disk.

Where something proves that more was there (`log_end`), the segment goes on to the proven end, and
reading it raises at the damage as in a finished segment.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self, TypeVar

from tidelog.errors import CorruptData, DamagedLog
from tidelog.record.batch import HEADER_SIZE
from tidelog.record.offset_order import first_known_offset, in_order, segment_limit
from tidelog.record.views import Batch
from tidelog.storage import files
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.compaction_history import cleaned_end
from tidelog.storage.handles import walk_file
from tidelog.storage.index_files import IndexBuilder, load_indexes
from tidelog.storage.log_end import Course, Damage, Jump, RecordedEnd, find_damage
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.proof import batch_at, misfit, time_misfit
from tidelog.storage.segment import Segment, SegmentContext, SegmentFiles
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.trust import AppendTimeCheckpoint, fingerprint
from tidelog.storage.txn_index import TxnIndex
from tidelog.types import INT64_MAX, NO_TIMESTAMP, ClockName

# A reader looks at an end that may be damaged until two looks agree, but not for ever.
_LOOKS_MAX: Final = 3


class TailSegment(SegmentFiles):
    """The last segment: read by position, up to the last whole, valid batch at load time.

    Attributes:
        damage: Why it ends where it does, if bytes that were on disk can't be read; then
            `size_bytes` and `end_offset` include the damage. `damaged` is its error.
        course: How far its batches are sound.
        find_aborted: How to find its aborted transactions where it has no file of them.
        has_index_files: Whether its indexes are those on disk, not built from the log.
    """

    is_active: Final = True
    is_mapped: Final = False

    def __init__(
        self,
        context: SegmentContext,
        base_offset: int,
        indexes: tuple[OffsetIndex, TimeIndex],
    ) -> None:
        super().__init__(context, base_offset)
        self.offset_index, self.time_index = indexes
        self.size_bytes = 0
        self.end_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.last_batch: Batch | None = None
        self._append_times: AppendTimes | None = None
        self._is_last_time_proven = True
        self._misfit: str | None = None
        self.course = Course(0, base_offset)
        self.has_index_files = True
        self.damage: Damage | None = None
        self.damaged: DamagedLog | None = None
        self.find_aborted: Callable[[Segment], TxnIndex] | None = None

    @classmethod
    def empty(cls, context: SegmentContext, base_offset: int) -> Self:
        """A segment of which nothing was read yet."""
        return cls(context, base_offset, (OffsetIndex(base_offset), TimeIndex(base_offset)))

    @property
    def has_known_end(self) -> bool:
        """Whether it is known to reach `end_offset`, so that a reader must not stop before."""
        return self.damage is not None

    def scan_tail(self, file_size: int, *, check_crc: bool) -> None:
        """Set size, end offset and largest timestamp from the last sure entries to the end.

        Stops silently at the first batch that is incomplete or invalid: another process may be
        writing it. Where that is the batch of the last index entry, the entry was written and its
        batch was not: the search goes on from the entry before. A time index whose last entry is
        not that of its batch is of no use: both indexes are built anew.
        """
        self._scan_from_sure_entry(file_size, check_crc=check_crc)
        problem = self._problem_of_indexes()
        if problem is not None:
            self.context.report(problem)
            self.offset_index, self.time_index = rebuilt_tail_indexes(self, self.size_bytes)
            self.has_index_files = False
            self._scan_from_sure_entry(file_size, check_crc=check_crc)

    def _scan_from_sure_entry(self, file_size: int, *, check_crc: bool) -> None:
        while not self._scan_from_last_entry(file_size, check_crc=check_crc):
            last_offset = self.offset_index.last_offset
            self.offset_index.truncate_to(last_offset)
            self.time_index.truncate_to(last_offset)

    def _problem_of_indexes(self) -> str | None:
        """What the last entries say and the batches do not, None where they agree."""
        if self._misfit is not None:
            return self._misfit
        if not self._is_last_time_proven or self._is_last_time_outdone():
            return time_misfit(self.log_path, self.time_index.last_entry)
        if self.offset_index.entry_count and self.offset_index.last_offset >= self.end_offset:
            return misfit(self.log_path, *self.offset_index.lookup(INT64_MAX))
        return None

    def _is_last_time_outdone(self) -> bool:
        """Whether a batch before the last time entry claims a larger timestamp than the entry."""
        indexed, offset = self.time_index.last_entry
        is_earlier = self.max_timestamp_offset < offset
        return self.time_index.entry_count > 0 and is_earlier and self.max_timestamp > indexed

    def _scan_from_last_entry(self, file_size: int, *, check_crc: bool) -> bool:
        """Whether the last indexed batch, where there is one, could be taken.

        Begins one entry before the one to which the last time entry leads: only batches tell
        whether a later one was lost, and no walk sees a gap before its first batch.
        """
        indexed, offset = self.time_index.last_entry
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._is_last_time_proven = self.time_index.entry_count == 0
        _, position = self.offset_index.lookup(INT64_MAX)
        first_key, first = (0, 0)
        if indexed != NO_TIMESTAMP:
            first_key, first = self.offset_index.lookup(offset - 1)
        self._misfit = None
        file = self.context.pool.get(self.log_path)
        base = self.base_offset
        self.size_bytes, self.end_offset = first, base
        course = self.course = Course(first, base)
        batches = walk_file(file, self.log_path, first, file_size)
        limit, path, knows_next = segment_limit(base), self.log_path, first == 0
        try:
            for start, batch in in_order(batches, base, limit, path, knows_next=knows_next):
                if check_crc and start >= position:
                    batch.ensure_valid()
                if self.end_offset <= offset <= batch.last_offset and indexed != NO_TIMESTAMP:
                    self._is_last_time_proven = batch.max_timestamp == indexed
                if start == first > 0:
                    if batch.last_offset > first_key:
                        self._misfit = misfit(self.log_path, first_key, first)
                    course.end_offset = first_known_offset(batch)  # what was before is not read
                course.take(batch, start)
                self._take(batch, start)
        except CorruptData as error:
            course.problem = error.reason
            where = f"{self.log_path}, position {course.size_bytes}"
            self.context.report(f"{where}: {error.reason}; read up to there")
        return position == 0 or self.size_bytes > position

    def read_txn_index(self) -> TxnIndex:
        """The `.txnindex` file; where there is none, what the batches say of aborted ones."""
        index = super().read_txn_index()
        if index.entries or self.find_aborted is None:
            return index
        return self.find_aborted(self)

    def settle_end(self, recorded: RecordedEnd) -> Damage | None:
        """Hold the end that was found against what is recorded of it, and look behind it.

        Returns:
            Why bytes behind the sound part are no unfinished write, None where they may be one.
            The segment reaches to the proven end then, and reading raises at the damage.
        """
        file = self.context.pool.get(self.log_path)
        course = self.course
        jump = course.jump
        if recorded.is_end and course.end_offset < recorded.recovery_point:
            recorded = self._witnessed(recorded, file.size())
        is_open = jump is not None and course.end_offset > recorded.recovery_point
        found = find_damage(
            file,
            self.log_path,
            self.base_offset,
            course,
            recorded,
            jump_is_proven=is_open and self._proves(jump),
        )
        if found is not None:
            self.damage, self.damaged = found, found.error
            self.size_bytes, self.end_offset = file.size(), found.end_offset
        return found

    def _witnessed(self, recorded: RecordedEnd, size: int) -> RecordedEnd:
        """The recorded end; the log's own where what the same close has left beside it says so.

        Two files tell where a log ended when it was closed. Where a log that lacks no byte ends
        with the batch that the one names, the other is wrong.
        """
        course, last = self.course, self.last_batch
        if course.size_bytes != size or last is None:
            return recorded
        told = AppendTimeCheckpoint.read(self.context.env.files, self.context.directory)
        named = (course.end_offset, first_known_offset(last), fingerprint(last))
        if told is None or named != (told.end_offset, told.last_base_offset, told.last_fingerprint):
            return recorded
        self.context.report(
            f"{self.context.directory}: the recovery point {recorded.recovery_point} lies above the"
            f" end of the log, {course.end_offset}, which {files.APPEND_TIME_CHECKPOINT_FILE}"
            " proves; not believed"
        )
        return replace(recorded, recovery_point=course.end_offset)

    def _proves(self, jump: Jump | None) -> bool:
        """Whether something beside the log names the offsets of a batch that leave a gap."""
        assert jump is not None
        batch, context = jump.batch, self.context
        if batch.next_offset <= cleaned_end(context.env.files, context.directory):
            return True
        entry = (batch.last_offset, jump.position)
        if self.has_index_files and self.offset_index.lookup(batch.last_offset) == entry:
            return True
        named = fingerprint(batch)
        rows = self.read_append_times().rows()
        edges = (first_known_offset(batch), batch.next_offset)
        return any(row.batch_crc == named and row.offset in edges for row in rows)

    def _take(self, batch: Batch, position: int) -> None:
        self.size_bytes = position + batch.size_bytes
        self.end_offset = batch.next_offset
        self.last_batch = batch
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = batch.last_offset

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, -1 where no record has one.

        Any time may lie in a damaged part, so a search has to come upon the damage.
        """
        return self.max_timestamp if self.damage is None else INT64_MAX

    @property
    def append_times(self) -> AppendTimes:
        """Append times as far as they are sure."""
        if self._append_times is None:
            self._append_times = self.read_append_times()
        return self._append_times

    @property
    def zones(self) -> None:
        """None: a segment gets its zone map when it is finished."""
        return

    def zones_on(self, _clock: ClockName) -> None:
        """None, likewise."""
        return

    def set_append_times(self, times: AppendTimes) -> None:
        """Use times that were checked against the log."""
        self._append_times = times

    def distrust_indexes(self, problem: str) -> None:
        """Report what an index says and the log does not; go on with indexes built anew."""
        self.context.report(problem)
        self.offset_index, self.time_index = rebuilt_tail_indexes(self, self.size_bytes)

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the log file, read now."""
        file = self.context.pool.get(self.log_path)
        return memoryview(file.pread(min(end, self.size_bytes) - start, start))

    def whole(self) -> memoryview:
        """All bytes of whole batches, read now."""
        return self.view(0, self.size_bytes)


_Tail = TypeVar("_Tail", bound=TailSegment)


def load_tail(context: SegmentContext, base_offset: int) -> TailSegment:
    """The last segment as it is on disk now; its indexes are checked, else rebuilt in memory.

    A process that writes it may be at work, so damage counts only if a later look finds the same:
    by then the write that was under way is done, and what is recorded was read anew.
    """
    segment, found = _loaded(context, base_offset, context.recorded_end(False))
    for _ in range(_LOOKS_MAX):
        if found is None:
            break
        before = found
        segment, found = _loaded(context, base_offset, context.recorded_end(True))
        if found is not None and str(found.error) == str(before.error):
            context.report(f"{found.error}")
            break
    return segment


def _loaded(
    context: SegmentContext, base_offset: int, recorded: RecordedEnd
) -> tuple[TailSegment, Damage | None]:
    segment = TailSegment.empty(context, base_offset)
    fill_tail(segment, check_crc=True)
    if recorded.is_end and segment.end_offset > recorded.recovery_point:
        recorded = context.recorded_end(True)  # mostly a writer has begun since it was read
    return segment, segment.settle_end(recorded)


def judge_tail(empty: Callable[[], _Tail], recorded: RecordedEnd) -> tuple[_Tail, bool]:
    """The last segment as an opening takes it, and whether its end is damaged or in doubt.

    Checksums are read only where frames alone may have led over damage.
    """
    segment = empty()
    fill_tail(segment, check_crc=False)
    size = segment.context.pool.get(segment.log_path).size()
    if segment.settle_end(recorded) is None and size <= segment.size_bytes:
        return segment, False
    segment = empty()
    fill_tail(segment, check_crc=True)
    return segment, segment.settle_end(recorded) is not None


def fill_tail(segment: TailSegment, *, check_crc: bool) -> None:
    """Load indexes and end of a last segment; a growing index is used as far as it is sure."""
    context, base_offset = segment.context, segment.base_offset
    indexes = load_indexes(context, base_offset, mapped=False)
    log_size = context.env.files.stat(segment.log_path).size
    if indexes is None or not _last_entry_fits(segment, indexes[0]):
        indexes = rebuilt_tail_indexes(segment, log_size)
        segment.has_index_files = False
    segment.offset_index, segment.time_index = indexes
    segment.scan_tail(log_size, check_crc=check_crc)


def _last_entry_fits(segment: TailSegment, index: OffsetIndex) -> bool:
    """Whether the last index entry leads to the batch that it names."""
    if index.entry_count == 0:
        return True
    last_offset, position = index.entry(index.entry_count - 1)
    file = segment.context.pool.get(segment.log_path)
    found = batch_at(memoryview(file.pread(HEADER_SIZE, position)))
    # Old brokers made one entry for an append of several batches.
    if found is not None and segment.base_offset <= found <= last_offset:
        return True
    segment.context.report(misfit(segment.log_path, last_offset, position))
    return False


def rebuilt_tail_indexes(segment: TailSegment, log_size: int) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes of a last segment from its log file, without the closing time entry."""
    builder = IndexBuilder(segment.context.config, segment.base_offset)
    file = segment.context.pool.get(segment.log_path)
    try:
        batches = walk_file(file, segment.log_path, 0, log_size)
        base, limit = segment.base_offset, segment_limit(segment.base_offset)
        for position, batch in in_order(batches, base, limit, segment.log_path):
            builder.add(batch, position)
    except CorruptData as error:
        segment.context.report(f"{error}; indexed up to there")
    return builder.offset_index, builder.time_index
