"""Committed offsets of a group, and offsets that wait for the end of a transaction.

An offset committed in a transaction counts from the commit marker on, unless a newer commit exists.
Until then a request for stable offsets only gets a retriable error. Offsets expire by the time
since the group became empty (KIP-211).

Source: Kafka 4.3's OffsetMetadataManager; KIP-98, KIP-211, KIP-447.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.protocol.wire import NO_UUID
from tidelog.types import NO_LEADER_EPOCH

NO_EXPIRY: Final = -1


NO_RECORD: Final = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group committed for a partition.

    Attributes:
        offset: The next record that it reads.
        leader_epoch: Epoch of the record before it, -1 where unknown.
        metadata: The client's own words.
        commit_ms: Wall time of the commit.
        expire_ms: Wall time from which it is forgotten, -1 where the broker's rule decides.
        topic_id: The topic's id, zero where it was not known.
        record_offset: Where in `__consumer_offsets` it stands, -1 where it does not yet.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = NO_EXPIRY
    topic_id: UUID = NO_UUID
    record_offset: int = NO_RECORD

    def is_expired(self, now_ms: int, since_ms: int, retention_ms: int) -> bool:
        """Whether it is forgotten now, `retention_ms` after `since_ms` or as it says itself."""
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - since_ms >= retention_ms

    def is_of_another(self, topic_id: UUID) -> bool:
        """Whether it was committed for another topic than this one, as far as both are known."""
        return self.topic_id != topic_id and NO_UUID not in (topic_id, self.topic_id)


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that was deleted; there may be a new one of its name.

    Attributes:
        name: Its name.
        topic_id: Its id, None where it had none.
        deleted_ms: Wall time of the deletion.
    """

    name: str
    topic_id: UUID | None
    deleted_ms: int

    def had(self, offset: CommittedOffset, present: UUID | None) -> bool:
        """Whether an offset was committed for it, or for one of its name before it.

        A record may lack the id, then its time decides. Clocks are set back now and then: what is
        of the present topic, where there is one, stays whatever its time.
        """
        if offset.topic_id == self.topic_id:
            return True
        return offset.topic_id != present and offset.commit_ms <= self.deleted_ms


class GroupOffsets:
    """All that one group has committed, by topic and partition."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """One partition's, None where there is none."""
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, offset: CommittedOffset) -> None:
        """Keep one partition's."""
        self._topics.setdefault(topic, {})[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        """Forget one partition's; fine where there is none."""
        partitions = self._topics.get(topic)
        if partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del self._topics[topic]

    def topics(self) -> list[str]:
        """The topics that something was committed for."""
        return list(self._topics)

    def of_topic(self, topic: str) -> dict[int, CommittedOffset]:
        """A topic's partitions; empty where there are none. Not to be changed."""
        return self._topics.get(topic, {})

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._topics.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))


class PendingOffset(NamedTuple):
    """One partition's part of a TxnOffsetCommit."""

    group_id: str
    topic: str
    partition: int
    offset: CommittedOffset


@dataclass(slots=True)
class _Entry:
    """A pending offset.

    Attributes:
        offset: What it is.
        order: Counts up with each write.
        is_stale: Something newer was committed; it still holds up who asks for stable offsets.
    """

    offset: CommittedOffset
    order: int
    is_stale: bool = False


_Places = dict[tuple[str, int], dict[int, _Entry]]


class PendingOffsets:
    """All of them, by group and by producer. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._groups: dict[str, _Places] = {}
        # Groups that producers have committed for, by partition of `__consumer_offsets`.
        self._producers: dict[int, dict[int, dict[str, None]]] = {}
        self._order = 0

    def __len__(self) -> int:
        """Of how many transactions, counted once for each partition of the topic."""
        return sum(map(len, self._producers.values()))

    # -- questions ---------------------------------------------------------------------------

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that is open has committed for it."""
        by_partition = self._groups.get(group_id)
        return by_partition is not None and (topic, partition) in by_partition

    def has_group(self, group_id: str) -> bool:
        """Whether a transaction that is open has committed anything for a group."""
        return group_id in self._groups

    def places(self, group_id: str) -> Sequence[tuple[str, int]]:
        """Topics and partitions of a group that have something pending."""
        return tuple(self._groups.get(group_id, ()))

    def groups_of(self, topic: str) -> Sequence[str]:
        """Groups that have something of a topic pending."""
        items = self._groups.items()
        return [
            group_id
            for group_id, by_partition in items
            if any(topic == name for name, _ in by_partition)
        ]

    def offsets(self, group_id: str, topic: str, partition: int) -> Sequence[CommittedOffset]:
        """What open transactions have committed for a partition."""
        entries = self._groups.get(group_id, {}).get((topic, partition), {})
        return [entry.offset for entry in entries.values()]

    # -- changes -----------------------------------------------------------------------------

    def put(
        self,
        number: int,
        producer_id: int,
        offsets: Iterable[PendingOffset],
        *,
        is_stale: bool = False,
    ) -> None:
        """A producer has committed for a group of this partition of `__consumer_offsets`."""
        for group_id, topic, partition, offset in offsets:
            self._order += 1
            by_partition = self._groups.setdefault(group_id, {})
            entries = by_partition.setdefault((topic, partition), {})
            entries[producer_id] = _Entry(offset, self._order, is_stale)
            producers = self._producers.setdefault(number, {})
            producers.setdefault(producer_id, {})[group_id] = None

    def supersede(self, group_id: str, topic: str, partition: int) -> None:
        """Something newer was committed for it, outside of a transaction."""
        for entry in self._groups.get(group_id, {}).get((topic, partition), {}).values():
            entry.is_stale = True

    def forget(self, group_id: str, topic: str, partition: int) -> None:
        """What was committed for it was deleted, and nothing that is pending brings it back."""
        for producer_id in tuple(self._groups.get(group_id, {}).get((topic, partition), ())):
            self._remove(group_id, (topic, partition), producer_id)

    def take(self, number: int, producer_id: int, *, commit: bool) -> list[PendingOffset]:
        """A producer's transaction has ended; where it was committed, what counts from now on."""
        offsets: list[PendingOffset] = []
        for group_id in self._producers.get(number, {}).pop(producer_id, {}):
            for topic, partition in self.places(group_id):
                entry = self._remove(group_id, (topic, partition), producer_id)
                if entry is None or not commit or entry.is_stale:
                    continue
                self._outdate(group_id, (topic, partition), entry.order)
                offsets.append(PendingOffset(group_id, topic, partition, entry.offset))
        return offsets

    def _outdate(self, group_id: str, topic_partition: tuple[str, int], order: int) -> None:
        """What others wrote for the same place before has no say any more."""
        for other in self._groups.get(group_id, {}).get(topic_partition, {}).values():
            other.is_stale |= other.order < order

    def _remove(
        self, group_id: str, topic_partition: tuple[str, int], producer_id: int
    ) -> _Entry | None:
        by_partition = self._groups.get(group_id, {})
        entries = by_partition.get(topic_partition, {})
        entry = entries.pop(producer_id, None)
        if not entries:
            by_partition.pop(topic_partition, None)
        if not by_partition:
            self._groups.pop(group_id, None)
        return entry

    def unload(self, number: int | None) -> None:
        """A partition of `__consumer_offsets`, or all (None), is not served any more."""
        if number is None:
            self._groups.clear()
            self._producers.clear()
            return
        for producer_id in tuple(self._producers.get(number, ())):
            self.take(number, producer_id, commit=False)
