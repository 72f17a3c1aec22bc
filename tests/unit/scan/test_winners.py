"""The map of latest records grows with the number of keys without losing entries."""

import numpy as np
import pyarrow as pa

from tidelog.scan.winners import ALL_KEYS, Candidates, LatestByKey


def candidates(keys: list[bytes], first: int, *, is_dead: bool = False) -> Candidates:
    count = len(keys)
    return Candidates(
        keys=pa.array(keys, pa.binary()),
        versions=np.zeros(count, np.int64),
        offsets=np.arange(first, first + count, dtype=np.int64),
        is_dead=np.full(count, is_dead),
        sides=np.ones(count, np.uint8),
    )


def test_keys_beyond_the_first_maps_size_keep_their_latest_records() -> None:
    keys = [b"%060d" % number for number in range(5000)]
    table = LatestByKey(bytes(16), memory_bytes=1 << 30)
    table.fold(candidates(keys[:100], 0))
    table.fold(candidates(keys[:10], 100, is_dead=True))
    table.fold(candidates(keys[50:], 110))
    table.fold(candidates(keys[60:70], 5060, is_dead=True))
    assert (table.count, table.left) == (5000, [])
    offsets = [*range(100, 110), *range(10, 50), *range(110, 5060)]
    offsets[60:70] = range(5060, 5070)
    assert table.offsets().tolist() == offsets
    assert np.flatnonzero(~table.living()).tolist() == [*range(10), *range(60, 70)]


def test_little_memory_divides_the_keys_among_passes() -> None:
    keys = [b"%d" % number for number in range(5000)]
    shares, offsets, counts = [ALL_KEYS], list[int](), list[int]()
    while shares:
        assert len(counts) < len(keys), "a pass leaves keys that it could have taken"
        table = LatestByKey(bytes(16), shares.pop(), memory_bytes=1)
        table.fold(candidates(keys, 0))
        table.fold(candidates(keys[:2500], 5000))
        shares += table.left
        counts.append(table.count)
        offsets += table.offsets().tolist()
    assert sorted(offsets) == list(range(2500, 7500))
    assert len(counts) > 1
