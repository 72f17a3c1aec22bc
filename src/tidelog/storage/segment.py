"""One segment of a partition, open for reading: the log file and the files beside it.

`ClosedSegment` is finished: its files are mapped, lazily. `TailSegment` is the last one, which may
still grow under another process: it is read by position, never mapped, up to the last whole batch
with a right checksum that was there when it was loaded. The writer's `ActiveSegment` (active.py)
is a `TailSegment` that also appends. All three answer the same questions (`Segment`).

Indexes are derived data: one that is missing or breaks its rules is built anew in memory from the
log, and what was wrong is reported; reading never writes.

Life cycle: load -> (read)*; views that were handed out stay valid after the segment is dropped.
Source: facts of docs/format.md; KIP-33 for the largest timestamp of a segment.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.errors import CorruptData
from tidelog.record.batch import HEADER_SIZE
from tidelog.record.views import Batch, walk
from tidelog.storage import files
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.handles import FilePool, MapCache, walk_file
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.txn_index import TxnIndex
from tidelog.types import NO_TIMESTAMP, TopicPartition

# The last segment is read by pieces of this size.
TAIL_CHUNK_BYTES: Final = 256 << 10
APPENDTIME_DAMAGED: Final = "append times unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContext:
    """What every segment of one partition shares.

    Attributes:
        env: Files, clock, randomness.
        directory: The partition's directory.
        topic_partition: Its name, for errors.
        topic_id: The topic's id, all zero where the directory has none.
        config: The topic's settings.
        pool: Open files, read-only for readers.
        maps: Maps of closed files.
        report: Called with one line about each damaged derived file that was made good.
        overlay: Final name -> staged name, for files that a commit record has made visible.
    """

    env: Env
    directory: str
    topic_partition: TopicPartition
    topic_id: uuid.UUID
    config: TopicConfig
    pool: FilePool
    maps: MapCache
    report: Callable[[str], None]
    overlay: Mapping[str, str] = field(default_factory=dict)

    def path(self, base_offset: int, suffix: str) -> str:
        """Path of one of a segment's files."""
        name = files.file_name(base_offset, suffix)
        return f"{self.directory}/{self.overlay.get(name, name)}"


class Segment(Protocol):
    """What lookups and reads ask of a segment, whatever state it is in."""

    @property
    def base_offset(self) -> int:
        """First offset that the segment may hold, inclusive; also its name."""
        ...

    @property
    def end_offset(self) -> int:
        """Offset behind the segment: the next one's base, or the log end."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of whole batches in the log file."""
        ...

    @property
    def log_path(self) -> str:
        """Path of the log file."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether it is the last segment, which may grow and must not be mapped."""
        ...

    @property
    def offset_index(self) -> OffsetIndex:
        """Sparse index from offsets to positions."""
        ...

    @property
    def time_index(self) -> TimeIndex:
        """Sparse index from timestamps to offsets."""
        ...

    @property
    def append_times(self) -> AppendTimes:
        """When its records were appended, as far as it is known."""
        ...

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions whose markers lie in it."""
        ...

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp in ms, -1 where no record has one."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the log file."""
        ...

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """The batches in bytes [start, end), read by position and never mapped."""
        ...

    def mtime_ms(self) -> int:
        """Modification time of the log file, for segments without timestamps."""
        ...


class _Common:
    """Paths, and the parts that both kinds of segment load in the same way."""

    def __init__(self, context: SegmentContext, base_offset: int) -> None:
        self.context = context
        self.base_offset = base_offset
        self._txn_index: TxnIndex | None = None

    @property
    def log_path(self) -> str:
        """Path of the log file."""
        return self.context.path(self.base_offset, files.LOG_SUFFIX)

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """The batches in bytes [start, end), read by position and never mapped."""
        file = self.context.pool.get(self.log_path)
        return walk_file(file, self.log_path, start, end, chunk_bytes=TAIL_CHUNK_BYTES)

    def mtime_ms(self) -> int:
        """Modification time of the log file in ms."""
        return self.context.env.files.stat(self.log_path).mtime_ms

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions; the file exists only where there are some."""
        if self._txn_index is None:
            data = read_optional(self.context, self.base_offset, files.TXN_INDEX_SUFFIX)
            path = self.context.path(self.base_offset, files.TXN_INDEX_SUFFIX)
            try:
                self._txn_index = TxnIndex.decode(data or b"", self.base_offset)
            except CorruptData as error:
                raise error.located(path) from error
        return self._txn_index

    def read_append_times(self) -> AppendTimes:
        """The `.appendtime` file's valid part; damage is reported, not raised."""
        context = self.context
        data = read_optional(context, self.base_offset, files.APPEND_TIME_SUFFIX)
        if data is None:
            return AppendTimes(self.base_offset, context.topic_id)
        times, damage = AppendTimes.decode(data, self.base_offset, context.topic_id, open_end=True)
        if damage:
            path = context.path(self.base_offset, files.APPEND_TIME_SUFFIX)
            context.report(f"{path}: {damage}; {APPENDTIME_DAMAGED} from there on")
        return times


def read_optional(context: SegmentContext, base_offset: int, suffix: str) -> bytes | None:
    """A small file's bytes, None where it does not exist."""
    try:
        return files.read_file(context.env.files, context.path(base_offset, suffix))
    except FileNotFoundError:
        return None


class ClosedSegment(_Common):
    """A finished segment; everything is mapped or read at first use.

    Safe for several threads that read: what is loaded twice by a race is the same.
    """

    is_active: Final = False

    def __init__(
        self,
        context: SegmentContext,
        base_offset: int,
        end_offset: int,
        *,
        limit_times: Callable[["ClosedSegment", AppendTimes], None] | None = None,
    ) -> None:
        super().__init__(context, base_offset)
        self.end_offset = end_offset
        self._limit_times = limit_times
        self._size: int | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._append_times: AppendTimes | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the log file; a torn tail of a foreign directory counts, reads stop before it."""
        if self._size is None:
            self._size = self.context.env.files.stat(self.log_path).size
        return self._size

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the log file, a view of the map."""
        return self.context.maps.get(self.log_path)[start:end]

    @property
    def offset_index(self) -> OffsetIndex:
        """The index file, or one built in memory where it is missing or corrupt."""
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The index file, or one built in memory where it is missing or corrupt."""
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def _load_indexes(self) -> None:
        context = self.context
        loaded = load_indexes(context, self.base_offset, self.size_bytes, mapped=True)
        if loaded is None:
            loaded = self.rebuild_indexes()
        elif loaded[1].entry_count == 0 and self.size_bytes > 0:
            # An empty time index says "no timestamps", or that a foreign crash lost it.
            loaded = self._checked_for_timestamps(loaded)
        self._offset_index, self._time_index = loaded

    def _checked_for_timestamps(
        self, loaded: tuple[OffsetIndex, TimeIndex]
    ) -> tuple[OffsetIndex, TimeIndex]:
        for batch in walk(self.view(0, self.size_bytes)):
            if batch.max_timestamp != NO_TIMESTAMP:
                self.context.report(f"{self.log_path}: its time index is empty; rebuilt in memory")
                return self.rebuild_indexes()
        return loaded

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes from the log's batch headers, by Kafka's recovery rule."""
        builder = IndexBuilder(self.context.config, self.base_offset)
        try:
            position = 0
            for batch in walk(self.view(0, self.size_bytes)):
                builder.add(batch, position)
                position += batch.size_bytes
        except CorruptData as error:
            self.context.report(f"{error.located(self.log_path)}; indexed up to there")
        return builder.finish()

    def replace_indexes(self, indexes: tuple[OffsetIndex, TimeIndex]) -> None:
        """Use indexes that were found to be right instead of the files."""
        self._offset_index, self._time_index = indexes

    @property
    def append_times(self) -> AppendTimes:
        """Append times as far as they are sure."""
        if self._append_times is None:
            times = self.read_append_times()
            if self._limit_times is not None:
                self._limit_times(self, times)
            self._append_times = times
        return self._append_times

    def set_append_times(self, times: AppendTimes) -> None:
        """Use times that are known to be right instead of the file."""
        self._append_times = times

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp: that of the last time index entry."""
        return self.time_index.last_entry[0]


class IndexBuilder:
    """Both indexes from batch headers: an entry where more than the interval lies behind the last.

    The distance counts from the last indexed *position*, as in Kafka's recovery; an index that
    was built by appends may differ, both are legal.
    """

    def __init__(self, config: TopicConfig, base_offset: int) -> None:
        self._interval_bytes = config.index_interval_bytes
        limit = config.segment_index_bytes
        self.offset_index = OffsetIndex(base_offset, size_limit=limit)
        self.time_index = TimeIndex(base_offset, size_limit=limit)
        self._last_position = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    def add(self, batch: Batch, position: int) -> None:
        """Take the next batch, which lies at `position`."""
        last_offset = batch.last_offset
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = last_offset
        if position - self._last_position > self._interval_bytes:
            if not self.offset_index.is_full:
                self.offset_index.append(last_offset, position)
            if not self.time_index.is_full:
                self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self._last_position = position

    def finish(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, the time index with its closing entry."""
        close_time_index(self.time_index, self.max_timestamp, self.max_timestamp_offset)
        return self.offset_index, self.time_index


def close_time_index(index: TimeIndex, timestamp: int, offset: int) -> None:
    """The closing entry, in the slot that is kept for it; a log closed twice may have used it."""
    if timestamp > index.last_entry[0] and index.entry_count < index.entry_limit:
        index.maybe_append(timestamp, offset, ignore_full=True)


def load_indexes(
    context: SegmentContext, base_offset: int, log_size: int, *, mapped: bool
) -> tuple[OffsetIndex, TimeIndex] | None:
    """Both index files, None where one is missing or breaks a rule (which is reported)."""
    limit = context.config.segment_index_bytes
    loaded = []
    for suffix in (files.OFFSET_INDEX_SUFFIX, files.TIME_INDEX_SUFFIX):
        path = context.path(base_offset, suffix)
        try:
            data = context.maps.get(path) if mapped else files.read_file(context.env.files, path)
        except FileNotFoundError:
            context.report(f"{path}: missing; rebuilt in memory")
            return None
        loaded.append((path, data))
    (path, data), (time_path, time_data) = loaded
    offset_index = OffsetIndex(base_offset, data=data, size_limit=limit)
    time_index = TimeIndex(base_offset, data=time_data, size_limit=limit)
    try:
        # A zero tail is what Kafka preallocates; in a finished segment it betrays a hard stop.
        offset_index.check(log_size, allow_tail=not mapped)
        path = time_path
        time_index.check(allow_tail=not mapped)
    except CorruptData as error:
        context.report(f"{error.located(path)}; rebuilt in memory")
        return None
    return offset_index, time_index


class TailSegment(_Common):
    """The last segment: read by position, up to the last whole, valid batch at load time."""

    is_active: Final = True

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

    def scan_tail(self, file_size: int, *, check_crc: bool) -> None:
        """Set size, end offset and largest timestamp from the last indexed batch to the end.

        Stops silently at the first batch that is incomplete or invalid: another process may be
        writing it.
        """
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last_entry
        _, position = self.offset_index.lookup(2**63 - 1)
        file = self.context.pool.get(self.log_path)
        self.size_bytes = position
        try:
            for start, batch in walk_file(file, self.log_path, position, file_size):
                if check_crc and not batch.is_valid():
                    break
                self._take(batch, start)
        except CorruptData as error:
            self.context.report(f"{error}; read up to there")

    def _take(self, batch: Batch, position: int) -> None:
        self.size_bytes = position + batch.size_bytes
        self.end_offset = batch.next_offset
        self.last_batch = batch
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = batch.last_offset

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, -1 where no record has one."""
        return self.max_timestamp

    @property
    def append_times(self) -> AppendTimes:
        """Append times as far as they are sure."""
        if self._append_times is None:
            self._append_times = self.read_append_times()
        return self._append_times

    def set_append_times(self, times: AppendTimes) -> None:
        """Use times that were checked against the log."""
        self._append_times = times

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the log file, read now."""
        file = self.context.pool.get(self.log_path)
        return memoryview(file.pread(min(end, self.size_bytes) - start, start))


def load_tail(context: SegmentContext, base_offset: int, *, check_crc: bool = True) -> TailSegment:
    """The last segment as it is on disk now; its indexes are checked, else rebuilt in memory."""
    segment = TailSegment(context, base_offset, (OffsetIndex(base_offset), TimeIndex(base_offset)))
    fill_tail(segment, check_crc=check_crc)
    return segment


def fill_tail(segment: TailSegment, *, check_crc: bool) -> None:
    """Load indexes and end of a last segment; a growing index is used as far as it is sure."""
    context, base_offset = segment.context, segment.base_offset
    log_size = context.env.files.stat(segment.log_path).size
    indexes = load_indexes(context, base_offset, log_size, mapped=False)
    if indexes is None or not _last_entry_fits(segment, indexes[0]):
        indexes = rebuilt_tail_indexes(segment, log_size)
    segment.offset_index, segment.time_index = indexes
    segment.scan_tail(log_size, check_crc=check_crc)


def _last_entry_fits(segment: TailSegment, index: OffsetIndex) -> bool:
    """Whether the last index entry leads to the batch that it names."""
    if index.entry_count == 0:
        return True
    last_offset, position = index.entry(index.entry_count - 1)
    file = segment.context.pool.get(segment.log_path)
    found = batch_at(memoryview(file.pread(HEADER_SIZE, position)))
    if found == last_offset:
        return True
    segment.context.report(
        f"{segment.log_path}: the offset index names offset {last_offset} at position {position},"
        f" there is {found}; rebuilt in memory"
    )
    return False


def batch_at(header: memoryview) -> int | None:
    """Last offset of the magic-2 batch (or legacy message) whose header this is, else None."""
    if len(header) < 17:
        return None
    offset = int.from_bytes(header[:8], "big", signed=True)
    if header[16] < 2:
        return offset
    if len(header) < HEADER_SIZE:
        return None
    return offset + int.from_bytes(header[23:27], "big", signed=True)


def rebuilt_tail_indexes(segment: TailSegment, log_size: int) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes of a last segment from its log file, without the closing time entry."""
    builder = IndexBuilder(segment.context.config, segment.base_offset)
    file = segment.context.pool.get(segment.log_path)
    try:
        for position, batch in walk_file(file, segment.log_path, 0, log_size):
            builder.add(batch, position)
    except CorruptData as error:
        segment.context.report(f"{error}; indexed up to there")
    return builder.offset_index, builder.time_index


def iterate_batches(segment: Segment, start: int, end: int) -> Iterator[tuple[int, Batch]]:
    """The batches in bytes [start, end) of a segment, with their positions; errors are located.

    A finished segment is walked through its map, the last one is read piece by piece.
    """
    if segment.is_active:
        yield from segment.walk_file(start, end)
        return
    position = start
    try:
        for batch in walk(segment.view(start, end)):
            yield position, batch
            position += batch.size_bytes
    except CorruptData as error:
        raise error.located(segment.log_path, start) from error
