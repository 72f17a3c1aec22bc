"""Kernels for rows by key, compiled and interpreted, give the results of the plain reference."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import Guarded, run_guarded
from tests.core import examples
from tests.worlds.needs import need
from tests.worlds.records import plain_digests
from tests.worlds.records.plain_digests import KeySummary, PlainRecord

from tidelog.errors import CorruptData
from tidelog.record.builder import build_batch
from tidelog.record.columns import decode as columns
from tidelog.record.columns.batch_table import DecodeStats, Selection
from tidelog.record.columns.key_tables import (
    COLUMNS,
    KeyTable,
    Reducer,
    TimeSpans,
    joined,
    words_of,
)
from tidelog.record.header import HEADER_SIZE
from tidelog.record.kernels import key_rows, layout, plain
from tidelog.record.kernels import records as decode
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.checksums import shifts
from tidelog.record.kernels.layout import DONE, FULL
from tidelog.record.kernels.memory import Ints, Longs
from tidelog.types import INT64_MAX, Codec, NewRecord

SEEDS = (0x0706050403020100, 0x0F0E0D0C0B0A0908, -5, 2**63 - 1, -(2**63))
words = st.integers(-(2**63), 2**63 - 1)
keys = st.sampled_from([b"", b"a", b"b", b"7 bytes", b"8  bytes", b"more than 16 bytes"])
values = st.none() | st.sampled_from([b"", b"x", b"a value of some length, over 24"])
times = st.sampled_from([-1, 0, 5, 3_600_000, 2**62]) | words
entries = st.lists(st.tuples(st.none() | keys, values, times), max_size=30)
Entry = tuple[bytes | None, bytes | None, int]
Run = Callable[..., Callable[..., object]]


def test_the_hash_of_values_is_that_of_pythons_texts() -> None:
    """Python hashes bytes by SipHash-1-3 (PEP 456, since 3.11) with a seed that can be zero."""
    need(sys.hash_info.algorithm == "siphash13", "a Python that hashes by SipHash-1-3")
    program = "print([hash(bytes(range(size))) for size in range(1, 40)])"
    environment = {"PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    ours = [plain_digests.siphash_1_3(bytes(range(size)), (0, 0)) for size in range(1, 40)]
    assert done.stdout.decode().strip() == str(ours)


# Sizes near the limits at which the hash function takes another branch. `contents` also has small
# sizes.
sizes = st.sampled_from([255, 256, 257, 272, 273, 513, 768])
contents = st.binary(max_size=70) | sizes.map(lambda size: (bytes(range(256)) * 3)[:size])


@pytest.mark.parametrize("run", [lambda kernel: kernel, plain], ids=["compiled", "plain"])
@given(data=contents, seeds=st.tuples(*[words] * 5))
@examples(60)
def test_hashes(run: Run, data: bytes, seeds: tuple[int, ...]) -> None:
    rows, _, _ = folded([(data, data, 7)], seeds, run)
    (row,) = rows.tolist()
    assert (row[key_rows.HASH_HIGH], row[key_rows.HASH_LOW]) == plain_digests.hash_key(data, seeds)
    assert row[key_rows.VALUE] == plain_digests.hash_value(data, seeds)
    assert row[key_rows.SET] == row[key_rows.ORDER] == plain_digests.digest_record(7, data, seeds)


def test_values_that_differ_in_a_bit_or_by_zeros_have_other_hashes() -> None:
    values = [bytes(size) for size in range(1, 600)]
    values += [bytes(at) + b"\x80" + bytes(512 - at) for at in range(513)]
    assert len({plain_digests.hash_value(value, SEEDS) for value in values}) == len(values)


def rows_in(guarded: Guarded, capacity: int, seeds: Sequence[int]) -> key_rows.KeyRows:
    """Return an empty table in arrays with guarded edges."""
    into = key_rows.KeyRows(
        rows=guarded.array(capacity * key_rows.ROW_WORDS, np.int64),
        slots=guarded.array(64, np.int32),
        window=guarded.array(key_rows.WINDOW_ROWS * key_rows.WINDOW_WORDS, np.int64),
        state=guarded.array(key_rows.ROW_STATE, np.int64),
        spans=guarded.array((key_rows.SPANS, key_rows.SPAN_FIELDS), np.int64),
        words=np.array(words_of(seeds), np.int64),
        span_ms=3_600_000,
    )
    for array in into[:5]:
        array[:] = 0
    into.state[key_rows.SPAN_LAST] = -1
    return into


def folded(records: Sequence[Entry], seeds: Sequence[int], run: Run) -> tuple[Longs, Longs, Longs]:
    """Return the kernel's rows, spans and state; assert that no byte outside them is written."""
    incoming = key_rows.Incoming(
        keys=cells([key for key, _, _ in records]),
        values=cells([value for _, value, _ in records]),
        offsets=np.arange(10, 10 + len(records)),
        times=np.array([time for _, _, time in records], np.int64),
    )

    def work(guarded: Guarded) -> tuple[Longs, Longs, Longs]:
        into = rows_in(guarded, len(records), seeds)
        assert run(key_rows.fold_columns)(incoming, 0, into) == len(records)
        assert run(key_rows.take_window)(into) == DONE
        rows = into.rows[: int(into.state[key_rows.ROW_USED]) * key_rows.ROW_WORDS]
        return rows.reshape(-1, key_rows.ROW_WORDS).copy(), into.spans.copy(), into.state.copy()

    found, _ = run_guarded(work)
    assert isinstance(found, tuple)
    return found


def cells(items: Sequence[bytes | None]) -> key_rows.Cells:
    ends = np.cumsum([0, *(len(item or b"") for item in items)], dtype=np.int32)
    data = np.frombuffer(b"".join(item or b"" for item in items), np.uint8)
    return key_rows.Cells(ends, data, np.array([item is None for item in items], np.uint8))


@given(records=entries)
def test_compiled_is_interpreted(records: list[Entry]) -> None:
    for one, other in zip(
        folded(records, SEEDS, lambda kernel: kernel), folded(records, SEEDS, plain), strict=True
    ):
        assert (one == other).all()


def log_of(records: Sequence[Entry], edges: Sequence[int], codec: Codec = Codec.NONE) -> bytes:
    """Return the records as batches that start and end at the record indexes `edges`."""
    log = b""
    for start, end in pairwise(edges):
        new = [NewRecord.of_log(key=k, value=v, timestamp=t) for k, v, t in records[start:end]]
        if new:
            log += build_batch(new, base_offset=start, codec=codec)
    return log


small = st.lists(
    st.tuples(st.none() | keys, values, st.integers(-1, 9_000)), min_size=1, max_size=30
)


@given(
    records=small,
    cuts=st.lists(st.integers(0, 30), max_size=3),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    rows_max=st.integers(1, 9),
    part=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    times=st.none() | st.tuples(st.integers(0, 5_000), st.integers(0, 9_000)),
)
def test_digests_in_place_equal_digests_of_columns(
    records: list[Entry],
    cuts: list[int],
    codec: Codec,
    rows_max: int,
    part: tuple[int, int],
    times: tuple[int, int] | None,
) -> None:
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    log, seeds = log_of(records, edges, codec), np.array(SEEDS, np.int64)
    start, end = sorted(part)
    found, stats = [], (DecodeStats(), DecodeStats())
    for at in range(2):
        tables: list[Longs] = []
        reducer = Reducer(seeds, 3, 1_000, tables.append, rows_max=rows_max)
        if at:
            columns.fold(log, reducer, stats[at], Selection(start, end, times))
        else:
            for batch in columns.decode(
                log,
                Selection(start, end, times),
                columns=COLUMNS,
                stats=stats[at],
            ):
                reducer.add(batch)
        reducer.finish()
        counts = reducer.records, reducer.unkeyed, reducer.unkeyed_sum, reducer.untimed
        found.append((joined(tables).tolist(), counts, reducer.end_offset, reducer.spans.items()))
    assert found[0] == found[1]
    assert stats[0] == stats[1]


@given(records=small)
@examples(20)
def test_the_fold_of_batches_is_that_of_the_interpreter(records: list[Entry]) -> None:
    data = np.frombuffer(log_of(records, [0, len(records) // 2, len(records)]), np.uint8)
    table = np.empty((4, layout.BATCH_FIELDS), np.int64)
    count, _, _ = scan_batches(data, 0, data.size, table, 0, INT64_MAX)
    wanted = decode.Filter(0, 1 << 40, 0, 0, 0, 0, 0)

    def outcome(run: Run) -> object:
        def work(guarded: Guarded) -> object:
            into = rows_in(guarded, len(records), SEEDS)
            progress = guarded.array(decode.PROGRESS_FIELDS, np.int64)
            progress[:], progress[decode.AT] = 0, decode.UNOPENED
            fold_ = run(key_rows.fold_batches)
            found = fold_(data, table[:count], wanted, shifts(), into, progress)
            assert run(key_rows.take_window)(into) == DONE
            return found, into.state.tolist(), into.spans.tolist(), progress.tolist()

        return run_guarded(work)

    assert outcome(lambda kernel: kernel) == outcome(plain)


@pytest.mark.parametrize("damage", ["sum", "record"])
def test_before_a_damaged_batch_all_is_taken(damage: str) -> None:
    records: list[Entry] = [(b"k%d" % at, b"v", at) for at in range(6)]
    log = bytearray(log_of(records, [0, 4, 6]))
    at = len(log_of(records, [0, 4]))
    if damage == "sum":
        log[-1] ^= 1
    else:
        log[at + HEADER_SIZE] = 0x7F  # a record that is longer than its batch
    stats = DecodeStats()
    reducer = Reducer(np.array(SEEDS, np.int64), 0, 1_000, lambda _rows: None)
    with pytest.raises(CorruptData) as caught:
        columns.fold(log, reducer, stats, check_crc=damage == "sum")
    assert caught.value.offset == 4
    assert (reducer.end_offset, reducer.records) == (4, 4)


def arrow_batch(records: Sequence[Entry], start: int = 0) -> pa.RecordBatch:
    stamps = [None if time == -1 else time for _, _, time in records]
    arrays: list[pa.Array[pa.Scalar[pa.DataType]]] = [
        pa.array(range(start, start + len(records)), pa.int64()),
        pa.array(stamps, pa.int64()).cast(pa.timestamp("ms", "UTC")),
        pa.array([key for key, _, _ in records], pa.binary()),
        pa.array([value for _, value, _ in records], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def as_summaries(rows: Longs) -> dict[tuple[int, int], KeySummary]:
    return {
        (row[key_rows.HASH_HIGH], row[key_rows.HASH_LOW]): KeySummary(
            offset=row[key_rows.OFFSET],
            create_ms=row[key_rows.TIME],
            value=row[key_rows.VALUE],
            count=row[key_rows.COUNT],
            set_sum=row[key_rows.SET],
            order=row[key_rows.ORDER],
        )
        for row in rows.tolist()
    }


def expected_of(records: Sequence[Entry]) -> dict[tuple[int, int], KeySummary]:
    plain_records = [
        PlainRecord(offset, time, key, value)
        for offset, (key, value, time) in enumerate(records)
        if key is not None
    ]
    found = plain_digests.summarise(plain_records, SEEDS)
    return {plain_digests.hash_key(key, SEEDS): summary for key, summary in found.items()}


@given(
    records=entries,
    cuts=st.lists(st.integers(0, 30), max_size=3),
    rows_max=st.integers(1, 9),
)
def test_with_any_division_the_rows_are_those_of_the_records(
    records: list[Entry], cuts: list[int], rows_max: int
) -> None:
    tables: list[Longs] = []
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    reducer = Reducer(np.array(SEEDS, np.int64), 3, 1_000, tables.append, rows_max=rows_max)
    for start, end in pairwise(edges):
        # The arrays of a slice can begin in the middle of Arrow's buffers, not only at their start.
        reducer.add(arrow_batch(records).slice(start, end - start))
    reducer.finish()
    assert all(len(table) <= rows_max for table in tables)
    for table in tables:
        hashes = table[:, key_rows.HASH_HIGH].view(np.uint64)
        assert (np.diff(hashes.astype(object)) >= 0).all()
    found = joined(tables)
    assert as_summaries(found) == expected_of(records)
    assert (found[:, key_rows.PARTITION] == 3).all()
    assert reducer.records == len(records)
    assert reducer.unkeyed == sum(key is None for key, _, _ in records)
    assert reducer.untimed == sum(time == -1 for _, _, time in records)
    by_span: dict[int, int] = {}
    for _, _, time in records:
        span = key_rows.NO_SPAN if time == -1 else time // 1_000
        by_span[span] = by_span.get(span, 0) + 1
    assert {number: count for number, count, _ in reducer.spans.items()} == by_span


def test_a_table_of_many_keys_is_handed_out_whole() -> None:
    """A table of 40,000 keys enlarges its index, and is copied in parts."""
    count, tables = 40_000, list[Longs]()
    reducer = Reducer(np.array(SEEDS, np.int64), 5, 1_000, tables.append)
    reducer.add(arrow_batch([(b"%d" % (at % count), b"", at) for at in range(count + 9)]))
    reducer.finish()
    (rows,) = tables
    assert len(rows) == len({tuple(row) for row in rows[:, :2].tolist()}) == count
    assert sorted(rows[:, key_rows.OFFSET].tolist()) == list(range(9, count + 9))
    assert rows[:, key_rows.COUNT].sum() == count + 9
    assert (rows[:, key_rows.PARTITION] == 5).all()
    assert (np.diff(rows[:, key_rows.HASH_HIGH].view(np.uint64).astype(object)) >= 0).all()


def test_records_of_very_many_spans_are_counted_under_longer_ones() -> None:
    records: list[Entry] = [
        (b"k%d" % (n % 7), b"v", n * 5_000) for n in range(TimeSpans.LIMIT + 4_000)
    ]
    reducer = Reducer(np.array(SEEDS, np.int64), 0, 1_000, lambda _rows: None)
    for start in range(0, len(records), 9_000):
        reducer.add(arrow_batch(records[start : start + 9_000], start))
    reducer.finish()
    assert reducer.spans.span_ms > 1_000
    assert len(reducer.spans.totals) <= TimeSpans.LIMIT
    total = sum(count for _, count, _ in reducer.spans.items())
    assert total == len(records)
    assert reducer.spans.totals[0][0] == -(-reducer.spans.span_ms // 5_000)


def test_rows_of_other_partitions_are_added_by_time() -> None:
    def rows(partition: int, records: Sequence[Entry]) -> Longs:
        tables: list[Longs] = []
        reducer = Reducer(np.array(SEEDS, np.int64), partition, 1_000, tables.append)
        reducer.add(arrow_batch(records))
        reducer.finish()
        return tables[0]

    first = rows(0, [(b"a", b"1", 50), (b"b", b"1", 9)])
    second = rows(1, [(b"a", b"2", 100), (b"a", b"3", 40), (b"b", b"2", 9)])
    found = joined([first, second], across=True)
    by_key = {key: as_summaries(found)[plain_digests.hash_key(key, SEEDS)] for key in (b"a", b"b")}
    # The row of key a in partition 1 has the time of the last record (40), not the largest time
    # (100).
    assert (by_key[b"a"].create_ms, by_key[b"a"].count, by_key[b"a"].offset) == (50, 3, 0)
    assert (by_key[b"b"].offset, by_key[b"b"].count) == (2, 2)
    marks = {row[key_rows.OFFSET]: row[key_rows.PARTITION] for row in found.tolist()}
    assert marks == {0: ~0, 2: ~1}


@given(hashes=st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 2)), max_size=40))
def test_a_table_finds_exactly_its_keys(hashes: list[tuple[int, int]]) -> None:
    """The hashes have few values, so that slots collide and some hashes differ only in one word."""
    rows = np.zeros((len(hashes), key_rows.FIELDS), np.int64)
    for at, words in enumerate(hashes):
        rows[at, :2] = words
        rows[at, key_rows.COUNT] = 1
    half = len(rows) // 2
    table = KeyTable(max(len(rows), 1))
    table.add(rows[:half].copy())
    wanted = set(map(tuple, rows[:half, :2].tolist()))
    assert table.count == len(wanted)
    for row, number in zip(rows.tolist(), table.find(rows).tolist(), strict=True):
        assert (number >= 0) == (tuple(row[:2]) in wanted)
        if number >= 0:
            assert table.rows[number, :2].tolist() == row[:2]
    assert len(table.rows) == table.count


@pytest.mark.parametrize("run", [lambda kernel: kernel, plain], ids=["compiled", "plain"])
def test_a_full_table_stops_and_can_continue(run: Callable[..., object]) -> None:
    rows = np.zeros((6, key_rows.FIELDS), np.int64)
    rows[:, key_rows.HASH_HIGH] = [1, 9, 1, 17, 2, 9]
    rows[:, key_rows.COUNT] = 1
    table = np.zeros((3, key_rows.FIELDS), np.int64)
    index: Ints = np.zeros(8, np.int32)
    state = np.array([0, 6, 0], np.int64)
    kernel = run(key_rows.merge)
    assert callable(kernel)
    assert kernel(rows, 0, table, index, state) == FULL
    assert state.tolist() == [4, 6, 3]
    assert table[:, key_rows.COUNT].tolist() == [2, 1, 1]
