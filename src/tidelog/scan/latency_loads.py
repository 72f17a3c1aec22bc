"""Finds a bulk load that causes most of a topic's latency, and the span with the worst latency.

A bulk load appends many records within a short time, long after they were created. Its records
dominate the topic's percentiles, which then hide the latency of all other records. The load is
searched in the histograms by hour, without reading records. Records are read only to name the hour
of the worst latency if the histograms have longer spans (`narrowed_span`). The share of a load is a
lower bound, computed from the bounds of the histograms' buckets; the number of its records is
exact.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.latency import latest_records
from tidelog.storage.clocks.latency import LatencyByHour, LatencyHistogram, bucket_bounds
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import HOUR_MS, MINUTE_MS, ClockName, TopicPartition

# Minimum number of records of a load, and their minimum share of all records. A smaller group does
# not change the 99th percentile of a topic.
RECORDS_LEAST: Final = 100
_RECORD_SHARE_LEAST: Final = 0.01
# At least half of a load's records have a latency of at least this number of windows.
_WINDOWS_LEAST: Final = 10
# Without the load, the 99th percentile is smaller by at least this factor.
_P99_FACTOR_LEAST: Final = 2
# A span beside the window belongs to the load if the sum of its latencies is at least this share of
# the average sum of a span in the window.
_NEIGHBOR_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A bulk load.

    Attributes:
        start_ms: Start of the window of append times, in ms, inclusive. The window consists of
            whole spans of the histograms, or of whole minutes after `narrowed`.
        end_ms: End of the window, exclusive.
        share: Lower bound of the load's share of the sum of all latencies, more than half. A
            negative latency counts as 0.
        records: Latencies of the records that were appended in the window.
        others: Latencies of all other records.
        worst: Start (inclusive) and end (exclusive) in ms of the span of append times in which the
            latency of the other records is largest; None if there are no other records.
    """

    start_ms: int
    end_ms: int
    share: float
    records: LatencyHistogram
    others: LatencyHistogram
    worst: tuple[int, int] | None


def find_load(by_hour: LatencyByHour) -> Load | None:
    """Return the bulk load that causes most of the latency; None if there is none.

    A window of consecutive spans contains a load if all of this is true:

    - Its records have more than half of the sum of all latencies.
    - It has at least 100 records and at least 1 % of all records.
    - Its records are old, and were created over a longer time than the window: at least half of
      them have a latency of at least 10 windows, and their latencies differ by more than a window.
    - It hides the latency of the other records, whose 99th percentile is at most half as large as
      that of all records. This condition does not apply if there are no other records.
    """
    starts, spans = list(by_hour), list(by_hour.values())
    sums = [_sum_bounds(histogram) for histogram in spans]
    window = _shortest_window(starts, sums)
    if window is None:
        return None
    first, end = _with_neighbors(window, starts, sums, by_hour.step_ms)
    rest = sum(high for _, high in (*sums[:first], *sums[end:]))
    low = sum(low for low, _ in sums[first:end])
    others = [*range(first), *range(end, len(spans))]
    slowest = max(others, key=lambda number: spans[number].max_ms, default=None)
    load = Load(
        start_ms=starts[first],
        end_ms=starts[end - 1] + by_hour.step_ms,
        share=low / (low + rest),
        records=_merged(spans[first:end]),
        others=_merged([spans[number] for number in others]),
        worst=None if slowest is None else (starts[slowest], starts[slowest] + by_hour.step_ms),
    )
    return load if _is_large(load) and _is_old(load) and _hides_others(load) else None


def slowest_span(by_hour: LatencyByHour) -> tuple[int, int] | None:
    """Return start and end in ms of the span with the largest latency; None without records."""
    start = max(by_hour, key=lambda ms: by_hour[ms].max_ms, default=None)
    return None if start is None else (start, start + by_hour.step_ms)


def narrowed_span(
    span: tuple[int, int], total: LatencyHistogram, log_dir: LogDir, names: Sequence[TopicPartition]
) -> tuple[int, int]:
    """Read the records of a time range, and return the hour in it with the largest latency.

    The range itself is returned if it is only an hour long, or if its records can't be read or were
    deleted in the meantime.

    Args:
        span: The range: start and end of append times in ms.
        total: Latencies whose largest one is in the range.
        log_dir: The directory.
        names: The partitions.
    """
    start, end = span
    if end - start <= HOUR_MS:
        return span
    by_hour = LatencyByHour(end - start)
    by_hour.at(start).merge(total)
    try:
        latest = latest_records(log_dir, names, by_hour, count=1, start_ms=start, end_ms=end)
    except (TidelogError, FileNotFoundError):
        return span
    if not latest or latest[0].latency_ms != total.max_ms:
        return span
    hour_ms = latest[0].append_ms // HOUR_MS * HOUR_MS
    return hour_ms, hour_ms + HOUR_MS


def narrowed(load: Load, log_dir: LogDir, names: Sequence[TopicPartition]) -> Load:
    """Return a load whose times are exact to the minute, and `worst` to the hour.

    If a span of the histograms is longer than an hour, the records of the span `worst` are read.
    Otherwise no records are read. A time is not narrowed if an append time is unknown. If a file
    can't be read or was deleted meanwhile, the load is returned unchanged.
    """
    try:
        window = _narrow_window(load, log_dir, names) or (load.start_ms, load.end_ms)
    except (TidelogError, FileNotFoundError):
        window = load.start_ms, load.end_ms
    worst = load.worst
    if worst is not None:
        worst = narrowed_span(worst, load.others, log_dir, names)
    return replace(load, start_ms=window[0], end_ms=window[1], worst=worst)


def _narrow_window(
    load: Load, log_dir: LogDir, names: Sequence[TopicPartition]
) -> tuple[int, int] | None:
    """Return the window of whole minutes that contains the load's append times.

    Return None if an append time is unknown.
    """
    times: list[int] = []
    for name in names:
        reader = log_dir.reader(name.topic, name.partition)
        # Histograms have stored append times, which are rounded down by at most the slack. The
        # search allows for this rounding: it subtracts the slack, which is added here.
        slack_ms = reader.append_slack_ms
        first, after = (
            reader.offset_for_time(ms + slack_ms, clock=ClockName.APPEND)
            for ms in (load.start_ms, load.end_ms)
        )
        if first is None or first.timestamp >= load.end_ms:
            continue
        end = reader.log_end_offset if after is None else after.offset
        last_ms = reader.append_time_of(end - 1)
        if last_ms is None:
            return None
        times += (first.timestamp, last_ms + slack_ms)
    if not times:
        return None
    return min(times) // MINUTE_MS * MINUTE_MS, (max(times) // MINUTE_MS + 1) * MINUTE_MS


def _is_large(load: Load) -> bool:
    count = load.records.count
    every = count + load.others.count
    return count >= max(RECORDS_LEAST, _RECORD_SHARE_LEAST * every)


def _is_old(load: Load) -> bool:
    window_ms = load.end_ms - load.start_ms
    records = load.records
    old = sum(
        count
        for bucket, count in records.buckets.items()
        if bucket_bounds(bucket)[0] >= _WINDOWS_LEAST * window_ms
    )
    return 2 * old >= records.count and records.max_ms - records.min_ms > window_ms


def _hides_others(load: Load) -> bool:
    if not load.others.count:
        return True
    (others_ms,) = load.others.percentiles((99,))
    (every_ms,) = _merged([load.records, load.others]).percentiles((99,))
    assert others_ms is not None
    assert every_ms is not None
    return _P99_FACTOR_LEAST * others_ms <= every_ms


def _merged(histograms: Sequence[LatencyHistogram]) -> LatencyHistogram:
    merged = LatencyHistogram()
    for one in histograms:
        merged.merge(one)
    return merged


def _sum_bounds(histogram: LatencyHistogram) -> tuple[int, int]:
    """Return a lower and an upper bound of the sum of a histogram's positive latencies in ms."""
    low = high = 0
    for bucket, count in histogram.buckets.items():
        least, most = bucket_bounds(bucket)
        low += count * max(least, histogram.min_ms, 0)
        high += count * max(min(most, histogram.max_ms), 0)
    return low, high


def _shortest_window(
    starts: Sequence[int], sums: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the shortest window [first, end) of spans with more than half of the latency.

    Return None if no latency is positive.

    Args:
        starts: Start of each span in ms, ascending.
        sums: Bounds of each span's sum of latencies.
    """
    best: tuple[int, int] | None = None
    low, rest, end = 0, sum(high for _, high in sums), 0
    for first in range(len(starts)):
        while low <= rest and end < len(starts):
            low, rest, end = low + sums[end][0], rest - sums[end][1], end + 1
        if low <= rest:
            break  # all further windows have less latency, too
        if best is None or starts[end - 1] - starts[first] < starts[best[1] - 1] - starts[best[0]]:
            best = first, end
        low, rest = low - sums[first][0], rest + sums[first][1]
    return best


def _with_neighbors(
    window: tuple[int, int], starts: Sequence[int], sums: Sequence[tuple[int, int]], step_ms: int
) -> tuple[int, int]:
    """Extend a window [first, end) by the adjacent spans that belong to the load, too."""
    first, end = window
    least = _NEIGHBOR_SHARE * sum(low for low, _ in sums[first:end]) / (end - first)
    while first > 0 and starts[first - 1] + step_ms == starts[first]:
        if sums[first - 1][0] < least:
            break
        first -= 1
    while end < len(starts) and starts[end] == starts[end - 1] + step_ms:
        if sums[end][0] < least:
            break
        end += 1
    return first, end
