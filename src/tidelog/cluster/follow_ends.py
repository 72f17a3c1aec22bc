"""Transactions whose ends a standby will never see, since the leader has deleted their markers.

Such a one has ended all the same, and what its producer writes next begins another. Two things
prove it before the next records are copied:

- The producer's next batch has a newer epoch: nobody gets one before the old transaction has ended
  in all its partitions. Producers of Kafka 4's transactions have one for each transaction.
- An abort is next, and the leader, asked for committed records from there on, names as aborted no
  transaction of that producer that began at or before the one that is open here: that abort ends a
  later one. A transaction that began before the first record that it shows is in that list wherever
  its abort is.

What is committed next shows the records of the one that is open here either way, so it needs none.

Source: KIP-890 (epochs); Kafka 4.x TransactionIndex (collectAbortedTransactions).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.cluster.follow_leader import FetchLimits, Leader, Position
from tidelog.errors import CorruptData
from tidelog.record.batch import ControlType, RecordBatch
from tidelog.record.views import Batch
from tidelog.storage.log_reader import ANY_OFFSET
from tidelog.storage.producers import ProducerStates
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from tidelog.protocol.messages.fetch import AbortedTransaction

# What the leader says of aborted transactions among its next records; None where it shows none.
Aborted: TypeAlias = "list[AbortedTransaction] | None"
# One batch is enough.
_NEXT: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1)


def ends_before(
    batches: Iterable[Batch],
    states: ProducerStates,
    leader_start: int,
    ask: Callable[[], Aborted],
) -> dict[int, int]:
    """Producers whose open transactions had ended before these batches.

    Each with the offset at which its next transaction begins: that may have been copied for a part
    of the old one. ANY_OFFSET where it comes yet.

    Args:
        batches: What the leader has next.
        states: What is open here.
        leader_start: The leader's log start: it has all markers behind it.
        ask: Asks the leader for aborted transactions from the first of the batches on; called
            once, where that decides.

    Raises:
        ClusterFailure: The leader could not be asked.
    """
    first_of = {producer_id: first for first, producer_id in states.open_transactions.items()}
    if not first_of:
        return {}
    newer, aborting, seen = list[int](), list[int](), set[int]()
    for batch, is_abort in _of_producers(batches, set(first_of)):
        producer_id = batch.producer_id
        known = states.find(producer_id)
        is_next = producer_id not in seen and not batch.is_control
        seen.add(producer_id)
        if is_next and known is not None and batch.producer_epoch > known.epoch:
            newer.append(producer_id)
        elif is_abort:
            aborting.append(producer_id)
    doubtful = {
        each: first_of[each]
        for each in aborting
        if each not in newer and first_of[each] < leader_start
    }
    found = _others(doubtful, ask()) if doubtful else {}
    return dict.fromkeys(newer, ANY_OFFSET) | found


def _of_producers(
    batches: Iterable[Batch], producer_ids: set[int]
) -> Iterator[tuple[RecordBatch, bool]]:
    """Batches of producers up to the first marker of each, and whether that is an abort.

    As far as they can be read: who appends them says what is wrong with the others.
    """
    try:
        for batch in batches:
            if not isinstance(batch, RecordBatch) or batch.producer_id not in producer_ids:
                continue
            is_abort = False
            if batch.is_control:
                batch.ensure_valid()
                is_abort = batch.control_type() is ControlType.ABORT
                producer_ids.discard(batch.producer_id)
            yield batch, is_abort
    except CorruptData:
        return


def _others(open_ones: Mapping[int, int], aborted: Aborted) -> dict[int, int]:
    """First offsets of aborted transactions by producer, where none is the one that is open here.

    ANY_OFFSET for one that begins behind all that the leader has shown.
    """
    if aborted is None:
        return {}
    firsts: dict[int, int] = {}
    for each in aborted:
        known = firsts.get(each.producer_id, each.first_offset)
        firsts[each.producer_id] = min(known, each.first_offset)
    begun = {each: firsts.get(each, ANY_OFFSET) for each in open_ones}
    return {each: first for each, first in begun.items() if first > open_ones[each]}


def ask_aborted(leader: Leader, node_id: int, position: Position) -> Aborted:
    """What the leader says of aborted transactions from a position on.

    None where it shows nothing there to who wants committed records: a transaction that began
    before is open yet.

    Raises:
        ClusterFailure: It can't be reached, or its answer can't be read.
    """
    wanted = [replace(position, last_epoch=-1)]
    leader.send_fetch(node_id, wanted, _NEXT, isolation=IsolationLevel.READ_COMMITTED)
    for _, data in leader.receive_fetch(node_id, wanted):
        if not data.error_code and len(data.batches):
            return data.aborted_transactions or []
    return None
