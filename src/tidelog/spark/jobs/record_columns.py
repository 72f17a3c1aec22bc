"""From a table's columns to those of records: key, value, create time, headers, partition.

Column expressions of Spark alone: nothing is read here. Text and bytes stay as they are; whatever
else becomes text as SQL's cast has it, structures JSON.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.errors import InvalidRequest
from tidelog.spark.options import nearest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_HEADERS: Final = "array<struct<key:string,value:binary>>"
# Nulls stay in sight: a row without them could be that of another table.
_JSON: Final = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Which column of a table is what; None where none is.

    Attributes:
        key: The record's key.
        time: Its create time: a timestamp, a date, whole ms since the epoch, or text that SQL casts
            to a timestamp in the session's time zone. Null is the time of the commit.
        value: Its value; the whole row as JSON where None.
        headers: A map, or an array of structs (key, value).
        partition: The number of its partition; by key where None.
    """

    key: str | None = None
    time: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None

    def check(self, names: list[str]) -> None:
        """Raise InvalidRequest, which names the nearest, for a column that is not there."""
        for asked in (self.key, self.time, self.value, self.headers, self.partition):
            if asked is not None and asked not in names:
                raise InvalidRequest(f"no column {asked!r}: {nearest(asked, names)}")


def to_records(table: "DataFrame", columns: RecordColumns) -> "DataFrame":
    """The rows as records, as the sink takes them.

    Raises:
        InvalidRequest: A column that is not there, or of a type that can't be what it should be.
    """
    from pyspark.sql import functions as f

    columns.check(table.columns)
    types = {field.name: field.dataType for field in table.schema}
    found = {"value": _value(table, columns.value, types)}
    if columns.key is not None:
        found["key"] = _bytes(columns.key, types[columns.key])
    if columns.time is not None:
        found["timestamp"] = _time(columns.time, types[columns.time])
    if columns.headers is not None:
        found["headers"] = _headers(columns.headers, types[columns.headers])
    if columns.partition is not None:
        found["partition"] = f.col(_quoted(columns.partition)).cast("int")
    return table.select([column.alias(name) for name, column in found.items()])


def _quoted(name: str) -> str:
    """A column's name as Spark parses it: dots are part of it."""
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
        f"column {name} is {kind.simpleString()}: a time is a timestamp, a date, whole ms, or text"
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
        f"column {name} is {kind.simpleString()}: headers are a map, or an array of (key, value)"
    )


def with_partitions(records: "DataFrame", count: int) -> "DataFrame":
    """The records with their partition: by murmur2 of the key, as Kafka's clients choose it.

    Records without a key go by a hash of their value, so that each attempt sends them alike. A
    partition that is given stays.
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
        from tidelog.record.partitions import choose_partitions

        return pa.array(choose_partitions(keys, count, keyless=0))

    chosen: Column = f.arrow_udf(numbers, "int")(f.col("key"))  # type: ignore[attr-defined]
    return chosen
