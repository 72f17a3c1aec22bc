"""All client connections: limits on their number, idle time-outs, and the memory they may use.

Each connection counts the bytes of its current request that have arrived (not those announced),
then the whole request until its response is ready, and the unsent part of the response. All
connections share one bound. At the bound, connections that are reading pause, except the one whose
request has been arriving for longest: it is read to its end, so there is always progress. One read
of each unpaused connection may exceed the bound.

Source: Kafka's `max.connections`, `max.connections.per.ip` and its overrides,
`connections.max.idle.ms`, `queued.max.request.bytes` (which counts a request when its size is
known).
"""

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

from tidelog.protocol.framing import Spares
from tidelog.server.api.node import LOGGER, ConnectionFacts, Node
from tidelog.server.net.scheduling import BusyPoll, Line, Turn
from tidelog.server.runtime.loop import SLICE_MS
from tidelog.server.runtime.reply import Arrivals

NO_BOUND: Final = -1


SMALL_PART: Final = 10_000


# A connection that reads: called when it may go on after a pause.
GoOn: TypeAlias = Callable[[], None]


class InFlight:
    """Bytes held by all connections. Belongs to the loop's thread.

    Attributes:
        used_bytes: What is held now.
    """

    def __init__(self, limit_bytes: int) -> None:
        """At most about `limit_bytes`; -1 for no bound."""
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        # In the midst of a request, longest first; of these, who has to wait, in that order.
        self._reading: dict[GoOn, None] = {}
        self._waiting: dict[GoOn, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether somebody has to wait."""
        return bool(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether as much as may be is held, though nobody may wait for it."""
        return not self._has_room

    @property
    def has_plenty(self) -> bool:
        """Whether less than half of what may be is held: one read may bring a large request."""
        return self._limit_bytes == NO_BOUND or 2 * self.used_bytes < self._limit_bytes

    @property
    def small_bytes(self) -> int:
        """What nobody need give back at the bound: it is next to nothing of it."""
        return max(self._limit_bytes, 0) // SMALL_PART

    @property
    def _has_room(self) -> bool:
        return self._limit_bytes == NO_BOUND or self.used_bytes < self._limit_bytes

    def read(self, size_bytes: int, go_on: GoOn) -> bool:
        """Count bytes that have come of a request; False where the rest of it has to wait.

        Args:
            size_bytes: How many have come since the last call.
            go_on: Whose request it is; called once the rest may come, where that had to wait.
        """
        self.used_bytes += size_bytes
        self._reading[go_on] = None  # whoever is in there keeps its place
        if self._has_room or next(iter(self._reading)) == go_on:
            self._waiting.pop(go_on, None)
            return True
        self._waiting[go_on] = None
        return False

    def end_read(self, go_on: GoOn) -> None:
        """The request has come, or its sender has gone; fine where none was begun.

        What was counted stays counted, until it is released.
        """
        if go_on in self._reading:
            del self._reading[go_on]
            self._waiting.pop(go_on, None)
            self._let_in()

    def add(self, size_bytes: int) -> None:
        """Count what is there already."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """It is gone: whoever has waited longest goes on."""
        self.used_bytes -= size_bytes
        self._let_in()

    def _let_in(self) -> None:
        """Let go on who may: the longest at it always, the others while there is room."""
        while self._waiting:
            longest = next(iter(self._reading))
            go_on = longest if longest in self._waiting else next(iter(self._waiting))
            if go_on != longest and not self._has_room:
                return
            del self._waiting[go_on]
            go_on()


class Footprint:
    """Of one connection. Belongs to the loop's thread.

    Attributes:
        request_bytes: What is counted of the request that is being read or worked on.
        is_waiting: Whether the rest of it waits for room.
        sending_since_ms: Since when it is being read, pauses for want of room left out; None
            between requests.
        taking_since_ms: Since when some of an answer waits in memory for the client to take it;
            None where nothing does.
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
        "taking_since_ms",
    )

    def __init__(
        self, in_flight: InFlight, now_ms: Callable[[], int], on_room: Callable[[], None]
    ) -> None:
        """Nothing yet.

        Args:
            in_flight: What all connections hold.
            now_ms: The monotonic clock.
            on_room: Told when the rest of a request may come after it had to wait.
        """
        self._in_flight = in_flight
        self._now_ms = now_ms
        self._on_room = on_room
        self.request_bytes = 0
        self._unsent_bytes = 0  # the transport's
        self._queued_bytes = 0  # ours
        self.is_waiting = False
        self.sending_since_ms: int | None = None
        self.taking_since_ms: int | None = None

    # -- requests ----------------------------------------------------------------------------

    def read(self, size_bytes: int) -> None:
        """So much has come of a request, the former call's included; its rest may have to wait."""
        if size_bytes <= self.request_bytes:
            return
        if self.sending_since_ms is None:
            self.sending_since_ms = self._now_ms()
        come_bytes, self.request_bytes = size_bytes - self.request_bytes, size_bytes
        self.is_waiting = not self._in_flight.read(come_bytes, self._read_on)

    def _read_on(self) -> None:
        """There is room again."""
        self.is_waiting = False
        self.sending_since_ms = self._now_ms()  # the silence before was ours
        self._on_room()

    def end_read(self) -> None:
        """All of it has come."""
        self.sending_since_ms, self.is_waiting = None, False
        self._in_flight.end_read(self._read_on)

    def work_on(self, size_bytes: int) -> None:
        """A request of that size stays until there is an answer to it."""
        self._in_flight.add(size_bytes - self.request_bytes)
        self.request_bytes = size_bytes

    def release_request(self) -> None:
        """It was answered."""
        size_bytes, self.request_bytes = self.request_bytes, 0
        if size_bytes:
            self._in_flight.release(size_bytes)

    # -- answers -----------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """What of its answers lies in memory until the client takes it."""
        return self._unsent_bytes + self._queued_bytes

    def hold(self, *, unsent_bytes: int | None = None, queued_bytes: int | None = None) -> None:
        """From now on the transport has so much for the client, or we have; None for as before."""
        before_bytes = self.held_bytes
        if unsent_bytes is not None:
            self._unsent_bytes = unsent_bytes
        if queued_bytes is not None:
            self._queued_bytes = queued_bytes
        if not self.held_bytes:
            self.taking_since_ms = None
        elif self.taking_since_ms is None:
            self.taking_since_ms = self._now_ms()
        self._in_flight.add(self.held_bytes)
        self._in_flight.release(before_bytes)

    def drop(self) -> None:
        """The connection has gone: nothing of it is held, and it is not held itself, any more."""
        self._on_room = _tell_nobody
        self._in_flight.end_read(self._read_on)
        self.release_request()
        self.hold(unsent_bytes=0, queued_bytes=0)


def _tell_nobody() -> None:
    """The connection has gone."""


IDLE_CHECK_MS: Final = 1000


# While others wait for room: who sends nothing of a begun request, or sends it for longer, goes.
# At the bound, too, who takes nothing of an answer, or takes it for longer.
STALLED_MS: Final = 5000


SENDING_MS: Final = 30_000


# Who is silent for so long has no buffer until it says something.
REST_MS: Final = 5000


# How many are looked at before the clock is.
LOOKS_IN_A_ROW: Final = 64


# Buffers of large requests that may serve again, of all connections together.
SPARE_BYTES: Final = 16 << 20


class Client(Protocol):
    """A connection, as far as the limits go."""

    facts: ConnectionFacts
    footprint: Footprint
    last_active_ms: int

    @property
    def shows_progress(self) -> bool:
        """Whether it counts as active with each piece that it takes, not with the last one."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, so that silence is not the client's."""
        ...

    def attend(self) -> bool:
        """Let each byte that comes be told; whether some may have come of which nobody knew."""
        ...

    def rest(self) -> None:
        """Nothing comes for now: hold no room for it."""
        ...

    def close(self) -> None:
        """Close without waiting for the client; what it has asked for is carried out."""
        ...

    def stop(self) -> None:
        """Close, and carry nothing on: the broker stops."""
        ...


class Clients:
    """All open connections. Belongs to the loop's thread.

    Attributes:
        in_flight: What they hold together.
        spares: Buffers of large requests, to be used again by any of them.
        arrivals: Answers to any of them, which go out behind the request that has brought them.
        turn: Those that go out together, where many ask at once.
        line: Where those wait that have asked for more than one turn takes.
        busy_poll: What keeps the loop awake for the next request of any of them.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[Client, None] = {}
        self._by_host: dict[str, int] = {}
        self._limits_read: tuple[str, ...] = ()
        self._limits: dict[str, int] = {}
        self._numbers = 0
        self.in_flight = InFlight(node.config.queued_max_request_bytes)
        self.spares = Spares(SPARE_BYTES)
        self.arrivals = Arrivals()
        self.busy_poll = BusyPoll(node.config.tidelog_busy_poll_us, node.env.clock.monotonic_ns)
        self.turn = Turn(self.busy_poll)
        self.line = Line(node.env.clock.monotonic_ns)

    def __len__(self) -> int:
        return len(self._clients)

    def next_number(self) -> int:
        """A new connection's number."""
        self._numbers += 1
        return self._numbers

    def admit(self, client: Client) -> bool:
        """Take a connection in; False where there are as many as there may be."""
        config, host = self._node.config, client.facts.host
        count = self._by_host.get(host, 0)
        limit = self._limit_of(host)
        if len(self._clients) >= config.max_connections or count >= limit:
            self._node.metrics.connection_refused()
            LOGGER.warning(
                "a connection of %s refused: it has %d of %d, all together %d of %d",
                *(host, count, limit, len(self._clients), config.max_connections),
                extra={"client": host},
            )
            return False
        self._node.metrics.connection_opened()
        self._by_host[host] = count + 1
        self._clients[client] = None
        return True

    def _limit_of(self, host: str) -> int:
        """How many may come from an address, as the settings have it now."""
        config = self._node.config
        texts = config.max_connections_per_ip_overrides
        if texts != self._limits_read:
            pairs = (text.rpartition(":") for text in texts)
            self._limits = {address: int(count) for address, _, count in pairs}
            self._limits_read = texts
        return self._limits.get(host, config.max_connections_per_ip)

    def dismiss(self, client: Client) -> None:
        """A connection has gone; fine where it was not taken in."""
        if client not in self._clients:
            return
        del self._clients[client]
        self._node.metrics.connection_closed()
        host = client.facts.host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def watch_idle(self) -> None:
        """Close who has been silent or holds others up for too long, now and from time to time.

        Of thousands some milliseconds at a time.
        """
        if self.in_flight.is_over:
            self._make_room(self._node.env.clock.monotonic_ms())
        self._look_at(iter(tuple(self._clients)))

    def _look_at(self, clients: Iterator[Client]) -> None:
        clock = self._node.env.clock
        begun_ms = now_ms = clock.monotonic_ms()
        for number, client in enumerate(clients):
            if client in self._clients:
                self._look_at_one(client, now_ms)
            if number % LOOKS_IN_A_ROW == 0:
                now_ms = clock.monotonic_ms()
                if now_ms - begun_ms >= SLICE_MS:
                    self._node.timers.after(1, lambda: self._look_at(clients))
                    return
        limit_ms = self._node.config.connections_max_idle_ms
        delay_ms = IDLE_CHECK_MS if limit_ms < 0 else min(limit_ms, IDLE_CHECK_MS)
        self._node.timers.after(delay_ms, self.watch_idle)

    def _look_at_one(self, client: Client, now_ms: int) -> None:
        if self._is_over(client, now_ms):
            client.close()
        elif now_ms - client.last_active_ms > REST_MS:
            client.rest()

    def _make_room(self, now_ms: int) -> None:
        """At the bound, close those who don't take what they hold, most first, until there is room.

        Who holds next to nothing, as where an answer lies in files, is not to blame.
        """
        least = self.in_flight.small_bytes
        slow = [each for each in self._clients if _takes_too_long(each, now_ms)]
        for client in sorted(slow, key=lambda each: each.footprint.held_bytes, reverse=True):
            if not self.in_flight.is_over or client.footprint.held_bytes <= least:
                return
            text = "connection %d of %s closed: at the bound of all, it does not take its answer"
            LOGGER.warning(text, client.facts.number, client.facts.host)
            client.close()

    def _is_over(self, client: Client, now_ms: int) -> bool:
        """Whether a client has been silent, or at its request, for longer than it may.

        Of a large request the system tells from time to time only: who was not listened to byte by
        byte can't be told from one that is silent, and is listened to from now on.
        """
        is_slow = self.in_flight.is_full and _is_reading(client)
        if is_slow and _sends_too_long(client, now_ms):
            return True
        silent_ms = now_ms - client.last_active_ms
        is_idle = 0 <= self._node.config.connections_max_idle_ms < silent_ms
        is_silent = (is_idle and not client.is_busy) or (is_slow and silent_ms > STALLED_MS)
        return is_silent and not client.attend()

    def close(self) -> None:
        """Close all; what was answered goes out."""
        self.turn.send()
        for client in tuple(self._clients):
            client.stop()


def _is_reading(client: Client) -> bool:
    """Whether a client has begun a request that takes up room, and only itself keeps it back."""
    is_reading = client.footprint.sending_since_ms is not None
    return is_reading and not client.is_busy  # such as by our want of room


def _sends_too_long(client: Client, now_ms: int) -> bool:
    since_ms = client.footprint.sending_since_ms
    return since_ms is not None and now_ms - since_ms > SENDING_MS


def _takes_too_long(client: Client, now_ms: int) -> bool:
    """Whether a client keeps an answer in our memory that it does not take, or not in time."""
    since_ms = client.footprint.taking_since_ms
    if since_ms is None:
        return False
    stalled_ms = STALLED_MS if client.shows_progress else SENDING_MS
    return now_ms - client.last_active_ms > stalled_ms or now_ms - since_ms > SENDING_MS
