"""`spark.readStream.format("tidelog")`: Spark's side of a stream.

Spark keeps one reader in a process on the driver, asks it in this order, and keeps what it answers
in the query's checkpoint before anything is read:

1. `prepareForTriggerAvailableNow`, where the query is to stop at what is there now;
2. `initialOffset`, for a new query, and again as long as its first batch is not done;
3. `latestOffset(start, limit)`: the end of the next batch; then `reportLatestOffset`, for show;
4. `partitions(start, end)`: the tasks. After a crash this comes first, for the batch that was
   planned and not finished;
5. `commit(end)`, once everything up to there is done.

What goes into a batch is for `micro_batches` to say. Executors get a pickled copy that only reads.
The names of the methods are Spark's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.env import Clock, os_env
from tidelog.errors import TidelogError
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.micro_batches import MicroBatches
from tidelog.spark.options import SourceOptions
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_offset import Json
from tidelog.spark.stream_options import Limits, StreamOptions
from tidelog.spark.tasks import Backend, TaskPartition, read_partition
from tidelog.spark.workers import PromptAck, sentences_first

if TYPE_CHECKING:
    import pyarrow as pa

OpenBackend: TypeAlias = Callable[[SourceOptions, Sequence[str]], Backend]


@sentences_first
class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, and reads their tasks in the workers."""

    def __init__(
        self,
        options: StreamOptions,
        columns: tuple[str, ...],
        *,
        opens: OpenBackend = open_backend,
        clock: Clock | None = None,
    ) -> None:
        """Remember what is asked; nothing is opened before the first question.

        Args:
            options: What the stream was asked for.
            columns: Of a row.
            opens: Opens backends.
            clock: For delays; the machine's where None.
        """
        self._options = options
        self._columns = columns
        self._opens = opens
        self._clock = clock
        self._driver: MicroBatches | None = None
        self._arrival = PromptAck()

    def __getstate__(self) -> dict[str, object]:
        """What workers need: they only read."""
        return self.__dict__ | {"_driver": None}

    @property
    def _batches(self) -> MicroBatches:
        if self._driver is None:
            log = StreamLog(self._options.source, self._columns, self._opens)
            self._driver = MicroBatches(self._options, log, self._clock or os_env().clock)
        return self._driver

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, offer nothing that is not there now."""
        self._batches.freeze()

    def initialOffset(self) -> Json:  # noqa: N802
        """Where a new query begins."""
        return self._batches.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the options that Spark has a word for; the others are applied with it."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """The end of the micro-batch that begins at `start`; `start` where there is nothing."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        return self._batches.next_offset(start, limits)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """The log ends and what is left, as of the last `latestOffset`."""
        return self._batches.progress

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of the micro-batch from `start` to `end`; none where it is empty."""
        return [TaskPartition(task) for task in self._batches.plan(start, end)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one task."""
        return read_partition(partition)

    def commit(self, end: Json) -> None:
        """Tell the group that is to be told, if any."""
        self._batches.commit(end)

    def stop(self) -> None:
        """Let go of files and connections."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


@sentences_first
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that can't be: says why at the first question."""

    def __init__(self, error: TidelogError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        raise self._error

    def initialOffset(self) -> Json:  # noqa: N802
        """Raise the error."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802, ARG002
        """Raise the error."""
        raise self._error

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":  # noqa: ARG002
        """Raise the error."""
        raise self._error

    def stop(self) -> None:
        """Do nothing: nothing was opened."""
