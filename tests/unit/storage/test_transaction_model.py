"""Open and aborted transactions of a log and of a plain model, with kills and truncations."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.seeded import SeededEnv
from tests.worlds.directories.logs import SMALL, batch, new_log, offsets, reopen

from tidelog.errors import InvalidProducerEpoch
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.types import IsolationLevel

COMMITTED = IsolationLevel.READ_COMMITTED
PRODUCERS = (5, 6, 7)


@dataclass
class Model:
    """Model of a log.

    Attributes:
        rows: For each offset, the producer id and the kind: True for a commit marker, False for an
            abort marker, None for a record.
    """

    rows: list[tuple[int, bool | None]] = field(default_factory=list)

    def transactions(self) -> tuple[dict[int, int], set[int]]:
        """Return the first offset of each open transaction by producer, and the aborted offsets."""
        opened: dict[int, list[int]] = {}
        aborted: set[int] = set()
        for offset, (producer, commit) in enumerate(self.rows):
            if commit is None:
                opened.setdefault(producer, []).append(offset)
            else:
                found = opened.pop(producer, [])
                aborted |= set() if commit else set(found)
        return {producer: found[0] for producer, found in opened.items()}, aborted

    def forget(self, log: Log) -> None:
        """Remove open transactions that have no remaining record and that the log has forgotten.

        As in Kafka, a log without snapshots computes its producer states from its log start on.
        """
        known = set(log.producer_states().open_transactions.values())
        left = {who for who, _ in self.rows[log.log_start_offset :]}
        gone = self.transactions()[0].keys() - known - left
        self.rows = [(-1, True) if who in gone else (who, commit) for who, commit in self.rows]

    def check(self, log: Log) -> None:
        self.forget(log)
        opened, aborted = self.transactions()
        start = log.log_start_offset
        assert log.log_end_offset == len(self.rows)
        stable = max(min(opened.values(), default=len(self.rows)), start)
        assert log.last_stable_offset == stable
        wanted = [
            offset
            for offset, (_, commit) in enumerate(self.rows)
            if commit is None and start <= offset < stable and offset not in aborted
        ]
        assert offsets(log.records(isolation=COMMITTED)) == wanted


@dataclass
class World:
    env: SeededEnv
    directory: LogDir
    log: Log
    model: Model = field(default_factory=Model)
    sequences: dict[int, int] = field(default_factory=dict)

    def produce(self, producer: int) -> None:
        known = self.log.producer_states().find(producer)
        sequence = 0 if known is None else known.last_sequence + 1
        self.log.append_batches(
            batch(
                [1, 2],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )
        self.model.rows += [(producer, None)] * 2

    def end(self, producer: int, *, commit: bool) -> None:
        self.log.end_transaction(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, commit=commit
        )
        self.model.rows.append((producer, commit))

    def kill(self) -> None:
        self.directory.abandon()
        self.directory, self.log = reopen(self.env)

    def cut(self, share: float) -> None:
        self.log.truncate_to(int(self.log.log_end_offset * share))
        del self.model.rows[self.log.log_end_offset :]

    def delete(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.delete_records(start + int((end - start) * share))


STEPS = st.one_of(
    st.tuples(st.just("produce"), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
    st.tuples(st.sampled_from(["kill", "roll"])),
    st.tuples(st.just("cut"), st.floats(0.5, 1)),
    st.tuples(st.just("delete"), st.floats(0, 0.5)),
)


@given(st.lists(STEPS, max_size=30))
def test_open_and_aborted_transactions_are_those_of_the_model(
    steps: list[tuple[object, ...]],
) -> None:
    world = World(*new_log(SMALL))
    for step in steps:
        match step:
            case ("produce", int() as producer):
                world.produce(producer)
            case ("end", int() as producer, bool() as commit):
                world.end(producer, commit=commit)
            case ("cut", float() as share):
                world.cut(share)
            case ("delete", float() as share):
                world.delete(share)
            case ("roll",):
                world.log.roll()
            case _:
                world.kill()
        world.model.check(world.log)
    world.directory.abandon()


def test_a_marker_of_the_newer_version_raises_the_epoch() -> None:
    _, directory, log = new_log()
    data = batch([1], producer_id=5, producer_epoch=3, base_sequence=0, transactional=True)
    log.append_batches(data)
    ends = {"producer_id": 5, "coordinator_epoch": 0, "transaction_version": 2}
    with pytest.raises(InvalidProducerEpoch):
        log.end_transaction(producer_epoch=3, commit=True, **ends)
    log.end_transaction(producer_epoch=4, commit=True, **ends)
    assert log.last_stable_offset == 2
    # A repeated marker, when no transaction is open.
    log.end_transaction(producer_epoch=4, commit=True, **ends)
    assert log.last_stable_offset == 3
    assert not log.producer_states().open_count
    directory.abandon()


def test_a_log_start_after_an_open_transactions_start_is_readable() -> None:
    """As in Kafka, retention and requests may delete records of an open transaction."""
    _, directory, log = new_log()
    data = batch([1, 2, 3], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_batches(data)
    log.delete_records(2)
    assert log.last_stable_offset == 2
    assert offsets(log.records(isolation=COMMITTED)) == []
    directory.abandon()
