"""`tidelog latency`: shows ingestion latency, and the late records that watermarks would lose."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import click

from tidelog.amounts import plural, verb
from tidelog.cli import output, times
from tidelog.cli.missing import Limits, note_missing
from tidelog.cli.offsets import collapsed
from tidelog.cli.options import (
    Format,
    data_option,
    declared_by,
    examples,
    format_option,
    one_of,
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
from tidelog.timespec.calendar import (
    CalendarUnit,
    ensure_quarters,
    unit_for,
    unit_ranges,
    unit_start,
    units_with,
)
from tidelog.timespec.zones import zone_of
from tidelog.types import HOUR_MS, INT64_MAX, ClockName

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.scan.latency import LateRecord, TopicLatency, TopicLateness
    from tidelog.scan.latency_loads import Load
    from tidelog.scan.split import ScanStats
    from tidelog.types import TopicPartition

# Maximum number of rows by time in a printed table if --by is not given: three days of hours, ten
# weeks of days, a year of weeks.
HOUR_ROWS: Final = 75
# Note below printed tables that have percentiles.
PRECISION_NOTE: Final = (
    f"percentiles are off by at most {RELATIVE_ERROR:.1%}, and rounded by at most another"
    f" {RELATIVE_ERROR:.1%}"
)
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
        help=f"Start of the append times (inclusive), or a range A..B. {TIME_HELP}."
        " Default: no limit.",
    )
    end: str | None = option(
        "--to", metavar="TIME", help="End of the append times (exclusive). Default: no limit."
    )
    during: str | None = declared_by(times.during_option)
    late: bool = option(
        "--late",
        is_flag=True,
        help="Show how many records watermark delays would lose, with a watermark per partition;"
        " reads all records.",
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
            "topics: one line per topic; hours: one line per hour of append time, or per day, week"
            " or month of a long range (see --by); records: the records with the largest"
            " latencies.",
        )
    )
    by: CalendarUnit | None = declared_by(
        one_of(
            "--by",
            kind=CalendarUnit,
            default=None,
            text="One line for each hour, day, week (from Monday) or month of --zone, including"
            " those without records; implies --show hours. Reads records where zone maps are too"
            " coarse. With --late: how many records are late in each of them. Default: the unit"
            " that gives a short table.",
        )
    )
    limit: int | None = option(
        "--limit",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="Only the worst N rows: the hours with the largest P99, or with --late those with most"
        " late records; or the records with the largest latencies. Default: all hours,"
        f" {RECORDS_SHOWN} records.",
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
        "tidelog latency flights --by hour -n 5 --zone America/New_York",
        "tidelog latency flights --during 2013-12Z --show records -n 20",
        "tidelog latency flights --from -1d -o json",
        "tidelog latency flights --late",
        "tidelog latency flights --late --by day --zone America/New_York",
        "tidelog latency flights --late --delay 5m --delay 1h",
    ),
)
@with_options(LatencyOptions)
def latency(surroundings: Surroundings, options: LatencyOptions) -> None:
    """Show how late records arrived: append time minus create time.

    A range is extended to whole hours of UTC. A record with a negative latency was appended before
    its create time, for example because the producer's clock was ahead; CLOCK AHEAD is the largest
    such difference. If records appended within a short time have most of the latency, as after a
    bulk load of old records, the first line has the latency of the other records, and names this
    time; the table has a row without the load, and a row for the load. JSON and CSV have one row
    with all records.

    The latencies of finished segments come from their zone maps. Records are read where zone maps
    are not enough: in active segments, in segments without a zone map, and in segments whose zone
    map has longer spans than the range, --by or the hour of the worst latency needs. --show records
    also reads the hours with the largest latencies. --late and --delay read all records of the
    range. --wide shows how many records were not read.

    --late compares each record with the earlier records of its partition, so it counts the losses
    of a watermark per partition. One watermark for all partitions, such as Spark's withWatermark,
    may lose more records and need a longer delay. --late --by day counts the late records by the
    day of their append time, and the records that were created on another day.
    """
    from tidelog.scan.latency import latest_records, whole_hours
    from tidelog.scan.latency_loads import find_load, narrowed
    from tidelog.scan.latency_verdict import load_line

    is_late, show = options.late or bool(options.delays), _shown(options)
    _refuse_contradictions(options, show)
    topic, number = parse_target(options.target)
    start_ms, end_ms = times.read_bounds(
        surroundings, options.start, options.end, options.zone, during=options.during
    )
    with open_directory(surroundings, options.data) as directory:
        partitions = partitions_of(surroundings, directory, topic, number)
        bounds = start_ms, end_ms
        ranges = dict.fromkeys(partitions, Limits(start_ms=start_ms, end_ms=end_ms))
        if is_late:
            _print_late(surroundings, directory, partitions, options, bounds)
            note_missing(surroundings, directory, ranges, ClockName.APPEND, options.zone)
            return
        measured, by = _measured(directory, topic, partitions, options, bounds)
        records: list[LateRecord] = []
        if show is LatencyShow.RECORDS:
            records = latest_records(
                directory.log_dir,
                partitions,
                measured.by_hour,
                count=options.limit or RECORDS_SHOWN,
                start_ms=start_ms,
                end_ms=end_ms,
            )
        rows = spans(measured.by_hour)
        if by is not None:
            of_unit = (
                measured.by_unit,
                by,
                whole_hours(start_ms, end_ms),
                zone_of(options.zone) or UTC,
            )
            rows = rows_with_records(*of_unit)
            if options.limit is None:
                rows = unit_rows(*of_unit, LatencyHistogram())
        load = find_load(measured.by_hour)
        if load is not None:
            load = narrowed(load, directory.log_dir, partitions)
            verdict = load_line(topic, load, options.zone)
        else:
            verdict = _verdict(directory, topic, partitions, measured.by_hour, options.zone)
        _print_latency(surroundings, options, topic, verdict, measured, load, rows, by, records)
        note_missing(surroundings, directory, ranges, ClockName.APPEND, options.zone)


def _refuse_contradictions(options: LatencyOptions, show: LatencyShow) -> None:
    is_late = options.late or bool(options.delays)
    if is_late and options.show is not None:
        raise UsageProblem("--show does not apply with --late or --delay; leave it out")
    if options.delays and options.by is not None:
        raise UsageProblem("--delay does not apply with --by; leave one of them out")
    if options.by is not None and show is not LatencyShow.HOURS:
        raise UsageProblem(f"--by applies to --show hours; leave --show {show} out")
    if options.limit is not None and is_late and options.by is None:
        raise UsageProblem("--limit chooses the worst hours or days; add --by hour or --by day")
    if options.limit is not None and show is LatencyShow.TOPICS:
        raise UsageProblem(
            "--limit chooses the worst hours or records; add --show hours or --show records"
        )


def _verdict(
    directory: "Directory",
    topic: str,
    partitions: "list[TopicPartition]",
    by_hour: LatencyByHour,
    zone: str | None,
) -> str:
    """Return a sentence on the latency of all records."""
    from tidelog.scan.latency_loads import narrowed_span, slowest_span
    from tidelog.scan.latency_verdict import latency_verdict

    total, worst = by_hour.total(), slowest_span(by_hour)
    if worst is not None and total.count > 1:
        worst = narrowed_span(worst, total, directory.log_dir, partitions)
    return latency_verdict(topic, total, worst, zone)


def _measured(
    directory: "Directory",
    topic: str,
    partitions: "list[TopicPartition]",
    options: LatencyOptions,
    bounds: tuple[int | None, int | None],
) -> "tuple[TopicLatency, CalendarUnit | None]":
    """Return the topic's latencies, and the calendar unit of the rows of its table by time.

    The unit is None if each row is one of the spans in which the latencies are stored.
    """
    from tidelog.scan.latency import TopicLatency, by_unit, whole_hours
    from tidelog.scan.latency import latency as measure

    zone, by = zone_of(options.zone) or UTC, options.by
    is_hours = _shown(options) is LatencyShow.HOURS
    if by is None and options.limit is not None and is_hours:
        by = CalendarUnit.HOUR  # few rows need no larger unit than an hour

    def measured_by(unit: CalendarUnit | None) -> TopicLatency:
        by_topic = measure(
            directory.log_dir,
            partitions,
            start_ms=bounds[0],
            end_ms=bounds[1],
            zone_cache=options.zone_cache,
            unit=unit,
            zone=zone,
        )
        return by_topic.get(topic, TopicLatency())

    measured = measured_by(by)
    if by is None and is_hours and options.kind is Format.TABLE:
        by = unit_of(measured.by_hour, whole_hours(*bounds), zone, HOUR_ROWS)
        if by is not None:
            units = by_unit(measured.by_hour, by, zone)
            measured.by_unit = measured_by(by).by_unit if units is None else units
    return measured, by


def _shown(options: LatencyOptions) -> LatencyShow:
    if options.by is not None and options.show is None:
        return LatencyShow.HOURS
    return shown_table(options.show, LatencyShow, options.kind)


def _note_lost(surroundings: Surroundings, stats: "ScanStats") -> None:
    """Print each range of lost offsets, except ranges of segments deleted during the read."""
    from tidelog.storage.segment.gaps import GAP_REASON

    for one in stats.lost:
        if one.reason == GAP_REASON:
            surroundings.note(f"{one}; the result does not include the latencies of these records")


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
    output.titled(append_time=output.time("start")),
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


# A row of the table by time: start and end in ms, and the latencies, which are empty if the span
# between start and end has no records.
LatencyRow: TypeAlias = tuple[int, int, LatencyHistogram]


def spans(by_hour: LatencyByHour) -> list[LatencyRow]:
    """Return a row for each span with records; spans are hours or longer."""
    return [(start, start + by_hour.step_ms, one) for start, one in by_hour.items()]


def unit_of(
    by_hour: LatencyByHour,
    bounds: tuple[int | None, int | None],
    zone: tzinfo,
    limit: int,
) -> CalendarUnit | None:
    """Return the smallest unit in which the range has at most `limit` rows; see `unit_for`.

    Return None if `unit_for` finds no unit, or if there are no records.
    """
    if not by_hour:
        return None
    hours = [*by_hour]
    first_ms = hours[0] if bounds[0] is None else bounds[0]
    end_ms = hours[-1] + by_hour.step_ms if bounds[1] is None else bounds[1]
    return unit_for(first_ms, end_ms, limit, zone)


_Unit = TypeVar("_Unit")


def unit_rows(
    units: Mapping[int, _Unit],
    unit: CalendarUnit,
    bounds: tuple[int | None, int | None],
    zone: tzinfo,
    empty: _Unit,
) -> list[tuple[int, int, _Unit]]:
    """Return the rows of consecutive units, with `empty` for units without records.

    See `unit_ranges` for the start and the end of a row.
    """
    if not units and None in bounds:
        return []
    content = (min(units), max(units) + 1) if units else (0, 0)
    return [
        (start, end, units.get(unit_start(start, unit, zone), empty))
        for start, end in unit_ranges(bounds, content, unit, zone)
    ]


def rows_with_records(
    units: Mapping[int, _Unit],
    unit: CalendarUnit,
    bounds: tuple[int | None, int | None],
    zone: tzinfo,
) -> list[tuple[int, int, _Unit]]:
    """Return a row for each unit that has records; `unit_rows` also has rows of empty units.

    So a long range has only a few rows if it has records in only a few units.
    """
    starts = sorted(units)
    ensure_quarters(starts, unit, zone)
    first_ms, end_ms = bounds[0] or 0, INT64_MAX if bounds[1] is None else bounds[1]
    return [
        (max(start, first_ms), min(end, end_ms), units[start])
        for start, end in units_with(starts, unit, zone)
    ]


def worst(rows: Iterable[LatencyRow]) -> list[LatencyRow]:
    """Return the rows with records, in descending order of P99."""
    from tidelog.scan.latency_verdict import severity

    with_records = (row for row in rows if row[2].count)
    return sorted(with_records, key=lambda row: severity(row[2]), reverse=True)


def _hour_fields(topic: str, rows: Iterable[LatencyRow]) -> Iterator[list[Cell]]:
    """Yield the rows of `HOURS`, for scripts."""
    from tidelog.scan.latency_verdict import clock_ahead_ms

    for start, end, histogram in rows:
        hours = (end - start) / HOUR_MS
        is_empty = not histogram.count
        yield [
            topic,
            start,
            int(hours) if hours.is_integer() else hours,
            histogram.count,
            *(histogram.percentile(percent) for percent in PERCENTS),
            None if is_empty else histogram.max_ms,
            None if is_empty else histogram.min_ms,
            clock_ahead_ms(histogram),
            RELATIVE_ERROR,
        ]


def _print_hours(
    surroundings: Surroundings,
    options: LatencyOptions,
    topic: str,
    rows: list[LatencyRow],
    by: CalendarUnit | None,
) -> None:
    """Print the rows by time: all rows, or with `--limit` the first rows."""
    is_table, shown = options.kind is Format.TABLE, rows
    if options.limit is not None:
        rows = worst(rows)
        shown = rows[: options.limit]
    if is_table and not any(one.count for _, _, one in rows):
        return  # the verdict reports that no record was found
    columns, cells = HOURS, _hour_fields(topic, shown)
    if is_table:
        # Without a limit, the rows are consecutive units; a limit picks the worst units.
        unit = by if options.limit is None else None
        columns, cells = _TABLE_HOURS, _people_rows(shown, unit)
    output.print_rows(
        surroundings, columns, cells, options.kind, zone=options.zone, total=len(rows)
    )
    if is_table and options.by is None and by not in (None, CalendarUnit.HOUR):
        surroundings.note(f"the range is long: grouped by {by}; --by hour shows each hour")


def _print_latency(  # noqa: PLR0913 - all that is printed
    surroundings: Surroundings,
    options: LatencyOptions,
    topic: str,
    verdict: str,
    measured: "TopicLatency",
    load: "Load | None",
    rows: list[LatencyRow],
    by: CalendarUnit | None,
    records: "list[LateRecord]",
) -> None:
    from tidelog.scan.latency_verdict import parts_of, worst_line

    kind, show = options.kind, _shown(options)
    output.print_verdict(surroundings, verdict, kind)
    if options.by not in (None, CalendarUnit.HOUR):
        line = worst_line(topic, measured.by_unit, options.zone, options.by, load)
        if line:
            output.print_verdict(surroundings, line, kind)
    if show is LatencyShow.HOURS:
        _print_hours(surroundings, options, topic, rows, by)
    elif show is LatencyShow.RECORDS:
        cells: list[list[Cell]] = [
            [topic, at.partition, one.offset, one.create_ms, one.append_ms, one.latency_ms]
            for at, one in ((one.partition, one) for one in records)
        ]
        output.print_rows(
            surroundings, _RECORDS, cells, kind, zone=options.zone, total=measured.total.count
        )
    else:
        is_exact, total = kind is not Format.TABLE, measured.total
        parts = [(topic, total)] if is_exact else parts_of(topic, total, load)
        columns, rows_of_topics = topic_table(parts, is_exact=is_exact)
        output.print_rows(surroundings, columns, rows_of_topics, kind)
    if measured.without:
        number, lack = plural(measured.without, "record"), verb(measured.without, "lacks", "lack")
        surroundings.note(f"{topic}: {number} {lack} one of the two times")
    _note_lost(surroundings, measured.stats)
    if surroundings.is_wide:
        counted = measured.from_zone_maps
        every = plural(counted + measured.stats.rows, "record")
        surroundings.note(
            f"{counted:,} of {every} {verb(counted, 'was', 'were')} counted from zone maps;"
            f" percentiles have an error of at most {RELATIVE_ERROR:.1%}, and tables round them to"
            " this error; all other numbers are exact"
        )
    elif measured.total.count and kind is Format.TABLE and show is not LatencyShow.RECORDS:
        surroundings.note(PRECISION_NOTE)


def topic_table(
    totals: Iterable[tuple[str, LatencyHistogram]], *, is_exact: bool = False
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return the columns and rows of a table of latencies; a total without records has no row.

    Args:
        totals: First cell and latencies of each row: a topic, or a part of it (see `parts_of`).
        is_exact: Whether percentiles are left as they are; otherwise they are rounded for printing.
    """
    from tidelog.scan.latency_verdict import clock_ahead_ms, shown_percentiles

    rows: list[list[Cell]] = [
        [
            name,
            one.count,
            *(one.percentiles(PERCENTS) if is_exact else shown_percentiles(one, PERCENTS)),
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
    latencies: Iterable[tuple[tuple[str, ...], LatencyByHour]], zone: str | None, *names: str
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return columns and rows of latency by time for a printed table.

    A group has about `HOUR_ROWS` rows at most. A row is usually one hour, day, week or month. There
    are two exceptions: a span of the latencies overlaps two of these units, or the group would have
    too many months. In both cases a row is several consecutive spans, which do not follow the
    calendar.

    Args:
        latencies: A pair for each group of rows: the first cells of each row of the group, and the
            group's latencies.
        zone: Name of the time zone of the units.
        names: Names of the columns that contain these first cells.
    """
    from tidelog.scan.latency import by_unit

    every, in_zone = list(latencies), zone_of(zone) or UTC
    limit = max(HOUR_ROWS // max(len(every), 1), 2)
    cells: list[list[Cell]] = []
    for first, by_hour in every:
        unit = unit_of(by_hour, (None, None), in_zone, limit)
        units = None if unit is None else by_unit(by_hour, unit, in_zone)
        if unit is None or units is None:
            cells += _people_rows(spans(by_hour.joined(limit)), None, first)
        else:
            of_unit = unit_rows(units, unit, (None, None), in_zone, LatencyHistogram())
            cells += _people_rows(of_unit, unit, first)
    return output.columns(*names, _TABLE_HOURS), cells


def _people_rows(
    rows: list[LatencyRow], unit: CalendarUnit | None, first: Sequence[Cell] = ()
) -> Iterator[list[Cell]]:
    """Yield the rows of `_TABLE_HOURS`; one row replaces many consecutive units without records."""
    from tidelog.scan.latency_verdict import clock_ahead_ms, shown_percentiles

    parts: Iterable[LatencyRow | str] = rows
    if unit is not None:
        parts = collapsed(rows, unit, lambda row: not row[2].count)
    for part in parts:
        start, end, one = (part, None, LatencyHistogram()) if isinstance(part, str) else part
        yield [
            *first,
            start,
            None if end is None else end - int(start),
            one.count,
            *shown_percentiles(one, PERCENTS),
            one.max_ms if one.count else None,
            clock_ahead_ms(one),
        ]


def _print_late(
    surroundings: Surroundings,
    directory: "Directory",
    partitions: "list[TopicPartition]",
    options: LatencyOptions,
    bounds: tuple[int | None, int | None],
) -> None:
    from tidelog.scan.latency import TopicLateness, lateness
    from tidelog.scan.latency_verdict import lateness_lines, lateness_verdict, watermark_line
    from tidelog.scan.split import RequestedRange
    from tidelog.storage.clocks.latency import DELAYS_MS

    delays = [parse_duration(text) // 1_000_000 for text in options.delays] or list(DELAYS_MS)
    append_times = RequestedRange(start_ms=bounds[0], end_ms=bounds[1]).times
    by_topic = lateness(
        directory.log_dir,
        partitions,
        delays_ms=delays,
        append_range=append_times and (max(append_times[0], 0), append_times[1]),
        unit=options.by,
        zone=zone_of(options.zone) or UTC,
    )
    topic = partitions[0].topic if partitions else ""
    late = by_topic.get(topic, TopicLateness())
    output.print_verdict(surroundings, lateness_verdict(topic, late), options.kind)
    if options.by is not None:
        for line in lateness_lines(topic, late, options.zone, options.by):
            output.print_verdict(surroundings, line, options.kind)
        _print_late_units(surroundings, options, topic, late, bounds)
    elif options.kind is Format.TABLE:
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
    if options.by is not None and (without := late.records - late.timed):
        records, have = plural(without, "record"), verb(without, "has", "have")
        surroundings.say(f"{topic}: {records} {have} no append time and are in no {options.by}")
    if late.without_time:
        records, have = plural(late.without_time, "record"), verb(late.without_time, "has", "have")
        surroundings.say(f"{topic}: {records} {have} no create time")
    _note_lost(surroundings, late.stats)


def _print_late_units(
    surroundings: Surroundings,
    options: LatencyOptions,
    topic: str,
    late: "TopicLateness",
    bounds: tuple[int | None, int | None],
) -> None:
    """Print the late records by time: all rows, or with `--limit` those with most late records."""
    from tidelog.scan.latency import UnitLateness

    unit, zone = options.by, zone_of(options.zone) or UTC
    assert unit is not None
    if options.limit is not None:
        rows = rows_with_records(late.by_unit, unit, bounds, zone)
        rows.sort(key=lambda row: (-row[2].out_of_order, -row[2].late_ms_max))
    else:
        rows = unit_rows(late.by_unit, unit, bounds, zone, UnitLateness())
    is_table, total = options.kind is Format.TABLE, len(rows)
    if is_table and not late.timed:
        return  # the verdict reports that no record was found
    few = collapsed(rows, unit, lambda row: not row[2].records)
    is_whole = is_table and options.limit is None
    parts: Iterable[tuple[int, int, UnitLateness] | str] = (
        few if is_whole else rows[: options.limit]
    )
    empty, cells = UnitLateness(), []
    for part in parts:
        start, end, one = (part, None, empty) if isinstance(part, str) else part
        late_ms = one.late_ms_max if one.out_of_order else None
        cells.append(
            [topic, start, end, one.records, one.out_of_order, late_ms, one.created_outside]
        )
    on_other = "on_another_day" if unit is CalendarUnit.DAY else f"in_another_{unit}"
    columns = output.columns(
        output.detail("topic"),
        output.titled(append_time=output.time("start")),
        output.detail(output.time("end")),
        output.count("records", "out_of_order"),
        output.titled(late_by_up_to=output.duration("late_ms_max")),
        output.titled(**{f"created_{on_other}": output.count("created_outside")}),
    )
    output.print_rows(surroundings, columns, cells, options.kind, zone=options.zone, total=total)


def delay_table(
    topics: "Mapping[str, TopicLateness]",
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return a table for printing: how many records each watermark delay loses.

    Each partition has its own watermark. Delays that lose the same number of records share a row.
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
