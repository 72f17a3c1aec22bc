"""Whether partition n of a topic holds the same keys on two clusters.

Equal numbers prove nothing: producers may hash keys differently (Java's murmur2, librdkafka's
crc32), and records without a key go anywhere. Where the same function of the key explains the
partitions of a sample on both clusters, partition n corresponds to partition n. Else a record of
any partition of A may be in any of B, and the earliest time of all counts for all.

The sample is the last records; `failover_verify` looks at all that matter.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidelog.cluster.view import ClusterView
from tidelog.storage.partitioner import partition_of
from tidelog.types import TopicPartition

# Among two partitions, chance explains so many keys once in a million cases.
KEYS_MIN: Final = 20
_SAMPLE_PER_PARTITION: Final = 100


class PartitionMapping(StrEnum):
    """What is assumed, or found, about partitions of the same number."""

    AUTO = "auto"
    SAME = "same"
    ANY = "any"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Mapped:
    """SAME or ANY for one topic, or MAP where a mirror's map tells all; and why."""

    mapping: PartitionMapping
    reason: str

    @property
    def sentence(self) -> str:
        """For people: what counts for a partition of B, and why."""
        if self.mapping is PartitionMapping.SAME:
            return f"partition N on B follows partition N on A: {self.reason}"
        if self.mapping is PartitionMapping.MAP:
            return f"the map of the mirror tells where records went: {self.reason}"
        return f"the earliest time of all partitions counts for each: {self.reason}"


@dataclass(frozen=True, slots=True)
class SampledKey:
    """The key of a record, None for none, and the partition it lies in."""

    partition: int
    key: bytes | None


def _crc32(key: bytes, partition_count: int) -> int:
    """Librdkafka's default, `consistent_random`. Source: its CONFIGURATION.md."""
    return zlib.crc32(key) % partition_count


PARTITIONERS: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    "murmur2": partition_of,
    "crc32": _crc32,
}


def map_partitions(
    a: ClusterView,
    b: ClusterView,
    topic: str,
    asked: PartitionMapping = PartitionMapping.AUTO,
    *,
    topic_on_b: str | None = None,
) -> Mapped:
    """How the topic's partitions correspond; what was asked for counts where it can be."""
    topic_on_b = topic_on_b or topic
    here, there = len(a.partitions(topic)), len(b.partitions(topic_on_b))
    if here != there:
        reason = f"{topic} has {here} partitions on A and {there} on B"
        return Mapped(PartitionMapping.ANY, reason)
    if asked is not PartitionMapping.AUTO:
        return Mapped(asked, "as asked for")
    if here == 1:
        return Mapped(PartitionMapping.SAME, "there is one partition only")
    return judge_keys(sample_keys(a, topic), sample_keys(b, topic_on_b), here)


def sample_keys(view: ClusterView, topic: str) -> list[SampledKey]:
    """Keys of the last records of each partition."""
    found: list[SampledKey] = []
    for partition, marks in view.watermarks(view.partitions(topic)).items():
        start = max(marks.end - _SAMPLE_PER_PARTITION, marks.start)
        records = view.records(partition, start, marks.end)
        found.extend(SampledKey(partition.partition, record.key) for record in records)
    return found


def judge_keys(a: Iterable[SampledKey], b: Iterable[SampledKey], partition_count: int) -> Mapped:
    """SAME where one function of the key explains both samples, else ANY, and why."""
    names = []
    for cluster, sample in (("A", list(a)), ("B", list(b))):
        if any(seen.key is None for seen in sample):
            reason = f"records without a key on {cluster} go to any partition"
            return Mapped(PartitionMapping.ANY, reason)
        distinct = {seen.key for seen in sample}
        if len(distinct) < KEYS_MIN:
            reason = (
                f"{len(distinct)} keys on {cluster} are too few to see how they are spread"
                f" ({KEYS_MIN} are needed)"
            )
            return Mapped(PartitionMapping.ANY, reason)
        names.append(partitioner_of(sample, partition_count))
    if names[0] is None or names[0] != names[1]:
        shown = [name or "no function known here" for name in names]
        return Mapped(
            PartitionMapping.ANY, f"keys are spread by {shown[0]} on A, by {shown[1]} on B"
        )
    return Mapped(PartitionMapping.SAME, f"keys are spread by {names[0]} on both clusters")


def partitioner_of(sample: Iterable[SampledKey], partition_count: int) -> str | None:
    """The function that explains all keys' partitions, None where none does."""
    keys = {(seen.partition, seen.key) for seen in sample if seen.key is not None}
    for name, function in PARTITIONERS.items():
        if all(function(key, partition_count) == partition for partition, key in keys):
            return name
    return None


def sources_of(
    partition: TopicPartition,
    mapped: Mapped,
    on_a: Iterable[TopicPartition],
    topics: Collection[str],
) -> list[TopicPartition]:
    """The partitions of A whose records may lie in a partition of B.

    Args:
        partition: On B.
        mapped: How partitions correspond.
        on_a: Partitions of A.
        topics: The topics on A whose records B's topic has.
    """
    sources = [source for source in on_a if source.topic in topics]
    if mapped.mapping is PartitionMapping.SAME:
        return [source for source in sources if source.partition == partition.partition]
    return sources
