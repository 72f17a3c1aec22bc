"""Spark's rows: types, conversion of read values, and topic and partition of written rows.

Contains the conversion of columns that are read (`SparkRows`), and the choice of topic and
partition for each row that is written (`Router`). Neither class creates an object for each row.

Invariants: every record batch has exactly Spark's schema (names, order, types, nullability),
because Spark compares the first batch with its own schema and doesn't check later batches. Times
are converted to microseconds. A time that does not fit into 64 bits as microseconds (more than some
292,000 years from 1970) raises an error with partition and offset. With `mode=permissive`, the time
is null instead, and the row has the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.errors import (
    InvalidRequest,
    InvalidTimestamp,
    RequestError,
    SerdeError,
    partitions_text,
)
from tidelog.record.columns.encode import choose_partitions
from tidelog.spark.options import REASON, scan_columns
from tidelog.types import INT64_MAX, US_PER_MS, TopicPartition

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int32]
    Column = pa.Array[pa.Scalar[pa.DataType]]


HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
    "appendTimestamp": TimestampType(),
    "createTimestamp": TimestampType(),
    "producerId": LongType(),
    "producerEpoch": ShortType(),
    "sequence": IntegerType(),
    "leaderEpoch": IntegerType(),
    REASON: StringType(),
}

# Types of key and value by the name of their serializer.
SERDE_TYPES: Final[dict[str, DataType]] = {
    "bytes": BinaryType(),
    "string": StringType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "double": DoubleType(),
    "uuid": StringType(),
    "json": StringType(),
}

Serdes = Mapping[str, str]
NO_SERDES: Final[Serdes] = {}


def row_type(columns: Sequence[str], serdes: Serdes = NO_SERDES) -> StructType:
    """Return the type of a row of these columns.

    Args:
        columns: Names of the columns.
        serdes: Names of serializers of the columns `key` and `value`; a column without a serializer
            is binary.

    Raises:
        InvalidRequest: A column does not exist, or occurs twice.
    """
    if unknown := [name for name in columns if name not in TYPES]:
        raise InvalidRequest(f"no column {unknown[0]!r}; the columns are {', '.join(TYPES)}")
    if len(set(columns)) != len(columns):
        raise InvalidRequest(f"a column is listed twice: {', '.join(columns)}")
    types = TYPES | {name: SERDE_TYPES[serde] for name, serde in serdes.items()}
    return StructType([StructField(name, types[name]) for name in columns])


def check_row_type(requested: StructType, serdes: Serdes = NO_SERDES) -> tuple[str, ...]:
    """Return the column names of a user's schema.

    Raises InvalidRequest if a column does not exist, occurs twice or has another type.
    """
    columns = tuple(requested.fieldNames())
    for ours, theirs in zip(row_type(columns, serdes), requested, strict=True):
        if ours.dataType != theirs.dataType:
            raise InvalidRequest(
                f"column {ours.name} is {ours.dataType.simpleString()},"
                f" not {theirs.dataType.simpleString()}"
            )
    return columns


class SparkRows:
    """Converts record batches of a scan to record batches for Spark.

    Attributes:
        scanned: Columns of the scan's batches that `convert` expects, in order.
    """

    def __init__(
        self, columns: Sequence[str], serdes: Serdes = NO_SERDES, *, permissive: bool = False
    ) -> None:
        """Create the converters.

        Args:
            columns: Columns of Spark's rows, in order.
            serdes: Names of serializers of the columns `key` and `value`.
            permissive: Whether cells that can't be converted are null, with the reason in the
                column `REASON`, instead of an error.
        """
        self.scanned = scan_columns(columns, serdes)
        self._schema = to_arrow_schema(row_type(columns, serdes), timezone="UTC")
        self._permissive = permissive
        self._converters = [
            _converter(field.name, field.type, serdes.get(field.name, "bytes"))
            for field in self._schema
        ]
        # Columns that Spark does not get: they are converted only to fill the column `REASON`.
        self._hidden = {
            column: _serde_converter(column, serdes[column])
            for column in self.scanned
            if column in serdes and column not in self._schema.names and serdes[column] != "bytes"
        }

    def convert(self, batch: pa.RecordBatch, name: TopicPartition) -> pa.RecordBatch:
        """Convert rows to Spark's types.

        Args:
            batch: Rows with the columns `scanned`.
            name: The rows' partition, for errors.

        Raises:
            InvalidTimestamp: Spark can't represent a time, and `permissive` is false; the message
                has partition and offset.
            SerdeError: A serializer can't decode a key or value, and `permissive` is false; the
                message has partition and offset.
        """
        reasons: dict[int, list[str]] = {}
        arrays = {
            field.name: self._converted(converter, batch, field.name, name, reasons)
            for field, converter in zip(self._schema, self._converters, strict=True)
            if field.name != REASON
        }
        if REASON in self._schema.names:
            for column, converter in self._hidden.items():
                self._converted(converter, batch, column, name, reasons)
            arrays[REASON] = _reason_column(reasons, batch.num_rows)
        ordered = [arrays[column] for column in self._schema.names]
        return pa.RecordBatch.from_arrays(ordered, schema=self._schema)

    def _converted(
        self,
        converter: "_Converter",
        batch: pa.RecordBatch,
        column_name: str,
        name: TopicPartition,
        reasons: dict[int, list[str]],
    ) -> "Column":
        column = batch.column(column_name)
        try:
            return converter.convert(column)
        except (SerdeError, pa.ArrowInvalid):
            wrong = dict(converter.find_wrong(column) if self._permissive else ())
            if not wrong:
                row, error = next(iter(converter.find_wrong(column)))
                raise type(error)(f"{_position_text(batch, name, row)} {error}") from None
        for row, error in wrong.items():
            reasons.setdefault(row, []).append(f"{_position_text(batch, name, row)} {error}")
        is_wrong = np.zeros(len(column), np.bool_)
        is_wrong[list(wrong)] = True
        valid = pc.if_else(pa.array(is_wrong), pa.scalar(None, column.type), column)
        return converter.convert(valid)


def _reason_column(reasons: Mapping[int, Sequence[str]], count: int) -> "Column":
    """Return the column `REASON`: null for rows without a reason."""
    if not reasons:
        return pa.nulls(count, pa.string())
    texts = ["; ".join(reasons[row]) if row in reasons else None for row in range(count)]
    return pa.array(texts, pa.string())


def _position_text(batch: pa.RecordBatch, name: TopicPartition, row: int) -> str:
    """Return a record's partition and offset as text, for errors."""
    return f"{name} offset {batch.column('offset')[row].as_py()}"


class _Converter(NamedTuple):
    """Conversion of a column to one of Spark's types.

    Attributes:
        convert: Function that converts a column; raises SerdeError or ArrowInvalid if a cell can't
            be converted.
        find_wrong: Function that yields (row index, error), in order, for each cell that can't be
            converted.
    """

    convert: "Callable[[Column], Column]"
    find_wrong: "Callable[[Column], Iterable[tuple[int, RequestError]]]"


def _converter(name: str, kind: pa.DataType, serde: str) -> _Converter:
    if serde != "bytes":
        return _serde_converter(name, serde)
    if name == "headers":
        return _Converter(lambda column: _headers(column, kind), _none_wrong)
    if pa.types.is_timestamp(kind):
        return _Converter(lambda column: column.cast(kind), partial(_wrong_times, name))
    return _Converter(_unchanged, _none_wrong)


def _serde_converter(name: str, serde: str) -> _Converter:
    from tidelog.record.columns.serdes import decode_column, wrong_values

    def find_wrong(column: "Column") -> "Iterator[tuple[int, RequestError]]":
        for row, error in wrong_values(column, serde):
            hint = f"leave out {name}As to read bytes, or give mode=permissive to read null"
            yield row, SerdeError(f"(column {name}): {error}; {hint}")

    return _Converter(lambda column: decode_column(column, serde), find_wrong)


def _unchanged(column: "Column") -> "Column":
    return column


def _none_wrong(_: "Column") -> "Iterable[tuple[int, RequestError]]":
    return ()


def _wrong_times(name: str, column: "Column") -> "Iterator[tuple[int, RequestError]]":
    """Yield (row index, error) for each time that does not fit into 64 bits as microseconds."""
    times = np.asarray(column.cast(pa.int64()).fill_null(0))
    most = INT64_MAX // US_PER_MS
    for row in np.flatnonzero((times > most) | (times < -most)).tolist():
        yield (
            row,
            InvalidTimestamp(
                f"(column {name}): {times[row]} ms does not fit into Spark's timestamps"
                " (microseconds in 64 bits); the writer may have meant microseconds or"
                f" nanoseconds. Omit {name} from the option columns, or set mode=permissive to"
                " read it as null"
            ),
        )


def _headers(column: "Column", kind: pa.DataType) -> "Column":
    """Return headers as Spark's list of structs, without copying; null if a record has no headers.

    Null is also what Spark's Kafka connector returns for such a record. The array is rebuilt with
    Spark's schema, because Spark compares the nullability of child fields, which is different in
    the scan's column.
    """
    assert isinstance(column, pa.ListArray)
    assert isinstance(kind, pa.ListType)
    pairs = column.values
    assert isinstance(pairs, pa.StructArray)
    ends = np.asarray(column.offsets)
    children = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=list(kind.value_type)
    )
    has_headers = np.diff(ends) > 0
    bitmap = pa.py_buffer(np.packbits(has_headers, bitorder="little").tobytes())
    missing = len(column) - int(has_headers.sum())
    offsets = pa.py_buffer(ends.tobytes())
    return pa.Array.from_buffers(kind, len(column), [bitmap, offsets], missing, children=[children])


# Columns of a record. The remaining columns of a written row determine its topic and partition.
RECORD_COLUMNS: Final = ("key", "value", "timestamp", "headers")

_UINT16_MAX: Final = (1 << 16) - 1


class Router:
    """Chooses topic and partition of each row like Kafka's clients. Not thread-safe."""

    def __init__(self, topic: str | None, count_of: Callable[[str], int], *, task: int) -> None:
        """Create a router.

        Args:
            topic: Topic of all rows; None if each row has a topic.
            count_of: Function that returns the number of partitions of a topic; raises
                UnknownTopic.
            task: Index of the task. All rows without a key in one record batch go to one partition,
                and the rows without a key in the next record batch go to the next partition. The
                partition for the first record batch depends on the task's index.
        """
        self._topic = topic
        self._count_of = count_of
        self._counts: dict[str, int] = {}
        self._turn = task

    def route(self, batch: pa.RecordBatch) -> "Iterator[tuple[str, Numbers, pa.RecordBatch]]":
        """Yield the name of each topic, its rows' partitions, and its rows' record columns.

        Topics are in the order in which they first appear in the batch. Rows keep their order.

        Raises:
            UnknownTopic, InvalidRequest: A row's topic or partition does not exist, or a row has no
                topic.
        """
        if not batch.num_rows:
            return
        self._turn += 1
        for topic, rows in self._by_topic(batch):
            numbers = self._numbers(topic, rows)
            yield topic, numbers, rows.select([n for n in RECORD_COLUMNS if n in rows.schema.names])

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidRequest("a row without a topic: fill the column, or give the option topic")
        names = topics.unique()
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, name))
            yield str(name), rows

    def _numbers(self, topic: str, batch: pa.RecordBatch) -> "Numbers":
        """Return each row's partition.

        A row without a partition gets the partition that Kafka's clients would choose.
        """
        count = self._counts.get(topic) or self._count_of(topic)
        self._counts[topic] = count
        if "partition" not in batch.schema.names:
            return self._chosen(batch, count)
        column = batch.column("partition")
        if not column.null_count:
            numbers = np.asarray(column).astype(np.int64, copy=False)
            has_number = np.ones(len(numbers), np.bool_)
        else:
            numbers = np.asarray(column.fill_null(0)).astype(np.int64, copy=False)
            has_number = np.asarray(column.is_valid())
        wrong = has_number & ((numbers < 0) | (numbers >= count))
        if wrong.any():
            raise InvalidRequest(
                f"partition {numbers[wrong][0]}: topic {topic} has {partitions_text(count)}"
            )
        if not column.null_count:
            return numbers.astype(np.int32)
        return np.where(has_number, numbers.astype(np.int32), self._chosen(batch, count))

    def _chosen(self, batch: pa.RecordBatch, count: int) -> "Numbers":
        # All rows without a key in one record batch go to one partition, so that log batches are
        # full. The next record batch uses the next partition.
        keyless = self._turn % count
        if count == 1 or "key" not in batch.schema.names:
            return np.full(batch.num_rows, keyless, np.int32)
        return choose_partitions(batch.column("key"), count, keyless=keyless)


def by_partition(numbers: "Numbers", rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition, in their original order."""
    first = int(numbers[0])
    if (numbers == first).all():
        yield first, rows
        return
    # numpy sorts 16-bit integers by radix sort, which is faster than its sort of larger integers.
    narrow = numbers.astype(np.uint16) if numbers.max() <= _UINT16_MAX else numbers
    ordered = rows.take(np.argsort(narrow, kind="stable"))
    counts = np.bincount(numbers)
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts).tolist():
        count = int(counts[number])
        yield number, ordered.slice(int(ends[number]) - count, count)
