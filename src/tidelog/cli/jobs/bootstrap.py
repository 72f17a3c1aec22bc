"""`tidelog spark bootstrap`: loads a table into a topic."""

import errno
import hashlib
import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import plural, verb
from tidelog.cli import output
from tidelog.cli.jobs.session import (
    JobProgress,
    check_before,
    clock_plots,
    findings_section,
    losses_reported,
    needs_spark,
    numbers_plot,
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
    compression_option,
    declared_by,
    examples,
    option,
    pairs,
    report_option,
    result_format_option,
    spark_options,
    topic_argument,
    with_job_options,
    zone_option,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem, interrupted_as
from tidelog.jobs.bootstrap.options import BootstrapOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Report, Section, Text, without_secrets
from tidelog.plots import Unit
from tidelog.types import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidelog.cli.output import Row
    from tidelog.jobs.bootstrap.job import BootstrapOutcome

COLUMNS: Final = output.columns(
    "topic",
    output.number("partition", "first_offset", "end_offset"),
    output.count("records"),
    output.size("size_bytes"),
    output.minor(output.count("segments")),
    output.titled(append_time=output.time("append")),
)
_JDBC: Final = "jdbc"
_BY_SUFFIX: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
# Default read options for CSV: the first line is a heading, and types are inferred.
_DEFAULTS: Final = {"csv": {"header": "true", "inferSchema": "true"}}
_ID_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark bootstrap`."""

    table: str = argument(metavar="TABLE")
    topic: str = declared_by(topic_argument)
    input_format: str | None = option(
        "--format",
        "-f",
        metavar="NAME",
        help="parquet, csv, json, orc, jdbc or another format of Spark. Default: chosen by the"
        " suffix of the table's name.",
    )
    options: tuple[str, ...] = option(
        "--option",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of Spark for reading this format; repeatable. Default: none.",
    )
    compression: str | None = declared_by(compression_option)
    report: str | None = declared_by(report_option)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(result_format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "bootstrap",
    epilog=examples(
        "tidelog spark bootstrap flights.parquet flights --to data --key tailnum --time departure"
        " --create 4 --config retention.ms=-1",
        "tidelog spark bootstrap orders.csv orders --to data --key id --time made --order key",
        "tidelog spark bootstrap jdbc:postgresql://db/shop orders --to data --key id --time made"
        " --option dbtable=orders --option user=reader",
    ),
)
@with_job_options(
    Request,
    BootstrapOptions,
    order="table topic to input_format options key time value headers partition order job_id create"
    " config tasks counts compression force",
)
def bootstrap(surroundings: Surroundings, request: Request, options: BootstrapOptions) -> ExitCode:
    """Load a table into a topic; all records become visible at once.

    TABLE is a path or URL that Spark reads, or jdbc:... . Segments are built in parallel and
    attached by one commit. After a stop or a crash, the same command continues and loads no row
    twice. To load the same table again, give another --id. --zone applies to times without a zone.
    """
    needs_spark()
    from tidelog.jobs.bootstrap.job import Bootstrap, partition_rows

    state = _state(surroundings, request.table)
    plain: BootstrapOptions = {
        **options,
        "to": read_place(surroundings, str(options["to"])),
        "job_id": options["job_id"] or usual_id(request, options, state),
        "sink": None if request.compression is None else {"compression": request.compression},
    }
    format_of(request)
    pairs(request.options, "--option")
    progress = JobProgress(surroundings, "loading")
    job = Bootstrap(request.topic, listener=progress, env=surroundings.env, **plain)
    check_before(surroundings, (), request.report)
    job.check_target()
    ensure_table(surroundings, request.table)
    with (
        losses_reported(surroundings, has_config=True) as losses,
        interrupted_as(
            "nothing is visible until the whole table is loaded; repeat the command to continue"
        ),
        open_session(surroundings, request.spark, name="bootstrap", zone=request.zone) as spark,
    ):
        table = read_table(spark, request)
        with progress.shown(spark):
            outcome = job.run(table)
        rows = list(partition_rows(request.topic, outcome))
        output.print_rows(surroundings, COLUMNS, rows, request.kind, zone=request.zone)
        _say_result(surroundings, outcome)
        if request.report is not None:
            to = str(options["to"])
            page = _report(request, to, outcome, rows)
            table_name = without_secrets([request.table])[0]
            places = {"From": table_name, "To": to}
            provenance = origin(surroundings, places, zone=request.zone)
            save_report(surroundings, request.report, page, provenance)
    return losses.code


def _state(surroundings: Surroundings, table: str) -> str:
    """Return names, sizes and modification times of a local table's files; "" for other tables.

    Names, sizes and times identify the version of the table's content. Folders within the table are
    not searched.
    """
    fs = surroundings.env.files
    if not fs.exists(table):
        return ""
    paths = [table]
    if fs.stat(table).is_dir:
        paths = [f"{table}/{entry.name}" for entry in fs.list_dir(table)]
    stats = [(path, fs.stat(path)) for path in paths]
    return "\n".join(f"{path} {stat.size} {stat.mtime_ms}" for path, stat in stats)


def usual_id(request: Request, options: BootstrapOptions, state: str) -> str:
    """Return a job id made from the table, its content, read options, topic and columns.

    A repeated command has the same id and therefore does not load the table twice.

    Args:
        request: Options of the command.
        options: Options of the job, among them the columns.
        state: Text that identifies the table's current content, from `_state`.
    """
    parts = (
        request.table,
        state,
        request.topic,
        # The id is printed, so it must not depend on a password.
        *sorted(one for one in request.options if not one.lower().startswith("password")),
        *(
            part or ""
            for part in (options["key"], options["time"], options["value"], options["headers"])
        ),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_ID_CHARACTERS]


def format_of(request: Request) -> str:
    """Return Spark's name of the table's format; raises UsageProblem if it is unknown."""
    if request.input_format is not None:
        return request.input_format
    if request.table.startswith(f"{_JDBC}:"):
        return _JDBC
    name = _BY_SUFFIX.get(PurePath(request.table.rstrip("/")).suffix.lower())
    if name is None:
        names = ", ".join(dict.fromkeys(_BY_SUFFIX.values()))
        raise UsageProblem(
            f"unknown format of {request.table}; give --format, one of {names}, {_JDBC}"
        )
    return name


def ensure_table(surroundings: Surroundings, table: str) -> None:
    """Raise FileNotFoundError if a local table does not exist, unless its name is a pattern."""
    is_local = not any(mark in table for mark in (":", "*", "?", "[", "{"))
    if is_local and not surroundings.env.files.exists(table):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), table)


def read_table(spark: "SparkSession", request: Request) -> "DataFrame":
    """Return the table as Spark reads it."""
    name = format_of(request)
    options = {**_DEFAULTS.get(name, {}), **pairs(request.options, "--option")}
    if name == _JDBC:
        return spark.read.format(name).options(**options).option("url", request.table).load()
    return spark.read.format(name).options(**options).load(request.table)


def _say_result(surroundings: Surroundings, outcome: "BootstrapOutcome") -> None:
    if outcome.was_done:
        surroundings.note("nothing was loaded now; --id NAME loads the same table once more")
        return
    seconds = max(outcome.seconds, 0.001)
    surroundings.say(
        f"{plural(outcome.records, 'record')} in {seconds:.1f} s,"
        f" {outcome.records / seconds:,.0f} a second; job {outcome.job_id}"
    )


def _report(
    request: Request, to: str, outcome: "BootstrapOutcome", rows: "Sequence[Row]"
) -> Report:
    name = without_secrets([request.table])[0]
    sections: list[Section] = [
        Text(f"Table {name} became topic {request.topic} at {to}, by one commit."),
        report_table(COLUMNS, rows, title="Partitions", zone=request.zone),
        numbers_plot(
            "size",
            {one.partition: one.size_bytes for one in outcome.partitions},
            "partition",
            "Log files, by partition",
            unit=Unit.BYTES,
        ),
    ]
    if outcome.facts is not None:
        hours = {"record": outcome.facts.hours, "append": _append_hours(outcome)}
        sections[2:2] = [clock_plots(hours, "Records by {step}", zone=request.zone)]
    sections += findings_section(outcome.findings)
    records, were = output.plural(outcome.records, "record"), verb(outcome.records, "was", "were")
    verdict = f"{records} {were} loaded in {output.duration_text(outcome.seconds)}."
    if outcome.was_done:
        verdict = f"Nothing was loaded now: the {records} {were} loaded by an earlier run."
    return Report(f"Bootstrap of {request.topic} at {to} from {name}", sections, verdict)


def _append_hours(outcome: "BootstrapOutcome") -> dict[int, int]:
    """Return the number of records by hour of append time, which is the commit's time."""
    by_hour: dict[int, int] = {}
    for one in outcome.partitions:
        if one.append_ms >= 0:
            hour = one.append_ms // HOUR_MS
            by_hour[hour] = by_hour.get(hour, 0) + one.records
    return by_hour
