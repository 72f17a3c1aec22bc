"""What one connection makes the broker hold: its request, and what its client has not taken.

Counted in what all connections hold together (`InFlight`), which may let a request wait.
"""

from collections.abc import Callable

from tidelog.server.in_flight import InFlight


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
