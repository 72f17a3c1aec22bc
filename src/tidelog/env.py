"""The one seam to the operating system: files, directory entries, maps, locks, clocks, randomness.

Nothing else in tidelog opens a file, asks the time or draws a random number, so a test can move
the clock, break the disk, and replay both. `os_env()` is the real thing; tests bring their own.

Rules that every implementation keeps:
- paths are `str`; errors are plain `OSError` (storage turns them into `StorageFailure`);
- `pwrite` may write less than asked, like the system call; `pread` only where the file ends;
- what was written is durable only after `File.sync`, a change of names only after `sync_dir`;
- a map is a read-only view of a file's bytes; it outlives the file's name, and nobody may cut a
  mapped file (writers replace it by a new file and a rename).

Over 400 lines because the rules of the seam and the machine's side of it are read together.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from random import Random, SystemRandom
from typing import Final, NamedTuple, Protocol, cast, runtime_checkable

from tidelog.posix import lock_descriptor, map_descriptor, map_resident
from tidelog.types import Buffer

# pwritev takes at most IOV_MAX buffers; the smallest IOV_MAX of the systems we run on is 1024.
MAX_BUFFERS_PER_WRITE: Final = 1024
# A file of a page or less is read, not mapped: quicker, and the kernel bounds the number of maps.
SMALL_MAP_BYTES: Final = 4096
# Not every system can read without waiting, and not every file system of one that can.
_ASKS_CACHE: Final = hasattr(os, "RWF_NOWAIT")
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
# Where the byte goes that shows whether its page is in memory; nobody looks at it.
_PROBED: Final = (bytearray(1),)


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


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes, modification time in ms, and what tells one file from its replacement."""

    size: int
    mtime_ms: int
    is_dir: bool
    identity: tuple[int, int]


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
            BlockingIOError: Another holder has it.
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


# A machine that slept must not look like one whose wall clock jumped: Linux counts sleep here only.
_RUNNING_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall time in ms since the epoch."""
        return time.time_ns() // 1_000_000  # noqa: TID251 - this is the seam

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment."""
        return time.clock_gettime_ns(_RUNNING_CLOCK) // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since that moment."""
        return time.clock_gettime_ns(_RUNNING_CLOCK)


class ManualClock:
    """A clock that its owner moves: for tests, replays and loading of old data.

    `advance` and `set` move both times together, as if time had passed; `jump` moves wall time
    alone, as when somebody sets the machine's clock.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Wall time in ms since the epoch, as last set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Milliseconds passed since the clock was made."""
        return self._monotonic_ms

    def monotonic_ns(self) -> int:
        """The same in ns."""
        return self._monotonic_ms * 1_000_000

    def advance(self, delta_ms: int) -> None:
        """Let `delta_ms` pass; a negative value moves wall time back and leaves monotonic time."""
        self._now_ms += delta_ms
        self._monotonic_ms += max(delta_ms, 0)

    def set(self, now_ms: int) -> None:
        """Let time pass until `now_ms`."""
        self.advance(now_ms - self._now_ms)

    def jump(self, now_ms: int) -> None:
        """Set wall time to `now_ms` while no time passes."""
        self._now_ms = now_ms


class _OsFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        return self._pread_rest(data, size, position)

    def _pread_rest(self, data: bytes, size: int, position: int) -> bytes:
        """Linux caps one read at 2 GiB, so a short read is no proof of the file's end."""
        parts = [data]
        done = len(data)
        while done < size and data:
            data = os.pread(self._fd, size - done, position + done)
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def is_cached(self, positions: Iterable[int]) -> bool:
        if _ASKS_CACHE:
            fd, probe, flag = self._fd, os.preadv, os.RWF_NOWAIT
            try:
                for at in positions:
                    if not probe(fd, _PROBED, at, flag) and self.read_cached(1, at) is None:
                        return False
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
            else:
                return True
        return all(self.read_cached(1, at) is not None for at in positions)

    def read_cached(self, size: int, position: int) -> Buffer | None:
        if not _ASKS_CACHE:
            return self.pread(size, position)
        data = bytearray(size)
        try:
            done = os.preadv(self._fd, (data,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _NOT_SUPPORTED:
                return self.pread(size, position)
            raise
        if done == size:
            return data
        # Part of it is not in memory, or the file ends there.
        return memoryview(data)[:done] if position + done >= self.size() else None

    def map_resident(self, size: int, position: int) -> memoryview | None:
        return map_resident(self._fd, size, position)

    def send(self, socket: int, size: int, position: int) -> int:
        return os.sendfile(socket, self._fd, position, size)

    def pwrite(self, data: Buffer, position: int) -> int:
        return os.pwrite(self._fd, data, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._fd, buffers, position)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fstat(self._fd)  # a closed handle is an OSError here; fdatasync would say ValueError
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync stops at the drive's cache
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Caches drop handles that other threads may still use; the last user closes them."""
        self.close()


class _OsLock:
    """The descriptor that holds a lock."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFileSystem:
    """The machine's file system (Linux, macOS)."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file. `create` makes it where it is missing (implies `write`); never truncates."""
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        return _OsFile(os.open(path, flags | (os.O_CREAT if create else 0), 0o600))

    def map(self, path: str, size: int | None = None) -> memoryview:
        """A read-only view of the first `size` bytes (all where None); empty for an empty file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = os.fstat(fd).st_size
            wanted = length if size is None else min(size, length)
            if wanted <= SMALL_MAP_BYTES:
                return memoryview(os.pread(fd, wanted, 0) if wanted else b"")
            return map_descriptor(fd, wanted)
        finally:
            os.close(fd)

    def stat(self, path: str) -> FileStat:
        """Facts on a name; raises `FileNotFoundError` where there is none."""
        found = os.stat(path)  # noqa: PTH116 - paths are str at this seam
        return FileStat(
            found.st_size,
            found.st_mtime_ns // 1_000_000,
            stat.S_ISDIR(found.st_mode),
            (found.st_dev, found.st_ino),
        )

    def exists(self, path: str) -> bool:
        """Whether the name exists."""
        return os.path.lexists(path)

    def list_dir(self, path: str) -> list[DirEntry]:
        """The names in a directory, sorted."""
        with os.scandir(path) as entries:
            found = [DirEntry(entry.name, entry.is_dir()) for entry in entries]
        found.sort(key=itemgetter(0))
        return found

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, mode 0700; fine where it exists."""
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103

    def remove(self, path: str) -> None:
        """Remove a file; raises `FileNotFoundError` where there is none."""
        os.unlink(path)  # noqa: PTH108

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)  # noqa: PTH106

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file of the target's name atomically."""
        os.replace(source, target)  # noqa: PTH105

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set a file's modification time."""
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def lock(self, path: str) -> LockHandle:
        """Take an exclusive lock on a file without waiting; `BlockingIOError` where it is held."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock_descriptor(fd)
        except OSError:
            os.close(fd)
            raise
        return _OsLock(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """Everything that tidelog takes from its surroundings, passed explicitly from the top.

    Attributes:
        files: Names and bytes.
        clock: Wall time and monotonic time.
        random: Where ids are drawn from.
        store_options: Settings of object stores that are reached from here, without `store.`.
    """

    files: FileSystem = field(default_factory=OsFileSystem)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


def os_env() -> Env:
    """The real file system, clocks and randomness."""
    return Env()
