"""`tidelog spark compact`: compacts a directory in Spark tasks."""

from typing import Final

import click

from tidelog.cli import output
from tidelog.cli.compact import COMPACTED_UNTIL_INTERRUPT, say_stopped
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
    needs_spark,
    open_session,
    read_targets,
)
from tidelog.cli.options import (
    Format,
    SparkAccess,
    argument,
    declared_by,
    examples,
    format_option,
    spark_options,
    with_job_options,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, interrupted_as
from tidelog.jobs.compact.options import CompactOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.places import Place

COLUMNS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.count("passes")),
    output.minor(output.count("segments_before", "segments_after")),
    output.count("records_before", "records_after"),
    output.size("bytes_before", "bytes_after"),
    output.minor(output.size("bytes_read", "bytes_written"), output.number("cleaned_to")),
    output.wrapped("reason"),
    output.minor(output.wrapped("stopped")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark compact`."""

    directory: str = argument(metavar="DIRECTORY")
    targets: tuple[str, ...] = argument(metavar="[TOPIC[:P]]...", nargs=-1)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(format_option)


@click.command(
    "compact",
    epilog=examples(
        "tidelog spark compact data",
        "tidelog spark compact /shared/data orders bills:3 --roll --part-bytes 268435456",
    ),
)
@with_job_options(
    Request,
    CompactOptions,
    order="directory targets roll if_due accept_lost_times part_bytes store",
)
def compact(surroundings: Surroundings, request: Request, options: CompactOptions) -> ExitCode:
    """Compact a large directory in parallel.

    Use it for tiers, and for directories that are too large for `tidelog compact`; the result is
    the same. Exit code 2: a partition could not be cleaned to its end.
    """
    needs_spark()
    from tidelog.jobs.compact.job import check_directory, check_topics, row_of, run

    targets, store = read_targets(request.targets), options["store"] or {}
    place = Place(request.directory, store=store)
    check_directory(request.directory)
    check_before(surroundings, [Use(place, tuple(targets or ()), writes=True)])
    check_topics(request.directory, targets, store)
    options["listener"] = progress = JobProgress(surroundings, "compacting", unit="partitions")
    with (
        interrupted_as(COMPACTED_UNTIL_INTERRUPT),
        open_session(surroundings, request.spark, progress, name="compact") as spark,
    ):
        reports = run(spark, request.directory, targets, **options)
    output.print_rows(surroundings, COLUMNS, map(row_of, reports), request.kind)
    if not reports and not targets:
        surroundings.note("no topic has cleanup.policy=compact")
    return say_stopped(surroundings, ((one.name, one.stopped) for one in reports))
