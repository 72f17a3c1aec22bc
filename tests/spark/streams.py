"""Streams that come to their end, however long Spark's Python takes to come up."""

from typing import TYPE_CHECKING

from tidelog.jobs.mirror.commit import RestartingQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 60


def to_end(start: "Callable[[], StreamingQuery]") -> "StreamingQuery":
    """The query, started and ended; raises what ended it."""
    query = RestartingQuery(start)
    while not query.has_ended(LOOK_S):
        pass
    return query.current
