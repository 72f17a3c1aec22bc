"""Which partition of `__consumer_offsets` a group lives in.

Source: Java's `String.hashCode` over UTF-16, as Kafka's coordinator takes it.
"""

from itertools import islice
from operator import mul
from struct import unpack
from typing import TYPE_CHECKING, Final

from tidelog.server.short_names import is_short, remembers_short

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT32_SIGN: Final = 1 << 31
_INT32_SPAN: Final = 1 << 32
# Of 31, the last one 1: what each of a name's last characters counts.
_POWERS: Final = tuple(pow(31, power, _INT32_SPAN) for power in reversed(range(64)))
# The same for the longest names, made when one comes.
_long_powers: list[int] = []


def _units(data: bytes) -> tuple[int, ...]:
    """The numbers of UTF-16 that a string is made of."""
    return unpack(f">{len(data) // 2}H", data)


@remembers_short(is_short)
def java_hash(text: str) -> int:
    """Java's hash of a string, from -2**31 to 2**31 - 1."""
    data = text.encode("utf-16-be", "surrogatepass")
    units = _units(data)
    powers: Sequence[int] = _POWERS
    if len(units) > len(_POWERS):
        powers = _powers_for(len(units))
    places = islice(powers, len(powers) - len(units), None)
    found: int = sum(map(mul, units, places)) % _INT32_SPAN
    return found - _INT32_SPAN if found >= _INT32_SIGN else found


def _powers_for(count: int) -> list[int]:
    if len(_long_powers) < count:
        found = [1]
        for _ in range(2 * count):
            found.append(found[-1] * 31 % _INT32_SPAN)
        _long_powers[:] = reversed(found)
    return _long_powers


@remembers_short(lambda group_id, _: is_short(group_id))
def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of a group, of so many."""
    found = abs(java_hash(group_id))
    # Java has no positive number for its smallest one; Kafka takes 0.
    return (0 if found == _INT32_SIGN else found) % partition_count
