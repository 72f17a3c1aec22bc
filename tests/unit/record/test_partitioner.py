"""The kernel, compiled or interpreted, the plain function and Kafka agree on keys' partitions."""

import tracemalloc
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.record.columns.encode import choose_partitions
from tidelog.record.kernels.hashes import partitions_of
from tidelog.record.partitioner import REMEMBERED_KEYS, Partitioner, murmur2, partition_of

# Hashes by key, from the test of murmur2 in Kafka's UtilsTest, as signed numbers.
KAFKA_VALUES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA_VALUES.items())
def test_murmur2_equals_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


@given(keys=st.lists(st.none() | st.binary(max_size=20), max_size=30), count=st.integers(1, 300))
def test_kernel_and_plain_function_choose_the_same_partitions(
    keys: list[bytes | None], count: int
) -> None:
    expected = [count - 1 if key is None else partition_of(key, count) for key in keys]
    column = pa.array(keys, pa.binary())
    assert choose_partitions(column, count, keyless=count - 1).tolist() == expected
    data = np.frombuffer(b"".join(key or b"" for key in keys) or b"\0", np.uint8)
    ends = np.cumsum([0, *(len(key or b"") for key in keys)]).astype(np.int32)
    out = np.empty(len(keys), np.int32)
    nulls = np.array([key is None for key in keys], np.uint8)
    partitions_of.py_func(data, ends, nulls, count, count - 1, out)
    assert out.tolist() == expected


def test_slices_and_chunks_of_a_column_are_read_where_they_lie() -> None:
    column = pa.chunked_array([pa.array(["x", "abc", None])[1:], pa.array(["foobar"])])
    expected = [partition_of(b"abc", 7), 3, partition_of(b"foobar", 7)]
    assert choose_partitions(column, 7, keyless=3).tolist() == expected


def test_a_column_of_nulls_is_put_into_one_partition() -> None:
    assert choose_partitions(pa.nulls(3), 7, keyless=4).tolist() == [4, 4, 4]


def test_partitioner_keeps_keyless_records_together_until_it_switches() -> None:
    partitioner = Partitioner(50, Random(5))
    first = {partitioner.choose(None) for _ in range(20)}
    assert len(first) == 1
    drawn = set()
    for _ in range(40):
        partitioner.switch()
        drawn.add(partitioner.choose(None))
    assert len(drawn) > 10


def test_a_partitioner_remembers_a_limited_number_of_keys() -> None:
    partitioner = Partitioner(50, Random(5))
    tracemalloc.start()
    try:
        for number in range(REMEMBERED_KEYS):
            partitioner.choose(b"%d" % number)
        full_bytes = tracemalloc.get_traced_memory()[0]
        partitioner.choose(b"one more")
        assert tracemalloc.get_traced_memory()[0] < full_bytes / 10
    finally:
        tracemalloc.stop()
    assert partitioner.choose(b"abc") == partition_of(b"abc", 50)
