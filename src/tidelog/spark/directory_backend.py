"""Backend of queries that read a directory of topics, and the choice of a query's backend.

`DirectoryBackend` looks up offsets and times in the directory's files, and plans tasks that read
with `tidelog.scan`. `open_backend` creates the backend that the options select: a
`DirectoryBackend` or a `broker_backend.BrokerBackend`. The protocol classes of backends and tasks
are in `tidelog.spark.tasks`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog import scan
from tidelog.amounts import plural
from tidelog.closing import Closing
from tidelog.env import Env
from tidelog.errors import CorruptFile, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.objects import env_for
from tidelog.scan.bounds import Bounds as LogBounds
from tidelog.scan.plan import absent_errors, list_partitions
from tidelog.spark.options import SourceOptions, scan_columns
from tidelog.spark.pushdown import FilterLimits, empty_reason, scan_ranges
from tidelog.spark.stream_offset import Extent
from tidelog.spark.tables import directory_records, plan_table
from tidelog.spark.tasks import (
    BATCH_ROWS,
    Backend,
    BatchPlan,
    EmptyRange,
    LogFacts,
    Task,
    explain,
    freeze_garbage,
    is_doubtful,
    matching_topics,
    may_be_deleted,
)
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, ClockName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan import RequestedRange, Split
    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.log.leader_epochs import LeaderEpochs
    from tidelog.storage.log.log_reader import LogView
    from tidelog.types import OffsetAndTimestamp

_LOG: Final = logging.getLogger("tidelog.spark")


def source_env(options: SourceOptions) -> Env:
    """Return an Env whose file system can read the directory."""
    return env_for(options.path, None, options.store)


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Task that reads one split of a directory.

    Attributes:
        split: The split.
        columns: Columns of a row, in order.
        options: Options of the query.
    """

    split: "Split"
    columns: tuple[str, ...]
    options: SourceOptions

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Yield the split's rows; log a warning for lost offsets and for records without a time.

        If failOnDataLoss or `strict` is true, the respective warning is an error instead.

        Raises:
            OffsetsGone: Offsets of the split are lost, and failOnDataLoss is true.
            MissingTimestamps: Records have no time on the clock, and `strict` is true.
            CorruptData: A batch is damaged.
        """
        from tidelog.scan import ReadOptions, ScanStats, read
        from tidelog.spark.rows import SparkRows

        stats = ScanStats()
        rows = SparkRows(self.columns, self.options.serdes, permissive=self.options.permissive)
        read_options = ReadOptions(
            rows=BATCH_ROWS,
            strict=self.options.strict,
            fail_on_data_loss=self.options.fail_on_data_loss,
            env=source_env(self.options),
        )
        for batch in read(self.split, rows.scanned, options=read_options, stats=stats):
            freeze_garbage()
            yield rows.convert(batch, self.split.topic_partition)
        for lost in stats.lost:
            _LOG.warning("not in the log any more: %s", lost)
        if stats.without_time and self.options.has_times:
            _LOG.warning(
                "%s: %s without a %s, so in no time range",
                self.split.topic_partition,
                plural(stats.without_time, "record"),
                self.split.clock.known_time_name,
            )


class DirectoryBackend(Closing):
    """Access of a query to a directory of topics, local or in a store. Implements `Backend`.

    Each method opens the directory for its duration, so that its result is current.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._env = source_env(options)
        self._path = options.path.rstrip("/") or "/"
        self._warned: set[str] = set()  # reasons of warnings that are logged only once
        self._plan_splits = partial(
            scan.plan,
            options.path,
            isolation=options.isolation,
            columns=scan_columns(self._columns, options.serdes),
            split_bytes=options.split_bytes,
            min_splits=options.min_partitions,
            min_split_bytes=0,
            max_offsets=options.max_records or INT64_MAX,
            fail_on_data_loss=options.fail_on_data_loss,
            env=self._env,
        )

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the options choose; see `Backend.partitions`."""
        with self._open() as log_dir:
            return sorted(set(_named(log_dir, self._options)))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topics' ids; see `Backend.topic_ids`."""
        with self._open() as log_dir:
            ids = {name: log_dir.topic(name).topic_id for name in topics}
        return {name: "" if topic_id is None else topic_id.hex for name, topic_id in ids.items()}

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return the readable offsets; see `Backend.bounds`."""
        with self._open() as log_dir:
            flushed = self._flushed()
            readers = {
                name: log_dir.reader(name.topic, name.partition)
                for name in self._readable(log_dir, names)
            }
            return {
                name: Extent(reader.log_start_offset, self._visible(reader, flushed))
                for name, reader in readers.items()
            }

    def _readable(
        self, log_dir: "LogDir", names: Iterable[TopicPartition]
    ) -> Iterable[TopicPartition]:
        """Return the partitions that a stream reads.

        A partition that the topics file lists and that has no directory is lost. If failOnDataLoss
        is false, it is left out with one warning; otherwise its reader raises MissingFile.
        """
        if self._options.fail_on_data_loss:
            return names
        names = list(names)
        for error in absent_errors(log_dir, names):
            if error.reason not in self._warned:
                self._warned.add(error.reason)
                _LOG.warning("%s", error)
        return list_partitions(log_dir, names)

    def _visible(self, reader: "LogView", flushed: Mapping[TopicPartition, int] | None) -> int:
        """Return the end of the offsets that are readable with the isolation and `readUntil`."""
        end = reader.end_offset(self._options.isolation)
        if flushed is not None:
            end = min(end, flushed.get(reader.topic_partition, 0))
        return max(end, reader.log_start_offset)

    def _flushed(self) -> dict[TopicPartition, int] | None:
        """Return the recovery point of each partition; None if `readUntil` is not `flushed`.

        A crash can't lose records below the recovery point. Without the directory's lock, a reader
        sees only the recovery points in the checkpoint file, which the log's owner writes from time
        to time. So newly flushed records are read only after the owner has written the checkpoint
        again. A partition without an entry has the recovery point 0, so no record of the partition
        is read. If the checkpoint is damaged, no partition has an entry.
        """
        from tidelog.storage import files, text_files

        if not self._options.until_flushed:
            return None
        path = f"{self._path}/{files.RECOVERY_POINT_CHECKPOINT_FILE}"
        try:
            return text_files.read_offset_checkpoint(self._env.files, path)
        except CorruptFile as error:
            _LOG.warning("%s; no records count as flushed", error)
            return {}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Look up offsets by time; see `Backend.offsets_for_times`."""
        with self._open() as log_dir:
            matches = log_dir.offsets_for_times(times, clock=self._options.clock)
            if self._options.clock is ClockName.APPEND:
                self._warn_of_unknown(log_dir, matches)
        return {name: None if hit is None else hit.offset for name, hit in matches.items()}

    def _warn_of_unknown(
        self, log_dir: "LogDir", matches: "Mapping[TopicPartition, OffsetAndTimestamp | None]"
    ) -> None:
        from tidelog.storage.log.log_reader import unknown_times_note

        for name, hit in matches.items():
            reader = log_dir.reader(name.topic, name.partition)
            count = hit.without_time if hit is not None else reader.without_append_time()
            if count:
                _LOG.warning("%s", unknown_times_note(name, count))

    def first_times(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """Return the times of the first records; see `Backend.first_times`."""
        times = {}
        with self._open() as log_dir:
            for name, offset in offsets.items():
                # The result omits a damaged partition, because the task that reads this partition
                # raises the error.
                with suppress(TidelogError):
                    reader = log_dir.reader(name.topic, name.partition)
                    records = reader.records(max(offset, reader.log_start_offset))
                    if (record := next(records, None)) is not None:
                        created = None if record.timestamp < 0 else record.timestamp
                        times[name] = created, reader.append_time_of(record.offset)
        return times

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return leader epochs from `leader-epoch-checkpoint`; see `Backend.leader_epochs`."""
        epochs = {}
        for name, end in ends.items():
            epoch = self._epochs(name).epoch_for(end - 1)
            epochs[name] = NO_LEADER_EPOCH if epoch is None else epoch
        return epochs

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return ends of epochs from `leader-epoch-checkpoint`; see `Backend.epoch_ends`."""
        with self._open() as log_dir:
            return {
                name: self._epochs(name).end_offset_for(
                    epoch, log_dir.reader(name.topic, name.partition).log_end_offset
                )
                for name, epoch in epochs.items()
            }

    def _epochs(self, name: TopicPartition) -> "LeaderEpochs":
        from tidelog.storage import files
        from tidelog.storage.log.leader_epochs import LeaderEpochs

        folder = f"{self._path}/{files.partition_dir_name(name)}"
        path = f"{folder}/{files.LEADER_EPOCH_CHECKPOINT_FILE}"
        return files.read_decoded(self._env.files, path, LeaderEpochs.decode, LeaderEpochs())

    def plan_batch(self, limits: FilterLimits) -> BatchPlan:
        """Plan a batch query; see `Backend.plan_batch`."""
        if self._options.table is not None:
            return plan_table(directory_records(self._options), self._options, self._columns, self)
        flushed = self._flushed()
        requested = self._requested(limits, flushed)
        plan = self._scan_plan(requested, limits)
        names = {split.topic_partition for split in plan.splits}
        empty = self._explain(
            {
                name: one
                for name, one in requested.items()
                if name in plan.bounds
                and (name not in names or may_be_deleted(one, LogBounds(*plan.bounds[name], None)))
            },
            plan.bounds,
            flushed,
        )
        return BatchPlan(
            tasks=tuple(SplitTask(split, self._columns, self._options) for split in plan.splits),
            bounds=plan.bounds,
            lost=plan.lost,
            empty=tuple(one for one in empty if one.name not in names),
            doubtful=tuple(one for one in empty if one.name in names and is_doubtful(one)),
            scan_bytes=plan.scan_bytes,
            log_bytes=plan.log_bytes,
            reports=plan.reports,
        )

    def scan_plan(self, limits: FilterLimits) -> scan.ScanPlan:
        """Return the plan of a batch query as splits; raises the errors of `plan_batch`."""
        return self._scan_plan(self._requested(limits, self._flushed()), limits)

    def _requested(
        self, limits: FilterLimits, flushed: Mapping[TopicPartition, int] | None
    ) -> "dict[TopicPartition, RequestedRange]":
        if limits.is_empty:
            return {}
        return _limited(scan_ranges(self._options, self.partitions(), limits), flushed)

    def _scan_plan(
        self, requested: "Mapping[TopicPartition, RequestedRange]", limits: FilterLimits
    ) -> scan.ScanPlan:
        options = self._options
        if not requested:
            reason = empty_reason(options, self.partitions(), limits)
            return scan.ScanPlan(splits=(), reports=(reason,))
        return self._plan_splits(
            list(requested),
            per_partition=requested,
            clock=options.clock if options.has_times else limits.clock,
            times=scan.TimeMode.EXACT if options.is_exact else scan.TimeMode.POSITIONS,
            needs_match=options.needs_match,
            zone_cache=options.zone_cache,
            strict=options.strict,
        )

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """Plan the tasks of offset ranges; see `Backend.plan`."""
        requested = _limited(
            {
                name: scan.RequestedRange(start_offset=start, end_offset=end)
                for name, (start, end) in ranges.items()
                if start < end
            },
            self._flushed(),
        )
        if not requested:
            return []
        plan = self._plan_splits(list(requested), per_partition=requested)
        for lost in plan.lost:
            _LOG.warning("not in the log: %s", lost)
        return [SplitTask(split, self._columns, self._options) for split in plan.splits]

    def _explain(
        self,
        requested: "Mapping[TopicPartition, RequestedRange]",
        bounds: Mapping[TopicPartition, tuple[int, int]],
        flushed: Mapping[TopicPartition, int] | None,
    ) -> tuple[EmptyRange, ...]:
        """Return for each requested range the reason that applies if the range is empty.

        A range in the result is not always empty. For example, if a log's first record is later
        than the time range, the range is still read, because records may be out of order.
        """
        if not requested:
            return ()
        with self._open() as log_dir:
            return tuple(
                explain(
                    name,
                    requested[name],
                    LogBounds(*bounds[name], None),
                    self._facts(log_dir.reader(name.topic, name.partition), flushed),
                    write=self._options.write_time,
                )
                for name in requested
            )

    def _facts(self, reader: "LogView", flushed: Mapping[TopicPartition, int] | None) -> LogFacts:
        first = reader.offset_for_time(0, clock=self._options.clock, steps_over_losses=True)
        by_record = self._options.clock is ClockName.RECORD
        last = reader.max_timestamp(steps_over_losses=True) if by_record else None
        return LogFacts(
            start=reader.log_start_offset,
            end=reader.log_end_offset,
            visible=self._visible(reader, flushed),
            first_ms=None if first is None else first.timestamp,
            last_ms=None if last is None else last.timestamp,
        )

    def _open(self) -> "LogDir":
        from tidelog.storage.directory.log_dir import LogDir

        return LogDir.open(self._options.path, env=self._env)

    def close(self) -> None:
        """Do nothing, because no file stays open after a method returns."""


def _limited(
    requested: "Mapping[TopicPartition, RequestedRange]",
    flushed: Mapping[TopicPartition, int] | None,
) -> "dict[TopicPartition, RequestedRange]":
    """Return the ranges, limited to the recovery points unless `flushed` is None."""
    if flushed is None:
        return dict(requested)
    limited = {}
    for name, one in requested.items():
        limit = min(
            flushed.get(name, 0), INT64_MAX if one.limit_offset is None else one.limit_offset
        )
        limited[name] = replace(one, limit_offset=limit)
    return limited


def _named(log_dir: "LogDir", options: SourceOptions) -> list[TopicPartition]:
    """Return the partitions that the options choose."""
    if options.assigned:
        return list(options.assigned)
    topics = matching_topics(options, log_dir.topics())
    return [name for topic in topics for name in log_dir.partitions(topic)]


def open_backend(options: SourceOptions, columns: Sequence[str]) -> Backend:
    """Open the backend for the directory or the brokers in the options.

    Args:
        options: Options of the query.
        columns: Columns of the rows that tasks will read.

    Raises:
        ConfigError, InvalidRequest: The backend does not support a setting or a column.
        MissingDependency: The package for brokers or for the object store is not installed.
    """
    if not options.is_broker:
        return DirectoryBackend(options, columns)
    from tidelog.spark.broker_backend import BrokerBackend

    return BrokerBackend(options, columns)
