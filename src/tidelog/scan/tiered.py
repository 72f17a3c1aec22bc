"""Bytes of a scan out of a tier: pieces whose paths name objects (`storage.tiers.tier_files`).

Read like any object, the next range on its way while one is used, but through the cache: what
was read before and still is there costs no request. A path names length and checksum of an object
that never changes, so nothing is asked about it first.
"""

from typing import TYPE_CHECKING

from tidelog.env import Env, File
from tidelog.scan.pieces import identity_text
from tidelog.scan.ranges import Ranges, RangeSource
from tidelog.scan.remote import READ_BYTES, RemoteSource, ranges_for
from tidelog.scan.split import Piece
from tidelog.storage import files
from tidelog.storage.tiers.tier_files import TierFiles, is_tier_path, tier_files_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class TierSource(RemoteSource):
    """One piece of an object in a tier, read from front to back."""

    def __init__(self, file: File, piece: Piece) -> None:
        """Read the first range; raises FileNotFoundError, StorageFailure, CorruptFile."""
        self._file = file
        self._end = piece.end_position
        self._start = piece.start_position
        self._data = self._fetch(self._start)
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[memoryview] | None = None
        self._prefetch()

    def _fetch(self, start: int) -> memoryview:
        return memoryview(self._file.pread(min(READ_BYTES, self._end - start), start))


class TierRanges:
    """Pieces in a tier; all others from where the directory is."""

    def __init__(self, env: Env, below: Ranges) -> None:
        self._env = env
        self._below = below
        self._tier_files: TierFiles | None = None

    @property
    def _files(self) -> TierFiles:
        """Made at first use: most directories have no tier."""
        if self._tier_files is None:
            self._tier_files = tier_files_of(self._env)
        return self._tier_files

    def open(self, piece: Piece) -> RangeSource:
        """The piece's log file; raises FileNotFoundError where it has gone or was replaced."""
        if not is_tier_path(piece.path):
            return self._below.open(piece)
        if identity_text(self._files.stat(piece.path).identity) != piece.identity:
            raise FileNotFoundError(2, "Another object", piece.path)
        return TierSource(self._files.open(piece.path), piece)

    def read_small(self, path: str) -> bytes:
        """A whole small file; raises FileNotFoundError."""
        if not is_tier_path(path):
            return self._below.read_small(path)
        return files.read_file(self._files, path)


def all_ranges(env: Env, path: str) -> Ranges:
    """Where the bytes of a directory's files come from, its tiers included."""
    return TierRanges(env, ranges_for(env, path))
