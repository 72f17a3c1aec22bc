"""What may be wrong with a key, in words; `rules` says when each is the right one."""

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
