"""Room for decompressed bodies, one behind the other, that serves again for the next batches."""

from typing import Final

from tidelog.record.scratch import Scratch
from tidelog.types import Buffer

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
