"""Who of a share group reads which partitions: `simple`, by Kafka's rules.

Every partition is read by the same number of members, as few as leave nobody idle; members get as
many partitions as each other, give or take one, and keep what they had where that allows it. Where
members read different topics, each topic is shared out by itself. Between equals the order of
Java's hash tables decides, as in Kafka.

Source: Kafka 4.3's SimpleAssignor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.server.groups.consumer.hash_order import ample_table_size, hash_order, uuid_hash
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
    topics = sorted(frozenset[UUID]().union(*readers.values()), key=lambda each: each.int)
    are_alike = len(set(readers.values())) == 1
    for together in [topics] if are_alike else [[topic] for topic in topics]:
        pool = [(topic, number) for topic in together for number in sorted(partitions[topic])]
        if are_alike:
            pool = hash_order(pool, _hash, ample_table_size(len(pool)))
        sharers = [member for member in members if readers[member].issuperset(together)]
        order = _by_hash if are_alike else list[TopicPartition]
        for member, given in _share_out(pool, sharers, had, order).items():
            found[member] |= given
    return {member: _nested(given) for member, given in found.items()}


def _by_hash(given: Iterable[TopicPartition]) -> list[TopicPartition]:
    return hash_order(given, _hash)


def _share_out(
    pool: Sequence[TopicPartition],
    members: Sequence[str],
    had: Mapping[str, frozenset[TopicPartition]],
    order: Callable[[Iterable[TopicPartition]], list[TopicPartition]],
) -> Mapping[str, set[TopicPartition]]:
    """Partitions of the pool for members that may read all of it."""
    if not pool or not members:
        return {}
    sharing = -(-len(members) // len(pool))
    quotas = dict(zip(members, _quotas(sharing * len(pool), len(members)), strict=True))
    given: dict[str, set[TopicPartition]] = {}
    holders: dict[TopicPartition, list[str]] = {each: [] for each in pool}
    places, shared = {each: place for place, each in enumerate(pool)}, frozenset(pool)
    for member in members:
        # In the pool's order. The smaller set is gone through, not the pool for each member.
        still = order(sorted(had[member] & shared, key=places.__getitem__))
        # Who has too many gives the first ones up, as in Kafka.
        given[member] = set(still[max(len(still) - quotas[member], 0) :])
        for each in given[member]:
            holders[each].append(member)
    for each, sharers in holders.items():
        for member in sharers[: max(len(sharers) - sharing, 0)]:
            given[member].remove(each)
            sharers.remove(member)
    _fill(pool, holders, sharing, _Wanting(members, quotas, given))
    return given


def _fill(
    pool: Iterable[TopicPartition],
    holders: Mapping[TopicPartition, list[str]],
    sharing: int,
    wanting: "_Wanting",
) -> None:
    """Give each partition to as many members as are to read it."""
    for each in pool:
        while len(holders[each]) < sharing:
            holders[each].append(wanting.take(each))


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

    def take(self, wanted: TopicPartition) -> str:
        """Who gets a partition, and has it then."""
        member = self._next_without(wanted)
        self._given[member].add(wanted)
        return member

    def _next_without(self, wanted: TopicPartition) -> str:
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


def _hash(partition: TopicPartition) -> int:
    """Java's hash of a topic's id and a number."""
    return 31 * uuid_hash(partition[0]) + partition[1]


def _flat(target: Target) -> frozenset[TopicPartition]:
    return frozenset((topic, number) for topic, numbers in target.items() for number in numbers)


def _nested(given: Iterable[TopicPartition]) -> Target:
    found: dict[UUID, set[int]] = {}
    for topic, number in sorted(given, key=lambda each: (each[0].int, each[1])):
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}
