"""Plots: units and ticks of axes, gaps, outliers, and the contents of the SVG."""

import math
import re
from datetime import UTC, datetime
from itertools import pairwise
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import pytest

from tidelog.plots import (
    STEPS_MAX,
    Numbers,
    Plot,
    Series,
    Steps,
    Unit,
    joined,
    steps_for,
    time_texts,
)
from tidelog.types import HOUR_MS

SVG = "{http://www.w3.org/2000/svg}"
HOURS = Numbers(title="hour", name="{}:00".format)
HOSTILE = "<script>alert('&')</script>\x1b$x^2$"


def drawn(values: dict[int, float], unit: Unit = Unit.COUNT, *, is_stacked: bool = False) -> str:
    panels = {"": [Series("a", values)]}
    return Plot(
        panels=panels, y_title="latency", axis=HOURS, unit=unit, is_stacked=is_stacked
    ).html()


def pictures(page: str) -> list[ET.Element]:
    found = re.findall(r"<svg (?!class=\"swatch).*?</svg>", page, re.DOTALL)
    return [ET.fromstring(one) for one in found]


def texts(picture: ET.Element) -> list[str]:
    return ["".join(node.itertext()) for node in picture.iter(f"{SVG}text")]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_points_are_a_sentence(count: int) -> None:
    page = drawn(dict.fromkeys(range(count), 90000.0), Unit.MS)
    assert "<svg" not in page
    assert ("1m30s (0:00)" in page) is (count > 0)
    assert ("no latency to show" in page) is (count == 0)


def test_each_panel_is_drawn_for_wide_and_for_narrow_screens() -> None:
    wide, narrow = pictures(drawn({0: 1.0, 1: 5.0, 2: 3.0}))
    assert (wide.get("class"), narrow.get("class")) == ("wide", "narrow")
    assert int(wide.get("width", "0")) > 2 * int(narrow.get("width", "0"))
    for picture in (wide, narrow):
        sizes = re.findall(r"font-size: ([\d.]+)px", ET.tostring(picture, encoding="unicode"))
        assert sizes
        assert min(map(float, sizes)) >= 11


def test_a_picture_has_no_script_no_link_and_no_color_of_its_own() -> None:
    page = drawn({0: 1.0, 1: 5.0, 2: 3.0})
    assert not re.search(r"#[0-9a-f]{6}\b", page)
    assert "metadata" not in page
    assert set(re.findall(r"https?://[^\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "var(--s0)" in page


def test_names_are_escaped_and_no_formulas() -> None:
    axis = Numbers(title=HOSTILE, name=lambda _number: HOSTILE)
    series = [Series(HOSTILE, dict.fromkeys(range(3), 2.0))]
    page = Plot(panels={HOSTILE: series}, y_title=HOSTILE, axis=axis).html()
    assert "<script" not in page
    assert "\x1b" not in page
    assert r"\x1b$x^2$" in page
    assert any(r"\x1b$x^2$" in text for text in texts(pictures(page)[0]))


def test_values_can_be_read_without_a_pointer() -> None:
    page = drawn({0: 1_000.0, 1: 90_000.0, 2: 30_000.0}, Unit.MS)
    assert {"1m30s", "30s"} <= set(texts(pictures(page)[0]))
    assert '<td class="d">1:00</td><td class="n">1m30s</td>' in page
    assert "a at most 1m30s (1:00)" in (pictures(page)[0].get("aria-label") or "")


@pytest.mark.parametrize(
    ("largest", "unit", "name"),
    [
        (900, Unit.MS, "(ms)"),
        (45_000, Unit.MS, "(s)"),
        (20 * 60_000, Unit.MS, "(min)"),
        (30 * HOUR_MS, Unit.MS, "(h)"),
        (90 * 24 * HOUR_MS, Unit.MS, "(d)"),
        (31_000_000, Unit.BYTES, "(MB)"),
        (250_000, Unit.COUNT, "(thousand)"),
        (90, Unit.PERCENT, "(%)"),
    ],
)
def test_an_axis_has_the_unit_that_fits(largest: float, unit: Unit, name: str) -> None:
    values = {n: largest * (0.5 + n / 20) for n in range(10)}
    page = drawn(values, unit)
    assert f"latency {name}</figcaption>" in page
    assert not any(re.search(r"\d{5}", text) for text in texts(pictures(page)[0]))


def test_a_single_late_load_is_named_and_does_not_flatten_the_rest() -> None:
    values = dict.fromkeys(range(60), 600000.0) | {30: 31 * 24.0 * HOUR_MS}
    page = drawn(values, Unit.MS)
    assert "The axis is cut; values outside the axis (▲): 30:00 a 31d." in page
    assert "latency (min)" in page


def test_durations_of_many_sizes_have_a_logarithmic_axis() -> None:
    values = {n: 1_000.0 * 1.4**n for n in range(40)}
    page = drawn(values, Unit.MS)
    assert "logarithmic scale" in page
    assert {"1m", "1h", "1d"} <= set(texts(pictures(page)[0]))


def test_lines_stop_at_gaps() -> None:
    whole = drawn({n: 5.0 + n for n in range(6)})
    broken = drawn({n: 5.0 + n for n in range(8) if n not in (3, 4)})
    moves = [
        max(path.get("d", "").count("M") for path in pictures(page)[0].iter(f"{SVG}path"))
        for page in (whole, broken)
    ]
    assert moves == [1, 2]


@pytest.mark.parametrize(
    ("hours", "word"),
    [
        (3, "hour"),
        (500, "3 hours"),
        (24 * 200, "day"),
        (24 * 365, "week"),
        (24 * 365 * 8, "month"),
        (24 * 365 * 200, "year"),
    ],
)
def test_many_hours_are_joined_to_steps_of_the_calendar(hours: int, word: str) -> None:
    steps = steps_for([376_944, 376_944 + hours - 1], "America/New_York")
    assert steps.word == word
    found = [steps.start(376_944 * HOUR_MS), steps.start((376_944 + hours - 1) * HOUR_MS)]
    assert len(steps.grid(found)) <= STEPS_MAX + 2


def test_times_outside_the_calendar_stand_at_its_ends() -> None:
    steps = steps_for([-(2**62), 2**62], None)
    values = joined({-(2**62): 1.0, 0: 1.0, 2**62: 1.0}, steps)
    assert len(values) == 3
    page = Plot(panels={"": [Series("a", values)]}, y_title="n", axis=steps).html()
    assert len(pictures(page)) == 2


def test_months_begin_at_the_zones_midnight() -> None:
    zone = "America/New_York"
    steps = Steps("month", 1, zone)
    first = int(datetime(2013, 3, 1, tzinfo=ZoneInfo(zone)).timestamp()) * 1000
    assert steps.start(first + 5) == first
    assert steps.start(first - 1) < first
    assert steps.next(first) == int(datetime(2013, 4, 1, tzinfo=ZoneInfo(zone)).timestamp()) * 1000
    assert steps.name(first) == "Mar 2013"


def test_both_hours_of_a_change_of_clocks_have_a_step() -> None:
    steps = Steps("hour", 1, "America/New_York")
    first = int(datetime(2013, 11, 3, 5, tzinfo=UTC).timestamp()) * 1000
    grid = steps.grid([first, first + HOUR_MS])
    assert grid == [first, first + HOUR_MS]
    assert [steps.name(ms) for ms in grid] == ["2013-11-03 01:00", "2013-11-03 01:00"]


def test_ticks_name_months_with_their_year() -> None:
    months = [datetime(2013 + n // 12, n % 12 + 1, 1, tzinfo=UTC) for n in range(10, 15)]
    assert time_texts(months) == ["Nov\n2013", "Dec", "Jan\n2014", "Feb", "Mar"]
    hours = [datetime(2013, 2, 8 + n // 24, n % 24, tzinfo=UTC) for n in (12, 18, 24, 30)]
    assert time_texts(hours) == ["12:00\n8 Feb 2013", "18:00", "00:00\n9 Feb 2013", "06:00"]
    days = [datetime(2013, 2, n, tzinfo=UTC) for n in (8, 9)]
    assert time_texts(days) == ["8 Feb\n2013", "9 Feb"]


def test_series_differ_without_colors() -> None:
    panels = {"": [Series(name, {n: 1.0 + n for n in range(4)}) for name in ("p50", "p99")]}
    page = Plot(panels=panels, y_title="latency", axis=HOURS, is_stacked=False).html()
    assert "stroke-dasharray" in page
    assert page.count('class="swatch') == 2


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("is_stacked", [False, True])
def test_values_that_are_not_finite_are_gaps(unit: Unit, is_stacked: bool) -> None:
    values = {0: math.nan, 1: 4.0, 2: math.inf, 3: 6.0, 4: 5.0, 5: -math.inf}

    def html(values: dict[int, float]) -> str:
        series = [Series("late", values)]
        axis = Numbers(title="partition", has_gaps=False)
        return Plot(
            panels={"": series}, y_title="records", axis=axis, unit=unit, is_stacked=is_stacked
        ).html()

    finite = html({x: value for x, value in values.items() if math.isfinite(value)})
    note = '<p class="note">Left out: 3 infinite or undefined values.</p>'
    assert html(values) == f"{finite}{note}"
    few = html({0: math.nan, 1: 4.0})
    assert "<svg" not in few
    assert "Left out: 1 infinite or undefined value" in few


def test_the_last_value_stands_beside_its_mark_and_not_on_a_taller_one() -> None:
    values = dict.fromkeys(range(20), 1_680.0) | {20: 160.0}
    for picture in pictures(drawn(values, is_stacked=True)):
        (last,) = [node for node in picture.iter(f"{SVG}text") if node.text == "160"]
        bars = [node.get("d", "") for node in picture.iter(f"{SVG}path") if node.get("clip-path")]
        right = max(float(x) for x in re.findall(r"[ML] ([\d.]+)", bars[-1]))
        assert right < float(last.get("x", "0")) < right + 10
        assert "text-anchor: start" in last.get("style", "")


def test_the_value_of_a_wide_last_mark_stays_inside_its_picture() -> None:
    values = {n: 123_456_789_012_146.0 + n for n in range(200)}
    for picture in pictures(drawn(values)):
        (last,) = [one for one in picture.iter(f"{SVG}text") if one.text == "123,456,789,012,345"]
        assert "text-anchor: end" in last.get("style", "")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hours", [2, 30, 41, 47, 60, 24 * 60, 24 * 80, 24 * 600, 24 * 720])
def test_an_axis_of_any_span_has_ticks(hours: int) -> None:
    axis = steps_for([0, hours], "UTC")
    values = Series("a", joined(dict.fromkeys(range(0, hours, 1 + hours // 90), 1.0), axis))
    page = Plot(panels={"": [values]}, y_title="records", axis=axis).html()
    assert all("1970" in " ".join(texts(one)) for one in pictures(page))


@pytest.mark.parametrize(
    ("axis", "step"),
    [
        (HOURS, 1),
        (Numbers(title="delay", name=Unit.MS.text, unit=Unit.MS), 1),
        (steps_for([0, 499], "UTC"), 6 * HOUR_MS),
    ],
    ids=["numbers", "delays", "times"],
)
def test_the_labels_below_an_axis_do_not_overlap(axis: Numbers | Steps, step: int) -> None:
    series = Series("a", {number * step: 1.0 + number % 7 for number in range(80)})
    page = Plot(panels={"": [series]}, y_title="records", axis=axis).html()
    for picture in pictures(page):
        spans = spans_below(picture)
        assert len(spans) > 1
        assert all(end < start for (_, end), (start, _) in pairwise(spans)), spans


def spans_below(picture: ET.Element) -> list[tuple[float, float]]:
    """Return where each label in the first line below the axis begins and ends, in px."""
    spans = []
    for node in picture.iter(f"{SVG}text"):
        moved = re.match(r"translate\(([\d.]+) ([\d.]+)\)", node.get("transform", ""))
        x, y = map(float, moved.groups() if moved else (node.get("x", ""), node.get("y", "")))
        if 200 < y < 215:
            width = 0.56 * 12 * len(node.text or "")
            anchor = re.search("text-anchor: ([a-z]+)", node.get("style", ""))
            left = x - width * {"middle": 0.5, "end": 1.0}.get(anchor[1] if anchor else "", 0.0)
            spans.append((left, left + width))
    return spans


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"),
        (0.123, "0.12%"),
        (97.3, "97%"),
        (99.4, "99%"),
        (99.5, "99.5%"),
        (99.996, "100%"),
        (100, "100%"),
    ],
)
def test_shares_have_more_digits_near_the_whole(share: float, text: str) -> None:
    assert Unit.PERCENT.text(share) == text
