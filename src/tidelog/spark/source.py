"""`spark.read.format("tidelog")`: planning on the driver, reading in the workers.

Spark makes a source from options alone, pickles it and its reader, and calls them in processes of
its own, so nothing here holds a file or a lock. Numba and the decoder are imported by the workers,
not by the processes that only look for a data source or plan.

Source: facts on the Python Data Source API of Spark 4.3 in docs/spark.md.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from tidelog.arguments import reads_arguments
from tidelog.errors import TidelogError
from tidelog.spark.directory_backend import DirectoryBackend, open_backend
from tidelog.spark.options import SourceOptions, read_source_options
from tidelog.spark.pushdown import NO_LIMITS, LimitMaker, Limits
from tidelog.spark.session import check_driver
from tidelog.spark.stream_options import (
    read_common_options,
    read_stream_options,
    refuse_stream_options,
)
from tidelog.spark.tasks import (
    BatchPlan,
    EmptyRange,
    TaskPartition,
    WhyEmpty,
    read_partition,
)
from tidelog.spark.workers import PromptAck, sentences_first

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from tidelog.scan import ScanPlan

_LOG: Final = logging.getLogger("tidelog.spark")
# What Spark runs where the session hands filters over; elsewhere it refuses readers that take them.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


@sentences_first
class TidelogSource(DataSource):
    """The data source `tidelog`. Refuses a Spark or a Java that it was not made for."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "tidelog"

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        check_driver()
        from tidelog.spark.rows import row_type

        # Whether a batch or a stream is meant, and so whether a start fits, is not known yet.
        options = read_common_options(self.options)
        return row_type(options.columns, options.serdes)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in `schema`, which may be fewer than the options ask for."""
        check_driver()
        from tidelog.spark.rows import check_row_type

        refuse_stream_options(self.options)
        options = read_source_options(self.options)
        kind = PushdownReader if options.pushes_down and takes_filters() else TidelogReader
        return kind(options, check_row_type(schema, options.serdes))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """A reader of micro-batches of the columns in `schema`."""
        check_driver()
        from tidelog.spark.rows import check_row_type
        from tidelog.spark.stream import RefusedStream, TidelogStreamReader

        try:
            options = read_stream_options(self.options)
            columns = check_row_type(schema, options.source.serdes)
        except TidelogError as error:
            # Spark hides what is raised here behind an UnboundLocalError of its own.
            return RefusedStream(error)
        return TidelogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of rows of `schema`."""
        check_driver()
        from tidelog.spark.sink import make_writer

        return make_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - output mode complete appends as the others do
    ) -> DataSourceStreamArrowWriter:
        """A writer of the rows of a streaming query."""
        check_driver()
        from tidelog.spark.sink import make_stream_writer

        return make_stream_writer(self.options, schema)


@sentences_first
class TidelogReader(DataSourceReader):
    """Plans once on the driver, then reads tasks in the workers."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._limits: Limits = NO_LIMITS
        self._arrival = PromptAck()

    def partitions(self) -> list[InputPartition]:
        """One partition per task; never an empty list, which Spark would replace by its own."""
        with open_backend(self._options, self._columns) as backend:
            plan = backend.plan_batch(self._limits)
        for lost in plan.lost:
            _LOG.warning("not in the log: %s", lost)
        for note in (*plan.empty, *plan.doubtful, *plan.reports):
            is_new = isinstance(note, EmptyRange) and note.why is WhyEmpty.NEVER_WRITTEN
            # A partition that nobody has written to yet is nothing to wonder about.
            _LOG.log(logging.INFO if is_new else logging.WARNING, "%s", note)
        return [TaskPartition(task) for task in plan.tasks] or [TaskPartition(None)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one task."""
        return read_partition(partition)


@sentences_first
class PushdownReader(TidelogReader):
    """The same, for sessions that hand filters over."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802 - Spark's
        """Take filters on topic, partition, offset and times; those that Spark has to apply."""
        maker = LimitMaker(self._options)
        maker.take(filters)
        self._limits = maker.limits
        return maker.returned


def takes_filters() -> bool:
    """Whether Spark calls this where it hands filters over.

    It has a worker of its own for that, which runs only where the session's setting
    `spark.sql.python.filterPushdown.enabled` is on; the setting itself is out of reach here.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


@reads_arguments()
def plan_batch(options: Mapping[str, str]) -> BatchPlan:
    """What a read with these options would do: its tasks, what is lost, what is empty and why.

    Raises:
        InvalidRequest, UnknownTopic: Options that don't fit the log.
        OffsetsGone: Offsets that were asked for are not in the log, and failOnDataLoss is on.
    """
    read = read_source_options(options)
    with open_backend(read, read.columns) as backend:
        return backend.plan_batch(NO_LIMITS)


def plan_options(options: Mapping[str, str]) -> "ScanPlan":
    """The splits of a read of a directory with these options; errors as `plan_batch`."""
    read = read_source_options(options)
    return DirectoryBackend(read, read.columns).scan_plan(NO_LIMITS)
