"""Computes the hash of a key for compaction: a seeded hash of 128 bits.

The hash is SipHash-2-4 with a 128-bit result. A client that does not know the seed can't construct
keys with equal hashes. An unseeded hash such as MD5 would allow a client to construct such keys.
This module hashes one key at a time; `kernels.hashes` hashes many keys.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF" (2012).
"""

import struct
from typing import Final

COMPRESSION_ROUNDS: Final = 2
FINAL_ROUNDS: Final = 4

_WORD: Final = struct.Struct("<Q")
_SIGNED_PAIR: Final = struct.Struct("<qq")
_PAIR: Final = struct.Struct("<QQ")
_MASK: Final = (1 << 64) - 1
# The ASCII bytes of "somepseudorandomlygeneratedbytes", 8 at a time, most significant byte first.
INITIAL: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(seed: bytes, key: bytes) -> bytes:
    """Return the 16 bytes of SipHash-2-4-128 of `key` with a seed of 16 bytes."""
    low, high = _PAIR.unpack(seed)
    state = [half ^ word for half, word in zip((low, high, low, high), INITIAL, strict=True)]
    state[1] ^= 0xEE
    whole = len(key) // 8 * 8
    tail = key[whole:].ljust(7, b"\0") + bytes((len(key) & 0xFF,))
    for (word,) in _WORD.iter_unpack(key[:whole] + tail):
        state[3] ^= word
        sip_rounds(state, COMPRESSION_ROUNDS)
        state[0] ^= word
    state[2] ^= 0xEE
    sip_rounds(state, FINAL_ROUNDS)
    first = state[0] ^ state[1] ^ state[2] ^ state[3]
    state[1] ^= 0xDD
    sip_rounds(state, FINAL_ROUNDS)
    return _PAIR.pack(first, state[0] ^ state[1] ^ state[2] ^ state[3])


def halves(digest: bytes) -> tuple[int, int]:
    """Return a digest as two signed numbers; each half is read as a little-endian number."""
    first, second = _SIGNED_PAIR.unpack(digest)
    return first, second


def sip_rounds(state: list[int], count: int) -> None:
    """Apply `count` rounds of SipHash to a state, in place."""
    a, b, c, d = state
    for _ in range(count):
        a = (a + b) & _MASK
        c = (c + d) & _MASK
        b = _rotate(b, 13) ^ a
        d = _rotate(d, 16) ^ c
        a = _rotate(a, 32)
        c = (c + b) & _MASK
        a = (a + d) & _MASK
        b = _rotate(b, 17) ^ c
        d = _rotate(d, 21) ^ a
        c = _rotate(c, 32)
    state[:] = a, b, c, d


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
