"""Rules of JoinGroup, SyncGroup, Heartbeat and LeaveGroup for classic groups.

Source: Kafka 4.3's classic groups; KIP-345 (static members), KIP-394 (dynamic members get an id
first), KIP-814 (a static leader that returns need not assign).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.error_codes import ErrorCode
from tidelog.server.coordinator.state_topic import is_accepted
from tidelog.server.groups.classic_group import ClassicGroup, GroupState, Member, protocols_bytes
from tidelog.server.groups.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalances
from tidelog.server.groups.modern_group import ConsumerGroup, ShareGroup
from tidelog.server.groups.offsets_topic import GroupContext
from tidelog.server.groups.records import group_record
from tidelog.server.groups.requests import (
    JoinRequest,
    JoinResult,
    MemberRef,
    SyncRequest,
    SyncResult,
)
from tidelog.server.runtime.reply import Reply

if TYPE_CHECKING:
    from tidelog.server.groups.classic_in_consumer import ClassicInConsumer

# Maximum estimated size in bytes of the protocols of one member, and of the protocols of all
# members of a group. Kafka has no such limits, but can't write a group's record that is larger than
# `max.message.bytes` of `__consumer_offsets`.
MEMBER_METADATA_BYTES: Final = 8 << 20

GROUP_METADATA_BYTES: Final = 128 << 20

# Maximum number, per group, of generated member ids with which no member has joined yet. Kafka has
# no such limit.
PENDING_MAX: Final = 10_000

# Maximum length of a member id in bytes. Responses to other members contain member ids, and old
# versions of these responses encode strings of at most 32,767 bytes.
MEMBER_ID_BYTES: Final = 32_767

_UUID_BYTES: Final = 37  # a UUID with a hyphen before it


class ClassicMembers:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup for classic and consumer groups.

    Used only in the event loop's thread.
    """

    def __init__(
        self,
        context: GroupContext,
        rebalances: Rebalances,
        in_consumer_groups: "Callable[[], ClassicInConsumer]",
    ) -> None:
        self._context = context
        self._table = context.table
        self._topic = context.topic
        self._config = context.config
        self._rebalances = rebalances
        self._in_consumer_groups = in_consumer_groups

    # -- joining -----------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> Reply[JoinResult]:
        """Add a member, or let a member rejoin for the next generation."""
        low_ms = self._config.group_min_session_timeout_ms
        high_ms = self._config.group_max_session_timeout_ms
        if not low_ms <= request.session_timeout_ms <= high_ms:
            return _refused(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        group = self._table.get(request.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            return self._in_consumer_groups().join(group, request)
        if isinstance(group, ShareGroup):
            return _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group is None or isinstance(group, ConsumerGroup):
            return self._join_first(request, group)
        return self._join(group, request)

    def _join_first(self, request: JoinRequest, was: ConsumerGroup | None) -> Reply[JoinResult]:
        """Create the group for its first member. A request with a member id gets UNKNOWN_MEMBER_ID.

        An empty consumer group is converted to a classic group and keeps its offsets.
        """
        if request.member_id:
            return _refused(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        group = self._context.new_classic_group(request.group_id)
        records = [group_record(group)]
        if was is not None:
            from tidelog.server.groups.modern_records import end_records

            records = [*end_records(was), *records]
        written = self._topic.append(group.group_id, records)
        if not is_accepted(written):
            return _refused(written.value)
        if was is not None:
            group.offsets = was.offsets
            was.unload()
        self._table.put(group.group_id, group)
        return self._join(group, request)

    def _join(self, group: ClassicGroup, request: JoinRequest) -> Reply[JoinResult]:
        if not _fits(group, request):
            return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        if not self._has_room(group, request.member_id):
            group.remove(request.member_id)
            return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.supports(request.protocol_type, request.protocols):
            return _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if request.member_id:
            return self._join_with_id(group, request)
        return self._join_new(group, request)

    def _join_new(self, group: ClassicGroup, request: JoinRequest) -> Reply[JoinResult]:
        """Handle a client without a member id.

        A static member may be new or may return. A dynamic member gets a new id. If the request has
        `needs_member_id`, the member must send JoinGroup again with that id (MEMBER_ID_REQUIRED).
        """
        if request.instance_id is not None:
            return self._join_static(group, request, request.instance_id)
        member_id = self._new_id(request.client_id)
        if not request.needs_member_id:
            return self._add(group, request, member_id)
        if len(group.pending) >= PENDING_MAX:
            return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._rebalances.await_pending(group, member_id, request.session_timeout_ms)
        return _refused(ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether a client may be in the group: it is a member, or the group is not full."""
        member = group.members.get(member_id)
        limit = self._config.group_max_size
        if group.is_in(GroupState.PREPARING_REBALANCE):
            # If the limit was lowered, the group may have more members than the limit. Then as many
            # members as the limit allows stay: the first ones to join the rebalance. So only
            # members that have joined are counted.
            return (member is not None and member.join is not None) or group.awaiting_join < limit
        return group.is_empty or member is not None or len(group.members) < limit

    def _new_id(self, name: str) -> str:
        if len(name) > (MEMBER_ID_BYTES - _UUID_BYTES) // 4:  # a character takes at most 4 bytes
            name = name.encode()[: MEMBER_ID_BYTES - _UUID_BYTES].decode(errors="ignore")
        return f"{name}-{self._context.new_uuid()}"

    def _add(self, group: ClassicGroup, request: JoinRequest, member_id: str) -> Reply[JoinResult]:
        reply: Reply[JoinResult] = Reply()
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            protocols=request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            is_new=True,
            join=reply,
        )
        if group.is_in(GroupState.PREPARING_REBALANCE) and group.previous_state is GroupState.EMPTY:
            group.has_newcomers = True
        group.add(member, request.protocol_type)
        self._rebalances.restart_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.prepare_or_complete(group)
        return reply

    def _join_with_id(self, group: ClassicGroup, request: JoinRequest) -> Reply[JoinResult]:
        """Handle a client that sends an id: a member's id, or a generated id not used yet."""
        if request.member_id in group.pending and request.instance_id is None:
            return self._add(group, request, request.member_id)
        code = group.member_error(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            return _refused(code, request.member_id)
        member = group.members[request.member_id]
        is_same = member.protocols == request.protocols
        # A leader rejoins a stable group because its subscription or metadata has changed.
        leads = group.is_in(GroupState.STABLE) and group.leader == member.member_id
        if group.is_in(GroupState.PREPARING_REBALANCE) or leads or not is_same:
            return self._join_again(group, request, member)
        # The request repeats an earlier JoinGroup, whose response may have been lost. So the
        # response has the current generation, and no rebalance starts.
        return Reply.of(self._rebalances.joined(group, member.member_id))

    def _join_again(
        self, group: ClassicGroup, request: JoinRequest, member: Member
    ) -> Reply[JoinResult]:
        reply = self._park(group, request, member)
        self._rebalances.prepare_or_complete(group)
        return reply

    @staticmethod
    def _park(group: ClassicGroup, request: JoinRequest, member: Member) -> Reply[JoinResult]:
        """Update the member from its request and keep the response pending."""
        superseded = member.join
        reply: Reply[JoinResult] = Reply()
        times = request.rebalance_timeout_ms, request.session_timeout_ms
        group.update(member, (request.protocols, *times), reply)
        if superseded is not None:
            # The client has reconnected and retried, so the response to the first request is never
            # read.
            superseded.complete(
                JoinResult(code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            )
        return reply

    def _join_static(
        self, group: ClassicGroup, request: JoinRequest, instance_id: str
    ) -> Reply[JoinResult]:
        """Handle a static member that sends no member id, because it is new or returns."""
        member_id = self._new_id(instance_id)
        if group.static_member(instance_id) is None:
            return self._add(group, request, member_id)
        before = _Before(group, instance_id)
        member = group.replace_static(instance_id, member_id)
        self._rebalances.restart_session(group, member)
        reply = self._park(group, request, member)
        if not group.is_in(GroupState.STABLE):
            self._rebalances.prepare_or_complete(group)
        elif group.select_protocol() != group.protocol_name:
            self._rebalances.prepare(group)
        else:
            self._keep_assignment(group, request, member, before)
        return reply

    def _keep_assignment(
        self, group: ClassicGroup, request: JoinRequest, member: Member, before: "_Before"
    ) -> None:
        """Write a returning static member's new id. The member keeps its assignment."""
        written = self._topic.append(group.group_id, [group_record(group)])

        def respond(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._restore_id(group, member, before, code)
                return
            joined = self._rebalances.joined(group, member.member_id, skip=request.knows_skipping)
            if not request.knows_skipping:
                # A client of an old version that is named as leader in the response would compute
                # and send assignments. So the response contains the leader's id from before this
                # client returned, and the client sends SyncGroup without assignments.
                joined = joined._replace(leader=before.leader or "", members=())
            group.answer_join(member, joined)

        written.then(respond)

    def _restore_id(
        self, group: ClassicGroup, member: Member, before: "_Before", code: ErrorCode
    ) -> None:
        """Restore a static member's old id, because the new id could not be written."""
        group.answer_join(
            member,
            JoinResult(
                code=code,
                generation=group.generation,
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                leader=before.leader or "",
            ),
        )
        if group.members.get(member.member_id) is member and member.instance_id is not None:
            old = group.replace_static(member.instance_id, before.member_id)
            group.update(old, before.terms, None)
            self._rebalances.restart_session(group, old)

    # -- queries -----------------------------------------------------------------------------

    def _find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """Return a group that may have classic members; None if there is no such group."""
        group = self._table.get(group_id)
        return None if isinstance(group, ShareGroup) else group

    # -- syncing -----------------------------------------------------------------------------

    def sync(self, request: SyncRequest) -> Reply[SyncResult]:
        """Return the member's assignment. The leader's request contains all assignments."""
        group = self._find(request.group_id)
        if group is None or group.is_empty:
            return Reply.of(SyncResult(code=ErrorCode.UNKNOWN_MEMBER_ID))
        if isinstance(group, ConsumerGroup):
            return self._in_consumer_groups().sync(group, request)
        code = _sync_error(group, request)
        if code is not ErrorCode.NONE:
            return Reply.of(SyncResult(code=code))
        member = group.members[request.member_id]
        self._rebalances.has_synced(group, member.member_id)
        if group.is_in(GroupState.STABLE):
            return Reply.of(self._rebalances.synced(group, member))
        return self._await_assignment(group, request, member)

    def _await_assignment(
        self, group: ClassicGroup, request: SyncRequest, member: Member
    ) -> Reply[SyncResult]:
        superseded = member.sync
        reply: Reply[SyncResult] = Reply()
        member.sync = reply
        if superseded is not None:
            superseded.complete(SyncResult(code=ErrorCode.REBALANCE_IN_PROGRESS))
        if group.leader == member.member_id:
            assignments = dict(request.assignments)
            self._rebalances.assign(
                group, {name: assignments.get(name, b"") for name in group.members}
            )
        return reply

    # -- staying and leaving -----------------------------------------------------------------

    def heartbeat(self, group_id: str, member: MemberRef, generation: int) -> ErrorCode:
        """Restart the member's session; return REBALANCE_IN_PROGRESS if the member must rejoin."""
        group = self._find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            return self._in_consumer_groups().heartbeat(group, member, generation)
        code = group.member_error(member.member_id, member.instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalances.restart_session(group, group.members[member.member_id])
        is_preparing = group.is_in(GroupState.PREPARING_REBALANCE)
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def leave(self, group_id: str, members: Sequence[MemberRef]) -> list[ErrorCode]:
        """Remove members; return one error code for each of `members`, in order."""
        group = self._find(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        if isinstance(group, ConsumerGroup):
            return self._in_consumer_groups().leave(group, members)
        codes = [self._leave(group, member) for member in members]
        if ErrorCode.NONE in codes:
            if group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalances.prepare(group)
            else:
                self._rebalances.maybe_complete_join(group)
        return codes

    def _leave(self, group: ClassicGroup, leaving: MemberRef) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id:
            # An administrative tool names a static member by its instance id alone.
            current_id = (
                None if leaving.instance_id is None else group.static_member(leaving.instance_id)
            )
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = current_id
        elif member_id in group.pending:
            group.remove(member_id)
            return ErrorCode.NONE
        else:
            code = group.member_error(member_id, leaving.instance_id)
            if code is not ErrorCode.NONE:
                return code
        self._rebalances.remove(group, group.members[member_id])
        return ErrorCode.NONE


class _Before:
    """State of a static member before it returned."""

    __slots__ = ("leader", "member_id", "terms")

    def __init__(self, group: ClassicGroup, instance_id: str) -> None:
        self.member_id = group.static_member(instance_id) or ""
        self.leader = group.leader
        member = group.members[self.member_id]
        times = member.rebalance_timeout_ms, member.session_timeout_ms
        self.terms = (member.protocols, *times)


def _refused(code: ErrorCode, member_id: str = "") -> Reply[JoinResult]:
    return Reply.of(JoinResult(code=code, member_id=member_id))


def _fits(group: ClassicGroup, request: JoinRequest) -> bool:
    """Whether the member's protocols are within the limits for a member and for the group."""
    member = group.members.get(request.member_id)
    present_bytes = 0 if member is None else member.metadata_bytes
    size = protocols_bytes(request.protocols)
    total = group.metadata_bytes - present_bytes + size
    return size <= MEMBER_METADATA_BYTES and total <= GROUP_METADATA_BYTES


def _sync_error(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    code = group.member_error(request.member_id, request.instance_id)
    if code is not ErrorCode.NONE:
        return code
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if _differ(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.is_in(GroupState.PREPARING_REBALANCE):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differ(requested: str | None, current: str | None) -> bool:
    """Whether both protocols are known and differ. Old clients send no protocol."""
    return requested is not None and current is not None and requested != current
