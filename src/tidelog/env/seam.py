"""Protocols for clocks, files, directories and locks.

Every implementation keeps these rules:
- paths are `str`; errors are plain `OSError` (storage turns them into `StorageFailure`);
- `pwrite` may write fewer bytes than given, like the system call; `pread` returns fewer only at the
  end of the file;
- written bytes are durable after `File.sync`, changed names after `sync_dir`;
- a map is a read-only view of a file's bytes and survives the file's name. Nobody truncates a
  mapped file: writers replace it by a new file and a rename.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

from tidelog.types import Buffer


class Clock(Protocol):
    """Wall time, which people set and which may jump, and monotonic time, which only runs on."""

    def now_ms(self) -> int:
        """Wall time in ms since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never runs back, whatever is set."""
        ...

    def monotonic_ns(self) -> int:
        """The same in ns, for what takes less than a millisecond."""
        ...


class File(Protocol):
    """One open file. Positions and sizes are in bytes. Not safe for two threads that write."""

    def pread(self, size: int, position: int) -> bytes:
        """At most `size` bytes from `position`; fewer only where the file ends."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write at `position`, extending the file as needed; how many bytes were written."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Like `pwrite` for at most `MAX_BUFFERS_PER_WRITE` buffers, back to back."""
        ...

    def size(self) -> int:
        """Current size in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, to `size` bytes."""
        ...

    def sync(self) -> None:
        """Make bytes and size durable. After a failure the file must not be synced again."""
        ...

    def close(self) -> None:
        """Release the handle; closing twice is fine."""
        ...


@runtime_checkable
class LocalFile(Protocol):
    """What a file of the machine itself can do besides, for those who must not wait for a disk."""

    def is_cached(self, positions: Iterable[int]) -> bool:
        """Whether the bytes there are in memory; true also where the system can't say."""
        ...

    def read_cached(self, size: int, position: int) -> Buffer | None:
        """As `File.pread`, None where it would wait."""
        ...

    def send(self, socket: int, size: int, position: int) -> int:
        """Let the kernel send at most `size` bytes from `position` to a socket; how many it took.

        Raises:
            BlockingIOError: None, now.
        """
        ...


def local_file(file: File) -> LocalFile | None:
    """The same file where it can do that, else None."""
    return cast("LocalFile", file) if _may_be_local(type(file)) else None


@cache
def _may_be_local(kind: type) -> bool:
    return issubclass(kind, LocalFile)


@runtime_checkable
class MappableFile(Protocol):
    """What a file of the machine itself can do besides, for those who read all of it once."""

    def map_resident(self, size: int, position: int) -> memoryview | None:
        """`size` bytes from `position` of a finished file, as a read-only view without a copy.

        All of them are in memory by then. None where that can't be had: `File.pread` knows why.
        """
        ...


def mappable_file(file: File) -> MappableFile | None:
    """The same file where it can do that, else None."""
    return cast("MappableFile", file) if _may_be_mapped(type(file)) else None


@cache
def _may_be_mapped(kind: type) -> bool:
    return issubclass(kind, MappableFile)


class DirEntry(NamedTuple):
    """One name in a directory; a light thing, since there may be 500,000 of them."""

    name: str
    is_dir: bool
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes, modification time in ms, and what tells one file from its replacement."""

    size: int
    mtime_ms: int
    is_dir: bool
    identity: tuple[int, int]


class HeldHere(BlockingIOError):
    """A lock that this process holds itself."""


class NotRegularFile(OSError):
    """A name of a file stands for a FIFO, a device or a socket; nothing was read or waited for."""


class LockHandle(Protocol):
    """A held lock; released by `close` or by the end of the process."""

    def close(self) -> None:
        """Release the lock; closing twice is fine."""
        ...


class FileSystem(Protocol):
    """Names and files. Every method raises `OSError` as the system call would."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file. `create` makes it where it is missing (implies `write`); never truncates."""
        ...

    def map(self, path: str, size: int | None = None) -> memoryview:
        """A read-only view of the first `size` bytes (all where None); empty for an empty file.

        For files that are finished: whether later writes into those bytes are seen is left open.
        """
        ...

    def stat(self, path: str) -> FileStat:
        """Facts on a name; raises `FileNotFoundError` where there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the name exists."""
        ...

    def list_dir(self, path: str) -> list[DirEntry]:
        """The names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, mode 0700; fine where it exists."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; raises `FileNotFoundError` where there is none."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file of the target's name atomically."""
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
            BlockingIOError: Another holder has it; `HeldHere` where that is in this process, as
                far as it is known.
        """
        ...


@runtime_checkable
class RemoteFiles(Protocol):
    """A `FileSystem` of files that are read by requests: by blocks then; a map is a copy."""

    def is_remote(self, path: str) -> bool:
        """Whether the path lies there; others are the machine's own."""
        ...

    def forget(self, path: str) -> None:
        """Let the next look at that folder, and what is below it, see what is there by then."""
        ...

    def prefetch(self, paths: Iterable[str]) -> None:
        """Read small files that will be asked for; those that don't exist are left out."""
        ...


def is_remote(files: FileSystem, path: str) -> bool:
    """Whether reading the file is a request over a network."""
    return _may_be_remote(type(files)) and cast("RemoteFiles", files).is_remote(path)


@cache
def _may_be_remote(kind: type) -> bool:
    """Asked for every segment of a plan; `isinstance` looks at all names of the protocol."""
    return issubclass(kind, RemoteFiles)


def forget(files: FileSystem, path: str) -> None:
    """See a folder as it will be at the next look; the machine's own are seen so anyway."""
    if _may_be_remote(type(files)):
        cast("RemoteFiles", files).forget(path)


def prefetch(files: FileSystem, paths: Iterable[str]) -> None:
    """Read small files side by side where each is a request."""
    if _may_be_remote(type(files)):
        cast("RemoteFiles", files).prefetch(paths)
