"""A cluster in memory (`ClusterView` on lists), and records for two such clusters."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.errors import GroupActive, NotAuthorized, OffsetOutOfRange, UnknownGroup, UnknownTopic
from tidelog.jobs.failover.measure import Arrival, MeasuredCluster
from tidelog.remote.view import Committed, Group, GroupOffsets, Member, RemoteRecord, Watermarks
from tidelog.types import (
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TimestampType,
    TopicPartition,
)

CREATE = TimestampType.CREATE_TIME
APPEND = TimestampType.LOG_APPEND_TIME


@dataclass(slots=True)
class MemoryCluster:
    """A cluster of lists. Lookups by time return the first match, as Kafka's lookups usually do."""

    bootstrap: str = "memory:1"
    logs: dict[TopicPartition, list[RemoteRecord]] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    members: dict[str, tuple[Member, ...]] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    blind: set[TopicPartition] = field(default_factory=set)

    def create(
        self, topic: str, partitions: int = 1, kind: TimestampType = CREATE
    ) -> "MemoryCluster":
        for number in range(partitions):
            self.logs[TopicPartition(topic, number)] = []
            self.ends[TopicPartition(topic, number)] = 0
        self.settings[topic] = {"message.timestamp.type": kind.config_name}
        return self

    def append(
        self,
        partition: TopicPartition,
        timestamp: int | None,
        key: bytes | None = b"k",
        value: bytes | None = b"v",
    ) -> int:
        """Append a record with the timestamp that readers see; return the record's offset."""
        kind = self.settings[partition.topic]["message.timestamp.type"]
        offset = self.ends[partition]
        self.logs[partition].append(
            RemoteRecord(
                offset=offset,
                timestamp=timestamp,
                timestamp_type=APPEND if kind == APPEND.config_name else CREATE,
                key=key,
                value=value,
            )
        )
        self.ends[partition] = offset + 1
        return offset

    def skip(self, partition: TopicPartition, count: int = 1) -> None:
        """Add offsets that have no data record, as after a marker or a compaction."""
        self.ends[partition] += count

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        self.log_starts[partition] = offset
        self.logs[partition] = [r for r in self.logs[partition] if r.offset >= offset]

    def commit_at(self, group: str, partition: TopicPartition, offset: int) -> None:
        self.offsets.setdefault(group, {})[partition] = Committed(offset)

    # -- ClusterView -------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        return dict(Counter(partition.topic for partition in self.logs))

    def partitions(self, topic: str) -> list[TopicPartition]:
        found = sorted(partition for partition in self.logs if partition.topic == topic)
        if not found:
            raise UnknownTopic(f"{self.bootstrap} has no topic {topic}")
        return found

    def topic_id(self, topic: str) -> str:
        return f"id-of-{topic}"

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        return self.settings[topic]

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        return {p: Watermarks(self.log_starts.get(p, 0), self.ends[p]) for p in partitions}

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {p: None if p in self.blind else self.first(p, ms) for p, ms in times.items()}

    def first(self, partition: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        for record in self.logs[partition]:
            if record.timestamp is not None and record.timestamp >= time_ms:
                return OffsetAndTimestamp(record.offset, record.timestamp)
        return None

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition in partitions:
            timed = [(r.timestamp, -r.offset) for r in self.logs[partition] if r.timestamp]
            best = max(timed, default=None)
            found[partition] = None if best is None else OffsetAndTimestamp(-best[1], best[0])
        return found

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {}

    def search_append_times(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, TimeMatch]:
        return {}

    def groups(self) -> list[str]:
        return sorted(self.offsets.keys() | self.members.keys())

    def group(self, name: str) -> Group:
        members = self.members.get(name, ())
        if not members and name not in self.offsets:
            raise UnknownGroup(f"no group {name}")
        return Group(name, "Stable" if members else "Empty", members)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        found = self.offsets.get(group, {})
        return {p: found.get(p) for p in (found if partitions is None else partitions)}

    def group_offsets(
        self,
        groups: Sequence[str],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        denied: dict[str, NotAuthorized] | None = None,
    ) -> dict[str, GroupOffsets]:
        existing = self.groups()
        return {
            name: GroupOffsets(
                self.group(name) if name in existing else None, self.committed(name, partitions)
            )
            for name in groups
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        if self.members.get(group):
            raise GroupActive(f"group {group} has active members")
        self.offsets.setdefault(group, {}).update(offsets)

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        return {p: next(self.records(p, at, self.ends[p]), None) for p, at in offsets.items()}

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        first = self.log_starts.get(partition, 0)
        if not first <= start <= self.ends[partition]:
            raise OffsetOutOfRange(start, first, self.ends[partition], where=str(partition))
        for record in self.logs[partition]:
            if start <= record.offset < end:
                yield record


@dataclass(slots=True)
class MemoryTail:
    """A log for measurements. Each record is (partition, create time, arrival time), in ms."""

    seen: list[tuple[TopicPartition, int | None, int]] = field(default_factory=list)
    kind: TimestampType = CREATE

    def arrivals(self, partitions: Iterable[TopicPartition], for_ms: int) -> Iterable[Arrival]:
        wanted = set(partitions)
        for offset, (partition, timestamp, arrival_ms) in enumerate(self.seen):
            if partition in wanted:
                yield Arrival(partition, offset, timestamp, self.kind, arrival_ms)


def watched(name: str, cluster: MemoryCluster, tail: MemoryTail | None = None) -> MeasuredCluster:
    return MeasuredCluster(name, cluster, tail or MemoryTail())


@dataclass(frozen=True, slots=True)
class Sent:
    """A record sent to both clusters; all times are in ms."""

    number: int
    created_ms: int
    to_a_ms: int
    to_b_ms: int

    def reaches_ms(self, cluster: str) -> int:
        return self.created_ms + (self.to_a_ms if cluster == "a" else self.to_b_ms)


def fill(
    cluster: MemoryCluster,
    topic: str,
    sent: Iterable[Sent],
    *,
    to: str,
    partition_count: int = 1,
    shift: int = 0,
) -> None:
    """Append records in the order in which they reach this cluster (`to` is a or b).

    A record's value is its `number`; its partition is (`number` + `shift`) modulo the number of
    partitions.
    """
    append_timed = cluster.settings[topic]["message.timestamp.type"] == APPEND.config_name
    for one in sorted(sent, key=lambda s: (s.reaches_ms(to), s.number)):
        appended_ms = one.reaches_ms(to)
        partition = TopicPartition(topic, (one.number + shift) % partition_count)
        cluster.append(
            partition,
            appended_ms if append_timed else one.created_ms,
            key=b"%d" % one.number,
            value=b"%d" % one.number,
        )
