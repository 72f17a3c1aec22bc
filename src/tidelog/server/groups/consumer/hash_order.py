"""The order in which Java's hash tables tell their keys: where Kafka's assignors begin.

Who gets a partition more is a matter of that order, so the same members get the same partitions
as from Kafka. Keys that fall into one bucket keep the order in which they are given here, which
is the one thing that a table's history could change.

Source: Java's `HashMap`; Kafka's `Uuid.hashCode`.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar
from uuid import UUID

from tidelog.types import UINT32_MAX

T = TypeVar("T")

SMALLEST_TABLE: Final = 16
_LOAD_PERCENT: Final = 75
_INT64: Final = (1 << 64) - 1


def table_size(count: int) -> int:
    """Buckets of a table that has grown to so many keys."""
    size = SMALLEST_TABLE
    while count * 100 > size * _LOAD_PERCENT:
        size *= 2
    return size


def ample_table_size(count: int) -> int:
    """Buckets of a table that Kafka's assignors make for so many keys in advance."""
    wanted = (count + 1) * 100 // _LOAD_PERCENT + 1
    return 1 << (wanted - 1).bit_length()


def hash_order(
    keys: Iterable[T], hash_of: Callable[[T], int], buckets: int | None = None
) -> list[T]:
    """The keys in the order in which such a table tells them; `buckets` where it has not grown."""
    given = list(keys)
    if len(given) < 2:
        return given
    mask = (table_size(len(given)) if buckets is None else buckets) - 1
    hashes = [hash_of(key) & UINT32_MAX for key in given]
    # Stable: as `sorted` by bucket, without a call for each of many members.
    places = sorted(range(len(given)), key=[(h ^ h >> 16) & mask for h in hashes].__getitem__)
    return [given[place] for place in places]


def number_order(numbers: Collection[int]) -> list[int]:
    """Numbers of partitions in the order in which a table that has grown to them tells them."""
    mask = table_size(len(numbers)) - 1
    return sorted(sorted(numbers), key=lambda number: (number ^ number >> 16) & mask)


def uuid_hash(topic_id: UUID) -> int:
    """Kafka's hash of a topic id, as an unsigned number of 32 bits."""
    folded = (topic_id.int >> 64) ^ (topic_id.int & _INT64)
    return ((folded >> 32) ^ folded) & UINT32_MAX


def uuid_order(topic_id: UUID) -> tuple[int, int]:
    """What Kafka orders topic ids by: both halves as signed numbers."""
    return _signed(topic_id.int >> 64), _signed(topic_id.int & _INT64)


def _signed(half: int) -> int:
    return half - (1 << 64) if half >> 63 else half
