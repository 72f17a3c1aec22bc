"""Who is to have which partitions: `uniform` and `range`, as Kafka's own assignors decide.

`range` gives each member of a topic a run of its partitions; `uniform` balances the number of
partitions and moves as few as it can.

Source: Kafka 4.3's UniformAssignor (members that read the same topics) and RangeAssignor; KIP-848.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.server.groups.consumer.hash_order import hash_order, number_order, uuid_hash
from tidelog.server.groups.consumer.member import Target
from tidelog.server.groups.consumer.mixed import assign_mixed
from tidelog.server.groups.partitioning import java_hash


class MemberSpec(NamedTuple):
    """A member as assignors see it.

    Attributes:
        instance_id: A static member's name.
        topics: Topics that it reads, of those that there are.
        target: What it was to have so far.
    """

    instance_id: str | None
    topics: frozenset[UUID]
    target: Target


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group as assignors see it.

    Attributes:
        members: By id.
        partitions: How many each topic that somebody reads has.
        is_uniform: Whether all members read the same topics.
    """

    members: Mapping[str, MemberSpec]
    partitions: Mapping[UUID, int]
    is_uniform: bool


NOTHING: Final[frozenset[int]] = frozenset()
Targets: TypeAlias = dict[str, Target]
Assignor: TypeAlias = Callable[[GroupSpec], Targets]


def _text_key(text: str) -> bytes:
    """What Java orders strings by: the numbers of UTF-16."""
    return text.encode("utf-16-be", "surrogatepass")


# -- range -------------------------------------------------------------------------------------


def assign_range(spec: GroupSpec) -> Targets:
    """A run of each topic's partitions for each of its readers, the first ones one more."""

    def place(member_id: str) -> tuple[bool, bytes]:
        instance = spec.members[member_id].instance_id
        return instance is None, _text_key(member_id if instance is None else instance)

    members = sorted(spec.members, key=place)
    readers: dict[UUID, list[str]] = {}
    for member_id in members:
        for topic in spec.members[member_id].topics:
            readers.setdefault(topic, []).append(member_id)
    targets: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic in sorted(readers, key=lambda each: each.int):
        share, more = divmod(spec.partitions[topic], len(readers[topic]))
        start = 0
        for number, member_id in enumerate(readers[topic]):
            end = start + share + (number < more)
            if end > start:
                targets[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(targets)


# -- uniform -----------------------------------------------------------------------------------


def assign_uniform(spec: GroupSpec) -> Targets:
    """As many partitions for each as for any other, give or take one; few move."""
    if not spec.members:
        return {}
    order = hash_order(spec.members, java_hash)
    if spec.is_uniform:
        return _assign_same(spec, order)
    return assign_mixed(
        [(member_id, spec.members[member_id].topics) for member_id in order],
        {member_id: spec.members[member_id].target for member_id in order},
        spec.partitions,
    )


def _assign_same(spec: GroupSpec, order: list[str]) -> Targets:
    topics = hash_order(sorted(spec.members[order[0]].topics, key=lambda each: each.int), uuid_hash)
    if not topics:
        return {}
    counts, free = _planned(spec, topics)
    known = frozenset(topics)
    share, more = divmod(sum(spec.partitions[topic] for topic in topics), len(order))
    targets: dict[str, Target] = {}
    wanting: list[tuple[str, int]] = []
    for place, member_id in enumerate(order):
        gets_more = more > 0
        left = share + gets_more - counts[member_id]
        target = spec.members[member_id].target
        if left < 0:
            target, left = _keep(target, known, share + gets_more, free)
        # Who keeps all keeps the very same value: most do, and nothing is written of them.
        targets[member_id] = target
        if left > 0 and gets_more and len(order) - place > more:
            # Whoever comes later may have that one already: it need not move.
            left, gets_more = left - 1, False
        more -= gets_more
        if left > 0:
            wanting.append((member_id, left))
    _hand_out(targets, wanting, free)
    return targets


# More than anybody can have: what is not read any more has to be taken away.
_TOO_MANY: Final = 1 << 40


def _planned(
    spec: GroupSpec, topics: Iterable[UUID]
) -> tuple[dict[str, int], list[tuple[UUID, int]]]:
    """How many partitions each member was to have, and those that nobody was to have, in order."""
    planned: dict[UUID, set[int]] = {topic: set() for topic in topics}
    counts: dict[str, int] = {}
    last: UUID | None = None
    taken: set[int] | None = None
    for member_id, (_, _, target) in spec.members.items():
        count = 0
        for topic, numbers in target.items():
            if topic is not last:  # mostly it is: an id's hash is Python's to compute
                last, taken = topic, planned.get(topic)
            if taken is None:
                count = _TOO_MANY
            else:
                taken |= numbers
                count += len(numbers)
        counts[member_id] = count
    return counts, [
        (topic, number)
        for topic, taken in planned.items()
        for number in range(spec.partitions[topic])
        if number not in taken
    ]


def _keep(
    target: Target, topics: frozenset[UUID], quota: int, free: list[tuple[UUID, int]]
) -> tuple[Target, int]:
    """What a member keeps of what it had, and how many it may still get; the rest is free."""
    kept: dict[UUID, frozenset[int]] = {}
    for topic in hash_order(target, uuid_hash):
        if topic not in topics:
            continue
        numbers = number_order(target[topic])
        stay = numbers[: max(quota, 0)]
        quota -= len(stay)
        if stay:
            kept[topic] = frozenset(stay)
        free.extend((topic, number) for number in numbers[len(stay) :])
    return kept, quota


def _hand_out(
    targets: dict[str, Target],
    wanting: Iterable[tuple[str, int]],
    free: Iterable[tuple[UUID, int]],
) -> None:
    left = iter(free)
    for member_id, quota in wanting:
        gets: dict[UUID, set[int]] = {}
        for topic, number in islice(left, quota):
            gets.setdefault(topic, set()).add(number)
        if gets:
            had = targets[member_id]
            targets[member_id] = {**had, **_joined(had, gets)}
    assert next(left, None) is None, "partitions were left over"


def _joined(had: Target, gets: Mapping[UUID, set[int]]) -> Target:
    return {topic: had.get(topic, NOTHING) | numbers for topic, numbers in gets.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
