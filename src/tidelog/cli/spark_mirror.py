"""`tidelog spark mirror`: topics of clusters and directories copied into another's."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

from tidelog.cli import output
from tidelog.cli.jobs import (
    JobProgress,
    losses_told,
    open_session,
    pairs,
    read_place,
    report_table,
    save_report,
)
from tidelog.cli.options import Format, SparkAccess
from tidelog.cli.spark_checks import Use, check_before
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.jobs.mirror.places import check_start
from tidelog.jobs.mirror.plan import (
    TOPIC_WORD,
    BatchDone,
    MirrorPlan,
    excluding,
    plan_mirror,
    read_renames,
)
from tidelog.jobs.offset_map import Partitioning
from tidelog.jobs.target_check import Finding, lines
from tidelog.report import Axis, Items, Plot, Report, Section, Series, Text
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from tidelog.cli.output import Cell
    from tidelog.jobs.mirror.job import SummaryRow

COLUMNS: Final = (
    output.text("source"),
    output.text("topic"),
    output.number("partition"),
    output.text("target"),
    output.text("target_topic"),
    output.number("copied_from"),
    output.number("copied_to"),
    output.number("offsets"),
    output.number("end_offset"),
    output.number("lag"),
)
_TICKS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the options say.

    Attributes:
        names: Places, the first one at least, and topics behind them.
        pattern: Of topics that are copied too, None for none.
        excluded: Patterns of topics that `pattern` does not mean.
        name: Name at the target of topics found by the pattern.
        settings: `report` or `sync`.
        to: The target.
        checkpoint: Folder that makes it restartable.
        partitions: `kept` or `key`.
        start: `earliest` or `latest`.
        renames: `TOPIC=NAME` or `PLACE/TOPIC=NAME`.
        isolation: What is copied of transactions.
        continuous: Go on until it is stopped.
        batch_records: Records of a batch, at most, of each place.
        trigger_ms: How often a continuous mirror looks for new records.
        create: Make topics that the target lacks.
        force: Go on although records would be lost.
        compression: Of batches written.
        report: File of the report.
        command_config: Client settings of the sources.
        to_command_config: Client settings of the target.
        store: Settings of the sources' object store.
    """

    names: tuple[str, ...]
    pattern: str | None
    excluded: tuple[str, ...]
    name: str | None
    settings: str
    to: str
    checkpoint: str
    partitions: str
    start: str
    renames: tuple[str, ...]
    isolation: IsolationLevel
    continuous: bool
    batch_records: int
    trigger_ms: int
    create: bool
    force: bool
    compression: str | None
    report: str | None
    command_config: str | None
    to_command_config: str | None
    store: tuple[str, ...]


def mirror(
    surroundings: Surroundings, access: SparkAccess, request: Request, kind: Format
) -> ExitCode:
    """Copy, and print what was copied of each partition."""
    plan = read_plan(surroundings, request)
    pairs(access.conf, "--conf")
    uses = [Use(source.place, tuple(source.topics)) for source in plan.sources]
    check_before(surroundings, [*uses, Use(plan.target, writes=True)], request.report)
    checkpoint = request.checkpoint.rstrip("/")
    check_start(plan, checkpoint, surroundings.env, create=request.create)
    progress = JobProgress(surroundings, "mirroring")
    with (
        losses_told(surroundings) as told,
        open_session(surroundings, access, name="mirror") as spark,
    ):
        from tidelog.arguments import choice
        from tidelog.jobs.mirror.job import lags_by_batch, summary_rows
        from tidelog.jobs.mirror.plan import MirrorOptions, Settings
        from tidelog.jobs.mirror.run import running

        options = MirrorOptions(
            checkpoint=checkpoint,
            continuous=request.continuous,
            batch_records=request.batch_records,
            trigger_ms=request.trigger_ms,
            create=request.create,
            force=request.force,
            settings=choice(Settings, request.settings, "--settings"),
            sink=() if request.compression is None else (("compression", request.compression),),
        )

        def watch(done: BatchDone) -> None:
            for line in (*done.notes, batch_line(done)):
                progress.note(line)

        with (
            progress.shown(spark),
            _stopped_by_signals() as stopped,
            running(spark, plan, options, surroundings.env, watch=watch) as started,
        ):
            for line in (*lines(started.findings), *started.notes):
                progress.note(line)
            started.await_end(stopped)
            rows = summary_rows(started, surroundings.env)
            lags, copied = lags_by_batch(started.query), started.plan
        if request.report is not None:
            page = report_of(copied, rows, started.batches.done, lags, started.findings)
            save_report(surroundings, request.report, page)
        output.print_rows(surroundings, COLUMNS, rows, kind)
        surroundings.say(f"offset map: {started.batches.path} (for failover --map)")
    return told.code


def read_plan(surroundings: Surroundings, request: Request) -> MirrorPlan:
    """What is to be copied; raises UsageProblem, InvalidRequest, InvalidTopic."""
    pattern = read_pattern(request)
    texts, topics = split_names(surroundings, request.names, needs_topics=request.pattern is None)
    places = [
        read_place(
            surroundings,
            text,
            command_config=request.command_config if text.startswith("kafka://") else None,
            store=request.store if "://" in text and not text.startswith("kafka://") else (),
        )
        for text in texts
    ]
    return plan_mirror(
        read_renames(
            request.renames, places, topics, pattern=pattern, name=request.name or TOPIC_WORD
        ),
        (),
        read_place(surroundings, request.to, command_config=request.to_command_config),
        partitioning=Partitioning(request.partitions),
        start=request.start,
        isolation=request.isolation,
    )


def read_pattern(request: Request) -> str | None:
    """The pattern without what is excluded; raises UsageProblem where there is none to change."""
    if request.pattern is None:
        if request.excluded or request.name is not None:
            raise UsageProblem("--exclude and --name are about topics that a --pattern finds")
        return None
    return excluding(request.pattern, request.excluded)


def split_names(
    surroundings: Surroundings, names: Sequence[str], *, needs_topics: bool = True
) -> tuple[list[str], list[str]]:
    """Places and topics. Topics have no slash in them; a directory may do without one, if it is.

    Raises:
        UsageProblem: No place, or no topic.
    """
    places: list[str] = []
    topics: list[str] = []
    for number, name in enumerate(names):
        is_place = not number or "/" in name
        if is_place or (not topics and surroundings.env.files.exists(f"{name}/meta.properties")):
            places.append(name)
        else:
            topics.append(name)
    if not places or (needs_topics and not topics):
        raise UsageProblem(
            "name at least one place to copy from, then at least one topic, or a --pattern"
        )
    return places, topics


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM while the block runs; a second one ends the program."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, before[signal.Signals(number)])

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def batch_line(done: BatchDone) -> str:
    """One batch in words."""
    if done.was_done:
        return f"batch {done.batch_id}: {done.records:,} records were there already"
    rate = done.records * 1_000 // max(done.elapsed_ms, 1)
    return f"batch {done.batch_id}: {done.records:,} records, {rate:,}/s"


def report_of(
    plan: MirrorPlan,
    rows: "Sequence[SummaryRow]",
    done: Sequence[BatchDone],
    lags: dict[int, int],
    findings: Sequence[Finding],
) -> Report:
    """The page: throughput and lag by batch, then every partition."""
    cells: list[list[Cell]] = [list(row) for row in rows]
    records = sum(one.records for one in done)
    seconds = sum(one.elapsed_ms for one in done) / 1_000
    places = ", ".join(str(source.place) for source in plan.sources)
    sections: list[Section] = [
        Text(
            f"{', '.join(sorted({pair.topic for pair in plan.pairs}))} of {places}, copied to"
            f" {plan.target}: {records:,} records in {len(done):,} batches, {seconds:,.1f} s of"
            " writing."
        ),
        _by_batch(
            "records per second",
            {one.batch_id: one.records * 1_000 / max(one.elapsed_ms, 1) for one in done},
            "Throughput, by batch",
        ),
        _by_batch("offsets", dict(lags), "Offsets behind the ends of the sources, by batch"),
        report_table(COLUMNS, cells, title="Partitions of the sources"),
    ]
    if findings:
        sections.append(Items(lines(findings), "What the target was found to do"))
    return Report(f"Mirror into {plan.target}", sections)


def _by_batch(what: str, values: dict[int, float], title: str) -> Plot:
    every = max(1, len(values) // _TICKS)
    return Plot(
        panels={"": [Series(what, "s0", values)]},
        y_title=what,
        axis=Axis("batch", str, every),
        is_stacked=False,
        title=title,
    )
