"""Converts Spark's pushed-down filters into limits on partitions, offsets and times. No I/O.

Contains the limits (`FilterLimits`), and the range of each partition that options and filters
request. Options are parsed in `options`.

Invariants: if the limits implement a filter exactly, Spark need not apply the filter again. If the
limits let records through that don't match the filter, the filter is returned to Spark, and Spark
applies it to the rows. Topic, partition and offset are never null, so a filter on them is either
true or false. A comparison with a time is never true for a record without a time.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.scan import RequestedRange
from tidelog.spark.options import PartitionValues, SourceOptions
from tidelog.types import EPOCH, INT64_MAX, INT64_MIN, ClockName, TopicPartition

_CLOCKS: Final = {"timestamp": ClockName.RECORD, "appendTimestamp": ClockName.APPEND}
_NAMES: Final[dict[str, type[int | str]]] = {"topic": str, "partition": int}
_MICROSECOND: Final = timedelta(microseconds=1)

_TESTS: Final[dict[type[Filter], Callable[..., bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, allowed: value in allowed,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterLimits:
    """Limits of a read that result from filters.

    Attributes:
        names: Filters on topic and partition. If a partition does not match all of them, it is not
            read.
        least_offset: First offset in every partition, inclusive.
        limit_offset: End offset in every partition, exclusive.
        clock: Clock of `times`.
        times: Time range [a, b) in ms, without an end if b is INT64_MAX. If `times` is None, times
            are not limited, so records without a time are read, too.
    """

    names: tuple[Filter, ...] = ()
    least_offset: int = 0
    limit_offset: int = INT64_MAX
    clock: ClockName = ClockName.RECORD
    times: tuple[int, int] | None = None

    def keeps(self, name: TopicPartition) -> bool:
        """Return whether a partition matches the filters on topics and partitions."""
        values: dict[str, int | str] = {"topic": name.topic, "partition": name.partition}
        return all(_is_true(one, values[_column(one)]) for one in self.names)

    @property
    def is_empty(self) -> bool:
        """Whether the limits on offsets or times exclude every record."""
        start, end = self.times or (INT64_MIN, INT64_MAX)
        return self.least_offset >= self.limit_offset or (start >= end and end != INT64_MAX)


NO_LIMITS: Final = FilterLimits()


@dataclass(slots=True)
class LimitMaker:
    """Converts filters to limits of a read.

    Attributes:
        options: Options of the query.
        limits: Limits for the filters converted so far.
        returned: Filters that Spark has to apply.
    """

    options: SourceOptions
    limits: FilterLimits = NO_LIMITS
    returned: list[Filter] = field(default_factory=list)

    def take(self, filters: Iterable[Filter]) -> None:
        """Convert filters. Add the filters that Spark must still apply to `returned`."""
        # A filter "is not null" has no effect if another filter limits the same time, because a
        # time limit excludes nulls. So "is not null" filters are converted after all other filters.
        late = [one for one in filters if not self._take(one)]
        for one in late:
            if not self._is_implied(one):
                self.returned.append(one)

    def _take(self, one: Filter) -> bool:
        """Narrow the limits by a filter; return whether the limits implement the filter exactly."""
        column = _column(one)
        kind = _NAMES.get(column)
        if kind is not None and _can_evaluate(one, kind):
            self.limits = replace(self.limits, names=(*self.limits.names, one))
            return True
        if column == "offset":
            return self._take_offset(one)
        if column in _CLOCKS:
            return self._take_time(one, _CLOCKS[column])
        return False

    def _take_offset(self, one: Filter) -> bool:
        if isinstance(one, IsNotNull):
            return True
        bounds = _bounds(one, _whole, _whole)
        if bounds is None:
            return False
        (start, end), is_exact = bounds
        least = max(self.limits.least_offset, start)
        limit = min(self.limits.limit_offset, end)
        self.limits = replace(self.limits, least_offset=least, limit_offset=limit)
        return is_exact

    def _take_time(self, one: Filter, clock: ClockName) -> bool:
        options, times = self.options, self.limits.times
        if options.strict:
            return False  # records without a time must be read, because they raise an error
        if options.has_times and clock is not options.clock:
            return False  # a read has only one clock, which the options have chosen
        if times is not None and clock is not self.limits.clock:
            return False
        bounds = _bounds(one, _floor_ms, _ceil_ms)
        if bounds is None:
            return False
        (start, end), is_exact = bounds
        previous = times or (INT64_MIN, INT64_MAX)
        limited = (max(previous[0], start), min(previous[1], end))
        self.limits = replace(self.limits, clock=clock, times=limited)
        # With mode=permissive, a time that Spark can't represent is null in the row although the
        # time is in the range, so Spark has to apply the filter again.
        return is_exact and not self.options.permissive

    def _is_implied(self, one: Filter) -> bool:
        """Return whether a filter only excludes null times, which a time limit excludes already."""
        clock = _CLOCKS.get(_column(one))
        is_range = self.limits.times is not None and self.limits.clock is clock
        return isinstance(one, IsNotNull) and is_range and not self.options.permissive


def _column(one: Filter) -> str:
    """Return the name of a filter's column; "" for a nested column."""
    inner = one.child if isinstance(one, Not) else one
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _can_evaluate(one: Filter, kind: type[int | str]) -> bool:
    """Return whether a filter's type is supported and its constants have the type `kind`."""
    inner = one.child if isinstance(one, Not) else one
    if isinstance(inner, IsNotNull | IsNull):
        return True
    if type(inner) not in _TESTS:
        return False
    value = inner.value  # type: ignore[attr-defined] # each filter in `_TESTS` has a value
    values = value if isinstance(inner, In) else [value]
    return all(type(value) is kind for value in values)


def _is_true(one: Filter, value: int | str) -> bool:
    """Return whether a filter is true for a value, which is never null."""
    if isinstance(one, Not):
        return not _is_true(one.child, value)
    if isinstance(one, IsNotNull | IsNull):
        return isinstance(one, IsNotNull)
    return _TESTS[type(one)](value, one.value)  # type: ignore[attr-defined] # see `_can_evaluate`


def _bounds(
    one: Filter,
    floor: Callable[[object], int | None],
    ceil: Callable[[object], int | None],
) -> tuple[tuple[int, int], bool] | None:
    """Return the range [a, b) of integers that a filter can match, and whether all of them match.

    Returns None if the filter is of a type that gives no range, or if a constant's type is not the
    column's type. A constant may be between two integers, so `floor` rounds it down and `ceil`
    rounds it up. If a constant's type is not the column's type, both functions return None.
    """
    if isinstance(one, In):
        return _hull(one, floor, ceil)
    if not isinstance(
        one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return None
    low, high = floor(one.value), ceil(one.value)
    if low is None or high is None:
        return None
    start, end = INT64_MIN, INT64_MAX
    if isinstance(one, GreaterThan):
        start = low + 1
    elif isinstance(one, LessThan):
        end = high
    else:  # if the constant is between two integers, the range of equality is empty
        start = INT64_MIN if isinstance(one, LessThanOrEqual) else high
        end = INT64_MAX if isinstance(one, GreaterThanOrEqual) else low + 1
    return (start, end), True


def _hull(
    one: In, floor: Callable[[object], int | None], ceil: Callable[[object], int | None]
) -> tuple[tuple[int, int], bool] | None:
    """Return the range from the smallest to the largest value of an IN filter, marked as inexact.

    Returns None if there are no values, or if a value's type is not the column's type.
    """
    lows = [floor(value) for value in one.value]
    highs = [ceil(value) for value in one.value]
    known_lows = [low for low in lows if low is not None]
    known_highs = [high for high in highs if high is not None]
    if not known_lows or len(known_lows) < len(lows) or len(known_highs) < len(highs):
        return None
    return (min(known_highs), max(known_lows) + 1), False


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    # Spark passes times with a zone. Times without a zone would be in the session's zone, which is
    # unknown here.
    return (value - EPOCH) // _MICROSECOND if value.tzinfo is not None else None


def _floor_ms(value: object) -> int | None:
    microseconds = _microseconds(value)
    return None if microseconds is None else microseconds // 1000


def _ceil_ms(value: object) -> int | None:
    microseconds = _microseconds(value)
    return None if microseconds is None else -(-microseconds // 1000)


NO_RANGE: Final = "nothing to read: filters exclude all offsets or times"
NO_TOPIC: Final = "nothing to read: no topic matches subscribePattern={}"
NO_PARTITION: Final = "nothing to read: filters exclude all partitions"


def empty_reason(options: SourceOptions, names: list[TopicPartition], limits: FilterLimits) -> str:
    """Return the reason why no partition is read.

    Args:
        options: Options of the query.
        names: Partitions that the options choose.
        limits: Limits of the filters.
    """
    if not names:
        return NO_TOPIC.format(options.pattern)
    return NO_RANGE if limits.is_empty else NO_PARTITION


def scan_ranges(
    options: SourceOptions, names: list[TopicPartition], limits: FilterLimits
) -> dict[TopicPartition, RequestedRange]:
    """Return the requested range of each partition that the limits don't exclude.

    Raises:
        InvalidRequest: An option with values by partition omits a partition, or lists a partition
            that is not read.
    """
    sides = {
        "start_offset": _spread("startingOffsets", options.start_offsets, names),
        "end_offset": _spread("endingOffsets", options.end_offsets, names),
        "start_ms": _spread("startingOffsetsByTimestamp", options.start_ms, names),
        "end_ms": _spread("endingOffsetsByTimestamp", options.end_ms, names),
    }
    soft = {
        "least_offset": limits.least_offset or None,
        "limit_offset": None if limits.limit_offset == INT64_MAX else limits.limit_offset,
    }
    return {
        name: RequestedRange(
            **{side: values[number] for side, values in sides.items()},
            **soft,
            filter_ms=limits.times,
            timestamps=None,
        )
        for number, name in enumerate(names)
        if limits.keeps(name)
    }


def _spread(what: str, values: PartitionValues, names: list[TopicPartition]) -> list[int | None]:
    """Return an option's value for each partition.

    Raises:
        InvalidRequest: The option omits a partition, or lists a partition that is not read.
    """
    if values is None or isinstance(values, int):
        return [values] * len(names)
    if missing := [name for name in names if name not in values]:
        raise InvalidRequest(
            f"{what} by partition lacks {missing[0]}; give a value for each partition"
        )
    if others := sorted(values.keys() - set(names)):
        raise InvalidRequest(f"{what} by partition has {others[0]}, which is not read")
    return [values[name] for name in names]
