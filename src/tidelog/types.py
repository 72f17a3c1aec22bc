"""Types that every layer shares: topic partitions, clocks, timestamp types, special values.

Objects are not changed after their creation. The module's only functions convert times, bytes and
headers, mostly for `NewRecord`.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from operator import index
from typing import Final, Literal, NamedTuple, NewType, Protocol, Self, TypeAlias

from tidelog.errors import InvalidRequest, InvalidTime, InvalidTimestamp
from tidelog.lazy_dataclass import dataclass

# Types that every decoder accepts. (collections.abc.Buffer needs Python 3.12.)
Buffer: TypeAlias = bytes | bytearray | memoryview


class ArrowStream(Protocol):
    """Rows as an Arrow stream, such as an Arrow table, or a data frame of Polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule with the stream."""


Offset = NewType("Offset", int)

NO_TIMESTAMP: Final = -1
# Value for an unknown time in ms, such as an append time.
UNKNOWN_MS: Final = -1
NO_OFFSET: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

# Internal topics of a broker, to which clients must not write.
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

# Special timestamps in ListOffsets requests: with these values, a request does not search by time,
# but gets the first or last offset of the log or of a part of it, or the offset of the largest
# timestamp. Source: Kafka's protocol guide; KIP-734, KIP-405, KIP-1005, KIP-1023.
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4  # the first offset in local files; the tier may have it, too
LATEST_TIERED_TIMESTAMP: Final = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6
# Special offsets for the ends of a log, as in Spark's Kafka connector.
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2


class TimestampType(IntEnum):
    """Origin of a record's timestamp. The values are part of the format and must not change."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def config_name(self) -> str:
        """Kafka's spelling in `message.timestamp.type`, e.g. `CreateTime`."""
        return {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[self.value]


class ClockName(StrEnum):
    """One of a record's two times.

    `RECORD` is the timestamp that a Kafka consumer sees; `APPEND` is the time at which the log
    appended the record.
    """

    RECORD = "record"
    APPEND = "append"

    @property
    def time_name(self) -> str:
        """Name of a time on this clock in texts and headings: `timestamp` or `append time`."""
        return "timestamp" if self is ClockName.RECORD else "append time"

    @property
    def known_time_name(self) -> str:
        """Name of a time that a record may lack: `timestamp` or `known append time`."""
        return "timestamp" if self is ClockName.RECORD else "known append time"


class IsolationLevel(IntEnum):
    """Visibility of transactional records to a reader.

    The values are the same as in Kafka's protocol.
    """

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


# Values of the defined isolation levels. A request from a client may contain any other number.
ISOLATION_LEVELS: Final = frozenset(map(int, IsolationLevel))


class Codec(IntEnum):
    """Compression of a batch. The values are part of the format and must not change."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """Kafka's spelling, e.g. `lz4`; no compression is `none`."""
        return self.name.lower()


# Types of arguments of public functions: a member of an enum, or the text of the member.
Isolation: TypeAlias = IsolationLevel | Literal["read_uncommitted", "read_committed"]
Compression: TypeAlias = Codec | Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic; prints as Kafka's directory name, `flights-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# Argument of a call that selects topics and single partitions; None for all topics.
TopicChoice: TypeAlias = str | TopicPartition | Iterable[str | TopicPartition] | None


class OffsetAndTimestamp(NamedTuple):
    """Result of a search by time. Source: KIP-79.

    Attributes:
        offset: Logical offset of the record.
        timestamp: Time of the record in ms on the clock of the search.
        leader_epoch: Leader epoch of the record's batch, None if unknown.
        without_time: On the append clock, the number of earlier records whose append time is
            unknown; each of these records may be an earlier match. None if the broker does not
            report this number, as with a Kafka broker. On the record clock, 0.
    """

    offset: int
    timestamp: int
    leader_epoch: int | None = None
    without_time: int | None = 0


class TimeMatch(NamedTuple):
    """Result of a search by time that may have no match.

    Attributes:
        hit: The first record at the requested time or later; None if there is none.
        without_time: On the append clock, the number of records before `hit` whose append time is
            unknown; if `hit` is None, the number of all such records. None if the brokers don't
            report this number. On the record clock, 0.
    """

    hit: OffsetAndTimestamp | None
    without_time: int | None


class TimeSpan(NamedTuple):
    """Smallest and largest known time of a partition's records on one clock, in ms.

    Attributes:
        first_ms: Smallest known time; None if no record has a time or the time is unknown.
        last_ms: Largest known time; None if no record has a time or the time is unknown.
    """

    first_ms: int | None
    last_ms: int | None


class RecordCount(int):
    """Number of records in a time range: an int with attributes for the records without a time.

    Attributes:
        without_time: Number of records that have no time on the query's clock, and so are in no
            range; None if the brokers don't report this number.
        is_least: Whether `without_time` may be too small, see `tidelog.scan.count.PartitionCount`.
    """

    without_time: int | None
    is_least: bool

    def __new__(
        cls, records: int, *, without_time: int | None = 0, is_least: bool = False
    ) -> "RecordCount":
        """Create the number. In comparisons and sums, it behaves like an int."""
        count = super().__new__(cls, records)
        count.without_time, count.is_least = without_time, is_least
        return count

    def __repr__(self) -> str:
        """Return the count as text, with `without_time` if that is not 0 or may be too small."""
        if self.without_time == 0 and not self.is_least:
            return int.__repr__(self)
        least = ", is_least=True" if self.is_least else ""
        return f"RecordCount({int(self)}, without_time={self.without_time}{least})"

    def __str__(self) -> str:
        return int.__repr__(self)


@dataclass(frozen=True, slots=True)
class Header:
    """One record header: a UTF-8 key that is never null, and a value that can be null."""

    key: str
    value: bytes | None


_MS: Final = timedelta(milliseconds=1)
_TIME_FORM: Final = "a create time is 0 to 2^63-1 ms since 1970, or null for the log's clock"


def time_refused(value: str, where: str = "") -> InvalidTimestamp:
    """Return the error for an invalid create time; all ways of appending raise this error."""
    return InvalidTimestamp(f"{where}{': ' if where else ''}timestamp {value}: {_TIME_FORM}")


def check_time(ms: int) -> int:
    """Return `ms` unchanged; raises InvalidTimestamp if it is not from 0 to 2^63 - 1."""
    if not 0 <= ms <= INT64_MAX:
        raise time_refused(f"{ms} ms")
    return ms


def whole_ms(argument: object, name: str, *, rounds_up: bool, also: str) -> int:
    """Convert a time, given in whole ms or as a datetime with a time zone, to ms since 1970.

    Args:
        argument: The argument.
        name: Name of the argument, for errors.
        rounds_up: Whether a datetime's fraction of a ms is rounded up. If false, it is rounded
            down.
        also: Other accepted types, for errors.

    Raises:
        InvalidTime: The argument is a datetime without a time zone.
        InvalidRequest: The argument is of another type.
    """
    if isinstance(argument, datetime):
        if argument.tzinfo is None:
            raise InvalidTime(
                str(argument), f"{name} has no time zone; give a datetime with a time zone"
            )
        return -((EPOCH - argument) // _MS) if rounds_up else (argument - EPOCH) // _MS
    try:
        ms = index(argument)  # type: ignore[arg-type] # or a TypeError
    except TypeError:
        ms = None
    if ms is None or isinstance(argument, bool):
        raise InvalidRequest(
            f"{name} is {argument!r:.60} ({type(argument).__name__}); give ms since 1970,"
            f" a datetime with a time zone, or {also}"
        )
    return ms


def _as_time(argument: object) -> int:
    also = (
        "None for the log's clock; to convert a time given as text, use the directory's `point()`"
    )
    ms = whole_ms(argument, "timestamp", rounds_up=False, also=also)
    if isinstance(argument, datetime):
        return check_time(ms)
    if not NO_TIMESTAMP <= ms <= INT64_MAX:
        raise time_refused(f"{ms} ms")
    return ms


def bytes_of(name: str, argument: object) -> bytes | None:
    """Return bytes and None unchanged, text as UTF-8; raises InvalidRequest for other values."""
    if argument is None or isinstance(argument, bytes):
        return argument
    if isinstance(argument, str):
        try:
            return argument.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name} can't be encoded as UTF-8: {error}") from error
    if isinstance(argument, bytearray | memoryview):
        return bytes(argument)
    raise InvalidRequest(f"{name} is {type(argument).__name__}; give bytes, text or None")


def _as_headers(argument: object) -> tuple[Header, ...]:
    """Convert headers: `Header` objects, pairs as in Kafka's Python clients, or a dict."""
    if argument is None:
        return ()
    pairs = argument.items() if isinstance(argument, Mapping) else argument
    if isinstance(pairs, str | bytes | Header):
        pairs = None
    try:
        return tuple(_as_header(one) for one in pairs)  # type: ignore[attr-defined] # or a TypeError
    except TypeError:
        raise InvalidRequest(
            f"headers {argument!r:.60}; give Header(key, value), pairs (key, value), or a dict"
        ) from None


def _as_header(argument: object) -> Header:
    if isinstance(argument, Header):
        key, value = argument.key, argument.value
    elif isinstance(argument, tuple | list) and len(argument) == 2:
        key, value = argument
    else:
        raise TypeError
    if not isinstance(key, str):
        raise InvalidRequest(f"the name of header {key!r:.60} is {type(key).__name__}; give text")
    return Header(key, bytes_of(f"the value of header {key!r:.60}", value))


_PLAIN: Final = frozenset({bytes, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append.

    Attributes:
        key: Serialized key, None for a record without a key. Text is stored as UTF-8.
        value: Serialized value; None makes a record with a key a tombstone. Text is stored as
            UTF-8.
        timestamp: Create time in ms, or a datetime with a time zone, which is rounded down to ms.
            None means the log's current time; -1 means that the record has no time.
        headers: Headers in the producer's order; a key may occur several times. Pairs (key, value)
            and a dict are accepted, too.

    Raises:
        InvalidTimestamp: A time, other than -1, is before 1970 or over 2^63-1 ms.
        InvalidTime: A datetime has no time zone.
        InvalidRequest: An argument is of another type, or its text can't be encoded as UTF-8.
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
            keep(self, "key", bytes_of("key", self.key))
        if self.value.__class__ not in _PLAIN:
            keep(self, "value", bytes_of("value", self.value))
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
        """Create a record from a log's fields, without checks.

        Another program may have written the record with a time that a new record can't have.
        """
        self, keep = object.__new__(cls), object.__setattr__
        for name, content in zip(
            ("key", "value", "timestamp", "headers"), (key, value, timestamp, headers), strict=True
        ):
            keep(self, name, content)
        return self
