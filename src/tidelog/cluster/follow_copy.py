"""One partition on its way from leader to standby: where it is, what is done with an answer.

All state that matters lies in the standby's log: where it ends is where the copy goes on, its
leader epochs say what was copied from whom. A `Copy` can be thrown away at any time.

Over 400 lines because the steps of a copy share what the leader has said before.

Source: Kafka 4.x AbstractFetcherThread, ReplicaFetcherThread; KIP-101, KIP-595.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from tidelog.cluster.append_runs import AppendRuns
from tidelog.cluster.follow_ends import Aborted, ask_aborted, ends_before
from tidelog.cluster.follow_epochs import EpochEnd, OwnEpoch, is_other_batch, parting_offset
from tidelog.cluster.follow_leader import Leader, LeaderPartition, Position
from tidelog.cluster.follow_records import Expected, Unproven, first_two, goes_on, sound_batches
from tidelog.errors import (
    ClusterFailure,
    CorruptData,
    InvalidRequest,
    LostOffsets,
    RequestError,
    TidelogError,
)
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch import MAGIC_2
from tidelog.record.views import Batch, walk
from tidelog.storage.log import Log
from tidelog.types import NO_LEADER_EPOCH, UNKNOWN_MS, TopicPartition

# An append of many batches is written at once; more than this is written in several.
_APPEND_BYTES: Final = 1 << 20
# How often a leader may refuse a position that its own answers allow.
_STRIKES: Final = 3
# So much more is asked for where the batch behind another one has to prove its place.
_PROOF_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Truncation:
    """Offsets [start, end) that the standby had and its leader had not; they were dropped."""

    start: int
    end: int


@dataclass(slots=True)
class CopyCounts:
    """Counts of what was done since following began."""

    batches: int = 0
    size_bytes: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)


class Copy:
    """One partition that is followed. One owner.

    Life cycle: (led_by -> parting -> agree -> (position -> take)*)*; `problem` says why it stands
    still.

    Attributes:
        name: The partition.
        topic_id: Of its topic.
        log: The standby's log.
        led: Who leads it now.
        is_checked: Whether it is known that the log has nothing that the leader never had.
        is_out_of_range: Whether the leader said so of the position, since the last check.
        is_refused: Whether the leader left the last check without an answer.
        high_watermark: The leader's, exclusive, as of the last answer; None before the first.
        leader_start: The leader's log start, as far as is known.
        problem: Why it can't go on, None while it can.
        counts: What was done.
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
        # Where the next batch leaves offsets out without a proof, and how much is asked for there.
        self._jump: tuple[int, int] | None = None
        # What the leader said once of an open transaction: its stable end, its high watermark;
        # and in its last answer, which the next one has to confirm.
        self._ended: tuple[int, int] | None = None
        self._said: tuple[int, int] | None = None

    def led_by(self, led: LeaderPartition) -> None:
        """Who leads it; another epoch means that what was checked has to be checked again."""
        if led != self.led:
            self.led = led
            self.is_checked = False

    @property
    def lag(self) -> int | None:
        """Offsets from the standby's end to the leader's high watermark; None where unknown."""
        if self.high_watermark is None:
            return None
        return max(self.high_watermark - self._next_offset(), 0)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that the leader shows is here."""
        is_here = self.is_checked and self.problem is None and self.lag == 0
        return is_here and self._said is None

    def probe(self) -> Position | None:
        """Asks for the last batch that is here again; None where the leader can't have it.

        Raises:
            CorruptData: It is damaged here, so it proves nothing.
        """
        last = self.log.last_batch_below(self.log.log_end_offset)
        if last is None or last.last_offset < self.leader_start:
            return None
        last.ensure_valid()
        return self.position_at(max(last.base_offset, self.leader_start))

    def position_at(self, offset: int) -> Position:
        """Asks for any offset, whatever lies before it."""
        return replace(self.position(), offset=offset, last_epoch=NO_LEADER_EPOCH)

    def batch_reaching(self, offset: int) -> Batch | None:
        """The first batch here that ends at or behind an offset; None where none does."""
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
            # Behind a gap that the leader deleted, its record before this one isn't ours.
            last_epoch=self._last_epoch() if offset == self.log.log_end_offset else NO_LEADER_EPOCH,
            leader_epoch=self.led.leader_epoch,
            max_bytes=self._jump[1] if self._jump and self._jump[0] == offset else 0,
        )

    def _last_epoch(self) -> int:
        """The epoch of the last record, -1 where none is known."""
        if not self.log.has_records:
            return NO_LEADER_EPOCH
        found = self.log.leader_epochs.epoch_for(self.log.log_end_offset - 1)
        return NO_LEADER_EPOCH if found is None else found

    # -- divergence --------------------------------------------------------------------------

    def own_epochs(self) -> list[OwnEpoch]:
        """The epochs of which the standby has records, oldest first."""
        log = self.log
        entries = log.leader_epochs.entries
        ends = [*(entry.start_offset for entry in entries[1:]), log.log_end_offset]
        found = []
        for entry, end in zip(entries, ends, strict=False):
            last = log.last_batch_below(end)
            if last is not None and last.next_offset > entry.start_offset:
                found.append(OwnEpoch(entry.epoch, entry.start_offset, last.next_offset))
        return found

    def parting(
        self, leader: Mapping[int, EpochEnd], leader_start: int, leader_end: int
    ) -> int | None:
        """The offset from which on the leader says that it never had what is here; None if none.

        Nothing is dropped yet: what its answers are worth is for `follow_check` to prove.

        Args:
            leader: Its answers for `own_epochs`.
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
            # Where all records of an epoch were deleted here, nothing but the end is left of it.
            self.log.truncate_to(leader_end)
        return offset

    def agree(self, parting: int | None) -> None:
        """Go on from here; what lies at or behind `parting` is proven to be no leader's record.

        Raises:
            StorageFailure: The disk failed.
        """
        if parting is not None:
            self._truncate(parting)
        self.is_checked = True
        self.is_out_of_range = False

    def drop_newest_epoch(self, floor: int = 0) -> None:
        """Drop what is here of the newest epoch: not all of it was written by this leader.

        What the leader has of it is fetched again.

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
        """Begin where the leader's log does, as two of its answers say; records here stay.

        Returns:
            Whether the next record is an earlier one than before.
        """
        log = self.log
        end = log.log_end_offset
        # One that retention emptied has an epoch left, and asks for nothing twice.
        is_late = end > leader_start and not log.has_records and not log.leader_epochs.entries
        if is_late or (end < leader_start and not log.has_records):
            log.begin_at(leader_start)
        if 0 < end < leader_start:
            reason = "the leader had deleted them before they were copied"
            name = self.name
            lost = LostOffsets(name.topic, name.partition, end, leader_start, reason)
            if lost not in self.counts.lost:
                self.counts.lost.append(lost)
        return is_late

    def refuse(self, failure: ClusterFailure, *, is_passing: bool) -> None:
        """The leader does not answer for this partition; raises what has gone on for too long."""
        self.is_checked = False
        self.is_refused = True
        self._strikes += 1
        if not is_passing or self._strikes > _STRIKES:
            raise failure

    def check_again(self, reason: str, *, is_out_of_range: bool = False) -> None:
        """The leader refused the position: find out where the logs part.

        Raises:
            ClusterFailure: It has refused several times, and nothing was found.
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
        """Write what a leader's answer without an error brought.

        Args:
            data: The answer.
            leader: Who may be asked for more; nobody where None.

        Raises:
            CorruptData, RequestError: The records break a rule; those before them were taken.
            ClusterFailure: The leader contradicts itself, again and again.
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
            # Records were to be left out, or never to come, for what it said before.
            self.check_again(f"its log starts at {start}, and before at {self.leader_start}")
            return
        if start >= 0 and self._begin(self.leader_start):
            return  # what came lies behind
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
            self.log.note_leader_epoch(self.led.leader_epoch)

    def _end_before(self, records: memoryview, leader: Leader | None) -> bool:
        """End transactions that had ended before these records; whether the leader said all."""
        states, position = self.log.producer_states(), self.position()

        def ask() -> Aborted:
            if leader is None:
                return None
            return ask_aborted(leader, self.led.leader_id, position)

        try:
            ended = ends_before(walk(records), states, self.leader_start, ask)
        except ClusterFailure:
            self.is_checked = False  # and what the leader has is asked for again
            return False
        if ended:
            self.log.end_transactions_of(ended)
        return True

    def _end_lost_transactions(self, data: PartitionData) -> None:
        """End the transactions that no marker ends any more: the leader had deleted it.

        A gap alone does not tell: a transaction may reach over it, and what compaction left out was
        never a marker that is still to come. The leader does: where its last stable offset is above
        one's first record, and above its log start (it says that of older ones), the one has ended
        there, by a marker below its high watermark. Once all below that is here, it never comes.
        A leader takes its log start first and its stable offset then: where records are deleted in
        between, that of an open transaction is the new start. So it counts when a later answer
        names a start that is below it.
        """
        first = self.log.producer_states().first_unstable_offset
        said, self._said = self._said, None
        if first is None:
            self._ended = None
            return
        if self._ended is None and said is not None and said[0] > data.log_start_offset:
            self._ended = said
        stable = data.last_stable_offset
        if self._ended is None and stable > max(data.log_start_offset, first):
            self._said = (stable, data.high_watermark)
        if self._ended is not None and self.log.log_end_offset >= self._ended[1]:
            self.log.end_lost_transactions(self._ended[0])
            self._ended = None

    def _shows_other_writer(
        self, records: memoryview, high_watermark: int, leader: Leader | None
    ) -> bool:
        """Whether the next batch denies that the leader wrote what is here; then it is not taken.

        It may do so by a flipped bit, so it is no proof alone: the logs are compared again. Where
        the leader has deleted the offsets that could be compared, two things are:

        - Epochs grow in a log. If its next record is of an older one than the last record here, and
          by its own word that epoch reaches so far, it never had the newest epoch of this log.
        - A copy ends where a batch of its leader ended. A batch that reaches over the end, and
          behind which the log goes on where it ends, is of another writer.
        """
        first, following = first_two(records)
        end = self.log.log_end_offset
        if first is None or first.magic != MAGIC_2 or not first.is_valid():
            return False
        if self.log.has_records and first.base_offset < end <= first.last_offset:
            last = self.log.last_batch_below(end)
            is_next = goes_on(first, following, self._expected(high_watermark))
            if (
                is_next
                and self.probe() is None
                and last is not None
                and is_other_batch(last, first)
            ):
                self.drop_newest_epoch()
            self.check_again("its next records don't fit those before")
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
        """Whether the leader says that the epoch of its batch went on that far."""
        asked = {self.name: batch.leader_epoch}
        found = leader.ends_of_epochs(self.led.leader_id, asked).get(self.name)
        return isinstance(found, EpochEnd) and (
            found.epoch == batch.leader_epoch and found.end_offset > batch.base_offset
        )

    def _expected(self, high_watermark: int) -> Expected:
        offset = self._next_offset()
        return Expected(
            name=self.name,
            offset=offset,
            high_watermark=high_watermark,
            newest_epoch=self._last_epoch(),
            leader_epoch=self.led.leader_epoch,
            trusts_jump=self._jump is not None and self._jump[0] == offset,
        )

    def _append(self, records: memoryview, times: AppendRuns, high_watermark: int) -> None:
        wanted = self._next_offset()
        is_first = not self.log.has_records
        sound = sound_batches(records, self._expected(high_watermark))
        try:
            for batches in self._appends(sound, times):
                first, last = batches[0], batches[-1]
                if not self.log.has_records and first.base_offset < self.log.log_end_offset:
                    # The leader's log starts inside this batch: so does ours.
                    self.log.begin_at(first.base_offset)
                end = last.at + last.size_bytes
                self._append_sound(records, batches, times.time_of(first.last_offset))
                self.counts.size_bytes += end - first.at
                self.counts.batches += len(batches)
        except Unproven as unproven:
            # Asked for again, with what lies behind it.
            size = unproven.batch.size_bytes + _PROOF_BYTES
            self._jump = self._next_offset(), size
            return
        self._jump = None
        if is_first:
            self.log.advance_start(wanted)

    def _append_sound(self, records: memoryview, batches: Sequence[Batch], append_ms: int) -> None:
        """Append batches at once; one by one where one of them is refused."""
        first, last = batches[0], batches[-1]
        try:
            self._append_timed(records[first.at : last.at + last.size_bytes], append_ms)
        except (CorruptData, RequestError):
            if len(batches) == 1:
                raise
            for batch in batches:
                self._append_timed(records[batch.at : batch.at + batch.size_bytes], append_ms)

    def _append_timed(self, records: memoryview, append_ms: int) -> None:
        """Append batches with the leader's append time, without where it would run back."""
        try:
            self.log.append_as_follower(records, append_ms=append_ms)
        except InvalidRequest:
            if append_ms == UNKNOWN_MS:
                raise
            self.log.append_as_follower(records)

    def _appends(self, batches: Iterator[Batch], times: AppendRuns) -> Iterator[list[Batch]]:
        """The batches of each append: of one time, and none larger than a segment is."""
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
