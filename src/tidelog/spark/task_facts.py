"""Facts that a task knows of itself: its number, and the streaming batch that it belongs to.

Spark hands a batch's number to a sink's commit alone; tasks find it among their local properties.
"""

from typing import Final, NamedTuple

from pyspark import TaskContext

from tidelog.errors import InvalidRequest

QUERY_ID: Final = "sql.streaming.queryId"


BATCH_ID: Final = "streaming.sql.batchId"


_EXECUTION: Final = "spark.sql.execution.id"


_ROOT_EXECUTION: Final = "spark.sql.execution.root.id"


class StreamBatch(NamedTuple):
    """A batch of a streaming query; a query keeps its id as long as its checkpoint lives."""

    query_id: str
    number: int


def task_number() -> int:
    """The number of this task among those that write; 0 outside of one."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def stream_batch() -> StreamBatch:
    """The batch that this task belongs to; raises InvalidRequest outside of a streaming query."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(QUERY_ID)
    number = None if context is None else context.getLocalProperty(BATCH_ID)
    if not query_id or not number:
        raise InvalidRequest(
            "a streaming write outside of a streaming query: no id of query, batch"
        )
    return StreamBatch(query_id, int(number))


def refuse_new_table() -> None:
    """Raise InvalidRequest if this task's batch write would fill a new table of Spark's catalog.

    Spark calls a sink for `saveAsTable` and `writeTo(...).create()` as it does for `save`, but runs
    the write as an execution inside of the one that makes the table. Inside `foreachBatch` each
    write is such an inner execution, so there the two can't be told apart.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(BATCH_ID):
        return
    root = context.getLocalProperty(_ROOT_EXECUTION)
    if root and root != context.getLocalProperty(_EXECUTION):
        raise InvalidRequest(
            "saveAsTable and writeTo(...).create() make a table of Spark's catalog that could not"
            " be read: Spark does not pass its options to Python data sources. Nothing was written."
            " Use save(), and CREATE TEMPORARY VIEW ... USING tidelog OPTIONS (path '...', topic"
            " '...') for SELECT and INSERT"
        )
