"""`tidelog groups` and `tidelog rewind`: consumer groups of a cluster.

`groups` lists, describes and deletes groups. `rewind` resets a group's committed offsets to a time.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import plural, verb
from tidelog.cli import output, places, times
from tidelog.cli.command_groups import CommandGroup
from tidelog.cli.options import (
    Format,
    clock_option,
    declared_by,
    examples,
    format_option,
    option,
    with_options,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import Access, cluster_options, open_cluster, own_data_option, topics_option
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.config.values import EARLIEST, LATEST
from tidelog.errors import GroupActive, RequestError, UnknownGroup, UnknownTopic
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import TIME_HELP
from tidelog.types import NO_TIMESTAMP, ClockName

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster
    from tidelog.remote.group_rewind import Move, Target
    from tidelog.remote.own_logs import OwnLogs
    from tidelog.remote.view import ClusterView, Committed, Count, Group, Watermarks
    from tidelog.types import TopicPartition


_OFFSETS = output.columns(
    "topic", output.number("partition", "offset", "end"), output.count("lag"), "member"
)
_MEMBERS = output.columns("member", "client", output.minor("host"), "partitions")


@click.group(
    "groups",
    cls=CommandGroup,
    epilog=examples(
        "tidelog groups list -b broker:9092",
        "tidelog groups describe planes -b broker:9092",
        "tidelog groups delete planes -b broker:9092 --yes",
    ),
)
def groups() -> None:
    """List, describe and delete consumer groups.

    Use `tidelog lag` to see a group's lag, and `tidelog rewind` to reset it to a time.
    """


@groups.command("list", epilog=examples("tidelog groups list -b broker:9092 -o json"))
@cluster_options
@format_option
@click.pass_obj
def list_groups(surroundings: Surroundings, access: Access, kind: Format) -> None:
    """List all groups with their states."""
    with open_cluster(surroundings, access) as cluster:
        listings = cluster.group_listings()
    columns = output.columns("group", "state", "kind")
    rows = [[group.name, group.state, group.kind] for group in listings]
    output.print_rows(surroundings, columns, rows, kind)
    if not rows:
        surroundings.note(f"{access.bootstrap} has no consumer groups")


@groups.command(
    "describe", epilog=examples("tidelog groups describe planes -b broker:9092 -o json")
)
@click.argument("group", metavar="GROUP")
@cluster_options
@format_option
@click.pass_obj
def describe(surroundings: Surroundings, group: str, access: Access, kind: Format) -> None:
    """Show a group's members, and the offsets that it committed."""
    with open_cluster(surroundings, access) as cluster:
        described = cluster.group(group)
        committed = cluster.committed(group)
        marks = _marks(cluster, committed)
    members: list[list[Cell]] = [
        [member.member_id, member.client_id, member.host, " ".join(map(str, member.partitions))]
        for member in described.members
    ]
    offsets = _offset_rows(described, committed, marks)
    if kind is Format.JSON:
        content: dict[str, Cell] = {
            "group": described.name,
            "state": described.state,
            "members": [output.fields(_MEMBERS, row) for row in members],
            "offsets": [output.fields(_OFFSETS, row) for row in offsets],
        }
        output.print_object(surroundings, content)
        return
    if kind is Format.TABLE:
        facts = [described.name, described.state]
        output.print_summary(surroundings, output.columns("group", "state"), facts, kind)
        surroundings.stdout.write("\n")
    if members:
        output.print_rows(surroundings, _MEMBERS, members, kind)
        surroundings.stdout.write("\n")
    output.print_rows(surroundings, _OFFSETS, offsets, kind)


def _marks(
    cluster: "Cluster", committed: "Mapping[TopicPartition, Committed | None]"
) -> "dict[TopicPartition, Watermarks]":
    """Return log start and end of each existing partition that has a committed offset."""
    existing: list[TopicPartition] = []
    for topic in sorted({name.topic for name in committed}):
        try:
            partitions = set(cluster.partitions(topic))
        except UnknownTopic:
            continue
        existing += [name for name in committed if name in partitions]
    return cluster.watermarks(existing)


def _offset_rows(
    group: "Group",
    committed: "Mapping[TopicPartition, Committed | None]",
    marks: "Mapping[TopicPartition, Watermarks]",
) -> list[list[Cell]]:
    owners = {name: member.client_id for member in group.members for name in member.partitions}
    rows: list[list[Cell]] = []
    for name in sorted({*committed, *owners}):
        commit, mark = committed.get(name), marks.get(name)
        offset = None if commit is None else commit.offset
        end = None if mark is None else mark.end
        lag = None if offset is None or end is None else max(end - offset, 0)
        rows.append([name.topic, name.partition, offset, end, lag, owners.get(name)])
    return rows


@groups.command(
    "delete", epilog=examples("tidelog groups delete planes loader -b broker:9092 --yes")
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@cluster_options
@click.option("--yes", is_flag=True, help="Confirm deletion. Default: show what would be deleted.")
@click.pass_obj
def delete(surroundings: Surroundings, names: tuple[str, ...], access: Access, yes: bool) -> None:
    """Delete groups that have no members, and their committed offsets."""
    with open_cluster(surroundings, access) as cluster:
        if not yes:
            counts = {name: len(cluster.committed(cluster.group(name).name)) for name in names}
            listed = ", ".join(
                f"{name} with offsets of {plural(n, 'partition')}" for name, n in counts.items()
            )
            raise UsageProblem(f"this would delete {listed}; add --yes to confirm")
        failed = _delete_each(surroundings, cluster, names)
    for error in failed[1:]:
        surroundings.fail(str(error))
    if failed:
        raise failed[0]


def _delete_each(
    surroundings: Surroundings, cluster: "Cluster", names: Sequence[str]
) -> list[RequestError]:
    """Delete groups and print each deleted group; return an error for each group that remains.

    A group is not deleted if it is unknown or has members.
    """
    failed: list[RequestError] = []
    for name in names:
        try:
            cluster.delete_groups([name])
        except (UnknownGroup, GroupActive) as error:
            failed.append(error)
        else:
            surroundings.say(f"deleted {name}")
    return failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindOptions:
    """Options of `tidelog rewind`."""

    access: Access = declared_by(cluster_options)
    group: str = option("--group", "-g", required=True, metavar="GROUP", help="The consumer group.")
    topics: tuple[str, ...] = declared_by(topics_option)
    to: str = option(
        "--to", required=True, metavar="TIME", help=f"{TIME_HELP}; or earliest, latest."
    )
    clock: ClockName = declared_by(clock_option)
    max_skew: str | None = option(
        "--max-skew",
        metavar="TIME",
        help="Subtract this from the time, in case producers' clocks are behind. Default: 0s.",
    )
    to_end: bool = option(
        "--to-end",
        is_flag=True,
        help="If no record is at or after the time, use the end offset. Default: leave the"
        " partition unchanged.",
    )
    forward: bool = option(
        "--forward",
        is_flag=True,
        help="Allow new offsets that skip unread records; --to latest always allows them. Default:"
        " leave a partition unchanged if its new offset would skip unread records.",
    )
    count: bool = option(
        "--count",
        is_flag=True,
        help="Count records exactly, by reading them. Default: upper bounds computed from offsets;"
        " with --data, exact numbers.",
    )
    data: str | None = declared_by(own_data_option)
    execute: bool = option(
        "--execute", is_flag=True, help="Commit the new offsets. Default: dry run."
    )
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "rewind",
    epilog=examples(
        "tidelog rewind -b broker:9092 --group planes --to -6h",
        "tidelog rewind -b broker:9092 --group planes --topic flights:3 --to earliest --execute",
        "tidelog rewind -b broker:9092 --group planes --to 2013-02-08T12:00Z --max-skew 2m",
        "tidelog rewind -b broker:9092 --group planes --to -1h --clock append --data data",
    ),
)
@with_options(RewindOptions)
def rewind(surroundings: Surroundings, options: RewindOptions) -> ExitCode:
    """Reset a consumer group to a time.

    Shows for each partition the old and the new offset and how many records would be read again;
    commits nothing without --execute. Exit code 2: a partition was left unchanged, because the
    new offset would skip unread records.
    """
    target = target_of(surroundings, options)
    with (
        places.open_cluster(surroundings, options.access) as cluster,
        places.open_own_logs(surroundings, cluster, options.data) as own,
    ):
        return run(surroundings, cluster, options, target, own=own)


def target_of(surroundings: Surroundings, options: RewindOptions) -> "Target":
    """Return the target that the options describe; raises InvalidTime, UsageProblem."""
    from tidelog.remote.group_rewind import NoMatch, Target, TargetKind

    kind = {EARLIEST: TargetKind.EARLIEST, LATEST: TargetKind.LATEST}.get(
        options.to, TargetKind.TIME
    )
    if kind is not TargetKind.TIME:
        if options.max_skew is not None or options.clock is ClockName.APPEND:
            raise UsageProblem(
                f"--to {options.to} is not a time; leave out --max-skew and --clock append"
            )
        return Target(kind=kind)
    skew_ms = 0 if options.max_skew is None else times.duration_ms(options.max_skew)
    if skew_ms and options.clock is ClockName.APPEND:
        raise UsageProblem(
            "--max-skew applies to producers' clocks; leave it out with --clock append"
        )
    return Target(
        time_ms=times.read_point(surroundings, options.to, options.zone),
        clock=options.clock,
        max_skew_ms=skew_ms,
        no_match=NoMatch.END if options.to_end else NoMatch.STAY,
        forward=options.forward,
    )


def run(
    surroundings: Surroundings,
    cluster: "ClusterView",
    options: RewindOptions,
    target: "Target",
    *,
    own: "OwnLogs | None" = None,
) -> ExitCode:
    """Run `rewind` on an open cluster.

    Raises:
        GroupActive: `--execute` is given, and the group has members; nothing was changed.
    """
    from tidelog.remote import group_rewind as work
    from tidelog.remote import own_logs

    partitions = work.chosen_partitions(cluster, options.group, places.parse_topics(options.topics))
    counter = own_logs.counter(cluster, own, by_reading=options.count)
    moves = work.plan(cluster, options.group, partitions, target, own=own, counter=counter)
    rows = [_row(move, options.kind) for move in moves]
    if _creates_group(cluster, options.group, moves):
        step = "this" if options.execute else "--execute"
        surroundings.note(f"group {options.group} does not exist; {step} creates it")
    if options.execute:
        work.execute(cluster, options.group, moves)
    output.print_verdict(surroundings, _verdict(cluster, options, moves), options.kind)
    output.print_rows(surroundings, _columns(options.kind), rows, options.kind, zone=options.zone)
    unchanged = sum(move.is_held_back for move in moves)
    if not unchanged:
        return ExitCode.OK
    stay = f"left {plural(unchanged, 'partition')} unchanged"
    surroundings.note(f"{stay}, because the new offset would skip unread records")
    return ExitCode.FINDINGS


def _creates_group(cluster: "ClusterView", group: str, moves: "Sequence[Move]") -> bool:
    """Whether committing the moves would create the group, because it does not exist yet."""
    if not any(move.is_change for move in moves) or any(move.old is not None for move in moves):
        return False
    try:
        cluster.group(group)
    except UnknownGroup:
        return True
    return False


# On a narrow terminal, the column `why` is narrowed to this width before the column `time` is
# dropped.
_WHY_WIDTH: Final = 16


def _columns(kind: Format) -> output.Columns:
    def exactness(name: str) -> tuple[str, ...]:
        return () if kind is Format.TABLE else (f"{name}_is_exact",)

    counts = [
        output.columns(output.titled(**{title: output.count(name)}), *exactness(name))
        for title, name in (("read_again", "records_again"), ("skipped", "records_skipped"))
    ]
    return output.columns(
        "topic",
        output.number("partition", "old_offset", "new_offset"),
        output.minor(output.time("time")),
        *counts,
        "action",
        output.wrapped("why", least=_WHY_WIDTH),
    )


def _row(move: "Move", kind: Format) -> list[Cell]:
    match_ms = NO_TIMESTAMP if move.match is None else move.match.timestamp
    return [
        move.partition.topic,
        move.partition.partition,
        None if move.old is None else move.old.offset,
        None if move.new is None else move.new.offset,
        match_ms,
        *count_cells(move.again, kind),
        *count_cells(move.skipped, kind),
        move.action.value,
        move.why or None,
    ]


def count_cells(count: "Count", kind: Format) -> list[Cell]:
    """Return a count as cells: one cell for a table, else two cells, the number and `is_exact`."""
    if kind is Format.TABLE:
        return [output.count_text(count)]
    return [count.records, count.is_exact]


def _verdict(cluster: "ClusterView", options: RewindOptions, moves: "list[Move]") -> str:
    """Return in one sentence what the command has moved or would move."""
    from tidelog.remote import group_rewind as work

    changes = [move for move in moves if move.is_change]
    again, again_text = _sum_text([move.again for move in changes], "record")
    skipped, skipped_text = _sum_text([move.skipped for move in changes], "unread record")
    moved = f"{len(changes)} of {plural(len(moves), 'partition')}"
    if options.execute:
        loss = f", {skipped_text} {verb(skipped, 'is', 'are')} skipped" if skipped else ""
        return (
            f"group {options.group}: moved {moved},"
            f" {again_text} {verb(again, 'is', 'are')} read again{loss}"
        )
    if not changes:
        return "dry run: would move nothing"
    members = work.active_members(cluster, options.group)
    pronoun = "it" if len(changes) == 1 else "them"
    step = f"is refused while the group has members ({members})" if members else f"moves {pronoun}"
    loss = f", {skipped_text} would be skipped" if skipped else ""
    return f"dry run: would move {moved}, {again_text} would be read again{loss}; --execute {step}"


def _sum_text(counts: "Sequence[Count]", noun: str) -> tuple[int, str]:
    """Return the sum of counts, and the sum as text; `at most` marks an upper bound."""
    number = sum(count.records for count in counts)
    bound = "" if all(count.is_exact for count in counts) else "at most "
    return number, f"{bound}{plural(number, noun)}"
