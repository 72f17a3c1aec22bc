"""The map of a mirror, and its expected content."""

from collections.abc import Mapping

from tidelog.env import os_env
from tidelog.jobs.offset_map import OffsetMap, SourcePartition, read_map
from tidelog.record.record import Record


def map_of(checkpoint: str) -> OffsetMap:
    """Return the map in a mirror's checkpoint."""
    return read_map(os_env().files, f"{checkpoint}/offsets.map")


def check_map(
    found: OffsetMap,
    sources: Mapping[int, list[list[Record]]],
    target: list[list[Record]],
    *,
    exactly: bool = False,
) -> None:
    """Compare a map with the records themselves, which are identified by their values.

    Args:
        found: The map.
        sources: For each source, by its number in the map, the records of each partition.
        target: The records of each partition of the one target topic.
        exactly: Whether the map must give the offset of each record's copy, not one before it.
    """
    places = {
        record.value: (partition, record.offset)
        for partition, records in enumerate(target)
        for record in records
    }
    for number, partitions in sources.items():
        topic = found.sources[number].target
        for partition, records in enumerate(partitions):
            end = max((record.offset + 1 for record in records), default=0)
            for offset in range(found.copied[SourcePartition(number, partition)].start, end + 1):
                unread = [places.get(r.value) for r in records if r.offset >= offset]
                starts = found.starts(SourcePartition(number, partition), offset)
                for at, start in starts.items():
                    assert at.topic == topic
                    there = [one[1] for one in unread if one and one[0] == at.partition]
                    first = min(there, default=found.ends[at])
                    assert start.offset <= first
                    if exactly:
                        assert start.offset == first
    for at, end in found.ends.items():
        records = target[at.partition]
        assert end == (records[-1].offset + 1 if records else 0), at
