"""`tidelog spark replay`: replays a time range of a topic."""

from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import plural, verb
from tidelog.cli import output, times
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
    clock_plots,
    findings_section,
    losses_reported,
    numbers_plot,
    open_session,
    origin,
    read_place,
    report_table,
    save_report,
    summary_table,
)
from tidelog.cli.options import (
    Format,
    SparkAccess,
    argument,
    command_config_option,
    compression_option,
    declared_by,
    examples,
    format_option,
    report_option,
    spark_options,
    store_option,
    to_command_config_option,
    topic_argument,
    with_job_options,
    zone_option,
)
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.jobs.chunks import total
from tidelog.jobs.replay.options import ReplayOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Report, Section
from tidelog.plots import Unit
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.jobs.replay.hours import Hours
    from tidelog.jobs.replay.run import Replay, ReplayOutcome

COLUMNS: Final = output.columns(
    "source",
    "topic",
    "target",
    output.time("start", "end"),
    "clock",
    output.count("partitions", "offsets", "records"),
    output.size("size_bytes"),
    output.count("chunks"),
    output.number("seconds"),
    "was_resumed",
    "findings",
)
_PARTITIONS: Final = output.columns(
    output.number("partition"), output.count("records"), output.size("size_bytes")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark replay`."""

    source: str = argument(metavar="SOURCE")
    topic: str = declared_by(topic_argument)
    compression: str | None = declared_by(compression_option)
    report: str | None = declared_by(report_option)
    during: str | None = declared_by(times.during_option)
    command_config: str | None = declared_by(command_config_option)
    to_command_config: str | None = declared_by(to_command_config_option)
    store: dict[str, str] = declared_by(store_option)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "replay",
    epilog=examples(
        "tidelog spark replay data flights --from -6h --to standby",
        "tidelog spark replay data flights --from 2013-02-08..+1d --zone America/New_York"
        " --to kafka://broker:9092 --to-topic storm --rate 5000/s --progress storm.json",
        "tidelog spark replay s3://logs/east flights --from -1d --clock append --to parquet:day",
        "tidelog spark replay kafka://broker:9092 flights --from -5m --to console",
    ),
)
@with_job_options(
    Request,
    ReplayOptions,
    order="source topic to to_topic start end during clock isolation partitions rate progress"
    " create config compression force",
)
def replay(surroundings: Surroundings, request: Request, options: ReplayOptions) -> ExitCode:
    """Replay a time range of a topic.

    Writes exactly the records of the range, with their times. SOURCE is a directory of topics, an
    object store's URL, or kafka://HOST:PORT. The range is fixed when the replay first starts. With
    --progress, a stopped replay can continue and writes no record twice. Exit code 2: the target's
    settings would refuse some records or delete them at once, and --force was not given.
    """
    from tidelog.jobs.replay.job import summary_row

    progress = JobProgress(surroundings, "replaying")
    run = read_replay(surroundings, request, options, progress)
    files = (request.report, options["progress"])
    check_before(surroundings, [Use(run.source, (request.topic,))], *files)
    run.check_target()
    with (
        losses_reported(surroundings, request.to_command_config, has_config=True) as losses,
        open_session(surroundings, request.spark, name="replay", zone=request.zone) as spark,
    ):
        with progress.shown(spark):
            outcome = run.run(spark)
        if request.report is not None:
            hours = _counted(surroundings, spark, outcome)
            start, end = outcome.question.times
            places = {"From": str(outcome.question.place), "To": str(outcome.to)}
            page = _report(outcome, hours, request.zone)
            provenance = origin(surroundings, places, start=start, end=end, zone=request.zone)
            save_report(surroundings, request.report, page, provenance)
        if options["to"] == "console":
            offsets = plural(total(outcome.planned), "offset")
            surroundings.say(f"{plural(outcome.records, 'record')} of {offsets}")
        else:
            row = summary_row(outcome)
            output.print_summary(surroundings, COLUMNS, row, request.kind, zone=request.zone)
    return losses.code


def read_replay(
    surroundings: Surroundings, request: Request, options: ReplayOptions, progress: JobProgress
) -> "Replay":
    """Create the replay of a command; raises UsageProblem, InvalidRequest, InvalidTime."""
    from tidelog.jobs.replay.run import Replay
    from tidelog.jobs.replay.targets import parse_target

    source = read_place(
        surroundings,
        request.source,
        command_config=request.command_config,
        store=request.store,
    )
    if isinstance(to := parse_target(options["to"]), Place):
        to = read_place(surroundings, str(options["to"]), command_config=request.to_command_config)
    sides = request.during or f"{options['start'] or ''} to {options['end'] or ''}"
    range_text = sides if request.zone in sides.split() else f"{sides} {request.zone or ''}"
    times.fix_range(surroundings, options, request.zone, during=request.during)
    plain: ReplayOptions = {
        **options,
        "to": to,
        "sink": None if request.compression is None else {"compression": request.compression},
    }

    def show(line: str) -> None:
        surroundings.stdout.write(f"{line}\n")

    return Replay(
        source,
        request.topic,
        range_text=range_text,
        listener=progress,
        show=show,
        env=surroundings.env,
        wait=surroundings.wait,
        **plain,
    )


def _counted(
    surroundings: Surroundings, spark: "SparkSession", outcome: "ReplayOutcome"
) -> "Hours":
    """Return the number and size of the replayed records by hour, by reading the source again."""
    from tidelog.jobs.replay.hours import count_hours

    surroundings.say("counting by hour for the report")
    return count_hours(spark, outcome.question, outcome.planned)


def _report(outcome: "ReplayOutcome", hours: "Hours", zone: str | None) -> Report:
    from tidelog.jobs.replay.job import summary_row

    question = outcome.question
    counted = [
        [number, hours.records[number], hours.size_bytes[number]]
        for number in sorted(hours.records)
    ]
    sections: list[Section] = [
        summary_table(COLUMNS, summary_row(outcome), zone=zone),
        clock_plots(hours.by_clock, "Records read at the source, by {step}", zone=zone),
        numbers_plot(
            "keys and values",
            {number: float(size) for number, size in hours.size_bytes.items()},
            "partition of the source",
            "Keys and values, by partition of the source",
            unit=Unit.BYTES,
        ),
        report_table(_PARTITIONS, counted, title="Partitions of the source"),
    ]
    sections += findings_section(outcome.findings)
    verdict = (
        f"{output.plural(outcome.records, 'record')} of {question.topic}"
        f" {verb(outcome.records, 'was', 'were')} written to {outcome.to} in"
        f" {output.duration_text(outcome.seconds)}."
    )
    title = f"Replay of {question.topic} at {question.place} into {outcome.to}"
    return Report(title, sections, verdict)
