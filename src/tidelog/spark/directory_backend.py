"""A directory of topics as a query's backend: questions by the files, tasks by `tidelog.scan`."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from tidelog.env import Env, os_env
from tidelog.spark.source_options import SourceOptions
from tidelog.spark.tasks import BATCH_ROWS, Bounds, Task, matching, settle
from tidelog.types import NO_LEADER_EPOCH, TopicPartition

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from tidelog.scan import Split, Wanted
    from tidelog.storage.epochs import LeaderEpochs
    from tidelog.storage.log_dir import LogDir

_LOG: Final = logging.getLogger("tidelog.spark")


def source_env(_options: SourceOptions) -> Env:
    """Files and clock of a directory that is read."""
    return os_env()


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Reads one split of a directory.

    Attributes:
        split: What to read.
        columns: Of a row, in order.
        options: What the query was asked for.
    """

    split: "Split"
    columns: tuple[str, ...]
    options: SourceOptions

    def read(self) -> "Iterator[pa.RecordBatch]":
        """The split's rows; warns of what is gone or has no time."""
        from tidelog.scan import ReadOptions, ScanStats, read
        from tidelog.spark.rows import SparkRows

        stats = ScanStats()
        rows = SparkRows(self.columns)
        how = ReadOptions(
            rows=BATCH_ROWS,
            strict=self.options.strict,
            fail_on_data_loss=self.options.fail_on_data_loss,
            env=source_env(self.options),
        )
        for batch in read(self.split, self.columns, options=how, stats=stats):
            settle()
            yield rows.convert(batch)
        for lost in stats.lost:
            _LOG.warning("not in the log any more: %s", lost)
        if stats.without_time:
            _LOG.warning(
                "%s: %d records without a time on the %s clock lie in no range",
                self.split.topic_partition,
                stats.without_time,
                self.split.clock,
            )


class DirectoryBackend:
    """A directory of topics, local or in an object store. A `Backend`.

    It is opened anew for each question, so that every answer is of now.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._env = source_env(options)

    def partitions(self) -> list[TopicPartition]:
        """See `Backend`; those that have no directory yet are included."""
        with self._open() as log_dir:
            return sorted(_named(log_dir, self._options))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """See `Backend`."""
        with self._open() as log_dir:
            ids = {name: log_dir.topic(name).topic_id for name in topics}
        return {name: "" if topic_id is None else topic_id.hex for name, topic_id in ids.items()}

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """See `Backend`."""
        with self._open() as log_dir:
            return {name: self._bounds(log_dir, name) for name in names}

    def _bounds(self, log_dir: "LogDir", name: TopicPartition) -> Bounds:
        reader = log_dir.reader(name.topic, name.partition)
        start = reader.log_start_offset
        return Bounds(start, max(reader.end_offset(self._options.isolation), start))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """See `Backend`."""
        with self._open() as log_dir:
            found = log_dir.offsets_for_times(times, clock=self._options.clock)
        return {name: None if hit is None else hit.offset for name, hit in found.items()}

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `Backend`; as `leader-epoch-checkpoint` knows them."""
        found = {}
        for name, end in ends.items():
            epoch = self._epochs(name).epoch_for(end - 1)
            found[name] = NO_LEADER_EPOCH if epoch is None else epoch
        return found

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """See `Backend`; as `leader-epoch-checkpoint` knows them."""
        with self._open() as log_dir:
            return {
                name: self._epochs(name).end_offset_for(
                    epoch, log_dir.reader(name.topic, name.partition).log_end_offset
                )
                for name, epoch in epochs.items()
            }

    def _epochs(self, name: TopicPartition) -> "LeaderEpochs":
        from tidelog.storage import files
        from tidelog.storage.epochs import LeaderEpochs

        folder = f"{self._options.path.rstrip('/')}/{files.partition_dir_name(name)}"
        path = f"{folder}/{files.LEADER_EPOCH_CHECKPOINT_FILE}"
        try:
            return LeaderEpochs.decode(files.read_file(self._env.files, path))
        except FileNotFoundError:
            return LeaderEpochs()

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """See `Backend`."""
        from tidelog.scan import Wanted

        wanted = {
            name: Wanted(start_offset=start, end_offset=end)
            for name, (start, end) in ranges.items()
            if start < end
        }
        return list(self._plan(wanted)) if wanted else []

    def _plan(self, wanted: "Mapping[TopicPartition, Wanted]") -> "Iterator[SplitTask]":
        from tidelog import scan

        options = self._options
        plan = scan.plan(
            options.path,
            list(wanted),
            per_partition=wanted,
            isolation=options.isolation,
            columns=self._columns,
            split_bytes=options.split_bytes,
            min_partitions=options.min_partitions,
            fail_on_data_loss=options.fail_on_data_loss,
            env=self._env,
        )
        for lost in plan.lost:
            _LOG.warning("not in the log: %s", lost)
        for split in plan.splits:
            yield SplitTask(split, self._columns, options)

    def _open(self) -> "LogDir":
        from tidelog.storage.log_dir import LogDir

        return LogDir.open(self._options.path, env=self._env)

    def close(self) -> None:
        """See `Backend`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        self.close()


def _named(log_dir: "LogDir", options: SourceOptions) -> list[TopicPartition]:
    """The partitions that are meant."""
    if options.assigned:
        return list(options.assigned)
    topics = matching(options, log_dir.topics())
    return [name for topic in topics for name in log_dir.partitions(topic)]
