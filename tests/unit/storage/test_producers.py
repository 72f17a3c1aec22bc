"""Producers: sequences, epochs, duplicates and transactions, by Kafka's rules."""

from pathlib import Path

import pytest

from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch, build_empty_batch, build_end_marker
from tidelog.storage.log.append_types import AppendOrigin
from tidelog.storage.log.producers import (
    CompletedTxn,
    Duplicate,
    ProducerBatch,
    ProducerEntry,
    ProducerStates,
)
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import INT32_MAX, NewRecord

CLIENT, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.REPLICATION
COORDINATOR = AppendOrigin.COORDINATOR
VECTORS = Path(__file__).parents[2] / "vectors"


def only(data: bytearray) -> Batch:
    (batch,) = walk(data)
    return batch


def data(
    offset: int,
    sequence: int = 0,
    *,
    count: int = 1,
    producer: int = 7,
    epoch: int = 0,
    txn: bool = False,
    timestamp: int = 1000,
) -> Batch:
    return only(
        build_batch(
            [NewRecord(value=b"v", timestamp=timestamp)] * count,
            base_offset=offset,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=txn,
        )
    )


def marker(
    offset: int,
    *,
    commit: bool = True,
    producer: int = 7,
    epoch: int = 0,
    coordinator: int = 3,
    timestamp: int = 2000,
) -> Batch:
    return only(
        build_end_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
            timestamp=timestamp,
            base_offset=offset,
        )
    )


def after(*batches: Batch) -> ProducerStates:
    states = ProducerStates()
    for batch in batches:
        states.update(batch)
    return states


# -- sequences -------------------------------------------------------------------------------


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerStates().check(data(0, sequence=99), origin=CLIENT) is None


def test_the_next_sequence_follows_the_last_record() -> None:
    states = after(data(0, sequence=0, count=3))
    assert states.check(data(3, sequence=3), origin=CLIENT) is None
    for wrong in (2, 4, 1, 99):
        with pytest.raises(OutOfOrderSequence):
            states.check(data(3, sequence=wrong), origin=CLIENT)


def test_sequences_wrap_to_zero() -> None:
    states = after(data(0, sequence=INT32_MAX - 1, count=2))
    assert states.producers[7].last_sequence == INT32_MAX
    assert states.check(data(2, sequence=0), origin=CLIENT) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(data(2, sequence=1), origin=CLIENT)


def test_a_batch_over_the_wrap_has_its_first_sequence() -> None:
    states = after(data(10, sequence=INT32_MAX, count=3))
    expected = ProducerBatch(INT32_MAX, 1, 10, 12, 1000)
    assert states.producers[7].batches == (expected,)
    again = states.check(data(13, sequence=INT32_MAX, count=3), origin=CLIENT)
    assert again == Duplicate(10, 12, 1000)


def test_a_new_epoch_starts_at_zero() -> None:
    states = after(data(0, sequence=5))
    assert states.check(data(1, sequence=0, epoch=1), origin=CLIENT) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(data(1, sequence=6, epoch=1), origin=CLIENT)


def test_an_older_epoch_is_fenced() -> None:
    states = after(data(0, epoch=2))
    for origin in (CLIENT, COORDINATOR):
        with pytest.raises(InvalidProducerEpoch):
            states.check(data(1, sequence=1, epoch=1), origin=origin)


def test_only_clients_have_their_sequences_checked() -> None:
    states = after(data(0, sequence=0))
    assert states.check(data(1, sequence=50), origin=COORDINATOR) is None


def test_replicated_batches_are_accepted_without_checks() -> None:
    states = after(data(0, epoch=2, txn=True))
    assert states.check(data(1, sequence=50, epoch=1), origin=REPLICATION) is None
    assert states.check(marker(1, epoch=1), origin=REPLICATION) is None


def test_after_a_marker_the_epochs_sequences_continue() -> None:
    states = after(data(0, sequence=0, txn=True), marker(1))
    assert states.check(data(2, sequence=1, txn=True), origin=CLIENT) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(data(2, sequence=0, count=2, txn=True), origin=CLIENT)


def test_after_a_marker_of_an_unknown_producer_its_sequences_start_at_zero() -> None:
    states = after(marker(0))
    assert states.check(data(1, sequence=0), origin=CLIENT) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(data(1, sequence=1), origin=CLIENT)


def test_a_marker_with_a_new_epoch_forgets_the_batches() -> None:
    states = after(data(0, sequence=0, txn=True), marker(1, epoch=1))
    assert states.producers[7].batches == ()
    assert states.check(data(2, sequence=0, epoch=1, txn=True), origin=CLIENT) is None


# -- repetitions -----------------------------------------------------------------------------


def test_the_last_five_batches_are_known() -> None:
    batches = [data(n, sequence=n, timestamp=1000 + n) for n in range(6)]
    states = after(*batches)
    for n in range(1, 6):
        found = states.check(data(50, sequence=n), origin=CLIENT)
        assert found == Duplicate(n, n, 1000 + n)
    with pytest.raises(OutOfOrderSequence):
        states.check(data(50, sequence=0), origin=CLIENT)


def test_a_repetition_has_the_same_sequences_and_epoch() -> None:
    states = after(data(0, sequence=0, count=3))
    with pytest.raises(OutOfOrderSequence):
        states.check(data(3, sequence=0, count=2), origin=CLIENT)
    assert states.check(data(3, sequence=0, count=3, epoch=1), origin=CLIENT) is None


def test_only_batches_of_clients_are_checked_for_repetitions() -> None:
    states = after(data(0, sequence=0))
    assert states.check(data(1, sequence=0), origin=COORDINATOR) is None


def test_checks_change_nothing() -> None:
    states = after(data(0))
    before = states.encode_snapshot()
    states.check(data(1, sequence=1, txn=True), origin=CLIENT)
    assert states.encode_snapshot() == before
    assert states.open_transactions == {}


# -- transactions ----------------------------------------------------------------------------


def test_a_transaction_is_open_from_its_first_record_to_its_marker() -> None:
    states = after(data(4), data(5, sequence=1, txn=True), data(6, sequence=2, txn=True))
    unstable = [states.first_unstable_offset]
    assert states.last_stable_offset(7) == 5
    assert states.open_transactions == {5: 7}
    assert states.update(marker(7)) == CompletedTxn(7, 5, 7, is_aborted=False)
    assert [*unstable, states.first_unstable_offset] == [5, None]
    assert states.last_stable_offset(8) == 8


def test_the_oldest_open_transaction_is_the_unstable_one() -> None:
    states = after(data(0, producer=1, txn=True), data(1, producer=2, txn=True))
    assert states.last_stable_offset(2) == 0
    states.update(marker(2, producer=1))
    assert states.last_stable_offset(3) == 1


def test_the_entry_of_an_aborted_transaction_has_the_last_stable_offset() -> None:
    states = after(data(0, producer=1, txn=True), data(1, producer=2, txn=True))
    completed = states.update(marker(2, producer=2, commit=False))
    assert completed == CompletedTxn(2, 1, 2, is_aborted=True)
    assert states.aborted_entry(completed) == AbortedTxn(2, 1, 2, 0)
    last = states.update(marker(3, producer=1, commit=False))
    assert last is not None
    assert states.aborted_entry(last) == AbortedTxn(1, 0, 3, 4)


def test_a_marker_without_a_transaction_ends_none() -> None:
    states = after(data(0))
    assert states.update(marker(1, coordinator=9)) is None
    assert states.producers[7].coordinator_epoch == 9
    assert states.producers[7].last_timestamp == 2000


def test_records_outside_of_an_open_transaction_are_refused() -> None:
    states = after(data(0, txn=True))
    with pytest.raises(InvalidTxnState):
        states.check(data(1, sequence=1), origin=CLIENT)


def test_an_older_coordinator_is_fenced() -> None:
    states = after(data(0, txn=True), marker(1, coordinator=3), data(2, sequence=1, txn=True))
    assert states.check(marker(3, coordinator=3), origin=COORDINATOR) is None
    with pytest.raises(TransactionCoordinatorFenced):
        states.check(marker(3, coordinator=2), origin=COORDINATOR)


def test_a_marker_of_an_older_epoch_is_fenced() -> None:
    states = after(data(0, epoch=2, txn=True))
    assert states.check(marker(1, epoch=2), origin=COORDINATOR) is None
    with pytest.raises(InvalidProducerEpoch):
        states.check(marker(1, epoch=1), origin=COORDINATOR)


def test_markers_of_version_2_raise_the_epoch_or_repeat_the_last_one() -> None:
    """Source: KIP-890, KAFKA-19999."""
    states = after(data(0, epoch=2, txn=True))
    assert states.check(marker(1, epoch=3), origin=COORDINATOR, transaction_version=2) is None
    with pytest.raises(InvalidProducerEpoch):
        states.check(marker(1, epoch=2), origin=COORDINATOR, transaction_version=2)
    states.update(marker(1, epoch=3))
    assert states.check(marker(2, epoch=3), origin=COORDINATOR, transaction_version=2) is None
    with pytest.raises(InvalidProducerEpoch):
        states.check(marker(2, epoch=2), origin=COORDINATOR, transaction_version=2)


def test_an_emptied_control_batch_changes_nothing() -> None:
    states = after(data(0, txn=True))
    empty = only(
        build_empty_batch(
            base_offset=1,
            last_offset=1,
            max_timestamp=5,
            producer_id=7,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
    )
    before = states.encode_snapshot()
    assert states.update(empty) is None
    assert states.check(empty, origin=COORDINATOR) is None
    assert states.encode_snapshot() == before


def test_an_emptied_data_batch_keeps_its_producers_sequence() -> None:
    """Source: KAFKA-5490."""
    states = ProducerStates()
    states.replay(
        only(
            build_empty_batch(
                base_offset=5,
                last_offset=6,
                max_timestamp=1000,
                producer_id=7,
                producer_epoch=0,
                base_sequence=4,
            )
        )
    )
    assert states.producers[7].batches == (ProducerBatch(4, 5, 5, 6, 1000),)


def test_a_control_record_that_is_no_marker_changes_nothing() -> None:
    unknown = only(
        build_batch(
            [NewRecord(key=b"\0\0\0\x63", value=b"")],
            producer_id=7,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
    )
    assert ProducerStates().update(unknown) is None
    assert ProducerStates().check(unknown, origin=COORDINATOR) is None


# -- expiry and snapshots --------------------------------------------------------------------


def test_silent_producers_are_forgotten_unless_they_have_a_transaction_open() -> None:
    states = after(
        data(0, producer=1, timestamp=1000),
        data(1, producer=2, timestamp=1001),
        data(2, producer=3, timestamp=1000, txn=True),
    )
    assert states.expire(1100, 100) == 1
    assert set(states.producers) == {2, 3}


def test_a_producer_of_old_records_expires_by_arrival_times() -> None:
    states = after(data(0, producer=1, timestamp=3), data(1, producer=2, timestamp=3))
    states.set_arrival_times(1000, {0: 1000, 1: 1001}.get)
    states.update(data(2, producer=3, timestamp=3), 1002)
    for now_ms, left in ((1100, {2, 3}), (1101, {3}), (1102, set())):
        assert states.expire(now_ms, 100) == 1
        assert set(states.producers) == left


def test_a_snapshot_keeps_the_last_batch_and_the_open_transaction() -> None:
    states = after(
        data(0, sequence=0, producer=9),
        data(1, sequence=1, count=2, producer=9, timestamp=1500),
        data(3, sequence=0, producer=8, txn=True),
        marker(4, producer=6, epoch=4),
    )
    again = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert again.producers == {
        6: ProducerEntry(6, 4, (), 3, 2000, None),
        8: ProducerEntry(8, 0, (ProducerBatch(0, 0, 3, 3, 1000),), -1, 1000, 3),
        9: ProducerEntry(9, 0, (ProducerBatch(1, 2, 1, 2, 1500),), -1, 1500, None),
    }
    assert again.open_transactions == {3: 8}
    assert again.encode_snapshot() == states.encode_snapshot()


def test_open_transactions_of_a_snapshot_are_in_order_of_their_offsets() -> None:
    states = after(
        data(0, producer=17, txn=True), data(1, producer=1, txn=True), data(2, producer=2, txn=True)
    )
    again = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert list(again.open_transactions) == [0, 1, 2]
    assert again.last_stable_offset(3) == 0


def test_replayed_logs_give_the_snapshots_that_kafka_wrote() -> None:
    partition = VECTORS / "events-0"
    states = ProducerStates()
    aborted = b""
    compared = 0
    for path in sorted(partition.glob("*.log")):
        snapshot = path.with_suffix(".snapshot")
        if snapshot.exists():
            assert states.encode_snapshot() == snapshot.read_bytes(), snapshot
            compared += 1
        for batch in walk(path.read_bytes()):
            completed = states.replay(batch) if batch.has_producer_id else None
            if completed is not None and completed.is_aborted:
                aborted += b"".join(
                    (b"\0\0", *(n.to_bytes(8, "big") for n in states.aborted_entry(completed)))
                )
    assert states.encode_snapshot() == (partition / f"{72:020d}.snapshot").read_bytes()
    assert compared == 3
    (index,) = partition.glob("*.txnindex")
    assert aborted == index.read_bytes()
