"""Copy of one partition from leader to standby: divergence, fetched batches, lost transactions.

All state is in the standby's log: its end is the next offset to fetch, and its leader epochs
identify the leaders that its records come from. A `Copy` can be discarded at any time.
- Divergence is found by comparing the ends of all leader epochs of the standby's records, then the
  last batch byte by byte, since two leaders can have used the same epoch. Records are truncated
  only on proof: the leader returns the same ends of epochs twice, and a valid batch with other
  records at or after those offsets. If a response is missing, damaged or contradictory, or the
  leader has no records at those offsets (it was restored from a backup), nothing is truncated, and
  the copy of the partition stops with a reason.
- Fetched batches are checked before they are written. The CRC of a batch does not cover its base
  offset, leader epoch, length and magic; a flipped bit in them is found by comparison with the
  neighboring batches and the high watermark. Offsets must ascend. A batch that skips offsets must
  be followed by a batch that continues it. Every batch must end below the high watermark.
- If the leader has deleted the marker of a transaction, the transaction has ended. Either of two
  facts proves this before the next records are copied. The producer's next batch has a newer
  producer epoch. Or the producer's next marker is an abort, and none of the producer's transactions
  in the leader's list of aborted transactions started at or before the open one, so the abort ends
  a later transaction. A commit needs no proof: it makes the records of the open transaction visible
  either way.

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
from tidelog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    UNKNOWN_MS,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.protocol.messages.fetch import AbortedTransaction


# List of aborted transactions in a response of the leader; None if it has no records.
Aborted: TypeAlias = "list[AbortedTransaction] | None"


# Limits to fetch one batch.
_NEXT: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1)


def ends_before(
    batches: Iterable[Batch],
    states: ProducerStates,
    leader_start: int,
    ask: Callable[[], Aborted],
) -> dict[int, int]:
    """Return the producers whose open transactions had ended before these batches.

    Each has the offset at which its next transaction begins, whose first records may have been
    copied as part of the ended one. The offset is ANY_OFFSET if that transaction begins later.

    Args:
        batches: The leader's next batches.
        states: Producers and open transactions of the standby's log.
        leader_start: The leader's log start offset; the leader still has all markers from it on.
        ask: Fetches the leader's aborted transactions from the first of the batches on. Called at
            most once, and only if the result depends on it.

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
    """Yield the producers' batches up to each one's first marker; True with a marker that aborts.

    The iteration stops at a damaged batch; the append of the batches raises that error.
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

    Each has the offset of its first transaction in the list, ANY_OFFSET if the list has none.
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

    The result is None if the leader returns no records there at isolation level READ_COMMITTED,
    which means that a transaction that began before the position is still open.

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
    """Facts that the next records from a leader must match.

    Attributes:
        name: The partition.
        offset: The requested offset.
        high_watermark: The leader's high watermark (exclusive) in the same response.
        newest_epoch: Leader epoch of the record before the requested offset, -1 if unknown.
        leader_epoch: Epoch of the partition's leader, -1 if unknown.
        trusts_jump: Whether the last batch may skip offsets: the fetch was large enough for a batch
            after it, and the leader sent none.
    """

    name: TopicPartition
    offset: int
    high_watermark: int
    newest_epoch: int
    leader_epoch: int
    trusts_jump: bool = False


class Unproven(Exception):
    """Raised for a batch that skips offsets, if only a following batch could prove it correct."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.batch = batch


def sound_batches(records: memoryview, expected: ExpectedRecords) -> Iterator[Batch]:
    """Yield the batches that match the expected facts, in order.

    Raises:
        CorruptBatch: A batch does not match; the batches before it were yielded.
        Unproven: The last batch of the response skips offsets.
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
    """Return what is wrong with a batch, given the records before it; None if nothing is."""
    epoch, where = batch.leader_epoch, f"offsets {batch.base_offset} to {batch.last_offset}"
    # The first batch of a response may begin before the requested offset.
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
    """Return the problem of a batch that skips offsets, or None; raises Unproven if unknown."""
    if goes_on(batch, following, expected):
        return None
    if following is None:
        if expected.trusts_jump:
            return None
        raise Unproven(batch)
    base = batch.base_offset
    return f"offset {base} where {next_offset} is expected, followed by {following.base_offset}"


def goes_on(batch: Batch, following: Batch | None, expected: ExpectedRecords) -> bool:
    """Whether the next batch, or the high watermark, confirms the offset at which a batch ends."""
    if following is None:
        return batch.next_offset == expected.high_watermark
    return following.base_offset >= batch.next_offset


def _pairs(records: memoryview) -> Iterator[tuple[Batch | None, Batch | None]]:
    """Yield each batch with its successor or None; raises CorruptData at a damaged batch."""
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
    """Return the first two batches; None for each that is missing or damaged."""
    batches: list[Batch] = []
    try:
        for batch in walk(records):
            batches.append(batch)
            if len(batches) == 2:
                break
    except CorruptData:
        pass
    return (batches[0] if batches else None, batches[1] if len(batches) > 1 else None)


# Maximum size, in bytes, of batches that are appended together.
_APPEND_BYTES: Final = 1 << 20


# Maximum number of times that the leader may refuse a position that its own responses allow.
_STRIKES: Final = 3


# Number of bytes that are fetched in addition to a batch, for its successor.
_PROOF_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Truncation:
    """Offsets [start, end) that the standby had and its leader did not; they were truncated."""

    start: int
    end: int


@dataclass(slots=True)
class CopyCounts:
    """Counts and events since the start of following."""

    batches: int = 0
    size_bytes: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)


class Copy:
    """Copy of one partition. Only one owner may use it.

    Life cycle: (led_by -> parting -> agree -> (position -> take)*)*. If the copy stops, `problem`
    has the reason.

    Attributes:
        name: The partition.
        topic_id: Id of the partition's topic.
        log: The standby's log.
        led: The partition's current leader and leader epoch.
        is_checked: Whether the log is known to have no records that the leader does not have.
        is_out_of_range: Whether the leader reported the position as out of range since the last
            check.
        is_refused: Whether the leader refused the last check, or left the partition out of a
            response.
        high_watermark: The leader's high watermark (exclusive) from the last response; None before
            the first.
        leader_start: The leader's log start offset, as far as known.
        problem: Why the copy has stopped; None while it runs.
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
        # Offset of a batch that skips offsets, and the number of bytes to fetch with its successor.
        self._jump: tuple[int, int] | None = None
        # Last stable offset and high watermark of a response that shows that a transaction without
        # a marker has ended: first the confirmed pair, then the pair of the last response, which
        # the next response has to confirm.
        self._ended: tuple[int, int] | None = None
        self._said: tuple[int, int] | None = None

    def led_by(self, led: LeaderPartition) -> None:
        """Set the leader; a change of leader or leader epoch requires a new check."""
        if led != self.led:
            self.led = led
            self.is_checked = False

    @property
    def lag(self) -> int | None:
        """Number of offsets from the log's end to the leader's high watermark; None if unknown."""
        if self.high_watermark is None:
            return None
        return max(self.high_watermark - self._next_offset(), 0)

    @property
    def is_caught_up(self) -> bool:
        """Whether the standby has all records up to the leader's high watermark."""
        is_here = self.is_checked and self.problem is None and self.lag == 0
        return is_here and self._said is None

    def probe(self) -> Position | None:
        """Return the position for fetching the last local batch from the leader, to compare them.

        The result is None if the standby has no batch, or the leader has deleted the last one.

        Raises:
            CorruptData: The local batch is damaged, so it proves nothing.
        """
        last = self.log.follower.last_batch_below(self.log.log_end_offset)
        if last is None or last.last_offset < self.leader_start:
            return None
        last.ensure_valid()
        return self.position_at(max(last.base_offset, self.leader_start))

    def position_at(self, offset: int) -> Position:
        """Return a position at any offset, without the leader epoch of the record before it."""
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
        """Return the position of the next fetch from the leader."""
        offset = self._next_offset()
        return Position(
            name=self.name,
            topic_id=self.topic_id,
            offset=offset,
            # If the leader has deleted offsets that were not copied, the record before is unknown
            # here.
            last_epoch=self._last_epoch() if offset == self.log.log_end_offset else NO_LEADER_EPOCH,
            leader_epoch=self.led.leader_epoch,
            max_bytes=self._jump[1] if self._jump and self._jump[0] == offset else 0,
        )

    def _last_epoch(self) -> int:
        """Return the leader epoch of the last record, -1 if unknown."""
        if not self.log.truncator.has_records:
            return NO_LEADER_EPOCH
        epoch = self.log.leader_epochs.epoch_for(self.log.log_end_offset - 1)
        return NO_LEADER_EPOCH if epoch is None else epoch

    # -- divergence --------------------------------------------------------------------------

    def own_epochs(self) -> list[OwnEpoch]:
        """Return the leader epochs of the standby's records, oldest first."""
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
        """Return the first offset from which on the leader's epochs deny the local records.

        The result is None if the epochs agree. The epochs alone prove nothing: `check_copies`
        compares records before it truncates.

        Args:
            leader: The leader's end of each epoch in `own_epochs`.
            leader_start: The leader's log start offset.
            leader_end: The leader's high watermark.

        Raises:
            StorageFailure: The disk failed.
        """
        self.leader_start = leader_start
        self._ended = self._said = None
        offset = parting_offset(self.own_epochs(), leader, leader_start)
        if offset is None and self.is_out_of_range and leader_end < self.log.log_end_offset:
            if self.batch_reaching(leader_end) is not None:
                return leader_end
            # Retention has deleted all local records from there on; only the log end is above.
            self.log.truncate_to(leader_end)
        return offset

    def agree(self, parting: int | None) -> None:
        """Accept the log as checked, after truncating it at `parting`, the proven divergence.

        Raises:
            StorageFailure: The disk failed.
        """
        if parting is not None:
            self._truncate(parting)
        self.is_checked = True
        self.is_out_of_range = False

    def drop_newest_epoch(self, floor: int = 0) -> None:
        """Truncate the newest leader epoch, because not all of its records are from this leader.

        Its records are then fetched again from the leader.

        Args:
            floor: Records below this offset stay.

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
        """Move an empty log to the leader's log start, and note offsets that were lost.

        Returns:
            Whether the next offset is lower than before, so that the response does not fit.
        """
        log = self.log
        end = log.log_end_offset
        # If retention has deleted all records, an epoch entry is left, and the log keeps its end.
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
        """Note that the leader refused the partition; raises it if permanent or repeated."""
        self.is_checked = False
        self.is_refused = True
        self._strikes += 1
        if not is_passing or self._strikes > _STRIKES:
            raise failure

    def check_again(self, reason: str, *, is_out_of_range: bool = False) -> None:
        """Require a new check, because the leader refused the position.

        Raises:
            ClusterFailure: The leader has refused it several times, and no divergence was found.
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
        """Write the records of a response that has no error.

        Args:
            data: The partition's part of the response.
            leader: The leader, for further requests; with None no requests are sent.

        Raises:
            CorruptData, RequestError: A record breaks a rule; the records before it were copied.
            ClusterFailure: The leader contradicts itself repeatedly.
            StorageFailure: The disk failed.
        """
        start, top = data.log_start_offset, data.high_watermark
        if data.diverging_epoch.end_offset >= 0:
            self.check_again(f"the logs diverge at offset {data.diverging_epoch.end_offset}")
            return
        if not -1 <= start <= top:
            self.check_again(f"its log starts at {start} and ends at {top}")
            return
        if 0 <= start < self.leader_start and self.log.log_end_offset < self.leader_start:
            # One of the two starts is wrong: with the higher one the copy would skip existing
            # records, with the lower one it would wait for records that no longer exist.
            self.check_again(
                f"its log start offset is {start}, but an earlier response had {self.leader_start}"
            )
            return
        if start >= 0 and self._begin(self.leader_start):
            return  # the response is for an offset that is now too high
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
        """End the open transactions that had ended before these records.

        Returns False if a request to the leader failed; then the records must not be written.
        """
        states, position = self.log.producer_states(), self.position()

        def ask() -> Aborted:
            if leader is None:
                return None
            return ask_aborted(leader, self.led.leader_id, position)

        try:
            ended = ends_before(walk(records), states, self.leader_start, ask)
        except ClusterFailure:
            self.is_checked = False  # requires a new check of the leader
            return False
        if ended:
            self.log.follower.end_transactions_of(ended)
        return True

    def _end_lost_transactions(self, data: PartitionData) -> None:
        """End the transactions whose marker the leader has deleted.

        A gap in the offsets proves nothing: a transaction may extend over it, and compaction never
        removes the marker of a transaction that is still open here. The leader's last stable offset
        is the proof. If it is above the transaction's first record and above the leader's log
        start, the transaction has ended, with a marker below the high watermark. (If it equals the
        log start, nothing follows for transactions that began before.) If the standby has all
        records below that high watermark and the transaction is still open, its marker was deleted.

        A leader reads its log start offset before its last stable offset. If records are deleted in
        between, an open transaction also has a last stable offset above the reported log start. So
        the proof counts only if a later response has a log start below that last stable offset.
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
        """Whether the next batch shows that another leader wrote the local records.

        In this case the batch is not copied. A flipped bit can have the same effect, so this alone
        does not prove a divergence, and the logs are compared again. If the leader has deleted the
        offsets that could be compared, either of two facts is the proof:
        - Leader epochs never decrease along a log. If the leader's next record has an older epoch
          than the last local record, and the leader confirms that this epoch extends beyond that
          record, the leader never had the newest local epoch.
        - A copy ends where a batch of its leader ended. If the leader has a batch that extends over
          the local end, and the next batch confirms its offsets, another leader wrote the local
          records.
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
                f"its next record has leader epoch {first.leader_epoch}, but the last local"
                f" record has leader epoch {self._last_epoch()}"
            )
            return True
        return False

    def _reaches(self, leader: Leader, batch: Batch) -> bool:
        """Whether the leader confirms that the batch's leader epoch contains its base offset."""
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
                    # The leader's log starts inside this batch, so the local log does too.
                    self.log.truncator.begin_at(first.base_offset)
                end = last.at + last.size_bytes
                self._append_sound(records, batches, times.time_of(first.last_offset))
                self.counts.size_bytes += end - first.at
                self.counts.batches += len(batches)
        except Unproven as unproven:
            # The next fetch requests the batch again, together with its successor.
            size = unproven.batch.size_bytes + _PROOF_BYTES
            self._jump = self._next_offset(), size
            return
        self._jump = None
        if is_first:
            self.log.advance_start(next_offset)

    def _append_sound(self, records: memoryview, batches: Sequence[Batch], append_ms: int) -> None:
        """Append batches together; if one is refused, append the batches before it one by one."""
        first, last = batches[0], batches[-1]
        try:
            self._append_timed(records[first.at : last.at + last.size_bytes], append_ms)
        except (CorruptData, RequestError):
            if len(batches) == 1:
                raise
            for batch in batches:
                self._append_timed(records[batch.at : batch.at + batch.size_bytes], append_ms)

    def _append_timed(self, records: memoryview, append_ms: int) -> None:
        """Append batches with the leader's append time, or without it if time would run back."""
        try:
            self.log.follower.append(records, append_ms=append_ms)
        except InvalidRequest:
            if append_ms == UNKNOWN_MS:
                raise
            self.log.follower.append(records)

    def _appends(self, batches: Iterator[Batch], times: AppendRuns) -> Iterator[list[Batch]]:
        """Yield the batches of each append: one append time, at most a segment's size."""
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


# Limits to fetch one batch of each partition, whose size is not known.
_PROBE: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1 << 20)


# Errors of a partition after which the cluster's metadata is read again: the partition has moved,
# or is unknown or not yet available.
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
    """Compare copies with their leader and truncate them if needed; sets `is_checked`, `problem`.

    Raises:
        ClusterFailure: The broker can't be reached.
    """
    ends = _ends(leader, node_id, copies)
    # Log starts are requested after the epoch ends, so epochs that end at or below the start are
    # known to be deleted.
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
    """Context that stores a TidelogError as the copy's `problem`."""

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
    """Return the copies that have not stopped, and that the leader has not refused."""
    return [copy for copy in copies if copy.problem is None and not copy.is_refused]


def _refused(copy: Copy, failure: ClusterFailure | None, what: str) -> None:
    """Note that the leader refused a partition; a permanent refusal becomes its `problem`."""
    if failure is None:
        failure = ClusterFailure(str(copy.name), what, "the leader's response lacks the partition")
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
            _refused(copy, answer, "request log start and end offsets")
    return offsets


def _ends(leader: Leader, node_id: int, copies: Sequence[Copy]) -> dict[TopicPartition, Ends]:
    """Fetch the leader's end of every local leader epoch, for each of the copies."""
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
                _refused(by_name[name], epoch_end, "request ends of leader epochs")
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
    """Truncate copies if the leader's records prove that they diverge."""
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
                # the local records are below the leader's start, so the epochs are the only proof
                copy.agree(parted[copy.name])
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
        " are here: the leader has lost the end of its log, or was restored from a backup."
        " The local records stay as long as the leader has no other records at these offsets; to"
        " continue with the local records, promote this standby",
    )


def _other_before(copy: Copy, data: PartitionData, top: int) -> int:
    """Return the offset of the local batch that differs from the leader's last batch.

    Raises ClusterFailure if the batches are the same or one is missing.
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
        problem = f"{first} in the first response, {second} in the second"
    if problem is not None:
        reason = f"the leader contradicts itself on where its epochs end: {problem}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _ensure_other(copy: Copy, data: PartitionData, at: int) -> None:
    """Raise ClusterFailure if the leader's records at or after an offset equal the local ones."""
    theirs = _sound(copy, data)
    if theirs is None:
        reason = (
            f"according to the leader's epochs the logs diverge at offset {at}, but it returned no"
            " record there"
        )
        raise ClusterFailure(str(copy.name), "compare the logs", reason)
    own_batch = copy.batch_reaching(max(theirs.base_offset, at))
    if own_batch is None:
        return  # the leader's first record there is after the local log's end
    own_batch.ensure_valid()
    if not is_other_batch(own_batch, theirs) and own_batch.leader_epoch == theirs.leader_epoch:
        reason = (
            f"according to the leader's epochs the logs diverge at offset {at}, but it has the same"
            " records there"
        )
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _sound(copy: Copy, data: PartitionData) -> Batch | None:
    """Return the first batch of a response, None if it is empty; raises CorruptBatch for damage."""
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
            continue  # the next fetch reports the error
        with _Problems(copy):
            own_batch = copy.log.follower.last_batch_below(copy.log.log_end_offset)
            theirs = _sound(copy, data)
            if own_batch is not None and theirs is not None and is_other_batch(own_batch, theirs):
                copy.drop_newest_epoch(copy.leader_start)
