"""On any bytes, kernels that find and decode batches give the same results whether compiled or not.

The interpreted run asserts that each read and write of bytes is inside its array
(`kernels.memory`). If the interpreted run passes and the compiled run gives equal results, the
compiled run has read nothing outside its arrays either.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import Guarded, frozen, run_guarded
from tests.worlds.records.kernel_logs import batches, damaged_logs, in_sequence
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c
from tidelog.record.header import ATTRIBUTES_AT, MAGIC_2
from tidelog.record.kernels import layout, plain, scan_batches
from tidelog.record.kernels.checksums import NONE_BAD, find_checksum_mismatch, shifts
from tidelog.record.kernels.layout import scan_error
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.records import (
    AT,
    COPIED,
    LEFT_OUT,
    PROGRESS_FIELDS,
    ROWS,
    UNOPENED,
    VIEW_WORDS,
    VIEWED,
    Binary,
    Columns,
    Filter,
    HeaderColumns,
    count_headers,
    count_matches,
    decode_batches,
    fill_headers,
)
from tidelog.record.kernels.times import fill_append_times, flag_overwritten_create_times
from tidelog.record.offset_order import in_order
from tidelog.types import INT64_MAX, Codec, NewRecord

CAPACITY = 6
NO_SUMS = np.empty(0, np.int64)

Scan = Callable[[Bytes, int, int, Longs, int, int], tuple[int, int, int]]
ANY = (0, INT64_MAX)


def scanned(log: Bytes, scan: Scan = scan_batches) -> tuple[Longs, int, int]:
    """Return the table of a whole log, the position after its last batch, and the status."""
    table = np.zeros((100, layout.BATCH_FIELDS), np.int64)
    count, at, status = scan(log, 0, log.size, table, *ANY)
    return table[:count], at, status


@given(
    data=damaged_logs(),
    start=st.integers(0, 20),
    capacity=st.integers(0, 4),
    between=st.tuples(st.integers(0, 9), st.integers(0, 99) | st.just(INT64_MAX)),
)
def test_walk_is_equal_compiled_and_interpreted(
    data: bytes, start: int, capacity: int, between: tuple[int, int]
) -> None:
    log, shape = frozen(data), (capacity, layout.BATCH_FIELDS)
    assert run_guarded(
        lambda guarded: scan_batches(log, start, log.size, guarded.array(shape, np.int64), *between)
    ) == run_guarded(
        lambda guarded: plain(scan_batches)(
            log, start, log.size, guarded.array(shape, np.int64), *between
        )
    )


@given(data=damaged_logs())
def test_the_walk_stops_at_the_same_position_as_the_plain_walk(data: bytes) -> None:
    table, at, status = scanned(frozen(data))
    places, refused_at = plain_places(data)
    # Only the kernel checks the order of offsets; the plain walk leaves this check to its callers.
    if status in (layout.BAD_OFFSETS, layout.BAD_ORDER):
        assert table[:, layout.POSITION].tolist() == places[: len(table)]
        assert at in places
        return
    assert table[:, layout.POSITION].tolist() == places
    if refused_at is None:
        assert status in (layout.DONE, layout.PARTIAL)
    else:
        assert at == refused_at
        assert status in (layout.BAD_SIZE, layout.BAD_MAGIC)


def plain_places(data: bytes) -> tuple[list[int], int | None]:
    """Return the positions of the batches that the plain walk accepts, and of the one it refuses.

    The second value is None if the walk refuses no batch.
    """
    places: list[int] = []
    try:
        places.extend(batch.at for batch in walk(data))
    except CorruptBatch as error:
        return places, error.at
    return places, None


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """Draw batches and messages in order of their offsets, with gaps; some offsets are changed."""
    found, next_offset = bytearray(), draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 5))):
        magic = draw(st.sampled_from([1, 2]))
        records = [NewRecord(value=b"v", timestamp=1)] * draw(st.integers(1, 3))
        offset = next_offset + draw(st.integers(0, 4))
        moved = max(offset + draw(st.sampled_from([0, 0, 0, -3, -1, 1, 2, 8])), 0)
        batch = bytearray(
            build_batch(records, base_offset=moved)
            if magic == MAGIC_2
            else build_legacy_set(records[:1], magic=1, base_offset=moved)
        )
        found += batch
        next_offset = offset + (len(records) if magic == MAGIC_2 else 1)
    return bytes(found)


@given(data=runs(), next_offset=st.integers(0, 5), end_offset=st.integers(5, 30), cut=st.booleans())
def test_offsets_are_refused_if_the_plain_rule_refuses_them(
    data: bytes, next_offset: int, end_offset: int, *, cut: bool
) -> None:
    data = data[: len(data) - cut]
    log, table = frozen(data), np.zeros((100, layout.BATCH_FIELDS), np.int64)
    count, at, status = scan_batches(log, 0, log.size, table, next_offset, end_offset)
    found: list[int] = []
    refused: CorruptData | None = None
    places = ((batch.at, batch) for batch in walk(data))
    try:
        found.extend(place for place, _ in in_order(places, next_offset, end_offset, "a"))
    except CorruptData as error:
        refused = error
    is_ahead = status == layout.BAD_ORDER and refused is None
    if is_ahead:  # the kernel needs only the header of a cut batch
        assert cut
        assert found == [*table[:count, layout.POSITION].tolist(), at]
        return
    assert table[:count, layout.POSITION].tolist() == found
    assert (status == layout.BAD_ORDER) == (refused is not None)
    if refused is not None:
        told = scan_error(log, table, count, at, status, next_offset, end_offset)
        assert (at, told.offset) == (refused.position, refused.offset)
        assert told.reason == refused.reason


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_batch_with_a_higher_offset_than_the_next_is_not_in_a_full_table(capacity: int) -> None:
    offsets = [0, 1, 2]
    offsets[capacity - 1] = 20
    places = [*offsets[:capacity], capacity]
    log = frozen(
        b"".join(bytes(build_batch([NewRecord(value=b"v")], base_offset=at)) for at in places)
    )
    table = np.zeros((capacity, layout.BATCH_FIELDS), np.int64)
    count, at, status = scan_batches(log, 0, log.size, table, *ANY)
    assert (count, status) == (capacity - 1, layout.BAD_ORDER)
    assert at == (capacity - 1) * len(log) // len(places)
    error = scan_error(log, table, count, at, status)
    assert f"offset 20, but offset {capacity - 1} is expected" in error.reason


@given(data=st.lists(batches(), max_size=4))
def test_the_table_equals_the_headers(data: list[bytes]) -> None:
    table, _, status = scanned(frozen(in_sequence(data)))
    assert status == layout.DONE
    found = [
        (*row[layout.BASE_OFFSET : layout.RECORD_COUNT + 1].tolist(), int(row[layout.CRC]))
        for row in table
    ]
    expected = [
        (b.base_offset, b.last_offset, b.record_count, b.crc) for b in walk(in_sequence(data))
    ]
    assert found == expected
    rest = table[:, layout.BASE_TIMESTAMP : layout.MAGIC + 1].tolist()
    assert rest == [
        [
            b.base_timestamp,
            b.max_timestamp,
            b.producer_id,
            b.producer_epoch,
            b.base_sequence,
            b.leader_epoch,
            b.magic,
        ]
        for b in walk(in_sequence(data))
    ]


def binary(guarded: Guarded, rows: int, capacity: int, *, is_viewed: bool = False) -> Binary:
    """Return an empty guarded column."""
    column = Binary(
        guarded.array(rows + 1, np.int32),
        guarded.array(capacity, np.uint8),
        guarded.array((rows + 7) // 8, np.uint8),
        guarded.array(rows * VIEW_WORDS if is_viewed else 0, np.int32),
    )
    column.ends[0] = 0
    column.valid[:] = 0xFF
    return column


def empty_columns(
    guarded: Guarded,
    rows: int,
    batch_count: int,
    capacity: int,
    wanted: Filter,
    *,
    has_all: bool = True,
) -> Columns:
    """Return columns for `rows` rows, with `capacity` bytes each for keys and for values."""
    some = rows if has_all else 0
    return Columns(
        offsets=guarded.array(rows, np.int64),
        timestamps=guarded.array(some, np.int64),
        creates=guarded.array(some, np.int64),
        headers_at=guarded.array(some, np.int64),
        rows_end=guarded.array(batch_count, np.int64),
        key=binary(guarded, rows, capacity, is_viewed=wanted.keys == VIEWED),
        value=binary(guarded, rows, capacity, is_viewed=wanted.values == VIEWED),
    )


filters = st.builds(
    Filter,
    offset_start=st.integers(0, 50),
    offset_end=st.integers(0, 110) | st.just(INT64_MAX),
    by_time=st.integers(0, 1),
    time_start=st.integers(-5, 10),
    time_end=st.integers(0, INT64_MAX),
    keys=st.sampled_from((LEFT_OUT, COPIED, VIEWED)),
    values=st.sampled_from((LEFT_OUT, COPIED, VIEWED)),
)


def decode_all(
    guarded: Guarded,
    decode: "Decode",
    log: Bytes,
    table: Longs,
    rows: Filter,
    capacity: int,
    sums: Longs,
    *,
    has_all: bool,
) -> list[tuple[int, int]]:
    """Call a decoder until it has finished a table; return all its results."""
    progress = np.zeros(PROGRESS_FIELDS, np.int64)
    progress[AT] = UNOPENED
    said = []
    while True:
        progress[ROWS:] = 0
        out = empty_columns(guarded, CAPACITY, len(table), capacity, rows, has_all=has_all)
        said.append(decode(log, table, rows, out, progress, sums))
        if said[-1][0] != layout.FULL or not progress[ROWS]:
            return said


Decode = Callable[[Bytes, Longs, Filter, Columns, Longs, Longs], tuple[int, int]]


@given(
    data=damaged_logs(),
    rows=filters,
    capacity=st.sampled_from((0, 7, 300, 3000)),
    has_sums=st.booleans(),
    has_all=st.booleans(),
)
def test_decoder_is_equal_compiled_and_interpreted(
    data: bytes, rows: Filter, capacity: int, has_sums: bool, has_all: bool
) -> None:
    log = frozen(data)
    table, _, _ = scanned(log)
    # The kernel reads only magic 2. It reads a compressed body as it is, like a damaged body.
    table = table[table[:, layout.MAGIC] == MAGIC_2]
    sums = shifts() if has_sums else NO_SUMS

    def run(guarded: Guarded, decode: Decode) -> list[tuple[int, int]]:
        return decode_all(guarded, decode, log, table, rows, capacity, sums, has_all=has_all)

    assert run_guarded(lambda guarded: run(guarded, decode_batches)) == run_guarded(
        lambda guarded: run(guarded, plain(decode_batches))
    )


@given(data=damaged_logs(), start=st.integers(0, 50), size=st.integers(0, 4000))
def test_sums_are_those_of_the_plain_path(data: bytes, start: int, size: int) -> None:
    """Depending on the size, the kernel reads long runs, short runs, words and single bytes."""
    noise = frozen((data * (1 + 4100 // max(len(data), 1)))[:4100] or bytes(4100))
    batch = np.zeros((1, layout.BATCH_FIELDS), np.int64)
    batch[0, layout.MAGIC] = MAGIC_2
    batch[0, layout.POSITION] = start
    batch[0, layout.BODY_END] = start + ATTRIBUTES_AT + size
    sound = crc32c(noise[start + ATTRIBUTES_AT : start + ATTRIBUTES_AT + size].tobytes())
    for expected, found in ((sound, (NONE_BAD, 0)), (sound ^ 1, (0, sound))):
        batch[0, layout.CRC] = expected
        assert find_checksum_mismatch(noise, batch, shifts()) == found
        assert plain(find_checksum_mismatch)(noise, batch, shifts()) == found


@given(data=damaged_logs())
def test_bad_sums_are_equal_compiled_interpreted_and_plain(data: bytes) -> None:
    log = frozen(data)
    table, _, _ = scanned(log)
    found = find_checksum_mismatch(log, table, shifts())
    assert found == plain(find_checksum_mismatch)(log, table, shifts())
    sums = [
        (slot, crc32c(data[row[layout.POSITION] + ATTRIBUTES_AT : row[layout.BODY_END]]))
        for slot, row in enumerate(table.tolist())
        if row[layout.MAGIC] == MAGIC_2
    ]
    bad = [(slot, crc) for slot, crc in sums if crc != table[slot, layout.CRC]]
    assert found == (bad[0] if bad else (NONE_BAD, 0))


@given(data=damaged_logs(), rows=filters)
def test_counts_are_equal_compiled_and_interpreted(data: bytes, rows: Filter) -> None:
    log = frozen(data)
    table, _, _ = scanned(log)
    table = table[table[:, layout.MAGIC] == MAGIC_2]
    assert count_matches(log, table, rows) == plain(count_matches)(log, table, rows)


@given(data=damaged_logs())
def test_lost_create_times_are_equal_compiled_and_interpreted(data: bytes) -> None:
    log = frozen(data)
    compiled, _, _ = scanned(log)
    interpreted = compiled.copy()
    flag_overwritten_create_times(log, compiled)
    plain(flag_overwritten_create_times)(log, interpreted)
    assert (compiled == interpreted).all()


@given(
    data=st.lists(batches(codecs=(Codec.NONE,)), min_size=1, max_size=3).map(b"".join),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
)
def test_headers_are_equal_even_if_bytes_change_between_the_passes(
    data: bytes, damage: list[tuple[int, int]]
) -> None:
    """If another process overwrites a mapped file, the kernels must stay inside their arrays."""
    log = frozen(data)
    table, _, _ = scanned(log)
    everything = Filter(0, INT64_MAX, 0, 0, 0, 0, 0)
    rows = 100
    out = empty_columns(Guarded(), rows, len(table), len(data), everything)
    progress = np.zeros(PROGRESS_FIELDS, np.int64)
    progress[AT] = UNOPENED
    status, _ = decode_batches(log, table, everything, out, progress, NO_SUMS)
    assert status == layout.DONE
    places = out.headers_at[: progress[ROWS]]
    changed = bytearray(data)
    for place, byte in damage:
        changed[place % len(changed)] = byte
    later = frozen(bytes(changed))
    sizes = count_headers(log, log.size, places)
    assert sizes == plain(count_headers)(log, log.size, places)
    assert count_headers(later, later.size, places) == plain(count_headers)(
        later, later.size, places
    )

    def fill(guarded: Guarded, run: Callable[[Bytes, int, Longs, HeaderColumns], bool]) -> bool:
        headers, key_bytes, value_bytes = sizes
        ends = guarded.array(places.size + 1, np.int32)
        columns = HeaderColumns(
            ends, binary(guarded, headers, key_bytes), binary(guarded, headers, value_bytes)
        )
        return run(later, later.size, places, columns)

    assert run_guarded(lambda guarded: fill(guarded, fill_headers)) == run_guarded(
        lambda guarded: fill(guarded, plain(fill_headers))
    )


@given(
    offsets=st.lists(st.integers(0, 40), max_size=20),
    starts=st.sets(st.integers(0, 40), max_size=8).map(sorted),
)
def test_append_times_are_those_of_the_last_run_begun(
    offsets: list[int], starts: list[int]
) -> None:
    run_starts = np.array(starts, np.int64)
    run_times = run_starts * 10
    expected = [max((s for s in starts if s <= offset), default=None) for offset in offsets]
    for run in (fill_append_times, plain(fill_append_times)):
        out = np.empty(len(offsets), np.int64)
        missing = run(np.array(offsets, np.int64), run_starts, run_times, out)
        assert out.tolist() == [-1 if start is None else start * 10 for start in expected]
        assert missing == expected.count(None)
