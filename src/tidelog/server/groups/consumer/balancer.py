"""Which of a topic's readers gets the next partition, and which one gives one up.

Readers stand in a row, the least loaded first. At the left a range of those with the smallest load
grows to the right as each of them gets one more; at the right one of those with the largest load
grows to the left as each gives one. When the loads of both ranges differ by one at most, nothing
more is to be won.

Source: Kafka 4.3's UniformHeterogeneousAssignmentBuilder, whose choices these are.
"""

from collections.abc import Sequence


class Balancer:
    """One topic's readers. Reads `loads`, which its owner keeps up to date."""

    def __init__(self, loads: Sequence[int], readers: Sequence[int]) -> None:
        """A row of readers.

        Args:
            loads: Partitions of each member, by number.
            readers: Numbers of the topic's readers; at least one.
        """
        self._loads = loads
        self._row = sorted(readers, key=lambda number: (loads[number], number))
        self._least_end = 0
        self._least_load = loads[self._row[0]] - 1
        self._next_least = 0
        self._most_start = len(self._row)
        self._most_end = len(self._row)
        self._most_load = loads[self._row[-1]] + 1
        self._next_most = len(self._row) - 1

    @property
    def imbalance(self) -> int:
        """How much more the most loaded one has than the least loaded one, at the start."""
        return self._loads[self._row[-1]] - self._loads[self._row[0]]

    def is_balanced(self) -> bool:
        """Whether the ranges' loads differ by one at most."""
        return self._most_load - self._least_load <= 1

    def next_least_loaded(self) -> int:
        """Who gets the next partition."""
        if self._next_least >= self._least_end:
            self._least_load += 1
            while (
                self._least_end < len(self._row)
                and self._loads[self._row[self._least_end]] == self._least_load
            ):
                self._least_end += 1
            self._next_least = 0
        number = self._row[self._next_least]
        self._next_least += 1
        return number

    def next_most_loaded(self) -> int | None:
        """Who gives a partition up, None where nobody is left who could."""
        if self._next_most < self._most_start:
            if self._most_end <= self._most_start and self._most_start > 0:
                # All of the range were excluded: go on with whoever stands left of it.
                self._most_load = self._loads[self._row[self._most_start - 1]]
            else:
                self._most_load -= 1
            while (
                self._most_start > 0
                and self._loads[self._row[self._most_start - 1]] == self._most_load
            ):
                self._most_start -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return None
        number = self._row[self._next_most]
        self._next_most -= 1
        return number

    def exclude_most_loaded(self) -> None:
        """Who was told last has nothing to give: put it behind the range."""
        at, end = self._next_most + 1, self._most_end - 1
        self._row[at], self._row[end] = self._row[end], self._row[at]
        self._most_end -= 1
