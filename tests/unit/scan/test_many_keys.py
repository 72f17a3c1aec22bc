"""The map of winners grows with the keys, and what it knew before stays."""

import numpy as np
import pyarrow as pa

from tidelog.scan.winners import Candidates, Winners


def candidates(keys: list[bytes], first: int, *, is_dead: bool = False) -> Candidates:
    count = len(keys)
    return Candidates(
        keys=pa.array(keys, pa.binary()),
        versions=np.zeros(count, np.int64),
        offsets=np.arange(first, first + count, dtype=np.int64),
        is_dead=np.full(count, is_dead),
        sides=np.ones(count, np.uint8),
    )


def test_more_and_longer_keys_than_the_first_map_holds_keep_their_winners() -> None:
    keys = [b"%060d" % number for number in range(5000)]
    winners = Winners(bytes(16), memory_bytes=1 << 30)
    winners.fold(candidates(keys[:100], 0))
    winners.fold(candidates(keys[:10], 100, is_dead=True))
    winners.fold(candidates(keys[50:], 110))
    assert (winners.count, winners.left) == (5000, [])
    assert winners.offsets().tolist() == [*range(100, 110), *range(10, 50), *range(110, 5060)]
    assert winners.living().tolist() == [False] * 10 + [True] * 4990
