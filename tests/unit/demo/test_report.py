"""The report: one file, well-formed plots, nothing from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pandas as pd
import pytest

from tidelog.demo.report import Report, Table, write_report
from tidelog.demo.svg import Series, lines, nice_ticks, stacked_bars

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "img", "link"}
DAY = pd.DataFrame(
    {
        "hour": [5, 6, 6],
        "origin": ["EWR", "EWR", "JFK"],
        "departures": [2, 3, 0],
        "cancelled": [0, 1, 4],
        "late_p50": [-1.5, 10.0, float("nan")],
        "late_p90": [4.0, 90.0, float("nan")],
    }
)
TABLE = Table(["a <b>", "c"], [["1 & 2", "3"]])


class Balanced(HTMLParser):
    """Fails where an end tag does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def page(tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    report = Report(
        title="A <day>",
        lead="lead & more",
        day=DAY,
        clocks=TABLE,
        why=["because <so>"],
        reads=TABLE,
        why_bytes="bytes",
        files=TABLE,
        checked=["rows: equal"],
    )
    write_report(path, report)
    return path.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_escaped(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "A &lt;day&gt;" in page
    assert "because &lt;so&gt;" in page
    assert "<td>1 &amp; 2</td>" in page


def test_the_page_needs_no_network_and_no_script(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    assert not parser.seen & {"script", "link", "img", "iframe"}
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_it_has_two_plots(page: str) -> None:
    assert page.count('role="img"') == 2


def test_bars_stand_on_each_other() -> None:
    series = [Series("left", "s0", {5: 10.0}), Series("cancelled", "s1", {5: 5.0})]
    root = ET.fromstring(stacked_bars({"EWR": series}, "flights"))
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
    root = ET.fromstring(lines({"EWR": series}, "minutes"))
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
