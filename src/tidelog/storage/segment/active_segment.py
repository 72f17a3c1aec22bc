"""The last segment of a log: `TailSegment` for readers, `ActiveSegment` for the writer.

A `TailSegment` ends at the last whole, valid batch on disk. If it is proven that the log had more
batches (`log_end`), the segment ends at the proven end, and reads raise an error at the damage, as
in a finished segment.

An `ActiveSegment` writes the log, both indexes and the append times to their files immediately.
Each append writes in this order: the append-time row (only if the time has changed), the log's
bytes, the index entries. A crash may keep any part of the unsynced bytes; recovery makes the files
consistent again. Index files are not preallocated: all their bytes are valid entries.

Life cycle: create or load -> (begin, write, finish, acknowledge)* -> close_entries, sync. Not
thread-safe. Source: KIP-33 for the time index; docs/format.md.
"""

from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar

from tidelog.errors import CorruptData, DamagedLog
from tidelog.record.batch_walk import Batch
from tidelog.record.header import HEADER_SIZE
from tidelog.record.offset_order import first_known_offset, in_order, segment_limit
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.open_files import PooledFile, sync_file, typed_failures, walk_file
from tidelog.storage.segment.append_time_trust import (
    AppendTimeCheckpoint,
    fingerprint,
    fingerprint_of,
)
from tidelog.storage.segment.compaction_history import cleaned_end
from tidelog.storage.segment.index_loading import (
    close_time_index,
    index_limit_bytes,
    load_indexes,
    ordered_batches,
    rebuild_indexes,
)
from tidelog.storage.segment.index_proof import batch_at, first_reaching, misfit, time_misfit
from tidelog.storage.segment.log_end import (
    NOTHING_RECORDED,
    Damage,
    Jump,
    RecordedEnd,
    SoundPart,
    find_damage,
)
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import Segment, SegmentContext, iterate_batches
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import AbortedTxn, TxnIndex
from tidelog.types import INT32_MAX, INT64_MAX, NO_TIMESTAMP, UNKNOWN_MS, Buffer, ClockName

# Maximum number of repeated reads. If the end of a log looks damaged, a reader reads it again until
# two reads agree.
_LOOKS_MAX: Final = 3


class TailSegment(Segment):
    """The last segment of a log, read by position up to the last whole, valid batch at load time.

    Attributes:
        damage: Damage after the sound part, if bytes that were on disk are unreadable; else None.
            With damage, `size_bytes` and `end_offset` include the damaged bytes, and `damaged` is
            the error that reads of these bytes raise.
        sound_part: Part of the log file with sound batches.
        has_index_files: Whether the indexes were read from the files on disk, and not rebuilt from
            the log.
    """

    is_active = True
    is_mapped = False
    has_indexes = has_append_times = is_whole = True
    size_bytes = 0
    offset_index = OffsetIndex(0)  # each segment sets its own index
    time_index = TimeIndex(0)
    damaged: DamagedLog | None = None
    loaded_zones = zones = None

    def __init__(
        self,
        context: SegmentContext,
        base_offset: int,
        indexes: tuple[OffsetIndex, TimeIndex],
    ) -> None:
        super().__init__(context, base_offset, base_offset)
        self.offset_index, self.time_index = indexes
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.last_batch = None
        self._is_last_time_proven = True
        self._misfit: str | None = None
        self.sound_part = SoundPart(0, base_offset)
        self.has_index_files = True
        self.damage: Damage | None = None

    @classmethod
    def empty(cls, context: SegmentContext, base_offset: int) -> Self:
        """Create a segment without reading any of its files."""
        return cls(context, base_offset, (OffsetIndex(base_offset), TimeIndex(base_offset)))

    @property
    def has_known_end(self) -> bool:
        """Whether the segment is known to reach `end_offset`; if so, reads must reach it, too."""
        return self.damage is not None

    def scan_tail(self, file_size: int, *, check_crc: bool) -> None:
        """Find size, end offset and largest timestamp by a scan from the last index entries on.

        At the first batch that is incomplete or invalid, the scan ends without an error, because
        another process may be writing this batch. If the last index entry names this batch, a crash
        has kept the entry but not its batch, and the scan is repeated from the previous entry. If
        the last entry of an index does not match the batches, both indexes are rebuilt.
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
        """Return how the last index entries differ from the batches, None if they agree."""
        if self._misfit is not None:
            return self._misfit
        if not self._is_last_time_proven or self._is_last_time_outdone():
            return time_misfit(self.log_path, self.time_index.last_entry)
        if self.offset_index.entry_count and self.offset_index.last_offset >= self.end_offset:
            return misfit(self.log_path, *self.offset_index.lookup(INT64_MAX))
        return None

    def _is_last_time_outdone(self) -> bool:
        """Return whether a batch before the time index's last entry has a larger timestamp."""
        indexed, offset = self.time_index.last_entry
        is_earlier = self.max_timestamp_offset < offset
        return self.time_index.entry_count > 0 and is_earlier and self.max_timestamp > indexed

    def _scan_from_last_entry(self, file_size: int, *, check_crc: bool) -> bool:
        """Scan from the last index entries on; return whether the last indexed batch is valid.

        The scan must include all batches from the offset of the time index's last entry on, because
        only these batches show whether a later entry of the time index was lost. A scan can't
        detect a gap before its first batch, so the scan begins earlier: at the offset index's last
        entry below that offset.
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
        sound_part = self.sound_part = SoundPart(first, base)
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
                    # The scan reads no batches before this batch, so the sound part begins with
                    # this batch's first offset.
                    sound_part.end_offset = first_known_offset(batch)
                sound_part.take(batch, start)
                self._take(batch, start)
        except CorruptData as error:
            sound_part.problem = error.reason
            where = f"{self.log_path}, position {sound_part.size_bytes}"
            self.context.report(f"{where}: {error.reason}; read up to this position")
        return position == 0 or self.size_bytes > position

    @property
    def has_txn_index(self) -> bool:
        """Whether the index of aborted transactions can be returned without reading batches."""
        return self._txn_index is not None or self.find_aborted is None

    def read_txn_index(self) -> TxnIndex:
        """Read the `.txnindex` file, and complete its index from the batches.

        The file may lack its last entries: the writer appends a marker to the log before it writes
        the marker's entry, and a flush of the log does not sync the entry.
        """
        index = super().read_txn_index()
        return index if self.find_aborted is None else self.find_aborted(self, index)

    def settle_end(self, recorded: RecordedEnd) -> Damage | None:
        """Compare the scan's end with the recorded end, and search for batches after the scan.

        Returns:
            The damage if the bytes after the sound part can't be an unfinished write. With damage,
            the segment ends at the proven end, and reads raise an error at the damage. None if
            these bytes may be an unfinished write.
        """
        file = self.context.pool.get(self.log_path)
        sound_part = self.sound_part
        jump = sound_part.jump
        if recorded.is_end and sound_part.end_offset < recorded.recovery_point:
            recorded = self._witnessed(recorded, file.size())
        is_open = jump is not None and sound_part.end_offset > recorded.recovery_point
        damage = find_damage(
            file,
            self.log_path,
            self.base_offset,
            sound_part,
            recorded,
            jump_is_proven=is_open and self._proves(jump),
        )
        if damage is not None:
            self.damage, self.damaged = damage, damage.error
            self.size_bytes, self.end_offset = file.size(), damage.end_offset
        return damage

    def _witnessed(self, recorded: RecordedEnd, size: int) -> RecordedEnd:
        """Return the recorded end, or the log's own end if the append-time checkpoint proves it.

        A clean close sets both the recovery point and the append-time checkpoint to the log end. If
        the append-time checkpoint names the file's last batch, and no byte follows this batch, the
        log ends there. In this case, a larger recovery point is wrong.
        """
        sound_part, last = self.sound_part, self.last_batch
        if sound_part.size_bytes != size or last is None:
            return recorded
        checkpoint = AppendTimeCheckpoint.read(self.context.env.files, self.context.directory)
        named = (sound_part.end_offset, first_known_offset(last), fingerprint(last))
        if checkpoint is None or named != (
            checkpoint.end_offset,
            checkpoint.last_base_offset,
            checkpoint.last_fingerprint,
        ):
            return recorded
        self.context.report(
            f"{self.context.directory}: the recovery point, offset {recorded.recovery_point}, is"
            f" after the log end, offset {sound_part.end_offset}, which"
            f" {files.APPEND_TIME_CHECKPOINT_FILE} proves; the recovery point is ignored"
        )
        return recorded._replace(recovery_point=sound_part.end_offset)

    def _proves(self, jump: Jump | None) -> bool:
        """Return whether the offsets of the batch in `jump` are proven.

        A compaction, an index entry or an append-time row can prove the offsets.
        """
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
        """Largest record timestamp, -1 if no record has one.

        Damaged bytes may contain any timestamp. With damage, the result is therefore the largest
        possible value, so that a search reaches the damage and reports it.
        """
        return self.max_timestamp if self.damage is None else INT64_MAX

    def largest_record(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of the first batch that has it."""
        return self.max_timestamp, self.max_timestamp_offset

    def zones_on(self, _clock: ClockName) -> None:
        """Return None, because a segment gets its zone map only when it is finished."""

    def passing_zones_on(self, _clock: ClockName) -> None:
        """Return None, because a segment gets its zone map only when it is finished."""

    def use_zones(self, _zones: ZoneMap | None, *, loaded: bool = True) -> None:
        """Do nothing, because a segment gets its zone map only when it is finished."""

    def forget_stale_files(self) -> None:
        """Close the log file's handle, because the segment may have been finished or deleted."""
        self.context.pool.forget(self.log_path)

    def unload(self) -> None:
        """Do nothing, because the indexes of the last segment are in memory only."""

    def distrust_indexes(self, problem: str) -> None:
        """Report how an index differs from the log, and rebuild both indexes."""
        self.context.report(problem)
        self.offset_index, self.time_index = rebuilt_tail_indexes(self, self.size_bytes)

    def view(self, start: int, end: int) -> memoryview:
        """Read bytes [start, end) of the log file."""
        file = self.context.pool.get(self.log_path)
        return memoryview(file.pread(min(end, self.size_bytes) - start, start))

    def whole(self) -> memoryview:
        """Read all bytes of whole batches."""
        return self.view(0, self.size_bytes)


_Tail = TypeVar("_Tail", bound=TailSegment)


def load_tail(context: SegmentContext, base_offset: int) -> TailSegment:
    """Load the last segment from disk; check its indexes, and rebuild wrong indexes in memory.

    Another process may be writing the segment, so damage is reported only if two successive reads
    find the same damage. Each repeated read also reads the recorded end again.
    """
    segment, damage = _loaded(context, base_offset, context.recorded_end(False))
    for _ in range(_LOOKS_MAX):
        if damage is None:
            break
        before = damage
        segment, damage = _loaded(context, base_offset, context.recorded_end(True))
        if damage is not None and str(damage.error) == str(before.error):
            context.report(f"{damage.error}")
            break
    return segment


def _loaded(
    context: SegmentContext, base_offset: int, recorded: RecordedEnd
) -> tuple[TailSegment, Damage | None]:
    segment = TailSegment.empty(context, base_offset)
    fill_tail(segment, check_crc=True)
    if recorded.is_end and segment.end_offset > recorded.recovery_point:
        recorded = context.recorded_end(True)  # read again: a writer may have started meanwhile
    return segment, segment.settle_end(recorded)


def judge_tail(empty: Callable[[], _Tail], recorded: RecordedEnd) -> tuple[_Tail, bool]:
    """Load a log's last segment; return the segment, and whether its end is damaged.

    Use this function for a log that is being opened for writing. The first scan verifies no
    checksums. If this scan finds damage, or bytes after the last batch, a second scan verifies
    checksums.

    Args:
        empty: Creates the segment object, without reading a file.
        recorded: Recorded end of the log.
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
    """Load the indexes and the end of a log's last segment.

    Another process may append to the indexes, so only the proven part of each index is used.
    """
    context, base_offset = segment.context, segment.base_offset
    indexes = load_indexes(context, base_offset, mapped=False)
    log_size = context.env.files.stat(segment.log_path).size
    if indexes is None or not _last_entry_fits(segment, indexes[0]):
        indexes = rebuilt_tail_indexes(segment, log_size)
        segment.has_index_files = False
    segment.offset_index, segment.time_index = indexes
    segment.scan_tail(log_size, check_crc=check_crc)


def _last_entry_fits(segment: TailSegment, index: OffsetIndex) -> bool:
    """Return whether the offset index's last entry can be right for the batch at its position."""
    if index.entry_count == 0:
        return True
    last_offset, position = index.entry(index.entry_count - 1)
    file = segment.context.pool.get(segment.log_path)
    batch_last_offset = batch_at(memoryview(file.pread(HEADER_SIZE, position)))
    # Old brokers wrote one entry for an append of several batches: the last batch's offset, and the
    # first batch's position.
    if batch_last_offset is not None and segment.base_offset <= batch_last_offset <= last_offset:
        return True
    segment.context.report(misfit(segment.log_path, last_offset, position))
    return False


def rebuilt_tail_indexes(segment: TailSegment, log_size: int) -> tuple[OffsetIndex, TimeIndex]:
    """Build the last segment's indexes from its log; the time index gets no closing entry."""
    context, base = segment.context, segment.base_offset
    file = context.pool.get(segment.log_path)
    batches = ordered_batches(file, segment.log_path, base, log_size)
    indexes, damage = rebuild_indexes(context.config, base, batches, is_finished=False)
    if damage is not None:
        context.report(f"{damage}; indexed up to this batch")
    return indexes


class ActiveSegment(TailSegment):
    """The last segment of a log that is open for writing."""

    takes_appends = True

    def __init__(
        self,
        context: SegmentContext,
        base_offset: int,
        indexes: tuple[OffsetIndex, TimeIndex],
    ) -> None:
        super().__init__(context, base_offset, indexes)
        self.created_ms = context.env.clock.now_ms()
        self._bytes_since_entry = 0
        self._first_timestamp: int | None = None
        self._written: tuple[int, Batch, int]  # file size, last batch, end offset
        self._offset_index_written = 0
        self._time_index_written = 0
        self._must_rewrite = False
        self._times_written = 0
        # Whether the append-time file was created after the last sync of the directory.
        self._has_new_name = False
        self._interval_bytes = context.config.index_interval_bytes
        self._log_file = PooledFile(context.pool, self.log_path)
        self._times_file = self._pooled_file(log_files.APPEND_TIME_SUFFIX)
        self._offset_index_file = self._pooled_file(log_files.OFFSET_INDEX_SUFFIX)
        self._time_index_file = self._pooled_file(log_files.TIME_INDEX_SUFFIX)

    def _pooled_file(self, suffix: str) -> PooledFile:
        """Open one of the segment's files; create the file if it is missing."""
        path = self.context.path(self.base_offset, suffix)
        return PooledFile(self.context.pool, path, create=True)

    @classmethod
    def create(cls, context: SegmentContext, base_offset: int) -> "ActiveSegment":
        """Create an empty segment; replace leftover files, but don't sync the new file names."""
        limit = index_limit_bytes(context.config)
        indexes = (
            OffsetIndex(base_offset, size_limit=limit),
            TimeIndex(base_offset, size_limit=limit),
        )
        segment = cls(context, base_offset, indexes)
        for suffix in log_files.SEGMENT_SUFFIXES:
            segment.forget(suffix)
            _remove_if_there(context, context.path(base_offset, suffix))
        for suffix in (log_files.LOG_SUFFIX, *log_files.INDEX_SUFFIXES):
            context.pool.get(context.path(base_offset, suffix), create=True)
        segment.set_append_times(AppendTimes(base_offset, context.topic_id))
        return segment

    @classmethod
    def load(
        cls,
        context: SegmentContext,
        base_offset: int,
        recorded: RecordedEnd = NOTHING_RECORDED,
        *,
        is_refused: bool = False,
    ) -> "ActiveSegment":
        """Load the last segment after a clean stop or a recovery, and correct its index files.

        Bytes after the last whole batch are truncated. Recovery has already checked these bytes;
        after a clean stop, the file has no such bytes. Exception: no file is changed if the bytes
        after the last whole batch are proven to be damage (`settle_end`), or if the partition takes
        no appends.

        Args:
            context: The partition.
            base_offset: The segment's base offset.
            recorded: Recorded end of the log.
            is_refused: Whether the partition takes no appends for a reason that was found before
                this call.
        """
        segment, is_damaged = judge_tail(lambda: cls.empty(context, base_offset), recorded)
        is_refused |= is_damaged
        if is_refused:
            return segment
        log = context.pool.get(segment.log_path)
        if log.size() > segment.size_bytes:
            lost_bytes = log.size() - segment.size_bytes
            context.report(
                f"{segment.log_path}, position {segment.size_bytes}: no complete batch; cut"
                f" {lost_bytes} bytes"
            )
            log.truncate(segment.size_bytes)
            sync_file(log, segment.log_path)
        segment.rewrite_indexes()
        return segment

    def forget(self, suffix: str) -> None:
        """Close handle and map of one of the segment's files."""
        path = self.context.path(self.base_offset, suffix)
        self.context.pool.forget(path)
        self.context.maps.forget(path)

    def distrust_indexes(self, problem: str) -> None:
        """Rebuild both indexes in memory; the next append rewrites the files."""
        super().distrust_indexes(problem)
        self._must_rewrite = True

    def rewrite_indexes(self) -> None:
        """Replace the contents of both index files with the indexes in memory."""
        self._must_rewrite = False
        self._offset_index_written = self._put(
            log_files.OFFSET_INDEX_SUFFIX, self.offset_index.encoded
        )
        self._time_index_written = self._put(log_files.TIME_INDEX_SUFFIX, self.time_index.encoded)

    def _put(self, suffix: str, content: Buffer) -> int:
        file = self.context.pool.get(self.context.path(self.base_offset, suffix), create=True)
        size = file.size()
        if size == len(content) and file.pread(size, 0) == content:
            return size
        file.truncate(0)
        files.write_fully(file, content, 0)
        return len(content)

    def set_append_times(self, times: AppendTimes) -> None:
        """Use these append times as the segment's own."""
        times.granularity_ms = self.context.config.tidelog_append_time_granularity_ms
        super().set_append_times(times)

    def adopt_txn_index(self, index: TxnIndex) -> None:
        """Use this index of aborted transactions from now on; replace its file.

        If the index is empty, the file is removed.

        Raises OSError if the file can't be replaced or removed; the index is used nevertheless.
        """
        self._txn_index = index
        path = self.context.path(self.base_offset, log_files.TXN_INDEX_SUFFIX)
        self.forget(log_files.TXN_INDEX_SUFFIX)
        if index.entries:
            files.write_atomically(self.context.env.files, path, index.encoded)
        else:
            _remove_if_there(self.context, path)

    def adopt_append_times(self, times: AppendTimes, *, file_matches: bool) -> None:
        """Use these times from now on; unless `file_matches`, also write them to the file."""
        self.set_append_times(times)
        encoded = times.encode()
        path = self.context.path(self.base_offset, log_files.APPEND_TIME_SUFFIX)
        if not times.row_count and not self.context.env.files.exists(path):
            self._times_written = 0  # the file is created with its first row
            return
        self._times_written = len(encoded)
        if file_matches:
            return
        self.forget(log_files.APPEND_TIME_SUFFIX)
        files.write_atomically(self.context.env.files, path, encoded)

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch in ms, for the segment's age; -1 if none."""
        if self._first_timestamp is None and self.size_bytes:
            # The first 4 KiB may end inside the first batch; this does not mean damage.
            first = next(self.walk_file(0, min(self.size_bytes, 1 << 12)), None)
            if first is None:
                first = next(iterate_batches(self, 0, self.size_bytes))
            self._first_timestamp = first[1].max_timestamp
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    @property
    def first_append_ms(self) -> int:
        """Append time of the segment's first batch in ms, -1 if unknown."""
        rows = self.append_times.rows()
        return rows[0].append_ms if rows else UNKNOWN_MS

    def has_room(self, size_bytes: int, last_offset: int, max_timestamp: int, span_ms: int) -> bool:
        """Return whether it is certain that `roll.should_roll` would not roll for this append.

        If the result is False, the caller has to call `should_roll`, which may or may not roll.

        Args:
            size_bytes: Size limit of the log file, less the append's bytes; can be negative.
            last_offset: Last offset of the append.
            max_timestamp: Largest timestamp of the append.
            span_ms: Maximum age of the segment in ms: `TopicConfig.roll_ms` less the jitter.
        """
        first_ms, offsets, times = self._first_timestamp, self.offset_index, self.time_index
        return (
            first_ms is not None
            and first_ms >= 0
            and self.size_bytes <= size_bytes
            and max_timestamp - first_ms <= span_ms
            and last_offset - self.base_offset <= INT32_MAX
            and offsets.size_bytes < offsets.full_bytes
            and times.size_bytes < times.full_bytes
        )

    def begin(self, first: Batch, append_ms: int) -> None:
        """Begin an append: write an append-time row if the time changed.

        The caller then calls `write`, `finish` and `acknowledge`. No other operation may run on the
        segment in between. Readers don't see the append before the call of `acknowledge`.

        Args:
            first: The first batch, with its final offset, epoch and checksum.
            append_ms: Append time of all batches in ms; -1 if it is unknown or the append clock is
                off.

        Raises:
            OSError: The disk failed; the caller takes the partition offline. Later steps may also
                raise this error.
        """
        if append_ms == UNKNOWN_MS or not self.append_times.goes_on_at(append_ms):
            self._note_time(first, append_ms)

    def write(self, data: Buffer) -> None:
        """Write the log's bytes."""
        self._log_file.write(data, self.size_bytes)

    def finish(self, batches: Sequence[Batch], end_offset: int) -> None:
        """Write the index entries of the written batches; `end_offset` is the new log end."""
        position = self.size_bytes
        if position == 0 and self._first_timestamp is None:
            self._first_timestamp = batches[0].max_timestamp
        has_entries = self._must_rewrite
        for batch in batches:
            if self._index(batch, position):
                has_entries = True
            position += batch.size_bytes
        if has_entries:
            self._write_index_entries()
        self._written = position, batches[-1], end_offset

    def acknowledge(self) -> None:
        """Make the append visible, after all its writes are done.

        No call is made between the assignments, so no other thread can read only some of the new
        values.
        """
        self.size_bytes, self.last_batch, self.end_offset = self._written

    def _note_time(self, first: Batch, append_ms: int) -> None:
        times, offset = self.append_times, first.base_offset
        if append_ms == UNKNOWN_MS:
            last = self.last_batch if times.is_open else None
            proof = 0 if last is None or last.next_offset != offset else fingerprint(last)
            row = times.mark_unknown(offset, proof)
        else:
            named = fingerprint_of(first.crc, first.leader_epoch, offset)
            row = times.note(offset, append_ms, named)
        if row:
            self._append_times_row(row)

    def _append_times_row(self, row: bytes) -> None:
        if self._times_written == 0:
            row = self.append_times.encode_header() + row
        self._times_file.write(row, self._times_written)
        if self._times_written == 0:
            self._has_new_name = True  # set after the write, which has created the file
        self._times_written += len(row)

    def _index(self, batch: Batch, position: int) -> bool:
        """Add index entries if the interval since the last entry is exceeded, as in Kafka.

        Return whether there may be bytes to write to the index files.
        """
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = batch.last_offset
        if self._bytes_since_entry <= self._interval_bytes:
            self._bytes_since_entry += batch.size_bytes
            return False
        self._bytes_since_entry = batch.size_bytes
        offsets, times = self.offset_index, self.time_index
        if offsets.size_bytes < offsets.full_bytes:
            offsets.append(batch.last_offset, position)
        if times.size_bytes < times.full_bytes:
            times.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        return True

    def _write_index_entries(self) -> None:
        if self._must_rewrite:
            self.rewrite_indexes()
        size_bytes, written = self.offset_index.size_bytes, self._offset_index_written
        if size_bytes > written:
            self._offset_index_file.write(self.offset_index.encoded_from(written), written)
            self._offset_index_written = size_bytes
        size_bytes, written = self.time_index.size_bytes, self._time_index_written
        if size_bytes > written:
            self._time_index_file.write(self.time_index.encoded_from(written), written)
            self._time_index_written = size_bytes

    def append_aborted(self, aborted: AbortedTxn) -> None:
        """Add an aborted transaction to the index; the first entry creates the file."""
        entry = self.txn_index.append(aborted)
        path = self.context.path(self.base_offset, log_files.TXN_INDEX_SUFFIX)
        file = self.context.pool.get(path, create=True)
        files.write_fully(file, entry, self.txn_index.size_bytes - len(entry))

    def close_entries(self) -> None:
        """Write the last index entries and the end row of the append times, at a roll or a close.

        The time index's closing entry has the segment's largest timestamp (Source: KIP-33). The end
        row lets later readers prove that no row of append times was lost.
        """
        close_time_index(self.time_index, self.max_timestamp, self.max_timestamp_offset)
        self._write_index_entries()
        named = 0 if self.last_batch is None else fingerprint(self.last_batch)
        row = self.append_times.close(self.end_offset, named)
        if row:
            self._append_times_row(row)

    def sync(self) -> None:
        """Sync all files; append times first, so that every durable record has its time."""
        for suffix in log_files.SYNCED_SUFFIXES:
            self._sync(suffix)

    def sync_records(self) -> None:
        """Make append times and records durable, but not the indexes, which can be rebuilt."""
        self._sync(log_files.APPEND_TIME_SUFFIX)
        if self._has_new_name:
            self._has_new_name = False
            with typed_failures(self.context.directory, "sync"):
                self.context.env.files.sync_dir(self.context.directory)
        self._sync(log_files.LOG_SUFFIX)

    def _sync(self, suffix: str) -> None:
        if suffix == log_files.APPEND_TIME_SUFFIX and not self._times_written:
            return
        if suffix == log_files.TXN_INDEX_SUFFIX and not self.txn_index.size_bytes:
            return
        path = self.context.path(self.base_offset, suffix)
        sync_file(self.context.pool.get(path), path)

    def truncate_to(self, offset: int) -> None:
        """Drop every batch whose last offset is `offset` or more, in all files, durably.

        Append times and both indexes are truncated before the log. A crash between these steps and
        the truncation of the log leaves records without a row, whose append time is then unknown. A
        crash never leaves a row that could match later records. The index of aborted transactions
        is truncated last, because the log must not have an abort marker whose entry is missing.
        """
        position, end = first_reaching(self, offset)
        aborted_bytes = self.txn_index.size_bytes
        keep = self.append_times.truncate_to(end)
        if keep < self._times_written:
            self._cut(log_files.APPEND_TIME_SUFFIX, keep)
            self._times_written = keep
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.rewrite_indexes()
        self._cut(log_files.LOG_SUFFIX, position)
        if self.txn_index.truncate_to(offset) < aborted_bytes:
            self._cut(log_files.TXN_INDEX_SUFFIX, self.txn_index.size_bytes)
        self._reload_end(position)

    def _cut(self, suffix: str, size: int) -> None:
        path = self.context.path(self.base_offset, suffix)
        file = self.context.pool.get(path)
        file.truncate(size)
        sync_file(file, path)

    def _reload_end(self, position: int) -> None:
        self.size_bytes = position
        self.end_offset = self.base_offset
        self.last_batch = None
        self.scan_tail(position, check_crc=False)
        self._bytes_since_entry = 0
        if position == 0:
            self.created_ms = self.context.env.clock.now_ms()
            self._first_timestamp = None


def _remove_if_there(context: SegmentContext, path: str) -> None:
    if context.env.files.exists(path):
        context.env.files.remove(path)
