"""Rules of ConsumerGroupHeartbeat: members join, send heartbeats, reconcile and leave.

Source: Kafka 4.3's group coordinator; KIP-848.
"""

from collections.abc import Iterable

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.consumer_rebalance import (
    ConsumerUpdate,
    ConsumerUpdates,
)
from tidelog.server.groups.group_updates import (
    GroupUpdate,
    answer_heartbeat,
    require_all,
    result_after,
)
from tidelog.server.groups.members import (
    MemberMatch,
    find_member,
    member_of,
    require_room,
    static_member_of,
    updated_subscription,
)
from tidelog.server.groups.migration import Migration
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    NO_TIMEOUT,
    Assigned,
    ConsumerGroup,
    ConsumerMember,
    ShareGroup,
)
from tidelog.server.groups.modern_records import AssignmentChange, MemberChange
from tidelog.server.groups.requests import HeartbeatRequest, HeartbeatResult, Owned
from tidelog.server.groups.topic_regexes import Regexes, RegexStatus
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply


class ConsumerHeartbeats:
    """Heartbeats of members of the consumer protocol. Used only in the event loop's thread."""

    def __init__(self, updates: ConsumerUpdates, migration: Migration, regexes: Regexes) -> None:
        self._updates = updates
        self._migration = migration
        self._regexes = regexes

    def heartbeat(self, request: HeartbeatRequest) -> Reply[HeartbeatResult]:
        """Handle one heartbeat."""
        return answer_heartbeat(request, self._check, self._stay, self._leave)

    def _check(self, request: HeartbeatRequest) -> None:
        """Refuse an invalid request."""
        is_usual = (
            request.epoch > JOINING and request.instance_id is None and request.rack_id is None
        )
        # A usual heartbeat of an existing member needs no check by `_rules` if it has a member id
        # and a group id.
        if not (is_usual and request.member_id.strip() and request.group_id.strip()):
            require_all(_rules(request))
        assignor = request.assignor
        assignors = self._updates.config.group_consumer_assignors
        if assignor is not None and assignor not in assignors:
            names = ", ".join(assignors)
            raise Refusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"unknown assignor {assignor}; supported: {names}",
            )

    # -- staying -----------------------------------------------------------------------------

    def _stay(self, request: HeartbeatRequest) -> Reply[HeartbeatResult]:
        joins = request.epoch == JOINING
        update = self._open(request.group_id, joins=joins)
        group = update.group
        limit = self._updates.config.group_consumer_max_size
        require_room(group, request.member_id, limit, "group")
        member_id = request.member_id or self._updates.new_member_id()
        match = find_member(update, request, member_id)
        old = match.member
        subscription = updated_subscription(old.subscription, request)
        new = old if subscription is old.subscription else old._replace(subscription=subscription)
        status = self._change(update, match, new)
        names_changed = new.subscription.topics != old.subscription.topics
        is_due = names_changed or status is RegexStatus.RESOLVED
        has_changed = names_changed or status is not RegexStatus.SAME
        moved = self._updates.move(
            update, match.previous, new, request.owned, is_due=is_due, has_changed=has_changed
        )
        update.actions.append(lambda: self._updates.restart_session(group, moved))
        self._regexes.maybe_look_up(update, match, new, request.may_see)
        is_full = (
            request.rebalance_timeout_ms != NO_TIMEOUT
            and (request.topics is not None or request.regex is not None)
            and request.owned is not None
        )
        with_assignment = joins or is_full or moved.assignment.assigned != old.assignment.assigned
        return self._respond(update, moved, with_assignment=with_assignment)

    def _open(self, group_id: str, *, joins: bool) -> ConsumerUpdate:
        """Return an update of a group.

        If the member joins, a missing group is created and a classic group is converted.
        """
        group = self._updates.table.get(group_id)
        if isinstance(group, ConsumerGroup):
            return GroupUpdate(group)
        if group is None and joins:
            return GroupUpdate(ConsumerGroup(group_id))
        if isinstance(group, ShareGroup):
            text = f"Group {group_id} is not a consumer group."
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if group is None or not joins:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"consumer group {group_id} does not exist")
        return self._migration.upgrade(group)

    def _change(
        self, update: ConsumerUpdate, match: MemberMatch, new: ConsumerMember
    ) -> RegexStatus:
        """Add the change of a member's subscription to the update.

        Return how the member's regular expression changes.
        """
        if match.previous is None or (
            new is not match.member and new.subscription != match.member.subscription
        ):
            update.changes.append(MemberChange(new.member_id, new.subscription))
        if match.member.is_classic:
            update.actions.append(lambda: update.group.stop_classic(new.member_id))
        return self._regexes.change(update, match, new)

    def _respond(
        self, update: ConsumerUpdate, member: ConsumerMember, *, with_assignment: bool
    ) -> Reply[HeartbeatResult]:
        result = HeartbeatResult(
            member_id=member.member_id,
            epoch=member.assignment.epoch,
            interval_ms=self._updates.settings.heartbeat_interval_ms(update.group.group_id),
            assignment=owned_of(member.assignment.assigned) if with_assignment else None,
        )
        return result_after(self._updates.write(update), result)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, request: HeartbeatRequest) -> Reply[HeartbeatResult]:
        group = self._updates.table.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise Refusal(
                ErrorCode.GROUP_ID_NOT_FOUND, f"consumer group {request.group_id} does not exist"
            )
        result = HeartbeatResult(member_id=request.member_id, epoch=request.epoch)
        if request.instance_id is None:
            member = member_of(group, request.member_id)
            return result_after(self._migration.fence(group, (member,)), result)
        member = static_member_of(group, request.member_id, request.instance_id)
        if request.epoch == LEAVING:
            return result_after(self._migration.fence(group, (member,)), result)
        update = GroupUpdate(group)
        assignment = member.assignment._replace(epoch=LEAVING_FOR_A_WHILE, revoking={})
        update.changes.append(AssignmentChange(member.member_id, assignment))
        return result_after(self._updates.write(update), result)


def _rules(request: HeartbeatRequest) -> Iterable[tuple[bool, str]]:
    may_lack_id = request.is_first_version and request.epoch in (JOINING, LEAVING_FOR_A_WHILE)
    joins = request.epoch == JOINING
    return (
        (may_lack_id or bool(request.member_id.strip()), "the member id is missing"),
        (bool(request.group_id.strip()), "the group id is missing"),
        (_is_null_or_nonblank(request.instance_id), "an instance id can't be empty"),
        (_is_null_or_nonblank(request.rack_id), "a rack id can't be empty"),
        (
            not joins or request.rebalance_timeout_ms != NO_TIMEOUT,
            "a joining member must send its rebalance timeout",
        ),
        (
            not joins or (request.owned is not None and not request.owned),
            "a joining member must send an empty list of owned partitions",
        ),
        (
            not joins or request.topics is not None or request.regex is not None,
            "a joining member must send its topics, by names or by an expression",
        ),
        (
            request.epoch != LEAVING_FOR_A_WHILE or request.instance_id is not None,
            f"only a static member may leave temporarily, with member epoch {LEAVING_FOR_A_WHILE}",
        ),
        (request.epoch >= LEAVING_FOR_A_WHILE, f"invalid member epoch {request.epoch}"),
    )


def _is_null_or_nonblank(text: str | None) -> bool:
    return text is None or bool(text.strip())


def owned_of(assigned: Assigned) -> Owned:
    """Return the partitions without their epochs."""
    return {topic: frozenset(numbers) for topic, numbers in assigned.items()}
