"""Protocols of a query: `Backend` gives access to the log, and `Task` reads a part of the plan.

The function `explain` finds the reason why a range of a partition is empty, for example that its
records were deleted or are not visible yet. The function
`tidelog.spark.directory_backend.open_backend` creates the backend for a query's options.

A backend belongs to one query and stays on the driver. Workers get only tasks, which are small
values that can be pickled.

If a plan leaves nothing to read, `explain` derives the reason from offsets and times that the
backend has looked up (`LogFacts`). A reason that only a read can find is not reported, for example
that all records were compacted away or aborted.
"""

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.datasource import InputPartition

from tidelog.amounts import offsets_text
from tidelog.errors import InvalidRequest, LostOffsets
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.bounds import Bounds
from tidelog.scan.split import RequestedRange
from tidelog.spark.options import SourceOptions
from tidelog.spark.pushdown import FilterLimits
from tidelog.spark.stream_offset import Extent
from tidelog.spark.workers import in_worker
from tidelog.types import LATEST_OFFSET, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class WhyEmpty(StrEnum):
    """Kind of the reason why nothing is read from a range.

    `NEVER_WRITTEN`: the partition never had a record. `DELETED`: the log has no records left, or
    starts after the range; if the range ever had records, then retention, DeleteRecords or
    compaction has deleted these records. `NOT_THERE`: the log has no record in the range.
    `NOT_VISIBLE`: records of the range can't be read yet, because they follow the start of an open
    transaction or are not flushed. `NOT_WANTED`: filters or options exclude the whole range.
    """

    NEVER_WRITTEN = "never written"
    DELETED = "deleted"
    NOT_THERE = "not there"
    NOT_VISIBLE = "not visible"
    NOT_WANTED = "not wanted"


@dataclass(frozen=True, slots=True)
class EmptyRange:
    """A range of a partition from which nothing is read, with the reason.

    Attributes:
        name: The partition.
        start: First offset of the range, limited to the log, inclusive.
        end: End offset of the range, exclusive.
        why: Kind of the reason.
        reason: The reason as text, with the log's offsets.
    """

    name: TopicPartition
    start: int
    end: int
    why: WhyEmpty
    reason: str

    def __str__(self) -> str:
        last = max(self.start, self.end - 1)
        where = f"{'at' if last == self.start else 'in'} {offsets_text(self.start, last)}"
        return f"{self.name}: nothing to read {where}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Offsets and times of a partition, from which `explain` derives the reason.

    Attributes:
        start: Log start offset.
        end: Log end offset; if brokers are read, the high watermark that they report.
        visible: End of the readable offsets, exclusive, which depends on isolation and `readUntil`.
        first_ms: Time in ms of the first record that has a time on the query's clock; None if no
            record has such a time, or if the time is unknown.
        last_ms: The largest record timestamp in ms; None if unknown.
    """

    start: int
    end: int
    visible: int
    first_ms: int | None = None
    last_ms: int | None = None


def in_ms(time_ms: int) -> str:
    """Return a time as text, such as `1000 ms`."""
    return f"{time_ms} ms"


def explain(
    name: TopicPartition,
    requested: RequestedRange,
    bounds: Bounds,
    facts: LogFacts,
    *,
    write: Callable[[int], str] = in_ms,
) -> EmptyRange:
    """Return the reason why nothing is read from a requested range of a partition.

    Args:
        name: The partition.
        requested: The requested range.
        bounds: The range, limited to the log.
        facts: Known offsets and times of the partition.
        write: Function that returns the text of a time in ms.
    """
    why, reason = (
        _of_log(facts) or _of_offsets(requested, facts) or _of_times(requested, facts, write)
    )
    return EmptyRange(name, bounds.start, bounds.end, why, reason)


def may_be_deleted(requested: RequestedRange, bounds: Bounds) -> bool:
    """Return whether records of a time range may have been deleted.

    True if the range has an end time, and the range's first offset in the log is above 0.
    """
    has_end = requested.end_ms is not None or requested.filter_ms is not None
    return has_end and bounds.start > 0


def is_doubtful(empty: EmptyRange) -> bool:
    """Return whether the reason is `DELETED`: the log starts after the range, or has no records.

    If the log starts after the range, only out-of-order records can match the range.
    """
    return empty.why is WhyEmpty.DELETED


def _of_log(facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    """Return the reason if no record of the log is readable; None if a record is readable."""
    if facts.end == 0:
        return WhyEmpty.NEVER_WRITTEN, "the partition never had records"
    if facts.start >= facts.end:
        reason = (
            f"all records below offset {facts.end} were deleted (retention, DeleteRecords or"
            f" compaction); the log starts and ends at offset {facts.start}"
        )
        return WhyEmpty.DELETED, reason
    if facts.visible <= facts.start:
        return WhyEmpty.NOT_VISIBLE, _hidden(facts)
    return None


def _hidden(facts: LogFacts) -> str:
    return (
        f"the log ends at offset {facts.end}, but records from offset {facts.visible} on can't be"
        " read yet (they follow the start of an open transaction, or they are not flushed)"
    )


def _of_offsets(requested: RequestedRange, facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    """Return the reason if no requested offset can be read; None if an offset can be read."""
    start, end = requested.start_offset, requested.end_offset
    if end is not None and 0 <= end <= facts.start and (start or 0) < end:
        return WhyEmpty.DELETED, f"deleted already: the log starts at offset {facts.start}"
    if start is not None and start >= facts.visible and facts.visible < facts.end:
        return WhyEmpty.NOT_VISIBLE, _hidden(facts)
    if start is not None and (start == LATEST_OFFSET or start >= facts.end):
        return WhyEmpty.NOT_THERE, f"the log ends at offset {facts.end}"
    if start is not None and end is not None and 0 <= end <= start:
        return WhyEmpty.NOT_WANTED, f"empty offset range: {start} to {end}"
    return _of_filters(requested, facts)


def _of_filters(requested: RequestedRange, facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    least, limit = requested.least_offset or 0, requested.limit_offset
    if limit is not None and limit <= max(facts.start, least):
        if least < limit:
            reason = f"filters or readUntil require offsets below {limit}, but the log starts at"
            return WhyEmpty.NOT_WANTED, f"{reason} offset {facts.start}"
        reason = f"filters and readUntil require offsets of at least {least} and below {limit}"
        return WhyEmpty.NOT_WANTED, reason
    if least >= facts.visible:
        return WhyEmpty.NOT_WANTED, f"filters require offsets of at least {least}"
    return None


def _of_times(
    requested: RequestedRange, facts: LogFacts, write: Callable[[int], str]
) -> tuple[WhyEmpty, str]:
    """Return the reason for a range that is empty because of its times."""
    first, last = requested.filter_ms or (None, None)
    start_ms = max((ms for ms in (requested.start_ms, first) if ms is not None), default=None)
    end_ms = min((ms for ms in (requested.end_ms, last) if ms is not None), default=None)
    why, reason = WhyEmpty.NOT_THERE, "no record has a time in the range"
    if facts.first_ms is None:
        reason = "no record of the log has a time on this clock"
    elif end_ms is not None and end_ms <= facts.first_ms and facts.start > 0:
        why = WhyEmpty.DELETED
        reason = (
            f"deleted, or never written: the log starts at offset {facts.start} with a"
            f" time of {write(facts.first_ms)}, and the range ends at {write(end_ms)}"
        )
    elif end_ms is not None and end_ms <= facts.first_ms:
        reason = (
            f"the log starts with a time of {write(facts.first_ms)}, and the range ends at"
            f" {write(end_ms)}"
        )
    elif start_ms is not None and facts.last_ms is not None and start_ms > facts.last_ms:
        reason = (
            f"the latest time in the log is {write(facts.last_ms)}, and the range starts at"
            f" {write(start_ms)}"
        )
    return why, reason


# Number of rows in a record batch for Spark. The Python code of tidelog and of Spark's worker has
# an overhead for each batch. Larger batches were not faster and need more memory.
BATCH_ROWS: Final = 20_000

# Internal topics of brokers; `__cluster_metadata` exists only in a controller's directory.
_INTERNAL: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


class Task(Protocol):
    """Part of a query that one Spark task reads. It must be small and picklable."""

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows as record batches for Spark."""
        ...


class TaskPartition(InputPartition):
    """Task in the form that Spark sends to a worker. A `task` of None yields no rows."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)
        self.task = task


def read_partition(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a `TaskPartition`. Runs in a worker."""
    assert isinstance(partition, TaskPartition)
    return iter(()) if partition.task is None else in_worker(partition.task.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Plan of a batch query.

    Attributes:
        tasks: Tasks in order of topic, partition and offset.
        bounds: Requested offsets [start, end) of each partition, inside the log.
        lost: Requested offsets that are not in the log.
        empty: Partitions from which nothing is read, each with the reason.
        doubtful: Partitions whose logs start at a time after the end of the time range. They are
            read because an out-of-order record can still match.
        scan_bytes: Number of bytes of log that the tasks read; None for tables and for brokers.
        log_bytes: Number of bytes of the whole log; None for tables and for brokers.
        reports: One line for each damaged place that the plan avoids, and one for each reason why a
            table may be inexact. If options or filters exclude all partitions, the only line is the
            reason for this.
    """

    tasks: tuple[Task, ...] = ()
    bounds: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    lost: tuple[LostOffsets, ...] = ()
    empty: tuple[EmptyRange, ...] = ()
    doubtful: tuple[EmptyRange, ...] = ()
    scan_bytes: int | None = None
    log_bytes: int | None = None
    reports: tuple[str, ...] = ()


class Backend(AbstractContextManager["Backend"], Protocol):
    """Access to the log that a query reads. Stays on the driver. Not thread-safe."""

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the options choose, sorted.

        Raises:
            UnknownTopic: A topic or partition in the options does not exist. For a directory, only
                later calls check the partitions in `assign`.
        """
        ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topics' ids as 32 hexadecimal digits; "" if unknown."""
        ...

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return each partition's readable offsets, which depend on isolation and `readUntil`.

        With failOnDataLoss=false, partitions that have lost their directory are left out.

        Raises:
            MissingFile: A directory lists a partition that has no directory, and failOnDataLoss is
                true.
        """
        ...

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after each time in ms; None without a record.

        Times are on the clock that the options choose.
        """
        ...

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the last batch below each offset; -1 if unknown."""
        ...

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the largest epoch at or below each given epoch, and its exclusive end offset.

        Epoch and end are -1 if they are unknown. Source: KIP-320, OffsetForLeaderEpoch.
        """
        ...

    def first_times(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """Return timestamp and append time in ms of the first record at or after each offset.

        A time is None if unknown. The result leaves out damaged partitions and partitions without a
        record from the offset on. It also leaves out all partitions of brokers, which don't report
        times of records before the records are fetched.
        """
        ...

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """Return tasks that read the offsets [start, end) of each partition, in order.

        Times in the options are ignored; minPartitions, maxRecordsPerPartition and splitBytes are
        applied. Lost offsets raise OffsetsGone in this method or in a task; with
        failOnDataLoss=false, they are only logged as a warning.
        """
        ...

    def plan_batch(self, limits: FilterLimits) -> BatchPlan:
        """Plan a batch query that reads the ranges in the options, limited by filters.

        Raises:
            InvalidRequest: The options don't fit the log.
            OffsetsGone: Requested offsets are not in the log, and failOnDataLoss is true.
            InexactTable: A table is requested, and records for it may be missing.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def matching_topics(options: SourceOptions, topics: Iterable[str]) -> Sequence[str]:
    """Return the topics in `subscribe` or `topic`, or the topics that match `subscribePattern`.

    A pattern never matches internal topics, as in the Kafka connector.

    Raises:
        InvalidRequest: The pattern is not a valid regular expression.
    """
    if options.pattern is None:
        existing = frozenset(topics)
        return [name for name in options.topics if name in existing or not options.if_there]
    try:
        pattern = re.compile(options.pattern)
    except re.error as error:
        raise InvalidRequest(
            f"option subscribePattern={options.pattern}: not a valid regular expression: {error}"
        ) from error
    return [name for name in topics if pattern.fullmatch(name) and name not in _INTERNAL]


@cache
def freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection; has an effect only once per worker.

    Spark's daemon collects garbage after every task. Without this function, each collection would
    traverse Numba's objects for 0.1 s. In this time, 3 million records can be decoded.
    """
    gc.collect()
    gc.freeze()
