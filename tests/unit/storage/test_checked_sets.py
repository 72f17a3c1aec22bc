"""Message sets of old clients that are checked in another thread while the log grows."""

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import new_log, put
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.storage.log.append_types import LongCheck
from tidelog.storage.log.log import Log
from tidelog.types import Codec, NewRecord

COUNT = 3


def old_set(magic: int) -> bytes:
    records = [NewRecord(value=b"old %d" % at, timestamp=START_MS + at) for at in range(COUNT)]
    return bytes(build_legacy_set(records, magic=magic, codec=Codec.GZIP))


def old_offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records() if (record.value or b"")[:3] == b"old"]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_set_is_appended_at_the_log_end(magic: int) -> None:
    _, _, log = new_log()
    put(log, START_MS)
    result = log.append_set(log.check_set(old_set(magic)))
    assert (result.base_offset, result.last_offset) == (1, COUNT)
    assert old_offsets(log) == [1, 2, 3]


def test_a_set_of_format_1_is_appended_behind_records_that_came_during_its_check() -> None:
    """The offsets in the set's wrapper are relative, so the check remains valid."""
    _, _, log = new_log()
    checked = log.check_set(old_set(1))
    put(log, START_MS)
    assert log.append_set(checked).base_offset == 1
    assert [record.offset for record in log.records()] == [0, 1, 2, 3]
    assert old_offsets(log) == [1, 2, 3]


def test_a_set_of_format_0_is_checked_again_if_records_came_during_its_check() -> None:
    """The offsets in the set's wrapper are absolute, so the broker has to rewrite the wrapper."""
    _, _, log = new_log()
    checked = log.check_set(old_set(0))
    put(log, START_MS)
    with pytest.raises(LongCheck):
        log.append_set(checked)
    assert log.log_end_offset == 1
    assert log.append_set(log.check_set(old_set(0))).base_offset == 1
    assert [record.offset for record in log.records()] == [0, 1, 2, 3]
    assert old_offsets(log) == [1, 2, 3]
