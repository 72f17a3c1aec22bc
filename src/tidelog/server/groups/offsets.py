"""Committed offsets: one group's, and when they are forgotten.

Source: Kafka 4.3's offset manager; KIP-211 (expiry by the time since when a group is empty).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
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
