"""Bytes of a scan out of an object store: large ranges, the next one on its way while one is used.

At most two ranges of `READ_BYTES` are held, and what a caller holds. The first read says whether
the object still is the one that was planned, later ones ask for that object alone, so a piece costs
no request beside those for its bytes. Nothing here lists a folder.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from tidelog.env import Env, is_remote
from tidelog.objects import ObjectFiles, ObjectStore, identity_of
from tidelog.scan.pieces import identity_text
from tidelog.scan.ranges import LocalRanges, Ranges, RangeSource
from tidelog.scan.split import Piece
from tidelog.types import Buffer

# Large enough that waiting for the first byte is little of it, small enough for many tasks.
READ_BYTES: Final = 8 << 20


class RemoteSource:
    """One piece of an object, read from front to back.

    The object is fetched in ranges that follow each other; a read gets what it wants of them. A
    read that goes back further than the range before it is fetched on its own.
    """

    read_bytes = READ_BYTES

    def __init__(self, store: ObjectStore, key: str, piece: Piece) -> None:
        """Read the first range.

        Raises:
            FileNotFoundError: The object has gone or was replaced.
            StorageFailure: The store failed.
        """
        self._store = store
        self._key = key
        self._end = piece.end_position
        self._start = piece.start_position  # of the bytes that are held
        first = min(READ_BYTES, self._end - self._start)
        data, info = store.read_range(key, self._start, first)
        if identity_text(identity_of(info)) != piece.identity:
            raise FileNotFoundError(2, "Replaced by another object", piece.path)
        self._etag = info.etag
        self._data = memoryview(data)
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[memoryview] | None = None
        self._prefetch()

    def _fetch(self, start: int) -> memoryview:
        size = min(READ_BYTES, self._end - start)
        return memoryview(self._store.read_range(self._key, start, size, etag=self._etag)[0])

    @property
    def _behind(self) -> int:
        return self._start + len(self._data)

    def _prefetch(self) -> None:
        """Send for the range behind what is held, where there is one."""
        if self._behind < self._end:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidelog-prefetch")
            self._next = self._pool.submit(self._fetch, self._behind)

    def read(self, start: int, size: int) -> Buffer:
        """The bytes from position `start`; fewer only where the object ends.

        Raises:
            FileNotFoundError: The object has gone or was replaced.
            StorageFailure: The store failed.
        """
        end = min(start + size, self._end)
        assert start >= self._start, "a source is read from front to back"
        while self._behind < end:
            self._advance(start)
        return self._data[start - self._start : end - self._start]

    def _advance(self, start: int) -> None:
        """Drop what lies before `start`, take the next range, send for the one behind it."""
        assert start <= self._behind, "what is read next follows what was read"
        rest = self._data[start - self._start :]
        assert self._next is not None
        following = self._next.result()
        self._data = memoryview(b"".join((rest, following))) if rest else following
        self._start = start
        self._next = None
        self._prefetch()

    def close(self) -> None:
        """Let go of the object; what was read stays valid."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        self._data, self._next = memoryview(b""), None


class RemoteRanges:
    """Files of a store by requests, all others from the machine's disk."""

    def __init__(self, env: Env, files: ObjectFiles) -> None:
        self._files = files
        self._local = LocalRanges(env)

    def open(self, piece: Piece) -> RangeSource:
        """The piece's log file; raises FileNotFoundError where it has gone or was replaced."""
        if not self._files.is_remote(piece.path):
            return self._local.open(piece)
        return RemoteSource(self._files.store, self._files.key_of(piece.path), piece)

    def read_small(self, path: str) -> bytes:
        """A whole small file; raises FileNotFoundError."""
        if not self._files.is_remote(path):
            return self._local.read_small(path)
        return self._files.store.read(self._files.key_of(path))


def ranges_for(env: Env, path: str) -> Ranges:
    """Where the bytes of a directory's files come from."""
    files = env.files
    if isinstance(files, ObjectFiles) and is_remote(files, path):
        return RemoteRanges(env, files)
    return LocalRanges(env)
