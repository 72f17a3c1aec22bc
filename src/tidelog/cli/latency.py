"""`tidelog latency`: shows ingestion latency, and the late records that watermarks would lose."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import plural, verb
from tidelog.cli import output, times
from tidelog.cli.missing import Limits, note_missing
from tidelog.cli.options import (
    Format,
    data_option,
    declared_by,
    examples,
    format_option,
    option,
    show_option,
    shown_table,
    target_argument,
    with_options,
    zone_cache_option,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import open_directory, parse_target, partitions_of
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.clocks.latency import (
    PERCENTS,
    RELATIVE_ERROR,
    LatencyByHour,
    LatencyHistogram,
)
from tidelog.timespec import TIME_HELP, parse_duration
from tidelog.types import HOUR_MS, ClockName

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.scan.latency import LateRecord, TopicLatency, TopicLateness
    from tidelog.scan.split import ScanStats
    from tidelog.types import TopicPartition

# Approximate maximum number of rows of hours in a table for people; if there are more hours, each
# row covers several.
HOUR_ROWS: Final = 40
# Default number of records that `--show records` prints.
RECORDS_SHOWN: Final = 10


class LatencyShow(StrEnum):
    """Table of latencies to print."""

    TOPICS = "topics"
    HOURS = "hours"
    RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """Options of `tidelog latency`."""

    target: str = declared_by(target_argument)
    start: str | None = option(
        "--from",
        metavar="TIME",
        help=f"Start by append time (inclusive), or a range A..B. {TIME_HELP}. Default: no limit.",
    )
    end: str | None = option(
        "--to", metavar="TIME", help="End by append time (exclusive). Default: no limit."
    )
    during: str | None = declared_by(times.during_option)
    late: bool = option(
        "--late",
        is_flag=True,
        help="Show how many records watermark delays would lose; reads all records.",
    )
    delays: tuple[str, ...] = option(
        "--delay",
        multiple=True,
        metavar="TIME",
        help="A watermark delay for --late; repeatable. Default: 0s, 1s, 10s, 1m, 10m, 1h, 1d.",
    )
    show: LatencyShow | None = declared_by(
        show_option(
            LatencyShow,
            "topics: all hours together; hours: by hour of append time; records: those with the"
            " largest latencies.",
        )
    )
    limit: int | None = option(
        "--limit",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Maximum number of records of --show records. Default: {RECORDS_SHOWN}.",
    )
    data: str | None = declared_by(data_option)
    zone_cache: str | None = declared_by(zone_cache_option)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "latency",
    epilog=examples(
        "tidelog latency flights",
        "tidelog latency flights --from -1d --show hours",
        "tidelog latency flights --during 2013-12 --show records -n 20",
        "tidelog latency flights --from -1d -o json",
        "tidelog latency flights --late",
        "tidelog latency flights --late --delay 5m --delay 1h",
    ),
)
@with_options(LatencyOptions)
def latency(surroundings: Surroundings, options: LatencyOptions) -> None:
    """Show ingestion latency: append time minus create time.

    A range is extended to whole hours. A negative latency means that a producer's clock was ahead;
    CLOCK AHEAD is the largest such difference. Finished segments are counted from their zone maps,
    and active ones are read; --show records also reads the hours with the largest latencies.
    """
    from tidelog.scan.latency import TopicLatency, latest_records
    from tidelog.scan.latency import latency as measure

    is_late = options.late or bool(options.delays)
    if is_late and options.show is not None:
        raise UsageProblem("--show does not apply with --late or --delay; leave it out")
    if options.limit is not None and options.show is not LatencyShow.RECORDS:
        raise UsageProblem("--limit applies only with --show records")
    topic, number = parse_target(options.target)
    start_ms, end_ms = times.read_bounds(
        surroundings, options.start, options.end, options.zone, during=options.during
    )
    with open_directory(surroundings, options.data) as directory:
        partitions = partitions_of(directory, topic, number)
        ranges = dict.fromkeys(partitions, Limits(start_ms=start_ms, end_ms=end_ms))
        if is_late:
            _print_late(surroundings, directory, partitions, options, (start_ms, end_ms))
            note_missing(surroundings, directory, ranges, ClockName.APPEND, options.zone)
            return
        by_topic = measure(
            directory.log_dir,
            partitions,
            start_ms=start_ms,
            end_ms=end_ms,
            zone_cache=options.zone_cache,
        )
        measured = by_topic.get(topic, TopicLatency())
        records: list[LateRecord] = []
        if options.show is LatencyShow.RECORDS:
            records = latest_records(
                directory.log_dir,
                partitions,
                measured.by_hour,
                count=options.limit or RECORDS_SHOWN,
                start_ms=start_ms,
                end_ms=end_ms,
            )
        _print_latency(surroundings, options, topic, measured, records)
        note_missing(surroundings, directory, ranges, ClockName.APPEND, options.zone)


def _note_lost(surroundings: Surroundings, stats: "ScanStats") -> None:
    """Print each range of lost offsets, except those of segments deleted during the read."""
    from tidelog.storage.segment.gaps import GAP_REASON

    for one in stats.lost:
        if one.reason == GAP_REASON:
            surroundings.note(f"{one}; the latencies of these records are missing here")


HOURS: Final = output.columns(
    "topic",
    output.time("hour"),
    output.count("hours", "records"),
    output.duration(*(f"p{percent:g}_ms".replace(".", "") for percent in PERCENTS)),
    output.duration("max_ms", "min_ms"),
    output.minor(output.duration("skew_ms_max")),
    output.detail(output.share("percentile_error")),
)
_PERCENTILES: Final = output.titled(
    **{f"p{one:g}": output.duration(f"p{one:g}_ms".replace(".", "")) for one in PERCENTS}
)
_TABLE_HOURS: Final = output.columns(
    output.time("start"),
    output.duration("span_ms"),
    output.count("records"),
    _PERCENTILES,
    output.duration("max_ms", "clock_ahead_ms"),
)
_TOPICS: Final = output.columns(
    "topic",
    output.count("records"),
    _PERCENTILES,
    output.duration("max_ms"),
    output.detail(output.duration("min_ms")),
    output.duration("clock_ahead_ms"),
    output.detail(output.share("percentile_error")),
)
_RECORDS: Final = output.columns(
    "topic",
    output.number("partition", "offset"),
    output.time("create_time", "append_time"),
    output.duration("latency_ms"),
)


def _hour_rows(topic: str, measured: "TopicLatency") -> Iterator[list[Cell]]:
    from tidelog.scan.latency_verdict import clock_ahead_ms

    hours = measured.by_hour.step_ms // HOUR_MS
    for hour_ms, histogram in measured.by_hour.items():
        yield [
            topic,
            hour_ms,
            hours,
            histogram.count,
            *(histogram.percentile(percent) for percent in PERCENTS),
            histogram.max_ms,
            histogram.min_ms,
            clock_ahead_ms(histogram),
            RELATIVE_ERROR,
        ]


def _print_latency(
    surroundings: Surroundings,
    options: LatencyOptions,
    topic: str,
    measured: "TopicLatency",
    records: "list[LateRecord]",
) -> None:
    from tidelog.scan.latency_verdict import latency_verdict

    kind, show = options.kind, shown_table(options.show, LatencyShow, options.kind)
    output.print_verdict(surroundings, latency_verdict(topic, measured.total), kind)
    if kind is not Format.TABLE and show is LatencyShow.HOURS:
        rows = list(_hour_rows(topic, measured))
        output.print_rows(surroundings, HOURS, rows, kind, zone=options.zone)
    elif show is LatencyShow.RECORDS:
        rows = [
            [topic, at.partition, one.offset, one.create_ms, one.append_ms, one.latency_ms]
            for at, one in ((one.partition, one) for one in records)
        ]
        output.print_rows(
            surroundings, _RECORDS, rows, kind, zone=options.zone, total=measured.total.count
        )
    elif show is LatencyShow.TOPICS:
        output.print_rows(surroundings, *topic_table([(topic, measured.total)], kind), kind)
    elif measured.total.count:
        columns, hours = hour_table([((), measured.by_hour)])
        output.print_rows(surroundings, columns, hours, kind, zone=options.zone)
    if measured.without:
        number, lack = plural(measured.without, "record"), verb(measured.without, "lacks", "lack")
        surroundings.note(f"{topic}: {number} {lack} one of the two times")
    _note_lost(surroundings, measured.stats)
    if surroundings.is_wide:
        counted = measured.from_zone_maps
        every = plural(counted + measured.stats.rows, "record")
        surroundings.note(
            f"{counted:,} of {every} {verb(counted, 'was', 'were')} counted from zone maps;"
            f" percentiles have an error of at most {RELATIVE_ERROR:.1%}, all other numbers are"
            " exact"
        )


def topic_table(
    totals: Iterable[tuple[str, LatencyHistogram]], kind: Format
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return columns and rows of all hours together, a row for each topic with a latency."""
    from tidelog.scan.latency_verdict import clock_ahead_ms

    rows: list[list[Cell]] = [
        [
            name,
            one.count,
            *_percentiles(one, kind),
            one.max_ms,
            one.min_ms,
            clock_ahead_ms(one),
            RELATIVE_ERROR,
        ]
        for name, one in totals
        if one.count
    ]
    return _TOPICS, rows


def hour_table(
    latencies: Iterable[tuple[tuple[str, ...], LatencyByHour]], *names: str
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return columns and rows of latency by time for people.

    Each row covers as many hours as are needed to get at most about `HOUR_ROWS` rows.

    Args:
        latencies: For each group of rows: the first cells of its rows, and their latencies.
        names: Names of the columns of the first cells.
    """
    from tidelog.scan.latency_verdict import clock_ahead_ms

    every = list(latencies)
    limit = max(HOUR_ROWS // max(len(every), 1), 2)
    rows: list[list[Cell]] = []
    for first, by_hour in every:
        joined = by_hour.joined(limit)
        rows += [
            [
                *first,
                hour_ms,
                joined.step_ms,
                one.count,
                *_percentiles(one, Format.TABLE),
                one.max_ms,
                clock_ahead_ms(one),
            ]
            for hour_ms, one in joined.items()
        ]
    return output.columns(*names, _TABLE_HOURS), rows


def _percentiles(one: LatencyHistogram, kind: Format) -> list[Cell]:
    """Return the percentiles in ms, or for people as text with the few digits of `capped_text`."""
    from tidelog.scan.latency_verdict import capped_text

    return [
        ms if kind is not Format.TABLE or ms is None else capped_text(ms, one)
        for ms in one.percentiles(PERCENTS)
    ]


def _print_late(
    surroundings: Surroundings,
    directory: "Directory",
    partitions: "list[TopicPartition]",
    options: LatencyOptions,
    bounds: tuple[int | None, int | None],
) -> None:
    from tidelog.scan.latency import TopicLateness, lateness
    from tidelog.scan.latency_verdict import lateness_verdict, watermark_line
    from tidelog.scan.split import RequestedRange
    from tidelog.storage.clocks.latency import DELAYS_MS

    delays = [parse_duration(text) // 1_000_000 for text in options.delays] or list(DELAYS_MS)
    append_times = RequestedRange(start_ms=bounds[0], end_ms=bounds[1]).times
    by_topic = lateness(
        directory.log_dir,
        partitions,
        delays_ms=delays,
        append_range=append_times and (max(append_times[0], 0), append_times[1]),
    )
    topic = partitions[0].topic if partitions else ""
    late = by_topic.get(topic, TopicLateness())
    output.print_verdict(surroundings, lateness_verdict(topic, late), options.kind)
    if options.kind is Format.TABLE:
        output.print_rows(surroundings, *delay_table({topic: late}), options.kind)
    else:
        columns = output.columns(
            "topic",
            output.duration("delay_ms"),
            output.count("lost", "records"),
            output.share("lost_share"),
        )
        rows: list[list[Cell]] = [
            [topic, delay, lost, late.records, lost / late.records if late.records else None]
            for delay, lost in late.lost.items()
        ]
        output.print_rows(surroundings, columns, rows, options.kind)
    if late.records:
        surroundings.say(watermark_line(topic, late))
    if late.without_time:
        records, have = plural(late.without_time, "record"), verb(late.without_time, "has", "have")
        surroundings.say(f"{topic}: {records} {have} no create time")
    _note_lost(surroundings, late.stats)


def delay_table(
    topics: "Mapping[str, TopicLateness]",
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return columns and rows of the records that watermarks lose, for people.

    Delays that lose the same number of records share a row.
    """
    from tidelog.scan.latency_verdict import merged_delays

    columns = output.columns(
        "topic",
        output.number("watermark_delay"),
        output.count("records_lost"),
        output.share("lost_share"),
    )
    return columns, [
        [topic, delay, lost, lost / late.records if late.records else None]
        for topic, late in topics.items()
        for delay, lost in merged_delays(late)
    ]
