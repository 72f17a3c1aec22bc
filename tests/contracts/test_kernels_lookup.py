"""Kernels that search by time, compiled and interpreted, give the results of a full scan."""

from collections.abc import Callable
from struct import Struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import frozen
from tests.worlds.records.kernel_logs import damaged_logs

from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.kernels import (
    find_time,
    find_time_in_segment,
    layout,
    plain,
)
from tidelog.record.kernels.memory import Bytes
from tidelog.record.offset_order import ANY_OFFSETS
from tidelog.record.record import Record
from tidelog.types import INT64_MAX, Codec, NewRecord, TimestampType

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
BASE_OFFSET = 1000
BETWEEN = BASE_OFFSET, INT64_MAX

Answer = tuple[int, int, int, int]
Search = Callable[[Bytes, Bytes, Bytes, int, int, int], Answer]
Segment = tuple[bytes, bytes, bytes]


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Draw a log with gaps and out-of-order times, and indexes that list some of its batches."""
    log, index, time_index = bytearray(), bytearray(), bytearray()
    offset, largest = BASE_OFFSET, -1
    for _ in range(draw(st.integers(0, 8))):
        times = draw(st.lists(st.integers(-1, 30), min_size=1, max_size=4))
        stamped = draw(st.integers(0, 3)) == 0
        deltas = np.cumsum(draw(st.lists(st.integers(1, 2), min_size=4, max_size=4))).tolist()
        batch = build_batch(
            [NewRecord.of_log(key=None, value=b"v", timestamp=time) for time in times],
            base_offset=offset,
            codec=draw(st.sampled_from((Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4))),
            timestamp_type=TimestampType(int(stamped)),
            append_time_ms=draw(st.integers(0, 30)) if stamped else None,
            offset_deltas=deltas[: len(times)],
        )
        view = RecordBatch(batch)
        if log and draw(st.booleans()):
            index += OFFSET_ENTRY.pack(view.last_offset - BASE_OFFSET, len(log))
            if view.max_timestamp > largest:
                time_index += TIME_ENTRY.pack(view.max_timestamp, view.last_offset - BASE_OFFSET)
        largest = max(largest, view.max_timestamp)
        log += batch
        offset = view.next_offset
    return bytes(log), bytes(index), bytes(time_index)


def first_match(log: bytes, target: int, floor_offset: int) -> tuple[Record, int] | None:
    """Return the first record that matches, and the position of its batch; reads all records."""
    for batch in walk(log):
        for record in batch.records():
            if record.timestamp >= target and record.offset >= floor_offset:
                return record, batch.at
    return None


def resolve(log: bytes, answer: Answer, target: int, floor_offset: int) -> Answer:
    """Search like the kernel's callers: search in Python each batch that the kernel can't read."""
    while answer[0] == layout.NEED_PLAIN:
        batch = RecordBatch(log, answer[3])
        for record in batch.records():
            if record.timestamp >= target and record.offset >= floor_offset:
                return layout.FOUND, record.offset, record.timestamp, batch.at
        behind, between = batch.at + batch.size_bytes, (batch.last_offset + 1, INT64_MAX)
        answer = find_time(frozen(log), behind, between, target, floor_offset)
    return answer


@given(segment=segments(), target=st.integers(0, 32), floor=st.integers(0, 40))
def test_the_result_is_the_first_match_of_all_records(
    segment: Segment, target: int, floor: int
) -> None:
    log, index, time_index = segment
    floor_offset = BASE_OFFSET + floor
    for search in (find_time_in_segment, plain(find_time_in_segment)):
        said = search(frozen(log), frozen(index), frozen(time_index), BETWEEN, target, floor_offset)
        found = resolve(log, said, target, floor_offset)
        match = first_match(log, target, floor_offset)
        if match is None:
            assert (found[0], *found[2:]) == (layout.NOT_FOUND, -1, len(log))
        else:
            record, position = match
            assert found == (layout.FOUND, record.offset, record.timestamp, position)


@given(
    log=damaged_logs(),
    index=st.binary(max_size=40),
    time_index=st.binary(max_size=40),
    target=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50),
    floor=st.integers(0, 2**63 - 1) | st.integers(0, 50),
    end=st.just(INT64_MAX) | st.integers(0, 400),
)
def test_searches_are_equal_compiled_and_interpreted_on_any_bytes(
    log: bytes, index: bytes, time_index: bytes, target: int, floor: int, end: int
) -> None:
    between = 0, end
    arguments = frozen(log), frozen(index), frozen(time_index), between, target, floor
    assert find_time_in_segment(*arguments) == plain(find_time_in_segment)(*arguments)
    for position in (-1, 0, 61, len(log), len(log) + 1):
        rest = frozen(log), position, between, target, floor
        assert find_time(*rest) == plain(find_time)(*rest)


def test_an_entry_that_leads_into_a_batch_is_a_bad_index() -> None:
    log = bytes(build_batch([NewRecord(value=b"v", timestamp=5)] * 3)) * 2
    index = OFFSET_ENTRY.pack(2, 7)
    answer = find_time_in_segment(frozen(log), frozen(index), frozen(b""), ANY_OFFSETS, 5, 2)
    assert answer == (layout.BAD_INDEX, -1, -1, 7)


def test_an_entry_for_another_batch_is_a_bad_index() -> None:
    first = bytes(build_batch([NewRecord(value=b"v", timestamp=5)] * 3))
    second = bytes(build_batch([NewRecord(value=b"v", timestamp=5)] * 3, base_offset=3))
    index = OFFSET_ENTRY.pack(2, len(first))  # offset 2 ends the first batch, not the second
    answer = find_time_in_segment(
        frozen(first + second), frozen(index), frozen(b""), ANY_OFFSETS, 5, 2
    )
    assert answer == (layout.BAD_INDEX, -1, -1, len(first))


def test_a_search_skips_batches_by_their_largest_timestamp() -> None:
    early = bytes(build_batch([NewRecord(value=b"v", timestamp=5)], codec=Codec.ZSTD))
    late = bytes(build_batch([NewRecord(value=b"v", timestamp=9)], base_offset=1))
    answer = find_time_in_segment(frozen(early + late), frozen(b""), frozen(b""), ANY_OFFSETS, 6, 0)
    assert answer == (layout.FOUND, 1, 9, len(early))
