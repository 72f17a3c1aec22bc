"""`tidelog failover`: where a consumer group goes on in another cluster, missing nothing."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cli import failover_output, places
from tidelog.cli import options as times
from tidelog.cli.options import Format
from tidelog.cli.places import Access
from tidelog.cli.surroundings import ExitCode, Refused, Surroundings, UsageProblem

if TYPE_CHECKING:
    from tidelog.jobs.failover.job import Plan, Question
    from tidelog.jobs.failover.measure import Watched
    from tidelog.jobs.failover.verify import Verdict
    from tidelog.jobs.offset_map import OffsetMap

MEASURED: Final = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverOptions:
    """What the options say; texts are not read yet.

    Attributes:
        group: The consumer group.
        topics: Of these; of all that the group has committed on A where empty.
        at: The group had consumed what A appended before this; its positions where None.
        max_latency: A length of time, or `measured`.
        max_skew: By how much producers' clocks may be ahead, a length of time.
        sample_for: How long to measure.
        sample_records: So many records of each topic on each cluster are enough.
        mapping: `auto`, `same` or `any`: how partitions correspond.
        map_file: The map that the mirror of A on B wrote; None without one.
        verify: Compare the records.
        look_back: How far before the time searched records that never reached A are looked for, a
            length of time; as far as the margin where None.
        execute: Commit; else only show.
        zone: Of times without one and of times printed.
    """

    group: str
    topics: tuple[str, ...] = ()
    at: str | None = None
    max_latency: str = MEASURED
    max_skew: str = "0s"
    sample_for: str = "30s"
    sample_records: int = 1_000
    mapping: str = "auto"
    map_file: str | None = None
    verify: bool = False
    look_back: str | None = None
    execute: bool = False
    zone: str | None = None


def failover(
    surroundings: Surroundings,
    from_access: Access | None,
    to_access: Access,
    options: FailoverOptions,
    kind: Format,
) -> ExitCode:
    """Show where a group would go on, commit that if asked; 2 where records are missing on B."""
    question = question_of(surroundings, options)
    if from_access is None:
        _refuse_unknown(options)
    with ExitStack() as stack:
        a = None
        if from_access is not None:
            a = stack.enter_context(_watched(surroundings, "A", from_access))
        b = stack.enter_context(_watched(surroundings, "B", to_access))
        return run(surroundings, a, b, options, question, kind=kind)


def _refuse_unknown(options: FailoverOptions) -> None:
    """Without A everything that would be asked of it has to be stated."""
    if options.at is None or not options.topics:
        raise UsageProblem("without --from the options --at TIME and --topic T are needed")
    if options.max_latency == MEASURED and options.map_file is None:
        raise UsageProblem("without --from no latency is measured; state it: --max-latency 2m")
    if options.verify:
        raise UsageProblem("--verify compares with what the group consumed on A: give --from")


@contextmanager
def _watched(surroundings: Surroundings, name: str, access: Access) -> Iterator["Watched"]:
    """A cluster with the ways to measure it, until the block ends."""
    from tidelog.jobs.failover.measure import BrokerLog, ConsumerTail, Watched

    with places.open_cluster(surroundings, access) as cluster:
        # Settings are there for security, which reading batches does not have.
        stamped = BrokerLog(access.bootstrap) if access.command_config is None else None
        try:
            tail = ConsumerTail(cluster, surroundings.env.clock)
            yield Watched(name, cluster, tail, stamped)
        finally:
            if stamped is not None:
                stamped.close()


def question_of(surroundings: Surroundings, options: FailoverOptions) -> "Question":
    """What the options ask; raises InvalidTime, UsageProblem."""
    from tidelog.jobs.failover.job import Question
    from tidelog.jobs.failover.measure import Sampling
    from tidelog.jobs.failover.rules import PartitionMapping

    if any(":" in topic for topic in options.topics):
        raise UsageProblem("--topic takes whole topics: a record may be in any partition")
    at_ms = None
    if options.at is not None:
        at_ms = times.read_point(surroundings, options.at, options.zone)
    measured = options.max_latency == MEASURED
    return Question(
        group=options.group,
        topics=options.topics,
        at_ms=at_ms,
        latency_ms=None if measured else places.duration_ms(options.max_latency),
        skew_ms=places.duration_ms(options.max_skew),
        sampling=Sampling(
            for_ms=places.duration_ms(options.sample_for),
            records_min=options.sample_records,
        ),
        mapping=PartitionMapping(options.mapping),
        offset_map=_read_map(surroundings, options.map_file),
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
    a: "Watched | None",
    b: "Watched",
    options: FailoverOptions,
    question: "Question",
    *,
    kind: Format = Format.TABLE,
) -> ExitCode:
    """As `failover`, on clusters that are open.

    Raises:
        GroupActive: `--execute`, and the group has members on B; nothing was changed.
        Refused: `--execute`, and `--verify` found that records would be missed.
        TidelogError: As `plan_failover` and `verify`.
    """
    from tidelog.jobs.failover import job

    if options.execute:
        job.refuse_active(b.view, options.group)
    plan = job.plan_failover(a, b, question, surroundings.env.clock)
    verdicts = _verify(surroundings, a, b, options, plan) if options.verify else None
    missed = sum(verdict.missed for verdict in verdicts or ())
    executes = options.execute and not missed
    if executes:
        job.execute(b.view, plan)
    report = failover_output.Report(plan=plan, verdicts=verdicts, executed=executes)
    failover_output.show(surroundings, report, kind, options.zone)
    if options.execute and missed:
        raise Refused(
            f"nothing was committed: {missed} records would be missed; a longer --max-latency"
            " starts earlier"
        )
    if not options.execute:
        surroundings.say(_next_step(a, b, options.group))
    lacking = any(verdict.absent or verdict.never_on_a for verdict in verdicts or ())
    return ExitCode.FINDINGS if missed or lacking else ExitCode.OK


def _verify(
    surroundings: Surroundings,
    a: "Watched | None",
    b: "Watched",
    options: FailoverOptions,
    plan: "Plan",
) -> "list[Verdict]":
    from tidelog.jobs.failover.verify import Spill, verify

    assert a is not None
    parent = surroundings.variables.get("TMPDIR") or "/tmp"  # noqa: S108 - the name is drawn
    folder = f"{parent}/tidelog-verify-{surroundings.env.random.getrandbits(64):016x}"
    back_ms = None if options.look_back is None else places.duration_ms(options.look_back)
    spill = Spill(surroundings.env, folder)
    return verify(a.view, b.view, plan, spill, look_back_ms=back_ms)


def _next_step(a: "Watched | None", b: "Watched", group: str) -> str:
    """What a dry run ends with."""
    from tidelog.jobs.failover.job import active_members

    step = "--execute commits these offsets"
    if names := active_members(b.view, group):
        step = f"--execute is refused as long as the group has members on B: {names}"
    elif a is not None and (names := active_members(a.view, group)):
        step += f"; the group has members on A ({names}): what they read from now on comes twice"
    return f"dry run: nothing was committed; {step}"
