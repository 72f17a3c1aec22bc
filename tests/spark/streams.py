"""Streams that are restarted if Spark's Python process starts too slowly."""

from typing import TYPE_CHECKING

from tidelog.jobs.mirror.commit import RestartingQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 60


def to_end(start: "Callable[[], StreamingQuery]") -> "StreamingQuery":
    """Start a query and wait for its end; raise its error."""
    query = RestartingQuery(start)
    while not query.has_ended(LOOK_S):
        pass
    return query.current
