"""Lookups of many times at once, over many segments and a log start."""

import numpy as np
import pytest
from tests.unit.storage.test_passed_batches import FLIPS, flipped
from tests.worlds.directories.logs import SMALL, new_log, put, read, reader_of, write

from tidelog.errors import CorruptBatch
from tidelog.storage.log import Log
from tidelog.types import Codec

FIRST_LOG = "00000000000000000000.log"


def scattered() -> Log:
    _, _, log = new_log(SMALL)
    for number in range(80):
        codec = Codec.ZSTD if number % 7 == 0 else Codec.NONE
        put(log, (number * 37) % 80, codec=codec)
    assert len(log.segments) > 5
    return log


@pytest.mark.parametrize("start", [0, 33, 80])
def test_equal_to_one_by_one_in_the_order_asked(start: int) -> None:
    log = scattered()
    log.delete_records(start)
    targets = np.array([*range(82), 3, 3, 81, 0])
    np.random.default_rng(1).shuffle(targets)
    found = log.offsets_for_time_array(targets).tolist()
    for (offset, timestamp), target in zip(found, targets.tolist(), strict=True):
        single = log.offset_for_time(target)
        expected = (-1, -1) if single is None else (single.offset, single.timestamp)
        assert (offset, timestamp) == expected


def test_no_times_at_all() -> None:
    assert scattered().offsets_for_time_array(np.array([], np.int64)).shape == (0, 2)


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="-3 is negative"):
        scattered().offsets_for_time_array(np.array([5, -3]))


def test_a_log_of_one_segment() -> None:
    _, _, log = new_log()
    put(log, 10, 30, 20)
    assert log.offsets_for_time_array(np.array([15, 31, 0])).tolist() == [
        [1, 30],
        [-1, -1],
        [0, 10],
    ]


def test_nearest_equals_one_by_one() -> None:
    log = scattered()
    targets = np.array([50, 0, 79, 80, 12])
    found = log.nearest_for_time_array(targets).tolist()
    expected = [list(log.nearest_for_time(target)) for target in targets.tolist()]
    assert [number for number, _ in found] == [number for number, _ in expected]
    inside = [n for n, (number, _) in enumerate(expected) if number < len(log.segments)]
    assert [found[n] for n in inside] == [expected[n] for n in inside]


def test_nearest_is_never_behind_the_answer() -> None:
    _, _, log = new_log({**SMALL, "index.interval.bytes": "200"})
    for number in range(60):
        put(log, (number * 37) % 60)
    for time in range(60):
        number, position = log.nearest_for_time(time)
        found = log.offset_for_time(time)
        assert found is not None
        segment = log.segments[number]
        assert segment.base_offset <= found.offset < segment.end_offset
        first = next(iter(segment.walk_file(position, segment.size_bytes)))[1]
        assert first.base_offset <= found.offset
    assert log.nearest_for_time(60) == (len(log.segments), 0)


def test_appends_in_between_are_seen() -> None:
    _, _, log = new_log()
    put(log, 5)
    assert log.offsets_for_time_array(np.array([7])).tolist() == [[-1, -1]]
    put(log, 9)
    assert log.offsets_for_time_array(np.array([7])).tolist() == [[1, 9]]
    log.roll()
    put(log, 12)
    assert log.offsets_for_time_array(np.array([7, 10])).tolist() == [[1, 9], [2, 12]]


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize(("at", "bit"), FLIPS)
def test_no_damaged_batch_is_passed_over(at: int, bit: int, *, rolled: bool) -> None:
    reader = reader_of(flipped({}, 5, at, bit, rolled=rolled))
    with pytest.raises(CorruptBatch):
        reader.offsets_for_time_array(np.array([1005]))


@pytest.mark.parametrize("closed", [True, False])
def test_a_found_batch_is_checked_before_it_answers(*, closed: bool) -> None:
    env, directory, log = new_log({"index.interval.bytes": "10000"})
    for time in (10, 20, 30):
        put(log, time)
    if closed:
        log.roll()
    directory.close()
    data = bytearray(read(env, FIRST_LOG))
    data[70 + 64] ^= 2  # the record's timestamp delta
    write(env, FIRST_LOG, bytes(data))
    with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
        reader_of(env).offsets_for_time_array(np.array([5, 15]))


def test_damage_that_hides_a_match_is_not_passed_over() -> None:
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
    with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 0"):
        reader_of(env).offsets_for_time_array(np.array([40]))
