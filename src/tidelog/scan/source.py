"""Sources of records: `RecordSource`, and its implementation for a directory of topics.

`Scan`, `Table` and `Diff` work on a `RecordSource`: `DirectoryRecords` here, or
`tidelog.remote.records.ClusterRecords`. A source plans and reads again for each call and keeps no
state. `read` needs Arrow, and imports it; `count` needs Arrow only if zone maps are not enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tidelog.amounts import bytes_text
from tidelog.env import Env
from tidelog.errors import MissingDependency
from tidelog.lazy_dataclass import dataclass
from tidelog.progress import with_progress
from tidelog.record.record import Record
from tidelog.scan.count import Count
from tidelog.scan.count import count as count_records
from tidelog.scan.plan import (
    ScanPlan,
    checked_partitions,
    list_partitions,
    plan,
    with_directory,
)
from tidelog.scan.split import RequestedRange, ScanStats, Split
from tidelog.scan.table_rules import Doubt, Ranking, compacted_to, directory_doubts, ranking_of
from tidelog.split_size import THREAD_SPLIT_BYTES
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import (
    INT64_MAX,
    NO_TIMESTAMP,
    ClockName,
    IsolationLevel,
    TopicChoice,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan.compacted import CompactedPart
    from tidelog.scan.plain_reads import PlainReads
    from tidelog.scan.reader import ReadOptions


_Result = TypeVar("_Result")


def timestamp_counts(records: Iterable[Record]) -> tuple[int, int]:
    """Return the number of records, and the number of records that have no timestamp."""
    number = untimed = 0
    for record in records:
        number += 1
        untimed += record.timestamp == NO_TIMESTAMP
    return number, untimed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The records that a read or a count selects.

    Attributes:
        topics: Topics or single partitions; None for all topics (see `Scan.topics`).
        requested_range: Offsets and times.
        clock: Clock of the times.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
    """

    topics: TopicChoice
    requested_range: RequestedRange
    clock: ClockName = ClockName.RECORD
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED


class RecordSource(ABC):
    """Source of records: a directory or a cluster."""

    __slots__ = ()

    env: Env

    @property
    @abstractmethod
    def address(self) -> str:
        """The directory's path, or `host:port[,host:port]`."""

    @abstractmethod
    def partitions(self, topics: TopicChoice) -> list[TopicPartition]:
        """Return the partitions of topics; raises UnknownTopic."""

    def checked_partitions(self, topics: TopicChoice) -> list[TopicPartition]:
        """Return the chosen partitions; raises MissingFile if one of them has lost its directory.

        See `tidelog.scan.plan.checked_partitions`.
        """
        return self.partitions(topics)

    def with_records(self, names: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that can be read; others have lost their directories."""
        return list(names)

    @abstractmethod
    def plan(
        self,
        request: ReadRequest,
        columns: Sequence[str],
        *,
        strict: bool = False,
        fail_on_data_loss: bool = True,
    ) -> ScanPlan:
        """Plan a read like `tidelog.scan.plan`.

        Raises:
            UnknownTopic, ClusterFailure: A topic or partition doesn't exist, or no broker responds.
            InvalidRequest: The range is invalid, or the source doesn't have a column.
            OffsetsGone: Requested offsets are not in the log. A cluster never raises OffsetsGone,
                because offsets are limited to the cluster's logs.
        """

    @abstractmethod
    def read(
        self,
        splits: Iterable[Split],
        columns: Sequence[str],
        *,
        stats: ScanStats,
        options: "ReadOptions | None" = None,
        threads: int | None = None,
    ) -> "pa.RecordBatchReader":
        """Return a reader of the rows of splits, in their order.

        Args:
            splits: The splits.
            columns: Names from `tidelog.scan.ALL_COLUMNS`.
            stats: Updated while reading.
            options: How to read: `rows`, `strict`, `views`; defaults if None.
            threads: Number of decoding threads; the source's default if None.

        Raises:
            InvalidRequest: A column is unknown or listed twice; raised at once.
            ImportError: pyarrow, numpy or numba is not installed; raised at once.
            The errors of `tidelog.scan.read`: Raised while reading.
        """

    @abstractmethod
    def count(self, request: ReadRequest, *, zone_cache: str | None = None) -> Count:
        """Return the number of records by partition; see `tidelog.scan.count`."""

    @abstractmethod
    def plain_reads(
        self, names: Sequence[TopicPartition], clock: ClockName, isolation: IsolationLevel
    ) -> "AbstractContextManager[PlainReads]":
        """Return a context manager for reading records one by one, without Arrow."""

    @property
    @abstractmethod
    def has_create_times(self) -> bool:
        """Whether the source has the create times of records with a LogAppendTime timestamp."""

    @property
    @abstractmethod
    def knows_compaction(self) -> bool:
        """Whether the source knows up to which offset each partition was compacted."""

    @abstractmethod
    def timestamp_counts(self, name: TopicPartition, start: int, end: int) -> tuple[int, int]:
        """Return how many records offsets [start, end) have, and how many have no timestamp.

        Both numbers are exact. `start` is less than `end`.
        """

    @abstractmethod
    def without_time(
        self,
        names: Sequence[TopicPartition],
        requested_range: RequestedRange,
        clock: ClockName,
        stats: ScanStats,
    ) -> int | None:
        """Return the number of records in a range that have no time on the clock.

        `stats` are the statistics of a complete read of the range. Returns None if brokers don't
        report the number.
        """

    # -- tables by key -------------------------------------------------------------------------

    @abstractmethod
    def ranking(self, topic: str) -> Ranking:
        """Return the topic's compaction rule; raises ConfigError."""

    @abstractmethod
    def doubts(
        self, names: Sequence[TopicPartition], at_ms: int | None, clock: ClockName
    ) -> list[Doubt]:
        """Return the reasons why a table as of a time may be inexact; reads no records."""

    @abstractmethod
    def compacted_to(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's offset below which records may be compacted; 0 if unknown."""

    @abstractmethod
    def compacted_parts(
        self, ranges: Mapping[TopicPartition, RequestedRange], clock: ClockName
    ) -> "dict[TopicPartition, CompactedPart]":
        """Return, for each compacted partition, the part of its range where records may be gone.

        Raises UnknownTopic, ClusterFailure.
        """

    def table_splits(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,
        columns: Sequence[str],
    ) -> dict[TopicPartition, list[Split]]:
        """Plan splits of the committed records.

        The splits have only records with times up to and including `at_ms`, or all records if
        `at_ms` is None.
        """
        splits: dict[TopicPartition, list[Split]] = {name: [] for name in names}
        if not names:
            return splits
        before = self.compacted_to(names)
        request = ReadRequest(
            topics=self.with_records(names),
            requested_range=RequestedRange(
                end_ms=None if at_ms is None else min(at_ms, INT64_MAX - 1) + 1
            ),
            clock=clock,
            isolation=IsolationLevel.READ_COMMITTED,
        )
        planned = self.plan(request, columns)
        for split in planned.splits:
            name = split.topic_partition
            limit = max(before[name], planned.bounds[name][1])
            splits[name].append(replace(split, compacted_max=limit))
        return splits


@dataclass(frozen=True, slots=True)
class DirectoryRecords(RecordSource):
    """Records of a directory of topics, local or in an object store, with its tiers.

    Attributes:
        directory: The directory, by path or open. A path is opened for each call.
        env: Files, clock and randomness.
        threads: Number of decoding threads; the number of cores if None.
        split_bytes: Approximate log bytes of a split.
    """

    directory: str | LogDir
    env: Env
    threads: int | None = None
    split_bytes: int = THREAD_SPLIT_BYTES

    @property
    def address(self) -> str:
        """See `RecordSource`."""
        return self.directory if isinstance(self.directory, str) else self.directory.path

    def partitions(self, topics: TopicChoice) -> list[TopicPartition]:
        """See `RecordSource`.

        Partitions without a directory are included if the topics file lists them.
        """
        return self._call(lambda log_dir: list_partitions(log_dir, topics, with_absent=True))

    def checked_partitions(self, topics: TopicChoice) -> list[TopicPartition]:
        """See `RecordSource`."""
        return self._call(lambda log_dir: checked_partitions(log_dir, topics))

    def with_records(self, names: Sequence[TopicPartition]) -> list[TopicPartition]:
        """See `RecordSource`."""
        return self._call(lambda log_dir: list_partitions(log_dir, names))

    def plan(
        self,
        request: ReadRequest,
        columns: Sequence[str],
        *,
        strict: bool = False,
        fail_on_data_loss: bool = True,
    ) -> ScanPlan:
        """See `RecordSource`."""
        return plan(
            self.directory,
            request.topics,
            requested_range=request.requested_range,
            clock=request.clock,
            isolation=request.isolation,
            columns=columns,
            split_bytes=self.split_bytes,
            fail_on_data_loss=fail_on_data_loss,
            strict=strict,
            env=self.env,
        )

    def read(
        self,
        splits: Iterable[Split],
        columns: Sequence[str],
        *,
        stats: ScanStats,
        options: "ReadOptions | None" = None,
        threads: int | None = None,
    ) -> "pa.RecordBatchReader":
        """See `RecordSource`."""
        from tidelog.scan.parallel import to_parallel_reader
        from tidelog.scan.reader import ReadOptions, to_reader

        count = self.threads if threads is None else threads
        how = replace(options or ReadOptions(), env=self.env)
        chosen = tuple(splits)
        if count == 1:
            reader = to_reader(chosen, columns, options=how, stats=stats)
        else:
            reader = to_parallel_reader(chosen, columns, options=how, stats=stats, threads=count)
        before = stats.log_bytes
        total = sum(split.size_bytes for split in chosen)
        return with_progress(
            reader, "Reading", total, bytes_text, lambda _rows: stats.log_bytes - before
        )

    def count(self, request: ReadRequest, *, zone_cache: str | None = None) -> Count:
        """See `RecordSource`."""
        return count_records(
            self.directory,
            request.topics,
            requested_range=request.requested_range,
            clock=request.clock,
            isolation=request.isolation,
            zone_cache=zone_cache,
            env=self.env,
        )

    @contextmanager
    def plain_reads(
        self, names: Sequence[TopicPartition], clock: ClockName, isolation: IsolationLevel
    ) -> "Iterator[PlainReads]":
        """See `RecordSource`."""
        from tidelog.scan.plain_reads import LogReads

        def plan_times(name: TopicPartition, requested_range: RequestedRange) -> ScanPlan:
            request = ReadRequest(
                topics=[name], requested_range=requested_range, clock=clock, isolation=isolation
            )
            return self.plan(request, (), fail_on_data_loss=False)

        with ExitStack() as stack:
            log_dir = self.directory
            if isinstance(log_dir, str):
                log_dir = stack.enter_context(LogDir.open(log_dir, env=self.env))
            logs = [log_dir.reader(name.topic, name.partition) for name in names]
            yield LogReads(logs, clock, isolation, plan_times)

    @property
    def has_create_times(self) -> bool:
        """See `RecordSource`."""
        return True

    @property
    def knows_compaction(self) -> bool:
        """See `RecordSource`."""
        return True

    def timestamp_counts(self, name: TopicPartition, start: int, end: int) -> tuple[int, int]:
        """See `RecordSource`.

        The number of records without a time is the number of all records minus the number of
        records with a time. This number is exact, unlike a count's `without_time`, which may be too
        small (see `PartitionCount.is_least`).
        """

        def count(start_ms: int | None) -> int:
            requested_range = RequestedRange(
                least_offset=start, limit_offset=end, start_ms=start_ms
            )
            return self.count(ReadRequest(topics=[name], requested_range=requested_range)).records

        def count_plainly(log_dir: LogDir) -> tuple[int, int]:
            return timestamp_counts(log_dir.reader(name.topic, name.partition).records(start, end))

        try:
            records = count(None)
            return records, records - count(0)
        except MissingDependency:
            return self._call(count_plainly)

    def without_time(
        self,
        _names: Sequence[TopicPartition],
        _requested_range: RequestedRange,
        _clock: ClockName,
        stats: ScanStats,
    ) -> int | None:
        """Return the number that the read has counted in `stats`; see `RecordSource`."""
        return stats.without_time

    def ranking(self, topic: str) -> Ranking:
        """See `RecordSource`."""
        return ranking_of(self._call(lambda log_dir: log_dir.topic(topic).config.texts()))

    def doubts(
        self, names: Sequence[TopicPartition], at_ms: int | None, clock: ClockName
    ) -> list[Doubt]:
        """See `RecordSource`."""
        return self._call(
            lambda log_dir: [
                doubt for name in names for doubt in directory_doubts(log_dir, name, at_ms, clock)
            ]
        )

    def compacted_to(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See `RecordSource`."""
        return self._call(lambda log_dir: {name: compacted_to(log_dir, name) for name in names})

    def compacted_parts(
        self, ranges: Mapping[TopicPartition, RequestedRange], clock: ClockName
    ) -> "dict[TopicPartition, CompactedPart]":
        """See `RecordSource`."""
        from tidelog.scan.compacted import compacted_parts

        return self._call(lambda log_dir: compacted_parts(log_dir, ranges, clock))

    def _call(self, read: Callable[[LogDir], _Result]) -> _Result:
        return with_directory(self.directory, self.env, read)
