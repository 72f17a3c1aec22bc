"""One partition on its way from leader to standby: where it is, what is done with an answer.

All state that matters lies in the standby's log: where it ends is where the copy goes on, its
leader epochs say what was copied from whom. A `Copy` can be thrown away at any time.

Source: Kafka 4.x AbstractFetcherThread, ReplicaFetcherThread; KIP-101, KIP-595.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from tidelog.cluster.append_runs import UNKNOWN_MS, AppendRuns
from tidelog.cluster.follow_ends import Aborted, ask_aborted, ends_before
from tidelog.cluster.follow_epochs import EpochEnd, OwnEpoch, parting_offset
from tidelog.cluster.follow_leader import Leader, LeaderPartition, Position
from tidelog.errors import (
    ClusterFailure,
    CorruptBatch,
    InvalidRequest,
    LostOffsets,
    TidelogError,
)
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch import MAGIC_2
from tidelog.record.views import Batch, walk
from tidelog.storage.log import Log
from tidelog.types import NO_LEADER_EPOCH, TopicPartition

# An append of many batches is written at once; more than this is written in several.
_APPEND_BYTES: Final = 1 << 20
# How often a leader may refuse a position that its own answers allow.
_STRIKES: Final = 3


@dataclass(frozen=True, slots=True)
class Truncation:
    """Offsets [start, end) that the standby had and its leader had not; they were dropped."""

    start: int
    end: int


@dataclass(slots=True)
class CopyCounts:
    """What was done since following began."""

    batches: int = 0
    size_bytes: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)


class Copy:
    """One partition that is followed. One owner.

    Life cycle: (led_by -> reconcile -> (position -> take)*)*; `problem` says why it stands still.

    Attributes:
        name: The partition.
        topic_id: Of its topic.
        log: The standby's log.
        led: Who leads it now.
        is_checked: Whether it is known that the log has nothing that the leader never had.
        is_out_of_range: Whether the leader said so of the position, since the last check.
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
        self._strikes = 0
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
        """Asks for the last batch that is here again; None where the leader can't have it."""
        last = self.log.last_batch_below(self.log.log_end_offset)
        if last is None or last.last_offset < self.leader_start:
            return None
        offset = max(last.base_offset, self.leader_start)
        return replace(self.position(), offset=offset, last_epoch=NO_LEADER_EPOCH)

    def _next_offset(self) -> int:
        return max(self.log.log_end_offset, self.leader_start)

    def position(self) -> Position:
        """What to ask the leader for."""
        offset = self._next_offset()
        return Position(
            name=self.name,
            topic_id=self.topic_id,
            offset=offset,
            # Behind a gap that the leader deleted, its record before this one isn't ours.
            last_epoch=self._last_epoch() if offset == self.log.log_end_offset else NO_LEADER_EPOCH,
            leader_epoch=self.led.leader_epoch,
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

    def reconcile(
        self, leader: dict[int, EpochEnd], leader_start: int, leader_end: int | None
    ) -> None:
        """Drop what the leader never had.

        Args:
            leader: Its answers for `own_epochs`.
            leader_start: Its log start.
            leader_end: Its high watermark, if `is_out_of_range` asks for it.

        Raises:
            StorageFailure: The disk failed.
        """
        self.leader_start = leader_start
        self._ended = self._said = None
        offset = parting_offset(self.own_epochs(), leader, leader_start)
        if offset is not None:
            self._truncate(offset)
        if leader_end is not None:
            # Where all records of an epoch were deleted here, nothing but the end is left of it.
            self._truncate(leader_end)
        self._begin(leader_start)
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

    def _begin(self, leader_start: int) -> None:
        """Begin behind offsets that the leader has no more; records that are here stay."""
        end = self.log.log_end_offset
        if end >= leader_start:
            return
        if end > 0:
            reason = "the leader had deleted them before they were copied"
            name = self.name
            lost = LostOffsets(name.topic, name.partition, end, leader_start, reason)
            if lost not in self.counts.lost:
                self.counts.lost.append(lost)
        if not self.log.has_records:
            self.log.begin_at(leader_start)

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
            StorageFailure: The disk failed.
        """
        if data.diverging_epoch.end_offset >= 0:
            self.check_again(f"they part at {data.diverging_epoch.end_offset}")
            return
        self._strikes = 0
        self.high_watermark = data.high_watermark
        if data.log_start_offset > self.leader_start:
            self.leader_start = min(data.log_start_offset, self._next_offset())
        if len(data.batches):
            records = memoryview(data.batches)
            if self._shows_other_writer(records):
                self.drop_newest_epoch()
                self.check_again("its next records don't fit those before")
                return
            if not self._end_before(records, leader):
                return
            self._append(records, AppendRuns(data.append_times))
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

    def _shows_other_writer(self, records: memoryview) -> bool:
        """Whether the next batch proves that the leader never wrote what is here.

        It does even where the leader has deleted those offsets: epochs grow in a log, so none is
        older than what lies before it; and a copy ends where a batch of its leader ended.
        """
        first = next(walk(records), None)
        end = self.log.log_end_offset
        if first is None or first.magic != MAGIC_2 or not first.is_valid():
            return False
        is_older = NO_LEADER_EPOCH < first.leader_epoch < self._last_epoch()
        return is_older or (self.log.has_records and first.base_offset < end <= first.last_offset)

    def _append(self, records: memoryview, runs: AppendRuns) -> None:
        wanted = self._next_offset()
        is_first = not self.log.has_records
        for first, last in self._appends(records, wanted, runs):
            if not self.log.has_records and first.base_offset < self.log.log_end_offset:
                # The leader's log starts inside this batch: so does ours.
                self.log.begin_at(first.base_offset)
            end = last.at + last.size_bytes
            self._append_timed(records[first.at : end], runs.time_of(first.last_offset))
            self.counts.size_bytes += end - first.at
        if is_first:
            self.log.advance_start(wanted)

    def _append_timed(self, records: memoryview, append_ms: int) -> None:
        """Append batches with the leader's append time, without where it would run back."""
        try:
            self.log.append_as_follower(records, append_ms=append_ms)
        except InvalidRequest:
            if append_ms == UNKNOWN_MS:
                raise
            self.log.append_as_follower(records)

    def _appends(
        self, records: memoryview, wanted: int, runs: AppendRuns
    ) -> Iterator[tuple[Batch, Batch]]:
        """First and last batch of each append: of one time, and none larger than a segment is."""
        limit = min(self.log.context.config.segment_size_limit, _APPEND_BYTES)
        first = last = None
        for batch in self._checked(records, wanted):
            if first is not None and last is not None:
                is_other = runs.time_of(batch.last_offset) != runs.time_of(first.last_offset)
                if is_other or batch.at + batch.size_bytes - first.at > limit:
                    yield first, last
                    first = batch
            else:
                first = batch
            last = batch
        if first is not None and last is not None:
            yield first, last

    def _checked(self, records: memoryview, wanted: int) -> Iterator[Batch]:
        """The whole batches; the log checks checksums and offsets, here it is about epochs."""
        newest = self._last_epoch()
        count = 0
        for batch in walk(records):
            if batch.last_offset < wanted and not count:
                raise self._corrupt(
                    batch, f"offsets {batch.base_offset} to {batch.last_offset}, {wanted} was asked"
                )
            epoch = batch.leader_epoch
            if epoch > self.led.leader_epoch >= 0:
                raise self._corrupt(
                    batch, f"leader epoch {epoch}, it leads under {self.led.leader_epoch}"
                )
            if epoch < newest and (batch.magic == MAGIC_2 or epoch < NO_LEADER_EPOCH):
                raise self._corrupt(batch, f"leader epoch {epoch} behind {newest}")
            newest = max(newest, epoch)
            count += 1
            self.counts.batches += 1
            yield batch
        if not count:
            raise CorruptBatch(f"{self.name}: {len(records)} bytes without a whole batch")

    def _corrupt(self, batch: Batch, reason: str) -> CorruptBatch:
        return CorruptBatch(f"{self.name}: the leader sent {reason}", offset=batch.base_offset)
