"""Who wants to know how a job comes on: the seam between a job and what shows its progress."""

from typing import Final, Protocol


class Listener(Protocol):
    """Who wants to know how a job comes on."""

    def note(self, text: str) -> None:
        """One line for people."""
        ...

    def at(self, done: int, planned: int) -> None:
        """So many of so many offsets are done."""
        ...


class _Nobody:
    def note(self, text: str) -> None:
        """Told to nobody."""

    def at(self, done: int, planned: int) -> None:
        """Told to nobody."""


NOBODY: Final = _Nobody()
