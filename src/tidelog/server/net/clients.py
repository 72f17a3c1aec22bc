"""All client connections: limits on their number, idle timeouts, and the memory they may use.

A connection's memory is the part of its request that has arrived (not the announced size) plus the
unsent part of its response. The request counts until its response is ready. All connections share
one bound. While the bound is reached, the broker reads from no connection. Exception: the broker
still reads the rest of the request that began to arrive first, so there is always progress. The
memory may therefore exceed the bound by the rest of that request, by responses, and by one read of
each connection that has not been paused yet.

Source: Kafka's `max.connections`, `max.connections.per.ip` and its overrides,
`connections.max.idle.ms`, `queued.max.request.bytes` (which counts a request when its size is
known).
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

from tidelog.protocol.framing import Spares
from tidelog.server.api.node import LOGGER, ClientInfo, Node
from tidelog.server.net.scheduling import BusyPoll, FairQueue, WriteCoalescer
from tidelog.server.runtime.loop import SLICE_MS
from tidelog.server.runtime.reply import Arrivals

NO_BOUND: Final = -1
SMALL_PART: Final = 10_000

# Callback that lets a connection continue reading after a pause.
Resume: TypeAlias = Callable[[], None]


class MemoryBudget:
    """Memory held by all connections. Used only in the event loop's thread.

    Attributes:
        used_bytes: Bytes held now.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Bound the memory at about `limit_bytes`; -1 for no bound."""
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        # `_reading` has the connections in the middle of a request. The connection whose request
        # began first comes first. `_waiting` has the connections in `_reading` that wait for
        # memory.
        self._reading: dict[Resume, None] = {}
        self._waiting: dict[Resume, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether some connection waits for memory."""
        return bool(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether the bound is reached, even if no connection waits."""
        return not self._has_room

    @property
    def has_plenty(self) -> bool:
        """Whether under half of the bound is used, so that a large request may be read at once."""
        return self._limit_bytes == NO_BOUND or 2 * self.used_bytes < self._limit_bytes

    @property
    def small_bytes(self) -> int:
        """Size up to which a slow reader's response never leads to a disconnect."""
        return max(self._limit_bytes, 0) // SMALL_PART

    @property
    def _has_room(self) -> bool:
        return self._limit_bytes == NO_BOUND or self.used_bytes < self._limit_bytes

    def read(self, size_bytes: int, resume: Resume) -> bool:
        """Count received bytes of a request; return False if reading must pause.

        Args:
            size_bytes: Bytes received since the last call.
            resume: The connection's callback; called when the connection may continue to read after
                a pause.
        """
        self.used_bytes += size_bytes
        self._reading[resume] = None  # a connection that is already listed keeps its position
        if self._has_room or next(iter(self._reading)) == resume:
            self._waiting.pop(resume, None)
            return True
        self._waiting[resume] = None
        return False

    def end_read(self, resume: Resume) -> None:
        """End reading, because the request is complete or the client has disconnected.

        No-op if no request was begun.

        The bytes of the request stay counted until `release` is called.
        """
        if resume in self._reading:
            del self._reading[resume]
            self._waiting.pop(resume, None)
            self._resume_waiting()

    def add(self, size_bytes: int) -> None:
        """Count bytes that a connection already holds, even if they exceed the bound."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release bytes. Connections that wait for memory continue while there is room."""
        self.used_bytes -= size_bytes
        self._resume_waiting()

    def _resume_waiting(self) -> None:
        """Resume the connection whose request began first, and others while there is room."""
        while self._waiting:
            longest = next(iter(self._reading))
            resume = longest if longest in self._waiting else next(iter(self._waiting))
            if resume != longest and not self._has_room:
                return
            del self._waiting[resume]
            resume()


class ConnectionMemory:
    """Memory held by one connection. Used only in the event loop's thread.

    Attributes:
        request_bytes: Bytes counted for the request that is being read or processed.
        is_waiting: Whether reading the rest of the request waits for memory.
        sending_since_ms: Monotonic time in ms at which reading of the request began, or continued
            after the last pause for lack of memory; None between requests.
        unread_since_ms: Monotonic time in ms since which a part of a response has been waiting for
            the client to read it; None if nothing waits.
    """

    __slots__ = (
        "_in_flight",
        "_now_ms",
        "_on_room",
        "_queued_bytes",
        "_unsent_bytes",
        "is_waiting",
        "request_bytes",
        "sending_since_ms",
        "unread_since_ms",
    )

    def __init__(
        self, in_flight: MemoryBudget, now_ms: Callable[[], int], on_room: Callable[[], None]
    ) -> None:
        """Create the count of a new connection, which holds no memory.

        Args:
            in_flight: Memory held by all connections.
            now_ms: The monotonic clock, in ms.
            on_room: Called when the rest of a request may be read after a pause.
        """
        self._in_flight = in_flight
        self._now_ms = now_ms
        self._on_room = on_room
        self.request_bytes = 0
        self._unsent_bytes = 0  # in the transport's buffer
        self._queued_bytes = 0  # in the connection's `SendQueue`
        self.is_waiting = False
        self.sending_since_ms: int | None = None
        self.unread_since_ms: int | None = None

    # -- requests ----------------------------------------------------------------------------

    def read(self, size_bytes: int) -> None:
        """Set the number of received bytes of a request; set `is_waiting` if reading must pause."""
        if size_bytes <= self.request_bytes:
            return
        if self.sending_since_ms is None:
            self.sending_since_ms = self._now_ms()
        new_bytes, self.request_bytes = size_bytes - self.request_bytes, size_bytes
        self.is_waiting = not self._in_flight.read(new_bytes, self._read_on)

    def _read_on(self) -> None:
        """Resume reading after a pause, when there is memory again."""
        self.is_waiting = False
        self.sending_since_ms = self._now_ms()  # the client did not cause the pause
        self._on_room()

    def end_read(self) -> None:
        """End reading, when the request is complete."""
        self.sending_since_ms, self.is_waiting = None, False
        self._in_flight.end_read(self._read_on)

    def work_on(self, size_bytes: int) -> None:
        """Count a request of `size_bytes` until its response is ready."""
        self._in_flight.add(size_bytes - self.request_bytes)
        self.request_bytes = size_bytes

    def release_request(self) -> None:
        """Release the request's bytes, when its response is ready."""
        size_bytes, self.request_bytes = self.request_bytes, 0
        if size_bytes:
            self._in_flight.release(size_bytes)

    # -- responses ---------------------------------------------------------------------------

    @property
    def response_bytes(self) -> int:
        """Bytes of responses in memory that the client has not read yet."""
        return self._unsent_bytes + self._queued_bytes

    def hold(self, *, unsent_bytes: int | None = None, queued_bytes: int | None = None) -> None:
        """Set the numbers of unsent bytes in the transport's buffer and in the queue.

        An argument that is None leaves its number unchanged.
        """
        before_bytes = self.response_bytes
        if unsent_bytes is not None:
            self._unsent_bytes = unsent_bytes
        if queued_bytes is not None:
            self._queued_bytes = queued_bytes
        if not self.response_bytes:
            self.unread_since_ms = None
        elif self.unread_since_ms is None:
            self.unread_since_ms = self._now_ms()
        self._in_flight.add(self.response_bytes)
        self._in_flight.release(before_bytes)

    def drop(self) -> None:
        """Release everything after the connection has closed, and drop its callback."""
        self._on_room = _do_nothing
        self._in_flight.end_read(self._read_on)
        self.release_request()
        self.hold(unsent_bytes=0, queued_bytes=0)


def _do_nothing() -> None:
    """Do nothing, because the connection has closed."""


IDLE_CHECK_MS: Final = 1000

# Limits, in ms, for clients that keep other connections waiting for memory. While connections wait
# for memory, a client in the middle of sending a request is disconnected if it sends nothing for
# `STALLED_MS`, or if the request takes longer than `SENDING_MS`. While the memory bound is reached,
# a client may be disconnected if it reads nothing of its response for `STALLED_MS`, or if reading
# takes longer than `SENDING_MS`. With TLS the broker notices only when a client has read a whole
# response, so such a client may read nothing for `SENDING_MS`.
STALLED_MS: Final = 5000

SENDING_MS: Final = 30_000

# If a connection has received no data for this time in ms, its read buffer is freed. A new buffer
# is created when data arrives.
REST_MS: Final = 5000

# Number of connections examined between two checks of the clock.
CLIENTS_PER_CLOCK_READ: Final = 64

# Maximum total size in bytes of buffers of large requests that are kept for reuse.
SPARE_BYTES: Final = 16 << 20


class Client(Protocol):
    """The part of a connection that the limits need."""

    facts: ClientInfo
    memory: ConnectionMemory
    last_active_ms: int

    @property
    def shows_progress(self) -> bool:
        """Whether each part of a response that the client reads counts as activity.

        If the result is False, only the last part of a response counts as activity.
        """
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a request is being processed, during which the client may be silent."""
        ...

    def attend(self) -> bool:
        """Let the system report each received byte; return False if it already did so.

        If the result is True, the system may hold received bytes that it has not reported yet.
        """
        ...

    def rest(self) -> None:
        """Free the read buffer, because the client is silent."""
        ...

    def close(self) -> None:
        """Close without waiting for the client. A request in progress is still carried out."""
        ...

    def stop(self) -> None:
        """Close and drop pending requests, because the broker stops."""
        ...


class Clients:
    """All open connections. Used only in the event loop's thread.

    Attributes:
        in_flight: Memory held by all connections.
        spares: Buffers of large requests, kept for reuse by any connection.
        arrivals: Responses that are ready but sent only after the request that completed them has
            finished.
        coalescer: Coalesces responses of one event-loop iteration when many clients are active.
        fair_queue: Fair queue of connections that have more requests than one turn handles.
        busy_poll: Keeps the event loop awake for the next request.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[Client, None] = {}
        self._by_host: dict[str, int] = {}
        self._limits_read: tuple[str, ...] = ()
        self._limits: dict[str, int] = {}
        self._numbers = 0
        self.in_flight = MemoryBudget(node.config.queued_max_request_bytes)
        self.spares = Spares(SPARE_BYTES)
        self.arrivals = Arrivals()
        self.busy_poll = BusyPoll(node.config.tidelog_busy_poll_us, node.env.clock.monotonic_ns)
        self.coalescer = WriteCoalescer(self.busy_poll)
        self.fair_queue = FairQueue(node.env.clock.monotonic_ns)

    def __len__(self) -> int:
        return len(self._clients)

    def next_number(self) -> int:
        """Return the number of a new connection."""
        self._numbers += 1
        return self._numbers

    def admit(self, client: Client) -> bool:
        """Admit a connection; return False if a limit on the number of connections is reached."""
        config, host = self._node.config, client.facts.host
        count = self._by_host.get(host, 0)
        limit = self._limit_of(host)
        if len(self._clients) >= config.max_connections or count >= limit:
            self._node.metrics.connection_refused()
            LOGGER.warning(
                "refused a connection from %s: open connections of this address %d of %d,"
                " of all addresses %d of %d",
                *(host, count, limit, len(self._clients), config.max_connections),
                extra={"client": host},
            )
            return False
        self._node.metrics.connection_opened()
        self._by_host[host] = count + 1
        self._clients[client] = None
        return True

    def _limit_of(self, host: str) -> int:
        """Return the current limit of connections from an address."""
        config = self._node.config
        texts = config.max_connections_per_ip_overrides
        if texts != self._limits_read:
            pairs = (text.rpartition(":") for text in texts)
            self._limits = {address: int(count) for address, _, count in pairs}
            self._limits_read = texts
        return self._limits.get(host, config.max_connections_per_ip)

    def dismiss(self, client: Client) -> None:
        """Remove a closed connection; no-op if it was not admitted."""
        if client not in self._clients:
            return
        del self._clients[client]
        self._node.metrics.connection_closed()
        host = client.facts.host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def watch_idle(self) -> None:
        """Now and periodically, close connections that are idle or block others for too long.

        With thousands of connections the check runs in slices of some milliseconds.
        """
        if self.in_flight.is_over:
            self._make_room(self._node.env.clock.monotonic_ms())
        self._check_activity(iter(tuple(self._clients)))

    def _check_activity(self, clients: Iterator[Client]) -> None:
        clock = self._node.env.clock
        begun_ms = now_ms = clock.monotonic_ms()
        for number, client in enumerate(clients):
            if client in self._clients:
                self._check_one(client, now_ms)
            if number % CLIENTS_PER_CLOCK_READ == 0:
                now_ms = clock.monotonic_ms()
                if now_ms - begun_ms >= SLICE_MS:
                    self._node.timers.after(1, lambda: self._check_activity(clients))
                    return
        limit_ms = self._node.config.connections_max_idle_ms
        delay_ms = IDLE_CHECK_MS if limit_ms < 0 else min(limit_ms, IDLE_CHECK_MS)
        self._node.timers.after(delay_ms, self.watch_idle)

    def _check_one(self, client: Client, now_ms: int) -> None:
        if self._is_over(client, now_ms):
            client.close()
        elif now_ms - client.last_active_ms > REST_MS:
            client.rest()

    def _make_room(self, now_ms: int) -> None:
        """If the bound is reached, close slow readers of responses until memory is below the bound.

        The clients that hold most memory are closed first. A client that holds almost no memory is
        not closed, for example if its response is read from files.
        """
        least = self.in_flight.small_bytes
        slow = [each for each in self._clients if _reads_too_slowly(each, now_ms)]
        for client in sorted(slow, key=lambda each: each.memory.response_bytes, reverse=True):
            if not self.in_flight.is_over or client.memory.response_bytes <= least:
                return
            text = (
                "closed connection %d from %s: memory limit reached, and the client does not read"
            )
            LOGGER.warning(text, client.facts.number, client.facts.host)
            client.close()

    def _is_over(self, client: Client, now_ms: int) -> bool:
        """Whether to close a client that has been idle, or sending its request, for too long.

        During a large request the system reports received data only once enough bytes have arrived,
        so a slow client may seem silent. If a client seems silent, the system is first set to
        report each byte (`attend`). The client is closed only if it stays silent after that.
        """
        is_slow = self.in_flight.is_full and _is_reading(client)
        if is_slow and _sends_too_slowly(client, now_ms):
            return True
        silent_ms = now_ms - client.last_active_ms
        is_idle = 0 <= self._node.config.connections_max_idle_ms < silent_ms
        is_silent = (is_idle and not client.is_busy) or (is_slow and silent_ms > STALLED_MS)
        return is_silent and not client.attend()

    async def first_pause(self, silent_ms: int, *, limit_ms: int) -> None:
        """Wait until clients have sent nothing for `silent_ms` and all requests are answered.

        If there are no clients, or if they never pause, return after the limit.

        Args:
            silent_ms: Time without a request, in ms.
            limit_ms: Maximum time to wait, in ms.
        """
        before: list[int] = []
        for _ in range(limit_ms // silent_ms):
            await asyncio.sleep(silent_ms / 1000)
            # Each client's time of last activity is compared with its value before the sleep, not
            # with the clock. During a long request this time may be long ago, although the client
            # is not silent.
            active_ms = [each.last_active_ms for each in self._clients]
            if active_ms and active_ms == before and not any(map(_is_busy, self._clients)):
                return
            before = active_ms

    def close(self) -> None:
        """Close all connections. Completed responses are sent."""
        self.coalescer.send()
        for client in tuple(self._clients):
            client.stop()


def _is_busy(client: Client) -> bool:
    return client.is_busy


def _is_reading(client: Client) -> bool:
    """Whether a request has begun to arrive, holds memory, and is delayed only by the client."""
    is_reading = client.memory.sending_since_ms is not None
    # `is_busy` is also true while the broker delays the request for lack of memory.
    return is_reading and not client.is_busy


def _sends_too_slowly(client: Client, now_ms: int) -> bool:
    since_ms = client.memory.sending_since_ms
    return since_ms is not None and now_ms - since_ms > SENDING_MS


def _reads_too_slowly(client: Client, now_ms: int) -> bool:
    """Whether a response stays in memory because its client reads nothing, or reads too slowly."""
    since_ms = client.memory.unread_since_ms
    if since_ms is None:
        return False
    stalled_ms = STALLED_MS if client.shows_progress else SENDING_MS
    return now_ms - client.last_active_ms > stalled_ms or now_ms - since_ms > SENDING_MS
