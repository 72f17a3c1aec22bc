"""What comparing the rows of one topic came to, added up from what tasks have found."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tidelog.spark.jobs.audit_kinds import Kind
from tidelog.spark.jobs.audit_rules import FOUND_FIELDS

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

# File, first pair in it, number of pairs, their checksum.
Section = tuple[str, int, int, int]


@dataclass(slots=True)
class TopicResult:
    """What comparing the rows of one topic came to.

    Attributes:
        history: Whether records before the last one were compared.
        counts: `a_keys`, `b_keys`, `deleted`, and keys by kind.
        found: Rows of keys that are not equal, see `audit_rules`.
        sections: Where the pairs of equal keys are, by partition of A and of B.
    """

    history: bool
    counts: Counter[str] = field(default_factory=Counter)
    found: "list[Longs]" = field(default_factory=list)
    sections: dict[tuple[int, int], list[Section]] = field(default_factory=dict)

    @property
    def has_found(self) -> bool:
        """Whether any key is not equal, and wanted."""
        return any(len(rows) for rows in self.found)

    def rows(self, keys_max: int) -> "Longs":
        """The found rows, at most so many of each kind."""
        empty = np.empty((0, FOUND_FIELDS), np.int64)
        rows = np.concatenate([empty, *self.found])
        kinds = [rows[rows[:, 0] == number][:keys_max] for number in range(len(Kind))]
        return np.concatenate(kinds)

    def add(self, counts: dict[str, object], found: bytes, ignore: frozenset[Kind]) -> None:
        """Add what one task has found, but kinds that are not looked for."""
        pairs = counts.pop("pairs", None)
        self.counts.update({name: int(str(n)) for name, n in counts.items() if name not in ignore})
        rows = np.frombuffer(found, np.int64).reshape(-1, FOUND_FIELDS)
        ignored = [number for number, kind in enumerate(Kind) if kind in ignore]
        self.found.append(rows[~np.isin(rows[:, 0], ignored)])
        if isinstance(pairs, list):
            name, sections, first = pairs[0], pairs[1], 0
            for a_partition, b_partition, count, crc in sections:
                place = self.sections.setdefault((a_partition, b_partition), [])
                place.append((name, first, count, crc))
                first += count
