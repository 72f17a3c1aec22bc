"""Every printed time is parsed back; local times agree with a brute-force search of the zone."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidTime
from tidelog.timespec import format_ms, parse_point, parse_range
from tidelog.timespec.grammar import OPEN_START

ZONES = (
    "UTC",
    "America/New_York",
    "America/Sao_Paulo",
    "Europe/Zurich",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
)
NOW = 1_700_000_000_000
YEAR_9999_MS = 253_402_214_400_000

zones = st.sampled_from(ZONES)
timestamps = st.integers(0, YEAR_9999_MS)
recent = st.integers(0, 2_000_000_000)
# Times within two hours of clock changes in New York, Sao Paulo and Zurich.
change_seconds = st.builds(
    lambda change, shift: change + shift,
    st.sampled_from([1_362_898_800, 1_383_458_400, 1_508_036_400, 1_698_541_200, 1_680_361_200]),
    st.integers(-7200, 7200),
)


@given(timestamps, st.one_of(st.none(), zones))
def test_a_printed_time_is_parsed_to_the_same_time(timestamp: int, zone: str | None) -> None:
    text = format_ms(timestamp, zone)
    assert parse_point(text, now_ms=NOW) == timestamp
    if timestamp >= 10**11:
        assert parse_point(f"{timestamp}ms", now_ms=NOW) == timestamp


@given(st.one_of(recent, change_seconds), zones)
def test_local_time_is_converted_as_by_a_search_of_the_zone(seconds: int, zone: str) -> None:
    target = ZoneInfo(zone)
    wall = datetime.fromtimestamp(seconds, target).replace(tzinfo=None, fold=0)
    # Search all instants at most 30 hours before or after `seconds` at which the zone's clock shows
    # this wall time.
    offsets = {
        datetime.fromtimestamp(seconds + hours * 1800, target).utcoffset()
        for hours in range(-60, 61)
    }
    instants = set()
    for offset in offsets:
        assert offset is not None
        utc = (wall - offset).replace(tzinfo=UTC)
        if utc.astimezone(target).replace(tzinfo=None, fold=0) == wall:
            instants.add(int(utc.timestamp()))
    assert seconds in instants
    text = f"{wall.isoformat()} {zone}"
    if len(instants) == 1:
        assert parse_point(text, now_ms=NOW) == seconds * 1000
        return
    with pytest.raises(InvalidTime, match="happens twice") as caught:
        parse_point(text, now_ms=NOW)
    for instant in instants:
        assert datetime.fromtimestamp(instant, target).isoformat() in str(caught.value)


@given(recent, zones)
def test_days_follow_each_other_without_a_gap(seconds: int, zone: str) -> None:
    day = datetime.fromtimestamp(seconds, ZoneInfo(zone)).date()
    try:
        start, end = parse_range(f"{day} {zone}", now_ms=NOW)
    except InvalidTime:
        # At the epoch, the local time of some zones is still in 1969.
        assert day.year == 1969 or day == datetime(1970, 1, 1, tzinfo=UTC).date()
        return
    assert start <= seconds * 1000 < end
    following = day + timedelta(days=1)
    assert parse_point(f"{following} {zone}", now_ms=NOW) == end


def local_midnight(day: date, zone: str) -> int:
    """Return the first second of a day as epoch seconds; tries every quarter of an hour."""
    target = ZoneInfo(zone)
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    quarters = range(noon - 40 * 3600, noon + 40 * 3600, 900)
    return next(at for at in quarters if datetime.fromtimestamp(at, target).date() >= day)


@given(st.one_of(st.integers(10**6, 2 * 10**9), change_seconds), zones)
def test_words_of_days_and_times_of_day_follow_the_clock_in_the_zone(now: int, zone: str) -> None:
    """The plain model takes the present date in the zone, and searches for the days' starts."""
    today = datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    starts = [local_midnight(today + timedelta(days=days), zone) for days in range(-1, 3)]
    for word, (start, end) in zip(
        ("yesterday", "today", "tomorrow"), pairwise(starts), strict=True
    ):
        if start == end:  # Samoa had no 30 December 2011.
            continue
        for text, default in ((f"{word} {zone}", None), (word, zone)):
            assert parse_range(text, now_ms=now * 1000, zone=default) == (start * 1000, end * 1000)
            assert parse_point(text, now_ms=now * 1000, zone=default) == start * 1000
    for clock, text in ((time(12), "noon"), (time(9, 30), "9:30"), (time(23, 59, 59), "23:59:59")):
        wall = datetime.combine(today, clock)
        expected = parse_or_none(f"{wall.isoformat()} {zone}", now)
        assert parse_or_none(f"{text} {zone}", now) == expected
        assert parse_or_none(f"today {text} {zone}", now) == expected


def parse_or_none(text: str, now: int) -> int | None:
    try:
        return parse_point(text, now_ms=now * 1000)
    except InvalidTime:
        return None


@given(st.dates(date(1971, 1, 1), date(2037, 12, 31)), zones)
def test_months_and_years_are_their_days(day: date, zone: str) -> None:
    first = day.replace(day=1)
    following = (first + timedelta(days=31)).replace(day=1)
    bounds = [local_midnight(one, zone) * 1000 for one in (first, following)]
    assert [*parse_range(f"{day:%Y-%m} {zone}", now_ms=NOW)] == bounds
    assert [*parse_range(f"{day:%Y-%m}", now_ms=NOW, zone=zone)] == bounds
    year = [local_midnight(date(day.year + more, 1, 1), zone) * 1000 for more in (0, 1)]
    for text, default in ((f"{day.year} {zone}", None), (f"{day.year}", zone)):
        assert [*parse_range(text, now_ms=NOW, zone=default)] == year


UNITS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    " seconds": 1000,
    " minutes": 60_000,
    " hours": 3_600_000,
    " day": 86_400_000,
    " Weeks": 7 * 86_400_000,
    " week": 7 * 86_400_000,
}


@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS))), min_size=1, max_size=3
    ),
    st.sampled_from(["-{}", "- {}", "{} ago", "{} AGO", "now-{}", "now - {}", "+{}", "now+{}"]),
    st.integers(4 * 10**12, 5 * 10**12),
)
def test_lengths_from_now_count_from_the_clock(
    parts: list[tuple[int, str]], form: str, now: int
) -> None:
    text = " ".join(f"{number}{unit}" for number, unit in parts)
    length = sum(number * UNITS[unit] for number, unit in parts)
    sign = 1 if "+" in form else -1
    assert parse_point(form.format(text), now_ms=now) == now + sign * length


@given(st.integers(0, 10**12), st.integers(1, 10**12), st.sampled_from(["ms", "us", "ns"]))
def test_lengths_and_ranges_add_up(start: int, length: int, unit: str) -> None:
    per_ms = {"ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    text = f"{format_ms(start)}..+{length}{unit}"
    assert parse_range(text, now_ms=NOW) == (start, start + -(-length // per_ms))


@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_rounding_up_keeps_from_and_until_exact(ns: int, width_ns: int) -> None:
    """The parsed range contains exactly the whole milliseconds of the written range."""
    base = 1_600_000_000 * 10**9

    def iso(instant: int) -> str:
        seconds, rest = divmod(instant, 10**9)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"

    first, last = base + ns, base + ns + width_ns
    near = range(first // 10**6 - 2, last // 10**6 + 3)
    wanted = [t for t in near if first <= t * 10**6 < last]
    text = f"{iso(first)}..{iso(last)}"
    if not wanted:
        with pytest.raises(InvalidTime, match="empty range"):
            parse_range(text, now_ms=NOW)
        return
    start, end = parse_range(text, now_ms=NOW)
    assert [t for t in near if start <= t < end] == wanted


PIECES = (
    *("2013-02-08", "12:00", "T", " ", "Z", "..", "-6h", "+", "P1D", "now", "@", ":", "s"),
    *("America/New_York", "[", "]", "-05:00", "1360342800", "000", "end", " ago"),
    *("yesterday", "today", "noon", "midnight", "2013-02", "2013", "9:00", " minutes", "2"),
)


@given(
    st.one_of(
        st.text(max_size=130),
        st.text(alphabet="0123456789-+:.,TZPDHMSW@ ahnowgdms/[]", max_size=40),
        st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
    ),
    st.one_of(st.none(), zones),
)
def test_any_text_is_read_or_refused_by_one_error(text: str, zone: str | None) -> None:
    for parse in (parse_point, parse_range):
        try:
            found = parse(text, now_ms=NOW, zone=zone)
        except InvalidTime:
            continue
        start, end = (found, found + 1) if isinstance(found, int) else found
        assert start < end <= 2**63
        assert start >= (0 if isinstance(found, int) else OPEN_START)
