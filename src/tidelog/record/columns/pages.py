"""Memory for columns, used again: what was let go of last is handed out first.

To have fresh pages zeroed by the system takes as long as to fill them, and what was written a
moment ago is still in a cache. Arrow's pool gives back to the system what another thread than its
own has freed, and batches are mostly dropped in another thread than they were made in.

A page is an object of its own per use: arrays and Arrow buffers over it keep it, and when the last
of them is gone, in whatever thread, its memory is free again. Of free memory there are
`FREE_BYTES_MAX` at most; what is above goes back to Arrow's pool.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Final, cast

import pyarrow as pa

# The columns of some record batches.
FREE_BYTES_MAX: Final = 64 << 20
# Smaller ones come cheaper from the allocator.
PAGE_BYTES_MIN: Final = 32 << 10
# Sizes go up by quarters of a power of two, so that there are few of them and little is wasted.
_STEPS: Final = 4


class FreeMemory:
    """Memory that nobody uses, by size; for all threads, by steps that Python takes whole."""

    def __init__(self, bytes_max: int = FREE_BYTES_MAX) -> None:
        self._by_size: dict[int, list[memoryview]] = {}
        self._bytes_max = bytes_max

    @property
    def size_bytes(self) -> int:
        """How much there is."""
        return sum(size * len(memories) for size, memories in list(self._by_size.items()))

    def take(self, size: int) -> memoryview:
        """Memory of this size: what was given last, or new."""
        try:
            return self._by_size[size].pop()
        except LookupError:
            return _allocate(size)

    def give(self, memory: memoryview) -> None:
        """Keep memory for the next who wants that size, where there is room for it.

        Threads that give at once may each find the same room: one page more of each.
        """
        size = memory.nbytes
        if 0 < size <= self._bytes_max - self.size_bytes:
            self._by_size.setdefault(size, []).append(memory)


FREE: Final = FreeMemory()


class _Page(ctypes.Array[ctypes.c_ubyte]):
    """The memory for one use."""

    _type_ = ctypes.c_ubyte
    _length_ = 0
    memory = memoryview(b"")

    # Bound now: at the end of the process names of modules go before the last arrays do.
    def __del__(self, give: Callable[[memoryview], None] = FREE.give) -> None:
        give(self.memory)


@lru_cache(maxsize=256)  # sizes of four bytes at most, four steps for each bit: all there can be
def _page_type(size: int) -> type[_Page]:
    return type("_Page", (_Page,), {"_length_": size})


def new_page(size: int) -> memoryview:
    """Memory of at least `size` bytes, not filled, which is used again when it is let go of."""
    if size < PAGE_BYTES_MIN:
        return _allocate(size)
    step = (1 << (size - 1).bit_length()) // (2 * _STEPS)
    memory = FREE.take(-(-size // step) * step)
    page = _page_type(memory.nbytes).from_buffer(memory)
    page.memory = memory
    return memoryview(page)


def _allocate(size: int) -> memoryview:
    return memoryview(cast("memoryview", pa.allocate_buffer(size)))
