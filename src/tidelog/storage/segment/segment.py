"""Segments of all kinds as readers see them, and the context that a partition's segments share.

`Segment` is the interface of every segment. `ClosedSegment` is a finished segment, whose files are
mapped or read at first use. `RemoteSegment` is a finished segment whose files are objects in a
store. `TailSegment` is the last segment, to which another process may append. A `TailSegment` is
read by position and never mapped. The writer's `ActiveSegment` is a `TailSegment` that also
appends. Most callers use only the methods of `Segment`.

`SegmentContext` is the state shared by the segments of one partition. `iterate_batches` walks the
batches of a segment in order. This module does not search for offsets or times: see `slices` and
`time_search`.

Life cycle: load -> (read)*; views that were returned stay valid after the segment is dropped.
Source: docs/format.md; KIP-33 for the largest timestamp of a segment.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from threading import Lock
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Final,
    NamedTuple,
    Protocol,
    TypeVar,
)

from tidelog.config import TopicConfig
from tidelog.env import Env, File, FileStat
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    CorruptFile,
    DamagedLog,
    LostOffsets,
    MissingFile,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.coding import crc32c
from tidelog.record.offset_order import cut_problem, in_order, segment_limit
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import FileSum, ZoneMap
from tidelog.storage.open_files import FilePool, MapCache, walk_file
from tidelog.storage.segment.log_end import NOTHING_RECORDED, RecordedEnd
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX, ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.segment.retention import SegmentTimes
    from tidelog.storage.segment.roll import SegmentNote

# Size in bytes of the chunks in which `Segment.walk_file` reads a log file.
WALK_CHUNK_BYTES: Final = 256 << 10

_REMOVED_SUFFIXES: Final = (log_files.REMOVED_SUFFIX, log_files.DELETED_SUFFIX)
APPENDTIME_DAMAGED: Final = "append times unknown"

# Maximum size in bytes, after decompression, of one append that an event loop verifies or of one
# batch that it opens. Decompressing this size with gzip takes some 20 ms.
LOOP_BYTES: Final = 4 << 20

# Maximum number of records that an event loop processes one by one in Python.
LOOP_RECORDS: Final = 2000


class ColdRead(Exception):
    """Raised if a read that must not block would wait for a disk or a store, or take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContext:
    """Shared state of the segments of one partition.

    Attributes:
        env: Files, clock, randomness.
        directory: The partition's directory.
        topic_partition: Topic and partition, for errors.
        topic_id: The topic's id, all zero if the directory has none.
        config: The topic's settings.
        pool: Open files, read-only for readers.
        maps: Maps of files of finished segments.
        report: Called with one line about each problem that does not prevent reading, such as a
            damaged index that was rebuilt.
        overlay: Current names of files, by final name. The name under which a file can be read now
            may differ from its final name in three cases. For a file that a commit record has made
            visible, the current name is its staged name. For a file that the commit has removed,
            the current name ends with `.removed`. For a file that was renamed to its `.deleted`
            name, the current name is this name.
        recorded_end: Function for readers; returns the end of the log that the directory's
            checkpoints record. If its argument is true, the function reads the checkpoints again.
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
    recorded_end: Callable[[bool], RecordedEnd] = lambda _fresh: NOTHING_RECORDED

    def path(self, base_offset: int, suffix: str) -> str:
        """Return the path of one of a segment's files."""
        name = log_files.file_name(base_offset, suffix)
        staged = self.overlay.get(name)
        is_removed = staged is not None and staged.endswith(_REMOVED_SUFFIXES)
        if is_removed or (staged and self.env.files.exists(f"{self.directory}/{staged}")):
            return f"{self.directory}/{staged}"
        return f"{self.directory}/{name}"  # the writer has renamed the staged file by now

    def forget_files(self) -> None:
        """Drop handles and maps of the partition's files, whose names may now mean other files."""
        self.pool.forget_below(self.directory)
        self.maps.forget_below(self.directory)


def _ignore(_line: str) -> None:
    """Ignore a report; for the context of a task whose caller reports damage itself."""


@contextmanager
def open_context(  # noqa: PLR0913 - a partition's identity
    env: Env,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: uuid.UUID,
    config: TopicConfig,
    *,
    write: bool = False,
    overlay: Mapping[str, str] | None = None,
) -> Iterator[SegmentContext]:
    """Create a context for one task; close its files when the task ends, and drop its reports."""
    pool, maps = FilePool(env.files, write=write), MapCache(env.files)
    try:
        yield SegmentContext(
            env=env,
            directory=directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            config=config,
            pool=pool,
            maps=maps,
            report=_ignore,
            overlay=overlay or {},
        )
    finally:
        pool.close()
        maps.clear()


class _HasLogPath(Protocol):
    @property
    def log_path(self) -> str: ...


_Opened = TypeVar("_Opened")


class LastBatches(NamedTuple):
    """End of a segment's batches with offsets in order, found by a scan from the last index entry.

    Attributes:
        next_offset: Offset after the last batch with offsets in order.
        position: Position after that batch.
        error: Damage after this batch that hides offsets of the segment; None if there is no
            damage.
    """

    next_offset: int
    position: int
    error: CorruptData | None


# Value of `Segment._times_stamp` if the append times were not loaded from a file.
_NOT_LOADED: Final = "given"


class Segment(ABC):
    """Interface for lookups and reads of a log's segment in any state.

    Attributes:
        context: Shared state of the partition's segments.
        base_offset: First offset that the segment may contain, inclusive. The names of the
            segment's files contain this offset.
        end_offset: End of the segment's offsets, exclusive: the next segment's base offset or the
            log end.
        is_active: Whether this is the log's last segment, which may grow and must not be mapped.
        takes_appends: True if this process writes the segment. If so, no other process truncates
            the segment's files.
        is_tiered: Whether only the tier has the segment. A tiered segment is finished and never
            changes.
        lost_at_end: Lost offsets between the tier's last segment and the first local file, which
            this segment's offsets include; None for all other segments.
        last_batch: The last batch, if it is in memory.
        limit_times: Function that marks as unknown the append times that are not proven; None if
            all append times are proven.
        find_aborted: Function that completes the segment's index of aborted transactions from the
            batches; raises CorruptData. None if the index in the file is complete.
        zones_lock: Held while the zone map is written, because a roll and a copy to the tier may
            write the zone map at the same time.
    """

    is_active: ClassVar[bool]
    takes_appends: ClassVar[bool] = False
    is_tiered: ClassVar[bool] = False
    lost_at_end: LostOffsets | None = None
    last_batch: Batch | None = None

    def __init__(self, context: SegmentContext, base_offset: int, end_offset: int) -> None:
        self.context = context
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.limit_times: Callable[[Segment, AppendTimes], None] | None = None
        self.find_aborted: Callable[[Segment, TxnIndex], TxnIndex] | None = None
        self.zones_lock = Lock()
        self._log_path = context.path(base_offset, log_files.LOG_SUFFIX)
        self._txn_index: TxnIndex | None = None
        self._append_times: AppendTimes | None = None
        # Status that the append-time file had when the append times were loaded.
        self._times_stamp: FileStat | str | None = _NOT_LOADED

    # -- size ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of the whole batches in the log file; for a finished segment, size of the file."""

    @property
    @abstractmethod
    def has_known_end(self) -> bool:
        """Whether the segment is known to reach `end_offset`; if so, reads must reach it, too."""

    @property
    @abstractmethod
    def damaged(self) -> DamagedLog | None:
        """Proven damage of the last segment, at the end of its sound part; None without damage."""

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Whether it is known that no offset at the segment's end is lost (`segment.gaps`)."""

    # -- the log file --------------------------------------------------------------------------

    @property
    def log_path(self) -> str:
        """Path of the log file. The path changes when a staged file gets its final name."""
        overlay = self.context.overlay
        return (
            self.context.path(self.base_offset, log_files.LOG_SUFFIX) if overlay else self._log_path
        )

    @property
    @abstractmethod
    def is_mapped(self) -> bool:
        """Whether `view` returns mapped bytes; otherwise `view` reads the requested bytes."""

    @abstractmethod
    def view(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end) of the log file."""

    @abstractmethod
    def whole(self) -> memoryview:
        """Return bytes [0, `size_bytes`) of the log file."""

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches in bytes [start, end), read by position and never mapped."""
        file = self.open_file()
        return walk_file(file, self.log_path, start, end, chunk_bytes=WALK_CHUNK_BYTES)

    def open_file(self) -> File:
        """Open the log file for large reads by position; the file is closed after its last use."""
        return open_log(self, self.context.pool.get)

    def mtime_ms(self) -> int:
        """Return the modification time of the log file in ms."""
        return self.context.env.files.stat(self.log_path).mtime_ms

    def stat(self) -> FileStat:
        """Return the status of the log file; of a finished segment, the status at its first use."""
        return self.context.env.files.stat(self.log_path)

    @abstractmethod
    def forget_stale_files(self) -> None:
        """Drop handles and maps of files whose names may now refer to other files."""

    @abstractmethod
    def unload(self) -> None:
        """Drop maps and indexes that can be loaded again."""

    # -- indexes and times ---------------------------------------------------------------------

    @property
    @abstractmethod
    def has_indexes(self) -> bool:
        """Whether both indexes are in memory or mapped."""

    @property
    @abstractmethod
    def offset_index(self) -> OffsetIndex:
        """Sparse index from offsets to positions."""

    @property
    @abstractmethod
    def time_index(self) -> TimeIndex:
        """Sparse index from timestamps to offsets."""

    @abstractmethod
    def distrust_indexes(self, problem: str) -> None:
        """Report how an index differs from the log, and rebuild both indexes."""

    @property
    @abstractmethod
    def has_txn_index(self) -> bool:
        """Whether `txn_index` is available without reading all batches."""

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions whose markers are in the segment. If none, there is no file."""
        if self._txn_index is None:
            self._txn_index = self.read_txn_index()
        return self._txn_index

    def read_txn_index(self) -> TxnIndex:
        """Read the `.txnindex` file, empty if there is none; raises CorruptData with its path."""
        # The file has at most one entry for each batch, and an entry is smaller than a batch.
        limit = max(self.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
        suffix = log_files.TXN_INDEX_SUFFIX
        data = read_optional(self.context, self.base_offset, suffix, limit=limit)
        path = self.context.path(self.base_offset, suffix)
        try:
            return TxnIndex.decode(data or b"", self.base_offset)
        except CorruptData as error:
            raise error.located(path) from error

    @property
    @abstractmethod
    def largest_timestamp(self) -> int:
        """Largest record timestamp in ms, -1 if no record has one.

        If damage may hide a record, the result is the largest possible value, so that a search
        reaches the damage.
        """

    @abstractmethod
    def largest_record(self) -> tuple[int, int]:
        """Return the largest timestamp, and the last offset of the first batch that has it.

        (-1, base offset) if no record has a timestamp. For a damaged segment, only the sound part
        counts. Otherwise retention would never delete the segment.
        """

    # -- facts stored in the tier --------------------------------------------------------------

    @property
    def note(self) -> "SegmentNote | None":
        """The tier's note on the segment's roll; None for a local segment (see `NoteKeeper`)."""
        return None

    def noted_times(self, _now_ms: int) -> "SegmentTimes | None":
        """Return the times that the tier stored with the copy; None for a local segment."""
        return None

    @property
    def knows_all_append_times(self) -> bool:
        """Whether the segment is tiered and its manifest row shows all append times as known."""
        return False

    @property
    def append_span(self) -> tuple[int, int] | None:
        """First and last append time in ms, if the tier stored both times; else None."""
        return None

    # -- append times --------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_append_times(self) -> bool:
        """Whether `append_times` is available without reading a file."""

    @property
    def append_times(self) -> AppendTimes:
        """Append times of the segment's records; a time that is not proven is marked as unknown."""
        times = self._append_times
        return self._load_append_times() if times is None else times

    def _load_append_times(self) -> AppendTimes:
        stamp = self._stamp_of(log_files.APPEND_TIME_SUFFIX)
        times = self.read_append_times()
        if self.limit_times is not None:
            self.limit_times(self, times)
        self._append_times, self._times_stamp = times, stamp
        return times

    def _stamp_of(self, suffix: str) -> FileStat | None:
        """Return the status of a file beside the log; None if there is none."""
        try:
            return self.context.env.files.stat(self.context.path(self.base_offset, suffix))
        except FileNotFoundError:
            return None

    def _forget_changed_times(self) -> None:
        """Drop loaded append times if their file was created, replaced or removed later."""
        if self._times_stamp == _NOT_LOADED:
            return
        if self._times_stamp != self._stamp_of(log_files.APPEND_TIME_SUFFIX):
            self._append_times, self._times_stamp = None, _NOT_LOADED

    def set_append_times(self, times: AppendTimes) -> None:
        """Use these verified times instead of the file."""
        self._append_times, self._times_stamp = times, _NOT_LOADED

    def read_append_times(self) -> AppendTimes:
        """Read the valid part of the `.appendtime` file.

        Damage, or an object that a tier has lost, is reported and not raised.
        """
        context = self.context
        try:
            # The file has at most one row for each batch, and a row is smaller than a batch, so the
            # log's size limits the file's size.
            limit = max(self.stat().size, files.SMALL_FILE_LIMIT_BYTES)
            data = read_optional(
                context, self.base_offset, log_files.APPEND_TIME_SUFFIX, limit=limit
            )
        except (CorruptFile, MissingFile) as error:
            context.report(f"{error}; {APPENDTIME_DAMAGED}")
            data = None
        if data is None:
            return AppendTimes(self.base_offset, context.topic_id)
        proven, zones = None, self.loaded_zones
        if zones is not None and zones.is_readable:
            # The zone map was built from checked rows. If the file has the checksum that the map
            # stores, the rows need no other check. Comparing the checksum takes a hundredth of the
            # time of checking each row.
            written = zones.siblings.get(log_files.APPEND_TIME_SUFFIX)
            if written == FileSum(len(data), crc32c(data)):
                proven = zones.identity.append_rows, zones.identity.append_crc
        times, damage = AppendTimes.decode(
            data, self.base_offset, context.topic_id, open_end=True, proven=proven
        )
        if damage:
            path = context.path(self.base_offset, log_files.APPEND_TIME_SUFFIX)
            context.report(f"{path}: {damage}; {APPENDTIME_DAMAGED} from there on")
        return times

    def may_reach_append_ms(self, _append_ms: int) -> bool:
        """Return whether a record may have arrived at `_append_ms` or later; read no file."""
        return True

    # -- zone map ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def zones(self) -> ZoneMap | None:
        """The zone map from the file beside the log; None if there is no valid zone map."""

    @property
    @abstractmethod
    def loaded_zones(self) -> ZoneMap | None:
        """The zone map if it is in memory; no file is read."""

    @abstractmethod
    def use_zones(self, zones: ZoneMap | None, *, loaded: bool = True) -> None:
        """Use `zones`; if `loaded` is False, the next use reads the zone map from the file."""

    @abstractmethod
    def zones_on(self, clock: ClockName) -> ZoneMap | None:
        """Return the zone map if its times on `clock` equal the segment's times; else None."""

    @abstractmethod
    def passing_zones_on(self, clock: ClockName) -> ZoneMap | None:
        """Return the zone map if its times on `clock` equal the segment's times; else None.

        Unlike `zones_on`, this method does not keep a map that it loads. It is meant for callers
        that visit very many segments.
        """


def open_log(segment: _HasLogPath, opening: Callable[[str], _Opened]) -> _Opened:
    """Call `opening` with a log file's path; call it again if the path changed meanwhile.

    If a compaction has replaced a segment, the segment's old name belongs to another file, but the
    segment can still be read under another name.
    """
    while True:
        path = segment.log_path
        try:
            opened = opening(path)
        except FileNotFoundError as error:
            if segment.log_path == path:
                if isinstance(error, MissingFile):
                    raise
                raise MissingFile(path, "read", error.strerror or f"{error}") from error
            continue
        if segment.log_path == path:
            return opened


def read_optional(
    context: SegmentContext,
    base_offset: int,
    suffix: str,
    *,
    limit: int = files.SMALL_FILE_LIMIT_BYTES,
) -> bytes | None:
    """Read one of a segment's files; return None if the segment has no such file.

    Raises:
        CorruptFile: The file is larger than `limit` bytes.
        MissingFile: The tier's manifest lists the object, but the store does not have it.
    """
    path = context.path(base_offset, suffix)
    return files.read_decoded(context.env.files, path, bytes, None, limit=limit)


def iterate_batches(
    segment: Segment, start: int, end: int, *, end_offset: int | None = None
) -> Iterator[tuple[int, Batch]]:
    """Yield the batches in bytes [start, end) of a segment with their positions.

    Errors contain the position. A mapped segment is read through its map; any other segment is read
    piece by piece. Checksums don't cover offsets, so this function checks that offsets are in order
    and fit into the segment (`offset_order`).

    Args:
        segment: The segment.
        start: Position of the first batch.
        end: Position to stop at, exclusive.
        end_offset: Upper bound, exclusive, of the offsets of these batches; None for the segment's
            end.

    Raises:
        CorruptBatch: A frame is invalid, or offsets are impossible. Also raised if a finished
            segment ends in the middle of a batch, before the segment's end offset: nothing will
            ever write the rest of this batch.
    """
    if not segment.is_mapped:
        batches = segment.walk_file(start, end)
    else:
        # Use the map's size as the end, because the writer may have replaced the file by a shorter
        # file.
        view = segment.view(start, end)
        batches, end = _walk_map(segment, start, view), start + len(view)
    yield from in_segment(segment, batches, start, end, end_offset=end_offset)


def in_segment(
    segment: Segment,
    batches: Iterable[tuple[int, Batch]],
    start: int,
    end: int,
    *,
    end_offset: int | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Check the offsets of a segment's batches in bytes [start, end), and yield the batches.

    `batches` yields these batches with their positions. `iterate_batches` describes the other
    arguments and the errors.
    """
    next_offset = segment.base_offset
    if end_offset is None:
        end_offset = segment.end_offset if segment.has_known_end else INT64_MAX
    limit = segment_limit(segment.base_offset, end_offset)
    behind = start
    path, knows_next = segment.log_path, start == 0
    for position, batch in in_order(batches, next_offset, limit, path, knows_next=knows_next):
        yield position, batch
        next_offset = batch.last_offset + 1
        behind = position + batch.size_bytes
    if behind < end and holds_to(segment, end):
        problem = cut_problem(end - behind, next_offset, min(limit, segment.end_offset))
        if problem is not None:
            error = CorruptBatch(problem, at=0, offset=next_offset)
            raise error.located(segment.log_path, behind)


def holds_to(segment: Segment, end: int) -> bool:
    """Return whether the first `end` bytes of a segment are known to be whole batches.

    A growing segment consisted of whole batches when its size was read, but may have been truncated
    since.
    """
    return segment.has_known_end or end <= min(segment.size_bytes, segment.stat().size)


def _walk_map(segment: Segment, start: int, view: memoryview) -> Iterator[tuple[int, Batch]]:
    position = start
    try:
        for batch in walk(view):
            yield position, batch
            position += batch.size_bytes
    except CorruptData as error:
        raise error.located(segment.log_path, start) from error
