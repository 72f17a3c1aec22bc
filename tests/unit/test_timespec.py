"""The grammar of points and ranges in time: accepted forms, and the advice for refused forms."""

import doctest
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tidelog.errors import InvalidTime
from tidelog.timespec import (
    OPEN_END,
    OPEN_START,
    format_ms,
    parse_duration,
    parse_point,
    parse_range,
    zone_of_question,
)

NOW = 1_700_000_000_000
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
DOCS = Path(__file__).parents[2] / "docs" / "time.md"


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> int:
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return int(moment.timestamp()) * 1000


def point(text: str, zone: str | None = None) -> int:
    return parse_point(text, now_ms=NOW, zone=zone)


def span(text: str, zone: str | None = None) -> tuple[int, int]:
    return parse_range(text, now_ms=NOW, zone=zone)


def test_examples_of_the_documentation() -> None:
    # The page wraps long lines of output.
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(DOCS), module_relative=False, optionflags=flags)
    assert failed == 0
    assert tried > 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-02-08T12:00Z", utc(2013, 2, 8, 12)),
        ("2013-02-08t12:00z", utc(2013, 2, 8, 12)),
        ("  2013-02-08 12:00:30Z ", utc(2013, 2, 8, 12, 0, 30)),
        ("2013-02-08T12:00:30.25Z", utc(2013, 2, 8, 12, 0, 30) + 250),
        ("2013-02-08T12:00:30,25Z", utc(2013, 2, 8, 12, 0, 30) + 250),
        ("2013-02-08T12:00:00.000000001Z", utc(2013, 2, 8, 12) + 1),
        ("2013-02-08T12:00+05:30", utc(2013, 2, 8, 6, 30)),
        ("2013-02-08T12:00-0500", utc(2013, 2, 8, 17)),
        ("2013-02-08T12:00-05", utc(2013, 2, 8, 17)),
        ("2013-02-08T12:00 America/New_York", utc(2013, 2, 8, 17)),
        ("2013-02-08T12:00[America/New_York]", utc(2013, 2, 8, 17)),
        ("2013-02-08T12:00-05:00[America/New_York]", utc(2013, 2, 8, 17)),
        ("2013-02-08 12:00 UTC", utc(2013, 2, 8, 12)),
        ("2013-02-08Z", utc(2013, 2, 8)),
        ("2013-02-08+02:00", utc(2013, 2, 7, 22)),
        ("2013-02-08 Europe/Zurich", utc(2013, 2, 7, 23)),
        ("2013-02-08T24:00Z", utc(2013, 2, 9)),
        ("1970-01-01T00:00Z", 0),
        ("1360342800000", 1_360_342_800_000),
        ("0", 0),
        ("17", 17),
        ("99999999", 99_999_999),
        ("100000000000", 100_000_000_000),
        ("99999999999999", 99_999_999_999_999),
        ("1360342800s", 1_360_342_800_000),
        ("1360342800 s", 1_360_342_800_000),
        ("1360342800.5s", 1_360_342_800_500),
        ("1360342800000ms", 1_360_342_800_000),
        ("1360342800000001us", 1_360_342_800_001),
        ("1360342800000000000ns", 1_360_342_800_000),
        ("1700000000ms", None),
        ("now", NOW),
        ("NOW", NOW),
        ("now-6h", NOW - 6 * HOUR),
        ("now + 90m", NOW + 90 * MINUTE),
        ("-6h", NOW - 6 * HOUR),
        ("+6h", NOW + 6 * HOUR),
        ("-1d12h", NOW - 36 * HOUR),
        ("-1.5h", NOW - 90 * MINUTE),
        ("-2w", NOW - 14 * DAY),
        ("-5min", NOW - 5 * MINUTE),
        ("-3ms", NOW - 3),
        ("-1us", NOW),
        ("P1D", NOW - DAY),
        ("-P1D", NOW - DAY),
        ("+P1D", NOW + DAY),
        ("P1DT12H", NOW - 36 * HOUR),
        ("PT1H30M5.5S", NOW - 90 * MINUTE - 5500),
        ("P2W", NOW - 14 * DAY),
        ("p1d", NOW - DAY),
        ("6 hours ago", NOW - 6 * HOUR),
        ("1 day 2 hours ago", NOW - 26 * HOUR),
        ("1 Week Ago", NOW - 7 * DAY),
        ("2h ago", NOW - 2 * HOUR),
        ("1d12h ago", NOW - 36 * HOUR),
        ("90min ago", NOW - 90 * MINUTE),
        ("-90 minutes", NOW - 90 * MINUTE),
        ("-1 day", NOW - DAY),
        ("- 1 day 2 hours", NOW - 26 * HOUR),
        ("+2 hours", NOW + 2 * HOUR),
        ("now - 1 day", NOW - DAY),
        ("2013-02Z", utc(2013, 2, 1)),
        ("2013-02 America/New_York", utc(2013, 2, 1, 5)),
        ("2013-02 -05:00", utc(2013, 2, 1, 5)),
        ("2013Z", utc(2013, 1, 1)),
        ("2013 Europe/Zurich", utc(2012, 12, 31, 23)),
        ("2013-02-08 noon America/New_York", utc(2013, 2, 8, 17)),
        ("2013-02-08 midnight Z", utc(2013, 2, 8)),
        ("2013-02-08 9:00Z", utc(2013, 2, 8, 9)),
        # NOW is 2023-11-14T22:13:20Z: it is November 15 in Tokyo, and November 14 in New York.
        ("today Z", utc(2023, 11, 14)),
        ("Yesterday UTC", utc(2023, 11, 13)),
        ("tomorrow Z", utc(2023, 11, 15)),
        ("today Asia/Tokyo", utc(2023, 11, 14, 15)),
        ("yesterday Asia/Tokyo", utc(2023, 11, 13, 15)),
        ("today America/New_York", utc(2023, 11, 14, 5)),
        ("today-05:00", utc(2023, 11, 14, 5)),
        ("yesterday 12:00 America/New_York", utc(2023, 11, 13, 17)),
        ("yesterday noon America/New_York", utc(2023, 11, 13, 17)),
        ("tomorrow midnight Z", utc(2023, 11, 15)),
        ("12:00Z", utc(2023, 11, 14, 12)),
        ("9:30:15.5Z", utc(2023, 11, 14, 9, 30, 15) + 500),
        ("12:00 Asia/Tokyo", utc(2023, 11, 15, 3)),
        ("noon Asia/Tokyo", utc(2023, 11, 15, 3)),
        ("noonZ", utc(2023, 11, 14, 12)),
        ("yesterdayZ", utc(2023, 11, 13)),
        ("Yesterdayz", utc(2023, 11, 13)),
        ("T12Z", utc(2023, 11, 14, 12)),
        ("T12:30Z", utc(2023, 11, 14, 12, 30)),
        ("2013-02-08T12Z", utc(2013, 2, 8, 12)),
        ("2013-02-08T12-05:00", utc(2013, 2, 8, 17)),
        ("2013-02-08T12 America/New_York", utc(2013, 2, 8, 17)),
        ("2013-02-08 12Z", None),
        ("12Z", None),
        ("T1Z", None),
        ("T123Z", None),
        ("T25Z", None),
        ("midnight America/New_York", utc(2023, 11, 14, 5)),
        ("24:00Z", utc(2023, 11, 15)),
        ("@1360342800000", 1_360_342_800_000),
        ("@1360342800", 1_360_342_800_000),
        ("@2013-02-08", utc(2013, 2, 8)),
        ("@2013-02-08T12:00:30Z", utc(2013, 2, 8, 12, 0, 30)),
        ("@2013-02-08T12:00:30.123Z", utc(2013, 2, 8, 12, 0, 30) + 123),
        ("@-48h", NOW - 48 * HOUR),
        ("@1h", NOW + HOUR),
        ("@1m3ms", NOW + MINUTE + 3),
    ],
)
def test_point(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(InvalidTime):
            point(text)
        return
    assert point(text) == expected


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "not a time; write an ISO 8601 time"),
        ("x" * 500, "not a time"),
        ("someday", "not a time; write an ISO 8601 time"),
        ("tomorrow", "the time zone is missing"),
        ("noon", "the time zone is missing"),
        ("2013-02", "the time zone is missing"),
        ("2013", "a year, or ms since 1970? For the year, write 2013Z"),
        ("2013", "for the ms, write 1970-01-01T00:00:02.013Z"),
        ("2013-02-05:00", "not a time"),
        ("2013-02+05:00", "not a time"),
        ("2013-02 12:00Z", "a time of day needs a full date"),
        ("2013 noon Z", "a time of day needs a full date"),
        ("2013-13Z", "no such date or time"),
        ("yesterday 25:00Z", "no such date or time"),
        ("todayish", "not a time"),
        ("6 hours", "write -6 hours for that long ago"),
        ("ago", "not a time"),
        ("- 6", "the unit of 6 is missing"),
        ("6 fortnights ago", "not a length of time"),
        ("1360342800", "looks like s; write 1360342800s"),
        ("1360342800000000", "looks like us; write 1360342800000000us"),
        ("1360342800000000000", "looks like ns; write 1360342800000000000ns"),
        ("130048164000000000", "looks like ns, or a Windows FILETIME"),
        ("100000000", "looks like s"),
        ("99999999999", "looks like s"),
        ("100000000000000", "looks like us"),
        ("100000000000000000", "looks like ns"),
        ("20130208", "looks like a date; write 2013-02-08"),
        ("1360342800.5", "write 1360342800.5s"),
        ("30s", "a length, or a time in early 1970? For 30s before now, write -30s"),
        ("500ms", "write -500ms"),
        ("6h", "write -6h for that long ago"),
        ("P1M", "months and years have no fixed length"),
        ("P1Y", "months and years"),
        ("P", "not an ISO 8601 duration"),
        ("PT", "not an ISO 8601 duration"),
        ("P1DT", "not an ISO 8601 duration"),
        ("-5", "the unit of 5 is missing"),
        ("+5", "the unit of 5 is missing"),
        ("-6H", "in '6H': not a length of time"),
        ("-1h30", "stopped at '30'"),
        ("now6h", "after `now` write"),
        ("-0.0000000001s", "finer than a nanosecond"),
        ("2013-02-08 12:00", "the time zone is missing"),
        ("2013-02-08", "the time zone is missing"),
        ("2013-02-30Z", "no such date or time"),
        ("2013-02-08T25:00Z", "no such date or time"),
        ("2013-02-08T24:01Z", "no such date or time"),
        ("2016-12-31T23:59:60Z", "no such date or time"),
        ("0000-01-01Z", "no such date or time"),
        ("9999-12-31T24:00Z", "no such date or time"),
        ("9999-12-31T23:59:59-08:00", "outside the years"),
        ("9999-12-31 America/New_York", None),
        ("0001-01-01T00:00+08:00", "outside the years"),
        ("1969-12-31T23:59:59Z", "outside the timestamps"),
        ("-100000w", "outside the timestamps"),
        ("9" * 30, "looks like ns"),
        ("9" * 30 + "s", "outside the timestamps"),
        ("2013-02-08 12:00 EDT", "abbreviations are ambiguous"),
        ("2013-02-08 12:00 America/Newyork", "did you mean America/New_York?"),
        ("2013-02-08 12:00 New_York", "did you mean America/New_York?"),
        ("2013-02-08 12:00 America", "no time zone 'America'"),
        ("2013-02-08 12:00+19:00", "at most 18 hours"),
        ("2013-02-08 12:00+05:60", "at most 18 hours and 59 minutes"),
        ("2013-02-08 12:00[../passwd]", "no time zone"),
        ("2013-02-08 12:00[a/./b]", "no time zone"),
        ("2013-02-08 12:00 New York", "no time zone 'New York'; did you mean America/New_York?"),
        ("2013-02-08 12:00 europe/zurich", "did you mean Europe/Zurich?"),
        ("2013-02-08 12:00 utc", "did you mean UTC?"),
        ("2013-02-08 12:00 Mars", "no time zone 'Mars'; write a place as in America/New_York"),
        ("2013-02-08 12:00 x", "no time zone 'x'; write a place"),
        ("-2h Berlin", "no time zone 'Berlin'; did you mean Europe/Berlin?"),
        ("-2h Europe/Berln", "no time zone 'Europe/Berln'; did you mean Europe/Berlin?"),
        ("-90 minutes New York", "no time zone 'New York'; did you mean America/New_York?"),
        ("2h ago EST5", "no time zone 'EST5'"),
        ("2h ago CEST", "abbreviations are ambiguous"),
        ("now Berlin", "did you mean Europe/Berlin?"),
        ("PT6H Mars", "no time zone 'Mars'; write a place"),
        ("-6h 30x", "not a length of time"),
        ("12:00", "the time zone is missing"),
        ("2013-02-08Z..2013-02-09Z", "a range, but one point"),
        ("-1d..now", "a range, but one point"),
        ("@1360342800:1h", "a range, but one point"),
        ("@:1h", "a range, but one point"),
        ("@", "after @ write"),
        ("@end", "after @ write"),
        ("@123", "can't be read"),
        ("@1360342800x", "can't be read"),
    ],
)
def test_the_error_for_a_refused_point_has_advice(text: str, advice: str | None) -> None:
    if advice is None:
        assert point(text) > 0
        return
    with pytest.raises(InvalidTime) as caught:
        point(text)
    assert advice in str(caught.value)
    assert str(caught.value).startswith(repr(caught.value.text))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("wall", "zone", "offsets"),
    [
        ("2013-11-03T01:30:00", "America/New_York", ("-04:00", "-05:00")),
        ("2023-10-29T02:00:00", "Europe/Zurich", ("+02:00", "+01:00")),
        ("2023-04-02T01:45:00", "Australia/Lord_Howe", ("+11:00", "+10:30")),
    ],
)
def test_local_time_that_happens_twice_is_refused_with_both(
    wall: str, zone: str, offsets: tuple[str, str]
) -> None:
    with pytest.raises(InvalidTime, match="happens twice") as caught:
        point(f"{wall} {zone}")
    first, second = (f"{wall}{offset}" for offset in offsets)
    assert f"write {first} or {second}" in str(caught.value)
    assert point(first) < point(second)


@pytest.mark.parametrize(
    ("wall", "zone", "first", "second"),
    [
        (
            "2013-03-10T02:30",
            "America/New_York",
            "2013-03-10T01:30:00-05:00",
            "2013-03-10T03:30:00-04:00",
        ),
        (
            "2023-10-01T02:15",
            "Australia/Lord_Howe",
            "2023-10-01T01:45:00+10:30",
            "2023-10-01T02:45:00+11:00",
        ),
    ],
)
def test_local_time_that_is_skipped_is_refused_with_both(
    wall: str, zone: str, first: str, second: str
) -> None:
    with pytest.raises(InvalidTime, match="never happens") as caught:
        point(wall, zone)
    assert f"write {first} or {second}" in str(caught.value)


def test_an_offset_beside_the_zone_chooses_one_of_two_and_must_be_one_of_them() -> None:
    assert point("2013-11-03T01:30-04:00[America/New_York]") == utc(2013, 11, 3, 5, 30)
    assert point("2013-11-03T01:30-05:00[America/New_York]") == utc(2013, 11, 3, 6, 30)
    for offset in ("-03:00", "-06:00", "Z"):
        with pytest.raises(InvalidTime):
            point(f"2013-11-03T01:30{offset}[America/New_York]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2017-10-15 America/Sao_Paulo", utc(2017, 10, 15, 3)),  # midnight was skipped
        ("1919-03-31 America/Toronto", None),  # before 1970
        ("2013-11-03 America/Havana", utc(2013, 11, 3, 4)),  # midnight occurred twice
        ("2011-12-30 Pacific/Apia", utc(2011, 12, 30, 10)),  # the day was skipped
        ("2011-12-31 Pacific/Apia", utc(2011, 12, 30, 10)),
    ],
)
def test_a_date_alone_is_its_first_instant_even_without_midnight(
    text: str, expected: int | None
) -> None:
    if expected is None:
        with pytest.raises(InvalidTime, match="outside the timestamps"):
            point(text)
        return
    assert point(text) == expected


def test_zone_may_be_given_as_an_object_and_a_written_one_wins() -> None:
    zone = timezone(timedelta(hours=3))
    assert parse_point("2013-02-08 12:00", now_ms=NOW, zone=zone) == utc(2013, 2, 8, 9)
    assert parse_point("2013-02-08 12:00Z", now_ms=NOW, zone=zone) == utc(2013, 2, 8, 12)
    assert parse_point("2013-02-08 12:00", now_ms=NOW, zone=ZoneInfo("UTC")) == utc(2013, 2, 8, 12)
    with pytest.raises(InvalidTime, match="'Mars/Base': not a time zone"):
        parse_point("2013-02-08 12:00", now_ms=NOW, zone="Mars/Base")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-02-08Z..2013-02-09Z", (utc(2013, 2, 8), utc(2013, 2, 9))),
        ("2013-02-08Z .. 2013-02-09Z", (utc(2013, 2, 8), utc(2013, 2, 9))),
        ("2013-02-08Z", (utc(2013, 2, 8), utc(2013, 2, 9))),
        ("2013-03-10 America/New_York", (utc(2013, 3, 10, 5), utc(2013, 3, 11, 4))),
        ("2013-02-08..2013-02-09Z", (utc(2013, 2, 8), utc(2013, 2, 9))),
        ("2013-02-08 America/New_York..2013-02-09", (utc(2013, 2, 8, 5), utc(2013, 2, 9, 5))),
        ("2013-02-08Z..2013-02-09-05:00[America/New_York]", (utc(2013, 2, 8), utc(2013, 2, 9, 5))),
        (
            "2013-02-08..2013-02-09-05:00[America/New_York]",
            (utc(2013, 2, 8, 5), utc(2013, 2, 9, 5)),
        ),
        ("2013-02-08Z..+6h", (utc(2013, 2, 8), utc(2013, 2, 8, 6))),
        ("2013-02-08..+6h UTC", (utc(2013, 2, 8), utc(2013, 2, 8, 6))),
        ("2013-02-08..+6hZ", (utc(2013, 2, 8), utc(2013, 2, 8, 6))),
        ("2013-02-08..PT6H -05:00", (utc(2013, 2, 8, 5), utc(2013, 2, 8, 11))),
        ("2013-02-08..+90 minutes America/New_York", (utc(2013, 2, 8, 5), utc(2013, 2, 8, 6, 30))),
        ("2013-02-08Z..+90 minutes", (utc(2013, 2, 8), utc(2013, 2, 8, 1, 30))),
        ("2013-02-08Z..+6h UTC", (utc(2013, 2, 8), utc(2013, 2, 8, 6))),
        ("-7d..-1d America/New_York", (NOW - 7 * DAY, NOW - DAY)),
        ("-7d UTC..now Europe/Zurich", (NOW - 7 * DAY, NOW)),
        ("2h ago UTC", (NOW - 2 * HOUR, NOW + 1)),
        ("yesterday..-1h America/New_York", (utc(2023, 11, 13, 5), NOW - HOUR)),
        ("-7d..-1d Nowhere/City", None),
        ("2013-02-08..+6h Nowhere/City", None),
        ("2013-02-08Z..PT6H", (utc(2013, 2, 8), utc(2013, 2, 8, 6))),
        ("PT6H..2013-02-08Z", (utc(2013, 2, 7, 18), utc(2013, 2, 8))),
        ("-6h..-2h", (NOW - 6 * HOUR, NOW - 2 * HOUR)),
        ("-6h..now", (NOW - 6 * HOUR, NOW)),
        ("-6h..+2h", (NOW - 6 * HOUR, NOW - 4 * HOUR)),
        ("-6h..now+2h", (NOW - 6 * HOUR, NOW + 2 * HOUR)),
        ("P1D..now", (NOW - DAY, NOW)),
        ("P1D..-6h", (NOW - 30 * HOUR, NOW - 6 * HOUR)),
        ("2 hours ago..1 hour ago", (NOW - 2 * HOUR, NOW - HOUR)),
        ("+1h..now+2h", (NOW + HOUR, NOW + 2 * HOUR)),
        ("-6h..", (NOW - 6 * HOUR, OPEN_END)),
        ("P1D..", (NOW - DAY, OPEN_END)),
        ("..-6h", (OPEN_START, NOW - 6 * HOUR)),
        ("..+2h", (OPEN_START, NOW + 2 * HOUR)),
        ("..P1D", (OPEN_START, NOW - DAY)),
        ("..", (OPEN_START, OPEN_END)),
        ("5..7", (5, 7)),
        ("2013-02Z", (utc(2013, 2, 1), utc(2013, 3, 1))),
        ("2013-12 UTC", (utc(2013, 12, 1), utc(2014, 1, 1))),
        ("2012-02 America/New_York", (utc(2012, 2, 1, 5), utc(2012, 3, 1, 5))),
        ("2013-03 America/New_York", (utc(2013, 3, 1, 5), utc(2013, 4, 1, 4))),
        ("2013-02..2013-04 UTC", (utc(2013, 2, 1), utc(2013, 4, 1))),
        ("2013Z", (utc(2013, 1, 1), utc(2014, 1, 1))),
        ("2013Z..2014Z", (utc(2013, 1, 1), utc(2014, 1, 1))),
        ("2013-11-03 America/New_York", (utc(2013, 11, 3, 4), utc(2013, 11, 4, 5))),
        ("yesterday Z", (utc(2023, 11, 13), utc(2023, 11, 14))),
        ("yesterdayZ", (utc(2023, 11, 13), utc(2023, 11, 14))),
        ("T12Z..+1h", (utc(2023, 11, 14, 12), utc(2023, 11, 14, 13))),
        ("2013-02-08T12Z..T13", (utc(2013, 2, 8, 12), utc(2013, 2, 8, 13))),
        ("today Asia/Tokyo", (utc(2023, 11, 14, 15), utc(2023, 11, 15, 15))),
        ("yesterday..today UTC", (utc(2023, 11, 13), utc(2023, 11, 14))),
        ("yesterday Z..now", (utc(2023, 11, 13), NOW)),
        ("noon Z..", (utc(2023, 11, 14, 12), OPEN_END)),
        ("12:00..13:00 UTC", (utc(2023, 11, 14, 12), utc(2023, 11, 14, 13))),
        ("12:00..+90 minutes UTC", (utc(2023, 11, 14, 12), utc(2023, 11, 14, 13, 30))),
        ("12:00Z..+90 minutes", (utc(2023, 11, 14, 12), utc(2023, 11, 14, 13, 30))),
        (
            "2013-02-08 noon America/New_York..13:00",
            (utc(2013, 2, 8, 17), utc(2013, 2, 8, 18)),
        ),
        (
            "yesterday noon..13:00 America/New_York",
            (utc(2023, 11, 13, 17), utc(2023, 11, 13, 18)),
        ),
        ("2h ago..1h ago", (NOW - 2 * HOUR, NOW - HOUR)),
        ("-1 day", (NOW - DAY, NOW + 1)),
        ("2h ago", (NOW - 2 * HOUR, NOW + 1)),
        ("@2013-02-08:1h", (utc(2013, 2, 8), utc(2013, 2, 8, 1))),
        ("@1360342800:-1h", None),
        ("@-48h:-24h", (NOW - 48 * HOUR, NOW - 24 * HOUR)),
        ("@-48h:24h", (NOW - 48 * HOUR, NOW + 24 * HOUR)),
        ("@-1m:end", (NOW - MINUTE, OPEN_END)),
        ("@-1m", (NOW - MINUTE, OPEN_END)),
        ("@-1m:", (NOW - MINUTE, OPEN_END)),
        ("@:-1m", (OPEN_START, NOW - MINUTE)),
        ("@:end", (OPEN_START, OPEN_END)),
        (
            "@2013-02-08T12:00:30Z:2013-02-08T12:00:31.5Z",
            (utc(2013, 2, 8, 12, 0, 30), utc(2013, 2, 8, 12, 0, 31) + 500),
        ),
        ("@1360342800:1360342800001", (1_360_342_800_000, 1_360_342_800_001)),
    ],
)
def test_range(text: str, expected: tuple[int, int] | None) -> None:
    if expected is None:
        with pytest.raises(InvalidTime):
            span(text)
        return
    assert span(text) == expected


def test_a_text_that_is_no_range_gets_the_forms_of_ranges() -> None:
    with pytest.raises(InvalidTime, match=r"'last Tuesday': not a time; .*, or a range A\.\.B$"):
        parse_range("last Tuesday", now_ms=NOW)


def test_year_alone_is_a_range_but_no_point() -> None:
    assert span("2013", "UTC") == (utc(2013, 1, 1), utc(2014, 1, 1))
    with pytest.raises(InvalidTime, match="a year, or ms since 1970"):
        span("2013..2014", "UTC")


@pytest.mark.parametrize(
    ("day", "hours"), [("2013-03-10", 23), ("2013-11-03", 25), ("2013-03-11", 24)]
)
def test_day_of_a_clock_change_has_its_own_number_of_hours(day: str, hours: int) -> None:
    start, end = span(day, "America/New_York")
    assert end - start == hours * HOUR


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "not a time"),
        ("now", "a point in time, but a range is required; write now.. or ..now"),
        ("2013-02-08 12:00Z", "a point in time, but a range is required"),
        (
            "2013-02-09Z..2013-02-08Z",
            "empty range from 2013-02-09 00:00:00 UTC to 2013-02-08 00:00:00 UTC",
        ),
        (
            "2013-02-09..2013-02-08 America/New_York",
            "empty range from 2013-02-09 00:00:00 America/New_York to 2013-02-08",
        ),
        ("now..now", "empty range"),
        ("2011-12-30 Pacific/Apia", "empty range"),
        ("9999-12-31Z", "outside the years"),
        ("P1D..P2D", "two lengths of time"),
        ("+1h..+2h", "two lengths of time"),
        ("2013-02-08Z...2013-02-09Z", "more than one '..'"),
        ("2013-02-08Z..2013-02-09Z..", "more than one '..'"),
        ("2013-02-08..2013-02-09", "in '2013-02-08': the time zone is missing"),
        ("2013-02-08Z..someday", "in 'someday': not a time"),
        ("12:00..2013-02-08 13:00Z", "the date of 12:00 is missing"),
        ("22:00..02:00 UTC", "empty range"),
        ("12:00Z", "a point in time, but a range is required"),
        ("yesterday", "the time zone is missing"),
        ("@1:2:3", "after @ write"),
        ("@2013-02-08:noon", "'noon' can't be read"),
    ],
)
def test_the_error_for_a_refused_range_has_advice(text: str, advice: str) -> None:
    with pytest.raises(InvalidTime) as caught:
        span(text)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("timestamp", "zone", "text"),
    [
        (0, None, "1970-01-01T00:00:00.000Z"),
        (1_360_342_800_007, None, "2013-02-08T17:00:00.007Z"),
        (1_360_342_800_007, "America/New_York", "2013-02-08T12:00:00.007-05:00"),
        (1_360_342_800_007, "UTC", "2013-02-08T17:00:00.007+00:00"),
        (-1, None, "-1 ms"),
        (2**63 - 1, None, "9223372036854775807 ms"),
        (253_402_300_799_999, None, "9999-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "Asia/Tokyo", "253402300799999 ms"),
    ],
)
def test_format(timestamp: int, zone: str | None, text: str) -> None:
    assert format_ms(timestamp, zone) == text


@pytest.mark.parametrize(
    ("text", "ns"), [("1ns", 1), ("1us", 1000), ("1.5ms", 1_500_000), ("PT0.001S", 1_000_000)]
)
def test_duration_is_exact_to_the_nanosecond(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("texts", "zone"),
    [
        (["2023-11-14Z", "2023-11-15T12:00z", "2023-11-16"], "UTC"),
        (["2023-11-14Z", "2023-11-15 UTC", "2023-11-16"], "UTC"),
        (["2023-11-14Z", "2023-11-15T12:00z"], None),
        (["2023-11-14..+7d Asia/Tokyo"], "Asia/Tokyo"),
        (["-7d..-1d Asia/Tokyo", "2023-11-16"], "Asia/Tokyo"),
        (["-7d Asia/Tokyo..now UTC"], None),
        (["2023-11-14T12:00+0530", "2023-11-15T12:00+05:30", "2023-11-16"], "+05:30"),
        (["2023-11-14T12:00+0530", "2023-11-15T12:00+05:45", "2023-11-16"], None),
    ],
)
def test_spellings_of_one_zone_are_one_zone(texts: list[str], zone: str | None) -> None:
    assert zone_of_question(texts) == zone
