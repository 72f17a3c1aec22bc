"""Plots: marks stand where their values are."""

from xml.etree import ElementTree as ET

import pytest

from tidelog.report import Axis, Series, lines, nice_ticks, short, stacked_bars, whole

SVG = "{http://www.w3.org/2000/svg}"
HOURS = Axis("hour", "{}:00".format, every=3)


def test_bars_stand_on_each_other() -> None:
    series = [Series("left", "s0", {5: 10.0}), Series("cancelled", "s1", {5: 5.0})]
    root = ET.fromstring(stacked_bars({"EWR": series}, "flights", HOURS))
    low, high = root.iter(f"{SVG}rect")
    bottom = float(high.get("y", "0")) + float(high.get("height", "0"))
    assert bottom == pytest.approx(float(low.get("y", "0")), abs=0.11)
    assert float(low.get("height", "0")) == pytest.approx(
        2 * float(high.get("height", "0")), abs=0.2
    )
    assert [title.text for title in root.iter(f"{SVG}title")] == [
        "EWR 5:00, left: 10",
        "EWR 5:00, cancelled: 5",
    ]


def test_lines_rise_with_their_values_also_below_zero() -> None:
    series = [Series("median", "s0", {5: -10.0, 6: 0.0, 7: 20.0})]
    root = ET.fromstring(lines({"EWR": series}, "minutes", HOURS))
    ys = [float(circle.get("cy", "0")) for circle in root.iter(f"{SVG}circle")]
    assert ys == sorted(ys, reverse=True)
    assert ys[1] - ys[2] == pytest.approx(2 * (ys[0] - ys[1]), abs=0.2)


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (0, 31, [0, 10, 20, 30, 40]),
        (-4, 175, [-50, 0, 50, 100, 150, 200]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3, 5, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_ticks_are_round_and_span_the_values(
    lowest: float, highest: float, ticks: list[float]
) -> None:
    found = nice_ticks(lowest, highest)
    assert found[0] <= min(lowest, 0)
    assert found[-1] >= highest
    assert found == pytest.approx(ticks[: len(found)])


def test_large_numbers_are_short_on_the_axis_and_whole_in_tips() -> None:
    assert [short(value) for value in (0, 999, 1_500, 250_000, 3e6, 2e9, -40_000)] == [
        *("0", "999", "1.5k", "250k", "3M", "2G", "-40k"),
    ]
    assert [whole(value) for value in (0.0, 12_345_678.0, 1.25)] == ["0", "12,345,678", "1.25"]


def test_names_are_escaped() -> None:
    hostile = "<script>alert('1')</script>"
    axis = Axis(hostile, lambda _number: hostile)
    drawn = stacked_bars({hostile: [Series(hostile, "s0", {1: 2.0})]}, hostile, axis)
    assert "<script" not in drawn
    root = ET.fromstring(drawn)
    assert root.get("aria-label") == f"{hostile} by {hostile}, for {hostile}"
