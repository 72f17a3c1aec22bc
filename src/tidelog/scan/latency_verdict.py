"""One-sentence summaries of latency and lateness, for commands and below the title of a page."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from math import ceil
from typing import Final

from tidelog.amounts import duration_text, estimate_text, plural, share_text, verb
from tidelog.scan.latency import TopicLateness
from tidelog.scan.latency_loads import Load
from tidelog.storage.clocks.latency import LOST_SHARES, RELATIVE_ERROR, LatencyHistogram
from tidelog.timespec import time_text
from tidelog.timespec.calendar import CalendarUnit, unit_start
from tidelog.timespec.zones import zone_of
from tidelog.types import HOUR_MS, INT64_MAX, MINUTE_MS

# Steps in ms to which printed percentiles are rounded, the largest first.
_STEPS_MS: Final = (
    *(24 * HOUR_MS, HOUR_MS, 10 * MINUTE_MS, MINUTE_MS),
    *(10_000, 1_000, 100, 10, 1),
)


def latency_verdict(
    name: str, total: LatencyHistogram, worst: tuple[int, int] | None, zone: str | None
) -> str:
    """Return a sentence: a topic's latency, and when its slowest record was appended.

    Args:
        name: Name of the topic.
        total: Latencies of all records.
        worst: Start (inclusive) and end (exclusive) in ms of a span of append times with the
            largest latency; None without records.
        zone: Name of the time zone of the shown times; None for UTC.
    """
    if worst is None:
        return f"{name}: no record of the range has both an append and a create time"
    if total.count == 1 and total.max_ms < 0:
        before = duration_text(-total.max_ms / 1000)
        return f"{name}: 1 record, appended {before} before its create time"
    if total.count == 1:
        after = duration_text(total.max_ms / 1000)
        return f"{name}: 1 record, appended {after} after its create time"
    return f"{name}: {_latency_text(total, worst, zone)}"


def _latency_text(records: LatencyHistogram, worst: tuple[int, int], zone: str | None) -> str:
    """Return words on the latency of several records; see `latency_verdict` for the arguments."""
    half, most = shown_percentiles(records, (50, 99))
    assert half is not None
    assert most is not None
    start, end = worst
    hour = f"in the hour from {time_text(start, zone)}"
    if end - start != HOUR_MS:
        hour = f"from {_window_text(start, end, zone)}"
    ahead = clock_ahead_ms(records)
    early = ""
    if ahead:
        early = f"; some were appended up to {duration_text(ahead / 1000)} before their create time"
    return (
        f"{plural(records.count, 'record')}: P50 {duration_text(half / 1000)},"
        f" P99 {duration_text(most / 1000)}, worst {duration_text(records.max_ms / 1000)}"
        f" appended {hour} ({zone or 'UTC'}){early}"
    )


def worst_line(
    name: str,
    by_unit: Mapping[int, LatencyHistogram],
    zone: str | None,
    unit: CalendarUnit,
    load: Load | None = None,
) -> str:
    """Return a line on the unit with the largest P99; "" if there is only one unit, or no P99 > 0.

    Units with records of a bulk load are left out, because `load_line` does not count the load.

    Args:
        name: Name of the topic.
        by_unit: Latencies by the first ms of each unit.
        zone: Name of the time zone of the units; None for UTC.
        unit: Day, week or month.
        load: The bulk load; None if there is none.
    """
    units, outside = dict(by_unit), ""
    if load is not None and load.worst is not None:
        ends = load.start_ms, load.end_ms - 1
        first_ms, last_ms = (unit_start(ms, unit, zone_of(zone) or UTC) for ms in ends)
        units = {ms: one for ms, one in units.items() if not first_ms <= ms <= last_ms}
        outside = f" outside the {unit}{'' if first_ms == last_ms else 's'} of the bulk load"
    worst = max(units.items(), key=lambda item: severity(item[1]), default=None)
    ms = None if worst is None else shown_percentiles(worst[1], (99,))[0]
    if worst is None or ms is None or ms <= 0 or len(units) == 1:
        return ""
    start_ms, histogram = worst
    began = _began_text(start_ms, zone, unit)
    latency = f"{duration_text(ms / 1000)}, {plural(histogram.count, 'record')}"
    return f"{name}: the {unit} with the largest P99{outside} {began} ({zone or 'UTC'}): {latency}"


def _began_text(start_ms: int, zone: str | None, unit: CalendarUnit) -> str:
    """Return a verb and the first date or time of a unit."""
    # A day, week or month with 1970-01-01 can begin before 1970, but printed times begin in 1970.
    time = time_text(max(start_ms, 0), zone)
    if unit is CalendarUnit.HOUR:
        return f"began at {time}"
    date = time.split(" ")[0]
    return f"is {date}" if unit is CalendarUnit.DAY else f"began on {date}"


def load_line(name: str, load: Load, zone: str | None) -> str:
    """Return a line on the latency of all records outside a bulk load, and on the load.

    Args:
        name: Name of the topic.
        load: The load.
        zone: Name of the time zone of the shown times; None for UTC.
    """
    in_zone = zone or "UTC"
    window = f"appended from {_window_text(load.start_ms, load.end_ms, zone)}"
    longest = duration_text(max(load.records.max_ms, 0) / 1000)
    late = f"up to {longest} after their create time"
    if load.worst is None:
        records = plural(load.records.count, "record")
        return f"{name}: all {records} are a bulk load {window} ({in_zone}), {late}"
    share = share_text(load.records.count / (load.records.count + load.others.count))
    return (
        f"{name}: {_latency_text(load.others, load.worst, zone)}; not counted: a bulk load of"
        f" {plural(load.records.count, 'record')} ({share}) {window}, {late}"
    )


def parts_of(
    name: str, total: LatencyHistogram, load: Load | None
) -> list[tuple[str, LatencyHistogram]]:
    """Return label and latencies of each row for a topic in a printed table.

    Beside a bulk load, the first row is about the records outside the load, as is `load_line`.

    Args:
        name: Name of the topic.
        total: Latencies of all records.
        load: The bulk load; None if there is none.
    """
    if load is None or load.worst is None:
        return [(name, total)]
    return [(f"{name}, without the load", load.others), (f"{name}, the load", load.records)]


def _window_text(start_ms: int, end_ms: int, zone: str | None) -> str:
    (day, start), (end_day, end) = (time_text(ms, zone).split(" ") for ms in (start_ms, end_ms))
    return f"{day} {start} to {end if day == end_day else f'{end_day} {end}'}"


def severity(histogram: LatencyHistogram) -> tuple[int, int]:
    """Return a sort key for hours: P99 in ms, then the number of records."""
    ms = histogram.percentile(99)
    return -INT64_MAX if ms is None else ms, histogram.count


def shown_percentiles(histogram: LatencyHistogram, percents: Sequence[float]) -> list[int | None]:
    """Return percentiles in ms for printing, rounded to the digits that their error allows.

    A percentile is rounded by at most `RELATIVE_ERROR` of its value, so that the text does not look
    more exact than the percentile: 47m31s becomes 48m. The result is between the smallest and the
    largest latency, which are exact and not rounded.
    """
    return [
        None if ms is None else _rounded(ms, histogram.min_ms, histogram.max_ms)
        for ms in histogram.percentiles(percents)
    ]


def _rounded(ms: int, min_ms: int, max_ms: int) -> int:
    if ms in (min_ms, max_ms):
        return ms
    for step in _STEPS_MS:
        rounded = round(ms / step) * step
        is_close = abs(rounded - ms) <= RELATIVE_ERROR * abs(ms)
        if is_close and min_ms <= rounded <= max_ms:
            return rounded
    return ms


def percentile_text(ms: int) -> str:
    """Return a percentile in words."""
    return "at or before their create time" if ms <= 0 else f"within {duration_text(ms / 1000)}"


def clock_ahead_ms(histogram: LatencyHistogram) -> int | None:
    """Return the absolute value of the most negative latency; None if no latency is negative."""
    return -histogram.min_ms if histogram.min_ms < 0 else None


def lateness_verdict(name: str, late: TopicLateness) -> str:
    """Return a sentence: how many records are out of order, and by how much."""
    if not late.records:
        return f"{name}: no record has a create time"
    if not late.out_of_order:
        return f"{name}: {plural(late.records, 'record')}, none out of order in its partition"
    are = verb(late.out_of_order, "is", "are")
    where = verb(late.out_of_order, "in its partition", "in their partitions")
    share = share_text(late.out_of_order / late.records)
    return (
        f"{name}: {late.out_of_order:,} of {plural(late.records, 'record')} {are} out of order"
        f" {where} ({share}), by up to {duration_text(late.late_ms_max / 1000)}"
    )


def lateness_lines(
    name: str, late: TopicLateness, zone: str | None, unit: CalendarUnit
) -> list[str]:
    """Return a line on the unit with most late records, and one on records created in other units.

    Args:
        name: Name of the topic.
        late: Late records, with `by_unit`.
        zone: Name of the time zone of the units; None for UTC.
        unit: The unit.
    """
    in_zone = zone or "UTC"
    lines: list[str] = []
    units = late.by_unit.items()
    worst = max(units, key=lambda item: (item[1].out_of_order, item[1].late_ms_max), default=None)
    if worst is None:
        return lines
    start_ms, most = worst
    if most.out_of_order:
        began = _began_text(start_ms, zone, unit)
        lines.append(
            f"{name}: the {unit} with most records out of order {began} ({in_zone}):"
            f" {most.out_of_order:,} of {plural(most.records, 'record')}"
        )
    outside = sum(one.created_outside for one in late.by_unit.values())
    on = "on another day" if unit is CalendarUnit.DAY else f"in another {unit}"
    lines.append(
        f"{name}: {outside:,} of {plural(late.timed, 'record')} {verb(outside, 'was', 'were')}"
        f" created {on} ({in_zone}) than appended"
    )
    return lines


def watermark_line(name: str, late: TopicLateness) -> str:
    """Return a line with the watermark delay for each share of records that may be lost.

    The delays are for one watermark per partition, as lateness is counted per partition.
    Shares with the same delay are listed once.
    """
    parts: list[str] = []
    smallest_ms = None
    for lost in sorted(LOST_SHARES):
        delay_ms = late.delay_for(lost)
        if delay_ms == smallest_ms:
            continue  # the line already has this delay, for a smaller share
        smallest_ms = delay_ms
        if lost:
            delay = f"about {estimate_text(delay_ms / 1000)}"
            parts.append(f"a delay of {delay} loses at most {lost * 100:g}%")
        else:
            delay = duration_text(delay_ms / 1000, rounded=ceil)
            parts.append(f"a delay of {delay} loses no record")
    return f"{name}: with a watermark per partition, {', '.join(parts)}"


def merged_delays(late: TopicLateness) -> list[tuple[str, int]]:
    """Return pairs (delay as text, records lost); delays with equal losses are merged."""
    merged: list[tuple[list[int], int]] = []
    for delay, lost in sorted(late.lost.items()):
        if merged and merged[-1][1] == lost:
            merged[-1][0].append(delay)
        else:
            merged.append(([delay], lost))
    return [
        (" to ".join(duration_text(ms / 1000) for ms in dict.fromkeys((one[0], one[-1]))), lost)
        for one, lost in merged
    ]
