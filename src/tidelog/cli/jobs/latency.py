"""`tidelog spark latency`: shows ingestion latency, and the records that watermarks would lose."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import bytes_text, plural, rate_text, verb
from tidelog.cli import output, times
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
    needs_spark,
    open_session,
    origin,
    read_place,
    read_targets,
    report_table,
    save_report,
)
from tidelog.cli.options import (
    Format,
    SparkAccess,
    argument,
    command_config_option,
    declared_by,
    examples,
    format_option,
    report_option,
    show_option,
    shown_table,
    spark_options,
    store_option,
    targets_argument,
    with_job_options,
    zone_option,
)
from tidelog.cli.output import Columns, Row
from tidelog.cli.surroundings import Surroundings
from tidelog.jobs.latency.options import LatencyOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Items, Report, Section, Text, panel_steps, plot_by_hour, plot_by_step
from tidelog.plots import Numbers, Plot, Series, Steps, Unit
from tidelog.storage.clocks.latency import (
    LatencyByHour,
    LatencyHistogram,
)
from tidelog.types import HOUR_MS

if TYPE_CHECKING:
    from tidelog.jobs.latency.tables import LatencyResult, TopicTimes

# Columns of JSON and CSV, with the headings of printed tables.
_AHEAD: Final = output.titled(clock_ahead=output.duration("skew_ms_max"))
_LATE: Final = output.titled(late_by_up_to=output.duration("late_ms_max"))
HOURS: Final = output.columns(
    "topic",
    "clock",
    output.time("hour"),
    output.minor(output.count("hours")),
    output.count("records"),
    output.duration("p50_ms", "p90_ms", "p99_ms"),
    output.titled(**{"p99.9": output.duration("p999_ms")}),
    output.duration("max_ms"),
    output.detail(output.duration("min_ms")),
    _AHEAD,
    output.detail(output.share("percentile_error")),
)
WATERMARKS: Final = output.columns(
    "topic",
    output.titled(watermark_delay=output.duration("delay_ms")),
    output.titled(records_lost=output.count("lost")),
    output.count("records"),
    output.share("lost_share"),
)
TOPICS: Final = output.columns(
    "topic",
    output.count("records"),
    output.minor(output.count("without_create_time", "without_both_times")),
    output.count("out_of_order"),
    _LATE,
    _AHEAD,
)
# Maximum number of topics with plots. The topics with the most records have plots.
_PLOTTED: Final = 6


class LatencyShow(StrEnum):
    """Table of latencies to print."""

    TOPICS = "topics"
    HOURS = "hours"
    WATERMARKS = "watermarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark latency`."""

    source: str = argument(metavar="PLACE")
    targets: tuple[str, ...] = declared_by(targets_argument)
    show: LatencyShow | None = declared_by(
        show_option(
            LatencyShow,
            "topics: one line per topic; hours: by hour, on both clocks; watermarks: the records"
            " that each delay would lose, with a watermark per partition.",
        )
    )
    report: str | None = declared_by(report_option)
    during: str | None = declared_by(times.during_option)
    command_config: str | None = declared_by(command_config_option)
    store: dict[str, str] = declared_by(store_option)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "latency",
    epilog=examples(
        "tidelog spark latency data",
        "tidelog spark latency s3://logs/east flights --from -7d --report latency.html",
        "tidelog spark latency data flights --show watermarks --delay 5m --delay 1h -o json",
    ),
)
@with_job_options(Request, LatencyOptions, order="source targets start end during delays_ms")
def latency(surroundings: Surroundings, request: Request, options: LatencyOptions) -> None:
    """Show latency by topic and hour, and records lost by watermarks.

    Latency is append time minus create time. A record with a negative latency was appended before
    its create time, for example because the producer's clock was ahead; CLOCK AHEAD is the largest
    such difference. A range is extended to whole hours. --show hours lists each latency twice:
    under the hour of its append time, and under the hour of its create time. PLACE is a directory,
    an object store's URL, or kafka://HOST:PORT; in a cluster of Kafka, only topics with
    LogAppendTime have append times.
    """
    needs_spark()
    from tidelog.jobs.latency.job import measure

    place = read_place(
        surroundings, request.source, command_config=request.command_config, store=request.store
    )
    times.fix_range(surroundings, options, request.zone, during=request.during)
    topics = read_targets(request.targets)
    check_before(surroundings, [Use(place, tuple(topics or ()))], request.report)
    options["listener"] = progress = JobProgress(surroundings, "reading", unit="tasks")
    zone = request.zone
    with open_session(surroundings, request.spark, progress, name="latency", zone=zone) as spark:
        began_ms = surroundings.env.clock.monotonic_ms()
        result = measure(spark, place, topics, **options)
        seconds = (surroundings.env.clock.monotonic_ms() - began_ms) / 1000
    _show(surroundings, request, result)
    surroundings.say(took(result, seconds))
    if request.report is not None:
        start, end = options["start"], options["end"]
        provenance = origin(surroundings, {"Place": f"{place}"}, start=start, end=end, zone=zone)
        save_report(surroundings, request.report, page(f"{place}", result, zone), provenance)


def _show(surroundings: Surroundings, request: Request, result: "LatencyResult") -> None:
    """Print the verdict, lines on bulk loads, a table, and notes."""
    from tidelog.cli.latency import PRECISION_NOTE
    from tidelog.jobs.latency.tables import latencies_verdict

    kind, show = request.kind, shown_table(request.show, LatencyShow, request.kind)
    verdict = latencies_verdict(result, request.zone)
    output.print_verdict(surroundings, verdict, kind)
    for name, topic in result.topics.items():
        for line in _load_lines(name, topic, request.zone):
            if line != verdict:
                output.print_verdict(surroundings, line, kind)
    is_table = kind is Format.TABLE
    columns, rows = people_table(result, show, request.zone) if is_table else table(result, show)
    output.print_rows(surroundings, columns, rows, kind, zone=request.zone)
    for line in notes(result):
        surroundings.say(line)
    has_latencies = any(topic.by_append for topic in result.topics.values())
    if is_table and has_latencies and show is not LatencyShow.WATERMARKS:
        surroundings.note(PRECISION_NOTE)


def people_table(
    result: "LatencyResult", show: LatencyShow, zone: str | None
) -> tuple[Columns, Iterable[Row]]:
    """Return the columns and rows of the table `show` for printing: a short table."""
    from tidelog.cli.latency import delay_table, hour_table, topic_table
    from tidelog.scan.latency_loads import find_load
    from tidelog.scan.latency_verdict import parts_of

    if show is LatencyShow.HOURS:
        every = [
            ((name, clock), by_hour)
            for name, topic in result.topics.items()
            for clock, by_hour in (("append", topic.by_append), ("record", topic.by_create))
        ]
        return hour_table(every, zone, "topic", "clock")
    if show is LatencyShow.WATERMARKS:
        return delay_table({name: topic.late for name, topic in result.topics.items()})
    rows: list[Row] = []
    columns, _ = topic_table(())
    for name, topic in result.topics.items():
        total = topic.by_append.total()
        _, own = topic_table(parts_of(name, total, find_load(topic.by_append)))
        # The lateness is known only for a whole topic.
        late = (topic.late.out_of_order, topic.late.late_ms_max) if len(own) == 1 else (None, None)
        rows += [[*row, *late] for row in own]
    return output.columns(columns, output.count("out_of_order"), _LATE), rows


def table(
    result: "LatencyResult", show: LatencyShow, *, is_exact: bool = True
) -> tuple[Columns, Iterable[Row]]:
    """Return the columns and rows of the table `show` for JSON and CSV.

    Without `is_exact`, percentiles are rounded as in printed tables.
    """
    from tidelog.jobs.latency.tables import hour_rows, topic_rows, watermark_rows

    if show is LatencyShow.HOURS:
        # The hour as text is left out, because the column formats the hour in ms as a time.
        rows = [[*row[:2], *row[3:]] for row in hour_rows(result.topics, is_exact=is_exact)]
        return HOURS, rows
    if show is LatencyShow.WATERMARKS:
        return WATERMARKS, watermark_rows(result.topics)
    return TOPICS, topic_rows(result.topics)


def lines(result: "LatencyResult", zone: str | None) -> list[str]:
    """Return lines about each topic, and notes."""
    from tidelog.jobs.latency.tables import topic_verdict

    texts = [topic_verdict(name, topic, zone) for name, topic in result.topics.items()]
    return texts + notes(result)


def _load_lines(name: str, topic: "TopicTimes", zone: str | None) -> Iterator[str]:
    from tidelog.scan.latency_loads import find_load
    from tidelog.scan.latency_verdict import load_line

    load = find_load(topic.by_append)
    if load is not None:
        yield load_line(name, load, zone)


def notes(result: "LatencyResult") -> list[str]:
    """Return lines about late records and unknown times, and the job's notes."""
    texts = [line for name, topic in result.topics.items() for line in _topic_lines(name, topic)]
    return texts + [f"note: {line}" for line in result.notes]


def _topic_lines(name: str, topic: "TopicTimes") -> Iterator[str]:
    from tidelog.scan.latency_verdict import lateness_verdict, watermark_line

    if topic.without:
        lack = verb(topic.without, "lacks", "lack")
        yield f"{name}: {plural(topic.without, 'record')} {lack} one of the two times"
    yield lateness_verdict(name, topic.late)
    if topic.late.out_of_order:
        yield watermark_line(name, topic.late)


def took(result: "LatencyResult", seconds: float) -> str:
    """Return a line about the amount of data that the job read, and the duration of the job."""
    records = sum(topic.records for topic in result.topics.values())
    size = f", {bytes_text(result.log_bytes)}," if result.log_bytes else ""
    return (
        f"read {plural(records, 'record')}{size} in {seconds:.1f} s: {rate_text(records, seconds)}"
    )


def page(place: str, result: "LatencyResult", zone: str | None) -> Report:
    """Return the report."""
    from tidelog.cli.latency import PRECISION_NOTE
    from tidelog.jobs.latency.tables import latencies_verdict

    sections: list[Section] = [
        Text(
            "Latency is append time minus create time. It is shown by the hour of the append time"
            " and by the hour of the create time. A record with a negative latency was appended"
            f" before its create time. {PRECISION_NOTE.capitalize()}."
        ),
        Items(lines(result, zone), "In short"),
    ]
    most = sorted(result.topics.items(), key=lambda item: -item[1].records)[:_PLOTTED]
    for name, topic in most:
        sections += _plots(name, topic, zone)
    for show in (LatencyShow.TOPICS, LatencyShow.WATERMARKS, LatencyShow.HOURS):
        columns, rows = table(result, show, is_exact=False)
        sections.append(
            report_table(
                columns,
                rows,
                title=show.value.capitalize(),
                zone=zone,
                whole=f"--show {show} -o csv",
            )
        )
    return Report(f"Latency in {place}", sections, f"{latencies_verdict(result, zone)}.")


def _plots(name: str, topic: "TopicTimes", zone: str | None) -> list[Section]:
    clocks = {"append time": topic.by_append, "create time": topic.by_create}
    axes = {
        clock: panel_steps(clock, [ms // HOUR_MS for ms in hours], zone)
        for clock, hours in clocks.items()
    }
    counts = {
        clock: {"records": {ms // HOUR_MS: float(each.count) for ms, each in hours.items()}}
        for clock, hours in clocks.items()
    }
    return [
        plot_by_step(
            {clock: _percentiles(hours, axes[clock]) for clock, hours in clocks.items()},
            axes,
            "latency",
            title=f"{name}: latency by {{step}}",
            unit=Unit.MS,
            is_stacked=False,
        ),
        plot_by_hour(counts, "records", title=f"{name}: records by {{step}}", zone=zone),
        *_lost(name, topic),
    ]


def _lost(name: str, topic: "TopicTimes") -> list[Section]:
    """Return a plot of how many records each watermark drops; a sentence if none is dropped."""
    late = topic.late
    title = f"{name}: records that a watermark per partition drops, by its delay"
    if not late.records or not any(late.lost.values()):
        return [Text("No delay drops a record.", title)]
    shares = {delay: 100 * number / late.records for delay, number in sorted(late.lost.items())}
    axis = Numbers(
        title="delay of the watermark (logarithmic scale)",
        name=Unit.MS.text,
        unit=Unit.MS,
        has_gaps=False,
    )
    curve = Plot(
        panels={"": [Series("dropped", shares)]},
        y_title="share of records dropped",
        axis=axis,
        unit=Unit.PERCENT,
        is_stacked=False,
        title=title,
    )
    return [curve]


def _percentiles(hours: LatencyByHour, steps: Steps) -> list[Series]:
    """Return a series for each percentile, with one value for each step.

    A value is computed from all latencies in the step, and rounded as in printed tables.
    """
    from tidelog.scan.latency_verdict import shown_percentiles

    by_step: dict[int, LatencyHistogram] = {}
    for ms, histogram in hours.items():
        by_step.setdefault(steps.start(ms), LatencyHistogram()).merge(histogram)
    return [
        Series(
            f"p{percent}",
            {
                at: float(value)
                for at, each in by_step.items()
                if (value := shown_percentiles(each, (percent,))[0]) is not None
            },
        )
        for percent in (50, 99)
    ]
