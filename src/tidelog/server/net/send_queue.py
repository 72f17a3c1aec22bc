"""Sends a connection's bytes and file regions: by sendfile, through a thread, or by the transport.

Without TLS, and if the system has sendfile, bytes are sent by the socket itself, not by the
transport. The event loop reports when the socket accepts more. Regions in the page cache are sent
by sendfile without a copy. A thread reads other regions in chunks.

With TLS, or if the system has no sendfile, all bytes go through the transport. Each file region is
then given to the transport in chunks until the transport pauses the queue.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias, cast

from tidelog.errors import StorageFailure
from tidelog.server.partitions.file_pieces import PROBE_BYTES, PROBE_RARELY_BYTES, FilePiece
from tidelog.server.runtime.threads import Work
from tidelog.types import Buffer

# Maximum number of buffers in one system call.
BUFFERS_MAX: Final = 512


def socket_of(transport: asyncio.Transport) -> socket.socket | None:
    """Return the transport's socket; None if bytes must go through the transport."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    inner = transport.get_extra_info("socket")
    if inner is None or not hasattr(os, "sendfile"):
        return None
    return socket.socket(inner.family, inner.type, inner.proto, fileno=inner.fileno())


def send_at_once(to: socket.socket, buffers: list[Buffer], flags: int) -> list[Buffer]:
    """Send buffers with one system call; return the bytes that the socket did not accept."""
    try:
        if len(buffers) == 1:
            sent = to.send(buffers[0], flags)
            if sent == len(buffers[0]):
                return []
        else:
            sent = to.sendmsg(buffers[:BUFFERS_MAX], (), flags)
    except BlockingIOError:
        return buffers
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[number + 1 :]]
        sent -= len(buffer)
    return []


Piece: TypeAlias = Buffer | FilePiece

# If the transport's buffer has more unsent bytes than this number, the transport pauses this queue.
# The piece that makes the buffer exceed this number is still accepted as a whole.
WRITE_HIGH_BYTES: Final = 1 << 20

# Maximum number of bytes read from a file at a time, if sendfile is not used.
CHUNK_BYTES: Final = 256 << 10

# Maximum number of bytes per call of sendfile, so that one client does not block the loop.
SEND_BYTES: Final = 1 << 20

# If a page of a file region was not in the page cache, more pages nearby may be missing. So the
# next `CLOSE_PROBE_BYTES` bytes are probed more densely: one page in each `PROBE_BYTES`.
CLOSE_PROBE_BYTES: Final = 64 << 20

# Number of bytes sent in one turn after which the queue yields the event loop. The last send of a
# turn may exceed this number.
TURN_BYTES: Final = 4 << 20

# Total size in bytes of held responses at which they are sent without waiting for `flush`.
GATHER_BYTES: Final = 64 << 10

# Flag that lets the system send a header in one packet with the bytes that follow.
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class SendQueue:
    """Sending side of a transport. Used only in the event loop's thread.

    `close` is the last call. The other methods can be called in any order before it.

    Attributes:
        queued_bytes: Number of bytes in waiting pieces. Does not include file regions, responses
            held back for `flush`, or bytes in the transport's buffer.
        wakes_late: Whether the system reports received data only once it has more than one byte.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        work: Work,
        on_empty: Callable[[], None],
        on_failure: Callable[[Exception], None],
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an empty queue.

        Args:
            transport: The transport.
            work: Threads for reads of file regions that are not in the page cache.
            on_empty: Called when no piece waits any more and the transport is not paused.
            on_failure: Called if a piece can't be read or sent. Then the connection can't be used
                any more.
            on_progress: Called when the queue begins to wait (for the socket or for its next turn),
                and each time it continues to send.
        """
        self._transport = transport
        self._work = work
        self._on_empty = on_empty
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._pieces: deque[Piece] = deque()
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self.queued_bytes = 0
        self._is_paused = False
        self._is_closed = False
        self._reading: asyncio.Future[bytes] | None = None
        self._socket = socket_of(transport)
        # Duplicate of the socket's descriptor, which the loop watches. The descriptor itself can't
        # be watched, because the loop lets only the transport watch it.
        self._watched: int | None = None
        self._is_watching = False
        self._yielded: asyncio.Handle | None = None  # set until the queue's next turn
        self._probe_bytes_left = 0
        self._wake_bytes = 1
        self.wakes_late = False
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether pieces wait to be sent, or the transport is paused."""
        return self._is_paused or bool(self._pieces)

    @property
    def has_socket(self) -> bool:
        """Whether pieces go to the socket directly, and not through the transport."""
        return self._socket is not None

    def send(self, pieces: Sequence[Piece], *, more: bool = False) -> None:
        """Send pieces after all pieces that already wait.

        Args:
            pieces: Pieces in order. A piece must not change before it was sent.
            more: Whether another `send` or a `flush` follows at once. If so, the pieces may be held
                back until this call.
        """
        if (
            len(pieces) == 1
            and not (more or self._gathered or self._pieces)
            and type(pieces[0]) is not FilePiece
        ):  # the case of most responses
            self._send_one(pieces[0])
            return
        if self._pieces or FilePiece in map(type, pieces):
            self._begin_waiting([*self._gathered, *pieces])
            self._pump()
            return
        buffers = cast("Sequence[Buffer]", pieces)
        if not more and not self._gathered:
            self._send_now(list(buffers))
            return
        # All buffers are gathered before any byte is sent. If the socket then does not accept all
        # bytes, the rest goes to `_pieces`, and no gathered buffer can be sent before the rest.
        self._gathered.extend(buffers)
        self._gathered_bytes += sum(map(len, buffers))
        if not more or self._gathered_bytes >= GATHER_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Send the responses that were held back; return whether there were such responses."""
        gathered = self._gathered
        if not gathered:
            return False
        self._gathered, self._gathered_bytes = [], 0
        if len(gathered) == 1:
            self._send_one(gathered[0])
        else:
            self._send_now(gathered)
        return True

    def _send_one(self, buffer: Buffer) -> None:
        to = self._socket
        if to is None:
            self._transport.writelines([buffer])
            return
        try:
            sent = to.send(buffer)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.fail(error)
            return
        if sent < len(buffer):
            self._begin_waiting([memoryview(buffer)[sent:]])
            self._await_room()

    def _send_now(self, buffers: list[Buffer]) -> None:
        if self._socket is None:
            self._transport.writelines(buffers)
            return
        try:
            unsent = send_at_once(self._socket, buffers, 0)
        except OSError as error:
            self.fail(error)
            return
        if unsent:
            self._begin_waiting(unsent)
            self._await_room()

    def pause(self) -> None:
        """Pause sending, because the transport's buffer is full."""
        self._is_paused = True

    def resume(self) -> None:
        """Resume sending, because the transport accepts more."""
        self._is_paused = False
        self._continue()

    def wake_at(self, size_bytes: int) -> None:
        """Make the system report data only once `size_bytes` have arrived, or on a disconnect."""
        if self._socket is not None and size_bytes != self._wake_bytes:
            with suppress(OSError):  # if the system refuses this, it reports each packet
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
            self._wake_bytes = size_bytes
            self.wakes_late = size_bytes > 1

    def close(self) -> None:
        """Stop sending, and drop all unsent pieces."""
        self._is_closed = True
        self._pieces.clear()
        self._gathered.clear()
        self.queued_bytes = 0
        if self._reading is not None:
            self._reading.cancel()
        self._stop_waiting()
        if self._watched is not None:
            os.close(self._watched)
            self._watched = None
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _begin_waiting(self, pieces: Sequence[Piece]) -> None:
        self._gathered, self._gathered_bytes = [], 0
        self._pieces.extend(pieces)
        self.queued_bytes += sum(len(each) for each in pieces if not isinstance(each, FilePiece))

    # -- pumping -----------------------------------------------------------------------------

    def _continue(self) -> None:
        """Continue after a pause, and report when nothing waits any more."""
        self._pump()
        if not self._is_closed:
            self._on_progress()
            if not self.is_full:
                self._on_empty()

    def _pump(self) -> None:
        remaining_bytes = TURN_BYTES
        try:
            while self._pieces and not self._is_paused and self._reading is None:
                if remaining_bytes <= 0:
                    self._await_turn()
                    return
                sent = self._step()
                remaining_bytes -= sent
                self._probe_bytes_left -= sent
        except BlockingIOError:
            self._await_room()
        except (OSError, StorageFailure) as error:
            self.fail(error)
        else:
            self._stop_waiting()

    def fail(self, error: Exception) -> None:
        """Drop the waiting pieces, and report the error to `on_failure`."""
        self._pieces.clear()
        self.queued_bytes = 0
        self._stop_waiting()
        self._on_failure(error)

    def _step(self) -> int:
        """Send the first pieces or start a cold read, or both; return the number of bytes sent.

        Raises:
            BlockingIOError: The socket accepts nothing now.
            OSError: Sending or reading failed.
            StorageFailure: Reading failed.
        """
        pieces, to = self._pieces, self._socket
        piece, sent_before = pieces[0], 0
        if type(piece) is not FilePiece:
            head = piece
            if to is None or len(pieces) == 1 or type(pieces[1]) is not FilePiece:
                return self._send_buffers()
            # Usually one buffer precedes each file piece.
            sent_before = to.send(head, _MORE)
            self.queued_bytes -= sent_before
            if sent_before < len(head):
                pieces[0] = memoryview(head)[sent_before:]
                return sent_before
            pieces.popleft()
            piece = pieces[0]
            assert isinstance(piece, FilePiece)
        size = min(piece.size_bytes, SEND_BYTES)
        if not self._is_cached(piece, size):
            self._read_cold(piece)
            return sent_before
        if to is None:
            return self._write(piece.read(min(size, CHUNK_BYTES)))
        sent = piece.send(to.fileno(), size)
        if sent < piece.size_bytes:
            piece.skip(sent)
        else:
            pieces.popleft()
        return sent_before + sent

    def _is_cached(self, piece: FilePiece, size: int) -> bool:
        """Whether all probed pages of the first `size` bytes are in the page cache."""
        distance = PROBE_RARELY_BYTES if self._probe_bytes_left <= 0 else PROBE_BYTES
        if piece.is_cached(size, distance):
            return True
        self._probe_bytes_left = CLOSE_PROBE_BYTES
        return False

    def _send_buffers(self) -> int:
        """Send the buffers that precede the next file piece; return the number of bytes sent."""
        pieces, to = self._pieces, self._socket
        if to is not None and len(pieces) == 1:
            return self._send_last(to, cast("Buffer", pieces[0]))
        buffers: list[Buffer] = []
        while self._pieces and not isinstance(self._pieces[0], FilePiece):
            buffers.append(cast("Buffer", self._pieces.popleft()))
        size = sum(map(len, buffers))
        if to is None:
            self._transport.writelines(buffers)
            self.queued_bytes -= size
            return size
        unsent = send_at_once(to, buffers, _MORE if self._pieces else 0)
        self._pieces.extendleft(reversed(unsent))
        sent = size - sum(map(len, unsent))
        self.queued_bytes -= sent
        if not sent:
            raise BlockingIOError
        return sent

    def _send_last(self, to: socket.socket, buffer: Buffer) -> int:
        """Send the only waiting piece; return the number of bytes sent."""
        sent = to.send(buffer)
        self.queued_bytes -= sent
        if sent < len(buffer):
            self._pieces[0] = memoryview(buffer)[sent:]
        else:
            self._pieces.popleft()
        return sent

    def _write(self, data: bytes) -> int:
        piece = self._pieces[0]
        assert isinstance(piece, FilePiece)
        self._take(piece, len(data))
        self._transport.write(data)
        return len(data)

    def _take(self, piece: FilePiece, size: int) -> None:
        """Remove the first `size` bytes of the first piece."""
        if size < piece.size_bytes:
            piece.skip(size)
        else:
            self._pieces.popleft()

    def _replace(self, piece: FilePiece, data: bytes) -> None:
        """Replace the first part of the piece with the bytes that were read."""
        self._take(piece, len(data))
        self._pieces.appendleft(data)
        self.queued_bytes += len(data)

    # -- room in the socket ------------------------------------------------------------------

    def _await_turn(self) -> None:
        """Continue after other connections have had their turn. This needs no system call."""
        if not self._is_watching and self._yielded is None and not self._is_closed:
            self._yielded = asyncio.get_running_loop().call_soon(self._take_turn)
            self._on_progress()

    def _take_turn(self) -> None:
        self._yielded = None
        self._continue()

    def _await_room(self) -> None:
        """Continue when the socket accepts more."""
        if self._is_closed or self._is_watching:
            return
        if self._socket is None:
            self._await_turn()
            return
        loop = asyncio.get_running_loop()
        try:
            if self._watched is None:
                self._watched = os.dup(self._socket.fileno())
            loop.add_writer(self._watched, self._continue)
        except OSError as error:  # no descriptor is available
            self.fail(error)
            return
        self._is_watching = True
        self._on_progress()

    def _stop_waiting(self) -> None:
        if self._yielded is not None:
            self._yielded.cancel()
            self._yielded = None
        if self._is_watching and self._watched is not None:
            self._is_watching = False
            asyncio.get_running_loop().remove_writer(self._watched)

    # -- cold reads --------------------------------------------------------------------------

    def _read_cold(self, piece: FilePiece) -> None:
        size = min(len(piece), CHUNK_BYTES)
        self._reading = asyncio.ensure_future(self._work.run(piece.read, size))
        self._reading.add_done_callback(self._have_read)

    def _have_read(self, reading: "asyncio.Future[bytes]") -> None:
        self._reading = None
        if reading.cancelled() or (self._is_closed and reading.exception() is None):
            return
        error = reading.exception()
        if isinstance(error, OSError | StorageFailure):
            self.fail(error)
            return
        if self._socket is None:
            self._write(reading.result())
        else:
            piece = self._pieces[0]
            assert isinstance(piece, FilePiece)
            self._replace(piece, reading.result())
        self._continue()
