"""Formats amounts for display: exact counts; durations, bytes, rates and shares in few digits.

Tables, verdicts, pages and notebooks use these functions, so that an amount is written in the same
way everywhere. JSON, CSV and Arrow have the exact numbers instead.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import floor, isfinite, log10
from typing import Final

# Units of time, the longest first: name, and length in seconds.
_DURATIONS: Final = (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0))
_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_KILO: Final = 1000
_MINUTE_S: Final = 60
# Durations are measured in whole ms.
_SECONDS_MIN: Final = 0.001
# An estimate of at least `_MANY` of a unit, such as 10 hours, is given in that unit alone. An
# estimate of at least one unit but less than `_MANY` is given in that unit and the next smaller
# unit (3h10m). An estimate in two units is rounded to the larger unit's step in `_STEPS_S`.
_MANY: Final = 10
_STEPS_S: Final = (2 * 3_600.0, 5 * 60.0, 5.0, 0.1)


def duration_text(seconds: float, *, rounded: Callable[[float], int] = round) -> str:
    """Format a duration in its one or two largest units: `21h35m`, `2m5s`, `3.2s`, `808ms`, `-2m`.

    Args:
        seconds: The duration.
        rounded: The rounding function: `round`, or `math.ceil`, which rounds up positive durations
            of 1 s or more.
    """
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if not isfinite(seconds):
        return "forever"
    tenths = rounded(seconds * 10)
    if tenths < 10 * _MINUTE_S:
        if rounded(seconds * 1000) < _KILO:
            return f"{seconds * 1000:.3g}ms" if seconds else "0s"
        return f"{tenths / 10:g}s"
    for (unit, size), (smaller, step) in pairwise(_DURATIONS):
        steps = rounded(seconds / step)
        if steps * step >= size:
            whole, rest = divmod(steps, round(size / step))
            return f"{whole}{unit}{rest}{smaller}" if rest else f"{whole}{unit}"
    raise AssertionError(seconds)


def estimate_text(seconds: float) -> str:
    """Format an estimated duration with few digits: `3h10m`, `48m`, `2m`.

    The text differs from the estimate by at most 5.3 % of the estimate.
    """
    if seconds < 0:
        return f"-{estimate_text(-seconds)}"
    for (_, unit), step in zip(_DURATIONS, _STEPS_S, strict=True):
        if seconds >= _MANY * unit:
            return duration_text(round(seconds / unit) * unit)
        rounded = round(seconds / step) * step
        if rounded >= unit:
            return duration_text(rounded)
    return duration_text(seconds)


def bytes_text(size: float) -> str:
    """Format bytes with three digits: `999 B`, `12.5 kB`, `125 MB`."""
    if size < 0:
        return f"-{bytes_text(-size)}"
    power = 0
    while size >= _KILO - 0.5 and power < len(_SIZES) - 1:
        size /= _KILO
        power += 1
    if not power:
        return f"{size:.0f} {_SIZES[0]}"
    decimals = max(0, 2 - floor(log10(size))) if size >= 1 else 2
    number = f"{size:.{decimals}f}"
    return f"{number.rstrip('0').rstrip('.') if decimals else number} {_SIZES[power]}"


def rate_text(number: float, seconds: float, unit: str = "records") -> str:
    """Format a rate with two or three digits: `14,800 records/s`, `0.33 records/s`, `0.0046/s`.

    A duration below 1 ms counts as 1 ms, the precision of the measured durations. So the rate of a
    positive number is never 0.

    Args:
        number: Number of things.
        seconds: The duration.
        unit: Name of the things, before `/s`; empty to leave it out.
    """
    rate = number / max(seconds, _SECONDS_MIN)
    power = floor(log10(rate)) if rate > 0 else 2
    digits = power - 2 if power >= 0 else power - 1
    return f"{round(rate, -digits):,.{max(-digits, 0)}f}{unit and f' {unit}'}/s"


def share_text(share: float) -> str:
    """Format a share from 0 to 1 in percent: `0.12%`, `34%`, `99.9988%`.

    A share up to 50 % is rounded to two significant digits. A larger share is rounded so that its
    difference from 100 % has two significant digits.
    """
    percent = share * 100
    distance = min(abs(percent), abs(100 - percent))
    decimals = 0 if not 0 < distance < 10 else 1 - floor(log10(distance))
    return f"{percent:.{decimals}f}%"


def offsets_text(first: int, last: int) -> str:
    """Format a range of offsets, with both ends inclusive: `offset 3`, or `offsets 3 to 7`."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 record`, `1,939 records`."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def verb(count: int, one: str, many: str) -> str:
    """Return the form of a verb for a count: `lacks` for 1, `lack` for other counts."""
    return one if count == 1 else many


def ranges_text(numbers: Iterable[int]) -> str:
    """Format whole numbers as ascending ranges, with both ends inclusive: `0-3, 7`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("-".join(map(str, one)) for one in ranges)
