"""Summaries of topics' times, and rows for the three tables of a latency report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.latency import TopicLateness
from tidelog.scan.latency_loads import find_load, slowest_span
from tidelog.scan.latency_verdict import (
    clock_ahead_ms,
    latency_verdict,
    load_line,
    percentile_text,
    shown_percentiles,
)
from tidelog.spark.parts import timestamp
from tidelog.storage.clocks.latency import PERCENTS, RELATIVE_ERROR, LatencyByHour, LatencyHistogram
from tidelog.types import HOUR_MS, ClockName

if TYPE_CHECKING:
    from tidelog.scan.split_latency import Late, SplitTimes


HOURS_SCHEMA: Final = (
    "topic string, clock string, hour timestamp, hour_ms bigint, hours int, records bigint,"
    " p50_ms bigint, p90_ms bigint, p99_ms bigint, p999_ms bigint, max_ms bigint, min_ms bigint,"
    " skew_ms_max bigint, percentile_error double"
)

TOPICS_SCHEMA: Final = (
    "topic string, records bigint, without_create_time bigint, without_both_times bigint,"
    " out_of_order bigint, late_ms_max bigint, skew_ms_max bigint"
)

WATERMARKS_SCHEMA: Final = (
    "topic string, delay_ms bigint, lost bigint, records bigint, lost_share double"
)


@dataclass(slots=True)
class TopicTimes:
    """Summary of the times of one topic's records.

    Attributes:
        records: Number of data records.
        without: Number of records that lack the append time, the create time or both.
        by_append: Latencies by hour of append time.
        by_create: The same latencies by hour of create time.
        late: Counts of late records, and of records that each watermark delay would drop.
    """

    records: int = 0
    without: int = 0
    by_append: LatencyByHour = field(default_factory=LatencyByHour)
    by_create: LatencyByHour = field(default_factory=LatencyByHour)
    late: TopicLateness = field(default_factory=TopicLateness)

    @property
    def skew_ms(self) -> int | None:
        """Largest time in ms by which a create time is after the append time; None if none is."""
        return clock_ahead_ms(self.by_append.total())


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Result of `measure`: times by topic, bytes read, and notes."""

    topics: Mapping[str, TopicTimes]
    log_bytes: int
    notes: Sequence[str]


def joined(
    names: Iterable[str],
    of: Sequence[str],
    split_times: Sequence["SplitTimes"],
    each_late: "Sequence[Late]",
    delays_ms: Sequence[int],
) -> dict[str, TopicTimes]:
    """Combine the summaries of all splits into one summary for each topic.

    Args:
        names: Names of all topics.
        of: Topic of each split.
        split_times: Summary of each split.
        each_late: Counts of late records of each split, corrected by the create times of earlier
            splits.
        delays_ms: Watermark delays in ms.
    """
    topics = {
        name: TopicTimes(late=TopicLateness(lost=dict.fromkeys(delays_ms, 0))) for name in names
    }
    for name, one, late in zip(of, split_times, each_late, strict=True):
        topic = topics[name]
        topic.records += one.records
        topic.without += one.records - one.both
        topic.by_append.merge(one.by_append)
        topic.by_create.merge(one.by_create)
        topic.late.records += one.timed
        topic.late.without_time += one.records - one.timed
        topic.late.out_of_order += late.histogram.count
        topic.late.late.merge(late.histogram)
        for delay, lost in late.lost.items():
            topic.late.lost[delay] += lost
    return topics


def hour_rows(
    topics: Mapping[str, TopicTimes], *, is_exact: bool = True
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `HOURS_SCHEMA`; without `is_exact`, percentiles are rounded for display."""
    percentiles = LatencyHistogram.percentiles if is_exact else shown_percentiles
    for name, topic in topics.items():
        clocks = ((ClockName.APPEND, topic.by_append), (ClockName.RECORD, topic.by_create))
        for clock, by_hour in clocks:
            for hour_ms, histogram in by_hour.items():
                yield (
                    name,
                    clock.value,
                    timestamp(hour_ms),
                    hour_ms,
                    by_hour.step_ms // HOUR_MS,
                    histogram.count,
                    *percentiles(histogram, PERCENTS),
                    histogram.max_ms,
                    histogram.min_ms,
                    clock_ahead_ms(histogram),
                    RELATIVE_ERROR,
                )


def watermark_rows(topics: Mapping[str, TopicTimes]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `WATERMARKS_SCHEMA`."""
    for name, topic in topics.items():
        records = topic.late.records
        for delay, lost in topic.late.lost.items():
            yield name, delay, lost, records, lost / records if records else None


def topic_rows(topics: Mapping[str, TopicTimes]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `TOPICS_SCHEMA`."""
    for name, topic in topics.items():
        late = topic.late
        yield (
            name,
            topic.records,
            late.without_time,
            topic.without,
            late.out_of_order,
            late.late_ms_max,
            topic.skew_ms,
        )


def topic_verdict(name: str, topic: TopicTimes, zone: str | None) -> str:
    """Return a sentence on the latency of a topic, with times in `zone`; None means UTC.

    If a bulk load causes most of the latency, the sentence describes the load and the latency of
    all other records.
    """
    load = find_load(topic.by_append)
    if load is not None:
        return load_line(name, load, zone)
    return latency_verdict(name, topic.by_append.total(), slowest_span(topic.by_append), zone)


def latencies_verdict(result: LatencyResult, zone: str | None) -> str:
    """Return a sentence on the latency of one topic: the slowest topic if there are several."""
    if len(result.topics) == 1:
        ((only, topic),) = result.topics.items()
        return topic_verdict(only, topic, zone)
    totals = {name: topic.by_append.total() for name, topic in result.topics.items()}
    p99_ms = {name: total.percentile(99) or 0 for name, total in totals.items() if total.count}
    if not p99_ms:
        return f"no record of {plural(len(totals), 'topic')} has both an append and a create time"
    records = sum(total.count for total in totals.values())
    slowest = max(p99_ms, key=lambda name: p99_ms[name])
    (shown_ms,) = shown_percentiles(totals[slowest], (99,))
    return (
        f"{plural(records, 'record')} of {plural(len(totals), 'topic')}; the slowest topic is"
        f" {slowest}: 99% of its records were appended"
        f" {percentile_text(shown_ms or 0)}"
    )
