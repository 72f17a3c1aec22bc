"""The operating system's clocks, files, maps and locks: implementations of the protocols of `seam`.

This module calls `mmap`, `munmap` and `madvise` through ctypes, because each map of Python's `mmap`
module keeps a descriptor.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import ClassVar, Final

from tidelog.env.seam import DirEntry, File, FileStat, HeldHere, LockHandle, NotRegularFile
from tidelog.types import Buffer


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


_LIBC: Final = _libc()
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

# Advice to `madvise` that reads all pages of a map. If a read fails, the call raises an error.
# Without this advice, a later access to an unreadable page of the map would raise SIGBUS. Linux
# supports the advice since 5.14.
_POPULATE_READ: Final = 22 if sys.platform == "linux" else None


def map_descriptor(fd: int, size: int) -> memoryview:
    """Return the first `size` bytes of a file as a read-only view; `fd` can be closed afterwards.

    `mmap.mmap` would keep a descriptor for each map, and 10,000 segments would exceed the limit of
    open files. ctypes creates a type for each length of an array, and never frees these types. To
    create few types, the array under the view is longer than `size`: its length is rounded up to a
    power of two. The view covers only the first `size` bytes. The file is unmapped when the last
    view is deleted.
    """
    return _view(_map(fd, size, 0), size)


def map_resident(fd: int, size: int, position: int) -> memoryview | None:
    """Return bytes of a finished file as a read-only view, after reading them into memory.

    Returns None in three cases: the file is too short, the disk fails, or the system lacks the
    call. The caller then uses an ordinary read, which returns the bytes or raises an error.
    Accessing unreadable bytes in a map would raise a signal instead.
    """
    if _POPULATE_READ is None or size <= 0 or os.fstat(fd).st_size < position + size:
        return None
    start = position - position % mmap.PAGESIZE
    length = position + size - start
    try:
        address = _map(fd, length, start)
    except OSError:
        return None
    if _LIBC.madvise(address, length, _POPULATE_READ) != 0:
        _LIBC.munmap(address, length)
        return None
    return _view(address, length)[position - start :]


def _map(fd: int, size: int, start: int) -> int:
    """Map `size` bytes from `start`, shared and read-only; return the address.

    `start` must be page-aligned.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
    if address is None or address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(address)


def _view(address: int, size: int) -> memoryview:
    """Return a map as a read-only view; the map is removed when the last view is deleted."""
    array = (ctypes.c_ubyte * (1 << size.bit_length())).from_address(address)
    weakref.finalize(array, _LIBC.munmap, address, size)  # noqa: TID251 - waits for nothing
    return memoryview(array).cast("B")[:size].toreadonly()


# A `struct flock`: a write lock from the start of the file to its end, without a process id.
_WHOLE_FILE: Final = struct.pack("hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock_descriptor(fd: int) -> None:
    """Lock a whole file for this descriptor; raises BlockingIOError if it is already locked.

    The call does not wait. On systems with `F_OFD_SETLK`, the lock belongs to the open file
    description, so it also excludes other descriptors of this process. Unlike `flock` on Linux, it
    conflicts with the locks of Kafka's JVM.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Maximum number of buffers in a call of pwritev: the smallest IOV_MAX of supported systems.
MAX_BUFFERS_PER_WRITE: Final = 1024

# Views of up to this number of bytes (one page) are read instead of mapped: reading a page is
# faster, and the system limits the number of maps.
SMALL_MAP_BYTES: Final = 4096

# Whether the system supports reads that don't wait for the disk; some file systems refuse them.
_HAS_NOWAIT: Final = hasattr(os, "RWF_NOWAIT")

_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

# Buffer to read a byte into. The read shows whether the byte's page is in memory; the value is
# ignored.
_PROBED: Final = (bytearray(1),)

# On Linux this clock continues while the machine sleeps. Compared with a clock that stops during
# sleep, the wall clock would seem to have jumped after the sleep.
_RUNNING_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return wall time in ms since the epoch."""
        return time.time_ns() // 1_000_000  # noqa: TID251 - this is the seam

    def monotonic_ms(self) -> int:
        """Return ms since a fixed moment."""
        return time.clock_gettime_ns(_RUNNING_CLOCK) // 1_000_000

    def monotonic_ns(self) -> int:
        """Return ns since a fixed moment."""
        return time.clock_gettime_ns(_RUNNING_CLOCK)


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
        """Read the remaining bytes after a short read.

        A short read does not prove that the file has ended, because Linux reads at most 2 GiB at
        once.
        """
        parts = [data]
        done = len(data)
        while done < size and data:
            data = os.pread(self._fd, size - done, position + done)
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def is_cached(self, positions: Iterable[int]) -> bool:
        if _HAS_NOWAIT:
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
        if not _HAS_NOWAIT:
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
        # The read was short: either the file has ended, or the next byte is not in memory.
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
        os.fstat(self._fd)  # a closed handle raises OSError; fdatasync would raise ValueError
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync stops at the drive's cache
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the descriptor.

        Needed for handles in caches: a cache drops a handle without closing it, because another
        thread may still use the handle.
        """
        self.close()


class _OsLock:
    """The descriptor that holds a lock."""

    # Device and inode of the files that this process has locked.
    locked_files: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = _identity(fd)
        self.locked_files.add(self._file)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.locked_files.discard(self._file)
            os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _open_regular(path: str, flags: int) -> int:
    """Return a descriptor of a regular file or a directory; never waits for a FIFO's other end.

    Raises:
        NotRegularFile: The path is a FIFO, a device or a socket.
        OSError: The call failed.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a directory fails later with EISDIR
        return fd
    os.close(fd)
    kind = "a FIFO" if stat.S_ISFIFO(mode) else "a device or a socket"
    raise NotRegularFile(errno.EINVAL, f"{kind}, where a regular file is expected", path)


class _UnsyncedFile(_OsFile):
    """A file descriptor whose `sync` does nothing: the system writes the bytes to disk later."""

    __slots__ = ()

    def sync(self) -> None:
        os.fstat(self._fd)  # a closed handle raises OSError, as with `_OsFile`


class OsFileSystem:
    """The machine's file system (Linux, macOS)."""

    _opened: ClassVar[type[_OsFile]] = _OsFile

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file without truncating it. `create` creates a missing file (implies `write`)."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        return self._opened(_open_regular(path, flags | (os.O_CREAT if create else 0)))

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Return a read-only view of the first `size` bytes; None for the whole file."""
        fd = _open_regular(path, os.O_RDONLY)
        try:
            length = os.fstat(fd).st_size
            map_bytes = length if size is None else min(size, length)
            if map_bytes <= SMALL_MAP_BYTES:
                return memoryview(os.pread(fd, map_bytes, 0) if map_bytes else b"")
            return map_descriptor(fd, map_bytes)
        finally:
            os.close(fd)

    def stat(self, path: str) -> FileStat:
        """Return size, time and type of a path; raises `FileNotFoundError` if it doesn't exist."""
        result = os.stat(path)  # noqa: PTH116 - paths are str at this seam
        return FileStat(
            result.st_size,
            result.st_mtime_ns // 1_000_000,
            stat.S_ISDIR(result.st_mode),
            (result.st_dev, result.st_ino),
            stat.S_IMODE(result.st_mode),
        )

    def exists(self, path: str) -> bool:
        """Whether the path exists; true also for a symbolic link whose target is missing."""
        return os.path.lexists(path)

    def list_dir(self, path: str) -> list[DirEntry]:
        """Return the entries of a directory, sorted by name."""
        with os.scandir(path) as entries:
            listed = [DirEntry(e.name, e.is_dir(), e.is_symlink()) for e in entries]
        listed.sort(key=itemgetter(0))
        return listed

    def make_dirs(self, path: str) -> None:
        """Create a directory with mode 0700, and missing parents; no-op if it exists.

        The parents' mode follows the umask.
        """
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103 - see `stat`

    def remove(self, path: str) -> None:
        """Remove a file; raises `FileNotFoundError` if it doesn't exist."""
        os.unlink(path)  # noqa: PTH108 - see `stat`

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)  # noqa: PTH106 - see `stat`

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, atomically replacing an existing file at the target."""
        os.replace(source, target)  # noqa: PTH105 - see `stat`

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
        """Take an exclusive lock on a file without waiting.

        Raises the errors of `FileSystem.lock`.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock_descriptor(fd)
        except OSError as error:
            is_ours = isinstance(error, BlockingIOError) and _identity(fd) in _OsLock.locked_files
            os.close(fd)
            if is_ours:
                raise HeldHere(*error.args) from error
            raise
        return _OsLock(fd)


class UnsyncedFiles(OsFileSystem):
    """The machine's file system for files that are not needed after a crash of the machine.

    Nothing is synced: files survive the end of the process, but perhaps not a crash of the machine.
    """

    _opened: ClassVar[type[_OsFile]] = _UnsyncedFile

    def sync_dir(self, path: str) -> None:
        """Do nothing if the directory exists; raises `FileNotFoundError` if it does not exist."""
        self.stat(path)
