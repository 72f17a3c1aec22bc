"""Fake cluster with logs and groups in memory, to test code that uses a `ClusterView`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidelog.errors import GroupActive, NotAuthorized, OffsetOutOfRange, UnknownGroup, UnknownTopic
from tidelog.remote.view import Committed, Group, GroupOffsets, Member, RemoteRecord, Watermarks
from tidelog.types import (
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TimestampType,
    TopicPartition,
)

FLIGHTS_0 = TopicPartition("flights", 0)


def record(
    offset: int,
    timestamp: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> RemoteRecord:
    return RemoteRecord(
        offset=offset, timestamp=timestamp, timestamp_type=timestamp_type, leader_epoch=0
    )


@dataclass(slots=True)
class FakeLog:
    """A partition's data records and bounds; an offset below `end` without a record is a gap."""

    records: list[RemoteRecord]
    start: int = 0
    end: int = -1
    stable: int | None = None  # last stable offset, if a transaction is open
    # Whether lookups return no match. Kafka does so if the first matches of a segment are below the
    # log start.
    hides_matches: bool = False

    def __post_init__(self) -> None:
        if self.end < 0:
            self.end = self.records[-1].offset + 1 if self.records else self.start

    @property
    def visible(self) -> list[RemoteRecord]:
        return [r for r in self.records if self.start <= r.offset < self.end]


@dataclass(slots=True)
class FakeCluster:
    """A `ClusterView` in memory; a group with `members` is active."""

    logs: dict[TopicPartition, FakeLog] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    members: dict[str, list[Member]] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    bootstrap: str = "nowhere:9092"
    unreadable: set[str] = field(default_factory=set)
    records_read: int = 0

    def with_log(self, partition: TopicPartition, *timestamps: int | None) -> "FakeCluster":
        """Add a partition whose offsets 0, 1, ... have these timestamps."""
        self.logs[partition] = FakeLog([record(n, ms) for n, ms in enumerate(timestamps)])
        return self

    def stamp(self, partition: TopicPartition, first: int = 0) -> None:
        """Switch a topic to LogAppendTime, as if this had happened before offset `first`."""
        self.settings[partition.topic] = {"message.timestamp.type": "LogAppendTime"}
        log = self.logs[partition]
        log.records = [
            replace(r, timestamp_type=TimestampType.LOG_APPEND_TIME) if r.offset >= first else r
            for r in log.records
        ]

    def put(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets without checks."""
        told = {p: Committed(offset) for p, offset in offsets.items()}
        self.offsets.setdefault(group, {}).update(told)

    def topics(self) -> dict[str, int]:
        return dict(Counter(partition.topic for partition in self.logs))

    def partitions(self, topic: str) -> list[TopicPartition]:
        found = sorted(p for p in self.logs if p.topic == topic)
        if not found:
            raise UnknownTopic(topic)
        return found

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        return {"message.timestamp.type": "CreateTime"} | self.settings.get(topic, {})

    def topic_id(self, topic: str) -> str | None:
        return self.topic_ids.get(topic)

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        logs = {p: self.logs[p] for p in partitions}
        if isolation is IsolationLevel.READ_COMMITTED:
            stable = {p: one.end if one.stable is None else one.stable for p, one in logs.items()}
            return {p: Watermarks(one.start, stable[p]) for p, one in logs.items()}
        return {p: Watermarks(one.start, one.end) for p, one in logs.items()}

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {p: self._lookup(self.logs[p], ms) for p, ms in times.items()}

    def _lookup(self, log: FakeLog, ms: int) -> OffsetAndTimestamp | None:
        for found in log.visible:
            if found.timestamp is not None and found.timestamp >= ms and not log.hides_matches:
                return OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch)
        return None

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for p in partitions:
            timed = [(r.timestamp, -r.offset) for r in self.logs[p].records if r.timestamp]
            found[p] = OffsetAndTimestamp(-max(timed)[1], max(timed)[0]) if timed else None
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
        if name not in self.offsets and name not in self.members:
            raise UnknownGroup(name)
        members = tuple(self.members.get(name, ()))
        return Group(name, "Stable" if members else "Empty", members)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        known = self.offsets.get(group, {})
        return {p: known.get(p) for p in (known if partitions is None else partitions)}

    def group_offsets(
        self,
        groups: Sequence[str],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        denied: dict[str, NotAuthorized] | None = None,
    ) -> dict[str, GroupOffsets]:
        for name in sorted(self.unreadable.intersection(groups)):
            error = NotAuthorized(self.bootstrap, f"describe group {name}", "denied")
            if denied is None:
                raise error
            denied[name] = error
        return {
            name: GroupOffsets(
                self.group(name) if name in self.offsets or name in self.members else None,
                self.committed(name, partitions),
            )
            for name in groups
            if name not in self.unreadable
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        if self.members.get(group):
            raise GroupActive(group)
        self.offsets.setdefault(group, {}).update(offsets)

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        return {
            p: next(iter(self.records(p, offset, self.logs[p].end)), None)
            for p, offset in offsets.items()
        }

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        log = self.logs[partition]
        if not log.start <= start <= log.end:
            raise OffsetOutOfRange(start, log.start, log.end, where=str(partition))
        for found in log.visible:
            if start <= found.offset < end:
                self.records_read += 1
                yield found
