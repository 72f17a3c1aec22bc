"""`spark.read.format("tidelog")`: planning on the driver, reading in the workers.

Spark makes a source from options alone, pickles it and its reader, and calls them in processes of
its own, so nothing here holds a file or a lock. Numba and the decoder are imported by the workers,
not by the processes that only look for a data source or plan.

Source: facts on the Python Data Source API of Spark 4.3 in docs/spark.md.
"""

import gc
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from tidelog.errors import InvalidRequest
from tidelog.spark.source_options import Given, SourceOptions, read_source_options
from tidelog.spark.stream_options import (
    read_common_options,
    read_stream_options,
    refuse_stream_options,
)
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan import ScanPlan, Split, Wanted
    from tidelog.storage.log_dir import LogDir

_LOG: Final = logging.getLogger("tidelog.spark")

# Rows in a record batch for Spark. What a batch costs in Python is paid per batch, here and in
# Spark's worker; larger ones than this gained nothing and hold more memory on both sides.
BATCH_ROWS: Final = 20_000


class TidelogSource(DataSource):
    """The data source `tidelog`."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "tidelog"

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        from tidelog.spark.rows import row_type

        # Whether a batch or a stream is meant, and so whether a start fits, is not known yet.
        return row_type(read_common_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in `schema`, which may be fewer than the options ask for."""
        from tidelog.spark.rows import check_row_type

        refuse_stream_options(self.options)
        return TidelogReader(read_source_options(self.options), check_row_type(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """A reader of micro-batches of the columns in `schema`."""
        from tidelog.spark.rows import check_row_type
        from tidelog.spark.stream import TidelogStreamReader

        return TidelogStreamReader(read_stream_options(self.options), check_row_type(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of rows of `schema`."""
        from tidelog.spark.sink import make_writer

        return make_writer(self.options, schema, overwrite=overwrite)


class SplitPartition(InputPartition):
    """One task's work."""

    def __init__(self, split: "Split | None") -> None:
        super().__init__(split)
        self.split = split


class TidelogReader(DataSourceReader):
    """Plans once on the driver, then reads splits in the workers."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """One partition per split; never an empty list, which Spark would replace by its own."""
        found = plan_source(self._options, self._columns)
        for lost in found.lost:
            _LOG.warning("not in the log: %s", lost)
        return [SplitPartition(split) for split in found.splits] or [SplitPartition(None)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one split."""
        split = partition.split if isinstance(partition, SplitPartition) else None
        return iter(()) if split is None else self._rows(split)

    def _rows(self, split: "Split") -> "Iterator[pa.RecordBatch]":
        from tidelog.scan import ReadOptions, ScanStats, read
        from tidelog.spark.rows import SparkRows

        stats = ScanStats()
        rows = SparkRows(self._columns)
        how = ReadOptions(
            rows=BATCH_ROWS,
            strict=self._options.strict,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        for batch in read(split, self._columns, options=how, stats=stats):
            _settle()
            yield rows.convert(batch)
        for lost in stats.lost:
            _LOG.warning("not in the log any more: %s", lost)
        if stats.without_time:
            _LOG.warning(
                "%s: %d records without a time on the %s clock lie in no range",
                split.topic_partition,
                stats.without_time,
                split.clock,
            )


@cache
def _settle() -> None:
    """Take what is loaded by now out of garbage collection, once in a worker's life.

    Spark's daemon collects garbage after every task, and walking through all that Numba has built
    costs 0.1 s each time: as much as decoding 3 million records.
    """
    gc.collect()
    gc.freeze()


def plan_source(options: SourceOptions, columns: tuple[str, ...] | None = None) -> "ScanPlan":
    """The plan of a read: what `partitions()` hands to Spark; for those who want its figures.

    Raises:
        InvalidRequest, UnknownTopic: Options that don't fit the directory.
        OffsetsGone: Offsets that were asked for are not in the log.
    """
    from tidelog import scan
    from tidelog.storage.log_dir import LogDir

    with LogDir.open(options.path) as log_dir:
        names = _partitions(log_dir, options)
    wanted = _per_partition(options, names)
    return scan.plan(
        options.path,
        names,
        per_partition=dict(zip(names, wanted, strict=True)),
        clock=options.clock,
        times=scan.TimeMode.EXACT if options.is_exact else scan.TimeMode.POSITIONS,
        needs_match=options.needs_match,
        isolation=options.isolation,
        columns=columns or options.columns,
        split_bytes=options.split_bytes,
        min_partitions=options.min_partitions,
        fail_on_data_loss=options.fail_on_data_loss,
        zone_cache=options.zone_cache,
    )


def plan_options(options: Mapping[str, str]) -> "ScanPlan":
    """The plan of a read with these options, as `plan_source`."""
    return plan_source(read_source_options(options))


def _partitions(log_dir: "LogDir", options: SourceOptions) -> list[TopicPartition]:
    """The partitions that are meant, those that have no directory yet included."""
    if options.assigned:
        return list(options.assigned)
    topics: tuple[str, ...] = options.topics
    if options.pattern is not None:
        try:
            pattern = re.compile(options.pattern)
        except re.error as error:
            raise InvalidRequest(f"option subscribePattern={options.pattern}: {error}") from error
        topics = tuple(name for name in log_dir.topics() if pattern.fullmatch(name))
    return [name for topic in topics for name in log_dir.partitions(topic)]


def _per_partition(options: SourceOptions, names: list[TopicPartition]) -> "list[Wanted]":
    """What is wanted of each partition.

    Raises:
        InvalidRequest: An option by partition does not name them all, or names others.
    """
    from tidelog.scan import Wanted

    sides = {
        "start_offset": _spread("startingOffsets", options.start_offsets, names),
        "end_offset": _spread("endingOffsets", options.end_offsets, names),
        "start_ms": _spread("start times", options.start_ms, names),
        "end_ms": _spread("end times", options.end_ms, names),
    }
    return [
        Wanted(**{side: values[number] for side, values in sides.items()})
        for number in range(len(names))
    ]


def _spread(what: str, given: Given, names: list[TopicPartition]) -> list[int | None]:
    """One value for each partition."""
    if given is None or isinstance(given, int):
        return [given] * len(names)
    if missing := [name for name in names if name not in given]:
        raise InvalidRequest(f"{what} by partition: {missing[0]} is missing, all must be named")
    if others := sorted(given.keys() - set(names)):
        raise InvalidRequest(f"{what} by partition: {others[0]} is not among those read")
    return [given[name] for name in names]
