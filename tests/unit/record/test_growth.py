"""Every body that a cleaner writes can be read, although a cleaning may enlarge records."""

from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT, DEFAULT_DECOMPRESSION_LIMIT
from tidelog.record.kernels.rewrite import GROWTH_MAX
from tidelog.record.record import RECORD_SIZE_MIN


def test_a_cleaned_body_of_maximum_size_can_be_read() -> None:
    """The worst case: all records have the minimum size, and each record grows by the maximum."""
    room = RECORD_SIZE_MIN + GROWTH_MAX
    assert APPEND_DECOMPRESSION_LIMIT * room // RECORD_SIZE_MIN == DEFAULT_DECOMPRESSION_LIMIT
