"""Who of a share group reads which partitions: `simple`, by Kafka's rules.

Every partition is read by the same number of members, as few as leave nobody idle; members get as
many partitions as each other, give or take one, and keep what they had where that allows it. Where
members read different topics, each topic is shared out by itself.

Source: Kafka 4.3's SimpleAssignor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.server.groups.consumer.hash_order import hash_order
from tidelog.server.groups.consumer.member import Target
from tidelog.server.groups.partitioning import java_hash

SIMPLE: Final = "simple"
TopicPartition: TypeAlias = tuple[UUID, int]


def assign_simple(
    readers: Mapping[str, frozenset[UUID]],
    targets: Mapping[str, Target],
    partitions: Mapping[UUID, frozenset[int]],
) -> dict[str, Target]:
    """What each member is to have.

    Args:
        readers: The topics that each member reads, of those that there are.
        targets: What members were to have so far.
        partitions: Those of each topic that may be read.
    """
    members = hash_order(readers, java_hash)
    had = {member: _flat(targets.get(member, {})) for member in members}
    found: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for topics in _pools(readers):
        pool = [(topic, number) for topic in topics for number in sorted(partitions[topic])]
        sharers = [member for member in members if readers[member].issuperset(topics)]
        for member, given in _share_out(pool, sharers, had).items():
            found[member] |= given
    return {member: _nested(given) for member, given in found.items()}


def _pools(readers: Mapping[str, frozenset[UUID]]) -> Iterable[Sequence[UUID]]:
    """Topics that are shared out together: all, or each by itself where members differ."""
    topics = sorted(frozenset[UUID]().union(*readers.values()), key=lambda each: each.int)
    if len(set(readers.values())) == 1:
        return [topics]
    return [[topic] for topic in topics]


def _share_out(
    pool: Sequence[TopicPartition],
    members: Sequence[str],
    had: Mapping[str, frozenset[TopicPartition]],
) -> Mapping[str, set[TopicPartition]]:
    if not pool or not members:
        return {}
    sharing = -(-len(members) // len(pool))
    quotas = dict(zip(members, _quotas(sharing * len(pool), len(members)), strict=True))
    holders: dict[TopicPartition, list[str]] = {each: [] for each in pool}
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for member in members:
        kept = [each for each in pool if each in had[member] and len(holders[each]) < sharing]
        for each in kept[: quotas[member]]:
            holders[each].append(member)
            given[member].add(each)
    wanting = _Wanting(members, quotas, given)
    for each in pool:
        while len(given_to := holders[each]) < sharing:
            member = wanting.next_without(each)
            given_to.append(member)
            given[member].add(each)
    return given


def _quotas(count: int, members: int) -> Iterator[int]:
    """So many partitions for each of so many members, `count` in all."""
    for place in range(members):
        yield -(-count * (place + 1) // members) - -(-count * place // members)


class _Wanting:
    """Members that get something yet, in turn."""

    def __init__(
        self,
        members: Sequence[str],
        quotas: Mapping[str, int],
        given: Mapping[str, set[TopicPartition]],
    ) -> None:
        self._members = members
        self._quotas = quotas
        self._given = given
        self._at = 0

    def next_without(self, wanted: TopicPartition) -> str:
        """The next that has room and lacks a partition; else who lacks it and has least."""
        for step in range(len(self._members)):
            at = (self._at + step) % len(self._members)
            member = self._members[at]
            given = self._given[member]
            if len(given) < self._quotas[member] and wanted not in given:
                self._at = at + 1
                return member
        lacking = (member for member in self._members if wanted not in self._given[member])
        return min(lacking, key=lambda member: len(self._given[member]))


def _flat(target: Target) -> frozenset[TopicPartition]:
    return frozenset((topic, number) for topic, numbers in target.items() for number in numbers)


def _nested(given: Iterable[TopicPartition]) -> Target:
    found: dict[UUID, set[int]] = {}
    for topic, number in sorted(given, key=lambda each: (each[0].int, each[1])):
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}
