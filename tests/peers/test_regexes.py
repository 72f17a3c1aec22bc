"""Regular expressions of clients, compared with RE2J from Kafka's own jars.

Our broker uses RE2. Expressions that RE2 and RE2J handle differently (docs/differences.md) are
excluded.
"""

import re
import string
from typing import cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.worlds.kafka.oracle import Oracle

from tidelog.server.regexes import UnusableRegex, find_matches

pytestmark = pytest.mark.kafka

ALPHABET = string.ascii_letters + string.digits + "._-"

ATOMS = (
    *(
        "a",
        "b",
        "K",
        "s",
        "1",
        "_",
        "-",
        ".",
        " ",
        "\n",
        "\u00e9",
        "\u212a",
        "\u017f",
        "\U00010400",
    ),
    *(
        "[ab]",
        "[^a]",
        "[a-c-e]",
        "[]k]",
        "[^]a]",
        "[[:alpha:]_]",
        "[[:^lower:]]",
        "[\\d-z]",
        "[-a]",
    ),
    *(
        "[\\x{41}-k]",
        "[[a]",
        "[a\\]]",
        "[^\\W]",
        "[\\n ]",
        "\\d",
        "\\D",
        "\\s",
        "\\S",
        "\\w",
        "\\W",
    ),
    *("\\x41", "\\x{e9}", "\\101", "\\_", "\\.", "\\n", "\\Qa.\\E", "\\Q\\E"),
)
PLACES = ("^", "$", "\\b", "\\B", "\\A", "\\z")
GROUPS = ("(", "(?:", "(?i:", "(?P<n>", "(?<m>", "(?s-i:", "(?m:")
FLAGS = ("(?i)", "(?s)", "(?m)", "(?U)", "(?-i)", "(?)", "(?im-s)")
TIMES = ("", "", "", "*", "+", "?", "*?", "??", "{2}", "{0,3}", "{1,}", "{0}", "{01}", "{,2}", "{2")
WRONG = (
    *("[", "]", "{", "\\", "(?", "[b-a]", "[:", "\\1", "\\y", "(?="),
    *("{2,1}", "\\pX", "\\x{", "{}", "[a--]"),
)
UNICODE = (
    *("\\pL", "\\PL", "\\p{Lu}", "\\p{Ll}", "\\P{Lu}", "\\p{^Ll}", "\\p{Nd}", "\\p{Pc}", "\\pS"),
    *("\\p{Latin}", "\\P{Common}", "\\p{Greek}", "\\p{Any}", "[\\pLu1]", "\\p{No}"),
    *("[^\\p{Ll}]", "\\p{Cn}", "\\pP", "\\p{Inherited}", "\\p{Kayah_Li}", "\\p{}", "\\p^L"),
)
TEXTS = st.text("abekAKsS1_-. \n\u00e9\u00c9\u212a\u017f\U00010400\U00010428", max_size=5)
NAMES = st.text(ALPHABET, max_size=5)


def regexes(*words: str) -> st.SearchStrategy[str]:
    """Draw expressions with these words; they use the whole language, and some are invalid."""
    times = st.sampled_from(TIMES)
    atoms = st.tuples(st.sampled_from([*ATOMS, *words]), times).map("".join)
    right = st.recursive(
        st.one_of(atoms, atoms, atoms, st.sampled_from([*PLACES, *FLAGS])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4).map("".join),
            st.tuples(inner, inner).map("|".join),
            st.tuples(st.sampled_from(GROUPS), inner, st.just(")"), times).map("".join),
        ),
        max_leaves=6,
    )
    wrong = st.tuples(right, st.sampled_from([*WRONG, "(", ")", "*", "{2}"]), right).map("".join)
    return st.one_of(right, right, right, wrong)


def ask(oracle: Oracle, regex: str, texts: list[str]) -> list[bool] | None:
    return cast("list[bool] | None", oracle.ask("match", regex=regex, texts=texts))


def is_taken_otherwise(regex: str) -> bool:
    """Whether RE2 handles an expression differently from RE2J.

    The two differ for `{` followed by a brace or a repetition, a duplicate group name, `(?i)` with
    lowercase classes, and an escaped character outside of ASCII.
    """
    names = re.findall(r"\(\?P?<(\w+)>", regex)
    return (
        re.search(r"\{[*+?{]|\\[^\x00-\x7f]", regex) is not None
        or len(names) > len(set(names))
        or ("Ll}" in regex and re.search(r"\(\?[ms]*i", regex) is not None)
    )


def found(regex: str, texts: list[str]) -> list[bool] | None:
    """Return for each text whether it matches; None if our broker refuses the expression."""
    try:
        matched = find_matches(regex, texts)
    except UnusableRegex:
        return None
    return [text in matched for text in texts]


@given(regexes(), st.lists(TEXTS, min_size=10, max_size=20))
@example("(?i)\u00e9[j-l]\\W", ["\u00c9\u212a "])
@example("a*(?i)*|x{0,}", ["aa", "Aa", "xx"])
@example("(?m)a$\n^b", ["a\nb", "ab"])
@example("a{123456789}", [])
@example("(" * 100 + "a" + ")*" * 100, ["aaa", "b"])
def test_texts_match_as_in_kafka(kafka_oracle: Oracle, regex: str, texts: list[str]) -> None:
    assume(not is_taken_otherwise(regex))
    assert found(regex, texts) == ask(kafka_oracle, regex, texts)


@given(regexes(*UNICODE, *UNICODE), st.lists(NAMES, min_size=10, max_size=20))
def test_names_of_topics_match_as_in_kafka(
    kafka_oracle: Oracle, regex: str, texts: list[str]
) -> None:
    assume(not is_taken_otherwise(regex))
    assert found(regex, texts) == ask(kafka_oracle, regex, texts)


@pytest.mark.parametrize("flags", ["", "(?i)"])
def test_each_letter_of_names_is_in_the_classes_it_is_in_in_kafka(
    kafka_oracle: Oracle, flags: str
) -> None:
    letters = list(ALPHABET)
    for word in [*ATOMS, *UNICODE, *(f"[[:{name}:]]" for name in ("graph", "punct", "xdigit"))]:
        regex = flags + word
        if not is_taken_otherwise(regex):
            assert found(regex, letters) == ask(kafka_oracle, regex, letters), word
