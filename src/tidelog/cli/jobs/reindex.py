"""`tidelog spark reindex`: verifies or rebuilds indexes and zone maps of large directories."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import bytes_text, plural
from tidelog.cli import output
from tidelog.cli.doctor import COLUMNS, Verdict
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
    declared_by,
    examples,
    format_option,
    one_of,
    report_option,
    spark_options,
    store_option,
    targets_argument,
    with_job_options,
)
from tidelog.cli.output import Columns, Row
from tidelog.cli.surroundings import Surroundings
from tidelog.jobs.reindex.options import ReindexOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Items, Report, Section

if TYPE_CHECKING:
    from tidelog.jobs.reindex.job import ReindexResult

PARTITIONS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.count("segments"),
    output.size("log_bytes"),
    output.count("errors", "warnings", "repaired"),
    output.minor(output.count("maps_there", "maps_built")),
    "problems",
)


class ReindexShow(StrEnum):
    """Table that `reindex` prints."""

    FINDINGS = "findings"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark reindex`."""

    source: str = argument(metavar="DIRECTORY")
    targets: tuple[str, ...] = declared_by(targets_argument)
    show: ReindexShow = declared_by(
        one_of(
            "--show",
            kind=ReindexShow,
            default=ReindexShow.FINDINGS,
            text="findings: problems found or repaired; partitions: the work done in each"
            " partition.",
        )
    )
    report: str | None = declared_by(report_option)
    store: dict[str, str] = declared_by(store_option)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(format_option)


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
    """Rebuild missing or wrong indexes and zone maps.

    Takes the directory's lock. A directory of Apache Kafka or in an object store is never changed;
    --zone-cache names a folder into which its zone maps are written instead.

    Exit code, as for `tidelog doctor`: 0 sound, 1 findings, 2 not everything could be checked.
    """
    needs_spark()
    from tidelog.jobs.reindex.job import check_arguments, run

    place = read_place(surroundings, request.source, store=request.store)
    targets = read_targets(request.targets)
    check_before(surroundings, [Use(place, tuple(targets or ()))], request.report)
    check_arguments(place, targets, options["mode"], options["zone_cache"])
    options["listener"] = progress = JobProgress(surroundings, "working", unit="tasks")
    with open_session(surroundings, request.spark, progress, name="reindex") as spark:
        result = run(spark, place, targets, **options)
    columns, rows = table(result, request.show)
    if rows or request.kind is not Format.TABLE:
        output.print_rows(surroundings, columns, rows, request.kind)
    for line in [*result.problems, in_short(str(place), result)]:
        surroundings.say(line)
    if request.report is not None:
        provenance = origin(surroundings, {"Directory": str(place)})
        save_report(surroundings, request.report, page(str(place), result), provenance)
    return Verdict[result.outcome.name]


def table(result: "ReindexResult", show: ReindexShow) -> tuple[Columns, Sequence[Row]]:
    """Return the columns and rows of the table `show`."""
    from tidelog.jobs.reindex.job import finding_rows, partition_rows

    if show is ReindexShow.FINDINGS:
        return COLUMNS, list(finding_rows(result))
    return PARTITIONS, list(partition_rows(result))


def in_short(place: str, result: "ReindexResult") -> str:
    """Return a line about the work done and the remaining findings."""
    from tidelog.jobs.reindex.job import partition_rows

    counts: Counter[str] = Counter()
    for row in partition_rows(result):
        for column, cell in zip(PARTITIONS, row, strict=True):
            if isinstance(cell, int) and column.name != "partition":
                counts[column.name] += cell
    errors = counts["errors"] + sum(finding.counts for finding in result.top)
    return (
        f"{place}: {result.outcome.value}; {plural(len(result.done), 'partition')},"
        f" {plural(counts['segments'], 'segment')}, {bytes_text(counts['log_bytes'])};"
        f" {plural(errors + counts['warnings'], 'finding')} left,"
        f" {plural(counts['repaired'], 'file')} repaired, zone maps:"
        f" {counts['maps_built']:,} built, {counts['maps_there']:,} already present"
    )


def page(place: str, result: "ReindexResult") -> Report:
    """Return the report."""
    sections: list[Section] = [
        *([Items(result.problems, "Problems")] if result.problems else []),
    ]
    for show in ReindexShow:
        columns, rows = table(result, show)
        sections.append(
            report_table(
                columns,
                rows,
                title=show.value.capitalize(),
                whole=f"--show {show} -o csv",
                nothing="No findings." if show is ReindexShow.FINDINGS else "No partitions.",
            )
        )
    verdict = f"{in_short(place, result)}."
    return Report(f"Indexes and zone maps of {place}", sections, verdict)
