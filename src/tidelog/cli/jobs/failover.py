"""`tidelog failover`: finds the offsets at which a consumer group continues in another cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import duration_text, plural, verb
from tidelog.cli import output, places, times
from tidelog.cli.options import (
    Format,
    declared_by,
    examples,
    format_option,
    option,
    with_job_options,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import Access, timeout_option
from tidelog.cli.surroundings import (
    ExitCode,
    InvalidInput,
    Surroundings,
    UsageProblem,
    describe,
)
from tidelog.errors import ClusterFailure
from tidelog.jobs.failover.options import MEASURED, FailoverOptions
from tidelog.lazy_dataclass import dataclass
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.jobs.failover.job import FailoverPlan, FailoverRequest
    from tidelog.jobs.failover.measure import MeasuredCluster, TopicLatency
    from tidelog.jobs.failover.rules import Start
    from tidelog.jobs.failover.verify import Verdict
    from tidelog.jobs.offset_map import OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of the command that are not options of the job `tidelog.jobs.failover`."""

    from_: str | None = option(
        "--from",
        metavar="HOST:PORT",
        help="The group's current cluster, A. Required without --at and --topic.",
    )
    to: str = option("--to", required=True, metavar="HOST:PORT", help="The group's new cluster, B.")
    verify: bool = option(
        "--verify",
        is_flag=True,
        help="Compare the records of A and B. Default: only find the offsets.",
    )
    execute: bool = option(
        "--execute", is_flag=True, help="Commit the offsets on B. Default: dry run."
    )
    from_config: str | None = option(
        "--from-config", metavar="FILE", help="Client settings for A. Default: none."
    )
    to_config: str | None = option(
        "--to-config", metavar="FILE", help="Client settings for B. Default: none."
    )
    timeout: str = declared_by(timeout_option)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "failover",
    epilog=examples(
        "tidelog failover --group planes --from east:9092 --to west:9092 --max-latency 2m",
        "tidelog failover --group planes --from east:9092 --to west:9092 --verify",
        "tidelog failover --group planes --from east:9092 --to west:9092 --sample-for 5m --execute",
        "tidelog failover --group planes --to west:9092 --topic flights --at -10m --max-latency 2m",
        "tidelog failover --group planes --from east:9092 --to west:9092 --map mirror/offsets.map",
    ),
)
@with_job_options(
    Request,
    FailoverOptions,
    order="group from_ to topics at max_latency max_skew sample_for sample_records mapping"
    " offset_map verify look_back execute",
)
def failover(surroundings: Surroundings, request: Request, options: FailoverOptions) -> ExitCode:
    """Move a consumer group to another cluster, missing no record.

    Finds the offsets at which the group continues on B, by a mirror's offset map or by time: the
    time of the record at the group's offset on A, minus the largest latency. Commits nothing
    without --execute.
    Exit code 2: --verify found records that would be missed, that B lacks, or that never reached A.
    """
    plan_request = request_of(surroundings, options, request.zone)
    if request.from_ is None:
        _refuse_unknown(request, options, plan_request)
    try:
        with ExitStack() as stack:
            a = None
            if request.from_ is not None:
                a = stack.enter_context(
                    _watched(surroundings, "A", request, request.from_, request.from_config)
                )
            b = stack.enter_context(
                _watched(surroundings, "B", request, request.to, request.to_config)
            )
            return run(surroundings, a, b, request, plan_request, look_back=options["look_back"])
    except ClusterFailure as error:
        if error.bootstrap == request.from_:
            hint = (
                "check --from, --from-config and --timeout; if A is lost, give --at TIME and"
                " --topic T in place of --from"
            )
        else:
            hint = "check --to, --to-config and --timeout"
        failure = describe(error)
        surroundings.fail(failure.text, failure.hint and hint)
        return failure.code


def _refuse_unknown(
    request: Request, options: FailoverOptions, plan_request: "FailoverRequest"
) -> None:
    """Check the options of a command without cluster A.

    Raises an error for an option that needs cluster A, and for a missing option that is required
    without cluster A.
    """
    from tidelog.jobs.failover.job import refuse_unknown

    refuse_unknown(plan_request)
    if options["max_latency"] == MEASURED and options["offset_map"] is None:
        raise UsageProblem(
            "without --from, the latency can't be measured; give it by --max-latency, e.g. 2m"
        )
    if request.verify:
        raise UsageProblem("--verify compares with what the group consumed on A: give --from")


@contextmanager
def _watched(
    surroundings: Surroundings,
    name: str,
    request: Request,
    bootstrap: str,
    config: str | None,
) -> Iterator["MeasuredCluster"]:
    """Open a cluster for measurements until the block ends."""
    from tidelog.jobs.failover.measure import BrokerLog, ConsumerTail, MeasuredCluster

    access = Access(bootstrap=bootstrap, command_config=config, timeout=request.timeout)
    with places.open_cluster(surroundings, access) as cluster:
        # Client settings usually mean TLS or authentication, which `BrokerLog` does not support.
        stamped = BrokerLog(access.bootstrap) if access.command_config is None else None
        try:
            tail = ConsumerTail(cluster, surroundings.env.clock)
            yield MeasuredCluster(name, cluster, tail, stamped)
        finally:
            if stamped is not None:
                stamped.close()


def request_of(
    surroundings: Surroundings, options: FailoverOptions, zone: str | None
) -> "FailoverRequest":
    """Convert the options to a request; raises InvalidTime, UsageProblem."""
    from tidelog.jobs.failover.job import FailoverRequest
    from tidelog.jobs.failover.measure import Sampling
    from tidelog.jobs.failover.rules import PartitionMapping

    if any(":" in topic for topic in options["topics"]):
        raise UsageProblem(
            "--topic must be a whole topic: B may store a record in another partition"
        )
    at_ms = None
    if options["at"] is not None:
        at_ms = times.read_point(surroundings, options["at"], zone)
    measured = options["max_latency"] == MEASURED
    return FailoverRequest(
        group=options["group"],
        topics=tuple(options["topics"]),
        at_ms=at_ms,
        latency_ms=None if measured else times.duration_ms(options["max_latency"]),
        skew_ms=times.duration_ms(options["max_skew"]),
        sampling=Sampling(
            for_ms=times.duration_ms(options["sample_for"]),
            records_min=options["sample_records"],
        ),
        mapping=PartitionMapping(options["mapping"]),
        offset_map=_read_map(surroundings, options["offset_map"]),
    )


def _read_map(surroundings: Surroundings, path: str | None) -> "OffsetMap | None":
    from tidelog.jobs.offset_map import read_map

    if path is None:
        return None
    try:
        return read_map(surroundings.env.files, path)
    except FileNotFoundError as error:
        raise UsageProblem(
            f"--map {path}: no such file; a mirror keeps offsets.map in its checkpoint"
        ) from error


def run(
    surroundings: Surroundings,
    a: "MeasuredCluster | None",
    b: "MeasuredCluster",
    request: Request,
    plan_request: "FailoverRequest",
    *,
    look_back: str | None = None,
) -> ExitCode:
    """Run `failover` on open clusters.

    Raises:
        GroupActive: `--execute` is given, and the group has members on B; nothing was changed.
        InvalidInput: `--execute` is given, and `--verify` found that records would be missed;
            nothing was committed.
        TidelogError: Another error of `plan_failover`, `verify` or `execute`.
    """
    from tidelog.jobs.failover import job

    if request.execute:
        job.refuse_active(b.view, plan_request.group)
    plan = job.plan_failover(a, b, plan_request, surroundings.env.clock)
    verdicts = _verify(surroundings, a, b, look_back, plan) if request.verify else None
    missed = sum(verdict.missed for verdict in verdicts or ())
    executes = request.execute and not missed
    if executes:
        job.execute(b.view, plan)
    report = Report(plan=plan, verdicts=verdicts, executed=executes)
    _show(surroundings, report, request.kind, request.zone)
    if request.execute and missed:
        raise InvalidInput(
            f"nothing was committed: {plural(missed, 'record')} would be missed; a longer"
            " --max-latency starts earlier"
        )
    if not request.execute:
        surroundings.note(_next_step(a, b, plan_request.group))
    lacking = any(verdict.absent or verdict.never_on_a for verdict in verdicts or ())
    return ExitCode.FINDINGS if missed or lacking else ExitCode.OK


def _verify(
    surroundings: Surroundings,
    a: "MeasuredCluster | None",
    b: "MeasuredCluster",
    look_back: str | None,
    plan: "FailoverPlan",
) -> "list[Verdict]":
    from tidelog.jobs.failover.verify import Spill, verify

    assert a is not None
    parent = surroundings.variables.get("TMPDIR") or "/tmp"  # noqa: S108 - the name is random
    folder = f"{parent}/tidelog-verify-{surroundings.env.random.getrandbits(64):016x}"
    back_ms = None if look_back is None else times.duration_ms(look_back)
    spill = Spill(surroundings.env, folder)
    return verify(a.view, b.view, plan, spill, look_back_ms=back_ms)


def _next_step(a: "MeasuredCluster | None", b: "MeasuredCluster", group: str) -> str:
    """Return the last line of a dry run, which states what `--execute` would do."""
    from tidelog.jobs.failover.job import active_members

    step = "--execute commits them"
    if names := active_members(b.view, group):
        step = f"--execute is refused as long as the group has members on B: {names}"
    elif a is not None and (names := active_members(a.view, group)):
        step += (
            f"; the group has members on A ({names}): what they read from now on will be read twice"
        )
    return f"dry run: would commit these offsets; {step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of the command.

    Attributes:
        plan: The plan with the group's starts.
        verdicts: Results of comparing the records, None without `--verify`.
        executed: Whether the plan was committed.
    """

    plan: "FailoverPlan"
    verdicts: "list[Verdict] | None"
    executed: bool


def _show(surroundings: Surroundings, report: Report, kind: Format, zone: str | None) -> None:
    """Print the result.

    JSON contains the whole result. A table or CSV contains only the starts; the rest of the result
    is printed to stderr as sentences.
    """
    if kind is Format.JSON:
        output.print_object(surroundings, _object(report, zone))
        return
    from tidelog.jobs.failover.verify import failover_verdict

    verdict = failover_verdict(report.plan, report.verdicts, executed=report.executed)
    output.print_verdict(surroundings, verdict, kind)
    rows = [_row(report.plan, start) for start in report.plan.starts]
    output.print_rows(surroundings, _COLUMNS, rows, kind, zone=zone)
    for line in _sentences(report):
        surroundings.say(line)


_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.number("position_on_a")),
    output.number("old_offset", "new_offset"),
    output.minor(output.time("time", "searched"), "found_by"),
    output.prose("why"),
)


def _row(plan: "FailoverPlan", start: "Start") -> list[Cell]:
    old = plan.committed.get(start.partition)
    return [
        start.partition.topic,
        start.partition.partition,
        plan.position_of(start.partition),
        None if old is None else old.offset,
        start.offset,
        NO_TIMESTAMP if start.time_ms is None else start.time_ms,
        NO_TIMESTAMP if start.search_ms is None else start.search_ms,
        start.kind.value,
        start.reason,
    ]


# -- for scripts ---------------------------------------------------------------------------------


def _object(report: Report, zone: str | None) -> dict[str, Cell]:
    plan = report.plan
    content: dict[str, Cell] = {
        "group": plan.request.group,
        "executed": report.executed,
        "margin": {
            "latency_ms": plan.margin.latency_ms,
            "skew_ms": plan.margin.skew_ms,
            "measured": bool(plan.latencies),
            "samples": [_sample(latency) for latency in plan.latencies],
        },
        "topics": [
            {"topic": topic, "mapping": mapped.mapping.value, "why": mapped.reason}
            for topic, mapped in plan.mapped.items()
        ],
        "partitions": [output.fields(_COLUMNS, _row(plan, start), zone) for start in plan.starts],
        "verify": None,
    }
    if report.verdicts is not None:
        content["verify"] = [_verdict(verdict, zone) for verdict in report.verdicts]
    return content


def _sample(latency: "TopicLatency") -> dict[str, Cell]:
    return {
        "cluster": latency.cluster,
        "topic": latency.topic,
        "records": latency.count,
        "is_exact": latency.is_exact,
        "for_ms": latency.for_ms,
        "median_ms": latency.percentile_ms(50),
        "p99_ms": latency.percentile_ms(99),
        "max_ms": latency.max_ms,
        "skew_ms": latency.skew_ms,
    }


def _verdict(verdict: "Verdict", zone: str | None) -> dict[str, Cell]:
    return {
        "topic": verdict.topic,
        "compared": "key, create time, value" if verdict.by_time else "key, value",
        "unconsumed": verdict.unconsumed,
        "after": verdict.after,
        "missed": verdict.missed,
        "absent": verdict.absent,
        "duplicates": verdict.duplicates,
        "only_on_b": verdict.only_on_b,
        "never_on_a": verdict.never_on_a,
        "examples": [
            {
                "partition": example.partition.partition,
                "offset": example.offset,
                **output.time_fields("time", example.time_ms, zone),
            }
            for example in verdict.examples
        ],
    }


# -- sentences and tables ------------------------------------------------------------------------


def _sentences(report: Report) -> list[str]:
    plan = report.plan
    lines = [_sample_line(latency) for latency in plan.latencies]
    lines.append(_margin_line(plan))
    lines += [f"{name}: {mapped.sentence}" for name, mapped in plan.mapped.items()]
    for verdict in report.verdicts or ():
        lines += _verdict_lines(verdict)
    return lines


def _margin_line(plan: "FailoverPlan") -> str:
    if not plan.has_margin:
        if plan.is_by_map:
            return (
                "the mirror's offset map has every start, so no margin for late records is needed"
            )
        return "no start was searched by time, so no margin for late records is needed"
    origin = "largest measured" if plan.latencies else "as stated"
    return (
        f"margin: latency {_duration(plan.margin.latency_ms)} ({origin}), clock skew"
        f" {_duration(plan.margin.skew_ms)}"
    )


def _duration(ms: float | None) -> str:
    return "unknown" if ms is None else duration_text(ms / 1000)


def _sample_line(latency: "TopicLatency") -> str:
    until = "append" if latency.is_exact else "arrival"
    return (
        f"measured {latency.topic} on {latency.cluster}: {plural(latency.count, 'record')} in"
        f" {_duration(latency.for_ms)}, create time to {until}: half within"
        f" {_duration(latency.percentile_ms(50))}, 99% within"
        f" {_duration(latency.percentile_ms(99))}, all within {_duration(latency.max_ms)}, clocks"
        f" ahead by up to {_duration(latency.skew_ms)}; about one record in {latency.count + 1:,}"
        " will take longer than the largest measured latency"
    )


def _verdict_lines(verdict: "Verdict") -> list[str]:
    compared = "key, create time and value" if verdict.by_time else "key and value"
    later = verdict.unconsumed - verdict.missed - verdict.absent
    unread, twice = plural(verdict.unconsumed, "record"), verdict.duplicates
    first = (
        f"verified {verdict.topic} by {compared}: {later:,} of {unread} not consumed on A"
        f" {verb(later, 'is', 'are')} after the start on B; B has"
        f" {plural(verdict.after, 'record')} after the start, of which {twice}"
        f" {verb(twice, 'was', 'were')} consumed on A and will be read again, and"
        f" {verdict.only_on_b} {verb(verdict.only_on_b, 'was', 'were')} not found on A"
    )
    lines = [first]
    if verdict.missed:
        positions = ", ".join(f"{e.partition} at offset {e.offset}" for e in verdict.examples)
        lines.append(
            f"{verdict.topic}: {plural(verdict.missed, 'record')} would be MISSED: before the start"
            f" on B (such as {positions}); a longer --max-latency starts earlier"
        )
    if verdict.never_on_a:
        were = verb(verdict.never_on_a, "was", "were")
        lines.append(
            f"{verdict.topic}: {plural(verdict.never_on_a, 'record')} before the start on B"
            f" {were} not found on A; if they never reached A, no group has consumed them, and only"
            " an earlier start includes them (a longer --max-latency)"
        )
    if verdict.absent:
        are = verb(verdict.absent, "is", "are")
        lines.append(
            f"{verdict.topic}: {plural(verdict.absent, 'record')} {are} not on B; records"
            " still being copied will arrive after the start; other missing records can't be read"
            " from any start"
        )
    return lines
