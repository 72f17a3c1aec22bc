"""Scratch buffers for batches and decompressed bodies; they are reused from batch to batch.

Without reuse, the allocation of a large buffer for each batch would cost more than processing the
batch, because the system zeroes every page.
"""

from typing import Final

from tidelog.types import Buffer

# Maximum size in bytes of a buffer that is reused.
SCRATCH_BYTES_MAX: Final = 4 << 20

_STEP_BYTES: Final = 64 << 10


class Scratch:
    """Memory that is reused as soon as no view of it exists any more. Thread-safe."""

    def __init__(self) -> None:
        # At most one buffer. A list's `pop` and `append` are atomic, so only one thread can pop the
        # buffer.
        self._buffers: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        """Return `size_bytes` of memory, not initialized.

        The caller owns the memory as long as a view of it exists.
        """
        if size_bytes > SCRATCH_BYTES_MAX:
            return memoryview(bytearray(size_bytes))
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = bytearray()
        if len(buffer) < size_bytes or not is_free(buffer):
            buffer = bytearray(max(1, -(-size_bytes // _STEP_BYTES)) * _STEP_BYTES)
        room = memoryview(buffer)[:size_bytes]
        if not self._buffers:
            self._buffers.append(buffer)
        return room


def is_free(buffer: bytearray) -> bool:
    """Whether no view of a buffer exists.

    No other thread may use the buffer during the call.
    """
    if not buffer:
        return True
    try:
        # Python refuses to resize a buffer while a view of it exists.
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


# Number of decompressed bytes to process together; a single batch can have more bytes.
OPENED_BYTES: Final = 4 << 20

# Number of additional bytes of memory for the last body of a group. A body that might not fit into
# the buffer's free memory is decompressed to other memory. If it turns out to fit, it is copied to
# the free memory.
_SPARE_BYTES: Final = 1 << 20


class BodyBuffer(Scratch):
    """Decompressed bodies of one group of batches. Only one thread may use it.

    After `clear`, new bodies overwrite the earlier ones, so views of earlier bodies are invalid.

    Attributes:
        used: Number of bytes that the bodies take.
    """

    def __init__(self, size_bytes: int = OPENED_BYTES + _SPARE_BYTES) -> None:
        """Create a buffer without bodies."""
        super().__init__()
        self._bytes = bytearray(size_bytes)
        self._room = memoryview(self._bytes)
        self.used = 0

    def clear(self) -> None:
        """Start a new group, whose bodies overwrite the bodies of the previous group."""
        self.used = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return memory to decompress to: free memory of the buffer, or else new memory."""
        if size_bytes > len(self._bytes) - self.used:
            return memoryview(bytearray(size_bytes))
        return self._room[self.used : self.used + size_bytes]

    def put(self, body: Buffer) -> bool:
        """Add a body; return False, without adding it, if the free memory is too small.

        If the body begins at the start of the memory that `take` returned last, it stays there. Any
        other body must be outside the buffer's memory, and is copied.
        """
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
        """All bodies, one after the other."""
        return self._room[: self.used]
