"""Streams that are restarted if Spark's Python process starts too slowly."""

from typing import TYPE_CHECKING

from tidelog.jobs.mirror.commit import RestartingQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 60
LOOKS_MAX = 5


def to_end(start: "Callable[[], StreamingQuery]") -> "StreamingQuery":
    """Start a query and wait for its end; raise its error."""
    query = RestartingQuery(start)
    for _ in range(LOOKS_MAX):
        if query.has_ended(LOOK_S):
            return query.current
    raise AssertionError(f"after {LOOKS_MAX * LOOK_S} s the query still runs")
