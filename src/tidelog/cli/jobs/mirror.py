"""`tidelog spark mirror`: copies topics of clusters and directories into another place."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import plural, rate_text, verb
from tidelog.cli import output
from tidelog.cli.jobs.session import (
    JobProgress,
    Use,
    check_before,
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
    command_config_option,
    compression_option,
    declared_by,
    examples,
    format_option,
    option,
    report_option,
    spark_options,
    store_option,
    to_command_config_option,
    with_job_options,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem, stopped_by_signals
from tidelog.jobs.mirror.options import TOPIC_WORD, BatchDone, MirrorOptions
from tidelog.jobs.mirror.plan import (
    MirrorPlan,
    excluding,
    plan_mirror,
    read_renames,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Report, Section, Text

if TYPE_CHECKING:
    from tidelog.jobs.mirror.job import SummaryRow
    from tidelog.jobs.target_check import Finding

COLUMNS: Final = output.columns(
    "source",
    "topic",
    output.number("partition"),
    "target",
    "target_topic",
    output.number("copied_from", "copied_to"),
    output.count("offsets"),
    output.minor(output.number("end_offset")),
    output.count("lag"),
)
_by_batch: Final = partial(numbers_plot, x_title="batch", is_stacked=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `tidelog spark mirror`."""

    names: tuple[str, ...] = argument(metavar="FROM... [TOPIC...]", nargs=-1, required=True)
    excluded: tuple[str, ...] = option(
        "--exclude",
        multiple=True,
        metavar="REGEX",
        help="Exclude topics of --pattern whose whole names match this regular expression;"
        " repeatable. Default: none.",
    )
    to: str = option(
        "--to",
        required=True,
        metavar="PLACE",
        help="Target: a directory of topics, or kafka://HOST:PORT.",
    )
    renames: tuple[str, ...] = option(
        "--rename",
        multiple=True,
        metavar="[FROM/]TOPIC=NAME",
        help="Name of a topic at the target; repeatable. Default: the same name.",
    )
    compression: str | None = declared_by(compression_option)
    report: str | None = declared_by(report_option)
    command_config: str | None = declared_by(command_config_option)
    to_command_config: str | None = declared_by(to_command_config_option)
    store: dict[str, str] = declared_by(store_option)
    spark: SparkAccess = declared_by(spark_options)
    kind: Format = declared_by(format_option)


@click.command(
    "mirror",
    epilog=examples(
        "tidelog spark mirror kafka://east:9092 orders --to kafka://west:9092 --checkpoint m",
        "tidelog spark mirror kafka://east:9092 kafka://north:9092 orders bills --to data"
        " --checkpoint m --create --continuous",
        "tidelog spark mirror kafka://east:9092 --pattern 'shop\\..*' --name east.{topic}"
        " --to kafka://west:9092 --checkpoint m --create --continuous --settings sync",
        "tidelog spark mirror s3://logs/east flights --to standby --checkpoint m"
        " --rename flights=east.flights --partitions key --report mirror.html",
        "tidelog failover --group planes --from east:9092 --to west:9092 --map m/offsets.map",
    ),
)
@with_job_options(
    Request,
    MirrorOptions,
    order="names pattern excluded name settings to checkpoint continuous partitions start renames"
    " create isolation batch_records trigger_ms compression force",
)
def mirror(surroundings: Surroundings, request: Request, options: MirrorOptions) -> ExitCode:
    """Copy topics from several places into one, exactly once.

    Copies keep their create times and get new offsets and append times; an offset map lists both
    offsets. FROM is a directory, an object store's URL or kafka://HOST:PORT. A directory that does
    not exist yet needs a slash in its name, such as ./data. After a stop or a crash, the same
    command continues. Exit code 2: the target would lose records or their times, so nothing was
    copied.
    """
    from tidelog.jobs.mirror.places import check_start
    from tidelog.jobs.target_check import lines

    plan = read_plan(surroundings, request, options)
    uses = [Use(source.place, tuple(source.topics)) for source in plan.sources]
    uses.append(Use(plan.target, writes=True, creates=options["create"]))
    check_before(surroundings, uses, request.report)
    needs_spark()
    env = options["env"] = surroundings.env
    if request.compression is not None:
        options["sink_options"] = {"compression": request.compression}
    progress = JobProgress(surroundings, "mirroring")
    stopped = threading.Event()
    with losses_reported(surroundings, request.to_command_config) as losses, ExitStack() as stack:
        check_start(
            plan,
            options["checkpoint"].rstrip("/"),
            env,
            create=options["create"],
            force=options["force"],
        )
        spark = stack.enter_context(open_session(surroundings, request.spark, name="mirror"))
        from tidelog.jobs.mirror.job import lags_by_batch, summary_rows
        from tidelog.jobs.mirror.run import running

        def watch(done: BatchDone) -> None:
            for line in (*done.notes, batch_line(done)):
                progress.note(line)

        options["watch"] = watch
        with (
            progress.shown(spark),
            stopped_by_signals(stopped, again_ends=True),
            running(spark, plan, **options) as started,
        ):
            for line in (*lines(started.findings), *started.notes):
                progress.note(line)
            progress.note(start_line(summary_rows(started, env)))
            started.await_end(stopped)
            rows = summary_rows(started, env)
            lags, copied = lags_by_batch(started.query), started.plan
        if request.report is not None:
            places = {"From": ", ".join(str(one.place) for one in copied.sources)}
            provenance = origin(surroundings, {**places, "To": str(copied.target)})
            page = report_of(copied, rows, started.batches.done, lags, started.findings)
            save_report(surroundings, request.report, page, provenance)
        output.print_rows(surroundings, COLUMNS, rows, request.kind)
        surroundings.say(f"offset map: {started.batches.path} (for failover --map)")
    return losses.code


def read_plan(surroundings: Surroundings, request: Request, options: MirrorOptions) -> MirrorPlan:
    """Return the plan of the copy.

    Raises:
        UsageProblem, InvalidRequest, InvalidTopic: The arguments are invalid.
        UnknownTopic, ClusterFailure, OSError: The target is also a source, and it lacks a topic or
            can't be read.
    """
    pattern, name = read_pattern(request, options), options["name"]
    texts, topics = split_names(surroundings, request.names, needs_topics=pattern is None)
    places = [
        read_place(
            surroundings,
            text,
            command_config=request.command_config if text.startswith("kafka://") else None,
            store=request.store if "://" in text and not text.startswith("kafka://") else {},
        )
        for text in texts
    ]
    sources = read_renames(request.renames, places, topics, pattern=pattern, name=name)
    target = read_place(surroundings, request.to, command_config=request.to_command_config)
    # A missing topic is reported as missing, not as copied into itself.
    check_before(
        surroundings,
        [Use(one.place, tuple(one.topics)) for one in sources if str(one.place) == str(target)],
    )
    return plan_mirror(sources, (), target, **options)


def read_pattern(request: Request, options: MirrorOptions) -> str | None:
    """Return a pattern for names that `--pattern` matches but `--exclude` doesn't.

    Return None without `--pattern`.

    Raises:
        UsageProblem: `--exclude` or `--name` is given without `--pattern`.
    """
    if options["pattern"] is None:
        if request.excluded or options["name"] != TOPIC_WORD:
            raise UsageProblem(
                "--exclude and --name apply to topics that a --pattern finds; give a --pattern"
            )
        return None
    return excluding(options["pattern"], request.excluded)


def split_names(
    surroundings: Surroundings, names: Sequence[str], *, needs_topics: bool = True
) -> tuple[list[str], list[str]]:
    """Split arguments into places and topics.

    The first argument is a place. A later argument is a place if it contains a slash, which a
    topic's name can't contain. Before the first topic, the name of an existing directory of topics
    is a place, too.

    Raises:
        UsageProblem: There is no place, or no topic.
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


def start_line(rows: "Sequence[SummaryRow]") -> str:
    """Return a line about the number of offsets that remain to be copied at the start."""
    behind = sum(row.offsets + row.lag for row in rows)
    partitions = plural(len(rows), "partition")
    return f"copying {plural(behind, 'offset')} of {partitions}; each batch prints a line when done"


def batch_line(done: BatchDone) -> str:
    """Return a line about one batch."""
    if done.was_done:
        were = verb(done.records, "was", "were")
        records = f"{plural(done.records, 'record')} {were}"
        return f"batch {done.batch_id}: {records} copied by an earlier run"
    rate = f", {rate_text(done.records, done.elapsed_ms / 1_000, '')}" if done.records else ""
    return f"batch {done.batch_id}: {plural(done.records, 'record')}{rate}"


def report_of(
    plan: MirrorPlan,
    rows: "Sequence[SummaryRow]",
    done: Sequence[BatchDone],
    lags: dict[int, int],
    findings: "Sequence[Finding]",
) -> Report:
    """Return the report: throughput and lag by batch, then a table of all partitions."""
    records = sum(one.records for one in done)
    seconds = sum(one.elapsed_ms for one in done) / 1_000
    places = ", ".join(str(source.place) for source in plan.sources)
    topics = ", ".join(sorted({pair.topic for pair in plan.pairs}))
    behind = sum(row.lag for row in rows)
    left = f"{output.plural(behind, 'offset')} {verb(behind, 'is', 'are')} left to copy"
    state = left if behind else "nothing is left to copy"
    sections: list[Section] = [
        Text(f"Topics: {topics}. Writing took {output.duration_text(seconds)}."),
        _by_batch(
            "records per second",
            {one.batch_id: one.records * 1_000 / max(one.elapsed_ms, 1) for one in done},
            title="Throughput, by batch",
        ),
        _by_batch(
            "offsets",
            {batch: float(lag) for batch, lag in lags.items()},
            title="Offsets behind the ends of the sources, by batch",
        ),
        report_table(COLUMNS, rows, title="Partitions of the sources"),
    ]
    sections += findings_section(findings)
    count, batches = output.plural(records, "record"), output.plural(len(done), "batch", "batches")
    verdict = f"{count} {verb(records, 'was', 'were')} copied in {batches}; {state}."
    return Report(f"Mirror of {places} into {plan.target}", sections, verdict)
