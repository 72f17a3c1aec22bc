"""Regular expressions of clients: matches of whole names, refused expressions, and limits."""

import random
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import MissingDependency
from tidelog.server import regexes
from tidelog.server.regexes import (
    LENGTH_MAX,
    UNICODE_CLASSES_MAX,
    UnusableRegex,
    find_matches,
    require_usable,
)

NAMES = (
    *("a", "b", "C", "ab", "Ab", "aB", "aab", "aaab", "x", "xy", "c1", "-", "a-12"),
    *("a.b", "a.bb", "foo", "FOOx", "foo-x", "foo_x", "a_", "0", "Kk", "S"),
)


def matches(text: str, name: str) -> bool:
    return bool(find_matches(text, [name]))


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("a.*", "a ab aB aab aaab a-12 a.b a.bb a_"),
        ("foo|x.?", "x xy foo"),
        ("(?i)FOO.*", "foo FOOx foo-x foo_x"),
        ("(?i:a)b", "ab Ab"),
        ("a(?i)b|c", "ab aB C"),
        ("(?i-i)A|a", "a"),
        ("a{2,3}b", "aab aaab"),
        ("a{2,}b", "aab aaab"),
        ("^a{1}$", "a"),
        ("[a-c]+[[:digit:]]", "c1"),
        ("[^a-z]", "C - 0 S"),
        ("[[:^lower:]]+", "C - 0 S"),
        ("[-x]", "x -"),
        ("[]a]", "a"),
        (r"\Qa.b\E+", "a.b a.bb"),
        (r"\Qa.b", "a.b"),
        (r".*-\d+", "a-12"),
        (r"\w\W\w", "a.b"),
        (r"\pL+", "a b C ab Ab aB aab aaab x xy foo FOOx Kk S"),
        (r"\p{Lu}\PL*", "C S"),
        (r"[\p{Nd}]", "0"),
        (r"\p{^Latin}", "- 0"),
        (r"(?P<n>x)y|(?<m>S)", "xy S"),
        (r"foo\b.*", "foo foo-x"),
        (r"foo\B.+", "foo_x"),
        (r"\Ax\z", "x"),
        (r"\x61|\x{62}|\103", "a b C"),
        ("(a*)*b", "b ab aab aaab"),
        ("", ""),
        ("a||x", "a x"),
        ("a{,2}", ""),
        ("(?i)\u212a+", "Kk"),
        ("[a-c-e]", "a b -"),
    ],
)
def test_matches_whole_names(text: str, matched: str) -> None:
    assert find_matches(text, NAMES) == set(matched.split())


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("", "", "anything"),
        ("a.c", "abc", "a\nc"),
        ("(?s)a.c", "a\nc", "ac"),
        (r"\x41\x{1F600}", "A\N{GRINNING FACE}", "A"),
        ("a.c", "a\N{GRINNING FACE}c", "ac"),
        ("a.c", "a\udc80c", "ac"),
        ("a\udc80c", "a\udc80c", "a\ufffdc"),
        ("a\x00c", "a\x00c", "a"),
        ("a{,2}", "a{,2}", "aa"),
        ("a{01}", "a{01}", "a"),
        (r"\t[\n]", "\t\n", "tn"),
        ("(?m)a$\n^b", "a\nb", "a\nc"),
        ("(?ms:a$.^)b", "a\nb", "a b"),
        ("(?i)\u00c9t\u00c9", "\u00e9T\u00c9", "ete"),
        ("(?i)[\u03c3-\u03c4]+", "\u03a3\u03c2\u03a4", "\u03b1"),
        (r"(?i)[[:lower:]]\w", "A\u017f", "1a"),
        ("a*(?i)*b", "aaB", "Ab"),
        (r"a\Q\E*", "aa", "b"),
    ],
)
def test_words_of_the_language_over_all_of_unicode(text: str, yes: str, no: str) -> None:
    assert find_matches(text, [yes, no]) == {yes}


@pytest.mark.parametrize(
    "text",
    [
        *("(", ")", "a)", "(a", "[a", "[z-a]", "[a-\\d]", "*", "|*", "{2}", "a**", "a+{2}"),
        *("a{2}{3}", "a{1001}", "a{2,1}", "a{123456789}", "((a{100}){100}){100}"),
        *(r"\1", "(?=a)", "(?!a)", "(?<=a)", "(?x)a", "(?i-)a", "[\\b]"),
        *("(?P<>a)", "(?P<a"),
        *("\\", r"\y", r"\x{110000}", r"\xg", r"\p{Nope}", r"\p", "[[:nope:]]"),
        *("a" * (LENGTH_MAX + 1), r"(?:\pL|\pN){100}"),
        r"\pL|" * UNICODE_CLASSES_MAX + r"\PL",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UnusableRegex):
        require_usable(text)


def test_re2_differs_from_re2j_in_these_expressions() -> None:
    for text in ("\\\u00e9", r"\p{Unknown}"):
        with pytest.raises(UnusableRegex):
            require_usable(text)
    assert find_matches(r"(?i)\p{Ll}", NAMES) == {"a", "b", "C", "x", "S"}
    assert matches("(?P<n>a)(?P<n>b)", "ab")
    assert matches(r"\C", "a")
    assert matches("{*", "{{")


def test_a_refusal_has_a_reason() -> None:
    with pytest.raises(UnusableRegex, match=r"^missing \): a\(b$"):
        require_usable("a(b")
    with pytest.raises(UnusableRegex, match=r"^longer than 4096 characters$"):
        find_matches("a" * 5000, [])


def test_expressions_just_within_the_limits_are_accepted() -> None:
    assert matches("a" * LENGTH_MAX, "a" * LENGTH_MAX)
    assert matches("a{1000}", "a" * 1000)
    assert matches(".{1000}", "\u00e9" * 1000)
    assert matches("|".join([r"\pL"] * UNICODE_CLASSES_MAX), "a")
    assert matches("(" * 1300 + "a" + ")*" * 1300, "aaa")


def test_matching_needs_no_backtracking() -> None:
    """Python's `re` would take 2**60 steps for the first expression."""
    for text in ("(a*)*b", "(a|a)*b", "(a*)*(a*)*(a*)*b"):
        assert not matches(text, "a" * 10_000)


def test_a_match_of_too_many_steps_is_refused() -> None:
    name = "".join(random.Random(7).choices("ab", k=5000))
    assert not find_matches("(a|b)*a(a|b){10}x", [name] * 2)
    names = [name + str(number) for number in range(60)]
    assert not find_matches("(a|b)*a(a|b){10}x", names)
    with pytest.raises(UnusableRegex, match="product may be at most 2000000000"):
        find_matches(".*a.{900}x", names)


def test_the_library_is_loaded_for_the_first_expression_alone() -> None:
    code = (
        "import sys, tidelog.server.regexes as r; assert 're2' not in sys.modules;"
        "r.require_usable('a'); assert 're2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_library_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(MissingDependency, match=r"google-re2: pip install 'tidelog\[broker\]'"):
        regexes.require_usable("a")


_ATOMS = st.sampled_from(
    ["a", "b", "c", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\S", r"\.", "-", "^", "$"]
)
_TIMES = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "{1,2}?"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, _TIMES).map(lambda two: f"({two[0]}){two[1]}"),
    )


@given(st.recursive(_ATOMS, _grown, max_leaves=6), st.text(alphabet="abc1.-", max_size=8))
def test_agrees_with_a_backtracking_engine(text: str, name: str) -> None:
    assert matches(text, name) == bool(re.fullmatch(text, name, re.ASCII))
