"""Memory for the columns that kernels fill, and the reuse of its pages.

Fresh pages are expensive, because the system takes as long to zero a page as a kernel takes to fill
it. Arrow's memory pool often needs fresh pages: if one thread allocates memory and another thread
frees it, as in most readers, the pool returns the memory to the system. So this module keeps freed
pages. The most recently freed page is used first, because it is still in a CPU cache. At most about
`FREE_BYTES_MAX` bytes are kept; further pages are returned to Arrow's pool. A page is freed, by any
thread, when the last array or buffer over it is deleted.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.record.kernels.memory import Bytes, Ints, Longs
from tidelog.record.kernels.records import VIEW_WORDS, Binary

if TYPE_CHECKING:
    import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)

# Limit in bytes for the total size of the unused pages that are kept for reuse: enough for the
# columns of several Arrow record batches.
FREE_BYTES_MAX: Final = 64 << 20

# Minimum size of a page in bytes; for smaller memory, an allocation is cheaper than reuse.
PAGE_BYTES_MIN: Final = 32 << 10

# Number of page sizes from one power of two to the next. Few sizes make reuse likely; with four
# sizes, a page exceeds the requested size by less than a quarter.
_STEPS: Final = 4


class FreeMemory:
    """Unused pages by size; thread-safe, because each step is atomic in Python."""

    def __init__(self, bytes_max: int = FREE_BYTES_MAX) -> None:
        self._by_size: dict[int, list[memoryview]] = {}
        self._bytes_max = bytes_max

    @property
    def size_bytes(self) -> int:
        """Total size of the unused pages in bytes."""
        return sum(size * len(memories) for size, memories in list(self._by_size.items()))

    def take(self, size: int) -> memoryview:
        """Return memory of this size: the last freed page of this size, or a new page."""
        try:
            return self._by_size[size].pop()
        except LookupError:
            return _allocate(size)

    def give(self, memory: memoryview) -> None:
        """Keep a page for reuse, or release it if the unused pages would exceed `FREE_BYTES_MAX`.

        If several threads call this method at the same time, each of them may exceed the limit by
        one page.
        """
        size = memory.nbytes
        if 0 < size <= self._bytes_max - self.size_bytes:
            self._by_size.setdefault(size, []).append(memory)


FREE: Final = FreeMemory()


class _Page(ctypes.Array[ctypes.c_ubyte]):
    """A page in use. When this object is deleted, the page's memory is kept for reuse."""

    _type_ = ctypes.c_ubyte
    _length_ = 0
    memory = memoryview(b"")

    # `give` is a default argument, because at interpreter exit module globals are deleted before
    # the last arrays are deleted.
    def __del__(self, give: Callable[[memoryview], None] = FREE.give) -> None:
        give(self.memory)


@lru_cache(maxsize=256)  # `new_page` uses at most `_STEPS` sizes for each power of two
def _page_type(size: int) -> type[_Page]:
    return type("_Page", (_Page,), {"_length_": size})


def new_page(size: int) -> memoryview:
    """Return at least `size` bytes of uninitialized memory.

    Memory of `PAGE_BYTES_MIN` or more is a page. After its release, the page is reused.
    """
    if size < PAGE_BYTES_MIN:
        return _allocate(size)
    step = (1 << (size - 1).bit_length()) // (2 * _STEPS)
    memory = FREE.take(-(-size // step) * step)
    page = _page_type(memory.nbytes).from_buffer(memory)
    page.memory = memory
    return memoryview(page)


def _allocate(size: int) -> memoryview:
    return memoryview(pa.allocate_buffer(size))


def new_array(kind: type[Number], size: int) -> "npt.NDArray[Number]":
    """Return an array of `size` numbers, not initialized; see `new_page`."""
    return np.frombuffer(new_page(size * np.dtype(kind).itemsize), kind, size)


def new_binary(rows: int, capacity: int) -> Binary:
    """Return an empty binary column with room for `rows` values of `capacity` bytes in total."""
    ends = new_array(np.int32, rows + 1)
    ends[0] = 0
    return Binary(ends, new_array(np.uint8, capacity), _all_valid(rows), NO_INTS)


def new_views(rows: int) -> Binary:
    """Return an empty column for `rows` values that are views of the log's bytes, not copies."""
    return Binary(NO_INTS, _NO_BYTES, _all_valid(rows), new_array(np.int32, VIEW_WORDS * rows))


def _all_valid(rows: int) -> "Bytes":
    return np.full((rows + 7) >> 3, 0xFF, np.uint8)


# Placeholders for columns that aren't requested.
NO_LONGS: Final[Longs] = np.empty(0, np.int64)

NO_INTS: Final[Ints] = np.empty(0, np.int32)
_NO_BYTES: Final[Bytes] = np.empty(0, np.uint8)
NO_BINARY: Final = Binary(NO_INTS, _NO_BYTES, _NO_BYTES, NO_INTS)
