"""Answers that go out together at the end of the loop's turn, where many clients ask at once.

The system sends several in a row for less than one between each two requests: its code and data
are at hand then, and whoever reads many answers in one thread is awake after the first. Where few
ask, each answer goes at once.
"""

import asyncio
from typing import Final, Protocol

# A turn of fewer answers is none of many clients, and so many behind it go out at once each,
# before the next turn is tried.
CROWD: Final = 4
AT_ONCE: Final = 64
# No answer waits for others for longer than this, but for the one that is being made: twice what a
# hundred small ones take.
HELD_NS: Final = 4_000_000


class Sender(Protocol):
    """The sending side of a connection: `Outgoing`."""

    def flush(self) -> None:
        """Send what was held."""
        ...

    def fail(self, error: Exception) -> None:
        """Close for what went wrong."""
        ...


class Turn:
    """Who has answers that go out at the end of this turn. Belongs to the loop's thread.

    Attributes:
        holds: Whether the next answer is to be held, and `hold` called.
    """

    __slots__ = ("_at_once", "_count", "_senders", "_since_ns", "holds")

    def __init__(self) -> None:
        """Nobody has, and the first answers go out at once."""
        self.holds = False
        self._senders: list[Sender] = []
        self._count = 0
        self._since_ns = 0
        self._at_once = AT_ONCE

    def tries(self) -> bool:
        """Whether the next answer is to be held although the last ones weren't: once for each."""
        self._at_once -= 1
        return self._at_once < 0

    def hold(self, sender: Sender, now_ns: int) -> None:
        """An answer waits for the turn's others; `now_ns` is monotonic."""
        if not self._count:
            self._since_ns = now_ns
            asyncio.get_running_loop().call_soon(self._end)
        self._count += 1
        self._senders.append(sender)
        if now_ns - self._since_ns > HELD_NS:
            self._since_ns = now_ns
            self._send()

    def _end(self) -> None:
        """All that was asked at this turn was looked at."""
        self.holds = self._count >= CROWD
        self._at_once = AT_ONCE
        self._count = 0
        self._send()

    def _send(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            try:
                sender.flush()
            except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
                sender.fail(error)
