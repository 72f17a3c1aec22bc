"""Hours, days, weeks and months in a time zone, as consecutive ranges of instants.

A day is shorter or longer than 24 hours if the clock changes on it. If a clock change repeats an
hour, the two hours are separate ranges. Weeks begin on Monday, as in ISO 8601.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tidelog.errors import InvalidRequest
from tidelog.types import HOUR_MS, MS_PER_SECOND

# Maximum number of units in one list: 11 years of hours.
UNITS_MAX: Final = 100_000
# Times are grouped by quarters of an hour, because UTC offsets of time zones are multiples of 15
# minutes.
QUARTER_MS: Final = 15 * 60_000
# Earliest start and latest end of a listed range. Python's calendar has the years 1 to 9999, and
# both bounds of each unit must be in these years.
_FIRST_MS: Final = int(datetime(2, 1, 1, tzinfo=UTC).timestamp()) * MS_PER_SECOND
_LAST_MS: Final = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * MS_PER_SECOND
_DAY_MS: Final = 24 * HOUR_MS


class CalendarUnit(StrEnum):
    """Unit of the calendar."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


# Average length of each unit in ms, to estimate the number of units in a range.
_LENGTHS_MS: Final = {
    CalendarUnit.HOUR: HOUR_MS,
    CalendarUnit.DAY: _DAY_MS,
    CalendarUnit.WEEK: 7 * _DAY_MS,
    CalendarUnit.MONTH: 146_097 * _DAY_MS // 4_800,  # 4800 months in 400 years
}


def unit_start(ms: int, unit: CalendarUnit, zone: tzinfo = UTC) -> int:
    """Return the start, in ms, of the unit that contains the instant `ms` in this zone."""
    local = _local(ms, zone)
    if unit is CalendarUnit.HOUR:
        start = ms - ms % MS_PER_SECOND - _ms_past_hour(local)
        return _clock_change(start, ms, zone) or start
    first = local.replace(hour=0, minute=0, second=0, fold=0)
    if unit is CalendarUnit.WEEK:
        first -= timedelta(days=first.weekday())
    elif unit is CalendarUnit.MONTH:
        first = first.replace(day=1)
    # If a clock change sets the clock back across midnight, `ms` can be in the next unit already.
    following = _instant(_following(first, unit))
    return following if following <= ms else _instant(first)


def ensure_countable(first_ms: int, end_ms: int, unit: CalendarUnit) -> None:
    """Check that the units with instants in [first_ms, end_ms) can be listed.

    Raises:
        InvalidRequest: There are more than `UNITS_MAX` units, estimated by the average length, or
            some units are before the year 2 or after the year 9998.
    """
    if end_ms > _LAST_MS:
        raise InvalidRequest(f"no {unit}s are known after the year 9998; use an earlier end")
    ensure_few((end_ms - first_ms) // _LENGTHS_MS[unit], unit)
    if first_ms < _FIRST_MS:
        raise InvalidRequest(f"no {unit}s are known before the year 2; use a later start")


def ensure_few(count: int, unit: CalendarUnit) -> None:
    """Raise InvalidRequest for more than `UNITS_MAX` units."""
    if count > UNITS_MAX:
        raise InvalidRequest(
            f"the range has {count:,} {unit}s, more than {UNITS_MAX:,}; use a shorter range or a"
            " larger unit"
        )


def units_with(
    instants: Iterable[int], unit: CalendarUnit, zone: tzinfo = UTC
) -> list[tuple[int, int]]:
    """Return the units [start, end) in ms that contain the instants.

    The instants must be ascending.

    Raises:
        InvalidRequest: Some units are before the year 2 or after the year 9998.
    """
    units: list[tuple[int, int]] = []
    for ms in instants:
        if not units or ms >= units[-1][1]:
            ensure_countable(ms, ms + 1, unit)
            start = unit_start(ms, unit, zone)
            units.append((start, next_start(start, unit, zone)))
    return units


def unit_starts(first_ms: int, end_ms: int, unit: CalendarUnit, zone: tzinfo = UTC) -> list[int]:
    """Return the starts of all units with instants in [first_ms, end_ms), in ms.

    Raises:
        InvalidRequest: There are more than `UNITS_MAX` units, or some units are before the year 2
            or after the year 9998.
    """
    ensure_countable(first_ms, end_ms, unit)
    starts = [unit_start(first_ms, unit, zone)]
    while (start := next_start(starts[-1], unit, zone)) < end_ms:
        starts.append(start)
    return starts


def unit_for(first_ms: int, end_ms: int, limit: int, zone: tzinfo = UTC) -> CalendarUnit | None:
    """Return the smallest unit that divides [first_ms, end_ms) into at most `limit` parts, or None.

    Each unit must begin at a multiple of `QUARTER_MS`, as in `unit_ranges`. Returns None if no unit
    is large enough, or if the range has instants before the year 2 or after the year 9998.
    """
    if first_ms < _FIRST_MS or end_ms > _LAST_MS:
        return None
    for unit, length_ms in _LENGTHS_MS.items():
        if (end_ms - first_ms) // length_ms > limit:
            continue
        starts = unit_starts(first_ms, end_ms, unit, zone)
        if len(starts) <= limit and _are_quarters(starts):
            return unit
    return None


def unit_ranges(
    requested: tuple[int | None, int | None],
    content: tuple[int, int],
    unit: CalendarUnit,
    zone: tzinfo = UTC,
) -> list[tuple[int, int]]:
    """Return consecutive ranges [start, end) in ms, one for each calendar unit.

    The units must begin at quarters of an hour. If a start or end is requested, the first or last
    range begins or ends there, not at the edge of its unit. Without a requested start, the first
    range is the unit that contains the content's first instant. If the content does not begin
    before 1970, this range is cut at 1970. Without a requested end, the last range is the unit that
    contains the content's last instant.

    Args:
        requested: Start and end in ms; None for a missing start or end.
        content: First instant and end of the content in ms, used for a missing start or end.
        unit: The unit.
        zone: Its time zone.

    Raises:
        InvalidRequest: `ensure_countable` refuses the units, or a unit does not begin at a multiple
            of `QUARTER_MS`.
    """
    first_ms, end_ms = requested
    starts = unit_starts(
        content[0] if first_ms is None else first_ms,
        content[1] if end_ms is None else end_ms,
        unit,
        zone,
    )
    ensure_quarters(starts, unit, zone)
    bounds = [*starts, next_start(starts[-1], unit, zone) if end_ms is None else end_ms]
    if first_ms is not None:
        bounds[0] = first_ms
    elif content[0] >= 0:
        bounds[0] = max(bounds[0], 0)  # printed times begin in 1970
    return [*pairwise(bounds)]


def ensure_quarters(starts: Sequence[int], unit: CalendarUnit, zone: tzinfo) -> None:
    """Raise InvalidRequest if a unit does not begin at a multiple of `QUARTER_MS`."""
    if not _are_quarters(starts):
        raise InvalidRequest(
            f"not all {unit}s of {zone} begin at a multiple of 15 minutes in this range; use UTC"
        )


def _are_quarters(starts: Sequence[int]) -> bool:
    return not any(start % QUARTER_MS for start in starts)


def next_start(start_ms: int, unit: CalendarUnit, zone: tzinfo = UTC) -> int:
    """Return the start, in ms, of the unit after the unit that begins at `start_ms`."""
    local = _local(start_ms, zone)
    if unit is CalendarUnit.HOUR:
        end = start_ms + HOUR_MS - _ms_past_hour(local)
        return _clock_change(start_ms, end, zone) or end
    first = local.replace(hour=0, minute=0, second=0, fold=0)
    return _instant(_following(first, unit))


def _local(ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(ms // MS_PER_SECOND, zone)


def _instant(local: datetime) -> int:
    """Return the first instant of a local time in ms.

    If a clock change skips the local time, return the instant of the clock change.
    """
    return round(local.timestamp()) * MS_PER_SECOND


def _ms_past_hour(local: datetime) -> int:
    return (local.minute * 60 + local.second) * MS_PER_SECOND


def _following(first: datetime, unit: CalendarUnit) -> datetime:
    """Return the first day of the next unit; `first` is the first day of this unit."""
    if unit is CalendarUnit.MONTH:
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if unit is CalendarUnit.WEEK else 1)


def _clock_change(start_ms: int, end_ms: int, zone: tzinfo) -> int | None:
    """Return the instant of the clock change in (start_ms, end_ms], in ms; None without a change.

    The hour that contains the clock change is split at the returned instant.
    """
    utc_offset = _local(end_ms, zone).utcoffset()
    if _local(start_ms, zone).utcoffset() == utc_offset:
        return None
    before, after = start_ms // MS_PER_SECOND, end_ms // MS_PER_SECOND
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == utc_offset:
            after = middle
        else:
            before = middle
    return after * MS_PER_SECOND
