"""Rewinds a consumer group to a point in time: the plan, and its execution.

Only `execute` commits. Two rules keep a rewind from skipping records. If a partition has no record
at or after the time, its offset stays (or moves to the end on request). If the group hasn't reached
the time yet, its offset stays, too, because moving forward would skip unread records (again, unless
requested).

Source: KIP-79, whose first use case this is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tidelog.errors import GroupActive, InvalidRequest, UnknownGroup
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.own_logs import Counter, OwnLogs, by_offsets
from tidelog.remote.time_lookup import first_on_clock
from tidelog.remote.view import ClusterView, Committed, Count, Watermarks
from tidelog.types import ClockName, OffsetAndTimestamp, TopicPartition

NOTHING: Final = Count(0, is_exact=True)


class Place(StrEnum):
    """Target of a rewind."""

    TIME = "time"
    EARLIEST = "earliest"
    LATEST = "latest"


class NoMatch(StrEnum):
    """Choice for a partition without a record at or after the time."""

    STAY = "stay"
    END = "end"


class Action(StrEnum):
    """Action for one partition."""

    REWIND = "rewind"
    FORWARD = "forward"
    START = "start"
    STAY = "stay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of each partition, and the rules for moving there.

    Attributes:
        place: A time, or one end of the log.
        time_ms: The time in ms, if `place` is one.
        clock: Which of a record's two times is meant.
        max_skew_ms: By how much a timestamp may be too early; subtracted from the time.
        no_match: Choice for partitions without a record at or after the time.
        forward: Whether to skip records that the group has not read.
    """

    place: Place = Place.TIME
    time_ms: int = 0
    clock: ClockName = ClockName.RECORD
    max_skew_ms: int = 0
    no_match: NoMatch = NoMatch.STAY
    forward: bool = False

    @property
    def lookup_ms(self) -> int:
        """The time to look up: the target's time minus the skew."""
        return max(self.time_ms - self.max_skew_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Planned move of one partition.

    Attributes:
        partition: The partition.
        old: The group's committed offset, None without a commit.
        new: Offset to commit; the old one if the group stays.
        found: The first record at or after the time, None if there is none or no time was looked
            up.
        action: Whether the group goes back, forward, starts here, or stays.
        again: Records between the new and the old offset, which are read again.
        skipped: Records between the old and the new offset, which would not be read; the action
            "stay" skips none of them.
        why: Explanation for people, empty if the action is obvious.
    """

    partition: TopicPartition
    old: Committed | None
    new: Committed | None
    found: OffsetAndTimestamp | None
    action: Action
    again: Count = NOTHING
    skipped: Count = NOTHING
    why: str = ""

    @property
    def is_change(self) -> bool:
        """Whether there is an offset to commit."""
        return self.action is not Action.STAY

    @property
    def is_held_back(self) -> bool:
        """Whether the group stays only because the move would skip records."""
        return self.action is Action.STAY and self.skipped.records > 0


def chosen_partitions(
    cluster: ClusterView, group: str, choices: Sequence[tuple[str, int | None]]
) -> list[TopicPartition]:
    """Return the chosen partitions; without choices, those of all topics of the group.

    Args:
        cluster: The cluster.
        group: The group.
        choices: Topics, with a partition each or None for all.

    Raises:
        UnknownTopic, InvalidRequest: No such topic or partition.
        UnknownGroup: There are no choices, and the group doesn't exist or has no offsets.
    """
    if not choices:
        topics = {partition.topic for partition in cluster.committed(group)}
        if not topics:
            cluster.group(group)  # raises if there is no such group
            raise UnknownGroup(f"{cluster.bootstrap}: group {group} has no offsets; name a --topic")
        choices = [(topic, None) for topic in topics]
    chosen: set[TopicPartition] = set()
    for topic, number in choices:
        existing = cluster.partitions(topic)
        if number is None:
            chosen.update(existing)
        elif TopicPartition(topic, number) in existing:
            chosen.add(TopicPartition(topic, number))
        else:
            raise InvalidRequest(f"{topic} has partitions 0 to {len(existing) - 1}, no {number}")
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
        target: The target of each.
        own: The cluster's own directory, for the append clock.
        counter: Counts records between two offsets.

    Raises:
        InvalidRequest: The append clock is requested, and append times are unknown.
    """
    names = list(partitions)
    marks = cluster.watermarks(names)
    old = cluster.committed(group, names)
    offsets = _found(cluster, marks, target, own) if target.place is Place.TIME else {}
    return [_move(p, old.get(p), marks[p], target, offsets.get(p), counter) for p in names]


def _found(
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
    stay = Move(partition=partition, old=old, new=old, found=record, action=Action.STAY, why=why)
    if new is None:
        return stay
    change = replace(stay, new=new)
    if old is None:
        return replace(change, action=Action.START, why=why or "nothing was committed")
    if new.offset == old.offset:
        return replace(stay, why=why or "is there already")
    stands = min(max(old.offset, mark.start), mark.end)
    if new.offset <= stands:
        action = Action.REWIND if new.offset < old.offset else Action.FORWARD
        return replace(change, action=action, again=counter(partition, new.offset, stands))
    skipped = counter(partition, stands, new.offset)
    if skipped.records and not (target.forward or target.place is Place.LATEST):
        why = "has not come so far; --forward skips what lies between"
        return replace(stay, skipped=skipped, why=why)
    return replace(change, action=Action.FORWARD, skipped=skipped)


def _destination(
    mark: Watermarks, target: Target, match: OffsetAndTimestamp | None
) -> tuple[Committed | None, str]:
    if target.place is Place.EARLIEST:
        return Committed(mark.start), ""
    if target.place is Place.LATEST:
        return Committed(mark.end), ""
    if match is not None and match.offset < mark.start:
        return Committed(mark.start), "the first records of the time are deleted"
    if match is not None:
        return Committed(match.offset, match.leader_epoch), ""
    why = "no record at or after the time"
    return (None, why) if target.no_match is NoMatch.STAY else (Committed(mark.end), why)


def active_members(cluster: ClusterView, group: str) -> str:
    """Return the group's members as text, empty if it has none or doesn't exist yet."""
    try:
        members = cluster.group(group).members
    except UnknownGroup:
        return ""
    return ", ".join(f"{member.client_id} at {member.host}" for member in members)


def execute(cluster: ClusterView, group: str, moves: Iterable[Move]) -> None:
    """Commit the offsets of a plan.

    Raises:
        GroupActive: The group has members, which would continue at their positions and overwrite
            the commit. Nothing was changed.
        ClusterFailure: Some partitions may have been committed.
    """
    members = active_members(cluster, group)
    if members:
        raise GroupActive(f"group {group} has active members: {members}; stop them first")
    offsets = {m.partition: m.new for m in moves if m.is_change and m.new is not None}
    cluster.commit(group, offsets)
