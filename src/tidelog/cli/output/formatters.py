"""Formatters for people: one for each kind of cell, used by tables, sentences and pages alike."""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Final

from tidelog.cli.output.column import Column, Kind, iso
from tidelog.cli.surroundings import printable
from tidelog.timespec.zones import parse_zone
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.remote.view import Count

NULL: Final = "(null)"
EMPTY: Final = "(empty)"
_NONE: Final = "-"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Names and sizes in seconds, from the largest.
_DURATIONS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_KILO: Final = 1000
_MINUTE_S: Final = 60


def time_text(ms: object, zone: str | None = None) -> str:
    """Format a time without its zone: `2013-02-08 17:00:00`, ms only if they are not 0.

    The zone stands once, in the heading or the sentence. Only in an hour that a change of clocks
    repeats, the offset is added: `2013-11-03 01:30:00-05:00`. A time outside the calendar is a
    number, no time is `-`.
    """
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return _NONE
    try:
        moment = (_EPOCH + timedelta(milliseconds=ms)).astimezone(_zone(zone))
    except OverflowError:
        return iso(ms, zone)
    if ms < 0:
        return iso(ms, zone)
    local = moment.replace(tzinfo=None)
    text = local.isoformat(" ", "milliseconds" if ms % 1000 else "seconds")
    if moment.replace(fold=1 - moment.fold).utcoffset() == moment.utcoffset():
        return text
    offset = moment.isoformat()[-len("+00:00") :]
    return f"{text}{offset}"


@lru_cache
def _zone(zone: str | None) -> tzinfo:
    return UTC if zone is None else parse_zone(zone, zone)


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units: `21h35m`, `2m5s`, `3.2s`, `808ms`, `-2m`."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if not isfinite(seconds):
        return "for ever"
    if round(seconds, 1) < _MINUTE_S:
        if 0 < seconds < 1:
            return f"{seconds * 1000:.3g}ms" if round(seconds, 3) < 1 else "1s"
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    for (unit, size), (smaller, step) in pairwise(_DURATIONS):
        steps = round(seconds / step)
        if steps * step >= size:
            whole, rest = divmod(steps, size // step)
            return f"{whole}{unit}{rest}{smaller}" if rest else f"{whole}{unit}"
    raise AssertionError(seconds)


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


def share_text(share: float) -> str:
    """Format a share from 0 to 1 in percent, with two digits of it, or of what is left to 100 %."""
    percent = share * 100
    distance = min(abs(percent), abs(100 - percent))
    decimals = 0 if not 0 < distance < 10 else 1 - floor(log10(distance))
    return f"{percent:.{decimals}f}%"


def count_text(count: "Count | float") -> str:
    """Format a count, `336,776`; `<=` marks an upper bound. Rates have one decimal."""
    if isinstance(count, int):
        return f"{count:,}"
    if isinstance(count, float):
        return f"{count:,.1f}"
    return f"{count.records:,}" if count.is_exact else f"<={count.records:,}"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 record`, `1,939 records`."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def cell_text(column: Column, cell: object, zone: str | None = None) -> str:
    """A cell for people, on one line, with control characters escaped; `-` for none."""
    if column.kind is Kind.DATA:
        return _data_text(cell)
    if column.kind is Kind.TIME:
        return time_text(cell, zone)
    if cell is None:
        return _NONE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return _number_text(column, cell)
    return printable(_plain(cell))


def _number_text(column: Column, number: float) -> str:
    match column.kind:
        case Kind.SIZE:
            return bytes_text(number)
        case Kind.DURATION:
            return duration_text(number if column.name.endswith("_s") else number / 1000)
        case Kind.SHARE:
            return share_text(number)
        case Kind.COUNT:
            return count_text(number)
        case _:
            return f"{number}"


def _plain(cell: object) -> str:
    if isinstance(cell, list | tuple):
        return "; ".join(map(_plain, cell)) or _NONE
    if isinstance(cell, dict):
        return ",".join(f"{name}={_plain(one)}" for name, one in cell.items()) or _NONE
    return str(cell)


def _data_text(cell: object) -> str:
    """A key or value: null and empty text have marks, and texts that look like these quotes."""
    if cell is None:
        return NULL
    if not isinstance(cell, str):
        return printable(json.dumps(cell, ensure_ascii=False))
    if not cell:
        return EMPTY
    return printable(f'"{cell}"' if cell.strip('"') in (NULL, EMPTY) else cell)
