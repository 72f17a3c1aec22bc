"""What lies where of a partition; asked of the directory alone."""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


class TierStatus(NamedTuple):
    """A partition's two tiers.

    Attributes:
        topic_partition: The partition.
        url: Of its folder in the store, "" where it has no tier.
        log_start_offset: Where the log starts, over both.
        local_start_offset: From here on local files hold it.
        tier_end_offset: Up to here the tier holds it.
        log_end_offset: Where the log ends.
        tier_segments: Segments in the tier.
        tier_bytes: Bytes of their objects.
        local_segments: Segments in the directory.
        local_bytes: Bytes of their logs.
        waiting_segments: Finished local segments that the tier lacks.
        waiting_bytes: Bytes of their logs.
        garbage_segments: Segments that left the manifest and are not removed yet.
    """

    topic_partition: TopicPartition
    url: str
    log_start_offset: int
    local_start_offset: int
    tier_end_offset: int
    log_end_offset: int
    tier_segments: int
    tier_bytes: int
    local_segments: int
    local_bytes: int
    waiting_segments: int
    waiting_bytes: int
    garbage_segments: int


def tier_status(log_dir: "LogDir", name: TopicPartition) -> TierStatus:
    """What lies where of a partition.

    Raises:
        UnknownTopic: No such partition.
        CorruptFile: The record of the tier can't be read.
    """
    log = log_dir.reader(name.topic, name.partition)
    local = log.local_segments
    record = None if log.tier is None else log.tier.record
    manifest = None if record is None else record.manifest
    end = log.log_start_offset if manifest is None else manifest.end_offset
    waiting = [s for s in local if not s.is_active and s.base_offset >= end and s.size_bytes]
    return TierStatus(
        topic_partition=name,
        url="" if record is None else f"{record.url}/{record.folder}",
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_start_offset,
        tier_end_offset=end,
        log_end_offset=log.log_end_offset,
        tier_segments=0 if manifest is None else len(manifest.segments),
        tier_bytes=0 if manifest is None else manifest.size_bytes,
        local_segments=len(local),
        local_bytes=sum(segment.size_bytes for segment in local),
        waiting_segments=len(waiting),
        waiting_bytes=sum(segment.size_bytes for segment in waiting),
        garbage_segments=0 if manifest is None else len(manifest.garbage),
    )
