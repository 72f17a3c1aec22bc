"""Guards by which producers begin transactions in a partition, and the last stable offset."""

from collections.abc import Iterator

import pytest
from tests.faults import Fault, FaultKind
from tests.unit.server.test_durability import World, make

from tidelog.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.server.partitions.partition import (
    Guard,
    OpenTransactions,
    TransactionEnd,
    append_in_transaction,
    end_transaction,
)
from tidelog.storage.log.append_types import AppendResult, AppendTerms
from tidelog.types import NewRecord

PRODUCER = 7


@pytest.fixture
def world() -> Iterator[World]:
    made = make(syncs_all=False)
    yield made
    made.log_dir.abandon()


@pytest.fixture
def synced() -> Iterator[World]:
    made = make()
    yield made
    made.log_dir.abandon()


def ask(world: World, epoch: int = 0, sequence: int = 0, *, raises: bool = False) -> Guard | None:
    partition = world.partition
    return partition.transactions.guard(
        partition.log.producer_states(),
        (PRODUCER, epoch),
        sequence,
        raises_epochs=raises,
        now_ms=0,
    )


def write(world: World, guard: Guard | None, sequence: int = 0, epoch: int = 0) -> AppendResult:
    data = build_batch(
        [NewRecord(value=b"v")],
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return append_in_transaction(
        world.partition, data, RecordBatch(data, 0), guard, AppendTerms(owned=True)
    )


def end(world: World, *, commit: bool = True, epoch: int = 0, version: int = 0) -> AppendResult:
    return end_transaction(world.partition, TransactionEnd(PRODUCER, epoch, 0, commit, version))


def test_the_first_batch_needs_a_guard_and_later_ones_none(world: World) -> None:
    with pytest.raises(InvalidTxnState):
        write(world, None)
    guard = ask(world)
    assert guard is not None
    assert write(world, guard).base_offset == 0
    assert ask(world, sequence=1) is None
    assert write(world, None, sequence=1).base_offset == 1
    assert world.partition.last_stable_offset == 0


def test_a_marker_takes_the_guard_away(world: World) -> None:
    guard = ask(world)
    end(world, commit=False)
    with pytest.raises(InvalidTxnState):
        write(world, guard)
    again = ask(world)
    assert again is not guard
    with pytest.raises(InvalidTxnState):
        write(world, guard)
    assert write(world, again).base_offset == 1


def test_a_marker_leaves_the_guard_of_the_transaction_after_it(world: World) -> None:
    """A marker must not remove the next transaction's guard.

    From transaction version 2 on, a marker has the epoch of the next transaction.
    """
    write(world, ask(world, raises=True))
    ahead = ask(world, epoch=1, raises=True)
    end(world, epoch=1, version=2)
    assert write(world, ahead, epoch=1).base_offset == 2
    behind = ask(world, epoch=2, raises=True)
    end(world, epoch=3, version=2)
    with pytest.raises((InvalidTxnState, InvalidProducerEpoch)):
        write(world, behind, epoch=2)
    assert ask(world, epoch=3, raises=True) is not behind


def test_a_marker_of_the_first_protocol_takes_every_guard_away(world: World) -> None:
    """Below transaction version 2, a marker has the epoch of the transaction that it ends.

    So it removes the guard, even if a Produce request added the partition.
    """
    guard = ask(world, raises=True)
    end(world)
    with pytest.raises(InvalidTxnState):
        write(world, guard)
    assert world.partition.last_stable_offset == world.partition.log.log_end_offset


def test_the_transaction_after_the_end_is_verified_again(world: World) -> None:
    write(world, ask(world))
    end(world)
    assert ask(world, sequence=1) is not None
    assert world.partition.last_stable_offset == 2


def test_a_duplicate_batch_begins_no_transaction(world: World) -> None:
    write(world, ask(world))
    end(world)
    again = write(world, None)
    assert (again.is_duplicate, again.base_offset) == (True, 0)
    assert world.partition.last_stable_offset == 2


def test_no_batch_is_written_before_a_waiting_earlier_sequence(world: World) -> None:
    first, second = ask(world, sequence=0), ask(world, sequence=1)
    assert first is second
    with pytest.raises(OutOfOrderSequence):
        write(world, second, sequence=1)
    write(world, first, sequence=0)
    write(world, second, sequence=1)
    assert world.partition.high_watermark == 2


def test_a_newer_epoch_begins_its_own_sequences(world: World) -> None:
    ask(world, epoch=0, sequence=0)
    newer = ask(world, epoch=1, sequence=4)
    assert newer is not None
    assert (newer.epoch, newer.lowest_sequence) == (1, 4)
    ask(world, epoch=0, sequence=2)
    assert (newer.epoch, newer.lowest_sequence) == (1, 4)


def test_with_an_epoch_for_each_transaction_an_unknown_producer_begins_at_zero(
    world: World,
) -> None:
    guard = ask(world, sequence=3, raises=True)
    with pytest.raises(OutOfOrderSequence):
        write(world, guard, sequence=3)
    assert write(world, ask(world, raises=True), sequence=0).base_offset == 0


def test_with_one_epoch_for_all_an_unknown_producer_begins_anywhere(world: World) -> None:
    assert write(world, ask(world, sequence=3), sequence=3).base_offset == 0


def test_an_old_epoch_is_refused_for_that(world: World) -> None:
    write(world, ask(world, epoch=2), epoch=2)
    with pytest.raises(InvalidProducerEpoch):
        write(world, ask(world, epoch=1), epoch=1)


def test_an_unused_guard_expires() -> None:
    world = make(syncs_all=False)
    guard = ask(world)
    world.partition.transactions.expire(999, 1000)
    assert ask(world) is guard
    world.partition.transactions.expire(1000, 1000)
    assert ask(world) is not guard
    world.log_dir.abandon()


class TestUntilMarkersAreSafe:
    def test_readers_stop_before_the_transaction(self, synced: World) -> None:
        write(synced, ask(synced))
        synced.later.settle()
        assert synced.partition.high_watermark == 1
        end(synced)
        assert synced.partition.log.last_stable_offset == 2
        assert synced.partition.last_stable_offset == 0
        synced.later.settle()
        assert synced.partition.last_stable_offset == 2

    def test_a_marker_without_a_transaction_delays_no_reader(self, synced: World) -> None:
        synced.append()
        synced.later.settle()
        end(synced)
        assert synced.partition.last_stable_offset == 1

    def test_a_transaction_stays_open_if_the_sync_of_its_marker_fails(self, synced: World) -> None:
        write(synced, ask(synced))
        synced.later.settle()
        end(synced)
        synced.files.writes.fault = Fault(synced.files.calls, FaultKind.EIO)
        synced.later.settle()
        assert synced.is_offline()
        assert synced.partition.last_stable_offset == 0


def test_markers_below_the_high_watermark_do_not_accumulate() -> None:
    known = OpenTransactions()
    for number in range(10_000):
        known.ended(2 * number, 2 * number + 1, high_watermark=2 * number)
    assert known.stable_end(20_000, 20_000) == 20_000
    assert known.stable_end(20_000, 19_999) == 19_999
