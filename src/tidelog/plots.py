"""Plots for pages: series of values by time or by number, drawn by matplotlib as SVG text.

The module has the data of a plot (`Plot`), its steps of time in a zone, the choice of its axes, and
the drawing. matplotlib is imported when a plot is drawn. A large panel is drawn twice, for wide
and for narrow screens, so that text keeps its size. The page's style sheet shows only the picture
for the screen's width. A small panel is drawn once.

Colors are placeholders that become CSS variables of the page, so one picture serves the light and
the dark scheme. Texts in a picture are SVG text in the page's font, not shapes. A picture has no
script, no link and no metadata. Values can be read without pointing at the plot: the largest and
the last value are written at their points, and a table below has at most `VALUES_MAX` rows of
values.

Invariants: steps without a finite value stay empty, and no line crosses them. If fewer than three
steps have values, a sentence replaces the plot. All texts are escaped.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias
from xml.etree import ElementTree as ET

from tidelog.amounts import bytes_text, duration_text, plural
from tidelog.html_cells import html_text, visible
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec.zones import zone_of
from tidelog.types import HOUR_MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Minimum number of steps with values for a plot.
POINTS_MIN: Final = 3
# Maximum number of steps on a time axis. The length of a step is the shortest length that this
# maximum allows.
STEPS_MAX: Final = 240
# Maximum number of rows in the table below a plot.
VALUES_MAX: Final = STEPS_MAX
# Maximum number of series of a panel. The page's style has this number of colors and dashes.
SERIES_MAX: Final = 4

_DAY_HOURS: Final = 24
_MONTHS: Final = 12
# First and last ms that a time axis can show. Earlier and later times are drawn at the ends of the
# axis.
_FIRST_MS: Final = int(datetime(101, 1, 1, tzinfo=UTC).timestamp()) * 1000
_LAST_MS: Final = int(datetime(9899, 1, 1, tzinfo=UTC).timestamp()) * 1000


class Unit(Enum):
    """Unit of values, which decides how they are written."""

    COUNT = "count"
    MS = "ms"
    BYTES = "bytes"
    PERCENT = "percent"
    MINUTES = "minutes"

    def text(self, value: float) -> str:
        """Format a value in few digits with its unit."""
        if self is Unit.MS:
            return duration_text(value / 1000)
        if self is Unit.MINUTES:
            return duration_text(value * 60)
        if self is Unit.BYTES:
            return bytes_text(value)
        if self is Unit.PERCENT:
            return f"{float(f'{value:.2g}'):g}%" if value < 99.5 else f"{value:.4g}%"
        return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.3g}"


# Units for ticks, largest first: name, and size in the unit of the values.
_SCALES: Final[Mapping[Unit, Sequence[tuple[str, float]]]] = {
    Unit.COUNT: (("thousand million", 1e9), ("million", 1e6), ("thousand", 1e3)),
    Unit.MS: (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)),
    Unit.BYTES: (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1)),
    Unit.PERCENT: (("%", 1),),
    Unit.MINUTES: (("h", 60), ("min", 1)),
}
# The unit of an axis is the largest unit in which the axis's largest value is at least this number.
# For example, an axis that ends at 2 days is in hours.
_UNITS_MIN: Final = 3.0
# Steps between ticks, to be multiplied by powers of ten. The steps under True are for minutes and
# seconds, so that 15 and 30 are possible steps. The steps under False are for other units.
_TICK_STEPS: Final[Mapping[bool, Sequence[float]]] = {
    True: (1, 1.5, 2, 3, 6, 10),
    False: (1, 2, 2.5, 5, 10),
}
# Ticks of a logarithmic axis of durations, in ms.
_LOG_TICKS: Final = (
    *(1_000, 10_000, 60_000, 600_000, 3_600_000),
    *(6 * 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 365 * 86_400_000),
)
_LOG_TICKS_MAX: Final = 9
_LOG_LINEAR_MS: Final = 1_000.0
# The axis of a line plot in ms is logarithmic if its largest value is more than this multiple of
# the median. A median below `_LOG_LINEAR_MS` counts as `_LOG_LINEAR_MS`.
_LOG_FACTOR: Final = 100.0
# A value above this multiple of the 95th percentile is an outlier. Outliers are outside the axis.
_OUTLIER_FACTOR: Final = 20.0
_OUTLIER_SHARE: Final = 0.95
_OUTLIER_POINTS_MIN: Final = 20
_OUTLIERS_NAMED: Final = 3


# -- what is drawn ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """One series of values.

    Attributes:
        name: Name in the legend and the table.
        values: Maps x to a value. An x without a value is a gap.
    """

    name: str
    values: Mapping[int, float]


Panels: TypeAlias = Mapping[str, Sequence[Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """An x axis of whole numbers, such as partitions.

    Attributes:
        title: Meaning of the numbers.
        name: Formats a number.
        unit: Unit of the ticks; MS makes the axis logarithmic.
        has_gaps: Whether a number without a value is drawn as a gap.
    """

    title: str
    name: Callable[[int], str] = str
    unit: Unit = Unit.COUNT
    has_gaps: bool = True

    def grid(self, xs: Sequence[int]) -> list[int]:
        """Return all numbers of the axis; `xs` are the numbers with values, sorted."""
        if self.has_gaps and xs[-1] - xs[0] < 10 * len(xs) + STEPS_MAX:
            return list(range(xs[0], xs[-1] + 1))
        return list(xs)


@dataclass(frozen=True, slots=True)
class Steps:
    """A time axis in steps, such as days, of a zone's calendar; x is the first ms of a step.

    Attributes:
        unit: `hour`, `day`, `week`, `month` or `year`.
        count: Length of a step, in units.
        zone: Name of the zone; UTC if None.
        clock: Name of the time, e.g. `append time`.
    """

    unit: str
    count: int = 1
    zone: str | None = None
    clock: str = ""

    @property
    def word(self) -> str:
        """Length of a step in words: `hour`, `3 hours`."""
        return self.unit if self.count == 1 else f"{self.count} {self.unit}s"

    @property
    def title(self) -> str:
        """Meaning of the axis."""
        return f"{self.clock or 'time'} in {self.zone or 'UTC'}, by {self.word}"

    @property
    def tz(self) -> tzinfo:
        """The zone."""
        return zone_of(self.zone) or UTC

    def start(self, ms: int) -> int:
        """Return the first ms of the step that contains a time."""
        ms = min(max(ms, _FIRST_MS), _LAST_MS)
        if self.unit == "hour" and self.count == 1:
            # if a clock change repeats an hour, each of the two hours is a step
            return ms // HOUR_MS * HOUR_MS
        return self._utc_ms(self._floor(self._local(ms)))

    def next(self, start_ms: int) -> int:
        """Return the first ms of the step after the one that starts at `start_ms`."""
        if self.unit == "hour" and self.count == 1:
            return start_ms + HOUR_MS
        at = self._local(start_ms)
        if self.unit in ("month", "year"):
            months = at.year * _MONTHS + at.month - 1 + self._months
            first = at.replace(year=months // _MONTHS, month=months % _MONTHS + 1, day=1)
            return self._utc_ms(first)
        days_or_hours = {"hour": 1, "day": _DAY_HOURS, "week": 7 * _DAY_HOURS}[self.unit]
        return self._utc_ms(at + timedelta(hours=self.count * days_or_hours))

    def name(self, start_ms: int) -> str:
        """Format the start of a step."""
        at = self._local(start_ms)
        form = {"hour": "%Y-%m-%d %H:%M", "month": "%b %Y", "year": "%Y"}.get(self.unit, "%Y-%m-%d")
        return f"{at:{form}}"

    def grid(self, xs: Sequence[int]) -> list[int]:
        """Return the starts of all steps from the first to the last."""
        starts = [xs[0]]
        while starts[-1] < xs[-1]:
            starts.append(max(self.next(starts[-1]), starts[-1] + 1))
        return starts

    @property
    def _months(self) -> int:
        return self.count * (1 if self.unit == "month" else _MONTHS)

    def _local(self, ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, self.tz)

    def _utc_ms(self, local: datetime) -> int:
        return int(local.replace(tzinfo=self.tz).timestamp()) * 1000

    def _floor(self, at: datetime) -> datetime:
        hour = at.hour // self.count * self.count if self.unit == "hour" else 0
        day = at.replace(hour=hour, minute=0, second=0, microsecond=0, fold=0)
        if self.unit == "year":
            return day.replace(year=max(at.year // self.count * self.count, 1), month=1, day=1)
        if self.unit == "month":
            return day.replace(day=1)
        if self.unit == "week":
            return day - timedelta(days=day.weekday())
        return day


_LENGTHS: Final = (
    *(("hour", count, count) for count in (1, 3, 6, 12)),
    *(("day", 1, _DAY_HOURS), ("week", 1, 7 * _DAY_HOURS), ("month", 1, 28 * _DAY_HOURS)),
    *(("year", count, 365 * _DAY_HOURS * count) for count in (1, 2, 5, 10, 20, 50, 100)),
)


def steps_for(hours: Sequence[int], zone: str | None, clock: str = "") -> Steps:
    """Return the shortest steps for an axis of at most `STEPS_MAX` steps.

    The axis shows `hours`, which are hours since the epoch.
    """
    if not hours:
        return Steps("hour", 1, zone, clock)
    first, last = (min(max(h * HOUR_MS, _FIRST_MS), _LAST_MS) for h in (min(hours), max(hours)))
    span = (last - first) // HOUR_MS + 1
    unit, count, _ = next(one for one in _LENGTHS if span <= one[2] * STEPS_MAX)
    return Steps(unit, count, zone, clock)


def joined(values: Mapping[int, float], steps: Steps) -> dict[int, float]:
    """Return the sum of the values of each step; `values` are by hour since the epoch."""
    by_step: dict[int, float] = {}
    for hour, value in values.items():
        at = steps.start(hour * HOUR_MS)
        by_step[at] = by_step.get(at, 0.0) + value
    return by_step


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {x: value for x, value in values.items() if math.isfinite(value)}


# -- HTML ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A section of a page: panels with a legend and a table of their values.

    Attributes:
        panels: The series of each panel, at most `SERIES_MAX`. The names of the series are the same
            in all panels.
        y_title: Meaning of the values.
        axis: Meaning of x.
        unit: Unit of the values.
        is_stacked: Whether the plot has stacked bars, whose values must be >= 0. If false, it has
            lines.
        title: Title above the plot.
        is_small: Whether panels are drawn small, with the same axes, and beside each other if the
            screen is wide enough.
        axes: Axes of panels, by panel, for panels that don't use `axis`.
    """

    panels: Panels
    y_title: str
    axis: Numbers | Steps
    unit: Unit = Unit.COUNT
    is_stacked: bool = True
    title: str = ""
    is_small: bool = False
    axes: Mapping[str, Steps] = field(default_factory=dict)

    def html(self) -> str:
        """Return the plot as HTML; values that are not finite are gaps, and counted in a note."""
        finite = {
            name: [replace(one, values=_finite(one.values)) for one in series]
            for name, series in self.panels.items()
        }
        value_count, finite_count = (
            sum(len(one.values) for series in panels.values() for one in series)
            for panels in (self.panels, finite)
        )
        note = f"Left out: {plural(value_count - finite_count, 'infinite or undefined value')}."
        text = _html(replace(self, panels=finite))
        return f'{text}<p class="note">{note}</p>' if value_count > finite_count else text


def _html(plot: Plot) -> str:
    """Return the panels of a plot with their legend; all values must be finite."""
    names = list(dict.fromkeys(one.name for series in plot.panels.values() for one in series))
    drawn = [_panel_html(plot, name, series) for name, series in plot.panels.items()]
    has_picture = any("<svg" in text for text in drawn)
    legend = _legend(names, is_stacked=plot.is_stacked) if has_picture else ""
    kind = "panels small" if plot.is_small and has_picture else "panels"
    return f'{legend}<div class="{kind}">{"".join(drawn)}</div>'


def _panel_html(plot: Plot, name: str, series: Sequence[Series]) -> str:
    axis = plot.axes.get(name, plot.axis)
    panel = _Panel(name, series, axis, plot)
    xs = sorted({x for one in series for x in one.values})
    if len(xs) < POINTS_MIN:
        return f"<p>{html_text(panel.sentence(xs))}</p>"
    everyone = [panel]
    if plot.is_small:
        everyone = [_Panel(name, one, axis, plot) for name, one in plot.panels.items()]
        xs = sorted({x for one in everyone for s in one.series for x in s.values})
    grid = axis.grid(xs)
    tops = [top for one in everyone for top in one.tops(grid)]
    return panel.html(grid, _scale(tops, plot.unit, is_stacked=plot.is_stacked))


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    series: Sequence[Series]
    axis: Numbers | Steps
    plot: Plot

    def sentence(self, xs: Sequence[int]) -> str:
        """Return the values as a sentence, for a panel with too few points for a plot."""
        where = f"{self.name}: " if self.name else ""
        if not xs:
            return f"{where}no {self.plot.y_title} to show."
        parts = [
            f"{self._named(one.name)}{self.plot.unit.text(one.values[x])} ({self._place(x)})"
            for one in self.series
            for x in xs
            if x in one.values
        ]
        return f"{where}{self.plot.y_title}: {', '.join(parts)}."

    def _place(self, x: int) -> str:
        """Return an x as words in a sentence.

        A plain number has its meaning before it: `batch 0`.
        """
        is_plain = isinstance(self.axis, Numbers) and self.axis.name is str
        return f"{self.axis.title} {x}" if is_plain else self.axis.name(x)

    def _named(self, name: str) -> str:
        return "" if name == self.plot.y_title else f"{name} "

    def html(self, grid: Sequence[int], scale: "_Scale") -> str:
        """Return a panel as HTML: caption, pictures, axis title, a note on cut values, values."""
        label = self._label(grid)
        widths = {"both": _SMALL} if self.plot.is_small else {"wide": _WIDE, "narrow": _NARROW}
        pictures = "".join(
            _draw(self, grid, scale, width).html(label, kind) for kind, width in widths.items()
        )
        head = f"<b>{html_text(self.name)}</b> " if self.name else ""
        caption = f"{self.plot.y_title}{f' ({scale.unit})' if scale.unit else ''}"
        cut = self._cut(grid, scale)
        note = f'<p class="note">{html_text(cut)}</p>' if cut else ""
        return (
            f"<figure><figcaption>{head}{html_text(caption)}</figcaption>{pictures}"
            f'<p class="axis">{html_text(self.axis.title)}</p>{note}{self._values(grid)}</figure>'
        )

    def tops(self, grid: Sequence[int]) -> list[float]:
        """Return the heights of the panel's bars or points.

        The bars stacked at an x count as one bar.
        """
        if self.plot.is_stacked:
            return [sum(one.values.get(x, 0.0) for one in self.series) for x in grid]
        return [one.values[x] for one in self.series for x in grid if x in one.values]

    def _label(self, grid: Sequence[int]) -> str:
        """Describe the panel in words, for screen readers."""
        parts = []
        for one in self.series:
            if one.values:
                x = max(one.values, key=one.values.__getitem__)
                parts.append(f"{one.name} at most {self._at(one, x)}")
        span = f"{self.axis.name(grid[0])} to {self.axis.name(grid[-1])}"
        where = f"{self.name}, " if self.name else ""
        return f"{where}{self.plot.y_title} by {self.axis.title}, {span}: {'; '.join(parts)}"

    def _at(self, series: Series, x: int) -> str:
        return f"{self.plot.unit.text(series.values[x])} ({self.axis.name(x)})"

    def _cut(self, grid: Sequence[int], scale: "_Scale") -> str:
        """Return a sentence with values outside the axis; empty if there are none."""
        outside = [
            (value, f"{self.axis.name(x)} {name}{self.plot.unit.text(value)}")
            for name, x, value in self._points(grid)
            if not scale.low <= value <= scale.high
        ]
        outside.sort(key=lambda one: -abs(one[0]))
        if not outside:
            return ""
        named = "; ".join(text for _, text in outside[:_OUTLIERS_NAMED])
        more = len(outside) - _OUTLIERS_NAMED
        rest = f"; and {more} more" if more > 0 else ""
        return f"The axis is cut; values outside the axis (▲): {named}{rest}."

    def _points(self, grid: Sequence[int]) -> Iterator[tuple[str, int, float]]:
        if self.plot.is_stacked:
            yield from (("", x, top) for x, top in zip(grid, self.tops(grid), strict=True))
            return
        for one in self.series:
            yield from ((self._named(one.name), x, v) for x, v in sorted(one.values.items()))

    def _values(self, grid: Sequence[int]) -> str:
        """Return the values as a folded table."""
        with_values = [x for x in grid if any(x in one.values for one in self.series)]
        listed_x = with_values[:VALUES_MAX]
        head = "".join(
            f'<th class="n" scope="col">{html_text(one.name)}</th>' for one in self.series
        )
        first = self.axis.unit if isinstance(self.axis, Steps) else self.axis.title
        rows = "".join(
            f'<tr><td class="d">{html_text(self.axis.name(x))}</td>'
            + "".join(f'<td class="n">{self._text(one, x)}</td>' for one in self.series)
            + "</tr>"
            for x in listed_x
        )
        rest = len(with_values) - len(listed_x)
        more = f"<p>{rest:,} more rows are left out.</p>" if rest else ""
        what = f"{self.name}: {self.plot.y_title}" if self.name else self.plot.y_title
        return (
            f"<details><summary>Values of {html_text(what)}</summary>"
            '<div class="scroll" tabindex="0" role="group"'
            f' aria-label="Values of {html_text(what)}"><table><thead>'
            f'<tr><th class="d" scope="col">{html_text(first)}</th>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>{more}</details>"
        )

    def _text(self, one: Series, x: int) -> str:
        return html_text(self.plot.unit.text(one.values[x])) if x in one.values else "-"


def _legend(names: Sequence[str], *, is_stacked: bool) -> str:
    """Return the legend as HTML; empty for a single series, which the caption names."""
    if len(names) < 2:
        return ""
    items = []
    for number, name in enumerate(names):
        mark = '<rect width="26" height="10"/>'
        if not is_stacked:
            dash = _DASHES[number % SERIES_MAX]
            dashes = f' stroke-dasharray="{" ".join(f"{d:g}" for d in dash)}"' if dash else ""
            mark = f'<line x2="26" y1="5" y2="5" stroke-width="2.5"{dashes}/>'
        swatch = (
            f'<svg class="swatch s{number % SERIES_MAX}" viewBox="0 0 26 10" aria-hidden="true">'
        )
        items.append(f"<span>{swatch}{mark}</svg> {html_text(name)}</span>")
    return f'<p class="legend">{"".join(items)}</p>'


# -- axes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """The y axis.

    Attributes:
        low: Smallest value of the axis.
        high: Largest value of the axis.
        divisor: Size of the ticks' unit, in the unit of the values.
        unit: Unit that is shown beside the title; empty if there is no unit, or if each tick has a
            unit.
        is_log: Whether the axis is logarithmic; around 0, such an axis has a linear part.
    """

    low: float
    high: float
    divisor: float
    unit: str
    is_log: bool = False


def _scale(values: Sequence[float], unit: Unit, *, is_stacked: bool) -> _Scale:
    sizes = sorted(abs(value) for value in values)
    usual = sizes[min(int(_OUTLIER_SHARE * len(sizes)), len(sizes) - 1)]
    usual_values = list(values)
    if len(values) >= _OUTLIER_POINTS_MIN and usual > 0:
        usual_values = [value for value in values if abs(value) <= _OUTLIER_FACTOR * usual]
    low, high = min(0.0, *usual_values), max(0.0, *usual_values)
    if low == high:
        high = 1.0
    median = sizes[len(sizes) // 2]
    largest = max(-low, high)
    if unit is Unit.MS and not is_stacked and largest > _LOG_FACTOR * max(median, _LOG_LINEAR_MS):
        return _Scale(low, high, 1.0, "logarithmic scale", is_log=True)
    fitting = (one for one in _SCALES[unit] if largest >= _UNITS_MIN * one[1])
    name, divisor = next(fitting, _SCALES[unit][-1] if unit is not Unit.COUNT else ("", 1.0))
    return _Scale(low, high, divisor, name)


# -- drawing ---------------------------------------------------------------------------------------

# Sizes in CSS px: at 72 dpi, a point of matplotlib is one px.
_WIDE: Final = 920
_NARROW: Final = 344
# Width of a small panel. A page has room for three small panels beside each other.
_SMALL: Final = 308
_HEIGHT: Final = 230
# The right margin has room for the value of the last point.
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 54, 18, 40
_FONT_PX: Final = 12
_TICK_PX: Final = 76
# Dashes of lines, so that series differ without colors.
_DASHES: Final[Sequence[tuple[float, ...]]] = ((), (6, 2.5), (2, 2), (8, 2, 2, 2))
# Minimum distance of labels at points, in px.
_LABEL_WIDTH, _LABEL_HEIGHT = 56, 15
# Maps a placeholder to a CSS variable of the page.
_COLORS: Final = {
    "#010101": "var(--ink)",
    "#020202": "var(--soft)",
    "#030303": "var(--line)",
    **{f"#04000{number}": f"var(--s{number})" for number in range(SERIES_MAX)},
}
_INK, _SOFT, _LINE, *_MARKS = _COLORS
_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "{http://www.w3.org/1999/xlink}href"
_STYLE: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.size": _FONT_PX,
    "axes.unicode_minus": False,
    "path.simplify": True,
}


@dataclass(frozen=True, slots=True)
class _Picture:
    svg: str
    width: int

    def html(self, label: str, kind: str) -> str:
        """Return the picture as SVG for a page: without ids and metadata, in the page's colors."""
        root = ET.fromstring(self.svg)  # noqa: S314 - matplotlib's own text
        for element in root.findall(f"{{{_SVG}}}metadata"):
            root.remove(element)
        used = set(re.findall(r"#[A-Za-z0-9_]+", self.svg))
        for node in root.iter():
            self._clean(node, used)
        root.attrib.clear()
        root.attrib |= {
            "class": kind,
            "viewBox": f"0 0 {self.width} {_HEIGHT}",
            "width": str(self.width),
            "height": str(_HEIGHT),
            "role": "img",
            "aria-label": visible(label),
        }
        ET.register_namespace("", _SVG)
        return ET.tostring(root, encoding="unicode")

    def _clean(self, node: "ET.Element", used: set[str]) -> None:
        if f"#{node.get('id', '')}" not in used:
            node.attrib.pop("id", None)
        if _XLINK in node.attrib:
            node.set("href", node.attrib.pop(_XLINK))
        for name in ("style", "fill", "stroke"):
            if name in node.attrib:
                text = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", node.get(name, ""))
                for color, variable in _COLORS.items():
                    text = text.replace(color, variable)
                node.set(name, text)
        if node.text is not None and not node.text.strip():
            node.text = None
        node.tail = None


def _draw(panel: _Panel, grid: Sequence[int], scale: _Scale, width: int) -> _Picture:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    salt = sha256(f"{panel.plot.title}\0{panel.name}\0{width}".encode()).hexdigest()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):  # type: ignore[dict-item] # any setting
        figure = Figure(figsize=(width / 72, _HEIGHT / 72), dpi=72)
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axes = figure.add_axes(
            (
                _LEFT / width,
                _BOTTOM / _HEIGHT,
                (width - _LEFT - _RIGHT) / width,
                (_HEIGHT - _TOP - _BOTTOM) / _HEIGHT,
            )
        )
        _frame(axes)
        _Drawing(axes, panel, grid, scale, width).draw()
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None})
    return _Picture(page.getvalue(), width)


def _frame(axes: "Axes") -> None:
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_SOFT)
    axes.grid(visible=True, axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, labelcolor=_SOFT, labelsize=_FONT_PX)
    axes.tick_params(axis="x", length=4, color=_SOFT, labelcolor=_SOFT, labelsize=_FONT_PX)


@dataclass(frozen=True, slots=True)
class _Drawing:
    axes: "Axes"
    panel: _Panel
    grid: Sequence[int]
    scale: _Scale
    width: int

    def draw(self) -> None:
        self._limits()
        labels = self._bars() if self.panel.plot.is_stacked else self._lines()
        self._ticks()
        self._annotate(labels)

    def _xs(self) -> list[float]:
        """Return the middle of each step."""
        return [(start + end) / 2 for start, end in self._edges()]

    def _edges(self) -> list[tuple[float, float]]:
        axis = self.panel.axis
        if isinstance(axis, Steps):
            ends = [*self.grid[1:], axis.next(self.grid[-1])]
            return [(a / 86_400_000, b / 86_400_000) for a, b in zip(self.grid, ends, strict=True)]
        if axis.unit is Unit.MS:
            return [(float(x), float(x)) for x in self.grid]
        return [(x - 0.5, x + 0.5) for x in self.grid]

    def _limits(self) -> None:
        edges = self._edges()
        first, last = edges[0][0], edges[-1][1]
        axis, scale = self.panel.axis, self.scale
        if isinstance(axis, Numbers) and axis.unit is Unit.MS:
            positive = [x for x in self.grid if x > 0]
            self.axes.set_xscale("symlog", linthresh=min(positive, default=1), linscale=0.5)
            self.axes.set_xlim(first, last * 1.3)
        else:
            margin = (last - first) * 0.01
            self.axes.set_xlim(first - margin, last + margin)
        low, high = scale.low / scale.divisor, scale.high / scale.divisor
        if scale.is_log:
            self.axes.set_yscale("symlog", linthresh=_LOG_LINEAR_MS, linscale=0.6)
            self.axes.set_ylim(low * 2 if low < 0 else 0, high * 3)
        else:
            span = high - low
            self.axes.set_ylim(low - (0.08 * span if low < 0 else 0), high + 0.14 * span)

    def _bars(self) -> list[tuple[float, float, float]]:
        edges = self._edges()
        tops = [0.0] * len(edges)
        top_limit = self.axes.get_ylim()[1]
        for number, one in enumerate(self.panel.series):
            values = [one.values.get(x, 0.0) / self.scale.divisor for x in self.grid]
            self.axes.bar(
                [a for a, _ in edges],
                values,
                width=[(b - a) * 0.86 for a, b in edges],
                bottom=tops,
                align="edge",
                color=_MARKS[number % SERIES_MAX],
                linewidth=0,
            )
            tops = [below + value for below, value in zip(tops, values, strict=True)]
        xs = self._xs()
        over = [x for x, top in zip(xs, tops, strict=True) if top > top_limit]
        self._arrows(over, top_limit)
        inside = [(x, y, y * self.scale.divisor) for x, y in zip(xs, tops, strict=True) if y]
        return _largest_and_last([one for one in inside if one[1] <= top_limit])

    def _lines(self) -> list[tuple[float, float, float]]:
        xs = self._xs()
        labels: list[tuple[float, float, float]] = []
        bottom, top = self.axes.get_ylim()
        for number, one in enumerate(self.panel.series):
            values = [one.values.get(x, math.nan) / self.scale.divisor for x in self.grid]
            color = _MARKS[number % SERIES_MAX]
            self.axes.plot(
                xs,
                values,
                color=color,
                linewidth=2,
                linestyle=(0, _DASHES[number % SERIES_MAX]) if number % SERIES_MAX else "-",
                solid_joinstyle="round",
            )
            alone = [(x, y) for x, y in _alone(xs, values) if bottom <= y <= top]
            if alone:
                self.axes.plot(
                    [x for x, _ in alone],
                    [y for _, y in alone],
                    color=color,
                    marker="o",
                    markersize=4.5,
                    linestyle="none",
                )
            self._arrows([x for x, y in zip(xs, values, strict=True) if y > top], top)
            points = [
                (x, y, y * self.scale.divisor)
                for x, y in zip(xs, values, strict=True)
                if bottom <= y <= top
            ]
            labels += _largest_and_last(points)
        return labels

    def _arrows(self, xs: Sequence[float], top: float) -> None:
        if xs:
            self.axes.plot(
                xs,
                [top] * len(xs),
                color=_INK,
                marker="^",
                markersize=7,
                linestyle="none",
                clip_on=False,
            )

    def _annotate(self, labels: Sequence[tuple[float, float, float]]) -> None:
        """Write values at points; labels that would cover other labels are left out.

        The value of the last point is written to the right of this point, where the plot has no
        marks. If the value doesn't fit there, it is written above the point. All other values are
        written above their points.
        """
        label_points: list[tuple[float, float]] = []
        edges = dict(zip(self._xs(), self._edges(), strict=True))
        for x, y, value in labels:
            px, py = self.axes.transData.transform((x, y))
            if any(
                abs(px - a) < _LABEL_WIDTH and abs(py - b) < _LABEL_HEIGHT for a, b in label_points
            ):
                continue
            label_points.append((px, py))
            text = self.panel.plot.unit.text(value)
            end = edges[x][1] if self.panel.plot.is_stacked else x
            right = self.axes.transData.transform((end, y))[0] + 4
            is_last = x == max(one[0] for one in labels)
            is_beside = is_last and right + len(text) * _FONT_PX * 0.6 <= self.width
            is_right = px > self.width - len(text) * _FONT_PX * 0.3
            side = "left" if px < _LEFT + _LABEL_WIDTH / 2 else "right" if is_right else "center"
            self.axes.annotate(
                text,
                (x, y),
                xytext=(right - px, 0) if is_beside else (0, 4),
                textcoords="offset points",
                ha="left" if is_beside else side,
                va="center" if is_beside else "bottom",
                color=_INK,
                fontsize=_FONT_PX,
            )

    # -- ticks

    def _ticks(self) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        if self.scale.is_log:
            low, high = self.axes.get_ylim()
            chosen = [t for t in _LOG_TICKS if t <= high]
            values = [*(-t for t in reversed(_LOG_TICKS) if -t >= low), 0, *chosen]
            fewer = values[:: 1 + (len(values) - 1) // _LOG_TICKS_MAX]
            self.axes.set_yticks(fewer, [Unit.MS.text(value) for value in fewer])
            self.axes.minorticks_off()
        else:
            steps = _TICK_STEPS[self.scale.unit in ("s", "min")]
            self.axes.yaxis.set_major_locator(MaxNLocator(5, steps=list(steps)))
            self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.5g}"))
        axis = self.panel.axis
        at, texts = self._time_ticks(axis) if isinstance(axis, Steps) else self._number_ticks(axis)
        self.axes.set_xticks(at, texts)
        self.axes.xaxis.set_minor_locator(MaxNLocator(1))
        self.axes.tick_params(axis="x", which="minor", length=0, labelsize=0)

    def _number_ticks(self, axis: Numbers) -> tuple[list[float], list[str]]:
        limit = max(2, self.width // 60)
        if axis.unit is Unit.MS:
            ticks: list[int] = []
            for x in self.grid:
                px = [self.axes.transData.transform((t, 0))[0] for t in (ticks[-1:] or [x]) + [x]]
                if not ticks or px[1] - px[0] > 44:
                    ticks.append(x)
            return [float(x) for x in ticks], [visible(axis.name(x)) for x in ticks]
        every = max(1, -(-len(self.grid) // limit))
        ticks = list(self.grid[::every])
        return [float(x) for x in ticks], [visible(axis.name(x)) for x in ticks]

    def _time_ticks(self, axis: Steps) -> tuple[list[float], list[str]]:
        from matplotlib.dates import HOURLY, MONTHLY, AutoDateLocator

        most = max(3, self.width // _TICK_PX)
        locator = AutoDateLocator(tz=axis.tz, minticks=2, maxticks=most)  # type: ignore[no-untyped-call] # matplotlib has no hint
        # Without these distances between ticks, matplotlib prints a warning for a narrow picture
        # that shows two days or two years.
        locator.intervald[HOURLY] = [1, 2, 3, 4, 6, 12, 24]
        locator.intervald[MONTHLY] = [1, 2, 3, 4, 6, 12]
        first, last = self.grid[0], axis.next(self.grid[-1])
        start, end = (datetime.fromtimestamp(ms / 1000, axis.tz) for ms in (first, last))
        ticks = locator.tick_values(start, end)  # type: ignore[no-untyped-call] # matplotlib has no hint
        days = [float(day) for day in ticks]
        inside = [day for day in days if first / 86_400_000 <= day <= last / 86_400_000]
        at = [datetime.fromtimestamp(round(day * 86_400), axis.tz) for day in inside]
        return inside, time_texts(at)


def time_texts(ticks: Sequence[datetime]) -> list[str]:
    """Format the ticks of a time axis with the parts that differ between ticks.

    A time of day has its day on a second line, and a day or month has its year there. The second
    line is shown only at the first tick and where the day or the year changes.
    """
    texts = []
    form, context = _forms(ticks)
    last = ""
    for at in ticks:
        second = f"{at:{context}}".lstrip("0") if context else ""
        first = f"{at:{form}}"
        if form.startswith("%d"):
            first = first.lstrip("0")
        texts.append(f"{first}\n{second}" if second != last else first)
        last = second
    return texts


def _forms(ticks: Sequence[datetime]) -> tuple[str, str]:
    """Return the strftime formats of a tick's first line and of its second line."""
    if any((at.hour, at.minute) != (0, 0) for at in ticks):
        return "%H:%M", "%d %b %Y"
    if any(at.day != 1 for at in ticks):
        return "%d %b", "%Y"
    return ("%b", "%Y") if any(at.month != 1 for at in ticks) else ("%Y", "")


def _alone(xs: Sequence[float], values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield the points with a gap on both sides. A line plot without marks would not show them."""
    padded = [math.nan, *values, math.nan]
    for number, (x, y) in enumerate(zip(xs, values, strict=True)):
        if not math.isnan(y) and math.isnan(padded[number]) and math.isnan(padded[number + 2]):
            yield x, y


def _largest_and_last(
    points: Sequence[tuple[float, float, float]],
) -> list[tuple[float, float, float]]:
    if not points:
        return []
    largest = max(points, key=lambda point: point[1])
    return [largest] if largest is points[-1] else [largest, points[-1]]
