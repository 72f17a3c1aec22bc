"""Gaps between segments: offsets that are gone from the middle of a log, and when that is a loss.

A log that nobody takes records from has every offset from its start to its end: aborted records,
markers of transactions and leader changes keep theirs, retention and DeleteRecords take from the
start. Compaction and erasing take records from the middle. So a gap is a loss where the topic is
not compacted, and nothing says that it ever was: neither `compaction-history`, which erasing writes
as well, nor the mark of gaps that were copied from a leader, nor Kafka's
`cleaner-offset-checkpoint`, nor a gap within the segment before it, nor its zone map, which knows
where it ended when the map was built. Where a directory has neither our settings nor Kafka's
checkpoint, such as a copy of a single partition, nobody knows, and a gap is none.

Keeps no state.
"""

import posixpath
from typing import Final

from tidelog.config import CLEANUP_COMPACT, TopicConfig
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, LostOffsets, OffsetsGone
from tidelog.storage import files, text_files
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction_history import HISTORY_FILE
from tidelog.storage.log_end import has_copied_gaps
from tidelog.storage.segment import Segment, SegmentContext
from tidelog.storage.topics_file import TOPICS_FILE
from tidelog.types import TopicPartition

GAP_REASON: Final = (
    "they lie between two segments and in none; the topic is not compacted and never was, so a"
    " segment or its end is gone"
)
_INTERNAL: Final = "__"


def is_gap_loss(context: SegmentContext, segment: ClosedSegment) -> bool:
    """Whether offsets that a finished segment lacks at its end are lost, as far as is proven."""
    fs, name = context.env.files, context.topic_partition
    if not was_never_cleaned(fs, context.directory, context.config, name):
        return False
    zones = segment.zones
    return zones is None or zones.end_offset < segment.end_offset


def ensure_no_gap(segment: Segment, start: int, end: int) -> None:
    """Raise OffsetsGone where a segment lacks offsets [start, end) and that is a loss."""
    if start < end and isinstance(segment, ClosedSegment):
        context = segment.context
        if is_gap_loss(context, segment):
            raise OffsetsGone((lost_gap(context.topic_partition, start, end),))


def was_never_cleaned(
    fs: FileSystem, directory: str, config: TopicConfig, name: TopicPartition
) -> bool:
    """Whether nobody has taken records from the middle of a log, as far as can be proven.

    Args:
        fs: Files.
        directory: The partition's directory.
        config: The topic's settings.
        name: The partition.

    Raises:
        OSError: The disk failed.
    """
    if CLEANUP_COMPACT in config.cleanup_policy or name.topic.startswith(_INTERNAL):
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


def lost_gap(name: TopicPartition, start: int, end: int) -> LostOffsets:
    """The loss of offsets [start, end)."""
    return LostOffsets(name.topic, name.partition, start, end, GAP_REASON)
