"""Sets of characters: as Python's own sets, and letters of all cases."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.server.regexes.characters import (
    CASED_BLOCKS,
    CODE_POINT_MAX,
    EVERYTHING,
    Range,
    Ranges,
    fold,
    holds,
    opposite,
    simple_fold,
    union,
)

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda two: (two[0], sum(two)))
)


def members(ranges: Ranges, below: int = 100) -> set[int]:
    return {each for each in range(below) if holds(ranges, each)}


@given(RANGES)
def test_a_union_has_what_its_ranges_have(ranges: list[Range]) -> None:
    found = union(ranges)
    assert members(found) == {one for low, high in ranges for one in range(low, high + 1)}
    assert all(left[1] + 1 < right[0] for left, right in pairwise(found))


@given(RANGES)
def test_an_opposite_has_what_is_not_there(ranges: list[Range]) -> None:
    found = opposite(union(ranges))
    assert members(found) == set(range(100)) - members(union(ranges))
    assert holds(found, CODE_POINT_MAX)
    assert opposite(found) == union(ranges)


def test_ends_of_all_characters() -> None:
    assert opposite(EVERYTHING) == ()
    assert opposite(()) == EVERYTHING
    assert fold(EVERYTHING) == EVERYTHING


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        ("k", "kK\u212a"),
        ("S", "sS\u017f"),
        ("\u00e5", "\u00e5\u00c5\u212b"),
        ("\u00df", "\u00df\u1e9e"),
        ("\u0130", "\u0130"),
        ("\u01c5", "\u01c4\u01c5\u01c6"),
        ("\U00010400", "\U00010400\U00010428"),
        ("1", "1"),
    ],
)
def test_letters_of_all_cases(text: str, cases: str) -> None:
    assert fold(((ord(text), ord(text)),)) == union((ord(case), ord(case)) for case in cases)


@pytest.mark.slow
def test_letters_outside_of_the_blocks_have_no_cases() -> None:
    outside = (
        chr(code_point)
        for low, high in opposite(CASED_BLOCKS)
        for code_point in range(low, high + 1)
    )
    assert all(simple_fold(one) == one for one in outside)
