"""Memory of columns is reused only when no object references the memory any more."""

import importlib.util
import threading
from typing import Protocol, cast

import numpy as np
import pyarrow as pa
import pytest

from tidelog.record.columns.page_reuse import PAGE_BYTES_MIN, FreeMemory
from tidelog.record.kernels.records import Binary

SIZE = 5 * PAGE_BYTES_MIN + 8


class Pages(Protocol):
    """The names of the module `tidelog.record.columns.page_reuse` that the tests use."""

    FREE: FreeMemory

    def new_page(self, size: int) -> memoryview: ...

    def new_binary(self, rows: int, capacity: int) -> Binary: ...


@pytest.fixture
def pages() -> Pages:
    """Load a second instance of the module, whose free memory other tests don't use."""
    spec = importlib.util.find_spec("tidelog.record.columns.page_reuse")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Pages", module)


def new_array(pages: Pages) -> "np.typing.NDArray[np.int64]":
    return np.frombuffer(pages.new_page(SIZE), np.int64, SIZE // 8)


def place(array: "np.typing.NDArray[np.int64]") -> int:
    return int(array.ctypes.data)


def test_the_page_released_last_is_reused_first(pages: Pages) -> None:
    first, second = new_array(pages), new_array(pages)
    places = [place(first), place(second)]
    del first
    del second
    assert pages.FREE.size_bytes >= 2 * SIZE
    again = [new_array(pages) for _ in range(2)]
    assert [place(array) for array in again] == places[::-1]
    assert pages.FREE.size_bytes == 0


def test_the_first_value_of_a_column_begins_at_0_in_a_reused_page(pages: Pages) -> None:
    used = new_array(pages)
    used[:] = 7
    at = place(used)
    del used
    ends = pages.new_binary(SIZE // 4 - 1, 0).ends
    assert (int(ends.ctypes.data), int(ends[0])) == (at, 0)


@pytest.mark.parametrize("keep", ["slice", "buffer", "arrow"])
def test_no_page_is_reused_while_it_is_referenced(keep: str, pages: Pages) -> None:
    array = new_array(pages)
    array[:] = 7
    at = place(array)
    kept: list[object] = []
    if keep == "slice":
        kept.append(array[5:9])
    elif keep == "buffer":
        kept.append(np.frombuffer(memoryview(pa.py_buffer(array[3:].data)), np.int64))
    else:
        buffer = pa.py_buffer(array.data)
        kept.append(pa.Array.from_buffers(pa.int64(), len(array), [None, buffer]).slice(2, 3))
        del buffer
    del array
    assert pages.FREE.size_bytes == 0
    other = new_array(pages)
    other[:] = 1
    assert place(other) != at
    assert set(np.asarray(kept[0]).tolist()) == {7}
    kept.clear()
    assert pages.FREE.size_bytes >= SIZE


def test_free_memory_has_a_bound() -> None:
    free = FreeMemory(bytes_max=3 * SIZE)
    for memory in [free.take(SIZE) for _ in range(5)]:
        free.give(memory)
    assert free.size_bytes == 3 * SIZE


def test_another_thread_may_free_the_pages(pages: Pages) -> None:
    held = [pages.new_page(SIZE)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(60)
    assert pages.FREE.size_bytes >= SIZE


def test_small_arrays_are_left_to_the_allocator(pages: Pages) -> None:
    pages.new_page(PAGE_BYTES_MIN - 1)
    assert pages.FREE.size_bytes == 0


@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES_MIN, PAGE_BYTES_MIN + 1, 1 << 20, 1_300_001])
def test_a_page_is_large_enough_and_wastes_little(size: int, pages: Pages) -> None:
    found = memoryview(pages.new_page(size)).nbytes
    assert size <= found <= size * 5 // 4 + 1
