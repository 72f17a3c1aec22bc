"""A zone map describes its segment's records exactly, and searches find every match."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.directories.zone_logs import (
    TOPIC_ID,
    MemorySegment,
    facts_of,
    segments,
    zone_of,
    zones_of,
)
from tests.worlds.records.kernel_logs import times

from tidelog.errors import CorruptBatch, CorruptIndex, UnsupportedVersion
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c
from tidelog.scan.zone_pruning import Verdict, ZoneQuestion, find_ranges, judge_of
from tidelog.storage.clocks import zone_map as layout
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.latency import bucket_of
from tidelog.storage.clocks.zone_map import FileSum, Limits, Question, ZoneMap
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.zone_map_builder import build_plain
from tidelog.storage.segment.zone_map_kernels import build_with_kernels
from tidelog.types import INT64_MAX, ClockName, NewRecord, TimestampType

Build = Callable[[Segment, Mapping[str, FileSum], Limits], bytes | None]
SIBLINGS = {".index": FileSum(3, 4)}
BUILDERS = pytest.mark.parametrize("build", [build_plain, build_with_kernels])
limits = st.builds(
    Limits, st.sampled_from((1, 300, 1000, 20 << 10)), st.just(1 << 30), st.integers(1, 4)
)


def map_of(build: Build, segment: MemorySegment, limits: Limits) -> ZoneMap:
    data = build(segment, SIBLINGS, limits)
    assert data is not None
    found = ZoneMap.decode(data, report=pytest.fail)
    found.verify()
    return found


@BUILDERS
@given(segment=segments(), limits=limits)
def test_a_map_equals_totals_of_the_records(
    build: Build, segment: MemorySegment, limits: Limits
) -> None:
    found = map_of(build, segment, limits)
    expected = zones_of(segment, limits.zone_bytes)
    assert list(found.zones()) == expected
    if expected:
        assert found.total == zone_of(segment, 0, segment.size_bytes)
    spans = [expected[at : at + limits.block_rows] for at in range(0, len(expected), limits[2])]
    assert list(found.select(lambda _: True)) == [
        zone_of(segment, span[0].position, span[-1].end_position) for span in spans
    ]
    assert found.siblings == SIBLINGS
    assert (found.identity.append_rows, found.identity.append_crc) == segment.append_times.digest


@BUILDERS
@given(segment=segments())
def test_latencies_are_those_of_the_records(build: Build, segment: MemorySegment) -> None:
    latency = map_of(build, segment, Limits()).latency
    expected: dict[int, list[int]] = {}
    for fact in facts_of(segment):
        if fact.latency is not None:
            assert fact.append_ms is not None
            hour = fact.append_ms - fact.append_ms % 3_600_000
            expected.setdefault(hour, []).append(fact.latency)
    assert latency.step_ms == 3_600_000
    assert {hour: (h.count, h.min_ms, h.max_ms, h.buckets) for hour, h in latency.items()} == {
        hour: (len(known), min(known), max(known), Counter(map(bucket_of, known)))
        for hour, known in expected.items()
    }


@given(segment=segments(), limits=limits)
def test_both_builders_write_the_same_file(segment: MemorySegment, limits: Limits) -> None:
    plain = build_plain(segment, SIBLINGS, limits)
    assert build_with_kernels(segment, SIBLINGS, limits) == plain


@given(
    segment=segments(),
    limits=limits,
    clock=st.sampled_from(ClockName),
    ends=st.tuples(times | st.integers(0, 10**8), times | st.integers(0, 10**8)),
    offsets=st.tuples(st.integers(0, 20), st.integers(0, 40)),
    committed=st.booleans(),
)
def test_a_search_finds_every_match_and_counts_the_range(
    segment: MemorySegment,
    limits: Limits,
    clock: ClockName,
    ends: tuple[int, int],
    offsets: tuple[int, int],
    committed: bool,
) -> None:
    found = map_of(build_plain, segment, limits)
    first, end = (segment.base_offset + offset for offset in offsets)
    question = Question(clock, min(ends), max(ends), first, end)
    matches = _matches(segment, question, 0, segment.size_bytes)
    wanted = ZoneQuestion(question, is_committed=committed)
    counted = ZoneQuestion(question, is_committed=committed, counts=True)
    for asked in (wanted, counted):
        parts = list(find_ranges(found, asked, gap_bytes=0))
        read = sum(_matches(segment, question, p.start_position, p.end_position) for p in parts)
        told = sum(part.records for part in parts)
        assert read + told == matches
        assert asked.counts or not told
    for zone in found.zones():
        verdict, _, count = judge_of(counted)(zone)
        if verdict is Verdict.COUNTED:
            assert count == _matches(segment, question, zone.position, zone.end_position)
            assert not (count and committed and zone.is_transactional)


def _matches(segment: MemorySegment, question: Question, start: int, end: int) -> int:
    clock, start_ms, end_ms, first_offset, end_offset = question
    return sum(
        first_offset <= fact.record.offset < end_offset
        and (time := fact.time(clock)) is not None
        and start_ms <= time
        and (time < end_ms or end_ms == INT64_MAX)
        for fact in facts_of(segment, start, end)
    )


@given(
    segment=segments(),
    limits=limits,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    is_sealed=st.booleans(),
)
def test_any_bytes_are_a_map_or_a_typed_error(
    segment: MemorySegment, limits: Limits, changes: list[tuple[int, int]], is_sealed: bool
) -> None:
    data = bytearray(build_plain(segment, SIBLINGS, limits))
    footer_at = layout.HEADER_SIZE + _map_size(bytes(data))
    for place, byte in changes:
        data[-1 - place % (len(data) - footer_at)] = byte
    if is_sealed:  # a valid checksum, as in a forged file
        body = bytes(data[footer_at:-8])
        data[-8:-4] = layout.CRC.pack(crc32c(body))
    try:
        found = ZoneMap.decode(bytes(data), report=lambda _: None)
        found.verify()
        assert len(list(found.zones())) == found.zone_count
        assert list(found.select(lambda _: False)) is not None
    except (CorruptIndex, UnsupportedVersion):
        return


def _map_size(data: bytes) -> int:
    return ZoneMap.decode(data).zone_count * layout.ROW_SIZE


@given(data=st.binary(max_size=600))
def test_other_files_are_refused(data: bytes) -> None:
    for content in (data, data + layout.END_MAGIC):
        with pytest.raises((CorruptIndex, UnsupportedVersion)):
            ZoneMap.decode(content)


@BUILDERS
@pytest.mark.parametrize(
    ("creates", "gap", "horizon_ms", "counted"),
    [
        ((700, 700), 0, None, 2),
        ((700, 700), 1, None, 0),
        ((700, 700), 0, 5, 0),
        ((700, 690), 1, None, 2),
        ((700, 690), 0, 5, 2),
    ],
)
def test_create_times_that_kafkas_cleaner_has_overwritten_are_no_latencies(
    build: Build, creates: tuple[int, int], gap: int, horizon_ms: int | None, counted: int
) -> None:
    batch = build_batch(
        [NewRecord(value=b"x", timestamp=each) for each in creates],
        base_offset=0,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_time_ms=700,
        last_offset_delta=1 + gap,
        delete_horizon_ms=horizon_ms,
    )
    known = AppendTimes(0, TOPIC_ID)
    known.note(0, 700, 5)
    segment = MemorySegment(0, bytes(batch), known, 2 + gap)
    found = map_of(build, segment, layout.LIMITS)
    assert sum(histogram.count for _, histogram in found.latency.items()) == counted


def test_offsets_outside_of_any_segment_are_refused_with_their_position() -> None:
    far = bytes(build_batch([NewRecord(value=b"v")], base_offset=1 << 33))
    near = bytes(build_batch([NewRecord(value=b"v")], base_offset=3))
    segment = MemorySegment(0, near + far, AppendTimes(0, TOPIC_ID), 1 << 34)
    refused = "offset 8589934592, expected less than 2147483648"
    with pytest.raises(CorruptBatch, match=refused) as caught:
        build_plain(segment, {})
    assert (caught.value.path, caught.value.position) == (segment.log_path, len(near))
    assert build_with_kernels(segment, {}) is None


def test_kernels_describe_records_of_the_smallest_size() -> None:
    log = b"".join(
        build_batch([NewRecord(timestamp=5)] * 8, base_offset=base) for base in (0, 8, 16)
    )
    segment = MemorySegment(0, log, AppendTimes(0, TOPIC_ID), 24)
    assert build_with_kernels(segment, {}) == build_plain(segment, {})


KAFKA_LOGS = sorted((Path(__file__).parents[1] / "vectors").glob("**/*.log"))


@BUILDERS
@pytest.mark.parametrize("path", KAFKA_LOGS, ids=str)
def test_logs_of_apache_kafka(build: Build, path: Path) -> None:
    data = path.read_bytes()
    base_offset = int(path.stem)
    end = [*walk(data)][-1].last_offset + 1
    segment = MemorySegment(base_offset, data, AppendTimes(base_offset, TOPIC_ID), end)
    found = map_of(build, segment, Limits(zone_bytes=400, block_rows=3))
    assert list(found.zones()) == zones_of(segment, 400)
    assert found.total == zone_of(segment, 0, found.total.size_bytes)


def test_logs_of_apache_kafka_exist() -> None:
    assert KAFKA_LOGS
