"""Regular expressions of subscriptions: which topics they mean, and what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.server.regexes.syntax import InvalidRegex
from tidelog.server.regexes.topic_names import compile_topics

NAMES = (
    *("a", "b", "C", "ab", "Ab", "aB", "aab", "aaab", "x", "xy", "c1", "-", "a-12"),
    *("a.b", "a.bb", "foo", "FOOx", "foo-x", "foo_x", "a_", "0", "Kk", "S"),
)


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
        (r"(?i)\p{Lu}\p{^Ll}+", "aB c1 a-12 a_"),
    ],
)
def test_matches_whole_names(text: str, matched: str) -> None:
    assert compile_topics(text).find(NAMES) == set(matched.split())


@pytest.mark.parametrize(
    "text",
    [
        *("(", "a)", "(a", "[a", "[z-a]", "*", "|*", "a**", "a{2}{3}", "a{1001}", "a{2,1}"),
        *(r"\1", "(?=a)", "(?!a)", "(?<=a)", "(?P<n>a)(?P<n>b)", "(?P<>a)", "(?x)a", "(?i-)a"),
        *("\\", r"\y", r"\x{110000}", r"\xg", r"\p{Nope}", r"\p", "[[:nope:]]", "{2}"),
        *("((a{100}){100}){100}", "(" * 150 + ")" * 150, "a" * 5000),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidRegex):
        compile_topics(text)


_ATOMS = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\d", r"\w", "1"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    )


@given(st.recursive(_ATOMS, _grown, max_leaves=6), st.text(alphabet="ab1-", max_size=6))
def test_agrees_with_a_backtracking_engine(text: str, name: str) -> None:
    assert compile_topics(text).matches(name) == bool(re.fullmatch(text, name))
