"""The report is one file with well-formed plots and without external resources."""

import re
from pathlib import Path

import pandas as pd
import pytest
from examples.demo.story import Report, write_report
from tests.worlds.pages import Balanced

from tidelog.pages import Table

DAY = pd.DataFrame(
    {
        "hour": [5, 6, 7, 6],
        "origin": ["EWR", "EWR", "EWR", "JFK"],
        "departures": [2, 3, 4, 0],
        "cancelled": [0, 1, 0, 4],
        "late_p50": [-1.5, 10.0, 3.0, float("nan")],
        "late_p90": [4.0, 90.0, 9.0, float("nan")],
    }
)
TABLE = Table(["a <b>", "c"], [["1 & 2", "3"]])


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
        aircraft=TABLE,
        why_aircraft="keys",
        files=TABLE,
        settings=TABLE,
        settings_notes=["note"],
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
    assert '<td class="n">3</td>' in page
    assert ">1 &amp; 2</td>" in page


def test_the_page_needs_no_network_and_no_script(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    assert not parser.seen & {"script", "link", "img", "iframe"}
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_the_report_has_two_plots_of_an_airport_with_three_hours(page: str) -> None:
    assert page.count('role="img"') == 2
    assert "JFK: flights: departed 0 (6:00), canceled 4 (6:00)." in page


def test_the_report_begins_with_a_summary_of_the_day(page: str) -> None:
    assert "worst at Newark at 6:00, where one flight in ten was more than 90 minutes late" in page
