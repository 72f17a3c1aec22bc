"""State of groups whose coordinator assigns partitions (consumer and share groups).

This module does not wait, write to the log, or decide about changes. Only the changes in
`modern_records` modify the stored state of a group. They are applied when they are written, and
when they are replayed after a restart. Members, subscriptions and assignments are immutable.
Subscribers per topic, expression and assignor are counted incrementally, so a heartbeat does not
visit all members to count them.

Source: Kafka 4.3's ModernGroup; KIP-848, KIP-932, KIP-1251 (an epoch for each partition).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import CONSUMER_PROTOCOL
from tidelog.server.groups.committed_offsets import GroupOffsets
from tidelog.server.groups.requests import NO_GENERATION, CommitRequest, Protocols

if TYPE_CHECKING:
    from tidelog.server.runtime.loop import Timer


AssignmentT = TypeVar("AssignmentT")

# Assigned partitions by topic id, each with the epoch in which the member got it.
Assigned: TypeAlias = Mapping[UUID, Mapping[int, int]]

# Target partitions of a member, by topic id.
Target: TypeAlias = Mapping[UUID, frozenset[int]]

JOINING: Final = 0
LEAVING: Final = -1

# Epoch of a static member that leaves temporarily and keeps its assignment.
LEAVING_FOR_A_WHILE: Final = -2

NO_TIMEOUT: Final = -1
UNKNOWN_EPOCH: Final = -1


class MemberState(IntEnum):
    """Progress of a member towards its target. The values are stored in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicPart(NamedTuple):
    """The session timeout and assignment protocols of a classic member; other members have none."""

    session_timeout_ms: int
    protocols: Protocols


class Subscription(NamedTuple):
    """Identity and subscription of a member.

    A member of a share group has only the first four attributes.

    Attributes:
        rack_id: Rack of the client; None if not given.
        client_id: Client id of its requests.
        client_host: Address of the client.
        topics: Names of the topics that the member subscribes to.
        instance_id: Group instance id; None for a dynamic member.
        rebalance_timeout_ms: Time within which the member must revoke partitions.
        regex: Regular expression for further topics; empty for none.
        assignor: Requested server-side assignor; None if the member requests none.
        classic: Attributes of a classic member; None for a member of the consumer protocol.
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


class MemberAssignment(NamedTuple):
    """Current assignment of a member.

    Attributes:
        epoch: Epoch that the member's next request must contain, or -2 while a static member is
            away.
        previous_epoch: Epoch before `epoch`. A request with this epoch is also accepted, because
            the response with `epoch` may have been lost.
        state: Progress towards the target.
        assigned: Partitions that the member may read.
        revoking: Partitions that the member must give up before it gets new partitions.
    """

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assigned = MappingProxyType({})
    revoking: Assigned = MappingProxyType({})

    def moved(
        self, epoch: int, state: MemberState, assigned: Assigned, revoking: Assigned
    ) -> "MemberAssignment":
        """Return the member's next assignment; its `previous_epoch` is this assignment's epoch."""
        return MemberAssignment(
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether the member has all partitions of the target with the epoch `target_epoch`."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch in which the member got a partition.

        The result is None if the member does not have the partition.
        """
        for owned in (self.assigned, self.revoking):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


class ShareAssignment(NamedTuple):
    """Current assignment of a share group's member. Such a member never has to revoke partitions.

    Attributes:
        epoch: Epoch that the member's next request must contain.
        previous_epoch: Epoch before `epoch`. A request with this epoch is also accepted, because
            the response with `epoch` may have been lost.
        assigned: Partitions that the member may read.
    """

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    assigned: Target = MappingProxyType({})


class ModernMember(NamedTuple, Generic[AssignmentT]):
    """Member with its subscription and current assignment."""

    member_id: str
    subscription: Subscription
    assignment: AssignmentT

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.subscription.classic is not None


ConsumerMember: TypeAlias = ModernMember[MemberAssignment]
ShareMember: TypeAlias = ModernMember[ShareAssignment]
NO_TARGET: Final[Target] = {}
NO_OWNERS: Final[Mapping[int, str]] = {}

# Epoch of a new group and of its target, before the first member joins.
FIRST_EPOCH: Final = 1


class ConsumerGroupState(Enum):
    """State of a consumer group. The values appear in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Wait(Enum):
    """Timeouts of a member. When one of the timeouts expires, the member is removed."""

    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"

    # Each heartbeat looks up some of these timeouts, so a fast hash matters. Hashing by identity is
    # correct, because members of an enumeration are also compared by identity.
    __hash__ = object.__hash__


class ResolvedRegex(NamedTuple):
    """Topics that a regular expression matches.

    Attributes:
        topics: Names of the topics.
        version: Version of the topic list. A higher version is newer.
        resolved_ms: Wall time of the resolution.
    """

    topics: frozenset[str] = frozenset()
    version: int = 0
    resolved_ms: int = 0


class ModernGroup(Generic[AssignmentT]):
    """Members, their targets and current assignments. Used only in the event loop's thread.

    Attributes:
        group_type: Type of the group in ListGroups.
        protocol_type: Protocol type in ListGroups.
        may_expire: Whether the group is deleted when it has no members and no offsets.
        no_assignment: Current assignment of a new member.
        group_id: Id of the group.
        epoch: Group epoch. Each change of members, subscriptions or topics increments it.
        metadata_hash: Hash of the subscribed topics.
        target_epoch: Epoch of the target assignment. If `target_epoch` is below `epoch`, a new
            target must be computed.
        target_ms: Wall time at which the target was computed; 0 before the first target.
        members: Members by id.
        targets: Target assignment of each member.
        offsets: Committed offsets; empty for a share group.
        hashed_topics: Topic list for which `metadata_hash` was computed. The list is compared by
            identity, because each change of topics creates a new list.
        waits: Timers by timeout and member id.
    """

    group_type: ClassVar[str]
    protocol_type: ClassVar[str]
    may_expire: ClassVar[bool]
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
        self.hashed_topics: Mapping[str, object] | None = None
        self.waits: dict[tuple[Wait, str], Timer] = {}
        self._names: Counter[str] = Counter()

    # -- queries -----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def topic_counts(self) -> Counter[str]:
        """Number of members that subscribe to each topic by name. Read-only."""
        return self._names

    def is_subscribed(self, topic: str) -> bool:
        """Whether some member reads a topic."""
        return topic in self._names

    def names_after(self, previous: Subscription | None, new: Subscription | None) -> Counter[str]:
        """Return the number of members per topic name after one member's subscription changes.

        Args:
            previous: Subscription before the change. If the member replaces a static member, this
                is the replaced member's subscription. None for a new member.
            new: Subscription after the change; None if the member leaves.
        """
        counts = Counter(self._names)
        if previous is not None:
            counts.subtract(dict.fromkeys(previous.topics, 1))
        if new is not None:
            counts.update(new.topics)
        return +counts

    # -- changes -----------------------------------------------------------------------------

    def put_subscription(self, member_id: str, subscription: Subscription) -> None:
        """Add a member or replace its subscription."""
        member = self.members.get(member_id)
        if member is not None:
            self._count(member_id, member.subscription, -1)
        self._count(member_id, subscription, 1)
        assignment = self.no_assignment if member is None else member.assignment
        self.members[member_id] = ModernMember(member_id, subscription, assignment)

    def put_assignment(self, member_id: str, assignment: AssignmentT) -> None:
        """Replace a member's current assignment; no-op if the member is unknown."""
        member = self.members.get(member_id)
        if member is not None:
            self.members[member_id] = ModernMember(member_id, member.subscription, assignment)

    def remove(self, member_id: str) -> None:
        """Remove a member; no-op if the member is unknown."""
        self.put_assignment(member_id, self.no_assignment)
        self.targets.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member_id, member.subscription, -1)

    def _count(self, _member_id: str, subscription: Subscription, sign: int) -> None:
        _add(self._names, subscription.topics, sign)

    # -- timers ------------------------------------------------------------------------------

    def stop(self, wait: Wait, member_id: str) -> None:
        """Cancel a timer of a member; no-op if there is none."""
        timer = self.waits.pop((wait, member_id), None)
        if timer is not None:
            timer.cancel()

    def stop_all(self, member_id: str) -> None:
        """Cancel all timers of a member."""
        for wait in Wait:
            self.stop(wait, member_id)

    def unload(self) -> None:
        """Cancel all timers of a group that is unloaded."""
        for timer in self.waits.values():
            timer.cancel()
        self.waits.clear()


class ConsumerGroup(ModernGroup[MemberAssignment]):
    """Consumer group (KIP-848).

    A partition is revoked from its owner before another member receives it. Members may subscribe
    to regular expressions.

    Attributes:
        regexes: Topics of each resolved expression.
        resolving: Whether expressions are being resolved now.
        has_partition_metadata: Whether the log has a record of the group's topics that an older
            version of Kafka wrote. If True, the coordinator still has to delete that record.
    """

    group_type = "consumer"
    protocol_type = CONSUMER_PROTOCOL
    may_expire = True
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

    # -- queries -----------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """State of the group, derived from epochs and members."""
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
        """Return the member with an instance id; None if the instance is not in the group."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str, instance_id: str | None) -> Target:
        """Return a member's target. A static member is found by its instance id."""
        if instance_id is None:
            return self.targets.get(member_id, NO_TARGET)
        return self.targets.get(self._static.get(instance_id, ""), NO_TARGET)

    def owners(self, topic_id: UUID) -> Mapping[int, str]:
        """Return the owners of a topic's partitions, by partition number.

        The owner is the id of the member that owns or still revokes the partition.
        """
        return self._owners.get(topic_id, NO_OWNERS)

    def is_subscribed(self, topic: str) -> bool:
        """Whether some member reads a topic, by name or by a resolved expression."""
        return super().is_subscribed(topic) or any(
            topic in regex.topics for regex in self.regexes.values()
        )

    @property
    def subscribed_regexes(self) -> Mapping[str, int]:
        """Number of members that subscribe to each expression."""
        return self._regexes

    def regexes_after(
        self, previous: Subscription | None, new: Subscription | None
    ) -> Counter[str]:
        """Return the number of members per expression after one member's subscription changes.

        Args:
            previous: Subscription before the change; None for a new member.
            new: Subscription after the change; None if the member leaves.
        """
        counts = Counter(self._regexes)
        if previous is not None and previous.regex:
            counts[previous.regex] -= 1
        if new is not None and new.regex:
            counts[new.regex] += 1
        return +counts

    def topics_of(self, regexes: Iterable[str]) -> set[str]:
        """Return the topics that match one of these expressions.

        An unresolved expression adds no topics.
        """
        resolved = (self.regexes[regex] for regex in regexes if regex in self.regexes)
        return {topic for resolved_regex in resolved for topic in resolved_regex.topics}

    @property
    def resolved_version(self) -> int:
        """Version of the resolved expressions; 0 if no expression is resolved."""
        return next((regex.version for regex in self.regexes.values()), 0)

    @property
    def resolved_ms(self) -> int | None:
        """Wall time of the last resolution; None if no expression is resolved."""
        return next((regex.resolved_ms for regex in self.regexes.values()), None)

    def assignor(
        self, previous: Subscription | None = None, new: Subscription | None = None
    ) -> str | None:
        """Return the assignor that, after a change, the largest number of members request.

        The result is None if no member requests an assignor.

        If several assignors are requested equally often, the result is an assignor that only the
        changed member requests. If there is no such assignor, `uniform` takes precedence over
        `range`. Kafka's hash tables lead to the same choice.

        Args:
            previous: Subscription before the change; None for a new member.
            new: Subscription after the change; None for no change.
        """
        counts = {name: self._assignors[name] for name in sorted(self._assignors)}
        if previous is not None and previous.assignor is not None:
            counts[previous.assignor] -= 1
            if not counts[previous.assignor]:
                del counts[previous.assignor]
        if new is not None and new.assignor is not None:
            counts[new.assignor] = counts.get(new.assignor, 0) + 1
        largest = max(counts.values(), default=0)
        return next((name for name in reversed(counts) if counts[name] == largest), None)

    @property
    def classic_count(self) -> int:
        """Number of members of the classic protocol."""
        return self._classic_count

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a classic member with these assignment protocols may join the group."""
        if protocol_type != CONSUMER_PROTOCOL:
            return False
        return any(self._protocols[name] == self._classic_count for name in names)

    def commit_error(self, request: CommitRequest, topic_id: UUID, partition: int) -> ErrorCode:
        """Return the error code for a commit; `NONE` if the commit is allowed.

        A member may commit for a partition with the epoch in which it got the partition, or with a
        later epoch up to its current epoch. Source: KIP-1251.
        """
        is_anonymous = (
            request.generation == NO_GENERATION
            and not request.member_id
            and request.instance_id is None
        )
        if (request.generation < 0 and self.is_empty) or (
            request.is_transactional and is_anonymous
        ):
            return ErrorCode.NONE
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not (request.is_transactional or member.is_classic or request.is_late_version):
            return ErrorCode.UNSUPPORTED_VERSION
        since = member.assignment.assignment_epoch(topic_id, partition)
        first = member.assignment.epoch if since is None else min(since, member.assignment.epoch)
        if first <= request.generation <= member.assignment.epoch:
            return ErrorCode.NONE
        return _epoch_error(member)

    def fetch_error(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error code if a member must not fetch offsets, else `NONE`.

        A request without a member is always allowed.
        """
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.assignment.epoch else _epoch_error(member)

    @property
    def offset_deletion_error(self) -> ErrorCode:
        """Error code for a request to delete offsets: `NONE`.

        The caller checks for each topic whether a member subscribes to it (`is_subscribed`).
        """
        return ErrorCode.NONE

    def stored_topics(self) -> Iterable[str]:
        """Return the topics with committed offsets."""
        return self.offsets.topics()

    @property
    def expiry_start_ms(self) -> int | None:
        """Return -1, because the retention of an offset is measured from its commit."""
        return -1

    def awaits_others(self, member: ConsumerMember) -> bool:
        """Whether another member still owns a partition of this member's target."""
        return any(
            number not in member.assignment.assigned.get(topic, {}) and number in self.owners(topic)
            for topic, numbers in self.targets.get(member.member_id, NO_TARGET).items()
            for number in numbers
        )

    # -- changes -----------------------------------------------------------------------------

    def stop_classic(self, member_id: str) -> None:
        """Cancel the classic timers of a member that now uses the consumer protocol."""
        self.stop(Wait.JOIN, member_id)
        self.stop(Wait.SYNC, member_id)

    def put_assignment(self, member_id: str, assignment: MemberAssignment) -> None:
        """Replace a member's assignment and owned partitions; no-op for an unknown member."""
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


def _epoch_error(member: ConsumerMember) -> ErrorCode:
    """Return the error code for an epoch or generation other than the member's."""
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH


def _add(counter: Counter[str], names: Iterable[str], sign: int) -> None:
    for name in names:
        counter[name] += sign
        if not counter[name]:
            del counter[name]


SHARE_PROTOCOL: Final = "share"


class ShareGroupState(Enum):
    """State of a share group. The values appear in ListGroups and ShareGroupDescribe."""

    EMPTY = "Empty"
    STABLE = "Stable"


class SharedTopic(NamedTuple):
    """Partitions of a topic for which the group has delivery state."""

    name: str
    partitions: frozenset[int]


class ShareGroup(ModernGroup[ShareAssignment]):
    """Share group (KIP-932): several members may read the same partition.

    Attributes:
        founded_ms: Wall time at which the first member joined; 0 for a group loaded from the log.
        shared: Initialized topics by id. A topic stays initialized even if no member reads it.
    """

    group_type = "share"
    protocol_type = SHARE_PROTOCOL
    may_expire = False  # a group without members still has delivery state, stored elsewhere
    no_assignment = ShareAssignment()

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.founded_ms = 0
        self.shared: Mapping[UUID, SharedTopic] = {}

    @property
    def state(self) -> ShareGroupState:
        """State of the group."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def commit_error(self, _request: CommitRequest, _topic_id: UUID, _partition: int) -> ErrorCode:
        """Return GROUP_ID_NOT_FOUND, because a share group has no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def fetch_error(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return GROUP_ID_NOT_FOUND for a member, `NONE` for a request without a member."""
        is_admin = member_id is None and epoch < 0
        return ErrorCode.NONE if is_admin else ErrorCode.GROUP_ID_NOT_FOUND

    @property
    def offset_deletion_error(self) -> ErrorCode:
        """GROUP_ID_NOT_FOUND for a deletion of offsets, because a share group has no offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def stored_topics(self) -> Iterable[str]:
        """Return the topics with delivery state."""
        return {topic.name for topic in self.shared.values()}

    @property
    def expiry_start_ms(self) -> int | None:
        """Return None, because a share group has no committed offsets."""
        return None
