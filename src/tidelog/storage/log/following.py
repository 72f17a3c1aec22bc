"""A log that copies another one: where it begins, and from where on the leader still has records.

Source: Kafka 4.x UnifiedLog (truncateFullyAndStartAt, maybeIncrementLogStartOffset).
"""

from collections.abc import Mapping, Sequence

from tidelog.errors import InvalidRequest, OffsetOutOfRange
from tidelog.record.batch_walk import Batch
from tidelog.record.offset_order import first_known_offset
from tidelog.storage.log import truncation
from tidelog.storage.log.deletion import TrimmingLog
from tidelog.storage.segment.compaction_history import cut_history
from tidelog.storage.segment.log_end import has_copied_gaps, mark_copied_gaps
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.segment import iterate_batches
from tidelog.storage.segment.time_search import stamped_ms


class FollowingLog(TrimmingLog):
    """A partition that can begin where its leader's log begins."""

    _has_copied_gaps = False

    @property
    def has_records(self) -> bool:
        """Whether any batch lies in its files."""
        return any(segment.size_bytes for segment in self._segments)

    def begin_at(self, offset: int) -> None:
        """Let a log without records begin at `offset`; durable when it returns.

        Raises:
            InvalidRequest: The log has records, or the offset is negative.
            StorageFailure: The disk failed; the partition is offline.
        """
        if self.has_records or offset < 0:
            reason = f"it has records up to {self.log_end_offset}" if offset >= 0 else "negative"
            raise InvalidRequest(
                f"{self.topic_partition}: can't begin at offset {offset}: {reason}"
            )
        self._guarded(self.context.directory, "begin", lambda: self._begin(offset))

    def _begin(self, offset: int) -> None:
        self._options.lower_checkpoints(offset, offset)
        cut_history(self.context.env.files, self.context.directory, 0)
        segments, self._segments = self.local_segments, []
        self._cut_tier(offset, {})
        segments = truncation.start_anew(self.context, segments, offset)
        # None is left: nothing would ever end a transaction that was open where the log ended.
        truncation.drop_snapshots(self.context, -1)
        if self._epochs.entries:
            self._epochs.clear()
            self._write_epochs()
        self._checkpointed_start = offset
        self._replace_segments(segments)
        self._reload_after_truncation()
        self.recovery_point = offset

    def advance_start(self, offset: int) -> None:
        """Move the log start up to `offset`, whatever the topic's policy says of deletion.

        Raises:
            OffsetOutOfRange: Beyond the log end.
            StorageFailure: The disk failed; the partition is offline.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(
                offset, self.log_start_offset, self.log_end_offset, where=str(self.topic_partition)
            )
        if offset > self._log_start_offset:
            self._guarded_now(
                self.context.directory, "move start", lambda: self._move_start(offset)
            )

    def end_lost_transactions(self, stable: int) -> list[int]:
        """Take for ended the transactions whose markers the leader had no more; durable.

        Whether they were committed nobody knows: what is here of them is shown from now on.

        Args:
            stable: Below it the leader has no transaction open, and all markers that ended one are
                below the log end. Who has written since has a transaction that is open still.

        Returns:
            The ids of their producers.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        first = self._producers.first_unstable_offset
        if first is None or first >= stable:
            return []
        return self._guarded(
            self.context.directory,
            "end transactions",
            lambda: self._end_lost(self._producers.end_silent(stable), stable),
        )

    def end_transactions_of(self, next_firsts: Mapping[int, int]) -> None:
        """As `end_lost_transactions`, of producers that have begun other ones since.

        Args:
            next_firsts: First offset of each producer's next transaction: what is here from there
                on is part of that, and it is open.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        end = self.log_end_offset
        self._guarded(
            self.context.directory,
            "end transactions",
            lambda: self._end_lost(self._producers.end_of(next_firsts, end), end),
        )

    def _end_lost(self, ended: list[int], stable: int) -> list[int]:
        if ended:
            # Whoever reads the log again from a segment's base finds no end of theirs, and would
            # take a later marker of their producers for it: so nothing else is in that segment.
            self._roll(self.log_end_offset, RollReason.REQUEST)
            self._deferral.settle()
            self._write_snapshot(self.log_end_offset, self._producers.encode_snapshot())
            self.context.report(
                f"{self.topic_partition}: {len(ended)} transactions that began below {stable} count"
                f" as ended, of producers {str(ended[:5])[1:-1]}: the leader had their ends no more"
            )
        return ended

    def note_leader_epoch(self, epoch: int) -> None:
        """Keep in mind that the leader writes under `epoch` from the log end on.

        So whoever is promoted writes under a later one, even if no record of it was copied.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        if epoch > self._epochs.latest_epoch:
            self._guarded(self.context.directory, "note epoch", lambda: self._assign(epoch))

    def _assign(self, epoch: int) -> None:
        self._epochs.assign(epoch, self.log_end_offset)
        self._write_epochs()
        self._outgrow_epochs()

    def _outgrow_epochs(self) -> None:
        """Let the next append of our own take an epoch above all that were copied."""
        latest = self._epochs.latest_epoch
        is_anothers = latest == self.leader_epoch and not self._epoch_is_noted
        if latest > self.leader_epoch or is_anothers:
            self.leader_epoch = latest + 1
            self._epoch_is_noted = False

    def last_batch_below(self, offset: int) -> Batch | None:
        """The last batch that begins below `offset`, None where there is none.

        Raises:
            CorruptData: A damaged batch lies on the way.
        """
        for segment in reversed(self._segments):
            if segment.base_offset >= offset or not segment.size_bytes:
                continue
            _, start = segment.offset_index.lookup(offset - 1)
            last = None
            for _, batch in iterate_batches(segment, start, segment.size_bytes):
                if batch.base_offset >= offset:
                    break
                last = batch
            if last is not None:
                return last
        return None

    def _note_gaps(self, batches: Sequence[Batch]) -> None:
        """Mark the partition before the first batch that leaves a gap is copied into it."""
        if self._has_copied_gaps or not _leave_gaps(batches, self.log_end_offset):
            return
        fs, directory = self.context.env.files, self.context.directory
        if not has_copied_gaps(fs, directory):
            self._guarded(directory, "note gaps", lambda: mark_copied_gaps(fs, directory))
        self._has_copied_gaps = True

    def _note_stamps(self, batches: Sequence[Batch]) -> None:
        """Remember the leader's append time where batches carry it, as the draft of KIP-32 asks.

        Whoever appends here next, after a change of leader, must not run back behind it.
        """
        for batch in batches:
            stamped = stamped_ms(batch)
            if stamped is not None:
                self._append_clock.observe(stamped)


def _leave_gaps(batches: Sequence[Batch], next_offset: int) -> bool:
    for batch in batches:
        if first_known_offset(batch) > next_offset:
            return True
        next_offset = batch.next_offset
    return False
