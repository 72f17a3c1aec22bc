"""Who has more to ask than one turn takes waits in line: everybody's share of the loop is the same.

Clients that send many requests in a row would else have the loop for themselves until each of them
had its turn, while those that ask one thing, or only come, wait. As in Kafka the next in line is
who has waited longest; behind a few milliseconds of them the loop looks at what else has come.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

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
        place = Place(take_turn)
        self._places.append(place)
        self._come_soon()
        return place

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
