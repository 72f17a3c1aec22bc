"""The hash of a key, inlined into the kernels that walk over records.

`tidelog.record.key_hash` is the plain reference, a test holds both together.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF" (2012) and its variant
of 128 bits; RFC 1321.
"""

from typing import Final, NamedTuple

import numpy as np

from tidelog.record.kernels.arithmetic import add_wrapping, rotate_left, shift_right
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.memory import Bytes, Longs, load_byte, load_word

SIPHASH: Final = 0
MD5: Final = 1

SOMEPSEU: Final = 0x736F6D6570736575
DORANDOM: Final = 0x646F72616E646F6D
LYGENERA: Final = 0x6C7967656E657261
TEDBYTES: Final = 0x7465646279746573
_WORD_32: Final = 0xFFFFFFFF
_SIGN_32: Final = 1 << 31
_BLOCK: Final = 64
_MD5_A: Final = 0x67452301
_MD5_B: Final = 0xEFCDAB89
_MD5_C: Final = 0x98BADCFE
_MD5_D: Final = 0x10325476


class Hasher(NamedTuple):
    """How keys are hashed.

    Attributes:
        algorithm: SIPHASH or MD5.
        seed: The secret, 16 bytes.
        seed_low: Its first 8 bytes as a little-endian number.
        seed_high: The others.
        mask_low: What of the hash's first half counts: -1 for all of it. Tests take less.
        mask_high: Likewise of the second half.
        sines: int64[64], the constants of md5.
        block: int64[16], where md5 puts the words of a block.
    """

    algorithm: int
    seed: Bytes
    seed_low: int
    seed_high: int
    mask_low: int
    mask_high: int
    sines: Longs
    block: Longs


def make_hasher(algorithm: int, seed: bytes, mask_low: int = -1, mask_high: int = -1) -> Hasher:
    """A hasher of a seed of 16 bytes; one thread uses it."""
    assert len(seed) == 16
    low, high = np.frombuffer(seed, "<i8").tolist()
    steps = np.arange(1, _BLOCK + 1, dtype=np.float64)
    sines = np.floor(np.abs(np.sin(steps)) * 2.0**32).astype(np.int64)
    block: Longs = np.zeros(16, np.int64)
    data = np.frombuffer(bytes(seed), np.uint8)
    return Hasher(algorithm, data, low, high, mask_low, mask_high, sines, block)


@kernel
def hash_keys(data: Bytes, ends: Longs, hasher: Hasher, out: Longs) -> None:
    """The hash of each key.

    Shape:
        data: All keys back to back.
        ends: int64[keys + 1], where each begins and the last one ends; the caller has checked it.
        out: int64[keys, 2].
    """
    for number in range(out.shape[0]):
        start = ends[number]
        low, high = hash_key(data, start, ends[number + 1] - start, hasher)
        out[number, 0] = low
        out[number, 1] = high


@inlined
def hash_key(data: Bytes, at: int, size: int, hasher: Hasher) -> tuple[int, int]:
    """The two halves of a key's hash, never both 0: that is an empty slot of a map."""
    if hasher.algorithm == SIPHASH:
        low, high = siphash(data, at, size, hasher.seed_low, hasher.seed_high)
    else:
        low, high = _md5(data, at, size, hasher)
    return mask_hash(low, high, hasher)


@inlined
def mask_hash(low: int, high: int, hasher: Hasher) -> tuple[int, int]:
    """What of a hash counts, never both 0."""
    low &= hasher.mask_low
    high &= hasher.mask_high
    return (1 if low | high == 0 else low), high


@inlined
def siphash(data: Bytes, at: int, size: int, seed_low: int, seed_high: int) -> tuple[int, int]:
    """SipHash-2-4-128 of `data[at:at + size]`."""
    a, b, c, d = begin_sip(seed_low, seed_high)
    end = at + size
    while at + 8 <= end:
        word = load_word(data, at)
        d ^= word
        a, b, c, d = sip_round(a, b, c, d)
        a, b, c, d = sip_round(a, b, c, d)
        a ^= word
        at += 8
    word = last_word(data, at, end, size)
    d ^= word
    a, b, c, d = sip_round(a, b, c, d)
    a, b, c, d = sip_round(a, b, c, d)
    return finish_sip(a ^ word, b, c, d)


@inlined
def begin_sip(seed_low: int, seed_high: int) -> tuple[int, int, int, int]:
    """The state before the first word."""
    return (
        seed_low ^ SOMEPSEU,
        seed_high ^ DORANDOM ^ 0xEE,
        seed_low ^ LYGENERA,
        seed_high ^ TEDBYTES,
    )


@inlined
def finish_sip(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """The hash of the state behind the last word."""
    a, b, c, d = _four_rounds(a, b, c ^ 0xEE, d)
    low = a ^ b ^ c ^ d
    a, b, c, d = _four_rounds(a, b ^ 0xDD, c, d)
    return low, a ^ b ^ c ^ d


@inlined
def last_word(data: Bytes, at: int, end: int, size: int) -> int:
    """The bytes from `at` on, and the low byte of the key's size above them."""
    top = size & 0xFF
    if top >= 0x80:
        top -= 0x100
    word = top << 56
    left = end - at
    if left == 0:
        return word
    if size >= 8:
        return word | shift_right(load_word(data, end - 8), 64 - 8 * left)
    for place in range(left):
        word |= load_byte(data, at + place) << (8 * place)
    return word


@inlined
def sip_round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """One round of SipHash."""
    a = add_wrapping(a, b)
    c = add_wrapping(c, d)
    b = rotate_left(b, 13) ^ a
    d = rotate_left(d, 16) ^ c
    c = add_wrapping(c, b)
    a = add_wrapping(rotate_left(a, 32), d)
    b = rotate_left(b, 17) ^ c
    d = rotate_left(d, 21) ^ a
    return a, b, rotate_left(c, 32), d


@inlined
def _four_rounds(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    for _ in range(4):
        a, b, c, d = sip_round(a, b, c, d)
    return a, b, c, d


@inlined
def _md5(data: Bytes, at: int, size: int, hasher: Hasher) -> tuple[int, int]:
    """md5 of the seed and `data[at:at + size]`."""
    a, b, c, d = _MD5_A, _MD5_B, _MD5_C, _MD5_D
    total = hasher.seed.size + size
    # The message, a byte 0x80, zeros, and 8 bytes of length fill whole blocks.
    blocks = (total + 9 + _BLOCK - 1) // _BLOCK
    for number in range(blocks):
        for word in range(16):
            hasher.block[word] = 0
        for place in range(_BLOCK):
            byte = _padded(data, at, size, hasher, number * _BLOCK + place)
            hasher.block[place >> 2] |= byte << (8 * (place & 3))
        if number == blocks - 1:
            hasher.block[14] = (total << 3) & _WORD_32
            hasher.block[15] = (total >> 29) & _WORD_32
        a, b, c, d = _md5_block(a, b, c, d, hasher)
    return _join_words(a, b), _join_words(c, d)


@inlined
def _padded(data: Bytes, at: int, size: int, hasher: Hasher, place: int) -> int:
    """A byte of the padded message, its length left out."""
    if place < hasher.seed.size:
        return load_byte(hasher.seed, place)
    place -= hasher.seed.size
    if place < size:
        return load_byte(data, at + place)
    return 0x80 if place == size else 0


@inlined
def _md5_block(a: int, b: int, c: int, d: int, hasher: Hasher) -> tuple[int, int, int, int]:
    """The state after one more block, which lies in `hasher.block`."""
    a_before, b_before, c_before, d_before = a, b, c, d
    for step in range(_BLOCK):
        mixed, word = _md5_mix(step, b, c, d)
        total = (a + mixed + hasher.sines[step] + hasher.block[word]) & _WORD_32
        bits = _md5_shift(step)
        turned = (total << bits | total >> (32 - bits)) & _WORD_32
        a, d, c, b = d, c, b, (b + turned) & _WORD_32
    return (
        (a + a_before) & _WORD_32,
        (b + b_before) & _WORD_32,
        (c + c_before) & _WORD_32,
        (d + d_before) & _WORD_32,
    )


@inlined
def _md5_mix(step: int, b: int, c: int, d: int) -> tuple[int, int]:
    """What a step mixes of the state, and which word of the block it takes."""
    if step < 16:
        return (b & c) | (~b & d & _WORD_32), step
    if step < 32:
        return (d & b) | (~d & c & _WORD_32), (5 * step + 1) & 15
    if step < 48:
        return b ^ c ^ d, (3 * step + 5) & 15
    return (c ^ (b | (~d & _WORD_32))) & _WORD_32, (7 * step) & 15


@inlined
def _md5_shift(step: int) -> int:
    """By how many bits a step turns."""
    place = step & 3
    if step < 16:
        return 7 + 5 * place
    if step < 32:
        return 5 + 4 * place + (place * (place - 1) >> 1)
    if step < 48:
        return 4 + 7 * place - (2 if place >= 2 else 0)
    return 6 + 4 * place + (place * (place - 1) >> 1)


@inlined
def _join_words(low: int, high: int) -> int:
    """Two words of 32 bits as one signed number, the first one below."""
    if high >= _SIGN_32:
        high -= 1 << 32
    return (high << 32) | low
