"""One share group. Nothing here waits, writes or decides.

It is changed only by what `changes` apply, whether they were just written or are read again after
a restart.

Source: Kafka 4.3's share groups; KIP-932.
"""

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from tidelog.server.groups.consumer.group import FIRST_EPOCH
from tidelog.server.groups.offsets import GroupOffsets
from tidelog.server.groups.share.member import ShareAsks, ShareMember, SharePlace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tidelog.server.groups.consumer.member import Target
    from tidelog.server.timers import Timer

SHARE_PROTOCOL: Final = "share"


class ShareGroupState(Enum):
    """Where a group stands; the values are what ListGroups and ShareGroupDescribe say."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class SharedTopic:
    """Partitions of a topic whose delivery is kept for the group."""

    name: str
    partitions: frozenset[int]


class ShareGroup:
    """Members, their targets and what they have. Belongs to the loop's thread.

    Attributes:
        group_id: Its name.
        epoch: Counts up with each change of members, subscriptions or topics.
        metadata_hash: Of the topics that it reads.
        target_epoch: The epoch of the target assignment; below `epoch` a new one is due.
        target_ms: Wall time at which the target was made, 0 before.
        founded_ms: Wall time at which its first member came, 0 where it was read from the log.
        members: By id.
        targets: What each member is to have.
        shared: Topics that the group has begun to read, by id; they stay when nobody reads them.
        offsets: Always empty: a share group commits none.
        seen_topics: The topics as they were when the hash was made: another mapping is another
            state of the cluster.
        sessions: When each member is given up.
    """

    protocol_type: Final = SHARE_PROTOCOL

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_ms = 0
        self.founded_ms = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Target] = {}
        self.shared: Mapping[UUID, SharedTopic] = {}
        self.offsets = GroupOffsets()
        self.seen_topics: Mapping[str, object] | None = None
        self.sessions: dict[str, Timer] = {}
        self._names: Counter[str] = Counter()

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def state(self) -> ShareGroupState:
        """Where it stands."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def is_subscribed(self, topic: str) -> bool:
        """Whether some member reads a topic."""
        return topic in self._names

    def names_after(self, known: ShareAsks | None, new: ShareAsks | None) -> set[str]:
        """Topics that members read once one, so far as in `known`, asks for something else."""
        counts = self._names.copy()
        counts.subtract(() if known is None else known.topics)
        counts.update(() if new is None else new.topics)
        return set(+counts)

    # -- changes -----------------------------------------------------------------------------

    def put_asks(self, member_id: str, asks: ShareAsks) -> None:
        """A member came, or asks for something else."""
        known = self.members.get(member_id)
        member = ShareMember(member_id) if known is None else known
        self._names.subtract(member.asks.topics)
        self._names.update(asks.topics)
        self._names = +self._names
        self.members[member_id] = replace(member, asks=asks)

    def put_place(self, member_id: str, place: SharePlace) -> None:
        """A member moved; fine where it is not there."""
        member = self.members.get(member_id)
        if member is not None:
            self.members[member_id] = replace(member, place=place)

    def remove(self, member_id: str) -> None:
        """A member went; fine where it was not there."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._names.subtract(member.asks.topics)
            self._names = +self._names

    # -- time --------------------------------------------------------------------------------

    def stop(self, member_id: str) -> None:
        """A member's silence matters no more; fine where nobody waited."""
        timer = self.sessions.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def unload(self) -> None:
        """The group goes out of memory: nothing is due any more."""
        for timer in self.sessions.values():
            timer.cancel()
        self.sessions.clear()
