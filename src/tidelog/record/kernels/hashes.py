"""Kernels that hash keys and values, and compute Kafka's partition hash.

- Keys: SipHash-2-4 with 128 bits and a secret seed; plain reference `tidelog.record.key_hash`.
- Values: each 16 bytes of a value form two words. A secret word is added to each word, and the
  128-bit product of the two results is added to a sum (NH). Each 256 bytes of the value have their
  own sum. The hash is SipHash-1-3 of these sums and of the value's size. As long as the seed is
  secret, two different values of the same size have equal sums with a probability of at most 2^-64,
  and different sums have equal 64-bit hashes with about the same probability. The multiplications
  are independent of each other, so the CPU runs them in parallel. SipHash alone would need a round
  for every 8 bytes, and each round would wait for the previous one. Plain reference:
  `tests/worlds/records/plain_digests.py`.
- Partitions: murmur2; plain reference `tidelog.record.partitioner`.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF" (2012); J. Black, S.
Halevi, H. Krawczyk, T. Krovetz, P. Rogaway, "UMAC: fast and secure message authentication" (1999);
Kafka's Utils.murmur2 (algorithm by Austin Appleby, public domain).
"""

from typing import Final, NamedTuple

import numpy as np

from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.integers import add_product, add_wrapping, rotate_left, shift_right
from tidelog.record.kernels.memory import Bytes, Ints, Longs, get_long, load_byte, load_word
from tidelog.types import INT32_MAX, UINT32_MAX

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
    """Parameters of key hashes.

    Attributes:
        algorithm: SIPHASH or MD5.
        seed: The secret, 16 bytes.
        seed_low: The seed's first 8 bytes as a little-endian number.
        seed_high: The seed's last 8 bytes as a little-endian number.
        mask_low: Bits of the hash's first half to use: -1 for all bits; tests use fewer bits.
        mask_high: Bits of the hash's second half to use.
        sines: int64[64], the constants of md5.
        block: int64[16], md5's memory for the words of a block.
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
    """Return a hasher with a seed of 16 bytes; only one thread at a time may use it."""
    assert len(seed) == 16
    low, high = np.frombuffer(seed, "<i8").tolist()
    steps = np.arange(1, _BLOCK + 1, dtype=np.float64)
    sines = np.floor(np.abs(np.sin(steps)) * 2.0**32).astype(np.int64)
    block: Longs = np.zeros(16, np.int64)
    data = np.frombuffer(bytes(seed), np.uint8)
    return Hasher(algorithm, data, low, high, mask_low, mask_high, sines, block)


@kernel
def hash_keys(data: Bytes, ends: Longs, hasher: Hasher, out: Longs) -> None:
    """Compute the hash of each key.

    Shape:
        data: All keys, back to back.
        ends: int64[keys + 1], start of each key and end of the last key, checked by the caller.
        out: int64[keys, 2].
    """
    for number in range(out.shape[0]):
        start = ends[number]
        low, high = hash_key(data, start, ends[number + 1] - start, hasher)
        out[number, 0] = low
        out[number, 1] = high


@inlined
def hash_key(data: Bytes, at: int, size: int, hasher: Hasher) -> tuple[int, int]:
    """Return the two halves of a key's hash.

    At least one half is not 0, because two zeros mark an empty slot of a map.
    """
    if hasher.algorithm == SIPHASH:
        low, high = siphash(data, at, size, hasher.seed_low, hasher.seed_high)
    else:
        low, high = _md5(data, at, size, hasher)
    return mask_hash(low, high, hasher)


@inlined
def mask_hash(low: int, high: int, hasher: Hasher) -> tuple[int, int]:
    """Return the used bits of both halves of a hash; 1 and 0 if all used bits are 0."""
    low &= hasher.mask_low
    high &= hasher.mask_high
    return (1 if low | high == 0 else low), high


@inlined
def siphash(data: Bytes, at: int, size: int, seed_low: int, seed_high: int) -> tuple[int, int]:
    """Return SipHash-2-4-128 of `data[at:at + size]`."""
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
    """Return the state of SipHash before the first word."""
    return (
        seed_low ^ SOMEPSEU,
        seed_high ^ DORANDOM ^ 0xEE,
        seed_low ^ LYGENERA,
        seed_high ^ TEDBYTES,
    )


@inlined
def finish_sip(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """Return the hash, given SipHash's state after the last word."""
    a, b, c, d = _four_rounds(a, b, c ^ 0xEE, d)
    low = a ^ b ^ c ^ d
    a, b, c, d = _four_rounds(a, b ^ 0xDD, c, d)
    return low, a ^ b ^ c ^ d


@inlined
def last_word(data: Bytes, at: int, end: int, size: int) -> int:
    """Return the bytes [at, end) as a word whose top byte is the low byte of the key's size."""
    top = size & 0xFF
    if top >= 0x80:
        top -= 0x100
    word = top << 56
    remaining = end - at
    if remaining == 0:
        return word
    if size >= 8:
        return word | shift_right(load_word(data, end - 8), 64 - 8 * remaining)
    for index in range(remaining):
        word |= load_byte(data, at + index) << (8 * index)
    return word


@inlined
def sip_round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """Apply one round of SipHash."""
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
    """Return the md5 of the seed and `data[at:at + size]`."""
    a, b, c, d = _MD5_A, _MD5_B, _MD5_C, _MD5_D
    total = hasher.seed.size + size
    # md5 pads the message to whole blocks: with a byte 0x80, zeros, and 8 bytes of length.
    blocks = (total + 9 + _BLOCK - 1) // _BLOCK
    for number in range(blocks):
        for word in range(16):
            hasher.block[word] = 0
        for index in range(_BLOCK):
            byte = _padded(data, at, size, hasher, number * _BLOCK + index)
            hasher.block[index >> 2] |= byte << (8 * (index & 3))
        if number == blocks - 1:
            hasher.block[14] = (total << 3) & _WORD_32
            hasher.block[15] = (total >> 29) & _WORD_32
        a, b, c, d = _md5_block(a, b, c, d, hasher)
    return _join_words(a, b), _join_words(c, d)


@inlined
def _padded(data: Bytes, at: int, size: int, hasher: Hasher, index: int) -> int:
    """Return byte `index` of the padded message: seed, data, 0x80, zeros.

    The last 8 bytes, which are for the message's length, are returned as zeros.
    """
    if index < hasher.seed.size:
        return load_byte(hasher.seed, index)
    index -= hasher.seed.size
    if index < size:
        return load_byte(data, at + index)
    return 0x80 if index == size else 0


@inlined
def _md5_block(a: int, b: int, c: int, d: int, hasher: Hasher) -> tuple[int, int, int, int]:
    """Return the state after the block in `hasher.block`."""
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
    """Return a step's mixing value, and the index of the block's word for this step."""
    if step < 16:
        return (b & c) | (~b & d & _WORD_32), step
    if step < 32:
        return (d & b) | (~d & c & _WORD_32), (5 * step + 1) & 15
    if step < 48:
        return b ^ c ^ d, (3 * step + 5) & 15
    return (c ^ (b | (~d & _WORD_32))) & _WORD_32, (7 * step) & 15


@inlined
def _md5_shift(step: int) -> int:
    """Return the number of bits by which a step of md5 rotates."""
    column = step & 3
    if step < 16:
        return 7 + 5 * column
    if step < 32:
        return 5 + 4 * column + (column * (column - 1) >> 1)
    if step < 48:
        return 4 + 7 * column - (2 if column >= 2 else 0)
    return 6 + 4 * column + (column * (column - 1) >> 1)


@inlined
def _join_words(low: int, high: int) -> int:
    """Return two 32-bit words as one signed number, the first word as the low half."""
    if high >= _SIGN_32:
        high -= 1 << 32
    return (high << 32) | low


# Indices in the secret words of the hashes.
KEY_SEED: Final = 0  # two words (0 and 1): seed of the hashes of keys

VALUE_SEED: Final = 2  # two words (2 and 3): seed of SipHash over the sums
MIX_SEED: Final = 4
SEEDS: Final = 5

# Index of the first secret word that is added to a word of a value. These secret words are derived
# from the seeds: two for each 16 bytes of a value, repeated every 256 bytes.
PAIR_SEEDS: Final = 5

PAIRS: Final = 16
WORDS: Final = PAIR_SEEDS + 2 * PAIRS
PAIR_BYTES: Final = 16
_WORD_BYTES: Final = 8

# Position in bits of the top byte in the last word that SipHash processes. The top byte is the size
# in bytes of SipHash's input, modulo 256; the lower 7 bytes are the value's size.
_TOP: Final = 56

_SIZE_BYTES: Final = 7


@inlined
def hash_value(data: Bytes, at: int, size: int, words: Longs) -> int:
    """Return the hash of `data[at:at + size]`, which is never 0: 1 replaces 0."""
    seed_low, seed_high = get_long(words, VALUE_SEED), get_long(words, VALUE_SEED + 1)
    a, b = seed_low ^ SOMEPSEU, seed_high ^ DORANDOM
    c, d = seed_low ^ LYGENERA, seed_high ^ TEDBYTES
    end, seed, top = at + size, PAIR_SEEDS, _SIZE_BYTES + PAIR_BYTES
    low = high = 0
    while end - at > PAIR_BYTES:
        if seed == WORDS:
            a, b, c, d = _take_word(a, b, c, d, low)
            a, b, c, d = _take_word(a, b, c, d, high)
            low, high, seed, top = 0, 0, PAIR_SEEDS, top + PAIR_BYTES
        first, second = load_word(data, at), load_word(data, at + _WORD_BYTES)
        low, high = _add_pair(low, high, first, second, words, seed)
        at, seed = at + PAIR_BYTES, seed + 2
    if seed == WORDS:
        a, b, c, d = _take_word(a, b, c, d, low)
        a, b, c, d = _take_word(a, b, c, d, high)
        low, high, seed, top = 0, 0, PAIR_SEEDS, top + PAIR_BYTES
    first, second = _last_pair(data, at, end, size)
    low, high = _add_pair(low, high, first, second, words, seed)
    a, b, c, d = _take_word(a, b, c, d, low)
    a, b, c, d = _take_word(a, b, c, d, high)
    a, b, c, d = _take_word(a, b, c, d, size | _signed_byte(top) << _TOP)
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = sip_round(a, b, c, d)
    hashed = a ^ b ^ c ^ d
    return hashed if hashed != 0 else 1


@inlined
def _take_word(a: int, b: int, c: int, d: int, word: int) -> tuple[int, int, int, int]:
    """Process one more word with SipHash-1-3."""
    a, b, c, d = sip_round(a, b, c, d ^ word)
    return a ^ word, b, c, d


@inlined
def _add_pair(
    low: int, high: int, first: int, second: int, words: Longs, seed: int
) -> tuple[int, int]:
    """Add the product of one more pair of words to the sum."""
    mixed = add_wrapping(first, get_long(words, seed))
    right = add_wrapping(second, get_long(words, seed + 1))
    return add_product(low, high, mixed, right)


@inlined
def _last_pair(data: Bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """Return the last 16 bytes of a value as two words, which may overlap the previous pair.

    For a value of less than 16 bytes, return all its bytes.
    """
    if size >= PAIR_BYTES:
        return load_word(data, end - PAIR_BYTES), load_word(data, end - _WORD_BYTES)
    if size >= _WORD_BYTES:
        return load_word(data, at), load_word(data, end - _WORD_BYTES)
    word = 0
    for index in range(size):
        word |= load_byte(data, at + index) << (8 * index)
    return word, 0


@inlined
def _signed_byte(value: int) -> int:
    """Return the low byte of a number as a signed number."""
    return ((value & 0xFF) ^ 0x80) - 0x80


_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


@kernel
def partitions_of(
    data: Bytes, offsets: Ints, is_null: Bytes, partition_count: int, keyless: int, out: Ints
) -> None:
    """Compute the partition of each key.

    Args:
        data: All keys, back to back.
        offsets: Start of each key and end of the last key, int32[n + 1]. The caller has checked
            that the offsets are ascending and within `data`.
        is_null: 1 if the key is null, uint8[n].
        partition_count: At least 1.
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
    """Return Kafka's 32-bit hash of bytes [start, end), as a number from 0 to 2^32 - 1."""
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
    remaining = end - at
    if remaining > 0:
        tail = load_byte(data, at)
        if remaining > 1:
            tail |= load_byte(data, at + 1) << 8
        if remaining > 2:
            tail |= load_byte(data, at + 2) << 16
        h = _times_m(h ^ tail)
    h = _times_m(h ^ h >> 13)
    return h ^ h >> 15


@inlined
def _times_m(value: int) -> int:
    """Return the low 32 bits of value * M.

    `value` is below 2^32 and M is below 2^31, so the product fits into 63 bits.
    """
    return value * _M & UINT32_MAX
