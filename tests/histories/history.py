"""Steps and reads of clients, in the order in which they happened."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final, TypeAlias

# Topic and number of a partition.
Partition: TypeAlias = tuple[str, int]
# Exclusive upper bound of the values that producers send. The copy of a value is negative:
# -(attempt * VALUE_LIMIT + value).
VALUE_LIMIT: Final = 1_000_000


class Outcome(Enum):
    """Outcome of a transaction, as far as its producer knows.

    A transaction is UNKNOWN if its commit request got no response. It is ABORTED if the producer
    requested no commit, or if its only commit request was refused.
    """

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """A sent value; values are unique.

    Attributes:
        partition: Topic and number of the partition.
        value: The value.
        offset: The offset in the broker's response, None if no response arrived.
        asked: Time of the last request that sent the value, None if not recorded.
    """

    partition: Partition
    value: int
    offset: int | None = None
    asked: int | None = None


@dataclass(slots=True)
class Transaction:
    """A transaction of a client: its writes become visible together or not at all.

    Attributes:
        process: Its client.
        writes: The sent values, acknowledged or not.
        outcome: Its outcome.
        commit_asked: Time of the commit request, None for never.
        fenced: Time when another client took the transactional id, None for never.
        refused: Error of a step that the broker refused without a reason: neither a timeout nor
            another client with the transactional id explains it. None if there is no such step.
    """

    process: str
    writes: list[Write] = field(default_factory=list)
    outcome: Outcome = Outcome.ABORTED
    commit_asked: int | None = None
    fenced: int | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """The result of one read by a reader.

    Attributes:
        process: The reader.
        run: Index of the reader's run; a reader starts a new run at another position.
        time: Time when the response arrived.
        partition: Topic and number of the partition.
        begin: The requested offset.
        records: Offsets and values, in the order received.
        end: The reader's next offset.
        is_committed: Whether the reader gets committed records only.
    """

    process: str
    run: int
    time: int
    partition: Partition
    begin: int
    records: Sequence[tuple[int, int]]
    end: int
    is_committed: bool = True


@dataclass(slots=True)
class History:
    """A whole history.

    Attributes:
        transactions: Transactions in the order of their start.
        polls: Polls in the order in which their responses arrived.
        final: All committed records in the end, when no transaction is open.
        stored: All records in the end, committed or not, of the same partitions.
        copied: For each partition that a copier reads, the target partition and the committed
            offset.
    """

    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    final: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)
    stored: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)
    copied: dict[Partition, tuple[Partition, int]] = field(default_factory=dict)
    _times: "count[int]" = field(default_factory=lambda: count(1))

    def now(self) -> int:
        """Return a time that is later than all times returned before; thread-safe."""
        return next(self._times)


def copy_of(value: int, attempt: int) -> int:
    """Return the negative number of a copy; it is unique for each pair of value and attempt."""
    return -(attempt * VALUE_LIMIT + value)


def original_of(copy: int) -> int:
    """Return the value of a copy."""
    return -copy % VALUE_LIMIT
