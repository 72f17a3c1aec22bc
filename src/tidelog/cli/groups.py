"""`tidelog groups`: the consumer groups of a cluster."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.cli import output
from tidelog.cli.options import Format
from tidelog.cli.output import Cell
from tidelog.cli.places import Access, open_cluster
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.errors import GroupActive, RequestError, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster
    from tidelog.remote.view import Committed, Group, Watermarks
    from tidelog.types import TopicPartition

_OFFSETS = ("topic", "partition", "offset", "end", "lag", "member")
_NUMBERS = frozenset({"partition", "offset", "end", "lag"})
_MEMBERS = ("member", "client", "host", "partitions")


def list_groups(surroundings: Surroundings, access: Access, kind: Format) -> None:
    """Print all groups."""
    with open_cluster(surroundings, access) as cluster:
        found = cluster.group_listings()
    columns = [output.text(name) for name in ("group", "state", "kind")]
    rows = [[group.name, group.state, group.kind] for group in found]
    output.print_rows(surroundings, columns, rows, kind)
    if not rows:
        surroundings.say(f"{access.bootstrap} has no consumer groups")


def describe(surroundings: Surroundings, access: Access, name: str, kind: Format) -> None:
    """Print a group: tables of members and of offsets, or one JSON object."""
    with open_cluster(surroundings, access) as cluster:
        group = cluster.group(name)
        committed = cluster.committed(name)
        marks = _marks(cluster, committed)
    members: list[list[Cell]] = [
        [member.member_id, member.client_id, member.host, " ".join(map(str, member.partitions))]
        for member in group.members
    ]
    offsets = _offset_rows(group, committed, marks)
    if kind is Format.JSON:
        shown: dict[str, Cell] = {
            "group": group.name,
            "state": group.state,
            "members": [dict(zip(_MEMBERS, row, strict=True)) for row in members],
            "offsets": [dict(zip(_OFFSETS, row, strict=True)) for row in offsets],
        }
        output.print_object(surroundings, shown)
        return
    if kind is Format.TABLE:
        surroundings.stdout.write(f"group  {group.name}\nstate  {group.state}\n\n")
    if members:
        output.print_rows(surroundings, [output.text(n) for n in _MEMBERS], members, kind)
        surroundings.stdout.write("\n")
    columns = [output.number(n) if n in _NUMBERS else output.text(n) for n in _OFFSETS]
    output.print_rows(surroundings, columns, offsets, kind)


def _marks(
    cluster: "Cluster", committed: "Mapping[TopicPartition, Committed | None]"
) -> "dict[TopicPartition, Watermarks]":
    """Where logs begin and end, of the topics that are still there."""
    there: list[TopicPartition] = []
    for topic in sorted({name.topic for name in committed}):
        try:
            known = set(cluster.partitions(topic))
        except UnknownTopic:
            continue
        there += [name for name in committed if name in known]
    return cluster.watermarks(there)


def _offset_rows(
    group: "Group",
    committed: "Mapping[TopicPartition, Committed | None]",
    marks: "Mapping[TopicPartition, Watermarks]",
) -> list[list[Cell]]:
    owners = {name: member.client_id for member in group.members for name in member.partitions}
    rows: list[list[Cell]] = []
    for name in sorted({*committed, *owners}):
        found, mark = committed.get(name), marks.get(name)
        offset = None if found is None else found.offset
        end = None if mark is None else mark.end
        lag = None if offset is None or end is None else max(end - offset, 0)
        rows.append([name.topic, name.partition, offset, end, lag, owners.get(name)])
    return rows


def delete(surroundings: Surroundings, access: Access, names: Sequence[str], *, yes: bool) -> None:
    """Delete groups; without `yes` only say what would go.

    Raises:
        UsageProblem: `yes` is missing; nothing was changed.
        UnknownGroup, GroupActive: Of the first group that can't be deleted; the others are.
    """
    with open_cluster(surroundings, access) as cluster:
        if not yes:
            counts = {name: len(cluster.committed(cluster.group(name).name)) for name in names}
            told = ", ".join(f"{name} with offsets of {n} partitions" for name, n in counts.items())
            raise UsageProblem(f"{told} would go; add --yes to do it")
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
