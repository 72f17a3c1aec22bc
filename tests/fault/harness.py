"""Shared steps of crash tests: record promises, cut the power, check what is left on the disk.

A workload records in its `Story` the promise that holds after each step. A crash during a step is
judged by two promises: the one before the step, and the one after it. `survey` runs one judge over
many crash states. It skips a state if it has already judged an equal state with the same promises.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.faults import CrashState, DamageFileSystem

Promise = TypeVar("Promise")


class Story(Generic[Promise]):
    """The promise that holds after each step, with the length of the journal after the step."""

    def __init__(self, files: DamageFileSystem, start: Promise) -> None:
        self._files = files
        self._moments = [0]
        self._promises = [start]

    def tell(self, promise: Promise) -> None:
        """Record a promise that holds from now on, after a step."""
        self._moments.append(len(self._files.journal))
        self._promises.append(promise)

    @property
    def latest(self) -> Promise:
        """The promise that holds now."""
        return self._promises[-1]

    def step_at(self, moment: int) -> int:
        """Return the index of the last step that ended within the first `moment` calls."""
        return bisect_right(self._moments, moment) - 1

    def around(self, moment: int) -> tuple[Promise, Promise]:
        """Return the promises before and after the step that makes the call number `moment`.

        Calls are numbered from 0.
        """
        step = self.step_at(moment)
        return self._promises[step], self._promises[min(step + 1, len(self._promises) - 1)]


Judge = Callable[[CrashState, Promise, Promise], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """Counts of crash states: `drawn` counts all, `judged` only distinct states."""

    drawn: int
    judged: int


class CrashFound(AssertionError):
    """A crash state breaks a promise; the text explains how to reproduce the state."""


def survey(
    files: DamageFileSystem,
    story: Story[Promise],
    states: Iterable[CrashState],
    judge: Judge[Promise],
) -> Survey:
    """Judge each distinct state once; return the counts of states.

    Raises:
        CrashFound: The first state that breaks a promise, with its seed and each change's fate.
    """
    seen: set[tuple[int, int]] = set()
    drawn = 0
    for state in states:
        drawn += 1
        key = (story.step_at(state.prefix), hash(state.fingerprint()))
        if key in seen:
            continue
        seen.add(key)
        before, after = story.around(state.prefix)
        try:
            judge(state, before, after)
        except Exception as error:
            raise CrashFound(f"{error!r}\n{files.explain(state)}") from error
    return Survey(drawn, len(seen))


def is_prefix_of_any(found: Sequence[object], allowed: Iterable[Sequence[object]]) -> bool:
    """Whether `found` is a prefix of at least one of the allowed sequences."""
    return any(list(found) == list(whole[: len(found)]) for whole in allowed)
