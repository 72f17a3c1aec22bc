"""Answers that go out together at the end of the loop's turn, where many clients ask at once.

The system sends several in a row for less than one between each two requests: its code and data
are at hand then, and whoever reads many answers in one thread is awake after the first. Where few
ask, each answer goes at once.
"""

import asyncio
from typing import Final, Protocol

from tidelog.server.busy_poll import BusyPoll
from tidelog.server.node import LOGGER

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
