"""`tidelog spark lag`: shows the lag of all consumer groups, by partition and by hour."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli import output
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
    needs_spark,
    open_session,
    origin,
    read_place,
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
    option,
    report_option,
    show_option,
    shown_table,
    spark_options,
    store_option,
    with_job_options,
    zone_option,
)
from tidelog.cli.output import Cell, Columns, Row
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.jobs.lag.options import LagOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Items, Report, Section, Text, plot_by_hour
from tidelog.spark.places import Place
from tidelog.types import HOUR_MS, ClockName

if TYPE_CHECKING:
    from tidelog.jobs.lag.job import GroupLag

PARTITIONS: Final = output.columns(
    "group",
    "topic",
    output.number("partition"),
    output.minor(output.number("committed", "log_start", "end")),
    output.count("offset_lag"),
    output.minor(output.count("offsets_lost")),
    output.count("records_left"),
    output.minor("records_left_is_exact", output.number("unread_offset")),
    output.time("unread"),
    output.duration("behind_ms"),
    output.minor("clock", "member"),
    "state",
)
GROUPS: Final = output.columns(
    "group",
    output.count("partitions", "partitions_behind", "records_left"),
    output.detail("records_left_is_exact"),
    output.titled(worst=output.columns("worst_partition")),
    output.duration("behind_ms"),
    "state",
)
HOURS: Final = output.columns(
    "group", "topic", "clock", output.time("hour"), output.count("records")
)
# Maximum number of groups with plots. The groups with the most unread records have plots.
_PLOTTED: Final = 8


class LagShow(StrEnum):
    """Table of a lag report to print."""

    GROUPS = "groups"
    PARTITIONS = "partitions"
    HOURS = "hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark lag`."""

    source: str = argument(metavar="PLACE")
    groups: tuple[str, ...] = option(
        "--group", "-g", multiple=True, metavar="GROUP", help="A group; repeatable. Default: all."
    )
    topics: tuple[str, ...] = option(
        "--topic", "-t", multiple=True, metavar="T", help="A topic; repeatable. Default: all."
    )
    show: LagShow | None = declared_by(
        show_option(
            LagShow,
            "groups: one line per group; partitions: each partition of a group; hours: unread"
            " records by hour, on both clocks.",
        )
    )
    max_lag: int | None = option(
        "--max-lag",
        type=click.IntRange(min=0),
        metavar="N",
        help="Exit with code 2 if a group has more than N unread records in a partition."
        " Default: off.",
    )
    max_seconds: float | None = option(
        "--max-seconds",
        type=click.FloatRange(min=0),
        metavar="S",
        help="Exit with code 2 if a group is more than S seconds behind in a partition."
        " Default: off.",
    )
    report: str | None = declared_by(report_option)
    command_config: str | None = declared_by(command_config_option)
    store: dict[str, str] = declared_by(store_option)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "lag",
    epilog=examples(
        "tidelog spark lag kafka://broker:9092",
        "tidelog spark lag kafka://broker:9092 --data /var/lib/kafka --report lag.html",
        "tidelog spark lag kafka://broker:9092 --group loader --show hours -o json",
        "tidelog spark lag standby --topic flights --max-lag 100000",
        "tidelog spark lag /var/lib/kafka --report lag.html",
    ),
)
@with_job_options(
    Request, LagOptions, order="source groups topics data show max_lag max_seconds isolation"
)
def lag(surroundings: Surroundings, request: Request, options: LagOptions) -> ExitCode:
    """Show the lag of all consumer groups, by partition or hour.

    PLACE is kafka://HOST:PORT, or a directory with committed offsets: the directory of a broker
    (tidelog's or Apache Kafka's, running or not) or of a standby. Each unread record is read once
    for all groups, from the directory of --data if given, else from the brokers.
    """
    needs_spark()
    from tidelog.jobs.lag.job import measure
    from tidelog.jobs.lag.work import check_groups

    place = read_place(
        surroundings, request.source, command_config=request.command_config, store=request.store
    )
    beside = [] if options["data"] is None else [Use(Place(options["data"]))]
    check_before(surroundings, [Use(place, request.topics), *beside], request.report)
    check_groups(place, request.groups or None, request.topics or None, options["data"])
    options["listener"] = progress = JobProgress(surroundings, "counting", unit="tasks")
    with open_session(
        surroundings, request.spark, progress, name="lag", zone=request.zone
    ) as spark:
        groups, topics = list(request.groups), list(request.topics)
        report = measure(spark, place, groups or None, topics or None, **options)
    output.print_verdict(surroundings, groups_verdict(report, request.zone), request.kind)
    columns, rows = table(report, shown_table(request.show, LagShow, request.kind))
    if report or request.kind is not Format.TABLE:
        output.print_rows(surroundings, columns, rows, request.kind, zone=request.zone)
    broken = limits(report, request)
    for line in broken:
        surroundings.say(line)
    if request.report is not None:
        places = {"Place": str(place)}
        if options["data"] is not None:
            places["Data"] = str(options["data"])
        provenance = origin(surroundings, places, zone=request.zone)
        written = page(str(place), report, broken, _limit_words(request), request.zone)
        save_report(surroundings, request.report, written, provenance)
    return ExitCode.FINDINGS if broken else ExitCode.OK


def table(groups: "Sequence[GroupLag]", show: LagShow) -> tuple[Columns, Iterable[Row]]:
    """Return the columns and rows of the table `show`."""
    from tidelog.jobs.lag.job import hour_rows, partition_rows

    if show is LagShow.GROUPS:
        return GROUPS, _group_rows(groups)
    if show is LagShow.HOURS:
        # The hour as text is left out, because the column formats the hour in ms as a time.
        return HOURS, [[*row[:3], *row[4:]] for row in hour_rows(groups)]
    return PARTITIONS, partition_rows(groups, as_time=int)


def groups_verdict(groups: "Sequence[GroupLag]", zone: str | None) -> str:
    """Return a sentence: how many groups are behind, and the lag of the group furthest behind.

    Times in the sentence are in `zone`; None means UTC.
    """
    from tidelog.remote.lag_verdict import lags_verdict

    return lags_verdict({group.group: group.partitions for group in groups}, zone)


def _group_rows(groups: "Sequence[GroupLag]") -> list[list[Cell]]:
    from tidelog.remote.lag_verdict import lag_sum

    sums = [(group.group, lag_sum(group.partitions)) for group in groups]
    return [
        [
            name,
            one.partitions,
            len(one.behind),
            one.records,
            one.is_exact,
            one.worst_partition,
            one.behind_ms,
            one.state,
        ]
        for name, one in sums
    ]


def limits(groups: "Sequence[GroupLag]", request: Request) -> list[str]:
    """Return a line for each limit that a partition exceeds."""
    from tidelog.remote.group_lag import over_limits

    max_ms = None if request.max_seconds is None else int(request.max_seconds * 1000)
    return [
        f"{group.group}: {line}"
        for group in groups
        for line in over_limits(group.partitions, max_lag=request.max_lag, max_ms=max_ms)
    ]


def _limit_words(request: Request) -> str:
    """Return the limits of a request as options of the command; empty without limits."""
    given = {"--max-lag": request.max_lag, "--max-seconds": request.max_seconds}
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


def page(
    place: str,
    groups: "Sequence[GroupLag]",
    broken: Sequence[str],
    limit: str,
    zone: str | None,
) -> Report:
    """Return the report; `limit` is a text that lists the command's limits, or empty."""
    sections: list[Section] = [
        Text(
            "Records that consumer groups have not read yet, by the hour in which they were"
            " appended, and by the hour of their timestamp."
        ),
        Items([_in_short(group, zone) for group in groups], "In short"),
    ]
    if limit:
        kept = ["No partition exceeds them."]
        sections.append(Items(broken or kept, f"Exceeded limits: {limit}"))
    for group in sorted(groups, key=lambda one: -_unread(one))[:_PLOTTED]:
        sections += _group_sections(group, zone)
    for show in LagShow:
        columns, rows = table(groups, show)
        sections.append(
            report_table(
                columns,
                list(rows),
                title=show.value.capitalize(),
                zone=zone,
                whole=f"--show {show} -o csv",
                nothing="No unread records.",
            )
        )
    return Report(f"Lag of groups at {place}", sections, f"{groups_verdict(groups, zone)}.")


def _unread(group: "GroupLag") -> int:
    from tidelog.remote.lag_verdict import lag_sum

    return lag_sum(group.partitions).records


def _in_short(group: "GroupLag", zone: str | None) -> str:
    from tidelog.remote.lag_verdict import lag_verdict

    return lag_verdict(group.group, group.partitions, zone)


def _group_sections(group: "GroupLag", zone: str | None) -> list[Section]:
    title = f"{group.group}: unread records by {{step}}"
    if not _unread(group):
        return [Text("Nothing is unread.", f"{group.group}: unread records")]
    panels = {name: series for name, series in _panels(group).items() if any(series.values())}
    sections: list[Section] = [plot_by_hour(panels, "records", title=title, zone=zone)]
    if "append time" not in panels:
        sections.append(
            Text(
                "Append times are unknown from brokers; give the cluster's own directory by --data."
            )
        )
    return sections


def _panels(group: "GroupLag") -> dict[str, dict[str, dict[int, float]]]:
    """Return the number of unread records by panel, series and hour.

    Each of the three topics with the most unread records has its own series. All other topics share
    one series.
    """
    totals: dict[str, int] = defaultdict(int)
    for (topic, _, _), number in group.hours.items():
        totals[topic] += number
    first = sorted(totals, key=lambda topic: -totals[topic])[:3]
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for clock in (ClockName.APPEND, ClockName.RECORD):
        names = [*first, "others"] if len(totals) > len(first) else first
        series: dict[str, dict[int, float]] = {name: {} for name in names}
        for (topic, of, hour_ms), number in group.hours.items():
            if of == clock and hour_ms is not None:
                values = series[topic if topic in series else "others"]
                values[hour_ms // HOUR_MS] = values.get(hour_ms // HOUR_MS, 0.0) + number
        panels[clock.time_name] = series
    return panels
