"""The report: one HTML file with tables and two plots, which needs nothing but itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import pandas as pd

from tidelog.demo.svg import Series, legend, lines, stacked_bars

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #66727f; --line: #d9dfe5; --page: #fff;
  --a: #0072b2; --b: #e69f00; --c: #009e73; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #97a3af; --line: #33404d;
  --page: #12181f; --a: #56b4e9; --b: #e69f00; --c: #2fc59c; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
svg { width: 100%; height: auto; } .legend svg { width: .8em; height: .8em; }
.legend span { margin-right: 1.4em; } .scroll { overflow-x: auto; }
text { fill: var(--ink); font-family: inherit; } .panel { font-weight: 600; font-size: 13px;
  text-anchor: middle; } .tick { font-size: 10px; fill: var(--soft); } .axis { font-size: 10.5px;
  fill: var(--soft); } .middle { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--line); stroke-width: .7; }
.s0 { fill: var(--a); stroke: var(--a); } .s1 { fill: var(--b); stroke: var(--b); }
polyline { fill: none !important; stroke-width: 2; } rect { stroke: none !important; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
.note { color: var(--soft); } li { margin: .2rem 0; } code { font-size: .92em; }
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Attributes:
        columns: The headings.
        rows: The cells.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        """The table as HTML."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


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
    files: Table
    checked: Sequence[str]


def write_report(path: Path, report: Report) -> None:
    """Write the report as one HTML file."""
    path.write_text(_page(report), encoding="utf-8")


def _page(report: Report) -> str:
    title = escape(report.title)
    body = "\n".join(_sections(report))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _sections(report: Report) -> Iterable[str]:
    yield _paragraph(report.lead)
    departures = departure_panels(report.day)
    yield "<h2>Departures and cancellations</h2>"
    yield legend(next(iter(departures.values())))
    yield stacked_bars(departures, "flights")
    lateness = lateness_panels(report.day)
    yield "<h2>Lateness: append time minus create time</h2>"
    yield legend(next(iter(lateness.values())))
    yield lines(lateness, "minutes")
    yield "<h2>12:00 on two clocks</h2>"
    yield report.clocks.html()
    yield from map(_paragraph, report.why)
    yield "<h2>What was read</h2>"
    yield report.reads.html()
    yield _paragraph(report.why_bytes)
    yield "<h2>Files of the log</h2>"
    yield report.files.html()
    yield "<h2>How the figures were checked</h2>"
    yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in report.checked)}</ul>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


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
