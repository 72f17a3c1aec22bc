"""Hours, days, weeks and months of a time zone, as consecutive ranges of instants.

A day has 23 or 25 hours if the clock changes on it. If a clock change repeats an hour, the second
one is another hour. Weeks begin on Monday, as in ISO 8601.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Final

from tidelog.errors import InvalidRequest
from tidelog.types import HOUR_MS, MS_PER_SECOND

# Maximum number of units in one list: 11 years of hours.
UNITS_MAX: Final = 100_000
# Python's calendar ends with the year 9999, and the end of each unit must be in it.
_LAST_MS: Final = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * MS_PER_SECOND
_DAY_MS: Final = 24 * HOUR_MS


class CalendarUnit(StrEnum):
    """Unit of the calendar."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


# From the start of a unit, a step leads into the next one: past its longest length, and by less
# than the length of the next one.
_STEPS_MS: Final = {
    CalendarUnit.HOUR: HOUR_MS,
    CalendarUnit.DAY: _DAY_MS + 2 * HOUR_MS,
    CalendarUnit.WEEK: 7 * _DAY_MS + 2 * HOUR_MS,
    CalendarUnit.MONTH: 31 * _DAY_MS + 2 * HOUR_MS,
}


def unit_start(ms: int, unit: CalendarUnit, zone: tzinfo = UTC) -> int:
    """Return the first instant of the hour, day, week or month in a zone with an instant, in ms."""
    local = datetime.fromtimestamp(ms // MS_PER_SECOND, zone)
    if unit is CalendarUnit.HOUR:
        start = ms - ms % MS_PER_SECOND - (local.minute * 60 + local.second) * MS_PER_SECOND
        return _after_clock_change(start, ms, zone)
    day = local.replace(hour=0, minute=0, second=0, fold=0)
    if unit is CalendarUnit.WEEK:
        day -= timedelta(days=day.weekday())
    elif unit is CalendarUnit.MONTH:
        day = day.replace(day=1)
    return round(day.timestamp()) * MS_PER_SECOND


def unit_starts(first_ms: int, end_ms: int, unit: CalendarUnit, zone: tzinfo = UTC) -> list[int]:
    """Return the starts of all units with instants in [first_ms, end_ms), in ms.

    Raises:
        InvalidRequest: There are more than `UNITS_MAX`, or they end after the year 9998.
    """
    if end_ms > _LAST_MS:
        raise InvalidRequest(f"no {unit}s are known after the year 9998; use an earlier end")
    count = (end_ms - first_ms) // _STEPS_MS[unit]
    if count > UNITS_MAX:
        raise InvalidRequest(
            f"{count:,} {unit}s are more than {UNITS_MAX:,}; use a shorter range or a larger unit"
        )
    starts = [unit_start(first_ms, unit, zone)]
    while (start := next_start(starts[-1], unit, zone)) < end_ms:
        starts.append(start)
    return starts


def next_start(start_ms: int, unit: CalendarUnit, zone: tzinfo = UTC) -> int:
    """Return the start of the unit after that which begins at `start_ms`."""
    return unit_start(start_ms + _STEPS_MS[unit], unit, zone)


def _after_clock_change(start_ms: int, ms: int, zone: tzinfo) -> int:
    """Return `start_ms`, or a later clock change before `ms`: a new hour begins there."""

    def offset(at_ms: int) -> timedelta | None:
        return datetime.fromtimestamp(at_ms // MS_PER_SECOND, zone).utcoffset()

    wanted = offset(ms)
    if offset(start_ms) == wanted:
        return start_ms
    before, after = start_ms // MS_PER_SECOND, ms // MS_PER_SECOND
    while after - before > 1:
        middle = (before + after) // 2
        if offset(middle * MS_PER_SECOND) == wanted:
            after = middle
        else:
            before = middle
    return after * MS_PER_SECOND
