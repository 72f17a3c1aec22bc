"""Fetch reports a lost or damaged part of a finished segment instead of skipping it."""

from collections.abc import Callable
from contextlib import closing

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.logs import new_log, reader_of

from tidelog.errors import CorruptBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.server.partitions.segment_reads import (
    Limits,
    ReadEnds,
    SegmentBytes,
    find_range,
    frames,
)
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.segment import ColdRead, Segment
from tidelog.types import NewRecord

COUNT = 40
SETTINGS = {"internal.segment.bytes": "1500", "index.interval.bytes": "4096"}


def closed_log(settings: dict[str, str] | None = None) -> tuple[SeededEnv, list[Segment]]:
    """Write batches of one record each to several segments, and close the log.

    Return the environment and the segments. The zone maps are removed from the disk.
    """
    env, directory, log = new_log({**SETTINGS, **(settings or {})})
    for number in range(COUNT):
        log.append([NewRecord(key=b"k", value=bytes(49), timestamp=number)])
    directory.close()
    for entry in env.files.list_dir("/data/t-0"):
        if entry.name.endswith(".zones"):
            env.files.remove(f"/data/t-0/{entry.name}")
    return env, list(reader_of(env).segments)


def consume(log: LogView, max_bytes: int) -> tuple[list[int], CorruptBatch | None]:
    """Read from the start as a consumer; return the offsets, and the error that ends the reads."""
    source, ends = SegmentBytes(log.context.pool, may_block=True), ReadEnds()
    limits = Limits(end_offset=log.log_end_offset, max_bytes=max_bytes, whole_first=True)
    offsets: list[int] = []
    at = 0
    while at < log.log_end_offset:
        try:
            found = find_range(log.segments, at, limits, source, ends)
        except CorruptBatch as error:
            return offsets, error
        if found is None or not found.size_bytes:
            break
        batches = list(walk(source.read(found.segment, found.start, found.end)))
        offsets += [batch.base_offset for batch in batches]
        assert batches[-1].last_offset >= at
        at = batches[-1].last_offset + 1
    return offsets, None


def rewrite(env: SeededEnv, segment: Segment, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of a segment's log."""
    with closing(env.files.open(segment.log_path, write=True)) as file:
        data = bytearray(file.pread(file.size(), 0))
        change(data)
        file.truncate(len(data))
        file.pwrite(data, 0)


def gone(env: SeededEnv, segment: Segment) -> None:
    """Delete the segment."""
    env.files.remove(segment.log_path)


def emptied(env: SeededEnv, segment: Segment) -> None:
    """Truncate the segment to 0 bytes."""
    rewrite(env, segment, bytearray.clear)


def cut(env: SeededEnv, segment: Segment) -> None:
    """Remove the segment's last three batches."""
    rewrite(env, segment, lambda data: data.__delitem__(slice(-3 * 118, None)))


def torn(env: SeededEnv, segment: Segment) -> None:
    """Cut the segment in the middle of a batch."""
    rewrite(env, segment, lambda data: data.__delitem__(slice(-30, None)))


def mapped_anew(env: SeededEnv) -> LogView:
    """Build zone maps of the remaining files, and open the log."""
    zone_map_files.build_missing(reader_of(env).segments)
    return reader_of(env)


BITS = [0, 1, 2, 3, 4, 5, 31, 32, 40, 62, 63]
LOSSES = [gone, emptied, cut, torn]


@pytest.mark.parametrize("opened", [reader_of, mapped_anew])
@pytest.mark.parametrize("max_bytes", [1, 400, 100_000])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_part_of_a_segment_is_an_error(
    lose: Callable[[SeededEnv, Segment], None],
    number: int,
    max_bytes: int,
    opened: Callable[[SeededEnv], LogView],
) -> None:
    env, segments = closed_log()
    if lose is gone and number == 0:
        number = 2  # without the first segment, the log would just begin later
    assert len(segments) > number + 1
    lose(env, segments[number])
    log = opened(env)
    offsets, error = consume(log, max_bytes)
    assert error is not None
    assert error.path is not None
    assert error.position is not None
    assert offsets == list(range(len(offsets)))
    assert error.offset == len(offsets) < segments[number].end_offset
    behind = segments[number].end_offset
    source = SegmentBytes(log.context.pool, may_block=True)
    limits = Limits(end_offset=COUNT, max_bytes=1, whole_first=True)
    found = find_range(log.segments, behind, limits, source)
    assert found is not None
    assert found.first_offset == behind


@pytest.mark.parametrize("lose", [gone, emptied, cut])
def test_a_gap_of_a_compacted_topic_is_stepped_over(
    lose: Callable[[SeededEnv, Segment], None],
) -> None:
    env, segments = closed_log({"cleanup.policy": "compact"})
    lose(env, segments[1])
    offsets, error = consume(reader_of(env), 100_000)
    assert error is None
    assert offsets[0] == 0
    assert offsets[-1] == COUNT - 1
    assert len(offsets) < COUNT


@pytest.mark.parametrize("start", [0, 5])
def test_an_empty_segment_after_the_start_of_a_compacted_log_is_no_loss(start: int) -> None:
    env, segments = closed_log({"cleanup.policy": "compact"})
    assert len(segments) > 3
    gone(env, segments[0])
    emptied(env, segments[1])
    log = reader_of(env)
    source = SegmentBytes(log.context.pool, may_block=True)
    limits = Limits(end_offset=COUNT, max_bytes=1, whole_first=True)
    for ends in (None, ReadEnds()):
        found = find_range(log.segments, start, limits, source, ends)
        assert found is not None
        assert found.first_offset == segments[2].base_offset


@pytest.mark.parametrize("bit", BITS)
@pytest.mark.parametrize("which", [0, -1])
def test_a_flipped_offset_at_the_edge_of_a_segment_is_an_error(which: int, bit: int) -> None:
    """No batch after the damaged one is returned before the error; no returned offset is wrong."""
    env, segments = closed_log()
    source = SegmentBytes(reader_of(env).context.pool, may_block=True)
    frame = list(frames(segments[1], 0, segments[1].size_bytes, source))[which]

    def flip(data: bytearray) -> None:
        data[frame.position + 7 - bit // 8] ^= 1 << bit % 8

    rewrite(env, segments[1], flip)
    for max_bytes in (1, 400, 100_000):
        offsets, error = consume(reader_of(env), max_bytes)
        assert error is not None
        assert (error.path, error.position) == (segments[1].log_path, frame.position)
        assert offsets == list(range(frame.base_offset))


@pytest.mark.parametrize("interval", ["0", "300", "4096"])
@pytest.mark.parametrize("bit", BITS)
def test_a_flipped_offset_is_an_error_for_reads_of_single_batches(bit: int, interval: str) -> None:
    env, segments = closed_log({"index.interval.bytes": interval})
    source = SegmentBytes(reader_of(env).context.pool, may_block=True)
    for frame in list(frames(segments[1], 0, segments[1].size_bytes, source)):

        def flip(data: bytearray, at: int = frame.position) -> None:
            data[at + 7 - bit // 8] ^= 1 << bit % 8

        rewrite(env, segments[1], flip)
        offsets, error = consume(reader_of(env), 1)
        assert error is not None
        assert offsets == list(range(len(offsets)))
        assert len(offsets) <= frame.base_offset
        rewrite(env, segments[1], flip)


# First and last offsets of the batches of a log with gaps.
WITH_GAPS = [(0, 0), (1, 1), (2, 5), (100, 100), (101, 110), (300, 300), (301, 301)]


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("damaged", range(1, len(WITH_GAPS)))
def test_a_base_offset_within_the_gap_before_it_hides_no_batch(
    damaged: int, *, is_active: bool
) -> None:
    """The index has the last offset of the damaged batch, and no other batch ends there."""
    env, _, log = new_log({"index.interval.bytes": "0", "cleanup.policy": "compact"})
    for first, last in WITH_GAPS:
        records = [NewRecord(value=b"v", timestamp=1)] * (last - first + 1)
        log.follower.append(build_batch(records, base_offset=first))
    if not is_active:
        log.roll()
    segment = log.segments[0]
    source = SegmentBytes(log.context.pool, may_block=True)
    intact = list(frames(segment, 0, segment.size_bytes, source))
    end = log.log_end_offset
    limits = Limits(end_offset=end, max_bytes=1, whole_first=True)
    first, last = WITH_GAPS[damaged]
    for bit in range(first.bit_length()):
        if not first >> bit & 1:
            continue

        def flip(data: bytearray, at: int = intact[damaged].position + 7, bit: int = bit) -> None:
            data[at - bit // 8] ^= 1 << bit % 8

        rewrite(env, segment, flip)
        for offset in range(WITH_GAPS[damaged - 1][1] + 1, last + 1):
            if first - (1 << bit) <= offset <= last - (1 << bit):
                continue  # the damaged batch claims this offset
            with pytest.raises(CorruptBatch):
                find_range(log.segments, offset, limits, source, ReadEnds())
        rewrite(env, segment, flip)
    for offset in range(end):
        expected = next(frame for frame in intact if frame.last_offset >= offset)
        found = find_range(log.segments, offset, limits, source)
        assert found is not None
        assert found.start == expected.position


def test_the_look_at_a_segments_end_is_made_in_a_thread_once() -> None:
    env, _ = closed_log()
    log = reader_of(env)
    limits = Limits(end_offset=COUNT, max_bytes=100_000, whole_first=True)
    with pytest.raises(ColdRead):
        find_range(log.segments, 0, limits, SegmentBytes(log.context.pool, may_block=False))
    segment = log.segments[0]
    assert isinstance(segment, ClosedSegment)
    assert find_range(log.segments, 0, limits, SegmentBytes(log.context.pool, may_block=True))
    assert segment.loaded_last_batches is not None


def test_append_times_are_loaded_in_a_thread_once() -> None:
    env, _ = closed_log()
    log = reader_of(env)
    on_loop = SegmentBytes(log.context.pool, may_block=False)
    with pytest.raises(ColdRead):
        on_loop.append_times(log.segments[0])
    loaded = SegmentBytes(log.context.pool, may_block=True).append_times(log.segments[0])
    assert on_loop.append_times(log.segments[0]) is loaded


def test_indexes_are_rebuilt_in_a_thread() -> None:
    env, _ = closed_log()
    log = reader_of(env)
    wrong = log.segments[0].offset_index
    with pytest.raises(ColdRead):
        SegmentBytes(log.context.pool, may_block=False).distrust(log.segments[0], "wrong")
    assert log.segments[0].offset_index is wrong
    SegmentBytes(log.context.pool, may_block=True).distrust(log.segments[0], "wrong")
    assert log.segments[0].offset_index is not wrong


def test_a_segment_that_the_writer_has_rolled_needs_no_look() -> None:
    env, _, log = new_log(SETTINGS)
    for number in range(COUNT):
        log.append([NewRecord(key=b"k", value=bytes(49), timestamp=number)])
    log.flush()
    reader = reader_of(env)
    consume(reader, 100_000)  # this read verifies the segments' ends
    known = zip(log.segments[:-1], reader.segments, strict=False)
    for segment, looked_at in known:
        assert isinstance(segment, ClosedSegment)
        assert isinstance(looked_at, ClosedSegment)
        assert segment.loaded_last_batches is not None
        assert segment.loaded_last_batches == looked_at.loaded_last_batches
