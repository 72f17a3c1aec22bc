"""Reports for people who would rather look than read: one HTML file that needs nothing but itself.

A report is a title and sections: texts, lists, tables and plots. Whatever comes from records or
from users is escaped; there is no script and no address of anything elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from tidelog.markup import shown
from tidelog.spark.svg import Axis, Panels, Series, legend, lines, stacked_bars
from tidelog.timespec.points import zone_of
from tidelog.types import HOUR_MS

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #66727f; --line: #d9dfe5; --page: #fff;
  --a: #0072b2; --b: #e69f00; --c: #009e73; --d: #cc79a7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #97a3af; --line: #33404d;
  --page: #12181f; --a: #56b4e9; --b: #e69f00; --c: #2fc59c; --d: #d99cc0; } }
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
.s2 { fill: var(--c); stroke: var(--c); } .s3 { fill: var(--d); stroke: var(--d); }
polyline { fill: none !important; stroke-width: 2; } rect { stroke: none !important; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
.note { color: var(--soft); } li { margin: .2rem 0; } code { font-size: .92em; }
"""
_STYLES: Final = 4
_HOUR_S: Final = 3_600
_DAY_HOURS: Final = 24
# Steps of a time axis, in hours: the first one that needs no more bars than this is taken.
_BARS_MAX: Final = 240
_STEPS_HOURS: Final = (1, 3, 6, 12, 24, 7 * 24, 28 * 24, 364 * 24)
_TICKS: Final = 7
# What no calendar holds is plotted at its ends.
_FIRST_HOUR: Final = -62_135_596_800_000 // HOUR_MS
_LAST_HOUR: Final = 253_402_300_799_999 // HOUR_MS


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    title: str = ""

    def html(self) -> str:
        """The paragraph as HTML."""
        return f"<p>{shown(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of lines."""

    lines: Sequence[str]
    title: str = ""

    def html(self) -> str:
        """The list as HTML."""
        return f"<ul>{''.join(f'<li>{shown(line)}</li>' for line in self.lines)}</ul>"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Attributes:
        columns: The headings.
        rows: The cells.
        title: Above it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def html(self) -> str:
        """The table as HTML."""
        head = "".join(f"<th>{shown(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{shown(cell)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot with its legend; a paragraph that says so where there is nothing to show.

    Attributes:
        panels: The series of each panel; all panels have the same series.
        y_title: What the values are.
        axis: What the numbers below are.
        is_stacked: Bars on top of each other; else lines.
        title: Above it.
    """

    panels: Panels
    y_title: str
    axis: Axis
    is_stacked: bool = True
    title: str = ""

    def html(self) -> str:
        """The plot as HTML."""
        if not any(one.values for series in self.panels.values() for one in series):
            return "<p>Nothing to show.</p>"
        draw = stacked_bars if self.is_stacked else lines
        return "\n".join(
            (
                legend(next(iter(self.panels.values()))),
                draw(self.panels, self.y_title, self.axis),
            )
        )


Section: TypeAlias = Text | Items | Table | Plot


@dataclass(frozen=True, slots=True)
class Report:
    """A page: its title and its sections, in order."""

    title: str
    sections: Sequence[Section]

    def html(self) -> str:
        """The page as one HTML document."""
        title = shown(self.title)
        body = "\n".join(_parts(self.sections))
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )


def _parts(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        if section.title:
            yield f"<h2>{shown(section.title)}</h2>"
        yield section.html()


def plot_by_hour(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    y_title: str,
    *,
    title: str = "",
    is_stacked: bool = True,
    zone: str | None = None,
) -> Plot:
    """A plot of values by hour; hours are joined to longer steps where there are too many.

    Args:
        panels: Panel -> series -> hour since the epoch in UTC -> value. At most four series. Values
            of joined hours are added where they are stacked; else the largest is shown.
        y_title: What the values are.
        title: Above it.
        is_stacked: Bars on top of each other; else lines.
        zone: Of the times at the axis, and of the days that hours are joined to; UTC where None.
    """
    hours = [h for series in panels.values() for values in series.values() for h in values]
    step = _step_hours(hours)
    join = _added if is_stacked else _largest
    places = _Places(step, zone)
    drawn = {
        panel: [
            Series(name, f"s{number % _STYLES}", join(values, places))
            for number, (name, values) in enumerate(series.items())
        ]
        for panel, series in panels.items()
    }
    return Plot(
        panels=drawn,
        y_title=y_title,
        axis=_time_axis(hours, places, len(panels)),
        is_stacked=is_stacked,
        title=title,
    )


def _clamped(hour: int) -> int:
    return min(max(hour, _FIRST_HOUR), _LAST_HOUR)


def _step_hours(hours: Sequence[int]) -> int:
    """The shortest step that needs few enough bars; years joined where none does."""
    if not hours:
        return 1
    span = _clamped(max(hours)) - _clamped(min(hours)) + 1
    fitting = (step for step in _STEPS_HOURS if span <= step * _BARS_MAX)
    longest = _STEPS_HOURS[-1]
    return next(fitting, longest * -(-span // (longest * _BARS_MAX)))


class _Places:
    """Where hours stand on an axis: hours one by one, or joined to steps of a zone's clock."""

    def __init__(self, step: int, zone: str | None) -> None:
        self.step = step
        self.zone = zone or "UTC"
        self._zone = UTC if zone is None else zone_of(zone)

    def of(self, hour: int) -> int:
        """The place of an hour since the epoch."""
        hour = _clamped(hour)
        if self.step == 1:
            return hour  # where clocks go back, both hours have their bars
        offset = self._moment(hour).utcoffset() or timedelta()
        return (hour + int(offset.total_seconds()) // _HOUR_S) // self.step

    def name(self, place: int) -> str:
        """The text of a place."""
        if self.step == 1:
            return f"{self._moment(place):%m-%d %H:%M}"
        # A place of joined hours is one of the zone's clock already.
        moment = datetime.fromtimestamp(_clamped(place * self.step) * _HOUR_S, UTC)
        return f"{moment:%Y-%m-%d}" if self.step >= _DAY_HOURS else f"{moment:%m-%d %H}:00"

    def _moment(self, hour: int) -> datetime:
        # A day off the ends of what has a date, so that no zone leads beyond them.
        inside = min(max(hour, _FIRST_HOUR + _DAY_HOURS), _LAST_HOUR - _DAY_HOURS)
        return datetime.fromtimestamp(inside * _HOUR_S, self._zone)


def _added(values: Mapping[int, float], places: _Places) -> dict[int, float]:
    joined: dict[int, float] = {}
    for hour, value in values.items():
        place = places.of(hour)
        joined[place] = joined.get(place, 0.0) + value
    return joined


def _largest(values: Mapping[int, float], places: _Places) -> dict[int, float]:
    joined: dict[int, float] = {}
    for hour, value in values.items():
        place = places.of(hour)
        joined[place] = max(joined.get(place, value), value)
    return joined


def _time_axis(hours: Sequence[int], places: _Places, panels: int) -> Axis:
    step = places.step
    count = 1 if not hours else (_clamped(max(hours)) - _clamped(min(hours))) // step + 1
    every = max(1, -(-count // max(_TICKS // panels, 2)))
    unit = "hour" if step == 1 else f"{step} hours" if step < _DAY_HOURS else _days(step)
    return Axis(f"{places.zone}, by {unit}", places.name, every)


def _days(step: int) -> str:
    days = step // _DAY_HOURS
    return "day" if days == 1 else f"{days} days"


def write_report(path: str, report: Report) -> None:
    """Write a report as one HTML file, replacing what is there; raises OSError."""
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path as users give it
        file.write(report.html())
