"""Deletes records at the start of a log, and local copies of segments that are in the tier.

DeleteRecords moves the log start. Retention deletes whole segments and moves the log start. The
deleted segments are first hidden from readers. Then the segments' files are renamed to `.deleted`.
The `.deleted` files are unlinked `file.delete.delay.ms` after the renaming. The new log start is on
disk before the files are renamed. A crash may leave `.deleted` files; the next opening of the log
removes them.

Source: Kafka 4.x UnifiedLog (maybeIncrementLogStartOffset, deleteOldSegments).
"""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural
from tidelog.config import TopicConfig
from tidelog.errors import OffsetOutOfRange, PolicyViolation, TidelogError
from tidelog.storage.log.append_writer import SegmentRoller
from tidelog.storage.log.durability import set_aside
from tidelog.storage.log.log_loader import LogPart, LogParts
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.segment.deletion_history import (
    DeletionEvent,
    StartRule,
    add_deletions,
    deletion_event,
    joined,
)
from tidelog.storage.segment.retention import (
    Deletion,
    RetentionRule,
    SegmentFacts,
    SegmentTimes,
    deletes_all,
    plan_retention,
)
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.segment import Segment
from tidelog.storage.tier.log_tier import copies_of, plan_release
from tidelog.storage.tier.tier_files import record_path
from tidelog.types import NO_TIMESTAMP, UNKNOWN_MS

if TYPE_CHECKING:
    from tidelog.storage.tier.tier_record import TierRecord

_LOGGER: Final = logging.getLogger(__name__)


class Deleter(LogPart):
    """Deletes records at the start of one open log."""

    def __init__(self, parts: LogParts, roller: SegmentRoller) -> None:
        super().__init__(parts)
        self._roller = roller
        self._set_aside: list[tuple[int, str]] = []  # (when to unlink a file, in ms; its path)

    # -- the log start -----------------------------------------------------------------------

    def ensure_allowed(self, offset: int) -> None:
        """Check that clients may delete the records below `offset`; change nothing.

        Raises:
            PolicyViolation: The topic's `cleanup.policy` has `compact`, but not `delete`.
            OffsetOutOfRange: The offset is above the log end, or negative.
        """
        segments, context = self._segments, self._segments.context
        if not context.config.may_delete_records:
            raise PolicyViolation(
                f"{context.topic_partition}: records can't be deleted, because cleanup.policy does"
                " not include delete"
            )
        if not 0 <= offset <= segments.end_offset:
            raise OffsetOutOfRange(
                offset,
                segments.start_offset,
                segments.end_offset,
                where=str(context.topic_partition),
            )

    def delete_records(self, offset: int) -> int:
        """Move the log start forward to `offset`; return the new log start.

        An offset below the log start changes nothing. The next retention run deletes the segments
        below the new log start.

        Args:
            offset: First offset to keep.

        Raises:
            PolicyViolation, OffsetOutOfRange: `ensure_allowed` refuses the deletion.
            StorageFailure: The disk failed; the partition is offline.
        """
        segments, context = self._segments, self._segments.context
        self.ensure_allowed(offset)
        if offset > segments.start_offset:
            self._guard.run_now(
                context.directory,
                "delete records",
                lambda: self._move_start(offset, [self._event(StartRule.DELETE_RECORDS, offset)]),
            )
        return segments.start_offset

    def advance_start(self, offset: int, rule: StartRule = StartRule.COPY) -> None:
        """Move the log start forward to `offset`, whatever the topic's `cleanup.policy`.

        Args:
            offset: First offset to keep.
            rule: Why the log start moves, for `deletion-history`.

        Raises:
            OffsetOutOfRange: The offset is above the log end.
            StorageFailure: The disk failed; the partition is offline.
        """
        segments, context = self._segments, self._segments.context
        if offset > segments.end_offset:
            where = str(context.topic_partition)
            raise OffsetOutOfRange(offset, segments.start_offset, segments.end_offset, where=where)
        if offset > segments.start_offset:
            events = [self._event(rule, offset)]
            self._guard.run_now(
                context.directory, "move start", lambda: self._move_start(offset, events)
            )

    def _event(self, rule: StartRule, offset: int) -> DeletionEvent:
        return deletion_event(self._segments.context, rule, self._segments.start_offset, offset)

    def _move_start(self, offset: int, events: Sequence[DeletionEvent]) -> None:
        self._segments.tier.move_start(offset)
        self._segments.move_start(offset)
        epochs = self._epochs.epochs
        encoded = epochs.encode() if epochs.truncate_from_start(offset) else None
        context = self._segments.context

        def save() -> None:
            self._options.save_log_start(offset)
            if encoded is not None:
                self._epochs.save(encoded)
            # The event is added last, so that it never names offsets that were not deleted.
            add_deletions(context, events)

        self._guard.defer(context.directory, "move start", save)

    # -- retention ---------------------------------------------------------------------------

    def apply_retention(self, *, by_age: bool = True) -> list[Deletion]:
        """Delete the segments that the retention rules select, and log why; return them in order.

        Files get Kafka's suffix `.deleted`. After `file.delete.delay.ms`, the next `unlink_due` or
        retention run unlinks the files; a close unlinks the files without waiting. By the settings
        `local.retention.*`, this method also deletes local copies of segments that are in the tier;
        the result does not contain these copies.

        Args:
            by_age: Whether to apply `retention.ms`. Callers that don't know the settings of the
                topic's broker pass False.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        context = self._segments.context
        config = context.config
        if not by_age:
            config = dataclasses.replace(config, retention_ms=-1)
        return self._guard.run_now(context.directory, "retention", lambda: self._retain(config))

    def unlink_due(self) -> None:
        """Unlink the files of deleted segments whose `file.delete.delay.ms` is over.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        self._guard.run_now(self._segments.context.directory, "unlink", self._unlink_due)

    @property
    def next_unlink_ms(self) -> int | None:
        """Wall time in ms when deleted files are unlinked next; None if no file waits."""
        return min((due_ms for due_ms, _ in self._set_aside), default=None)

    def unlink_later(self, paths: Iterable[str], due_ms: int) -> None:
        """Schedule files that were renamed to `.deleted` to be unlinked at `due_ms` or later."""
        self._set_aside.extend((due_ms, path) for path in paths)

    def unlink_all(self) -> None:
        """Unlink the files of all deleted segments, for a close; raises OSError."""
        self._unlink([path for _, path in self._set_aside])
        self._set_aside = []

    def _unlink_due(self) -> None:
        context = self._segments.context
        now_ms = context.env.clock.now_ms()
        due = [path for due_ms, path in self._set_aside if due_ms <= now_ms]
        if due:
            self._set_aside = [each for each in self._set_aside if each[0] > now_ms]
            self._guard.defer(context.directory, "unlink", lambda: self._unlink(due))

    def _unlink(self, paths: Iterable[str]) -> None:
        fs = self._segments.context.env.files
        for path in paths:
            if fs.exists(path):
                fs.remove(path)

    def _retain(self, config: TopicConfig) -> list[Deletion]:
        segments, context = self._segments, self._segments.context
        now_ms = context.env.clock.now_ms()
        self._unlink_due()
        facts = [self._facts(segment) for segment in segments.all]
        plan = plan_retention(
            facts,
            config=config,
            log_start=segments.start_offset,
            log_end=segments.end_offset,
            high_watermark=segments.high_watermark,
            now_ms=now_ms,
        )
        if deletes_all(facts, plan):
            self._roller.end_segment(segments.end_offset, RollReason.RETENTION)
        if plan and not any(segment.size_bytes for segment in segments.all[len(plan) :]):
            # After all records are deleted, only an append-time checkpoint still proves the last
            # append time.
            checkpoint = segments.append_time_checkpoint(self._clock.last_ms)
            fs, directory = context.env.files, context.directory
            self._guard.defer(directory, "checkpoint", lambda: checkpoint.write(fs, directory))
        start = segments.start_offset
        self._delete_oldest(len(plan), self._events(plan, config, now_ms), now_ms)
        self._log(plan, start)
        self._release_copies(now_ms)
        return plan

    def _log(self, plan: Sequence[Deletion], start: int) -> None:
        """Log which offsets a retention run deleted, and why.

        Args:
            plan: The deletions.
            start: Log start before the run. Offsets below it had been deleted before the run, which
                deleted only their files. So the logged range begins at this offset or later.
        """
        if not plan:
            return
        first, end = max(plan[0].base_offset, start), self._segments.all[0].base_offset
        _LOGGER.info(
            "%s: retention deleted %s%s, by %s; the last segment: %s",
            self._segments.context.topic_partition,
            plural(len(plan), "segment"),
            f", offsets {first}..{end - 1}" if first < end else "",
            ", ".join(dict.fromkeys(str(each.rule) for each in plan)),
            plan[-1].reason,
        )

    def _facts(self, segment: Segment) -> SegmentFacts:
        def times() -> SegmentTimes:
            seen_ms = UNKNOWN_MS if segment.is_tiered else self._notes.seen_ms(segment)
            clock = self._segments.context.config.tidelog_retention_clock
            return read_times(self._reader, segment, clock=clock, seen_ms=seen_ms)

        return SegmentFacts(
            base_offset=segment.base_offset, size_bytes=segment.size_bytes, times=times
        )

    def _events(
        self, plan: Sequence[Deletion], config: TopicConfig, now_ms: int
    ) -> list[DeletionEvent]:
        """Return one event for each rule by which a plan moves the log start."""
        segments, events = self._segments.all, []
        settings = {
            RetentionRule.SIZE: f"retention.bytes={config.retention_bytes}",
            RetentionRule.TIME: f"retention.ms={config.retention_ms},"
            f"tidelog.retention.clock={config.tidelog_retention_clock}",
        }
        for slot, deletion in enumerate(plan):
            start, end = self._segments.start_offset, segments[slot + 1].base_offset
            if start < end and deletion.rule in settings:
                start, named = max(start, deletion.base_offset), settings[deletion.rule]
                newest_ms = _largest_timestamp(segments[slot], now_ms)
                event = DeletionEvent(now_ms, now_ms, deletion.rule, named, start, end, newest_ms)
                events.append(event)
        return joined(events)

    def _delete_oldest(self, count: int, events: Sequence[DeletionEvent], now_ms: int) -> None:
        if not count:
            return
        going, staying = self._segments.all[:count], self._segments.all[count:]
        if staying[0].base_offset > self._segments.start_offset:
            self._move_start(staying[0].base_offset, events)
        # First hide the segments, because readers must not use segments whose files are renamed.
        self._segments.keep(staying)
        # Segments in the tier are removed with the next change of the manifest.
        self._discard(going, now_ms)

    def _discard(self, going: Sequence[Segment], now_ms: int) -> None:
        """Rename the files of the local segments in `going` durably, and unlink the files later."""
        self._notes.deleted(segment.base_offset for segment in going)
        context = self._segments.context
        due_ms = now_ms + context.config.file_delete_delay_ms
        bases = [segment.base_offset for segment in going if not segment.is_tiered]
        renamed: list[str] = []

        def discard() -> None:
            for base in bases:
                renamed.extend(set_aside(context, base))
            context.env.files.sync_dir(context.directory)

        self._guard.defer(
            context.directory, "delete", discard, lambda _: self.unlink_later(renamed, due_ms)
        )

    # -- the tier ----------------------------------------------------------------------------

    def _release_copies(self, now_ms: int) -> None:
        """Delete the local segments that `local.retention.*` selects and the tier also has."""
        segments, config = self._segments, self._segments.context.config
        if segments.tier.view is None or not config.remote_storage_enable:
            return
        local = segments.local
        facts = [self._facts(segment) for segment in local]
        due = plan_release(facts, config=config, now_ms=now_ms)
        count = copies_of(local[:due], segments.tier.rows)
        if not count:
            return
        going, staying = local[:count], local[count:]
        segments.tier.release_below(staying[0].base_offset)
        segments.put_behind_tier(staying)
        self._discard(going, now_ms)

    def take_tier(self, record: "TierRecord") -> None:
        """Store a new `tidelog-tier.json` durably, and use this new state of the tier.

        The log keeps its current start, even if the start in `record` is older.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        segments, context = self._segments, self._segments.context
        record = record.with_start(segments.start_offset)
        path = record_path(context.directory)
        self._guard.run(path, "note tier", lambda: segments.tier.take(record, context))
        segments.put_behind_tier(segments.local)


def _largest_timestamp(segment: Segment, now_ms: int) -> int:
    """Return a segment's largest timestamp; -1 if it is unreadable, so that deletion can go on."""
    try:
        noted = segment.noted_times(now_ms)
        return segment.largest_record()[0] if noted is None else noted.largest_timestamp
    except (OSError, TidelogError):
        return NO_TIMESTAMP
