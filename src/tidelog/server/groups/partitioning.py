"""Which partition of `__consumer_offsets` a group lives in.

Source: Java's `String.hashCode` over UTF-16, as Kafka's coordinator takes it.
"""

from functools import lru_cache, reduce
from operator import mul
from struct import unpack
from typing import Final

_INT32_SIGN: Final = 1 << 31
_INT32_SPAN: Final = 1 << 32
# Names come again with every request; this many are remembered.
_NAMES_KEPT: Final = 16_384
# Of 31, the last one 1: what each of a name's last characters counts.
_POWERS: Final = tuple(pow(31, power, _INT32_SPAN) for power in reversed(range(64)))


def _units(data: bytes) -> tuple[int, ...]:
    """The numbers of UTF-16 that a string is made of."""
    return unpack(f">{len(data) // 2}H", data)


@lru_cache(maxsize=_NAMES_KEPT)
def java_hash(text: str) -> int:
    """Java's hash of a string, from -2**31 to 2**31 - 1."""
    data = text.encode("utf-16-be", "surrogatepass")
    count = len(data) // 2
    if count > len(_POWERS):
        found = reduce(lambda so_far, unit: (so_far * 31 + unit) % _INT32_SPAN, _units(data))
    else:
        found = sum(map(mul, _units(data), _POWERS[len(_POWERS) - count :])) % _INT32_SPAN
    return found - _INT32_SPAN if found >= _INT32_SIGN else found


@lru_cache(maxsize=_NAMES_KEPT)
def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of a group, of so many."""
    found = abs(java_hash(group_id))
    # Java has no positive number for its smallest one; Kafka takes 0.
    return (0 if found == _INT32_SIGN else found) % partition_count
