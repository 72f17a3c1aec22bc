"""Searches by timestamp with kernels: results, reported damage, and when files are mapped.

tests/contracts/test_search.py draws logs and compares each search with a full read.
"""

from collections.abc import Iterable

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.logs import (
    SMALL,
    new_log,
    new_records,
    path_of,
    put,
    read,
    reader_of,
    reopen,
    watched,
    write,
)
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch
from tidelog.record.builder import build_batch, build_empty_batch
from tidelog.record.coding import crc32c
from tidelog.record.header import ATTRIBUTES_AT, CRC_AT, MAX_TIMESTAMP_AT
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.types import Codec

FIRST_LOG = "00000000000000000000.log"
SPARSE = {"index.interval.bytes": "1000000000"}
# Number of searches after which an active segment is mapped.
OFTEN = 40
CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


def assert_exact(log: LogView, targets: Iterable[int]) -> None:
    """Check that each search returns the first offset whose time is the target or later.

    Each search runs twice: the second one doesn't verify batches that the first one has verified.
    """
    records = [(record.offset, record.timestamp) for record in log.records()]
    expected = {
        target: next((record for record in records if record[1] >= target), None)
        for target in targets
    }
    for _ in range(2):
        for target, wanted in expected.items():
            found = log.offset_for_time(target)
            assert (found and (found.offset, found.timestamp)) == wanted


def search_often(log: Log, target: int = 0) -> None:
    for _ in range(OFTEN):
        assert log.offset_for_time(target) is not None


def reads_nothing(env: SeededEnv, log: Log, target: int) -> bool:
    """Return whether a search for a time reads only mapped bytes."""
    log.offset_for_time(target)  # the first search may verify a batch
    before = env.files.reads.calls
    log.offset_for_time(target)
    return env.files.reads.calls == before


def test_plain_compressed_and_old_batches_of_one_segment() -> None:
    """Each batch has times T and T - 5, with T from 0 to 80 in steps of 10; log starts differ."""
    _, _, log = new_log({"index.interval.bytes": "100"})
    log.use_kernels()
    for number in range(9):
        records = new_records([number * 10, number * 10 - 5])
        if number % 3 == 1:
            log.append(records, codec=Codec.LZ4, batch_bytes=1 << 20)
        elif number % 3 == 2:
            data = build_legacy_set(
                records, magic=1, codec=Codec.GZIP, base_offset=log.log_end_offset
            )
            log.follower.append(data)
        else:
            log.append(records, batch_bytes=1 << 20)
    log.roll()
    for start in (0, 5, 17, 18):
        log.delete_records(start)
        assert_exact(log, range(90))


def test_the_last_segment_is_read_by_pieces() -> None:
    """A reader reads the last segment in pieces, without a map; one batch exceeds a piece."""
    env, _, log = new_log(SPARSE)
    for number in range(12):
        times = [number * 10 + step for step in range(1 + number % 5)]
        put(log, *times, value=bytes(400_000 if number == 6 else 25_000))
    reader = reader_of(env)
    reader.use_kernels()
    assert_exact(reader, range(118))


def test_the_active_segment_is_searched_on_a_map_and_behind_it() -> None:
    env, _, log = new_log({"index.interval.bytes": "100"})
    log.use_kernels()
    for number in range(12):
        put(log, *[number * 10 + step for step in range(1 + number % 5)])
        if number == 7:
            log.append(new_records([75, 73]), codec=Codec.LZ4, batch_bytes=1 << 20)
        search_often(log, number * 10)
        assert reads_nothing(env, log, number * 10)
        assert_exact(log, range(number * 10 + 10))
    put(log, 50)  # appended after the mapped bytes, with an earlier time
    for start in (3, 11, log.log_end_offset - 1):
        log.delete_records(start)
        assert_exact(log, range(120))


def test_truncated_bytes_are_not_read_from_a_map() -> None:
    """The truncation unmaps the file: the tests' file system refuses to truncate a mapped file."""
    env, _, log = new_log({"index.interval.bytes": "0"})
    log.use_kernels()
    put(log, 10)
    put(log, 20)
    search_often(log, 15)
    assert reads_nothing(env, log, 15)
    log.truncate_to(1)
    assert log.offset_for_time(15) is None
    put(log, 30)
    put(log, 40)
    for _ in range(OFTEN):
        assert_exact(log, range(45))
    assert len(read(env, FIRST_LOG)) == log.segments[-1].size_bytes


@pytest.mark.parametrize("whole", [True, False])
def test_an_abandoned_log_maps_no_file(*, whole: bool) -> None:
    """An abandoned log maps no file, because the next owner may have to truncate a file."""
    env, directory, log = new_log({"index.interval.bytes": "0"})
    log.use_kernels()
    put(log, 10)
    put(log, 20)
    search_often(log)
    assert reads_nothing(env, log, 5)
    (directory if whole else log).abandon()
    file = env.files.open(path_of(FIRST_LOG), write=True)
    file.truncate(1)
    assert file.size() == 1


def test_a_rolled_segment_is_searched_in_its_present_state() -> None:
    _, _, log = new_log({"index.interval.bytes": "100"})
    log.use_kernels()
    put(log, 10)
    put(log, 20)
    search_often(log)
    put(log, 30)
    log.roll()
    put(log, 40)
    assert_exact(log, range(45))


def test_a_mapped_batch_is_checked_before_its_use() -> None:
    env, _, log = new_log(SPARSE)
    log.use_kernels()
    put(log, 10)
    put(log, 20)
    search_often(log)
    assert reads_nothing(env, log, 5)
    file = log.context.pool.get(log.segments[-1].log_path)
    place = 70 + 64  # the timestamp delta of the record
    file.pwrite(bytes((file.pread(1, place)[0] ^ 2,)), place)
    for _ in range(2):
        with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
            log.offset_for_time(15)


def test_few_searches_of_an_active_segment_map_no_file() -> None:
    env, directory, log = new_log()
    put(log, 10)
    directory.close()
    surroundings, files = watched(env)
    _, log = reopen(surroundings)
    log.use_kernels()
    for target in range(3):
        assert log.offset_for_time(target) is not None
    assert not [path for path in files.mapped if path.endswith(FIRST_LOG)]
    search_often(log)
    assert [path for path in files.mapped if path.endswith(FIRST_LOG)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_closed", [True, False])
def test_compressed_batches_are_opened(*, codec: Codec, is_closed: bool) -> None:
    """A log that is open for appends searches a map of its file; a reader reads pieces of it."""
    env, _, log = new_log({"index.interval.bytes": "100"})
    log.use_kernels()
    for number in range(6):
        put(log, *[number * 10 + step * 3 % 7 for step in range(6)], codec=codec)
    if is_closed:
        log.roll()
    reader = reader_of(env)
    reader.use_kernels()
    assert_exact(reader, range(62))
    search_often(log)
    for start in (0, 3, 17, 35):
        log.delete_records(start)
        assert_exact(log, range(62))


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("place", [61 + 8, 30])
def test_damage_of_a_compressed_batch_is_reported_with_its_place(
    *, place: int, is_closed: bool
) -> None:
    _, _, log = new_log(SPARSE)
    log.use_kernels()
    put(log, 10, 11, codec=Codec.LZ4)
    first_bytes = log.segments[0].size_bytes
    put(log, 20, 21, codec=Codec.LZ4)
    file = log.context.pool.get(log.segments[0].log_path)
    at = first_bytes + place
    file.pwrite(bytes((file.pread(1, at)[0] ^ 1,)), at)
    if is_closed:
        log.roll()
    for _ in range(OFTEN):
        with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position {first_bytes}"):
            log.offset_for_time(15)
    assert log.offset_for_time(5) is not None


def test_a_compressed_batch_that_breaks_its_promise_is_skipped() -> None:
    """After compaction, a header's largest time may be later than all times of the batch."""
    promising = bytearray(build_batch(new_records([10, 20]), codec=Codec.LZ4))
    promising[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = (90).to_bytes(8, "big")
    promising[CRC_AT : CRC_AT + 4] = crc32c(promising[ATTRIBUTES_AT:]).to_bytes(4, "big")
    _, _, log = new_log(SPARSE)
    log.use_kernels()
    log.follower.append(bytes(promising))
    put(log, 100)
    log.roll()
    assert_exact(log, range(102))


@pytest.mark.parametrize("closed", [True, False])
def test_a_found_batch_is_checked_before_its_use(*, closed: bool) -> None:
    env, directory, log = new_log(SPARSE)
    for time in (10, 20, 30):
        put(log, time)
    if closed:
        log.roll()
    directory.close()
    data = bytearray(read(env, FIRST_LOG))
    data[70 + 64] ^= 2  # the timestamp delta of the record
    write(env, FIRST_LOG, bytes(data))
    reader = reader_of(env)
    reader.use_kernels()
    with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
        reader.offset_for_time(15)
    assert reader.offset_for_time(5) is not None


def test_a_wrong_index_entry_gives_no_wrong_result() -> None:
    """The wrong index passes its own checks; each search is right or raises CorruptBatch."""
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


def outcome(reader: LogView, time: int) -> str:
    try:
        found = reader.offset_for_time(time)
    except CorruptBatch:
        return "error"
    return "right" if found is not None and found.offset == time else "wrong"


def test_gaps_and_emptied_batches_are_skipped() -> None:
    _, _, log = new_log()
    log.use_kernels()
    log.follower.append(build_batch(new_records([10]), base_offset=5, leader_epoch=0))
    empty = build_empty_batch(base_offset=7, last_offset=9, max_timestamp=90, leader_epoch=0)
    log.follower.append(empty)
    log.follower.append(
        build_batch(new_records([20, 95]), base_offset=12, leader_epoch=0, offset_deltas=[2, 4])
    )
    log.roll()
    for start in (0, 15):
        log.delete_records(start)
        assert_exact(log, (0, 11, 21, 50, 91, 96))


def test_damage_that_hides_a_match_is_not_passed_over() -> None:
    """The header's largest time exceeds all timestamps of the damaged batch: a match is lost."""
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
    with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 0"):
        reader.offset_for_time(40)
