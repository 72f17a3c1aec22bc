"""The words that every layer shares: topic partitions, clocks, timestamp types, special values.

Owns no logic. Everything here is immutable.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, NewType, TypeAlias

# What every decoder accepts. (collections.abc.Buffer needs Python 3.12.)
Buffer: TypeAlias = bytes | bytearray | memoryview

Offset = NewType("Offset", int)
TimestampMs = NewType("TimestampMs", int)

NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

# Topics in which a broker keeps books: no client writes to them.
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)


class TimestampType(IntEnum):
    """Who set a record's timestamp. The values are part of the format, do not change them."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def config_name(self) -> str:
        """Kafka's spelling in `message.timestamp.type`, e.g. `CreateTime`."""
        return {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[self.value]


class ClockName(StrEnum):
    """Which of a record's two times a question is about (design: two clocks).

    `RECORD` is the timestamp that a Kafka consumer sees; `APPEND` is when the log took the record.
    """

    RECORD = "record"
    APPEND = "append"


class IsolationLevel(IntEnum):
    """Which records of transactions a reader sees. The values are those of Kafka's protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


# Those that there are; requests may name others.
ISOLATION_LEVELS: Final = frozenset(map(int, IsolationLevel))


class Codec(IntEnum):
    """Compression of a batch. The values are part of the format, do not change them."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """Kafka's spelling, e.g. `lz4`; no compression is `none`."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic; prints as Kafka's directory name, `flights-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndTimestamp(NamedTuple):
    """An answer of a search by time. Source: KIP-79.

    Attributes:
        offset: Logical offset of the record found.
        timestamp: Its time in ms on the clock that was asked.
        leader_epoch: Leader epoch of its batch, None where unknown.
        without_time: Records before it whose append time is unknown, in an answer on the append
            clock that a directory gives: each of them may be a match. 0 on the record clock, and
            in answers of brokers, which do not tell it.
    """

    offset: int
    timestamp: int
    leader_epoch: int | None = None
    without_time: int = 0


class RecordCount(int):
    """A number of records in a range of time, and of those that lie in no range.

    Attributes:
        without_time: Records of the topic that have no time on the clock.
        is_least: Whether there may be more of those, as `tidelog.scan.count.PartitionCount` says.
    """

    without_time: int
    is_least: bool

    def __new__(
        cls, records: int, *, without_time: int = 0, is_least: bool = False
    ) -> "RecordCount":
        """Make the number, which compares and adds as an int."""
        found = super().__new__(cls, records)
        found.without_time, found.is_least = without_time, is_least
        return found


@dataclass(frozen=True, slots=True)
class Header:
    """One record header: a UTF-8 key that is never null, and a value that may be."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record as a producer hands it in.

    Attributes:
        key: Serialized key, None for a record without one.
        value: Serialized value, None is a tombstone in a compacted topic.
        timestamp: Create time in ms; None asks for the log's clock, -1 means "has no time".
        headers: In the producer's order; keys may repeat.
    """

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()
