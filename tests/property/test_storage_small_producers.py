"""Producer states compared with a plain list of everything that was written."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.storage.log.append_types import AppendOrigin
from tidelog.storage.log.producers import Duplicate, ProducerStates
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import INT32_MAX, NewRecord

Step = tuple[str, int, int, int, int]

TRANSACTIONAL = (2, 3)
NEAR_THE_WRAP = 17  # a producer whose sequence numbers begin just below the maximum

# Draws a step: kind, producer, record count, and the amounts by which sequence and epoch differ
# from the expected values.
step = st.tuples(
    st.sampled_from(["data"] * 5 + ["again", "commit", "abort"]),
    st.sampled_from([1, *TRANSACTIONAL, NEAR_THE_WRAP]),
    st.sampled_from([1, 1, 2, 6]),
    st.sampled_from([0] * 10 + [1, -1]),
    st.sampled_from([0] * 10 + [1, -1]),
)


def sequence_after(sequence: int, count: int) -> int:
    return (sequence + count) % (INT32_MAX + 1)


@dataclass
class Log:
    """List of all accepted batches, and results computed from this list alone."""

    batches: list[Batch] = field(default_factory=list)
    end: int = 0

    def epoch_of(self, producer: int) -> int:
        return max(
            (b.producer_epoch for b in self.batches if b.producer_id == producer), default=-1
        )

    def data_of(self, producer: int, epoch: int) -> list[Batch]:
        return [
            batch
            for batch in self.batches
            if (batch.producer_id, batch.producer_epoch) == (producer, epoch)
            and not batch.is_control
        ]

    def next_sequence(self, producer: int, epoch: int) -> int:
        data = self.data_of(producer, epoch)
        return sequence_after(data[-1].last_sequence, 1) if data else 0

    def open_since(self, producer: int, before: int) -> int | None:
        """Return the first offset of the producer's transaction that is open at offset `before`."""
        first = None
        for batch in self.batches:
            if batch.producer_id != producer or batch.base_offset >= before:
                continue
            if batch.is_control:
                first = None
            elif batch.is_transactional and first is None:
                first = batch.base_offset
        return first

    def last_stable(self, end: int) -> int:
        producers = {batch.producer_id for batch in self.batches}
        first = [self.open_since(producer, end) for producer in producers]
        return min((offset for offset in first if offset is not None), default=end)


def build(log: Log, step: Step) -> Batch:
    kind, producer, count, sequence_error, epoch_step = step
    epoch = max(0, log.epoch_of(producer) + epoch_step)
    if kind in ("commit", "abort"):
        data = build_end_marker(
            commit=kind == "commit",
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=1,
            timestamp=log.end,
            base_offset=log.end,
        )
    else:
        start = INT32_MAX - 1 if producer == NEAR_THE_WRAP and log.epoch_of(producer) < 0 else 0
        sequence = log.next_sequence(producer, epoch) + start + sequence_error
        known = log.data_of(producer, epoch)
        if kind == "again" and known:
            old = known[-min(count, len(known))]
            sequence, count = old.base_sequence, old.record_count or 0
        data = build_batch(
            [NewRecord(value=b"", timestamp=log.end)] * count,
            base_offset=log.end,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=max(0, min(INT32_MAX, sequence)),
            transactional=producer in TRANSACTIONAL,
        )
    (batch,) = walk(data)
    return batch


def verdict(log: Log, batch: Batch) -> str:
    """Return the result that Kafka's rules give for a client's batch or a coordinator's marker."""
    producer, epoch = batch.producer_id, batch.producer_epoch
    data = log.data_of(producer, epoch)
    newest = log.epoch_of(producer)
    if not batch.is_control and epoch == newest:
        for known in data[-5:]:
            if (known.base_sequence, known.last_sequence) == (
                batch.base_sequence,
                batch.last_sequence,
            ):
                return f"again {known.base_offset}"
    if epoch < newest:
        return "fenced"
    if batch.is_control or newest < 0:
        return "taken"
    return "taken" if batch.base_sequence == log.next_sequence(producer, epoch) else "order"


def answer(states: ProducerStates, batch: Batch) -> str:
    origin = AppendOrigin.COORDINATOR if batch.is_control else AppendOrigin.CLIENT
    try:
        found = states.check(batch, origin=origin)
    except InvalidProducerEpoch:
        return "fenced"
    except OutOfOrderSequence:
        return "order"
    except InvalidTxnState:
        return "state"
    assert found is None or isinstance(found, Duplicate)
    return "taken" if found is None else f"again {found.first_offset}"


@given(st.lists(step, min_size=15, max_size=60))
def test_every_verdict_and_transaction_equals_the_model(steps: list[Step]) -> None:
    log, states = Log(), ProducerStates()
    for each in steps:
        batch = build(log, each)
        assert answer(states, batch) == verdict(log, batch)
        if answer(states, batch) != "taken":
            continue
        opened = log.open_since(batch.producer_id, batch.base_offset)
        completed = states.update(batch)
        log.batches.append(batch)
        log.end = batch.next_offset
        assert states.last_stable_offset(log.end) == log.last_stable(log.end)
        assert (completed is not None) == (batch.is_control and opened is not None)
        if completed is not None:
            assert states.aborted_entry(completed) == AbortedTxn(
                batch.producer_id, opened or 0, batch.base_offset, log.last_stable(log.end)
            )


@given(st.lists(step, min_size=15, max_size=60), st.integers(0, 60))
def test_a_log_replayed_from_a_snapshot_gives_the_same_state(steps: list[Step], cut: int) -> None:
    """All state is compared, except batches before a producer's last one: snapshots omit these."""
    log, states = Log(), ProducerStates()
    snapshot = states.encode_snapshot()
    replay_from = 0
    for number, each in enumerate(steps):
        if number == cut:
            snapshot, replay_from = states.encode_snapshot(), len(log.batches)
        batch = build(log, each)
        if answer(states, batch) == "taken":
            states.update(batch)
            log.batches.append(batch)
            log.end = batch.next_offset
    again = ProducerStates.decode_snapshot(snapshot)
    for batch in log.batches[replay_from:]:
        again.replay(batch)
    assert again.open_transactions == states.open_transactions
    kept = ProducerStates.decode_snapshot(states.encode_snapshot()).producers
    assert ProducerStates.decode_snapshot(again.encode_snapshot()).producers == kept
