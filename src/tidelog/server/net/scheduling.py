"""Shares the event loop between clients: a fair queue, busy polling, and coalesced writes.

- Fair queue: a client with many pipelined requests yields the loop after 16 requests or about 1 ms
  (`TURN_REQUESTS`, `TURN_NS`). As in Kafka, the connection that has waited longest is next.
- Busy polling: waking a sleeping thread takes longer than a small request. While one client sends
  one small request after another, the loop polls for its next request for a short time before it
  sleeps. With many clients the loop sleeps as usual.
- Coalesced writes: with many clients, responses of one loop iteration are sent together.
  Consecutive sends cost less than sends that alternate with requests, because the system's code and
  data stay in the CPU caches. Also, a client that reads many responses in one thread is woken only
  once, by the first response. With few clients each response is sent at once.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tidelog.server.api.node import LOGGER

# Limits of one client's turn: the number of requests, and the time in ns. Small requests usually
# reach the limit on the number first, and large requests reach the limit on the time first. The
# turn ends after the request that reaches a limit.
TURN_REQUESTS: Final = 16

TURN_NS: Final = 1_000_000

# Maximum time in ns for turns of queued connections in one loop iteration. After this time the loop
# polls for new events before it gives further turns.
QUEUE_NS: Final = 4_000_000


class QueuedTurn:
    """Entry of the fair queue, for one connection that waits for its turn."""

    __slots__ = ("_take_turn",)

    def __init__(self, take_turn: Callable[[], None]) -> None:
        """Create an entry. `take_turn` is called when the turn comes."""
        self._take_turn: Callable[[], None] | None = take_turn

    def cancel(self) -> None:
        """Leave the queue; no-op after its turn."""
        self._take_turn = None

    def reach(self) -> None:
        """Take the turn."""
        take_turn, self._take_turn = self._take_turn, None
        if take_turn is not None:
            take_turn()


class FairQueue:
    """Fair queue of connections that wait for another turn.

    Used only in the event loop's thread.
    """

    __slots__ = ("_is_due", "_now_ns", "_turns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Create an empty queue. `now_ns` is a monotonic clock."""
        self._now_ns = now_ns
        self._turns: deque[QueuedTurn] = deque()
        self._is_due = False

    def wait(self, take_turn: Callable[[], None]) -> QueuedTurn:
        """Call `take_turn` after all queued turns, in the next loop iteration or later.

        Returns:
            The entry of the queue, which can be cancelled.
        """
        turn = QueuedTurn(take_turn)
        self._turns.append(turn)
        self._schedule()
        return turn

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run_turns)

    def _run_turns(self) -> None:
        """Give turns to the connections at the head of the queue, for `QUEUE_NS` at most."""
        end_ns = self._now_ns() + QUEUE_NS
        try:
            for _ in range(len(self._turns)):
                self._turns.popleft().reach()
                if self._now_ns() >= end_ns:
                    break
        finally:
            self._is_due = False
            if self._turns:
                self._schedule()


# The loop polls after a request only if the request and its response together have at most this
# number of bytes. After a larger response the client is busy before it sends its next request.
SMALL_BYTES: Final = 4096

# Number of requests in quick succession after which the loop begins to poll for the next request.
# Compared with the time of this many requests, the time of one unsuccessful poll is short.
ROW: Final = 16

# Maximum time in ns between two polls while the processor has no other work. If more time passes,
# the system has suspended the thread to run other work. Then the loop does not poll after the next
# `CROWDED_ROW` requests.
CROWDED_NS: Final = 500_000

CROWDED_ROW: Final = 256


class BusyPoll:
    """Decides when to poll for the next request. Used only in the event loop's thread.

    Attributes:
        is_polling: Whether the event loop stays awake for now.
    """

    __slots__ = (
        "_client",
        "_now_ns",
        "_polled_ns",
        "_polls_left",
        "_polls_max",
        "_response_ns",
        "_row",
        "_small_bytes",
        "_window_ns",
        "is_polling",
    )

    def __init__(self, window_us: int, now_ns: Callable[[], int]) -> None:
        """Create an instance that has seen no request.

        Args:
            window_us: Maximum time in µs to poll for the next request; 0 for no polling.
            now_ns: The monotonic clock, in ns.
        """
        self._window_ns = window_us * 1000
        # The number of polls is also limited, because an injected clock may stand still. One poll
        # takes at least a microsecond, so the limit of `window_us` polls never ends the window
        # early.
        self._polls_left = self._polls_max = window_us
        self._small_bytes = SMALL_BYTES if window_us else -1
        self._now_ns = now_ns
        self._client = -1
        self._response_ns = self._polled_ns = now_ns()
        self._row = 0
        self.is_polling = False

    def note_request(self, client: int, arrived_ns: int, now_ns: int, size_bytes: int) -> None:
        """Remember that a request was answered.

        Args:
            client: Number of the client's connection.
            arrived_ns: Monotonic time in ns at which the request arrived.
            now_ns: Current monotonic time in ns.
            size_bytes: Size of request and response together, in bytes.
        """
        if size_bytes > self._small_bytes:
            return
        if client != self._client or arrived_ns - self._response_ns > self._window_ns:
            self._client = client
            if self._row > 0:
                self._row = 0
        else:
            self._row += 1
            if self._row >= ROW and not self.is_polling:
                self.is_polling = True
                asyncio.get_running_loop().call_soon(self._poll)
        self._response_ns = now_ns
        self._polls_left = self._polls_max

    def _poll(self) -> None:
        """Poll once, in an iteration of the event loop."""
        os.sched_yield()
        now_ns = self._now_ns()
        away_ns = now_ns - max(self._polled_ns, self._response_ns)
        self._polled_ns = now_ns
        self._polls_left -= 1
        if away_ns > CROWDED_NS:
            self._row = -CROWDED_ROW
        elif now_ns - self._response_ns > self._window_ns or self._polls_left < 0:
            self._row = 0
        if self._row >= ROW:
            asyncio.get_running_loop().call_soon(self._poll)
        else:
            self.is_polling = False


# If a loop iteration had at least this number of responses, many clients are active, so all
# responses of the next iteration are held. If it had fewer, the next `AT_ONCE` responses are sent
# at once. The responses after these are held as a trial until the iteration ends, except while the
# loop polls.
CROWD: Final = 4

AT_ONCE: Final = 64

# Maximum time in ns for which responses are held. The time is checked when the next response is
# ready. The broker answers some two hundred small requests in 4 ms.
HOLD_NS: Final = 4_000_000

_NEVER: Final = 1 << 63


class Sender(Protocol):
    """Sending side of a connection, as in `SendQueue`."""

    def flush(self) -> bool:
        """Send held bytes; return whether there were any."""
        ...

    def fail(self, error: Exception) -> None:
        """Close the connection because of an error."""
        ...


class WriteCoalescer:
    """Coalesces responses of one event-loop iteration. Used only in the event loop's thread.

    Attributes:
        holds: Whether the caller must hold each response, by calling `hold`. If `holds` is False,
            the caller must call `tries` for each response, and hold the response if the result is
            True.
        due_ns: Monotonic time in ns at which to call `send` if the iteration has not ended by then.
    """

    __slots__ = ("_at_once", "_busy_poll", "_count", "_is_ending", "_senders", "due_ns", "holds")

    def __init__(self, busy_poll: BusyPoll) -> None:
        """Create an instance that sends the first responses at once."""
        self.holds = False
        self.due_ns = _NEVER
        self._busy_poll = busy_poll
        self._senders: list[Sender] = []
        self._count = 0
        self._is_ending = False
        self._at_once = AT_ONCE

    def tries(self) -> bool:
        """Count a response that is ready while `holds` is False; return whether to hold it.

        After `AT_ONCE` such responses, the next ones are held as a trial, except while the loop
        polls.
        """
        self._at_once -= 1
        return self._at_once < 0 and not self._busy_poll.is_polling

    def hold(self, sender: Sender, now_ns: int) -> None:
        """Hold a response until the end of the iteration. `now_ns` is monotonic."""
        if not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_soon(self._end)
        if not self._senders:
            self.due_ns = now_ns + HOLD_NS
        self._senders.append(sender)

    def _end(self) -> None:
        """End the iteration, after all requests that arrived in it were processed."""
        self.send()
        self.holds = self._count >= CROWD
        self._at_once = AT_ONCE
        self._count = 0
        self._is_ending = False

    def send(self) -> None:
        """Send all held responses."""
        senders, self._senders = self._senders, []
        self.due_ns = _NEVER
        for sender in senders:
            try:
                self._count += sender.flush()
            except Exception as error:  # noqa: BLE001 - the other connections continue
                _close(sender, error)


def _close(sender: Sender, error: Exception) -> None:
    try:
        sender.fail(error)
    except Exception:  # noqa: BLE001 - the other connections continue
        LOGGER.exception("a connection can't be closed")
