"""Parses points and ranges in time; ranges are half-open: [start, end).

Also parses the forms of rpk: `@A`, `@A:`, `@A:B`, `@:B`, `@A:end`. There 10 digits are seconds and
13 are ms, dates are UTC, and a length without a sign lies ahead. B is relative to A if A is an
absolute time, else to now. `end` means no bound.

Source: behaviour of `rpk topic consume --offset`, which turns the ends into offsets; results here
are exact to the record.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta, tzinfo
from typing import Final

from tidelog.errors import InvalidTime
from tidelog.timespec.points import TEXT_LIMIT, Moment, checked_ms, read_moment, zone_of
from tidelog.timespec.units import NS_PER_SECOND, parse_duration
from tidelog.timespec.zones import format_ms, instant_ns, parse_zone
from tidelog.types import INT64_MAX, NS_PER_MS

# Each side ends at a colon or at the end of the text; the times have colons of their own.
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z"


_SIDE: Final = rf"({_TIME}|[^:]*)"


_FORM: Final = re.compile(rf"@{_SIDE}(?::{_SIDE})?", re.ASCII)


_FORMS: Final = (
    "after @ comes 13 digits (ms), 10 digits (s), YYYY-MM-DD, YYYY-MM-DDTHH:MM:SSZ or a length"
    " such as -48h; after a colon the end likewise, or `end`"
)


def parse_rpk_point(text: str, *, now_ms: int) -> int:
    """`@A` in ms since the epoch; raises InvalidTime."""
    first, second = _split(text)
    if second is not None or not first:
        raise InvalidTime(text, "a range, where one point in time is needed")
    return checked_ms(text, _read_rpk_side(text, first, now_ms, now_ms * NS_PER_MS)[0])


def parse_rpk_range(text: str, *, now_ms: int, open_range: tuple[int, int]) -> tuple[int, int]:
    """Any of the forms, as [start, end) in ms since the epoch.

    Args:
        text: From the `@` on.
        now_ms: What lengths count from.
        open_range: Start and end where there is no bound.

    Raises:
        InvalidTime: It can't be read.
    """
    first, second = _split(text)
    start, end = open_range
    base_ns = now_ms * NS_PER_MS
    if first:
        start_ns, is_absolute = _read_rpk_side(text, first, now_ms, base_ns)
        start = checked_ms(text, start_ns)
        base_ns = start_ns if is_absolute else base_ns
    if second and second != "end":
        end = checked_ms(text, _read_rpk_side(text, second, now_ms, base_ns)[0])
    return start, end


def _split(text: str) -> tuple[str, str | None]:
    match = _FORM.fullmatch(text)
    if match is None or match[1] == "end" or text == "@":
        raise InvalidTime(text, _FORMS)
    return match[1], match[2]


def _read_rpk_side(text: str, side: str, now_ms: int, base_ns: int) -> tuple[int, bool]:
    """The instant in ns, and whether it is absolute; lengths count from `base_ns`."""
    for pattern, read in _ABSOLUTE:
        if re.fullmatch(pattern, side, re.ASCII):
            return read(side, now_ms), True
    sign = -1 if side[0] == "-" else 1
    try:
        return base_ns + sign * parse_duration(side.lstrip("-") if sign < 0 else side), False
    except InvalidTime:
        raise InvalidTime(text, f"{side!r} can't be read; {_FORMS}") from None


def _read_utc(side: str, now_ms: int) -> int:
    return read_moment(side, now_ms).resolve(now_ms * NS_PER_MS, UTC)


_ABSOLUTE: Final[tuple[tuple[str, Callable[[str, int], int]], ...]] = (
    (r"[0-9]{13}", lambda side, _: int(side) * NS_PER_MS),
    (r"[0-9]{10}", lambda side, _: int(side) * NS_PER_SECOND),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", _read_utc),
    (_TIME, _read_utc),
)


# Where a range has no bound. Times before 1970 are refused, so nobody can write this one: a bound
# at 1970-01-01Z is a bound.
# The grammar in short, for help texts.
TIME_HELP: Final = (
    "ISO 8601 with a zone (2013-02-08T12:00Z, '2013-02-08 12:00 America/New_York'), epoch ms,"
    " now, or back from now (-6h)"
)
OPEN_START: Final = -1


OPEN_END: Final = INT64_MAX


_SEPARATOR: Final = ".."


def parse_point(
    text: str, *, now_ms: int, zone: tzinfo | str | None = None, down: bool = False
) -> int:
    """A point in time in ms since the epoch.

    What is finer than a millisecond is rounded up, which is exact for a search ("at or after").

    Args:
        text: As docs/time.md says: ISO 8601, epoch ms, `now`, `-6h`, `P1D`, `@...`.
        now_ms: What `now` is, in ms since the epoch.
        zone: For times that name none; None refuses them.
        down: Round down instead, as a record's own time is.

    Raises:
        InvalidTime: It can't be read, or not in one way only; the text says what would be right.
    """
    stripped = text.strip()
    try:
        if stripped.startswith("@"):
            return parse_rpk_point(stripped, now_ms=now_ms)
        moment = read_moment(stripped, now_ms)
        ns = moment.resolve(now_ms * NS_PER_MS, zone_of(zone))
        return checked_ms(stripped, ns // NS_PER_MS * NS_PER_MS if down else ns)
    except InvalidTime as error:
        raise _about(text, error) from None


def _about(text: str, error: InvalidTime) -> InvalidTime:
    """The error about the whole text, which names the part that is wrong."""
    shortened = text[:TEXT_LIMIT]
    whole = error.text in (text.strip(), shortened)
    return InvalidTime(shortened, error.reason if whole else f"in {error.text!r}: {error.reason}")


def parse_range(text: str, *, now_ms: int, zone: tzinfo | str | None = None) -> tuple[int, int]:
    """A range in time as [start, end) in ms since the epoch.

    Args:
        text: As docs/time.md says: `A..B`, `A..`, `..B`, `A..+6h`, a date alone (that day), `@A:B`.
        now_ms: What `now` is, in ms since the epoch.
        zone: For times that name none; None refuses them. A zone written on one side only holds
            for both.

    Returns:
        Start, inclusive, `OPEN_START` where there is no bound; end, exclusive, likewise `OPEN_END`.

    Raises:
        InvalidTime: It can't be read, not in one way only, or holds nothing.
    """
    try:
        return _parse_range(text.strip(), now_ms, zone_of(zone))
    except InvalidTime as error:
        raise _about(text, error) from None


def _parse_range(text: str, now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    if text.startswith("@") and _SEPARATOR not in text:
        start, end = parse_rpk_range(text, now_ms=now_ms, open_range=(OPEN_START, OPEN_END))
    elif _SEPARATOR in text:
        start, end = _parse_two_sides(text, now_ms, zone)
    else:
        start, end = _parse_day(text, now_ms, zone)
    first = max(start, 0)
    if first >= end:
        printed = f"from {format_ms(first, zone)} to before {format_ms(end, zone)}"
        raise InvalidTime(text, f"holds nothing: {printed}; the end comes after the start")
    return start, end


def _parse_day(text: str, now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    """A date alone is that day, from its first instant to the next day's; a length is until now."""
    moment = read_moment(text, now_ms)
    if moment.wall is None and (moment.is_ago or moment.from_now):
        start_ns = moment.resolve(now_ms * NS_PER_MS, zone)
        if start_ns < now_ms * NS_PER_MS:
            return checked_ms(text, start_ns), now_ms + 1
    if moment.wall is None or not moment.wall.is_date:
        raise InvalidTime(text, f"one point, where a range is needed; write {text}.. or ..{text}")
    day = moment.wall
    try:
        next_day = replace(day, moment=day.moment + timedelta(days=1))
    except OverflowError:
        raise InvalidTime(text, "outside the years 1 to 9999") from None
    start, end = instant_ns(day, zone), instant_ns(next_day, zone)
    return checked_ms(text, start), checked_ms(text, end)


def _parse_two_sides(text: str, now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    first, _, second = (side.strip() for side in text.partition(_SEPARATOR))
    if _SEPARATOR in second or second.startswith("."):
        raise InvalidTime(text, "more than one '..' in a range")
    start = _read_side(first, now_ms) if first else None
    end = _read_side(second, now_ms) if second else None
    zone = _shared_zone(text, start, end) or zone
    now_ns = now_ms * NS_PER_MS
    if start is not None and end is not None and _is_length(start) and _is_length(end):
        raise InvalidTime(text, "two lengths of time; one side must be a point")
    start_ns = None if start is None else start.resolve(now_ns, zone)
    end_ns = None if end is None else end.resolve(now_ns, zone)
    # A length counts from the other side: A..+6h, A..P1D, P1D..B.
    if end is not None and end.length_ns is not None and start_ns is not None:
        end_ns = start_ns + end.length_ns
    elif start is not None and start.is_ago and start.length_ns is not None and end_ns is not None:
        start_ns = end_ns - start.length_ns
    return (
        OPEN_START if start_ns is None else checked_ms(text, start_ns),
        OPEN_END if end_ns is None else checked_ms(text, end_ns),
    )


def _read_side(text: str, now_ms: int) -> Moment:
    """One side of `..`; rpk's form of a point may stand there too."""
    if text.startswith("@"):
        return Moment(text, at_ns=parse_rpk_point(text, now_ms=now_ms) * NS_PER_MS)
    return read_moment(text, now_ms)


def _is_length(moment: Moment) -> bool:
    return moment.length_ns is not None


def _shared_zone(text: str, start: Moment | None, end: Moment | None) -> tzinfo | None:
    """The zone written on one side, for a side without one."""
    for moment in (start, end):
        if moment is not None and moment.zone_text is not None:
            name = moment.zone_text
            inner = name[name.index("[") + 1 : -1] if name.endswith("]") else name
            return parse_zone(text, inner)
    return None
