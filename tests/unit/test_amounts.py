"""Amounts for people: few digits, no more precision than is known, and the correct plural."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.amounts import (
    bytes_text,
    duration_text,
    estimate_text,
    offsets_text,
    plural,
    rate_text,
    share_text,
    verb,
)

_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (0.9999, "1s"),
        (3.21, "3.2s"),
        (59.97, "1m"),
        (192, "3m12s"),
        (77_700, "21h35m"),
        (438_612_569.835, "5076d13h"),
        (-120, "-2m"),
        (float("inf"), "forever"),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "0.1ms"),
        (3.21, "3.3s"),
        (59.91, "1m"),
        (77_701, "21h36m"),
        (3_601, "1h1m"),
    ],
)
def test_a_duration_is_rounded_up_if_a_shorter_one_would_be_wrong(
    seconds: float, text: str
) -> None:
    assert duration_text(seconds, rounded=ceil) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.063, "63ms"),
        (9.96, "10s"),
        (59.904, "1m"),
        (119.808, "2m"),
        (-119.808, "-2m"),
        (2_850, "48m"),
        (11_400, "3h10m"),
        (77_700, "22h"),
        (293_760, "3d10h"),
        (132_772, "1d12h"),
    ],
)
def test_an_estimate_has_no_false_digits(seconds: float, text: str) -> None:
    assert estimate_text(seconds) == text


@given(st.floats(min_value=1, max_value=1e8))
def test_an_estimate_is_off_by_little(seconds: float) -> None:
    text, value, number = estimate_text(seconds), 0.0, ""
    for character in text:
        if character in _UNITS_S:
            value, number = value + float(number) * _UNITS_S[character], ""
        else:
            number += character
    assert abs(value - seconds) <= 0.051 * seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (412, "412 B"), (999.6, "1 kB"), (31_600_000, "31.6 MB"), (126_432_112, "126 MB")],
)
def test_bytes_have_three_digits(size: float, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100%"), (0.3992, "40%"), (0.066, "6.6%"), (0.99996, "99.9960%")],
)
def test_a_share_has_two_digits_and_never_rounds_to_all(share: float, text: str) -> None:
    assert share_text(share) == text


def test_nouns_and_verbs_agree_with_their_count() -> None:
    assert [plural(count, "record") for count in (0, 1, 1_240)] == [
        "0 records",
        "1 record",
        "1,240 records",
    ]
    assert plural(2, "query", "queries") == "2 queries"
    assert [verb(count, "lacks", "lack") for count in (0, 1, 2)] == ["lack", "lacks", "lack"]
    assert [offsets_text(3, last) for last in (3, 4)] == ["offset 3", "offsets 3 to 4"]


@pytest.mark.parametrize(
    ("number", "seconds", "text"),
    [
        (336_776, 22.8, "14,800 records/s"),
        (0, 3.0, "0 records/s"),
        (5, 0.0, "5,000 records/s"),
        (0, 0.0, "0 records/s"),
        (1, 217.0, "0.0046 records/s"),
        (1, 3.0, "0.33 records/s"),
        (32, 10.0, "3.20 records/s"),
        (12_345_678, 1.0, "12,300,000 records/s"),
    ],
)
def test_rates_have_two_or_three_digits(number: int, seconds: float, text: str) -> None:
    assert rate_text(number, seconds) == text
    assert rate_text(number, seconds, "") == text.replace(" records", "")
