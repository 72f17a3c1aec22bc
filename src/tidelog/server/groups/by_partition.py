"""What a topic of the broker's own keeps, by name and by partition, of which one may go at once."""

from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class ByPartition(Generic[Kept]):
    """Groups or transactional ids by name. Belongs to the loop's thread.

    Attributes:
        all: Every one; only to be read.
    """

    def __init__(self, number_of: Callable[[str], int]) -> None:
        """Nothing yet.

        Args:
            number_of: The partition that keeps a name. It may be another one than where the name
                was read, where the topic has got more partitions since that was written.
        """
        self._number_of = number_of
        self._all: dict[str, Kept] = {}
        self._numbers: dict[str, int] = {}
        self._parts: dict[int, dict[str, Kept]] = {}
        self.all: Mapping[str, Kept] = self._all

    def put(self, name: str, kept: Kept) -> None:
        """One more, or another one in its place."""
        self._put(self._number_of(name), name, kept)

    def put_all(self, number: int, found: Mapping[str, Kept]) -> None:
        """What a partition has that was read."""
        for name, kept in found.items():
            self._put(number, name, kept)

    def _put(self, number: int, name: str, kept: Kept) -> None:
        before = self._numbers.get(name)
        if before is not None and before != number:
            del self._parts[before][name]
        self._all[name] = kept
        self._numbers[name] = number
        self._parts.setdefault(number, {})[name] = kept

    def remove(self, name: str) -> None:
        """One less; fine where it is not there."""
        if self._all.pop(name, None) is not None:
            del self._parts[self._numbers.pop(name)][name]

    def part(self, number: int) -> Collection[Kept]:
        """What one partition keeps."""
        return self._parts.get(number, {}).values()

    def take_out(self, number: int | None) -> list[Kept]:
        """Let go of what a partition keeps, or of all (None); takes as long as that is many."""
        if number is not None:
            part = self._parts.pop(number, {})
            for name in part:
                del self._all[name], self._numbers[name]
            return list(part.values())
        found = list(self._all.values())
        for table in (self._all, self._numbers, self._parts):
            table.clear()
        return found
