"""Who is connected: limits on their number, and an end for those that say nothing.

Source: Kafka's `max.connections`, `max.connections.per.ip`, `connections.max.idle.ms`.
"""

from typing import Final, Protocol

from tidelog.protocol.framing import Spares
from tidelog.server.in_flight import InFlight
from tidelog.server.node import ConnectionFacts, Node

IDLE_CHECK_MS: Final = 1000
# While others wait for room: who sends nothing of a begun request, or sends it for longer, goes.
STALLED_MS: Final = 5000
SENDING_MS: Final = 30_000
# Buffers of large requests that may serve again, of all connections together.
SPARE_BYTES: Final = 16 << 20


class Client(Protocol):
    """A connection, as far as the limits go."""

    facts: ConnectionFacts
    last_active_ms: int
    sending_since_ms: int | None

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, so that silence is not the client's."""
        ...

    def close(self) -> None:
        """Close without waiting for the client."""
        ...


class Clients:
    """All open connections. Belongs to the loop's thread.

    Attributes:
        in_flight: What they hold together.
        spares: Buffers of large requests, to be used again by any of them.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[Client, None] = {}
        self._by_host: dict[str, int] = {}
        self._numbers = 0
        self.in_flight = InFlight(node.config.queued_max_request_bytes)
        self.spares = Spares(SPARE_BYTES)

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
        if len(self._clients) >= config.max_connections or count >= config.max_connections_per_ip:
            self._node.metrics.connection_refused()
            return False
        self._node.metrics.connection_opened()
        self._by_host[host] = count + 1
        self._clients[client] = None
        return True

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
        """Close who has been silent or holds others up for too long, now and from time to time."""
        now_ms = self._node.env.clock.monotonic_ms()
        limit_ms = self._node.config.connections_max_idle_ms
        for client in tuple(self._clients):
            silent_ms = now_ms - client.last_active_ms
            is_idle = 0 <= limit_ms < silent_ms and not client.is_busy
            if is_idle or (self.in_flight.is_full and _holds_up(client, now_ms)):
                client.close()
        delay_ms = IDLE_CHECK_MS if limit_ms < 0 else min(limit_ms, IDLE_CHECK_MS)
        self._node.timers.after(delay_ms, self.watch_idle)

    def close(self) -> None:
        """Close all."""
        for client in tuple(self._clients):
            client.close()


def _holds_up(client: Client, now_ms: int) -> bool:
    """Whether a client has begun a request that takes up room, and does not get on with it."""
    if client.sending_since_ms is None:
        return False
    is_stalled = now_ms - client.last_active_ms > STALLED_MS
    return is_stalled or now_ms - client.sending_since_ms > SENDING_MS
