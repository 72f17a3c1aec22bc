"""Loads a partition's state from its files, in the same way for readers and the writer.

The loaded state has four parts: the base offsets of the segments; the append times that are proven;
the aborted transactions of segments without an index of aborted transactions; and the producers,
from the newest snapshot and the batches after this snapshot.

A snapshot has only the last batch of each producer. But a client has up to five batches in flight,
and resends the unacknowledged batches after a restart of the broker. If the log did not know the
earlier batches, it would refuse a resent batch because of the batch's sequence, as Apache Kafka
does. A writer therefore searches the last `RECALL_BYTES` before the snapshot for earlier batches.
Batches before these `RECALL_BYTES`, and batches that a compaction removed, stay unknown.

Stateless.
"""

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.env import DirEntry, forget
from tidelog.errors import CorruptData, CorruptFile, MissingFile, StorageFailure
from tidelog.record.batch_walk import Batch
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.producers import (
    BATCHES_KEPT,
    ProducerEntry,
    ProducerStates,
    is_abort_marker,
)
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.append_time_trust import batch_ending_at, fingerprint, proven_end
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_proof import position_floor
from tidelog.storage.segment.lost_times import lost_times
from tidelog.storage.segment.segment import Segment, SegmentContext, iterate_batches, read_optional
from tidelog.storage.segment.slices import LogSlice, slices
from tidelog.storage.segment.txn_index import AbortedTxn, TxnIndex

# To find producers' earlier batches, this number of bytes before a snapshot's offset is searched.
# The search begins at the last index entry or segment base before these bytes. Clients have about
# this number of bytes in flight. The bytes contain at most 60,000 batches (if all batches have the
# smallest size); searching the bytes then takes half a second.
RECALL_BYTES: Final = 4 << 20


def recall_batches(states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    """Restore each producer's last five batches before `offset`.

    Only the last `RECALL_BYTES` before `offset` are searched.

    If some of the searched bytes are unreadable, no batch is restored, and no error is raised:
    reads of the records report the damage.

    Args:
        states: States from the snapshot at `offset`.
        segments: Segments of the log, ascending; segments of the tier are not read.
        offset: Offset of the snapshot.
    """
    local = [segment for segment in segments if not segment.is_tiered]
    try:
        _recall(states, local, offset)
    except (CorruptData, StorageFailure, OSError):
        return


def _recall(states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    start = _recall_start(segments, offset)
    entries = {entry.producer_id: entry for entry in states.ending_from(start)}
    if not entries:
        return
    recalled: dict[int, deque[Batch]] = {}
    for batch in _batches(segments, start, offset):
        entry = entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch == entry.epoch and not batch.is_control:
            recalled.setdefault(entry.producer_id, deque(maxlen=BATCHES_KEPT)).append(batch)
    for producer_id, batches in recalled.items():
        states.recall(_entry_of(producer_id, batches))


def _batches(segments: Sequence[Segment], start: int, end: int) -> Iterator[Batch]:
    for part in slices(segments, start, end):
        for _, batch in part.batches():
            yield batch


def _entry_of(producer_id: int, batches: Sequence[Batch]) -> ProducerEntry:
    entry = ProducerEntry(producer_id)
    for batch in batches:
        entry = entry.with_batch(batch)
    return entry


def _recall_start(segments: Sequence[Segment], offset: int) -> int:
    """Return the offset at which to begin the search; `offset` if there is nothing to search."""
    start, remaining_bytes = offset, RECALL_BYTES
    for segment in reversed(segments):
        if segment.base_offset >= offset:
            continue
        if remaining_bytes <= 0:
            break
        ends_before = segment.end_offset <= offset
        size = segment.size_bytes if ends_before else position_floor(segment, offset)
        if size > remaining_bytes:
            return _indexed_offset(segment, size - remaining_bytes)
        start, remaining_bytes = segment.base_offset, remaining_bytes - size
    return start


def _indexed_offset(segment: Segment, position: int) -> int:
    """Return the offset of the last index entry at or before a position.

    If the index has no entry at or before the position, return the segment's base offset.
    """
    slot = segment.offset_index.slot_at_or_before_position(position)
    return segment.base_offset if slot < 0 else segment.offset_index.entry(slot)[0]


def list_bases(context: SegmentContext) -> list[int]:
    """Return base offsets of the segments that a partition's directory has now, ascending."""
    forget(context.env.files, context.directory)
    return bases_among(context, file_names(context))


def bases_among(context: SegmentContext, names: Iterable[str]) -> list[int]:
    """Return base offsets of the segments whose files have these names, ascending."""
    logs = {name for name in names if name.endswith(log_files.LOG_SUFFIX)} | context.overlay.keys()
    logs -= {
        name for name, now in context.overlay.items() if now.endswith(log_files.REMOVED_SUFFIX)
    }
    parsed = map(log_files.parse_file_name, logs)
    return sorted(parts[0] for parts in parsed if parts and parts[1] == log_files.LOG_SUFFIX)


def file_names(context: SegmentContext) -> list[str]:
    """Return the names of the files in a partition's directory; see `file_entries`."""
    return [entry.name for entry in file_entries(context)]


def file_entries(context: SegmentContext) -> list[DirEntry]:
    """Return the files in a partition's directory, sorted by name.

    The list is empty if the directory does not exist yet.

    Raises:
        CorruptFile: A log file is a broken symbolic link.
        OSError: A system call failed.
    """
    try:
        entries = context.env.files.list_dir(context.directory)
    except FileNotFoundError:
        return []
    for entry in entries:
        if entry.is_link and entry.name.endswith(log_files.LOG_SUFFIX):
            _ensure_leads_somewhere(context, entry.name)
    return [entry for entry in entries if not entry.is_dir]


def linked_file(entries: Iterable[DirEntry]) -> str | None:
    """Return the name of a segment's file that is a symbolic link, None if there is none."""
    for entry in entries:
        if entry.is_link and log_files.parse_file_name(entry.name) is not None:
            return entry.name
    return None


def _ensure_leads_somewhere(context: SegmentContext, name: str) -> None:
    path = f"{context.directory}/{name}"
    try:
        context.env.files.stat(path)
    except FileNotFoundError as error:
        reason = "a symbolic link without a target; restore the target, or remove the link"
        raise CorruptFile(reason, path=path) from error


def limit_times(segment: Segment, times: AppendTimes, trusted: int) -> None:
    """Mark as unknown, in memory, the append times that a segment's rows can't prove.

    If append times are dropped, a row without a time is added at the end. This row names the last
    batch whose append time is still known, so that the next check keeps the remaining append times.
    The function reads all data before it changes anything, because a read may fail, and the caller
    may then repeat the call.
    """
    sure = proven_end(segment, times, trusted)
    if times.ends_at(sure):
        return
    last_row = next((row for row in reversed(times.rows()) if row.offset < sure), None)
    is_known = last_row is not None and last_row.append_ms >= 0
    last = batch_ending_at(segment, sure) if is_known else None
    times.truncate_to(sure)
    if times.is_open:
        times.mark_unknown(sure, 0 if last is None else fingerprint(last))


def write_proven_times(segment: ClosedSegment) -> None:
    """Rewrite a finished segment's append-time file without unproven times; raises OSError."""
    on_disk = segment.read_append_times()
    if not on_disk.row_count:
        return
    context, before, sure = segment.context, on_disk.encode(), segment.append_times.encode()
    if sure != before:
        has_lost_times = lost_times(segment) is not None
        path = context.path(segment.base_offset, log_files.APPEND_TIME_SUFFIX)
        files.write_atomically(context.env.files, path, sure)
        if not has_lost_times:  # otherwise only the zone map shows how many rows there were
            zone_map_files.drop_unfit(context, segment.base_offset)
        segment.use_zones(None, loaded=False)


def load_producer_states(
    context: SegmentContext,
    segments: Sequence[Segment],
    *,
    recall: bool = False,
    aborted: list[AbortedTxn] | None = None,
) -> ProducerStates:
    """Return producers and open transactions at the log end, from a snapshot and later batches.

    Idle producers are included until `ProducerStates.expire` is called.

    Args:
        context: The partition.
        segments: All segments of the partition, ascending.
        recall: Whether to search for each producer's last five batches, which a writer needs.
        aborted: List that receives the transactions with an abort marker after the snapshot, in the
            order of the markers; None if they are not needed.
    """
    end = segments[-1].end_offset if segments else 0
    return _states_from(context, segments, end, recall=recall, aborted=aborted)


def drop_snapshots(context: SegmentContext, end: int) -> None:
    """Remove producer snapshots of offsets beyond `end`, durably.

    The removal must be durable: a crash could otherwise bring a snapshot back after new records
    were appended at the same offsets, and the snapshot would be used for the new records.
    """
    if dropped := [offset for offset in snapshot_offsets(context) if offset > end]:
        _remove_snapshots(context, dropped)
        context.env.files.sync_dir(context.directory)


def drop_other_snapshots(context: SegmentContext, kept: Collection[int]) -> None:
    """Remove producer snapshots except the snapshots of the offsets in `kept`; do not sync."""
    _remove_snapshots(context, [each for each in snapshot_offsets(context) if each not in kept])


def _remove_snapshots(context: SegmentContext, offsets: Iterable[int]) -> None:
    for offset in offsets:
        context.env.files.remove(context.path(offset, log_files.SNAPSHOT_SUFFIX))


def snapshot_offsets(context: SegmentContext) -> list[int]:
    """Return offsets of the producer snapshots in a partition's directory."""
    parsed = map(log_files.parse_file_name, file_names(context))
    return [parts[0] for parts in parsed if parts and parts[1] == log_files.SNAPSHOT_SUFFIX]


def states_at(
    context: SegmentContext, offset: int, tiered: Sequence[Segment] = (), *, is_strict: bool = False
) -> ProducerStates:
    """Return producers and open transactions just before `offset`, the base of a segment.

    Args:
        context: The partition.
        offset: The base offset.
        tiered: Segments that only the tier has, ascending.
        is_strict: Whether to raise an error if the states can't be known. With False, the states
            are returned, but may lack batches.

    Raises:
        CorruptData: `is_strict` is set, and a batch after the newest readable snapshot is damaged
            or is only in the tier.
    """
    bases = [base for base in list_bases(context) if base < offset]
    spans = itertools.pairwise([*bases, offset])
    local = [ClosedSegment(context, base, end) for base, end in spans]
    return _states_from(context, [*tiered, *local], offset, is_strict=is_strict)


def transaction_start(context: SegmentContext, end: int) -> int:
    """Return an offset before which a partition's files show no transactions.

    The result is usually the offset of the newest snapshot up to the log end, `end`. Snapshots
    after `end` are ignored, because a crash in a truncation can leave snapshots of removed records.

    The result is 0 if any of these conditions shows that transactions may be anywhere: an index of
    aborted transactions exists; no snapshot exists; a snapshot is damaged; or a snapshot has a
    producer with an open transaction or with a marker.
    """
    if any(name.endswith(log_files.TXN_INDEX_SUFFIX) for name in file_names(context)):
        return 0
    offsets = snapshot_offsets(context)
    for offset in offsets:
        states = snapshot_at(context, offset)
        if states is None or any(
            entry.coordinator_epoch >= 0 or entry.txn_first_offset is not None
            for entry in states.producers.values()
        ):
            return 0
    return max((offset for offset in offsets if offset <= end), default=0)


def abort_markers(segment: Segment, offset: int) -> dict[int, int]:
    """Return a segment's abort markers from `offset` on: producer id by offset of the marker.

    Raises:
        CorruptData: A batch header or a marker is damaged.
    """
    markers: dict[int, int] = {}
    start = position_floor(segment, offset)
    for position, batch in iterate_batches(segment, start, segment.size_bytes):
        try:
            # Reading the base offset of a compressed message of format 0 or 1 decompresses the
            # message, and may raise CorruptData.
            if batch.is_control and batch.base_offset >= offset and is_abort_marker(batch):
                markers[batch.base_offset] = batch.producer_id
        except CorruptData as error:
            raise error.located(segment.log_path, position - batch.at) from error
    return markers


def rebuild_txn_index(
    context: SegmentContext,
    segment: Segment,
    earlier: Sequence[Segment],
    *,
    end: int | None = None,
) -> TxnIndex:
    """Build the complete index of a segment's aborted transactions, or raise an error.

    The transactions that were open before the segment are read from the newest readable snapshot,
    and from the batches after this snapshot.

    Args:
        context: The partition.
        segment: A local segment.
        earlier: All segments before `segment`, ascending.
        end: Offset at which to stop. The first batch whose last offset is at or above `end`, and
            all later batches, are ignored. If None, all batches are included.

    Raises:
        CorruptData: A needed batch is only in the tier, or a batch is damaged (even a batch outside
            of transactions).
    """
    base = segment.base_offset
    index = TxnIndex(base)
    if end is not None and end <= base:
        return index
    states = None
    for position, batch in iterate_batches(segment, 0, segment.size_bytes):
        if end is not None and batch.last_offset >= end:
            break
        is_part = batch.is_transactional and batch.has_producer_id
        if is_part and states is None:
            states = _states_from(context, earlier, base, is_strict=True)
        try:
            batch.ensure_valid()
            if states is None:
                continue
            completed = states.replay(batch) if is_part else None
        except CorruptData as error:
            raise error.located(segment.log_path, position - batch.at) from error
        if completed is not None and completed.is_aborted:
            index.append(states.aborted_entry(completed))
    return index


def snapshot_at(context: SegmentContext, base_offset: int) -> ProducerStates | None:
    """Return the states in the snapshot at a segment's base, None if it is missing or damaged."""
    try:
        data = read_optional(context, base_offset, log_files.SNAPSHOT_SUFFIX)
        return None if data is None else ProducerStates.decode_snapshot(data)
    except (CorruptData, MissingFile):
        return None


def _states_from(
    context: SegmentContext,
    segments: Sequence[Segment],
    end: int,
    *,
    recall: bool = False,
    is_strict: bool = False,
    aborted: list[AbortedTxn] | None = None,
) -> ProducerStates:
    snapshots = {each.base_offset: each.context for each in segments if each.is_tiered}
    snapshots |= {offset: context for offset in snapshot_offsets(context) if offset <= end}
    states, start = _newest_snapshot(snapshots)
    if is_strict and any(each.is_tiered and each.end_offset > start for each in segments):
        raise CorruptFile(
            f"missing or damaged, and batches before offset {end} are only in the tier",
            path=context.path(end, log_files.SNAPSHOT_SUFFIX),
        )
    if recall:
        recall_batches(states, segments, start)
    parts = slices(segments, start, end)
    while True:
        try:
            if (part := next(parts, None)) is None:
                return states
            _replay(states, part, aborted, checks_crc=is_strict)
        except CorruptData as error:
            if is_strict:
                raise
            # One damaged batch must not prevent the partition from being opened.
            context.report(f"{error}; producer states may lack batches after this one")


def _replay(
    states: ProducerStates, part: LogSlice, aborted: list[AbortedTxn] | None, *, checks_crc: bool
) -> None:
    for position, batch in part.batches():
        if not batch.has_producer_id:
            continue
        try:
            if checks_crc:
                batch.ensure_valid()
            completed = states.replay(batch)
        except CorruptData as error:
            raise error.located(part.segment.log_path, position - batch.at) from error
        if aborted is not None and completed is not None and completed.is_aborted:
            aborted.append(states.aborted_entry(completed))


def _newest_snapshot(snapshots: Mapping[int, SegmentContext]) -> tuple[ProducerStates, int]:
    """Return the states in the newest readable snapshot, and the snapshot's offset.

    If no snapshot is readable, return states without producers and 0.

    Args:
        snapshots: By offset of the snapshot, the context of its file: the partition's context or
            the context of a segment in the tier.
    """
    for offset, context in sorted(snapshots.items(), reverse=True):
        path = context.path(offset, log_files.SNAPSHOT_SUFFIX)
        try:
            data = files.read_file(context.env.files, path)
            return ProducerStates.decode_snapshot(data), offset
        except FileNotFoundError:
            continue
        except CorruptData as error:
            context.report(f"{error.located(path)}; an older snapshot is used")
    return ProducerStates(), 0
