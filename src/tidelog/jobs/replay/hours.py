"""Counts of records by hour on both clocks, and sizes by partition, computed in Spark tasks.

Each task reads only the needed columns of its offsets, and yields a few rows of counts for each
record batch. Spark adds up the counts of all tasks. So the driver receives only one sum for each
partition, clock and hour, and no counts of single batches.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.jobs.chunks import Spans
from tidelog.jobs.source_ranges import Question
from tidelog.lazy_dataclass import dataclass
from tidelog.types import ClockName

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from tidelog.spark.tasks import Task

    Longs = npt.NDArray[np.int64]


_US_PER_HOUR: Final = 3_600_000_000
RECORD: Final = "record"
APPEND: Final = "append"
_SIZES: Final = "bytes"
_RESULT: Final = "partition int, kind string, hour long, count long"

_FIELDS: "Final[list[pa.Field[pa.DataType]]]" = [
    pa.field("partition", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("hour", pa.int64()),
    pa.field("count", pa.int64()),
]

_SCHEMA: Final = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True)
class Hours:
    """Counts of the records of a replay.

    Attributes:
        by_clock: Number of records by hour since the epoch, for the clock `record` and, if the
            source is a directory, `append`. Records without a time on the clock are left out.
        records: Number of records by partition.
        size_bytes: Number of bytes in the keys and values of these records, by partition.
    """

    by_clock: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    records: Mapping[int, int] = field(default_factory=dict)
    size_bytes: Mapping[int, int] = field(default_factory=dict)


def count_hours(spark: "SparkSession", question: Question, spans: Spans) -> Hours:
    """Count the records of a request at the given offsets.

    Args:
        spark: The session.
        question: The request; its clock and times determine which records count.
        spans: Offsets to read.
    """
    from tidelog.spark.directory_backend import open_backend
    from tidelog.spark.options import read_source_options

    has_append = not question.place.is_broker
    columns = ["key", "value", "partition", "timestamp"]
    columns += ["appendTimestamp"] if has_append else []
    options = question.options() | {"subscribe": question.topic, "columns": ",".join(columns)}
    tasks: list[Task] = []
    with open_backend(read_source_options(options), columns) as backend:
        for span in spans:
            tasks += backend.plan({span.partition: (span.start, span.end)})
    if not tasks:
        return Hours()
    times = question.times
    on_append = question.clock is ClockName.APPEND and has_append

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in np.asarray(batch.column(0)).tolist():
                for rows in tasks[number].read():
                    yield tally(rows, times, on_append=on_append)

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return _collected(numbers.mapInArrow(count, _RESULT).groupBy("partition", "kind", "hour"))


def tally(
    rows: pa.RecordBatch, times: tuple[int | None, int | None], *, on_append: bool
) -> pa.RecordBatch:
    """Return the counts of the records in a time range, as rows of `_SCHEMA`.

    Args:
        rows: Records with keys, values, partitions and times.
        times: The range [start, end) in ms; None for an open side.
        on_append: Whether the range is a range of append times (true) or of record timestamps
            (false).
    """
    clocks = {RECORD: _micros(rows, "timestamp")}
    if "appendTimestamp" in rows.schema.names:
        clocks[APPEND] = _micros(rows, "appendTimestamp")
    selected = _inside(clocks[APPEND if on_append else RECORD], times)
    partitions = np.asarray(rows.column("partition")).astype(np.int64)
    counts: list[tuple[int, str, int, int]] = []
    for name, micros in clocks.items():
        is_timed = selected & (micros >= 0)
        counts += _pairs(name, partitions[is_timed], micros[is_timed] // _US_PER_HOUR)
    sizes = _sizes(rows)
    for partition in np.unique(partitions[selected]).tolist():
        of_partition = selected & (partitions == partition)
        counts.append((partition, _SIZES, int(of_partition.sum()), int(sizes[of_partition].sum())))
    columns = list(zip(*counts, strict=True)) or [(), (), (), ()]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, one.type) for column, one in zip(columns, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )


def _micros(rows: pa.RecordBatch, name: str) -> "Longs":
    """Return times in microseconds; -1 for a missing time."""
    column = rows.column(name).cast(pa.int64())
    return np.asarray(column.fill_null(-1)).astype(np.int64)


def _inside(micros: "Longs", times: tuple[int | None, int | None]) -> "npt.NDArray[np.bool_]":
    selected = np.ones(len(micros), np.bool_)
    if times == (None, None):
        return selected
    selected &= micros >= max(times[0] or 0, 0) * 1000
    if times[1] is not None:
        selected &= micros < times[1] * 1000
    return selected


def _pairs(name: str, partitions: "Longs", hours: "Longs") -> list[tuple[int, str, int, int]]:
    if not len(hours):
        return []
    both, counts = np.unique(np.stack([partitions, hours]), axis=1, return_counts=True)
    return [
        (partition, name, hour, count)
        for partition, hour, count in zip(*both.tolist(), counts.tolist(), strict=True)
    ]


def _sizes(rows: pa.RecordBatch) -> "Longs":
    import pyarrow.compute as pc

    total: Longs = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value"):
        column = rows.column(name)
        assert isinstance(column, pa.BinaryArray)
        total += np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)
    return total


def _collected(grouped: object) -> Hours:
    from pyspark.sql import GroupedData
    from pyspark.sql import functions as f

    assert isinstance(grouped, GroupedData)
    by_clock: dict[str, dict[int, int]] = {}
    records: dict[int, int] = {}
    size_bytes: dict[int, int] = {}
    for row in grouped.agg(
        f.sum("count").alias("total"), f.count("count").alias("times")
    ).collect():
        if row["kind"] == _SIZES:
            # In rows of kind `_SIZES`, the column `hour` contains a number of records, not an hour.
            number = row["partition"]
            records[number] = records.get(number, 0) + row["hour"] * row["times"]
            size_bytes[number] = size_bytes.get(number, 0) + row["total"]
        else:
            hours = by_clock.setdefault(row["kind"], {})
            hours[row["hour"]] = hours.get(row["hour"], 0) + row["total"]
    return Hours(by_clock, records, size_bytes)
