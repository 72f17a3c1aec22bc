"""Producer snapshots: Kafka's bytes, order and checks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage.log.producers import (
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
    in_hash_order,
)

ENTRY = SnapshotEntry(7, 0, 5, 6, 1, 1_700_000_000_000, -1, -1)
# Known bytes of a snapshot, in Kafka's format.
BYTES = bytes.fromhex(
    "0001 e1a8b0b1 00000001 0000000000000007 0000 00000005 0000000000000006 00000001"
    "0000018bcfe56800 ffffffff ffffffffffffffff"
)


def sealed(body: bytes, version: int = 1) -> bytes:
    return version.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


def test_a_snapshot_is_kafkas_bytes() -> None:
    assert encode_snapshot([ENTRY]) == BYTES
    assert decode_snapshot(BYTES) == [ENTRY]
    assert decode_snapshot(memoryview(BYTES)) == [ENTRY]


def test_a_snapshot_without_producers() -> None:
    assert encode_snapshot([]) == sealed(bytes(4))
    assert decode_snapshot(sealed(bytes(4))) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        BYTES[:9],
        BYTES[:-1],
        BYTES + b"\0",
        sealed(BYTES[6:], version=2),
        sealed(BYTES[6:-1]),
        sealed(BYTES[6:] + b"\0"),
        sealed(b"\0\0\0\2" + BYTES[10:]),
        sealed(b"\x7f\xff\xff\xff" + BYTES[10:]),
        sealed(b"\xff\xff\xff\xff" + BYTES[10:]),
        sealed(b"\0\0\0\2" + BYTES[10:] * 2),
        sealed(b"\0\0\0\1" + b"\xff" * 8 + BYTES[18:]),
    ],
)
def test_a_damaged_snapshot_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_snapshot(data)


def test_every_flipped_bit_is_found() -> None:
    for bit in range(len(BYTES) * 8):
        damaged = bytearray(BYTES)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decode_snapshot(damaged)


@pytest.mark.parametrize(
    ("inserted", "peak", "expected"),
    [
        ([3, 1, 2], 3, [1, 2, 3]),
        ([1000, 2000, 3000], 3, [2000, 1000, 3000]),
        ([16, 0, 32], 3, [16, 0, 32]),
        ([16, 0, 32], 13, [0, 32, 16]),
        ([16, 0, 32], 12, [16, 0, 32]),
        ([1 << 32, 1], 2, [1 << 32, 1]),
        ([1 << 16, 17 << 16, 1], 3, [1 << 16, 17 << 16, 1]),
        ([2, 3 << 32, 1], 3, [1, 2, 3 << 32]),
    ],
)
def test_producers_stand_in_the_order_of_javas_hash_map(
    inserted: list[int], peak: int, expected: list[int]
) -> None:
    assert in_hash_order(inserted, peak) == expected


@given(
    st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 40), unique=True, max_size=200),
    st.integers(0, 100_000),
)
def test_order_is_that_of_a_stable_sort_by_bucket(inserted: list[int], more: int) -> None:
    peak, buckets = len(inserted) + more, 16
    while peak > buckets * 3 // 4:
        buckets *= 2

    def bucket(producer_id: int) -> int:
        folded = (producer_id ^ producer_id >> 32) & 0xFFFF_FFFF
        return (folded ^ folded >> 16) % buckets

    assert in_hash_order(inserted, peak) == sorted(inserted, key=bucket)
