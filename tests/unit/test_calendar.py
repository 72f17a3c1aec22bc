"""Hours, days, weeks and months of zones, across changes of the clock."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidRequest
from tidelog.timespec.calendar import (
    CalendarUnit,
    next_start,
    unit_for,
    unit_start,
    unit_starts,
)

HOUR = 3_600_000
# UTC, a zone with usual clock changes, and zones with unusual clock changes. The unusual clock
# changes are at midnight, at 0:30, at 2:45, or back across midnight; by 15 or 30 min, or by 3 or 7
# h. One zone skipped a day.
ZONES = (
    "UTC",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "America/St_Johns",
    "Antarctica/Casey",
    "Asia/Hong_Kong",
    "Antarctica/Vostok",
    "Pacific/Apia",
)


def ms(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return round(moment.timestamp()) * 1000


def test_days_of_23_and_25_hours() -> None:
    zone = ZoneInfo("America/New_York")
    for day, hours in (("2013-03-10", 23), ("2013-11-03", 25), ("2013-02-08", 24)):
        start = ms(day, "America/New_York")
        assert unit_start(start + HOUR + 1, CalendarUnit.DAY, zone) == start
        assert next_start(start, CalendarUnit.DAY, zone) == start + hours * HOUR
        assert len(unit_starts(start, start + hours * HOUR, CalendarUnit.HOUR, zone)) == hours


def test_a_repeated_half_hour_is_another_hour() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    change = ms("2013-04-06T15:00")  # from 02:00 back to 01:30
    starts = unit_starts(change - HOUR, change + HOUR, CalendarUnit.HOUR, zone)
    assert starts == [change - HOUR, change, change + HOUR // 2]


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    assert unit_start(ms("2013-02-08T12:00"), CalendarUnit.WEEK) == ms("2013-02-04")
    assert unit_start(ms("2013-02-28T23:59"), CalendarUnit.MONTH) == ms("2013-02-01")
    months = unit_starts(ms("2012-01-31"), ms("2013-01-01"), CalendarUnit.MONTH)
    assert months == [ms(f"2012-{month:02}-01") for month in range(1, 13)]


@given(
    st.sampled_from(ZONES),
    st.sampled_from(CalendarUnit),
    st.integers(0, ms("2040-01-01")),
)
def test_each_instant_is_in_the_unit_that_begins_before_it(
    name: str, unit: CalendarUnit, at: int
) -> None:
    zone = ZoneInfo(name)
    start = unit_start(at, unit, zone)
    end = next_start(start, unit, zone)
    assert start <= at < end
    assert unit_start(start, unit, zone) == start
    assert unit_start(end - 1, unit, zone) == start
    assert unit_start(end, unit, zone) == end


@pytest.mark.parametrize(
    ("unit", "start", "end"),
    [
        (CalendarUnit.DAY, "2010-03-04T13:00", "2010-03-05T16:00"),  # 27 hours
        (CalendarUnit.WEEK, "2010-02-28T13:00", "2010-03-07T16:00"),
        (CalendarUnit.MONTH, "2010-02-28T13:00", "2010-03-31T16:00"),
    ],
)
def test_units_end_if_the_clock_is_set_back_by_three_hours(
    unit: CalendarUnit, start: str, end: str
) -> None:
    assert next_start(ms(start), unit, ZoneInfo("Antarctica/Casey")) == ms(end)


def test_a_quarter_of_an_hour_after_a_clock_change_is_an_hour() -> None:
    zone = ZoneInfo("Pacific/Chatham")
    change = ms("2013-09-28T14:00")  # from 02:45 to 03:45
    starts = unit_starts(change - 1, change + HOUR // 2, CalendarUnit.HOUR, zone)
    assert starts == [change - 3 * HOUR // 4, change, change + HOUR // 4]


def test_a_day_ends_at_its_first_midnight() -> None:
    zone = ZoneInfo("America/St_Johns")
    midnight = ms("2010-11-07T02:30")  # one minute before the clock goes back to 23:01
    assert unit_start(midnight - 1, CalendarUnit.DAY, zone) == midnight - 24 * HOUR
    assert unit_start(midnight + HOUR // 2, CalendarUnit.DAY, zone) == midnight


@pytest.mark.parametrize("unit", [CalendarUnit.DAY, CalendarUnit.WEEK, CalendarUnit.MONTH])
def test_years_before_the_calendar_are_refused(unit: CalendarUnit) -> None:
    start = -62_135_596_800_000  # 0001-01-01
    with pytest.raises(InvalidRequest, match=f"no {unit}s are known before the year 2"):
        unit_starts(start, start + HOUR, unit, ZoneInfo("America/New_York"))
    with pytest.raises(InvalidRequest, match="no months are known before the year 2"):
        unit_starts(-157_680_000_000_000, 0, CalendarUnit.MONTH)


def test_the_number_of_refused_days_is_theirs() -> None:
    day = 24 * HOUR
    assert len(unit_starts(0, 100_000 * day, CalendarUnit.DAY)) == 100_000
    with pytest.raises(InvalidRequest, match="the range has 100,001 days, more than 100,000"):
        unit_starts(0, 100_001 * day, CalendarUnit.DAY)


@pytest.mark.parametrize("end", [ms("2013-01-01"), 2**62])
def test_too_many_are_refused(end: int) -> None:
    with pytest.raises(InvalidRequest, match=r"hours(, more than| are known)"):
        unit_starts(0, end, CalendarUnit.HOUR, UTC)


@pytest.mark.parametrize(
    ("days", "unit"),
    [
        (3, CalendarUnit.HOUR),
        (4, CalendarUnit.DAY),
        (75, CalendarUnit.DAY),
        (76, CalendarUnit.WEEK),
        (365, CalendarUnit.WEEK),
        (2_000, CalendarUnit.MONTH),
        (4_000, None),
    ],
)
def test_the_smallest_unit_with_few_enough_is_chosen(days: int, unit: CalendarUnit | None) -> None:
    start = ms("2013-01-01")
    assert unit_for(start, start + days * 24 * HOUR, 75) is unit


def test_a_chosen_unit_begins_at_quarters_of_an_hour() -> None:
    zone = ZoneInfo("America/St_Johns")  # clocks there went back at 0:01 in 2010
    start, end = ms("2010-11-06"), ms("2010-11-08")
    assert any(one % 900_000 for one in unit_starts(start, end, CalendarUnit.HOUR, zone))
    assert unit_for(start, end, 75, zone) is CalendarUnit.DAY
