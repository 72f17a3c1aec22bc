"""Regular expressions of clients: as Python's own where that has the same words, and quick."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.server.regexes.matching import STATES_MAX, Regex, RegexTooCostly
from tidelog.server.regexes.syntax import (
    CASED_MOST,
    FOLDED_MAX,
    LENGTH_MAX,
    NESTING_MAX,
    REPEAT_MAX,
    InvalidRegex,
)

ATOMS = ("a", "b", "c", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\S", r"\.", "-")
TIMES = ("", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "{1,2}?")


@st.composite
def patterns(draw: st.DrawFn, depth: int = 3) -> str:
    """A pattern that means the same to both."""
    kind = draw(st.integers(0, 5 if depth else 1))
    if kind < 2:
        return draw(st.sampled_from(ATOMS)) + draw(st.sampled_from(TIMES))
    if kind == 2:
        return draw(st.sampled_from(["^", "$"]))
    left = draw(patterns(depth - 1))
    right = draw(patterns(depth - 1))
    times = draw(st.sampled_from(TIMES))
    return [left + right, f"({left}|{right}){times}", f"(?:{left}){times}{right}"][kind - 3]


@given(patterns(), st.text("abc1.-", max_size=8))
def test_a_text_matches_as_by_pythons_own(pattern: str, text: str) -> None:
    theirs = re.compile(pattern, re.ASCII)
    assert Regex(pattern).matches(text) is (theirs.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", "", "anything"),
        ("a.c", "abc", "a\nc"),
        ("(?s)a.c", "a\nc", "ac"),
        ("(?i)Pay-[a-z]+", "pAY-XyZ", "pay-1"),
        (r"\Qa.b\E+x", "a.bbx", "axb"),
        (r"(?P<name>a)(?<other>b)", "ab", "a"),
        (r"\Aab\z", "ab", "abc"),
        ("[[:alpha:]_]+", "ab_C", "a1"),
        ("[[:^digit:]]+", "ab", "a1"),
        ("[]a-]+", "a]-", "b"),
        (r"\x41\x{1F600}", "A\N{GRINNING FACE}", "A"),
        (r"[\d\-x]+", "1-x", "y"),
        ("a{,2}", "a{,2}", "aa"),
        ("x|", "", "y"),
        (r"\t[\n]", "\t\n", "tn"),
        (r"a\b.b", "a b", "acb"),
        (r"a\B\Bb", "ab", "a b"),
        ("(?m)a$\n^b", "a\nb", "a\nc"),
        ("(?ms:a$.^)b", "a\nb", "a b"),
        ("(?s)(?-s:.)", "a", "\n"),
        ("(?i)\u00c9t\u00c9", "\u00e9T\u00c9", "ete"),
        ("(?i)[\u03c3-\u03c4]+", "\u03a3\u03c2\u03a4", "\u03b1"),
        (r"(?i)[[:lower:]]\w", "A\u017f", "1a"),
        (r"(?i)\W", " ", "\u212a"),
        ("[a-c-e]+", "a-e", "d"),
        ("a{01}", "a{01}", "a"),
        ("a*(?i)*b", "aaB", "Ab"),
        (r"a\Q\E*", "aa", "b"),
        ("(((a|b)))|c", "b", "d"),
    ],
)
def test_words_of_the_language(pattern: str, yes: str, no: str | None) -> None:
    matches = Regex(pattern).matches
    assert matches(yes)
    assert no is None or not matches(no)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[",
        "[a",
        "[z-a]",
        "[a-\\d]",
        "[[:nothing:]]",
        "*",
        "|*",
        "a**",
        "a+{2}",
        "a{2,1}",
        "a{1001}",
        "(a{100}){11}",
        "\\",
        "\\p{L}",
        "[\\b]",
        "\\C",
        "{2}",
        "{*",
        "a{123456789}",
        "a" * (LENGTH_MAX + 1),
        "a" * (STATES_MAX + 1),
        "(" + "()" * 100 + "a){1000}",
        "a*" + "(?i)*" * (NESTING_MAX + 1),
        "\\xZZ",
        "\\x{110000}",
        "(?<=a)",
        "(?P<>a)",
        "(?P<a",
        "(" * (NESTING_MAX + 1) + ")" * (NESTING_MAX + 1),
    ],
)
def test_what_is_none_of_the_language_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        Regex(pattern)


def test_what_is_just_within_its_bounds_is_taken() -> None:
    assert Regex("a" * STATES_MAX).matches("a" * STATES_MAX)
    assert Regex(f"a{{{REPEAT_MAX}}}").matches("a" * REPEAT_MAX)
    assert Regex("[" + "a" * (LENGTH_MAX - 2) + "]").matches("a")
    assert Regex("(a|(" * (NESTING_MAX // 2) + "b" + ")*)*" * (NESTING_MAX // 2)).matches("aab")
    assert Regex("a*" + "(?i)*" * NESTING_MAX).matches("aaa")


def test_nothing_is_tried_twice() -> None:
    """Python's own would take 2**60 steps for the first, and as many rounds for the last."""
    assert not Regex("(a*)*b").matches("a" * 60)
    assert not Regex("(a|a)*b").matches("a" * 60)
    assert not Regex("(a*)*(a*)*(a*)*b").matches("a" * 249)
    assert Regex("((((){1000}){1000}){1000}){1000}").matches("")


def test_stays_within_its_budget() -> None:
    with pytest.raises(RegexTooCostly):
        Regex("(.?){50}x", budget=200).find(["a" * 60])
    assert Regex("a+", budget=200).find(["aaa", "b"]) == {"aaa"}


def test_what_is_remembered_takes_no_budget() -> None:
    names = [f"orders-{number}" for number in range(1000)]
    assert len(Regex("orders-[0-9]+", budget=200).find(names)) == 1000


def test_so_many_characters_are_looked_up_in_all_cases_and_no_more() -> None:
    each = [f"[\\x{{{low:x}}}-\\x{{10ffff}}]" for low in range(1, 100)]
    Regex("(?i)" + "".join(each[: FOLDED_MAX // CASED_MOST]))
    Regex("".join(each))
    with pytest.raises(InvalidRegex, match="in all their cases"):
        Regex("(?i)" + "".join(each[: FOLDED_MAX // CASED_MOST + 1]))
