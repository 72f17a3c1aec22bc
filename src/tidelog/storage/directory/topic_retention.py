"""Retention of a whole topic on request: `Directory.retain`, `tidelog retain`.

Brokers, tier runs and standbys apply retention themselves. Source: docs/retention.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.segment_story import due_deletions
from tidelog.storage.segment.retention import Deletion, RetentionRule
from tidelog.storage.segment.segment import Segment
from tidelog.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSegment:
    """A segment that retention deletes, or has deleted.

    Attributes:
        partition: Its partition.
        base_offset: Its base offset.
        end_offset: Offset after its last record, exclusive.
        size_bytes: Size of its log file.
        rule: The rule that deletes it.
        reason: The rule with its figures.
    """

    partition: TopicPartition
    base_offset: int
    end_offset: int
    size_bytes: int
    rule: RetentionRule
    reason: str


def retain(log_dir: LogDir, topic: str, *, dry_run: bool) -> list[DueSegment]:
    """Delete a topic's expired segments, or with `dry_run` only find them; in order of offsets.

    Raises:
        UnknownTopic: No such topic.
        ReadOnly: The directory is open for reading, and this is no dry run.
        StorageFailure: The disk failed; the partition is offline.
    """
    by_age, config = log_dir.knows_age_limit(topic), log_dir.topic(topic).config
    if not by_age:
        config = replace(config, retention_ms=-1)
    due: list[DueSegment] = []
    for name in log_dir.partitions(topic):
        if dry_run:
            reader = log_dir.reader(topic, name.partition)
            due += _named(name, reader.segments, due_deletions(reader, config))
            continue
        log = log_dir.log(topic, name.partition)
        before = log.segments
        due += _named(name, before, log.apply_retention(by_age=by_age))
    return due


def _named(
    partition: TopicPartition, segments: Sequence[Segment], deletions: Sequence[Deletion]
) -> list[DueSegment]:
    """Return deletions with the segments before the deletion."""
    by_base = {segment.base_offset: segment for segment in segments}
    return [
        DueSegment(
            partition=partition,
            base_offset=one.base_offset,
            end_offset=by_base[one.base_offset].end_offset,
            size_bytes=by_base[one.base_offset].size_bytes,
            rule=one.rule,
            reason=one.reason,
        )
        for one in deletions
    ]
