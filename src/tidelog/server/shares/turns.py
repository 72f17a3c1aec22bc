"""Fetches that wait for one share partition: woken one at a time, in the order in which they came.

All that may bring records begins a new round. In a round everybody who waits looks at most once:
one is woken where there is something to be had, the next one when the one before has looked or has
gone, if there is something still. Else one record would wake them all, and all but one in vain.

So that nobody is forgotten: where there is something for one who has not looked in this round,
somebody reads, or somebody is woken; both end in a look for the next one, whatever comes between.
Who is busy with another partition holds nobody up: it is told, and the next one is woken, too.

Pure. Belongs to one thread.
"""

from typing import Final, Protocol

from tidelog.server.shares.kept import ShareKey
from tidelog.types import IsolationLevel

_NEVER: Final = 0


class Waiter(Protocol):
    """Who waits for records, of one share partition or of several."""

    @property
    def isolation(self) -> IsolationLevel:
        """Which records of transactions it sees."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether it is in the midst of a look: it looks again afterwards where it was woken."""
        ...

    def wake(self, key: ShareKey) -> None:
        """There may be something: it is to look at that share partition soon, or to leave."""
        ...


class Turns:
    """Who waits for a share partition, and who reads it.

    Attributes:
        key: The share partition's name.
    """

    def __init__(self, key: ShareKey) -> None:
        """Nobody waits."""
        self.key = key
        # The round in which each has looked last.
        self._waiting: dict[Waiter, int] = {}
        self._round = _NEVER + 1
        self._woken: Waiter | None = None
        self._is_read = False

    def has_some(self, isolation: IsolationLevel) -> bool:
        """Whether a look could find something, as far as that can be told without one."""
        raise NotImplementedError

    @property
    def waiting_count(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it now."""
        return self._is_read

    # -- who waits ---------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Wait from now on; who joins looks at once, without being woken."""
        self._waiting[waiter] = _NEVER

    def leave(self, waiter: Waiter) -> None:
        """Wait no more, woken or not; fine where it did not wait."""
        self._waiting.pop(waiter, None)
        self._pass_on(waiter)

    def begin_reading(self, waiter: Waiter) -> bool:
        """Look, and read what there is alone; whether there may be something, and nobody reads.

        Where somebody does, it is woken again when that is over.
        """
        is_free = not self._is_read
        if waiter in self._waiting:
            self._waiting[waiter] = self._round if is_free else _NEVER
        if is_free and self.has_some(waiter.isolation):
            self._is_read = True
            if self._woken is waiter:
                self._woken = None
            return True
        self._pass_on(waiter)
        return False

    def end_reading(self) -> None:
        """Let others read."""
        self._is_read = False
        self._wake_next()

    def _pass_on(self, waiter: Waiter) -> None:
        if self._woken is waiter:
            self._woken = None
        self._wake_next()

    # -- who is woken ------------------------------------------------------------------------

    def notify(self) -> None:
        """There may be more to be had: a new round."""
        self._round += 1
        self._wake_next()

    def wake_all(self) -> None:
        """There is something that concerns everybody who waits."""
        for waiter in tuple(self._waiting):
            waiter.wake(self.key)

    def _wake_next(self) -> None:
        """Wake the first one that has not looked in this round and could find something."""
        if self._is_read or self._woken is not None or not self._waiting:
            return
        known: dict[IsolationLevel, bool] = {}
        for waiter, looked in self._waiting.items():
            if looked == self._round:
                continue
            isolation = waiter.isolation
            if isolation not in known:
                known[isolation] = self.has_some(isolation)
            if not known[isolation]:
                continue
            if not waiter.is_busy:
                self._woken = waiter
                waiter.wake(self.key)
                return
            waiter.wake(self.key)
