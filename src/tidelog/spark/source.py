"""`spark.read.format("tidelog")`: plans on the driver, reads in the workers.

Spark creates a source from options, pickles the source and its reader, and calls them in separate
processes, so no object of this module has an open file or a lock. Only workers import Numba and the
decoder. Processes that look up the data source or plan a query don't import them.

Source: the Python Data Source API of Spark 4.3.
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
from tidelog.spark.pushdown import NO_LIMITS, FilterLimits, LimitMaker
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
from tidelog.spark.workers import PromptAck, hides_tracebacks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from tidelog.scan import ScanPlan

_LOG: Final = logging.getLogger("tidelog.spark")
# Module that Spark runs in the process that pushes filters down. Spark accepts readers with
# `pushFilters` only in the process of this module.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


@hides_tracebacks
class TidelogSource(DataSource):
    """The data source `tidelog`. Raises an error for an unsupported version of Spark or Java."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "tidelog"

    def schema(self) -> StructType:
        """Return the type of a row, as the options determine it."""
        check_driver()
        from tidelog.spark.rows import row_type

        # Spark calls `schema` for batches and for streams. The options for the start position
        # differ between batches and streams, so they can't be checked here.
        options = read_common_options(self.options)
        return row_type(options.columns, options.serdes)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns in `schema`, which may be fewer than in the options."""
        check_driver()
        from tidelog.spark.rows import check_row_type

        refuse_stream_options(self.options)
        options = read_source_options(self.options)
        kind = PushdownReader if options.pushes_down and takes_filters() else TidelogReader
        return kind(options, check_row_type(schema, options.serdes))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of micro-batches of the columns in `schema`."""
        check_driver()
        from tidelog.spark.rows import check_row_type
        from tidelog.spark.stream import RefusedStream, TidelogStreamReader

        try:
            options = read_stream_options(self.options)
            columns = check_row_type(schema, options.source.serdes)
        except TidelogError as error:
            # Spark would replace an error that is raised here by an UnboundLocalError.
            return RefusedStream(error)
        return TidelogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of rows of `schema`."""
        check_driver()
        from tidelog.spark.sink import make_writer

        return make_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - output mode `complete` appends like other modes
    ) -> DataSourceStreamArrowWriter:
        """Return a writer of the rows of a streaming query."""
        check_driver()
        from tidelog.spark.sink import make_stream_writer

        return make_stream_writer(self.options, schema)


@hides_tracebacks
class TidelogReader(DataSourceReader):
    """Reader of a batch query: plans once on the driver, then reads tasks in the workers."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._limits: FilterLimits = NO_LIMITS
        self._arrival = PromptAck()

    def partitions(self) -> list[InputPartition]:
        """Return one partition of Spark per task; without tasks, one partition without rows."""
        with open_backend(self._options, self._columns) as backend:
            plan = backend.plan_batch(self._limits)
        for lost in plan.lost:
            _LOG.warning("not in the log: %s", lost)
        for note in (*plan.empty, *plan.doubtful, *plan.reports):
            is_new = isinstance(note, EmptyRange) and note.why is WhyEmpty.NEVER_WRITTEN
            # A partition that never had a record is normal, so the note on it is not a warning.
            _LOG.log(logging.INFO if is_new else logging.WARNING, "%s", note)
        return [TaskPartition(task) for task in plan.tasks] or [TaskPartition(None)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one task."""
        return read_partition(partition)


@hides_tracebacks
class PushdownReader(TidelogReader):
    """Reader for sessions in which Spark pushes filters down."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Convert filters on topic, partition, offset or time; return the filters left to Spark."""
        maker = LimitMaker(self._options)
        maker.take(filters)
        self._limits = maker.limits
        return maker.returned


def takes_filters() -> bool:
    """Return whether this process is Spark's worker for filters.

    Only in this worker does Spark accept a reader with the method `pushFilters`.

    Spark starts that worker only if the session's setting `spark.sql.python.filterPushdown.enabled`
    is true; the setting can't be read here.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


@reads_arguments()
def plan_batch(options: Mapping[str, str]) -> BatchPlan:
    """Return the plan of a batch read: tasks, lost offsets and empty ranges.

    Raises:
        InvalidRequest, UnknownTopic, ConfigError: The options are invalid, or don't fit the log.
        OffsetsGone: Requested offsets are not in the log, and failOnDataLoss is true.
        InexactTable: A table is requested, and records for it may be missing.
        ClusterFailure: A broker can't be reached, or refuses a request.
    """
    source_options = read_source_options(options)
    with open_backend(source_options, source_options.columns) as backend:
        return backend.plan_batch(NO_LIMITS)


def plan_splits(options: Mapping[str, str]) -> "ScanPlan":
    """Return the plan of a directory's read as splits; raises the errors of `plan_batch`."""
    source_options = read_source_options(options)
    return DirectoryBackend(source_options, source_options.columns).scan_plan(NO_LIMITS)
