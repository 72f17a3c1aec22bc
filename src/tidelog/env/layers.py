"""Base classes for file systems on top of another file system, and for read-only files.

`LayeredFiles` has every method of `FileSystem`, and delegates each call to the file system below. A
layer overrides the methods that it implements itself. A layer that refuses changes overrides
`_below`.
"""

from collections.abc import Sequence
from typing import NoReturn

from tidelog.env.seam import DirEntry, File, FileStat, FileSystem, LockHandle
from tidelog.types import Buffer


class LayeredFiles:
    """Base class of a file system that delegates every call to the file system below it.

    Attributes:
        below: The file system below.
    """

    def __init__(self, below: FileSystem) -> None:
        self.below = below

    def _below(self, *_paths: str) -> FileSystem:
        """Return the file system below, for a call that changes or locks these paths.

        Raises OSError if the layer refuses changes.
        """
        return self.below

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem`."""
        return self.below.open(path, write=write, create=create)

    def map(self, path: str, size: int | None = None) -> memoryview:
        """See `FileSystem`."""
        return self.below.map(path, size)

    def stat(self, path: str) -> FileStat:
        """See `FileSystem`."""
        return self.below.stat(path)

    def exists(self, path: str) -> bool:
        """See `FileSystem`."""
        return self.below.exists(path)

    def list_dir(self, path: str) -> list[DirEntry]:
        """See `FileSystem`."""
        return self.below.list_dir(path)

    def make_dirs(self, path: str) -> None:
        """See `FileSystem`."""
        self._below(path).make_dirs(path)

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        self._below(path).remove(path)

    def remove_dir(self, path: str) -> None:
        """See `FileSystem`."""
        self._below(path).remove_dir(path)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self._below(source, target).rename(source, target)

    def sync_dir(self, path: str) -> None:
        """See `FileSystem`."""
        self._below(path).sync_dir(path)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """See `FileSystem`."""
        self._below(path).set_mtime(path, mtime_ms)

    def lock(self, path: str) -> LockHandle:
        """See `FileSystem`."""
        return self._below(path).lock(path)


class ReadOnlyFile:
    """Base class of read-only files that have no resources to release. It refuses every write."""

    def _refuse(self) -> NoReturn:
        """Raise the OSError of a refused change."""
        raise NotImplementedError

    def pwrite(self, _data: Buffer, _position: int) -> int:
        """Refuse the call."""
        self._refuse()

    def pwritev(self, _buffers: Sequence[Buffer], _position: int) -> int:
        """Refuse the call."""
        self._refuse()

    def truncate(self, _size: int) -> None:
        """Refuse the call."""
        self._refuse()

    def sync(self) -> None:
        """Refuse the call."""
        self._refuse()

    def close(self) -> None:
        """Do nothing."""
