"""Cutting a log at an offset, in an order that no crash can turn into a wrong answer.

1. Checkpoints that reach beyond the offset are lowered (the caller's, then the append-time one).
2. Segments behind it go, newest first; what is left of the log never has a hole.
3. In the segment that holds it, sidecars and indexes are cut before the log: a crash in between
   leaves records without a row, whose append time is unknown, never a row without its records.
A segment that was finished gets a new log file and a rename: readers may have the old one mapped.

Source: Kafka 4.x LocalLog.truncateTo, LogSegment.truncateTo.
"""

from collections.abc import Sequence

from tidelog.storage import files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log import recovery
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment, first_reaching
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint, fingerprint
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index import OffsetIndex, TimeIndex
from tidelog.storage.segment.index_proof import position_floor
from tidelog.storage.segment.segment import Segment, SegmentContext, iterate_batches


def lower_append_time_checkpoint(
    context: SegmentContext, segments: Sequence[Segment], *, trusted: int, offset: int
) -> None:
    """Let the checkpoint name the last batch below `offset`, unless it ends below it anyhow."""
    if AppendTimeCheckpoint.read(context.env.files, context.directory) is None:
        return
    lowered = AppendTimeCheckpoint(0, -1, 0)
    for segment in segments:
        if segment.base_offset >= offset:
            break
        start = position_floor(segment, min(offset, trusted) - 1)
        for _, batch in iterate_batches(segment, start, segment.size_bytes):
            if batch.last_offset >= min(offset, trusted):
                break
            lowered = AppendTimeCheckpoint(batch.next_offset, batch.base_offset, fingerprint(batch))
    lowered.write(context.env.files, context.directory)


def end_below(segments: Sequence[Segment], offset: int) -> int:
    """Return the log end after a cut at an offset; a batch that holds it goes as a whole."""
    last = next((each for each in reversed(segments) if each.base_offset <= offset), None)
    if last is None:
        return offset
    end = last.base_offset
    for _, batch in iterate_batches(last, position_floor(last, offset - 1), last.size_bytes):
        if batch.last_offset >= offset:
            break
        end = batch.next_offset
    return end


def cut_segments(
    context: SegmentContext, segments: Sequence[Segment], offset: int
) -> list[Segment]:
    """Make the log end at the last batch below `offset`; the segments that are left.

    Raises:
        OSError: The caller takes the partition offline.
    """
    kept = [segment for segment in segments if segment.base_offset <= offset]
    dropped = [segment for segment in segments if segment.base_offset > offset]
    for segment in reversed(dropped):
        recovery.remove_segment_files(context, segment.base_offset)
        # One by one: if an older one's removal came through alone, the log would have a hole.
        context.env.files.sync_dir(context.directory)
    if not kept:
        return start_anew(context, [], offset)
    last = kept[-1]
    if isinstance(last, ActiveSegment):
        last.truncate_to(offset)
        return kept
    assert isinstance(last, ClosedSegment)
    return [*kept[:-1], _cut_closed(context, last, offset)]


def start_anew(context: SegmentContext, segments: Sequence[Segment], offset: int) -> list[Segment]:
    """Drop all that is left and begin an empty segment at `offset`."""
    for segment in reversed(segments):
        recovery.remove_segment_files(context, segment.base_offset)
        context.env.files.sync_dir(context.directory)
    created = ActiveSegment.create(context, offset)
    context.env.files.sync_dir(context.directory)
    return [created]


def _cut_closed(context: SegmentContext, segment: ClosedSegment, offset: int) -> ActiveSegment:
    """Turn a finished segment into the active one, without its records from `offset` on."""
    position, end = first_reaching(segment, offset)
    times = AppendTimes.decode(
        segment.append_times.encode(), segment.base_offset, context.topic_id, open_end=True
    )[0]
    times.truncate_to(end)
    zone_map_files.drop(context, segment.base_offset)
    segment.use_zones(None)
    _replace(context, segment.base_offset, files.APPEND_TIME_SUFFIX, times.encode())
    _cut_indexes(context, segment, offset)
    recovery.replace_by_prefix(context, segment.log_path, position)
    active = ActiveSegment.load(context, segment.base_offset)
    active.adopt_append_times(times, file_matches=True)
    return active


def _cut_indexes(context: SegmentContext, segment: ClosedSegment, offset: int) -> None:
    base = segment.base_offset
    offset_index = OffsetIndex(base, data=segment.offset_index.encoded)
    offset_index.truncate_to(offset)
    _replace(context, base, files.OFFSET_INDEX_SUFFIX, bytes(offset_index.encoded))
    time_index = TimeIndex(base, data=segment.time_index.encoded)
    time_index.truncate_to(offset)
    _replace(context, base, files.TIME_INDEX_SUFFIX, bytes(time_index.encoded))
    aborted = segment.txn_index
    if aborted.size_bytes:
        aborted.truncate_to(offset)
        _replace(context, base, files.TXN_INDEX_SUFFIX, bytes(aborted.encoded))


def _replace(context: SegmentContext, base: int, suffix: str, content: bytes) -> None:
    path = context.path(base, suffix)
    context.pool.forget(path)
    context.maps.forget(path)
    files.write_atomically(context.env.files, path, content)


def drop_snapshots(context: SegmentContext, offset: int) -> None:
    """Remove producer snapshots of offsets beyond `offset`."""
    for entry in context.env.files.list_dir(context.directory):
        found = files.parse_file_name(entry.name)
        if found and found[1] == files.SNAPSHOT_SUFFIX and found[0] > offset:
            context.env.files.remove(f"{context.directory}/{entry.name}")
