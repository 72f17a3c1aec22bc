"""The audit's kernels in plain Python: hashes, and one summary for each key.

Words are signed 64-bit numbers, as in kernels.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from tidelog.record.key_hash import INITIAL, halves, sip_rounds, siphash

_MASK: Final = (1 << 64) - 1
_SEED: Final = struct.Struct("<qq")
_STEP: Final = 0x9E3779B97F4A7C15
_MIX: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_PAIR: Final = 16
_PAIRS: Final = 16
_PAIR_WORDS: Final = struct.Struct("<QQ")


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def siphash_1_3(data: bytes, seed: Sequence[int]) -> int:
    """Return SipHash-1-3 of some bytes, 64 bits, as a signed word."""
    low, high = (word & _MASK for word in seed)
    state = [half ^ word for half, word in zip((low, high, low, high), INITIAL, strict=True)]
    whole = len(data) // 8 * 8
    last = data[whole:].ljust(7, b"\0") + bytes((len(data) & 0xFF,))
    for word in [*(data[at : at + 8] for at in range(0, whole, 8)), last]:
        number = int.from_bytes(word, "little")
        state[3] ^= number
        sip_rounds(state, 1)
        state[0] ^= number
    state[2] ^= 0xFF
    sip_rounds(state, 3)
    return _signed(state[0] ^ state[1] ^ state[2] ^ state[3])


def hash_key(key: bytes, seeds: Sequence[int]) -> tuple[int, int]:
    """Return the hash of a key, as two words."""
    return halves(siphash(_SEED.pack(seeds[0], seeds[1]), key))


@lru_cache(maxsize=8)
def _added_words(low: int, high: int) -> tuple[int, ...]:
    seed = _SEED.pack(low, high)
    pairs = (halves(siphash(seed, number.to_bytes(8, "little"))) for number in range(_PAIRS))
    return tuple(word for pair in pairs for word in pair)


def hash_value(value: bytes | None, seeds: Sequence[int]) -> int:
    """Return the hash of a value, as one word; 0 for null, and only for null."""
    if value is None:
        return 0
    added, pairs = _added_words(seeds[2], seeds[3]), _pairs(value)
    sums = bytearray()
    for start in range(0, len(pairs), _PAIRS):
        total = 0
        for number, (first, second) in enumerate(pairs[start : start + _PAIRS]):
            left, right = first + added[2 * number], second + added[2 * number + 1]
            total += (left & _MASK) * (right & _MASK)
        sums += (total & (1 << 128) - 1).to_bytes(16, "little")
    return siphash_1_3(bytes(sums) + len(value).to_bytes(7, "little"), seeds[2:4]) or 1


def _pairs(value: bytes) -> list[tuple[int, int]]:
    """Return a value's 16-byte pieces, each as two words.

    The last two words are the last 16 bytes, which may overlap the words before them. A value
    shorter than 16 bytes is padded.
    """
    last = value[-_PAIR:]
    if len(value) < _PAIR:
        last = value[:8].ljust(8, b"\0") + (value[-8:] if len(value) >= 8 else bytes(8))
    starts = range(0, len(value) - _PAIR, _PAIR)
    whole: list[bytes] = [value[start : start + _PAIR] for start in starts]
    return [(one, two) for one, two in map(_PAIR_WORDS.unpack, [*whole, last])]


def _mixed(word: int) -> int:
    word &= _MASK
    word = (word ^ word >> 30) * _MIX[0] & _MASK
    word = (word ^ word >> 27) * _MIX[1] & _MASK
    return word ^ word >> 31


def digest_record(create_ms: int, value: bytes | None, seeds: Sequence[int]) -> int:
    """Return the digest of a record, as one word."""
    return _signed(_mixed(_mixed(create_ms + seeds[4]) ^ (hash_value(value, seeds) & _MASK)))


class PlainRecord(NamedTuple):
    """The fields of a record that an audit reads."""

    offset: int
    create_ms: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class KeySummary:
    """One key's row; see `src/tidelog/record/kernels/key_rows.py`."""

    offset: int
    create_ms: int
    value: int
    count: int
    set_sum: int
    order: int


def summarise(records: Iterable[PlainRecord], seeds: Sequence[int]) -> dict[bytes, KeySummary]:
    """Return a summary for each key; the records are of one partition, ordered by offset."""
    found: dict[bytes, KeySummary] = {}
    for record in records:
        digest = digest_record(record.create_ms, record.value, seeds)
        value = hash_value(record.value, seeds)
        old = found.get(record.key, KeySummary(0, 0, 0, 0, 0, 0))
        found[record.key] = KeySummary(
            offset=record.offset,
            create_ms=record.create_ms,
            value=value,
            count=old.count + 1,
            set_sum=_signed(old.set_sum + digest),
            order=_signed(old.order * _STEP + digest),
        )
    return found
