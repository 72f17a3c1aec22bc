"""Where a scan's bytes come from: the seam between pieces of files and whatever stores them.

`Ranges` knows what a piece's path means. `LocalRanges` reads the machine's own files through `Env`;
an object store needs the same three calls.
"""

from typing import Final, Protocol

from tidelog.env import Env, File
from tidelog.scan.pieces import identity_text
from tidelog.scan.split import Piece
from tidelog.storage import files
from tidelog.storage.handles import typed_reads
from tidelog.types import Buffer

# A file that may still be cut is copied, not mapped, in parts that stay in the cache for decoding.
READ_BYTES: Final = 1 << 20
WHOLE: Final = 1 << 62
# Less than this is copied too: that takes less time than to map a file, and to take the map away.
MAP_BYTES_MIN: Final = 2 << 20


class RangeSource(Protocol):
    """One file, open for reading ranges of it."""

    @property
    def read_bytes(self) -> int:
        """How much to ask for at a time."""
        ...

    def read(self, start: int, size: int) -> Buffer:
        """The bytes from position `start`; fewer than `size` only where the file ends."""
        ...

    def close(self) -> None:
        """Let go of the file; what was read stays valid."""
        ...


class Ranges(Protocol):
    """A store of files."""

    def open(self, piece: Piece) -> RangeSource:
        """The piece's log file.

        Raises:
            FileNotFoundError: It has gone, or is another file by now.
        """
        ...

    def read_small(self, path: str) -> bytes:
        """A whole small file, such as a sidecar; raises FileNotFoundError."""
        ...


class _MappedSource:
    """A finished file: bytes are views of its map."""

    read_bytes = WHOLE

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def read(self, start: int, size: int) -> memoryview:
        return self._view[start : start + size]

    def close(self) -> None:
        self._view = memoryview(b"")


class _FileSource:
    """A file that may be cut by its writer: bytes are copied."""

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
    """The machine's own files."""

    def __init__(self, env: Env) -> None:
        self._files = env.files

    def open(self, piece: Piece) -> RangeSource:
        """The piece's log file.

        Raises:
            FileNotFoundError: It has gone or was replaced.
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
        # Asked after opening: a file that was replaced in between is found out too.
        found = identity_text(self._files.stat(piece.path).identity)
        if found != piece.identity:
            source.close()
            raise FileNotFoundError(f"{piece.path}: replaced by another file")
        return source

    def read_small(self, path: str) -> bytes:
        """A whole small file; raises FileNotFoundError, or StorageFailure where the disk fails."""
        with typed_reads(path):
            return files.read_file(self._files, path)
