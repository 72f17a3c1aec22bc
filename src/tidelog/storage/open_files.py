"""Bounded caches of open files, maps and parsed small files.

This module owns the file handles that stay open between calls. `FilePool` has the files that are
read or written by position (active segments), and `MapCache` has the maps of finished segments. An
evicted file is reopened when it is next used, so 10,000 segments work with a limit of 1,024
descriptors. Maps need no descriptor (see `tidelog.env`), but the operating system limits the number
of maps, too (65,530 per process on Linux).

The parsed content of a file stays valid as long as the file's size, time and identity are
unchanged. This check suffices, because writers hold the directory's lock, update this cache, and
only append to files or replace them.

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

# Maximum total weight of the cached values. A weight of 1 is about 250 bytes (the size of a key in
# a sample of keys), so the total is about 32 MB.
WEIGHT_MAX: Final = 1 << 17


class DecodedFiles:
    """File contents by path; the least recently used content is evicted first."""

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        """Create an empty cache.

        Args:
            weight_max: Maximum total weight. A content with a larger weight is not kept.
        """
        self._weight_max = weight_max
        self._weight = 0
        self._entries: OrderedDict[str, tuple[FileStat, object, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, path: str, stat: FileStat) -> object | None:
        """Return the content of a file, None if it is not cached or the file has changed."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None or entry[0] != stat:
                return None
            self._entries.move_to_end(path)
            return entry[1]

    def keep(self, path: str, stat: FileStat, content: object, weight: int) -> None:
        """Cache the content of a file.

        Args:
            path: Path of the file.
            stat: Status of the file before it was read, or after it was written.
            content: The content; it is shared and must not be modified.
            weight: The content's weight, in the unit of `weight_max`.
        """
        with self._lock:
            self._drop(path)
            self._entries[path] = stat, content, weight
            self._weight += weight
            while self._weight > self._weight_max:
                self._drop(next(iter(self._entries)))

    def _drop(self, path: str) -> None:
        entry = self._entries.pop(path, None)
        self._weight -= 0 if entry is None else entry[2]

    def clear(self) -> None:
        """Clear the cache, for example when names may refer to other files."""
        with self._lock:
            self._entries.clear()
            self._weight = 0


FILE_LIMIT: Final = 256
MAP_LIMIT: Final = 32_768

# Maximum total size in bytes of copies. For files in an object store, copies replace maps.
COPIED_BYTES: Final = 64 << 20

READ_CHUNK_BYTES: Final = 4 << 20

# Number of bytes at the start of a batch that contain its length and magic.
FRAME_SIZE: Final = 17


def _nothing() -> None:
    """Do nothing; the default callback, for callers that keep no views."""


class FileHandle:
    """Handle of a pooled file; a user keeps the handle to avoid a lookup at each use.

    Attributes:
        file: The open file. None after the pool has dropped the file: a user that finds None gets
            the file from the pool again.
        is_used: Whether the file was used since the last eviction. A user sets this at each use, so
            that the file is not among the first files to be closed.
    """

    __slots__ = ("file", "is_used")

    def __init__(self, file: File | None = None) -> None:
        self.file = file
        self.is_used = True


class FilePool:
    """At most `limit` open files; the least recently used file is closed first.

    Attributes:
        decoded: Parsed contents of small files, which are dropped when the pool is closed.
    """

    def __init__(self, files: FileSystem, *, limit: int = FILE_LIMIT, write: bool = True) -> None:
        self._files = files
        self._limit = limit
        self._write = write
        self.decoded = DecodedFiles()
        self._open: OrderedDict[str, FileHandle] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, *, create: bool = False) -> File:
        """Return the open file of a path; raises OSError if the file can't be opened."""
        return self.hold(path, create=create)[1]

    def hold(self, path: str, *, create: bool = False) -> tuple[FileHandle, File]:
        """Return the handle that all users of a path share, and the open file."""
        with self._lock:
            handle = self._open.get(path)
            if handle is not None and handle.file is not None:
                self._open.move_to_end(path)
                return handle, handle.file
            file = self._files.open(path, write=self._write, create=create)
            handle = self._open[path] = FileHandle(file)
            self._evict()
            return handle, file

    def _evict(self) -> None:
        """Evict the oldest files; a file is closed as soon as no thread uses it any more.

        If the oldest file was used since the last eviction, the file is kept and becomes the newest
        file. If all files were used since then, the oldest file is evicted.
        """
        for _ in range(len(self._open)):
            if len(self._open) <= self._limit:
                return
            path, handle = self._open.popitem(last=False)
            if handle.is_used:
                handle.is_used = False
                self._open[path] = handle
            else:
                handle.file = None
        while len(self._open) > self._limit:
            self._open.popitem(last=False)[1].file = None

    def _let_go(self, path: str) -> None:
        handle = self._open.pop(path, None)
        if handle is not None:
            handle.file = None

    @contextmanager
    def replacing(self, paths: Iterable[str]) -> Iterator[None]:
        """Prevent these files from being opened inside the context, and evict them at its end.

        Some threads open a file by its path, and then check that the segment still has this path.
        If the check succeeds, the thread has the segment's file, not a file that replaced it.
        """
        with self._lock:
            yield
            for path in paths:
                self._let_go(path)

    def forget(self, path: str) -> None:
        """Drop the handle of a file before the file's name is reused or removed.

        The file is closed only when no thread uses it any more, because a response may still be
        read from it.
        """
        with self._lock:
            self._let_go(path)

    def forget_below(self, folder: str) -> None:
        """Drop the handles of a folder's files, whose names may now refer to other files."""
        with self._lock:
            for path in [each for each in self._open if each.startswith(f"{folder}/")]:
                self._let_go(path)

    def close(self) -> None:
        """Close every open file."""
        self.decoded.clear()
        with self._lock:
            open_files = [handle.file for handle in self._open.values()]
            for handle in self._open.values():
                handle.file = None
            self._open.clear()
        for file in open_files:
            if file is not None:
                file.close()


class PooledFile:
    """One file of a pool, for a user that uses it often."""

    __slots__ = ("_creates", "_handle", "_path", "_pool")

    def __init__(self, pool: FilePool, path: str, *, create: bool = False) -> None:
        """Create the object without opening the file. If `create` is true, `write` creates it."""
        self._pool = pool
        self._path = path
        self._creates = create
        self._handle = FileHandle()

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; raises OSError."""
        handle = self._handle
        file = handle.file
        if file is None:
            self._handle, file = self._pool.hold(self._path, create=self._creates)
        handle.is_used = True
        written = file.pwrite(data, position)
        if written != len(data):
            write_rest(file, data, position, written)


class MapCache:
    """At most `limit` maps of finished segments' files; views stay valid if a map is evicted.

    A caller that keeps views of a map passes a callback that drops these views when the map is
    evicted. Without such a callback, evicted maps would stay mapped. For a file in an object store,
    the cache holds a copy instead of a map. All copies together have at most `COPIED_BYTES`, unless
    a single copy is larger.
    """

    def __init__(self, files: FileSystem, *, limit: int = MAP_LIMIT) -> None:
        self._files = files
        self._limit = limit
        self._maps: OrderedDict[str, tuple[memoryview, Callable[[], None]]] = OrderedDict()
        self._copied: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, *, on_evict: Callable[[], None] = _nothing) -> memoryview:
        """Return a read-only view of the whole file; raises OSError if it can't be opened.

        Args:
            path: Path of the file.
            on_evict: Called when the map is evicted from the cache. Ignored if the file is already
                in the cache.
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
        """Prevent these files from being mapped inside the context; see `FilePool.replacing`."""
        with self._lock:
            yield
            for path in paths:
                self._copied.pop(path, None)
                self._maps.pop(path, None)

    def forget(self, path: str) -> None:
        """Drop the map of a file before the file's name is reused or removed."""
        with self._lock:
            self._copied.pop(path, None)
            self._maps.pop(path, None)

    def forget_below(self, folder: str) -> None:
        """Drop the maps of a folder's files, whose names may now refer to other files."""
        with self._lock:
            for path in [each for each in self._maps if each.startswith(f"{folder}/")]:
                self._copied.pop(path, None)
                self._maps.pop(path, None)

    def clear(self) -> None:
        """Drop every map."""
        with self._lock:
            self._copied.clear()
            self._maps.clear()


def as_storage_failure(error: OSError, path: str, operation: str) -> StorageFailure:
    """Return the typed error for a failed system call.

    The returned error has the path `path`. Exception: if permission was denied, it has the path
    that the system call names, because `path` can be the directory that contains the file.
    """
    if isinstance(error, MissingFile):
        return MissingFile(error.path, error.operation, error.reason)
    if isinstance(error, PermissionError) and isinstance(error.filename, str):
        path = error.filename
    failure = StorageFailure(path, operation, error.strerror or str(error))
    failure.__cause__ = error  # set here, because some failures are reported but not raised
    return failure


@contextmanager
def typed_failures(path: str, operation: str) -> Iterator[None]:
    """Raise StorageFailure if a system call fails inside the context; pass on a StorageFailure."""
    try:
        yield
    except OSError as error:
        raise as_storage_failure(error, path, operation) from error


def sync_file(file: File, path: str) -> None:
    """Sync a file of a log; the error of a failed sync always names the operation `sync`.

    Raises:
        StorageFailure: The sync failed; it is unknown which data of the file is on the disk.
    """
    with typed_failures(path, "sync"):
        file.sync()


@contextmanager
def typed_reads(path: str) -> Iterator[None]:
    """Inside the context, raise StorageFailure if a system call fails.

    A missing file still raises FileNotFoundError, so that a reader can refresh its view.
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
    """Yield the batches of a log file and their positions; read the file in chunks.

    Args:
        file: Open file.
        path: Path of the file, for errors.
        start: Position of the first batch.
        end: Position to stop at, exclusive; a batch that crosses `end` is not returned.
        chunk_bytes: Number of bytes of one read. A larger batch is read with one call.

    Raises:
        CorruptBatch: A frame is invalid; the error has its position.
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
        read_bytes = incomplete_batch_size(data)
        if read_bytes <= len(data) or position + read_bytes > end:
            return


def incomplete_batch_size(data: Buffer) -> int:
    """Return the size in bytes of the buffer's first batch.

    Return 0 if the buffer ends before the batch's length and magic.
    """
    if len(data) < FRAME_SIZE:
        return 0
    return LOG_OVERHEAD + int.from_bytes(data[LENGTH_AT:LOG_OVERHEAD], "big", signed=True)
