"""Two kinds of plots as SVG text: stacked bars and lines over whole numbers, such as hours.

Written here, not by a plotting library, so that the report is one small file that needs no network
and no script. Colours and fonts come from the page's style sheet by class.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.markup import shown

_WIDTH: Final = 330
# Of a panel that stands alone.
_WIDTH_ALONE: Final = 700
_HEIGHT: Final = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 26, 38
_STEPS: Final = 5
_BAR_SHARE: Final = 0.8
# Ticks of large values are told in these.
_UNITS: Final = ((1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


@dataclass(frozen=True, slots=True)
class Series:
    """One kind of value over whole numbers.

    Attributes:
        name: For the legend and the tips.
        style: The class of its marks: `s0`, `s1`, ...
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
        title: Below the axis.
        name: The text of a number, for its tick and its tips.
        every: Numbers that this divides get a tick.
    """

    title: str
    name: Callable[[int], str]
    every: int = 1


@dataclass(frozen=True, slots=True)
class _Scale:
    """From numbers and values to places in one panel; the value 0 is always inside."""

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
    """Bars, series on top of each other; a panel for each name. Values are >= 0, one at least."""
    totals = [total for series in panels.values() for total in _totals(series)]
    return _figure(panels, _scale(panels, axis, nice_ticks(0, max(totals))), y_title, _bars)


def lines(panels: Panels, y_title: str, axis: Axis) -> str:
    """A line for each series; a panel for each name. There must be one value at least."""
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
    """Some five round numbers in equal steps that span both values and 0."""
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
    """A number in few characters: `250k`, `1.5M`."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def whole(value: float) -> str:
    """A number with all its digits before the point."""
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
    """What the marks mean, as HTML."""
    items = (
        f'<span><svg viewBox="0 0 10 10"><rect class="{one.style}" width="10" height="10"/></svg>'
        f" {shown(one.name)}</span>"
        for one in series
    )
    return f'<p class="legend">{"".join(items)}</p>'
