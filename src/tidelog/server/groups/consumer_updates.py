"""Updates that only consumer groups have: static members, expressions, targets, next steps.

`find_known` and `find_static` find the member of a request: an existing, a new or a returning
static one. `ConsumerUpdates.aim` computes its target, `next_assignment` its next step towards it.

A member that must give up partitions stays in its epoch until it no longer reports them as owned
(UNREVOKED_PARTITIONS). In the new epoch it waits for partitions that other members still own
(UNRELEASED_PARTITIONS). With nothing missing it is STABLE. So a partition never has two owners.

Source: Kafka 4.3's group coordinator and its reconciliation; KIP-345, KIP-848, KIP-1263 (minimum
assignment interval).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from tidelog.server.groups.group_updates import (
    GroupUpdate,
    GroupUpdates,
    find_dynamic,
)
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING_FOR_A_WHILE,
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
    MemberChange,
    PartitionMetadataChange,
    RegexChange,
    TargetChange,
)
from tidelog.server.groups.requests import Owned
from tidelog.server.runtime.errors import Refusal
from tidelog.storage.files import encode_topic_id

ConsumerUpdate: TypeAlias = GroupUpdate[ConsumerGroup]


_LOGGER = logging.getLogger("tidelog.server")


@dataclass(frozen=True, slots=True)
class Aim:
    """The target that a member goes towards, and the epoch that it was made for."""

    epoch: int
    target: Target


class ConsumerUpdates(GroupUpdates[ConsumerGroup]):
    """The parts that requests to consumer groups are made of. Belongs to the loop's thread."""

    def new_member_id(self) -> str:
        """Return an id that no member has, in Kafka's form."""
        return encode_topic_id(self.context.new_uuid())

    # -- time --------------------------------------------------------------------------------

    def restart_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member gave a sign of life: its session begins anew."""
        classic = member.subscription.classic
        ms = (
            self.settings.session_timeout_ms(group.group_id)
            if classic is None
            else classic.session_timeout_ms
        )
        self.wait_for(group, member.member_id, Wait.SESSION, ms)

    def session_left_ms(self, group: ConsumerGroup, member_id: str) -> int | None:
        """How long a member may still be silent, None where nobody counts."""
        timer = group.waits.get((Wait.SESSION, member_id))
        if timer is None or timer.is_cancelled:
            return None
        return max(timer.due_ms - self.clock.monotonic_ms(), 0)

    # -- the group's epoch -------------------------------------------------------------------

    def begin_epoch(self, update: ConsumerUpdate, names: Iterable[str], *, is_due: bool) -> int:
        """The same; what an older Kafka wrote down of the topics goes along."""
        group = update.group
        epoch = super().begin_epoch(update, names, is_due=is_due)
        if epoch > group.epoch:
            _LOGGER.info("group %s: epoch %d", group.group_id, epoch)
        if group.has_partition_metadata:
            update.changes.append(PartitionMetadataChange())
        return epoch

    def subscribed_ids(self, group: ConsumerGroup, subscription: Subscription) -> frozenset[UUID]:
        """Ids of the topics that a member reads; an expression not looked up yet means none."""
        resolved = group.regexes.get(subscription.regex) if subscription.regex else None
        return self.facts.ids(
            subscription.topics if resolved is None else subscription.topics | resolved.topics
        )

    # -- the target --------------------------------------------------------------------------

    def aim(
        self,
        update: ConsumerUpdate,
        epoch: int,
        previous: Subscription | None,
        new: ConsumerMember,
        *,
        same: bool,
    ) -> Aim:
        """What a member goes towards; a new target is made where the group's epoch asks for it.

        Args:
            update: The request.
            epoch: The group's epoch after it.
            previous: What the member asked for so far, None for a newcomer.
            new: The member after it.
            same: Whether all members read the same topics then.
        """
        group = update.group
        if epoch <= group.target_epoch or not self._may_assign(group):
            target = group.target_of(new.member_id, new.subscription.instance_id)
            return Aim(group.target_epoch, target)
        spec = GroupSpec(self._specs(group, new), self.facts.partition_counts(), same)
        targets = ASSIGNORS[group.assignor(previous, new.subscription) or self.default_assignor](
            spec
        )
        self.put_targets(
            update, epoch, [(each, targets.get(each, NO_TARGET)) for each in spec.members]
        )
        return Aim(epoch, targets.get(new.member_id, NO_TARGET))

    def _may_assign(self, group: ConsumerGroup) -> bool:
        """Whether the last target is old enough for a new one.

        It never is in the same turn: of many that come together each would deal all partitions
        out anew, and members would give up for one what the next gives back to them.
        """
        interval_ms = self.settings.assignment_interval_ms(group.group_id)
        is_old = not self.target_wait_ms(group, 0, interval_ms)
        return is_old and self.assigned.is_first(group.group_id)

    def _specs(self, group: ConsumerGroup, new: ConsumerMember) -> dict[str, MemberSpec]:
        ids: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}  # most read the same

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
        """The first of the broker's assignors."""
        return self.config.group_consumer_assignors[0]

    # -- one member --------------------------------------------------------------------------

    def move(
        self,
        update: ConsumerUpdate,
        known: Subscription | None,
        new: ConsumerMember,
        owned: Owned | None,
        *,
        is_due: bool,
        has_changed: bool,
    ) -> ConsumerMember:
        """Begin a new epoch and compute a new target where due; then reconcile a member.

        Args:
            update: The request.
            known: What the member asked for so far, None for a newcomer.
            new: The member after the request.
            owned: Partitions that it reports as owned, None if it does not report any.
            is_due: Whether the request itself begins a new epoch.
            has_changed: Whether the member's subscription changes.

        Returns:
            The member after its next step; the same if it can't go on.
        """
        epoch, same = self._next_epoch(update, known, new, is_due=is_due)
        aim = self.aim(update, epoch, known, new, same=same)
        return self.reconcile(update, new, aim, owned, has_changed=has_changed)

    def _next_epoch(
        self,
        update: ConsumerUpdate,
        known: Subscription | None,
        new: ConsumerMember,
        *,
        is_due: bool,
    ) -> tuple[int, bool]:
        """The group's epoch after this; whether all members are known to read the same topics."""
        group = update.group
        is_due_now = is_due or self.has_stale_topics(group)
        if not is_due_now and group.epoch <= group.target_epoch:
            # Nearly every heartbeat: nobody assigns, so no topics are counted.
            return group.epoch, False
        names = group.names_after(known, new.subscription)
        regexes = regexes_after(group, known, new.subscription)
        epoch = group.epoch
        if is_due_now:
            epoch = self.begin_epoch(update, {*names, *topics_of(group, regexes)}, is_due=is_due)
        count = len(group.members) + (known is None)
        return epoch, reads_the_same(names, regexes, count)

    def reconcile(
        self,
        update: ConsumerUpdate,
        member: ConsumerMember,
        aim: Aim,
        owned: Owned | None,
        *,
        has_changed: bool,
    ) -> ConsumerMember:
        """Move a member towards its target; the same member where it can't go on."""
        group = update.group
        if not has_changed and member.assignment.is_reconciled(aim.epoch):
            return member
        step = Step(
            aim.epoch,
            aim.target,
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
        """Bound the time that a member takes to give partitions up, while it has some to."""
        member = group.members[member_id]
        if member.assignment.state is MemberState.UNREVOKED_PARTITIONS:
            ms = max(member.subscription.rebalance_timeout_ms, 0)
            self.wait_for(group, member_id, Wait.REBALANCE, ms)
        else:
            group.stop(Wait.REBALANCE, member_id)


def regexes_after(
    group: ConsumerGroup, previous: Subscription | None, new: Subscription | None
) -> Counter[str]:
    """How many members subscribed to each expression then; as the group's `names_after`."""
    counts = Counter(group.subscribed_regexes)
    if previous is not None and previous.regex:
        counts[previous.regex] -= 1
    if new is not None and new.regex:
        counts[new.regex] += 1
    return +counts


def reads_the_same(names: Mapping[str, int], regexes: Mapping[str, int], count: int) -> bool:
    """Whether all of so many members read the same topics, as far as counting can tell."""
    if regexes:
        return not names and next(iter(regexes.values())) == count
    return all(each == count for each in names.values())


def topics_of(group: ConsumerGroup, regexes: Iterable[str]) -> set[str]:
    """Topics that expressions mean, as far as they were looked up."""
    resolved = (group.regexes[regex] for regex in regexes if regex in group.regexes)
    return {topic for resolved_regex in resolved for topic in resolved_regex.topics}


def drop_regex(update: ConsumerUpdate, regex: str) -> None:
    """Nobody is subscribed to an expression any more."""
    update.changes.append(RegexChange(regex, None))


@dataclass(frozen=True, slots=True)
class MemberMatch:
    """Who asks.

    Attributes:
        member: The member, with the place of the one that it replaces.
        known: What the group already counts of it, None for a newcomer.
        replaced_id: The id that a static member had before, None where it keeps its own.
    """

    member: ConsumerMember
    known: Subscription | None
    replaced_id: str | None = None


def find_known(group: ConsumerGroup, member_id: str, *, joins: bool) -> MemberMatch:
    """A dynamic member, new where it joins and is not there."""
    member = find_dynamic(group, member_id, joins=joins)
    return MemberMatch(member, member.subscription if member_id in group.members else None)


def static_member_of(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """A static member by its instance, which must have that id.

    Raises:
        Refusal: There is none, or another member has the instance.
    """
    member = group.static_member(instance_id)
    if member is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"instance {instance_id} is not known")
    if member.member_id != member_id:
        raise Refusal(
            ErrorCode.FENCED_INSTANCE_ID,
            f"instance {instance_id} is member {member.member_id}'s, not {member_id}'s",
        )
    return member


def find_static(
    update: ConsumerUpdate, member_id: str, instance_id: str, *, joins: bool, is_classic: bool
) -> MemberMatch:
    """A static member; one that comes back takes its old place under its new id.

    Raises:
        Refusal: It is not there and doesn't join, or its instance is in use.
    """
    group = update.group
    if not joins:
        member = static_member_of(group, member_id, instance_id)
        return MemberMatch(member, member.subscription)
    old = group.static_member(instance_id)
    if old is None:
        return find_known(group, member_id, joins=True)
    if not is_classic and not old.is_classic and old.assignment.epoch != LEAVING_FOR_A_WHILE:
        raise Refusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"instance {instance_id} is in use by member {old.member_id}",
        )
    member = ModernMember(member_id, old.subscription, _assignment_on_return(old.assignment))
    _replace(update, old, member)
    return MemberMatch(
        member, old.subscription, old.member_id if old.member_id != member_id else None
    )


def _assignment_on_return(assignment: MemberAssignment) -> MemberAssignment:
    """All that was kept for a static member; in any epoch up to its next one it may commit that."""
    assigned = {
        topic: dict.fromkeys(numbers, JOINING) for topic, numbers in assignment.assigned.items()
    }
    return replace(assignment, epoch=JOINING, previous_epoch=JOINING, assigned=assigned)


def _replace(update: ConsumerUpdate, old: ConsumerMember, new: ConsumerMember) -> None:
    target = update.group.targets.get(old.member_id, NO_TARGET)
    GroupUpdates.remove(update, old.member_id)
    update.changes.append(MemberChange(new.member_id, new.subscription))
    update.changes.append(TargetChange(new.member_id, target))
    update.changes.append(AssignmentChange(new.member_id, new.assignment))


def require_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """Refuse a member that says another epoch than it is in.

    The one before is taken where the member has nothing but what it was given: the answer that
    told it of the next one may have been lost.

    Raises:
        Refusal: It must give all up and join again.
    """
    assignment = member.assignment
    if epoch in (JOINING, assignment.epoch):
        return
    was_told = epoch == assignment.previous_epoch and _is_within(owned, member)
    if epoch > assignment.epoch or not was_told:
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id} is in epoch {assignment.epoch}, not {epoch}:"
            " it has to give everything up and join again",
        )


def _is_within(owned: Owned | None, member: ConsumerMember) -> bool:
    if owned is None:
        return False
    assigned = member.assignment.assigned
    return all(numbers <= assigned.get(topic, {}).keys() for topic, numbers in owned.items())


# -- reconciliation -----------------------------------------------------------------------------


_NONE: Final[frozenset[int]] = frozenset()


_NOTHING: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is made with.

    Attributes:
        target_epoch: Epoch of the target assignment.
        target: What the member is to have.
        topic_ids: Topics that it reads: others go even where the target still has them.
        owned: What it says that it owns, None where it says nothing.
        owners: Who has which of a topic's partitions, this member included.
        has_changed: Whether its subscription changes now.
    """

    target_epoch: int
    target: Target
    topic_ids: Set[UUID]
    owned: Owned | None
    owners: Callable[[UUID], Mapping[int, str]]
    has_changed: bool


def next_assignment(assignment: MemberAssignment, step: Step) -> MemberAssignment:
    """Where the member stands after this step; the same place where it can't go on.

    Raises:
        Refusal: Nobody here knows the state that its records say.
    """
    if assignment.state is MemberState.UNKNOWN:
        if step.owned is None or step.owned:
            raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is not known here")
        return _towards_target(assignment, step, step.target_epoch)
    waits = assignment.state is MemberState.UNREVOKED_PARTITIONS and _owns(
        step.owned, assignment.revoking
    )
    is_there = assignment.state is MemberState.STABLE and assignment.epoch == step.target_epoch
    if waits or is_there:
        return _without_unsubscribed(assignment, step) if step.has_changed else assignment
    return _towards_target(assignment, step, assignment.epoch)


def _owns(owned: Owned | None, revoked: Assigned) -> bool:
    """Whether the member may still have some of this; who says nothing may."""
    if owned is None:
        return True
    return any(not revoked.get(topic, {}).keys().isdisjoint(part) for topic, part in owned.items())


def _without_unsubscribed(assignment: MemberAssignment, step: Step) -> MemberAssignment:
    """Give up topics that are not read any more, without waiting for a new target."""
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
    # It had given them up before it said that it does not read them.
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
            # Nearly always, as the group changes: what a member keeps.
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
    """The partitions that nobody else has; what the member itself gives up is its own."""
    return [number for number in numbers if number not in owners or number in revoking]
