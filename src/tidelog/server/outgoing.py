"""What a connection has to send: buffers, and pieces of files that are read as the client takes.

What lies in the page cache goes to the socket by the kernel, without a copy here, where the
transport holds nothing back; else it is read by chunks, in a thread where a disk has to be waited
for. The transport holds one chunk at most beside what was handed in.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tidelog.errors import StorageFailure
from tidelog.server.file_pieces import FilePiece
from tidelog.server.work import Work
from tidelog.types import Buffer

Piece: TypeAlias = Buffer | FilePiece

# Above this the transport asks us to wait; an answer in hand is still taken whole.
WRITE_HIGH_BYTES: Final = 1 << 20
# Read at a time where the kernel can't send.
CHUNK_BYTES: Final = 256 << 10
# Sent at a time by the kernel, so that one client does not keep the loop.
SEND_BYTES: Final = 1 << 20
# Sent in one go at most, before others have their turn.
TURN_BYTES: Final = 4 << 20
# Handed to the transport where the socket is full, to be told when there is room again.
STOPPER_BYTES: Final = 64 << 10
# So that a header does not go in a packet of its own.
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class Outgoing:
    """The sending side of a transport. Belongs to the loop's thread.

    Life cycle: (send | pause | resume)* -> close.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        work: Work,
        on_empty: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Nothing is sent yet.

        Args:
            transport: Where to.
            work: Threads for cold reads.
            on_empty: Told when all was taken that had to wait.
            on_failure: Told where a piece can't be read: the connection is of no use any more.
        """
        self._transport = transport
        self._work = work
        self._on_empty = on_empty
        self._on_failure = on_failure
        self._turn_bytes = 0
        self._pieces: deque[Piece] = deque()
        self._is_paused = False
        self._is_stopped = False
        self._is_closed = False
        self._reading: asyncio.Future[bytes] | None = None
        self._socket = _socket_of(transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    @property
    def is_full(self) -> bool:
        """Whether something waits for the client to take it."""
        return self._is_paused or bool(self._pieces)

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send pieces behind those that wait."""
        if not self._pieces and FilePiece not in map(type, pieces):
            self._transport.writelines(pieces)  # type: ignore[arg-type] # all are buffers
            return
        self._pieces.extend(pieces)
        self._pump()

    def pause(self) -> None:
        """The transport holds as much as it may."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self._is_paused = False
        self._start_again()
        self._go_on()

    def close(self) -> None:
        """Send no more."""
        self._is_closed = True
        self._pieces.clear()
        if self._reading is not None:
            self._reading.cancel()
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    # -- pumping -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """After a pause: send on, and tell when nothing waits any more."""
        self._pump()
        if not self.is_full and not self._is_closed:
            self._on_empty()

    def _pump(self) -> None:
        self._turn_bytes = 0
        try:
            while self._pieces and not self._is_paused and self._reading is None:
                if self._turn_bytes >= TURN_BYTES:
                    asyncio.get_running_loop().call_soon(self._go_on)
                    return
                self._step()
        except (OSError, StorageFailure) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._pieces.clear()
        self._on_failure(error)

    def _step(self) -> None:
        piece = self._pieces[0]
        if not isinstance(piece, FilePiece):
            self._write_buffers()
        elif not piece.is_cached(min(len(piece), SEND_BYTES)):
            self._read_cold(piece)
        elif self._socket is None or not piece.can_send or self._is_holding:
            self._write(piece.read(min(len(piece), CHUNK_BYTES)))
        else:
            self._send_file(piece, self._socket)

    @property
    def _is_holding(self) -> bool:
        """Whether the transport has not handed all to the system yet."""
        return self._transport.get_write_buffer_size() > 0

    def _write_buffers(self) -> None:
        """All buffers up to the next piece of a file."""
        buffers: list[Buffer] = []
        while self._pieces and not isinstance(self._pieces[0], FilePiece):
            buffers.append(self._pieces.popleft())  # type: ignore[arg-type] # no FilePiece
        if self._pieces and self._socket is not None and not self._is_holding:
            buffers = _sent_now(self._socket, buffers)
        if buffers:
            self._transport.writelines(buffers)

    def _send_file(self, piece: FilePiece, to: socket.socket) -> None:
        try:
            self._take(piece.send(to.fileno(), min(len(piece), SEND_BYTES)))
        except BlockingIOError:
            # The transport tells when the socket takes more; it has to have something to send.
            self._is_stopped = True
            self._transport.set_write_buffer_limits(high=0)
            self._write(piece.read(min(len(piece), STOPPER_BYTES)))
            if not self._is_paused:
                self._start_again()

    def _start_again(self) -> None:
        if self._is_stopped:
            self._is_stopped = False
            self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def _write(self, data: bytes) -> None:
        self._take(len(data))
        self._transport.write(data)

    def _take(self, size: int) -> None:
        """Put what is left of the first piece in its place."""
        self._turn_bytes += size
        piece = self._pieces.popleft()
        assert isinstance(piece, FilePiece)
        if size < len(piece):
            self._pieces.appendleft(piece.rest(size))

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
            self._fail(error)
            return
        self._write(reading.result())
        self._go_on()


def _socket_of(transport: asyncio.Transport) -> socket.socket | None:
    """The transport's own socket, None where bytes must not go past the transport."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    found = transport.get_extra_info("socket")
    if found is None or not hasattr(os, "sendfile"):
        return None
    return socket.socket(found.family, found.type, found.proto, fileno=found.fileno())


def _sent_now(to: socket.socket, buffers: list[Buffer]) -> list[Buffer]:
    """Send small buffers at once, with more to come; what the socket did not take."""
    head = b"".join(buffers)
    try:
        sent = to.send(head, _MORE)
    except BlockingIOError:
        return [head]
    return [head[sent:]] if sent < len(head) else []
