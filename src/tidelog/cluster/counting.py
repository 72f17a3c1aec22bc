"""How many records lie between two offsets: exact where somebody can be asked, else at most."""

from collections.abc import Callable
from typing import TypeAlias

from tidelog.cluster.own import OwnLogs
from tidelog.cluster.view import ClusterView, Count
from tidelog.types import IsolationLevel, TopicPartition

# How many data records have offsets in [start, end) of a partition.
Counter: TypeAlias = Callable[[TopicPartition, int, int], Count]


def by_offsets(_partition: TopicPartition, start: int, end: int) -> Count:
    """As many as there are offsets, at most: compaction and transactions leave gaps."""
    return Count(max(end - start, 0), is_exact=end <= start)


def counter(
    cluster: ClusterView,
    own: OwnLogs | None,
    *,
    by_reading: bool = False,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Counter:
    """The best way to count that there is.

    Args:
        cluster: Where records can be read.
        own: Its directory: batch headers tell.
        by_reading: Read the records themselves where there is no directory; they all cross the
            network, since brokers send batches whole.
        isolation: READ_COMMITTED leaves out records of aborted transactions.
    """

    def count(partition: TopicPartition, start: int, end: int) -> Count:
        if start >= end:
            return Count(0, is_exact=True)
        if own is not None and own.has(partition):
            return own.count(partition, start, end, isolation)
        if by_reading:
            records = cluster.records(partition, start, end, isolation=isolation)
            return Count(sum(1 for _ in records), is_exact=True)
        return by_offsets(partition, start, end)

    return count
