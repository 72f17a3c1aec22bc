"""Filters become limits; a filter whose limit selects too many rows is also returned to Spark."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
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

from tidelog.spark.options import SourceOptions
from tidelog.spark.pushdown import FilterLimits, LimitMaker
from tidelog.types import INT64_MAX, ClockName, TopicPartition

TIME = ("timestamp",)
APPENDED = ("appendTimestamp",)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(count: int) -> datetime:
    return EPOCH + timedelta(microseconds=count)


def take(*filters: Filter, **options: object) -> tuple[FilterLimits, list[Filter]]:
    maker = LimitMaker(SourceOptions(path="/data", **options))  # type: ignore[arg-type] # options by name
    maker.take(filters)
    return maker.limits, maker.returned


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (EqualTo(("topic",), "a"), {"a-0", "a-1"}),
        (EqualNullSafe(("topic",), "ab"), {"ab-0", "ab-1"}),
        (Not(EqualTo(("topic",), "a")), {"ab-0", "ab-1"}),
        (In(("topic",), ("a", "c")), {"a-0", "a-1"}),
        (StringStartsWith(("topic",), "a"), {"a-0", "a-1", "ab-0", "ab-1"}),
        (StringEndsWith(("topic",), "b"), {"ab-0", "ab-1"}),
        (Not(StringContains(("topic",), "b")), {"a-0", "a-1"}),
        (EqualTo(("partition",), 1), {"a-1", "ab-1"}),
        (GreaterThan(("partition",), 0), {"a-1", "ab-1"}),
        (LessThanOrEqual(("partition",), 0), {"a-0", "ab-0"}),
        (Not(In(("partition",), (0, 7))), {"a-1", "ab-1"}),
        (IsNotNull(("partition",)), {"a-0", "a-1", "ab-0", "ab-1"}),
        (IsNull(("topic",)), set()),
        (Not(IsNull(("topic",))), {"a-0", "a-1", "ab-0", "ab-1"}),
    ],
)
def test_names(one: Filter, kept: set[str]) -> None:
    limits, returned = take(one)
    names = [TopicPartition(topic, number) for topic in ("a", "ab") for number in (0, 1)]
    assert {str(name) for name in names if limits.keeps(name)} == kept
    assert returned == []


@pytest.mark.parametrize("column", [TIME, APPENDED])
def test_a_time_that_is_shown_as_null_is_left_to_spark(column: tuple[str, ...]) -> None:
    """With mode=permissive, times that Spark can't represent are null, so Spark has to filter."""
    filters = [GreaterThanOrEqual(column, us(5_000)), IsNotNull(column)]
    limits, returned = take(*filters, permissive=True)
    assert limits.times == (5, INT64_MAX)
    assert returned == filters
    assert take(*filters)[1] == []


COMPARED = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
PLAIN: dict[type[Filter], Callable[[int, int], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@pytest.mark.parametrize("kinds", list(itertools.product(COMPARED, repeat=2)))
def test_offsets(kinds: tuple[type[Filter], type[Filter]]) -> None:
    filters = [kind(("offset",), value) for kind, value in zip(kinds, (3, 6), strict=True)]  # type: ignore[call-arg] # all compare
    limits, returned = take(IsNotNull(("offset",)), *filters)
    assert returned == []
    for offset in range(10):
        want = all(PLAIN[k](offset, v) for k, v in zip(kinds, (3, 6), strict=True))
        assert (limits.least_offset <= offset < limits.limit_offset) == want
    assert limits.is_empty or limits.least_offset < limits.limit_offset


@pytest.mark.parametrize("value", [4_000, 4_001, 4_999, 5_000])
@pytest.mark.parametrize("kind", COMPARED)
def test_times_between_two_milliseconds(kind: type[Filter], value: int) -> None:
    limits, returned = take(kind(TIME, us(value)), IsNotNull(TIME))  # type: ignore[call-arg] # all compare
    assert returned == []
    assert limits.times is not None
    start, end = limits.times
    for ms in range(8):
        is_kept = start <= ms and (ms < end or end == INT64_MAX)
        assert is_kept == PLAIN[kind](ms * 1000, value)


def test_lists_are_narrowed_and_restored() -> None:
    one = In(("offset",), (9, 4, 6))
    limits, returned = take(one)
    assert (limits.least_offset, limits.limit_offset) == (4, 10)
    assert returned == [one]
    times = In(TIME, (us(1_000), us(5_500)))
    limits, returned = take(times, IsNotNull(TIME))
    assert limits.times == (1, 6)
    assert returned == [times]  # IsNotNull is not returned: the limit of times implies it


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        IsNotNull(("key",)),
        IsNotNull(TIME),
        IsNull(TIME),
        Not(EqualTo(("offset",), 3)),
        Not(GreaterThan(TIME, us(3))),
        In(("offset",), (1, None)),
        In(("topic",), ("a", None)),
        EqualTo(TIME, datetime(2013, 2, 8)),  # noqa: DTZ001 - a time without a zone
        StringStartsWith(("value",), "x"),
        EqualTo(("partition",), "1"),
        EqualTo(("topic",), 1),
    ],
)
def test_filters_without_an_exact_limit_are_returned(one: Filter) -> None:
    assert take(one) == (FilterLimits(), [one])


def test_only_filters_of_one_clock_are_used() -> None:
    record, append = GreaterThan(TIME, us(0)), LessThan(APPENDED, us(9_000))
    limits, returned = take(record, append)
    assert (limits.clock, limits.times, returned) == (ClockName.RECORD, (1, INT64_MAX), [append])
    limits, returned = take(append, record)
    assert (limits.clock, returned) == (ClockName.APPEND, [record])
    limits, returned = take(record, append, clock=ClockName.APPEND, start_ms=5)
    assert (limits.clock, returned) == (ClockName.APPEND, [record])


def test_strict_must_meet_records_without_a_time() -> None:
    one = GreaterThan(TIME, us(0))
    assert take(one, strict=True) == (FilterLimits(), [one])


def test_contradictions_are_empty() -> None:
    assert take(EqualTo(("offset",), 3), EqualTo(("offset",), 4))[0].is_empty
    assert take(GreaterThan(TIME, us(9_000)), LessThan(TIME, us(3_000)))[0].is_empty
    assert not take(GreaterThan(TIME, us(0)))[0].is_empty
