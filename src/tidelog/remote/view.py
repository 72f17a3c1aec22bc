"""Protocol class for the calls to a cluster, and the classes of their arguments and results.

`cluster.Cluster` implements the calls with brokers; tests implement them in memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tidelog.errors import NotAuthorized
from tidelog.lazy_dataclass import dataclass
from tidelog.types import (
    Header,
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TimestampType,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Start (inclusive) and end (exclusive) of a partition's visible records."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Commit of a group for a partition: next offset to read, leader epoch of the record before it.

    Commit metadata (a text) is left out, because confluent-kafka 2.16 reads beyond the end of the
    text, and writes the text with an extra NUL byte. Commits by Kafka's tools have no metadata
    either.
    """

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """Number of records.

    Attributes:
        records: The number of records.
        is_exact: Whether the number is exact.
        is_bound: For a number that is not exact: True if it is an upper bound, False if it is an
            estimate.
    """

    records: int
    is_exact: bool
    is_bound: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRecord:
    """A record as a broker returned it to a consumer.

    Attributes:
        offset: Logical offset.
        timestamp: Record timestamp in ms, None if the record has none.
        timestamp_type: CreateTime or LogAppendTime.
        leader_epoch: Leader epoch of the record's batch, None if unknown.
        key: Serialized key, None if the record has none.
        value: Serialized value, None for a tombstone.
        headers: Headers in the producer's order.
    """

    offset: int
    timestamp: int | None
    timestamp_type: TimestampType
    leader_epoch: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """One live member of a group, with its assigned partitions."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its state as Kafka names it (`Empty`, `Stable`, ...) and its members."""

    name: str
    state: str
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A consumer group with its committed offsets.

    Attributes:
        group: The group, None if the cluster has no such group.
        committed: The group's commit for each partition, None for no commit.
    """

    group: Group | None
    committed: Mapping[TopicPartition, Committed | None]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group in a listing, with its state and type as Kafka names them."""

    name: str
    state: str
    kind: str


class ClusterView(Protocol):
    """Calls to a cluster.

    A result has an entry for each requested partition, unless stated otherwise. All calls raise
    ClusterFailure if the cluster refuses or can't be reached.
    """

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers as `host:port[,...]`."""
        ...

    def topics(self) -> dict[str, int]:
        """Return all topics, each with its count of partitions."""
        ...

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic; raises UnknownTopic."""
        ...

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings that apply to a topic and have a value, under Kafka's names."""
        ...

    def topic_id(self, topic: str) -> str | None:
        """Return the topic's id as Kafka prints it; None if the brokers have no topic ids."""
        ...

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        """Return log start offsets and high watermarks (READ_COMMITTED: last stable offsets)."""
        ...

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's first record, by offset, whose time is at or after a given time.

        The value of a partition without such a record is None.
        """
        ...

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's record with the largest timestamp; None if no record has one."""
        ...

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return append times in ms of the records at these offsets.

        A partition has no entry if its record's append time is unknown.
        """
        ...

    def search_append_times(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, TimeMatch]:
        """Return each partition's first record that was appended at `time_ms` or later.

        A partition with records has no entry if its leader is no tidelog broker, because only
        tidelog's brokers look up append times. A partition also has no entry if its leader can be
        reached only through librdkafka.
        """
        ...

    def groups(self) -> list[str]:
        """Return the names of all consumer groups, sorted."""
        ...

    def group(self, name: str) -> Group:
        """Return a consumer group; raises UnknownGroup."""
        ...

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """Return a group's committed offsets, by default for all partitions; None for no commit."""
        ...

    def group_offsets(
        self,
        groups: Sequence[str],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        denied: dict[str, NotAuthorized] | None = None,
    ) -> dict[str, GroupOffsets]:
        """Return each group with its committed offsets (see `committed`), by concurrent requests.

        The error of a group on which the client has no rights is added to `denied`, and the group
        is left out of the result. If `denied` is None, the error is raised.
        """
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets for a group without members; raises GroupActive if it has members."""
        ...

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        """Return the first data record at or after each offset; None if the log has none."""
        ...

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        """Yield the data records with offsets in [start, end), in order."""
        ...
