"""Memory of columns is used again when nobody can see it any more, and not before."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from tidelog.record.columns import pages
from tidelog.record.columns.arrays import new_array
from tidelog.record.columns.pages import PAGE_BYTES_MIN, FreeMemory, new_page

SIZE = 5 * PAGE_BYTES_MIN + 8


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> FreeMemory:
    """Free memory of this test alone."""
    fresh = FreeMemory()
    monkeypatch.setattr(pages, "FREE", fresh)
    monkeypatch.setattr(pages._Page.__del__, "__defaults__", (fresh.give,))
    return fresh


def place(array: "np.typing.NDArray[np.int64]") -> int:
    return int(array.ctypes.data)


def test_what_was_let_go_of_last_is_used_first(free: FreeMemory) -> None:
    first, second = new_array(np.int64, SIZE // 8), new_array(np.int64, SIZE // 8)
    places = [place(first), place(second)]
    del first
    del second
    assert free.size_bytes >= 2 * SIZE
    again = [new_array(np.int64, SIZE // 8) for _ in range(2)]
    assert [place(array) for array in again] == places[::-1]
    assert free.size_bytes == 0


@pytest.mark.parametrize("keep", ["slice", "buffer", "arrow"])
def test_nothing_is_used_again_while_somebody_sees_it(keep: str, free: FreeMemory) -> None:
    array = new_array(np.int64, SIZE // 8)
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
    assert free.size_bytes == 0
    other = new_array(np.int64, SIZE // 8)
    other[:] = 1
    assert place(other) != at
    assert set(np.asarray(kept[0]).tolist()) == {7}
    kept.clear()
    assert free.size_bytes >= SIZE


def test_free_memory_has_a_bound() -> None:
    free = FreeMemory(bytes_max=3 * SIZE)
    for memory in [free.take(SIZE) for _ in range(5)]:
        free.give(memory)
    assert free.size_bytes == 3 * SIZE


def test_another_thread_may_let_go(free: FreeMemory) -> None:
    held = [new_page(SIZE)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(60)
    assert free.size_bytes >= SIZE


def test_small_arrays_are_left_to_the_allocator(free: FreeMemory) -> None:
    new_page(PAGE_BYTES_MIN - 1)
    assert free.size_bytes == 0


@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES_MIN, PAGE_BYTES_MIN + 1, 1 << 20, 1_300_001])
def test_there_is_room_and_little_is_wasted(size: int) -> None:
    found = memoryview(new_page(size)).nbytes
    assert size <= found <= size * 5 // 4 + 1
