"""Two system calls that Python's library does not give as we need them: maps, and locks of files.

Only implementations of `tidelog.env.FileSystem` use them.
"""

import ctypes
import fcntl
import mmap
import os
import struct
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
    return libc


_LIBC: Final = _libc()
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def map_descriptor(fd: int, size: int) -> memoryview:
    """Map without keeping a descriptor: `mmap.mmap` holds one, and 10,000 segments need more.

    The array's type is rounded to a power of two because ctypes keeps one type per length for
    ever; only the first `size` bytes are reachable through the view. Unmapped when the last view
    of it is gone.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
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
