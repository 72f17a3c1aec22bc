"""Lookups of many times at once, over many segments and a log start."""

import numpy as np
import pytest
from tests.unit.storage.logs import SMALL, new_log, put

from tidelog.storage.log import Log
from tidelog.types import Codec


def scattered() -> Log:
    _, _, log = new_log(SMALL)
    for number in range(80):
        codec = Codec.ZSTD if number % 7 == 0 else Codec.NONE
        put(log, (number * 37) % 80, codec=codec)
    assert len(log.segments) > 5
    return log


@pytest.mark.parametrize("start", [0, 1, 33, 79, 80])
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


def test_appends_in_between_are_seen() -> None:
    _, _, log = new_log()
    put(log, 5)
    assert log.offsets_for_time_array(np.array([7])).tolist() == [[-1, -1]]
    put(log, 9)
    assert log.offsets_for_time_array(np.array([7])).tolist() == [[1, 9]]
    log.roll()
    put(log, 12)
    assert log.offsets_for_time_array(np.array([7, 10])).tolist() == [[1, 9], [2, 12]]
