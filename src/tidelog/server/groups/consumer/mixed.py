"""The `uniform` assignor where members read different topics.

Everybody keeps what he had and still reads; partitions without a reader go to the topic's least
loaded readers; then each topic in turn moves partitions from its most loaded readers to its least
loaded ones, until a round changes nothing.

Source: Kafka 4.3's UniformHeterogeneousAssignmentBuilder.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tidelog.server.groups.consumer.balancer import Balancer
from tidelog.server.groups.consumer.hash_order import uuid_order
from tidelog.server.groups.consumer.member import Target

# Rounds over all topics; the first ones do nearly all of it.
ROUNDS_MAX: Final = 16
NOBODY: Final = -1


def assign_mixed(
    members: Sequence[tuple[str, frozenset[UUID]]],
    targets: Mapping[str, Target],
    partitions: Mapping[UUID, int],
) -> dict[str, Target]:
    """New targets.

    Args:
        members: Ids with the topics that they read, in the order that decides between equals.
        targets: What each was to have.
        partitions: How many each topic has.
    """
    return _Builder(members, targets, partitions).build()


class _Builder:
    def __init__(
        self,
        members: Sequence[tuple[str, frozenset[UUID]]],
        targets: Mapping[str, Target],
        partitions: Mapping[UUID, int],
    ) -> None:
        self._ids = [member_id for member_id, _ in members]
        self._old = targets
        self._loads = [0] * len(members)
        self._readers: dict[UUID, list[int]] = {}
        for number, (_, topics) in enumerate(members):
            for topic in topics:
                self._readers.setdefault(topic, []).append(number)
        self._owners = {topic: [NOBODY] * partitions[topic] for topic in self._readers}

    def build(self) -> dict[str, Target]:
        if not self._owners:
            return {}
        self._keep()
        topics = sorted(self._readers, key=self._weight)
        for topic in topics:
            self._assign_free(topic)
        self._balance([topic for topic in topics if len(self._readers[topic]) > 1])
        return self._targets()

    def _weight(self, topic: UUID) -> tuple[float, int, tuple[int, int]]:
        """Many partitions for each reader first, then few readers, then the id."""
        readers = len(self._readers[topic])
        return -(len(self._owners[topic]) / readers), readers, uuid_order(topic)

    def _keep(self) -> None:
        for number, member_id in enumerate(self._ids):
            for topic, parts in self._old[member_id].items():
                owners = self._owners.get(topic)
                if owners is None or number not in self._readers[topic]:
                    continue
                self._loads[number] += len(parts)
                for part in parts:
                    owners[part] = number

    def _assign_free(self, topic: UUID) -> None:
        owners = self._owners[topic]
        balancer = Balancer(self._loads, self._readers[topic])
        for part, owner in enumerate(owners):
            if owner == NOBODY:
                self._give(owners, part, balancer.next_least_loaded())

    def _give(self, owners: list[int], part: int, number: int) -> None:
        if owners[part] != NOBODY:
            self._loads[owners[part]] -= 1
        owners[part] = number
        self._loads[number] += 1

    def _balance(self, topics: Sequence[UUID]) -> None:
        last_changed: int | None = None
        for _ in range(ROUNDS_MAX):
            for place, topic in enumerate(topics):
                if place == last_changed:
                    return  # a whole round has changed nothing
                if self._balance_topic(topic) or last_changed is None:
                    last_changed = place

    def _balance_topic(self, topic: UUID) -> int:
        """How many of the topic's partitions moved."""
        balancer = Balancer(self._loads, self._readers[topic])
        if balancer.imbalance <= 1:
            return 0
        owners = self._owners[topic]
        parts: dict[int, list[int]] = {}
        for part, owner in enumerate(owners):
            parts.setdefault(owner, []).append(part)
        moved = 0
        while not balancer.is_balanced():
            giver = _next_giver(balancer, parts)
            if giver is None:
                break
            part = parts[giver].pop()
            taker = balancer.next_least_loaded()
            if balancer.is_balanced():
                break
            self._give(owners, part, taker)
            moved += 1
        return moved

    def _targets(self) -> dict[str, Target]:
        found: list[dict[UUID, set[int]]] = [{} for _ in self._ids]
        for topic, owners in self._owners.items():
            for part, owner in enumerate(owners):
                if owner != NOBODY:
                    found[owner].setdefault(topic, set()).add(part)
        return {
            member_id: {topic: frozenset(parts) for topic, parts in found[number].items()}
            for number, member_id in enumerate(self._ids)
        }


def _next_giver(balancer: Balancer, parts: Mapping[int, list[int]]) -> int | None:
    """The next most loaded member that still has one of the topic's partitions."""
    while (number := balancer.next_most_loaded()) is not None:
        if parts.get(number):
            return number
        balancer.exclude_most_loaded()
    return None
