"""Copy of one partition from leader to standby: chooses the position to fetch from, and appends.

All state is in the standby's log. The log's end is the next offset to fetch, and the log's leader
epochs identify the leaders that wrote its records. A `Copy` can be discarded at any time.
`standby.divergence` compares the log with the leader's log, and `standby.fetched_batches` checks
the batches that the leader sends.

Source: Kafka 4.x AbstractFetcherThread, ReplicaFetcherThread; KIP-101, KIP-595.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final
from uuid import UUID

from tidelog.errors import (
    ClusterFailure,
    CorruptData,
    InvalidRequest,
    LostOffsets,
    RequestError,
    TidelogError,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.header import MAGIC_2
from tidelog.remote.leader import (
    EpochEnd,
    Leader,
    LeaderPartition,
    OwnEpoch,
    Position,
    is_other_batch,
    parting_offset,
)
from tidelog.remote.time_lookup import AppendRuns
from tidelog.standby.fetched_batches import (
    Aborted,
    ExpectedRecords,
    Unproven,
    ends_before,
    fetch_aborted,
    first_two,
    goes_on,
    sound_batches,
)
from tidelog.storage.log.log import Log
from tidelog.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_MS,
    TopicPartition,
)

# Maximum size, in bytes, of batches that are appended together.
_APPEND_BYTES: Final = 1 << 20

# The copy stops after more than this number of consecutive refusals by the leader. A refusal is a
# transient error, or the rejection of a position that is valid according to the leader's own
# responses.
_STRIKES: Final = 3

# Number of bytes that are fetched in addition to a batch, to get the next batch, too.
_PROOF_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Truncation:
    """Truncated offsets [start, end): the leader has other records at these offsets, or none."""

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
    """Copy of one partition. A `Copy` is used only by its owner.

    Order of calls: `led_by`, `parting`, `agree`, then pairs of `position` and `take`. If the leader
    or its epoch changes, start again with `led_by`. If the copy stops, `problem` has the reason.

    Attributes:
        name: The partition.
        topic_id: Id of the partition's topic.
        log: The standby's log.
        led: The partition's current leader and leader epoch.
        is_checked: Whether the log is known not to diverge from the leader's log.
        is_out_of_range: Whether the leader reported the position as out of range since the last
            check.
        is_refused: Whether the leader refused the last check, or left the partition out of a
            response.
        high_watermark: The leader's high watermark (exclusive) from the last response; None before
            the first response.
        leader_start: Last known log start offset of the leader.
        problem: Why the copy has stopped; None while it runs.
        counts: Counts and events since the start of following.
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
        # Offset of a batch that skips offsets, and the number of bytes to fetch so that the
        # response also has the batch after it.
        self._jump: tuple[int, int] | None = None
        # Pairs of the last stable offset and the high watermark of a response. A pair is kept if it
        # shows that the leader ended a transaction that is still open in the local log. `_ended` is
        # a confirmed pair. `_candidate` is the pair of the last response; the next response has to
        # confirm it.
        self._ended: tuple[int, int] | None = None
        self._candidate: tuple[int, int] | None = None

    @property
    def reason(self) -> str | None:
        """Text of `problem` without the partition's name before it; None if there is no problem."""
        return None if self.problem is None else str(self.problem).removeprefix(f"{self.name}: ")

    def led_by(self, led: LeaderPartition) -> None:
        """Set the leader and its epoch; if either changes, a new check is required."""
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
        return is_here and self._candidate is None

    def probe(self) -> Position | None:
        """Return the position for fetching the last local batch from the leader, for comparison.

        The result is None if the standby has no batch, or the leader has deleted the last batch.

        Raises:
            CorruptData: The local batch is damaged, so it proves nothing.
        """
        last = self.log.follower.last_batch_below(self.log.log_end_offset)
        if last is None or last.last_offset < self.leader_start:
            return None
        last.ensure_valid()
        return self.position_at(max(last.base_offset, self.leader_start))

    def position_at(self, offset: int) -> Position:
        """Return the position for a fetch at an offset.

        In this position, the leader epoch of the record before the offset is unknown (-1).
        """
        return replace(self.position(), offset=offset, last_epoch=NO_LEADER_EPOCH)

    def batch_reaching(self, offset: int) -> Batch | None:
        """Return the first local batch that ends at or after an offset.

        Return None if all local batches end before the offset.
        """
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
            # If the leader has deleted offsets that were not copied, the standby does not know the
            # record before the position.
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
        """Return the offset from which the epochs of the leader's log and of the local log differ.

        The result is None if the epochs agree. If they differ, `check_copies` compares records, as
        far as possible, before it truncates.

        Args:
            leader: The leader's end of each epoch in `own_epochs`.
            leader_start: The leader's log start offset.
            leader_end: The leader's high watermark.

        Raises:
            StorageFailure: The disk failed.
        """
        self.leader_start = leader_start
        self._ended = self._candidate = None
        offset = parting_offset(self.own_epochs(), leader, leader_start)
        if offset is None and self.is_out_of_range and leader_end < self.log.log_end_offset:
            if self.batch_reaching(leader_end) is not None:
                return leader_end
            # Retention has deleted all local records at or after `leader_end`; only the log end
            # offset is still higher.
            self.log.truncate_to(leader_end)
        return offset

    def agree(self, parting: int | None) -> None:
        """Truncate the log at a proven divergence, if any, and mark the log as checked.

        Raises:
            StorageFailure: The disk failed.
        """
        if parting is not None:
            self._truncate(parting)
        self.is_checked = True
        self.is_out_of_range = False

    def drop_newest_epoch(self, floor: int = 0) -> None:
        """Truncate the newest leader epoch's records, because not all of them are from this leader.

        The leader's records at the truncated offsets are fetched afterwards.

        Args:
            floor: Offset below which no record is truncated.

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
        """Move an empty log to the leader's log start, and remember lost offsets.

        Returns:
            Whether the next offset to copy is now lower than before. If so, the leader's current
            response is for the old offset and can't be used.
        """
        log = self.log
        end = log.log_end_offset
        # A log without records but with an epoch entry was emptied by retention, and keeps its end
        # offset.
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
        """Remember that the leader refused the partition; raise a permanent or repeated failure."""
        self.is_checked = False
        self.is_refused = True
        self._strikes += 1
        if not is_passing or self._strikes > _STRIKES:
            raise failure

    def check_again(self, reason: str, *, is_out_of_range: bool = False) -> None:
        """Require a new check, because the leader refused the position or contradicts the log.

        Raises:
            ClusterFailure: More than `_STRIKES` responses in a row were refusals or contradictions.
        """
        self.is_checked = False
        self.is_out_of_range = is_out_of_range
        self._strikes += 1
        if self._strikes > _STRIKES:
            offset = self._next_offset()
            raise ClusterFailure(
                str(self.name), f"fetch from offset {offset}", f"the leader reports that {reason}"
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
            # The leader has reported two log starts, of which one is wrong. If the higher start is
            # wrong, a fetch from the higher start would skip existing records. If the lower start
            # is wrong, a fetch from the lower start would wait for records that no longer exist.
            self.check_again(
                f"its log start offset is {start}, but an earlier response had {self.leader_start}"
            )
            return
        if start >= 0 and self._begin(self.leader_start):
            return  # the response is for the previous, higher offset
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
        """End the open transactions that the leader ended before these records.

        Returns False if a request to the leader failed. The records must not be written in this
        case.
        """
        states, position = self.log.producer_states(), self.position()

        def fetch_list() -> Aborted:
            if leader is None:
                return None
            return fetch_aborted(leader, self.led.leader_id, position)

        try:
            ended = ends_before(walk(records), states, self.leader_start, fetch_list)
        except ClusterFailure:
            self.is_checked = False  # requires a new check of the leader
            return False
        if ended:
            self.log.follower.end_transactions_of(ended)
        return True

    def _end_lost_transactions(self, data: PartitionData) -> None:
        """End the transactions whose marker the leader has deleted.

        A gap in the offsets proves nothing: a transaction may extend over the gap, and compaction
        never removes the marker of a transaction that is still open in the local log. The leader's
        last stable offset is a proof if it is above the transaction's first record and above the
        leader's log start. If so, the transaction ended, with a marker below the high watermark.
        If the standby has all records below that high watermark and the transaction is still open,
        the marker was deleted. A last stable offset equal to the log start proves nothing about
        transactions that began before the log start.

        For a response, a leader first reads its log start offset, then its last stable offset. If
        records are deleted between the two reads, the last stable offset may be above the reported
        log start although the transaction is open. So a last stable offset is a proof only if it is
        also above the log start that a later response reports.
        """
        first = self.log.producer_states().first_unstable_offset
        answer, self._candidate = self._candidate, None
        if first is None:
            self._ended = None
            return
        if self._ended is None and answer is not None and answer[0] > data.log_start_offset:
            self._ended = answer
        stable = data.last_stable_offset
        if self._ended is None and stable > max(data.log_start_offset, first):
            self._candidate = (stable, data.high_watermark)
        if self._ended is not None and self.log.log_end_offset >= self._ended[1]:
            self.log.follower.end_lost_transactions(self._ended[0])
            self._ended = None

    def _shows_other_writer(
        self, records: memoryview, high_watermark: int, leader: Leader | None
    ) -> bool:
        """Return whether the next batch shows that another leader wrote the local records.

        If True, the batch is not copied. A batch with a flipped bit can look like a divergence, so
        the batch alone proves nothing, and the logs are compared again. If the leader has deleted
        the offsets that could be compared, a divergence is proved in two cases:
        - The leader's next record has an older epoch than the last local record, and the leader
          confirms that this older epoch contains its next record. Leader epochs never decrease
          along a log, so the leader never had the newest local epoch.
        - The leader has a batch that extends over the local end, and the leader's next batch
          confirms where that batch ends. The leader that wrote the local records had the end of a
          batch at the local end, so it was another leader.
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
            self.check_again("its next records don't continue the local log")
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
        """Return whether the leader confirms that a batch's epoch contains the batch's offset."""
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
        """Append batches together.

        If the log refuses one of the batches, append the batches before the refused one singly.
        """
        first, last = batches[0], batches[-1]
        try:
            self._append_timed(records[first.at : last.at + last.size_bytes], append_ms)
        except (CorruptData, RequestError):
            if len(batches) == 1:
                raise
            for batch in batches:
                self._append_timed(records[batch.at : batch.at + batch.size_bytes], append_ms)

    def _append_timed(self, records: memoryview, append_ms: int) -> None:
        """Append batches with the leader's append time.

        If append times would otherwise decrease in the log, the batches get no append time.
        """
        try:
            self.log.follower.append(records, append_ms=append_ms)
        except InvalidRequest:
            if append_ms == UNKNOWN_MS:
                raise
            self.log.follower.append(records)

    def _appends(self, batches: Iterator[Batch], times: AppendRuns) -> Iterator[list[Batch]]:
        """Yield lists of batches to append together.

        The batches of a list have the same append time, and fit together into one segment.
        """
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
