"""Protocols of a query: requests to a log (`Backend`), and the tasks that it plans (`Task`).

Owns the protocols, and the reason why a range of a partition is empty (`explain`): nothing there,
deleted already, or not visible yet. Not owned: the backends; `tidelog.spark.directory_backend`
opens the one that the options name.

A backend belongs to one query and stays on the driver. Workers get its tasks, which are plain
values.

A reason is found from facts that the backend already has, without I/O, when a plan leaves nothing
to read. Causes that only a read shows (all records compacted away, or aborted) are unknown to the
plan.
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
    """Kind of reason for an empty range.

    `NEVER_WRITTEN`: the partition never had a record. `DELETED`: the log starts after the range,
    because of retention, DeleteRecords or compaction. `NOT_THERE`: the log has no record in the
    range. `NOT_VISIBLE`: there are records, but a transaction is open or they are not flushed.
    `NOT_WANTED`: filters or options exclude the whole range.
    """

    NEVER_WRITTEN = "never written"
    DELETED = "deleted"
    NOT_THERE = "not there"
    NOT_VISIBLE = "not visible"
    NOT_WANTED = "not wanted"


@dataclass(frozen=True, slots=True)
class EmptyRange:
    """A partition from which nothing is read, with the reason.

    Attributes:
        name: The partition.
        start: Start of the requested offsets, inclusive.
        end: End of the requested offsets, exclusive.
        why: The kind of reason.
        reason: The reason in words, with the log's own offsets.
    """

    name: TopicPartition
    start: int
    end: int
    why: WhyEmpty
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: nothing to read in offsets {self.start} to {self.end}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Known facts of a partition.

    Attributes:
        start: Log start offset.
        end: Log end offset (of a broker, the high watermark).
        visible: End of the readable offsets by isolation and `readUntil`, exclusive.
        first_ms: Time of the first record with a time on the query's clock; None without one.
        last_ms: The largest record time, None if unknown.
    """

    start: int
    end: int
    visible: int
    first_ms: int | None = None
    last_ms: int | None = None


def in_ms(time_ms: int) -> str:
    """Return a time as text, in ms."""
    return f"{time_ms} ms"


def explain(
    name: TopicPartition,
    wanted: RequestedRange,
    bounds: Bounds,
    facts: LogFacts,
    *,
    write: Callable[[int], str] = in_ms,
) -> EmptyRange:
    """Return the reason why nothing is read from a partition.

    Args:
        name: The partition.
        wanted: The requested range.
        bounds: The offsets that the range was resolved to.
        facts: Known facts of the log.
        write: Returns a time in ms as text.
    """
    why, reason = _of_log(facts) or _of_offsets(wanted, facts) or _of_times(wanted, facts, write)
    return EmptyRange(name, bounds.start, bounds.end, why, reason)


def may_be_gone(wanted: RequestedRange, bounds: Bounds) -> bool:
    """Whether a time range with an end begins after offset 0, so its records may be deleted."""
    has_end = wanted.end_ms is not None or wanted.filter_ms is not None
    return has_end and bounds.start > 0


def is_doubtful(empty: EmptyRange) -> bool:
    """Whether the range is before the log's start: only records out of order can be in it."""
    return empty.why is WhyEmpty.DELETED


def _of_log(facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    """Return the reason if the whole log is empty or not visible."""
    if facts.end == 0:
        return WhyEmpty.NEVER_WRITTEN, "nothing was ever written to this partition"
    if facts.start >= facts.end:
        reason = (
            f"all records below offset {facts.end} were deleted (retention, DeleteRecords or"
            f" compaction); the log starts and ends at {facts.start}"
        )
        return WhyEmpty.DELETED, reason
    if facts.visible <= facts.start:
        return WhyEmpty.NOT_VISIBLE, _hidden(facts)
    return None


def _hidden(facts: LogFacts) -> str:
    return (
        f"the log ends at {facts.end}, but from {facts.visible} on it may not be read yet (a"
        f" transaction is open there, or it is not flushed)"
    )


def _of_offsets(wanted: RequestedRange, facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    """Return the reason if the given offsets decide."""
    start, end = wanted.start_offset, wanted.end_offset
    if end is not None and 0 <= end <= facts.start and (start or 0) < end:
        return WhyEmpty.DELETED, f"deleted already: the log starts at {facts.start}"
    if start is not None and start >= facts.visible and facts.visible < facts.end:
        return WhyEmpty.NOT_VISIBLE, _hidden(facts)
    if start is not None and (start == LATEST_OFFSET or start >= facts.end):
        return WhyEmpty.NOT_THERE, f"the log ends at {facts.end}"
    if start is not None and end is not None and 0 <= end <= start:
        return WhyEmpty.NOT_WANTED, f"offsets {start} to {end} are none"
    return _of_filters(wanted, facts)


def _of_filters(wanted: RequestedRange, facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    least, limit = wanted.least_offset or 0, wanted.limit_offset
    if limit is not None and limit <= max(facts.start, least):
        return WhyEmpty.NOT_WANTED, f"filters and readUntil leave offsets {least} to {limit}"
    if least >= facts.visible:
        return WhyEmpty.NOT_WANTED, f"filters leave offsets from {least} on"
    return None


def _of_times(
    wanted: RequestedRange, facts: LogFacts, write: Callable[[int], str]
) -> tuple[WhyEmpty, str]:
    """Return the reason by the times of the range."""
    first, last = wanted.filter_ms or (None, None)
    start_ms = max((ms for ms in (wanted.start_ms, first) if ms is not None), default=None)
    end_ms = min((ms for ms in (wanted.end_ms, last) if ms is not None), default=None)
    why, reason = WhyEmpty.NOT_THERE, "no record has a time in the range"
    if facts.first_ms is None:
        reason = "no record of the log has a time on this clock"
    elif end_ms is not None and end_ms <= facts.first_ms and facts.start > 0:
        why = WhyEmpty.DELETED
        reason = (
            f"deleted already, if it ever was there: the log starts at offset {facts.start} with a"
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


# Rows in a record batch for Spark. Python's overhead is per batch, here and in Spark's worker.
# Larger batches were not faster and need more memory on both sides.
BATCH_ROWS: Final = 20_000


# Internal topics of brokers; the last one is only in a controller's directory.
_INTERNAL: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


class Task(Protocol):
    """Work of one task: small, and can be pickled."""

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows in Spark's form."""
        ...


class TaskPartition(InputPartition):
    """Work of one task as Spark sends it; None for no rows."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)
        self.task = task


def read_partition(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a `TaskPartition`, in a worker."""
    assert isinstance(partition, TaskPartition)
    return iter(()) if partition.task is None else in_worker(partition.task.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Ranges that a batch query reads.

    Attributes:
        tasks: Tasks in order of topic, partition and offset.
        bounds: For each partition the requested offsets [start, end) that are in the log.
        lost: Offsets that were requested by number and are not in the log.
        empty: Partitions from which nothing is read, with the reason.
        doubtful: Partitions that are read although their logs start after the time range: only
            records out of order can be found.
        scan_bytes: Bytes of log that the tasks read; None for brokers, which don't report it.
        log_bytes: Bytes of the whole log; None for brokers, which don't report it.
        reports: Damage that was found and worked around, one line each.
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
    """A log that a query reads. One owner, on the driver; never pickled."""

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the options choose, as of now, sorted.

        Raises:
            UnknownTopic: A named topic or partition does not exist.
        """
        ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topics' ids as 32 hexadecimal digits, "" if unknown."""
        ...

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return the readable offsets, by isolation and `readUntil`; raises UnknownTopic."""
        ...

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset with the given time in ms or a later one, None without one.

        Times are on the clock of the options.
        """
        ...

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the last batch below each offset, -1 if unknown."""
        ...

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the largest epoch up to each given one, and its end offset, exclusive.

        (-1, -1) if unknown. Source: KIP-320, OffsetForLeaderEpoch.
        """
        ...

    def first_times(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """Return record and append time in ms of the first record at or after each offset.

        None for an unknown time. Leaves out partitions without such a record, and those of brokers,
        whose records would need an extra read.
        """
        ...

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """Plan tasks that read the offsets [start, end) of each partition, in order.

        Ignores times in the options. Applies minPartitions, maxRecordsPerPartition and splitBytes.
        For lost offsets tasks raise OffsetsGone, or log a warning if failOnDataLoss is false.
        """
        ...

    def plan_batch(self, limits: FilterLimits) -> BatchPlan:
        """Plan a batch query: all that the options request, within the limits.

        Raises:
            InvalidRequest: The options don't fit the log.
            OffsetsGone: Requested offsets are not in the log, and failOnDataLoss is true.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def matching_topics(options: SourceOptions, topics: Iterable[str]) -> Sequence[str]:
    """Return the topics that `subscribe` names, or those that match `subscribePattern`.

    As in the Kafka connector, a pattern never matches internal topics.

    Raises:
        InvalidRequest: The pattern is not a valid regular expression.
    """
    if options.pattern is None:
        existing = frozenset(topics)
        return [name for name in options.topics if name in existing or not options.if_there]
    try:
        pattern = re.compile(options.pattern)
    except re.error as error:
        raise InvalidRequest(f"option subscribePattern={options.pattern}: {error}") from error
    return [name for name in topics if pattern.fullmatch(name) and name not in _INTERNAL]


@cache
def freeze_garbage() -> None:
    """Exclude all objects loaded so far from garbage collection, once in a worker's life.

    Spark's daemon collects garbage after every task. A walk through all of Numba's objects takes
    0.1 s each time, as long as decoding 3 million records.
    """
    gc.collect()
    gc.freeze()
