"""`tidelog spark compact`: a directory's compaction by tasks of Spark."""

from dataclasses import dataclass
from typing import Final

from tidelog.cli import output
from tidelog.cli.jobs import JobProgress, open_session, pairs
from tidelog.cli.options import Format, SparkAccess
from tidelog.cli.spark_checks import Use, check_before
from tidelog.cli.spark_latency import as_cells, read_targets
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.jobs.compact.job import check_directory, check_topics, row_of, run
from tidelog.spark.places import Place

COLUMNS: Final = (
    output.text("topic"),
    *map(output.number, ("partition", "passes", "segments_before", "segments_after")),
    *map(output.number, ("records_before", "records_after", "bytes_before", "bytes_after")),
    *map(output.number, ("bytes_read", "bytes_written", "cleaned_to")),
    *map(output.text, ("reason", "stopped")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the options say.

    Attributes:
        directory: The directory of topics.
        targets: Topics and partitions; all compacted ones where there is none.
        roll: Finish active segments first.
        if_due: Leave alone what is not due.
        part_bytes: About how many bytes of log a task rewrites.
        store: `NAME=VALUE` settings of the stores of tiers.
    """

    directory: str
    targets: tuple[str, ...]
    roll: bool
    if_due: bool
    part_bytes: int
    store: tuple[str, ...] = ()


def compact(
    surroundings: Surroundings, access: SparkAccess, request: Request, kind: Format
) -> ExitCode:
    """Compact, and print a row for each partition."""
    targets, store = read_targets(request.targets), pairs(request.store, "--store-option")
    pairs(access.conf, "--conf")
    place = Place(request.directory, store=store)
    check_directory(request.directory)
    check_before(surroundings, [Use(place, tuple(targets or ()), writes=True)])
    check_topics(request.directory, targets, store)
    progress = JobProgress(surroundings, "compacting", unit="partitions")
    with open_session(surroundings, access, name="compact") as spark, progress.shown(spark):
        reports = run(
            spark,
            request.directory,
            targets,
            if_due=request.if_due,
            roll=request.roll,
            part_bytes=request.part_bytes,
            store=store,
            listener=progress,
        )
    output.print_rows(surroundings, COLUMNS, as_cells(list(row_of(r)) for r in reports), kind)
    if not reports:
        surroundings.say("no topic has cleanup.policy=compact")
    is_whole = all(report.stopped is None for report in reports)
    return ExitCode.OK if is_whole else ExitCode.FINDINGS
