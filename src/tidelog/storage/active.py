"""The segment that takes appends: log, both indexes, the append times, all written through.

Order of an append: the append-time row (where time moved), the log bytes, the index entries. A
crash may keep any part of what was not synced; recovery puts the files in accord again. The index
files are not preallocated: what is in the file is what is valid.

Over 400 lines because one class keeps the order of writes.

Life cycle: create or load -> append* -> seal (at a roll) or close. Not safe for two threads.
Source: KIP-33 for the time index; facts of docs/format.md.
"""

from collections.abc import Sequence

from tidelog.record.batch import RecordBatch
from tidelog.record.views import Batch
from tidelog.storage import files
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.handles import PooledFile, sync_file, typed_failures
from tidelog.storage.index_files import close_time_index, index_limit_bytes
from tidelog.storage.log_end import NOTHING_RECORDED, RecordedEnd
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.proof import position_floor
from tidelog.storage.segment import Segment, SegmentContext, iterate_batches
from tidelog.storage.tail import TailSegment, judge_tail
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.trust import fingerprint, fingerprint_of
from tidelog.storage.txn_index import AbortedTxn
from tidelog.types import INT32_MAX, NO_TIMESTAMP, UNKNOWN_MS, Buffer


class ActiveSegment(TailSegment):
    """The last segment of a log that is open for writing."""

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
        self._written: tuple[int, Batch, int]  # size, last batch, end
        self._offset_index_written = 0
        self._time_index_written = 0
        self._must_rewrite = False
        self._times_written = 0
        self._has_new_name = False  # whether the times' file was made behind the directory's sync
        self._interval_bytes = context.config.index_interval_bytes
        self._log_file = PooledFile(context.pool, self.log_path)
        self._times_file = self._made(files.APPEND_TIME_SUFFIX)
        self._offset_index_file = self._made(files.OFFSET_INDEX_SUFFIX)
        self._time_index_file = self._made(files.TIME_INDEX_SUFFIX)

    def _made(self, suffix: str) -> PooledFile:
        """One of its files, made where it is missing."""
        path = self.context.path(self.base_offset, suffix)
        return PooledFile(self.context.pool, path, create=True)

    @classmethod
    def create(cls, context: SegmentContext, base_offset: int) -> "ActiveSegment":
        """A new, empty segment; stray files of its name are replaced. Names are not yet synced."""
        limit = index_limit_bytes(context.config)
        indexes = (
            OffsetIndex(base_offset, size_limit=limit),
            TimeIndex(base_offset, size_limit=limit),
        )
        segment = cls(context, base_offset, indexes)
        for suffix in files.SEGMENT_SUFFIXES:
            segment.forget(suffix)
            _remove_if_there(context, context.path(base_offset, suffix))
        for suffix in (
            files.LOG_SUFFIX,
            files.OFFSET_INDEX_SUFFIX,
            files.TIME_INDEX_SUFFIX,
        ):
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
        """The last segment after a clean stop or a recovery; index files are put right.

        Bytes behind the last whole batch are cut off: recovery has looked at them already, or a
        clean stop left none. Where something proves that they are damage (`settle_end`), or that
        the partition takes no appends, no file is changed.

        Args:
            context: The partition.
            base_offset: The segment's.
            recorded: What is recorded of the log's end.
            is_refused: Whether the partition takes no appends anyhow.
        """
        segment, is_damaged = judge_tail(lambda: cls.empty(context, base_offset), recorded)
        is_refused |= is_damaged
        if is_refused:
            return segment
        log = context.pool.get(segment.log_path)
        if log.size() > segment.size_bytes:
            lost = log.size() - segment.size_bytes
            context.report(
                f"{segment.log_path}, position {segment.size_bytes}: no whole batch; cut {lost}"
                " bytes"
            )
            log.truncate(segment.size_bytes)
            sync_file(log, segment.log_path)
        segment.rewrite_indexes()
        return segment

    def forget(self, suffix: str) -> None:
        """Close handle and map of one of its files."""
        path = self.context.path(self.base_offset, suffix)
        self.context.pool.forget(path)
        self.context.maps.forget(path)

    def distrust_indexes(self, problem: str) -> None:
        """As any last segment; the files follow with the next append, by the thread that writes."""
        super().distrust_indexes(problem)
        self._must_rewrite = True

    def rewrite_indexes(self) -> None:
        """Make the index files equal to the indexes in memory."""
        self._must_rewrite = False
        self._offset_index_written = self._put(files.OFFSET_INDEX_SUFFIX, self.offset_index.encoded)
        self._time_index_written = self._put(files.TIME_INDEX_SUFFIX, self.time_index.encoded)

    def _put(self, suffix: str, content: Buffer) -> int:
        file = self.context.pool.get(self.context.path(self.base_offset, suffix), create=True)
        size = file.size()
        if size == len(content) and file.pread(size, 0) == content:
            return size
        file.truncate(0)
        files.write_fully(file, content, 0)
        return len(content)

    def set_append_times(self, times: AppendTimes) -> None:
        """As of any last segment; what it is given holds for all that it appends."""
        times.granularity_ms = self.context.config.tidelog_append_time_granularity_ms
        super().set_append_times(times)

    def adopt_append_times(self, times: AppendTimes, *, file_matches: bool) -> None:
        """Use these times from now on; the file is replaced where it says something else."""
        self.set_append_times(times)
        encoded = times.encode()
        path = self.context.path(self.base_offset, files.APPEND_TIME_SUFFIX)
        if not times.row_count and not self.context.env.files.exists(path):
            self._times_written = 0  # the file comes into being with its first row
            return
        self._times_written = len(encoded)
        if file_matches:
            return
        self.forget(files.APPEND_TIME_SUFFIX)
        files.write_atomically(self.context.env.files, path, encoded)

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, by which the segment's age is measured, else -1."""
        if self._first_timestamp is None and self.size_bytes:
            # A larger batch is none of these bytes' and no sign of damage.
            first = next(self.walk_file(0, min(self.size_bytes, 1 << 12)), None)
            if first is None:
                first = next(iterate_batches(self, 0, self.size_bytes))
            self._first_timestamp = first[1].max_timestamp
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    @property
    def first_append_ms(self) -> int:
        """When its first batch was appended in ms, -1 where that is not known."""
        rows = self.append_times.rows()
        return rows[0].append_ms if rows else UNKNOWN_MS

    def append(self, batches: Sequence[Batch], buffers: Sequence[Buffer], append_ms: int) -> None:
        """Write batches whose offsets, epochs and checksums are final; see `acknowledge`.

        Args:
            batches: Views of the batches, in order.
            buffers: The same bytes, in as many pieces as they come in.
            append_ms: Append time of them all, -1 where the append clock is off.

        Raises:
            OSError: The caller takes the partition offline; nothing of it counts as appended.
        """
        first = batches[0]
        self._note_time(first, append_ms)
        position = self.size_bytes
        if len(buffers) == 1:
            self._log_file.write(buffers[0], position)
        else:
            files.writev_fully(self._log_file.get(), buffers, position)
        if self._first_timestamp is None and position == 0:
            self._first_timestamp = first.max_timestamp
        for batch in batches:
            self._index(batch, position)
            position += batch.size_bytes
        self._write_index_entries()
        last = batches[-1]
        self._written = (position, last, last.next_offset)

    def has_room(self, batch: RecordBatch, size_limit: int, span_ms: int) -> bool:
        """Whether it is plain that `roll.should_roll` lets the segment take a batch.

        Args:
            batch: With its final offset.
            size_limit: Of the log file, in bytes.
            span_ms: How long it takes appends, the jitter counted in.
        """
        first_ms, offsets, times = self._first_timestamp, self.offset_index, self.time_index
        return (
            first_ms is not None
            and first_ms >= 0
            and self.size_bytes + batch.size_bytes <= size_limit
            and batch.max_timestamp - first_ms <= span_ms
            and batch.base_offset + batch.last_offset_delta - self.base_offset <= INT32_MAX
            and offsets.size_bytes < offsets.full_bytes
            and times.size_bytes < times.full_bytes
        )

    def append_one(self, batch: RecordBatch, data: Buffer, append_ms: int) -> None:
        """`append` of one batch in one buffer, which is what nearly all appends are."""
        if append_ms == UNKNOWN_MS or not self.append_times.goes_on_at(append_ms):
            self._note_time(batch, append_ms)
        self._log_file.write(data, self.size_bytes)
        self.end_one(batch)

    def begin_one(self, batch: RecordBatch, append_ms: int) -> None:
        """What of `append_one` comes before the log's bytes; then `write_one` and `end_one`.

        Nothing else is done to the segment in between.
        """
        if append_ms == UNKNOWN_MS or not self.append_times.goes_on_at(append_ms):
            self._note_time(batch, append_ms)

    def write_one(self, data: Buffer) -> None:
        """The log's bytes."""
        self._log_file.write(data, self.size_bytes)

    def end_one(self, batch: RecordBatch) -> None:
        """What comes after them; see `acknowledge`."""
        position = self.size_bytes
        if position == 0 and self._first_timestamp is None:
            self._first_timestamp = batch.max_timestamp
        if self._index(batch, position) or self._must_rewrite:
            self._write_index_entries()
        end_offset = batch.base_offset + batch.last_offset_delta + 1
        self._written = (position + batch.size_bytes, batch, end_offset)

    def acknowledge(self) -> None:
        """Show what `append` wrote: nothing of an append counts until all its writes are done.

        No call lies between the stores: another thread that reads sees all of them or none.
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
            self._has_new_name = True  # behind the write, which has made the file
        self._times_written += len(row)

    def _index(self, batch: Batch, position: int) -> bool:
        """Kafka's rule: an entry where more than the interval was written since the last one.

        Whether there may be something to write.
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
        """Note an aborted transaction; its file comes into being with the first one."""
        entry = self.txn_index.append(aborted)
        path = self.context.path(self.base_offset, files.TXN_INDEX_SUFFIX)
        file = self.context.pool.get(path, create=True)
        files.write_fully(file, entry, self.txn_index.size_bytes - len(entry))

    def close_entries(self) -> None:
        """The entries that end a segment, or a run of the program.

        The closing time index entry holds the segment's largest timestamp (Source: KIP-33); the end
        row of the append times shows later that no row was lost.
        """
        close_time_index(self.time_index, self.max_timestamp, self.max_timestamp_offset)
        self._write_index_entries()
        named = 0 if self.last_batch is None else fingerprint(self.last_batch)
        row = self.append_times.close(self.end_offset, named)
        if row:
            self._append_times_row(row)

    def sync(self) -> None:
        """Make the segment durable: append times first, so that no record is without its time."""
        for suffix in (
            files.APPEND_TIME_SUFFIX,
            files.LOG_SUFFIX,
            files.OFFSET_INDEX_SUFFIX,
            files.TIME_INDEX_SUFFIX,
            files.TXN_INDEX_SUFFIX,
        ):
            self._sync(suffix)

    def sync_records(self) -> None:
        """Make append times and records durable; indexes can be rebuilt."""
        self._sync(files.APPEND_TIME_SUFFIX)
        if self._has_new_name:
            self._has_new_name = False
            with typed_failures(self.context.directory, "sync"):
                self.context.env.files.sync_dir(self.context.directory)
        self._sync(files.LOG_SUFFIX)

    def _sync(self, suffix: str) -> None:
        if suffix == files.APPEND_TIME_SUFFIX and not self._times_written:
            return
        if suffix == files.TXN_INDEX_SUFFIX and not self.txn_index.size_bytes:
            return
        path = self.context.path(self.base_offset, suffix)
        sync_file(self.context.pool.get(path), path)

    def truncate_to(self, offset: int) -> None:
        """Drop every batch whose last offset is `offset` or more, in all files, durably.

        The sidecars are cut first: a crash in between leaves records without a row, whose time is
        then unknown, never a row that later records could take for theirs.
        """
        position, end = first_reaching(self, offset)
        aborted_bytes = self.txn_index.size_bytes
        keep = self.append_times.truncate_to(end)
        if keep < self._times_written:
            self._cut(files.APPEND_TIME_SUFFIX, keep)
            self._times_written = keep
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if self.txn_index.truncate_to(offset) < aborted_bytes:
            self._cut(files.TXN_INDEX_SUFFIX, self.txn_index.size_bytes)
        self.rewrite_indexes()
        self._cut(files.LOG_SUFFIX, position)
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


def first_reaching(segment: Segment, offset: int) -> tuple[int, int]:
    """Position and base offset of the first batch whose last offset is `offset` or more.

    Where there is none, the segment's size and end offset.
    """
    start = position_floor(segment, offset)
    for position, batch in iterate_batches(segment, start, segment.size_bytes):
        if batch.last_offset >= offset:
            return position, batch.base_offset
    return segment.size_bytes, segment.end_offset


def _remove_if_there(context: SegmentContext, path: str) -> None:
    if context.env.files.exists(path):
        context.env.files.remove(path)
