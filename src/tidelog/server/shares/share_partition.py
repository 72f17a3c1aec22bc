"""Rules of one partition in one share group: acquire, acknowledge, expire. Pure.

AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                      |
        +--release, time out---+--reject, gap, delivered too often--> ARCHIVED

An acknowledgement applies once it is written; until then the record is pending, and further
acknowledgements of it are refused. A time-out applies at once. The start offset is the first record
that is not finished; `end` is the offset after the last delivered one. Times are arguments, and the
caller writes what a `Change` contains. An acquisition takes read records until the member has
enough.

Source: KIP-932, KIP-1206; Kafka 4.3's SharePartition (order of checks, error codes, cuts at
batches, isolation of bad records).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    AckType,
    Acquired,
    AcquireOptions,
    Limits,
    ReadBatches,
    RecordState,
    Run,
    Runs,
    StateBatch,
)

# Offsets that one acquisition gives at most, though a batch of the log be larger: what members say
# of them one by one has to fit into a record of `__share_group_state`. As many as locks may be.
ACQUIRED_MAX: Final = 10_000


class Lender(Protocol):
    """Records that can be given; a `SharePartition` is one."""

    limits: Limits

    def runs_again(self, first: int, last: int) -> list[Run]:
        """Runs in a range that a member may be given."""
        ...

    def lock(self, first: int, last: int, member: str, deadline_ms: int) -> int:
        """Give a member a part of one run; the delivery's number."""
        ...

    def lock_new(self, first: int, last: int, member: str, deadline_ms: int) -> None:
        """Give a member what was never delivered; the log has nothing between `end` and it."""
        ...


class Acquisition:
    """One acquisition: what a member is given, until it has enough."""

    def __init__(
        self,
        records: Lender,
        member: str,
        offered: ReadBatches,
        wish: AcquireOptions,
        most: int,
        deadline_ms: int,
    ) -> None:
        self._records = records
        self._member = member
        self._batches = offered.batches
        self._wish = wish
        self._left = most
        # So many more may go, that a batch goes whole.
        self._spare = ACQUIRED_MAX - most
        self._deadline_ms = deadline_ms
        self.acquired: list[Acquired] = []

    def again(self, first: int, last: int) -> None:
        """Give what was delivered before, in a range."""
        limits = self._records.limits
        for run in self._records.runs_again(first, last):
            is_isolated = run.count >= limits.isolation_count
            if self._left <= 0 or (is_isolated and self.acquired):
                self._left = 0
                return
            low = max(run.first, first)
            high = self._cut(low, min(run.last, last))
            if is_isolated:
                high = min(high, low + _isolated_size(run, limits) - 1)
            count = self._records.lock(low, high, self._member, self._deadline_ms)
            self._take(low, high, count)
            if is_isolated:
                self._left = 0

    def new(self, first: int, last: int) -> None:
        """Give what was never delivered, in a range."""
        if self._left <= 0 or first > last:
            return
        high = self._cut(first, last)
        for low, behind in self._pieces(first, high):
            self._records.lock_new(low, behind, self._member, self._deadline_ms)
            self._note(low, behind, 1)
        self._left = 0

    def _take(self, first: int, last: int, count: int) -> None:
        for low, high in self._pieces(first, last):
            self._note(low, high, count)

    def _note(self, first: int, last: int, count: int) -> None:
        self.acquired.append(Acquired(first, last, count))
        self._left -= last - first + 1

    def _cut(self, first: int, last: int) -> int:
        """The last offset of a range that may be given: that of its batch, unless it is huge."""
        last_wanted = first + self._left - 1
        if last_wanted >= last:
            return last
        if self._wish.is_strict:
            return last_wanted
        inside = (high for low, high in self._batches if low <= last_wanted <= high)
        return min(next(inside, last_wanted), last_wanted + self._spare, last)

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """A range, cut at batches of the log once a piece has as many records as are wanted."""
        size = max(self._wish.batch_records, 1)
        if not self._wish.is_strict:
            for base, _ in self._batches:
                if base > last:
                    break
                if base - first >= size:
                    yield first, base - 1
                    first = base
        yield first, last


def _isolated_size(run: Run, limits: Limits) -> int:
    """How many of records that were delivered often are given at a time: in the end one."""
    if limits.deliveries_max > 2 and run.count >= limits.deliveries_max - 1:
        return 1
    return max(1, run.batch_records >> (run.count - limits.isolation_count + 1))


def without(acquired: Iterable[Acquired], hidden: Sequence[tuple[int, int]]) -> Iterator[Acquired]:
    """What was acquired but for ranges of it that nobody shall see; these are in order."""
    for each in acquired:
        first = each.first
        for low, high in hidden:
            if high < first or low > each.last:
                continue
            if low > first:
                yield Acquired(first, low - 1, each.count)
            first = high + 1
        if first <= each.last:
            yield Acquired(first, each.last, each.count)


_BECOMES: Final = {
    AckType.GAP: RecordState.ARCHIVED,
    AckType.ACCEPT: RecordState.ACKNOWLEDGED,
    AckType.RELEASE: RecordState.AVAILABLE,
    AckType.REJECT: RecordState.ARCHIVED,
}


_TYPES: Final = frozenset(AckType)


_TYPES_BY_NUMBER: Final = {int(kind): kind for kind in AckType}


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written before it holds; `commit` or `roll_back` it, once.

    Attributes:
        token: Names it.
        batches: What records become, by offset.
    """

    token: int
    batches: Sequence[StateBatch]

    @property
    def range(self) -> tuple[int, int]:
        """Its first offset and its last one; there must be some."""
        return min(each.first for each in self.batches), max(each.last for each in self.batches)


class SharePartition:
    """Belongs to one thread.

    Attributes:
        limits: What holds from now on.
        start: First offset that is not done with.
        end: Offset behind the last one that was delivered.
    """

    def __init__(self, start: int, batches: Iterable[StateBatch], limits: Limits) -> None:
        """As it was kept.

        Args:
            start: The start offset.
            batches: What is kept of records, by offset, side by side or apart. What lies between
                them was delivered and never heard of again: it is available.
            limits: What holds.
        """
        self.limits = limits
        self.start = self.end = start
        self._runs = Runs()
        self._token = 0
        for batch in batches:
            self._restore(batch)
        self._advance()

    def _restore(self, batch: StateBatch) -> None:
        first = max(batch.first, self.start)
        if first > batch.last:
            return
        if first > self.end:
            self._append(self.end, first - 1, RecordState.AVAILABLE, 0)
        self._append(first, batch.last, batch.state, batch.count)

    def _append(self, first: int, last: int, state: RecordState, count: int) -> Run:
        run = Run(first, last, state, count, last - first + 1)
        self._runs.append(run)
        self.end = last + 1
        return run

    # -- questions ---------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """Where the next read of the log begins."""
        return next((run.first for run in self._runs if run.is_available), self.end)

    @property
    def position(self) -> tuple[int, int, int]:
        """Where it stands: an acquisition that gives nothing may move it all the same."""
        return self.start, self.end, self.fetch_offset

    def wanted_end(self, records_max: int) -> int:
        """Offset behind the last one that a member is given who wants so many records.

        That holds where what is read of the log does not begin behind `end`.
        """
        remaining = self._most(self.fetch_offset, records_max)
        for run in self._runs:
            if run.is_available:
                if run.size >= remaining:
                    return run.first + remaining
                remaining -= run.size
        return self.end + remaining

    @property
    def in_flight(self) -> int:
        """Offsets from the start to the end."""
        return self.end - self.start

    @property
    def can_acquire(self) -> bool:
        """Whether a read of the log could give a member something."""
        return self.in_flight < self.limits.locks_max or self.fetch_offset != self.end

    @property
    def complete_count(self) -> int:
        """Offsets from the start on that are done with, or will be once that is written."""
        return sum(run.size for run in self._runs if run.will_be_over)

    @property
    def deadline_ms(self) -> int | None:
        """When the next lock runs out, by monotonic time; None for never."""
        return min((run.deadline_ms for run in self._runs if run.is_locked), default=None)

    def batches(self) -> Iterator[StateBatch]:
        """All offsets from the start on, as they are."""
        for run in self._runs:
            yield StateBatch(run.first, run.last, run.state, run.count)

    # -- acquiring ---------------------------------------------------------------------------

    def acquire(
        self, member: str, offered: ReadBatches, wish: AcquireOptions, now_ms: int
    ) -> list[Acquired]:
        """Give a member what it may have of what was read, in order; empty for nothing."""
        if not offered.batches or wish.records_max <= 0:
            return []
        last, most = self._room(offered, wish)
        if most <= 0:
            return []
        base = max(offered.batches[0][0], self.start)
        # Compaction has taken what lay there.
        self._archive(offered.fetch_offset, base - 1, RecordState.AVAILABLE)
        taking = Acquisition(self, member, offered, wish, most, now_ms + self.limits.lock_ms)
        taking.again(base, last)
        taking.new(max(base, self.end), last)
        self._hide(taking.acquired, offered.aborted)
        self._advance()
        return list(without(taking.acquired, offered.aborted))

    def _room(self, offered: ReadBatches, wish: AcquireOptions) -> tuple[int, int]:
        """The last offset that may be given, and how many records."""
        last = offered.batches[-1][1]
        if self.in_flight >= self.limits.locks_max:
            # Full, but for what came back: nothing behind the end is begun.
            last = min(last, self.end - 1)
        return last, self._most(offered.fetch_offset, wish.records_max)

    def _most(self, fetch_offset: int, records_max: int) -> int:
        """How many records are given of those from an offset on; 0 or less for none."""
        room = self.limits.locks_max - self.in_flight
        room = room if room > 0 else self.end - fetch_offset
        return min(records_max, room, ACQUIRED_MAX)

    def runs_again(self, first: int, last: int) -> list[Run]:
        """Runs in a range that a member may be given."""
        return [run for run in self._runs.over(first, last) if run.is_available]

    def lock(self, first: int, last: int, member: str, deadline_ms: int) -> int:
        """Give a member a part of one run; the delivery's number."""
        (run,) = self._runs.within(first, last)
        run.state, run.count = RecordState.ACQUIRED, run.count + 1
        run.member, run.deadline_ms = member, deadline_ms
        return run.count

    def lock_new(self, first: int, last: int, member: str, deadline_ms: int) -> None:
        """Give a member what was never delivered; the log has nothing between `end` and it."""
        if first > self.end:
            self._append(self.end, first - 1, RecordState.ARCHIVED, 0)
        run = self._append(first, last, RecordState.ACQUIRED, 1)
        run.member, run.deadline_ms = member, deadline_ms

    def _archive(self, first: int, last: int, state: RecordState) -> None:
        """Nobody shall get what is in a state now, in a range."""
        low, high = max(first, self.start), min(last, self.end - 1)
        if low > high:
            return
        for run in self._runs.within(low, high):
            if run.state is state and run.becomes is None:
                run.settle(RecordState.ARCHIVED, run.count)
        self._runs.join(low, high)

    def _hide(self, acquired: Iterable[Acquired], hidden: Sequence[tuple[int, int]]) -> None:
        """Take back what was given of ranges that nobody shall see."""
        for each in acquired:
            for low, high in hidden:
                self._archive(max(each.first, low), min(each.last, high), RecordState.ACQUIRED)

    # -- what members say --------------------------------------------------------------------

    def acknowledge(
        self, member: str, acknowledgements: Iterable[Acknowledgement], now_ms: int
    ) -> Change | ErrorCode:
        """Take what a member says of its records: all of it, or nothing and why.

        A renewal needs no writing, and holds at once.
        """
        self._token += 1
        batches: list[StateBatch] = []
        for each in acknowledgements:
            code = self._problem(member, each)
            if code:
                self.roll_back(Change(self._token, batches))
                return code
            batches += self._stage(each, self._token, now_ms)
        return Change(self._token, tuple(batches))

    def _problem(self, member: str, acknowledgement: Acknowledgement) -> ErrorCode:
        """Why it can't be taken; NONE where it can."""
        if not _TYPES.issuperset(acknowledgement.types):
            return ErrorCode.INVALID_REQUEST
        if acknowledgement.last < self.start:
            return ErrorCode.NONE  # all of it is done with
        if self.start == self.end:
            return ErrorCode.INVALID_RECORD_STATE
        if acknowledgement.last >= self.end:
            return ErrorCode.INVALID_REQUEST
        runs = self._runs.over(max(acknowledgement.first, self.start), acknowledgement.last)
        may = self.limits.may_renew or AckType.RENEW not in acknowledgement.types
        if may and all(run.is_locked and run.member == member for run in runs):
            return ErrorCode.NONE
        return ErrorCode.INVALID_RECORD_STATE

    def _stage(self, acknowledgement: Acknowledgement, token: int, now_ms: int) -> list[StateBatch]:
        first, deadline_ms = max(acknowledgement.first, self.start), now_ms + self.limits.lock_ms
        if first > acknowledgement.last:
            return []
        batches: list[StateBatch] = []
        parts: list[Run] = []
        for run in self._runs.within(first, acknowledgement.last):
            for low, high, kind in _by_type(acknowledgement, run):
                part = run.part(low, high)
                if kind is AckType.RENEW:
                    part.deadline_ms = deadline_ms
                else:
                    batches.append(_become(part, self._next_state(part, _BECOMES[kind]), token))
                parts.append(part)
        self._runs.replace(first, acknowledgement.last, parts)
        return batches

    def _next_state(self, run: Run, state: RecordState) -> RecordState:
        """What records become, where they were not delivered too often to be available again."""
        if state is RecordState.AVAILABLE and run.count >= self.limits.deliveries_max:
            return RecordState.ARCHIVED
        return state

    def release(self, member: str) -> Change:
        """A member goes: what it has is anybody's, or was delivered too often."""
        self._token += 1
        batches = []
        for run in self._runs:
            if run.is_locked and run.member == member:
                state = self._next_state(run, RecordState.AVAILABLE)
                batches.append(_become(run, state, self._token))
        return Change(self._token, tuple(batches))

    def commit(self, change: Change) -> None:
        """A change is written: it holds."""
        for run in self._changing(change):
            if run.becomes is not None:
                run.settle(*run.becomes)
        self._join(change)
        self._advance()

    def roll_back(self, change: Change) -> None:
        """A change can't be written: records are the member's again, for as long as before.

        Those whose time has passed meanwhile are let go of by the next `expire`.
        """
        for run in self._changing(change):
            run.becomes, run.token = None, 0
        self._join(change)

    def _changing(self, change: Change) -> list[Run]:
        """What waits for a change to be written, and nothing else of its range."""
        runs = self._runs.over(*change.range) if change.batches else []
        return [run for run in runs if run.token == change.token]

    def _join(self, change: Change) -> None:
        if change.batches:
            self._runs.join(*change.range)

    # -- time, and the log's start -----------------------------------------------------------

    def expire(self, now_ms: int) -> list[StateBatch]:
        """Let go of what members have had for too long; what is worth writing of that."""
        batches = []
        for run in self._runs:
            if run.is_locked and run.deadline_ms <= now_ms:
                run.settle(self._next_state(run, RecordState.AVAILABLE), run.count)
                batches.append(StateBatch(run.first, run.last, run.state, run.count))
        if batches:
            self._runs.join(self.start, self.end)
            self._advance()
        return batches

    def move_start(self, log_start: int) -> bool:
        """The log begins later; whether that is behind the start offset.

        Nothing below it is heard of any more, whoever has it.
        """
        if log_start <= self.start:
            return False
        self.start, self.end = log_start, max(self.end, log_start)
        self._runs.drop_below(log_start)
        self._advance()
        return True

    def _advance(self) -> None:
        """Let the start offset move to the first record that is not done with."""
        start = next((run.first for run in self._runs if not run.is_over), self.end)
        if start > self.start:
            self.start = start
            self._runs.drop_below(start)


def _become(run: Run, state: RecordState, token: int) -> StateBatch:
    run.becomes, run.token = (state, run.count), token
    return StateBatch(run.first, run.last, state, run.count)


def _by_type(acknowledgement: Acknowledgement, run: Run) -> Iterator[tuple[int, int, AckType]]:
    """Ranges of one type each in a run, all of which it is about, last offset inclusive."""
    if len(acknowledgement.types) == 1:
        yield run.first, run.last, _TYPES_BY_NUMBER[acknowledgement.types[0]]
        return
    first = run.first
    types = acknowledgement.types[
        first - acknowledgement.first : run.last + 1 - acknowledgement.first
    ]
    for kind, alike in groupby(types):
        size = sum(1 for _ in alike)
        yield first, first + size - 1, _TYPES_BY_NUMBER[kind]
        first += size
