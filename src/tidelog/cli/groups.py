"""`tidelog groups`: the consumer groups of a cluster."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli import output
from tidelog.cli.options import Format, examples, format_option
from tidelog.cli.output import Cell
from tidelog.cli.places import Access, cluster_options, open_cluster
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.errors import GroupActive, RequestError, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster
    from tidelog.remote.view import Committed, Group, Watermarks
    from tidelog.types import TopicPartition

_OFFSETS = ("topic", "partition", "offset", "end", "lag", "member")
_NUMBERS = frozenset({"partition", "offset", "end", "lag"})
_MEMBERS = ("member", "client", "host", "partitions")


@click.group(
    "groups",
    epilog=examples(
        "tidelog groups list -b broker:9092",
        "tidelog groups describe planes -b broker:9092",
        "tidelog groups delete planes -b broker:9092 --yes",
    ),
)
def groups() -> None:
    """Consumer groups of a cluster: list, describe, delete.

    How far one is behind tells `tidelog lag`; `tidelog rewind` moves one.
    """


@groups.command("list", epilog=examples("tidelog groups list -b broker:9092 -o json"))
@cluster_options
@format_option
@click.pass_obj
def list_groups(surroundings: Surroundings, access: Access, kind: Format) -> None:
    """List all groups with their states."""
    with open_cluster(surroundings, access) as cluster:
        listings = cluster.group_listings()
    columns = [output.text(name) for name in ("group", "state", "kind")]
    rows = [[group.name, group.state, group.kind] for group in listings]
    output.print_rows(surroundings, columns, rows, kind)
    if not rows:
        surroundings.say(f"{access.bootstrap} has no consumer groups")


@groups.command(
    "describe", epilog=examples("tidelog groups describe planes -b broker:9092 -o json")
)
@click.argument("group", metavar="GROUP")
@cluster_options
@format_option
@click.pass_obj
def describe(surroundings: Surroundings, group: str, access: Access, kind: Format) -> None:
    """Show a group's members, and what it committed."""
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
            "members": [dict(zip(_MEMBERS, row, strict=True)) for row in members],
            "offsets": [dict(zip(_OFFSETS, row, strict=True)) for row in offsets],
        }
        output.print_object(surroundings, content)
        return
    if kind is Format.TABLE:
        surroundings.stdout.write(f"group  {described.name}\nstate  {described.state}\n\n")
    if members:
        output.print_rows(surroundings, [output.text(n) for n in _MEMBERS], members, kind)
        surroundings.stdout.write("\n")
    columns = [output.number(n) if n in _NUMBERS else output.text(n) for n in _OFFSETS]
    output.print_rows(surroundings, columns, offsets, kind)


def _marks(
    cluster: "Cluster", committed: "Mapping[TopicPartition, Committed | None]"
) -> "dict[TopicPartition, Watermarks]":
    """Where logs begin and end, of the topics that are still there."""
    existing: list[TopicPartition] = []
    for topic in sorted({name.topic for name in committed}):
        try:
            known = set(cluster.partitions(topic))
        except UnknownTopic:
            continue
        existing += [name for name in committed if name in known]
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
@click.option("--yes", is_flag=True, help="Do it; else only say what would go.")
@click.pass_obj
def delete(surroundings: Surroundings, names: tuple[str, ...], access: Access, yes: bool) -> None:
    """Delete groups without members, with all offsets that they committed."""
    with open_cluster(surroundings, access) as cluster:
        if not yes:
            counts = {name: len(cluster.committed(cluster.group(name).name)) for name in names}
            listed = ", ".join(
                f"{name} with offsets of {n} partitions" for name, n in counts.items()
            )
            raise UsageProblem(f"{listed} would go; add --yes to do it")
        failed = _delete_each(surroundings, cluster, names)
    for error in failed[1:]:
        surroundings.say(str(error))
    if failed:
        raise failed[0]


def _delete_each(
    surroundings: Surroundings, cluster: "Cluster", names: Sequence[str]
) -> list[RequestError]:
    """Say of each group that it is gone, once it is; why the others are not."""
    failed: list[RequestError] = []
    for name in names:
        try:
            cluster.delete_groups([name])
        except (UnknownGroup, GroupActive) as error:
            failed.append(error)
        else:
            surroundings.say(f"deleted {name}")
    return failed
