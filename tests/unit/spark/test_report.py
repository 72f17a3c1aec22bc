"""Reports: one well-formed page, nothing from elsewhere, nothing unescaped."""

import re
from pathlib import Path

import pytest
from tests.pages import Balanced

from tidelog.spark.report import (
    Items,
    Plot,
    Report,
    Section,
    Table,
    Text,
    plot_by_hour,
    write_report,
)
from tidelog.spark.svg import Axis

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
