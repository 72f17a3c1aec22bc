"""One client connection: reads frames, processes one request at a time, sends responses in order.

As in Kafka, the next request waits until the last response has been handed to the system.
Exception: if several requests arrive together, their small responses are sent together. So for one
client the broker holds at most one request, one response (or a few small ones), and the bytes that
arrived before reading paused. Also as in Kafka, a request is carried out even if the client
disconnects before the response. Exception: a request that waits for records is dropped after a
disconnect. After a half-close (`eof_received`) all received requests are processed without throttle
times, and the client gets the responses that it still reads.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tidelog.errors import CorruptMessage, TidelogError
from tidelog.protocol.framing import LENGTH_BYTES, Frames
from tidelog.protocol.messages import FETCH, SHARE_FETCH
from tidelog.server.api.context import ReceivedFrame, api_name, key_of
from tidelog.server.api.dispatch import Answering, Pieces, answer
from tidelog.server.api.node import LOGGER, ClientInfo, Node
from tidelog.server.net.clients import Clients, ConnectionMemory
from tidelog.server.net.scheduling import TURN_NS, TURN_REQUESTS, QueuedTurn
from tidelog.server.net.send_queue import SendQueue
from tidelog.server.runtime.reply import Arrivals, Reply
from tidelog.types import NS_PER_MS

if TYPE_CHECKING:
    from tidelog.server.net.listener_authentication import ListenerAuthentication
    from tidelog.server.net.sasl_session import SaslSession
    from tidelog.server.runtime.loop import Timer


# APIs whose requests may wait long for records. If the client disconnects, only pending requests of
# these APIs are dropped. Other requests are carried out, as in Kafka, because the client may rely
# on their effects.
_FOR_THE_CLIENT: Final = frozenset({FETCH.key, SHARE_FETCH.key})


class PendingResponse:
    """The pending response of one connection, at most one. Used only in the event loop's thread.

    Attributes:
        is_waiting: Whether a response is pending.
    """

    __slots__ = (
        "_arrivals",
        "_is_for_client",
        "_on_failure",
        "_on_pieces",
        "_reply",
        "is_waiting",
    )

    def __init__(
        self,
        arrivals: Arrivals,
        on_pieces: Callable[[Pieces | None, ReceivedFrame], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Create an instance without a pending response.

        Args:
            arrivals: Sends a response once the request that completed it has finished.
            on_pieces: Called with the pieces of a completed response, and with its request.
            on_failure: Called with the error of a failed response.
        """
        self._arrivals = arrivals
        self._on_pieces = on_pieces
        self._on_failure = on_failure
        self._reply: Reply[Pieces | None] | None = None
        self._is_for_client = False
        self.is_waiting = False

    def wait(self, reply: Reply[Pieces | None], request: ReceivedFrame) -> None:
        """Pass the pieces of a response to `on_pieces` once the response is complete."""
        assert not self.is_waiting
        self.is_waiting = True
        self._reply = reply
        self._is_for_client = not reply.is_started or request.key in _FOR_THE_CLIENT
        reply.when_done(partial(self._arrive, request))

    def _arrive(self, request: ReceivedFrame, reply: Reply[Pieces | None]) -> None:
        if reply.is_started:
            self._finish(request, reply)
        else:  # the caller that completes `reply` is still running
            self._arrivals.add(partial(self._finish, request, reply))

    def _finish(self, request: ReceivedFrame, reply: Reply[Pieces | None]) -> None:
        """Pass the pieces to `on_pieces`, unless the response was dropped meanwhile."""
        if self._reply is not reply:
            return
        self._reply = None
        self.is_waiting = False
        try:
            self._on_pieces(reply.value, request)
        except Exception as error:  # noqa: BLE001 - the other connections continue
            self._on_failure(error)

    @property
    def waits_for_client(self) -> bool:
        """Whether only the client needs the pending response, so that it may be dropped."""
        return self.is_waiting and self._is_for_client

    def lose_client(self) -> None:
        """After the client has disconnected, drop the response if only the client needs it."""
        if self.waits_for_client:
            self._drop()

    def give_up(self) -> None:
        """Drop the pending request, and the callbacks, which form a reference cycle."""
        self._on_pieces = self._on_failure = _do_nothing
        self._drop()

    def _drop(self) -> None:
        reply, self._reply = self._reply, None
        self.is_waiting = False
        if reply is not None:
            reply.cancel()


def _do_nothing(*_: object) -> None:
    """Do nothing, because the connection has closed."""


# Maximum number of bytes of a large request that the system collects before it reports them. A
# client that sends fewer bytes than this in `clients.STALLED_MS` seems silent.
WAKE_BYTES_MAX: Final = 256 << 10

# With TLS, at most about this many bytes of further requests are read while a request is pending.
# Without this reading ahead, requests would be lost if the client closes the connection, because
# TLS drops unread data then.
TLS_AHEAD_BYTES: Final = 64 << 10

# Time in ms for which a pending Fetch or ShareFetch is kept after a half-close, because the client
# may still be reading. After this time the request is cancelled.
ENDED_WAIT_MS: Final = 60_000

# Minimum duration in seconds of a request that is logged as slow. Requests of APIs that may wait
# for records or for other members are not logged.
SLOW_S: Final = 1.0

_WAITING: Final = frozenset({1, 11, 14, 78})


class Connection(asyncio.BufferedProtocol):
    """Connection of one client. Used only in the event loop's thread.

    Attributes:
        facts: The client and the connection, as handlers see them.
        memory: Memory that the connection holds.
        last_active_ms: Monotonic time in ms of the last event that shows that the client may be
            alive: the client sent or read bytes, or the broker resumed reading after a pause.
    """

    def __init__(
        self, node: Node, clients: Clients, authentication: "ListenerAuthentication | None" = None
    ) -> None:
        """Create an unconnected instance. Without `authentication`, all clients are anonymous."""
        self._node = node
        self._authentication = authentication
        self._answer: Answering = answer
        self._sasl_session: SaslSession | None = None
        self._clients = clients
        self._frames = Frames(self._node.config.socket_request_max_bytes, clients.spares)
        self._transport: asyncio.Transport | None = None
        self._arrivals = clients.arrivals
        self._coalescer = clients.coalescer
        self._pending = PendingResponse(clients.arrivals, self._send_response, self._fail)
        # Set while the next request waits for this connection's turn or for the end of a throttle
        # time.
        self._next_turn: QueuedTurn | Timer | None = None
        self._out: SendQueue | None = None
        self._is_paused = False
        self._is_in = False
        # `_has_ended`: the client has sent its last byte. `_is_over`: no further request is
        # processed.
        self._has_ended = self._is_over = False
        self._deadline: Timer | None = None  # cancels a pending fetch after a half-close
        self._ahead_bytes = 0
        self.facts = ClientInfo(clients.next_number(), "")
        self._key: int | None = None
        # The loop's own clock may have a resolution of only milliseconds.
        self._now_ns = node.env.clock.monotonic_ns
        self._monotonic_ms = node.env.clock.monotonic_ms
        self.memory = ConnectionMemory(clients.in_flight, self._monotonic_ms, self._read_on)
        self.last_active_ms = self._monotonic_ms()
        # Monotonic time in ns from which the duration of the next request is measured.
        self._began_ns = 0

    # -- called by asyncio -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection if the limits allow it, else abort it."""
        self._transport = cast("asyncio.Transport", transport)
        self._out = SendQueue(
            self._transport, self._node.reads, self._resume, self._cut_off, self._progressed
        )
        peer = transport.get_extra_info("peername")
        # The time for authentication includes the TLS handshake, so it begins at the accept.
        accepted_ms, self.last_active_ms = self.last_active_ms, self._monotonic_ms()
        host = peer[0] if isinstance(peer, tuple) else "local"
        if transport.get_extra_info("sslcontext") is not None:
            self._ahead_bytes = TLS_AHEAD_BYTES
        if self._is_over or not (self._is_in or self.admit(host)):
            self._transport.abort()
        elif self._authentication is not None:
            self._identify_client(self._authentication, self.last_active_ms - accepted_ms)

    def admit(self, host: str) -> bool:
        """Count the connection; return False if a limit is reached.

        The listener calls this method when it accepts a connection. With TLS, `connection_made` is
        called later, after the handshake.
        """
        self.facts.host = host
        self._is_in = self._clients.admit(self)
        return self._is_in

    def _identify_client(self, authentication: "ListenerAuthentication", waited_ms: int) -> None:
        """Determine the principal or require SASL. The client was accepted `waited_ms` ms ago."""
        assert self._transport is not None
        self.facts.address = authentication.address
        try:
            self.facts.principal = authentication.principal(self._transport)
        except TidelogError as error:
            self._give_up(str(error))
            return
        if authentication.has_sasl:
            from tidelog.server.net.sasl_session import FRAME_BYTES_MAX, SaslSession

            self._frames.allow(FRAME_BYTES_MAX)
            self._sasl_session = SaslSession(
                self._node, self.facts, authentication, waited_ms=waited_ms, on_late=self._give_up
            )
            self._answer = self._sasl_session.answer

    def _pass(self, sasl_session: "SaslSession") -> None:
        """After a SASL response, close the connection or allow large requests.

        The connection is closed if the session requires it. Large requests are allowed once the
        client has authenticated.
        """
        if sasl_session.is_closing:
            transport = self._transport
            self._is_over = True
            self._release()
            if transport is not None:
                transport.close()
        elif sasl_session.is_open:
            self._frames.allow(self._node.config.socket_request_max_bytes)

    def eof_received(self) -> bool:
        """Remember that the client sends no more; return whether the transport must stay open."""
        self._has_ended = True
        self._flush()
        # A throttle time slows down only clients that send more. It may last for days, so it must
        # not delay the close: a client that has disconnected looks like one that has half-closed.
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._take_next_turn()
        transport = self._transport
        # A TLS transport closes when this method returns, whatever the result is.
        is_plain = transport is not None and not self._ahead_bytes
        if not (is_plain and self._is_blocked()):
            return False
        if self._deadline is None:
            self._deadline = self._node.timers.after(ENDED_WAIT_MS, self._wait_no_more)
        return True

    def _wait_no_more(self) -> None:
        """Close if only the client needs the pending response: it may have stopped reading."""
        self._deadline = None
        if self._pending.waits_for_client:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember that the connection has closed; drop a response that only the client needs."""
        self._is_over = self._is_over or exc is not None
        # A clean close also shows that the client sends no more. `_has_ended` must be set here too,
        # because with TLS `eof_received` possibly was not called.
        self._has_ended = True
        self._release()
        self._pending.lose_client()
        if self._is_over or self._frames.is_empty:
            self._end_if_done()
        else:
            self._process()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        try:
            return self._frames.room(foresees=self._clients.in_flight.has_plenty)
        except CorruptMessage as error:
            self._node.metrics.malformed()
            self._give_up(str(error))
            return memoryview(bytearray(1))

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        if self._transport is None:
            return
        self._began_ns = now_ns = self._now_ns()
        self.last_active_ms = now_ns // NS_PER_MS
        # Usually exactly one whole request has arrived.
        frame = self._frames.lone(nbytes) if self._is_plain() else None
        if frame is None:
            self._frames.filled(nbytes)
            self._process()
        else:
            try:
                holds = self._coalescer.holds or self._coalescer.tries()
                self._handle(frame, more=holds)
                if holds and self._out is not None:
                    self._coalescer.hold(self._out, self._began_ns)
            except Exception as error:  # noqa: BLE001 - the other connections continue
                self._refuse(error)
        if self._arrivals.due:
            self._arrivals.send()

    def pause_writing(self) -> None:
        """Pause sending, because the transport's buffer is full."""
        if self._out is not None and self._transport is not None:
            self.memory.hold(unsent_bytes=self._transport.get_write_buffer_size())
            self._out.pause()

    def resume_writing(self) -> None:
        """Resume sending, because the transport has sent its buffered bytes."""
        self.last_active_ms = self._monotonic_ms()
        self.memory.hold(unsent_bytes=0)
        if self._out is not None:
            self._out.resume()

    def _progressed(self) -> None:
        """Remember that the client read part of a response, and count what is left in memory."""
        self.last_active_ms = self._monotonic_ms()
        self.memory.hold(queued_bytes=0 if self._out is None else self._out.queued_bytes)

    # -- called by `Clients` -----------------------------------------------------------------

    @property
    def shows_progress(self) -> bool:
        """Whether each part of a response that the client reads counts as activity.

        If the result is False, only the last part of a response counts as activity.
        """
        return self._out is not None and self._out.has_socket

    @property
    def is_busy(self) -> bool:
        """Whether a request is being processed, during which the client may be silent.

        A throttle time, which may last for days, does not count, as in Kafka.
        """
        has_turn = type(self._next_turn) is QueuedTurn
        return self._pending.is_waiting or has_turn or self.memory.is_waiting

    def attend(self) -> bool:
        """Let the system report each received byte; return False if it already did so.

        If the result is True, the system may hold received bytes that it has not reported yet. So
        the connection then counts as active now.
        """
        if self._out is None or not self._out.wakes_late:
            return False
        self._out.wake_at(1)
        self.last_active_ms = self._monotonic_ms()
        return True

    def rest(self) -> None:
        """Free the read buffer, because the client is silent."""
        self._frames.rest()

    # -- requests ----------------------------------------------------------------------------

    def _is_blocked(self) -> bool:
        """Whether the next request must wait.

        The request waits for a pending response, for this connection's turn, for the end of a
        throttle time, or until the client has read earlier responses.
        """
        is_full = self._out is not None and self._out.is_full
        return self._pending.is_waiting or self._next_turn is not None or is_full

    def _is_plain(self) -> bool:
        """Whether a request can be answered directly, without `_process`.

        `_process` is needed in each of these cases: `_is_blocked` is True, reading is paused, the
        rest of a request waits for memory, or the system reports received data late.
        """
        out = self._out
        return (
            not self._pending.is_waiting
            and self._next_turn is None
            and not self._is_paused
            and not self.memory.is_waiting
            and out is not None
            and not out.wakes_late
            and not out.is_full
        )

    def _process(self) -> None:
        """Process received requests until a request is pending or this connection's turn ends."""
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the other connections continue
            self._refuse(error)
        out = self._out
        if out is not None:
            out.flush()
        if out is None or self._has_ended:
            self._end_if_done()
            return
        # Usually all received requests were answered, and nothing has to change.
        is_waiting = self.memory.is_waiting
        if not self._frames.is_empty or self._is_paused or is_waiting or out.wakes_late:
            self._pace()
            self._listen(out)

    def _end_if_done(self) -> None:
        """Close after the last response to a client that sends no more.

        If the connection is already closed, free what it held.
        """
        if self._is_blocked():
            return
        transport = self._transport
        if transport is not None:
            self._is_over = True
            self._release()
            transport.close()  # after sending its buffer
            return
        self.facts.close()
        self._pending.give_up()
        self.memory.drop()
        self._clients.dismiss(self)

    def _refuse(self, error: Exception) -> None:
        """Close because of an invalid request. Earlier responses are sent."""
        if isinstance(error, CorruptMessage):
            self._node.metrics.malformed()
        self._flush()
        self._fail(error)

    def _listen(self, out: SendQueue) -> None:
        """Set how many bytes must arrive before the system reports them.

        For a large request, few reads of many bytes cost less than one read for each packet. If
        other connections wait for memory, each byte is reported, so that a client that still sends
        does not seem silent.
        """
        wake_bytes = 0 if self._clients.in_flight.is_full else self._frames.missing_bytes
        out.wake_at(min(wake_bytes, WAKE_BYTES_MAX) or 1)

    def _resume(self) -> None:
        """Process received requests after responses were sent, or when the next turn comes."""
        self._began_ns = self._now_ns()
        self._process()

    def _work(self) -> None:
        """Process received requests for one turn, limited by the number of requests and by time."""
        frames, end_ns = self._frames, self._began_ns + TURN_NS
        for _ in range(TURN_REQUESTS):
            if self._is_over or self._is_blocked():
                return
            frame = frames.next()
            if frame is None:
                self.memory.read(frames.begun_bytes)
                return
            is_last = frames.is_empty
            # Responses to pipelined requests are sent together: all but the last are held back.
            self._handle(frame, more=not is_last)
            if is_last or self._began_ns >= end_ns:  # usually there is only one request
                break
        if not (frames.is_empty or self._is_over or self._is_blocked()):
            self._next_turn = self._clients.fair_queue.wait(self._take_next_turn)

    def _take_next_turn(self) -> None:
        self._next_turn = None
        self.last_active_ms = self._monotonic_ms()  # the client was not idle in the meantime
        self._resume()

    def _flush(self) -> None:
        """Send the responses that were held back."""
        if self._out is not None:
            self._out.flush()

    def _read_on(self) -> None:
        """Read the rest of a request, when there is memory again."""
        self.last_active_ms = self._monotonic_ms()  # the client was not idle in the meantime
        self._pace()

    def _handle(self, frame: memoryview, *, more: bool) -> None:
        """Answer a request. If `more` is true, the response may be held back until a flush."""
        memory = self.memory
        if memory.sending_since_ms is not None:
            memory.end_read()
        began_ns, size_bytes = self._began_ns, len(frame) + LENGTH_BYTES
        self._key = key = key_of(frame)
        outcome = self._answer(self._node, self.facts, frame)
        if outcome is None or type(outcome) is list:
            self._send(outcome, key, size_bytes, began_ns, more=more)
            if memory.request_bytes:
                memory.release_request()
        else:  # the next request must wait for this response
            self._flush()
            memory.work_on(size_bytes)
            reply = cast("Reply[Pieces | None]", outcome)
            self._pending.wait(reply, ReceivedFrame(key, size_bytes, began_ns))
            if self._transport is None:
                self._pending.lose_client()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, TidelogError):
            self._give_up(str(error), error.code)
        else:
            LOGGER.error("request from %s failed", self.facts.host, exc_info=error)
            self._give_up("internal error")
        self._end_if_done()

    def _send_response(self, pieces: Pieces | None, request: ReceivedFrame) -> None:
        """Send a response that was pending, and process requests received meanwhile."""
        self._send(pieces, request.key, request.size_bytes, request.began_ns)
        self.memory.release_request()
        if self._sasl_session is not None:
            self._flush()
            self._pass(self._sasl_session)
        self._process()

    def _send(
        self, pieces: Pieces | None, key: int, size_bytes: int, began_ns: int, *, more: bool = False
    ) -> None:
        """Send a response, and record it in the metrics; see `ReceivedFrame` for the arguments."""
        size = 0
        if pieces is not None and self._out is not None:
            size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
            self._out.send(pieces, more=more)
        if self.facts.throttle_ms:
            self._throttle()
        self._began_ns = now_ns = self._now_ns()
        self._clients.busy_poll.note_request(self.facts.number, began_ns, now_ns, size_bytes + size)
        if now_ns > self._coalescer.due_ns:
            self._coalescer.send()
        seconds = (now_ns - began_ns) * 1e-9
        if seconds >= SLOW_S and key not in _WAITING:
            self._log_slow(key, seconds, size_bytes)
        self._node.metrics.request(api_name(key), seconds, size_bytes, size)

    def _log_slow(self, key: int, seconds: float, size_bytes: int) -> None:
        """Log a slow request. The number of log lines is limited."""
        facts, text = self.facts, "slow request from %s: %s, %.1f s, %d bytes"
        extra = {"client": facts.host, "connection": facts.number, "api": api_name(key)}
        LOGGER.info(text, facts.host, api_name(key), seconds, size_bytes, extra=extra)

    def _throttle(self) -> None:
        """Process no request during the throttle time that the response has reported.

        After a half-close, requests are processed at once.
        """
        delay_ms, self.facts.throttle_ms = self.facts.throttle_ms, 0
        if self._transport is not None and not self._has_ended:
            assert self._next_turn is None
            self._next_turn = self._node.timers.after(delay_ms, self._take_next_turn)

    def _pace(self) -> None:
        """While a request waits, read ahead only up to a bound. A disconnect is still noticed."""
        is_blocked = self._frames.buffered_bytes > self._ahead_bytes and self._is_blocked()
        must_pause = self.memory.is_waiting or is_blocked
        if self._transport is not None and must_pause != self._is_paused:
            self._is_paused = must_pause
            if must_pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _give_up(self, reason: str, error_code: int | None = None) -> None:
        """Log the reason and close at once. Other connections are not affected."""
        number, host = self.facts.number, self.facts.host
        api = None if self._key is None else api_name(self._key)
        extra = {"client": host, "connection": number, "api": api, "error_code": error_code}
        LOGGER.warning("closed connection %d from %s: %s", number, host, reason, extra=extra)
        self.close()

    def close(self) -> None:
        """Close without waiting for the client. A request in progress is still carried out."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
            self._release()
            self.memory.hold(unsent_bytes=0, queued_bytes=0)

    def stop(self) -> None:
        """Close and drop pending requests, because the broker stops."""
        self.close()
        self._pending.give_up()
        self._end_if_done()

    def _release(self) -> None:
        """Stop sending and reading. The transport reports when it has closed."""
        self._transport = None
        if self._is_over or self._frames.is_empty:
            self.facts.close()  # only if no received request still needs `facts`
        if self._sasl_session is not None:
            self._sasl_session.close()
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._out is not None:
            self._out.close()
            self._out = None

    def _cut_off(self, error: Exception) -> None:
        """Close after a failed send.

        If the failure is a disconnect, requests that were received before it are still processed.
        """
        transport = self._transport
        if isinstance(error, ConnectionError) and transport is not None:
            self._release()
            self.memory.hold(unsent_bytes=0, queued_bytes=0)
            transport.abort()
        else:
            self._give_up(str(error))
