"""Types of settings' values, and `ConfigKey`, which describes one setting.

A type (`ValueKind`) parses the text of a setting and describes the valid values. `text_of` formats
the values of all types.

Parsing follows Kafka: surrounding white space is dropped, `+5` is a number, and words are
case-sensitive where Kafka's are. Values that Kafka accepts although they have no meaning (`NaN` as
a ratio) are refused. This module also parses the start position of new groups: `earliest`,
`latest`, `by_duration:PT1H`.

Source: Kafka 4.3's `ConfigDef`, `TopicConfig`, `LogConfig`, `ServerTopicConfigSynonyms`; KIP-1106;
ISO 8601 durations as Java's Duration.parse reads them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from typing import (
    TYPE_CHECKING,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
)

from tidelog.errors import ConfigError
from tidelog.types import INT32_MAX, INT64_MAX, INT64_MIN, ClockName, Codec, TimestampType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")

_RANGES: Final = {
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), INT32_MAX),
    "long": (INT64_MIN, INT64_MAX),
}
# Maps a type of whole numbers to its largest value.
INTEGER_MAX: Final = {name: last for name, (_, last) in _RANGES.items()}


class CompressionType(StrEnum):
    """Codec of the batches in a log. The values are the words of Kafka's setting."""

    UNCOMPRESSED = "uncompressed"
    ZSTD = "zstd"
    LZ4 = "lz4"
    SNAPPY = "snappy"
    GZIP = "gzip"
    PRODUCER = "producer"

    @property
    def target_codec(self) -> Codec | None:
        """Codec to which every batch is converted; None keeps the producer's codec."""
        return _TARGET_CODECS[self]


class RetentionClock(StrEnum):
    """Time of a record from which its retention is measured."""

    RECORD = "record"
    APPEND = "append"
    RECORD_CAPPED = "record-capped"


class Durability(StrEnum):
    """State of records acknowledged with acks=all: in the page cache, or synced to disk."""

    PAGE_CACHE = "page-cache"
    FSYNC = "fsync"


_TARGET_CODECS: Final = {
    CompressionType.UNCOMPRESSED: Codec.NONE,
    CompressionType.ZSTD: Codec.ZSTD,
    CompressionType.LZ4: Codec.LZ4,
    CompressionType.SNAPPY: Codec.SNAPPY,
    CompressionType.GZIP: Codec.GZIP,
    CompressionType.PRODUCER: None,
}


class CompactionStrategy(StrEnum):
    """Property of records by which compaction chooses the record to keep for each key.

    Compaction keeps the record with the highest value of the property (KIP-280).
    """

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"


class CompactionScheduler(StrEnum):
    """Choice of segments that a compaction rewrites: all, or the segments with most garbage."""

    BRUTE_FORCE = "brute-force"
    GENERATIONAL = "generational"


class MigrationPolicy(StrEnum):
    """Allowed changes between the classic and the consumer protocol for a group with members."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group may change to the consumer protocol."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group may change to the classic protocol."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class KeyHash(StrEnum):
    """Hash function for keys in a compaction: SipHash with a new secret, or Kafka's MD5."""

    SIPHASH = "siphash"
    MD5 = "md5"


ConfigValue: TypeAlias = (
    int
    | float
    | bool
    | str
    | tuple[str, ...]
    | CompactionScheduler
    | CompactionStrategy
    | CompressionType
    | Durability
    | KeyHash
    | MigrationPolicy
    | RetentionClock
    | TimestampType
)

Value = TypeVar("Value", bound=ConfigValue)

_Value_co = TypeVar("_Value_co", bound=ConfigValue, covariant=True)


class ValueKind(NamedTuple, Generic[_Value_co]):
    """Type of a setting's value.

    Attributes:
        type_name: Kafka's name of the type, e.g. `long`.
        allowed: Description of valid values, for errors and the documentation.
        parse: Function that parses a text; raises ValueError for an invalid text. The caller
            converts the ValueError to a ConfigError with the setting's name.
    """

    type_name: str
    allowed: str
    parse: Callable[[str], _Value_co]


def text_of(value: ConfigValue | None) -> str:
    """Format a value as Kafka does; empty for None and for an empty list."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case TimestampType():
            return value.config_name
        case tuple():
            return ",".join(value)
        case float():
            return _java_double(value)
        case _:
            return str(value)


def _java_double(value: float) -> str:
    """Format a finite number as Java does: below 0.001 and from 10,000,000 on, with an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(value)
    digits_after_point = max(len(repr(value).split("e")[0].strip("-0.").replace(".", "")) - 1, 1)
    digits, exponent = f"{value:.{digits_after_point}e}".split("e")
    whole, _, rest = digits.partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}E{int(exponent)}"


def parse_integer(text: str) -> int:
    """Parse a whole number in ASCII digits with an optional sign; raises ValueError."""
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


def whole_number(
    type_name: str, low: int | None = None, high: int | None = None, extra: int | None = None
) -> ValueKind[int]:
    """Return the type of a `short` (16 bits), `int` (32) or `long` (64) in a range.

    Args:
        type_name: Kafka's name of the type.
        low: Lowest value, inclusive; None for the type's lowest.
        high: Highest value, inclusive; None for the type's highest.
        extra: Another valid value outside the range; None for none.
    """
    floor, ceiling = _RANGES[type_name]
    first = floor if low is None else low
    last = ceiling if high is None else high

    def parse(text: str) -> int:
        value = parse_integer(text)
        if value != extra and not first <= value <= last:
            raise ValueError(text)
        return value

    return ValueKind(type_name, _allowed_numbers(low, high, extra), parse)


def int32(low: int, high: int | None = None, extra: int | None = None) -> ValueKind[int]:
    """Return the type of an `int` in a range; see `whole_number`."""
    return whole_number("int", low, high, extra)


def int64(low: int | None, high: int | None = None, extra: int | None = None) -> ValueKind[int]:
    """Return the type of a `long` in a range; see `whole_number`."""
    return whole_number("long", low, high, extra)


def _allowed_numbers(low: int | None, high: int | None, extra: int | None) -> str:
    beside = "" if extra is None else f" or {extra}"
    if low is None:
        return f"a whole number{beside}"
    if high is None:
        return f"a whole number >= {low}{beside}"
    return f"a whole number from {low} to {high}{beside}"


def decimal(allowed: str, is_valid: Callable[[float], bool]) -> ValueKind[float]:
    """Return the type of a `double`; NaN is never valid."""

    def parse(text: str) -> float:
        value = float(text)
        if "_" in text or not is_valid(value):
            raise ValueError(text)
        return value

    return ValueKind("double", allowed, parse)


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError(text)
    return word == "true"


def _parse_timestamp_type(text: str) -> TimestampType:
    for kind in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
        if text.strip() == kind.config_name:
            return kind
    raise ValueError(text)


_Word = TypeVar(
    "_Word",
    ClockName,
    CompactionScheduler,
    CompactionStrategy,
    CompressionType,
    Durability,
    KeyHash,
    MigrationPolicy,
    RetentionClock,
)


def member(words: type[_Word], note: str = "") -> ValueKind[_Word]:
    """Return the type whose values are the words of an enumeration."""
    allowed = f"one of {', '.join(words)}{note}"
    return ValueKind("string", allowed, lambda text: words(text.strip()))


def _split(text: str) -> list[str]:
    """Split a comma separated list. An empty text has no items; an empty item raises ValueError."""
    if not text.strip():
        return []
    items = [item.strip() for item in text.split(",")]
    if "" in items:
        raise ValueError(text)
    return items


def word(*words: str) -> ValueKind[str]:
    """Return the type whose value is one of these words."""

    def parse(text: str) -> str:
        if text.strip() not in words:
            raise ValueError(text)
        return text.strip()

    named = ", ".join(each for each in words if each)
    return ValueKind("string", f"one of {named}{', or nothing' if '' in words else ''}", parse)


def word_list(*words: str) -> ValueKind[tuple[str, ...]]:
    """Return the type of a comma separated list of these words; the list can be empty."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(dict.fromkeys(_split(text)))
        if not set(items) <= set(words):
            raise ValueError(text)
        return items

    return ValueKind("list", f"any of {', '.join(words)}, comma separated, or nothing", parse)


def address_limits() -> ValueKind[tuple[str, ...]]:
    """Return the type of limits by address: `ADDRESS:COUNT`, ... Host names are not allowed."""

    def parse(text: str) -> tuple[str, ...]:
        limits: dict[str, int] = {}
        for item in _split(text):
            address, _, count = item.rpartition(":")
            limits[str(ip_address(address.strip("[]")))] = parse_integer(count)
        if not all(0 <= count < 1 << 31 for count in limits.values()):
            raise ValueError(text)
        return tuple(f"{address}:{count}" for address, count in limits.items())

    return ValueKind("string", "ADDRESS:COUNT pairs, comma separated, or nothing", parse)


def _parse_replicas(text: str) -> tuple[str, ...]:
    items = tuple(_split(text))
    if items != ("*",) and not all(_REPLICA.fullmatch(item) for item in items):
        raise ValueError(text)
    return items


def _parse_store_url(text: str) -> str:
    """Parse a store's URL and remove trailing slashes.

    Raises:
        ValueError: The URL is invalid or contains a password.
    """
    url = text.strip().rstrip("/")
    scheme, mark, rest = url.partition("://")
    authority = rest.partition("/")[0]
    if url and (not scheme or not mark or not rest or ":" in authority.rpartition("@")[0]):
        raise ValueError(text)
    if "#" in url:
        raise ValueError(text)
    return url


def words_once(*words: str) -> ValueKind[tuple[str, ...]]:
    """Return the type of a comma separated list of these words, each at most once; never empty."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(_split(text))
        if not items or len(set(items)) != len(items) or not set(items) <= set(words):
            raise ValueError(text)
        return items

    return ValueKind(
        "list", f"one or more of {', '.join(words)}, each at most once, comma separated", parse
    )


RATIO: Final = decimal("a number from 0 to 1", lambda value: 0 <= value <= 1)

RATE: Final = decimal("a number above 0", lambda value: value > 0)

# Maximum share of filled slots in a hash map with open addressing. Above this share, lookups become
# slow.
LOAD_FACTOR_MAX: Final = 0.9

LOAD_FACTOR: Final = decimal(
    "a number above 0, at most 0.9", lambda value: 0 < value <= LOAD_FACTOR_MAX
)

# A factor near 1 leaves no room for garbage or for errors of the estimated live size, so a cleaning
# would always be due. With a factor above the maximum, segments would be rewritten only because of
# their age.
SPACE_FACTOR_MIN: Final = 1.1
SPACE_FACTOR_MAX: Final = 100.0

SPACE_FACTOR: Final = decimal(
    f"a number from {SPACE_FACTOR_MIN} to {SPACE_FACTOR_MAX}",
    lambda value: SPACE_FACTOR_MIN <= value <= SPACE_FACTOR_MAX,
)

FLAG: Final = ValueKind("boolean", "true or false", _parse_flag)

TIMESTAMP_TYPE: Final = ValueKind("string", "CreateTime or LogAppendTime", _parse_timestamp_type)

# In settings of producers, `none` means no compression. Kafka refuses this word for a topic, so the
# error names the word `uncompressed`.
COMPRESSION: Final = member(CompressionType, " (no compression is `uncompressed`)")

RETENTION_CLOCK: Final = member(RetentionClock)

LOOKUP_CLOCK: Final = member(ClockName)

DURABILITY: Final = member(Durability)

COMPACTION_STRATEGY: Final = member(CompactionStrategy)

COMPACTION_SCHEDULER: Final = member(CompactionScheduler)

KEY_HASH: Final = member(KeyHash)

MIGRATION_POLICY: Final = ValueKind(
    "string",
    f"one of {', '.join(MigrationPolicy)}",
    lambda text: MigrationPolicy(text.strip().lower()),
)

TEXT: Final = ValueKind("string", "any text", str.strip)

# A setting that is a list in Kafka. The code that uses the setting splits the text.
TEXTS: Final = ValueKind("list", "any text", str.strip)

# The value of a password is never shown, not even in an error message.
PASSWORD: Final = ValueKind("password", "any text", str.strip)

STORE_URL: Final = ValueKind("string", "a URL without credentials, or nothing", _parse_store_url)

REPLICAS: Final = ValueKind(
    "list", "*, or partition:broker pairs, comma separated, or nothing", _parse_replicas
)

# Maximum length in bytes of a string of Kafka's protocol, in which settings are sent to clients.
TEXT_BYTES_MAX: Final = 32_767


def is_tellable(text: str) -> bool:
    """Whether a text fits into a string of Kafka's protocol."""
    return len(text) <= TEXT_BYTES_MAX and len(text.encode(errors="replace")) <= TEXT_BYTES_MAX


def ensure_tellable(name: str, text: str) -> None:
    """Raise ConfigError for a text that is too long for Kafka's protocol."""
    if not is_tellable(text):
        raise ConfigError(name, text, f"must be at most {TEXT_BYTES_MAX} bytes long")


class Synonym(NamedTuple):
    """Another name of a setting, possibly with another unit.

    Attributes:
        name: Broker's name, e.g. `log.retention.hours`.
        factor: Number of the setting's units in one unit of the synonym, e.g. 3,600,000 for ms and
            hours.
    """

    name: str
    factor: int = 1


class ConfigKey(NamedTuple):
    """Setting: name, type, default and documentation.

    Attributes:
        name: Kafka's name, or `tidelog.*`.
        kind: Type of the setting's value.
        default: Default as text; None if a missing value has a special meaning.
        doc: Documentation of the setting's effect and of its consequences.
        synonyms: Broker's names of the setting, the name with the highest precedence first.
        has_effect: False if the setting is accepted only for compatibility with Kafka.
    """

    name: str
    kind: ValueKind[ConfigValue]
    default: str | None
    doc: str
    synonyms: tuple[Synonym, ...] = ()
    has_effect: bool = True

    @property
    def attribute(self) -> str:
        """Name of the field in the class of settings: the setting's name with underscores."""
        return self.name.replace(".", "_")


def key_value(key: ConfigKey, text: str) -> ConfigValue:
    """Parse the text of a setting; raises ConfigError."""
    try:
        return key.kind.parse(text)
    except ValueError:
        raise ConfigError(key.name, text, f"must be {key.kind.allowed}") from None


def unknown_setting(name: str, kind: str, names: Iterable[str]) -> ConfigError:
    """Build the error for an unknown setting, with the most similar name.

    Args:
        name: Name as given.
        kind: Kind of settings: `broker`, `topic`.
        names: All known names.
    """
    import difflib  # imported only for errors, because it takes 3 ms

    words = difflib.get_close_matches(name.lower().replace("_", "."), names, n=1)
    hint = f"; did you mean {words[0]}?" if words else ""
    return ConfigError(name, None, f"unknown {kind} setting{hint}")


def config_field(
    kind: ValueKind[Value],
    default: str | None,
    doc: str,
    *,
    synonyms: tuple[Synonym, ...] = (),
    has_effect: bool = True,
) -> Value:
    """Declare a field of a class of settings; see `keys_of`.

    Args:
        kind: Type of the setting's value.
        default: Default as text; None if a missing value has a special meaning.
        doc: Documentation of the setting's effect and of its consequences.
        synonyms: Broker's names of a topic setting, the name with the highest precedence first.
        has_effect: False if the setting is accepted only for compatibility with Kafka.
    """
    value = None if default is None else kind.parse(default)
    key = partial(
        ConfigKey, kind=kind, default=default, doc=doc, synonyms=synonyms, has_effect=has_effect
    )
    declaration: object = field(default=value, repr=kind is not PASSWORD, metadata={"key": key})
    return cast("Value", declaration)


def keys_of(settings: "type[DataclassInstance]") -> tuple[ConfigKey, ...]:
    """Return the settings of a class, in the order of its fields."""
    return tuple(
        each.metadata["key"](name=each.name.replace("_", "."))
        for each in fields(settings)
        if "key" in each.metadata
    )


EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BY_DURATION: Final = "by_duration"

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+)(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)

_UNITS_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}

# Maximum number of digits of a number in a duration. A number with more digits is larger than any
# duration in use.
_DIGITS_MAX: Final = 18


def parse_reset(text: str) -> tuple[str, int]:
    """Parse the start position of a new group; raises ValueError.

    Returns the kind of position and a duration in ms, which is 0 for kinds other than
    `by_duration`.
    """
    kind, _, duration = text.partition(":")
    if text in (EARLIEST, LATEST):
        return text, 0
    if kind != BY_DURATION:
        raise ValueError(text)
    return kind, _duration_ms(duration)


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or match["time"] in ("T", "t") or len(text) == 1:
        raise ValueError(text)
    parts = {name: match[name] or "0" for name in _UNITS_MS}
    if any(len(part) > _DIGITS_MAX for part in parts.values()):
        raise ValueError(text)
    whole_ms = sum(int(parts[name]) * unit for name, unit in _UNITS_MS.items())
    return whole_ms + int((match["fraction"] or "").ljust(3, "0")[:3])


def _parse(text: str) -> str:
    parse_reset(text.strip())
    return text.strip()


RESET: Final = ValueKind("string", "earliest, latest or by_duration:PnDTnHnMn.nS", _parse)
