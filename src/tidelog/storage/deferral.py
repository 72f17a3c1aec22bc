"""What a log may leave for later: the syncs, snapshots and maps of a roll, a flush, an unlinking.

A log hands out work with what is to follow it. `AtOnce`, the default, does both on the spot, so
that a roll is durable when it returns. A server gives each log a `Deferral` of its own, which does
the work beside the loop and calls back on the owner's thread. Work of one log is done in the order
in which it was handed out: what was deferred later rests on what came before it.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

Work: TypeAlias = Callable[[], None]
# Called with what the work raised, None where all went well.
Done: TypeAlias = Callable[[Exception | None], None]


class Deferral(Protocol):
    """Does one log's work, one thing after the other."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        ...

    def defer(self, work: Work, done: Done) -> None:
        """Do `work`, in whatever thread, then call `done` on the owner's thread.

        Raises:
            OSError: What the work raised, where it was done at once; `done` is not called then.
        """
        ...

    def settle(self) -> None:
        """Return when nothing waits or runs any more; each `done` was called."""
        ...

    def give_up(self) -> Callable[[], None]:
        """Forget what waits. Nothing is called back any more.

        Returns:
            What returns when that which runs has ended; for any thread.
        """
        ...


class AtOnce:
    """Does everything at once."""

    is_idle: Final = True

    def defer(self, work: Work, done: Done) -> None:
        """See `Deferral`."""
        work()
        done(None)

    def settle(self) -> None:
        """Nothing ever waits."""

    def give_up(self) -> Callable[[], None]:
        """Nothing ever waits."""
        return self.settle


AT_ONCE: Final = AtOnce()
