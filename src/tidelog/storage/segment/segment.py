"""What a segment is to those who read it, whatever state it is in, and what all states share.

`ClosedSegment` (closed.py) is finished: its files are mapped, lazily. `TailSegment` (tail.py) is
the last one, which may still grow under another process: it is read by position, never mapped.
The writer's `ActiveSegment` (active.py) is a `TailSegment` that also appends. All three answer the
same questions (`Segment`).

Life cycle: load -> (read)*; views that were handed out stay valid after the segment is dropped.
Source: docs/format.md; KIP-33 for the largest timestamp of a segment.
"""

import functools
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from tidelog.config import TopicConfig
from tidelog.env import Env, File, FileStat
from tidelog.errors import CorruptBatch, CorruptData, CorruptFile, DamagedLog, MissingFile
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.offset_order import cut_problem, in_order, segment_limit
from tidelog.storage import files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.open_files import FilePool, MapCache, as_storage_failure, walk_file
from tidelog.storage.segment.index import OffsetIndex, TimeIndex, TxnIndex
from tidelog.storage.segment.log_end import NOTHING_RECORDED, RecordedEnd
from tidelog.types import INT64_MAX, ClockName, TopicPartition

# The last segment is read by pieces of this size.
TAIL_CHUNK_BYTES: Final = 256 << 10


_GONE: Final = (files.REMOVED_SUFFIX, files.DELETED_SUFFIX)


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
        overlay: Final name -> staged name, for files that a commit record has made visible; a
            name that ends with `.removed` for one that it has taken away, or with `.deleted` for
            one that was set aside under that name.
        recorded_end: What the directory records of the log's end, for readers; read from disk
            anew where the argument is true.
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
        """Path of one of a segment's files."""
        name = files.file_name(base_offset, suffix)
        staged = self.overlay.get(name)
        is_gone = staged is not None and staged.endswith(_GONE)
        if is_gone or (staged and self.env.files.exists(f"{self.directory}/{staged}")):
            return f"{self.directory}/{staged}"
        return f"{self.directory}/{name}"  # where it was staged, the writer has renamed it since


class _HasContext(Protocol):
    @property
    def context(self) -> SegmentContext: ...


class _HasLogPath(Protocol):
    @property
    def log_path(self) -> str: ...


_Opened = TypeVar("_Opened")


_Reader = TypeVar("_Reader", bound=_HasContext)


_Args = ParamSpec("_Args")


_Answer = TypeVar("_Answer")


def typed_read(
    method: Callable[Concatenate[_Reader, _Args], _Answer],
) -> Callable[Concatenate[_Reader, _Args], _Answer]:
    """Let a method that reads raise StorageFailure where the system fails a call.

    A file that has gone stays a FileNotFoundError: a reader that meets one refreshes.
    """

    @functools.wraps(method)
    def read(reader: _Reader, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Answer:
        try:
            return method(reader, *args, **kwargs)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise as_storage_failure(error, reader.context.directory, "read") from error

    return read


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
    def has_known_end(self) -> bool:
        """Whether it reaches `end_offset` for sure, so that a reader must not stop before."""
        ...

    @property
    def damaged(self) -> DamagedLog | None:
        """Damage of the last segment that something proves; its sound part ends there."""
        ...

    @property
    def is_mapped(self) -> bool:
        """Whether `view` costs nothing; else it reads, and no more than needed is to be asked."""
        ...

    @property
    def is_tiered(self) -> bool:
        """Whether only the tier has it: finished, and never changed by its partition."""
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

    def may_reach_append_ms(self, append_ms: int) -> bool:
        """False where it is known without a look that no record came at or after a time."""
        ...

    @property
    def zones(self) -> ZoneMap | None:
        """What lies where, from the sidecar; None where there is none that fits."""
        ...

    def zones_on(self, clock: ClockName) -> ZoneMap | None:
        """The same, None also where it does not know of that clock what the segment knows."""
        ...

    def distrust_indexes(self, problem: str) -> None:
        """Report what an index says and the log does not; go on with indexes built anew."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the log file."""
        ...

    def whole(self) -> memoryview:
        """All bytes of the log file, for those who go through all of them."""
        ...

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """The batches in bytes [start, end), read by position and never mapped."""
        ...

    def open_file(self) -> File:
        """The log file, for those who read much of it by position; it closes with its last user."""
        ...

    def mtime_ms(self) -> int:
        """Modification time of the log file, for segments without timestamps."""
        ...

    def stat(self) -> FileStat:
        """Facts on the log file; of a finished segment as of the first look at it."""
        ...


class SegmentFiles:
    """Paths, and the parts that both kinds of segment load in the same way."""

    is_tiered: bool = False

    def __init__(self, context: SegmentContext, base_offset: int) -> None:
        self.context = context
        self.base_offset = base_offset
        self._log_path = context.path(base_offset, files.LOG_SUFFIX)
        self._txn_index: TxnIndex | None = None

    @property
    def log_path(self) -> str:
        """Path of the log file; a staged one may get its final name while it is being read."""
        overlay = self.context.overlay
        return self.context.path(self.base_offset, files.LOG_SUFFIX) if overlay else self._log_path

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """The batches in bytes [start, end), read by position and never mapped."""
        file = self.open_file()
        return walk_file(file, self.log_path, start, end, chunk_bytes=TAIL_CHUNK_BYTES)

    def open_file(self) -> File:
        """The log file, for those who read much of it by position; it closes with its last user."""
        return open_log(self, self.context.pool.get)

    def mtime_ms(self) -> int:
        """Modification time of the log file in ms."""
        return self.context.env.files.stat(self.log_path).mtime_ms

    def stat(self) -> FileStat:
        """Facts on the log file as it is now."""
        return self.context.env.files.stat(self.log_path)

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions; the file exists only where there are some."""
        if self._txn_index is None:
            self._txn_index = self.read_txn_index()
        return self._txn_index

    def read_txn_index(self) -> TxnIndex:
        """The `.txnindex` file, empty where there is none; raises CorruptIndex, located."""
        data = read_optional(self.context, self.base_offset, files.TXN_INDEX_SUFFIX)
        path = self.context.path(self.base_offset, files.TXN_INDEX_SUFFIX)
        try:
            return TxnIndex.decode(data or b"", self.base_offset)
        except CorruptData as error:
            raise error.located(path) from error

    def may_reach_append_ms(self, _append_ms: int) -> bool:
        """True: nobody knows without looking."""
        return True

    def read_append_times(self) -> AppendTimes:
        """The `.appendtime` file's valid part; damage is reported, not raised."""
        context = self.context
        try:
            # A row for each batch at most, each smaller than a batch.
            limit = max(self.stat().size, files.SMALL_FILE_LIMIT_BYTES)
            data = read_optional(context, self.base_offset, files.APPEND_TIME_SUFFIX, limit=limit)
        except CorruptFile as error:
            context.report(f"{error}; {APPENDTIME_DAMAGED}")
            data = None
        if data is None:
            return AppendTimes(self.base_offset, context.topic_id)
        times, damage = AppendTimes.decode(data, self.base_offset, context.topic_id, open_end=True)
        if damage:
            path = context.path(self.base_offset, files.APPEND_TIME_SUFFIX)
            context.report(f"{path}: {damage}; {APPENDTIME_DAMAGED} from there on")
        return times


def open_log(segment: _HasLogPath, opening: Callable[[str], _Opened]) -> _Opened:
    """What `opening` makes of a log file's name; once more where the name changes meanwhile.

    A segment that a compaction has replaced is read on under another name, and its old name is
    that of another file.
    """
    while True:
        path = segment.log_path
        try:
            found = opening(path)
        except FileNotFoundError as error:
            if segment.log_path == path:
                if isinstance(error, MissingFile):
                    raise
                raise MissingFile(path, "read", error.strerror or f"{error}") from error
            continue
        if segment.log_path == path:
            return found


def read_optional(
    context: SegmentContext,
    base_offset: int,
    suffix: str,
    *,
    limit: int = files.SMALL_FILE_LIMIT_BYTES,
) -> bytes | None:
    """A file's bytes, None where it does not exist; raises CorruptFile beyond `limit` bytes."""
    try:
        return files.read_file(context.env.files, context.path(base_offset, suffix), limit=limit)
    except FileNotFoundError:
        return None


def iterate_batches(
    segment: Segment, start: int, end: int, *, end_offset: int | None = None
) -> Iterator[tuple[int, Batch]]:
    """The batches in bytes [start, end) of a segment, with their positions; errors are located.

    A mapped segment is walked through its map, others are read piece by piece. Offsets lie
    outside of the batches' checksums, so their order is checked, and that they fit the segment
    (`offset_order`).

    Args:
        segment: Where they lie.
        start: Position of the first batch.
        end: Position to stop at, exclusive.
        end_offset: Offset that no batch before `end` reaches; None for that of the segment.

    Raises:
        CorruptBatch: A frame that can't be, or offsets that can't be there; or a finished segment
            that ends in the middle of a batch before its offsets do: nobody will add the rest.
    """
    if not segment.is_mapped:
        batches = segment.walk_file(start, end)
    else:
        # What the map holds: the writer may have put a shorter file in place of the one it knew.
        view = segment.view(start, end)
        batches, end = _walk_map(segment, start, view), start + len(view)
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
    """Whether whole batches must fill a segment's bytes up to a position.

    Of one that still grows they did when its size was taken; it may have been cut since.
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
