"""Runs a kernel compiled and interpreted on the same bytes, inside arrays with guarded edges."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

GUARD = 64
CANARY = 0x5A

Number = TypeVar("Number", bound=np.generic)


def frozen(data: bytes) -> npt.NDArray[np.uint8]:
    """The bytes as kernels take them: an array that can't be written."""
    array = np.frombuffer(data, np.uint8).copy()
    array.flags.writeable = False
    return array


class Guarded:
    """Hands out arrays that lie between guard bytes, and says whether those are untouched."""

    def __init__(self) -> None:
        self._whole: list[npt.NDArray[np.uint8]] = []
        self._inner: list[npt.NDArray[np.generic]] = []

    def array(self, shape: int | tuple[int, ...], kind: type[Number]) -> npt.NDArray[Number]:
        """An array filled with canary bytes."""
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        whole = np.full(size + 2 * GUARD, CANARY, np.uint8)
        inner = whole[GUARD : GUARD + size].view(kind).reshape(shape)
        self._whole.append(whole)
        self._inner.append(inner)
        return inner

    def is_intact(self) -> bool:
        """Whether all guard bytes are as they were."""
        edges = [np.concatenate((whole[:GUARD], whole[-GUARD:])) for whole in self._whole]
        return all(bool((edge == CANARY).all()) for edge in edges)

    def content(self) -> list[bytes]:
        """The bytes of every array handed out."""
        return [inner.tobytes() for inner in self._inner]


def run_guarded(
    work: Callable[[Guarded], object],
) -> tuple[object, list[bytes]]:
    """What `work` returns, and what it left in its arrays.

    Raises:
        AssertionError: It wrote outside one of them.
    """
    guarded = Guarded()
    result = work(guarded)
    assert guarded.is_intact()
    return result, guarded.content()
