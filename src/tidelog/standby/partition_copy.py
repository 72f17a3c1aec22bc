"""Copies one partition from leader to standby: divergence, fetched batches, lost transaction ends.

All state is in the standby's log: its end is the next offset, its leader epochs identify the
leaders it was copied from. A `Copy` can be discarded at any time.
- Divergence is found by leader epochs, for every epoch of the standby's records, then by comparing
  the last batch byte by byte, since two leaders can have used the same epoch. Records are truncated
  only on proof: the leader returns the same ends of epochs twice, and a sound batch with other
  records at those offsets or behind them. A missing, damaged or contradictory response changes
  nothing, nor does a leader without records there (restored from a backup); the partition stops
  with a reason.
- Fetched batches are checked before they are written. Base offset, leader epoch, length and magic
  are outside a batch's CRC; the neighboring batches and the high watermark reveal a flipped bit:
  offsets ascend, an upward jump needs a following batch that continues it, and no batch reaches the
  high watermark.
- Transactions whose markers the leader has deleted have ended. Either of two facts proves it before
  the next records are copied. The producer's next batch has a newer epoch. Or an abort is next, and
  the leader's list of aborted transactions from there on has none of that producer that started at
  or before the open one, so the abort ends a later one. A commit needs no proof: it makes the
  records of the open transaction visible either way.

Source: Kafka 4.x AbstractFetcherThread, ReplicaFetcherThread, TransactionIndex
(collectAbortedTransactions); KIP-101, KIP-595, KIP-890 (epochs).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    CorruptBatch,
    CorruptData,
    InvalidRequest,
    LostOffsets,
    RequestError,
    TidelogError,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.protocol.schema import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.header import MAGIC_2
from tidelog.record.record import ControlType
from tidelog.remote import client
from tidelog.remote.leader import (
    EpochEnd,
    FetchLimits,
    Leader,
    LeaderPartition,
    OwnEpoch,
    Position,
    ends_problem,
    is_other_batch,
    parting_offset,
)
from tidelog.remote.time_lookup import AppendRuns
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import ANY_OFFSET
from tidelog.storage.log.producers import ProducerStates
from tidelog.types import NO_LEADER_EPOCH, UNKNOWN_MS, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.protocol.messages.fetch import AbortedTransaction


# The leader's list of aborted transactions among its next records; None if it returns no records.
Aborted: TypeAlias = "list[AbortedTransaction] | None"


# Fetches one batch.
_NEXT: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1)


def ends_before(
    batches: Iterable[Batch],
    states: ProducerStates,
    leader_start: int,
    ask: Callable[[], Aborted],
) -> dict[int, int]:
    """Return the producers whose open transactions had ended before these batches.

    Each has the offset at which its next transaction begins, whose first records may have been
    copied as part of the old one. ANY_OFFSET if it begins later.

    Args:
        batches: The leader's next batches.
        states: Producers and open transactions of the standby.
        leader_start: The leader's log start: it still has all markers after that.
        ask: Fetches the leader's aborted transactions from the first of the batches on; called at
            most once, if the result depends on it.

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
    ends = _others(doubtful, ask()) if doubtful else {}
    return dict.fromkeys(newer, ANY_OFFSET) | ends


def _of_producers(
    batches: Iterable[Batch], producer_ids: set[int]
) -> Iterator[tuple[RecordBatch, bool]]:
    """Yield batches of producers up to the first marker of each, and whether that is an abort.

    The iteration stops at a damaged batch: the append reports the damage.
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
    """Return first offsets of aborted transactions later than the one open here, by producer.

    ANY_OFFSET for one that begins after all records that the leader has returned.
    """
    if aborted is None:
        return {}
    firsts: dict[int, int] = {}
    for each in aborted:
        first_offset = firsts.get(each.producer_id, each.first_offset)
        firsts[each.producer_id] = min(first_offset, each.first_offset)
    begun = {each: firsts.get(each, ANY_OFFSET) for each in open_ones}
    return {each: first for each, first in begun.items() if first > open_ones[each]}


def ask_aborted(leader: Leader, node_id: int, position: Position) -> Aborted:
    """Fetch the leader's list of aborted transactions from a position on.

    The result is None if it returns no records there at isolation level READ_COMMITTED: a
    transaction that began before is still open.

    Raises:
        ClusterFailure: It can't be reached, or its response is invalid.
    """
    positions = [replace(position, last_epoch=-1)]
    leader.send_fetch(node_id, positions, _NEXT, isolation=IsolationLevel.READ_COMMITTED)
    for _, data in leader.receive_fetch(node_id, positions):
        if not data.error_code and len(data.batches):
            return data.aborted_transactions or []
    return None


_END: Final = None


class ExpectedRecords(NamedTuple):
    """Facts that a leader's next records must match.

    Attributes:
        name: The partition.
        offset: The requested offset.
        high_watermark: The leader's, exclusive, in the same response.
        newest_epoch: Leader epoch of the last record before, -1 if unknown.
        leader_epoch: Epoch of the partition's leader, -1 if unknown.
        trusts_jump: Whether an upward jump of the last batch is accepted: the fetch was large
            enough for a following batch, and there is none.
    """

    name: TopicPartition
    offset: int
    high_watermark: int
    newest_epoch: int
    leader_epoch: int
    trusts_jump: bool = False


class Unproven(Exception):
    """An upward jump that only a following batch could prove; the batch is not copied yet."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.batch = batch


def sound_batches(records: memoryview, expected: ExpectedRecords) -> Iterator[Batch]:
    """Yield the batches that match, in order.

    Raises:
        CorruptBatch: The next one does not match; those before it were yielded.
        Unproven: The next one skips offsets, and is the last of the response.
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
    """Return what is wrong with a batch given the records before it, or None."""
    epoch, where = batch.leader_epoch, f"offsets {batch.base_offset} to {batch.last_offset}"
    # The first one may begin before the requested offset.
    least = batch.last_offset if next_offset == expected.offset else batch.base_offset
    if least < next_offset:
        return f"{where}, {next_offset} was asked"
    if epoch > expected.leader_epoch >= 0:
        return f"leader epoch {epoch}, it leads under {expected.leader_epoch}"
    if epoch < newest and (batch.magic == MAGIC_2 or epoch < NO_LEADER_EPOCH):
        return f"leader epoch {epoch} behind {newest}"
    if batch.last_offset >= expected.high_watermark:
        return f"{where}, its high watermark is {expected.high_watermark}"
    return None


def _jump_problem(
    batch: Batch, following: Batch | None, expected: ExpectedRecords, next_offset: int
) -> str | None:
    """Return what is wrong with a batch that skips offsets, or None; raises Unproven if unknown."""
    if goes_on(batch, following, expected):
        return None
    if following is None:
        if expected.trusts_jump:
            return None
        raise Unproven(batch)
    base = batch.base_offset
    return f"offset {base} where {next_offset} is next, and {following.base_offset} behind it"


def goes_on(batch: Batch, following: Batch | None, expected: ExpectedRecords) -> bool:
    """Whether the next batch, or the high watermark, proves a batch's end and so its beginning."""
    if following is None:
        return batch.next_offset == expected.high_watermark
    return following.base_offset >= batch.next_offset


def _pairs(records: memoryview) -> Iterator[tuple[Batch | None, Batch | None]]:
    """Yield each batch with its successor or None; damage is raised after the batches before it."""
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
    """Return the first two batches, None for one that is missing or damaged."""
    batches: list[Batch] = []
    try:
        for batch in walk(records):
            batches.append(batch)
            if len(batches) == 2:
                break
    except CorruptData:
        pass
    return (batches[0] if batches else None, batches[1] if len(batches) > 1 else None)


# Batches are appended together up to this size.
_APPEND_BYTES: Final = 1 << 20


# Maximum number of refusals of a position that is valid by the leader's own responses.
_STRIKES: Final = 3


# Additional bytes to fetch if a batch's successor has to prove its position.
_PROOF_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Truncation:
    """Offsets [start, end) that the standby had and its leader did not; they were truncated."""

    start: int
    end: int


@dataclass(slots=True)
class CopyCounts:
    """Counts since the start of following."""

    batches: int = 0
    size_bytes: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)


class Copy:
    """Copy of one partition. Has one owner.

    Life cycle: (led_by -> parting -> agree -> (position -> take)*)*; `problem` says why it has
    stopped.

    Attributes:
        name: The partition.
        topic_id: Id of its topic.
        log: The standby's log.
        led: Its current leader.
        is_checked: Whether the log is known to have no records that the leader never had.
        is_out_of_range: Whether the leader reported the position as out of range since the last
            check.
        is_refused: Whether the leader did not answer the last check.
        high_watermark: The leader's, exclusive, from the last response; None before the first.
        leader_start: The leader's log start, as far as known.
        problem: Why it has stopped; None while it runs.
        counts: Counts since the start.
    """

    def __init__(self, name: TopicPartition, topic_id: UUID, log: Log) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.led = LeaderPartition(-1, NO_LEADER_EPOCH)
        self.is_checked = False
        self.high_watermark: int | None = None
        self.leader_start = 0
        self.problem: TidelogError | None = None
        self.counts = CopyCounts()
        self.is_out_of_range = False
        self.is_refused = False
        self._strikes = 0
        # Offset of an unproven jump, and the number of bytes to fetch there.
        self._jump: tuple[int, int] | None = None
        # The leader's last stable offset and high watermark at the end of a lost transaction: the
        # confirmed ones, and those of the last response, which the next one has to confirm.
        self._ended: tuple[int, int] | None = None
        self._said: tuple[int, int] | None = None

    def led_by(self, led: LeaderPartition) -> None:
        """Set the leader; another leader or epoch requires a new check."""
        if led != self.led:
            self.led = led
            self.is_checked = False

    @property
    def lag(self) -> int | None:
        """Offsets from the standby's end to the leader's high watermark; None if unknown."""
        if self.high_watermark is None:
            return None
        return max(self.high_watermark - self._next_offset(), 0)

    @property
    def is_caught_up(self) -> bool:
        """Whether all records up to the leader's high watermark are here."""
        is_here = self.is_checked and self.problem is None and self.lag == 0
        return is_here and self._said is None

    def probe(self) -> Position | None:
        """Return the position for fetching the last local batch again, or None.

        The result is None if the leader can't have the batch.

        Raises:
            CorruptData: The local batch is damaged, so it proves nothing.
        """
        last = self.log.follower.last_batch_below(self.log.log_end_offset)
        if last is None or last.last_offset < self.leader_start:
            return None
        last.ensure_valid()
        return self.position_at(max(last.base_offset, self.leader_start))

    def position_at(self, offset: int) -> Position:
        """Return a position for fetching from any offset, without a check of the epoch before."""
        return replace(self.position(), offset=offset, last_epoch=NO_LEADER_EPOCH)

    def batch_reaching(self, offset: int) -> Batch | None:
        """Return the first local batch that ends at or after an offset, or None."""
        if offset >= self.log.log_end_offset:
            return None
        for part in self.log.slices(max(offset, self.log.log_start_offset)):
            for _, batch in part.batches():
                if batch.last_offset >= offset:
                    return batch
        return None

    def _next_offset(self) -> int:
        return max(self.log.log_end_offset, self.leader_start)

    def position(self) -> Position:
        """Return the position to fetch from at the leader."""
        offset = self._next_offset()
        return Position(
            name=self.name,
            topic_id=self.topic_id,
            offset=offset,
            # After a gap that the leader deleted, its record before this offset isn't in this log.
            last_epoch=self._last_epoch() if offset == self.log.log_end_offset else NO_LEADER_EPOCH,
            leader_epoch=self.led.leader_epoch,
            max_bytes=self._jump[1] if self._jump and self._jump[0] == offset else 0,
        )

    def _last_epoch(self) -> int:
        """Return the epoch of the last record, -1 if unknown."""
        if not self.log.truncator.has_records:
            return NO_LEADER_EPOCH
        epoch = self.log.leader_epochs.epoch_for(self.log.log_end_offset - 1)
        return NO_LEADER_EPOCH if epoch is None else epoch

    # -- divergence --------------------------------------------------------------------------

    def own_epochs(self) -> list[OwnEpoch]:
        """Return the epochs of the standby's records, oldest first."""
        log = self.log
        entries = log.leader_epochs.entries
        ends = [*(entry.start_offset for entry in entries[1:]), log.log_end_offset]
        epochs = []
        for entry, end in zip(entries, ends, strict=False):
            last = log.follower.last_batch_below(end)
            if last is not None and last.next_offset > entry.start_offset:
                epochs.append(OwnEpoch(entry.epoch, entry.start_offset, last.next_offset))
        return epochs

    def parting(
        self, leader: Mapping[int, EpochEnd], leader_start: int, leader_end: int
    ) -> int | None:
        """Return the offset from which on the leader claims not to have the local records.

        The result is None if there is none. Nothing is truncated yet: `check_copies` has to prove
        the claim.

        Args:
            leader: The leader's ends of epochs, for `own_epochs`.
            leader_start: Its log start.
            leader_end: Its high watermark.

        Raises:
            StorageFailure: The disk failed.
        """
        self.leader_start = leader_start
        self._ended = self._said = None
        offset = parting_offset(self.own_epochs(), leader, leader_start)
        if offset is None and self.is_out_of_range and leader_end < self.log.log_end_offset:
            if self.batch_reaching(leader_end) is not None:
                return leader_end
            # If all records of an epoch were deleted here, only the log end is left of it.
            self.log.truncate_to(leader_end)
        return offset

    def agree(self, parting: int | None) -> None:
        """Accept the log as checked, after truncating at the proven divergence; None for none.

        Raises:
            StorageFailure: The disk failed.
        """
        if parting is not None:
            self._truncate(parting)
        self.is_checked = True
        self.is_out_of_range = False

    def drop_newest_epoch(self, floor: int = 0) -> None:
        """Truncate the newest epoch: not all of its records are from this leader.

        The leader's records of it are fetched again.

        Args:
            floor: Offsets below it stay.

        Raises:
            StorageFailure: The disk failed.
        """
        own = self.own_epochs()
        self._truncate(max(own[-1].start_offset if own else 0, floor))
        self.is_checked = False

    def _truncate(self, offset: int) -> None:
        end = self.log.log_end_offset
        start = self.log.truncate_to(offset)
        if start < end:
            self.counts.truncations.append(Truncation(start, end))

    def _begin(self, leader_start: int) -> bool:
        """Begin at the leader's log start, which two of its responses confirm; local records stay.

        Returns:
            Whether the next offset is lower than before.
        """
        log = self.log
        end = log.log_end_offset
        # A log that retention has emptied still has an epoch, and fetches nothing twice.
        is_late = (
            end > leader_start and not log.truncator.has_records and not log.leader_epochs.entries
        )
        if is_late or (end < leader_start and not log.truncator.has_records):
            log.truncator.begin_at(leader_start)
        if 0 < end < leader_start:
            reason = "the leader had deleted them before they were copied"
            name = self.name
            offsets = LostOffsets(name.topic, name.partition, end, leader_start, reason)
            if offsets not in self.counts.lost:
                self.counts.lost.append(offsets)
        return is_late

    def refuse(self, failure: ClusterFailure, *, is_passing: bool) -> None:
        """Note that the leader refused the partition; raises a failure that lasts too long."""
        self.is_checked = False
        self.is_refused = True
        self._strikes += 1
        if not is_passing or self._strikes > _STRIKES:
            raise failure

    def check_again(self, reason: str, *, is_out_of_range: bool = False) -> None:
        """Require a new check: the leader refused the position.

        Raises:
            ClusterFailure: It has refused several times, and no divergence was found.
        """
        self.is_checked = False
        self.is_out_of_range = is_out_of_range
        self._strikes += 1
        if self._strikes > _STRIKES:
            offset = self._next_offset()
            raise ClusterFailure(
                str(self.name), f"fetch from offset {offset}", f"the leader says {reason}"
            )

    # -- records -----------------------------------------------------------------------------

    def take(self, data: PartitionData, leader: Leader | None = None) -> None:
        """Write the records of a leader's response without an error.

        Args:
            data: The response.
            leader: The leader, for further requests; None for no requests.

        Raises:
            CorruptData, RequestError: The records break a rule; those before them were copied.
            ClusterFailure: The leader contradicts itself repeatedly.
            StorageFailure: The disk failed.
        """
        start, top = data.log_start_offset, data.high_watermark
        if data.diverging_epoch.end_offset >= 0:
            self.check_again(f"they part at {data.diverging_epoch.end_offset}")
            return
        if not -1 <= start <= top:
            self.check_again(f"its log starts at {start} and ends at {top}")
            return
        if 0 <= start < self.leader_start and self.log.log_end_offset < self.leader_start:
            # By its earlier response, records were to be skipped, or would never come.
            self.check_again(f"its log starts at {start}, and before at {self.leader_start}")
            return
        if start >= 0 and self._begin(self.leader_start):
            return  # the response is for a later offset
        self.high_watermark = top
        if data.log_start_offset > self.leader_start:
            self.leader_start = min(data.log_start_offset, self._next_offset())
        if len(data.batches):
            records = memoryview(data.batches)
            if self._shows_other_writer(records, top, leader):
                return
            if not self._end_before(records, leader):
                return
            self._append(records, AppendRuns(data.append_times), top)
        self._strikes = 0
        self._end_lost_transactions(data)
        if self.lag == 0:
            self.log.follower.note_leader_epoch(self.led.leader_epoch)

    def _end_before(self, records: memoryview, leader: Leader | None) -> bool:
        """End transactions that had ended before these records.

        Return whether the leader responded.
        """
        states, position = self.log.producer_states(), self.position()

        def ask() -> Aborted:
            if leader is None:
                return None
            return ask_aborted(leader, self.led.leader_id, position)

        try:
            ended = ends_before(walk(records), states, self.leader_start, ask)
        except ClusterFailure:
            self.is_checked = False  # and the leader is checked again
            return False
        if ended:
            self.log.follower.end_transactions_of(ended)
        return True

    def _end_lost_transactions(self, data: PartitionData) -> None:
        """End the transactions whose marker the leader has deleted.

        A gap alone proves nothing: a transaction may extend over it, and compaction never removes a
        marker that is still to come. The leader's last stable offset is the proof. If it is above a
        transaction's first record and above the leader's log start, the transaction has ended
        there, by a marker below the high watermark. (Of older transactions it says the same as the
        log start.) Once all records below that high watermark are here, the marker never comes.

        A leader reads its log start first and its last stable offset afterwards. If records are
        deleted in between, the last stable offset of an open transaction is the new log start. So
        it counts only once a later response has a log start below it.
        """
        first = self.log.producer_states().first_unstable_offset
        answer, self._said = self._said, None
        if first is None:
            self._ended = None
            return
        if self._ended is None and answer is not None and answer[0] > data.log_start_offset:
            self._ended = answer
        stable = data.last_stable_offset
        if self._ended is None and stable > max(data.log_start_offset, first):
            self._said = (stable, data.high_watermark)
        if self._ended is not None and self.log.log_end_offset >= self._ended[1]:
            self.log.follower.end_lost_transactions(self._ended[0])
            self._ended = None

    def _shows_other_writer(
        self, records: memoryview, high_watermark: int, leader: Leader | None
    ) -> bool:
        """Whether the next batch denies that the leader wrote the local records.

        If so, it is not copied. A flipped bit could cause this, so it is no proof alone: the logs
        are compared again. If the leader has deleted the offsets that could be compared, two facts
        are compared instead:
        - Epochs grow in a log. If the leader's next record has an older epoch than the last local
          record, and the leader confirms that this epoch extends so far, it never had the newest
          local epoch.
        - A copy ends where a batch of its leader ended. A batch that extends over the local end,
          and is continued by the next batch, is from another writer.
        """
        first, following = first_two(records)
        end = self.log.log_end_offset
        if first is None or first.magic != MAGIC_2 or not first.is_valid():
            return False
        if self.log.truncator.has_records and first.base_offset < end <= first.last_offset:
            last = self.log.follower.last_batch_below(end)
            is_next = goes_on(first, following, self._expected(high_watermark))
            if (
                is_next
                and self.probe() is None
                and last is not None
                and is_other_batch(last, first)
            ):
                self.drop_newest_epoch()
            self.check_again("its next records don't continue those before")
            return True
        if NO_LEADER_EPOCH < first.leader_epoch < self._last_epoch():
            if leader is not None and self._reaches(leader, first):
                self.drop_newest_epoch()
            self.check_again(
                f"leader epoch {first.leader_epoch} is next, behind {self._last_epoch()} here"
            )
            return True
        return False

    def _reaches(self, leader: Leader, batch: Batch) -> bool:
        """Whether the leader confirms that its batch's epoch extends beyond the batch's offset."""
        epochs = {self.name: batch.leader_epoch}
        epoch_end = leader.ends_of_epochs(self.led.leader_id, epochs).get(self.name)
        return isinstance(epoch_end, EpochEnd) and (
            epoch_end.epoch == batch.leader_epoch and epoch_end.end_offset > batch.base_offset
        )

    def _expected(self, high_watermark: int) -> ExpectedRecords:
        offset = self._next_offset()
        return ExpectedRecords(
            name=self.name,
            offset=offset,
            high_watermark=high_watermark,
            newest_epoch=self._last_epoch(),
            leader_epoch=self.led.leader_epoch,
            trusts_jump=self._jump is not None and self._jump[0] == offset,
        )

    def _append(self, records: memoryview, times: AppendRuns, high_watermark: int) -> None:
        next_offset = self._next_offset()
        is_first = not self.log.truncator.has_records
        sound = sound_batches(records, self._expected(high_watermark))
        try:
            for batches in self._appends(sound, times):
                first, last = batches[0], batches[-1]
                if (
                    not self.log.truncator.has_records
                    and first.base_offset < self.log.log_end_offset
                ):
                    # The leader's log starts inside this batch, so ours does too.
                    self.log.truncator.begin_at(first.base_offset)
                end = last.at + last.size_bytes
                self._append_sound(records, batches, times.time_of(first.last_offset))
                self.counts.size_bytes += end - first.at
                self.counts.batches += len(batches)
        except Unproven as unproven:
            # Fetched again, together with its successor.
            size = unproven.batch.size_bytes + _PROOF_BYTES
            self._jump = self._next_offset(), size
            return
        self._jump = None
        if is_first:
            self.log.advance_start(next_offset)

    def _append_sound(self, records: memoryview, batches: Sequence[Batch], append_ms: int) -> None:
        """Append batches together; one by one if one of them is refused."""
        first, last = batches[0], batches[-1]
        try:
            self._append_timed(records[first.at : last.at + last.size_bytes], append_ms)
        except (CorruptData, RequestError):
            if len(batches) == 1:
                raise
            for batch in batches:
                self._append_timed(records[batch.at : batch.at + batch.size_bytes], append_ms)

    def _append_timed(self, records: memoryview, append_ms: int) -> None:
        """Append batches with the leader's append time; without it if it would go backwards."""
        try:
            self.log.follower.append(records, append_ms=append_ms)
        except InvalidRequest:
            if append_ms == UNKNOWN_MS:
                raise
            self.log.follower.append(records)

    def _appends(self, batches: Iterator[Batch], times: AppendRuns) -> Iterator[list[Batch]]:
        """Yield the batches of each append: of one append time, and at most a segment's size."""
        limit = min(self.log.context.config.segment_size_limit, _APPEND_BYTES)
        together: list[Batch] = []
        try:
            for batch in batches:
                if together:
                    first = together[0]
                    is_other = times.time_of(batch.last_offset) != times.time_of(first.last_offset)
                    if is_other or batch.at + batch.size_bytes - first.at > limit:
                        yield together
                        together = []
                together.append(batch)
        except (CorruptData, Unproven):
            if together:
                yield together
            raise
        if together:
            yield together


# One batch of each partition is needed; its size is known only from the copy.
_PROBE: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1 << 20)


# Errors of a partition that call for another look at the cluster: moved, fenced, unknown, not yet
# available.
LOOK_AGAIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


Ends: TypeAlias = dict[int, EpochEnd]


def check_copies(leader: Leader, node_id: int, copies: Sequence[Copy]) -> None:
    """Reconcile these copies with their leader; sets `is_checked` and `problem`.

    Raises:
        ClusterFailure: The broker can't be reached.
    """
    ends = _ends(leader, node_id, copies)
    # Starts are fetched after the ends: an end at or below the start then means nothing.
    starts = _offsets(leader, node_id, _going(copies), EARLIEST_TIMESTAMP)
    tops = _offsets(leader, node_id, _going(copies), LATEST_TIMESTAMP)
    parted: dict[TopicPartition, int] = {}
    for copy in _going(copies):
        name = copy.name
        with _Problems(copy):
            _ensure_possible(copy, starts[name], tops[name])
            offset = copy.parting(ends[name], starts[name], tops[name])
            if offset is None:
                copy.agree(None)
            else:
                parted[name] = offset
    doubtful = [copy for copy in _going(copies) if copy.name in parted]
    if doubtful:
        _prove(leader, node_id, doubtful, parted, tops, ends)
    _compare_last_batches(leader, node_id, [copy for copy in copies if copy.is_checked])


class _Problems:
    """Turns errors of one partition into its `problem`."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, TidelogError):
            return False
        self._copy.is_checked = False
        self._copy.problem = error
        return True


def _going(copies: Sequence[Copy]) -> list[Copy]:
    """Return the copies that have not stopped, and whose leader has answered."""
    return [copy for copy in copies if copy.problem is None and not copy.is_refused]


def _refused(copy: Copy, failure: ClusterFailure | None, what: str) -> None:
    """Note that the leader refused a partition; a lasting refusal becomes its problem."""
    if failure is None:
        failure = ClusterFailure(str(copy.name), what, "the leader's answer leaves it out")
    with _Problems(copy):
        copy.refuse(failure, is_passing=failure.error_code in LOOK_AGAIN)


def _offsets(
    leader: Leader, node_id: int, copies: Sequence[Copy], timestamp: int
) -> dict[TopicPartition, int]:
    if not copies:
        return {}
    answers = leader.log_offsets(node_id, [copy.name for copy in copies], timestamp)
    offsets = {}
    for copy in copies:
        answer = answers.get(copy.name)
        if isinstance(answer, int):
            offsets[copy.name] = answer
        else:
            _refused(copy, answer, "ask where its log begins and ends")
    return offsets


def _ends(leader: Leader, node_id: int, copies: Sequence[Copy]) -> dict[TopicPartition, Ends]:
    """Fetch the leader's ends of all epochs of each running copy."""
    ends: dict[TopicPartition, Ends] = {copy.name: {} for copy in copies}
    waiting: dict[TopicPartition, list[int]] = {}
    for copy in copies:
        copy.is_refused = False
        with _Problems(copy):
            waiting[copy.name] = [own_epoch.epoch for own_epoch in copy.own_epochs()]
    by_name = {copy.name: copy for copy in copies}
    while requests := {name: epochs.pop() for name, epochs in waiting.items() if epochs}:
        answers = leader.ends_of_epochs(node_id, requests)
        for name, epoch in requests.items():
            epoch_end = answers.get(name)
            if epoch_end is None or isinstance(epoch_end, ClusterFailure):
                waiting.pop(name, None)
                _refused(by_name[name], epoch_end, "ask for ends of epochs")
            else:
                ends[name][epoch] = epoch_end
    return ends


def _ensure_possible(copy: Copy, start: int, top: int) -> None:
    if not 0 <= start <= top:
        reason = f"the leader says that its log starts at {start} and ends at {top}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _prove(
    leader: Leader,
    node_id: int,
    copies: Sequence[Copy],
    parted: Mapping[TopicPartition, int],
    tops: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, Ends],
) -> None:
    """Truncate copies where the leader's records prove that they diverge."""
    again = _ends(leader, node_id, copies)
    by_name = {copy.name: copy for copy in copies}
    positions = []
    for copy in _going(copies):
        with _Problems(copy):
            _ensure_same(copy, ends[copy.name], again[copy.name])
            at, top = max(parted[copy.name], copy.leader_start), tops[copy.name]
            if top > at:
                positions.append(copy.position_at(at))
            elif copy.batch_reaching(at) is None:
                copy.agree(parted[copy.name])  # below the leader's start: epochs alone prove it
            elif top > copy.leader_start:
                positions.append(copy.position_at(top - 1))
            else:
                raise _shorter(copy, top)
    for name, data in _fetch(leader, node_id, positions):
        copy = by_name[name]
        with _Problems(copy):
            at = max(parted[name], copy.leader_start)
            if data.error_code:
                code = data.error_code
                failure = ClusterFailure(leader.place, "fetch", client.named(code), error_code=code)
                _refused(copy, failure, "fetch")
            elif tops[name] <= at:
                copy.agree(_other_before(copy, data, tops[name]))
            else:
                _ensure_other(copy, data, at)
                copy.agree(parted[name])


def _fetch(
    leader: Leader, node_id: int, positions: Sequence[Position]
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    if positions:
        leader.send_fetch(node_id, positions, _PROBE)
        yield from leader.receive_fetch(node_id, positions)


def _shorter(copy: Copy, top: int) -> ClusterFailure:
    return ClusterFailure(
        str(copy.name),
        "follow",
        f"the leader's log ends at offset {top}, and records up to {copy.log.log_end_offset - 1}"
        " are here: it has lost its end, or was restored from a backup. Nothing is dropped as long"
        " as it has no other records there; to go on with the records here, promote it",
    )


def _other_before(copy: Copy, data: PartitionData, top: int) -> int:
    """Return the offset of the local batch that differs from the leader's last.

    Raises if none does.
    """
    theirs, own_batch = _sound(copy, data), copy.batch_reaching(top - 1)
    if theirs is None or own_batch is None:
        raise _shorter(copy, top)
    own_batch.ensure_valid()
    if not is_other_batch(own_batch, theirs):
        raise _shorter(copy, top)
    return max(own_batch.base_offset, copy.leader_start)


def _ensure_same(copy: Copy, first: Ends, second: Ends) -> None:
    problem = ends_problem(first)
    if first != second:
        problem = f"{first} at first, {second} then"
    if problem is not None:
        reason = f"the leader contradicts itself on where its epochs end: {problem}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _ensure_other(copy: Copy, data: PartitionData, at: int) -> None:
    """Raise unless the leader's records at or after an offset differ from the local ones."""
    theirs = _sound(copy, data)
    if theirs is None:
        reason = f"the leader says that the logs part at {at}, and shows no record there"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)
    own_batch = copy.batch_reaching(max(theirs.base_offset, at))
    if own_batch is None:
        return  # the leader has only later ones
    own_batch.ensure_valid()
    if not is_other_batch(own_batch, theirs) and own_batch.leader_epoch == theirs.leader_epoch:
        reason = f"the leader says that the logs part at {at}, and has the same records there"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _sound(copy: Copy, data: PartitionData) -> Batch | None:
    """Return the first batch of a response, or None; raises CorruptBatch for a damaged one."""
    theirs, _ = first_two(memoryview(data.batches))
    if theirs is None and len(data.batches):
        raise CorruptBatch(f"{copy.name}: the leader sent {len(data.batches)} bytes and no batch")
    if theirs is not None:
        theirs.ensure_valid()
    return theirs


def _compare_last_batches(leader: Leader, node_id: int, copies: Sequence[Copy]) -> None:
    probes = {}
    for copy in copies:
        with _Problems(copy):
            probe = copy.probe()
            if probe is not None:
                probes[copy.name] = probe
    by_name = {copy.name: copy for copy in copies}
    for name, data in _fetch(leader, node_id, list(probes.values())):
        copy = by_name[name]
        if data.error_code:
            continue  # the following fetch reports it
        with _Problems(copy):
            own_batch = copy.log.follower.last_batch_below(copy.log.log_end_offset)
            theirs = _sound(copy, data)
            if own_batch is not None and theirs is not None and is_other_batch(own_batch, theirs):
                copy.drop_newest_epoch(copy.leader_start)
