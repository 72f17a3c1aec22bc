"""Protocols for clocks, files, directories and locks.

Every implementation keeps these rules:
- paths are `str`; errors are plain `OSError`, which storage turns into `StorageFailure` (object
  stores also raise `StorageFailure` themselves);
- `pwrite` may write fewer bytes than given, like the system call; `pread` returns fewer bytes than
  requested only at the end of the file;
- written bytes are durable after `File.sync`, and changed names are durable after `sync_dir`
  (`UnsyncedFiles` guarantees neither);
- a map is a read-only view of a file's bytes; it stays valid when the file is removed or renamed.
  No code truncates a mapped file: a writer writes a new file and renames it instead.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

from tidelog.lazy_dataclass import dataclass
from tidelog.types import Buffer


class Clock(Protocol):
    """Wall time, which can be changed and can jump, and monotonic time, which never goes back."""

    def now_ms(self) -> int:
        """Return wall time in ms since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Return ms since a fixed moment; never decreases, even if the wall clock is set."""
        ...

    def monotonic_ns(self) -> int:
        """Return ns since a fixed moment, for durations below a millisecond."""
        ...


class File(Protocol):
    """One open file. Positions and sizes are in bytes. Only one thread may write at a time."""

    def pread(self, size: int, position: int) -> bytes:
        """Return at most `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write at `position`, extending the file as needed; return the number of bytes written."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write buffers back to back, like `pwrite`.

        The caller passes at most `MAX_BUFFERS_PER_WRITE` buffers.
        """
        ...

    def size(self) -> int:
        """Return the current size in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate to `size` bytes, or extend with zeros."""
        ...

    def sync(self) -> None:
        """Make bytes and size durable. After a failure the file must not be synced again."""
        ...

    def close(self) -> None:
        """Release the handle; closing twice is allowed."""
        ...


@runtime_checkable
class LocalFile(Protocol):
    """Additional methods of a local file, for callers that must not wait for a disk."""

    def is_cached(self, positions: Iterable[int]) -> bool:
        """Whether the bytes at all these positions are in memory.

        Returns True as well if the system can't report which bytes are in memory.
        """
        ...

    def read_cached(self, size: int, position: int) -> Buffer | None:
        """Read like `File.pread`; return None if the read would wait for the disk.

        If the system can't report whether the read would wait, this method reads and may wait.
        """
        ...

    def send(self, socket: int, size: int, position: int) -> int:
        """Let the kernel send up to `size` bytes from `position` to a socket.

        Returns the number of bytes sent.

        Raises:
            BlockingIOError: The socket accepts nothing now.
        """
        ...


def local_file(file: File) -> LocalFile | None:
    """Return the file if it has the methods of `LocalFile`, else None."""
    return cast("LocalFile", file) if _may_be_local(type(file)) else None


@cache
def _may_be_local(kind: type) -> bool:
    return issubclass(kind, LocalFile)


@runtime_checkable
class MappableFile(Protocol):
    """Additional methods of a local file, for callers that read the whole file once."""

    def map_resident(self, size: int, position: int) -> memoryview | None:
        """Return `size` bytes from `position` of a finished file as a read-only view.

        On return all these bytes are in memory, without a copy. Returns None if the bytes can't be
        brought into memory. The caller then uses `File.pread`, which reads the bytes or raises the
        error.
        """
        ...


def mappable_file(file: File) -> MappableFile | None:
    """Return the file if it has the methods of `MappableFile`, else None."""
    return cast("MappableFile", file) if _may_be_mapped(type(file)) else None


@cache
def _may_be_mapped(kind: type) -> bool:
    return issubclass(kind, MappableFile)


class DirEntry(NamedTuple):
    """One entry of a directory; a tuple, because a directory may have 500,000 entries."""

    name: str
    is_dir: bool
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class FileStat:
    """Facts about a path.

    Attributes:
        size: Size in bytes.
        mtime_ms: Modification time in ms.
        is_dir: Whether the path is a directory.
        identity: Identifies the file; it changes if another file replaces the file at this path.
        permissions: Permission bits of the mode; 0 in storage without permissions, such as object
            stores.
    """

    size: int
    mtime_ms: int
    is_dir: bool
    identity: tuple[int, int]
    permissions: int = 0


class HeldHere(BlockingIOError):
    """The lock is held by this process itself."""


class NotRegularFile(OSError):
    """The path is a FIFO, a device or a socket. The open call did not wait, and read nothing."""


class LockHandle(Protocol):
    """A held lock; released by `close` or by the end of the process."""

    def close(self) -> None:
        """Release the lock; closing twice is allowed."""
        ...


class FileSystem(Protocol):
    """Directories and files. Calls raise the system calls' errors, by the rules of this module."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file without truncating it. `create` creates a missing file (implies `write`)."""
        ...

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Return a read-only view of the first `size` bytes (None for all).

        The view of an empty file is empty. Map only finished files: the view may or may not show
        later writes to the mapped bytes.
        """
        ...

    def stat(self, path: str) -> FileStat:
        """Return size, time and type of a path; raises `FileNotFoundError` if it doesn't exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        ...

    def list_dir(self, path: str) -> list[DirEntry]:
        """Return the entries of a directory, sorted by name."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory with mode 0700, and missing parents; no-op if it exists.

        The parents' mode follows the umask.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file; raises `FileNotFoundError` if it doesn't exist."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, atomically replacing an existing file at the target."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set a file's modification time."""
        ...

    def lock(self, path: str) -> LockHandle:
        """Take an exclusive lock on a file (created if missing) without waiting.

        Raises:
            BlockingIOError: Another holder has the lock. The error is `HeldHere` if this process is
                known to hold the lock.
        """
        ...


@runtime_checkable
class RemoteFiles(Protocol):
    """A `FileSystem` whose files are read over a network in blocks; mapping a file copies it."""

    def is_remote(self, path: str) -> bool:
        """Whether the path is remote; other paths are local."""
        ...

    def forget(self, path: str) -> None:
        """Drop cached listings and files of a folder and of everything below it."""
        ...

    def prefetch(self, paths: Iterable[str]) -> None:
        """Read small files that will be needed; missing files are skipped."""
        ...


def is_remote(files: FileSystem, path: str) -> bool:
    """Whether reading the file takes a request over a network."""
    return _may_be_remote(type(files)) and cast("RemoteFiles", files).is_remote(path)


@cache
def _may_be_remote(kind: type) -> bool:
    """Whether files of this type may be remote.

    The result is cached, because plans check every segment, and `issubclass` compares all methods.
    """
    return issubclass(kind, RemoteFiles)


def forget(files: FileSystem, path: str) -> None:
    """Drop cached listings and files of a folder; no-op for local files, which are never cached."""
    if _may_be_remote(type(files)):
        cast("RemoteFiles", files).forget(path)


def prefetch(files: FileSystem, paths: Iterable[str]) -> None:
    """Read small remote files concurrently, before they are needed; no-op for local files."""
    if _may_be_remote(type(files)):
        cast("RemoteFiles", files).prefetch(paths)
