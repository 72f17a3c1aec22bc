"""Hours, days, weeks and months of zones, across changes of the clock."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidRequest
from tidelog.timespec.calendar import CalendarUnit, next_start, unit_start, unit_starts

HOUR = 3_600_000
# Clock changes of an hour, at midnight, of half an hour, and a day that a zone skipped.
ZONES = (
    "UTC",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
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


@pytest.mark.parametrize("end", [ms("2013-01-01"), 2**62])
def test_too_many_are_refused(end: int) -> None:
    with pytest.raises(InvalidRequest, match="hours are"):
        unit_starts(0, end, CalendarUnit.HOUR, UTC)
