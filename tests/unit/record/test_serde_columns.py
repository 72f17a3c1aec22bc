"""Encoding or decoding a column gives the same results as `record.serde` for single values."""

import json
import math
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.amounts import plural
from tidelog.errors import SerdeError
from tidelog.record.columns.serdes import (
    COLUMN_KINDS,
    decode_column,
    encode_column,
    encode_fields,
)
from tidelog.record.serde import SERDE_NAMES, serde

VALUES: dict[str, st.SearchStrategy[object]] = {
    "bytes": st.binary(max_size=9),
    "string": st.text(max_size=9),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "uuid": st.uuids(),
    "json": st.one_of(st.integers(), st.text(max_size=5), st.lists(st.booleans())),
}


def as_column(name: str, value: object) -> object:
    """Return the value in the form that it has in a decoded column of this serializer."""
    if value is None or isinstance(value, UUID):
        return None if value is None else str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if name == "json" else value


def cells(column: "pa.Array[pa.Scalar[pa.DataType]]") -> list[object]:
    return [cell.as_py() for cell in column]


@pytest.mark.parametrize("name", SERDE_NAMES)
@given(data=st.data())
def test_a_decoded_column_equals_its_decoded_values(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[name], max_size=8))
    raw = [serde(name).serialize(value) for value in values]
    skipped = data.draw(st.integers(0, len(raw)))
    column = pa.array(raw, pa.binary())[skipped:]
    found = decode_column(column, name)
    assert found.type == COLUMN_KINDS[name]
    expected = [as_column(name, value) for value in values[skipped:]]
    for one, other in zip(cells(found), expected, strict=True):
        both = [isinstance(each, float) and math.isnan(each) for each in (one, other)]
        assert one == other or all(both)
    assert cells(encode_column(found, name)) == raw[skipped:]


@pytest.mark.parametrize(
    ("name", "value"),
    [("int32", b"abc"), ("int64", b""), ("double", b"1234567"), ("uuid", b"x"), ("json", b"{")],
)
def test_a_value_that_is_not_of_the_serializer_is_shown(name: str, value: bytes) -> None:
    column = pa.array([None, value], pa.binary())
    with pytest.raises(SerdeError, match=f"{plural(len(value), 'byte')} can't be read as {name}: "):
        decode_column(column, name)


def test_text_that_is_no_utf_8_is_shown() -> None:
    with pytest.raises(SerdeError, match=r"2 bytes can't be read as string.*ff fe"):
        decode_column(pa.array([b"\xff\xfe"], pa.binary()), "string")


REFUSED: "list[tuple[str, pa.Array[pa.Scalar[pa.DataType]]]]" = [
    ("int32", pa.array([True])),
    ("int32", pa.array([2**40])),
    ("json", pa.array(["{"])),
]


@pytest.mark.parametrize(("name", "column"), REFUSED)
def test_a_column_that_cannot_be_written_is_refused(
    name: str, column: "pa.Array[pa.Scalar[pa.DataType]]"
) -> None:
    with pytest.raises(SerdeError):
        encode_column(column, name)


def test_columns_of_a_batch_are_encoded_by_name() -> None:
    rows: list[dict[str, object]] = [{"key": 7, "value": "a"}, {"key": None, "value": "b"}]
    batch = pa.RecordBatch.from_pylist(rows)
    found = encode_fields(batch, {"key": "int32", "absent": "string"})
    assert found.to_pydict() == {"key": [b"\0\0\0\7", None], "value": ["a", "b"]}
    with pytest.raises(SerdeError, match="column value: int32 can't write"):
        encode_fields(batch, {"value": "int32"})
