"""Reports: one well-formed page, nothing from elsewhere, nothing unescaped."""

import re
from pathlib import Path

import pytest
from tests.worlds.pages import Balanced

from tidelog.report import (
    Axis,
    Items,
    Plot,
    Report,
    Section,
    Table,
    Text,
    html_table,
    plot_by_hour,
    write_report,
)

HOSTILE = "<script>alert('&')</script>"
HOUR = 444_012


def sections() -> list[Section]:
    return [
        Text(HOSTILE, title=HOSTILE),
        Items([HOSTILE]),
        Table([HOSTILE], [[HOSTILE]], title="table"),
        plot_by_hour({HOSTILE: {HOSTILE: {HOUR: 3.0}}}, HOSTILE, title=HOSTILE),
    ]


def test_a_page_is_well_formed_escaped_and_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(str(path), Report(HOSTILE, sections()))
    page = path.read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert not parser.seen & {"script", "link", "img", "iframe"}
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_a_plot_without_values_says_so() -> None:
    nothing = plot_by_hour({"": {"record": {}}}, "records")
    assert nothing.html() == "<p>Nothing to show.</p>"


@pytest.mark.parametrize(
    ("hours", "title", "bars"),
    [
        (range(3), "UTC, by hour", 3),
        (range(500), "UTC, by 3 hours", 167),
        (range(0, 24 * 200, 5), "UTC, by day", 200),
        ([0, 24 * 365 * 2_000], "UTC, by 3276 days", 2),
        ([-(2**62), 2**62], "UTC, by 15288 days", 2),
    ],
)
def test_many_hours_are_joined(hours: list[int], title: str, bars: int) -> None:
    plot = plot_by_hour({"": {"record": dict.fromkeys(hours, 1.0)}}, "records")
    assert plot.axis.title == title
    values = plot.panels[""][0].values
    assert len(values) == bars
    assert sum(values.values()) == len(hours)
    assert plot.html().count("<rect") == bars + 1


def test_lines_keep_the_largest_of_what_is_joined() -> None:
    values = {hour: float(hour % 7) for hour in range(1_000)}
    plot = plot_by_hour({"": {"p99": values}}, "ms", is_stacked=False)
    assert max(plot.panels[""][0].values.values()) == 6.0
    assert "<polyline" in plot.html()


def test_a_plot_can_be_over_anything() -> None:
    axis = Axis("partition", str)
    plot = plot_by_hour({"": {"bytes": {0: 1.0}}}, "bytes")
    drawn = Plot(panels=plot.panels, y_title="bytes", axis=axis).html()
    assert 'aria-label="bytes by partition"' in drawn


def test_what_cannot_be_seen_is_shown_as_escapes() -> None:
    """NUL, ESC and U+202E (which turns the text behind it round) in a record's key, say."""
    odd = "a\0\x1b[31m\u202eb"
    plot = plot_by_hour({odd: {odd: {0: 1.0}}}, odd)
    parts: list[Section] = [Text(odd), Items([odd]), Table([odd], [[odd]]), plot]
    page = Report(odd, parts).html() + html_table(odd, [odd], [[odd, odd.encode()]], odd)
    assert not {"\0", "\x1b", "\u202e"} & set(page)
    assert r"a\x00\x1b[31m\u202eb" in page


def test_plots_stand_in_the_zone_of_the_tables() -> None:
    hour = 360_000  # 2011-01-26 00:00 UTC
    plot = plot_by_hour({"": {"record": {hour: 1.0}}}, "records", zone="Asia/Kolkata")
    assert plot.axis.title == "Asia/Kolkata, by hour"
    assert plot.axis.name(hour) == "01-26 05:30"
    many = {"": {"record": {hour + n: 1.0 for n in range(24 * 200)}}}
    days = plot_by_hour(many, "records", zone="America/New_York")
    assert days.axis.title.startswith("America/New_York, by ")
    (series,) = days.panels[""]
    assert sum(series.values.values()) == 24 * 200
    assert days.axis.name(min(series.values)) == "2011-01-25"
