"""Reports as one self-contained HTML file: texts, lists, tables and plots.

The module has the page and its style sheet, the formatting of cells, small tables for notebooks
(`html_table`: a caption and a table, styled by the notebook), and two kinds of plots as SVG text:
stacked bars and lines over whole numbers, such as hours. Plots are drawn here instead of by a
plotting library, so that a report is one small file. Their colors and fonts come from the page's
style sheet by class.

Invariants: all text from records or users is escaped. A report has no script and no external
address. Only `write_report` writes a file.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final, TypeAlias

from tidelog.timespec.points import zone_of
from tidelog.types import HOUR_MS

# Maximum number of characters in a cell: a record's value may be a megabyte.
CELL_LIMIT: Final = 80


def shown(text: str) -> str:
    """Escape text for HTML; invisible characters (NUL, ESC, U+202E) become escape sequences."""
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
        )
    return escape(text)


def html_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    note: str = "",
) -> str:
    """Return an HTML table; numbers are right-aligned, None is a dash, long cells are cut.

    Args:
        caption: A line above it.
        headings: One for each column.
        rows: Cells; other types are shown as text.
        note: A line below it.
    """
    head = "".join(f"<th>{shown(text)}</th>" for text in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    below = f"<div>{shown(note)}</div>" if note else ""
    return f"<div><b>{shown(caption)}</b>{table}{below}</div>"


def _cell(content: object) -> str:
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    style = ' style="text-align:right"' if is_number else ""
    return f"<td{style}>{shown(_text(content))}</td>"


def _text(content: object) -> str:
    if content is None:
        return "-"
    if isinstance(content, int) and not isinstance(content, bool):
        return f"{content:,}"
    if isinstance(content, bytes):
        content = bytes_cell(content)
    text = str(content)
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def bytes_cell(data: bytes) -> str:
    """Return bytes of a record as in the terminal: text if they are UTF-8, else base64 in JSON."""
    if not data:
        return "(empty)"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f'{{"base64": "{b64encode(data[:CELL_LIMIT]).decode("ascii")}"}}'


def bytes_text(size_bytes: int) -> str:
    """Format a size, e.g. `1.5 GB`, in powers of 1000."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


_WIDTH: Final = 330


# Width of a single panel.
_WIDTH_ALONE: Final = 700


_HEIGHT: Final = 230


_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 26, 38


_STEPS: Final = 5


_BAR_SHARE: Final = 0.8


# Units of large values at ticks.
_UNITS: Final = ((1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


@dataclass(frozen=True, slots=True)
class Series:
    """One series of values over whole numbers.

    Attributes:
        name: Name in the legend and in tooltips.
        style: Class of its marks: `s0`, `s1`, ...
        values: By x; an x without a value is left out.
    """

    name: str
    style: str
    values: Mapping[int, float]


Panels: TypeAlias = Mapping[str, Sequence[Series]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Meaning of the whole numbers of the x axis.

    Attributes:
        title: Title below the axis.
        name: Formats a number for its tick and tooltips.
        every: Multiples of this number get a tick.
    """

    title: str
    name: Callable[[int], str]
    every: int = 1


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps numbers and values to coordinates in one panel; always includes the value 0."""

    axis: Axis
    numbers: range
    ticks: Sequence[float]
    width: int

    def x(self, number: float) -> float:
        share = (number - self.numbers.start + 0.5) / len(self.numbers)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)

    @property
    def bar_width(self) -> float:
        return _BAR_SHARE * (self.width - _LEFT - _RIGHT) / len(self.numbers)


_Marks = Callable[[_Scale, str, Sequence[Series]], Iterator[str]]


def stacked_bars(panels: Panels, y_title: str, axis: Axis) -> str:
    """Return stacked bars, with a panel for each name.

    All values must be >= 0, and there must be at least one.
    """
    totals = [total for series in panels.values() for total in _totals(series)]
    return _figure(panels, _scale(panels, axis, nice_ticks(0, max(totals))), y_title, _bars)


def lines(panels: Panels, y_title: str, axis: Axis) -> str:
    """Return a line for each series, with a panel for each name; needs at least one value."""
    values = [v for series in panels.values() for one in series for v in one.values.values()]
    scale = _scale(panels, axis, nice_ticks(min(values), max(values)))
    return _figure(panels, scale, y_title, _lines)


def _scale(panels: Panels, axis: Axis, ticks: Sequence[float]) -> _Scale:
    found = [x for series in panels.values() for one in series for x in one.values]
    numbers = range(min(found), max(found) + 1)
    return _Scale(axis, numbers, ticks, _WIDTH if len(panels) > 1 else _WIDTH_ALONE)


def _totals(series: Sequence[Series]) -> list[float]:
    numbers = {x for one in series for x in one.values}
    return [sum(one.values.get(x, 0) for one in series) for x in numbers]


def nice_ticks(lowest: float, highest: float) -> list[float]:
    """Return about five round numbers in equal steps that span both values and 0."""
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    step = max(highest - lowest, 1.0) / _STEPS
    power = 10.0 ** math.floor(math.log10(step))
    nice = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)
    first, last = math.floor(lowest / nice), math.ceil(highest / nice)
    return [number * nice for number in range(first, max(last, first + 1) + 1)]


def _figure(panels: Panels, scale: _Scale, y_title: str, marks: _Marks) -> str:
    parts = []
    for number, (name, series) in enumerate(panels.items()):
        inside = "".join([*_axes(scale, name, y_title), *marks(scale, name, series)])
        parts.append(f'<g transform="translate({number * scale.width} 0)">{inside}</g>')
    width = scale.width * len(panels)
    names = ", ".join(name for name in panels if name)
    label = f"{y_title} by {scale.axis.title}{f', for {names}' if names else ''}"
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="{shown(label)}"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _axes(scale: _Scale, name: str, y_title: str) -> Iterator[str]:
    right = scale.width - _RIGHT
    middle = (_LEFT + right) / 2
    yield f'<text class="panel" x="{middle:.1f}" y="14">{shown(name)}</text>'
    for value in scale.ticks:
        y = scale.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{_LEFT - 5}" y="{y + 3.5:.1f}">{short(value)}</text>'
    for number in scale.numbers:
        if number % scale.axis.every == 0:
            place = f'x="{scale.x(number):.1f}" y="{_HEIGHT - _BOTTOM + 14}"'
            yield f'<text class="tick middle" {place}>{shown(scale.axis.name(number))}</text>'
    place = f'x="{middle:.1f}" y="{_HEIGHT - 6}"'
    yield f'<text class="axis middle" {place}>{shown(scale.axis.title)}</text>'
    y = (_TOP + _HEIGHT - _BOTTOM) / 2
    place = f'x="11" y="{y:.1f}" transform="rotate(-90 11 {y:.1f})"'
    yield f'<text class="axis middle" {place}>{shown(y_title)}</text>'


def short(value: float) -> str:
    """Format a number in few characters: `250k`, `1.5M`."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def whole(value: float) -> str:
    """Format a number with all digits before the decimal point."""
    return f"{int(value):,}" if value == int(value) else f"{value:,.2f}"


def _tip(scale: _Scale, panel: str, series: Series, number: int) -> str:
    place = f"{panel} {scale.axis.name(number)}".strip()
    return f"<title>{shown(f'{place}, {series.name}: {whole(series.values[number])}')}</title>"


def _bars(scale: _Scale, panel: str, all_series: Sequence[Series]) -> Iterator[str]:
    width = scale.bar_width
    for number in scale.numbers:
        below = 0.0
        for series in all_series:
            value = series.values.get(number, 0)
            if not value:
                continue
            y, base = scale.y(below + value), scale.y(below)
            yield (
                f'<rect class="{series.style}" x="{scale.x(number) - width / 2:.1f}" y="{y:.1f}"'
                f' width="{width:.1f}" height="{base - y:.1f}">'
                f"{_tip(scale, panel, series, number)}</rect>"
            )
            below += value


def _lines(scale: _Scale, panel: str, all_series: Sequence[Series]) -> Iterator[str]:
    for series in all_series:
        points = [(n, scale.x(n), scale.y(v)) for n, v in sorted(series.values.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in points)
        yield f'<polyline class="{series.style}" points="{path}"/>'
        for number, x, y in points:
            yield (
                f'<circle class="{series.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">'
                f"{_tip(scale, panel, series, number)}</circle>"
            )


def legend(series: Sequence[Series]) -> str:
    """Return the legend as HTML."""
    items = (
        f'<span><svg viewBox="0 0 10 10"><rect class="{one.style}" width="10" height="10"/></svg>'
        f" {shown(one.name)}</span>"
        for one in series
    )
    return f'<p class="legend">{"".join(items)}</p>'


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


# Maximum number of bars; of the steps in hours below, the smallest one within it is chosen.
_BARS_MAX: Final = 240


_STEPS_HOURS: Final = (1, 3, 6, 12, 24, 7 * 24, 28 * 24, 364 * 24)


_TICKS: Final = 7


# Times outside the calendar are plotted at its ends.
_FIRST_HOUR: Final = -62_135_596_800_000 // HOUR_MS


_LAST_HOUR: Final = 253_402_300_799_999 // HOUR_MS


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    title: str = ""

    def html(self) -> str:
        """Return the paragraph as HTML."""
        return f"<p>{shown(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of lines."""

    lines: Sequence[str]
    title: str = ""

    def html(self) -> str:
        """Return the list as HTML."""
        return f"<ul>{''.join(f'<li>{shown(line)}</li>' for line in self.lines)}</ul>"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Attributes:
        columns: The headings.
        rows: The cells.
        title: Title above it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def html(self) -> str:
        """Return the table as HTML."""
        head = "".join(f"<th>{shown(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{shown(cell)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot with its legend; without values, a paragraph that says so.

    Attributes:
        panels: The series of each panel; all panels have the same series.
        y_title: Meaning of the values.
        axis: Meaning of the numbers on the x axis.
        is_stacked: Stacked bars; otherwise lines.
        title: Title above it.
    """

    panels: Panels
    y_title: str
    axis: Axis
    is_stacked: bool = True
    title: str = ""

    def html(self) -> str:
        """Return the plot as HTML."""
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
        """Return the page as one HTML document."""
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
    """Return a plot of values by hour; hours are joined to longer steps if there are too many.

    Args:
        panels: Panel -> series -> hour since the epoch in UTC -> value. At most four series. Of
            joined hours, stacked bars show the sum, lines the largest value.
        y_title: Meaning of the values.
        title: Title above it.
        is_stacked: Stacked bars; otherwise lines.
        zone: Zone of the times at the axis, and of the days that hours are joined to; UTC if None.
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
    """Return the smallest step with few enough bars; for long spans a multiple of the largest."""
    if not hours:
        return 1
    span = _clamped(max(hours)) - _clamped(min(hours)) + 1
    fitting = (step for step in _STEPS_HOURS if span <= step * _BARS_MAX)
    longest = _STEPS_HOURS[-1]
    return next(fitting, longest * -(-span // (longest * _BARS_MAX)))


class _Places:
    """Places of hours on an axis: single hours, or steps of several in a zone's local time."""

    def __init__(self, step: int, zone: str | None) -> None:
        self.step = step
        self.zone = zone or "UTC"
        self._zone = UTC if zone is None else zone_of(zone)

    def of(self, hour: int) -> int:
        """Return the place of an hour since the epoch."""
        hour = _clamped(hour)
        if self.step == 1:
            return hour  # when clocks go back, both hours have a bar
        offset = self._moment(hour).utcoffset() or timedelta()
        return (hour + int(offset.total_seconds()) // _HOUR_S) // self.step

    def name(self, place: int) -> str:
        """Return the text of a place."""
        if self.step == 1:
            return f"{self._moment(place):%m-%d %H:%M}"
        # The place of joined hours is already in the zone's local time.
        moment = datetime.fromtimestamp(_clamped(place * self.step) * _HOUR_S, UTC)
        return f"{moment:%Y-%m-%d}" if self.step >= _DAY_HOURS else f"{moment:%m-%d %H}:00"

    def _moment(self, hour: int) -> datetime:
        # Stays a day inside the calendar, so that no zone's offset leads outside.
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
    """Write a report as one HTML file, replacing an existing file; raises OSError."""
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path as users give it
        file.write(report.html())
