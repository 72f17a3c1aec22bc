"""Lookups of offsets for times find only records below the end that the client may see."""

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import new_log, put

from tidelog.server.partitions.offset_lookup import find_appended, find_offset
from tidelog.server.runtime.threads import Work
from tidelog.types import MAX_TIMESTAMP, OffsetAndTimestamp


@pytest.mark.parametrize(
    ("end", "expected"), [(2, OffsetAndTimestamp(1, START_MS + 5, 0)), (1, None), (0, None)]
)
def test_a_record_at_the_visible_end_is_no_match(
    end: int, expected: OffsetAndTimestamp | None
) -> None:
    env, _, log = new_log({"message.timestamp.type": "LogAppendTime"})
    put(log, 10)
    env.clock.advance(5)
    put(log, 20)
    assert find_appended(log, START_MS + 5, end) == (expected, 0)
    assert find_offset(log, START_MS + 5, end, Work()) == expected
    assert find_offset(log, MAX_TIMESTAMP, end, Work()) == expected
