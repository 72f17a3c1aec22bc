"""Rows of append times are unpacked into columns."""

import random
from struct import Struct

import pytest

from tidelog.storage.clocks.append_times import unpack_columns


@pytest.mark.parametrize("rows", [1, 63, 64, 300])
def test_columns_are_those_of_rows_one_by_one(rows: int) -> None:
    row = Struct(">qiII")
    draw = random.Random(rows)
    data = draw.randbytes(rows * row.size)
    found = unpack_columns(row, data)
    assert list(zip(*found, strict=True)) == list(row.iter_unpack(data))
