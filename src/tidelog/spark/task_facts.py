"""What a task knows of itself: its number, and the streaming batch that it belongs to.

Spark hands a batch's number to a sink's commit alone; tasks find it among their local properties.
"""

from typing import Final, NamedTuple

from pyspark import TaskContext

from tidelog.errors import InvalidRequest

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


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
