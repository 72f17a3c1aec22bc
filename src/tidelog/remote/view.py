"""The questions that a cluster answers, as a protocol, and its plain values. No input or output.

`cluster.Cluster` answers them from brokers, tests answer them from memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog.types import Header, IsolationLevel, OffsetAndTimestamp, TimestampType, TopicPartition


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Where a partition's visible records begin (inclusive) and end (exclusive)."""

    start: int
    end: int


class Appended(NamedTuple):
    """An answer of a search by append time.

    Attributes:
        hit: The first record appended at the time or later, None where none was.
        without_time: Records before it (all where there is none) whose append time is unknown;
            None where the brokers don't tell the number.
    """

    hit: OffsetAndTimestamp | None
    without_time: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """Commit of a group for a partition: the next offset to read, and the epoch before it.

    Without the text that a commit may carry: confluent-kafka 2.16 reads it past its end, and writes
    it with a NUL byte more than was given. Commits of ours carry none, as those of Kafka's tools.
    """

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """A number of records; where it is not exact, there are that many at most."""

    records: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRecord:
    """One record as a consumer got it from a broker.

    Attributes:
        offset: Logical offset.
        timestamp: Record timestamp in ms, None where it has none.
        timestamp_type: Whose time that is.
        leader_epoch: Leader epoch of its batch, None where unknown.
        key: Serialized key, None for none.
        value: Serialized value, None for a tombstone.
        headers: In the producer's order.
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
    """One live member of a group, with what it is assigned."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its state in Kafka's words (`Empty`, `Stable`, ...) and its members."""

    name: str
    state: str
    members: tuple[Member, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether somebody consumes with it now, or is about to."""
        return bool(self.members)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group as a list of them names it: its state and kind in Kafka's words."""

    name: str
    state: str
    kind: str


class ClusterView(Protocol):
    """The questions; every answer holds all partitions asked, and all raise ClusterFailure."""

    @property
    def bootstrap(self) -> str:
        """Where it is, `host:port[,...]`."""
        ...

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; raises UnknownTopic."""
        ...

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        """The settings in force, under Kafka's names."""
        ...

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as Kafka prints it, None where the cluster has none."""
        ...

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        """Log start, and high watermark or (READ_COMMITTED) last stable offset."""
        ...

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record whose timestamp is the time in ms or later, None where there is none."""
        ...

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The record with the largest timestamp, None where no record has one."""
        ...

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """When the records at these offsets were appended, in ms, where brokers tell it."""
        ...

    def first_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record appended at a time or later, of partitions whose brokers tell times."""
        ...

    def search_append_times(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, Appended]:
        """A search by append time, of partitions whose brokers make one: ours, in plain text."""
        ...

    def group(self, name: str) -> Group:
        """A consumer group; raises UnknownGroup."""
        ...

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """What a group committed, of all its partitions where None; None for no commit."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit for a group without members; raises GroupActive where it has some."""
        ...

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        """The first data record at or behind an offset, None where the log ends before one."""
        ...

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        """The data records with offsets in [start, end), in order."""
        ...
