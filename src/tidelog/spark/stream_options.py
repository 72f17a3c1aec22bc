"""Options and limits of streams that read with `format("tidelog")`.

A stream has most options of a batch read. In a stream, an option that has a meaning only in a
batch, such as the end of the range, raises InvalidRequest with the reason. In a batch, an option of
streams raises InvalidRequest.

This module has the options of streams, the limits of a micro-batch (`BatchLimits`), and the delay
of micro-batches that are too small (`MinimumBatch`). Limits work as in Spark's Kafka connector, and
are computed without I/O. The module `options` has the options of all reads.

Source: the guide of Spark's Kafka connector.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Final, TypeVar

from tidelog.env import Clock, Env, os_env
from tidelog.errors import InvalidRequest, InvalidTime
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.options import (
    READ_OPTIONS,
    Options,
    PartitionValues,
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
class BatchLimits:
    """Limits of a micro-batch. A limit that is None does not apply.

    Attributes:
        max_offsets: Maximum number of offsets in all partitions together. Exception: a batch has at
            least one offset of each partition that has unread offsets (see `share_limit`).
        max_bytes: Approximate maximum number of bytes of log in all partitions together.
        min_offsets: Minimum number of offsets in all partitions together. A batch with fewer
            offsets is delayed.
        max_delay_ms: Maximum delay in ms after the start of the previous batch.
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_DELAY_MS


def share_limit(backlogs: Mapping[_Key, int], limit: int) -> dict[_Key, int]:
    """Divide a limit among keys, in proportion to the keys' backlogs; return the shares.

    Args:
        backlogs: Backlog of each key, 0 or more.
        limit: Approximate maximum sum of all shares, 1 or more.

    Returns:
        The backlogs themselves if their sum is within the limit. Otherwise each backlog's
        proportional share of the limit, rounded down. Exception: the share of a backlog that is not
        empty is at least 1, so that every key makes progress. Because of these minimums, the sum
        may exceed the limit, by at most the number of keys.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    return {key: min(size, max(size * limit // total, 1)) for key, size in backlogs.items()}


class MinimumBatch:
    """Delays micro-batches that are too small, for a limited time. Not thread-safe.

    The first batch of a process is not delayed, because it is unknown how long the batch's records
    have waited.
    """

    def __init__(self, min_offsets: int | None, max_delay_ms: int, clock: Clock) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._clock = clock
        self._last_ms: int | None = None

    def passes(self, backlog: int) -> bool:
        """Return whether a batch with `backlog` unread offsets should run now.

        If the batch runs, the maximum delay of the next batch is counted from now on.
        """
        if self._min_offsets is None:
            return True
        now_ms = self._clock.monotonic_ms()
        is_due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not is_due and backlog < self._min_offsets:
            return False
        self._last_ms = now_ms
        return True


STREAM_OPTIONS: Final = {
    "maxOffsetsPerTrigger": "maximum number of offsets in a micro-batch, over all partitions",
    "maxBytesPerTrigger": "maximum log bytes in a micro-batch, approximately; directories only",
    "minOffsetsPerTrigger": "minimum number of offsets; a smaller micro-batch waits",
    "maxTriggerDelay": "longest wait for minOffsetsPerTrigger after the previous batch, such as"
    " 15m",
    "commitGroup": "consumer group that offsets are committed to after each batch, for monitoring;"
    " brokers only",
}

_BATCH_ONLY: Final = dict.fromkeys(
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    "is for batches: a stream has no end; Trigger.AvailableNow reads all present records",
) | {
    "timeRange": "is for batches: a stream continues from offsets; filter by timestamp instead",
    "strict": "is for batches: it applies to the records of a time range, and a stream has none",
    "zoneCache": "is for batches: zone maps serve time ranges, and a stream has none",
    "table": "is for batches: a table changes with each record",
    "asOf": "is for batches: it applies only with table",
    "inexact": "is for batches: it applies only with table",
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
    """Start of a new query.

    Attributes:
        offsets: One offset for all partitions, or an offset for each partition. -2 means earliest,
            -1 means latest.
        times: One time in ms for all partitions, or a time for each partition; None to start at
            `offsets`.
        needs_match: Whether a partition without a record at or after its time is an error. If
            False, the stream reads this partition from its end.
    """

    offsets: PartitionValues = LATEST_OFFSET
    times: PartitionValues = None
    needs_match: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a stream.

    Attributes:
        source: Options that batch reads also have.
        start: Start of a query without a checkpoint.
        limits: Limits of one micro-batch.
        commit_group: Consumer group to which offsets are committed; None to commit no offsets.
    """

    source: SourceOptions
    start: Start = field(default_factory=Start)
    limits: BatchLimits = field(default_factory=BatchLimits)
    commit_group: str | None = None


def refuse_stream_options(texts: Mapping[str, str]) -> None:
    """Raise InvalidRequest if a batch read has an option of streams."""
    _refuse(texts, _STREAM_ONLY)


def read_common_options(texts: Mapping[str, str], env: Env | None = None) -> SourceOptions:
    """Parse the options that batch reads and streams share, without the options for the start.

    Raises:
        InvalidRequest, InvalidTime: An option is missing, unknown or has an invalid value.
    """
    others = {name.lower() for name in (*_START, *STREAM_OPTIONS)}
    common = {name: text for name, text in texts.items() if name.lower() not in others}
    return read_source_options(common, env)


def read_stream_options(texts: Mapping[str, str], env: Env | None = None) -> StreamOptions:
    """Parse the options of a stream.

    Args:
        texts: Options as Spark passes them.
        env: Environment with the clock for `now` in times; the machine's if None.

    Raises:
        InvalidRequest, InvalidTime: An option is missing, unknown, has an invalid value or is not
            for streams.
    """
    options = Options(texts, READ_OPTIONS | STREAM_OPTIONS)
    _refuse(texts, _BATCH_ONLY)
    source = read_common_options(texts, env)
    if options.text("groupIdPrefix") is None:
        source = dataclasses.replace(source, group_prefix=_GROUP_PREFIX)
    _check_source_kind(options, source)
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


def _check_source_kind(options: Options, source: SourceOptions) -> None:
    if source.is_broker and options.text("maxBytesPerTrigger") is not None:
        raise InvalidRequest(
            "option maxBytesPerTrigger applies to directories only; brokers report no sizes,"
            " give maxOffsetsPerTrigger"
        )
    if not source.is_broker and options.text("commitGroup") is not None:
        raise InvalidRequest(
            "option commitGroup applies to brokers only; reading a directory does not write to it"
        )


def _start(options: Options, now_ms: int) -> Start:
    times = read_time_option(options, "startingTimestamp", "startingOffsetsByTimestamp", now_ms)
    return Start(
        # As in the Kafka connector, a time takes precedence over an offset.
        offsets=LATEST_OFFSET if times is not None else _offsets(options),
        times=times,
        needs_match=options.choice(
            "startingOffsetsByTimestampStrategy", {"latest": False, "error": True}, "error"
        ),
    )


def _offsets(options: Options) -> PartitionValues:
    name = "startingOffsets"
    text = (options.text(name) or "latest").strip()
    if not text.startswith("{"):
        return options.choice(name, _WORDS, "latest")

    def read(where: str, value: object) -> int:
        if type(value) is int and value >= EARLIEST_OFFSET:
            return value
        raise InvalidRequest(
            f"{where}: offset is {json.dumps(value)}, must be a number >= 0, -2 (earliest) or -1"
            " (latest)"
        )

    return read_by_partition(options, name, read)


def _limits(options: Options) -> BatchLimits:
    limits = BatchLimits(
        max_offsets=_optional(options, "maxOffsetsPerTrigger"),
        max_bytes=_optional(options, "maxBytesPerTrigger"),
        min_offsets=_optional(options, "minOffsetsPerTrigger"),
        max_delay_ms=_delay_ms(options),
    )
    if limits.min_offsets is None and options.text("maxTriggerDelay") is not None:
        raise InvalidRequest(
            "option maxTriggerDelay limits how long minOffsetsPerTrigger delays a micro-batch: give"
            " minOffsetsPerTrigger too, or leave out maxTriggerDelay"
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
