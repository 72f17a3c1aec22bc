"""What clients did and saw, in the order in which it happened."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final, TypeAlias

Place: TypeAlias = tuple[str, int]
# Of values that are copied; above it a copy says which attempt it is.
VALUE_LIMIT: Final = 1_000_000


class Outcome(Enum):
    """What a producer knows of its transaction.

    A commit that was asked for and never answered is UNKNOWN; what was never asked for was ABORTED.
    """

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """A value that was sent; values are unique.

    Attributes:
        place: Topic and partition.
        value: What was sent.
        offset: Where it stands as the broker said, None where it said nothing.
        asked: When it was asked for, the last time; None where that was not noted.
    """

    place: Place
    value: int
    offset: int | None = None
    asked: int | None = None


@dataclass(slots=True)
class Transaction:
    """Writes that are seen together or not at all.

    Attributes:
        process: Whose.
        writes: What was sent, acknowledged or not.
        outcome: How it ended.
        commit_asked: When the commit was asked for, None for never.
        fenced: From when on somebody else had the transactional id, None for never.
        refused: The error that a step was refused with for no reason, None for none.
    """

    process: str
    writes: list[Write] = field(default_factory=list)
    outcome: Outcome = Outcome.ABORTED
    commit_asked: int | None = None
    fenced: int | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """What a reader was given at once.

    Attributes:
        process: Whose.
        run: Counts up when it begins anew, somewhere else.
        time: When.
        place: Topic and partition.
        begin: From where on it has asked.
        records: Offsets and values, as they came.
        end: Where it goes on.
        is_committed: Whether it reads committed records only.
    """

    process: str
    run: int
    time: int
    place: Place
    begin: int
    records: Sequence[tuple[int, int]]
    end: int
    is_committed: bool = True


@dataclass(slots=True)
class History:
    """All of it.

    Attributes:
        transactions: In the order in which they began.
        polls: In the order in which they ended.
        final: What a reader of committed records finds in the end, when no transaction is open.
        stored: What a reader of all records finds then, where somebody has looked.
        copied: Of each place that a copier reads the place it writes to, and how far it has come.
    """

    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    final: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    stored: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    copied: dict[Place, tuple[Place, int]] = field(default_factory=dict)
    _times: "count[int]" = field(default_factory=lambda: count(1))

    def now(self) -> int:
        """The next moment; threads may ask."""
        return next(self._times)


def copy_of(value: int, attempt: int) -> int:
    """What is written for a value: each attempt writes another one."""
    return -(attempt * VALUE_LIMIT + value)


def original_of(copy: int) -> int:
    """Of what value this is a copy."""
    return -copy % VALUE_LIMIT
