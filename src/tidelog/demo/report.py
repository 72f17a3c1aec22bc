"""The demo's report: what was asked and answered, as one HTML file with two plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from tidelog.spark.report import Items, Plot, Section, Table, Text
from tidelog.spark.report import Report as Page
from tidelog.spark.svg import Axis, Series

HOURS: Final = Axis("scheduled hour", "{}:00".format, every=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the report says.

    Attributes:
        title: Its heading.
        lead: What it is about.
        day: The replayed day by hour and airport, as `sparkjob.by_hour_and_airport` gives it.
        clocks: Both clocks' answers.
        why: Why they differ, a paragraph each.
        reads: Rows and bytes that were read, and those in the topic.
        why_bytes: Why those differ, a paragraph.
        aircraft: The last flight of some aircraft, as of two dates.
        why_aircraft: What that shows, a paragraph.
        files: The files of the log.
        checked: One line for each figure that was checked.
    """

    title: str
    lead: str
    day: pd.DataFrame
    clocks: Table
    why: Sequence[str]
    reads: Table
    why_bytes: str
    aircraft: Table
    why_aircraft: str
    files: Table
    checked: Sequence[str]


def write_report(path: Path, report: Report) -> None:
    """Write the report as one HTML file."""
    path.write_text(Page(report.title, _sections(report)).html(), encoding="utf-8")


def _sections(report: Report) -> list[Section]:
    return [
        Text(report.lead),
        Plot(
            panels=departure_panels(report.day),
            y_title="flights",
            axis=HOURS,
            title="Departures and cancellations",
        ),
        Plot(
            panels=lateness_panels(report.day),
            y_title="minutes",
            axis=HOURS,
            is_stacked=False,
            title="Lateness: append time minus create time",
        ),
        _titled(report.clocks, "12:00 on two clocks"),
        *map(Text, report.why),
        _titled(report.reads, "What was read"),
        Text(report.why_bytes),
        _titled(report.aircraft, "Where each aircraft was last"),
        Text(report.why_aircraft),
        _titled(report.files, "Files of the log"),
        Items(report.checked, "How the figures were checked"),
    ]


def _titled(table: Table, title: str) -> Table:
    return Table(table.columns, table.rows, title)


def departure_panels(day: pd.DataFrame) -> Mapping[str, Sequence[Series]]:
    """By airport: flights that left and that were cancelled, by scheduled hour."""
    return {
        airport: [
            Series("left", "s0", _values(rows, "departures")),
            Series("cancelled", "s1", _values(rows, "cancelled")),
        ]
        for airport, rows in _by_airport(day)
    }


def lateness_panels(day: pd.DataFrame) -> Mapping[str, Sequence[Series]]:
    """By airport: median and 90th percentile of lateness, by scheduled hour."""
    return {
        airport: [
            Series("median", "s0", _values(rows, "late_p50")),
            Series("90th percentile", "s1", _values(rows, "late_p90")),
        ]
        for airport, rows in _by_airport(day)
    }


def _by_airport(day: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(airport), rows) for airport, rows in day.groupby("origin")]


def _values(rows: pd.DataFrame, column: str) -> dict[int, float]:
    known = rows[rows[column].notna()]
    return {int(h): float(v) for h, v in zip(known["hour"], known[column], strict=True)}
