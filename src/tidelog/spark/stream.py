"""`spark.readStream.format("tidelog")`: the classes that Spark calls for a stream.

Spark keeps one reader in a process on the driver. The offsets that the reader returns for a batch
are stored in the query's checkpoint before any record of the batch is read. Spark calls the
reader's methods in this order:

1. `prepareForTriggerAvailableNow`, if the query must stop at the current end of the log.
2. `initialOffset`, for a new query. Spark calls it again until the query's first batch is done.
3. `latestOffset(start, limit)`, for the end of the next batch; then `reportLatestOffset`, for the
   query's progress.
4. `partitions(start, end)`, for the tasks. After a crash, this is the first call, for the batch
   that was planned but not finished.
5. `commit(end)`, after the batch that ends at this offset is done.

`micro_batches` determines the content of a batch. Executors get a pickled copy of the reader; only
`read` is called on a copy. Spark defines the names of the methods.
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
from tidelog.spark.stream_options import BatchLimits, StreamOptions
from tidelog.spark.tasks import Backend, TaskPartition, read_partition
from tidelog.spark.workers import PromptAck, hides_tracebacks

if TYPE_CHECKING:
    import pyarrow as pa

OpenBackend: TypeAlias = Callable[[SourceOptions, Sequence[str]], Backend]


@hides_tracebacks
class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that plans micro-batches on the driver, and reads their tasks in the workers."""

    def __init__(
        self,
        options: StreamOptions,
        columns: tuple[str, ...],
        *,
        opens: OpenBackend = open_backend,
        clock: Clock | None = None,
    ) -> None:
        """Create the reader. The log is opened by the first method that needs it.

        Args:
            options: Options of the stream.
            columns: Columns of a row.
            opens: Function that opens the backend.
            clock: Clock for delays of batches and ages of records; the machine's clock if None.
        """
        self._options = options
        self._columns = columns
        self._opens = opens
        self._clock = clock
        self._driver: MicroBatches | None = None
        self._arrival = PromptAck()

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the driver's objects, because workers call only `read`."""
        return self.__dict__ | {"_driver": None}

    @property
    def _batches(self) -> MicroBatches:
        if self._driver is None:
            log = StreamLog(self._options.source, self._columns, self._opens)
            self._driver = MicroBatches(self._options, log, self._clock or os_env().clock)
        return self._driver

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the current log ends, so that later records are not read."""
        self._batches.freeze()

    def initialOffset(self) -> Json:
        """Return the initial offset of a new query."""
        return self._batches.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit as one of Spark's types; `latestOffset` applies all limits."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the micro-batch that begins at `start`; `start` if nothing is new."""
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        return self._batches.next_offset(start, limits)

    def reportLatestOffset(self) -> Json | None:
        """Return the progress at the last `latestOffset`: log ends, backlog and lost ranges."""
        return self._batches.progress

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of the micro-batch from `start` to `end`; [] if the batch is empty."""
        return [TaskPartition(task) for task in self._batches.plan(start, end)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one task."""
        return read_partition(partition)

    def commit(self, end: Json) -> None:
        """Commit the offsets to the consumer group in `commitGroup`, if given."""
        self._batches.commit(end)

    def stop(self) -> None:
        """Close files and connections."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


@hides_tracebacks
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream with invalid options. Every method except `stop` raises the error."""

    def __init__(self, error: TidelogError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the error."""
        raise self._error

    def initialOffset(self) -> Json:
        """Raise the error."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the error."""
        raise self._error

    def latestOffset(self, _start: Json, _limit: ReadLimit) -> Json:
        """Raise the error."""
        raise self._error

    def partitions(self, _start: Json, _end: Json) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, _partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Raise the error."""
        raise self._error

    def stop(self) -> None:
        """Do nothing, because nothing was opened."""
