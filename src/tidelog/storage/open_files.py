"""Bounded caches of open files, maps and parsed small files.

Owns every handle of storage: `FilePool` for files that are read or written by position (active
segments), `MapCache` for closed segments. An evicted file is reopened at its next use, so 10,000
segments work with a limit of 1,024 descriptors. Maps hold no descriptor (see `tidelog.env`), but
the kernel limits their number too (65,530 per process on Linux).

A parsed file stays valid while its size, time and identity are unchanged. That is enough, because
every writer holds the directory's lock, appends or replaces, and updates this cache.

All caches are thread-safe.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.env import File, FileStat, FileSystem, is_remote
from tidelog.errors import CorruptBatch, MissingFile, StorageFailure
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.header import LENGTH_AT, LOG_OVERHEAD
from tidelog.storage.files import write_rest
from tidelog.types import Buffer

# Of what the values say they weigh. A key in a sample takes some 250 bytes: 32 MB.
WEIGHT_MAX: Final = 1 << 17


class DecodedFiles:
    """Contents by path, the least recently used go first."""

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        """Nothing is known.

        Args:
            weight_max: What all of them may weigh; one that weighs more is not kept.
        """
        self._weight_max = weight_max
        self._weight = 0
        self._kept: OrderedDict[str, tuple[FileStat, object, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, path: str, stat: FileStat) -> object | None:
        """What the file said; None where that is not known, or it is another one by now."""
        with self._lock:
            entry = self._kept.get(path)
            if entry is None or entry[0] != stat:
                return None
            self._kept.move_to_end(path)
            return entry[1]

    def keep(self, path: str, stat: FileStat, content: object, weight: int) -> None:
        """Remember what a file says.

        Args:
            path: Its name.
            stat: What it is known by, as it was before it was read, or after it was written.
            content: What it says; whoever gets it leaves it as it is.
            weight: In whatever all of them are weighed in.
        """
        with self._lock:
            self._drop(path)
            self._kept[path] = stat, content, weight
            self._weight += weight
            while self._weight > self._weight_max:
                self._drop(next(iter(self._kept)))

    def _drop(self, path: str) -> None:
        entry = self._kept.pop(path, None)
        self._weight -= 0 if entry is None else entry[2]

    def clear(self) -> None:
        """Forget all, as where names may stand for other files."""
        with self._lock:
            self._kept.clear()
            self._weight = 0


FILE_LIMIT: Final = 256


MAP_LIMIT: Final = 32_768


# Maps of files in an object store are copies in memory.
COPIED_BYTES: Final = 64 << 20


READ_CHUNK_BYTES: Final = 4 << 20


# Bytes that must be there before a frame's length and magic can be read.
FRAME_SIZE: Final = 17


def _nothing() -> None:
    """Nobody keeps a view."""


class Held:
    """A file that its user keeps at hand, so that he need not look for it each time.

    Attributes:
        file: None once the pool has let go of it: then the pool is asked again.
        is_used: Set at each use, so that it is not among the first to be closed.
    """

    __slots__ = ("file", "is_used")

    def __init__(self, file: File | None = None) -> None:
        self.file = file
        self.is_used = True


class FilePool:
    """At most `limit` open files, one that was not used for long is closed first.

    Attributes:
        decoded: What small files said that are read whole; forgotten when the pool is closed.
    """

    def __init__(self, files: FileSystem, *, limit: int = FILE_LIMIT, write: bool = True) -> None:
        self._files = files
        self._limit = limit
        self._write = write
        self.decoded = DecodedFiles()
        self._open: OrderedDict[str, Held] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, *, create: bool = False) -> File:
        """The open file of that path; raises OSError where it can't be opened."""
        return self.hold(path, create=create)[1]

    def hold(self, path: str, *, create: bool = False) -> tuple[Held, File]:
        """As `get`, to be kept at hand; the file is that of the first, which may lose it."""
        with self._lock:
            held = self._open.get(path)
            if held is not None and held.file is not None:
                self._open.move_to_end(path)
                return held, held.file
            file = self._files.open(path, write=self._write, create=create)
            held = self._open[path] = Held(file)
            self._evict()
            return held, file

    def _evict(self) -> None:
        """Let go of the oldest ones. They close once nobody uses them: another thread may be.

        One that was used where it is kept goes to the end instead, once.
        """
        for _ in range(len(self._open)):
            if len(self._open) <= self._limit:
                return
            path, held = self._open.popitem(last=False)
            if held.is_used:
                held.is_used = False
                self._open[path] = held
            else:
                held.file = None
        while len(self._open) > self._limit:
            self._open.popitem(last=False)[1].file = None

    def _let_go(self, path: str) -> None:
        held = self._open.pop(path, None)
        if held is not None:
            held.file = None

    @contextmanager
    def replacing(self, paths: Iterable[str]) -> Iterator[None]:
        """Nobody opens a file within the block, and these are let go of at its end.

        So whoever has got a file by a name, and finds afterwards that the name is still the right
        one, has the right file.
        """
        with self._lock:
            yield
            for path in paths:
                self._let_go(path)

    def forget(self, path: str) -> None:
        """Let go of the handle, as before the name gets another meaning or goes.

        It closes once nobody uses it: an answer may still be read from it.
        """
        with self._lock:
            self._let_go(path)

    def close(self) -> None:
        """Close every handle."""
        self.decoded.clear()
        with self._lock:
            open_files = [held.file for held in self._open.values()]
            for held in self._open.values():
                held.file = None
            self._open.clear()
        for file in open_files:
            if file is not None:
                file.close()


class PooledFile:
    """One file of a pool, for who uses it all the time."""

    __slots__ = ("_creates", "_held", "_path", "_pool")

    def __init__(self, pool: FilePool, path: str, *, create: bool = False) -> None:
        """`create`: it is made where it is missing."""
        self._pool = pool
        self._path = path
        self._creates = create
        self._held = Held()

    def get(self) -> File:
        """As `FilePool.get`."""
        held = self._held
        file = held.file
        if file is None:
            self._held, file = self._pool.hold(self._path, create=self._creates)
        held.is_used = True
        return file

    def write(self, data: Buffer, position: int) -> None:
        """As `files.write_fully`; raises OSError."""
        held = self._held
        file = held.file
        if file is None:
            self._held, file = self._pool.hold(self._path, create=self._creates)
        held.is_used = True
        written = file.pwrite(data, position)
        if written != len(data):
            write_rest(file, data, position, written)


class MapCache:
    """At most `limit` maps of closed files; views that callers hold outlive their eviction.

    Whoever keeps views says how to drop them: else maps that left the cache would stay mapped.
    Of copies it holds `COPIED_BYTES` and the last one at most.
    """

    def __init__(self, files: FileSystem, *, limit: int = MAP_LIMIT) -> None:
        self._files = files
        self._limit = limit
        self._maps: OrderedDict[str, tuple[memoryview, Callable[[], None]]] = OrderedDict()
        self._copied: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, *, on_evict: Callable[[], None] = _nothing) -> memoryview:
        """The whole file, read-only; raises OSError where it can't be opened.

        Args:
            path: Its name.
            on_evict: Called when the map leaves the cache for want of room.
        """
        evicted = []
        with self._lock:
            entry = self._maps.get(path)
            if entry is None:
                entry = self._files.map(path), on_evict
                self._maps[path] = entry
                if len(self._maps) > self._limit:
                    evicted.append(self._drop(next(iter(self._maps))))
                if is_remote(self._files, path):
                    self._copied[path] = len(entry[0])
                    while len(self._copied) > 1 and sum(self._copied.values()) > COPIED_BYTES:
                        evicted.append(self._drop(next(iter(self._copied))))
            else:
                self._maps.move_to_end(path)
        for drop in evicted:
            drop()
        return entry[0]

    def _drop(self, path: str) -> Callable[[], None]:
        self._copied.pop(path, None)
        return self._maps.pop(path)[1]

    @contextmanager
    def replacing(self, paths: Iterable[str]) -> Iterator[None]:
        """As `FilePool.replacing`, for maps."""
        with self._lock:
            yield
            for path in paths:
                self._copied.pop(path, None)
                self._maps.pop(path, None)

    def forget(self, path: str) -> None:
        """Drop the map, as before the name gets another meaning or goes."""
        with self._lock:
            self._copied.pop(path, None)
            self._maps.pop(path, None)

    def clear(self) -> None:
        """Drop every map."""
        with self._lock:
            self._copied.clear()
            self._maps.clear()


def as_storage_failure(error: OSError, path: str, operation: str) -> StorageFailure:
    """The typed error for a failed system call."""
    if isinstance(error, MissingFile):
        return MissingFile(error.path, error.operation, error.reason)
    return StorageFailure(path, operation, error.strerror or str(error))


@contextmanager
def typed_failures(path: str, operation: str) -> Iterator[None]:
    """StorageFailure for a system call that fails within; one that has its name keeps it."""
    try:
        yield
    except OSError as error:
        raise as_storage_failure(error, path, operation) from error


def sync_file(file: File, path: str) -> None:
    """Make a file of a log durable; what fails is a `sync`, whatever it is part of.

    Raises:
        StorageFailure: It is not known what the disk has of the file.
    """
    with typed_failures(path, "sync"):
        file.sync()


@contextmanager
def typed_reads(path: str) -> Iterator[None]:
    """StorageFailure for a system call that fails within.

    A file that has gone stays a FileNotFoundError: a reader that meets one refreshes.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise as_storage_failure(error, path, "read") from error


def walk_file(
    file: File, path: str, start: int, end: int, *, chunk_bytes: int = READ_CHUNK_BYTES
) -> Iterator[tuple[int, Batch]]:
    """The batches of a log file and their positions, read by chunks, never mapped.

    Args:
        file: Open file.
        path: Its name, for errors.
        start: Position of the first batch.
        end: Position to stop at, exclusive; a batch that passes it is not returned.
        chunk_bytes: How much is read at a time; a larger batch is read whole.

    Raises:
        CorruptBatch: A frame that can't be; located in the file.
    """
    position = start
    read_bytes = chunk_bytes
    while position < end:
        data = memoryview(file.pread(min(read_bytes, end - position), position))
        used = 0
        try:
            for batch in walk(data):
                yield position + used, batch
                used += batch.size_bytes
        except CorruptBatch as error:
            raise error.located(path, position) from error
        if used:
            position += used
            read_bytes = chunk_bytes
            continue
        read_bytes = _incomplete_batch_size(data)
        if read_bytes <= len(data) or position + read_bytes > end:
            return


def _incomplete_batch_size(data: memoryview) -> int:
    """Size in bytes of the batch that begins the buffer, 0 where not even its frame is there."""
    if len(data) < FRAME_SIZE:
        return 0
    return LOG_OVERHEAD + int.from_bytes(data[LENGTH_AT:LOG_OVERHEAD], "big", signed=True)
