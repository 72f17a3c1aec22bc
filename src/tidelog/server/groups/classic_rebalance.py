"""Rebalance of a classic group: delays, generations and responses to all members.

A group that gets its first member waits for more members. After a later change, all members rejoin
(`PreparingRebalance`). The members that have joined form a generation (`CompletingRebalance`). The
leader computes the assignment, the coordinator writes it, and every member gets its assignment
(`Stable`).

Source: Kafka 4.3's classic groups; KIP-134 (initial delay), KIP-345 (static members).
"""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import ClassicGroup, GroupState, Member
from tidelog.server.groups.offsets_topic import GroupContext
from tidelog.server.groups.records import group_record
from tidelog.server.groups.requests import JoinResult, SyncResult

# Maximum time in ms that a new member's JoinGroup may be pending. If a client without a member id
# retries JoinGroup, the retry creates another member. So the member that the client's first request
# created must expire.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000

Action: TypeAlias = Callable[[], None]

_LOGGER = logging.getLogger("tidelog.server")


class Rebalances:
    """Timers and state changes of rebalances of classic groups.

    Used only in the event loop's thread.
    """

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._topic = context.topic
        self._clock = context.clock
        self._config = context.config

    # -- sessions ----------------------------------------------------------------------------

    def restart_session(self, group: ClassicGroup, member: Member, ms: int | None = None) -> None:
        """Restart the member's session timer. When the timer ends, the member is removed.

        The timer runs for `ms`, by default for the member's session timeout.
        """
        delay_ms = member.session_timeout_ms if ms is None else ms
        if self._context.timers.put_off(member.expiry, delay_ms):
            return
        member.stop_expiry()
        member.expiry = self._context.after(
            group, delay_ms, lambda: self._expire(group, member.member_id, member)
        )

    def session_remaining_ms(self, member: Member) -> int:
        """Return the remaining time of a member's session in ms.

        If no timer runs, or if the member awaits a response, the result is the whole timeout.
        """
        expiry, session_ms = member.expiry, member.session_timeout_ms
        waits = member.join is not None or member.sync is not None
        if waits or expiry is None or expiry.is_cancelled:
            return session_ms
        return min(max(expiry.due_ms - self._clock.monotonic_ms(), 0), session_ms)

    def await_pending(self, group: ClassicGroup, member_id: str, ms: int) -> None:
        """Remove a generated member id after `ms` unless a member joins with it."""
        group.pending[member_id] = self._context.after(
            group, ms, lambda: self._expire_id(group, member_id)
        )

    def _expire(self, group: ClassicGroup, member_id: str, member: Member) -> None:
        if group.members.get(member_id) is member and not member.is_patient():
            self.remove(group, member)
            self._rebalance_without(group)

    def _expire_id(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        if group.is_in(GroupState.PREPARING_REBALANCE) and group.has_all_joined:
            self.complete_join(group)

    def remove(self, group: ClassicGroup, member: Member) -> None:
        """Remove a member, and complete its pending requests with UNKNOWN_MEMBER_ID."""
        group.answer_join(member, JoinResult(code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.answer_sync(member, SyncResult(code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    def _rebalance_without(self, group: ClassicGroup) -> None:
        if group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group)
        elif group.is_in(GroupState.PREPARING_REBALANCE) and group.has_all_joined:
            self.complete_join(group)

    # -- preparing: all members join ---------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup) -> None:
        """After a change, start a rebalance, or complete the current one if all have joined."""
        if group.is_in(GroupState.PREPARING_REBALANCE):
            self.maybe_complete_join(group)
        else:
            self.prepare(group)

    def prepare(self, group: ClassicGroup) -> None:
        """Start a rebalance. Pending SyncGroup requests end with REBALANCE_IN_PROGRESS."""
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            self._fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._end_sync_wait(group)
        is_first = group.is_empty
        group.move_to(GroupState.PREPARING_REBALANCE, self._clock.now_ms())
        if is_first:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._await_newcomers(group, delay_ms, remaining_ms)
        elif group.has_all_joined:
            self.complete_join(group)
        else:
            self._await_joins(group)

    def _await_newcomers(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        """Delay the rebalance of a group that was empty; repeat the delay while members join.

        The repetitions end after a maximum time.
        """
        self._set_join_timer(
            group, delay_ms, lambda: self._end_delay(group, delay_ms, remaining_ms)
        )

    def _end_delay(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        if not group.has_newcomers or not remaining_ms:
            self.complete_join(group)
            return
        group.has_newcomers = False
        next_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
        self._await_newcomers(group, next_ms, max(remaining_ms - delay_ms, 0))

    def _await_joins(self, group: ClassicGroup) -> None:
        self._set_join_timer(group, group.rebalance_timeout_ms, lambda: self.complete_join(group))

    def _set_join_timer(self, group: ClassicGroup, ms: int, action: Action) -> None:
        self._stop_join_timer(group)
        group.join_timer = self._context.after(group, ms, action)

    @staticmethod
    def _stop_join_timer(group: ClassicGroup) -> None:
        if group.join_timer is not None:
            group.join_timer.cancel()
            group.join_timer = None

    def maybe_complete_join(self, group: ClassicGroup) -> None:
        """Complete the join phase if all members have joined.

        If the group was empty before, this method does nothing: the rebalance ends only after its
        delay (`_await_newcomers`).
        """
        if (
            group.is_in(GroupState.PREPARING_REBALANCE)
            and group.previous_state is not GroupState.EMPTY
            and group.has_all_joined
        ):
            self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> None:
        """Begin a generation with the members that have joined.

        Static members that have not joined stay, because they may still return.
        """
        self._stop_join_timer(group)
        if not group.is_in(GroupState.PREPARING_REBALANCE):
            return
        for member in [m for m in group.not_joined() if not m.is_static]:
            group.remove(member.member_id)
        if group.members and not group.elect_leader():
            # Only static members are left and none has joined, so keep waiting until their sessions
            # expire.
            self._await_joins(group)
            return
        group.begin_generation(self._clock.now_ms())
        _LOGGER.info(
            "group %s: generation %d, members: %d",
            *(group.group_id, group.generation, len(group.members)),
        )
        if group.is_empty:
            self._topic.append(group.group_id, [group_record(group)])
        else:
            self._begin_sync(group)

    def joined(self, group: ClassicGroup, member_id: str, *, skip: bool = False) -> JoinResult:
        """Return the JoinGroup result of a member for this generation."""
        is_leader = group.leader == member_id
        return JoinResult(
            member_id=member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader or "",
            skip_assignment=skip and is_leader,
            members=group.joined_members() if is_leader else (),
        )

    # -- completing: all members sync --------------------------------------------------------

    def _begin_sync(self, group: ClassicGroup) -> None:
        for member in group.members.values():
            group.answer_join(member, self.joined(group, member.member_id))
            self.restart_session(group, member)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        generation = group.generation
        group.sync_timer = self._context.after(
            group, group.rebalance_timeout_ms, lambda: self._expire_syncs(group, generation)
        )

    def _expire_syncs(self, group: ClassicGroup, generation: int) -> None:
        """Remove the members that sent no SyncGroup in time, and rebalance."""
        group.sync_timer = None
        late = tuple(group.pending_sync)
        if (
            generation == group.generation
            and late
            and group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        ):
            for member_id in late:
                self.remove(group, group.members[member_id])
            self.prepare(group)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        """Record that a member sent SyncGroup."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._end_sync_wait(group)

    @staticmethod
    def _end_sync_wait(group: ClassicGroup) -> None:
        group.pending_sync.clear()
        if group.sync_timer is not None:
            group.sync_timer.cancel()
            group.sync_timer = None

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignments, then send each member its own assignment."""
        generation = group.generation
        written = self._topic.append(group.group_id, [group_record(group, assignments)])
        written.then(lambda code: self._assigned(group, generation, assignments, code))

    def _assigned(
        self, group: ClassicGroup, generation: int, assignments: dict[str, bytes], code: ErrorCode
    ) -> None:
        is_current = group.is_in(GroupState.COMPLETING_REBALANCE) and group.generation == generation
        if not is_current:
            return
        if code is not ErrorCode.NONE:
            self._fail_syncs(group, code)
            self.prepare(group)
            return
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if group.answer_sync(member, self.synced(group, member)):
                # The session's timer may have ended while the member waited for this response. In
                # this case the member was kept, so start the timer again.
                self.restart_session(group, member)
        group.move_to(GroupState.STABLE, self._clock.now_ms())

    def synced(self, group: ClassicGroup, member: Member) -> SyncResult:
        """Return the SyncGroup result of a member."""
        return SyncResult(
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            assignment=member.assignment,
        )

    def _fail_syncs(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if group.answer_sync(member, SyncResult(code=code)):
                self.restart_session(group, member)

    # -- loading and unloading ---------------------------------------------------------------

    def resume(self, group: ClassicGroup) -> None:
        """Restart the sessions of a loaded group's members, and start a rebalance if it is due."""
        for member in group.members.values():
            self.restart_session(group, member)
        if group.leader is None and not group.is_empty:
            # The group was converted to a classic group, and its members still have to rejoin.
            group.leader = next(iter(group.members))
            self.prepare_or_complete(group)
        elif len(group.members) > self._config.group_max_size:
            self.prepare(group)

    def unload(self, group: ClassicGroup, code: ErrorCode) -> None:
        """Unload a group. Pending requests end with `code`, such as NOT_COORDINATOR."""
        group.move_to(GroupState.DEAD, self._clock.now_ms())
        self._stop_join_timer(group)
        self._end_sync_wait(group)
        for member in group.members.values():
            member.stop_expiry()
            group.answer_join(member, JoinResult(code=code, member_id=member.member_id))
            group.answer_sync(member, SyncResult(code=code))
        for member_id in tuple(group.pending):
            group.forget_pending(member_id)
