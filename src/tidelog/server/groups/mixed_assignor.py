"""The `uniform` assignor for members that subscribe to different topics.

Members keep their partitions of topics that they still read. Unassigned partitions go to the
topic's least loaded readers. Then, topic by topic, partitions move from the topic's most loaded to
its least loaded readers. This ends when a round over all topics changes nothing, or after
`ROUNDS_MAX` rounds.

The readers of a topic are sorted by load, in ascending order. The least loaded readers are the left
range, and the most loaded readers are the right range. When each reader of the left range has got a
partition, the left range grows to the right. When each reader of the right range has given up a
partition, the right range grows to the left. The topic is balanced when the loads in the left range
and in the right range differ by at most one.

Source: Kafka 4.3's UniformHeterogeneousAssignmentBuilder, including its choices between equal
members.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tidelog.server.coordinator.java_hash import uuid_order
from tidelog.server.groups.modern_group import Target


class Balancer:
    """Readers of one topic, sorted by load. The caller updates `loads` when partitions move."""

    def __init__(self, loads: Sequence[int], readers: Sequence[int]) -> None:
        """Sort the readers by load.

        Args:
            loads: Number of partitions of each member, by the member's number.
            readers: Numbers of the topic's readers; at least one.
        """
        self._loads = loads
        self._row = sorted(readers, key=lambda number: (loads[number], number))
        self._least_end = 0
        self._least_load = loads[self._row[0]] - 1
        self._next_least = 0
        self._most_start = len(self._row)
        self._most_end = len(self._row)
        self._most_load = loads[self._row[-1]] + 1
        self._next_most = len(self._row) - 1

    @property
    def imbalance(self) -> int:
        """Difference between the largest and the smallest load of a reader, before any move."""
        return self._loads[self._row[-1]] - self._loads[self._row[0]]

    def is_balanced(self) -> bool:
        """Whether the loads of the two ranges differ by at most one."""
        return self._most_load - self._least_load <= 1

    def next_least_loaded(self) -> int:
        """Return the number of the reader that gets the next partition."""
        if self._next_least >= self._least_end:
            self._least_load += 1
            while (
                self._least_end < len(self._row)
                and self._loads[self._row[self._least_end]] == self._least_load
            ):
                self._least_end += 1
            self._next_least = 0
        number = self._row[self._next_least]
        self._next_least += 1
        return number

    def next_most_loaded(self) -> int | None:
        """Return the number of the reader that gives up a partition; None if no reader is left."""
        if self._next_most < self._most_start:
            if self._most_end <= self._most_start and self._most_start > 0:
                # All readers of the right range were excluded, so continue with the reader to the
                # left of this range.
                self._most_load = self._loads[self._row[self._most_start - 1]]
            else:
                self._most_load -= 1
            while (
                self._most_start > 0
                and self._loads[self._row[self._most_start - 1]] == self._most_load
            ):
                self._most_start -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return None
        number = self._row[self._next_most]
        self._next_most -= 1
        return number

    def exclude_most_loaded(self) -> None:
        """Exclude the reader that `next_most_loaded` returned: it has no partition to give up.

        The excluded reader moves to the right end of the right range, and the range becomes shorter
        by this reader.
        """
        at, end = self._next_most + 1, self._most_end - 1
        self._row[at], self._row[end] = self._row[end], self._row[at]
        self._most_end -= 1


# Maximum number of rounds over all topics. The first few rounds do nearly all the work.
ROUNDS_MAX: Final = 16

NO_OWNER: Final = -1


def assign_mixed(
    members: Sequence[tuple[str, frozenset[UUID]]],
    targets: Mapping[str, Target],
    partitions: Mapping[UUID, int],
) -> dict[str, Target]:
    """Return the new target assignment of each member.

    Args:
        members: Ids and topics of the members, in the order that breaks ties.
        targets: Previous target assignments, by member id.
        partitions: Number of partitions of each topic.
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
        self._owners = {topic: [NO_OWNER] * partitions[topic] for topic in self._readers}

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
        """Return the sort key of a topic.

        Topics with more partitions per reader come first, then topics with fewer readers. Ties are
        broken by the order of topic ids.
        """
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
            if owner == NO_OWNER:
                self._assign(owners, part, balancer.next_least_loaded())

    def _assign(self, owners: list[int], part: int, number: int) -> None:
        if owners[part] != NO_OWNER:
            self._loads[owners[part]] -= 1
        owners[part] = number
        self._loads[number] += 1

    def _balance(self, topics: Sequence[UUID]) -> None:
        last_changed: int | None = None
        for _ in range(ROUNDS_MAX):
            for index, topic in enumerate(topics):
                if index == last_changed:
                    return  # a whole round has changed nothing
                if self._balance_topic(topic) or last_changed is None:
                    last_changed = index

    def _balance_topic(self, topic: UUID) -> int:
        """Balance one topic; return the number of partitions that moved."""
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
            self._assign(owners, part, taker)
            moved += 1
        return moved

    def _targets(self) -> dict[str, Target]:
        targets: list[dict[UUID, set[int]]] = [{} for _ in self._ids]
        for topic, owners in self._owners.items():
            for part, owner in enumerate(owners):
                if owner != NO_OWNER:
                    targets[owner].setdefault(topic, set()).add(part)
        return {
            member_id: {topic: frozenset(parts) for topic, parts in targets[number].items()}
            for number, member_id in enumerate(self._ids)
        }


def _next_giver(balancer: Balancer, parts: Mapping[int, list[int]]) -> int | None:
    """Return the number of the next most loaded member that still has a partition of the topic."""
    while (number := balancer.next_most_loaded()) is not None:
        if parts.get(number):
            return number
        balancer.exclude_most_loaded()
    return None
