"""The hash of a value, inlined into the kernels that reduce records to rows by key.

Sixteen bytes at a time are two words, to which secret words are added, and whose product of 128
bits goes into a sum; SipHash-1-3 of the sums (one for 256 bytes) and of the size is the hash. Two
values of a size have the same sums by a chance of at most one in 2^64, whatever they are, as long
as the secret is one; and different sums the same hash likewise. The machine does a product in one
step, and the steps don't wait for each other; SipHash alone takes a round for every eight bytes.

`tests/worlds/records/plain_digests.py` is the plain reference.

Source: J. Black, S. Halevi, H. Krawczyk, T. Krovetz, P. Rogaway, "UMAC: fast and secure message
authentication" (1999) for the sums, which are called NH there; SipHash as in `key_hash`.
"""

from typing import Final

from tidelog.record.kernels.arithmetic import add_product, add_wrapping
from tidelog.record.kernels.compiler import inlined
from tidelog.record.kernels.key_hash import DORANDOM, LYGENERA, SOMEPSEU, TEDBYTES, sip_round
from tidelog.record.kernels.memory import Bytes, Longs, get_long, load_byte, load_word

# Places in the words that hashes are made with.
KEY_SEED: Final = 0  # of keys' hashes
VALUE_SEED: Final = 2  # of SipHash over sums
MIX_SEED: Final = 4
SEEDS: Final = 5
# What is added to values, two words for each 16 bytes; made of the seeds.
PAIR_SEEDS: Final = 5
PAIRS: Final = 16
WORDS: Final = PAIR_SEEDS + 2 * PAIRS

PAIR_BYTES: Final = 16
_WORD_BYTES: Final = 8
# The last word that SipHash takes has the size in its lower 7 bytes, its own message's size on top.
_TOP: Final = 56
_SIZE_BYTES: Final = 7


@inlined
def hash_value(data: Bytes, at: int, size: int, words: Longs) -> int:
    """The hash of `data[at:at + size]`, 1 instead of 0."""
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
    """What SipHash-1-3 does with one more word."""
    a, b, c, d = sip_round(a, b, c, d ^ word)
    return a ^ word, b, c, d


@inlined
def _add_pair(
    low: int, high: int, first: int, second: int, words: Longs, seed: int
) -> tuple[int, int]:
    """The sum with the product of one more pair of words."""
    left = add_wrapping(first, get_long(words, seed))
    right = add_wrapping(second, get_long(words, seed + 1))
    return add_product(low, high, left, right)


@inlined
def _last_pair(data: Bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """The last 16 bytes of a value, that may have been taken before; of a short one all of it."""
    if size >= PAIR_BYTES:
        return load_word(data, end - PAIR_BYTES), load_word(data, end - _WORD_BYTES)
    if size >= _WORD_BYTES:
        return load_word(data, at), load_word(data, end - _WORD_BYTES)
    word = 0
    for place in range(size):
        word |= load_byte(data, at + place) << (8 * place)
    return word, 0


@inlined
def _signed_byte(value: int) -> int:
    """The low byte of a number as a signed one."""
    return ((value & 0xFF) ^ 0x80) - 0x80
