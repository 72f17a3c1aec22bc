"""How long a body becomes when records are taken out of it: what is written is read again."""

from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT, DEFAULT_DECOMPRESSION_LIMIT
from tidelog.record.kernels.rewrite import GROWTH_MAX
from tidelog.record.record import RECORD_SIZE_MIN


def test_what_a_cleaner_makes_of_the_longest_body_is_read_again() -> None:
    """Each record of it as short as one can be, and each of them as much longer as one can get."""
    room = RECORD_SIZE_MIN + GROWTH_MAX
    assert APPEND_DECOMPRESSION_LIMIT * room // RECORD_SIZE_MIN == DEFAULT_DECOMPRESSION_LIMIT
