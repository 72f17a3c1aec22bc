"""The words that every layer shares: topic partitions, clocks, timestamp types, special values.

Everything here is immutable. Its only logic is what `NewRecord` takes, and what choices take.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from operator import index
from typing import Final, Literal, NamedTuple, NewType, Self, TypeAlias

from tidelog.errors import InvalidRequest, InvalidTime, InvalidTimestamp

# What every decoder accepts. (collections.abc.Buffer needs Python 3.12.)
Buffer: TypeAlias = bytes | bytearray | memoryview

Offset = NewType("Offset", int)

NO_TIMESTAMP: Final = -1
# In place of a time in ms that the log does not know, such as an append time.
UNKNOWN_MS: Final = -1
NO_OFFSET: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

# Bytes of one split of a scan, unless the caller gives a size.
SPLIT_BYTES: Final = 128 << 20

# Topics in which a broker keeps books: no client writes to them.
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
UINT32_MAX: Final = 2**32 - 1
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

# Highest TCP port.
PORT_MAX: Final = 65_535

MS_PER_SECOND: Final = 1_000
NS_PER_MS: Final = 1_000_000
US_PER_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Times that stand for an offset in ListOffsets. Source: Kafka's protocol guide.
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
# Offsets that stand for the ends of a log, as Spark's Kafka connector has them.
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2


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


# What public calls take for a choice: a member, or its text.
Isolation: TypeAlias = IsolationLevel | Literal["read_uncommitted", "read_committed"]
Compression: TypeAlias = Codec | Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic; prints as Kafka's directory name, `flights-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# Topics and single partitions that a call is about; all topics where None.
TopicChoice: TypeAlias = str | TopicPartition | Iterable[str | TopicPartition] | None


class OffsetAndTimestamp(NamedTuple):
    """An answer of a search by time. Source: KIP-79.

    Attributes:
        offset: Logical offset of the record found.
        timestamp: Its time in ms on the clock that was asked.
        leader_epoch: Leader epoch of its batch, None where unknown.
        without_time: Records before it whose append time is unknown, in an answer on the append
            clock: each of them may be a match. None where the number is not known, as from a Kafka
            broker. 0 on the record clock.
    """

    offset: int
    timestamp: int
    leader_epoch: int | None = None
    without_time: int | None = 0


class RecordCount(int):
    """A number of records in a range of time, and of those that lie in no range.

    Attributes:
        without_time: Records of the topic that have no time on the clock; None where brokers don't
            tell the number.
        is_least: Whether there may be more of those, as `tidelog.scan.count.PartitionCount` says.
    """

    without_time: int | None
    is_least: bool

    def __new__(
        cls, records: int, *, without_time: int | None = 0, is_least: bool = False
    ) -> "RecordCount":
        """Make the number, which compares and adds as an int."""
        count = super().__new__(cls, records)
        count.without_time, count.is_least = without_time, is_least
        return count


@dataclass(frozen=True, slots=True)
class Header:
    """One record header: a UTF-8 key that is never null, and a value that may be."""

    key: str
    value: bytes | None


_MS: Final = timedelta(milliseconds=1)
_TIME_FORM: Final = "a create time is 0 to 2^63-1 ms since 1970, or null for the log's clock"


def time_refused(value: str, where: str = "") -> InvalidTimestamp:
    """Return the error of a create time that no log should hold, the same by every way in."""
    return InvalidTimestamp(f"{where}{': ' if where else ''}timestamp {value}: {_TIME_FORM}")


def check_time(ms: int) -> int:
    """Return a time in ms that was made of a date; raises InvalidTimestamp for one before 1970."""
    if not 0 <= ms <= INT64_MAX:
        raise time_refused(f"{ms} ms")
    return ms


def whole_ms(given: object, name: str, *, rounds_up: bool, also: str) -> int:
    """Return a time that is given as whole ms since 1970, or as a datetime with a time zone.

    Args:
        given: The argument.
        name: What an error calls it.
        rounds_up: Whether parts of a ms in a datetime count as a whole one, or as none.
        also: What may be given as well, for the error.

    Raises:
        InvalidTime: A datetime without a time zone.
        InvalidRequest: Another type.
    """
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidTime(str(given), f"{name} has no time zone; give the datetime one")
        return -((EPOCH - given) // _MS) if rounds_up else (given - EPOCH) // _MS
    try:
        ms = index(given)  # type: ignore[arg-type]
    except TypeError:
        ms = None
    if ms is None or isinstance(given, bool):
        raise InvalidRequest(
            f"{name} is {given!r:.60} ({type(given).__name__}); give ms since 1970, a datetime with"
            f" a time zone, or {also}"
        )
    return ms


def _as_time(given: object) -> int:
    also = "None for the log's clock; `point()` of a directory reads text"
    ms = whole_ms(given, "timestamp", rounds_up=False, also=also)
    if isinstance(given, datetime):
        return check_time(ms)
    if not NO_TIMESTAMP <= ms <= INT64_MAX:
        raise time_refused(f"{ms} ms")
    return ms


def _as_bytes(name: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name} is text that UTF-8 can't hold: {error}") from error
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidRequest(f"{name} is {type(given).__name__}; give bytes, text or None")


def _as_headers(given: object) -> tuple[Header, ...]:
    """Return headers of `Header`s, of pairs as Kafka's Python clients take them, or of a dict."""
    if given is None:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    if isinstance(pairs, str | bytes | Header):
        pairs = None
    try:
        return tuple(_as_header(one) for one in pairs)  # type: ignore[attr-defined]
    except TypeError:
        raise InvalidRequest(
            f"headers {given!r:.60}; give Header(key, value), pairs (key, value), or a dict"
        ) from None


def _as_header(given: object) -> Header:
    if isinstance(given, Header):
        key, value = given.key, given.value
    elif isinstance(given, tuple | list) and len(given) == 2:
        key, value = given
    else:
        raise TypeError
    if not isinstance(key, str):
        raise InvalidRequest(f"the name of header {key!r:.60} is {type(key).__name__}; give text")
    return Header(key, _as_bytes(f"the value of header {key!r:.60}", value))


_PLAIN: Final = frozenset({bytes, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record as a producer hands it in.

    Attributes:
        key: Serialized key, None for a record without one. Text is stored as UTF-8.
        value: Serialized value, None is a tombstone in a compacted topic. Text is stored as UTF-8.
        timestamp: Create time in ms, or a datetime with a time zone, which is rounded down to ms.
            None asks for the log's clock, -1 means "has no time".
        headers: In the producer's order; keys may repeat. Pairs (key, value) and a dict are taken.

    Raises:
        InvalidTimestamp: A time before 1970 or over 2^63-1 ms.
        InvalidRequest: An argument of another type.
    """

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()

    def __post_init__(self) -> None:
        time, keep = self.timestamp, object.__setattr__
        if time is not None and (time.__class__ is not int or not -1 <= time <= INT64_MAX):
            keep(self, "timestamp", _as_time(time))
        if self.key.__class__ not in _PLAIN:
            keep(self, "key", _as_bytes("key", self.key))
        if self.value.__class__ not in _PLAIN:
            keep(self, "value", _as_bytes("value", self.value))
        if self.headers != ():
            keep(self, "headers", _as_headers(self.headers))

    @classmethod
    def of_log(
        cls,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        timestamp: int | None = None,
        headers: tuple[Header, ...] = (),
    ) -> Self:
        """Return a record that is in a log already: other programs write any time."""
        self, keep = object.__new__(cls), object.__setattr__
        for name, content in zip(
            ("key", "value", "timestamp", "headers"), (key, value, timestamp, headers), strict=True
        ):
            keep(self, name, content)
        return self
