"""Compiled and interpreted kernels find each key's last record, as a plain dict does."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.record.builder import build_batch
from tidelog.record.columns.decode import SECRET_BYTES, LatestFinder, LatestRecord
from tidelog.record.header import HEADER_SIZE, LENGTH, LENGTH_AT, LOG_OVERHEAD, seal
from tidelog.record.kernels import last_records, layout
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.checksums import shifts
from tidelog.record.kernels.compiler import plain
from tidelog.record.kernels.last_records import LatestRows, find_latest
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.types import INT64_MAX, NewRecord

KERNELS = [find_latest, plain(find_latest)]
Find = Callable[[Bytes, Longs, Longs, Longs, LatestRows], int]
KEYS = st.sampled_from([b"", b"a", b"b", b"aaaaaaaab", b"aaaaaaaac", b"aaaaaaaa"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), min_size=1, max_size=9)
SEEDS = np.array([3, -5], np.int64)


def log_of(batches: list[list[tuple[bytes | None, bytes | None]]]) -> bytes:
    """Return a log of batches, with a gap of one offset after each batch."""
    data, offset = bytearray(), 7
    for pairs in batches:
        made = [NewRecord(key=key, value=value, timestamp=0) for key, value in pairs]
        data += build_batch(made, base_offset=offset)
        offset += len(made) + 1
    return bytes(data)


def table_of(data: bytes) -> Longs:
    table: Longs = np.empty((64, layout.BATCH_FIELDS), np.int64)
    count, _, status = scan_batches(
        np.frombuffer(data, np.uint8), 0, len(data), table, 0, INT64_MAX
    )
    assert status == layout.DONE
    return table[:count]


def room(count: int) -> LatestRows:
    return LatestRows(
        slots=np.full(256, -1, np.int32),
        rows=np.zeros((count, last_records.ROW_FIELDS), np.int64),
        facts=np.zeros(last_records.FACT_FIELDS, np.int64),
    )


def expected(batches: list[list[tuple[bytes, bytes | None]]]) -> list[LatestRecord]:
    found: dict[bytes, tuple[bytes | None, int, int]] = {}
    offset = 7
    for pairs in batches:
        for number, (key, value) in enumerate(pairs):
            dead = found[key][2] if key in found else -1
            at = offset + number
            found[key] = value, at, at if value is None else dead
        offset += len(pairs) + 1
    return [(key, *rest) for key, rest in found.items()]


@given(batches=st.lists(PAIRS, min_size=1, max_size=4))
def test_of_each_key_the_last_record_is_found(
    batches: list[list[tuple[bytes, bytes | None]]],
) -> None:
    data = log_of([[*pairs] for pairs in batches])
    found = LatestFinder(bytes(range(SECRET_BYTES))).find(data, table_of(data))
    assert found == expected(batches)
    out = room(64)
    array = np.frombuffer(data, np.uint8)
    assert plain(find_latest)(array, table_of(data), shifts(), SEEDS, out) == layout.DONE
    rows = out.rows[: out.facts[last_records.ROWS]].tolist()
    assert [(data[row[0] : row[1]], row[4], row[5]) for row in rows] == [
        (key, at, dead) for key, _, at, dead in expected(batches)
    ]


@pytest.mark.parametrize("find", KERNELS)
def test_keys_with_equal_hashes_are_distinguished(find: Find) -> None:
    keys = [b"%d" % number for number in range(100)]
    data = log_of([[(key, b"x") for key in keys]] * 2)
    out = room(len(keys))._replace(slots=np.full(128, -1, np.int32))
    assert find(np.frombuffer(data, np.uint8), table_of(data), shifts(), SEEDS, out) == layout.DONE
    rows = out.rows[: out.facts[last_records.ROWS]].tolist()
    assert [data[row[0] : row[1]] for row in rows] == keys
    assert [row[4] for row in rows] == list(range(108, 208))


@pytest.mark.parametrize("find", KERNELS)
def test_a_batch_whose_records_were_all_removed_is_skipped(find: Find) -> None:
    """Compaction keeps the last batch of a producer even if all of its records are removed."""
    empty = bytearray(build_batch([NewRecord(key=b"b", value=b"2", timestamp=0)], base_offset=9))
    del empty[HEADER_SIZE:]
    LENGTH.pack_into(empty, LENGTH_AT, HEADER_SIZE - LOG_OVERHEAD)
    LENGTH.pack_into(empty, HEADER_SIZE - LENGTH.size, 0)  # the number of records
    seal(empty, 0)
    data, out = log_of([[(b"a", b"1")]]) + bytes(empty), room(9)
    assert find(np.frombuffer(data, np.uint8), table_of(data), shifts(), SEEDS, out) == layout.DONE
    assert out.rows[: out.facts[last_records.ROWS], 4].tolist() == [7]


@pytest.mark.parametrize("find", KERNELS)
def test_more_keys_than_rows_are_reported(find: Find) -> None:
    data = log_of([[(b"a", b"1"), (b"b", b"2")]])
    out = room(1)
    assert find(np.frombuffer(data, np.uint8), table_of(data), shifts(), SEEDS, out) == layout.FULL


@pytest.mark.parametrize("find", KERNELS)
@pytest.mark.parametrize(
    ("column", "value", "status"),
    [
        (layout.CRC, 0, layout.BAD_SUM),
        (layout.RECORD_COUNT, -1, layout.BAD_COUNT),
        (layout.RECORD_COUNT, 1 << 20, layout.BAD_COUNT),
        (layout.RECORD_COUNT, 1, layout.BAD_REST),
        (layout.RECORD_COUNT, 3, layout.BAD_RECORD),
        (layout.LAST_OFFSET, 7, layout.BAD_DELTA),
    ],
)
def test_damage_is_reported(find: Find, column: int, value: int, status: int) -> None:
    data = log_of([[(b"a", b"1" * 30), (b"b", b"2")]])
    table = table_of(data)
    table[0, column] = value
    assert find(np.frombuffer(data, np.uint8), table, shifts(), SEEDS, room(9)) == status


def test_damaged_batches_and_null_keys_are_left_to_the_plain_code() -> None:
    finder = LatestFinder(bytes(SECRET_BYTES))
    data = log_of([[(b"a", b"1")], [(None, b"2")]])
    table = table_of(data)
    assert finder.find(data, table[:1]) == [(b"a", b"1", 7, -1)]
    assert finder.find(data, table) is None
    torn = bytearray(data)
    torn[HEADER_SIZE] ^= 1
    assert finder.find(bytes(torn), table[:1]) is None
    table[0, layout.RECORD_COUNT] = 1 << 30  # no memory may be allocated for this size
    assert finder.find(data, table[:1]) is None
