"""Buffers that serve again, for what is needed only while something is looked at.

A large buffer that is made and dropped for each batch costs more than what is done with it: the
system hands out its pages one by one, each of them cleared.
"""

from typing import Final

# A larger buffer is made anew each time, and not kept.
SCRATCH_BYTES_MAX: Final = 4 << 20
_STEP_BYTES: Final = 64 << 10


class Scratch:
    """A buffer that is handed out again when no view of it is left. Safe for several threads."""

    def __init__(self) -> None:
        # None or one. `pop` and `append` of a list are atomic: who has popped it is alone with it.
        self._kept: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        """`size_bytes` to write into; what they hold before is anything.

        They stay the taker's for as long as he holds the view, or a view of it.
        """
        if size_bytes > SCRATCH_BYTES_MAX:
            return memoryview(bytearray(size_bytes))
        try:
            buffer = self._kept.pop()
        except IndexError:
            buffer = bytearray()
        if len(buffer) < size_bytes or not is_free(buffer):
            buffer = bytearray(max(1, -(-size_bytes // _STEP_BYTES)) * _STEP_BYTES)
        room = memoryview(buffer)[:size_bytes]
        if not self._kept:
            self._kept.append(buffer)
        return room


def is_free(buffer: bytearray) -> bool:
    """Whether no view of a buffer is left; nobody else may use it meanwhile."""
    if not buffer:
        return True
    try:
        # Python refuses to change the size of a buffer that somebody looks at.
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
