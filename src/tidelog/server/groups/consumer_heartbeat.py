"""Rules of ConsumerGroupHeartbeat: members join, send heartbeats, reconcile and leave.

Source: Kafka 4.3's group coordinator; KIP-848.
"""

from collections.abc import Iterable
from dataclasses import replace

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.consumer_updates import (
    ConsumerUpdate,
    Found,
    find_known,
    find_static,
    reads_the_same,
    regexes_after,
    require_epoch,
    static_member_of,
    topics_of,
)
from tidelog.server.groups.group_updates import (
    GroupUpdate,
    Heartbeats,
    beat_after,
    member_of,
    require_all,
    require_room,
    updated_asks,
)
from tidelog.server.groups.migration import Parts
from tidelog.server.groups.modern_changes import MemberChange, PlaceChange
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    NO_TIMEOUT,
    Assigned,
    ConsumerGroup,
    ConsumerMember,
    ShareGroup,
    stop_classic,
)
from tidelog.server.groups.records import tombstone
from tidelog.server.groups.requests import Beat, BeatAsked, Owned
from tidelog.server.groups.topic_regexes import RegexStatus
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply


class ConsumerHeartbeats(Heartbeats):
    """What members of the new protocol ask. Belongs to the loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._updates = parts.updates
        self._fencing = parts.fencing
        self._conversion = parts.conversion
        self._regexes = parts.regexes
        self._new_id = parts.new_member_id

    def _require_sense(self, asked: BeatAsked) -> None:
        """Refuse what no member may say."""
        is_usual = asked.epoch > JOINING and asked.instance_id is None and asked.rack_id is None
        # Who goes on, and names itself and its group, breaks none of the rules.
        if not (is_usual and asked.member_id.strip() and asked.group_id.strip()):
            require_all(_rules(asked))
        wanted = asked.assignor
        known = self._updates.config.group_consumer_assignors
        if wanted is not None and wanted not in known:
            names = ", ".join(known)
            raise Refusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"assignor {wanted} is not known; these are: {names}",
            )

    # -- staying -----------------------------------------------------------------------------

    def _stay(self, asked: BeatAsked) -> Reply[Beat]:
        joins = asked.epoch == JOINING
        update = self._open(asked.group_id, joins=joins)
        group = update.group
        limit = self._updates.config.group_consumer_max_size
        require_room(group, asked.member_id, limit, "group")
        member_id = asked.member_id or self._new_id()
        found = self._find(update, asked, member_id)
        old = found.member
        asks = updated_asks(old.asks, asked)
        new = old if asks is old.asks else replace(old, asks=asks)
        status = self._change(update, found, new)
        names_changed = new.asks.topics != old.asks.topics
        is_due = names_changed or status is RegexStatus.RESOLVED
        epoch, same = self._next_epoch(update, found, new, is_due=is_due)
        aim = self._updates.aim(update, epoch, found.known, new, same=same)
        has_changed = names_changed or status is not RegexStatus.SAME
        moved = self._updates.reconcile(update, new, aim, asked.owned, has_changed=has_changed)
        update.actions.append(lambda: self._updates.await_sign(group, moved))
        self._regexes.maybe_look_up(update, found, new, asked.may_see)
        is_full = (
            asked.rebalance_timeout_ms != NO_TIMEOUT
            and (asked.topics is not None or asked.regex is not None)
            and asked.owned is not None
        )
        tells = joins or is_full or moved.place.assigned != old.place.assigned
        return self._answer(update, moved, tells=tells)

    def _open(self, group_id: str, *, joins: bool) -> ConsumerUpdate:
        """The group, which who joins founds or converts."""
        group = self._updates.table.get(group_id)
        if isinstance(group, ConsumerGroup):
            return GroupUpdate(group)
        if group is None and joins:
            return GroupUpdate(ConsumerGroup(group_id))
        if isinstance(group, ShareGroup):
            text = f"Group {group_id} is not a consumer group."
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if group is None or not joins:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
        if not group.is_empty:
            return self._conversion.upgrade(group)
        return _taken_over(group)

    def _find(self, update: ConsumerUpdate, asked: BeatAsked, member_id: str) -> Found:
        joins = asked.epoch == JOINING
        if asked.instance_id is None:
            found = find_known(update.group, member_id, joins=joins)
        else:
            found = find_static(update, member_id, asked.instance_id, joins=joins, is_classic=False)
        require_epoch(found.member, asked.epoch, asked.owned)
        return found

    def _change(self, update: ConsumerUpdate, found: Found, new: ConsumerMember) -> RegexStatus:
        """Note what the member asks for now, and how its expression changes."""
        if found.known is None or (new is not found.member and new.asks != found.member.asks):
            update.changes.append(MemberChange(new.member_id, new.asks))
        if found.member.is_classic:
            update.actions.append(lambda: stop_classic(update.group, new.member_id))
        return self._regexes.change(update, found, new)

    def _next_epoch(
        self, update: ConsumerUpdate, found: Found, new: ConsumerMember, *, is_due: bool
    ) -> tuple[int, bool]:
        """The group's epoch after this, and whether all members are known to read the same then."""
        group = update.group
        is_due_now = is_due or self._updates.has_stale_topics(group)
        if not is_due_now and group.epoch <= group.target_epoch:
            # Nearly every heartbeat: nobody assigns, so no topics are counted.
            return group.epoch, False
        names = group.names_after(found.known, new.asks)
        regexes = regexes_after(group, found.known, new.asks)
        epoch = group.epoch
        if is_due_now:
            epoch = self._updates.begin_epoch(
                update, {*names, *topics_of(group, regexes)}, is_due=is_due
            )
        count = len(group.members) + (found.known is None)
        return epoch, reads_the_same(names, regexes, count)

    def _answer(
        self, update: ConsumerUpdate, member: ConsumerMember, *, tells: bool
    ) -> Reply[Beat]:
        beat = Beat(
            member_id=member.member_id,
            epoch=member.place.epoch,
            interval_ms=self._updates.settings.heartbeat_interval_ms(update.group.group_id),
            assignment=owned_of(member.place.assigned) if tells else None,
        )
        return beat_after(self._updates.write(update), beat)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, asked: BeatAsked) -> Reply[Beat]:
        group = self._updates.table.consumer(asked.group_id)
        if group is None:
            raise Refusal(
                ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {asked.group_id}"
            )
        beat = Beat(member_id=asked.member_id, epoch=asked.epoch)
        if asked.instance_id is None:
            member = member_of(group, asked.member_id)
            return beat_after(self._fencing.fence(group, (member,)), beat)
        member = static_member_of(group, asked.member_id, asked.instance_id)
        if asked.epoch == LEAVING:
            return beat_after(self._fencing.fence(group, (member,)), beat)
        update = GroupUpdate(group)
        place = replace(member.place, epoch=LEAVING_FOR_A_WHILE, revoking={})
        update.changes.append(PlaceChange(member.member_id, place))
        return beat_after(self._updates.write(update), beat)


def _rules(asked: BeatAsked) -> Iterable[tuple[bool, str]]:
    may_lack_id = asked.is_first_version and asked.epoch in (JOINING, LEAVING_FOR_A_WHILE)
    joins = asked.epoch == JOINING
    return (
        (may_lack_id or bool(asked.member_id.strip()), "a member id is needed"),
        (bool(asked.group_id.strip()), "a group id is needed"),
        (_is_null_or_said(asked.instance_id), "an instance id can't be empty"),
        (_is_null_or_said(asked.rack_id), "a rack id can't be empty"),
        (
            not joins or asked.rebalance_timeout_ms != NO_TIMEOUT,
            "who joins says its rebalance time-out",
        ),
        (
            not joins or (asked.owned is not None and not asked.owned),
            "who joins has no partitions, and says so",
        ),
        (
            not joins or asked.topics is not None or asked.regex is not None,
            "who joins says which topics it reads, by names or by an expression",
        ),
        (
            asked.epoch != LEAVING_FOR_A_WHILE or asked.instance_id is not None,
            "only a static member leaves for a while",
        ),
        (asked.epoch >= LEAVING_FOR_A_WHILE, f"there is no epoch {asked.epoch}"),
    )


def _is_null_or_said(text: str | None) -> bool:
    return text is None or bool(text.strip())


def _taken_over(classic: ClassicGroup) -> ConsumerUpdate:
    """A group without members becomes one of the new protocol; its offsets stay."""
    group = ConsumerGroup(classic.group_id)
    group.offsets = classic.offsets
    return GroupUpdate(group, records=[tombstone(classic.group_id)])


def owned_of(assigned: Assigned) -> Owned:
    """Partitions without their epochs."""
    return {topic: frozenset(numbers) for topic, numbers in assigned.items()}
