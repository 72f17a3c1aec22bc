"""Encodes Arrow tables as magic-2 batches, and assigns partitions to a column of keys.

The kernel (`kernels.encode`) writes records. This module validates tables, and writes headers and
checksums. Importing this module imports Arrow and Numba.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import InvalidRecord, InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.record.builder import BATCH_BYTES
from tidelog.record.compression import compress
from tidelog.record.header import (
    HEADER,
    HEADER_SIZE,
    HEADERS_MAX,
    LOG_OVERHEAD,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
    seal,
)
from tidelog.record.kernels import layout
from tidelog.record.kernels.encode import WRITTEN_FIELDS, BinarySource, RecordSource, encode_batches
from tidelog.record.kernels.layout import REASONS
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
    time_refused,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.columns.column_builders import Column
    from tidelog.record.kernels.memory import Bytes, Ints, Longs


Number = TypeVar("Number", bound=np.generic)

# Approximate number of bytes, and maximum number of batches, that one call of the kernel writes.
# The numbers are large enough that the call itself takes a small share of the time, and small
# enough that the batches are still in the CPU cache when they are checksummed and copied.
_OUT_BYTES: Final = 1 << 19

_OUT_BATCHES: Final = 256

# Maximum number of bytes that are allocated for one batch at first. More memory is allocated if the
# batch's records need it.
_BATCH_ROOM: Final = 1 << 24

_NO_INTS: Final = np.frombuffer(b"", np.int32)
_NO_BYTES: Final = np.frombuffer(b"", np.uint8)
_ALL_NULL: Final = BinarySource(_NO_INTS, _NO_BYTES, _NO_BYTES, 0)
_NO_HEADERS: Final = (_NO_INTS, _ALL_NULL, _ALL_NULL)
_COLUMNS: Final = ("key", "value", "timestamp", "headers")

# Maps the unit of an Arrow timestamp to the number of these units in a millisecond.
PER_MS: Final = {"us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Options of encoding a table; see `encode_table`."""

    codec: Codec
    level: int | None
    batch_bytes: int
    timestamp_type: TimestampType
    now_ms: int


def encode(table: pa.Table | pa.RecordBatch, encoding: Encoding) -> Iterator[bytearray]:
    """Encode a table, and yield its batches; see `encode_table`."""
    if unknown := set(table.schema.names) - set(_COLUMNS):
        raise InvalidRequest(f"no column {min(unknown)!r}; the columns are {', '.join(_COLUMNS)}")
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    room = _OUT_BYTES + min(encoding.batch_bytes, _BATCH_ROOM)
    out, first_row = np.empty(room, np.uint8), 0
    for batch in batches:
        source = _source(batch, encoding.now_ms)
        row = 0
        while row < batch.num_rows:
            out, row, written = _fill(source, row, first_row, encoding.batch_bytes, out)
            for position, size, count, base_timestamp, largest in written:
                records = out[position + HEADER_SIZE : position + size]
                yield _finish(records, count, (base_timestamp, largest), encoding)
        first_row += batch.num_rows


def _fill(
    source: RecordSource, row: int, first_row: int, batch_bytes: int, out: "Bytes"
) -> tuple["Bytes", int, list[list[int]]]:
    """Call the kernel; call it again with a larger `out` if one batch needs more memory."""
    table = np.empty((_OUT_BATCHES, WRITTEN_FIELDS), np.int64)
    status, count, row, needed = encode_batches(source, row, batch_bytes, out, table)
    if status == layout.FULL and count == 0:
        larger = np.empty(max(needed, 2 * out.size), np.uint8)
        return _fill(source, row, first_row, batch_bytes, larger)
    if status not in (layout.DONE, layout.FULL):
        raise InvalidRecord(f"row {first_row + row}: {REASONS[status]}")
    return out, row, table[:count].tolist()


def _finish(
    records: "Bytes", count: int, timestamps: tuple[int, int], encoding: Encoding
) -> bytearray:
    """Return a batch with these encoded records: compressed, with header and checksum."""
    base_timestamp, largest = timestamps
    stamped = encoding.timestamp_type is TimestampType.LOG_APPEND_TIME
    batch = bytearray(HEADER_SIZE)
    if encoding.codec is Codec.NONE:
        batch += records.data
    else:
        batch += compress(encoding.codec, records.data, level=encoding.level)
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC_2,
        0,
        encoding.codec | (TIMESTAMP_TYPE_BIT if stamped else 0),
        count - 1,
        base_timestamp,
        encoding.now_ms if stamped else largest,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )
    seal(batch, 0)
    return batch


def _source(batch: pa.RecordBatch, now_ms: int) -> RecordSource:
    """Return a record batch in the form that the kernel reads.

    Only timestamps and columns of unusual types are copied.
    """
    names = batch.schema.names

    def column(name: str) -> "Column | None":
        return batch.column(name) if name in names else None

    ends, keys, values = _headers(column("headers"))
    return RecordSource(
        timestamps=create_times(column("timestamp"), batch.num_rows, now_ms),
        key=_binary(column("key"), "key"),
        value=_binary(column("value"), "value"),
        header_ends=ends,
        header_key=keys,
        header_value=values,
    )


def check_times(table: pa.Table) -> None:
    """Validate the timestamps of a table by the rules of `create_times`.

    An error states the row's index in the whole table, not in a chunk of the table.
    """
    if "timestamp" in table.column_names:
        row = 0
        for chunk in table["timestamp"].chunks:
            create_times(chunk, len(chunk), 0, first_row=row)
            row += len(chunk)


def create_times(column: "Column | None", rows: int, now_ms: int, *, first_row: int = 0) -> "Longs":
    """Return the create times of a column in ms, rounded down; `now_ms` for nulls.

    Raises:
        InvalidTimestamp: A time is before 1970; an integer may be -1 for "has no time".
        InvalidRequest: The column has neither timestamps nor integers, or a time in ms does not fit
            into 64 bits.
    """
    if column is None:
        return _frozen(np.full(rows, now_ms, np.int64))
    numbers = _whole_ms(column, now_ms)
    smallest = 0 if isinstance(column, pa.TimestampArray) else NO_TIMESTAMP
    if len(numbers) and int(numbers.min()) < smallest:
        row = int(np.argmax(numbers < smallest))
        raise time_refused(f"{numbers[row]} ms (row {first_row + row})")
    return numbers


def _whole_ms(column: "Column", now_ms: int) -> "Longs":
    per_ms = 1
    try:
        if isinstance(column, pa.TimestampArray):
            kind = column.type
            if kind.unit == "s":
                column = column.cast(pa.timestamp("ms", kind.tz))
            per_ms = PER_MS.get(kind.unit, 1)
            column = column.cast(pa.int64())
        elif not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            expected = "a timestamp or integer milliseconds"
            raise InvalidRequest(f"column 'timestamp' is {column.type}; want {expected}")
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid as error:  # The time in ms exceeds 2^63-1.
        raise InvalidRequest(f"column 'timestamp': {error}") from error
    if per_ms > 1:
        nulls = np.asarray(numbers.is_null()) if numbers.null_count else None
        floored = np.asarray(numbers.fill_null(0)) // per_ms
        return _frozen(floored if nulls is None else np.where(nulls, now_ms, floored))
    return _frozen(numbers.fill_null(now_ms).to_numpy(zero_copy_only=False))


# The type of `column_builders.HEADERS`, except that header keys can be null. So the cast accepts a
# null key, and `header_parts` can raise a clearer error for it.
_PAIRS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def header_parts(column: "Column") -> "tuple[Ints, Column, Column] | None":
    """Return the header count of each row, all header keys, and all header values.

    Return None if no row has headers.

    Raises:
        InvalidRequest: The column's values are neither lists of key-value structs nor maps.
        InvalidRecord: A header has no key, or a row has too many headers.
    """
    if pa.types.is_null(column.type):
        return None
    try:
        lists = column.cast(_PAIRS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRequest(f"column 'headers': {error}") from error
    assert isinstance(lists, pa.ListArray)
    pairs = lists.flatten()
    if len(pairs) == 0:
        return None
    assert isinstance(pairs, pa.StructArray)
    keys, values = pairs.flatten()
    if keys.null_count:
        raise InvalidRecord("a record has a header without a key")
    # The counts are not computed from the list offsets: a null list may cover values, which
    # `flatten` leaves out.
    counts = pc.list_value_length(lists).fill_null(0).to_numpy()
    if (most := int(counts.max())) > HEADERS_MAX:
        raise InvalidRecord(f"{most} headers; a record can have at most {HEADERS_MAX}")
    return counts, keys, values


def _headers(column: "Column | None") -> "tuple[Ints, BinarySource, BinarySource]":
    """Return an array `ends`, all header keys, and all header values.

    The headers of row n have the indices `ends[n]` to `ends[n + 1]` (exclusive).
    """
    parts = None if column is None else header_parts(column)
    if parts is None:
        return _NO_HEADERS
    counts, keys, values = parts
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return _frozen(ends), _binary(keys, "headers"), _binary(values, "headers")


def _binary(column: "Column | None", name: str) -> BinarySource:
    """Return a column of bytes or text in the form that the kernel reads."""
    if column is None or column.null_count == len(column):
        return _ALL_NULL
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        column = _cast_binary(column, name)
    valid, ends, data = column.buffers()
    assert ends is not None
    rows = slice(column.offset, column.offset + len(column) + 1)
    return BinarySource(
        ends=_numbers(ends, np.int32)[rows],
        data=_numbers(data, np.uint8),
        valid=_numbers(valid if column.null_count else None, np.uint8),
        valid_at=column.offset,
    )


def _numbers(buffer: pa.Buffer | None, kind: type[Number]) -> "npt.NDArray[Number]":
    """Return an Arrow buffer as an array; an empty array for None."""
    return _frozen(np.frombuffer(b"" if buffer is None else cast("bytes", buffer), kind))


def _cast_binary(column: "Column", name: str) -> "Column":
    """Cast other types of bytes or text (large, view, fixed size, dictionary) to binary."""
    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
        kind = column.type
    try:
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            column = column.cast(pa.string())
        return column.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequest(f"column {name!r} is {kind}; want binary or string") from error


def _frozen(array: "npt.NDArray[Number]") -> "npt.NDArray[Number]":
    """Make the array read-only, and return it.

    Numba compiles a kernel for each combination of argument types, and a read-only array has its
    own type. Some Arrow buffers are read-only, so all arrays are made read-only.
    """
    array.flags.writeable = False
    return array


def encode_table(
    table: "pa.Table | pa.RecordBatch",
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> Iterator[bytearray]:
    """Encode the rows as sealed magic-2 batches, in order, with base offset 0 and no leader epoch.

    Args:
        table: The rows. It can have the columns `key`, `value` (binary or text of any type),
            `timestamp` (a timestamp, rounded down to ms, or integer ms; -1 is "has no time") and
            `headers` (list of structs of key and value, or map). A missing column is null in all
            rows.
        now_ms: Create time in ms of rows whose timestamp is null. With LogAppendTime it is also the
            append time of all records; the batches still contain the create times.
        codec: Compression of each batch.
        level: The codec's level, None for Kafka's default.
        batch_bytes: Maximum size of a batch in bytes, including the header, before compression. A
            larger record gets a batch of its own. No batch spans two chunks of a table.
        timestamp_type: Source of the visible timestamps: the producer or the log.

    Raises:
        InvalidRequest: Raised when the first batch is requested: a column is unknown or of a wrong
            type, `batch_bytes` is out of range, or the codec does not support the level. Raised for
            a later batch: a time in ms exceeds 64 bits; earlier batches were yielded.
        InvalidRecord: A record has a header without a key, has too many headers, or exceeds 2 GiB;
            earlier batches were yielded.
        InvalidTimestamp: A time is before 1970; earlier batches were yielded.
    """
    if not 1 <= batch_bytes <= INT64_MAX:
        raise InvalidRequest(f"batch_bytes must be 1 to {INT64_MAX}, got {batch_bytes}")
    encoding = Encoding(
        codec=codec,
        level=level,
        batch_bytes=min(batch_bytes, INT32_MAX),
        timestamp_type=timestamp_type,
        now_ms=now_ms,
    )
    yield from encode(table, encoding)


def choose_partitions(
    keys: "pa.Array[pa.Scalar[pa.DataType]] | pa.ChunkedArray[pa.Scalar[pa.DataType]]",
    partition_count: int,
    *,
    keyless: int,
) -> "npt.NDArray[np.int32]":
    """Return the partition that Kafka's Java producer chooses for each key.

    Args:
        keys: Keys, as binary or text of any type. Arrow's cast raises an error for other types.
        partition_count: At least 1.
        keyless: Partition of records whose key is null.

    Returns:
        int32[n], each from 0 to `partition_count` - 1.
    """
    import numpy as np
    import pyarrow as pa

    from tidelog.record.kernels.hashes import partitions_of

    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    parts = [np.empty(0, np.int32)]
    for chunk in chunks:
        column = chunk.cast(pa.binary())
        out = np.empty(len(column), np.int32)
        if pa.types.is_null(chunk.type) or column.null_count == len(column):
            out[:] = keyless
        else:
            _, ends, data_buffer = column.buffers()
            assert ends is not None
            offsets = np.frombuffer(memoryview(ends), np.int32)[column.offset :][: len(column) + 1]
            data = np.frombuffer(memoryview(data_buffer or b""), np.uint8)
            nulls = np.asarray(column.is_null(), np.uint8)
            partitions_of(data, offsets, nulls, partition_count, keyless, out)
        parts.append(out)
    return np.concatenate(parts)
