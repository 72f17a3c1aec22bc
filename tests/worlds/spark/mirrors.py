"""Directories to mirror between, what they hold, and what a map must say of them."""

from collections.abc import Mapping, Sequence

from tidelog.cluster.offset_map import OffsetMap, SourcePartition
from tidelog.cluster.offset_map_file import read_map
from tidelog.directory import Directory
from tidelog.env import Env, ManualClock, os_env
from tidelog.record.record import Record
from tidelog.types import NewRecord

T0 = 1_700_000_000_000
KEEP_ALL = {"retention.ms": "-1"}


def make(path: str, topic: str, partitions: int = 1, **config: str) -> str:
    """A directory with an empty topic."""
    given = {name.replace("_", "."): text for name, text in config.items()}
    with Directory.open(path, writable=True, env=Env(clock=ManualClock(T0))) as directory:
        directory.create_topic(topic, partitions=partitions, config=KEEP_ALL | given)
    return path


def append(
    path: str, topic: str, partition: int, records: Sequence[NewRecord], now_ms: int = T0
) -> None:
    """One append, at a time of the log's clock."""
    with Directory.open(path, writable=True, env=Env(clock=ManualClock(now_ms))) as directory:
        directory.append(topic, records, partition=partition)


def held(path: str, topic: str) -> list[list[Record]]:
    """The records of each partition, in order."""
    with Directory.open(path) as directory:
        count = directory.topic(topic).partitions
        return [list(directory.partition(topic, number).records()) for number in range(count)]


def plain(records: Sequence[Record]) -> list[tuple[object, ...]]:
    """What a mirror keeps of records: all but their offsets."""
    return [(r.key, r.value, r.timestamp, r.headers) for r in records]


def append_times(path: str, topic: str, partition: int = 0) -> list[int]:
    """When the log took each record, by its own clock."""
    with Directory.open(path) as directory:
        read = directory.read(topic, columns=["partition", "offset", "appendTimestamp"])
        rows = sorted(read.read_all().to_pylist(), key=lambda row: int(row["offset"]))
    times = [row["appendTimestamp"] for row in rows if row["partition"] == partition]
    return [round(time.timestamp() * 1000) for time in times]


def map_of(checkpoint: str) -> OffsetMap:
    return read_map(os_env().files, f"{checkpoint}/offsets.map")


def check_map(
    found: OffsetMap,
    sources: Mapping[int, list[list[Record]]],
    target: list[list[Record]],
    *,
    exactly: bool = False,
) -> None:
    """Hold a map against the records themselves, which are known again by their values.

    Args:
        found: The map.
        sources: By number in the map, the records of each partition.
        target: The records of each partition of the one topic that they went into.
        exactly: Every start is that of the very record.
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
