"""Finding records by timestamp on brokers whose own search may miss some."""

from collections.abc import Mapping

from tidelog.cluster.view import ClusterView, Watermarks
from tidelog.types import OffsetAndTimestamp, TopicPartition


def first_at_or_after(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record in each log whose timestamp is `time_ms` or later, None where there is none.

    Kafka answers "none" where all matches of the first segment that has some were deleted, though
    later segments may hold more (docs/differences.md). Where it says so and yet knows a timestamp
    as late, the records themselves are read.
    """
    found = cluster.offsets_for_times(dict.fromkeys(marks, time_ms))
    unsure = [p for p, answer in found.items() if answer is None and marks[p].start < marks[p].end]
    latest = cluster.max_timestamps(unsure)
    for partition in unsure:
        largest = latest[partition]
        if largest is not None and largest.timestamp >= time_ms:
            found[partition] = first_by_reading(cluster, partition, marks[partition], time_ms)
    return found


def first_by_reading(
    cluster: ClusterView, partition: TopicPartition, mark: Watermarks, time_ms: int
) -> OffsetAndTimestamp | None:
    """The same for one log, by reading its records from the start until the match."""
    for record in cluster.records(partition, mark.start, mark.end):
        if record.timestamp is not None and record.timestamp >= time_ms:
            return OffsetAndTimestamp(record.offset, record.timestamp, record.leader_epoch)
    return None
