"""A share partition with any behavior of members and time, compared with a model of each record.

The model keeps one row per offset and implements each rule in its plainest form. Model and
partition must return the same records and codes, and have the same state after every step.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.worlds.brokers.running import offset_states

from tidelog.error_codes import ErrorCode
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    AckType,
    AcquireOptions,
    Limits,
    ReadBatches,
    RecordState,
)
from tidelog.server.shares.share_partition import Change, SharePartition

LOG_END = 120
MEMBERS = ("anna", "bert", "cleo")
OVER = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
LIMITS = Limits(locks_max=40, deliveries_max=4, lock_ms=100)


@dataclass
class Row:
    """One offset."""

    state: RecordState
    count: int = 0
    member: str = ""
    deadline: int = 0
    becomes: RecordState | None = None
    becomes_count: int = 0
    token: int = 0

    def be(self, state: RecordState, count: int) -> None:
        self.state, self.count, self.member = state, count, ""
        self.becomes, self.token = None, 0


class Model:
    """Model of a share partition: one independent row for each offset in [start, end)."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.start = self.end = 0

    def advance(self) -> None:
        while self.start < self.end and self.rows[self.start].state in OVER:
            del self.rows[self.start]
            self.start += 1

    def acquired(self, given: dict[int, int], member: str, deadline: int) -> None:
        """Mark records as acquired; `given` has the delivery count of each offset."""
        for offset in sorted(given):
            while self.end <= offset:
                self.rows[self.end] = Row(RecordState.ARCHIVED)
                self.end += 1
                if self.end > offset:
                    self.rows[offset] = Row(RecordState.AVAILABLE)
            row = self.rows[offset]
            assert row.state is RecordState.AVAILABLE
            assert row.becomes is None
            row.state, row.count = RecordState.ACQUIRED, row.count + 1
            row.member, row.deadline = member, deadline
            assert row.count == given[offset]

    def problem(self, member: str, said: Acknowledgement) -> ErrorCode:
        if said.last < self.start:
            return ErrorCode.NONE
        if self.start == self.end:
            return ErrorCode.INVALID_RECORD_STATE
        if said.last >= self.end:
            return ErrorCode.INVALID_REQUEST
        for offset in range(max(said.first, self.start), said.last + 1):
            row = self.rows[offset]
            if row.state is not RecordState.ACQUIRED or row.member != member:
                return ErrorCode.INVALID_RECORD_STATE
            if row.becomes is not None:
                return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    def take(self, said: Acknowledgement, token: int, now: int) -> None:
        for offset in range(max(said.first, self.start), said.last + 1):
            row = self.rows[offset]
            kind = said.types[0] if len(said.types) == 1 else said.types[offset - said.first]
            if kind == AckType.RENEW:
                row.deadline = now + LIMITS.lock_ms
                continue
            row.token, row.becomes_count = token, row.count
            if kind == AckType.ACCEPT:
                row.becomes = RecordState.ACKNOWLEDGED
            elif kind == AckType.RELEASE and row.count < LIMITS.deliveries_max:
                row.becomes = RecordState.AVAILABLE
            else:
                row.becomes = RecordState.ARCHIVED


@st.composite
def batches_of_log(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw first and last offset of each batch; offsets may be missing before a batch."""
    at, found = 0, []
    while at < LOG_END:
        at += draw(st.sampled_from([0, 0, 0, 0, 3]))
        size = draw(st.integers(1, 12))
        found.append((at, at + size - 1))
        at += size
    return found


class ShareMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.known = SharePartition(0, (), LIMITS)
        self.model = Model()
        self.log: list[tuple[int, int]] = []
        self.changes: list[Change] = []
        self.now = 1000

    @precondition(lambda self: not self.log)
    @rule(log=batches_of_log())
    def write_log(self, log: list[tuple[int, int]]) -> None:
        self.log = log

    @precondition(lambda self: self.log)
    @rule(
        member=st.sampled_from(MEMBERS),
        wanted=st.integers(1, 30),
        batch=st.integers(1, 20),
        is_strict=st.booleans(),
        count=st.integers(1, 5),
        is_aborted=st.booleans(),
    )
    def fetch(
        self,
        member: str,
        wanted: int,
        batch: int,
        is_strict: bool,
        count: int,
        is_aborted: bool,
    ) -> None:
        at = self.known.fetch_offset
        read = [each for each in self.log if each[1] >= at][:count]
        if not read:
            return
        aborted = read[1:2] if is_aborted else []
        was_full = self.known.end - self.known.start >= LIMITS.locks_max
        end_before = self.known.end
        offered = ReadBatches(fetch_offset=at, batches=read, aborted=aborted)
        wish = AcquireOptions(records_max=wanted, batch_records=batch, is_strict=is_strict)
        acquired = self.known.acquire(member, offered, wish, self.now)
        given = {
            offset: each.count for each in acquired for offset in range(each.first, each.last + 1)
        }
        assert sum(each.size for each in acquired) == len(given)
        assert sorted(given) == list(given)
        if was_full:
            assert self.known.end == end_before
        if is_strict:
            assert len(given) <= wanted
        self._check_wants(given, read, wanted)
        self._skip(at, read[0][0])
        self._hide(given, aborted)
        self.model.acquired(given, member, self.now + LIMITS.lock_ms)
        self._hide(given, aborted)
        self._fill()
        self.model.advance()

    def _check_wants(self, given: dict[int, int], read: list[tuple[int, int]], most: int) -> None:
        """Assert that more records than requested are given only to complete a batch of the log."""
        if len(given) > most:
            behind = sorted(given)[most - 1 :]
            (whole,) = [each for each in read if each[0] <= behind[0] <= each[1]]
            assert behind[-1] <= whole[1]

    def _skip(self, fetch_offset: int, base: int) -> None:
        """Archive available offsets in [fetch_offset, base); the log has deleted their records."""
        for offset in range(max(fetch_offset, self.model.start), min(base, self.model.end)):
            row = self.model.rows[offset]
            if row.state is RecordState.AVAILABLE:
                row.be(RecordState.ARCHIVED, row.count)

    def _hide(self, given: dict[int, int], aborted: list[tuple[int, int]]) -> None:
        """Mark aborted records in the model as archived, so that no member gets them."""
        for batch in offset_states(self.known):
            for offset in range(batch.first, min(batch.last + 1, self.model.end)):
                row = self.model.rows.get(offset)
                if row is None or offset in given or row.state is not RecordState.AVAILABLE:
                    continue
                if any(low <= offset <= high for low, high in aborted):
                    row.be(batch.state, batch.count)
        for offset in range(self.model.start, min(self.known.start, self.model.end)):
            row = self.model.rows[offset]
            if any(low <= offset <= high for low, high in aborted) and offset not in given:
                row.be(RecordState.ARCHIVED, row.count)

    def _fill(self) -> None:
        """Archive the offsets before `known.end` that are not in the model.

        No member got these offsets, because their records are aborted or absent.
        """
        while self.model.end < self.known.end:
            self.model.rows[self.model.end] = Row(RecordState.ARCHIVED)
            self.model.end += 1
        for batch in offset_states(self.known):
            for offset in range(batch.first, batch.last + 1):
                row = self.model.rows.get(offset)
                if row is not None and batch.state is row.state is RecordState.ARCHIVED:
                    row.count = batch.count

    @rule(
        member=st.sampled_from(MEMBERS),
        first=st.integers(0, 40),
        size=st.integers(1, 20),
        types=st.lists(st.sampled_from(list(AckType)), min_size=20, max_size=20),
        is_one=st.booleans(),
        writes=st.sampled_from(["now", "now", "later", "never"]),
    )
    def acknowledge(
        self,
        member: str,
        first: int,
        size: int,
        types: list[AckType],
        is_one: bool,
        writes: str,
    ) -> None:
        low = max(self.known.start + first - 3, 0)
        said = Acknowledgement(low, low + size - 1, types[:1] if is_one else types[:size])
        expected = self.model.problem(member, said)
        change = self.known.acknowledge(member, [said], self.now)
        if expected:
            assert change == expected
            return
        assert isinstance(change, Change)
        if said.last >= self.model.start:
            self.model.take(said, change.token, self.now)
        self._write(change, writes)

    @rule(member=st.sampled_from(MEMBERS), writes=st.sampled_from(["now", "later", "never"]))
    def leave(self, member: str, writes: str) -> None:
        change = self.known.release(member)
        for row in self.model.rows.values():
            if row.state is RecordState.ACQUIRED and row.member == member and row.becomes is None:
                again = row.count < LIMITS.deliveries_max
                row.becomes = RecordState.AVAILABLE if again else RecordState.ARCHIVED
                row.becomes_count, row.token = row.count, change.token
        self._write(change, writes)

    def _write(self, change: Change, writes: str) -> None:
        if writes == "later":
            self.changes.append(change)
        elif writes == "now":
            self._commit(change)
        else:
            self._roll_back(change)

    def _commit(self, change: Change) -> None:
        self.known.commit(change)
        for row in self.model.rows.values():
            if row.token == change.token and row.becomes is not None:
                row.be(row.becomes, row.becomes_count)
        self.model.advance()

    def _roll_back(self, change: Change) -> None:
        self.known.roll_back(change)
        for row in self.model.rows.values():
            if row.token == change.token:
                row.becomes, row.token = None, 0

    @precondition(lambda self: self.changes)
    @rule(is_written=st.booleans())
    def finish_write(self, is_written: bool) -> None:
        change = self.changes.pop(0)
        if is_written:
            self._commit(change)
        else:
            self._roll_back(change)

    @rule(ms=st.integers(1, 150))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.known.expire(self.now)
        for row in self.model.rows.values():
            is_due = row.deadline <= self.now and row.becomes is None
            if row.state is RecordState.ACQUIRED and is_due:
                again = row.count < LIMITS.deliveries_max
                row.be(RecordState.AVAILABLE if again else RecordState.ARCHIVED, row.count)
        self.model.advance()

    @rule(by=st.integers(1, 10))
    def move_log_start(self, by: int) -> None:
        start = self.known.start + by
        assert self.known.move_start(start)
        model = self.model
        model.rows = {offset: row for offset, row in model.rows.items() if offset >= start}
        model.start, model.end = start, max(start, model.end)
        model.advance()

    @rule()
    def restart(self) -> None:
        """Restart from the stored state, which has no locks, unless a write is pending."""
        if self.changes:
            return
        kept = [
            batch for batch in offset_states(self.known) if batch.state is not RecordState.ACQUIRED
        ]
        self.known = SharePartition(self.known.start, kept, LIMITS)
        model = self.model
        last = max((batch.last for batch in kept), default=model.start - 1)
        model.rows = {offset: row for offset, row in model.rows.items() if offset <= last}
        model.end = last + 1
        for row in model.rows.values():
            if row.state is RecordState.ACQUIRED:
                row.be(RecordState.AVAILABLE, 0)

    @invariant()
    def same(self) -> None:
        known, model = self.known, self.model
        assert (known.start, known.end) == (model.start, model.end)
        kept = {
            offset: (batch.state, batch.count)
            for batch in offset_states(known)
            for offset in range(batch.first, batch.last + 1)
        }
        assert kept == {offset: (row.state, row.count) for offset, row in model.rows.items()}
        done = [row for row in model.rows.values() if _will_be(row) in OVER]
        assert known.complete_count == len(done)
        available = [
            offset for offset, row in model.rows.items() if row.state is RecordState.AVAILABLE
        ]
        assert known.fetch_offset == min(available, default=model.end)
        locked = [
            row.deadline
            for row in model.rows.values()
            if row.state is RecordState.ACQUIRED and row.becomes is None
        ]
        assert known.deadline_ms == min(locked, default=None)
        assert len(known._runs) <= len(model.rows)


def _will_be(row: Row) -> RecordState:
    return row.state if row.becomes is None else row.becomes


TestShareModel = ShareMachine.TestCase
