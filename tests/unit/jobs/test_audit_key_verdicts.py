"""An audit's findings by key and its reordered keys equal those computed with dictionaries."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core import examples
from tests.worlds.records import plain_digests
from tests.worlds.records.plain_digests import PlainRecord

from tidelog.env import os_env
from tidelog.errors import CorruptFile
from tidelog.jobs.audit import key_verdicts
from tidelog.jobs.audit.key_verdicts import compare, displaced, undelivered
from tidelog.jobs.audit.options import KINDS, Kind
from tidelog.jobs.audit.run import Section, TopicResult
from tidelog.jobs.audit.state_files import CHUNKS, write_rows
from tidelog.jobs.audit.work import ComparePart, order_part
from tidelog.record.columns.key_tables import KeyTable
from tidelog.record.kernels import key_rows
from tidelog.record.kernels.memory import Longs

SEEDS = (1, 2, 3, 4, 5)
Record = tuple[bytes, int, bytes | None]
records = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"d"]),
        st.sampled_from([-1, 1, 2, 3]),
        st.sampled_from([None, b"", b"x", b"y"]),
    ),
    max_size=12,
)


def plain_rows(log: Sequence[Record], partition: int = 0) -> Longs:
    plain = [PlainRecord(at, ms, key, value) for at, (key, ms, value) in enumerate(log)]
    rows = [
        [
            *plain_digests.hash_key(key, SEEDS),
            *(one.offset, one.create_ms, one.value, one.count, one.set_sum, one.order),
            partition,
        ]
        for key, one in plain_digests.summarise(plain, SEEDS).items()
    ]
    return np.array(rows, np.int64).reshape(-1, key_rows.FIELDS)


def found_by_key(a: Sequence[Record], b: Sequence[Record], *, history: bool) -> dict[bytes, Kind]:
    table = KeyTable()
    table.add(plain_rows(a))
    compared = compare(table, plain_rows(b), history=history)
    names = {plain_digests.hash_key(key, SEEDS): key for key, _, _ in [*a, *b]}
    found = {}
    for row in compared.differences.tolist():
        at = key_verdicts.A_AT if row[key_verdicts.A_AT + key_rows.COUNT] else key_verdicts.B_AT
        key = names[row[at], row[at + 1]]
        assert key not in found
        found[key] = KINDS[row[key_verdicts.KIND]]
    return found


def kind_of(
    a: Sequence[tuple[int, bytes | None]], b: Sequence[tuple[int, bytes | None]], *, history: bool
) -> Kind | None:
    """Return a key's finding, or None; `a` and `b` are its records on A and B as (time, value)."""
    if not a or not b:
        alone = a or b
        if not alone or (not history and alone[-1][1] is None):
            return None
        return Kind.MISSING if a else Kind.EXTRA
    (a_ms, a_value), (b_ms, b_value) = a[-1], b[-1]
    if history and Counter(a) == Counter(b) and list(a) != list(b):
        return Kind.REORDERED
    kind = None if a_value == b_value else Kind.CHANGED
    if -1 not in (a_ms, b_ms) and a_ms != b_ms:
        kind = Kind.STALE if b_ms < a_ms else Kind.AHEAD
    if kind is not None:
        return kind
    more = Kind.DUPLICATED if len(b) > len(a) else Kind.VERSIONS
    return more if history and Counter(a) != Counter(b) else None


@given(a=records, b=records, history=st.booleans())
@example(a=[(b"a", 1, b"x"), (b"a", 2, b"y")], b=[(b"a", 2, b"y"), (b"a", 1, b"x")], history=True)
@example(a=[(b"a", 1, None)], b=[], history=False)
@examples(300)
def test_the_finding_of_each_key_equals_that_of_dictionaries(
    a: list[Record], b: list[Record], history: bool
) -> None:
    expected = {}
    for key in (b"a", b"b", b"c", b"d"):
        sides = [[(ms, value) for k, ms, value in log if k == key] for log in (a, b)]
        kind = kind_of(sides[0], sides[1], history=history)
        if kind is not None:
            expected[key] = kind
    assert found_by_key(a, b, history=history) == expected


@given(log=records, at=st.integers(0, 11), history=st.booleans())
def test_one_change_is_found(log: list[Record], at: int, history: bool) -> None:
    assert found_by_key(log, log, history=history) == {}
    if at < len(log):
        key, ms, _ = log[at]
        changed = [*log[:at], (key, ms, b"changed"), *log[at + 1 :]]
        is_last = all(k != key for k, _, _ in log[at + 1 :])
        found = found_by_key(log, changed, history=history)
        assert set(found) == ({key} if is_last or history else set())


def test_keys_deleted_and_unknown_are_counted() -> None:
    table = KeyTable()
    table.add(plain_rows([(b"a", 1, None), (b"b", 1, b"x")]))
    compared = compare(table, plain_rows([(b"b", 1, b"x"), (b"c", 2, None)]), history=False)
    assert (len(compared.differences), compared.deleted) == (0, 2)


def test_a_table_of_thousands_of_keys_finds_each_of_them() -> None:
    rows = plain_rows([(b"%d" % number, number, b"v") for number in range(6000)])
    table = KeyTable()
    assert table.add(rows[:5000]) == 5000
    assert table.find(rows).tolist() == [*range(5000), *[-1] * 1000]
    assert np.array_equal(table.rows, rows[:5000])


def test_keys_of_several_partitions_have_no_order() -> None:
    a, b = plain_rows([(b"a", 1, b"x")]), plain_rows([(b"a", 1, b"x")])
    a[:, key_rows.PARTITION] = ~0
    a[:, key_rows.ORDER] += 1
    table = KeyTable()
    table.add(a)
    compared = compare(table, b, history=True)
    assert (len(compared.differences), len(compared.pairs)) == (0, 0)


def test_undelivered_keys() -> None:
    rows = np.concatenate(
        [plain_rows([(b"a", 1, b"x"), (b"b", 1, b"x")]), plain_rows([(b"c", 1, b"")], 2)]
    )
    rows[1, key_rows.PARTITION] = ~2
    found = undelivered(rows, [0, 2], [1, 1])
    assert found[:, key_verdicts.B_AT : key_verdicts.B_AT + 2].tolist() == rows[1:2, :2].tolist()
    assert len(undelivered(rows, [0, 2], [0, 0])) == 3
    assert len(undelivered(rows, [0, 2], [9, 9])) == 0


# -- the order of keys ----------------------------------------------------------------------------


def displaced_of(offsets: Sequence[int], partitions: Sequence[tuple[int, int]] = ()) -> set[int]:
    """Return the offsets in A of reordered keys; key n has offset n in A, `offsets[n]` in B."""
    pairs = np.zeros((len(offsets), key_verdicts.PAIR_FIELDS), np.int64)
    pairs[:, key_verdicts.PAIR_A_OFFSET] = np.arange(len(offsets))
    pairs[:, key_verdicts.PAIR_B_OFFSET] = offsets
    for at, (a, b) in enumerate(partitions):
        pairs[at, key_verdicts.PAIR_A_PARTITION], pairs[at, key_verdicts.PAIR_B_PARTITION] = a, b
    # The order of the pairs does not matter.
    pairs = pairs[np.random.default_rng(len(offsets)).permutation(len(pairs))]
    return set(displaced(pairs)[:, key_verdicts.PAIR_A_OFFSET].tolist())


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([], set()),
        ([5], set()),
        ([1, 4, 6, 9], set()),
        ([0, 2, 1, 3], {1, 2}),
        ([0, 5, 2, 3, 4, 1, 6], {1, 5}),
        ([1, 2, 3, 4, 5, 0], {5}),
        ([5, 0, 1, 2, 3, 4], {0}),
        ([0, 2, 1, 3, 5, 4], {1, 2, 4, 5}),
        ([2, 1, 0], {0, 2}),
    ],
)
def test_keys_in_another_order(offsets: list[int], expected: set[int]) -> None:
    assert displaced_of(offsets) == expected


def test_partitions_have_orders_of_their_own() -> None:
    assert displaced_of([4, 3, 2, 1], [(0, 0), (0, 1), (1, 0), (1, 1)]) == set()
    assert displaced_of([4, 3, 2, 1], [(0, 0), (1, 0), (0, 0), (1, 1)]) == {0, 2}


def test_sections_of_a_file_contain_the_pairs_of_one_partition_on_each_side(
    tmp_path: Path,
) -> None:
    """One key is in partition 1 of A and 0 of B; two are in 0 of A and 1 of B, in another order."""
    one, two, three = [(name, 1, b"v") for name in (b"one", b"two", b"three")]
    sides = [
        [(0, plain_rows([two, three])), (1, plain_rows([one], 1))],
        [(0, plain_rows([one])), (1, plain_rows([three, two], 1))],
    ]
    files = []
    for number, side in enumerate(sides):
        names = [f"{number}-{partition}.rows" for partition, _ in side]
        for name, (_, rows) in zip(names, side, strict=True):
            order = np.argsort(rows[:, key_rows.HASH_HIGH].view(np.uint64))
            write_rows(os_env(), str(tmp_path / name), rows[order])
        files.append(
            [(partition, [name]) for name, (partition, _) in zip(names, side, strict=True)]
        )
    fields = {"files": files, "chunks": [0, CHUNKS], "history": True, "positions": None}
    compare_part = ComparePart(folder=str(tmp_path), keys_max=9, wants_order=True)
    text, _ = compare_part(json.dumps(fields | {"behind": []}))
    assert isinstance(text, str)
    result = TopicResult(history=True)
    counts = json.loads(text)
    assert counts.pop("damaged") == []
    result.add(counts, b"", frozenset())
    assert set(result.sections) == {(0, 1), (1, 0)}
    assert ordered(tmp_path, result.sections[1, 0]) == []
    assert ordered(tmp_path, result.sections[0, 1]) == [(0, 0, 1, 1), (0, 1, 1, 0)]
    ((name, *_),) = result.sections[1, 0]
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    assert len(ordered(tmp_path, result.sections[0, 1])) == 2
    with pytest.raises(CorruptFile, match="the pairs do not match their checksum"):
        ordered(tmp_path, result.sections[1, 0])


def ordered(folder: Path, sections: Sequence[Section]) -> list[tuple[int, ...]]:
    """Return partition and offset on A, and partition and offset on B, of the displaced pairs."""
    (data,) = order_part(str(folder), json.dumps(sections))
    assert isinstance(data, bytes)
    pairs = np.frombuffer(data, np.int64).reshape(-1, key_verdicts.PAIR_FIELDS)
    return [tuple(pair) for pair in pairs[:, :4].tolist()]


@given(offsets=st.permutations(range(9)))
def test_without_the_displaced_the_rest_is_in_order(offsets: list[int]) -> None:
    found = displaced_of(offsets)
    rest = [offset for at, offset in enumerate(offsets) if at not in found]
    assert rest == sorted(rest)
    fewest = next(
        size
        for size in range(10)
        if any(list(kept) == sorted(kept) for kept in combinations(offsets, len(offsets) - size))
    )
    assert fewest <= len(found) <= 2 * fewest


@given(
    count=st.integers(2, 200),
    swaps=st.lists(st.tuples(st.integers(0, 199), st.integers(0, 199)), max_size=3),
)
def test_keys_that_changed_places_are_displaced_and_no_others(
    count: int, swaps: list[tuple[int, int]]
) -> None:
    offsets, swapped = list(range(0, 3 * count, 3)), set[int]()
    for left, right in swaps:
        if max(left, right) < count and left != right and not swapped & {left, right}:
            offsets[left], offsets[right] = offsets[right], offsets[left]
            swapped |= {left, right}
    assert displaced_of(offsets) == swapped
