"""Converts between local time in a zone and instants.

If a clock change repeats or skips a local time, this local time has no single instant. Parsing such
a local time raises InvalidTime, and the error names both possible instants. A date alone means the
first instant of that day. If the zone skips that day, the date means the first instant of the next
day.

Source: IANA time zone database, through `zoneinfo`.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import Enum
from functools import lru_cache
from typing import Final

from tidelog.errors import InvalidTime
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec.units import NS_PER_SECOND
from tidelog.types import NO_TIMESTAMP, NS_PER_MS

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - wall times are naive until they have a zone
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}", re.ASCII)
_OFFSET: Final = re.compile(r"([+-])([0-9]{2})(?::?([0-9]{2}))?", re.ASCII)
# Minimum similarity of a suggested name. With this value, a name with one wrong letter of six is
# similar, but Paris is not suggested for Mars.
_SIMILAR: Final = 0.8
# Upper limit for the difference between a zone and UTC, including skipped days.
_FAR: Final = timedelta(hours=48)

# Placeholder for the current day, which depends on a zone that is not known yet.
TODAY: Final = _EPOCH


class Span(Enum):
    """Part of the calendar that a date without a time of day names."""

    DAY = "day"
    MONTH = "month"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class WallTime:
    """Parsed date and time, not yet in a zone.

    Attributes:
        text: The text, for errors.
        moment: Date and time without a zone, in whole seconds. If `from_today`, the date is
            relative to `TODAY`.
        fraction_ns: Nanoseconds after `moment`.
        zone_text: Zone as written; None if the text has no zone.
        span: Day, month or year, if the text has no time of day.
        from_today: Whether the date is relative to the current day in the zone.
        has_date: Whether the text has a date or a word for a date; False for a time of day alone.
    """

    text: str
    moment: datetime
    fraction_ns: int
    zone_text: str | None
    span: Span | None
    from_today: bool = False
    has_date: bool = True

    def next(self) -> "WallTime":
        """Return the start of the next day, month or year; raises OverflowError after year 9999."""
        days = {Span.DAY: 1, Span.MONTH: 31, Span.YEAR: 366}
        assert self.span is not None
        moment = self.moment + timedelta(days=days[self.span])
        if self.span is not Span.DAY:
            moment = moment.replace(day=1)
        return replace(self, moment=moment)


def parse_zone(text: str, name: str) -> tzinfo:
    """Return a zone by name: an IANA name, `Z`, or an offset such as `+05:30`.

    Args:
        text: The whole text, for errors.
        name: The zone as written.

    Raises:
        InvalidTime: The zone is unknown, or the offset is too large.
    """
    if name in ("Z", "z"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        return _parse_offset(text, match)
    # imported only here, because it takes 6 ms and most zones are offsets
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        if not _NAME.fullmatch(name):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        subject = "not a time zone" if text == name else f"no time zone {name!r}"
        raise InvalidTime(text, f"{subject}{_nearest(name)}") from None


def zone_of(zone: tzinfo | str | None) -> tzinfo | None:
    """Return the zone with this name; a zone or None is returned unchanged.

    Raises:
        InvalidTime: The zone is unknown, or the offset is too large.
    """
    return _zone_named(zone) if isinstance(zone, str) else zone


@lru_cache
def _zone_named(name: str) -> tzinfo:
    return parse_zone(name, name)


def _nearest(name: str) -> str:
    """Return a suggestion for an unknown zone, found by its name or the last part of the name."""
    if name.isupper() and len(name) > 1 and name != "UTC" and "/" not in name:
        return "; abbreviations are ambiguous, write a place (America/New_York) or an offset"
    import difflib  # imported only for errors, because it takes 3 ms
    from zoneinfo import available_timezones

    names = sorted(available_timezones())
    cities = {zone.rsplit("/", 1)[-1].lower(): zone for zone in names}
    zone_by_text = cities | {zone.lower(): zone for zone in names}
    written = name.lower().replace(" ", "_")
    for text in (written, written.rsplit("/", 1)[-1]):
        if matches := difflib.get_close_matches(text, zone_by_text, n=1, cutoff=_SIMILAR):
            return f"; did you mean {zone_by_text[matches[0]]}?"
    return "; write a place as in America/New_York, an offset such as -05:00, or Z"


def _parse_offset(text: str, match: re.Match[str]) -> tzinfo:
    hours, minutes = int(match[2]), int(match[3] or 0)
    if hours > 18 or minutes > 59:
        raise InvalidTime(text, f"offset {match[0]}: at most 18 hours and 59 minutes are allowed")
    size = timedelta(hours=hours, minutes=minutes)
    return timezone(-size if match[1] == "-" else size)


def instant_ns(wall: WallTime, default: tzinfo | None, now_ns: int) -> int:
    """Return the instant of a wall time, in ns since the epoch.

    Args:
        wall: The wall time.
        default: Zone of a wall time whose text has no zone. If None, a wall time without a zone
            raises InvalidTime.
        now_ns: The current time, which decides the day of `today` and of a time without a date.

    Raises:
        InvalidTime: The zone is missing or unknown, the wall time is ambiguous or skipped in the
            zone, the UTC offset in the text is not an offset of the zone, or the year is not from 1
            to 9999.
    """
    zone, offset = _zone_of(wall, default)
    try:
        if wall.from_today:
            today = _local(_EPOCH + timedelta(microseconds=now_ns // 1000), zone)
            days = timedelta(days=(today - _EPOCH).days)
            wall = replace(wall, moment=wall.moment + days)
        if wall.span is not None and offset is None:
            return _ns(_start_of_day(wall.moment, zone))
        return _ns(_instant(wall, zone, offset)) + wall.fraction_ns
    except OverflowError:
        raise InvalidTime(wall.text, "outside the years 1 to 9999") from None


def _zone_of(wall: WallTime, default: tzinfo | None) -> tuple[tzinfo, tzinfo | None]:
    """Return a wall time's zone, and the offset in its text or None.

    A text can have both a zone and an offset, as in `-05:00[America/New_York]`.
    """
    if wall.zone_text is None:
        if default is None:
            raise InvalidTime(
                wall.text,
                "the time zone is missing; add Z, an offset such as -05:00 or a name such as"
                " America/New_York",
                is_zone_missing=True,
            )
        return default, None
    offset, bracket, name = wall.zone_text.rstrip("]").partition("[")
    if not bracket:
        return parse_zone(wall.text, offset), None
    zone = parse_zone(wall.text, name)
    return zone, parse_zone(wall.text, offset) if offset else None


def _candidates(moment: datetime, zone: tzinfo) -> list[datetime]:
    """Return the two UTC times that a wall time may mean.

    The two times differ only if a clock change repeats or skips the wall time.
    """
    instants = []
    for fold in (0, 1):
        offset = moment.replace(tzinfo=zone, fold=fold).utcoffset()
        assert offset is not None
        instants.append(moment - offset)
    return instants


def _exists(utc: datetime, moment: datetime, zone: tzinfo) -> bool:
    return _local(utc, zone) == moment


def _local(utc: datetime, zone: tzinfo) -> datetime:
    return utc.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None, fold=0)


def _instant(wall: WallTime, zone: tzinfo, offset: tzinfo | None) -> datetime:
    """Return the instant of a wall time, as naive UTC.

    Raises:
        InvalidTime: The wall time is ambiguous or skipped, or the offset is wrong for the zone.
    """
    moment = wall.moment
    both = _candidates(moment, zone)
    real = sorted({utc for utc in both if _exists(utc, moment, zone)})
    if offset is not None:
        instant = _candidates(moment, offset)[0]
        if instant not in real:
            raise InvalidTime(
                wall.text, f"the zone has another UTC offset at that time; write {_or(both, zone)}"
            )
        return instant
    if len(real) == 1:
        return real[0]
    happens = "happens twice" if real else "never happens"
    reason = f"that time {happens} in this zone, because of a clock change; write {_or(both, zone)}"
    raise InvalidTime(wall.text, reason)


def _or(both: list[datetime], zone: tzinfo) -> str:
    return " or ".join(
        utc.replace(tzinfo=UTC).astimezone(zone).isoformat() for utc in sorted(set(both))
    )


def _start_of_day(day: datetime, zone: tzinfo) -> datetime:
    """Return the first instant of a day as naive UTC.

    If the zone skips the day, return the first instant of the next day.
    """
    real = [utc for utc in _candidates(day, zone) if _exists(utc, day, zone)]
    if real:
        return min(real)
    low, high = day - _FAR, day + _FAR
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if _local(middle, zone) >= day:
            high = middle
        else:
            low = middle
    return high


def _ns(utc: datetime) -> int:
    return (utc - _EPOCH) // timedelta(seconds=1) * NS_PER_SECOND


def format_ms(timestamp: int, zone: tzinfo | str | None = None) -> str:
    """Format a time as ISO 8601 to the millisecond; `parse_point` reads it back.

    Args:
        timestamp: In ms since the epoch.
        zone: Zone of the text; UTC if None.

    Returns:
        A text such as `2013-02-08T12:00:00.000-05:00`. Times before 1970 or after the year 9999
        can't be read back, so they are formatted as numbers, e.g. `-2 ms`.

    Raises:
        InvalidTime: The zone is unknown.
    """
    moment = _moment(timestamp, zone)
    if moment is None:
        return f"{timestamp} ms"
    text = moment.isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z") if moment.tzinfo is UTC else text


def in_zone(text: str, times_ms: Iterable[int | None], zone: tzinfo | str | None) -> str:
    """Return the text with its UTC times, as formatted by `format_ms`, replaced by `zoned_text`.

    Args:
        text: The text, whose times are in UTC, in ISO 8601.
        times_ms: The times, in ms since the epoch; None is skipped.
        zone: Zone of the times in the result; UTC if None.

    Raises:
        InvalidTime: The zone is unknown.
    """
    for ms in times_ms:
        if ms is not None:
            text = text.replace(format_ms(ms), zoned_text(ms, zone))
    return text


def zoned_text(ms: int, zone: tzinfo | str | None = None) -> str:
    """Format a time with its zone, for printing: `2013-02-08 17:00:00 UTC`; see `time_text`.

    `parse_point` reads it back, except in an hour that a clock change repeats.
    """
    text = time_text(ms, zone)
    return text if _moment(ms, zone) is None else f"{text} {zone or 'UTC'}"


def time_text(ms: object, zone: tzinfo | str | None = None) -> str:
    """Format a time without its zone: `2013-02-08 17:00:00`, with ms only if they are not 0.

    The heading of the column or the sentence names the zone. The UTC offset is added only in an
    hour that a clock change repeats: `2013-11-03 01:30:00-05:00`. A time before 1970 or after the
    year 9999 becomes a number, e.g. `-2 ms`; None and -1 become `-`.

    Raises:
        InvalidTime: The zone is unknown.
    """
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return "-"
    moment = _moment(ms, zone)
    if moment is None:
        return f"{ms} ms"
    text = moment.replace(tzinfo=None).isoformat(" ", "milliseconds" if ms % 1000 else "seconds")
    is_repeated = moment.replace(fold=1 - moment.fold).utcoffset() != moment.utcoffset()
    return f"{text}{moment.isoformat()[-len('+00:00') :]}" if is_repeated else text


def _moment(ms: int, zone: tzinfo | str | None) -> datetime | None:
    """Return a time in a zone; None before 1970 and after the year 9999."""
    target = zone_of(zone) or UTC
    if ms < 0:
        return None
    try:
        return (_EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=ms)).astimezone(target)
    except OverflowError:
        return None


def ceil_ms(ns: int) -> int:
    """Round up to whole ms.

    Timestamps are whole ms. So a comparison of a timestamp with the result of rounding up is exact
    for a range's start (t >= ns) and for its end (t < ns).
    """
    return -(-ns // NS_PER_MS)
