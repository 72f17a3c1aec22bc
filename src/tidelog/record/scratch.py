"""Buffers that serve again, for what is needed only while something is looked at.

A large buffer that is made and dropped for each batch costs more than what is done with it: the
system hands out its pages one by one, each of them cleared.
"""

import threading
from typing import Final

# A larger buffer is made anew each time, and not kept.
SCRATCH_BYTES_MAX: Final = 4 << 20
_STEP_BYTES: Final = 64 << 10


class Scratch:
    """One buffer for each thread, handed out again only when no view of it is left."""

    def __init__(self) -> None:
        self._local = threading.local()

    def take(self, size_bytes: int) -> memoryview:
        """`size_bytes` to write into; what they hold before is anything.

        They stay the taker's for as long as he holds the view, or a view of it.
        """
        kept: bytearray | None = getattr(self._local, "kept", None)
        if kept is None or len(kept) < size_bytes or not is_free(kept):
            if size_bytes > SCRATCH_BYTES_MAX:
                return memoryview(bytearray(size_bytes))
            steps = max(1, -(-size_bytes // _STEP_BYTES))
            self._local.kept = kept = bytearray(steps * _STEP_BYTES)
        return memoryview(kept)[:size_bytes]


def is_free(buffer: bytearray) -> bool:
    """Whether no view of a buffer is left."""
    try:
        # Python refuses to change the size of a buffer that somebody looks at.
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
