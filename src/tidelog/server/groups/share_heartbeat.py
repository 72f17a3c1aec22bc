"""Rules of ShareGroupHeartbeat: members of share groups join, send heartbeats and leave.

Several members of a share group may read a partition at the same time. So no partition has to be
revoked first, and a member gets its target assignment at once. The first heartbeat that names a
topic initializes the topic for the group at once, because the topic's delivery state is kept in the
same process. Unlike a consumer group, a new share group first waits for an assignment interval.
Without this wait, the first of several members that start together would acquire all records.

Tools change the initialized topics of a group through `ShareTopics`.

Source: Kafka 4.3's group coordinator; KIP-932, KIP-1263 (minimum assignment interval).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.assignors import assign_simple
from tidelog.server.groups.group_updates import (
    GroupUpdate,
    GroupUpdates,
    answer_heartbeat,
    require_all,
    result_after,
)
from tidelog.server.groups.members import (
    find_dynamic,
    member_of,
    require_room,
    updated_subscription,
)
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING,
    NO_TARGET,
    ShareAssignment,
    SharedTopic,
    ShareGroup,
    ShareMember,
    Subscription,
    Target,
    Wait,
)
from tidelog.server.groups.modern_records import (
    AssignmentChange,
    EpochChange,
    MemberChange,
    SharedTopicsChange,
)
from tidelog.server.groups.requests import HeartbeatRequest, HeartbeatResult
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo

# Maximum number of characters of a member id. Clients use UUIDs in their longest text form.
_MEMBER_ID_CHARACTERS_MAX: Final = 36

ShareUpdates: TypeAlias = GroupUpdates[ShareGroup]
Shared: TypeAlias = Mapping[UUID, SharedTopic]


def no_share_group(group_id: str, *, is_there: bool) -> Refusal:
    """Build the error for a missing group; if `is_there`, for a group of another type."""
    reason = "is not a share group" if is_there else "not found"
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")


def shared_after(shared: Shared, names: Iterable[str], topics: Mapping[str, TopicInfo]) -> Shared:
    """Return the initialized topics after members subscribe to `names`.

    All topics of `shared` stay. For the topics in `names`, all partitions are initialized.
    """
    after = dict(shared)
    for info in (topics[name] for name in sorted(names) if name in topics):
        if info.topic_id is not None:
            after[info.topic_id] = SharedTopic(info.name, frozenset(range(info.partitions)))
    return after


class ShareHeartbeats:
    """Heartbeats of members of share groups. Used only in the event loop's thread."""

    def __init__(self, updates: ShareUpdates) -> None:
        self._updates = updates
        updates.on_silence = self._silent

    def heartbeat(self, request: HeartbeatRequest) -> Reply[HeartbeatResult]:
        """Handle one heartbeat."""
        return answer_heartbeat(request, self._check, self._stay, self._leave)

    def _check(self, request: HeartbeatRequest) -> None:
        require_all(
            (
                (bool(request.member_id.strip()), "the member id is missing"),
                (
                    len(request.member_id) <= _MEMBER_ID_CHARACTERS_MAX,
                    f"the member id has more than {_MEMBER_ID_CHARACTERS_MAX} characters",
                ),
                (bool(request.group_id.strip()), "the group id is missing"),
                (
                    request.rack_id is None or bool(request.rack_id.strip()),
                    "a rack id can't be empty",
                ),
                (
                    request.epoch != JOINING or bool(request.topics),
                    "a joining member must send its topics",
                ),
                (request.epoch >= LEAVING, f"invalid member epoch {request.epoch}"),
            )
        )

    # -- staying -----------------------------------------------------------------------------

    def _stay(self, request: HeartbeatRequest) -> Reply[HeartbeatResult]:
        joins = request.epoch == JOINING
        group = self._open(request.group_id, joins=joins)
        limit = self._updates.config.group_share_max_size
        require_room(group, request.member_id, limit, "share group")
        old = find_dynamic(group, request.member_id, joins=joins)
        _require_epoch(old, request.epoch)
        update = GroupUpdate(group)
        subscription = updated_subscription(old.subscription, request)
        is_known = request.member_id in group.members
        if not is_known or subscription != old.subscription:
            update.changes.append(MemberChange(old.member_id, subscription))
        has_changed = not is_known or subscription.topics != old.subscription.topics
        epoch, shared = self._next_epoch(update, old.subscription, subscription, is_due=has_changed)
        new = old._replace(subscription=subscription)
        target_epoch, target = self._member_target(update, epoch, new, shared)
        reads = self._updates.facts.ids(subscription.topics)
        assignment = _next_assignment(
            old.assignment, target_epoch, target, reads, has_changed=has_changed
        )
        if assignment != old.assignment:
            update.changes.append(AssignmentChange(old.member_id, assignment))
        update.actions.append(lambda: self._restart_session(group, old.member_id))
        with_assignment = (
            joins or request.topics is not None or assignment.assigned != old.assignment.assigned
        )
        result = HeartbeatResult(
            member_id=old.member_id,
            epoch=assignment.epoch,
            interval_ms=self._next_heartbeat_ms(group, is_behind=target_epoch < epoch),
            assignment=assignment.assigned if with_assignment else None,
        )
        return result_after(self._updates.write(update), result)

    def _open(self, group_id: str, *, joins: bool) -> ShareGroup:
        """Return the group. If the member joins, a missing group is created.

        Raises:
            Refusal: There is no such group, or it has another type.
        """
        group = self._updates.table.get(group_id)
        if group is None and joins:
            group = ShareGroup(group_id)
            group.founded_ms = self._updates.clock.now_ms()
        if not isinstance(group, ShareGroup):
            raise no_share_group(group_id, is_there=group is not None)
        return group

    def _next_epoch(
        self,
        update: GroupUpdate[ShareGroup],
        previous: Subscription,
        new: Subscription,
        *,
        is_due: bool,
    ) -> tuple[int, Shared]:
        """Begin a new epoch if `is_due` is true or subscribed topics have changed.

        Returns:
            The group's epoch and initialized topics after the request.
        """
        group = update.group
        if not is_due and not self._updates.has_stale_topics(group):
            return group.epoch, group.shared
        names = group.names_after(previous, new)
        epoch = self._updates.begin_epoch(update, names, is_due=is_due)
        shared = shared_after(group.shared, names, self._updates.topics.all())
        if shared != group.shared:
            update.changes.append(SharedTopicsChange(shared))
        return epoch, shared

    def _member_target(
        self, update: GroupUpdate[ShareGroup], epoch: int, new: ShareMember, shared: Shared
    ) -> tuple[int, Target]:
        """Return the target's epoch and the member's target, after computing new targets if due."""
        group = update.group
        if epoch <= group.target_epoch or self._wait_ms(group):
            return group.target_epoch, group.targets.get(new.member_id, NO_TARGET)
        members = {**group.members, new.member_id: new}
        reads = {
            name: frozenset(
                each
                for each in self._updates.facts.ids(member.subscription.topics)
                if each in shared
            )
            for name, member in members.items()
        }
        partitions = {topic: each.partitions for topic, each in shared.items()}
        targets = assign_simple(reads, group.targets, partitions)
        self._updates.put_targets(update, epoch, targets.items())
        return epoch, targets[new.member_id]

    def _wait_ms(self, group: ShareGroup) -> int:
        """Return the time in ms until another target may be computed."""
        interval_ms = self._updates.settings.share_assignment_interval_ms(group.group_id)
        return self._updates.target_wait_ms(group, group.founded_ms, interval_ms)

    def _next_heartbeat_ms(self, group: ShareGroup, *, is_behind: bool) -> int:
        """Return the time in ms until the next heartbeat.

        If the member waits for a target, the next heartbeat is due at the latest when the target
        may be computed.
        """
        interval_ms = self._updates.settings.share_heartbeat_interval_ms(group.group_id)
        wait_ms = self._wait_ms(group) if is_behind else 0
        return min(interval_ms, wait_ms) if wait_ms else interval_ms

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, request: HeartbeatRequest) -> Reply[HeartbeatResult]:
        group = self._open(request.group_id, joins=False)
        member = member_of(group, request.member_id)
        result = HeartbeatResult(member_id=request.member_id, epoch=request.epoch)
        return result_after(self._fence(group, member), result)

    def _fence(self, group: ShareGroup, member: ShareMember) -> Reply[ErrorCode]:
        """Remove a member and begin a new epoch; write both changes."""
        update = GroupUpdate(group)
        self._updates.remove(update, member.member_id)
        names = group.names_after(member.subscription, None)
        metadata_hash = self._updates.facts.metadata_hash(names)
        update.changes.append(EpochChange(group.epoch + 1, metadata_hash))
        return self._updates.write(update)

    # -- timers ------------------------------------------------------------------------------

    def resume(self, group: ShareGroup) -> None:
        """Restart the sessions of the members of a loaded group."""
        for member_id in group.members:
            self._restart_session(group, member_id)

    def _restart_session(self, group: ShareGroup, member_id: str) -> None:
        """Restart the member's session after a request."""
        ms = self._updates.settings.share_session_timeout_ms(group.group_id)
        self._updates.wait_for(group, member_id, Wait.SESSION, ms)

    def _silent(self, group: ShareGroup, member_id: str, _wait: Wait) -> None:
        """Remove a member whose session has expired."""
        member = group.members.get(member_id)
        if member is not None:
            self._fence(group, member)


def _require_epoch(member: ShareMember, epoch: int) -> None:
    """Raise Refusal for an epoch that is not the member's.

    The member's previous epoch is accepted, because the response with the new epoch may have been
    lost.
    """
    assignment = member.assignment
    if epoch not in (JOINING, assignment.epoch, assignment.previous_epoch):
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id} has epoch {assignment.epoch}, not {epoch}; it must rejoin",
        )


def _next_assignment(
    assignment: ShareAssignment,
    epoch: int,
    target: Target,
    reads: frozenset[UUID],
    *,
    has_changed: bool,
) -> ShareAssignment:
    """Return the member's next assignment.

    If `epoch` is new for the member, the result is the member's target. If the member already has
    `epoch`, the result is its present assignment.

    In both cases topics that the member no longer reads are left out.
    """
    if assignment.epoch != epoch:
        assigned = {topic: numbers for topic, numbers in target.items() if topic in reads}
        return ShareAssignment(epoch=epoch, previous_epoch=assignment.epoch, assigned=assigned)
    if not has_changed:
        return assignment
    return assignment._replace(
        assigned={each: assignment.assigned[each] for each in assignment.assigned if each in reads},
    )


class ShareTopics:
    """Changes to the initialized topics of share groups. Used only in the event loop's thread."""

    def __init__(self, updates: ShareUpdates) -> None:
        self._updates = updates

    def idle_group(self, group_id: str, *, may_be_new: bool = False) -> ShareGroup:
        """Return a share group without members; if `may_be_new`, create a missing group.

        Raises:
            Refusal: There is no such group, it has another type, or it has members.
        """
        group = self._updates.table.get(group_id)
        if group is None and may_be_new:
            return ShareGroup(group_id)
        if not isinstance(group, ShareGroup):
            raise no_share_group(group_id, is_there=group is not None)
        if not group.is_empty:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members.")
        return group

    def share(self, group: ShareGroup, more: Shared) -> Reply[ErrorCode]:
        """Initialize further partitions of a group.

        The reply completes when the change is durable.
        """
        shared = dict(group.shared)
        for topic_id, topic in more.items():
            before = shared.get(topic_id, topic)
            shared[topic_id] = SharedTopic(topic.name, before.partitions | topic.partitions)
        return self._change(group, shared)

    def unshare(self, group: ShareGroup, topic_ids: Collection[UUID]) -> Reply[ErrorCode]:
        """Remove initialized topics of a group. The reply completes when the change is durable."""
        remaining = {each: topic for each, topic in group.shared.items() if each not in topic_ids}
        return self._change(group, remaining)

    def forget_topic(self, group: ShareGroup, topic_id: UUID) -> None:
        """Remove a deleted topic from a group."""
        if topic_id in group.shared:
            self.unshare(group, [topic_id])

    def _change(self, group: ShareGroup, shared: Shared) -> Reply[ErrorCode]:
        update = GroupUpdate(group)
        if shared != group.shared:
            update.changes.append(SharedTopicsChange(shared))
        return self._updates.write(update)
