"""Parses points in time and time ranges; ranges are half-open: [start, end).

Also parses the forms of rpk: `@A`, `@A:`, `@A:B`, `@:B`, `@A:end`. In rpk's forms, a number of 10
digits is in seconds and a number of 13 digits is in ms. Dates are in UTC. A duration counts from
now, and forward if it has no sign. Exception: if A is an absolute time, a duration B counts from A.
`end` means no bound.

Source: behavior of `rpk topic consume --offset`, which converts start and end to offsets. Unlike
rpk, tidelog selects exactly the records whose times are in the range.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Final

from tidelog.errors import InvalidTime
from tidelog.timespec.points import (
    TEXT_LIMIT,
    Moment,
    UnknownTimeForm,
    checked_ms,
    read_moment,
    read_year,
)
from tidelog.timespec.units import NS_PER_SECOND, parse_duration
from tidelog.timespec.zones import TODAY, instant_ns, parse_zone, zone_of, zoned_text
from tidelog.types import INT64_MAX, NS_PER_MS

# A side of a range ends at a colon or at the end of the text. Because times contain colons, a time
# is matched as a whole.
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z"

_SIDE: Final = rf"({_TIME}|[^:]*)"
_FORM: Final = re.compile(rf"@{_SIDE}(?::{_SIDE})?", re.ASCII)

_FORMS: Final = (
    "after @ write 13 digits (ms), 10 digits (s), YYYY-MM-DD, YYYY-MM-DDTHH:MM:SSZ or a length"
    " such as -48h; after a colon the end in the same forms, or `end`"
)


def parse_rpk_point(text: str, *, now_ms: int) -> int:
    """Parse `@A` to ms since the epoch; raises InvalidTime."""
    first, second = _split(text)
    if second is not None or not first:
        raise InvalidTime(text, "a range, but one point in time is required")
    return checked_ms(text, _read_rpk_side(text, first, now_ms, now_ms * NS_PER_MS)[0])


def parse_rpk_range(text: str, *, now_ms: int, open_range: tuple[int, int]) -> tuple[int, int]:
    """Parse any of rpk's forms to [start, end) in ms since the epoch.

    Args:
        text: The text, from the `@` on.
        now_ms: The current time in ms since the epoch, from which lengths count.
        open_range: Start and end, in ms, for a side without a bound.

    Raises:
        InvalidTime: The text has none of the forms, or a time is outside the range of a log's
            timestamps.
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
    """Return the instant in ns, and whether it is absolute.

    If the side is a duration, the instant is `base_ns` plus this duration, and is not absolute.
    """
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

# OPEN_START (-1) and OPEN_END stand for a missing bound. Times before 1970 raise InvalidTime, so no
# text is parsed to -1. 1970-01-01Z is parsed to 0, which is a real bound. TIME_HELP is the grammar
# in short, for help texts.
TIME_HELP: Final = (
    "ISO 8601 with a zone (2013-02-08T12:00Z, '2013-02-08 12:00 America/New_York'), epoch ms,"
    " now, 'yesterday UTC', 'noon UTC', or back from now (-6h, '2h ago')"
)
OPEN_START: Final = -1
OPEN_END: Final = INT64_MAX
_SEPARATOR: Final = ".."


def parse_point(
    text: str, *, now_ms: int, zone: tzinfo | str | None = None, down: bool = False
) -> int:
    """Parse a point in time to ms since the epoch.

    Fractions of a millisecond are rounded up, which is exact for a search ("at or after").

    Args:
        text: In the grammar of docs/time.md: ISO 8601, epoch ms, `now`, `-6h`, `P1D`, `@...`.
        now_ms: The time of `now`, in ms since the epoch.
        zone: Zone of times whose text has no zone. If None, such times raise InvalidTime.
        down: Whether to round fractions of a ms down, as in a record's create time; else they are
            rounded up.

    Raises:
        InvalidTime: The text is invalid or ambiguous, or `zone` is unknown; the message says what
            to write instead.
    """
    stripped = text.strip()
    try:
        if stripped.startswith("@"):
            return parse_rpk_point(stripped, now_ms=now_ms)
        if _SEPARATOR in stripped.partition("[")[0]:
            raise InvalidTime(stripped, "a range, but one point in time is required")
        moment = read_moment(stripped, now_ms)
        ns = moment.resolve(now_ms * NS_PER_MS, zone_of(zone))
        return checked_ms(stripped, ns // NS_PER_MS * NS_PER_MS if down else ns)
    except InvalidTime as error:
        raise _about(text, error) from None


def _about(text: str, error: InvalidTime) -> InvalidTime:
    """Return an error that quotes the whole text, and the wrong part of it."""
    shortened = text[:TEXT_LIMIT]
    whole = error.text in (text.strip(), shortened)
    reason = error.reason if whole else f"in {error.text!r}: {error.reason}"
    return InvalidTime(shortened, reason, is_zone_missing=error.is_zone_missing)


def parse_range(text: str, *, now_ms: int, zone: tzinfo | str | None = None) -> tuple[int, int]:
    """Parse a time range to [start, end) in ms since the epoch.

    Args:
        text: In the grammar of docs/time.md: `A..B`, `A..`, `..B`, `A..+6h`, `-6h` (up to now), a
            date, month or year alone (all of it), `@A:B`.
        now_ms: The time of `now`, in ms since the epoch.
        zone: Zone of times whose text has no zone. If None, such times raise InvalidTime. If only
            one side has a zone, that zone applies to both sides.

    Returns:
        Start, inclusive, or `OPEN_START` without a bound; end, exclusive, or `OPEN_END` without a
        bound.

    Raises:
        InvalidTime: The text is invalid or ambiguous, the range is empty, or `zone` is unknown.
    """
    try:
        return _parse_range(text.strip(), now_ms, zone_of(zone))
    except InvalidTime as error:
        raise _about(text, error) from None


def parse_sides(
    start: str, end: str, *, now_ms: int, zone: tzinfo | str | None = None
) -> tuple[int, int]:
    """Parse a time range whose start and end are separate texts.

    A zone in one text does not apply to the other text, unlike in a range `A..B` in one text. If
    the end is a time of day alone, it gets the date and the zone of the start.

    Args:
        start: The start, inclusive; empty without a bound.
        end: The end, exclusive; empty without a bound.
        now_ms: The time of `now`, in ms since the epoch.
        zone: Zone of times whose text has no zone. If None, such times raise InvalidTime.

    Returns:
        Start and end in ms, as from `parse_range`.

    Raises:
        InvalidTime: A side is invalid or ambiguous, the range is empty, or `zone` is unknown.
    """
    text, default = f"{start}..{end}", zone_of(zone)
    try:
        sides = _read_sides(text, start.strip(), end.strip(), now_ms)
        return _checked(text, *_resolved(text, *sides, now_ms, default), default)
    except InvalidTime as error:
        # An error about one side must quote only that side, not the text of both sides.
        raise (_about(text, error) if error.text == text[:TEXT_LIMIT] else error) from None


def _parse_range(text: str, now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    if text.startswith("@") and _SEPARATOR not in text:
        start, end = parse_rpk_range(text, now_ms=now_ms, open_range=(OPEN_START, OPEN_END))
    elif _SEPARATOR in text:
        first, second = _split_sides(text)
        sides = _read_sides(text, first, second, now_ms)
        zone = _shared_zone(text, *sides) or zone
        start, end = _resolved(text, *sides, now_ms, zone)
    else:
        start, end = _parse_day(text, now_ms, zone)
    return _checked(text, start, end, zone)


def _checked(text: str, start: int, end: int, zone: tzinfo | None) -> tuple[int, int]:
    first = max(start, 0)
    if first >= end:
        printed = f"from {zoned_text(first, zone)} to {zoned_text(end, zone)}"
        raise InvalidTime(text, f"empty range {printed}; the end must be later than the start")
    return start, end


def _parse_day(text: str, now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    """Parse a range without `..`.

    A date, month or year alone means the whole day, month or year. A length before now (`-6h`, `2h
    ago`) means the range from that time to now, inclusive.
    """
    try:
        moment = read_year(text) or read_moment(text, now_ms)
    except UnknownTimeForm as error:
        ranges = ", a whole day, month or year (2013-02-08Z, 2013-02Z, 2013Z), or a range A..B"
        raise UnknownTimeForm(error.text, ranges) from None
    if moment.wall is None and (moment.is_ago or moment.from_now):
        start_ns = moment.resolve(now_ms * NS_PER_MS, zone)
        if start_ns < now_ms * NS_PER_MS:
            return checked_ms(text, start_ns), now_ms + 1
    if moment.wall is None or moment.wall.span is None:
        raise InvalidTime(
            text, f"a point in time, but a range is required; write {text}.. or ..{text}"
        )
    try:
        sides = (moment.wall, moment.wall.next())
    except OverflowError:
        raise InvalidTime(text, "outside the years 1 to 9999") from None
    start, end = (instant_ns(side, zone, now_ms * NS_PER_MS) for side in sides)
    return checked_ms(text, start), checked_ms(text, end)


def _split_sides(text: str) -> tuple[str, str]:
    """Split `A..B` at its first separator; `A..+7d ZONE` means `A ZONE..+7d`."""
    first, _, second = (side.strip() for side in text.partition(_SEPARATOR))
    head, space, zone = second.rpartition(" ")
    if not space and second[-1:] in ("Z", "z"):
        head, zone = second[:-1], second[-1]
    start = _moment(first)
    if start is None or start.wall is None or start.zone_text is not None:
        return first, second
    try:
        is_length = _is_length(_read_side(head, 0))
        parse_zone(text, zone)
    except InvalidTime:
        return first, second
    return (f"{first} {zone}", head) if is_length else (first, second)


def _read_sides(
    text: str, first: str, second: str, now_ms: int
) -> tuple[Moment | None, Moment | None]:
    if _SEPARATOR in first or _SEPARATOR in second or second.startswith("."):
        raise InvalidTime(text, "more than one '..' in a range")
    start = _read_side(first, now_ms) if first else None
    end = _read_side(second, now_ms) if second else None
    return start, _on_the_same_day(text, start, end)


def _resolved(
    text: str, start: Moment | None, end: Moment | None, now_ms: int, zone: tzinfo | None
) -> tuple[int, int]:
    now_ns = now_ms * NS_PER_MS
    if start is not None and end is not None and _is_length(start) and _is_length(end):
        raise InvalidTime(text, "two lengths of time; one side must be a point")
    start_ns = None if start is None else start.resolve(now_ns, zone)
    end_ns = None if end is None else end.resolve(now_ns, zone)
    # A length on one side counts from the other side: A..+6h, A..P1D, P1D..B.
    if end is not None and end.length_ns is not None and start_ns is not None:
        end_ns = start_ns + end.length_ns
    elif start is not None and start.is_ago and start.length_ns is not None and end_ns is not None:
        start_ns = end_ns - start.length_ns
    return (
        OPEN_START if start_ns is None else checked_ms(text, start_ns),
        OPEN_END if end_ns is None else checked_ms(text, end_ns),
    )


def _on_the_same_day(text: str, start: Moment | None, end: Moment | None) -> Moment | None:
    """Return the end; an end that is a time of day alone gets the date and zone of the start.

    An example is `2013-02-08 12:00..13:00`. If the text of the end names a zone, that zone applies
    to the end.

    Raises:
        InvalidTime: The start is a time of day alone, and the end has a date.
    """
    first, last = (None if side is None else side.wall for side in (start, end))
    if first is None or last is None or first.has_date == last.has_date:
        return end
    if last.has_date:
        raise InvalidTime(text, f"the date of {first.text} is missing; write it on that side, too")
    day = first.moment.replace(hour=0, minute=0, second=0) + (last.moment - TODAY)
    zone_text = last.zone_text or first.zone_text
    wall = replace(last, moment=day, from_today=first.from_today, zone_text=zone_text)
    return Moment(last.text, wall=wall)


def _read_side(text: str, now_ms: int) -> Moment:
    """Parse one side of `..`: a point in the grammar, or in rpk's form `@A`."""
    if text.startswith("@"):
        return Moment(text, at_ns=parse_rpk_point(text, now_ms=now_ms) * NS_PER_MS)
    return read_moment(text, now_ms)


def _is_length(moment: Moment) -> bool:
    return moment.length_ns is not None


def _shared_zone(text: str, start: Moment | None, end: Moment | None) -> tzinfo | None:
    """Return the zone of the first side, else the zone of the second side; None without a zone."""
    for moment in (start, end):
        if moment is not None and moment.zone_text is not None:
            return parse_zone(text, _zone_name(moment.zone_text))
    return None


def _zone_name(zone_text: str) -> str:
    return zone_text[zone_text.index("[") + 1 : -1] if zone_text.endswith("]") else zone_text


def zone_of_question(texts: Iterable[str]) -> str | None:
    """Return the zone that the times and ranges in a query name.

    The printed results, and the times in the query that name no zone, are in the returned zone.

    Args:
        texts: Times, ranges and other texts such as `latest`, which need no zone.

    Returns:
        An IANA name, or an offset such as `-05:00`. None if no text names a zone, if texts name
        different zones, or if all times have the zone `Z`.
    """
    names: set[str | None] = set()
    for text in texts:
        sides = _split_sides(text) if text.count(_SEPARATOR) == 1 else text.split(_SEPARATOR)
        moments = [moment for side in sides if (moment := _moment(side.strip()))]
        zones = [one.zone_text for one in moments if one.zone_text is not None]
        is_zone_needed = any(one.wall is not None for one in moments)
        names.update(map(_zone_spelling, zones) if zones or not is_zone_needed else (None,))
    is_needed = None in names
    names.discard(None)
    if is_needed and "Z" in names:
        names.add("UTC")
        names.discard("Z")
    name = names.pop() if len(names) == 1 else None
    return None if name == "Z" else name


def _zone_spelling(zone_text: str) -> str:
    """Return the standard spelling of a zone: `Z` for `z`, and `+05:30` for `+0530`."""
    name = _zone_name(zone_text)
    if name[0] not in "+-":
        return "Z" if name == "z" else name
    digits = name[1:].replace(":", "").ljust(4, "0")
    return f"{name[0]}{digits[:2]}:{digits[2:]}"


def _moment(text: str) -> Moment | None:
    """Return the point that a text means; None for texts such as `latest`."""
    try:
        return _read_side(text, 0)
    except InvalidTime:
        return None
