"""Reads the bytes of a scan from local files, object stores or tiers.

A `Ranges` opens the file of a piece. `LocalRanges` reads files through `Env`. Object stores are
read in large ranges of `STORE_READ_BYTES`, and the next range is prefetched. So usually two ranges
of an object are in memory, in addition to the bytes that the caller still uses. The first read
checks that the object is still the object that was planned, and later reads request the same
version. So the only requests for a piece are reads of its bytes; for example, no directory is
listed.

The path of an object in a tier contains the object's length and checksum, and the object never
changes (`storage.tier.tier_files`). So tiers need no request to check that an object was not
replaced after the plan was made. Ranges of tiers are read through the block cache.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from tidelog.env import Env, File, is_remote
from tidelog.objects import ObjectFiles, ObjectStore, identity_of
from tidelog.scan.pieces import identity_text
from tidelog.scan.split import Piece
from tidelog.storage import files
from tidelog.storage.open_files import typed_reads
from tidelog.storage.tier.tier_files import TierFiles, is_tier_path, tier_files_of
from tidelog.types import Buffer

# Number of bytes that one call reads from a file that is not mapped into memory. A file is not
# mapped if its writer may still truncate it, or if it is small. The number is small enough that the
# bytes stay in the CPU caches while they are decoded.
READ_BYTES: Final = 1 << 20

WHOLE: Final = 1 << 62

# Minimum size in bytes of a piece whose file is mapped into memory. Copying a smaller piece takes
# less time than mapping and unmapping the file.
MAP_BYTES_MIN: Final = 2 << 20


class RangeSource(Protocol):
    """An open file, read by byte ranges."""

    @property
    def read_bytes(self) -> int:
        """Recommended size of a read in bytes."""
        ...

    def read(self, start: int, size: int) -> Buffer:
        """Return bytes from position `start`.

        Returns fewer than `size` bytes only at the end of the file or of the piece.
        """
        ...

    def close(self) -> None:
        """Close the file. Returned bytes stay valid."""
        ...


class Ranges(Protocol):
    """Interface to the files of a scan."""

    def open(self, piece: Piece) -> RangeSource:
        """Open the piece's log file.

        Raises:
            FileNotFoundError: The file was deleted or replaced.
        """
        ...

    def read_small(self, path: str) -> bytes:
        """Return a whole small file, such as a sidecar; raises FileNotFoundError."""
        ...


class _MappedSource:
    """Source for a large piece of a finished file. Reads return views of the memory map."""

    read_bytes = WHOLE

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def read(self, start: int, size: int) -> memoryview:
        return self._view[start : start + size]

    def close(self) -> None:
        self._view = memoryview(b"")


class _FileSource:
    """Source for a file that its writer may truncate, or for a small piece. Reads copy bytes."""

    read_bytes = READ_BYTES

    def __init__(self, path: str, file: File) -> None:
        self._path = path
        self._file = file

    def read(self, start: int, size: int) -> bytes:
        with typed_reads(self._path):
            return self._file.pread(size, start)

    def close(self) -> None:
        self._file.close()


class LocalRanges:
    """`Ranges` of local files."""

    def __init__(self, env: Env) -> None:
        self._files = env.files

    def open(self, piece: Piece) -> RangeSource:
        """Open the piece's log file.

        Raises:
            FileNotFoundError: The file was deleted or replaced.
            StorageFailure: The disk failed.
        """
        with typed_reads(piece.path):
            return self._open(piece)

    def _open(self, piece: Piece) -> RangeSource:
        source: RangeSource
        if piece.is_closed and piece.size_bytes >= MAP_BYTES_MIN:
            source = _MappedSource(self._files.map(piece.path))
        else:
            source = _FileSource(piece.path, self._files.open(piece.path))
        # The identity is checked after the file was opened, to detect that the planned file was
        # replaced before it was opened.
        identity = identity_text(self._files.stat(piece.path).identity)
        if identity != piece.identity:
            source.close()
            raise FileNotFoundError(f"{piece.path}: replaced by another file")
        return source

    def read_small(self, path: str) -> bytes:
        """Return a whole small file; raises FileNotFoundError, StorageFailure."""
        with typed_reads(path):
            return files.read_file(self._files, path)


# Size in bytes of a range that is read from an object store. The size is large enough that the wait
# for the first byte matters little, and small enough that many tasks can have their ranges in
# memory.
STORE_READ_BYTES: Final = 8 << 20


class RemoteSource:
    """One piece of an object, read from front to back.

    The object is fetched in consecutive ranges. A read must not start before the buffered bytes.
    """

    read_bytes = STORE_READ_BYTES

    def __init__(self, store: ObjectStore, key: str, piece: Piece) -> None:
        """Fetch the first range, and prefetch the next range.

        Raises:
            FileNotFoundError: The object was deleted or replaced.
            StorageFailure: The store failed.
        """
        self._store = store
        self._key = key
        self._end = piece.end_position
        self._start = piece.start_position  # start of the buffered bytes
        first = min(STORE_READ_BYTES, self._end - self._start)
        data, info = store.read_range(key, self._start, first)
        if identity_text(identity_of(info)) != piece.identity:
            raise FileNotFoundError(2, "Replaced by another object", piece.path)
        self._etag = info.etag
        self._data = memoryview(data)
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[memoryview] | None = None
        self._prefetch()

    def _fetch(self, start: int) -> memoryview:
        size = min(STORE_READ_BYTES, self._end - start)
        return memoryview(self._store.read_range(self._key, start, size, etag=self._etag)[0])

    @property
    def _behind(self) -> int:
        return self._start + len(self._data)

    def _prefetch(self) -> None:
        """Start to fetch the range after the buffered bytes, if there is one."""
        if self._behind < self._end:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidelog-prefetch")
            self._next = self._pool.submit(self._fetch, self._behind)

    def read(self, start: int, size: int) -> Buffer:
        """Return bytes from position `start`; fewer than `size` only at the end of the piece.

        Raises:
            FileNotFoundError: The object was deleted or replaced.
            StorageFailure: The store failed.
        """
        end = min(start + size, self._end)
        assert start >= self._start, "a source is read from front to back"
        while self._behind < end:
            self._advance(start)
        return self._data[start - self._start : end - self._start]

    def _advance(self, start: int) -> None:
        """Drop the bytes before `start`, append the next range, and prefetch the range after it."""
        assert start <= self._behind, "a read must not skip bytes"
        rest = self._data[start - self._start :]
        assert self._next is not None
        following = self._next.result()
        self._data = memoryview(b"".join((rest, following))) if rest else following
        self._start = start
        self._next = None
        self._prefetch()

    def close(self) -> None:
        """Cancel the prefetch and drop the buffer. Returned bytes stay valid."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        self._data, self._next = memoryview(b""), None


class RemoteRanges:
    """Reads files of an object store by requests, and local files from the disk."""

    def __init__(self, env: Env, files: ObjectFiles) -> None:
        self._files = files
        self._local = LocalRanges(env)

    def open(self, piece: Piece) -> RangeSource:
        """Open the piece's log file; raises FileNotFoundError if it was deleted or replaced."""
        if not self._files.is_remote(piece.path):
            return self._local.open(piece)
        return RemoteSource(self._files.store, self._files.key_of(piece.path), piece)

    def read_small(self, path: str) -> bytes:
        """Return a whole small file; raises FileNotFoundError."""
        if not self._files.is_remote(path):
            return self._local.read_small(path)
        return self._files.store.read(self._files.key_of(path))


def ranges_for(env: Env, path: str) -> Ranges:
    """Return the `Ranges` for a directory's files, without its tiers."""
    files = env.files
    if isinstance(files, ObjectFiles) and is_remote(files, path):
        return RemoteRanges(env, files)
    return LocalRanges(env)


class TierSource(RemoteSource):
    """One piece of an object in a tier, read from front to back."""

    def __init__(self, file: File, piece: Piece) -> None:
        """Fetch the first range, and prefetch the next range.

        Raises FileNotFoundError, StorageFailure or CorruptFile.
        """
        self._file = file
        self._end = piece.end_position
        self._start = piece.start_position
        self._data = self._fetch(self._start)
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[memoryview] | None = None
        self._prefetch()

    def _fetch(self, start: int) -> memoryview:
        return memoryview(self._file.pread(min(STORE_READ_BYTES, self._end - start), start))


class TierRanges:
    """`Ranges` of a tier. Pieces outside the tier are read through the directory's own `Ranges`."""

    def __init__(self, env: Env, below: Ranges) -> None:
        self._env = env
        self._below = below
        self._tier_files: TierFiles | None = None

    @property
    def _files(self) -> TierFiles:
        """Files of the tier, opened at the first use because most directories have no tier."""
        if self._tier_files is None:
            self._tier_files = tier_files_of(self._env)
        return self._tier_files

    def open(self, piece: Piece) -> RangeSource:
        """Open the piece's log file; raises FileNotFoundError if it was deleted or replaced."""
        if not is_tier_path(piece.path):
            return self._below.open(piece)
        if identity_text(self._files.stat(piece.path).identity) != piece.identity:
            raise FileNotFoundError(2, "Replaced by another object", piece.path)
        return TierSource(self._files.open(piece.path), piece)

    def read_small(self, path: str) -> bytes:
        """Return a whole small file; raises FileNotFoundError."""
        if not is_tier_path(path):
            return self._below.read_small(path)
        return files.read_file(self._files, path)


def all_ranges(env: Env, path: str) -> Ranges:
    """Return the `Ranges` for a directory's files, including its tiers."""
    return TierRanges(env, ranges_for(env, path))
