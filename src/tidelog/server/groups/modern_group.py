"""State of consumer and share groups, whose coordinator assigns: members, epochs, targets.

Nothing here waits, writes or decides: only `modern_records` change a group, when they are written
and when they are replayed after a restart. Members, subscriptions and assignments are values.
Subscribers per topic, expression and assignor are counted incrementally, so no heartbeat visits all
members.

Source: Kafka 4.3's ModernGroup; KIP-848, KIP-932, KIP-1251 (an epoch for each partition).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from tidelog.server.groups.classic_group import CONSUMER_PROTOCOL
from tidelog.server.groups.committed_offsets import GroupOffsets
from tidelog.server.groups.requests import Protocols

if TYPE_CHECKING:
    from tidelog.server.runtime.loop import Timer


AssignmentT = TypeVar("AssignmentT")


# Partitions by topic, each with the epoch in which its member got it.
Assigned: TypeAlias = Mapping[UUID, Mapping[int, int]]


# Partitions by topic that a member is to have.
Target: TypeAlias = Mapping[UUID, frozenset[int]]


JOINING: Final = 0


LEAVING: Final = -1


# A static member leaves and will be back: its place is kept.
LEAVING_FOR_A_WHILE: Final = -2


NO_TIMEOUT: Final = -1


UNKNOWN_EPOCH: Final = -1


class MemberState(IntEnum):
    """How far a member is on its way to its target; the values are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicPart(NamedTuple):
    """What only a member of the classic protocol has: its session and its ways to assign."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Who a member is and what it asks for; of a share group it says only the first four.

    Attributes:
        rack_id: Where it is, None where it doesn't say.
        client_id: How the client calls itself.
        client_host: Where it asks from.
        topics: Names of topics that it reads.
        instance_id: A static member's name for itself, None for a dynamic one.
        rebalance_timeout_ms: How long it may take to give partitions up.
        regex: An expression for further ones, empty for none.
        assignor: Who it wants to assign, None for the group's choice.
        classic: Its part of the classic protocol, None for a member of the new one.
    """

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    instance_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    regex: str = ""
    assignor: str | None = None
    classic: ClassicPart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """Where a member stands.

    Attributes:
        epoch: The epoch that it is expected to say; -2 while a static member is away.
        previous_epoch: The one before: an answer may have been lost.
        state: How far it is on its way.
        assigned: What it may read.
        revoking: What it has to give up first.
    """

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)

    def moved(
        self, epoch: int, state: MemberState, assigned: Assigned, revoking: Assigned
    ) -> "MemberAssignment":
        """The next place, which remembers this one's epoch."""
        return MemberAssignment(
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether the member has all of its target of that epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it got a partition that it has or is giving up, else None."""
        for owned in (self.assigned, self.revoking):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAssignment:
    """Where a member of a share group stands: nobody has to give anything up first.

    Attributes:
        epoch: The epoch that it is expected to say.
        previous_epoch: The one before: an answer may have been lost.
        assigned: What it may read.
    """

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    assigned: Target = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModernMember(Generic[AssignmentT]):
    """One member: what it asks for, and where it stands."""

    member_id: str
    subscription: Subscription
    assignment: AssignmentT

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.subscription.classic is not None


ConsumerMember: TypeAlias = ModernMember[MemberAssignment]


ShareMember: TypeAlias = ModernMember[ShareAssignment]


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


class ResolvedRegex(NamedTuple):
    """Topics that an expression means.

    Attributes:
        topics: Their names.
        version: Counts up with each look at the topics.
        resolved_ms: Wall time of that look.
    """

    topics: frozenset[str] = frozenset()
    version: int = 0
    resolved_ms: int = 0


class ModernGroup(Generic[AssignmentT]):
    """Members, their targets and what they have. Belongs to the loop's thread.

    Attributes:
        protocol_type: What ListGroups calls it.
        no_assignment: Where a member stands that was given nothing yet.
        group_id: Its name.
        epoch: Counts up with each change of members, subscriptions or topics.
        metadata_hash: Of the topics that it reads.
        target_epoch: The epoch of the target assignment; below `epoch` a new one is due.
        target_ms: Wall time at which the target was made, 0 before.
        members: By id.
        targets: What each member is to have.
        offsets: What was committed; a share group commits nothing.
        seen_topics: The topics as they were when the hash was made: another mapping is another
            state of the cluster.
        waits: What is done when a member stays silent.
    """

    protocol_type: ClassVar[str]
    no_assignment: AssignmentT

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_ms = 0
        self.members: dict[str, ModernMember[AssignmentT]] = {}
        self.targets: dict[str, Target] = {}
        self.offsets = GroupOffsets()
        self.seen_topics: Mapping[str, object] | None = None
        self.waits: dict[tuple[Wait, str], Timer] = {}
        self._names: Counter[str] = Counter()

    # -- questions ---------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def topic_counts(self) -> Counter[str]:
        """How many members name each topic. Not to be changed."""
        return self._names

    def is_subscribed(self, topic: str) -> bool:
        """Whether some member reads a topic."""
        return topic in self._names

    def names_after(self, previous: Subscription | None, new: Subscription | None) -> Counter[str]:
        """How many members name each topic once one asks for something else.

        Args:
            previous: What it asked for so far, itself or as the static member that it replaces;
                None for a newcomer.
            new: What it asks for then; None where it goes.
        """
        counts = Counter(self._names)
        if previous is not None:
            counts.subtract(dict.fromkeys(previous.topics, 1))
        if new is not None:
            counts.update(new.topics)
        return +counts

    # -- changes -----------------------------------------------------------------------------

    def put_subscription(self, member_id: str, subscription: Subscription) -> None:
        """A member came, or asks for something else."""
        member = self.members.get(member_id)
        if member is not None:
            self._count(member_id, member.subscription, -1)
        self._count(member_id, subscription, 1)
        assignment = self.no_assignment if member is None else member.assignment
        self.members[member_id] = ModernMember(member_id, subscription, assignment)

    def put_assignment(self, member_id: str, assignment: AssignmentT) -> None:
        """A member moved; fine where it is not there."""
        member = self.members.get(member_id)
        if member is not None:
            self.members[member_id] = ModernMember(member_id, member.subscription, assignment)

    def remove(self, member_id: str) -> None:
        """A member went; fine where it was not there."""
        self.put_assignment(member_id, self.no_assignment)
        self.targets.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member_id, member.subscription, -1)

    def _count(self, _member_id: str, subscription: Subscription, sign: int) -> None:
        _add(self._names, subscription.topics, sign)

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


class ConsumerGroup(ModernGroup[MemberAssignment]):
    """A group of KIP-848: members give up before others get, and may subscribe by expressions.

    Attributes:
        regexes: Topics of expressions.
        resolving: Whether expressions are being looked up now.
        has_partition_metadata: Whether an older Kafka's record of topics is to be forgotten.
    """

    protocol_type = CONSUMER_PROTOCOL
    no_assignment = MemberAssignment()

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.regexes: dict[str, ResolvedRegex] = {}
        self.resolving = False
        self.has_partition_metadata = False
        self._static: dict[str, str] = {}
        self._owners: dict[UUID, dict[int, str]] = {}
        self._regexes: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self._protocols: Counter[str] = Counter()
        self._classic_count = 0

    # -- questions ---------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """Where it stands."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(
            member.assignment.is_reconciled(self.target_epoch) for member in self.members.values()
        ):
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
        return super().is_subscribed(topic) or any(
            topic in regex.topics for regex in self.regexes.values()
        )

    @property
    def subscribed_regexes(self) -> Mapping[str, int]:
        """Expressions with how many members subscribed to them."""
        return self._regexes

    @property
    def resolved_version(self) -> int:
        """The version of the expressions' topics, 0 where there are none."""
        return next((regex.version for regex in self.regexes.values()), 0)

    @property
    def resolved_ms(self) -> int | None:
        """When expressions were last looked up, None where none is known."""
        return next((regex.resolved_ms for regex in self.regexes.values()), None)

    def assignor(
        self, previous: Subscription | None = None, new: Subscription | None = None
    ) -> str | None:
        """The assignor that most members want once one asks for something else; None: nobody does.

        Between equals it is what was counted last: `uniform`, but for the one that the member who
        asks brings. So Kafka's tables have it.

        Args:
            previous: What the member asked for so far, None for a newcomer.
            new: What it asks for then, None where it asks for nothing else.
        """
        counts = {name: self._assignors[name] for name in sorted(self._assignors)}
        if previous is not None and previous.assignor is not None:
            counts[previous.assignor] -= 1
            if not counts[previous.assignor]:
                del counts[previous.assignor]
        if new is not None and new.assignor is not None:
            counts[new.assignor] = counts.get(new.assignor, 0) + 1
        most = max(counts.values(), default=0)
        return next((name for name in reversed(counts) if counts[name] == most), None)

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
            number not in member.assignment.assigned.get(topic, {}) and number in self.owners(topic)
            for topic, numbers in self.targets.get(member.member_id, NO_TARGET).items()
            for number in numbers
        )

    # -- changes -----------------------------------------------------------------------------

    def put_assignment(self, member_id: str, assignment: MemberAssignment) -> None:
        """A member moved; fine where it is not there."""
        member = self.members.get(member_id)
        if member is None:
            return
        for topic, numbers in (
            *member.assignment.assigned.items(),
            *member.assignment.revoking.items(),
        ):
            owners = self._owners.get(topic, {})
            for number in numbers:
                if owners.get(number) == member_id:
                    del owners[number]
            if not owners:
                self._owners.pop(topic, None)
        for topic, numbers in (*assignment.assigned.items(), *assignment.revoking.items()):
            self._owners.setdefault(topic, {}).update(dict.fromkeys(numbers, member_id))
        self.members[member_id] = ModernMember(member_id, member.subscription, assignment)

    def _count(self, member_id: str, subscription: Subscription, sign: int) -> None:
        super()._count(member_id, subscription, sign)
        instance_id = subscription.instance_id
        if instance_id is not None:
            if sign > 0:
                self._static[instance_id] = member_id
            elif self._static.get(instance_id) == member_id:
                del self._static[instance_id]
        _add(self._regexes, (subscription.regex,) if subscription.regex else (), sign)
        _add(
            self._assignors, () if subscription.assignor is None else (subscription.assignor,), sign
        )
        if subscription.classic is not None:
            self._classic_count += sign
            _add(self._protocols, {name for name, _ in subscription.classic.protocols}, sign)


def stop_classic(group: ConsumerGroup, member_id: str) -> None:
    """A member no longer speaks the classic protocol: it need not join or sync."""
    group.stop(Wait.JOIN, member_id)
    group.stop(Wait.SYNC, member_id)


def _add(counter: Counter[str], names: Iterable[str], sign: int) -> None:
    for name in names:
        counter[name] += sign
        if not counter[name]:
            del counter[name]


SHARE_PROTOCOL: Final = "share"


class ShareGroupState(Enum):
    """Where a group stands; the values are what ListGroups and ShareGroupDescribe say."""

    EMPTY = "Empty"
    STABLE = "Stable"


class SharedTopic(NamedTuple):
    """Partitions of a topic whose delivery is kept for the group."""

    name: str
    partitions: frozenset[int]


class ShareGroup(ModernGroup[ShareAssignment]):
    """A group of KIP-932: members may read the same partitions.

    Attributes:
        founded_ms: Wall time at which its first member came, 0 where it was read from the log.
        shared: Topics that the group has begun to read, by id; they stay when nobody reads them.
    """

    protocol_type = SHARE_PROTOCOL
    no_assignment = ShareAssignment()

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.founded_ms = 0
        self.shared: Mapping[UUID, SharedTopic] = {}

    @property
    def state(self) -> ShareGroupState:
        """Where it stands."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY
