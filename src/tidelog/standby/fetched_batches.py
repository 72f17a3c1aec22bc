"""Checks batches that a standby fetched, and finds transactions that ended before these batches.

- The CRC of a batch does not cover its base offset, leader epoch, length and magic. A flipped bit
  in these fields is found by comparison with the neighboring batches and the high watermark.
  Offsets must ascend. A batch that skips offsets must end at or below the start of the next batch.
  The last offset of every batch must be below the high watermark.
- If the leader has deleted the marker of a transaction, the transaction has ended. Before the next
  records are copied, the end of the transaction is proved in two cases: the producer's next batch
  has a newer producer epoch, or the producer's next marker aborts a later transaction. The leader's
  list of aborted transactions shows the second case: all of the producer's transactions in the list
  start after the transaction that is open in the standby's log. If the next marker is a commit, no
  proof is needed: the open transaction's records become visible, whether the commit ends this
  transaction or a later one.

Source: Kafka 4.x TransactionIndex (collectAbortedTransactions); KIP-890 (epochs).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.amounts import offsets_text
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.header import MAGIC_2
from tidelog.record.record import ControlType
from tidelog.remote.leader import (
    FetchLimits,
    Leader,
    Position,
)
from tidelog.storage.log.log_reader import ANY_OFFSET
from tidelog.storage.log.producers import ProducerStates
from tidelog.types import (
    NO_LEADER_EPOCH,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.protocol.messages.fetch import AbortedTransaction

# List of aborted transactions in a response of the leader; None if the response has no records.
Aborted: TypeAlias = "list[AbortedTransaction] | None"

# Limits of a fetch that requests only the next batch.
_NEXT: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1)


def ends_before(
    batches: Iterable[Batch],
    states: ProducerStates,
    leader_start: int,
    fetch_list: Callable[[], Aborted],
) -> dict[int, int]:
    """Return the producers whose open transactions the leader ended before these batches.

    The value for each producer is the offset at which its next transaction begins. Records from
    this offset on may already have been copied as part of the ended transaction. The value
    ANY_OFFSET means that nothing of the producer's next transaction has been copied yet.

    Args:
        batches: The leader's next batches.
        states: Producers and open transactions of the standby's log.
        leader_start: The leader's log start offset; the leader still has all markers from this
            offset on.
        fetch_list: Fetches the leader's aborted transactions from the first of the batches on.
            This callback is called at most once, and only if the result depends on the list.

    Raises:
        ClusterFailure: The leader did not respond.
    """
    first_of = {producer_id: first for first, producer_id in states.open_transactions.items()}
    if not first_of:
        return {}
    newer, aborting, producers = list[int](), list[int](), set[int]()
    for batch, is_abort in _of_producers(batches, set(first_of)):
        producer_id = batch.producer_id
        state = states.find(producer_id)
        is_next = producer_id not in producers and not batch.is_control
        producers.add(producer_id)
        if is_next and state is not None and batch.producer_epoch > state.epoch:
            newer.append(producer_id)
        elif is_abort:
            aborting.append(producer_id)
    doubtful = {
        each: first_of[each]
        for each in aborting
        if each not in newer and first_of[each] < leader_start
    }
    ends = _others(doubtful, fetch_list()) if doubtful else {}
    return dict.fromkeys(newer, ANY_OFFSET) | ends


def _of_producers(
    batches: Iterable[Batch], producer_ids: set[int]
) -> Iterator[tuple[RecordBatch, bool]]:
    """Yield the producers' batches up to and including their first markers.

    With each batch, yield whether it is an abort marker.

    The iteration stops at a damaged batch. When the batches are appended later, the damage raises
    an error.
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
    """Return the producers whose open transaction is not in the list of aborted transactions.

    The value for each producer is the offset of its first transaction in the list, ANY_OFFSET if
    the list has no transaction of the producer.
    """
    if aborted is None:
        return {}
    firsts: dict[int, int] = {}
    for each in aborted:
        first_offset = firsts.get(each.producer_id, each.first_offset)
        firsts[each.producer_id] = min(first_offset, each.first_offset)
    begun = {each: firsts.get(each, ANY_OFFSET) for each in open_ones}
    return {each: first for each, first in begun.items() if first > open_ones[each]}


def fetch_aborted(leader: Leader, node_id: int, position: Position) -> Aborted:
    """Fetch the leader's list of aborted transactions from a position on.

    The result is None if the leader returns no records at the position for isolation level
    READ_COMMITTED. It returns no records if a transaction that began before the position is still
    open.

    Raises:
        ClusterFailure: The leader can't be reached, or its response is invalid.
    """
    positions = [replace(position, last_epoch=-1)]
    leader.send_fetch(node_id, positions, _NEXT, isolation=IsolationLevel.READ_COMMITTED)
    for _, data in leader.receive_fetch(node_id, positions):
        if not data.error_code and len(data.batches):
            return data.aborted_transactions or []
    return None


_END: Final = None


class ExpectedRecords(NamedTuple):
    """Expected values that the next records from a leader must match.

    Attributes:
        name: The partition.
        offset: The requested offset.
        high_watermark: The leader's high watermark (exclusive) in the response that has the
            records.
        newest_epoch: Leader epoch of the record before the requested offset, -1 if unknown.
        leader_epoch: Epoch of the partition's leader, -1 if unknown.
        trusts_jump: True if the response had room for one more batch. In this case the response's
            last batch is the last batch of the leader's log, and a gap of offsets before this batch
            is accepted.
    """

    name: TopicPartition
    offset: int
    high_watermark: int
    newest_epoch: int
    leader_epoch: int
    trusts_jump: bool = False


class Unproven(Exception):
    """Raised if the last batch of a response skips offsets.

    The leader's next batch would prove the last batch's offsets, but is not in the response.
    """

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.batch = batch


def sound_batches(records: memoryview, expected: ExpectedRecords) -> Iterator[Batch]:
    """Yield the batches that match the expected values, in order.

    Raises:
        CorruptBatch: A batch does not match; the batches before it were yielded.
        Unproven: The last batch of the response skips offsets, and nothing proves its offsets.
    """
    next_offset, newest = expected.offset, expected.newest_epoch
    batch: Batch | None = None
    for batch, following in _pairs(records):
        if batch is None:
            break
        problem = _problem(batch, expected, next_offset, newest)
        if problem is None and batch.base_offset > next_offset:
            problem = _jump_problem(batch, following, expected, next_offset)
        if problem is not None:
            reason = f"{expected.name}: the leader sent {problem}"
            raise CorruptBatch(reason, offset=batch.base_offset)
        yield batch
        newest = max(newest, batch.leader_epoch)
        next_offset = batch.next_offset
    if batch is None:
        raise CorruptBatch(f"{expected.name}: {len(records)} bytes without a whole batch")


def _problem(batch: Batch, expected: ExpectedRecords, next_offset: int, newest: int) -> str | None:
    """Return the problem of a batch that follows known records; None if the batch is valid."""
    epoch, where = batch.leader_epoch, offsets_text(batch.base_offset, batch.last_offset)
    # The first batch of a response may begin below the requested offset.
    least = batch.last_offset if next_offset == expected.offset else batch.base_offset
    if least < next_offset:
        return f"{where}, but offset {next_offset} was requested"
    if epoch > expected.leader_epoch >= 0:
        return (
            f"a batch with leader epoch {epoch}, but the leader's own epoch is only"
            f" {expected.leader_epoch}"
        )
    if epoch < newest and (batch.magic == MAGIC_2 or epoch < NO_LEADER_EPOCH):
        return f"a batch with leader epoch {epoch} after one with leader epoch {newest}"
    if batch.last_offset >= expected.high_watermark:
        return f"{where}, but its high watermark is {expected.high_watermark}"
    return None


def _jump_problem(
    batch: Batch, following: Batch | None, expected: ExpectedRecords, next_offset: int
) -> str | None:
    """Return the problem of a batch that skips offsets, or None; may raise Unproven."""
    if goes_on(batch, following, expected):
        return None
    if following is None:
        if expected.trusts_jump:
            return None
        raise Unproven(batch)
    return (
        f"offset {batch.base_offset} where {next_offset} is expected, and the next batch begins at"
        f" offset {following.base_offset}"
    )


def goes_on(batch: Batch, following: Batch | None, expected: ExpectedRecords) -> bool:
    """Return whether the next batch or the high watermark confirms the offset where a batch ends.

    If there is no next batch, the high watermark must equal the offset where the batch ends.
    """
    if following is None:
        return batch.next_offset == expected.high_watermark
    return following.base_offset >= batch.next_offset


def _pairs(records: memoryview) -> Iterator[tuple[Batch | None, Batch | None]]:
    """Yield each batch with the next batch or None; raises CorruptData at a damaged batch."""
    before: Batch | None = None
    batches = chain(walk(records), (_END,))
    while True:
        try:
            batch = next(batches)
        except CorruptData:
            if before is not None:
                yield before, None
            raise
        if before is not None or batch is None:
            yield before, batch
        if batch is None:
            return
        before = batch


def first_two(records: memoryview) -> tuple[Batch | None, Batch | None]:
    """Return the first two batches; None for a batch that is missing or damaged."""
    batches: list[Batch] = []
    try:
        for batch in walk(records):
            batches.append(batch)
            if len(batches) == 2:
                break
    except CorruptData:
        pass
    return (batches[0] if batches else None, batches[1] if len(batches) > 1 else None)
