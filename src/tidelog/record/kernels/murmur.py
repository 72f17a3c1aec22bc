"""Kafka's murmur2 over a column of keys: which partition each record goes to.

The plain reference for one key is `tidelog.storage.partitioner`; a test holds both together.
Source: Kafka's Utils.murmur2 (algorithm by Austin Appleby, public domain).
"""

from typing import Final

from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.memory import Bytes, Ints, load_byte
from tidelog.types import INT32_MAX, UINT32_MAX

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


@kernel
def partitions_of(
    data: Bytes, offsets: Ints, is_null: Bytes, partition_count: int, keyless: int, out: Ints
) -> None:
    """The partition of each key.

    Args:
        data: All keys back to back.
        offsets: Where each begins, int32[n + 1], ascending and within `data`: the caller checks.
        is_null: 1 where the key is null, uint8[n].
        partition_count: From 1 on.
        keyless: The partition of null keys.
        out: int32[n], written.
    """
    for number in range(out.size):
        if is_null[number]:
            out[number] = keyless
            continue
        hashed = murmur2(data, int(offsets[number]), int(offsets[number + 1]))
        out[number] = (hashed & INT32_MAX) % partition_count


@inlined
def murmur2(data: Bytes, start: int, end: int) -> int:
    """Kafka's 32-bit hash of bytes [start, end), as a number from 0 to 2^32 - 1."""
    length = end - start
    h = (_SEED ^ length) & UINT32_MAX
    at = start
    while at + 4 <= end:
        k = load_byte(data, at) | load_byte(data, at + 1) << 8
        k |= load_byte(data, at + 2) << 16 | load_byte(data, at + 3) << 24
        k = _times_m(k)
        k = _times_m(k ^ k >> 24)
        h = _times_m(h) ^ k
        at += 4
    left = end - at
    if left > 0:
        tail = load_byte(data, at)
        if left > 1:
            tail |= load_byte(data, at + 1) << 8
        if left > 2:
            tail |= load_byte(data, at + 2) << 16
        h = _times_m(h ^ tail)
    h = _times_m(h ^ h >> 13)
    return h ^ h >> 15


@inlined
def _times_m(value: int) -> int:
    """The low 32 bits of value * M; both factors are below 2^32, so the product fits 63 bits."""
    return value * _M & UINT32_MAX
