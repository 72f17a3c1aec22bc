"""The order of an append's writes, in one place.

1. `begin`: the producers' states accept the append; the leader epoch is on disk; the active segment
   rolls if it is due; the append-time row is written if the time changed.
2. `write`: the log's bytes.
3. `finish`: index entries; the producers' states, the entries of aborted transactions; a flush if
   it is due; then the append becomes visible to readers.

A single append takes the three steps at once. Appends to several logs run each step for all of them
(`log.append_together`): finishing one batch after the other would evict the interpreter's working
set from the CPU caches, running step by step keeps it warm. Only the thread that appends calls
this.

Source: Kafka 4.x UnifiedLog.append, LocalLog.
"""

from typing import Final

from tidelog.errors import StorageFailure
from tidelog.record.batch import RecordBatch
from tidelog.storage.log.append import AppendOrigin, AppendResult, PendingAppend
from tidelog.storage.log.log_loader import LogParts
from tidelog.storage.log.segment_roller import SegmentRoller
from tidelog.types import UNKNOWN_MS

_REPLICATION: Final = AppendOrigin.REPLICATION  # looked up for each append


class AppendWriter:
    """Writes validated appends to one open log."""

    def __init__(self, parts: LogParts, roller: SegmentRoller) -> None:
        self._segments = parts.segments
        self._reader = parts.reader
        self._guard = parts.guard
        self._epochs = parts.epochs
        self._producers = parts.producers
        self._flusher = parts.flusher
        self._notes = parts.notes
        self._roller = roller

    def append(self, append: PendingAppend) -> AppendResult:
        """Run all steps.

        Raises:
            TidelogError: The errors of `Log.append_batches` for producers and disks.
        """
        result = self.begin(append)
        if result is None:
            self.write(append)
            result = self.finish(append)
        return result

    def begin(self, append: PendingAppend) -> AppendResult | None:
        """Do everything that comes before the log's bytes.

        Returns:
            The result of a batch that the log has already: no other step runs. Else None.

        Raises:
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced:
                The producer's state forbids it; nothing was changed.
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
        """Do everything that comes after the log's bytes.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        segment, context, last_offset = append.segment, append.context, append.last_offset
        flusher, notes = self._flusher, self._notes
        try:
            segment.finish(append.batches, last_offset + 1)
            if append.has_producers:
                self._update_producers(append)
            if context.now_ms > notes.arrived_ms:
                notes.note_arrival(context.now_ms)
            if flusher.has_policy:
                flusher.acknowledge(segment, last_offset + 1, context.now_ms)
            else:
                segment.acknowledge()
        except (OSError, StorageFailure) as error:
            self._guard.fail(error, segment.log_path, "append")
        last = append.batches[-1]
        if isinstance(last, RecordBatch):
            last.let_go()  # kept by the segment, while a request's buffer is used again
        return AppendResult(
            append.first_offset,
            last_offset,
            context.append_ms,
            append.stamp_ms,
            self._segments.start_offset,
        )

    def _find_duplicate(self, append: PendingAppend) -> AppendResult | None:
        """Check the batches against their producers' states; return the result of a repeated batch.

        The result has the original offsets and the stored batch's timestamp, as in Kafka.
        """
        origin = append.context.terms.origin
        if origin is _REPLICATION:
            return None  # its leader has checked it
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

    def _update_producers(self, append: PendingAppend) -> None:
        for batch in append.batches:
            if not batch.has_producer_id:
                continue
            completed = self._producers.update(batch, append.context.now_ms)
            if completed is not None and completed.is_aborted:
                append.segment.append_aborted(self._producers.aborted_entry(completed))
