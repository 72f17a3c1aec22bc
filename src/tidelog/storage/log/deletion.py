"""Taking records away from an open log: truncation at its end, deletion and retention at its start.

Source: Kafka 4.x UnifiedLog (truncateTo, maybeIncrementLogStartOffset, deleteOldSegments).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest, OffsetOutOfRange, PolicyViolation
from tidelog.storage.log import truncation
from tidelog.storage.log.durability import set_aside
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.log_tier import copies_of, plan_release
from tidelog.storage.log.segment_swaps import CompactingLog
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.segment.active_segment import first_reaching
from tidelog.storage.segment.compaction_history import cut_history
from tidelog.storage.segment.retention import (
    Deletion,
    SegmentFacts,
    SegmentTimes,
    deletes_all,
    plan_retention,
)
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_notes import SegmentNote
from tidelog.storage.tier.manifest import TierSegment
from tidelog.storage.tier.tier_record import TierRecord, TierView, record_path
from tidelog.types import UNKNOWN_MS

HIGH_WATERMARK: Final = -1


# What a cut leaves of segments in the tier, by uid.
Clipped = Mapping[str, TierSegment]


class TrimmingLog(CompactingLog):
    """A log whose records can be taken away, without the calls that append."""

    # -- truncating and deleting -------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Drop every batch that holds `offset` or a later one; the log end that is left.

        Nothing happens where the log ends at or below `offset`. Durable when it returns.

        Raises:
            InvalidRequest: A negative offset.
            StorageFailure: The disk failed; the partition is offline.
        """
        if offset < 0:
            raise InvalidRequest(f"{self.topic_partition}: can't truncate to offset {offset}")
        if offset < self.log_end_offset:
            clipped = self._clip_tier(offset)
            self._guarded(
                self.context.directory, "truncate", lambda: self._truncate(offset, clipped)
            )
        return self.log_end_offset

    def _truncate(self, offset: int, clipped: Clipped) -> None:
        self._notes.before_cut(self.local_segments, offset)
        end = truncation.end_below(self.local_segments, offset)
        self._options.lower_checkpoints(offset, end)
        cut_history(self.context.env.files, self.context.directory, offset)
        # Append times in the tier need no proof, and no store is to be asked from here on.
        truncation.lower_append_time_checkpoint(
            self.context, self.local_segments, trusted=self.trusted_end(), offset=offset
        )
        start = min(self._log_start_offset, offset)
        before = self.local_segments
        self._cut_tier(offset, clipped)
        # Segments that go are forgotten first: if the disk fails here, nobody reads them any more.
        self._segments = [segment for segment in before if segment.base_offset <= offset]
        self._forget_maxima()
        self._forget_maps()  # nobody may look behind the end of a file
        segments = self._cut_local(before, offset)
        if segments[-1].end_offset < start:
            # Only records below the log start are left, of a batch that reached beyond it.
            self._segments = []
            segments = truncation.start_anew(self.context, segments, start)
        self._forget_epochs(offset)
        truncation.drop_snapshots(self.context, segments[-1].end_offset)
        self._end_restart()
        self._checkpointed_start = start
        self._replace_segments(segments)
        self._reload_after_truncation()

    def _forget_epochs(self, offset: int) -> None:
        """Drop the epochs that began behind a cut, once their records are gone.

        Where none is left the file keeps the newest, beginning at the cut, so that the next start
        does not use it again: Kafka's controller would know, here only the log does.
        """
        newest = self._epochs.latest_epoch
        if not self._epochs.truncate_from_end(offset):
            return
        kept = self._epochs.entries
        if not kept:
            self._epochs.assign(newest, offset)
        self._write_epochs()
        self._epochs = LeaderEpochs(kept)

    def _cut_local(self, local: list[Segment], offset: int) -> list[Segment]:
        restart = None if self._tier is None else self._tier.record.restart_offset
        if restart is None:
            return truncation.cut_segments(self.context, local, offset)
        return truncation.start_anew(self.context, local, restart)

    def _is_below_local(self, offset: int) -> bool:
        if self._tier is None or not self._tier.record.manifest.segments:
            return False
        return offset < self.local_segments[0].base_offset

    def _cut_tier(self, offset: int, clipped: Clipped) -> None:
        """Let the record say that the tier ends here; of what is local too, copies are dropped.

        Those are copied again later; what only the tier has is cut as `_clip_tier` says.
        """
        if self._tier is None:
            return
        now_ms = self.context.env.clock.now_ms()
        is_below = self._is_below_local(offset)
        record = self._tier.record.with_cut(offset, lambda row, _: clipped.get(row.uid), now_ms)
        self._save_record(record.with_restart() if is_below else record)

    def _end_restart(self) -> None:
        if self._tier is not None and self._tier.record.restart_offset is not None:
            self._save_record(dataclasses.replace(self._tier.record, restart_offset=None))

    def _clip_tier(self, offset: int) -> Clipped:
        """What is left of the remote segment that is cut, by its uid: batches below the offset.

        The store is asked before anything is changed: its failure is no failure of the log.
        """
        if self._tier is None or not self._is_below_local(offset):
            return {}
        clipped = {}
        for row in self._tier.record.manifest.segments:
            if row.base_offset < offset < row.end_offset:
                position, end = first_reaching(self._tier.segment(row), offset)
                if end > row.base_offset:
                    left = dataclasses.replace(row, end_offset=end, clip_bytes=position)
                    clipped[row.uid] = left
        return clipped

    def delete_records(self, offset: int = HIGH_WATERMARK) -> int:
        """Move the log start up to `offset`; the new log start. Files go with the next retention.

        Args:
            offset: First offset to keep; -1 is the high watermark.

        Raises:
            PolicyViolation: The topic's `cleanup.policy` is `compact` alone.
            OffsetOutOfRange: Beyond the high watermark, or negative.
        """
        if not self._config.may_delete_records:
            raise PolicyViolation(f"{self.topic_partition}: cleanup.policy does not delete")
        target = self.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRange(
                offset, self.log_start_offset, self.high_watermark, where=str(self.topic_partition)
            )
        if target > self._log_start_offset:
            self._guarded_now(
                self.context.directory, "delete records", lambda: self._move_start(target)
            )
        return self._log_start_offset

    def _move_start(self, offset: int) -> None:
        if self._tier is not None:
            self._save_record(self._tier.record.with_start(offset))
        self._checkpointed_start = self._log_start_offset = offset
        epochs = self._epochs.encode() if self._epochs.truncate_from_start(offset) else None

        def save() -> None:
            self._options.save_log_start(offset)
            if epochs is not None:
                self._save_epochs(epochs)

        self._defer(self.context.directory, "move start", save)

    def apply_retention(self, *, by_age: bool = True) -> list[Deletion]:
        """Delete the segments that the topic's policy lets go, oldest first; what was deleted.

        Files get Kafka's suffix `.deleted` and are unlinked `file.delete.delay.ms` later, at the
        next `unlink_due` or at close.

        Args:
            by_age: Heed `retention.ms`; not where nobody knows what a topic's broker says of it.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        config = self._config if by_age else dataclasses.replace(self._config, retention_ms=-1)
        directory = self.context.directory
        return self._guarded_now(directory, "retention", lambda: self._retain(config))

    def unlink_due(self) -> None:
        """Unlink the files of deleted segments whose delay is over.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        self._guarded_now(self.context.directory, "unlink", self._unlink_due)

    @property
    def next_unlink_ms(self) -> int | None:
        """When the next files of deleted segments are due, in ms of wall time; None for none."""
        return self._bin.next_due_ms

    def _unlink_due(self) -> None:
        unlink = self._bin.take_due(self.context.env.clock.now_ms())
        if unlink is not None:
            self._defer(self.context.directory, "unlink", unlink)

    def _retain(self, config: TopicConfig) -> list[Deletion]:
        now = self.context.env.clock.now_ms()
        self._unlink_due()
        facts = [self._facts(segment) for segment in self._segments]
        plan = plan_retention(
            facts,
            config=config,
            log_start=self._log_start_offset,
            log_end=self.log_end_offset,
            high_watermark=self.high_watermark,
            now_ms=now,
        )
        if deletes_all(facts, plan):
            self._roll(self.log_end_offset, RollReason.RETENTION)
        if plan and not any(segment.size_bytes for segment in self._segments[len(plan) :]):
            self._keep_last_time()
        self._delete_oldest(len(plan), now)
        self._release_copies(now)
        return plan

    def _keep_last_time(self) -> None:
        """Note the last append time, which no record bears once all of them are deleted."""
        checkpoint, directory = self.checkpoint_append_times(), self.context.directory
        fs = self.context.env.files
        self._defer(directory, "checkpoint", lambda: checkpoint.write(fs, directory))

    def _facts(self, segment: Segment) -> SegmentFacts:
        def times() -> SegmentTimes:
            seen_ms = UNKNOWN_MS if segment.is_tiered else self._notes.seen_ms(segment)
            clock = self._config.tidelog_retention_clock
            return read_times(self, segment, clock=clock, seen_ms=seen_ms)

        return SegmentFacts(
            base_offset=segment.base_offset, size_bytes=segment.size_bytes, times=times
        )

    def _delete_oldest(self, count: int, now_ms: int) -> None:
        if not count:
            return
        going, staying = self._segments[:count], self._segments[count:]
        if staying[0].base_offset > self._log_start_offset:
            self._move_start(staying[0].base_offset)
        due_ms = now_ms + self._config.file_delete_delay_ms
        self._segments = staying  # first: if the disk fails here, nobody reads what goes any more
        self._forget_maxima()
        self._notes.deleted(segment.base_offset for segment in going)
        # Those in the tier go with the next change of the manifest.
        self._discard([each.base_offset for each in going if not each.is_tiered], due_ms)

    def _discard(self, base_offsets: Sequence[int], due_ms: int) -> None:
        """Take segments' files out of use, durably, to be unlinked when they are due."""
        directory = self.context.directory
        gone: list[str] = []

        def discard() -> None:
            for base in base_offsets:
                gone.extend(set_aside(self.context, base))
            self.context.env.files.sync_dir(directory)

        self._defer(directory, "delete", discard, lambda _: self._bin.put(gone, due_ms))

    def _release_copies(self, now_ms: int) -> None:
        """Let local files go that the tier has, by `local.retention.ms` and `.bytes`."""
        if self._tier is None or not self._config.remote_storage_enable:
            return
        local = self.local_segments
        facts = [self._facts(segment) for segment in local]
        due = plan_release(facts, config=self._config, now_ms=now_ms)
        count = copies_of(local[:due], self._tier.record.manifest.segments)
        if not count:
            return
        going, staying = local[:count], local[count:]
        start = staying[0].base_offset
        self._save_record(dataclasses.replace(self._tier.record, local_start_offset=start))
        self._segments = [*self._tier.segments(start), *staying]
        self._forget_maxima()
        self._notes.deleted(segment.base_offset for segment in going)
        due_ms = now_ms + self._config.file_delete_delay_ms
        self._discard([segment.base_offset for segment in going], due_ms)

    def take_tier(self, record: TierRecord) -> None:
        """Go by another record of the tier, durably; its caller has changed the tier or looked.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        assert self._tiers is not None
        self._tier = TierView(record, self.context, self._tiers)
        path = record_path(self.context.directory)
        self._guarded(path, "note tier", lambda: self._save_record(record))
        local = self.local_segments
        self._segments = [*self._tier.segments(local[0].base_offset), *local]
        self._forget_maxima()

    def note_of(self, segment: Segment) -> tuple[SegmentNote | None, int]:
        """What is remembered of a local segment, and by when its records were there, in ms."""
        seen_ms = self._notes.seen_ms(segment)
        return self._notes.note_of(segment), seen_ms
