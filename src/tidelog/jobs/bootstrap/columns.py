"""Conversion of a table's columns to key, value, create time, headers and partition of records.

This module creates Spark's column expressions for records. Before the write, it can also count
records: records created before given times, records of each hour of create time, and records
without a key. Counting reads the table once, and needs only the columns of key, time and partition.
`job` sorts and writes the records.

In keys and values, text and bytes stay unchanged. Arrays, maps and structs become JSON. SQL's cast
converts other values to text. Creating the expressions reads no rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from tidelog.errors import InvalidRequest
from tidelog.jobs.target_check import ExpectedWrite
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.view import Count
from tidelog.spark.options import nearest
from tidelog.types import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


_HEADERS: Final = "array<struct<key:string,value:binary>>"

# Keep null fields in the JSON of a row. Without these fields, a row could look like a row of a
# table with other columns.
_JSON: Final = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """For each part of a record, the name of the table's column; None for a part without a column.

    Attributes:
        key: Column with the record's key.
        time: Column with the create time: a timestamp, a date, integer ms since the epoch, or text
            that SQL casts to a timestamp in the session's time zone. If the create time is null,
            the record gets the time of the commit.
        value: Column with the value; None if the value is the whole row as JSON.
        headers: Column with the headers: a map, or an array of structs (key, value).
        partition: Column with the number of the partition; None if the key chooses the partition.
    """

    key: str | None = None
    time: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None

    def check(self, names: list[str]) -> None:
        """Raise InvalidRequest if a column does not exist; the message lists the columns."""
        for column in (self.key, self.time, self.value, self.headers, self.partition):
            if column is not None and column not in names:
                raise InvalidRequest(f"no column {column!r}; {nearest(column, names)}")


def to_records(table: "DataFrame", columns: RecordColumns) -> "DataFrame":
    """Return the rows as records with the columns that the sink accepts.

    Raises:
        InvalidRequest: A column does not exist, or has a type that does not suit the column's part
            of the record.
    """
    from pyspark.sql import functions as f

    columns.check(table.columns)
    types = {field.name: field.dataType for field in table.schema}
    columns_by_name = {"value": _value(table, columns.value, types)}
    if columns.key is not None:
        columns_by_name["key"] = _bytes(columns.key, types[columns.key])
    if columns.time is not None:
        columns_by_name["timestamp"] = _time(columns.time, types[columns.time])
    if columns.headers is not None:
        columns_by_name["headers"] = _headers(columns.headers, types[columns.headers])
    if columns.partition is not None:
        columns_by_name["partition"] = f.col(_quoted(columns.partition)).cast("int")
    return table.select([column.alias(name) for name, column in columns_by_name.items()])


def _quoted(name: str) -> str:
    """Return a column's name in backquotes, so that Spark reads dots as part of the name."""
    return f"`{name.replace('`', '``')}`"


def _value(table: "DataFrame", name: str | None, types: "dict[str, DataType]") -> "Column":
    from pyspark.sql import functions as f

    if name is not None:
        return _bytes(name, types[name])
    every = [f.col(_quoted(column)) for column in table.columns]
    return f.encode(f.to_json(f.struct(*every), _JSON), "UTF-8")


def _bytes(name: str, kind: "DataType") -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    column = f.col(_quoted(name))
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, ArrayType | MapType | StructType):
        return f.encode(f.to_json(column, _JSON), "UTF-8")
    return f.encode(column.cast("string"), "UTF-8")


def _time(name: str, kind: "DataType") -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import (
        DateType,
        IntegerType,
        LongType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    column = f.col(_quoted(name))
    if isinstance(kind, IntegerType | LongType):
        return f.timestamp_millis(column.cast("long"))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType | StringType):
        return column.cast("timestamp")
    raise InvalidRequest(
        f"column {name} is {kind.simpleString()}; times must be timestamps, dates, whole ms, or"
        " text"
    )


def _headers(name: str, kind: "DataType") -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType

    column = f.col(_quoted(name))
    if isinstance(kind, MapType):
        return f.map_entries(column).cast(_HEADERS)
    if isinstance(kind, ArrayType):
        return column.cast(_HEADERS)
    raise InvalidRequest(
        f"column {name} is {kind.simpleString()}; headers must be a map, or an array of (key,"
        " value)"
    )


def with_partitions(records: "DataFrame", count: int) -> "DataFrame":
    """Add a column with each record's partition: murmur2 of the key, as in Kafka's clients.

    For records without a key, a hash of the value chooses the partition, so that the partition is
    the same in each attempt. A row that already has a partition keeps its partition.
    """
    from pyspark.sql import functions as f

    by_value = f.pmod(f.xxhash64("value"), f.lit(count)).cast("int")
    chosen = by_value
    if "key" in records.columns:
        chosen = f.when(f.col("key").isNull(), by_value).otherwise(_by_key(count))
    if "partition" in records.columns:
        chosen = f.coalesce(f.col("partition"), chosen)
    return records.withColumn("partition", chosen)


def _by_key(count: int) -> "Column":
    import pyarrow as pa
    from pyspark.sql import functions as f

    def numbers(keys: pa.Array) -> pa.Array:  # type: ignore[type-arg] # Spark reads the hints
        from tidelog.record.columns.encode import choose_partitions

        return pa.array(choose_partitions(keys, count, keyless=0))

    chosen: Column = f.arrow_udf(numbers, "int")(f.col("key"))  # type: ignore[attr-defined] # Spark imports it
    return chosen


# First and last hour (since the epoch) that have counts of their own. Earlier times are counted in
# the first hour, later times in the last hour. So at most a few million rows are needed for the
# counts.
_HOUR_MIN, _HOUR_MAX = -25_000 * 24, 85_000 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Counts of the records that are made from a table's rows.

    Attributes:
        records: Number of all records.
        without_time: Number of records whose create time is null.
        null_keys: Number of records without a key.
        below: For each threshold in ms, the number of records whose create time is before the
            threshold.
        hours: Number of records by the hour of their create time, in hours since the epoch.
    """

    records: int
    without_time: int
    null_keys: int
    below: Mapping[int, int] = field(default_factory=dict)
    hours: Mapping[int, int] = field(default_factory=dict)

    def between(self, start_ms: int | None, end_ms: int | None) -> Count | None:
        """Count the create times in [start_ms, end_ms); None if `below` lacks one of the bounds."""
        sides = [side for side in (start_ms, end_ms) if side is not None]
        if any(side not in self.below for side in sides):
            return None
        end = self.records - self.without_time if end_ms is None else self.below[end_ms]
        start = 0 if start_ms is None else self.below[start_ms]
        return Count(max(end - start, 0), is_exact=True)

    def load(self, partitions: int | None) -> ExpectedWrite:
        """Return the counts as an `ExpectedWrite`, for the check of the target topic.

        Args:
            partitions: Minimum number of partitions of the topic, from the rows' partitions; None
                if no row has a partition.
        """
        # A row without a create time gets the time of the commit. Every setting of the topic
        # accepts this time, so only rows with a create time are checked.
        return ExpectedWrite(
            records=Count(self.records, is_exact=True),
            between=self.between,
            null_keys=Count(self.null_keys, is_exact=True),
            partitions=partitions,
            has_times=self.without_time < self.records,
        )


def table_facts(records: "DataFrame", thresholds: Sequence[int]) -> tuple[TableFacts, int]:
    """Return the counts, and the largest partition in the rows; -1 if no row has a partition.

    Args:
        records: Result of `to_records`.
        thresholds: Times in ms. For each of these times, the records with an earlier create time
            are counted.
    """
    from pyspark.sql import functions as f

    marks = sorted(set(thresholds))
    rows = (
        records.select(*_fact_columns(records))
        .groupBy("hour")
        .agg(
            f.count(f.lit(1)).alias("records"),
            f.count_if("no_key").alias("null_keys"),
            f.max("partition").alias("partition"),
            *[
                f.count_if(f.col("ms") < f.lit(mark)).alias(f"m{at}")
                for at, mark in enumerate(marks)
            ],
        )
    )
    counted = [row.asDict() for row in rows.collect()]
    timed = [row for row in counted if row["hour"] is not None]
    facts = TableFacts(
        records=sum(row["records"] for row in counted),
        without_time=sum(row["records"] for row in counted if row["hour"] is None),
        null_keys=sum(row["null_keys"] for row in counted),
        below={mark: sum(row[f"m{at}"] for row in timed) for at, mark in enumerate(marks)},
        hours={row["hour"]: row["records"] for row in timed},
    )
    partitions = [row["partition"] for row in counted if row["partition"] is not None]
    return facts, max(partitions, default=-1)


def _fact_columns(records: "DataFrame") -> "list[Column]":
    from pyspark.sql import functions as f

    has = set(records.columns)
    ms = f.unix_millis("timestamp") if "timestamp" in has else f.lit(None).cast("long")
    hour = f.greatest(
        f.lit(_HOUR_MIN), f.least(f.lit(_HOUR_MAX), f.floor(ms / f.lit(HOUR_MS)).cast("long"))
    )
    # Spark's functions greatest and least ignore nulls. But for a null time, the hour must be null.
    return [
        ms.alias("ms"),
        f.when(ms.isNotNull(), hour).alias("hour"),
        (f.col("key").isNull() if "key" in has else f.expr("true")).alias("no_key"),
        (f.col("partition") if "partition" in has else f.lit(None).cast("int")).alias("partition"),
    ]
