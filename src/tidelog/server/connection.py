"""One client's connection: bytes to requests, answers to bytes, one request at a time, in order.

As in Kafka a connection's next request is looked at when the answer to the last one was handed to
the system. So what one client can make the broker hold is one request, one answer, and what had
come before reading paused.
"""

import asyncio
from typing import Final, cast

from tidelog.errors import CorruptMessage, TidelogError
from tidelog.protocol.connection import Frames
from tidelog.server.clients import Clients
from tidelog.server.dispatch import Later, Pieces, answer
from tidelog.server.node import LOGGER, ConnectionFacts, Node
from tidelog.server.outgoing import Outgoing
from tidelog.server.requests import LENGTH_BYTES, Asked, api_name
from tidelog.types import Buffer

# Requests of one client in a row, before others have their turn.
TURN_REQUESTS: Final = 16


class Connection(asyncio.BufferedProtocol):
    """One client. Belongs to the loop's thread."""

    def __init__(self, node: Node, clients: Clients) -> None:
        self._node = node
        self._clients = clients
        self._frames = Frames(self._node.config.socket_request_max_bytes, clients.spares)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Future[None] | None = None
        self._turn: asyncio.Handle | None = None  # when it goes on, while others have theirs
        self._out: Outgoing | None = None
        self._is_paused = False
        # What is counted of this connection: the request that is being read or worked on, and what
        # the client has not taken of answers.
        self._in_flight = clients.in_flight
        self._request_bytes = 0
        self._unsent_bytes = 0
        self._is_waiting = False
        # Since when a request is being read that was counted; None between requests.
        self.sending_since_ms: int | None = None
        self.facts = ConnectionFacts(clients.next_number(), "")
        self._key: int | None = None
        self._now = asyncio.get_running_loop().time
        self.last_active_ms = self._node.env.clock.monotonic_ms()

    # -- what asyncio calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come: it stays if there is room."""
        self._transport = cast("asyncio.Transport", transport)
        self._out = Outgoing(self._transport, self._node.reads, self._go_on, self._cut_off)
        peer = transport.get_extra_info("peername")
        self.facts.host = peer[0] if isinstance(peer, tuple) else "local"
        if not self._clients.admit(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        """The client has gone, or was sent away: nobody waits for an answer any more."""
        self._let_go()
        if self._task is not None:
            self._task.cancel()
        self._in_flight.forget(self._admitted)
        self._in_flight.release(self._request_bytes + self._unsent_bytes)
        self._request_bytes = self._unsent_bytes = 0
        self._clients.dismiss(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio names it
        """Where the next bytes go."""
        try:
            return self._frames.room()
        except CorruptMessage as error:
            self._node.metrics.malformed()
            self._give_up(str(error))
            return memoryview(bytearray(1))

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        if self._transport is not None:
            self.last_active_ms = self._node.env.clock.monotonic_ms()
            self._frames.filled(nbytes)
            self._go_on()

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        if self._out is not None and self._transport is not None:
            self._unsent_bytes += (unsent := self._transport.get_write_buffer_size())
            self._in_flight.add(unsent)
            self._out.pause()

    def resume_writing(self) -> None:
        """The client has taken what there was."""
        self.last_active_ms = self._node.env.clock.monotonic_ms()
        unsent, self._unsent_bytes = self._unsent_bytes, 0
        self._in_flight.release(unsent)
        if self._out is not None:
            self._out.resume()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, so that silence is not the client's."""
        return self._task is not None or self._turn is not None or self._is_waiting

    @property
    def _is_held_up(self) -> bool:
        """Whether the next request has to wait: for an answer, for the client, for its turn."""
        is_full = self._out is not None and self._out.is_full
        return is_full or self._task is not None or self._turn is not None

    # -- requests ----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Work on what has come, until something is not ready or others have their turn."""
        left = TURN_REQUESTS
        try:
            while self._transport is not None and not self._is_held_up:
                frame = self._frames.next()
                if frame is None:
                    self._count_begun()
                    break
                self._handle(frame)
                left -= 1
                if not left and self._transport is not None:
                    self._turn = asyncio.get_running_loop().call_soon(self._next_turn)
        except TidelogError as error:
            if isinstance(error, CorruptMessage):
                self._node.metrics.malformed()
            self._give_up(str(error), error.code)
        except Exception:  # noqa: BLE001 - one connection's trouble is not the others'
            LOGGER.exception("a request of %s failed", self.facts.host)
            self._give_up("an error of our own")
        self._pace()

    def _next_turn(self) -> None:
        self._turn = None
        self._go_on()

    def _count_begun(self) -> None:
        """Ask once for each request of which a part has come to be read to its end."""
        if self._request_bytes or self._is_waiting:
            return
        size = self._frames.begun_bytes
        if size:
            self._is_waiting = not self._in_flight.admit(size, self._admitted)
            if not self._is_waiting:
                self._begin_request(size)

    def _admitted(self) -> None:
        self._is_waiting = False
        self._begin_request(self._frames.begun_bytes)
        self.last_active_ms = self._node.env.clock.monotonic_ms()  # its silence was ours
        self._pace()

    def _begin_request(self, size: int) -> None:
        self._request_bytes = size
        self.sending_since_ms = self._node.env.clock.monotonic_ms()

    def _release_request(self) -> None:
        size, self._request_bytes = self._request_bytes, 0
        if size:
            self._in_flight.release(size)

    def _handle(self, frame: Buffer) -> None:
        self.sending_since_ms = None
        self._key = key = int.from_bytes(frame[:2], "big")
        asked = Asked(key, len(frame) + LENGTH_BYTES, self._now())
        said = answer(self._node, self.facts, frame)
        if said is None or isinstance(said, list):
            self._send(said, asked)
            self._release_request()
        else:
            if not self._request_bytes:
                self._request_bytes = asked.size_bytes
                self._in_flight.add(asked.size_bytes)
            self._task = asyncio.ensure_future(self._finish(said, asked))
            # Cancelled before its first step it never gets to what it should wait for.
            self._task.add_done_callback(lambda _: said.close())

    async def _finish(self, said: Later, asked: Asked) -> None:
        try:
            pieces = await said
        except asyncio.CancelledError:
            return
        except TidelogError as error:
            self._give_up(str(error), error.code)
            return
        except Exception:  # noqa: BLE001 - one connection's trouble is not the others'
            LOGGER.exception("a request of %s failed", self.facts.host)
            self._give_up("an error of our own")
            return
        self._task = None
        self._send(pieces, asked)
        self._release_request()
        self._go_on()

    def _send(self, pieces: Pieces | None, asked: Asked) -> None:
        size = 0
        if pieces is not None and self._out is not None:
            size = sum(map(len, pieces))
            self._out.send(pieces)
        seconds = self._now() - asked.began_s
        self._node.metrics.request(api_name(asked.key), seconds, asked.size_bytes, size)

    def _pace(self) -> None:
        """Read on until something waits: that has a bound, and a client that goes is noticed."""
        wants_pause = self._is_waiting or (self._is_held_up and not self._frames.is_empty)
        if self._transport is None or wants_pause == self._is_paused:
            return
        self._is_paused = wants_pause
        if wants_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _give_up(self, reason: str, error_code: int | None = None) -> None:
        """Close at once; other connections go on."""
        facts = self.facts
        extra = {
            "client": facts.host,
            "connection": facts.number,
            "api": None if self._key is None else api_name(self._key),
            "error_code": error_code,
        }
        text = "connection %d of %s closed: %s"
        LOGGER.warning(text, facts.number, facts.host, reason, extra=extra)
        self.close()

    def close(self) -> None:
        """Close without waiting for the client."""
        if self._transport is not None:
            self._transport.abort()
            self._let_go()

    def _let_go(self) -> None:
        """Send and read no more; the transport says itself when it has closed."""
        self._transport = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._out is not None:
            self._out.close()
            self._out = None

    def _cut_off(self, error: Exception) -> None:
        """An answer can't be sent to its end."""
        if isinstance(error, ConnectionError):
            self.close()
        else:
            self._give_up(str(error))
