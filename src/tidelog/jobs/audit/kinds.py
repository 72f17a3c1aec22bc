"""Kinds of differences of a key, in words; `rules` decides which one applies."""

from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What is wrong with a key."""

    MISSING = "missing"
    EXTRA = "extra"
    REORDERED = "reordered"
    STALE = "stale"
    AHEAD = "ahead"
    CHANGED = "changed"
    DUPLICATED = "duplicated"
    VERSIONS = "versions"
    UNDELIVERED = "undelivered"


# Their numbers in found rows.
KINDS: Final = tuple(Kind)
