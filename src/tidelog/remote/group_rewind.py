"""Plans and executes the rewind of a consumer group to a point in time.

Only `execute` commits. Two rules prevent a rewind from skipping records:

- If a partition has no record at or after the time, the group's offset stays unchanged, unless
  `no_match` is END: with END, the group moves to the log end.
- If a move would skip unread records, the group's offset stays unchanged, unless `forward` is set
  or the target is LATEST.

Source: KIP-79; the rewind of a group is its first use case.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tidelog.errors import GroupActive, UnknownGroup, unknown_partition
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.own_logs import Counter, OwnLogs, by_offsets
from tidelog.remote.time_lookup import first_on_clock
from tidelog.remote.view import ClusterView, Committed, Count, Watermarks
from tidelog.types import ClockName, OffsetAndTimestamp, TopicPartition

NOTHING: Final = Count(0, is_exact=True)


class TargetKind(StrEnum):
    """Kind of target of a rewind."""

    TIME = "time"
    EARLIEST = "earliest"
    LATEST = "latest"


class NoMatch(StrEnum):
    """Rule for a partition without a record at or after the time."""

    STAY = "stay"
    END = "end"


class Action(StrEnum):
    """Effect of a rewind on one partition."""

    REWIND = "rewind"
    FORWARD = "forward"
    START = "start"
    STAY = "stay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of a rewind, and the rules for moving there.

    Attributes:
        kind: A point in time, or the start or end of the log.
        time_ms: Time in ms, if `kind` is TIME.
        clock: Clock of the time: record timestamps or append times.
        max_skew_ms: Maximum number of ms by which a record's timestamp may be too early. The search
            is for the target's time minus this number.
        no_match: Rule for partitions without a record at or after the time.
        forward: Whether the group may move forward, skipping records that it has not read.
    """

    kind: TargetKind = TargetKind.TIME
    time_ms: int = 0
    clock: ClockName = ClockName.RECORD
    max_skew_ms: int = 0
    no_match: NoMatch = NoMatch.STAY
    forward: bool = False

    @property
    def lookup_ms(self) -> int:
        """Time to search for, in ms: the target's time minus the maximum skew."""
        return max(self.time_ms - self.max_skew_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Planned move of one partition.

    Attributes:
        partition: The partition.
        old: The group's commit; None if nothing was committed.
        new: Commit after the move; the old commit if the group's offset stays unchanged.
        match: The first record at or after the time; None if there is none, or if the target is the
            start or end of the log.
        action: Whether the group moves back, moves forward, gets its first commit, or keeps its
            offset.
        again: Number of records between the new and the old offset, which the group reads again.
        skipped: Number of records that the move skips, between the old and the new offset. If the
            action is STAY and this number is above 0, the group keeps its offset so that it does
            not skip these records.
        why: Explanation for the user, empty if the action is obvious.
    """

    partition: TopicPartition
    old: Committed | None
    new: Committed | None
    match: OffsetAndTimestamp | None
    action: Action
    again: Count = NOTHING
    skipped: Count = NOTHING
    why: str = ""

    @property
    def is_change(self) -> bool:
        """Whether the move commits an offset."""
        return self.action is not Action.STAY

    @property
    def is_held_back(self) -> bool:
        """Whether the group keeps its offset only because the move would skip unread records."""
        return self.action is Action.STAY and self.skipped.records > 0


def chosen_partitions(
    cluster: ClusterView, group: str, choices: Sequence[tuple[str, int | None]]
) -> list[TopicPartition]:
    """Return the chosen partitions; without choices, all partitions of the group's topics.

    Args:
        cluster: The cluster.
        group: The group.
        choices: Topics, each with a partition number or None for all its partitions.

    Raises:
        UnknownTopic: A topic or partition does not exist.
        UnknownGroup: `choices` is empty, and the group doesn't exist or has no commits.
    """
    if not choices:
        topics = {partition.topic for partition in cluster.committed(group)}
        if not topics:
            cluster.group(group)  # raises UnknownGroup
            raise UnknownGroup(
                f"{cluster.bootstrap}: group {group} has no committed offsets; give --topic"
            )
        choices = [(topic, None) for topic in topics]
    return choice_partitions(choices, cluster.partitions)


def choice_partitions(
    choices: Iterable[tuple[str, int | None]],
    partitions: Callable[[str], Sequence[TopicPartition]],
) -> list[TopicPartition]:
    """Return the chosen partitions.

    Args:
        choices: Topics, each with a partition number or None for all its partitions.
        partitions: Function that returns all partitions of a topic.

    Raises:
        UnknownTopic: A partition does not exist. Errors that `partitions` raises are not changed.
    """
    chosen: set[TopicPartition] = set()
    for topic, number in choices:
        existing = partitions(topic)
        if number is None:
            chosen.update(existing)
        elif TopicPartition(topic, number) in existing:
            chosen.add(TopicPartition(topic, number))
        else:
            raise unknown_partition(topic, len(existing), number)
    return sorted(chosen)


def plan(
    cluster: ClusterView,
    group: str,
    partitions: Iterable[TopicPartition],
    target: Target,
    *,
    own: OwnLogs | None = None,
    counter: Counter = by_offsets,
) -> list[Move]:
    """Plan a rewind; changes nothing.

    Args:
        cluster: The cluster.
        group: The group.
        partitions: The partitions to move.
        target: Target of the move in each partition.
        own: Directory of a broker of the cluster, for append times; None if it is not available.
        counter: Function that counts records between two offsets.

    Raises:
        InvalidRequest: The target is on the append clock but append times are unknown, or `own` has
            a topic of the same name with a different id.
        UnknownTopic, ClusterFailure: A topic is unknown, or the cluster can't be reached.
    """
    names = list(partitions)
    marks = cluster.watermarks(names)
    old = cluster.committed(group, names)
    offsets = _matches(cluster, marks, target, own) if target.kind is TargetKind.TIME else {}
    return [_move(p, old.get(p), marks[p], target, offsets.get(p), counter) for p in names]


def _matches(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    target: Target,
    own: OwnLogs | None,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    time_ms = target.lookup_ms
    if target.clock is ClockName.RECORD:
        return first_on_clock(cluster, marks, time_ms, target.clock)
    ours = [p for p in marks if own is not None and own.has(p)]
    offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    if own is not None:
        offsets |= {p: own.first_appended(p, time_ms) for p in ours}
    rest = {p: mark for p, mark in marks.items() if p not in offsets}
    return offsets | first_on_clock(cluster, rest, time_ms, target.clock, choice="--clock append")


def _move(
    partition: TopicPartition,
    old: Committed | None,
    mark: Watermarks,
    target: Target,
    record: OffsetAndTimestamp | None,
    counter: Counter,
) -> Move:
    new, why = _destination(mark, target, record)
    stay = Move(partition=partition, old=old, new=old, match=record, action=Action.STAY, why=why)
    if new is None:
        return stay
    change = replace(stay, new=new)
    if old is None:
        return replace(change, action=Action.START, why=why or "nothing was committed")
    if new.offset == old.offset:
        return replace(stay, why=why or "already at this offset")
    current = min(max(old.offset, mark.start), mark.end)
    if new.offset <= current:
        action = Action.REWIND if new.offset < old.offset else Action.FORWARD
        return replace(change, action=action, again=counter(partition, new.offset, current))
    skipped = counter(partition, current, new.offset)
    if skipped.records and not (target.forward or target.kind is TargetKind.LATEST):
        why = "the group's offset is still before this time; --forward skips the unread records"
        return replace(stay, skipped=skipped, why=why)
    return replace(change, action=Action.FORWARD, skipped=skipped)


def _destination(
    mark: Watermarks, target: Target, match: OffsetAndTimestamp | None
) -> tuple[Committed | None, str]:
    if target.kind is TargetKind.EARLIEST:
        return Committed(mark.start), ""
    if target.kind is TargetKind.LATEST:
        return Committed(mark.end), ""
    if match is not None and match.offset < mark.start:
        why = "the first records at or after the time were deleted; the target is the log start"
        return Committed(mark.start), why
    if match is not None:
        return Committed(match.offset, match.leader_epoch), ""
    why = "no record at or after the time"
    return (None, why) if target.no_match is NoMatch.STAY else (Committed(mark.end), why)


def active_members(cluster: ClusterView, group: str) -> str:
    """Return the group's members as text; empty if the group has none or doesn't exist."""
    try:
        members = cluster.group(group).members
    except UnknownGroup:
        return ""
    return ", ".join(f"{member.client_id} at {member.host}" for member in members)


def execute(cluster: ClusterView, group: str, moves: Iterable[Move]) -> None:
    """Commit the offsets of a plan.

    Raises:
        GroupActive: The group has members, which would continue from their own positions and
            overwrite the new offsets. Nothing was changed.
        ClusterFailure: The cluster refuses, or can't be reached. The offsets of some partitions may
            have been committed before the error.
    """
    members = active_members(cluster, group)
    if members:
        raise GroupActive(f"group {group} has active members: {members}; stop them first")
    offsets = {m.partition: m.new for m in moves if m.is_change and m.new is not None}
    cluster.commit(group, offsets)
