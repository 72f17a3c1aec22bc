"""Partition of a record: Kafka's murmur2 of the key, or a random choice for records without a key.

Kafka's Java producer and tidelog choose the same partition for a key. Source: Kafka's
DefaultPartitioner and Utils.murmur2 (algorithm by Austin Appleby, public domain).
"""

import random
from typing import Final

from tidelog.types import INT32_MAX, UINT32_MAX

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C

# Maximum number of cached keys. Keys repeat, so the cache saves most of the hashing.
REMEMBERED_KEYS: Final = 65_536


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit hash of a key, as an unsigned number."""
    length = len(data)
    h = (_SEED ^ length) & UINT32_MAX
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & UINT32_MAX
        k = (k ^ k >> 24) * _M & UINT32_MAX
        h = (h * _M & UINT32_MAX) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & UINT32_MAX
    h = (h ^ h >> 13) * _M & UINT32_MAX
    return h ^ h >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a key, from 0 to `partition_count` - 1."""
    return (murmur2(key) & INT32_MAX) % partition_count


class Partitioner:
    """Chooses partitions for a series of records. Only one thread at a time may use it."""

    def __init__(self, partition_count: int, source: random.Random) -> None:
        self.partition_count = partition_count
        self._random = source
        self._partition_by_key: dict[bytes, int] = {}
        self._sticky: int | None = None

    def choose(self, key: bytes | None) -> int:
        """Return the key's partition.

        If `key` is None, return a random partition, which stays the same until `switch` is called.
        """
        if key is None:
            if self._sticky is None:
                self._sticky = self._random.randrange(self.partition_count)
            return self._sticky
        partition = self._partition_by_key.get(key)
        if partition is None:
            if len(self._partition_by_key) >= REMEMBERED_KEYS:
                self._partition_by_key.clear()
            partition = self._partition_by_key[key] = partition_of(key, self.partition_count)
        return partition

    def switch(self) -> None:
        """Choose a new random partition for the next records without a key, e.g. after a batch."""
        self._sticky = None
