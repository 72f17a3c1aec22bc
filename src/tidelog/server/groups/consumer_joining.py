"""Which member a request is from: one that is there, a new one, or a static one that comes back.

Source: Kafka 4.3's group coordinator; KIP-345, KIP-848.
"""

from dataclasses import dataclass, replace

from tidelog.error_codes import ErrorCode
from tidelog.server.errors import Refusal
from tidelog.server.groups.consumer.changes import MemberChange, PlaceChange, TargetChange
from tidelog.server.groups.consumer.group import NO_TARGET, ConsumerGroup
from tidelog.server.groups.consumer.member import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Asks,
    ConsumerMember,
    Place,
)
from tidelog.server.groups.consumer_steps import Draft, Steps
from tidelog.server.groups.results import Owned


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


def member_of(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    """A member by its id.

    Raises:
        Refusal: There is none.
    """
    member = group.members.get(member_id)
    if member is None:
        raise Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id} is not in group {group.group_id}"
        )
    return member


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


def find_dynamic(group: ConsumerGroup, member_id: str, *, joins: bool) -> Found:
    """A dynamic member, new where it joins and is not there."""
    member = group.members.get(member_id)
    if member is None and joins:
        return Found(ConsumerMember(member_id), None)
    member = member_of(group, member_id)
    return Found(member, member.asks)


def find_static(
    draft: Draft, member_id: str, instance_id: str, *, joins: bool, is_classic: bool
) -> Found:
    """A static member; one that comes back takes its old place under its new id.

    Raises:
        Refusal: It is not there and doesn't join, or its instance is in use.
    """
    group = draft.group
    if not joins:
        member = static_member_of(group, member_id, instance_id)
        return Found(member, member.asks)
    old = group.static_member(instance_id)
    if old is None:
        return Found(ConsumerMember(member_id), None)
    if not is_classic and not old.is_classic and old.place.epoch != LEAVING_FOR_A_WHILE:
        raise Refusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"instance {instance_id} is in use by member {old.member_id}",
        )
    member = ConsumerMember(member_id, old.asks, _place_to_come_back_to(old.place))
    _replace(draft, old, member)
    return Found(member, old.asks, old.member_id if old.member_id != member_id else None)


def _place_to_come_back_to(place: Place) -> Place:
    """All that was kept for a static member; in any epoch up to its next one it may commit that."""
    assigned = {topic: dict.fromkeys(numbers, JOINING) for topic, numbers in place.assigned.items()}
    return replace(place, epoch=JOINING, previous_epoch=JOINING, assigned=assigned)


def _replace(draft: Draft, old: ConsumerMember, new: ConsumerMember) -> None:
    target = draft.group.targets.get(old.member_id, NO_TARGET)
    Steps.remove(draft, old.member_id)
    draft.changes.append(MemberChange(new.member_id, new.asks))
    draft.changes.append(TargetChange(new.member_id, target))
    draft.changes.append(PlaceChange(new.member_id, new.place))


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
