"""Tables that can be encoded, and the defaults for missing columns."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from tidelog.errors import InvalidRecord, InvalidRequest
from tidelog.record.batch import RecordBatch
from tidelog.record.columns.encode import encode_table
from tidelog.record.record import Record
from tidelog.types import Header, TimestampType

NOW_MS = 1_700_000_000_123
Column: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"


def records_of(table: pa.Table | pa.RecordBatch) -> list[Record]:
    """Encode a table, and return the records of its batches."""
    return [
        record
        for batch in encode_table(table, now_ms=NOW_MS)
        for record in RecordBatch(batch).records()
    ]


def keys_of(column: Column) -> Sequence[bytes | None]:
    """Encode a column of keys, and return the keys of the records."""
    return [record.key for record in records_of(pa.table({"key": column}))]


def times_of(column: Column) -> list[int]:
    """Encode a column of timestamps, and return the timestamps of the records."""
    return [record.timestamp for record in records_of(pa.table({"timestamp": column}))]


def headers_of(column: Column) -> list[tuple[Header, ...]]:
    """Encode a column of headers, and return the headers of the records."""
    return [record.headers for record in records_of(pa.table({"headers": column}))]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_any_kind_of_bytes_or_text_is_a_key(kind: pa.DataType) -> None:
    values: list[object] = ["a", None, "", "é"]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        values = [value.encode() if isinstance(value, str) else None for value in values]
    assert keys_of(pa.array(values, kind)) == [b"a", None, b"", "é".encode()]


def test_fixed_size_binary_is_a_key() -> None:
    assert keys_of(pa.array([b"ab", None], pa.binary(2))) == [b"ab", None]


def test_a_column_of_type_null_is_null_in_all_rows() -> None:
    table = pa.table({"value": pa.array([b"v", b"w"]), "key": pa.nulls(2), "headers": pa.nulls(2)})
    assert [(r.key, r.value, r.headers) for r in records_of(table)] == [
        (None, b"v", ()),
        (None, b"w", ()),
    ]


def test_missing_columns_are_null_and_timed_now() -> None:
    (record,) = records_of(pa.table({"value": pa.array([b"v"])}))
    assert (record.key, record.headers, record.timestamp) == (None, (), NOW_MS)


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        (pa.timestamp("s"), 1),
        (pa.timestamp("ms", "UTC"), 10**3),
        (pa.timestamp("us", "America/New_York"), 10**6),
        (pa.timestamp("ns"), 10**9),
    ],
    ids=str,
)
def test_timestamps_of_any_unit_become_ms(kind: pa.DataType, scale: int) -> None:
    column = pa.array([5 * scale, 6 * scale], kind)
    assert times_of(column) == [5000, 6000]


def test_finer_timestamps_are_rounded_down() -> None:
    column = pa.array([1999, 1], pa.int64()).cast(pa.timestamp("us"))
    assert times_of(column) == [1, 0]


def test_a_null_timestamp_is_now_and_minus_one_stays_without_time() -> None:
    assert times_of(pa.array([None, -1, 5], pa.int64())) == [NOW_MS, -1, 5]


def test_small_integers_are_ms_too() -> None:
    assert times_of(pa.array([7], pa.int32())) == [7]


def test_headers_may_be_a_map_or_null() -> None:
    column = pa.array([[("a", b"1"), ("a", None)], None, []], pa.map_(pa.string(), pa.binary()))
    assert headers_of(column) == [(Header("a", b"1"), Header("a", None)), (), ()]


def test_append_time_is_seen_and_create_time_kept() -> None:
    table = pa.table({"timestamp": pa.array([5, 6], pa.int64())})
    (batch,) = encode_table(table, now_ms=NOW_MS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert [(r.timestamp, r.create_timestamp) for r in RecordBatch(batch).records()] == [
        (NOW_MS, 5),
        (NOW_MS, 6),
    ]


def test_a_record_larger_than_all_buffers_gets_its_own_batch() -> None:
    values = [b"s" * 10, b"l" * 3_000_000, b"s" * 10]
    batches = list(encode_table(pa.table({"value": pa.array(values)}), now_ms=0))
    found = [record.value for batch in batches for record in RecordBatch(batch).records()]
    assert found == values
    assert len(batches) == 3


def test_many_chunks_keep_their_order() -> None:
    chunks = [pa.array([f"{i}-{n}".encode() for n in range(700)]) for i in range(3)]
    table = pa.concat_tables([pa.table({"value": chunk}) for chunk in chunks])
    assert [r.value for r in records_of(table)] == table["value"].to_pylist()


def test_an_empty_table_becomes_no_batch() -> None:
    assert records_of(pa.table({"value": pa.array([], pa.binary())})) == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"topic": ["t"]}), "'topic'"),
        (pa.table({"key": [1]}), "'key' is int64"),
        (pa.table({"timestamp": ["2013"]}), "'timestamp' is string"),
        (pa.table({"timestamp": pa.array([2**64 - 1], pa.uint64())}), "'timestamp'"),
        (pa.table({"headers": [1]}), "'headers'"),
    ],
    ids=["another column", "key", "timestamp", "timestamp too large", "headers"],
)
def test_a_wrong_column_is_named(table: pa.Table, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        records_of(table)


def test_a_header_without_a_key_is_refused() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with pytest.raises(InvalidRecord, match="without a key"):
        headers_of(pa.array([[None]], kind))
    with pytest.raises((InvalidRequest, InvalidRecord), match="key"):
        headers_of(pa.array([[{"key": None, "value": b""}]], kind))


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="batch_bytes"):
        list(encode_table(pa.table({"value": [b"v"]}), now_ms=0, batch_bytes=0))


def test_offsets_that_lead_out_of_the_data_are_refused() -> None:
    ends, data = np.array([0, 99, 5], np.int32), b"short"
    column = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    )
    with pytest.raises(InvalidRecord, match="row 0: an Arrow column"):
        records_of(pa.table({"value": column}))
