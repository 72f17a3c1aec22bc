"""Hashes of keys: SipHash gives its authors' vectors, and kernels agree with the reference."""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples

from tidelog.record import key_hash
from tidelog.record.kernels import hashes as kernels
from tidelog.record.kernels import key_map
from tidelog.record.kernels.compiler import plain

SEED = bytes(range(16))


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
    ],
)
def test_siphash_of_the_authors_vectors(size: int, digest: str) -> None:
    assert key_hash.siphash(SEED, bytes(range(size))).hex() == digest


def md5(seed: bytes, key: bytes) -> bytes:
    """Return the MD5 of seed and key."""
    return hashlib.md5(seed + key).digest()


@given(keys=st.lists(st.binary(max_size=150), max_size=4), seed=st.binary(min_size=16, max_size=16))
@pytest.mark.parametrize(
    ("algorithm", "reference"),
    [(kernels.SIPHASH, key_hash.siphash), (kernels.MD5, md5)],
)
@pytest.mark.parametrize("run", [kernels.hash_keys, plain(kernels.hash_keys)])
def test_the_kernel_hashes_as_the_reference(
    keys: list[bytes],
    seed: bytes,
    algorithm: int,
    reference: object,
    run: object,
) -> None:
    assert callable(run)
    assert callable(reference)
    data = np.frombuffer(b"".join(keys), np.uint8)
    ends = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    out = np.zeros((len(keys), 2), np.int64)
    run(data, ends, kernels.make_hasher(algorithm, seed), out)
    found = [(low, high) for low, high in out.tolist()]
    assert found == [key_hash.halves(reference(seed, key)) for key in keys]


def test_a_hash_of_zeros_is_another_one() -> None:
    out = np.zeros((1, 2), np.int64)
    hasher = kernels.make_hasher(kernels.SIPHASH, SEED, 0, 0)
    kernels.hash_keys(np.frombuffer(b"k", np.uint8), np.array([0, 1]), hasher, out)
    assert out.tolist() == [[1, 0]]


SLOTS = 1000


@examples(40)
@given(
    keys=st.lists(st.none() | st.binary(max_size=40), max_size=key_map.HALF_ROWS),
    size=st.none() | st.integers(0, 40),
    seed=st.binary(min_size=16, max_size=16),
)
@pytest.mark.parametrize("start", [0, key_map.HALF_ROWS])
@pytest.mark.parametrize("run", [key_map.hash_rows, plain(key_map.hash_rows)])
def test_many_side_by_side_are_as_each_alone(
    run: Callable[..., None], start: int, keys: list[bytes | None], size: int | None, seed: bytes
) -> None:
    # The kernel hashes keys of equal size in parallel. Long keys and keys of different sizes are
    # often hashed one by one.
    if size is not None:
        keys = [None if key is None else key.ljust(size, b"x")[:size] for key in keys]
    window = np.zeros(key_map.WINDOW_SIZE, np.int64)
    data, rows = bytearray(b"?"), range(start, start + len(keys))
    for row, key in zip(rows, keys, strict=True):
        key_map.put_fact(window, key_map.KEY_AT, row, len(data))
        key_map.put_fact(window, key_map.KEY_SIZE, row, -1 if key is None else len(key))
        data += key or b""
    hasher = kernels.make_hasher(kernels.SIPHASH, seed)
    run(np.frombuffer(bytes(data), np.uint8), start, len(keys), hasher, SLOTS, window)
    for row, key in zip(rows, keys, strict=True):
        columns = key_map.HASH_LOW, key_map.HASH_HIGH, key_map.SLOT
        low, high, slot = (key_map.get_fact(window, column, row) for column in columns)
        if key is None:
            assert slot == key_map.NO_SLOT
        else:
            assert (low, high) == key_hash.halves(key_hash.siphash(seed, key))
            assert slot == (low >> 32 & 0xFFFFFFFF) * SLOTS >> 32
