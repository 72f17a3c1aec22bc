"""Rebalance of a consumer group: regular expressions, target assignments, reconciliation.

`ConsumerUpdates.member_target` computes a member's target assignment, and `next_assignment`
computes the member's next step towards the target. A member that must revoke partitions is in state
UNREVOKED_PARTITIONS. The member gets the new epoch only when it no longer reports these partitions
as owned. In the new epoch, the member is in state UNRELEASED_PARTITIONS while other members still
own partitions of its target. A member that has all partitions of its target is STABLE. These states
ensure that a partition never has two owners.

Source: Kafka 4.3's group coordinator and its reconciliation; KIP-345, KIP-848, KIP-1263 (minimum
assignment interval).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.server.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from tidelog.server.groups.group_updates import GroupUpdate, GroupUpdates
from tidelog.server.groups.modern_group import (
    NO_TARGET,
    Assigned,
    ConsumerGroup,
    ConsumerMember,
    MemberAssignment,
    MemberState,
    ModernMember,
    Subscription,
    Target,
    Wait,
)
from tidelog.server.groups.modern_records import (
    AssignmentChange,
    PartitionMetadataChange,
    RegexChange,
)
from tidelog.server.groups.requests import Owned
from tidelog.server.runtime.errors import Refusal
from tidelog.storage.files import encode_topic_id

ConsumerUpdate: TypeAlias = GroupUpdate[ConsumerGroup]
_LOGGER = logging.getLogger("tidelog.server")


@dataclass(frozen=True, slots=True)
class MemberTarget:
    """Target assignment of a member, and the epoch for which the target was computed."""

    epoch: int
    target: Target


class ConsumerUpdates(GroupUpdates[ConsumerGroup]):
    """Steps shared by all requests to consumer groups. Used only in the event loop's thread."""

    def new_member_id(self) -> str:
        """Return a new random member id in Kafka's format."""
        return encode_topic_id(self.context.new_uuid())

    # -- timers ------------------------------------------------------------------------------

    def restart_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Restart the member's session after a request."""
        classic = member.subscription.classic
        ms = (
            self.settings.session_timeout_ms(group.group_id)
            if classic is None
            else classic.session_timeout_ms
        )
        self.wait_for(group, member.member_id, Wait.SESSION, ms)

    def session_remaining_ms(self, group: ConsumerGroup, member_id: str) -> int | None:
        """Return the remaining time of a member's session in ms; None without a session timer."""
        timer = group.waits.get((Wait.SESSION, member_id))
        if timer is None or timer.is_cancelled:
            return None
        return max(timer.due_ms - self.clock.monotonic_ms(), 0)

    # -- the group's epoch -------------------------------------------------------------------

    def begin_epoch(self, update: ConsumerUpdate, names: Iterable[str], *, is_due: bool) -> int:
        """Begin a new epoch if `is_due` or if the topics `names` changed; return the group's epoch.

        If an older version of Kafka wrote a record of the group's topics, the update also removes
        that record.
        """
        group = update.group
        epoch = super().begin_epoch(update, names, is_due=is_due)
        if epoch > group.epoch:
            _LOGGER.info("group %s: epoch %d", group.group_id, epoch)
        if group.has_partition_metadata:
            update.changes.append(PartitionMetadataChange())
        return epoch

    def subscribed_ids(self, group: ConsumerGroup, subscription: Subscription) -> frozenset[UUID]:
        """Return the ids of the topics that a member reads.

        An unresolved expression adds no topics.
        """
        resolved = group.regexes.get(subscription.regex) if subscription.regex else None
        return self.facts.ids(
            subscription.topics if resolved is None else subscription.topics | resolved.topics
        )

    # -- the target --------------------------------------------------------------------------

    def member_target(
        self,
        update: ConsumerUpdate,
        epoch: int,
        previous: Subscription | None,
        new: ConsumerMember,
        *,
        same: bool,
    ) -> MemberTarget:
        """Return the member's target assignment.

        If the group's epoch is newer than the epoch of its targets and `_may_assign` is true, first
        compute new targets for all members.

        Args:
            update: The update of this request.
            epoch: Epoch of the group after the request.
            previous: Subscription of the member before the request; None for a new member.
            new: Member after the request.
            same: Whether all members subscribe to the same topics after the request.
        """
        group = update.group
        if epoch <= group.target_epoch or not self._may_assign(group):
            target = group.target_of(new.member_id, new.subscription.instance_id)
            return MemberTarget(group.target_epoch, target)
        spec = GroupSpec(self._specs(group, new), self.facts.partition_counts(), same)
        targets = ASSIGNORS[group.assignor(previous, new.subscription) or self.default_assignor](
            spec
        )
        self.put_targets(
            update, epoch, [(each, targets.get(each, NO_TARGET)) for each in spec.members]
        )
        return MemberTarget(epoch, targets.get(new.member_id, NO_TARGET))

    def _may_assign(self, group: ConsumerGroup) -> bool:
        """Whether a new target may be computed now.

        The assignment interval must have passed since the last target was computed. Also, at most
        one target per group is computed in one iteration of the event loop. Without these limits,
        each of many joins in a short time would reassign all partitions. Members would then revoke
        partitions that the next target returns to them.
        """
        interval_ms = self.settings.assignment_interval_ms(group.group_id)
        is_old = not self.target_wait_ms(group, 0, interval_ms)
        return is_old and self.assigned.is_first(group.group_id)

    def _specs(self, group: ConsumerGroup, new: ConsumerMember) -> dict[str, MemberSpec]:
        # Topic ids by subscription. The ids are computed only once for each subscription, because
        # many members have the same subscription.
        ids: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}

        def read_by(subscription: Subscription) -> frozenset[UUID]:
            reads = (subscription.topics, subscription.regex)
            if reads not in ids:
                ids[reads] = self.subscribed_ids(group, subscription)
            return ids[reads]

        targets, specs = group.targets, dict[str, MemberSpec]()
        last: Subscription | None = None
        topics: frozenset[UUID] = frozenset()
        for name, member in group.members.items():
            subscription = member.subscription
            if (
                last is None
                or subscription.topics != last.topics
                or subscription.regex != last.regex
            ):
                last, topics = subscription, read_by(subscription)
            specs[name] = MemberSpec(subscription.instance_id, topics, targets.get(name, NO_TARGET))
        target = targets.get(new.member_id)
        replaced = group.static_member(new.subscription.instance_id)
        if replaced is not None and replaced.member_id != new.member_id:
            specs.pop(replaced.member_id, None)
            target = targets.get(replaced.member_id)
        new_topics = read_by(new.subscription)
        specs[new.member_id] = MemberSpec(
            new.subscription.instance_id, new_topics, target or NO_TARGET
        )
        return specs

    @property
    def default_assignor(self) -> str:
        """The first of the broker's configured assignors."""
        return self.config.group_consumer_assignors[0]

    # -- members -----------------------------------------------------------------------------

    def move(
        self,
        update: ConsumerUpdate,
        previous: Subscription | None,
        new: ConsumerMember,
        owned: Owned | None,
        *,
        is_due: bool,
        has_changed: bool,
    ) -> ConsumerMember:
        """Begin a new epoch and compute a new target if they are due; then reconcile a member.

        Args:
            update: The update of this request.
            previous: Subscription of the member before the request; None for a new member.
            new: Member after the request.
            owned: Partitions that the member reports as owned; None if it does not report any.
            is_due: Whether the request begins a new epoch even if no metadata of topics changed.
            has_changed: Whether the member's subscription changes.

        Returns:
            The member after its next step; unchanged if it can't proceed.
        """
        epoch, same = self._next_epoch(update, previous, new, is_due=is_due)
        target = self.member_target(update, epoch, previous, new, same=same)
        return self.reconcile(update, new, target, owned, has_changed=has_changed)

    def _next_epoch(
        self,
        update: ConsumerUpdate,
        previous: Subscription | None,
        new: ConsumerMember,
        *,
        is_due: bool,
    ) -> tuple[int, bool]:
        """Return the group's epoch after the request, and whether all members read the same topics.

        If no new target is needed, the second value is always False.
        """
        group = update.group
        is_due_now = is_due or self.has_stale_topics(group)
        if not is_due_now and group.epoch <= group.target_epoch:
            # Nearly every heartbeat returns here, because it needs no new target. Then the members'
            # topics need not be counted.
            return group.epoch, False
        names = group.names_after(previous, new.subscription)
        regexes = group.regexes_after(previous, new.subscription)
        epoch = group.epoch
        if is_due_now:
            epoch = self.begin_epoch(update, {*names, *group.topics_of(regexes)}, is_due=is_due)
        count = len(group.members) + (previous is None)
        return epoch, reads_the_same(names, regexes, count)

    def reconcile(
        self,
        update: ConsumerUpdate,
        member: ConsumerMember,
        member_target: MemberTarget,
        owned: Owned | None,
        *,
        has_changed: bool,
    ) -> ConsumerMember:
        """Move a member towards its target; return it unchanged if it can't proceed."""
        group = update.group
        if not has_changed and member.assignment.is_reconciled(member_target.epoch):
            return member
        step = Step(
            member_target.epoch,
            member_target.target,
            self.subscribed_ids(group, member.subscription),
            owned,
            group.owners,
            has_changed,
        )
        assignment = next_assignment(member.assignment, step)
        if assignment == member.assignment:
            return member
        update.changes.append(AssignmentChange(member.member_id, assignment))
        if not member.is_classic:
            update.actions.append(lambda: self.watch_revocation(group, member.member_id))
        return ModernMember(member.member_id, member.subscription, assignment)

    def watch_revocation(self, group: ConsumerGroup, member_id: str) -> None:
        """Start the rebalance timeout if the member has partitions to revoke.

        Else stop the timeout.
        """
        member = group.members[member_id]
        if member.assignment.state is MemberState.UNREVOKED_PARTITIONS:
            ms = max(member.subscription.rebalance_timeout_ms, 0)
            self.wait_for(group, member_id, Wait.REBALANCE, ms)
        else:
            group.stop(Wait.REBALANCE, member_id)


def reads_the_same(names: Mapping[str, int], regexes: Mapping[str, int], count: int) -> bool:
    """Whether the counts of subscribers prove that all `count` members read the same topics."""
    if regexes:
        return not names and next(iter(regexes.values())) == count
    return all(each == count for each in names.values())


def drop_regex(update: ConsumerUpdate, regex: str) -> None:
    """Add to the update the removal of an expression that no member subscribes to any more."""
    update.changes.append(RegexChange(regex, None))


# -- reconciliation -----------------------------------------------------------------------------


_NONE: Final[frozenset[int]] = frozenset()
_NOTHING: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """Input of one reconciliation step.

    Attributes:
        target_epoch: Epoch of the target assignment.
        target: Target assignment of the member.
        topic_ids: Ids of the topics that the member reads. Partitions of other topics are revoked
            even if the target has them.
        owned: Partitions that the member reports as owned; None if it does not report any.
        owners: Returns the owner's member id for each owned partition of a topic, including the
            partitions of this member.
        has_changed: Whether the member's subscription changes in this request.
    """

    target_epoch: int
    target: Target
    topic_ids: Set[UUID]
    owned: Owned | None
    owners: Callable[[UUID], Mapping[int, str]]
    has_changed: bool


def next_assignment(assignment: MemberAssignment, step: Step) -> MemberAssignment:
    """Return the member's assignment after this step; unchanged if it can't proceed.

    Raises:
        Refusal: The records have a member state unknown to this version, and the member may still
            own partitions.
    """
    if assignment.state is MemberState.UNKNOWN:
        if step.owned is None or step.owned:
            raise Refusal(
                ErrorCode.FENCED_MEMBER_EPOCH, "unknown member state in the group's records"
            )
        return _towards_target(assignment, step, step.target_epoch)
    waits = assignment.state is MemberState.UNREVOKED_PARTITIONS and _owns(
        step.owned, assignment.revoking
    )
    is_there = assignment.state is MemberState.STABLE and assignment.epoch == step.target_epoch
    if waits or is_there:
        return _without_unsubscribed(assignment, step) if step.has_changed else assignment
    return _towards_target(assignment, step, assignment.epoch)


def _owns(owned: Owned | None, revoked: Assigned) -> bool:
    """Whether the member may still own some of these partitions; True if `owned` is None."""
    if owned is None:
        return True
    return any(not revoked.get(topic, {}).keys().isdisjoint(part) for topic, part in owned.items())


def _without_unsubscribed(assignment: MemberAssignment, step: Step) -> MemberAssignment:
    """Revoke partitions of topics that the member no longer reads, even without a new target."""
    unsubscribed = {
        topic: part for topic, part in assignment.assigned.items() if topic not in step.topic_ids
    }
    if not unsubscribed:
        return assignment
    remaining = {
        topic: part for topic, part in assignment.assigned.items() if topic not in unsubscribed
    }
    revoking = {topic: dict(part) for topic, part in assignment.revoking.items()}
    for topic, part in unsubscribed.items():
        revoking.setdefault(topic, {}).update(part)
    if _owns(step.owned, revoking):
        return assignment.moved(
            assignment.epoch, MemberState.UNREVOKED_PARTITIONS, remaining, revoking
        )
    # The member no longer owned these partitions when it changed its subscription. So the member
    # need not confirm their revocation.
    return assignment.moved(assignment.epoch, assignment.state, remaining, assignment.revoking)


def _towards_target(assignment: MemberAssignment, step: Step, epoch: int) -> MemberAssignment:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    pending: dict[UUID, list[int]] = {}
    is_unreleased = False
    for topic in {**step.target, **assignment.assigned}:
        target = step.target.get(topic, _NONE) if topic in step.topic_ids else _NONE
        has = assignment.assigned.get(topic, _NOTHING)
        if has.keys() == target:
            # The member keeps exactly its partitions of this topic, as after most changes of a
            # group.
            _put(assigned, topic, dict(has))
            continue
        _put(assigned, topic, {number: since for number, since in has.items() if number in target})
        _put(revoking, topic, {n: since for n, since in has.items() if n not in target})
        missing = sorted(target - has.keys())
        free = _free(missing, step.owners(topic), assignment.revoking.get(topic, _NOTHING))
        is_unreleased |= len(free) < len(missing)
        if free:
            pending[topic] = free
    if revoking and _owns(step.owned, revoking):
        return assignment.moved(epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    for topic, numbers in pending.items():
        assigned.setdefault(topic, {}).update(dict.fromkeys(numbers, step.target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_unreleased else MemberState.STABLE
    return assignment.moved(step.target_epoch, state, assigned, {})


def _put(parts: dict[UUID, dict[int, int]], topic: UUID, part: dict[int, int]) -> None:
    if part:
        parts[topic] = part


def _free(
    numbers: Iterable[int], owners: Mapping[int, str], revoking: Mapping[int, int]
) -> list[int]:
    """Return the partitions among `numbers` that have no owner or that this member is revoking."""
    return [number for number in numbers if number not in owners or number in revoking]
