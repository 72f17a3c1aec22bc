"""`tidelog spark reindex`: verifies or rebuilds indexes and zone maps of whole directories."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli import output
from tidelog.cli.doctor import Verdict
from tidelog.cli.jobs.latency import as_cells, read_targets
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
    needs_spark,
    open_session,
    read_place,
    report_table,
    save_report,
)
from tidelog.cli.options import (
    Format,
    ReindexShow,
    SparkAccess,
    argument,
    examples,
    format_option,
    given,
    one_of,
    pairs,
    report_option,
    spark_options,
    store_option,
    targets_argument,
    with_job_options,
)
from tidelog.cli.output import Cell, Column
from tidelog.cli.surroundings import Surroundings
from tidelog.jobs.reindex.options import ReindexOptions
from tidelog.report import Items, Report, Section, Text

if TYPE_CHECKING:
    from tidelog.jobs.reindex.job import ReindexResult

FINDINGS: Final = (
    *map(output.text, ("severity", "state", "file")),
    *map(output.number, ("position", "offset")),
    *map(output.text, ("damage", "remedy")),
)
PARTITIONS: Final = (
    output.text("topic"),
    *map(output.number, ("partition", "segments", "log_bytes", "errors", "warnings", "repaired")),
    *map(output.number, ("maps_there", "maps_built")),
    output.text("problems"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark reindex`."""

    source: str = argument(metavar="DIRECTORY")
    targets: tuple[str, ...] = given(targets_argument)
    show: ReindexShow = given(
        one_of(
            "--show",
            kind=ReindexShow,
            default=ReindexShow.FINDINGS,
            text="findings: what is or was wrong; partitions: what was done.",
        )
    )
    report: str | None = given(report_option)
    store: tuple[str, ...] = given(store_option)
    spark: SparkAccess = given(spark_options)
    kind: Format = given(format_option)


@click.command(
    "reindex",
    epilog=examples(
        "tidelog spark reindex data --verify",
        "tidelog spark reindex data flights",
        "tidelog spark reindex /var/lib/kafka --zone-cache /var/cache/zones --report maps.html",
    ),
)
@with_job_options(Request, ReindexOptions, order="source targets mode zone_cache")
def reindex(surroundings: Surroundings, request: Request, options: ReindexOptions) -> Verdict:
    """Build the indexes and zone maps of a directory anew where they are missing or wrong.

    Exit codes as of `tidelog doctor`: 0 sound, 1 something is wrong, 2 something could not be
    looked at. Our own directories are mended under their lock. A directory of Apache Kafka or in an
    object store is never written to: with --zone-cache its maps go into a folder elsewhere.
    """
    needs_spark()
    from tidelog.jobs.reindex.job import check_wishes, run

    place = read_place(surroundings, request.source, store=request.store)
    targets = read_targets(request.targets)
    pairs(request.spark.conf, "--conf")
    check_before(surroundings, [Use(place, tuple(targets or ()))], request.report)
    check_wishes(place, targets, options["mode"], options["zone_cache"])
    options["listener"] = progress = JobProgress(surroundings, "working", unit="tasks")
    with (
        open_session(surroundings, request.spark, name="reindex") as spark,
        progress.shown(spark),
    ):
        found = run(spark, place, targets, **options)
    columns, rows = table(found, request.show)
    if rows or request.kind is not Format.TABLE:
        output.print_rows(surroundings, columns, rows, request.kind)
    for line in [*found.problems, in_short(str(place), found)]:
        surroundings.say(line)
    if request.report is not None:
        save_report(surroundings, request.report, page(str(place), found))
    return Verdict[found.outcome.name]


def table(found: "ReindexResult", show: ReindexShow) -> tuple[tuple[Column, ...], list[list[Cell]]]:
    """Return the columns and rows of a table."""
    from tidelog.jobs.reindex.job import finding_rows, partition_rows

    if show is ReindexShow.FINDINGS:
        return FINDINGS, as_cells(map(list, finding_rows(found)))
    return PARTITIONS, as_cells(map(list, partition_rows(found)))


def in_short(place: str, found: "ReindexResult") -> str:
    """Return a line about the work done and the remaining findings."""
    from tidelog.jobs.reindex.job import partition_rows

    counts: Counter[str] = Counter()
    for row in partition_rows(found):
        for column, cell in zip(PARTITIONS, row, strict=True):
            if isinstance(cell, int) and column.name != "partition":
                counts[column.name] += cell
    errors = counts["errors"] + sum(finding.counts for finding in found.top)
    return (
        f"{place}: {found.outcome.value}; {len(found.done)} partitions, {counts['segments']:,}"
        f" segments, {counts['log_bytes'] / 1e9:.2f} GB; {errors + counts['warnings']} findings"
        f" left, {counts['repaired']} files repaired, zone maps: {counts['maps_built']} built,"
        f" {counts['maps_there']} there before"
    )


def page(place: str, found: "ReindexResult") -> Report:
    """Return the report."""
    sections: list[Section] = [
        Text(in_short(place, found)),
        *([Items(found.problems, "Problems")] if found.problems else []),
    ]
    for show in ReindexShow:
        columns, rows = table(found, show)
        sections.append(report_table(columns, rows, title=show.value.capitalize()))
    return Report(f"Indexes and zone maps of {place}", sections)
