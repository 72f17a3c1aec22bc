"""Member that a request refers to (existing, new, or static and returning), and its subscription.

Used by heartbeats of consumer and share groups, and by classic members of consumer groups.

Source: Kafka 4.3's group coordinator; KIP-345, KIP-848.
"""

from tidelog.amounts import plural
from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.server.groups.group_updates import GroupUpdate, GroupUpdates
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    NO_TARGET,
    NO_TIMEOUT,
    AssignmentT,
    ConsumerGroup,
    ConsumerMember,
    MemberAssignment,
    ModernGroup,
    ModernMember,
    Subscription,
)
from tidelog.server.groups.modern_records import AssignmentChange, MemberChange, TargetChange
from tidelog.server.groups.requests import HeartbeatRequest, Owned
from tidelog.server.runtime.errors import Refusal


def require_room(
    group: ModernGroup[AssignmentT], member_id: str, limit: int, group_name: str
) -> None:
    """Refuse a new member if the group is full."""
    if len(group.members) >= limit and member_id not in group.members:
        raise Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"the {group_name} is full: it already has {plural(limit, 'member')}, the maximum",
        )


def member_of(group: ModernGroup[AssignmentT], member_id: str) -> ModernMember[AssignmentT]:
    """Return a member by its id.

    Raises:
        Refusal: The member id is unknown.
    """
    member = group.members.get(member_id)
    if member is None:
        raise Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id} is not in group {group.group_id}"
        )
    return member


def find_dynamic(
    group: ModernGroup[AssignmentT], member_id: str, *, joins: bool
) -> ModernMember[AssignmentT]:
    """Find a dynamic member, or create it if it joins and is unknown."""
    if joins and member_id not in group.members:
        return ModernMember(member_id, Subscription(), group.no_assignment)
    return member_of(group, member_id)


@dataclass(frozen=True, slots=True)
class MemberMatch:
    """Member that a request refers to.

    Attributes:
        member: The member. A member that replaces another member already has the replaced member's
            state.
        previous: The member's subscription before the request; None for a new member.
        replaced_id: Former id of a returning static member; None if the member keeps its id.
    """

    member: ConsumerMember
    previous: Subscription | None
    replaced_id: str | None = None


def find_member(
    update: GroupUpdate[ConsumerGroup], request: HeartbeatRequest, member_id: str
) -> MemberMatch:
    """Find the member that sent a heartbeat (existing, new or returning); check its epoch."""
    joins, instance_id = request.epoch == JOINING, request.instance_id
    if instance_id is None:
        match = match_dynamic(update.group, member_id, joins=joins)
    else:
        match = find_static(update, member_id, instance_id, joins=joins, is_classic=False)
    _require_epoch(match.member, request.epoch, request.owned)
    return match


def match_dynamic(group: ConsumerGroup, member_id: str, *, joins: bool) -> MemberMatch:
    """Find a dynamic member, or create it if it joins and is unknown."""
    member = find_dynamic(group, member_id, joins=joins)
    return MemberMatch(member, member.subscription if member_id in group.members else None)


def static_member_of(
    group: ConsumerGroup, member_id: str | None, instance_id: str
) -> ConsumerMember:
    """Return the static member that has both this instance id and this member id.

    If `member_id` is None, the member may have any member id.

    Raises:
        Refusal: The instance is unknown, or its member has another member id.
    """
    member = group.static_member(instance_id)
    if member is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown group instance id {instance_id}")
    if member_id is not None and member.member_id != member_id:
        raise Refusal(
            ErrorCode.FENCED_INSTANCE_ID,
            f"group instance id {instance_id} belongs to member {member.member_id},"
            f" not {member_id}",
        )
    return member


def find_static(
    update: GroupUpdate[ConsumerGroup],
    member_id: str,
    instance_id: str,
    *,
    joins: bool,
    is_classic: bool,
) -> MemberMatch:
    """Find a static member. A returning member gets its old assignment under its new id.

    Raises:
        Refusal: The request joins, and its instance is in use; or the request does not join, and
            its instance is unknown or has another member id.
    """
    group = update.group
    if not joins:
        member = static_member_of(group, member_id, instance_id)
        return MemberMatch(member, member.subscription)
    old = group.static_member(instance_id)
    if old is None:
        return match_dynamic(group, member_id, joins=True)
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
    """Return a returning static member's assignment: all its partitions, with the joining epoch.

    The epoch of each partition becomes the joining epoch (`JOINING`). So the member may commit
    offsets with any epoch from `JOINING` to the member's current epoch.
    """
    assigned = {
        topic: dict.fromkeys(numbers, JOINING) for topic, numbers in assignment.assigned.items()
    }
    return assignment._replace(epoch=JOINING, previous_epoch=JOINING, assigned=assigned)


def _replace(update: GroupUpdate[ConsumerGroup], old: ConsumerMember, new: ConsumerMember) -> None:
    target = update.group.targets.get(old.member_id, NO_TARGET)
    GroupUpdates.remove(update, old.member_id)
    update.changes.append(MemberChange(new.member_id, new.subscription))
    update.changes.append(TargetChange(new.member_id, target))
    update.changes.append(AssignmentChange(new.member_id, new.assignment))


def _require_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """Refuse a member that reports an epoch other than its own, unless the member is joining.

    The member's previous epoch is accepted if all partitions that it reports as owned are in its
    assignment. Without this exception, a member would be refused if the response with its new epoch
    was lost.

    Raises:
        Refusal: The member must give up all partitions and rejoin.
    """
    assignment = member.assignment
    if epoch in (JOINING, assignment.epoch):
        return
    is_previous = epoch == assignment.previous_epoch and _is_within(owned, member)
    if epoch > assignment.epoch or not is_previous:
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id} has epoch {assignment.epoch}, not {epoch};"
            " it must revoke all partitions and rejoin",
        )


def _is_within(owned: Owned | None, member: ConsumerMember) -> bool:
    if owned is None:
        return False
    assigned = member.assignment.assigned
    return all(numbers <= assigned.get(topic, {}).keys() for topic, numbers in owned.items())


# -- subscriptions --------------------------------------------------------------------------------


def updated_subscription(subscription: Subscription, request: HeartbeatRequest) -> Subscription:
    """Return the subscription after a heartbeat; the same object if nothing has changed."""
    if _is_unchanged(subscription, request):
        return subscription
    timeout_ms = request.rebalance_timeout_ms
    return Subscription(
        instance_id=subscription.instance_id
        if request.instance_id is None
        else request.instance_id,
        rack_id=subscription.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms
        if timeout_ms == NO_TIMEOUT
        else timeout_ms,
        topics=subscription.topics if request.topics is None else request.topics,
        regex=subscription.regex if request.regex is None else request.regex,
        assignor=subscription.assignor if request.assignor is None else request.assignor,
        classic=None,
    )


def _is_unchanged(subscription: Subscription, request: HeartbeatRequest) -> bool:
    """Whether the heartbeat leaves the subscription unchanged, as nearly every heartbeat does."""
    return (
        request.topics is None
        and request.rebalance_timeout_ms == NO_TIMEOUT
        and request.regex is None
        and request.rack_id is None
        and request.assignor is None
        and subscription.classic is None
        and request.instance_id in (None, subscription.instance_id)
        and request.client_id == subscription.client_id
        and request.client_host == subscription.client_host
    )
