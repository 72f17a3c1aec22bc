"""Gaps between segments: whether offsets missing in the middle of a log are lost.

If no record of a log was ever compacted or erased, the log has every offset from its start to its
end. Aborted records and control records keep their offsets. Retention and DeleteRecords remove
records only from the start. Compaction and erasing remove records from the middle. So a gap is a
loss if two conditions are met: the topic is not compacted, and nothing indicates that records were
ever compacted or erased. Indications of a compaction or an erasure are: the file
`compaction-history` (erasing writes it, too); the mark of gaps that were copied from a leader; the
partition's offset in Kafka's `cleaner-offset-checkpoint`; and missing offsets within the segment
before the gap. If a directory has neither `tidelog-topics.json` nor Kafka's checkpoint, the cause
of a gap is unknown, and the gap is not treated as a loss. An example is a copy of a single
partition.

An index or a zone map can't show whether a gap is a loss: if it was built after the loss, it ends
where the log ends. A zone map can only prove that the segment still has its last offset.

Offsets between the end of a log's tier and its first local file are a gap, too. The tier's manifest
has the end of each segment, so `storage.tier.log_tier` decides whether these offsets are lost, and
the tier's last segment then has them as `Segment.lost_at_end`.

Only `Losses`, which searches use, holds state.
"""

import posixpath
from collections.abc import Sequence
from typing import Final

from tidelog.amounts import offsets_text
from tidelog.config import CLEANUP_COMPACT, TopicConfig
from tidelog.env import FileSystem
from tidelog.errors import CorruptBatch, CorruptFile, LostOffsets, OffsetsGone
from tidelog.storage import files, text_files
from tidelog.storage.files import TOPICS_FILE
from tidelog.storage.segment.closed_segment import ClosedSegment, as_closed
from tidelog.storage.segment.compaction_history import HISTORY_FILE
from tidelog.storage.segment.log_end import has_copied_gaps
from tidelog.storage.segment.segment import ColdRead, Segment, SegmentContext, iterate_batches
from tidelog.types import INT64_MAX, TopicPartition

GAP_REASON: Final = (
    "missing between two segments; the topic is not and was never compacted, so a segment or its"
    " end is gone"
)

_INTERNAL: Final = "__"


def is_gap_loss(context: SegmentContext, segment: Segment) -> bool:
    """Return whether offsets missing at a finished segment's end are provably lost."""
    if segment.is_tiered:
        return segment.lost_at_end is not None
    fs, name = context.env.files, context.topic_partition
    return was_never_cleaned(fs, context.directory, context.config, name)


def is_settled(segment: Segment) -> bool:
    """Return whether it is known, without reading a file, that the segment has lost no offsets."""
    if segment.is_whole:
        return True
    context = segment.context
    return _is_cleaned(context.config, context.topic_partition)


def lost_at_end(segment: Segment) -> LostOffsets | None:
    """Return the offsets missing at a finished segment's end, if they are lost.

    Return None if nothing is lost. Also return None if damage hides the segment's end: reads raise
    an error at this damage. If nothing is lost, the segment stores this result, so that the next
    call reads no file.

    Raises:
        OSError: The disk failed.
    """
    if segment.is_tiered:
        return segment.lost_at_end
    closed = as_closed(segment)
    if closed is None or is_settled(segment):
        return None
    context, zones = segment.context, segment.zones
    if zones is None or zones.total.last_offset + 1 < segment.end_offset:
        last = closed.last_batches
        is_gap = last.error is None and last.next_offset < segment.end_offset
        if is_gap and is_gap_loss(context, segment) and closed.is_dense:
            return lost_gap(context.topic_partition, last.next_offset, segment.end_offset)
    closed.is_whole = True
    return None


class Losses:
    """Lost offsets of a log's finished segments; each segment is checked once.

    Attributes:
        checked: Number of segments that were checked.
        lost: Pairs of a segment's index in the list of segments and the offsets that are missing at
            this segment's end.
    """

    __slots__ = ("checked", "lost")

    def __init__(self, checked: int = 0) -> None:
        self.checked = checked
        self.lost: list[tuple[int, LostOffsets]] = []

    def ensure_none(
        self,
        segments: Sequence[Segment],
        number: int,
        floor_offset: int,
        *,
        may_block: bool = True,
    ) -> None:
        """Raise OffsetsGone if segments have lost offsets at or above `floor_offset`.

        Args:
            segments: Segments of the log, oldest first; the last segment is not finished.
            number: How many segments to check, from the oldest on. The last segment of the log is
                never checked.
            floor_offset: Losses that end at or below this offset are ignored.
            may_block: Whether files may be read. If False, ColdRead is raised when a file would
                have to be read.
        """
        if number > self.checked:
            for at in range(self.checked, min(number, len(segments) - 1)):
                segment = segments[at]
                loss = None
                if segment.is_tiered:
                    loss = lost_at_end(segment)
                elif not is_settled(segment):
                    if not may_block:
                        raise ColdRead
                    loss = lost_at_end(segment)
                if loss is not None:
                    self.lost.append((at, loss))
                self.checked = at + 1
        if self.lost:
            losses = [one for at, one in self.lost if at < number and one.end > floor_offset]
            if losses:
                raise OffsetsGone(tuple(losses))


# Value for a search that ignores losses: all segments count as checked.
NO_LOSSES: Final = Losses(checked=INT64_MAX)


def ensure_no_gap(segment: Segment, start: int, end: int) -> None:
    """Raise OffsetsGone if missing offsets [start, end) of a segment are lost."""
    if start < end and not segment.is_active:
        context = segment.context
        if is_gap_loss(context, segment):
            raise OffsetsGone((lost_gap(context.topic_partition, start, end),))


def ensure_reaches(segment: ClosedSegment, offset: int) -> None:
    """Raise CorruptBatch if a finished segment has lost the batch that ended at or after `offset`.

    A reader calls this function if it has found no batch that reaches the offset. The function may
    read the whole segment.

    Raises:
        CorruptBatch: The segment is damaged after its last batch with offsets in order, or records
            are missing that were not deleted on purpose. The error has the position.
        OSError: The disk failed.
    """
    last, loss = segment.last_batches, lost_at_end(segment)
    if last.error is not None:
        raise last.error
    if loss is not None:
        reason = f"{offsets_text(loss.start, loss.end - 1)}: {loss.reason}"
    elif last.next_offset > (first := max(offset, segment.base_offset)):
        for _ in iterate_batches(segment, 0, segment.size_bytes):
            pass  # the walk usually raises an error at the damage
        reason = (
            f"records at {offsets_text(first, last.next_offset - 1)} existed, but are missing now"
        )
    else:
        return
    raise CorruptBatch(reason, at=0, offset=offset).located(segment.log_path, last.position)


def was_never_cleaned(
    fs: FileSystem, directory: str, config: TopicConfig, name: TopicPartition
) -> bool:
    """Return whether it is certain that no records were removed from the middle of a log.

    Args:
        fs: Files.
        directory: The partition's directory.
        config: The topic's settings.
        name: The partition.

    Raises:
        OSError: The disk failed.
    """
    if _is_cleaned(config, name):
        return False
    if fs.exists(f"{directory}/{HISTORY_FILE}") or has_copied_gaps(fs, directory):
        return False
    root = posixpath.dirname(directory)
    checkpoint = f"{root}/{files.CLEANER_CHECKPOINT_FILE}"
    if not (fs.exists(f"{root}/{TOPICS_FILE}") or fs.exists(checkpoint)):
        return False
    try:
        cleaned = text_files.read_offset_checkpoint(fs, checkpoint)
    except CorruptFile:
        return False
    return name not in cleaned


def _is_cleaned(config: TopicConfig, name: TopicPartition) -> bool:
    """Return whether cleaners may remove records from the middle of a topic's logs.

    Cleaners may remove such records if the topic is compacted or is an internal topic.
    """
    return CLEANUP_COMPACT in config.cleanup_policy or name.topic.startswith(_INTERNAL)


def lost_gap(name: TopicPartition, start: int, end: int) -> LostOffsets:
    """Return the description of a loss of the offsets [start, end)."""
    return LostOffsets(name.topic, name.partition, start, end, GAP_REASON)
