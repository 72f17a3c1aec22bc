"""A turn of the loop: all requests that have come by the time when it looks are answered in one.

When a group changes, all its members ask within milliseconds. What need be done once for all of
them is done by whoever is first in a turn, or when the turn is over.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")


class LoopTurn(Generic[Key]):
    """Who came first in the turn that runs. Belongs to the loop's thread.

    Where no loop runs whoever asks is a turn of its own.
    """

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        """`at_end` is called when a turn is over in which somebody asked."""
        self._at_end = at_end
        self._seen: set[Key] = set()

    def is_first(self, key: Key) -> bool:
        """Whether nobody has asked about this in the turn; who asks next is not the first."""
        if key in self._seen:
            return False
        if not self._seen:
            try:
                asyncio.get_running_loop().call_soon(self._end)
            except RuntimeError:  # no loop: nobody would end the turn
                return True
        self._seen.add(key)
        return True

    def _end(self) -> None:
        self._seen.clear()
        self._at_end()
