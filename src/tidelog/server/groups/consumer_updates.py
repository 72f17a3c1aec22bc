"""Updates that only consumer groups have: regular expressions, static members, assignors.

Finds the member of a request (an existing, a new or a returning static one), computes its target,
and its next step towards it (`reconciliation`).

Source: Kafka 4.3's group coordinator; KIP-345, KIP-848, KIP-1263 (minimum assignment interval).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from tidelog.server.groups.group_updates import (
    GroupUpdate,
    GroupUpdates,
    find_dynamic,
)
from tidelog.server.groups.modern_changes import (
    MemberChange,
    PartitionMetadataChange,
    PlaceChange,
    RegexChange,
    TargetChange,
)
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    NO_TARGET,
    Asks,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ModernMember,
    Place,
    Target,
    Wait,
)
from tidelog.server.groups.reconciliation import Step, next_place
from tidelog.server.groups.requests import Owned
from tidelog.server.runtime.errors import Refusal

ConsumerUpdate: TypeAlias = GroupUpdate[ConsumerGroup]


_LOGGER = logging.getLogger("tidelog.server")


@dataclass(frozen=True, slots=True)
class Aim:
    """The target that a member goes towards, and the epoch that it was made for."""

    epoch: int
    target: Target


class ConsumerUpdates(GroupUpdates[ConsumerGroup]):
    """The parts that requests to consumer groups are made of. Belongs to the loop's thread."""

    # -- time --------------------------------------------------------------------------------

    def await_sign(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member gave a sign of life: its session begins anew."""
        classic = member.asks.classic
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

    def subscribed_ids(self, group: ConsumerGroup, asks: Asks) -> frozenset[UUID]:
        """Ids of the topics that a member reads; an expression not looked up yet means none."""
        resolved = group.regexes.get(asks.regex) if asks.regex else None
        return self.facts.ids(asks.topics if resolved is None else asks.topics | resolved.topics)

    # -- the target --------------------------------------------------------------------------

    def aim(
        self,
        update: ConsumerUpdate,
        epoch: int,
        known: Asks | None,
        new: ConsumerMember,
        *,
        same: bool,
    ) -> Aim:
        """What a member goes towards; a new target is made where the group's epoch asks for it.

        Args:
            update: The request.
            epoch: The group's epoch after it.
            known: What the member asked for so far, None for a newcomer.
            new: The member after it.
            same: Whether all members read the same topics then.
        """
        group = update.group
        if epoch <= group.target_epoch or not self._may_assign(group):
            target = group.target_of(new.member_id, new.asks.instance_id)
            return Aim(group.target_epoch, target)
        spec = GroupSpec(self._specs(group, new), self.facts.partition_counts(), same)
        targets = ASSIGNORS[group.assignor(known, new.asks) or self.default_assignor](spec)
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

        def read_by(asks: Asks) -> frozenset[UUID]:
            reads = (asks.topics, asks.regex)
            if reads not in ids:
                ids[reads] = self.subscribed_ids(group, asks)
            return ids[reads]

        targets, specs = group.targets, dict[str, MemberSpec]()
        last: Asks | None = None
        topics: frozenset[UUID] = frozenset()
        for name, member in group.members.items():
            asks = member.asks
            if last is None or asks.topics != last.topics or asks.regex != last.regex:
                last, topics = asks, read_by(asks)
            specs[name] = MemberSpec(asks.instance_id, topics, targets.get(name, NO_TARGET))
        target = targets.get(new.member_id)
        replaced = group.static_member(new.asks.instance_id)
        if replaced is not None and replaced.member_id != new.member_id:
            specs.pop(replaced.member_id, None)
            target = targets.get(replaced.member_id)
        new_topics = read_by(new.asks)
        specs[new.member_id] = MemberSpec(new.asks.instance_id, new_topics, target or NO_TARGET)
        return specs

    @property
    def default_assignor(self) -> str:
        """The first of the broker's assignors."""
        return self.config.group_consumer_assignors[0]

    # -- one member --------------------------------------------------------------------------

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
        if not has_changed and member.place.is_reconciled(aim.epoch):
            return member
        step = Step(
            aim.epoch,
            aim.target,
            self.subscribed_ids(group, member.asks),
            None if owned is None else dict(owned),
            group.owners,
            has_changed,
        )
        place = next_place(member.place, step)
        if place == member.place:
            return member
        update.changes.append(PlaceChange(member.member_id, place))
        if not member.is_classic:
            update.actions.append(lambda: self.watch_revocation(group, member.member_id))
        return ModernMember(member.member_id, member.asks, place)

    def watch_revocation(self, group: ConsumerGroup, member_id: str) -> None:
        """Bound the time that a member takes to give partitions up, while it has some to."""
        member = group.members[member_id]
        if member.place.state is MemberState.UNREVOKED_PARTITIONS:
            ms = max(member.asks.rebalance_timeout_ms, 0)
            self.wait_for(group, member_id, Wait.REBALANCE, ms)
        else:
            group.stop(Wait.REBALANCE, member_id)


def regexes_after(group: ConsumerGroup, known: Asks | None, new: Asks | None) -> Counter[str]:
    """How many members subscribed to each expression then; as the group's `names_after`."""
    counts = Counter(group.subscribed_regexes)
    if known is not None and known.regex:
        counts[known.regex] -= 1
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
    return {topic for found in resolved for topic in found.topics}


def drop_regex(update: ConsumerUpdate, regex: str) -> None:
    """Nobody is subscribed to an expression any more."""
    update.changes.append(RegexChange(regex, None))


@dataclass(frozen=True, slots=True)
class Found:
    """Who asks.

    Attributes:
        member: The member, with the place of the one that it replaces.
        known: What the group already counts of it, None for a newcomer.
        replaced_id: The id that a static member had before, None where it keeps its own.
    """

    member: ConsumerMember
    known: Asks | None
    replaced_id: str | None = None


def find_known(group: ConsumerGroup, member_id: str, *, joins: bool) -> Found:
    """A dynamic member, new where it joins and is not there."""
    member = find_dynamic(group, member_id, joins=joins)
    return Found(member, member.asks if member_id in group.members else None)


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
) -> Found:
    """A static member; one that comes back takes its old place under its new id.

    Raises:
        Refusal: It is not there and doesn't join, or its instance is in use.
    """
    group = update.group
    if not joins:
        member = static_member_of(group, member_id, instance_id)
        return Found(member, member.asks)
    old = group.static_member(instance_id)
    if old is None:
        return find_known(group, member_id, joins=True)
    if not is_classic and not old.is_classic and old.place.epoch != LEAVING_FOR_A_WHILE:
        raise Refusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"instance {instance_id} is in use by member {old.member_id}",
        )
    member = ModernMember(member_id, old.asks, _place_to_come_back_to(old.place))
    _replace(update, old, member)
    return Found(member, old.asks, old.member_id if old.member_id != member_id else None)


def _place_to_come_back_to(place: Place) -> Place:
    """All that was kept for a static member; in any epoch up to its next one it may commit that."""
    assigned = {topic: dict.fromkeys(numbers, JOINING) for topic, numbers in place.assigned.items()}
    return replace(place, epoch=JOINING, previous_epoch=JOINING, assigned=assigned)


def _replace(update: ConsumerUpdate, old: ConsumerMember, new: ConsumerMember) -> None:
    target = update.group.targets.get(old.member_id, NO_TARGET)
    GroupUpdates.remove(update, old.member_id)
    update.changes.append(MemberChange(new.member_id, new.asks))
    update.changes.append(TargetChange(new.member_id, target))
    update.changes.append(PlaceChange(new.member_id, new.place))


def require_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """Refuse a member that says another epoch than it is in.

    The one before is taken where the member has nothing but what it was given: the answer that
    told it of the next one may have been lost.

    Raises:
        Refusal: It must give all up and join again.
    """
    place = member.place
    if epoch in (JOINING, place.epoch):
        return
    was_told = epoch == place.previous_epoch and _is_within(owned, member)
    if epoch > place.epoch or not was_told:
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id} is in epoch {place.epoch}, not {epoch}:"
            " it has to give everything up and join again",
        )


def _is_within(owned: Owned | None, member: ConsumerMember) -> bool:
    if owned is None:
        return False
    assigned = member.place.assigned
    return all(numbers <= assigned.get(topic, {}).keys() for topic, numbers in owned.items())
