"""The search by kernels: what it hands back to the plain code, and damage. See contracts."""

import numpy as np
import pytest
from tests.unit.storage.logs import SMALL, new_log, new_records, put, read, reader_of, write

from tidelog.errors import CorruptBatch
from tidelog.record.batch import build_batch, build_empty_batch
from tidelog.record.coding import crc32c
from tidelog.record.header import ATTRIBUTES_AT, CRC_AT, MAX_TIMESTAMP_AT
from tidelog.record.legacy_builder import build_legacy_set
from tidelog.storage import kernel_search
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.kernel_search import KernelSearch
from tidelog.storage.log import Log
from tidelog.storage.log_reader import LogReader
from tidelog.storage.lookup import search_segment
from tidelog.types import Codec

FIRST_LOG = "00000000000000000000.log"


def mixed_segment() -> ClosedSegment:
    """Plain, compressed and legacy batches in one closed segment, times 0, 10, ... 80."""
    _, _, log = new_log({"index.interval.bytes": "100"})
    for number in range(9):
        records = new_records([number * 10, number * 10 - 5])
        if number % 3 == 1:
            log.append(records, codec=Codec.LZ4, batch_bytes=1 << 20)
        elif number % 3 == 2:
            data = build_legacy_set(
                records, magic=1, codec=Codec.GZIP, base_offset=log.log_end_offset
            )
            log.append_as_follower(data)
        else:
            log.append(records, batch_bytes=1 << 20)
    log.roll()
    segment = log.segments[0]
    assert isinstance(segment, ClosedSegment)
    return segment


def test_answers_of_one_segment_equal_the_plain_ones() -> None:
    segment, search = mixed_segment(), KernelSearch()
    for target in range(90):
        for floor in (0, 5, 17, 18):
            assert search(segment, target, floor) == search_segment(segment, target, floor)


def test_many_times_at_once_equal_single_ones() -> None:
    segment, search = mixed_segment(), KernelSearch()
    targets = np.arange(90)[::-1].copy()
    for floor in (0, 9):
        found = search.search_many(segment, targets, floor).tolist()
        for (offset, timestamp), target in zip(found, targets.tolist(), strict=True):
            single = search_segment(segment, target, floor)
            expected = (-1, -1) if single is None else (single.offset, single.timestamp)
            assert (offset, timestamp) == expected


def test_nearest_equals_a_search_in_both_indexes() -> None:
    segment, search = mixed_segment(), KernelSearch()
    targets = np.arange(0, 90)
    many = search.nearest_many(segment, targets).tolist()
    for target, found in zip(targets.tolist(), many, strict=True):
        _, offset = segment.time_index.lookup(target)
        assert tuple(found) == search.nearest(segment, target)
        assert found[1] == segment.offset_index.lookup(offset)[1]


def test_the_last_segment_is_read_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_search, "PIECE_BYTES", 100)  # a batch has 70, or is larger
    _, _, log = new_log()
    for number in range(12):
        put(log, *[number * 10 + step for step in range(1 + number % 5)])
    segment = log.segments[-1]
    assert segment.is_active
    search = KernelSearch()
    for target in range(118):
        assert search(segment, target, 3) == search_segment(segment, target, 3)


@pytest.fixture
def mapping_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_search, "SEARCHES_PER_MAP", 1)


def has_map(search: KernelSearch) -> bool:
    return search._active is not None


def assert_plain_answers(search: KernelSearch, log: Log, times: range) -> None:
    """Twice: what was verified at the first time is believed at the second."""
    segment = log.segments[-1]
    assert segment.is_active
    for _ in range(2):
        for target in times:
            for floor in (0, 3, 11):
                expected = search_segment(segment, target, floor)
                assert search(segment, target, floor) == expected


@pytest.mark.usefixtures("mapping_at_once")
def test_the_active_segment_is_searched_on_a_map_as_by_pieces() -> None:
    _, _, log = new_log({"index.interval.bytes": "100"})
    search = log.use_kernels()
    for number in range(12):
        put(log, *[number * 10 + step for step in range(1 + number % 5)])
        if number == 7:
            log.append(new_records([75, 73]), codec=Codec.LZ4, batch_bytes=1 << 20)
        assert_plain_answers(search, log, range(number * 10 + 10))
    assert has_map(search)


@pytest.mark.usefixtures("mapping_at_once")
def test_what_was_cut_off_is_not_looked_at_on_a_map() -> None:
    env, _, log = new_log({"index.interval.bytes": "0"})
    search = log.use_kernels()
    put(log, 10)
    put(log, 20)
    assert log.offset_for_time(15) is not None
    assert has_map(search)
    log.truncate_to(1)
    assert not has_map(search)
    assert log.offset_for_time(15) is None
    put(log, 30)
    put(log, 40)
    for _ in range(2):
        found = log.offset_for_time(15)
        assert found is not None
        assert (found.offset, found.timestamp) == (1, 30)
    assert len(read(env, FIRST_LOG)) == log.segments[-1].size_bytes


@pytest.mark.usefixtures("mapping_at_once")
@pytest.mark.parametrize("whole", [True, False])
def test_who_is_abandoned_maps_nothing(*, whole: bool) -> None:
    """Who opens the log next may cut its last segment."""
    _, directory, log = new_log({"index.interval.bytes": "0"})
    search = log.use_kernels()
    put(log, 10)
    assert log.offset_for_time(5) is not None
    assert has_map(search)
    (directory if whole else log).abandon()
    assert not has_map(search)


@pytest.mark.usefixtures("mapping_at_once")
def test_a_segment_that_was_rolled_is_not_searched_as_it_was_when_active() -> None:
    _, _, log = new_log({"index.interval.bytes": "100"})
    log.use_kernels()
    put(log, 10)
    put(log, 20)
    assert log.offset_for_time(5) is not None
    put(log, 30)
    log.roll()
    put(log, 40)
    for target in range(45):
        found, expected = log.offset_for_time(target), max(target + 9, 10) // 10 * 10
        assert (None if found is None else found.timestamp) == (None if expected > 40 else expected)


@pytest.mark.usefixtures("mapping_at_once")
def test_a_batch_on_the_map_is_checked_before_it_answers() -> None:
    _, _, log = new_log({"index.interval.bytes": "10000"})
    search = log.use_kernels()
    put(log, 10)
    put(log, 20)
    assert log.offset_for_time(5) is not None
    assert has_map(search)
    file = log.context.pool.get(log.segments[-1].log_path)
    place = 70 + 64  # the record's timestamp delta
    file.pwrite(bytes((file.pread(1, place)[0] ^ 2,)), place)
    for _ in range(2):
        with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
            log.offset_for_time(15)


def test_few_searches_of_an_active_segment_map_nothing() -> None:
    _, _, log = new_log()
    search = log.use_kernels()
    put(log, 10)
    for number in range(kernel_search.SEARCHES_PER_MAP - 1):
        assert log.offset_for_time(number % 10) is not None
        assert not has_map(search)
    assert log.offset_for_time(5) is not None
    assert has_map(search)


CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("searches", [1, 10_000])
def test_compressed_batches_are_opened_for_the_kernel(
    *, codec: Codec, is_closed: bool, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a map and by pieces; what the plain code says of a batch's records is said."""
    monkeypatch.setattr(kernel_search, "SEARCHES_PER_MAP", searches)
    _, _, log = new_log({"index.interval.bytes": "100"})
    search = log.use_kernels()
    for number in range(6):
        put(log, *[number * 10 + step * 3 % 7 for step in range(6)], codec=codec)
    if is_closed:
        log.roll()
    segment = log.segments[0]
    expected = {
        (target, floor): search_segment(segment, target, floor)
        for target in range(62)
        for floor in (0, 3, 17, 35)
    }
    for name in ("opened", "search_segment"):
        monkeypatch.setattr(kernel_search, name, None)  # not called
    for _ in range(2):
        for (target, floor), found in expected.items():
            assert search(segment, target, floor) == found
    assert has_map(search) is (searches == 1 and not is_closed)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("place", [61 + 8, 30])
def test_damage_of_a_compressed_batch_is_told_with_its_place(
    *, place: int, is_closed: bool
) -> None:
    _, _, log = new_log({"index.interval.bytes": "10000"})
    log.use_kernels()
    put(log, 10, 11, codec=Codec.LZ4)
    first_bytes = log.segments[0].size_bytes
    put(log, 20, 21, codec=Codec.LZ4)
    file = log.context.pool.get(log.segments[0].log_path)
    at = first_bytes + place
    file.pwrite(bytes((file.pread(1, at)[0] ^ 1,)), at)
    if is_closed:
        log.roll()
    for _ in range(2 + 2 * kernel_search.SEARCHES_PER_MAP):
        with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position {first_bytes}"):
            log.offset_for_time(15)
    assert log.offset_for_time(5) is not None


def test_a_compressed_batch_that_breaks_its_promise_is_passed_over_as_by_the_plain_code() -> None:
    """Its header names a later time than any of its records has, as after a cleaner's work."""
    promising = bytearray(build_batch(new_records([10, 20]), codec=Codec.LZ4))
    promising[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = (90).to_bytes(8, "big")
    promising[CRC_AT : CRC_AT + 4] = crc32c(promising[ATTRIBUTES_AT:]).to_bytes(4, "big")
    _, _, log = new_log({"index.interval.bytes": "10000"})
    log.append_as_follower(bytes(promising))
    put(log, 100)
    log.roll()
    segment, search = log.segments[0], KernelSearch()
    for target in range(102):
        assert search(segment, target, 0) == search_segment(segment, target, 0)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_a_found_batch_is_checked_before_it_answers(*, closed: bool, many: bool) -> None:
    env, directory, log = new_log({"index.interval.bytes": "10000"})
    for time in (10, 20, 30):
        put(log, time)
    log.roll()
    if not closed:
        log.truncate_to(3)
    directory.close()
    if not closed:
        env.files.remove(f"/data/t-0/{3:020d}.log")
    data = bytearray(read(env, FIRST_LOG))
    data[70 + 64] ^= 2  # the record's timestamp delta
    write(env, FIRST_LOG, bytes(data))
    reader = reader_of(env)
    reader.use_kernels()

    def ask() -> None:
        if many:
            reader.offsets_for_time_array(np.array([5, 15]))
        else:
            reader.offset_for_time(15)

    with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
        ask()
    assert reader.offset_for_time(5) is not None


def test_an_index_entry_that_leads_astray_gives_no_wrong_answer() -> None:
    """It obeys every rule; an error that names the place is the worst that may come of it."""
    env, directory, log = new_log(SMALL)
    for time in range(40):
        put(log, time)
    directory.close()
    index = bytearray(read(env, "00000000000000000000.index"))
    index[7] += 3
    write(env, "00000000000000000000.index", bytes(index))
    reader = reader_of(env)
    reader.use_kernels()
    outcomes = [outcome(reader, time) for time in range(40)]
    assert set(outcomes) <= {"right", "error"}
    assert outcomes.count("right") > 35


def outcome(reader: LogReader, time: int) -> str:
    try:
        found = reader.offset_for_time(time)
    except CorruptBatch:
        return "error"
    return "right" if found is not None and found.offset == time else "wrong"


def test_gaps_and_emptied_batches_are_passed_over() -> None:
    _, _, log = new_log()
    log.append_as_follower(build_batch(new_records([10]), base_offset=5, leader_epoch=0))
    empty = build_empty_batch(base_offset=7, last_offset=9, max_timestamp=90, leader_epoch=0)
    log.append_as_follower(empty)
    log.append_as_follower(
        build_batch(new_records([20, 95]), base_offset=12, leader_epoch=0, offset_deltas=[2, 4])
    )
    log.roll()
    segment = log.segments[0]
    assert isinstance(segment, ClosedSegment)
    for target, floor in ((0, 0), (11, 0), (21, 0), (50, 15), (96, 0)):
        assert KernelSearch()(segment, target, floor) == search_segment(segment, target, floor)


@pytest.mark.parametrize("many", [True, False])
def test_damage_that_hides_a_match_is_not_passed_over(*, many: bool) -> None:
    """The header promises a late record, the damaged records have none."""
    env, directory, log = new_log()
    put(log, 10, 50, 20)
    put(log, 90)
    log.roll()
    directory.close()
    data = bytearray(read(env, FIRST_LOG))
    place = data.index(b"\x50\x02")  # the second record's deltas: 40 ms, offset 1
    data[place] = 2
    write(env, FIRST_LOG, bytes(data))
    reader = reader_of(env)
    reader.use_kernels()

    def ask() -> None:
        if many:
            reader.offsets_for_time_array(np.array([40]))
        else:
            reader.offset_for_time(40)

    with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 0"):
        ask()
