"""Appends a leader's batches to a log unchanged, with the leader's offsets, epochs and times.

Source: Kafka 4.x UnifiedLog (appendAsFollower).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.amounts import plural, verb
from tidelog.errors import InvalidRequest
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.offset_order import first_known_offset
from tidelog.storage.log.append_types import (
    AppendContext,
    AppendOrigin,
    AppendResult,
    AppendTerms,
    PendingAppend,
    first_proven_offset,
)
from tidelog.storage.log.append_writer import AppendWriter, SegmentRoller
from tidelog.storage.log.log_loader import LogPart, LogParts
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.validator import AppendRules
from tidelog.storage.segment.log_end import has_copied_gaps, mark_copied_gaps
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.segment import iterate_batches
from tidelog.storage.segment.time_search import stamped_ms
from tidelog.types import INT32_MAX, UNKNOWN_MS, Buffer

_COPIED: Final = AppendTerms(AppendOrigin.REPLICATION)


class FollowerLog(LogPart):
    """The part of an open log that follows a leader."""

    def __init__(
        self, parts: LogParts, roller: SegmentRoller, writer: AppendWriter, rules: AppendRules
    ) -> None:
        super().__init__(parts)
        self._roller = roller
        self._writer = writer
        self._rules = rules
        self._has_copied_gaps = False

    # -- batches -----------------------------------------------------------------------------

    def append(self, data: Buffer, *, append_ms: int = UNKNOWN_MS) -> AppendResult:
        """Append a leader's batches unchanged, with their offsets, epochs and timestamps.

        Compaction may have left gaps so large that the offsets do not fit into one segment. Then
        the batches are appended in parts, and each part after the first begins a new segment. All
        batches of the call are checked before the first part is written.

        Args:
            data: Whole batches, in order.
            append_ms: When the records were appended at the leader, in ms; -1 if unknown. The time
                at which the records arrive at this follower is never stored as their append time.

        Raises:
            CorruptBatch, CorruptRecord, InvalidRecord, InvalidRequest, RecordListTooLarge: The
                append is refused; nothing was changed.
            StorageFailure: The disk failed; the partition is offline.
        """
        self._guard.ensure_writable()
        append_ms = self._checked_append_ms(append_ms)
        context = AppendContext(
            _COPIED,
            self._segments.end_offset,
            self._epochs.leader_epoch,
            self._segments.context.env.clock.now_ms(),
            append_ms,
            append_ms,
        )
        append = self._rules.validator.validate(data, context)
        for batch in append.batches:
            if batch.is_control and batch.has_producer_id:
                # Raise here for an invalid marker, because a marker can't be refused after it is
                # written.
                ProducerStates().update(batch)
        self._note_gaps(append.batches)
        *_, result = [self._writer.append(part) for part in _split_by_segment(append)]
        result.base_offset = append.first_offset
        self._clock.observe(append_ms)
        self._observe_stamps(append.batches)
        self._epochs.outgrow()
        return result

    def _checked_append_ms(self, append_ms: int) -> int:
        """Return the append time to store, or -1 to store none.

        Raises:
            InvalidRequest: The time is before the last append time.
        """
        context = self._segments.context
        if append_ms == UNKNOWN_MS or not context.config.tidelog_append_time_enable:
            return UNKNOWN_MS
        if append_ms < self._clock.last_ms:
            raise InvalidRequest(
                f"{context.topic_partition}: append time {append_ms} ms is before the last one,"
                f" {self._clock.last_ms} ms; append times never decrease"
            )
        return append_ms

    def _note_gaps(self, batches: Sequence[Batch]) -> None:
        """Mark the partition as having gaps, before a batch that leaves a gap is appended."""
        if self._has_copied_gaps or not _leave_gaps(batches, self._segments.end_offset):
            return
        fs, directory = self._segments.context.env.files, self._segments.context.directory
        if not has_copied_gaps(fs, directory):
            self._guard.run(directory, "note gaps", lambda: mark_copied_gaps(fs, directory))
        self._has_copied_gaps = True

    def _observe_stamps(self, batches: Sequence[Batch]) -> None:
        """Advance the append clock to the LogAppendTime of the leader's batches.

        If a follower's log later takes appends of its own, the draft of KIP-32 requires that these
        appends get no earlier time than the copied batches.
        """
        for batch in batches:
            stamped = stamped_ms(batch)
            if stamped is not None:
                self._clock.observe(stamped)

    def last_batch_below(self, offset: int) -> Batch | None:
        """Return the last batch that begins below `offset`, None if there is none.

        Raises:
            CorruptData: A batch that has to be read is damaged.
        """
        for segment in reversed(self._segments.all):
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

    # -- facts from the leader ---------------------------------------------------------------

    def note_leader_epoch(self, epoch: int) -> None:
        """Record that the leader writes under `epoch` from the log end on.

        Do nothing if the log already has this epoch or a later one. The noted `epoch` makes a
        promoted follower write under a later epoch, even if the follower has not copied a record of
        `epoch`.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        if epoch > self._epochs.epochs.latest_epoch:
            end = self._segments.end_offset
            directory = self._segments.context.directory
            self._guard.run(directory, "note epoch", lambda: self._epochs.note_leaders(epoch, end))

    def end_lost_transactions(self, stable: int) -> list[int]:
        """Durably end the transactions whose markers the leader no longer has.

        It is unknown whether the ended transactions were committed. The ended transactions' records
        become visible to readers of committed records.

        Args:
            stable: Offset below which the leader has no open transaction. The log must already
                contain the leader's markers of the transactions below `stable`. A transaction with
                a record at or after `stable` remains open.

        Returns:
            Ids of the producers of the ended transactions.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        first = self._producers.first_unstable_offset
        if first is None or first >= stable:
            return []
        return self._guard.run(
            self._segments.context.directory,
            "end transactions",
            lambda: self._end_lost(self._producers.end_silent(stable), stable),
        )

    def end_transactions_of(self, next_firsts: Mapping[int, int]) -> None:
        """Durably end the lost transactions of producers that have begun another transaction.

        A transaction is lost if the leader no longer has the marker that ended the transaction.

        Args:
            next_firsts: First offset of the producer's next transaction, by producer id. The next
                transactions remain open.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        end = self._segments.end_offset
        self._guard.run(
            self._segments.context.directory,
            "end transactions",
            lambda: self._end_lost(self._producers.end_of(next_firsts, end), end),
        )

    def _end_lost(self, ended: list[int], stable: int) -> list[int]:
        if ended:
            # `ended` has the producers whose transactions have ended without a marker in the log.
            # If such a producer later wrote a marker into the segment that is still active here, a
            # reader that starts at the segment's base would take this marker as the end of the
            # earlier transaction. So a new segment begins here.
            end, context = self._segments.end_offset, self._segments.context
            self._roller.end_segment(end, RollReason.REQUEST)
            self._guard.settle()
            self._roller.write_snapshot(end, self._producers.encode_snapshot())
            context.report(
                f"{context.topic_partition}: {plural(len(ended), 'transaction')} that began below"
                f" offset {stable} {verb(len(ended), 'counts', 'count')} as ended (producers"
                f" {str(ended[:5])[1:-1]}), because the leader no longer had the markers"
            )
        return ended


def _split_by_segment(append: PendingAppend) -> list[PendingAppend]:
    """Split an append into parts, so that the offsets of each part fit into one segment.

    Each part except the first begins a new segment. A segment's indexes store offsets in 31 bits,
    relative to the segment's base offset.
    """
    context, batches = append.context, append.batches
    last_possible = _base_of(batches[0], context.next_offset) + INT32_MAX
    if append.last_offset <= last_possible:
        return [append]
    parts: list[list[Batch]] = [[]]
    next_offset = context.next_offset
    for batch in batches:
        if batch.last_offset > last_possible:
            last_possible = _base_of(batch, next_offset) + INT32_MAX
            parts.append([])
        parts[-1].append(batch)
        next_offset = batch.next_offset
    return [_part_of(append, part) for part in parts]


def _part_of(append: PendingAppend, batches: Sequence[Batch]) -> PendingAppend:
    first, last = batches[0], batches[-1]
    data = memoryview(append.data)[first.at : last.at + last.size_bytes]
    part = PendingAppend.of(data, batches, append.context)
    part.stamp_ms = append.stamp_ms
    return part


def _base_of(batch: Batch, next_offset: int) -> int:
    """Return the base offset of a new segment whose first batch is `batch`."""
    return max(first_proven_offset(batch), next_offset)


def _leave_gaps(batches: Sequence[Batch], next_offset: int) -> bool:
    """Return whether some offset from `next_offset` to the batches' end has no record."""
    for batch in batches:
        if first_known_offset(batch) > next_offset:
            return True
        if isinstance(batch, RecordBatch) and batch.record_count <= batch.last_offset_delta:
            return True
        next_offset = batch.next_offset
    return False
