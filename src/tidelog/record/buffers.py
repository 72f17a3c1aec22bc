"""Scratch buffers that are reused from batch to batch, among them room for decompressed bodies.

Allocating a large buffer for each batch costs more than the work done in it, because the system
zeroes every page.
"""

from typing import Final

from tidelog.types import Buffer

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


# Decompressed bytes to look at at a time; one batch alone may have more.
OPENED_BYTES: Final = 4 << 20


# Room beyond that for the last body of a group; a body that needs more room to be decompressed in
# goes elsewhere first.
_SPARE_BYTES: Final = 1 << 20


class Arena(Scratch):
    """Bodies of one group of batches. For one thread; who clears it lets go of what it holds.

    Attributes:
        used: Bytes that are taken.
    """

    def __init__(self, size_bytes: int = OPENED_BYTES + _SPARE_BYTES) -> None:
        """An empty one."""
        super().__init__()
        self._bytes = bytearray(size_bytes)
        self._room = memoryview(self._bytes)
        self.used = 0

    def clear(self) -> None:
        """Begin anew: what was put in before is overwritten."""
        self.used = 0

    def take(self, size_bytes: int) -> memoryview:
        """Room to decompress into, behind what is there; other memory where it is too small."""
        if size_bytes > len(self._bytes) - self.used:
            return memoryview(bytearray(size_bytes))
        return self._room[self.used : self.used + size_bytes]

    def put(self, body: Buffer) -> bool:
        """Add a body, which may lie at the start of what was taken last; False for no room."""
        end = self.used + len(body)
        if end > len(self._bytes):
            return False
        is_here = isinstance(body, memoryview) and body.obj is self._bytes
        if not is_here:
            self._room[self.used : end] = body
        self.used = end
        return True

    @property
    def content(self) -> memoryview:
        """All bodies."""
        return self._room[: self.used]
