"""Runs kernels on arrays with guarded edges, to compare compiled and interpreted kernels."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

GUARD = 64
CANARY = 0x5A

Number = TypeVar("Number", bound=np.generic)


def frozen(data: bytes) -> npt.NDArray[np.uint8]:
    """Return bytes in the form for kernels: a read-only array."""
    array = np.frombuffer(data, np.uint8).copy()
    array.flags.writeable = False
    return array


class Guarded:
    """Creates arrays between guard bytes, and checks whether the guard bytes are unchanged."""

    def __init__(self) -> None:
        self._whole: list[npt.NDArray[np.uint8]] = []
        self._inner: list[npt.NDArray[np.generic]] = []

    def array(self, shape: int | tuple[int, ...], kind: type[Number]) -> npt.NDArray[Number]:
        """Return an array of canary bytes between guard bytes."""
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        whole = np.full(size + 2 * GUARD, CANARY, np.uint8)
        inner = whole[GUARD : GUARD + size].view(kind).reshape(shape)
        self._whole.append(whole)
        self._inner.append(inner)
        return inner

    def is_intact(self) -> bool:
        """Whether all guard bytes are unchanged."""
        edges = [np.concatenate((whole[:GUARD], whole[-GUARD:])) for whole in self._whole]
        return all(bool((edge == CANARY).all()) for edge in edges)

    def content(self) -> list[bytes]:
        """Return the bytes of every created array."""
        return [inner.tobytes() for inner in self._inner]


def run_guarded(
    work: Callable[[Guarded], object],
) -> tuple[object, list[bytes]]:
    """Return the result of `work`, and the content of its arrays.

    Raises:
        AssertionError: `work` wrote outside one of the arrays.
    """
    guarded = Guarded()
    result = work(guarded)
    assert guarded.is_intact()
    return result, guarded.content()
