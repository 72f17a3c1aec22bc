"""States of the records of a share partition, in runs of offsets with equal state.

Runs are adjacent, without gaps. A run is split when its offsets differ and merged with an equal
neighbour. Offsets missing in the log belong to runs, too: as archived, or as what a member
acknowledges as a gap.

Source: KIP-932, KIP-1222 (renewal); Kafka 4.3's RecordState and AcknowledgeType.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class RecordState(IntEnum):
    """How far a record is in a share group; part of the format of `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


# What a record stays for good.
TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AckType(IntEnum):
    """What a member says of a record; part of the protocol."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Records of one state, as they are kept.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        state: Never ACQUIRED: locks are not kept.
        count: How often they were delivered.
    """

    first: int
    last: int
    state: RecordState
    count: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """Records that a member was given: offsets, last one inclusive, and the delivery's number."""

    first: int
    last: int
    count: int

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a member says of a range of records.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        types: One for all of them, or one for each.
    """

    first: int
    last: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for a share partition.

    Attributes:
        locks_max: Records between the start offset and the last one delivered, softly: a batch of
            the log goes whole, unless it is huge.
        deliveries_max: After so many deliveries a record is archived.
        lock_ms: For so long a record is a member's.
        may_renew: Whether it may ask for more time.
    """

    locks_max: int = 2000
    deliveries_max: int = 5
    lock_ms: int = 30_000
    may_renew: bool = True

    @property
    def isolation_count(self) -> int:
        """From so many deliveries on, records are given in ever smaller parts.

        One bad record then spoils ever fewer others. Source: Kafka 4.3's SharePartition.
        """
        return max(2, -(-self.deliveries_max // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireOptions:
    """How much a member wants.

    Attributes:
        records_max: Records; softly, as a batch of the log goes whole.
        batch_records: What is acquired is cut at batches of the log once it has so many records.
        is_strict: No record more than `records_max` (KIP-1206).
    """

    records_max: int
    batch_records: int = 500
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatches:
    """What was read of the log for a member.

    Attributes:
        fetch_offset: Where the read began.
        batches: First and last offset of each batch, in order; the first may begin below
            `fetch_offset`.
        aborted: First and last offset of batches that nobody shall see.
    """

    fetch_offset: int
    batches: Sequence[tuple[int, int]]
    aborted: Sequence[tuple[int, int]] = ()


NOBODY: Final = ""


NO_TOKEN: Final = 0


@dataclass(slots=True)
class Run:
    """Offsets that are alike.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        state: What they are.
        count: How often they were delivered.
        batch_records: How many offsets were delivered together the first time.
        member: Whose they are, where they are acquired.
        deadline_ms: Until when, by monotonic time.
        becomes: What they are as soon as that is written: state and count; None for no change.
        token: Names the change.
    """

    first: int
    last: int
    state: RecordState
    count: int
    batch_records: int
    member: str = NOBODY
    deadline_ms: int = 0
    becomes: tuple[RecordState, int] | None = None
    token: int = NO_TOKEN

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> "Run":
        """Some of them, by themselves."""
        # Not `dataclasses.replace`: a member may say something else of each of thousands.
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
        """Whether a member may be given them now."""
        return self.state is RecordState.AVAILABLE

    @property
    def is_locked(self) -> bool:
        """Whether they are a member's, and nothing is being written about them."""
        return self.state is RecordState.ACQUIRED and self.becomes is None

    @property
    def is_over(self) -> bool:
        """Whether nobody will be given them again."""
        return self.state in TERMINAL

    @property
    def will_be_over(self) -> bool:
        """The same once what is being written is written."""
        return (self.state if self.becomes is None else self.becomes[0]) in TERMINAL

    def settle(self, state: RecordState, count: int) -> None:
        """They are something else now, and nobody's."""
        self.state, self.count = state, count
        self.member, self.deadline_ms = NOBODY, 0
        self.becomes, self.token = None, NO_TOKEN

    def is_like(self, other: "Run") -> bool:
        """Whether offsets of both are alike."""
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
    """Runs side by side, by offset."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def first(self) -> Run | None:
        """The one with the lowest offsets."""
        return self._runs[0] if self._runs else None

    def append(self, run: Run) -> None:
        """Add one behind all others."""
        assert not self._runs or self._runs[-1].last + 1 == run.first
        assert run.first <= run.last
        self._runs.append(run)

    def over(self, first: int, last: int) -> list[Run]:
        """The runs with an offset in a range, whole."""
        start = max(bisect_right(self._runs, first, key=_first) - 1, 0)
        end = bisect_right(self._runs, last, key=_first)
        return [run for run in self._runs[start:end] if run.last >= first]

    def within(self, first: int, last: int) -> list[Run]:
        """The runs of a range, split where they reach beyond it."""
        self._split(first)
        self._split(last + 1)
        return self.over(first, last)

    def _split(self, offset: int) -> None:
        """Let a run begin with an offset, where there is one that it lies within."""
        at = bisect_right(self._runs, offset, key=_first) - 1
        if at < 0:
            return
        run = self._runs[at]
        if run.first < offset <= run.last:
            self._runs.insert(at + 1, run.part(offset, run.last))
            run.last = offset - 1

    def replace(self, first: int, last: int, runs: Sequence[Run]) -> None:
        """Let others take the place of those of a range, which begins and ends with one of them.

        Neighbours that are alike are one then.
        """
        assert runs[0].first == first
        assert runs[-1].last == last
        start = bisect_left(self._runs, first, key=_first)
        end = bisect_right(self._runs, last, key=_first)
        self._runs[start:end] = runs
        self.join(first, last)

    def join(self, first: int, last: int) -> None:
        """Make one run of neighbours that are alike, in a range and at its ends."""
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
        """Forget all offsets below one."""
        self._split(offset)
        del self._runs[: bisect_right(self._runs, offset - 1, key=_first)]
