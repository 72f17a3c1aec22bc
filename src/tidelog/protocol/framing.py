"""Splits a stream into frames: a length of 4 bytes, then that many bytes.

The caller passes received bytes to `feed`. To avoid a copy, the caller can instead receive bytes
into the buffer that `room` returns, and then call `filled` with the number of received bytes.
`room` and `filled` are like `get_buffer` and `buffer_updated` of asyncio's BufferedProtocol. Small
frames share a buffer. A large frame has a buffer of its own. A frame is a view of a buffer. A frame
stays valid as long as the caller holds a reference to it, because a buffer is reused only when no
view of the buffer is left.

When only the length field of a frame has arrived, at most about 128 KiB are allocated for the
frame. The buffer of a longer frame grows with the received bytes, to about twice their number at
most. Exception: the first buffer of a frame may be as large as the largest frame that this
connection has received before.
"""

from collections import deque
from struct import Struct
from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.record.buffers import is_free
from tidelog.types import Buffer

LENGTH_BYTES: Final = 4
LENGTH: Final = Struct(">i")
MAX_FRAME_BYTES: Final = 128 * 1024 * 1024

# Initial size in bytes of the buffer for small frames.
CHUNK_BYTES_MIN: Final = 4 * 1024
# Maximum size in bytes of a small frame, including its length field. A buffer that holds parts of
# several small frames may be larger.
CHUNK_BYTES_MAX: Final = 64 * 1024
# The size in bytes of a large frame's buffer is a multiple of this number, so that frames of
# similar size can reuse the buffer.
_LARGE_STEP_BYTES: Final = 64 * 1024
# Maximum size in bytes of a reused buffer for small frames. A larger buffer was needed once, for
# many bytes that arrived together, and is not reused.
_REUSED_CHUNK_BYTES_MAX: Final = 4 * CHUNK_BYTES_MAX
# Minimum number of free bytes at the end of a buffer. With fewer free bytes, a system call would
# receive too few bytes for its cost.
_ROOM_BYTES_MIN: Final = 1024
SPARE_BYTES: Final = 4 * 1024 * 1024
_SPARES_MAX: Final = 16


class Spares:
    """Reusable buffers for large frames.

    The connections of one event loop may share one `Spares`.
    """

    def __init__(self, limit_bytes: int = SPARE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffers: list[bytearray] = []
        self._spare_bytes = 0

    def take(self, size: int) -> bytearray:
        """Return an unused buffer of at least `size` bytes."""
        for number, buffer in enumerate(self._buffers):
            if size <= len(buffer) <= 4 * size and is_free(buffer):
                del self._buffers[number]
                self._spare_bytes -= len(buffer)
                return buffer
        return bytearray(size)

    def give(self, buffer: bytearray) -> None:
        """Keep a buffer for reuse if it is not too large.

        `take` skips the buffer while a view of it exists.
        """
        if len(buffer) > self._limit_bytes:
            return
        self._buffers.append(buffer)
        self._spare_bytes += len(buffer)
        while self._spare_bytes > self._limit_bytes or len(self._buffers) > _SPARES_MAX:
            self._spare_bytes -= len(self._buffers.pop(0))


class Frames:
    """Splits one stream into frames. Not thread-safe.

    After `room`, the next call must be `filled` or `lone`.
    """

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, spares: Spares | None = None
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._spares = Spares() if spares is None else spares
        # Buffer for small frames. The bytes `_chunk[_start:_end]` were received, but not returned
        # yet.
        self._chunk = bytearray()
        self._start = 0
        self._end = 0
        # Large frame that is being received: its buffer, its size and the number of received bytes,
        # each including the length field.
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._large_have = 0
        self._largest_bytes = 0
        # Buffer for the next large frame, and the expected size of this frame. The expected size is
        # the size of the smaller of the last two large frames; 0 if no large frame is expected.
        self._foreseen: bytearray | None = None
        self._foreseen_bytes = 0
        self._last_bytes = 0
        # Complete large frames that `next` has not returned yet. In the stream, these frames
        # precede the bytes in `_chunk`.
        self._ready: deque[memoryview] = deque()

    def allow(self, max_frame_bytes: int) -> None:
        """Set the maximum length of frames, from the next frame on."""
        self._max_frame_bytes = max_frame_bytes

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes missing from the current frame, or from an incomplete length field."""
        if self._ready:
            return 0
        if self._large is not None:
            return self._large_bytes - self._large_have
        have = self._end - self._start
        if have < LENGTH_BYTES:
            return LENGTH_BYTES - have
        return max(LENGTH_BYTES + self._length() - have, 0)

    @property
    def missing_bytes(self) -> int:
        """Number of bytes missing from a large frame; 0 if no large frame is being received."""
        return 0 if self._large is None else self._large_bytes - self._large_have

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of an incomplete frame; 0 before its length field is complete.

        The value is valid only after `next` has returned all complete frames.
        """
        if self._large is not None:
            return self._large_have
        have = self._end - self._start
        return have if have >= LENGTH_BYTES else 0

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes received but not returned yet."""
        return sum(map(len, self._ready)) + self._large_have + self._end - self._start

    @property
    def is_empty(self) -> bool:
        """Whether all received bytes were returned."""
        return not self._ready and self._large is None and self._start == self._end

    def feed(self, data: Buffer) -> None:
        """Add received bytes.

        Raises:
            CorruptMessage: A length is negative or above the limit.
        """
        left = memoryview(data)
        while left:
            with self.room() as room:
                count = min(len(room), len(left))
                room[:count] = left[:count]
            self.filled(count)
            left = left[count:]

    def rest(self) -> None:
        """Release all buffers that have no unread bytes. The next bytes get a new buffer.

        Without this call, thousands of idle connections might each hold a large buffer.
        """
        self._foreseen = None
        if self._chunk and self.is_empty and is_free(self._chunk):
            self._chunk = bytearray()
            self._start = self._end = 0

    def next(self) -> memoryview | None:
        """Return the next complete frame without its length; None if more bytes are needed.

        Raises:
            CorruptMessage: A length is negative or above the limit; nothing was allocated for it.
        """
        if self._ready:
            return self._ready.popleft()
        start = self._start
        if self._end - start < LENGTH_BYTES:
            return None
        end = start + LENGTH_BYTES + self._length()
        if self._end < end:
            return None
        self._start = end
        return memoryview(self._chunk)[start + LENGTH_BYTES : end]

    def room(self, *, foresees: bool = False) -> memoryview:
        """Return the buffer for the next bytes; never empty.

        Args:
            foresees: Whether to reserve room for a large frame before its length is known.

        Raises:
            CorruptMessage: A length is negative or above the limit.
        """
        if self._foreseen is not None:
            return memoryview(self._foreseen)[: self._foreseen_bytes]
        chunk, end = self._chunk, self._end
        if self._start == end and self._large is None:
            # All received bytes were returned, which is usual between two requests.
            if foresees and self._foreseen_bytes and not self._ready:
                self._foreseen = self._spares.take(_rounded(self._foreseen_bytes))
                return memoryview(self._foreseen)[: self._foreseen_bytes]
            if end < len(chunk) <= _REUSED_CHUNK_BYTES_MAX and is_free(chunk):
                self._start = self._end = 0
                return memoryview(chunk)
        if self._large is None:
            self._make_room()
        elif self._large_have == len(self._large):
            self._grow_large(self._large)
        if self._large is None:
            return memoryview(self._chunk)[self._end :]
        return memoryview(self._large)[self._large_have : self._large_bytes]

    def lone(self, count: int) -> memoryview | None:
        """Return a small frame that arrived complete and alone; `next` does not return it again.

        Call `lone` instead of `filled`. If `lone` returns None, call `filled`.

        Args:
            count: Number of bytes that were put into the buffer that `room` returned.

        Returns:
            The frame without its length. None if the bytes are not exactly one small frame; in this
            case, `lone` has changed nothing.
        """
        if self._end or self._large is not None or self._ready or count < LENGTH_BYTES:
            return None
        if self._foreseen is not None:
            return None
        chunk = self._chunk
        (length,) = LENGTH.unpack_from(chunk)
        if length != count - LENGTH_BYTES or length > self._max_frame_bytes:
            return None
        self._start = self._end = count
        return memoryview(chunk)[LENGTH_BYTES:count]

    def filled(self, count: int) -> None:
        """Accept `count` bytes that the caller has put into the buffer that `room` returned."""
        if self._foreseen is not None:
            self._settle(self._foreseen, count)
        elif self._large is None:
            self._end += count
        else:
            self._large_have += count
            if self._large_have == self._large_bytes:
                self._end_large(self._large)

    def _end_large(self, large: bytearray) -> None:
        """Finish a large frame that is complete."""
        size = self._large_bytes
        self._ready.append(memoryview(large)[LENGTH_BYTES:size])
        self._spares.give(large)
        self._largest_bytes = max(self._largest_bytes, size)
        self._large, self._large_have = None, 0
        self._foreseen_bytes = min(self._last_bytes, size) if size <= SPARE_BYTES else 0
        self._last_bytes = size

    def _settle(self, buffer: bytearray, count: int) -> None:
        """Process bytes received into a buffer that was reserved for a large frame."""
        self._foreseen = None
        size = LENGTH_BYTES + LENGTH.unpack_from(buffer)[0] if count >= LENGTH_BYTES else 0
        if CHUNK_BYTES_MAX < size <= LENGTH_BYTES + self._max_frame_bytes:
            self._large, self._large_bytes, self._large_have = buffer, size, min(count, size)
            if size < count:
                self._put(memoryview(buffer)[size:count])
            if size <= count:
                self._end_large(buffer)
            return
        self._foreseen_bytes = self._last_bytes = 0
        self._put(memoryview(buffer)[:count])
        self._spares.give(buffer)

    def _put(self, data: memoryview) -> None:
        """Copy bytes into `_chunk`. All earlier bytes of `_chunk` must have been returned."""
        if len(data) > len(self._chunk) or not is_free(self._chunk):
            self._chunk = bytearray(max(len(data), CHUNK_BYTES_MIN))
        self._start, self._end = 0, len(data)
        self._chunk[: self._end] = data

    def _make_room(self) -> None:
        """Ensure room for more bytes of the first incomplete frame."""
        have = self._end - self._start
        if have == 0 and self._start and is_free(self._chunk):
            self._begin_again()
        room_bytes = _ROOM_BYTES_MIN
        if have >= LENGTH_BYTES:
            missing = LENGTH_BYTES + self._length() - have
            if missing > 0 and have + missing > CHUNK_BYTES_MAX:
                self._begin_large(have + missing, have)
                return
            room_bytes = missing if missing > 0 else 1
        if len(self._chunk) - self._end < room_bytes:
            self._move_chunk(have + max(room_bytes, _ROOM_BYTES_MIN), have)

    def _begin_again(self) -> None:
        """Empty `_chunk`, so that the next bytes are received at its beginning.

        If the size of `_chunk` differs from the result of `_next_size`, a new buffer replaces
        `_chunk`.
        """
        size = self._next_size()
        if size != len(self._chunk):
            self._chunk = bytearray(size)
        self._start = self._end = 0

    def _move_chunk(self, least: int, have: int) -> None:
        """Move the remaining bytes to the beginning of the chunk, or of a new chunk if needed."""
        rest = bytes(memoryview(self._chunk)[self._start : self._end])
        if least > len(self._chunk):
            self._chunk = bytearray(max(2 * least, CHUNK_BYTES_MIN))
        elif self._next_size() > len(self._chunk) or not is_free(self._chunk):
            self._chunk = bytearray(max(self._next_size(), least))
        self._chunk[:have] = rest
        self._start, self._end = 0, have

    def _next_size(self) -> int:
        """Return the size of the buffer that follows `_chunk`, at most CHUNK_BYTES_MAX.

        If `_chunk` is full, the next buffer has twice its size; otherwise it has the same size.
        """
        size = len(self._chunk)
        return min(2 * size if self._end == size else size, CHUNK_BYTES_MAX)

    def _begin_large(self, size: int, have: int) -> None:
        trusted = max(2 * CHUNK_BYTES_MAX, 2 * have, self._largest_bytes)
        self._large = self._spares.take(_rounded(min(size, trusted)))
        self._large_bytes = size
        self._large_have = have
        with memoryview(self._chunk) as chunk:
            self._large[:have] = chunk[self._start : self._end]
        self._start = self._end

    def _grow_large(self, old: bytearray) -> None:
        have = self._large_have
        self._large = self._spares.take(_rounded(min(self._large_bytes, 2 * have)))
        self._large[:have] = memoryview(old)[:have]

    def _length(self) -> int:
        length: int = LENGTH.unpack_from(self._chunk, self._start)[0]
        if not 0 <= length <= self._max_frame_bytes:
            raise CorruptMessage(
                f"frame of {length} bytes, but 0 to {self._max_frame_bytes} bytes are allowed", at=0
            )
        return length


def _rounded(size: int) -> int:
    return -(-size // _LARGE_STEP_BYTES) * _LARGE_STEP_BYTES
