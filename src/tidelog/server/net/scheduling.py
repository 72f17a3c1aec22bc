"""Shares the event loop between clients: a fair queue, busy polling, and coalesced writes.

- Fair queue: a client with many pipelined requests yields the loop after a few milliseconds. As in
  Kafka, the connection that has waited longest is next.
- Busy polling: waking a sleeping thread takes longer than a small request. While one client sends
  one small request after another, the loop polls for its next request for a short time before it
  sleeps. With many clients the loop sleeps as usual.
- Coalesced writes: with many clients, responses of one loop iteration are sent together. Several
  sends in a row cost less than one after each request, because the system's code and data are in
  the CPU caches, and a client that reads many responses in one thread is awake after the first.
  With few clients each response is sent at once.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tidelog.server.api.node import LOGGER

# Requests of one client in a row, before others have their turn, and how long they may take
# together: of small ones the count is less, of large ones the time, which ends behind one of them.
TURN_REQUESTS: Final = 16


TURN_NS: Final = 1_000_000


# So long those in line have the loop, before it looks at what else has come.
LINE_NS: Final = 4_000_000


class Place:
    """Where one waits in line."""

    __slots__ = ("_take_turn",)

    def __init__(self, take_turn: Callable[[], None]) -> None:
        """`take_turn` is called once it is its turn."""
        self._take_turn: Callable[[], None] | None = take_turn

    def cancel(self) -> None:
        """Wait no more; fine where its turn has been."""
        self._take_turn = None

    def reach(self) -> None:
        """It is its turn."""
        take_turn, self._take_turn = self._take_turn, None
        if take_turn is not None:
            take_turn()


class Line:
    """Who waits for another turn. Belongs to the loop's thread."""

    __slots__ = ("_is_due", "_now_ns", "_places")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Nobody waits; `now_ns` is a clock that never goes back."""
        self._now_ns = now_ns
        self._places: deque[Place] = deque()
        self._is_due = False

    def wait(self, take_turn: Callable[[], None]) -> Place:
        """Call `take_turn` when all who wait have had theirs: at the loop's next turn, or later.

        Returns:
            What stops that.
        """
        turn = Place(take_turn)
        self._places.append(turn)
        self._come_soon()
        return turn

    def _come_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """The turns of those who waited when this began, as far as there is time."""
        end_ns = self._now_ns() + LINE_NS
        try:
            for _ in range(len(self._places)):
                self._places.popleft().reach()
                if self._now_ns() >= end_ns:
                    break
        finally:
            self._is_due = False
            if self._places:
                self._come_soon()


# A request with its answer: behind larger ones a client has something to do first.
SMALL_BYTES: Final = 4096


# So many have to come close upon each other before the next one is looked for, so that a look in
# vain takes a small part of the time in which there was work.
ROW: Final = 16


# Who is away for so long between two looks has had to make room for other work of the machine, and
# looks for none of the next requests.
CROWDED_NS: Final = 500_000


CROWDED_ROW: Final = 256


class BusyPoll:
    """When to look for the next request. Belongs to the loop's thread.

    Attributes:
        is_looking: Whether the loop stays awake for now.
    """

    __slots__ = (
        "_answered_ns",
        "_asker",
        "_looked_ns",
        "_looks_left",
        "_looks_max",
        "_now_ns",
        "_row",
        "_small_bytes",
        "_window_ns",
        "is_looking",
    )

    def __init__(self, window_us: int, now_ns: Callable[[], int]) -> None:
        """Nothing has come yet.

        Args:
            window_us: How long to look for the next request; 0 for never.
            now_ns: Monotonic time.
        """
        self._window_ns = window_us * 1000
        # No look takes less than a microsecond, but a clock may stand still.
        self._looks_left = self._looks_max = window_us
        self._small_bytes = SMALL_BYTES if window_us else -1
        self._now_ns = now_ns
        self._asker = -1
        self._answered_ns = self._looked_ns = now_ns()
        self._row = 0
        self.is_looking = False

    def answered(self, asker: int, came_ns: int, now_ns: int, size_bytes: int) -> None:
        """A request was answered.

        Args:
            asker: The number of its connection.
            came_ns: When it came.
            now_ns: The time now.
            size_bytes: Of it and its answer together.
        """
        if size_bytes > self._small_bytes:
            return
        if asker != self._asker or came_ns - self._answered_ns > self._window_ns:
            self._asker = asker
            if self._row > 0:
                self._row = 0
        else:
            self._row += 1
            if self._row >= ROW and not self.is_looking:
                self.is_looking = True
                asyncio.get_running_loop().call_soon(self._look)
        self._answered_ns = now_ns
        self._looks_left = self._looks_max

    def _look(self) -> None:
        """Once around the loop, which takes what has come meanwhile."""
        os.sched_yield()
        now_ns = self._now_ns()
        away_ns = now_ns - max(self._looked_ns, self._answered_ns)
        self._looked_ns = now_ns
        self._looks_left -= 1
        if away_ns > CROWDED_NS:
            self._row = -CROWDED_ROW
        elif now_ns - self._answered_ns > self._window_ns or self._looks_left < 0:
            self._row = 0
        if self._row >= ROW:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            self.is_looking = False


# A turn of fewer answers is none of many clients, and so many behind it go out at once each,
# before the next turn is tried.
CROWD: Final = 4


AT_ONCE: Final = 64


# Once another answer is made behind this time all go out: it is twice what a hundred small ones
# take.
HELD_NS: Final = 4_000_000


_NEVER: Final = 1 << 63


class Sender(Protocol):
    """The sending side of a connection: `Outgoing`."""

    def flush(self) -> bool:
        """Send what was held; whether anything was."""
        ...

    def fail(self, error: Exception) -> None:
        """Close for what went wrong."""
        ...


class Turn:
    """Who has answers that go out at the end of this turn. Belongs to the loop's thread.

    Attributes:
        holds: Whether the next answer is to be held, and `hold` called.
        due_ns: When `send` is to be called if the turn has not ended by then; monotonic.
    """

    __slots__ = ("_at_once", "_busy_poll", "_count", "_is_ending", "_senders", "due_ns", "holds")

    def __init__(self, busy_poll: BusyPoll) -> None:
        """Nobody has, and the first answers go out at once."""
        self.holds = False
        self.due_ns = _NEVER
        self._busy_poll = busy_poll
        self._senders: list[Sender] = []
        self._count = 0
        self._is_ending = False
        self._at_once = AT_ONCE

    def tries(self) -> bool:
        """Whether the next answer is to be held although the last ones weren't: once for each."""
        self._at_once -= 1
        return self._at_once < 0 and not self._busy_poll.is_looking

    def hold(self, sender: Sender, now_ns: int) -> None:
        """An answer waits for the turn's others, if there is one; `now_ns` is monotonic."""
        if not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_soon(self._end)
        if not self._senders:
            self.due_ns = now_ns + HELD_NS
        self._senders.append(sender)

    def _end(self) -> None:
        """All that was asked at this turn was looked at."""
        self.send()
        self.holds = self._count >= CROWD
        self._at_once = AT_ONCE
        self._count = 0
        self._is_ending = False

    def send(self) -> None:
        """Send all that is held."""
        senders, self._senders = self._senders, []
        self.due_ns = _NEVER
        for sender in senders:
            try:
                self._count += sender.flush()
            except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
                _close(sender, error)


def _close(sender: Sender, error: Exception) -> None:
    try:
        sender.fail(error)
    except Exception:  # noqa: BLE001 - nor is its end
        LOGGER.exception("a connection can't be closed")
