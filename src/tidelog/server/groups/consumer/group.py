"""One group whose coordinator assigns. Nothing here waits, writes or decides.

It is changed only by what `changes` apply, whether they were just written or are read again after
a restart. How often a topic, an expression or an assignor is asked for is counted along, so that
no heartbeat looks at all members.

Source: Kafka 4.3's consumer groups; KIP-848.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tidelog.server.groups.consumer.member import (
    Asks,
    ConsumerMember,
    Place,
    Target,
)
from tidelog.server.groups.group import CONSUMER_PROTOCOL
from tidelog.server.groups.offsets import GroupOffsets

if TYPE_CHECKING:
    from tidelog.server.timers import Timer

NO_TARGET: Final[Target] = {}
NO_OWNERS: Final[Mapping[int, str]] = {}
# Of a group that nobody has joined, and of its target; topics to read begin the next one.
FIRST_EPOCH: Final = 1


class ConsumerGroupState(Enum):
    """Where a group stands; the values are what ListGroups and ConsumerGroupDescribe say."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Wait(Enum):
    """What a member's silence can end."""

    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"

    # By identity, as members are compared: each heartbeat looks some up.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """Topics that an expression means.

    Attributes:
        topics: Their names.
        version: Counts up with each look at the topics.
        resolved_ms: Wall time of that look.
    """

    topics: frozenset[str] = frozenset()
    version: int = 0
    resolved_ms: int = 0


class ConsumerGroup:
    """Members, their targets and what they have. Belongs to the loop's thread.

    Attributes:
        group_id: Its name.
        epoch: Counts up with each change of members, subscriptions or topics.
        metadata_hash: Of the topics that it reads.
        target_epoch: The epoch of the target assignment; below `epoch` a new one is due.
        target_ms: Wall time at which the target was made, 0 before.
        members: By id.
        targets: What each member is to have.
        regexes: Topics of expressions.
        offsets: What was committed.
        seen_topics: The topics as they were when the hash was made: another mapping is another
            state of the cluster.
        resolving: Whether expressions are being looked up now.
        has_partition_metadata: Whether an older Kafka's record of topics is to be forgotten.
    """

    protocol_type: Final = CONSUMER_PROTOCOL

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Target] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.offsets = GroupOffsets()
        self.seen_topics: Mapping[str, object] | None = None
        self.resolving = False
        self.has_partition_metadata = False
        self.waits: dict[tuple[Wait, str], Timer] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[UUID, dict[int, str]] = {}
        self._names: Counter[str] = Counter()
        self._regexes: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self._protocols: Counter[str] = Counter()
        self._classic_count = 0

    # -- questions ---------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def state(self) -> ConsumerGroupState:
        """Where it stands."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member behind an instance, None where it is not in the group."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str, instance_id: str | None) -> Target:
        """What a member is to have; a static one's goes by its instance."""
        if instance_id is None:
            return self.targets.get(member_id, NO_TARGET)
        return self.targets.get(self._static.get(instance_id, ""), NO_TARGET)

    def owners(self, topic_id: UUID) -> Mapping[int, str]:
        """Who has which of a topic's partitions, or is still giving it up."""
        return self._owners.get(topic_id, NO_OWNERS)

    def is_subscribed(self, topic: str) -> bool:
        """Whether some member reads a topic."""
        return topic in self._names or any(topic in found.topics for found in self.regexes.values())

    @property
    def subscribed_regexes(self) -> Mapping[str, int]:
        """Expressions with how many members subscribed to them."""
        return self._regexes

    @property
    def resolved_version(self) -> int:
        """The version of the expressions' topics, 0 where there are none."""
        return next((found.version for found in self.regexes.values()), 0)

    @property
    def resolved_ms(self) -> int | None:
        """When expressions were last looked up, None where none is known."""
        return next((found.resolved_ms for found in self.regexes.values()), None)

    def assignor(self, known: Asks | None = None, new: Asks | None = None) -> str | None:
        """The assignor that most members want once one asks for something else; None: nobody does.

        Between equals it is what was counted last: `uniform`, but for the one that the member who
        asks brings. So Kafka's tables have it.

        Args:
            known: What the member asked for so far, None for a newcomer.
            new: What it asks for then, None where it asks for nothing else.
        """
        counts = {name: self._assignors[name] for name in sorted(self._assignors)}
        if known is not None and known.assignor is not None:
            counts[known.assignor] -= 1
            if not counts[known.assignor]:
                del counts[known.assignor]
        if new is not None and new.assignor is not None:
            counts[new.assignor] = counts.get(new.assignor, 0) + 1
        most = max(counts.values(), default=0)
        return next((name for name in reversed(counts) if counts[name] == most), None)

    @property
    def topic_counts(self) -> Counter[str]:
        """How many members name each topic. Not to be changed."""
        return self._names

    @property
    def classic_count(self) -> int:
        """How many members speak the classic protocol."""
        return self._classic_count

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a classic member with these ways to assign can be in the group."""
        if protocol_type != CONSUMER_PROTOCOL:
            return False
        return any(self._protocols[name] == self._classic_count for name in names)

    def awaits_others(self, member: ConsumerMember) -> bool:
        """Whether something of a member's target is still another's."""
        return any(
            number not in member.place.assigned.get(topic, {}) and number in self.owners(topic)
            for topic, numbers in self.targets.get(member.member_id, NO_TARGET).items()
            for number in numbers
        )

    # -- changes -----------------------------------------------------------------------------

    def put_asks(self, member_id: str, asks: Asks) -> None:
        """A member came, or asks for something else."""
        known = self.members.get(member_id)
        if known is not None:
            self._count(known.asks, -1)
        self._count(asks, 1)
        place = Place() if known is None else known.place
        self.members[member_id] = ConsumerMember(member_id, asks, place)
        if asks.instance_id is not None:
            self._static[asks.instance_id] = member_id

    def remove(self, member_id: str) -> None:
        """A member went; fine where it was not there."""
        self.put_place(member_id, Place())
        self.targets.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member.asks, -1)
        instance_id = member.asks.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]

    def put_place(self, member_id: str, place: Place) -> None:
        """A member moved; fine where it is not there."""
        member = self.members.get(member_id)
        if member is None:
            return
        for topic, numbers in (*member.place.assigned.items(), *member.place.revoking.items()):
            owners = self._owners.get(topic, {})
            for number in numbers:
                if owners.get(number) == member_id:
                    del owners[number]
            if not owners:
                self._owners.pop(topic, None)
        for topic, numbers in (*place.assigned.items(), *place.revoking.items()):
            self._owners.setdefault(topic, {}).update(dict.fromkeys(numbers, member_id))
        self.members[member_id] = ConsumerMember(member_id, member.asks, place)

    def _count(self, asks: Asks, sign: int) -> None:
        _add(self._names, asks.topics, sign)
        _add(self._regexes, (asks.regex,) if asks.regex else (), sign)
        _add(self._assignors, () if asks.assignor is None else (asks.assignor,), sign)
        if asks.classic is not None:
            self._classic_count += sign
            _add(self._protocols, {name for name, _ in asks.classic.protocols}, sign)

    # -- time --------------------------------------------------------------------------------

    def stop(self, wait: Wait, member_id: str) -> None:
        """Don't wait for this any more; fine where nobody did."""
        timer = self.waits.pop((wait, member_id), None)
        if timer is not None:
            timer.cancel()

    def stop_all(self, member_id: str) -> None:
        """Wait for nothing more of a member."""
        for wait in Wait:
            self.stop(wait, member_id)

    def unload(self) -> None:
        """The group goes out of memory: nothing is due any more."""
        for timer in self.waits.values():
            timer.cancel()
        self.waits.clear()


def stop_classic(group: ConsumerGroup, member_id: str) -> None:
    """A member no longer speaks the classic protocol: it need not join or sync."""
    group.stop(Wait.JOIN, member_id)
    group.stop(Wait.SYNC, member_id)


def _add(counter: Counter[str], names: Iterable[str], sign: int) -> None:
    for name in names:
        counter[name] += sign
        if not counter[name]:
            del counter[name]
