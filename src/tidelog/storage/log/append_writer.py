"""The order of writes to an open log, in an append and in a roll.

An append (`AppendWriter`):

1. `begin`: check the append against the producers' states; store the leader epoch; roll the active
   segment if a roll is due; write the append-time row if the time changed.
2. `write`: write the log's bytes.
3. `finish`: write index entries; update the producers' states, and write entries of aborted
   transactions; flush if a flush is due; then make the append visible to readers.

A single append runs the three steps one after the other. `log.append_together` appends to several
logs: it runs step 1 for all logs, then step 2 for all logs, then step 3. So the code and data of a
step stay in the CPU caches.

A roll (`SegmentRoller`) writes the closing index entries of the old segment and creates the new
segment. Then the roll syncs the old segment, writes the producers' snapshot and the old segment's
note, and syncs the directory. The last sync makes the new segment's file names durable. The syncs
and the writes of snapshot and note may run later, as deferred work, so that appends to the new
segment need not wait. The old segment's zone map is derived from durable data, so it is written
last and is not synced.

Deferred work and `write_snapshot` may run in another thread. Everything else in this module runs
only in the thread that appends.

Source: Kafka 4.x UnifiedLog.append, UnifiedLog.roll, LocalLog.
"""

from typing import Final

from tidelog.config import TopicConfig
from tidelog.errors import StorageFailure, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.append_types import (
    AppendOrigin,
    AppendResult,
    PendingAppend,
    first_proven_offset,
)
from tidelog.storage.log.log_loader import LogPart, LogParts
from tidelog.storage.log.producers import CompletedTxn
from tidelog.storage.segment import roll, zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.roll import RollReason
from tidelog.types import UNKNOWN_MS

_REPLICATION: Final = AppendOrigin.REPLICATION  # a global is faster than an enum's attribute


class SegmentRoller(LogPart):
    """Rolls the segments of one open log. Only the thread that appends may use it.

    Attributes:
        size_limit: Maximum size of a segment's log file, in bytes.
        span_ms: Maximum difference in ms between the first and the largest timestamp of the active
            segment. The maximum is `TopicConfig.roll_ms` minus the segment's jitter.
    """

    def __init__(self, parts: LogParts) -> None:
        super().__init__(parts)
        self._unmapped: list[ClosedSegment] = []  # segments whose zone maps are written later
        self._jitter_ms = 0
        self.draw_jitter()

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic; the jitter stays the same until the next segment."""
        self._config = config
        self.size_limit, self.span_ms = config.segment_size_limit, config.roll_ms - self._jitter_ms

    def draw_jitter(self) -> None:
        """Draw the random jitter that a new active segment subtracts from `TopicConfig.roll_ms`.

        As in Kafka, each segment gets a jitter of its own.
        """
        context = self._segments.context
        self._jitter_ms = roll.draw_jitter_ms(context.config, context.env.random)
        self.configure(context.config)

    def make_room(self, active: ActiveSegment, append: PendingAppend) -> None:
        """Roll the active segment if it can't take `append`; raises the errors of `end_segment`."""
        reason = roll.should_roll(
            roll.RollFacts(
                size_bytes=active.size_bytes,
                append_bytes=len(append.data),
                base_offset=active.base_offset,
                append_last_offset=append.last_offset,
                first_timestamp=active.first_timestamp,
                append_max_timestamp=append.max_timestamp,
                created_ms=active.created_ms,
                now_ms=append.context.now_ms,
                offset_index_full=active.offset_index.is_full,
                time_index_full=active.time_index.is_full,
                jitter_ms=self._jitter_ms,
            ),
            self._config,
        )
        if reason is not None:
            end = max(first_proven_offset(append.batches[0]), self._segments.end_offset)
            is_copy = append.context.terms.origin is _REPLICATION
            self.end_segment(end, reason, is_copy=is_copy)

    def roll(self, reason: RollReason = RollReason.REQUEST) -> bool:
        """Finish the active segment, begin a new segment and return True.

        If the active segment is empty, change nothing and return False.

        Args:
            reason: Reason for the roll, which the finished segment's note stores.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        self._guard.ensure_writable()
        active = self._segments.active
        if not active.size_bytes:
            return False
        end = self._segments.end_offset
        self._guard.run_now(active.log_path, "roll", lambda: self.end_segment(end, reason))
        return True

    def end_segment(self, new_base: int, reason: RollReason, *, is_copy: bool = False) -> None:
        """Roll the active segment, in the order that the module's docstring describes.

        The new segment begins at `new_base`. If the active segment is empty and already begins at
        this offset, do nothing.

        Raises:
            OSError, StorageFailure: The disk failed; the caller takes the partition offline.
        """
        active, context = self._segments.active, self._segments.context
        if not active.size_bytes and new_base == active.base_offset:
            return
        active.close_entries()
        snapshot = self._producers.snapshot()
        save_note = self._notes.rolled(active, new_base, reason, is_copy=is_copy)

        def finish() -> None:
            """Sync the old segment, then write the producers' snapshot and the segment's note."""
            active.sync()
            self.write_snapshot(new_base, snapshot(), sync_name=False)
            save_note()

        self._guard.defer(active.log_path, "roll", finish)
        created = ActiveSegment.create(context, new_base)
        created.append_times.floor_ms = _last_ms(active.append_times)
        directory = context.directory
        self._guard.defer(
            directory,
            "sync",
            lambda: context.env.files.sync_dir(directory),
            lambda failure: self._rolled(active, new_base, failure),
        )
        closed = ClosedSegment(context, active.base_offset, new_base)
        closed.set_append_times(active.append_times)
        if new_base == active.end_offset:
            closed.set_whole(active.size_bytes)
        self._segments.replace_active(closed, created)
        if new_base > active.end_offset:
            # `new_base` leaves a gap of offsets. Wait until the old segment's note is written,
            # because recovery would treat a gap without a note as a loss. If writing the note
            # failed, no append may follow the gap.
            self._guard.settle()
            self._guard.ensure_writable()
        self._flusher.began_segment()
        self.draw_jitter()
        if reason is not RollReason.RETENTION:  # a segment that retention deletes needs no map
            self._map_zones(closed)

    def _rolled(self, sealed: ActiveSegment, new_base: int, failure: StorageFailure | None) -> None:
        """Advance the recovery point to `new_base`, unless the sync failed or the log is closed."""
        if failure is None and not self._guard.is_closed:
            self._flusher.note_durable(new_base)
            self._segments.context.pool.forget(sealed.log_path)

    def write_snapshot(self, offset: int, snapshot: bytes, *, sync_name: bool = True) -> None:
        """Write an encoded snapshot of the producers at `offset`; raises OSError.

        May run in any thread.
        """
        context = self._segments.context
        path = context.path(offset, log_files.SNAPSHOT_SUFFIX)
        files.write_atomically(context.env.files, path, snapshot, sync_name=sync_name)

    # -- zone maps ---------------------------------------------------------------------------

    def _map_zones(self, segment: ClosedSegment) -> None:
        """Write a finished segment's zone map, as deferred work.

        If the segment is large and no kernels are loaded, `map_waiting` or `map_rest` writes its
        zone map later.
        """
        is_small = segment.size_bytes <= zone_map_files.MAPPED_AT_ONCE_BYTES
        if not is_small and self._segments.kernels is None:
            self._unmapped.append(segment)
            return
        self._guard.defer(
            segment.log_path,
            "map zones",
            lambda: _write_zones(segment, by_kernels=not is_small),
        )

    def _take_unmapped(self) -> list[ClosedSegment]:
        segments = [segment for segment in self._unmapped if segment in self._segments.all]
        self._unmapped = []
        return segments

    def map_waiting(self) -> None:
        """Write the zone maps that were postponed until kernels were loaded, as deferred work."""
        for segment in self._take_unmapped():
            self._map_zones(segment)

    def map_rest(self) -> None:
        """At a close, write the postponed zone maps, if numpy and numba are installed."""
        segments = self._take_unmapped()
        if zone_map_files.has_kernels():
            zone_map_files.build_missing(segments)


def _write_zones(segment: ClosedSegment, *, by_kernels: bool) -> None:
    zone_map_files.write_missing(segment, by_kernels=by_kernels, check_crc=not by_kernels)


def _last_ms(times: AppendTimes) -> int:
    """Return a segment's last append time in ms, a lower bound for the next segment's times.

    The next segment must not round its append times down below this time.
    """
    last_known_ms = times.last_known_ms
    return times.floor_ms if last_known_ms is None else max(last_known_ms, times.floor_ms)


class AppendWriter(LogPart):
    """Writes validated appends to one open log."""

    def __init__(self, parts: LogParts, roller: SegmentRoller) -> None:
        super().__init__(parts)
        self._roller = roller

    def append(self, append: PendingAppend) -> AppendResult:
        """Run all steps of an append, and return the append's result.

        Raises:
            TidelogError: The errors that `Log.append_batches` raises for producers' states and disk
                failures.
        """
        result = self.begin(append)
        if result is None:
            self.write(append)
            result = self.finish(append)
        return result

    def begin(self, append: PendingAppend) -> AppendResult | None:
        """Run the first step: check the append, and make all writes that precede the log's bytes.

        Returns:
            None if the other steps have to run. If the log already has the batch, the append's
            result; in this case, the caller must not run the other steps.

        Raises:
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced:
                The producer's state forbids the append; nothing was changed.
            StorageFailure: The disk failed; the partition is offline.
        """
        if append.has_producers:
            duplicate = self._find_duplicate(append)
            if duplicate is not None:
                return duplicate
        context, guard = append.context, self._guard
        epochs, roller = self._epochs, self._roller
        guard.is_changed = True
        active = begun = self._segments.active
        try:
            if context.terms.origin is _REPLICATION:
                epochs.note_copied(append.batches)
            elif not epochs.is_noted:
                epochs.note_own(append.first_offset)
            if not active.has_room(
                roller.size_limit - len(append.data),
                append.last_offset,
                append.max_timestamp,
                roller.span_ms,
            ):
                roller.make_room(active, append)
                active = self._segments.active
            append.segment = active
            active.begin(append.batches[0], context.append_ms)
        except (OSError, StorageFailure) as error:
            guard.fail(error, begun.log_path, "append")
        return None

    def write(self, append: PendingAppend) -> None:
        """Write the log's bytes.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        try:
            append.segment.write(append.data)
        except (OSError, StorageFailure) as error:
            self._guard.fail(error, append.segment.log_path, "append")

    def finish(self, append: PendingAppend) -> AppendResult:
        """Run the last step: make all writes that follow the log's bytes, and return the result.

        Any error takes the partition offline, because after an error, the file has bytes that the
        log in memory lacks.

        Raises:
            StorageFailure: The disk failed, or an index is damaged or can't take an entry; the
                partition is offline.
        """
        segment, context, last_offset = append.segment, append.context, append.last_offset
        flusher, notes = self._flusher, self._notes
        ended: list[CompletedTxn] = []
        try:
            segment.finish(append.batches, last_offset + 1)
            if append.has_producers:
                self._update_producers(append, ended)
            if context.now_ms > notes.arrived_ms:
                notes.note_arrival(context.now_ms)
            if flusher.has_policy:
                flusher.acknowledge(segment, last_offset + 1, context.now_ms)
            else:
                segment.acknowledge()
        except (OSError, TidelogError) as error:
            # It is not certain that the markers are durable, so readers of committed records must
            # not pass them.
            for completed in ended:
                self._producers.reopen(completed)
            self._guard.fail(error, segment.log_path, "append")
        last = append.batches[-1]
        if isinstance(last, RecordBatch):
            # The segment keeps a reference to the batch: without this call, the request's buffer
            # would stay in memory.
            last.let_go()
        return AppendResult(
            append.first_offset,
            last_offset,
            context.append_ms,
            append.stamp_ms,
            self._segments.start_offset,
        )

    def _find_duplicate(self, append: PendingAppend) -> AppendResult | None:
        """Check the batches against the producers' states.

        Return None if the log has none of the batches. If the log already has one of the batches,
        return a result with the stored batch's offsets and timestamp, as in Kafka.
        """
        origin = append.context.terms.origin
        if origin is _REPLICATION:
            return None  # the leader has already checked the replicated batches
        for batch in append.batches:
            if not batch.has_producer_id:
                continue
            duplicate = self._producers.check(
                batch, origin=origin, transaction_version=append.transaction_version
            )
            if duplicate is not None:
                append_ms = self._reader.append_time_of(duplicate.first_offset)
                return AppendResult(
                    duplicate.first_offset,
                    duplicate.last_offset,
                    UNKNOWN_MS if append_ms is None else append_ms,
                    duplicate.timestamp,
                    self._segments.start_offset,
                    is_duplicate=True,
                )
        return None

    def _update_producers(self, append: PendingAppend, ended: list[CompletedTxn]) -> None:
        """Update the producers' states; add to `ended` the transactions that the append ends."""
        for batch in append.batches:
            if not batch.has_producer_id:
                continue
            completed = self._producers.update(batch, append.context.now_ms)
            if completed is None:
                continue
            ended.append(completed)
            if completed.is_aborted:
                append.segment.append_aborted(self._producers.aborted_entry(completed))
