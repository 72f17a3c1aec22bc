"""The kernel that finds the winner of each key: compiled, interpreted, and compared with a dict."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.record.kernels import last_records as kernels
from tidelog.record.kernels.compiler import plain
from tidelog.record.kernels.last_records import (
    KeyedRows,
    WinnerMap,
    fold_rows,
    keep_share,
    link_slots,
)

FOLDS = [fold_rows, plain(fold_rows)]
# Each record: key, version, whether it is a tombstone, and a bit mask of the sides that have it.
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"b", b"aaaaaaaab", b"aaaaaaaac", b"aaaaaaaa"]),
        st.integers(-2, 2),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=30,
)
Row = tuple[bytes, int, bool, int]


def keyed_rows(rows: list[Row], hashed: Callable[[bytes], int]) -> KeyedRows:
    keys = [row[0] for row in rows]
    return KeyedRows(
        keys=np.frombuffer(b"".join(keys), np.uint8),
        ends=np.cumsum([0, *map(len, keys)]).astype(np.int32),
        hashes=np.array([hashed(key) for key in keys], np.int64),
        versions=np.array([row[1] for row in rows], np.int64),
        offsets=np.arange(len(rows), dtype=np.int64),
        is_dead=np.array([row[2] for row in rows], np.uint8),
        sides=np.array([row[3] for row in rows], np.uint8),
    )


def new_map(entries: int, key_bytes: int) -> tuple[WinnerMap, "np.typing.NDArray[np.int64]"]:
    slots = 2
    while slots < 2 * entries:
        slots *= 2
    found = WinnerMap(
        slots=np.full(slots, -1, np.int32),
        hashes=np.zeros(entries, np.int64),
        key_ends=np.zeros(entries + 1, np.int64),
        keys=np.zeros(key_bytes, np.uint8),
        versions=np.zeros((2, entries), np.int64),
        offsets=np.zeros((2, entries), np.int64),
        is_dead=np.zeros((2, entries), np.uint8),
    )
    return found, np.zeros(kernels.USED_FIELDS, np.int64)


def expected(rows: list[Row], side: int) -> dict[bytes, tuple[int, int, bool]]:
    """Return each key's winner on a side: version, offset, and whether it is a tombstone."""
    found: dict[bytes, tuple[int, int, bool]] = {}
    for offset, (key, version, is_dead, sides) in enumerate(rows):
        if sides >> side & 1:
            found[key] = max(found.get(key, (-99, -1, False)), (version, offset, is_dead))
    return found


def found_in(into: WinnerMap, used: "np.typing.NDArray[np.int64]", side: int) -> object:
    keys = [
        into.keys[into.key_ends[at] : into.key_ends[at + 1]].tobytes()
        for at in range(int(used[kernels.ENTRIES]))
    ]
    return {
        key: (
            int(into.versions[side, at]),
            int(into.offsets[side, at]),
            bool(into.is_dead[side, at]),
        )
        for at, key in enumerate(keys)
        if into.offsets[side, at] >= 0
    }


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("bits", [-1, 0])
@given(rows=ROWS)
def test_the_highest_version_then_offset_wins_on_each_side(
    fold: Callable[..., int], bits: int, rows: list[Row]
) -> None:
    # With 0 bits of the hash, all keys have the same hash.
    into, used = new_map(8, 64)
    given_rows = keyed_rows(rows, lambda key: hash(key) & bits)
    assert fold(given_rows, 0, 0, 0, into, used) == len(rows)
    for side in (0, 1):
        assert found_in(into, used, side) == expected(rows, side)


@pytest.mark.parametrize("fold", FOLDS)
@given(rows=ROWS)
def test_a_full_map_returns_the_row_at_which_it_stopped(
    fold: Callable[..., int], rows: list[Row]
) -> None:
    into, used = new_map(2, 64)
    given_rows = keyed_rows(rows, hash)
    stopped = fold(given_rows, 0, 0, 0, into, used)
    assert found_in(into, used, 0) == expected(rows[:stopped], 0)
    if stopped < len(rows):
        seen = {key for key, _, _, sides in rows[:stopped] if sides}
        assert len(seen) == 2
        assert rows[stopped][0] not in seen


@pytest.mark.parametrize("keep", [(keep_share, link_slots), (plain(keep_share), plain(link_slots))])
@given(rows=ROWS, mask=st.sampled_from([1, 3]))
def test_keys_of_another_share_are_dropped_and_the_others_found_again(
    keep: tuple[Callable[..., None], Callable[..., None]], rows: list[Row], mask: int
) -> None:
    into, used = new_map(8, 64)

    def hashed(key: bytes) -> int:
        return sum(key) + len(key)

    given_rows = keyed_rows(rows, hashed)
    fold_rows(given_rows, 0, 0, 0, into, used)
    keep[0](into, used, mask, 1)
    into.slots[:] = -1
    keep[1](into, int(used[kernels.ENTRIES]))
    mine = [row if hashed(row[0]) & mask == 1 else (*row[:3], 0) for row in rows]
    assert found_in(into, used, 1) == expected(mine, 1)
    # Adding the same records again changes nothing, because each key is found in its slot.
    assert fold_rows(given_rows, 0, mask, 1, into, used) == len(rows)
    assert found_in(into, used, 1) == expected(mine, 1)
