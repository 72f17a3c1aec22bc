"""Server-side assignors: `uniform` and `range` for consumer groups, `simple` for share groups.

`range` gives each subscriber of a topic a contiguous range of the topic's partitions. `uniform`
balances how many partitions each member has, and moves few partitions (`mixed_assignor` handles
members with different topics). `simple` assigns every partition to the same number of members: the
smallest number that leaves no member idle. The members' partition counts are balanced, and members
keep partitions where possible. If members subscribe to different topics, `simple` assigns each
topic separately. Ties are broken by the iteration order of Java's hash tables, as in Kafka.

Source: Kafka 4.3's UniformAssignor, RangeAssignor and SimpleAssignor; KIP-848, KIP-932.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.lazy_dataclass import dataclass
from tidelog.server.coordinator.java_hash import (
    ample_table_size,
    hash_order,
    java_hash,
    number_order,
    uuid_hash,
)
from tidelog.server.groups.mixed_assignor import assign_mixed
from tidelog.server.groups.modern_group import Target


class MemberSpec(NamedTuple):
    """Member of a group, as input of an assignor.

    Attributes:
        instance_id: Group instance id; None for a dynamic member.
        topics: Ids of the existing topics that the member subscribes to.
        target: Previous target assignment.
    """

    instance_id: str | None
    topics: frozenset[UUID]
    target: Target


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Group, as input of an assignor.

    Attributes:
        members: Members by member id.
        partitions: Number of partitions of each subscribed topic.
        is_uniform: Whether all members subscribe to the same topics.
    """

    members: Mapping[str, MemberSpec]
    partitions: Mapping[UUID, int]
    is_uniform: bool


NOTHING: Final[frozenset[int]] = frozenset()
Targets: TypeAlias = dict[str, Target]
Assignor: TypeAlias = Callable[[GroupSpec], Targets]


def _text_key(text: str) -> bytes:
    """Return the sort key for Java's order of strings, which compares UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


# -- range -------------------------------------------------------------------------------------


def assign_range(spec: GroupSpec) -> Targets:
    """Assign a contiguous range of each topic's partitions to each subscriber of the topic.

    If a topic's partitions can't be divided evenly, the topic's first subscribers get one partition
    more than the others.
    """

    def sort_key(member_id: str) -> tuple[bool, bytes]:
        instance = spec.members[member_id].instance_id
        return instance is None, _text_key(member_id if instance is None else instance)

    members = sorted(spec.members, key=sort_key)
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
    """Balance the number of partitions per member, and move few partitions.

    If all members subscribe to the same topics, the members' partition counts differ by at most
    one.
    """
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
    topic_ids = frozenset(topics)
    share, more = divmod(sum(spec.partitions[topic] for topic in topics), len(order))
    targets: dict[str, Target] = {}
    wanting: list[tuple[str, int]] = []
    for index, member_id in enumerate(order):
        gets_more = more > 0
        quota = share + gets_more - counts[member_id]
        target = spec.members[member_id].target
        if quota < 0:
            target, quota = _keep(target, topic_ids, share + gets_more, free)
        # Most members keep all their partitions. The target of such a member remains the same
        # object, so no record is written for it.
        targets[member_id] = target
        if quota > 0 and gets_more and len(order) - index > more:
            # A member further back in `order` may already have `share` + 1 partitions. So the
            # member `member_id` gets only `share`, and the other member keeps all its partitions.
            quota, gets_more = quota - 1, False
        more -= gets_more
        if quota > 0:
            wanting.append((member_id, quota))
    _hand_out(targets, wanting, free)
    return targets


# Minimum partition count that `_planned` returns for a member with partitions of topics to which
# the member does not subscribe. This count is above every quota, so `_keep` revokes the partitions
# of these topics.
_TOO_MANY: Final = 1 << 40


def _planned(
    spec: GroupSpec, topics: Iterable[UUID]
) -> tuple[dict[str, int], list[tuple[UUID, int]]]:
    """Return the count of target partitions per member, and the unassigned partitions by topic.

    The count is at least `_TOO_MANY` for a member with partitions of topics to which it does not
    subscribe.
    """
    planned: dict[UUID, set[int]] = {topic: set() for topic in topics}
    counts: dict[str, int] = {}
    last: UUID | None = None
    planned_numbers: set[int] | None = None
    for member_id, (_, _, target) in spec.members.items():
        count = 0
        for topic, numbers in target.items():
            if topic is not last:  # saves a slow hash while the topic is the same
                last, planned_numbers = topic, planned.get(topic)
            if planned_numbers is None:
                count = _TOO_MANY
            else:
                planned_numbers |= numbers
                count += len(numbers)
        counts[member_id] = count
    return counts, [
        (topic, number)
        for topic, planned_numbers in planned.items()
        for number in range(spec.partitions[topic])
        if number not in planned_numbers
    ]


def _keep(
    target: Target, topics: frozenset[UUID], quota: int, free: list[tuple[UUID, int]]
) -> tuple[Target, int]:
    """Return the partitions that a member keeps, and how many more it may get.

    The partitions that the member loses are added to `free`.
    """
    retained: dict[UUID, frozenset[int]] = {}
    for topic in hash_order(target, uuid_hash):
        if topic not in topics:
            continue
        numbers = number_order(target[topic])
        stay = numbers[: max(quota, 0)]
        quota -= len(stay)
        if stay:
            retained[topic] = frozenset(stay)
        free.extend((topic, number) for number in numbers[len(stay) :])
    return retained, quota


def _hand_out(
    targets: dict[str, Target],
    wanting: Iterable[tuple[str, int]],
    free: Iterable[tuple[UUID, int]],
) -> None:
    unassigned = iter(free)
    for member_id, quota in wanting:
        gets: dict[UUID, set[int]] = {}
        for topic, number in islice(unassigned, quota):
            gets.setdefault(topic, set()).add(number)
        if gets:
            had = targets[member_id]
            targets[member_id] = {**had, **_joined(had, gets)}
    assert next(unassigned, None) is None, "partitions were left over"


def _joined(had: Target, gets: Mapping[UUID, set[int]]) -> Target:
    return {topic: had.get(topic, NOTHING) | numbers for topic, numbers in gets.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
SIMPLE: Final = "simple"
TopicPartition: TypeAlias = tuple[UUID, int]


def assign_simple(
    readers: Mapping[str, frozenset[UUID]],
    targets: Mapping[str, Target],
    partitions: Mapping[UUID, frozenset[int]],
) -> dict[str, Target]:
    """Return each member's target assignment by the assignor `simple`.

    Args:
        readers: By member id: the existing topics that the member subscribes to.
        targets: Previous target assignments, by member id.
        partitions: By topic id: the numbers of the partitions that may be assigned.
    """
    members = hash_order(readers, java_hash)
    had = {member: _flat(targets.get(member, {})) for member in members}
    assignments: dict[str, set[TopicPartition]] = {member: set() for member in members}
    topics = sorted(frozenset[UUID]().union(*readers.values()), key=lambda each: each.int)
    are_alike = len(set(readers.values())) == 1
    for together in [topics] if are_alike else [[topic] for topic in topics]:
        pool = [(topic, number) for topic in together for number in sorted(partitions[topic])]
        if are_alike:
            pool = hash_order(pool, _hash, ample_table_size(len(pool)))
        sharers = [member for member in members if readers[member].issuperset(together)]
        order = _by_hash if are_alike else list[TopicPartition]
        for member, assigned in _share_out(pool, sharers, had, order).items():
            assignments[member] |= assigned
    return {member: _nested(assigned) for member, assigned in assignments.items()}


def _by_hash(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return hash_order(partitions, _hash)


def _share_out(
    pool: Sequence[TopicPartition],
    members: Sequence[str],
    had: Mapping[str, frozenset[TopicPartition]],
    order: Callable[[Iterable[TopicPartition]], list[TopicPartition]],
) -> Mapping[str, set[TopicPartition]]:
    """Distribute a pool's partitions among members that subscribe to all topics of the pool."""
    if not pool or not members:
        return {}
    sharing = -(-len(members) // len(pool))
    quotas = dict(zip(members, _quotas(sharing * len(pool), len(members)), strict=True))
    assigned: dict[str, set[TopicPartition]] = {}
    holders: dict[TopicPartition, list[str]] = {each: [] for each in pool}
    order_of, shared = {each: index for index, each in enumerate(pool)}, frozenset(pool)
    for member in members:
        # Sort the member's partitions in the pool's order, without iterating over the whole pool
        # for each member.
        still = order(sorted(had[member] & shared, key=order_of.__getitem__))
        # A member with too many partitions gives up its first partitions, as in Kafka.
        assigned[member] = set(still[max(len(still) - quotas[member], 0) :])
        for each in assigned[member]:
            holders[each].append(member)
    for each, sharers in holders.items():
        for member in sharers[: max(len(sharers) - sharing, 0)]:
            assigned[member].remove(each)
            sharers.remove(member)
    _fill(pool, holders, sharing, _Wanting(members, quotas, assigned))
    return assigned


def _fill(
    pool: Iterable[TopicPartition],
    holders: Mapping[TopicPartition, list[str]],
    sharing: int,
    wanting: "_Wanting",
) -> None:
    """Assign each partition of the pool to more members, until `sharing` members have it."""
    for each in pool:
        while len(holders[each]) < sharing:
            holders[each].append(wanting.take(each))


def _quotas(count: int, members: int) -> Iterator[int]:
    """Divide `count` into one quota for each of `members` members.

    The quotas differ by at most one.
    """
    for index in range(members):
        yield -(-count * (index + 1) // members) - -(-count * index // members)


class _Wanting:
    """Members with unused quota, visited round-robin."""

    def __init__(
        self,
        members: Sequence[str],
        quotas: Mapping[str, int],
        assigned: Mapping[str, set[TopicPartition]],
    ) -> None:
        self._members = members
        self._quotas = quotas
        self._assigned = assigned
        self._at = 0

    def take(self, partition: TopicPartition) -> str:
        """Assign a partition to the next eligible member and return the member's id."""
        member = self._next_without(partition)
        self._assigned[member].add(partition)
        return member

    def _next_without(self, partition: TopicPartition) -> str:
        """Return the next member with unused quota that lacks the partition.

        If every member with unused quota already has the partition, return the member with the
        fewest partitions among the members that lack it.
        """
        for step in range(len(self._members)):
            at = (self._at + step) % len(self._members)
            member = self._members[at]
            assigned = self._assigned[member]
            if len(assigned) < self._quotas[member] and partition not in assigned:
                self._at = at + 1
                return member
        lacking = (member for member in self._members if partition not in self._assigned[member])
        return min(lacking, key=lambda member: len(self._assigned[member]))


def _hash(partition: TopicPartition) -> int:
    """Compute Java's hash of a topic id and partition number."""
    return 31 * uuid_hash(partition[0]) + partition[1]


def _flat(target: Target) -> frozenset[TopicPartition]:
    return frozenset((topic, number) for topic, numbers in target.items() for number in numbers)


def _nested(partitions: Iterable[TopicPartition]) -> Target:
    by_topic: dict[UUID, set[int]] = {}
    for topic, number in sorted(partitions, key=lambda each: (each[0].int, each[1])):
        by_topic.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in by_topic.items()}
