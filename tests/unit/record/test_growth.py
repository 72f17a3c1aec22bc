"""The size of a body after records are removed: every written body can be read."""

from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT, DEFAULT_DECOMPRESSION_LIMIT
from tidelog.record.kernels.rewrite import GROWTH_MAX
from tidelog.record.record import RECORD_SIZE_MIN


def test_what_a_cleaner_makes_of_the_longest_body_is_read_again() -> None:
    """The body's records have the minimum size, and each record grows by the maximum."""
    room = RECORD_SIZE_MIN + GROWTH_MAX
    assert APPEND_DECOMPRESSION_LIMIT * room // RECORD_SIZE_MIN == DEFAULT_DECOMPRESSION_LIMIT
