"""`tidelog spark bootstrap`: a table into a topic."""

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from tidelog.cli import output
from tidelog.cli.jobs import (
    JobProgress,
    clock_plots,
    losses_told,
    open_session,
    pairs,
    read_place,
    report_table,
    save_report,
)
from tidelog.cli.options import Format, SparkAccess
from tidelog.cli.output import Cell
from tidelog.cli.spark_checks import check_before
from tidelog.cli.spark_replay import sizes_plot
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.jobs.bootstrap.columns import RecordColumns
from tidelog.jobs.bootstrap.job import Bootstrap, BootstrapOptions, BootstrapOutcome
from tidelog.jobs.target_check import lines
from tidelog.report import Items, Report, Section, Text
from tidelog.types import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.jobs.bootstrap.job import PartitionResult

COLUMNS: Final = (
    output.text("topic"),
    output.number("partition"),
    output.number("first_offset"),
    output.number("end_offset"),
    output.number("records"),
    output.number("size_bytes"),
    output.number("segments"),
    output.time("append"),
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
# A heading, and types by looking: what a CSV file of a table needs.
_DEFAULTS: Final = {"csv": {"header": "true", "inferSchema": "true"}}
_ID_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the options say; see `tidelog spark bootstrap --help`."""

    table: str
    topic: str
    to: str
    format: str | None
    options: tuple[str, ...]
    key: str | None
    time: str | None
    value: str | None
    headers: str | None
    partition: str | None
    order: str | None
    job_id: str | None
    create: int | None
    config: tuple[str, ...]
    tasks: int | None
    count: bool
    compression: str | None
    force: bool
    report: str | None
    zone: str | None


def bootstrap(
    surroundings: Surroundings, access: SparkAccess, request: Request, kind: Format
) -> ExitCode:
    """Load a table, and print where its records went."""
    options = read_options(surroundings, request)
    pairs(access.conf, "--conf")
    format_of(request)
    pairs(request.options, "--option")
    progress = JobProgress(surroundings, "loading")
    job = Bootstrap(options, listener=progress, env=surroundings.env)
    check_before(surroundings, (), request.report)
    job.check_target()
    ensure_table(surroundings, request.table)
    with (
        losses_told(surroundings) as told,
        open_session(surroundings, access, name="bootstrap", zone=request.zone) as spark,
    ):
        table = read_table(spark, request)
        with progress.shown(spark):
            outcome = job.run(table)
        rows = [_row(request.topic, one) for one in outcome.partitions]
        output.print_rows(surroundings, COLUMNS, rows, kind, zone=request.zone)
        _tell(surroundings, outcome)
        if request.report is not None:
            save_report(surroundings, request.report, _report(request, outcome, rows))
    return told.code


def read_options(surroundings: Surroundings, request: Request) -> BootstrapOptions:
    """The options of a bootstrap; raises UsageProblem, InvalidRequest."""
    return BootstrapOptions(
        topic=request.topic,
        to=read_place(surroundings, request.to),
        columns=RecordColumns(
            key=request.key,
            time=request.time,
            value=request.value,
            headers=request.headers,
            partition=request.partition,
        ),
        order=request.order,
        job_id=request.job_id or usual_id(request, _state(surroundings, request.table)),
        create=request.create,
        config=pairs(request.config, "--config"),
        tasks=request.tasks,
        counts=request.count,
        force=request.force,
        sink={} if request.compression is None else {"compression": request.compression},
    )


def _state(surroundings: Surroundings, table: str) -> str:
    """Names, sizes and times of a table's files, where they are local: another load of the same."""
    fs = surroundings.env.files
    if not fs.exists(table):
        return ""
    paths = [table]
    if fs.stat(table).is_dir:
        paths = [f"{table}/{entry.name}" for entry in fs.list_dir(table)]
    found = [(path, fs.stat(path)) for path in paths]
    return "\n".join(f"{path} {stat.size} {stat.mtime_ms}" for path, stat in found)


def usual_id(request: Request, state: str) -> str:
    """The same for the same table, topic and mapping: a command that comes again is known by it.

    Args:
        request: What is asked.
        state: What tells the table's present content from a later one.
    """
    parts = (
        request.table,
        state,
        request.topic,
        # Nothing that is printed may tell of a password.
        *sorted(one for one in request.options if not one.lower().startswith("password")),
        *(part or "" for part in (request.key, request.time, request.value, request.headers)),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_ID_CHARACTERS]


def format_of(request: Request) -> str:
    """Spark's name of the table's format; raises UsageProblem where nothing tells it."""
    if request.format is not None:
        return request.format
    if request.table.startswith(f"{_JDBC}:"):
        return _JDBC
    found = _BY_SUFFIX.get(PurePath(request.table.rstrip("/")).suffix.lower())
    if found is None:
        names = ", ".join(dict.fromkeys(_BY_SUFFIX.values()))
        raise UsageProblem(f"{request.table}: what is it? Give --format, one of {names}, {_JDBC}")
    return found


def ensure_table(surroundings: Surroundings, table: str) -> None:
    """Raise FileNotFoundError where a local table that is named without a pattern is missing."""
    is_local = not any(mark in table for mark in (":", "*", "?", "[", "{"))
    if is_local and not surroundings.env.files.exists(table):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), table)


def read_table(spark: "SparkSession", request: Request) -> "DataFrame":
    """The table, as Spark reads it."""
    name = format_of(request)
    options = {**_DEFAULTS.get(name, {}), **pairs(request.options, "--option")}
    if name == _JDBC:
        return spark.read.format(name).options(**options).option("url", request.table).load()
    return spark.read.format(name).options(**options).load(request.table)


def _row(topic: str, one: "PartitionResult") -> list[Cell]:
    return [
        topic,
        one.partition,
        one.first_offset,
        one.end_offset,
        one.records,
        one.size_bytes,
        one.segments,
        one.append_ms,
    ]


def _tell(surroundings: Surroundings, outcome: BootstrapOutcome) -> None:
    if outcome.was_done:
        surroundings.say("nothing was loaded now; --id NAME loads the same table once more")
        return
    seconds = max(outcome.seconds, 0.001)
    surroundings.say(
        f"{outcome.records:,} records in {seconds:.1f} s,"
        f" {outcome.records / seconds:,.0f} a second; job {outcome.job_id}"
    )


def _report(request: Request, outcome: BootstrapOutcome, rows: list[list[Cell]]) -> Report:
    sections: list[Section] = [
        Text(f"{request.table} into {request.topic} at {request.to}, by one commit."),
        report_table(COLUMNS, rows, title="Partitions", zone=request.zone),
        sizes_plot(
            {one.partition: one.size_bytes for one in outcome.partitions},
            "Log files, by partition",
        ),
    ]
    if outcome.facts is not None:
        hours = {"record": outcome.facts.hours, "append": _append_hours(outcome)}
        sections[2:2] = clock_plots(hours, "Records by hour of their {} time", zone=request.zone)
    if outcome.findings:
        sections.append(Items(lines(outcome.findings), "What the target was found to do"))
    return Report(f"Bootstrap of {request.topic}", sections)


def _append_hours(outcome: BootstrapOutcome) -> dict[int, int]:
    """All at once: the hours of the commit."""
    found: dict[int, int] = {}
    for one in outcome.partitions:
        if one.append_ms >= 0:
            hour = one.append_ms // HOUR_MS
            found[hour] = found.get(hour, 0) + one.records
    return found
