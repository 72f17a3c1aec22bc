"""What every crash test does: tell a story, lose power at some moment, judge what is left.

A workload tells its `Story` what has to hold after each step. A crash between two steps is judged
by both: what the step before had promised, and what the step under way may have done. `survey`
runs one judge over many crash states and leaves out those it has seen with the same promises.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.faults import CrashState, DamageFileSystem

Promise = TypeVar("Promise")


class Story(Generic[Promise]):
    """What was promised when, in recorded calls of one file system since its `settle`."""

    def __init__(self, files: DamageFileSystem, start: Promise) -> None:
        self._files = files
        self._moments = [0]
        self._promises = [start]

    def tell(self, promise: Promise) -> None:
        """A step is done; from now on this holds."""
        self._moments.append(len(self._files.journal))
        self._promises.append(promise)

    @property
    def latest(self) -> Promise:
        """What holds now."""
        return self._promises[-1]

    def step_at(self, moment: int) -> int:
        """Number of the last step that was done after `moment` recorded calls."""
        return bisect_right(self._moments, moment) - 1

    def around(self, moment: int) -> tuple[Promise, Promise]:
        """What held before the step under way at that moment, and what holds once it is done."""
        step = self.step_at(moment)
        return self._promises[step], self._promises[min(step + 1, len(self._promises) - 1)]


Judge = Callable[[CrashState, Promise, Promise], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """How much was looked at: states drawn, and states that differed."""

    drawn: int
    judged: int


class CrashFound(AssertionError):
    """A crash state that breaks a promise; the text says how to see it again."""


def survey(
    files: DamageFileSystem,
    story: Story[Promise],
    states: Iterable[CrashState],
    judge: Judge[Promise],
) -> Survey:
    """Judge every state once.

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
    """Whether `found` is how one of the allowed sequences begins."""
    return any(list(found) == list(whole[: len(found)]) for whole in allowed)
