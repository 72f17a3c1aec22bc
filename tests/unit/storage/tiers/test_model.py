"""A partition with two tiers compared with a plain list after random operations."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.unit.storage.tiers.tiered import NAME, Tiered

from tidelog.errors import StorageFailure
from tidelog.record.builder import build_batch
from tidelog.record.record import Record
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.tier_manager.orphans import collect
from tidelog.storage.tier_manager.tier_store import verify
from tidelog.types import ClockName, IsolationLevel, NewRecord

RETENTION_MS = 60_000


@dataclass(frozen=True)
class Row:
    """One record of the model's list."""

    offset: int
    value: bytes
    timestamp: int
    append_ms: int
    is_aborted: bool = False
    producer: int | None = None


class TwoTiers(RuleBasedStateMachine):
    """Random appends, moves to the tier, truncations, deletions, crashes and store failures."""

    def __init__(self) -> None:
        super().__init__()
        self.tiered = Tiered().start(
            **{"local.retention.bytes": "900", "retention.ms": str(RETENTION_MS)}
        )
        self.rows: list[Row] = []
        self.start = 0
        self.count = 0

    def teardown(self) -> None:
        self.tiered.directory.abandon()

    def _values(self, count: int, jitter: int) -> list[NewRecord]:
        now = self.tiered.base.clock.now_ms()
        found = []
        for _ in range(count):
            self.count += 1
            time = now + (self.count * jitter) % 4001 - 2000
            found.append(NewRecord(key=b"k", value=b"%d" % self.count + b"." * 90, timestamp=time))
        return found

    def _note(
        self,
        records: list[NewRecord],
        first: int,
        *,
        is_aborted: bool = False,
        producer: int | None = None,
    ) -> None:
        append_ms = self.tiered.log.append_time_of(first)
        assert append_ms is not None
        for number, record in enumerate(records):
            assert record.value is not None
            assert record.timestamp is not None
            place, value, time = first + number, record.value, record.timestamp
            self.rows.append(Row(place, value, time, append_ms, is_aborted, producer))

    @rule(count=st.integers(1, 9), jitter=st.integers(0, 4000), pause=st.integers(1, 3000))
    def append(self, count: int, jitter: int, pause: int) -> None:
        self.tiered.base.clock.advance(pause)
        for record in self._values(count, jitter):
            result = self.tiered.log.append([record])
            self._note([record], result.base_offset)
        self.tiered.log.flush()

    @rule(count=st.integers(1, 4), commits=st.booleans())
    def transact(self, count: int, commits: bool) -> None:
        self.tiered.base.clock.advance(10)
        records, producer = self._values(count, 17), self.count
        batch = build_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        result = self.tiered.log.append_batches(batch)
        self._note(records, result.base_offset, is_aborted=not commits, producer=producer)
        self._end(producer, commit=commits)

    def _end(self, producer: int, *, commit: bool) -> None:
        self.tiered.log.end_transaction(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, commit=commit
        )
        self.tiered.log.flush()

    @rule(roll=st.booleans(), grace_ms=st.sampled_from([0, 5000]))
    def move(self, roll: bool, grace_ms: int) -> None:
        self.tiered.move(roll=roll, grace_ms=grace_ms)
        self._after_retention()

    @rule(number=st.integers(1, 60), after=st.booleans())
    def move_on_a_failing_store(self, number: int, after: bool) -> None:
        store = self.tiered.store
        store.fail_at, store.fails_after = store.calls + number, after
        try:
            self.tiered.move(roll=True, grace_ms=0)
        except StorageFailure:
            assert self.tiered.log.failure is None
        finally:
            store.fail_at = None
        self._after_retention()

    @rule(pause=st.integers(1, RETENTION_MS))
    def wait(self, pause: int) -> None:
        self.tiered.base.clock.advance(pause)

    @rule()
    def retain(self) -> None:
        self.tiered.log.apply_retention()
        self._after_retention()

    def _after_retention(self) -> None:
        """Check that retention removed only old records."""
        now, start = self.tiered.base.clock.now_ms(), self.tiered.log.log_start_offset
        assert start >= self.start
        gone = [row for row in self.rows if row.offset < start]
        assert all(min(row.timestamp, row.append_ms) < now - RETENTION_MS for row in gone)
        self.start = start
        self.rows = [row for row in self.rows if row.offset >= start]

    @precondition(lambda self: self.rows)
    @rule(place=st.floats(0, 1))
    def delete_records(self, place: float) -> None:
        offset = self.rows[int(place * (len(self.rows) - 1))].offset
        self.start = self.tiered.log.delete_records(offset)
        self.rows = [row for row in self.rows if row.offset >= offset]

    @precondition(lambda self: self.rows)
    @rule(place=st.floats(0, 1))
    def truncate(self, place: float) -> None:
        offset = self.rows[int(place * (len(self.rows) - 1))].offset
        end = self.tiered.log.truncate_to(offset)
        assert end <= offset
        self.rows = [row for row in self.rows if row.offset < end]
        self.start = min(self.start, end)
        for producer in self.tiered.log.producer_states().open_transactions.values():
            self._end(producer, commit=False)  # the truncation removed the producer's marker
            self.rows = [
                replace(row, is_aborted=True) if row.producer == producer else row
                for row in self.rows
            ]
        self.tiered.log.flush()

    @rule(is_clean=st.booleans())
    def reopen(self, is_clean: bool) -> None:
        self.tiered.reopen(clean=is_clean)

    @rule()
    def collect(self) -> None:
        collect(self.tiered.directory, [NAME], grace_ms=-1)
        assert list(verify(self.tiered.directory, [NAME])) == []

    @invariant()
    def both_read_the_same(self) -> None:
        for reader in (self.tiered.log, self.tiered.reader()):
            self._check(reader)

    def _check(self, reader: LogView) -> None:
        assert reader.log_start_offset == self.start
        assert _shown(list(reader.records())) == [(r.offset, r.value) for r in self.rows]
        committed = list(reader.records(isolation=IsolationLevel.READ_COMMITTED))
        expected = [(r.offset, r.value) for r in self.rows if not r.is_aborted]
        assert _shown(committed) == expected
        if not self.rows:
            return
        known = [(row, reader.append_time_of(row.offset)) for row in self.rows]
        # A crash can lose append times, and a reader might not have loaded the newest ones.
        assert all(ms in (None, row.append_ms) for row, ms in known)
        sure = [(row.append_ms, row.offset) for row, ms in known if ms is not None]
        times = [(row.timestamp, row.offset) for row in self.rows]
        for row in (self.rows[0], self.rows[len(self.rows) // 2], self.rows[-1]):
            self._look_up(reader, times, row.timestamp, ClockName.RECORD)
            self._look_up(reader, sure, row.append_ms, ClockName.APPEND)

    def _look_up(
        self, reader: LogView, times: list[tuple[int, int]], ms: int, clock: ClockName
    ) -> None:
        """Check that a search finds the first record at or after the time.

        A transaction marker before this record is also accepted, because markers have times too.
        """
        expected = next((offset for time, offset in times if time >= ms), None)
        found = reader.offset_for_time(ms, clock=clock)
        if found is None:
            assert expected is None
        elif found.offset != expected:
            assert expected is None or found.offset < expected
            assert found.offset not in {row.offset for row in self.rows}


def _shown(records: list[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


FEW = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
MANY = settings(FEW, max_examples=150, stateful_step_count=40)


def test_both_tiers_equal_the_list() -> None:
    run_state_machine_as_test(TwoTiers, settings=FEW)


@pytest.mark.slow
def test_both_tiers_equal_the_list_in_longer_runs() -> None:
    run_state_machine_as_test(TwoTiers, settings=MANY)
