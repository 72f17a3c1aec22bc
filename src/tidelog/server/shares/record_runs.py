"""States of the records of a share partition, in runs of offsets with equal state.

Runs are adjacent, without gaps. A run is split when a part of it gets another state, and merged
with an equal neighbor. Runs also cover offsets that the log does not have: these offsets are
archived, or a member acknowledges them as a gap.

Source: KIP-932, KIP-1222 (renewal); Kafka 4.3's RecordState and AcknowledgeType.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from tidelog.lazy_dataclass import dataclass


class RecordState(IntEnum):
    """Delivery state of a record in a share group.

    The number of the state is stored in `__share_group_state`.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


# States that a record never leaves.
TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AckType(IntEnum):
    """Type of an acknowledgement, with the type's number in the protocol."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Range of records with one state, as it is stored.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        state: State; never ACQUIRED, because locks are not stored.
        count: Number of deliveries.
    """

    first: int
    last: int
    state: RecordState
    count: int


@dataclass(frozen=True, slots=True)
class AcquiredRange:
    """Range of acquired records: first and last offset, inclusive, and the delivery count."""

    first: int
    last: int
    count: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Acknowledgement of a range of records.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        types: One type for all offsets, or one type for each offset.
    """

    first: int
    last: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a share partition.

    Attributes:
        locks_max: Soft limit of the number of offsets from the start offset to the last delivered
            offset. More offsets may be locked, because a batch of the log is acquired as a whole
            (up to `ACQUIRED_MAX` offsets).
        deliveries_max: Number of deliveries after which a record is archived.
        lock_ms: Duration of an acquisition lock.
        may_renew: Whether a member may renew its locks.
    """

    locks_max: int = 2000
    deliveries_max: int = 5
    lock_ms: int = 30_000
    may_renew: bool = True

    @property
    def isolation_count(self) -> int:
        """Number of deliveries after which only a part of a run is acquired at once.

        After each further delivery, this part is smaller. So a record that no member can process
        delays fewer and fewer other records.

        Source: Kafka 4.3's SharePartition.
        """
        return max(2, -(-self.deliveries_max // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireOptions:
    """Number of records that a member requests.

    Attributes:
        records_max: Soft limit of records. The acquisition may exceed the limit, because a batch of
            the log is acquired as a whole.
        batch_records: Minimum number of records of a range. Acquired records are split into ranges,
            but only between batches of the log. The last range can have fewer records.
        is_strict: Whether `records_max` is a strict limit (KIP-1206).
    """

    records_max: int
    batch_records: int = 500
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatches:
    """Batches that were read from the log for a member.

    Attributes:
        fetch_offset: Offset at which the read began.
        batches: First and last offset of each batch, in order. The first batch may begin below
            `fetch_offset`.
        aborted: First and last offset of each batch of an aborted transaction. These batches are
            hidden.
    """

    fetch_offset: int
    batches: Sequence[tuple[int, int]]
    aborted: Sequence[tuple[int, int]] = ()


NO_MEMBER: Final = ""
NO_TOKEN: Final = 0


@dataclass(slots=True)
class Run:
    """Range of offsets with equal state.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        state: State of the records.
        count: Number of deliveries.
        batch_records: Size of the range, in offsets, when its records were first acquired, or when
            the range was loaded from the persisted state.
        member: Id of the member that has acquired the records; empty if no member has.
        deadline_ms: Monotonic time at which the lock expires.
        becomes: State and count after the pending write; None if no write is pending.
        token: Id of the pending change.
    """

    first: int
    last: int
    state: RecordState
    count: int
    batch_records: int
    member: str = NO_MEMBER
    deadline_ms: int = 0
    becomes: tuple[RecordState, int] | None = None
    token: int = NO_TOKEN

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> "Run":
        """Return a copy for a part of the range."""
        # `replace` of dataclasses would be too slow: if a member acknowledges thousands of records
        # one by one, this method is called for each of them.
        return Run(
            first,
            last,
            self.state,
            self.count,
            self.batch_records,
            self.member,
            self.deadline_ms,
            self.becomes,
            self.token,
        )

    @property
    def is_available(self) -> bool:
        """Whether a member may acquire the records now."""
        return self.state is RecordState.AVAILABLE

    @property
    def is_locked(self) -> bool:
        """Whether a member has acquired the records and no change of the records is pending."""
        return self.state is RecordState.ACQUIRED and self.becomes is None

    @property
    def is_over(self) -> bool:
        """Whether the records are finished and never delivered again."""
        return self.state in TERMINAL

    @property
    def will_be_over(self) -> bool:
        """Whether the records are finished once the pending change is written."""
        return (self.state if self.becomes is None else self.becomes[0]) in TERMINAL

    def settle(self, state: RecordState, count: int) -> None:
        """Set a new state and count, and clear the lock and the pending change."""
        self.state, self.count = state, count
        self.member, self.deadline_ms = NO_MEMBER, 0
        self.becomes, self.token = None, NO_TOKEN

    def is_like(self, other: "Run") -> bool:
        """Whether both runs are equal except for their offsets."""
        return (
            self.state is other.state
            and self.count == other.count
            and self.batch_records == other.batch_records
            and self.member == other.member
            and self.deadline_ms == other.deadline_ms
            and self.token == other.token
            and self.becomes == other.becomes
        )


def _first(run: Run) -> int:
    return run.first


class Runs:
    """Adjacent runs, by ascending offset."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def append(self, run: Run) -> None:
        """Add a run after all others."""
        assert not self._runs or self._runs[-1].last + 1 == run.first
        assert run.first <= run.last
        self._runs.append(run)

    def over(self, first: int, last: int) -> list[Run]:
        """Return the runs that overlap a range, without splitting them."""
        start = max(bisect_right(self._runs, first, key=_first) - 1, 0)
        end = bisect_right(self._runs, last, key=_first)
        return [run for run in self._runs[start:end] if run.last >= first]

    def within(self, first: int, last: int) -> list[Run]:
        """Return the runs of a range. Runs that extend beyond the range are split."""
        self._split(first)
        self._split(last + 1)
        return self.over(first, last)

    def _split(self, offset: int) -> None:
        """Split the run that contains an offset, so that a run begins at this offset."""
        at = bisect_right(self._runs, offset, key=_first) - 1
        if at < 0:
            return
        run = self._runs[at]
        if run.first < offset <= run.last:
            self._runs.insert(at + 1, run.part(offset, run.last))
            run.last = offset - 1

    def replace(self, first: int, last: int, runs: Sequence[Run]) -> None:
        """Replace the runs of a range. The range must begin and end at run boundaries.

        Equal neighbors are then merged.
        """
        assert runs[0].first == first
        assert runs[-1].last == last
        start = bisect_left(self._runs, first, key=_first)
        end = bisect_right(self._runs, last, key=_first)
        self._runs[start:end] = runs
        self.join(first, last)

    def join(self, first: int, last: int) -> None:
        """Merge equal neighbors in a range and at its ends."""
        end = bisect_right(self._runs, last + 1, key=_first)
        start = max(bisect_right(self._runs, first - 1, key=_first) - 1, 0)
        joined: list[Run] = []
        for run in self._runs[start:end]:
            if joined and joined[-1].is_like(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self._runs[start:end] = joined

    def drop_below(self, offset: int) -> None:
        """Remove all offsets below `offset`."""
        self._split(offset)
        del self._runs[: bisect_right(self._runs, offset - 1, key=_first)]
