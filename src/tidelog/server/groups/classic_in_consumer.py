"""Members of the classic protocol in a consumer group.

They send JoinGroup, SyncGroup and Heartbeat as in a classic group. JoinGroup does not wait for
other members. The generation in the response to JoinGroup is the member's epoch. Heartbeat returns
REBALANCE_IN_PROGRESS in two cases: the member's epoch is outdated, or the member has partitions to
revoke or to receive.

Source: Kafka 4.3's group coordinator; KIP-848 (online migration).
"""

from collections.abc import Sequence

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.messages.group_records import ConsumerProtocolSubscription
from tidelog.server.groups.classic_group import CONSUMER_PROTOCOL
from tidelog.server.groups.consumer_rebalance import (
    ConsumerUpdate,
    ConsumerUpdates,
)
from tidelog.server.groups.group_updates import GroupUpdate
from tidelog.server.groups.members import (
    MemberMatch,
    find_static,
    match_dynamic,
    member_of,
    require_room,
    static_member_of,
)
from tidelog.server.groups.migration import (
    MemberReplacement,
    Migration,
    read_subscription,
    subscription_version,
)
from tidelog.server.groups.modern_group import (
    ClassicPart,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Subscription,
    Wait,
)
from tidelog.server.groups.modern_records import MemberChange
from tidelog.server.groups.requests import (
    JoinRequest,
    JoinResult,
    MemberRef,
    Owned,
    SyncRequest,
    SyncResult,
)
from tidelog.server.groups.topic_regexes import Regexes, RegexStatus
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply


class ClassicInConsumer:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup for consumer groups.

    Used only in the event loop's thread.
    """

    def __init__(self, updates: ConsumerUpdates, migration: Migration, regexes: Regexes) -> None:
        self._updates = updates
        self._migration = migration
        self._regexes = regexes

    # -- joining -----------------------------------------------------------------------------

    def join(self, group: ConsumerGroup, request: JoinRequest) -> Reply[JoinResult]:
        """Add or update a member. The response has the member's epoch, or an error code."""
        is_unknown = not request.member_id
        member_id = request.member_id or self._updates.new_member_id()
        try:
            limit = self._updates.config.group_consumer_max_size
            require_room(group, member_id, limit, "group")
            if not group.supports(request.protocol_type, (name for name, _ in request.protocols)):
                raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if is_unknown and request.needs_member_id and request.instance_id is None:
                return Reply.of(JoinResult(code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
            return self._join(group, request, member_id, is_unknown=is_unknown)
        except Refusal as refusal:
            return Reply.of(
                JoinResult(code=ErrorCode(refusal.error_code), member_id=request.member_id)
            )

    def _join(
        self, group: ConsumerGroup, request: JoinRequest, member_id: str, *, is_unknown: bool
    ) -> Reply[JoinResult]:
        update = GroupUpdate(group)
        written_subscription = _subscription(request)
        match = self._find(update, request, member_id, joins=is_unknown)
        static_member = group.static_member(request.instance_id)
        downgrades = static_member is not None and self._migration.may_downgrade_replaced(
            group, static_member
        )
        new = match.member._replace(
            subscription=_updated(match.member.subscription, request, written_subscription),
        )
        if new.subscription != match.member.subscription:
            update.changes.append(MemberChange(new.member_id, new.subscription))
        status = self._regexes.change(update, match, new)
        names_changed = new.subscription.topics != match.member.subscription.topics
        has_changed = names_changed or status is not RegexStatus.SAME
        owned = self._updates.facts.by_id(written_subscription.owned_partitions)
        if downgrades and static_member is not None:
            return self._downgrade(update, match, new, owned, has_changed=has_changed)
        moved = self._updates.move(
            update, match.previous, new, owned, is_due=has_changed, has_changed=has_changed
        )
        return self._respond(update, moved, request)

    def _find(
        self, update: ConsumerUpdate, request: JoinRequest, member_id: str, *, joins: bool
    ) -> MemberMatch:
        if request.instance_id is None:
            return match_dynamic(update.group, member_id, joins=True)
        return find_static(update, member_id, request.instance_id, joins=joins, is_classic=True)

    def _downgrade(
        self,
        update: ConsumerUpdate,
        match: MemberMatch,
        new: ConsumerMember,
        owned: Owned,
        *,
        has_changed: bool,
    ) -> Reply[JoinResult]:
        """Convert the group to a classic group.

        The member `new` replaces the group's last member of the consumer protocol.
        """
        epoch = update.group.epoch
        moved = new
        if not has_changed:
            target = self._updates.member_target(
                update, update.group.target_epoch, match.previous, new, same=True
            )
            moved = self._updates.reconcile(update, new, target, owned, has_changed=False)
        replacement = MemberReplacement(match.replaced_id or new.member_id, moved, has_changed)
        written = self._migration.downgrade_replaced(update, epoch, replacement)
        return _joined_after(written, moved)

    def _respond(
        self, update: ConsumerUpdate, member: ConsumerMember, request: JoinRequest
    ) -> Reply[JoinResult]:
        group = update.group

        def await_sync() -> None:
            group.stop(Wait.JOIN, member.member_id)
            self._updates.restart_session(group, member)
            timeout_ms = request.rebalance_timeout_ms
            self._updates.wait_for(group, member.member_id, Wait.SYNC, timeout_ms)

        update.actions.append(await_sync)
        return _joined_after(self._updates.write(update), member)

    def sync(self, group: ConsumerGroup, request: SyncRequest) -> Reply[SyncResult]:
        """Return the member's assignment, which the coordinator has already computed."""
        try:
            member = _classic_member(group, request.member_id, request.instance_id)
            _require_generation(member, request.generation)
            _require_protocol(member, request)
            self._require_calm(group, member)
        except Refusal as refusal:
            return Reply.of(SyncResult(code=ErrorCode(refusal.error_code)))
        group.stop(Wait.SYNC, member.member_id)
        self._updates.restart_session(group, member)
        assert member.subscription.classic is not None
        version = subscription_version(member.subscription.classic.protocols[0][1])
        synced = SyncResult(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self._migration.assignment_data(
                {topic: list(numbers) for topic, numbers in member.assignment.assigned.items()},
                version,
            ),
        )
        written = self._updates.write(GroupUpdate(group))
        return written.derive(
            lambda code: synced if code is ErrorCode.NONE else SyncResult(code=code)
        )

    def _require_calm(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Refuse a member that must rejoin first.

        A member in state UNREVOKED_PARTITIONS is not refused, because it has already rejoined.
        """
        is_behind = _epoch_to_join(group) > member.assignment.epoch
        if is_behind and member.assignment.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member)
            raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)

    def _await_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if (Wait.JOIN, member.member_id) not in group.waits:
            ms = member.subscription.rebalance_timeout_ms
            self._updates.wait_for(group, member.member_id, Wait.JOIN, ms)

    # -- staying and leaving -----------------------------------------------------------------

    def heartbeat(self, group: ConsumerGroup, ref: MemberRef, generation: int) -> ErrorCode:
        """Restart the member's session; return REBALANCE_IN_PROGRESS if the member must rejoin."""
        try:
            member = _classic_member(group, ref.member_id, ref.instance_id)
            _require_generation(member, generation)
        except Refusal as refusal:
            return ErrorCode(refusal.error_code)
        self._updates.restart_session(group, member)
        assignment = member.assignment
        may_get_more = (
            assignment.state is MemberState.UNRELEASED_PARTITIONS
            and not group.awaits_others(member)
        )
        if (
            assignment.epoch < _epoch_to_join(group)
            or assignment.state is MemberState.UNREVOKED_PARTITIONS
            or may_get_more
        ):
            self._await_join(group, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group: ConsumerGroup, refs: Sequence[MemberRef]) -> list[ErrorCode]:
        """Remove members; return one error code for each of `refs`, in order."""
        codes: list[ErrorCode] = []
        leaving: dict[str, ConsumerMember] = {}
        for ref in refs:
            try:
                member = _leaving(group, ref)
            except Refusal as refusal:
                codes.append(ErrorCode(refusal.error_code))
            else:
                leaving[member.member_id] = member
                codes.append(ErrorCode.NONE)
        written = self._migration.fence(group, tuple(leaving.values()))
        if written.is_done and written.value is not ErrorCode.NONE:
            return [written.value if code is ErrorCode.NONE else code for code in codes]
        return codes


def _subscription(request: JoinRequest) -> ConsumerProtocolSubscription:
    """Decode the subscription of the member's first protocol, as Kafka does; raises Refusal."""
    try:
        return read_subscription(request.protocols[0][1])
    except (CorruptMessage, UnsupportedVersion) as error:
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _updated(
    subscription: Subscription,
    request: JoinRequest,
    written_subscription: ConsumerProtocolSubscription,
) -> Subscription:
    return Subscription(
        instance_id=subscription.instance_id
        if request.instance_id is None
        else request.instance_id,
        rack_id=written_subscription.rack_id or subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=frozenset(written_subscription.topics),
        assignor=subscription.assignor,
        classic=ClassicPart(request.session_timeout_ms, request.protocols),
    )


def _joined_after(written: Reply[ErrorCode], member: ConsumerMember) -> Reply[JoinResult]:
    assert member.subscription.classic is not None
    joined = JoinResult(
        member_id=member.member_id,
        generation=member.assignment.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=member.subscription.classic.protocols[0][0],
    )
    return written.derive(lambda code: joined if code is ErrorCode.NONE else JoinResult(code=code))


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ConsumerMember:
    member = (
        member_of(group, member_id)
        if instance_id is None
        else static_member_of(group, member_id, instance_id)
    )
    if not member.is_classic:
        raise Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id} does not use the classic protocol"
        )
    return member


def _require_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.assignment.epoch:
        raise Refusal(ErrorCode.ILLEGAL_GENERATION)


def _require_protocol(member: ConsumerMember, request: SyncRequest) -> None:
    assert member.subscription.classic is not None
    name = member.subscription.classic.protocols[0][0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (
        None,
        name,
    ):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _epoch_to_join(group: ConsumerGroup) -> int:
    """Return the epoch below which a member must rejoin.

    If the group has members of the consumer protocol, the result is the target's epoch, because the
    heartbeats of these members compute the target assignment. If the group has only classic
    members, no heartbeat computes the target. In this case the result is the group's epoch, and
    JoinGroup computes the target.
    """
    only_classic = group.classic_count == len(group.members)
    return group.epoch if only_classic else group.target_epoch


def _leaving(group: ConsumerGroup, ref: MemberRef) -> ConsumerMember:
    if ref.instance_id is None:
        return member_of(group, ref.member_id)
    return static_member_of(group, ref.member_id or None, ref.instance_id)
