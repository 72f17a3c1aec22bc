"""Options and limits of streams by `format("tidelog")`.

A stream takes the options of a read except those that end it. An option that makes sense only in a
batch, or only in a stream, is refused in the other with the reason.

Owns these options, upper limits of a micro-batch by offsets (`Limits`), and whether a micro-batch
is worth starting (`MinimumBatch`). Limits take backlogs and return shares, without I/O; their
meanings are those of Spark's Kafka connector. Not owned: options of all reads (`options`).

Source: the guide of Spark's Kafka connector.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tidelog.env import Clock, Env, os_env
from tidelog.errors import InvalidRequest, InvalidTime
from tidelog.spark.options import (
    READ_OPTIONS,
    Given,
    Options,
    SourceOptions,
    read_by_partition,
    read_source_options,
    read_time_option,
)
from tidelog.timespec.units import parse_duration
from tidelog.types import EARLIEST_OFFSET, LATEST_OFFSET, NS_PER_MS

MAX_DELAY_MS: Final = 15 * 60 * 1000


_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one micro-batch; None where there is none.

    Attributes:
        max_offsets: Offsets, all partitions together.
        max_bytes: Bytes of log, all partitions together.
        min_offsets: Wait until there are so many ...
        max_delay_ms: ... but not longer than this after the batch before.
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_DELAY_MS


def share_limit(backlogs: Mapping[_Key, int], limit: int) -> dict[_Key, int]:
    """How much of `limit` each gets, in proportion to what it has.

    Args:
        backlogs: What each has, 0 or more.
        limit: What all get together, 1 or more.

    Returns:
        All of what each has, where that is within the limit. Else the share, rounded down, but at
        least 1 where there is anything: nobody starves, so that all together may get more than
        the limit by as many as there are.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    return {key: min(size, max(size * limit // total, 1)) for key, size in backlogs.items()}


class MinimumBatch:
    """Holds micro-batches back that are too small, but none for too long.

    The first one of a process passes whatever its size: nobody knows how long it has waited. One
    owner, one thread.
    """

    def __init__(self, min_offsets: int | None, max_delay_ms: int, clock: Clock) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._clock = clock
        self._last_ms: int | None = None

    def passes(self, backlog: int) -> bool:
        """Whether a batch of so many offsets is to run now; if so, the next delay begins."""
        if self._min_offsets is None:
            return True
        now_ms = self._clock.monotonic_ms()
        is_due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not is_due and backlog < self._min_offsets:
            return False
        self._last_ms = now_ms
        return True


STREAM_OPTIONS: Final = {
    "maxOffsetsPerTrigger": "how many offsets a micro-batch takes, at most, of all partitions",
    "maxBytesPerTrigger": "how many bytes of log it takes, about; directories only",
    "minOffsetsPerTrigger": "wait until there are so many offsets",
    "maxTriggerDelay": "but no longer than this after the batch before, as 15m",
    "commitGroup": "group that offsets are committed to after each batch, to be watched; brokers",
}


_BATCH_ONLY: Final = dict.fromkeys(
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    "is for batches: a stream has no end; Trigger.AvailableNow reads what is there now",
) | {
    "timeRange": "is for batches: a stream reads on from a position; filter by timestamp behind it",
    "strict": "is for batches: it is about the records of a time range, and a stream has none",
    "zoneCache": "is for batches: zone maps serve time ranges, and a stream has none",
    "table": "is for batches: a table changes with each record",
    "asOf": "is for batches: it goes with table",
    "inexact": "is for batches: it goes with table",
    "pushdown": "is for batches: Spark pushes no filters down into streams",
}


_STREAM_ONLY: Final = dict.fromkeys(
    STREAM_OPTIONS, "is for streams (readStream): a batch reads its whole range at once"
)


_START: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)


_WORDS: Final = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}


_GROUP_PREFIX: Final = "spark-kafka-source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a new query begins.

    Attributes:
        offsets: One for all partitions, or one for each; -2 earliest, -1 latest.
        times: Times in ms, likewise; None where offsets count.
        needs_match: No record at or after a time is an error; else the end is meant.
    """

    offsets: Given = LATEST_OFFSET
    times: Given = None
    needs_match: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Request of a stream.

    Attributes:
        source: What it reads, and how.
        start: Where it begins, if there is no checkpoint yet.
        limits: Of one micro-batch.
        commit_group: Consumer group that is told how far the query is; None for none.
    """

    source: SourceOptions
    start: Start = field(default_factory=Start)
    limits: Limits = field(default_factory=Limits)
    commit_group: str | None = None


def refuse_stream_options(texts: Mapping[str, str]) -> None:
    """Raise InvalidRequest where a batch is given what only a stream can do."""
    _refuse(texts, _STREAM_ONLY)


def read_common_options(texts: Mapping[str, str], env: Env | None = None) -> SourceOptions:
    """What a batch and a stream have in common: all but starts and what only a stream can do.

    Raises:
        InvalidRequest, InvalidTime: As `read_source_options`.
    """
    others = {name.lower() for name in (*_START, *STREAM_OPTIONS)}
    common = {name: text for name, text in texts.items() if name.lower() not in others}
    return read_source_options(common, env)


def read_stream_options(texts: Mapping[str, str], env: Env | None = None) -> StreamOptions:
    """The options of a stream.

    Args:
        texts: As Spark hands them over.
        env: Its clock is what `now` means in times.

    Raises:
        InvalidRequest, InvalidTime: One that is missing, unknown, or can't be read, or that has
            no meaning in a stream.
    """
    options = Options(texts, READ_OPTIONS | STREAM_OPTIONS)
    _refuse(texts, _BATCH_ONLY)
    source = read_common_options(texts, env)
    if options.text("groupIdPrefix") is None:
        source = dataclasses.replace(source, group_prefix=_GROUP_PREFIX)
    _check_place(options, source)
    return StreamOptions(
        source=source,
        start=_start(options, (env or os_env()).clock.now_ms()),
        limits=_limits(options),
        commit_group=options.text("commitGroup"),
    )


def _refuse(texts: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    names = {name.lower() for name in texts}
    for name, reason in reasons.items():
        if name.lower() in names:
            raise InvalidRequest(f"option {name} {reason}")


def _check_place(options: Options, source: SourceOptions) -> None:
    if source.is_broker and options.text("maxBytesPerTrigger") is not None:
        raise InvalidRequest(
            "option maxBytesPerTrigger is about directories; brokers tell no sizes of ranges,"
            " give maxOffsetsPerTrigger"
        )
    if not source.is_broker and options.text("commitGroup") is not None:
        raise InvalidRequest(
            "option commitGroup is about brokers; a directory that is read is not written to"
        )


def _start(options: Options, now_ms: int) -> Start:
    times = read_time_option(options, "startingTimestamp", "startingOffsetsByTimestamp", now_ms)
    return Start(
        # The connector's precedence: a time wins over an offset.
        offsets=LATEST_OFFSET if times is not None else _offsets(options),
        times=times,
        needs_match=options.choice(
            "startingOffsetsByTimestampStrategy", {"latest": False, "error": True}, "error"
        ),
    )


def _offsets(options: Options) -> Given:
    name = "startingOffsets"
    text = (options.text(name) or "latest").strip()
    if not text.startswith("{"):
        return options.choice(name, _WORDS, "latest")

    def read(where: str, value: object) -> int:
        if type(value) is int and value >= EARLIEST_OFFSET:
            return value
        raise InvalidRequest(
            f"{where}: offset {json.dumps(value)}, a number >= 0, -2 (earliest) or -1 (latest)"
        )

    return read_by_partition(options, name, read)


def _limits(options: Options) -> Limits:
    limits = Limits(
        max_offsets=_optional(options, "maxOffsetsPerTrigger"),
        max_bytes=_optional(options, "maxBytesPerTrigger"),
        min_offsets=_optional(options, "minOffsetsPerTrigger"),
        max_delay_ms=_delay_ms(options),
    )
    if limits.min_offsets is None and options.text("maxTriggerDelay") is not None:
        raise InvalidRequest(
            "option maxTriggerDelay says how long minOffsetsPerTrigger waits: give both"
        )
    least, most = limits.min_offsets, limits.max_offsets
    if least is not None and most is not None and least > most:
        raise InvalidRequest(
            f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}"
        )
    return limits


def _optional(options: Options, name: str) -> int | None:
    return None if options.text(name) is None else options.number(name, 1)


def _delay_ms(options: Options) -> int:
    text = options.text("maxTriggerDelay")
    if text is None:
        return MAX_DELAY_MS
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return options.number("maxTriggerDelay", MAX_DELAY_MS, at_least=0)
    try:
        return parse_duration(stripped) // NS_PER_MS
    except InvalidTime as error:
        raise InvalidRequest(f"option maxTriggerDelay={text}: {error.reason}") from error
