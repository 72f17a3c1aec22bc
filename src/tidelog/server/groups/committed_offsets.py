"""Committed offsets of a group, and offsets that wait for the end of a transaction.

An offset committed in a transaction takes effect at the commit marker, unless a newer commit
exists. Until the marker, a request that requires stable offsets gets a retriable error. Offsets of
topics that no member reads expire. The retention of an offset starts at its commit. Exception: if a
classic group has lost all its members, the retention starts when the group became empty (KIP-211).

Source: Kafka 4.3's OffsetMetadataManager; KIP-98, KIP-211, KIP-447.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.wire import NO_UUID
from tidelog.types import NO_LEADER_EPOCH

NO_EXPIRY: Final = -1
NO_RECORD: Final = -1


class CommittedOffset(NamedTuple):
    """Committed offset of a partition.

    Attributes:
        offset: Offset of the next record to read.
        leader_epoch: Leader epoch of the record before this offset; -1 if unknown.
        metadata: Text from the client.
        commit_ms: Wall time of the commit.
        expire_ms: Wall time of expiry; -1 if the broker's retention applies.
        topic_id: Id of the topic; the zero UUID if unknown.
        record_offset: Offset of the record in `__consumer_offsets`; -1 before it is appended.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = NO_EXPIRY
    topic_id: UUID = NO_UUID
    record_offset: int = NO_RECORD

    def is_expired(self, now_ms: int, since_ms: int, retention_ms: int) -> bool:
        """Whether the offset has expired.

        It expires at `expire_ms` or, without this time, `retention_ms` after `since_ms`.
        """
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - since_ms >= retention_ms

    def is_of_another(self, topic_id: UUID) -> bool:
        """Whether the offset was committed for a topic with an id other than `topic_id`.

        The result is False if one of the two topic ids is unknown.
        """
        return self.topic_id != topic_id and NO_UUID not in (topic_id, self.topic_id)


class DeletedTopic(NamedTuple):
    """Deleted topic. A new topic of the same name may exist.

    Attributes:
        name: Name of the topic.
        topic_id: Id of the topic; None if the topic had no id.
        deleted_ms: Wall time of the deletion.
    """

    name: str
    topic_id: UUID | None
    deleted_ms: int

    def owns(self, offset: CommittedOffset, present: UUID | None) -> bool:
        """Whether an offset was committed for this topic, or for an earlier topic of the same name.

        `present` is the id of the topic that has the name now. If the offset has the deleted
        topic's id, the result is True. If the offset has the id `present`, the result is False,
        even if the commit seems older than the deletion, because clocks are sometimes set back. If
        the offset has neither of these ids, the result is True if the offset was not committed
        after the deletion.
        """
        if offset.topic_id == self.topic_id:
            return True
        return offset.topic_id != present and offset.commit_ms <= self.deleted_ms


class GroupOffsets:
    """Committed offsets of one group, by topic and partition."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """Return a partition's committed offset; None if the partition has no committed offset."""
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, offset: CommittedOffset) -> None:
        """Store a partition's offset."""
        self._topics.setdefault(topic, {})[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        """Remove a partition's offset; no-op if there is none."""
        partitions = self._topics.get(topic)
        if partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del self._topics[topic]

    def topics(self) -> list[str]:
        """Return the topics with committed offsets."""
        return list(self._topics)

    def of_topic(self, topic: str) -> dict[int, CommittedOffset]:
        """Return a topic's offsets by partition; empty without commits. Read-only."""
        return self._topics.get(topic, {})

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._topics.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))


class OffsetChange(NamedTuple):
    """Offset that a group commits for one partition, at once or at the end of a transaction."""

    group_id: str
    topic: str
    partition: int
    offset: CommittedOffset


@dataclass(slots=True, eq=False)
class _Entry:
    """Pending offset.

    Attributes:
        offset: Offset that the transaction commits.
        order: Sequence number of the write.
        is_stale: Whether a newer commit for the partition exists. A stale offset never takes
            effect, but until its transaction ends, requests for stable offsets still get a
            retriable error.
    """

    offset: CommittedOffset
    order: int
    is_stale: bool = False


_Partitions = dict[tuple[str, int], dict[int, _Entry]]


class PendingOffsets:
    """Offsets committed in open transactions, by group and producer.

    Used only in the event loop's thread.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Partitions] = {}
        # Maps a partition number of `__consumer_offsets`, then a producer id, to the ids of the
        # groups for which this producer has pending offsets.
        self._producers: dict[int, dict[int, dict[str, None]]] = {}
        self._order = 0

    # -- queries -----------------------------------------------------------------------------

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has committed an offset for the partition."""
        by_partition = self._groups.get(group_id)
        return by_partition is not None and (topic, partition) in by_partition

    def has_group(self, group_id: str) -> bool:
        """Whether an open transaction has committed any offset of the group."""
        return group_id in self._groups

    def partitions(self, group_id: str) -> Sequence[tuple[str, int]]:
        """Return topic and number of each partition for which a group has pending offsets."""
        return tuple(self._groups.get(group_id, ()))

    def groups_of(self, topic: str) -> Sequence[str]:
        """Return the ids of the groups that have pending offsets for a topic."""
        items = self._groups.items()
        return [
            group_id
            for group_id, by_partition in items
            if any(topic == name for name, _ in by_partition)
        ]

    def offsets(self, group_id: str, topic: str, partition: int) -> Sequence[CommittedOffset]:
        """Return the offsets that open transactions have committed for a partition."""
        entries = self._groups.get(group_id, {}).get((topic, partition), {})
        return [entry.offset for entry in entries.values()]

    # -- changes -----------------------------------------------------------------------------

    def put(
        self,
        number: int,
        producer_id: int,
        offsets: Iterable[OffsetChange],
        *,
        is_stale: bool = False,
    ) -> None:
        """Add pending offsets of a producer, from partition `number` of `__consumer_offsets`."""
        for group_id, topic, partition, offset in offsets:
            self._order += 1
            by_partition = self._groups.setdefault(group_id, {})
            entries = by_partition.setdefault((topic, partition), {})
            entries[producer_id] = _Entry(offset, self._order, is_stale)
            producers = self._producers.setdefault(number, {})
            producers.setdefault(producer_id, {})[group_id] = None

    def supersede(self, group_id: str, topic: str, partition: int) -> None:
        """Mark a partition's pending offsets as stale after a commit without a transaction."""
        for entry in self._groups.get(group_id, {}).get((topic, partition), {}).values():
            entry.is_stale = True

    def forget(self, group_id: str, topic: str, partition: int) -> None:
        """Remove a partition's pending offsets after the committed offset was deleted.

        If the pending offsets were kept, the commit of their transaction would restore the deleted
        offset.
        """
        for producer_id in tuple(self._groups.get(group_id, {}).get((topic, partition), ())):
            self._remove(group_id, (topic, partition), producer_id)

    def take(self, number: int, producer_id: int, *, commit: bool) -> list[OffsetChange]:
        """End a producer's transaction; on commit, return the offsets that take effect now."""
        offsets: list[OffsetChange] = []
        for group_id in self._producers.get(number, {}).pop(producer_id, {}):
            for topic, partition in self.partitions(group_id):
                entry = self._remove(group_id, (topic, partition), producer_id)
                if entry is None or not commit or entry.is_stale:
                    continue
                self._outdate(group_id, (topic, partition), entry.order)
                offsets.append(OffsetChange(group_id, topic, partition, entry.offset))
        return offsets

    def _outdate(self, group_id: str, topic_partition: tuple[str, int], order: int) -> None:
        """Mark the partition's pending offsets that were written before `order` as stale."""
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
        """Remove the pending offsets of a partition of `__consumer_offsets`.

        If `number` is None, remove the pending offsets of all partitions.
        """
        if number is None:
            self._groups.clear()
            self._producers.clear()
            return
        for producer_id in tuple(self._producers.get(number, ())):
            self.take(number, producer_id, commit=False)
