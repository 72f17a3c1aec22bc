"""Java's string hash, the partition of a key in a state topic, and the order of Java's HashMap.

A key belongs to the partition `abs(hashCode) % partitions` of its state topic. Kafka's assignors
iterate over hash maps. If partitions can't be divided evenly, the order of iteration decides which
members get one partition more than others. With Java's order, tidelog's assignors give each member
the same partitions as Kafka's assignors. Exception: in this module, keys of one bucket keep their
input order. A Java table may order them differently after it has grown or after keys were removed.

Source: Java's `String.hashCode` over UTF-16 and `HashMap`; Kafka's `Uuid.hashCode`.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from operator import mul
from struct import unpack
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from tidelog.server.runtime.name_cache import is_short, remembers_short
from tidelog.types import UINT32_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence


_INT32_SIGN: Final = 1 << 31
_INT32_SPAN: Final = 1 << 32

# Powers of 31 modulo 2**32, descending to 31**0: the weights of a name's last 64 code units.
_POWERS: Final = tuple(pow(31, power, _INT32_SPAN) for power in reversed(range(64)))

# Weights for names of more than 64 code units, computed when such a name occurs.
_long_powers: list[int] = []


def _units(data: bytes) -> tuple[int, ...]:
    """Return the UTF-16 code units of encoded text."""
    return unpack(f">{len(data) // 2}H", data)


@remembers_short(is_short)
def java_hash(text: str) -> int:
    """Compute Java's hash of a string, from -2**31 to 2**31 - 1."""
    data = text.encode("utf-16-be", "surrogatepass")
    units = _units(data)
    powers: Sequence[int] = _POWERS
    if len(units) > len(_POWERS):
        powers = _powers_for(len(units))
    factors = islice(powers, len(powers) - len(units), None)
    total: int = sum(map(mul, units, factors)) % _INT32_SPAN
    return total - _INT32_SPAN if total >= _INT32_SIGN else total


def _powers_for(count: int) -> list[int]:
    if len(_long_powers) < count:
        powers = [1]
        for _ in range(2 * count):
            powers.append(powers[-1] * 31 % _INT32_SPAN)
        _long_powers[:] = reversed(powers)
    return _long_powers


@remembers_short(lambda group_id, _: is_short(group_id))
def partition_for(group_id: str, partition_count: int) -> int:
    """Return the partition of a group id, among `partition_count` partitions."""
    hash_value = abs(java_hash(group_id))
    # Java can't negate its smallest int, -2**31, so Kafka uses 0 as the absolute value.
    return (0 if hash_value == _INT32_SIGN else hash_value) % partition_count


T = TypeVar("T")
SMALLEST_TABLE: Final = 16
_LOAD_PERCENT: Final = 75
_INT64: Final = (1 << 64) - 1


def table_size(count: int) -> int:
    """Return the number of buckets of a table that has grown to `count` keys."""
    size = SMALLEST_TABLE
    while count * 100 > size * _LOAD_PERCENT:
        size *= 2
    return size


def ample_table_size(count: int) -> int:
    """Return the number of buckets that Kafka's assignors allocate in advance for `count` keys."""
    minimum = (count + 1) * 100 // _LOAD_PERCENT + 1
    return 1 << (minimum - 1).bit_length()


def hash_order(
    keys: Iterable[T], hash_of: Callable[[T], int], buckets: int | None = None
) -> list[T]:
    """Sort keys by the iteration order of a Java hash table.

    `buckets` is the number of buckets if the table was allocated in advance; None if the table has
    grown with the keys.
    """
    items = list(keys)
    if len(items) < 2:
        return items
    mask = (table_size(len(items)) if buckets is None else buckets) - 1
    hashes = [hash_of(key) & UINT32_MAX for key in items]
    # Sort by bucket. The sort is stable, and takes each key's bucket from a list, which is faster
    # than a call of a Python function.
    indexes = sorted(range(len(items)), key=[(h ^ h >> 16) & mask for h in hashes].__getitem__)
    return [items[index] for index in indexes]


def number_order(numbers: Collection[int]) -> list[int]:
    """Sort partition numbers by the iteration order of a Java HashMap to which they were added."""
    mask = table_size(len(numbers)) - 1
    return sorted(sorted(numbers), key=lambda number: (number ^ number >> 16) & mask)


def uuid_hash(topic_id: UUID) -> int:
    """Compute Kafka's hash of a topic id, as an unsigned number of 32 bits."""
    folded = (topic_id.int >> 64) ^ (topic_id.int & _INT64)
    return ((folded >> 32) ^ folded) & UINT32_MAX


def uuid_order(topic_id: UUID) -> tuple[int, int]:
    """Return the sort key for Kafka's order of topic ids: the two halves as signed numbers."""
    return _signed(topic_id.int >> 64), _signed(topic_id.int & _INT64)


def _signed(half: int) -> int:
    return half - (1 << 64) if half >> 63 else half
