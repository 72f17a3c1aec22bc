"""The sentence about latency: for none, one and many records, and for clocks that were ahead."""

from dataclasses import replace
from datetime import UTC

import pytest

from tidelog.cli.jobs.latency import page
from tidelog.jobs.latency.tables import LatencyResult, TopicTimes, latencies_verdict, topic_verdict
from tidelog.scan.latency import TopicLateness, by_unit
from tidelog.scan.latency_loads import Load, slowest_span
from tidelog.scan.latency_verdict import (
    latency_verdict,
    lateness_verdict,
    merged_delays,
    shown_percentiles,
    watermark_line,
    worst_line,
)
from tidelog.storage.clocks.latency import LatencyByHour, LatencyHistogram
from tidelog.timespec.calendar import CalendarUnit, unit_start
from tidelog.timespec.zones import zone_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


HOUR = (HOUR_MS, 2 * HOUR_MS)


def histogram(*latencies_ms: int) -> LatencyHistogram:
    made = LatencyHistogram()
    for latency_ms in latencies_ms:
        made.add(latency_ms)
    return made


def test_a_range_without_records_that_have_both_times() -> None:
    assert latency_verdict("t", histogram(), None, None) == (
        "t: no record of the range has both an append and a create time"
    )


def test_one_record() -> None:
    assert latency_verdict("t", histogram(2_000), HOUR, None) == (
        "t: 1 record, appended 2s after its create time"
    )
    assert latency_verdict("t", histogram(-2_000), HOUR, None) == (
        "t: 1 record, appended 2s before its create time"
    )


def test_many_records() -> None:
    latencies = histogram(*[50] * 98, 7_200_000, 77_700_000)
    assert latency_verdict("t", latencies, HOUR, None) == (
        "t: 100 records: P50 50ms, P99 2h, worst 21h35m appended in the hour from 1970-01-01"
        " 01:00:00 (UTC)"
    )
    four_hours = (20 * HOUR_MS, 24 * HOUR_MS)
    assert latency_verdict("t", latencies, four_hours, "Europe/Zurich").endswith(
        "worst 21h35m appended from 1970-01-01 21:00:00 to 1970-01-02 01:00:00 (Europe/Zurich)"
    )


def test_percentiles_have_as_many_digits_as_their_error_allows() -> None:
    bounds = (-10 * DAY_MS, 10 * DAY_MS)
    shown = {
        -59_904: -60_000,
        2_851_000: 2_880_000,
        7_901_000: 7_920_000,
        1_589_247: 1_590_000,
        999: 1_000,
        3_270: 3_300,
        808: 800,
        63: 63,
        0: 0,
    }
    for ms, rounded in shown.items():
        latencies = histogram(bounds[0], *[ms] * 100, bounds[1])
        (exact,), (found,) = latencies.percentiles((50,)), shown_percentiles(latencies, (50,))
        assert found == rounded, ms
        assert exact is not None
        assert abs(rounded - exact) <= abs(exact) / 64
    assert shown_percentiles(histogram(2_851_000, 2_851_000, 2_851_001), (50, 99)) == [
        2_851_000,
        2_851_001,
    ]
    assert shown_percentiles(histogram(), (50,)) == [None]


def test_an_html_page_rounds_percentiles_like_a_table() -> None:
    hours = LatencyByHour()
    hours.add(0, 1_589_000, 99)
    hours.add(0, 1_620_000)
    (exact,) = hours.total().percentiles((50,))
    assert exact == 1_589_247
    result = LatencyResult({"t": TopicTimes(100, by_append=hours, by_create=hours)}, 0, [])
    shown = page("data", result, None).html()
    assert "26m30s" in shown
    assert "26m29" not in shown


def test_no_estimate_exceeds_the_largest_latency() -> None:
    minute = 60_000
    latencies = histogram(minute, 142 * minute, 142 * minute, 143 * minute)
    assert latency_verdict("t", latencies, HOUR, None).startswith(
        "t: 4 records: P50 2h20m, P99 2h23m, worst 2h23m appended in"
    )


def test_several_topics_are_summed_up_by_the_slowest_in_the_words_of_each() -> None:
    slow, fast = LatencyByHour(), LatencyByHour()
    slow.add(0, 1_589_000, 99)
    slow.add(0, 1_620_000)
    fast.add(0, -1_000, 10)
    topics = {"fast": TopicTimes(10, by_append=fast), "slow": TopicTimes(100, by_append=slow)}
    assert ", worst 27m appended in" in topic_verdict("slow", topics["slow"], None)
    assert latencies_verdict(LatencyResult(topics, 0, []), None) == (
        "110 records of 2 topics; the slowest topic is slow: 99% of its records were appended"
        " within 26m30s"
    )
    early = LatencyResult(topics | {"slow": topics["fast"]}, 0, [])
    assert latencies_verdict(early, None).endswith(
        "99% of its records were appended at or before their create time"
    )


def test_appends_before_the_create_time() -> None:
    assert latency_verdict("t", histogram(-2_580_000, -60_000, 5_000), HOUR, None) == (
        "t: 3 records: P50 -1m, P99 5s, worst 5s appended in the hour from 1970-01-01 01:00:00"
        " (UTC); some were appended up to 43m before their create time"
    )


def test_the_worst_latency_of_a_topic_has_the_hour_of_its_append() -> None:
    by_hour = LatencyByHour()
    by_hour.add(HOUR_MS, 60_000)
    by_hour.add(4 * HOUR_MS, 1_000, 1_000)
    assert slowest_span(by_hour) == (HOUR_MS, 2 * HOUR_MS)
    topic = TopicTimes(1_001, by_append=by_hour)
    assert topic_verdict("t", topic, "America/New_York") == (
        "t: 1,001 records: P50 1s, P99 1s, worst 1m appended in the hour from 1969-12-31 20:00:00"
        " (America/New_York)"
    )
    assert slowest_span(LatencyByHour()) is None


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (CalendarUnit.DAY, "day with the largest P99 is 1970-01-05"),
        (CalendarUnit.WEEK, "week with the largest P99 began on 1970-01-05"),
        (CalendarUnit.MONTH, "month with the largest P99 began on 1970-01-05"),
    ],
)
def test_the_worst_day_week_or_month(unit: CalendarUnit, words: str) -> None:
    units = {0: histogram(1_000), 4 * 24 * HOUR_MS: histogram(60_000)}
    assert worst_line("t", units, None, unit) == f"t: the {words} (UTC): 1m, 1 record"


def test_the_worst_week_can_begin_before_1970() -> None:
    units = {-3 * 24 * HOUR_MS: histogram(60_000), 4 * 24 * HOUR_MS: histogram(1_000)}
    line = worst_line("t", units, None, CalendarUnit.WEEK)
    assert line == "t: the week with the largest P99 began on 1970-01-01 (UTC): 1m, 1 record"


@pytest.mark.parametrize(
    ("hours", "zone", "words"),
    [
        ((23, 24), None, "outside the day of the bulk load is 1970-01-02"),
        ((23, 24), "Asia/Kolkata", "outside the day of the bulk load is 1970-01-01"),
        ((23, 25), None, "outside the days of the bulk load is 1970-01-03"),
    ],
)
def test_the_worst_day_is_not_that_of_the_bulk_load(
    hours: tuple[int, int], zone: str | None, words: str
) -> None:
    starts = [unit_start(n * DAY_MS, CalendarUnit.DAY, zone_of(zone) or UTC) for n in range(4)]
    units = {start: histogram(9_000 - n * 1_000) for n, start in enumerate(starts)}
    load = Load(
        start_ms=hours[0] * HOUR_MS,
        end_ms=hours[1] * HOUR_MS,
        share=0.9,
        records=histogram(9 * DAY_MS),
        others=histogram(1_000),
        worst=HOUR,
    )
    assert words in worst_line("t", units, zone, CalendarUnit.DAY, load)
    only_load = replace(load, worst=None)
    assert "bulk load" not in worst_line("t", units, zone, CalendarUnit.DAY, only_load)


def test_units_far_apart_can_be_grouped() -> None:
    by_hour, far = LatencyByHour(), 200_000 * HOUR_MS
    by_hour.add(0, 1_000)
    by_hour.add(far, 1_000)
    units = by_unit(by_hour, CalendarUnit.HOUR, UTC)
    assert units is not None
    assert [*units] == [0, far]


def test_the_page_names_a_bulk_load_and_the_precision_of_percentiles() -> None:
    by_hour = LatencyByHour()
    for day in range(1, 200):
        by_hour.add(0, day * DAY_MS)
        by_hour.add(day * HOUR_MS, 1_000)
    result = LatencyResult({"t": TopicTimes(by_append=by_hour)}, 0, [])
    text = page("data", result, None).html()
    assert "t: 199 records: P50 1s, P99 1s, worst 1s appended in the hour from " in text
    assert "; not counted: a bulk load of 199 records (50%) appended from " in text
    assert " to 01:00:00, up to 199d after their create time" in text
    assert "half of" not in text
    assert "Percentiles are off by at most 1.6%, and rounded by at most another 1.6%." in text


def late(records: int, *lateness_ms: int, lost: dict[int, int] | None = None) -> TopicLateness:
    return TopicLateness(
        records=records,
        out_of_order=len(lateness_ms),
        late=histogram(*lateness_ms),
        lost=lost or {},
    )


def test_lateness() -> None:
    assert lateness_verdict("t", late(0)) == "t: no record has a create time"
    assert lateness_verdict("t", late(1)) == "t: 1 record, none out of order in its partition"
    assert lateness_verdict("t", late(2, 500)) == (
        "t: 1 of 2 records is out of order in its partition (50%), by up to 500ms"
    )
    assert lateness_verdict("t", late(90, *[5_340_000] * 7)) == (
        "t: 7 of 90 records are out of order in their partitions (7.8%), by up to 1h29m"
    )


def test_equal_watermarks_are_listed_once() -> None:
    assert watermark_line("t", late(90, *[5_340_000] * 7)) == (
        "t: with a watermark per partition, a delay of 1h29m loses no record"
    )
    many = late(10_000, *range(1_000, 1_001_000, 1_000))
    assert watermark_line("t", many) == (
        "t: with a watermark per partition, a delay of 16m40s loses no record, a delay of about 17m"
        " loses at most 0.01%, a delay of about 15m loses at most 1%"
    )


def test_delays_that_lose_as_many_are_one_row() -> None:
    lost = {0: 7, 1_000: 7, 60_000: 7, HOUR_MS: 3, DAY_MS: 0}
    assert merged_delays(late(90, *[5_340_000] * 7, lost=lost)) == [
        ("0s to 1m", 7),
        ("1h", 3),
        ("1d", 0),
    ]


def test_hours_are_joined_until_they_fit() -> None:
    year = LatencyByHour()
    for hour in range(365 * 24):
        year.add(hour * HOUR_MS, hour)
    joined = year.joined(40)
    assert (joined.step_ms, len(joined)) == (14 * DAY_MS, 27)
    assert joined.total() == year.total()
    day = LatencyByHour()
    for hour in range(24):
        day.add(hour * HOUR_MS, 1)
    assert day.joined(40).step_ms == HOUR_MS
    odd = LatencyByHour(5 * HOUR_MS)
    for number in range(100):
        odd.add(number * 5 * HOUR_MS, 1)
    assert len(odd.joined(40)) <= 40
    assert odd.joined(40).total() == odd.total()
