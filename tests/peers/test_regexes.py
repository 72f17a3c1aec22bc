"""Regular expressions of clients, held against RE2J as Kafka's own jars contain it."""

from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.worlds.kafka.oracle import Oracle

from tidelog.server.regexes.matching import Regex
from tidelog.server.regexes.syntax import InvalidRegex
from tidelog.server.regexes.topic_names import ALPHABET, compile_topics

pytestmark = pytest.mark.kafka

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
    *("\\x41", "\\x{e9}", "\\101", "\\_", "\\\u00e9", "\\.", "\\n", "\\Qa.\\E", "\\Q\\E"),
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
    *("\\p{Latin}", "\\P{Common}", "\\p{Greek}", "\\p{Unknown}", "\\p{Any}", "[\\pLu1]", "\\p{No}"),
    *("[^\\p{Ll}]", "\\p{Cn}", "\\pP", "\\p{Inherited}", "\\p{Kayah_Li}", "\\p{}", "\\p^L"),
)
TEXTS = st.text("abekAKsS1_-. \n\u00e9\u00c9\u212a\u017f\U00010400\U00010428", max_size=5)
NAMES = st.text(ALPHABET, max_size=5)


def regexes(*words: str) -> st.SearchStrategy[str]:
    """Expressions of all the language and these words, now and then with one that is wrong."""
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


@given(regexes(), st.lists(TEXTS, min_size=10, max_size=20))
@example("(?i)\u00e9[j-l]\\W", ["\u00c9\u212a "])
@example("a*(?i)*|x{0,}", ["aa", "Aa", "xx"])
@example("(?m)a$\n^b", ["a\nb", "ab"])
@example("a{123456789}", [])
@example("{*", [])
@example("(" * 100 + "a" + ")*" * 100, ["aaa", "b"])
def test_texts_match_as_in_kafka(kafka_oracle: Oracle, regex: str, texts: list[str]) -> None:
    try:
        compiled = Regex(regex)
    except InvalidRegex:
        found = None
    else:
        found = [compiled.matches(text) for text in texts]
    assert found == ask(kafka_oracle, regex, texts)


@given(regexes(*UNICODE, *UNICODE), st.lists(NAMES, min_size=10, max_size=20))
def test_names_of_topics_match_as_in_kafka(
    kafka_oracle: Oracle, regex: str, texts: list[str]
) -> None:
    try:
        compiled = compile_topics(regex)
    except InvalidRegex:
        found = None
    else:
        found = [compiled.matches(text) for text in texts]
    assert found == ask(kafka_oracle, regex, texts)


@pytest.mark.parametrize("flags", ["", "(?i)"])
def test_each_letter_of_names_is_in_the_classes_it_is_in_in_kafka(
    kafka_oracle: Oracle, flags: str
) -> None:
    letters = list(ALPHABET)
    for word in [*ATOMS, *UNICODE, *(f"[[:{name}:]]" for name in ("graph", "punct", "xdigit"))]:
        told = ask(kafka_oracle, flags + word, letters)
        if told is None:
            with pytest.raises(InvalidRegex):
                compile_topics(flags + word)
        else:
            compiled = compile_topics(flags + word)
            assert [compiled.matches(letter) for letter in letters] == told, word
