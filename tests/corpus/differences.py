"""Compares the stored entries of the corpus with a replay; formats the differences."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.corpus.book import Entry

DIFF_LINES_MAX: Final = 40
DIFFS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that differs from its kept text.

    Attributes:
        name: Name of the entry.
        kept: Its kept text, None for a new entry.
        now: Its current text, None for a missing entry.
    """

    name: str
    kept: str | None
    now: str | None

    @property
    def kind(self) -> str:
        """Kind of the difference: `new`, `missing` or `differs`."""
        if self.kept is None:
            return "new"
        return "missing" if self.now is None else "differs"

    def lines(self, limit: int | None = None) -> list[str]:
        """Return the name, then a unified diff of at most `limit` lines."""
        before = [] if self.kept is None else self.kept.split("\n")
        after = [] if self.now is None else self.now.split("\n")
        diff = list(difflib.unified_diff(before, after, "kept", "now", lineterm="", n=2))
        if limit is not None and len(diff) > limit:
            left = len(diff) - limit
            diff[limit:] = [f"... {left} more lines: ./run corpus replay {self.name}"]
        return [f"{self.name}: {self.kind}", *(f"    {line}" for line in diff)]


def differences(kept: Mapping[str, Entry], now: Mapping[str, Entry]) -> list[Difference]:
    """Return the differences, sorted by name."""
    texts = (
        (name, kept[name].text if name in kept else None, now[name].text if name in now else None)
        for name in sorted(kept.keys() | now.keys())
    )
    return [Difference(name, old, new) for name, old, new in texts if old != new]


def report(found: list[Difference], *, whole: bool = False) -> Iterator[str]:
    """Yield lines: the first differences with diffs, then the names and kinds of the others.

    If `whole`, each difference is shown with its complete diff.
    """
    for difference in found if whole else found[:DIFFS_MAX]:
        yield from difference.lines(None if whole else DIFF_LINES_MAX)
    if not whole and len(found) > DIFFS_MAX:
        yield f"and {len(found) - DIFFS_MAX} more:"
        yield from (f"{difference.name}: {difference.kind}" for difference in found[DIFFS_MAX:])
