"""Rules of one partition in one share group, without input or output: acquire, acknowledge, expire.

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                      |
        +--release, time out---+--reject, gap, delivered too often--> ARCHIVED

An acknowledgement applies once it is written. Until then the record is pending, and further
acknowledgements of the record are refused. A timeout applies at once. `start` is the offset of the
first record that is not finished. `end` is the offset after the last delivered record. The caller
passes the current time as an argument, and writes the states that a `Change` contains. An
acquisition takes records from the batches that were read, until the member has enough records.

Source: KIP-932, KIP-1206; Kafka 4.3's SharePartition (order of checks, error codes, cuts at
batches, isolation of bad records).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    AckType,
    AcquiredRange,
    AcquireOptions,
    Limits,
    ReadBatches,
    RecordState,
    Run,
    Runs,
    StateBatch,
)

# Maximum number of offsets per acquisition, even if a batch of the log is larger. Each offset may
# be acknowledged separately, and all these acknowledgements must fit into one record of
# `__share_group_state`. This number is also the maximum of the setting
# `group.share.partition.max.record.locks`.
ACQUIRED_MAX: Final = 10_000


class Acquisition:
    """An acquisition: it takes records until the member has enough records."""

    def __init__(
        self,
        records: "SharePartition",
        member: str,
        offered: ReadBatches,
        options: AcquireOptions,
        records_max: int,
        deadline_ms: int,
    ) -> None:
        self._records = records
        self._member = member
        self._batches = offered.batches
        self._options = options
        self._remaining = records_max
        # Additional offsets that may be acquired so that a batch is complete.
        self._spare = ACQUIRED_MAX - records_max
        self._deadline_ms = deadline_ms
        self.acquired: list[AcquiredRange] = []

    def again(self, first: int, last: int) -> None:
        """Acquire records of a range that were delivered before."""
        limits = self._records.limits
        for run in self._records.runs_again(first, last):
            is_isolated = run.count >= limits.isolation_count
            if self._remaining <= 0 or (is_isolated and self.acquired):
                self._remaining = 0
                return
            low = max(run.first, first)
            high = self._cut(low, min(run.last, last))
            if is_isolated:
                high = min(high, low + _isolated_size(run, limits) - 1)
            count = self._records.lock(low, high, self._member, self._deadline_ms)
            self._take(low, high, count)
            if is_isolated:
                self._remaining = 0

    def new(self, first: int, last: int) -> None:
        """Acquire records of a range that were never delivered."""
        if self._remaining <= 0 or first > last:
            return
        high = self._cut(first, last)
        for low, behind in self._pieces(first, high):
            self._records.lock_new(low, behind, self._member, self._deadline_ms)
            self._note(low, behind, 1)
        self._remaining = 0

    def _take(self, first: int, last: int, count: int) -> None:
        for low, high in self._pieces(first, last):
            self._note(low, high, count)

    def _note(self, first: int, last: int, count: int) -> None:
        self.acquired.append(AcquiredRange(first, last, count))
        self._remaining -= last - first + 1

    def _cut(self, first: int, last: int) -> int:
        """Return the last offset to acquire.

        The result is the last offset of the range, or of a batch if the range has too many records
        for the member. The result may be inside a batch in two cases: the limit is strict, or the
        whole batch would exceed `ACQUIRED_MAX`.
        """
        limit = first + self._remaining - 1
        if limit >= last:
            return last
        if self._options.is_strict:
            return limit
        inside = (high for low, high in self._batches if low <= limit <= high)
        return min(next(inside, limit), limit + self._spare, last)

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Split a range into pieces of at least `batch_records` records.

        The range is split only between batches of the log.
        """
        size = max(self._options.batch_records, 1)
        if not self._options.is_strict:
            for base, _ in self._batches:
                if base > last:
                    break
                if base - first >= size:
                    yield first, base - 1
                    first = base
        yield first, last


def _isolated_size(run: Run, limits: Limits) -> int:
    """Return how many records of a run with `isolation_count` or more deliveries to acquire."""
    if limits.deliveries_max > 2 and run.count >= limits.deliveries_max - 1:
        return 1
    return max(1, run.batch_records >> (run.count - limits.isolation_count + 1))


def without(
    acquired: Iterable[AcquiredRange], hidden: Sequence[tuple[int, int]]
) -> Iterator[AcquiredRange]:
    """Return acquired ranges without the hidden ranges. `hidden` must be sorted."""
    for each in acquired:
        first = each.first
        for low, high in hidden:
            if high < first or low > each.last:
                continue
            if low > first:
                yield AcquiredRange(first, low - 1, each.count)
            first = high + 1
        if first <= each.last:
            yield AcquiredRange(first, each.last, each.count)


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
    """Pending change. The caller writes it, then calls `commit` or `roll_back` once.

    Attributes:
        token: Id of the change.
        batches: New states of records, by offset.
    """

    token: int
    batches: Sequence[StateBatch]

    @property
    def range(self) -> tuple[int, int]:
        """First and last offset of the change, which must not be empty."""
        return min(each.first for each in self.batches), max(each.last for each in self.batches)


class SharePartition:
    """Record states of a share partition. Not thread-safe.

    Attributes:
        limits: Current limits.
        start: First offset that is not finished.
        end: Offset after the last delivered offset.
    """

    def __init__(self, start: int, batches: Iterable[StateBatch], limits: Limits) -> None:
        """Restore the stored state.

        Args:
            start: Start offset.
            batches: Stored ranges of records and their states, sorted by offset. Records in a gap
                between two ranges were delivered without a stored result, so they are available.
            limits: Current limits.
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

    # -- queries -----------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """Offset at which the next read of the log begins."""
        return next((run.first for run in self._runs if run.is_available), self.end)

    @property
    def position(self) -> tuple[int, int, int]:
        """Start, end and fetch offset. `acquire` may change them even if it acquires no record."""
        return self.start, self.end, self.fetch_offset

    def acquirable_end(self, records_max: int) -> int:
        """Return the exclusive end of the shortest read that could acquire `records_max` records.

        The read begins at `fetch_offset`. If fewer records may be acquired, the read is shorter.
        The result is valid only if the first batch of the read begins at or before offset `end`.
        """
        remaining = self._records_max(self.fetch_offset, records_max)
        for run in self._runs:
            if run.is_available:
                if run.size >= remaining:
                    return run.first + remaining
                remaining -= run.size
        return self.end + remaining

    @property
    def in_flight(self) -> int:
        """Number of offsets from the start to the end."""
        return self.end - self.start

    @property
    def can_acquire(self) -> bool:
        """Whether a read of the log could return records for a member."""
        return self.in_flight < self.limits.locks_max or self.fetch_offset != self.end

    @property
    def complete_count(self) -> int:
        """Number of finished offsets from the start on. Pending changes count as written."""
        return sum(run.size for run in self._runs if run.will_be_over)

    @property
    def deadline_ms(self) -> int | None:
        """Monotonic time of the next lock timeout; None without locks."""
        return min((run.deadline_ms for run in self._runs if run.is_locked), default=None)

    # -- acquiring ---------------------------------------------------------------------------

    def acquire(
        self, member: str, offered: ReadBatches, options: AcquireOptions, now_ms: int
    ) -> list[AcquiredRange]:
        """Acquire records for a member from the batches that were read, in their order.

        The result is empty if no record may be acquired.
        """
        if not offered.batches or options.records_max <= 0:
            return []
        last, records_max = self._room(offered, options)
        if records_max <= 0:
            return []
        base = max(offered.batches[0][0], self.start)
        # Compaction has removed the records before the first batch.
        self._archive(offered.fetch_offset, base - 1, RecordState.AVAILABLE)
        taking = Acquisition(
            self, member, offered, options, records_max, now_ms + self.limits.lock_ms
        )
        taking.again(base, last)
        taking.new(max(base, self.end), last)
        self._hide(taking.acquired, offered.aborted)
        self._advance()
        return list(without(taking.acquired, offered.aborted))

    def _room(self, offered: ReadBatches, options: AcquireOptions) -> tuple[int, int]:
        """Return the last offset to acquire, and the maximum number of records."""
        last = offered.batches[-1][1]
        if self.in_flight >= self.limits.locks_max:
            # If the limit of locked offsets is reached, only released records are acquired, but no
            # records at or after `end`, which were never delivered.
            last = min(last, self.end - 1)
        return last, self._records_max(offered.fetch_offset, options.records_max)

    def _records_max(self, fetch_offset: int, records_max: int) -> int:
        """Return how many records from an offset on may be acquired.

        The result is 0 or negative if no record may be acquired.
        """
        room = self.limits.locks_max - self.in_flight
        room = room if room > 0 else self.end - fetch_offset
        return min(records_max, room, ACQUIRED_MAX)

    def runs_again(self, first: int, last: int) -> list[Run]:
        """Return the runs of a range that were delivered before and are available again."""
        return [run for run in self._runs.over(first, last) if run.is_available]

    def lock(self, first: int, last: int, member: str, deadline_ms: int) -> int:
        """Acquire a part of one run for a member; return the delivery count."""
        (run,) = self._runs.within(first, last)
        run.state, run.count = RecordState.ACQUIRED, run.count + 1
        run.member, run.deadline_ms = member, deadline_ms
        return run.count

    def lock_new(self, first: int, last: int, member: str, deadline_ms: int) -> None:
        """Acquire records for the first time. Offsets from `end` to `first - 1` have no records."""
        if first > self.end:
            self._append(self.end, first - 1, RecordState.ARCHIVED, 0)
        run = self._append(first, last, RecordState.ACQUIRED, 1)
        run.member, run.deadline_ms = member, deadline_ms

    def _archive(self, first: int, last: int, state: RecordState) -> None:
        """Archive the records of a range that are in state `state`."""
        low, high = max(first, self.start), min(last, self.end - 1)
        if low > high:
            return
        for run in self._runs.within(low, high):
            if run.state is state and run.becomes is None:
                run.settle(RecordState.ARCHIVED, run.count)
        self._runs.join(low, high)

    def _hide(self, acquired: Iterable[AcquiredRange], hidden: Sequence[tuple[int, int]]) -> None:
        """Archive acquired records of hidden ranges."""
        for each in acquired:
            for low, high in hidden:
                self._archive(max(each.first, low), min(each.last, high), RecordState.ACQUIRED)

    # -- acknowledgements --------------------------------------------------------------------

    def acknowledge(
        self, member: str, acknowledgements: Iterable[Acknowledgement], now_ms: int
    ) -> Change | ErrorCode:
        """Return a pending change with all of a member's acknowledgements, or an error code.

        If one acknowledgement is invalid, none becomes pending. A renewal needs no write and
        applies at once, even if a later acknowledgement is invalid.
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
        """Return the error code of an invalid acknowledgement; NONE if it is valid."""
        if not _TYPES.issuperset(acknowledgement.types):
            return ErrorCode.INVALID_REQUEST
        if acknowledgement.last < self.start:
            return ErrorCode.NONE  # all offsets of the acknowledgement are finished
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
        """Return the new state. Records that were delivered too often are archived."""
        if state is RecordState.AVAILABLE and run.count >= self.limits.deliveries_max:
            return RecordState.ARCHIVED
        return state

    def release(self, member: str) -> Change:
        """Return a change that releases a member's records; `commit` then applies the change.

        Records that were delivered too often are archived.
        """
        self._token += 1
        batches = []
        for run in self._runs:
            if run.is_locked and run.member == member:
                state = self._next_state(run, RecordState.AVAILABLE)
                batches.append(_become(run, state, self._token))
        return Change(self._token, tuple(batches))

    def commit(self, change: Change) -> None:
        """Apply a change that has been written."""
        for run in self._changing(change):
            if run.becomes is not None:
                run.settle(*run.becomes)
        self._join(change)
        self._advance()

    def roll_back(self, change: Change) -> None:
        """Roll back a change that can't be written.

        The records of the change stay locked until the deadline that they had before. If this
        deadline has passed, the next `expire` releases them.
        """
        for run in self._changing(change):
            run.becomes, run.token = None, 0
        self._join(change)

    def _changing(self, change: Change) -> list[Run]:
        """Return the runs that wait for this change."""
        runs = self._runs.over(*change.range) if change.batches else []
        return [run for run in runs if run.token == change.token]

    def _join(self, change: Change) -> None:
        if change.batches:
            self._runs.join(*change.range)

    # -- time, and the log's start -----------------------------------------------------------

    def expire(self, now_ms: int) -> list[StateBatch]:
        """Release records whose locks have expired; return the new states to write."""
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
        """Raise the start offset to `log_start`; return False if the start offset is not below it.

        Records below the log start are dropped, even if they are acquired.
        """
        if log_start <= self.start:
            return False
        self.start, self.end = log_start, max(self.end, log_start)
        self._runs.drop_below(log_start)
        self._advance()
        return True

    def _advance(self) -> None:
        """Move the start offset to the first record that is not finished."""
        start = next((run.first for run in self._runs if not run.is_over), self.end)
        if start > self.start:
            self.start = start
            self._runs.drop_below(start)


def _become(run: Run, state: RecordState, token: int) -> StateBatch:
    run.becomes, run.token = (state, run.count), token
    return StateBatch(run.first, run.last, state, run.count)


def _by_type(acknowledgement: Acknowledgement, run: Run) -> Iterator[tuple[int, int, AckType]]:
    """Split a run into ranges of one acknowledgement type each, last offset inclusive."""
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
