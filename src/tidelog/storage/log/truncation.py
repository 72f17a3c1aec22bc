"""Truncates a log at an offset, in an order that is safe if a crash happens in between.

1. Checkpoints beyond the offset are lowered: first the directory's checkpoints, then the
   partition's append-time checkpoint.
2. Segments after the offset are removed, newest first, so that the remaining log never has a hole.
3. Of the segment that contains the offset, first the append times, the offset index and the time
   index are truncated, then the log. A crash between these steps leaves records without a row of
   append times; the append time of these records is then unknown. A crash never leaves a row
   without its records.
4. The index of aborted transactions is truncated after the log. If the log still had an abort
   marker whose entry is gone, readers of committed records would get aborted records.

If the segment with the offset is finished, its log up to the offset is copied to a new file. A
rename then replaces the old file, because readers may have mapped the old file. `Truncator` then
rebuilds the state in memory that is derived from the records.

Source: Kafka 4.x LocalLog.truncateTo, LogSegment.truncateTo.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.errors import CorruptData, InvalidRequest
from tidelog.record.batch_walk import Batch
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log import recovery
from tidelog.storage.log.log_loader import LogPart, load_for_writing
from tidelog.storage.log.producer_loading import drop_snapshots, rebuild_txn_index
from tidelog.storage.open_files import typed_failures
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint, fingerprint
from tidelog.storage.segment.closed_segment import ClosedSegment, as_closed
from tidelog.storage.segment.compaction_history import cut_history
from tidelog.storage.segment.deletion_history import StartRule, add_deletions, deletion_event
from tidelog.storage.segment.index_proof import first_reaching, position_floor
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import Segment, SegmentContext, iterate_batches
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex

if TYPE_CHECKING:
    from tidelog.storage.tier.manifest import TierSegment


def lower_append_time_checkpoint(
    context: SegmentContext, segments: Sequence[Segment], *, trusted: int, offset: int
) -> None:
    """Lower the append-time checkpoint to the last batch that ends below min(offset, trusted).

    Do nothing if the directory has no append-time checkpoint.
    """
    if AppendTimeCheckpoint.read(context.env.files, context.directory) is None:
        return
    last = _last_batch_below(segments, min(offset, trusted))
    lowered = (
        AppendTimeCheckpoint(0, -1, 0)
        if last is None
        else AppendTimeCheckpoint(last.next_offset, last.base_offset, fingerprint(last))
    )
    lowered.write(context.env.files, context.directory)


def _last_batch_below(segments: Sequence[Segment], end: int) -> Batch | None:
    """Return the last batch whose last offset is below `end`, None if there is none."""
    for segment in reversed(segments):
        if segment.base_offset >= end:
            continue
        last = None
        start = position_floor(segment, end - 1)
        for _, batch in iterate_batches(segment, start, segment.size_bytes):
            if batch.last_offset >= end:
                break
            last = batch
        if last is not None:
            return last
    return None


def end_below(segments: Sequence[Segment], offset: int) -> int:
    """Return the log end after a truncation at `offset`.

    If a batch contains `offset`, the truncation removes the whole batch.
    """
    last = next((each for each in reversed(segments) if each.base_offset <= offset), None)
    if last is None or last.base_offset == offset:
        return offset
    end = last.base_offset
    for _, batch in iterate_batches(last, position_floor(last, offset - 1), last.size_bytes):
        if batch.last_offset >= offset:
            break
        end = batch.next_offset
    return end


def cut_segments(
    context: SegmentContext,
    segments: Sequence[Segment],
    active: ActiveSegment,
    offset: int,
    aborted: TxnIndex | None,
) -> list[Segment]:
    """Remove the batches that end at or after `offset`; return the remaining segments.

    Args:
        context: Shared state of the segments.
        segments: All local segments, oldest first.
        active: The last segment of `segments`.
        offset: Offset to truncate at.
        aborted: Index of the aborted transactions whose markers remain in the last remaining
            segment; None if that segment is the active segment.

    Raises:
        OSError, StorageFailure: The disk failed; the caller takes the partition offline.
    """
    remaining = [segment for segment in segments if segment.base_offset <= offset]
    dropped = [segment for segment in segments if segment.base_offset > offset]
    for segment in reversed(dropped):
        recovery.remove_segment_files(context, segment.base_offset)
        # Each removal is synced before the next removal. Otherwise a crash could keep only the
        # removal of an older segment, and the log would have a hole.
        context.env.files.sync_dir(context.directory)
    if not remaining:
        return start_anew(context, [], offset)
    closed = as_closed(remaining[-1])
    if closed is not None:
        assert aborted is not None
        return [*remaining[:-1], _cut_closed(context, closed, offset, aborted)]
    active.truncate_to(offset)
    return remaining


def start_anew(context: SegmentContext, segments: Sequence[Segment], offset: int) -> list[Segment]:
    """Remove `segments` and begin an empty segment at `offset`; return the new list."""
    for segment in reversed(segments):
        recovery.remove_segment_files(context, segment.base_offset)
        context.env.files.sync_dir(context.directory)
    created = ActiveSegment.create(context, offset)
    context.env.files.sync_dir(context.directory)
    return [created]


def _cut_closed(
    context: SegmentContext, segment: ClosedSegment, offset: int, aborted: TxnIndex
) -> ActiveSegment:
    """Turn a finished segment into the active segment, without its records from `offset` on."""
    position, end = first_reaching(segment, offset)
    times = AppendTimes.decode(
        segment.append_times.encode(), segment.base_offset, context.topic_id, open_end=True
    )[0]
    times.truncate_to(end)
    zone_map_files.drop(context, segment.base_offset)
    segment.use_zones(None)
    _replace(context, segment.base_offset, log_files.APPEND_TIME_SUFFIX, times.encode())
    _cut_indexes(context, segment, offset)
    recovery.copy_range(context, segment.log_path, segment.log_path, 0, position)
    _replace_txn_index(context, segment.base_offset, aborted)
    active = ActiveSegment.load(context, segment.base_offset)
    active.adopt_append_times(times, file_matches=True)
    return active


def _cut_indexes(context: SegmentContext, segment: ClosedSegment, offset: int) -> None:
    base = segment.base_offset
    offset_index = OffsetIndex(base, data=segment.offset_index.encoded)
    offset_index.truncate_to(offset)
    _replace(context, base, log_files.OFFSET_INDEX_SUFFIX, bytes(offset_index.encoded))
    time_index = TimeIndex(base, data=segment.time_index.encoded)
    time_index.truncate_to(offset)
    _replace(context, base, log_files.TIME_INDEX_SUFFIX, bytes(time_index.encoded))


def _replace_txn_index(context: SegmentContext, base: int, aborted: TxnIndex) -> None:
    if aborted.entries:
        _replace(context, base, log_files.TXN_INDEX_SUFFIX, bytes(aborted.encoded))
    else:
        path = context.path(base, log_files.TXN_INDEX_SUFFIX)
        context.pool.forget(path)
        context.maps.forget(path)
        if context.env.files.exists(path):
            context.env.files.remove(path)


def _replace(context: SegmentContext, base: int, suffix: str, content: bytes) -> None:
    path = context.path(base, suffix)
    context.pool.forget(path)
    context.maps.forget(path)
    files.write_atomically(context.env.files, path, content)


class Truncator(LogPart):
    """Truncates one open log, or moves the start of an empty log."""

    @property
    def has_records(self) -> bool:
        """Whether the log's files contain any batch."""
        return any(segment.size_bytes for segment in self._segments.all)

    def truncate_to(self, offset: int) -> int:
        """Remove each batch whose last offset is `offset` or more; return the remaining log end.

        Do nothing if the log ends at or below `offset`. The truncation is durable on return.

        Raises:
            InvalidRequest: The offset is negative.
            CorruptData: The segment with `offset` is damaged before `offset`, or its index of
                aborted transactions can be neither read nor rebuilt. Nothing was changed.
            StorageFailure: The disk failed, or other data is damaged; the partition is offline.
        """
        segments, context = self._segments, self._segments.context
        if offset < 0:
            raise InvalidRequest(f"{context.topic_partition}: can't truncate to offset {offset}")
        if offset < segments.end_offset:
            self._guard.ensure_writable()  # after a failed truncation there may be no segment
            self._guard.settle()  # the truncation may need snapshots whose writes are deferred
            with typed_failures(context.directory, "truncate"):
                aborted = self._remaining_aborted(offset)
            clipped = segments.tier.clip(offset, segments.local[0].base_offset)
            self._guard.run(
                context.directory, "truncate", lambda: self._cut(offset, clipped, aborted)
            )
        return segments.end_offset

    def _remaining_aborted(self, offset: int) -> TxnIndex | None:
        """Read the data that the truncation needs, before anything is changed.

        So damage is found before the truncation begins.

        Returns:
            The index of aborted transactions for the segment that is last after the truncation,
            with only the transactions whose markers remain. If the index file is corrupt, the index
            is rebuilt from the log. The index is a new object, because readers still use the
            segment's index. None if the active segment remains the last segment.
        """
        local, segments = self._segments.local, self._segments
        end_below(local, offset)
        last = next((each for each in reversed(local) if each.base_offset <= offset), None)
        closed = None if last is None else as_closed(last)
        if closed is None:
            return None
        try:
            entries = closed.txn_index.entries
        except CorruptData:
            earlier = segments.all[: segments.all.index(closed)]
            return rebuild_txn_index(segments.context, closed, earlier, end=offset)
        return TxnIndex(closed.base_offset, [e for e in entries if e.last_offset < offset])

    def _cut(
        self, offset: int, clipped: "Mapping[str, TierSegment]", aborted: TxnIndex | None
    ) -> None:
        segments, context, local = self._segments, self._segments.context, self._segments.local
        active = segments.active
        self._notes.before_cut(local, offset)
        restart = segments.tier.restart_after_cut(offset, local[0].base_offset, clipped)
        end = end_below(local, offset) if restart is None else restart
        # The recovery point is lowered first: if a later step fails, the next opening compares the
        # recovery point with the remaining records.
        self._flusher.cut(end)
        self._options.lower_checkpoints(offset, end)
        cut_history(context.env.files, context.directory, end)
        # `trusted_end` reads only the checkpoint and local files, not the object store, because
        # append times in the tier need no proof.
        trusted = segments.trusted_end()
        lower_append_time_checkpoint(context, local, trusted=trusted, offset=offset)
        start = min(segments.start_offset, offset)
        segments.tier.cut(offset, local[0].base_offset, clipped)
        # First hide the segments that will be removed, so that nothing reads them if a later step
        # fails. Also treat all offsets as unstable until the producers are replaced: the marker and
        # index entry of an aborted transaction may be removed while some of its records remain.
        # Readers of committed records must not see these records.
        self._producers.hide_from(start)
        segments.keep([segment for segment in local if segment.base_offset <= offset])
        segments.forget_maps()  # readers must not read beyond the end of a file
        if restart is None:
            remaining = cut_segments(context, local, active, offset, aborted)
        else:
            remaining = start_anew(context, local, restart)
        if remaining[-1].end_offset < start:
            # The truncation removed a batch that extended beyond the log start, so all remaining
            # records are below the log start.
            segments.keep(())
            remaining = start_anew(context, remaining, start)
        self._epochs.cut(offset)
        drop_snapshots(context, remaining[-1].end_offset)
        segments.tier.end_restart()
        self._reload(remaining, start)

    def begin_at(self, offset: int) -> None:
        """Set the start of a log without records to `offset`, durably.

        Raises:
            InvalidRequest: The log has records, or the offset is negative.
            StorageFailure: The disk failed; the partition is offline.
        """
        context, end = self._segments.context, self._segments.end_offset
        start = self._segments.start_offset
        if self.has_records or offset < 0:
            reason = f"it has records up to {end}" if offset >= 0 else "negative"
            raise InvalidRequest(
                f"{context.topic_partition}: can't begin at offset {offset}: {reason}"
            )
        self._guard.run(context.directory, "begin", lambda: self._begin(offset))
        if start < offset:
            event = deletion_event(context, StartRule.COPY, start, offset)
            add_deletions(context, [event])

    def _begin(self, offset: int) -> None:
        segments, context, local = self._segments, self._segments.context, self._segments.local
        self._flusher.cut(offset)
        self._options.lower_checkpoints(offset, offset)
        cut_history(context.env.files, context.directory, 0)
        segments.keep(())
        segments.tier.cut(offset, local[0].base_offset, {})
        remaining = start_anew(context, local, offset)
        # No marker would ever end a transaction that was open at the old log end, so all producers
        # are dropped.
        drop_snapshots(context, -1)
        self._epochs.clear()
        self._reload(remaining, offset)
        self._flusher.note_durable(offset)

    def _reload(self, remaining: Sequence[Segment], start: int) -> None:
        """Show the remaining segments, and rebuild the state that was derived from the records."""
        segments = self._segments
        segments.show(remaining, checkpointed_start=start)
        self._epochs.begin_next()
        loaded = load_for_writing(self._reader, self._options.producer_expiration_ms())
        self._producers.replace(loaded.producers.values())
        self._clock.rewind(segments.last_append_ms())
