"""Two kinds of plots as SVG text: stacked bars and lines over the hours of a day.

Written here, not by a plotting library, so that the report is one small file that needs no network
and no script. Colours and fonts come from the page's style sheet by class.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 330
_HEIGHT: Final = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 26, 38
_STEPS: Final = 5
_BAR_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Series:
    """One kind of value, by hour.

    Attributes:
        name: For the legend and the tips.
        style: The class of its marks: `s0`, `s1`, ...
        values: By hour; hours without a value are left out.
    """

    name: str
    style: str
    values: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From hours and values to places in one panel; the value 0 is always inside."""

    hours: range
    ticks: Sequence[float]

    def x(self, hour: float) -> float:
        share = (hour - self.hours.start + 0.5) / len(self.hours)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)

    @property
    def bar_width(self) -> float:
        return _BAR_SHARE * (_WIDTH - _LEFT - _RIGHT) / len(self.hours)


_Marks = Callable[[_Scale, str, Sequence[Series]], Iterator[str]]


def stacked_bars(panels: Mapping[str, Sequence[Series]], y_title: str) -> str:
    """Bars by hour, the series on top of each other; a panel for each name. Values are >= 0."""
    totals = [total for series in panels.values() for total in _totals(series)]
    return _figure(panels, _Scale(_hours(panels), nice_ticks(0, max(totals))), y_title, _bars)


def lines(panels: Mapping[str, Sequence[Series]], y_title: str) -> str:
    """A line for each series over the hours; a panel for each name."""
    values = [v for series in panels.values() for one in series for v in one.values.values()]
    scale = _Scale(_hours(panels), nice_ticks(min(values), max(values)))
    return _figure(panels, scale, y_title, _lines)


def _hours(panels: Mapping[str, Sequence[Series]]) -> range:
    found = [hour for series in panels.values() for one in series for hour in one.values]
    assert found
    return range(min(found), max(found) + 1)


def _totals(series: Sequence[Series]) -> list[float]:
    hours = {hour for one in series for hour in one.values}
    return [sum(one.values.get(hour, 0) for one in series) for hour in hours]


def nice_ticks(lowest: float, highest: float) -> list[float]:
    """Some five round numbers in equal steps that span both values and 0."""
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    step = max(highest - lowest, 1.0) / _STEPS
    power = 10.0 ** math.floor(math.log10(step))
    nice = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)
    first, last = math.floor(lowest / nice), math.ceil(highest / nice)
    return [number * nice for number in range(first, max(last, first + 1) + 1)]


def _figure(
    panels: Mapping[str, Sequence[Series]],
    scale: _Scale,
    y_title: str,
    marks: _Marks,
) -> str:
    parts = []
    for number, (name, series) in enumerate(panels.items()):
        inside = "".join([*_axes(scale, name, y_title), *marks(scale, name, series)])
        parts.append(f'<g transform="translate({number * _WIDTH} 0)">{inside}</g>')
    width = _WIDTH * len(panels)
    label = escape(f"{y_title} by scheduled hour, for {', '.join(panels)}", quote=True)
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="{label}"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _axes(scale: _Scale, name: str, y_title: str) -> Iterator[str]:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text class="panel" x="{middle:.1f}" y="14">{escape(name)}</text>'
    for value in scale.ticks:
        y = scale.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{_LEFT - 5}" y="{y + 3.5:.1f}">{value:g}</text>'
    for hour in scale.hours:
        if hour % 3 == 0:
            x, y = scale.x(hour), _HEIGHT - _BOTTOM + 14
            yield f'<text class="tick middle" x="{x:.1f}" y="{y}">{hour}:00</text>'
    yield f'<text class="axis middle" x="{middle:.1f}" y="{_HEIGHT - 6}">scheduled hour</text>'
    y = (_TOP + _HEIGHT - _BOTTOM) / 2
    place = f'x="11" y="{y:.1f}" transform="rotate(-90 11 {y:.1f})"'
    yield f'<text class="axis middle" {place}>{escape(y_title)}</text>'


def _tip(panel: str, series: Series, hour: int) -> str:
    text = f"{panel} {hour}:00, {series.name}: {series.values[hour]:g}"
    return f"<title>{escape(text)}</title>"


def _bars(scale: _Scale, panel: str, all_series: Sequence[Series]) -> Iterator[str]:
    width = scale.bar_width
    for hour in scale.hours:
        below = 0.0
        for series in all_series:
            value = series.values.get(hour, 0)
            if not value:
                continue
            y, base = scale.y(below + value), scale.y(below)
            yield (
                f'<rect class="{series.style}" x="{scale.x(hour) - width / 2:.1f}" y="{y:.1f}"'
                f' width="{width:.1f}" height="{base - y:.1f}">{_tip(panel, series, hour)}</rect>'
            )
            below += value


def _lines(scale: _Scale, panel: str, all_series: Sequence[Series]) -> Iterator[str]:
    for series in all_series:
        points = [(h, scale.x(h), scale.y(v)) for h, v in sorted(series.values.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in points)
        yield f'<polyline class="{series.style}" points="{path}"/>'
        for hour, x, y in points:
            yield (
                f'<circle class="{series.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">'
                f"{_tip(panel, series, hour)}</circle>"
            )


def legend(series: Sequence[Series]) -> str:
    """What the marks mean, as HTML."""
    items = (
        f'<span><svg viewBox="0 0 10 10"><rect class="{one.style}" width="10" height="10"/></svg>'
        f" {escape(one.name)}</span>"
        for one in series
    )
    return f'<p class="legend">{"".join(items)}</p>'
