"""Two system calls that Python's library does not give as we need them: maps, and locks of files.

Only implementations of `tidelog.env.FileSystem` use them.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import weakref
from typing import Final


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
# Linux's alone (5.14): read all pages of a map now, and fail where touching one would be a SIGBUS.
_POPULATE_READ: Final = 22 if sys.platform == "linux" else None


def map_descriptor(fd: int, size: int) -> memoryview:
    """Map without keeping a descriptor: `mmap.mmap` holds one, and 10,000 segments need more.

    The array's type is rounded to a power of two because ctypes keeps one type per length for
    ever; only the first `size` bytes are reachable through the view. Unmapped when the last view
    of it is gone.
    """
    return _view(_map(fd, size, 0), size)


def map_resident(fd: int, size: int, position: int) -> memoryview | None:
    """Map some bytes of a finished file that are all in memory by then, read for it if need be.

    None where that can't be had: the file ends before, the disk fails, or the system does not tell.
    Whoever reads them then gets the error, which a map has no way to raise.
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
    """The address of a shared map for reading; `start` is a page's."""
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
    if address is None or address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(address)


def _view(address: int, size: int) -> memoryview:
    """A map as a view, unmapped with it."""
    array = (ctypes.c_ubyte * (1 << size.bit_length())).from_address(address)
    weakref.finalize(array, _LIBC.munmap, address, size)
    return memoryview(array).cast("B")[:size].toreadonly()


# struct flock: write lock, from the start of the file, to its end whatever it is, no process id.
_WHOLE_FILE: Final = struct.pack("hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock_descriptor(fd: int) -> None:
    """Lock a whole file for this descriptor, without waiting.

    Where the system has them, by a lock of the open file: it excludes another opening in this
    process too, and it meets the locks of Kafka's JVM, which `flock` on Linux does not.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
