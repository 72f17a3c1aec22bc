"""Parses one point in time. The grammar is in docs/time.md."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Final

from tidelog.errors import InvalidTime
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec.units import (
    EPOCH_UNITS,
    NS_PER_SECOND,
    parse_duration,
    scaled,
)
from tidelog.timespec.zones import TODAY, Span, WallTime, ceil_ms, instant_ns, parse_zone
from tidelog.types import INT64_MAX, NS_PER_MS

TEXT_LIMIT: Final = 120

_EPOCH_NUMBER: Final = re.compile(
    r"([0-9]{1,40})(?:[.,]([0-9]{1,18}))?\s*(s|ms|us|µs|ns)?", re.ASCII
)
_DATE: Final = re.compile(
    r"(?:([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?(?![0-9])|(yesterday|today|tomorrow)(?:\b|(?=Z$)))"
    # After a year or a month without a day, a UTC offset must follow a space, because 2013-02 is a
    # month.
    r"(?(4)|(?(3)|(?![+-])))",
    re.ASCII | re.IGNORECASE,
)
_CLOCK: Final = re.compile(
    r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?|(noon|midnight)(?:\b|(?=Z$))"
    # An hour without minutes must follow a T, as in 2013-02-08T12Z.
    r"|(?<=T)([0-9]{2})(?![0-9:])",
    re.ASCII | re.IGNORECASE,
)
_ZONE: Final = re.compile(
    r"Z|z|[+-][0-9]{2}(?::?[0-9]{2})?(?:\[[^\[\]]+\])?|\[[^\[\]]+\]|[A-Za-z][\w+/ -]*", re.ASCII
)
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_HOURS: Final = {"noon": 12, "midnight": 0}
_COMPACT_DATE: Final = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")

# A bare number in this range more likely means a year than a time in ms.
_YEARS: Final = range(1970, 2100)
# 1973-03-03 as a number of seconds. An earlier time with a unit, such as 90000s, more likely means
# a duration. For times from 1973-03-03 to the year 5138, the size of the number shows whether its
# unit is s, ms, us or ns.
_PLAUSIBLE_SECONDS: Final = 100_000_000
_FILETIMES: Final = range(10**17 * 12 // 10, 10**17 * 16 // 10)
_FORMS: Final = (
    "write an ISO 8601 time (2013-02-08T12:00Z, 2013-02-08 12:00 America/New_York), epoch ms,"
    " now, yesterday, noon, or a length of time before now (-6h, 2h ago)"
)


class UnknownTimeForm(InvalidTime):
    """Error for a text that has none of the forms of a time."""

    def __init__(self, text: str, other_forms: str = "") -> None:
        super().__init__(text[:TEXT_LIMIT], f"not a time; {_FORMS}{other_forms}")


@dataclass(frozen=True, slots=True)
class Moment:
    """Parsed point in time or side of a range; either `wall`, `at_ns` or `length_ns` is set.

    Attributes:
        text: The text.
        wall: A date or time, not yet in a zone.
        at_ns: An instant, in ns since the epoch.
        length_ns: A length of time in ns; the context decides where it starts.
        is_ago: Whether the length was written as an ISO duration. Where a point in time is
            expected, an ISO duration such as `PT6H` means the time that long before now.
        from_now: Whether the instant was written relative to now.
        zone: Zone written after a length, or after a time relative to now. It does not change this
            time or length, but applies to the other side of a range and to the output.
    """

    text: str
    wall: WallTime | None = None
    at_ns: int | None = None
    length_ns: int | None = None
    is_ago: bool = False
    from_now: bool = False
    zone: str | None = None

    @property
    def zone_text(self) -> str | None:
        """The zone as written; None if the text has no zone."""
        return self.zone if self.wall is None else self.wall.zone_text

    def resolve(self, now_ns: int, zone: tzinfo | None) -> int:
        """Return the instant in ns since the epoch; a length counts from now.

        Raises:
            InvalidTime: A wall time has no single instant; see `instant_ns`.
        """
        if self.wall is not None:
            return instant_ns(self.wall, zone, now_ns)
        if self.length_ns is not None:
            return now_ns - self.length_ns if self.is_ago else now_ns + self.length_ns
        assert self.at_ns is not None
        return self.at_ns


def checked_ms(text: str, ns: int) -> int:
    """Return an instant in ms, rounded up; raises InvalidTime before 1970 or above INT64_MAX.

    Negative timestamps have special meanings in Kafka's requests, such as -1 and -2.
    """
    ms = ceil_ms(ns)
    if not 0 <= ms <= INT64_MAX:
        raise InvalidTime(text, f"outside the timestamps that a log can hold ({ms} ms since 1970)")
    return ms


def read_moment(text: str, now_ms: int) -> Moment:
    """Parse a point without applying a zone.

    A time relative to now can have a zone too (`-1d America/New_York`), which then applies to the
    other side of a range and to the output.

    Raises:
        InvalidTime: The text is invalid or ambiguous, or the zone is unknown.
    """
    try:
        return _read_moment(text, now_ms)
    except InvalidTime:
        moment = _read_relative(text.strip(), now_ms)
        if moment is None:
            raise
    assert moment.zone is not None
    parse_zone(text.strip(), moment.zone)
    return moment


def _read_relative(text: str, now_ms: int) -> Moment | None:
    """Parse a text of two parts: first a time relative to now or a length, then a zone.

    Return None if the text does not have these parts. Whether the zone exists is not checked. If
    the text can be split at several places, the zone is as short as possible.
    """
    words = text.split(" ") if len(text) <= TEXT_LIMIT else []
    for count in range(len(words) - 1, 0, -1):
        zone = " ".join(words[count:])
        if not _ZONE.fullmatch(zone):
            continue
        try:
            moment = _read_moment(" ".join(words[:count]), now_ms)
        except InvalidTime:
            continue
        if moment.from_now or moment.length_ns is not None:
            return replace(moment, zone=zone)
    return None


def _read_moment(text: str, now_ms: int) -> Moment:
    stripped = text.strip()
    if not stripped or len(stripped) > TEXT_LIMIT:
        raise UnknownTimeForm(text)
    first, lower = stripped[0], stripped.lower()
    if lower.startswith("now"):
        return _read_now(stripped, now_ms * NS_PER_MS)
    if first in "+-":
        return _read_signed(stripped, now_ms * NS_PER_MS)
    if first in "Pp":
        return Moment(stripped, length_ns=parse_duration(stripped), is_ago=True)
    if lower.endswith(" ago"):
        length = parse_duration(stripped[:-4].strip())
        return Moment(stripped, at_ns=now_ms * NS_PER_MS - length, from_now=True)
    if number := _EPOCH_NUMBER.fullmatch(stripped):
        return Moment(stripped, at_ns=_epoch_ns(stripped, number))
    return _read_wall(stripped)


def _read_now(text: str, now_ns: int) -> Moment:
    rest = text[3:].strip()
    if not rest:
        return Moment(text, at_ns=now_ns, from_now=True)
    if rest[0] not in "+-":
        raise InvalidTime(text, "after `now` write + or - and a length of time, as in now-6h")
    return Moment(text, at_ns=now_ns + _signed(text, rest), from_now=True)


def _read_signed(text: str, now_ns: int) -> Moment:
    """Parse a signed length: `-6h` becomes the instant 6 h ago, and `+6h` remains a length.

    A length such as `+6h` counts from the start of a range if it is the end of that range, and from
    now in all other places.
    """
    length = _signed(text, text)
    if length > 0 or text[0] == "+":
        return Moment(text, length_ns=length)
    return Moment(text, at_ns=now_ns + length, from_now=True)


def _signed(text: str, signed: str) -> int:
    length_text = signed[1:].lstrip()
    if length_text.isdigit():
        raise InvalidTime(
            text, f"the unit of {length_text} is missing; write e.g. {signed}s or {signed}h"
        )
    length = parse_duration(length_text)
    return -length if signed[0] == "-" else length


def _epoch_ns(text: str, number: re.Match[str]) -> int:
    whole, decimals, unit = number.groups()
    if unit is not None:
        ns = scaled(text, whole, decimals, EPOCH_UNITS[unit])
        if ns < _PLAUSIBLE_SECONDS * NS_PER_SECOND:
            reason = f"a length, or a time in early 1970? For {text} before now, write -{text};"
            raise InvalidTime(text, f"{reason} for the time, write its date")
        return ns
    if decimals is not None:
        raise InvalidTime(text, f"bare numbers are whole epoch ms; write {text}s if it is seconds")
    _check_size(text, int(whole))
    if len(whole) == 4 and int(whole) in _YEARS:
        ms = f"1970-01-01T00:00:{int(whole) / 1000:06.3f}Z"
        reason = (
            f"a year, or ms since 1970? For the year, write {text}Z, or {text} and a zone's name"
        )
        raise InvalidTime(text, f"{reason}; for the ms, write {ms}")
    return int(whole) * NS_PER_MS


def _check_size(text: str, number: int) -> None:
    """Raise InvalidTime for a bare number that is more likely a date or a time in s, us or ns.

    Numbers below 1e8 that don't look like a date are accepted as ms, because they don't look like a
    time in another unit, and synthetic logs often have such small times.
    """
    if _COMPACT_DATE.fullmatch(text):
        date = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        raise InvalidTime(text, f"bare numbers are epoch ms, this looks like a date; write {date}")
    unit = None
    if _PLAUSIBLE_SECONDS <= number < _PLAUSIBLE_SECONDS * 1000:
        unit = "s"
    elif number >= _PLAUSIBLE_SECONDS * 10**9:
        unit = "ns"
    elif number >= _PLAUSIBLE_SECONDS * 10**6:
        unit = "us"
    if unit is None:
        return
    more = ", or a Windows FILETIME" if number in _FILETIMES else ""
    reason = f"bare numbers are epoch ms, this looks like {unit}{more}"
    raise InvalidTime(text, f"{reason}; write {text}{unit}, or {text}ms if it is ms")


def read_year(text: str) -> Moment | None:
    """Parse a year alone (1970 to 2099), which `read_moment` can't parse; None for other texts."""
    if re.fullmatch(r"[0-9]{4}", text) and int(text) in _YEARS:
        return _read_wall(text)
    return None


def _read_wall(text: str) -> Moment:
    """Parse `DATE`, `DATE CLOCK` or `CLOCK`, each with or without a zone after it."""
    date = _DATE.match(text)
    at = 0 if date is None else date.end()
    gap = re.compile(r"[Tt]|\s*").match(text, at)
    clock = _CLOCK.match(text, gap.end() if gap else at)
    if clock is not None:
        at = clock.end()
    zone = text[at:].strip() or None
    if (date or clock) is None or (zone is not None and not _ZONE.fullmatch(zone)):
        raise _error(text)
    if clock is not None and date is not None and date[3] is None and date[4] is None:
        raise InvalidTime(text, "a time of day needs a full date, as in 2013-02-08")
    try:
        moment, fraction_ns = _naive(text, date, clock)
    except (ValueError, OverflowError) as error:
        raise InvalidTime(text, f"no such date or time: {error}") from None
    span = None if clock else _span_of(date)
    from_today = date is None or date[4] is not None
    wall = WallTime(text, moment, fraction_ns, zone, span, from_today, has_date=date is not None)
    return Moment(text, wall=wall)


def _naive(
    text: str, date: re.Match[str] | None, clock: re.Match[str] | None
) -> tuple[datetime, int]:
    """Return the date and time without a zone, and the fraction of a second in ns.

    Raises ValueError or OverflowError if there is no such date or time.
    """
    if date is None or date[4] is not None:
        day = TODAY + timedelta(days=_DAYS[date[4].lower()] if date else 0)
    else:
        day = datetime(  # noqa: DTZ001 - a wall time; its zone is applied later
            int(date[1]), int(date[2] or 1), int(date[3] or 1)
        )
    if clock is None:
        return day, 0
    if clock[5]:
        return day.replace(hour=_HOURS[clock[5].lower()]), 0
    hour, minute, second = (int(part or 0) for part in (clock[1] or clock[6], clock[2], clock[3]))
    if (hour, minute, second, int(clock[4] or 0)) == (24, 0, 0, 0):
        return day + timedelta(days=1), 0
    fraction_ns = scaled(text, "0", clock[4], NS_PER_SECOND) if clock[4] else 0
    return day.replace(hour=hour, minute=minute, second=second), fraction_ns


def _span_of(date: re.Match[str] | None) -> Span:
    if date is None or date[3] is not None or date[4] is not None:
        return Span.DAY
    return Span.YEAR if date[2] is None else Span.MONTH


def _error(text: str) -> InvalidTime:
    """Return the error for an invalid text, with a hint about the likely mistake."""
    try:
        parse_duration(text)
    except InvalidTime:
        pass
    else:
        return InvalidTime(text, f"a length of time; write -{text} for that long ago")
    if ".." in text:
        return InvalidTime(text, "a range, but one point in time is required")
    return UnknownTimeForm(text)
