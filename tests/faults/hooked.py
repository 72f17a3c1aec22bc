"""The machine's file system with hooks before calls, failing calls, or all bytes in memory."""

import errno
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, cast

from tidelog.env import DirEntry, File, LocalFile, OsFileSystem
from tidelog.types import Buffer

# Calls on an open file.
FILE_CALLS: Final = frozenset({"pread", "pwrite", "pwritev", "truncate", "sync"})
WRITES: Final = frozenset({"pwrite", "pwritev", "sync"})

Hook: TypeAlias = Callable[[str, str], None]


class HookedFile:
    """A file that calls a hook before each call."""

    def __init__(self, inner: File, path: str, disk: "HookedDisk") -> None:
        self._inner = inner
        self._path = path
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name not in FILE_CALLS:
            return cast("object", found)

        def call(*arguments: object) -> object:
            self._disk.hook(name, self._path)
            return found(*arguments)

        return call


class HookedDisk(OsFileSystem):
    """The machine's file system; a hook is called before each call, except on read-only files.

    Attributes:
        hook: Function that is called before each call of the file system, in the same thread, with
            the call's name and path. If the function raises an error, the call has no effect and
            raises the same error.
    """

    def __init__(self, hook: Hook = lambda _call, _path: None) -> None:
        self.hook = hook

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        self.hook("open", path)
        found = super().open(path, write=write, create=create)
        return cast("File", HookedFile(found, path, self)) if write or create else found

    def map(self, path: str, size: int | None = None) -> memoryview:
        self.hook("map", path)
        return super().map(path, size)

    def list_dir(self, path: str) -> list[DirEntry]:
        self.hook("list_dir", path)
        return super().list_dir(path)

    def remove(self, path: str) -> None:
        self.hook("remove", path)
        super().remove(path)

    def remove_dir(self, path: str) -> None:
        self.hook("remove_dir", path)
        super().remove_dir(path)

    def rename(self, source: str, target: str) -> None:
        self.hook("rename", source)
        self.hook("rename to", target)
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.hook("sync_dir", path)
        super().sync_dir(path)


class FailingDisk(HookedDisk):
    """A disk whose calls fail for lack of space while `is_failing` is set.

    Attributes:
        failing: Names of the calls that fail while the disk is full.
        is_failing: Whether the disk is full.
    """

    def __init__(self) -> None:
        super().__init__(self._fail)
        self.failing = WRITES
        self.is_failing = False

    def _fail(self, call: str, _path: str) -> None:
        if self.is_failing and call in self.failing:
            raise OSError(errno.ENOSPC, "the disk is full")


class _WarmFile:
    """A file of the machine that reports that all its bytes are in memory."""

    def __init__(self, inner: File) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return cast("object", getattr(self._inner, name))

    def is_cached(self, _positions: Iterable[int]) -> bool:
        return True

    def read_cached(self, size: int, position: int) -> Buffer | None:
        return self._inner.pread(size, position)

    def send(self, socket: int, size: int, position: int) -> int:
        return cast("LocalFile", self._inner).send(socket, size, position)


class WarmDisk(FailingDisk):
    """A disk that reports all its bytes as cached in memory, even if they are not."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return cast("File", _WarmFile(super().open(path, write=write, create=create)))
