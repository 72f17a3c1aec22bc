"""A query whose Python worker started too late is restarted; other errors are raised."""

from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tidelog.jobs.mirror.commit import STARTS, RestartingQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

LATE = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back."
AT_START = "Timed out while waiting for the Python worker to connect back"


class FakeQuery:
    """One run of a query.

    `end` is the error with which the query fails; None if the query succeeds.
    """

    def __init__(self, end: str | None) -> None:
        self._end = end
        self.lastProgress: object = None

    def awaitTermination(self, _seconds: float) -> bool:
        if self._end is not None:
            raise StreamingQueryException(self._end)
        return True


def starting(*ends: str | None) -> "tuple[Callable[[], StreamingQuery], list[FakeQuery]]":
    """Return a function that starts a query for each of `ends`, and the list of started queries."""
    left, started = list(ends), list[FakeQuery]()

    def start() -> "StreamingQuery":
        end = left.pop(0)
        if end == AT_START:
            raise PySparkException(end)
        started.append(FakeQuery(end))
        return cast("StreamingQuery", started[-1])

    return start, started


def test_a_late_python_starts_it_again() -> None:
    start, started = starting(LATE, AT_START, LATE, None)
    query = RestartingQuery(start)
    assert [query.has_ended(1) for _ in range(3)] == [False, False, True]
    assert query.current is cast("StreamingQuery", started[-1])
    assert len(started) == 3


def test_another_error_is_raised() -> None:
    start, started = starting("a record was lost", None)
    with pytest.raises(StreamingQueryException, match="a record was lost"):
        RestartingQuery(start).has_ended(1)
    assert len(started) == 1


@pytest.mark.parametrize("late", [LATE, AT_START])
def test_the_query_is_restarted_a_limited_number_of_times(late: str) -> None:
    start, _ = starting(*[LATE] * (STARTS - 1), late, None)
    query = RestartingQuery(start)

    def to_end(query: RestartingQuery) -> None:
        for _ in range(2):
            assert not query.has_ended(1)

    for _ in range(STARTS - 2):
        assert not query.has_ended(1)
    with pytest.raises(PySparkException, match="Python worker"):
        to_end(query)


def test_another_error_at_the_start_is_raised() -> None:
    def start() -> "StreamingQuery":
        raise PySparkException("no such path")

    with pytest.raises(PySparkException, match="no such path"):
        RestartingQuery(start)


def test_a_query_that_worked_has_all_its_starts_again() -> None:
    """Progress resets the count of late starts, so a mirror survives one late start a week."""
    start, started = starting(*[LATE] * (STARTS - 1), None, *[LATE] * (STARTS - 1), None)
    query = RestartingQuery(start)
    for _ in range(STARTS - 1):
        assert not query.has_ended(1)
    assert len(started) == STARTS
    started[-1].lastProgress = {}
    assert query.has_ended(1)
    started[-1]._end = LATE
    for _ in range(STARTS - 1):
        assert not query.has_ended(1)
    assert len(started) == 2 * STARTS - 1
