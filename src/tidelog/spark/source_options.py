"""What a read by `format("tidelog")` was asked for, from its options.

Times that give no zone are refused; numbers are ms, as in the Kafka connector.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest
from tidelog.spark.options import READ_OPTIONS, Options
from tidelog.timespec import parse_point
from tidelog.types import ClockName, IsolationLevel, TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
SPLIT_BYTES: Final = 128 << 20
# The Kafka connector's columns, in its order; headers and append time come behind on request.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

PerPartition = Mapping[TopicPartition, int]
# One for all partitions, or one for each; None where nothing was said.
Given = int | PerPartition | None
_ISOLATION: Final = {level.name.lower(): level for level in IsolationLevel}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for. Offsets -2 and -1 stand for earliest and latest.

    Attributes:
        path: Directory of topics.
        topics: Names of topics, where they were given so.
        pattern: Pattern of whole names, where it was given so.
        assigned: Partitions, where they were given so.
        start_offsets: One for all partitions, or one for each; None where not given.
        end_offsets: Likewise.
        start_ms: Start of the time range, likewise.
        end_ms: End of the time range, likewise.
        clock: Which time is meant.
        is_exact: Times select records, else positions.
        needs_match: A start behind all records is an error (positions only).
        strict: Records without a time are an error.
        columns: Columns of a row, in order.
        min_partitions: Lower bound of splits, a hint.
        split_bytes: Upper bound of a split, about.
        isolation: What is seen of transactions.
        fail_on_data_loss: Whether offsets that are gone are an error.
        zone_cache: Folder for zone maps that the directory doesn't have; None for no such.
    """

    path: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    start_offsets: Given = None
    end_offsets: Given = None
    start_ms: Given = None
    end_ms: Given = None
    clock: ClockName = ClockName.RECORD
    is_exact: bool = True
    needs_match: bool = False
    strict: bool = False
    columns: tuple[str, ...] = COLUMNS
    min_partitions: int = 1
    split_bytes: int = SPLIT_BYTES
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    zone_cache: str | None = None


def read_source_options(given: Mapping[str, str], env: Env | None = None) -> SourceOptions:
    """The options of a read.

    Args:
        given: As Spark hands them over.
        env: Its clock is what `now` means in times.

    Raises:
        InvalidRequest, InvalidTime: One that is missing, unknown or can't be read.
    """
    options = Options(given, READ_OPTIONS)
    now_ms = (env or os_env()).clock.now_ms()
    start_ms = _time(options, "startingTimestamp", "startingOffsetsByTimestamp", now_ms)
    end_ms = _time(options, "endingTimestamp", "endingOffsetsByTimestamp", now_ms)
    # The connector's precedence: a time wins over an offset on the same side.
    start_offsets = (
        None if start_ms is not None else _offset(options, "startingOffsets", "earliest", EARLIEST)
    )
    end_offsets = (
        None if end_ms is not None else _offset(options, "endingOffsets", "latest", LATEST)
    )
    topics = options.names("subscribe")
    pattern = options.text("subscribePattern")
    assigned = _assigned(options)
    if sum(map(bool, (topics, pattern, assigned))) != 1:
        raise InvalidRequest("give one of the options subscribe, subscribePattern and assign")
    return SourceOptions(
        path=options.need("path", "the directory of topics"),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start_offsets=start_offsets,
        end_offsets=end_offsets,
        start_ms=start_ms,
        end_ms=end_ms,
        clock=options.choice("clock", {name.value: name for name in ClockName}, "record"),
        is_exact=options.choice("timeRange", {"exact": True, "positions": False}, "exact"),
        needs_match=options.choice(
            "startingOffsetsByTimestampStrategy", {"latest": False, "error": True}, "latest"
        ),
        strict=options.flag("strict", default=False),
        columns=read_columns(options),
        min_partitions=options.number("minPartitions", 1),
        split_bytes=options.number("splitBytes", SPLIT_BYTES),
        isolation=_isolation(options),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        zone_cache=options.text("zoneCache"),
    )


def read_columns(options: Options) -> tuple[str, ...]:
    """The columns of a row; whether they exist is for the scan to say."""
    named = options.names("columns")
    with_headers = options.flag("includeHeaders", default=False)
    with_append_time = options.flag("includeAppendTimestamp", default=False)
    columns = named or COLUMNS
    if with_headers and "headers" not in columns:
        columns = (*columns, "headers")
    if with_append_time and "appendTimestamp" not in columns:
        columns = (*columns, "appendTimestamp")
    return columns


def _isolation(options: Options) -> IsolationLevel:
    ours, theirs = options.text("isolation"), options.text("kafka.isolation.level")
    if ours and theirs and ours.lower() != theirs.lower():
        raise InvalidRequest(f"isolation={ours} and kafka.isolation.level={theirs}: give one")
    name = "isolation" if ours else "kafka.isolation.level"
    return options.choice(name, _ISOLATION, "read_uncommitted")


def _assigned(options: Options) -> tuple[TopicPartition, ...]:
    text = options.text("assign")
    if text is None:
        return ()
    found = []
    for topic, numbers in options.json("assign").items():
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise InvalidRequest(f"option assign={text}: {READ_OPTIONS['assign']}")
        found += [TopicPartition(topic, number) for number in numbers]
    return tuple(found)


def _offset(options: Options, name: str, word: str, special: int) -> Given:
    """An offset option: its one word, or JSON by partition."""
    text = options.text(name)
    if text is None or text.strip().lower() == word:
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidRequest(f"option {name}={text}: {READ_OPTIONS[name]}")

    def read(value: object) -> int:
        # The other side's word makes no sense in a batch: nothing starts at the end.
        if type(value) is int and (value >= 0 or value == special):
            return value
        raise InvalidRequest(
            f"option {name}: offset {value!r}, a number >= 0 or {special} ({word})"
        )

    return _by_partition(options, name, read)


def _time(options: Options, name: str, by_partition: str, now_ms: int) -> Given:
    """A time option: one for all partitions, which wins, or JSON by partition."""
    text = options.text(name)
    if text is not None:
        return _read_time(name, text, now_ms)
    if options.text(by_partition) is None:
        return None
    return _by_partition(
        options, by_partition, lambda value: _read_time(by_partition, value, now_ms)
    )


def _read_time(name: str, value: object, now_ms: int) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return parse_point(str(value), now_ms=now_ms)
    raise InvalidRequest(f"option {name}: time {value!r}, ms since the epoch or a text")


def _by_partition(options: Options, name: str, read: Callable[[object], int]) -> PerPartition:
    """`{"topic": {"0": VALUE}}` as values by partition."""
    found: dict[TopicPartition, int] = {}
    for topic, values in options.json(name).items():
        if not isinstance(values, dict):
            raise InvalidRequest(f"option {name}={json.dumps(values)}: {READ_OPTIONS[name]}")
        for number, value in values.items():
            if not re.fullmatch(r"[0-9]{1,9}", number):
                raise InvalidRequest(f"option {name}: {number!r} is no number of a partition")
            found[TopicPartition(topic, int(number))] = read(value)
    return found
