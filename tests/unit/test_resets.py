"""Offset resets of share groups: the three forms that Kafka accepts."""

import pytest

from tidelog.config.values import parse_reset


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("earliest", 0),
        ("latest", 0),
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:p2d", 172_800_000),
        ("by_duration:PT0.0019S", 1),
    ],
)
def test_valid_resets_are_parsed(text: str, ms: int) -> None:
    assert parse_reset(text) == (text.partition(":")[0], ms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Earliest",
        "none",
        "PT1H",
        "by_duration:",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:-PT1H",
        "by_duration:PT-1H",
        "by_duration:1h",
        "by_duration:PT1H\n",
        "by_duration:P" + "9" * 19 + "D",
    ],
)
def test_invalid_resets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_reset(text)
