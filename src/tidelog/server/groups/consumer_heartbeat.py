"""ConsumerGroupHeartbeat: members come, say that they are there, move towards their targets, go.

Source: Kafka 4.3's group coordinator; KIP-848.
"""

from dataclasses import replace

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.group_updates import (
    Draft,
    Found,
    find_dynamic,
    find_static,
    member_of,
    names_after,
    reads_the_same,
    regexes_after,
    require_epoch,
    require_room,
    static_member_of,
    topics_of,
)
from tidelog.server.groups.migration import Parts
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    NO_TIMEOUT,
    Asks,
    Assigned,
    ConsumerGroup,
    ConsumerMember,
    ShareGroup,
    stop_classic,
)
from tidelog.server.groups.records import MemberChange, PlaceChange, tombstone
from tidelog.server.groups.requests import Beat, BeatAsked, Owned
from tidelog.server.groups.topic_regexes import RegexStatus
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply


class Heartbeats:
    """What members of the new protocol ask. Belongs to the loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._steps = parts.steps
        self._fencing = parts.fencing
        self._conversion = parts.conversion
        self._regexes = parts.regexes
        self._new_id = parts.new_member_id

    def beat(self, asked: BeatAsked) -> Reply[Beat]:
        """One heartbeat."""
        try:
            self._require_sense(asked)
            if asked.epoch in (LEAVING, LEAVING_FOR_A_WHILE):
                return self._leave(asked)
            return self._stay(asked)
        except Refusal as refusal:
            code = ErrorCode(refusal.error_code)
            return Reply.of(Beat(code=code, message=refusal.message))

    def _require_sense(self, asked: BeatAsked) -> None:
        """Refuse what no member may say."""
        is_usual = asked.epoch > JOINING and asked.instance_id is None and asked.rack_id is None
        # Who goes on, and names itself and its group, breaks none of the rules.
        if not (is_usual and asked.member_id.strip() and asked.group_id.strip()):
            for why in self._complaints(asked):
                raise Refusal(ErrorCode.INVALID_REQUEST, why)
        wanted = asked.assignor
        known = self._steps.config.group_consumer_assignors
        if wanted is not None and wanted not in known:
            names = ", ".join(known)
            raise Refusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"assignor {wanted} is not known; these are: {names}",
            )

    @staticmethod
    def _complaints(asked: BeatAsked) -> list[str]:
        may_lack_id = asked.is_first_version and asked.epoch in (JOINING, LEAVING_FOR_A_WHILE)
        joins = asked.epoch == JOINING
        rules = (
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
        return [why for is_kept, why in rules if not is_kept]

    # -- staying -----------------------------------------------------------------------------

    def _stay(self, asked: BeatAsked) -> Reply[Beat]:
        joins = asked.epoch == JOINING
        draft = self._open(asked.group_id, joins=joins)
        group = draft.group
        limit = self._steps.config.group_consumer_max_size
        require_room(group, asked.member_id, limit)
        member_id = asked.member_id or self._new_id()
        found = self._find(draft, asked, member_id)
        old = found.member
        asks = _updated(old.asks, asked)
        new = old if asks is old.asks else replace(old, asks=asks)
        status = self._change(draft, found, new)
        names_changed = new.asks.topics != old.asks.topics
        is_due = names_changed or status is RegexStatus.RESOLVED
        epoch, same = self._next_epoch(draft, found, new, is_due=is_due)
        aim = self._steps.aim(draft, epoch, found.known, new, same=same)
        has_changed = names_changed or status is not RegexStatus.SAME
        moved = self._steps.reconcile(draft, new, aim, asked.owned, has_changed=has_changed)
        draft.actions.append(lambda: self._steps.await_sign(group, moved))
        self._regexes.maybe_look_up(draft, found, new, asked.may_see)
        is_full = (
            asked.rebalance_timeout_ms != NO_TIMEOUT
            and (asked.topics is not None or asked.regex is not None)
            and asked.owned is not None
        )
        tells = joins or is_full or moved.place.assigned != old.place.assigned
        return self._answer(draft, moved, tells=tells)

    def _open(self, group_id: str, *, joins: bool) -> Draft:
        """The group, which who joins founds or converts."""
        group = self._steps.table.get(group_id)
        if isinstance(group, ConsumerGroup):
            return Draft(group)
        if group is None and joins:
            return Draft(ConsumerGroup(group_id))
        if isinstance(group, ShareGroup):
            text = f"Group {group_id} is not a consumer group."
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if group is None or not joins:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
        if not group.is_empty:
            return self._conversion.upgrade(group)
        return _taken_over(group)

    def _find(self, draft: Draft, asked: BeatAsked, member_id: str) -> Found:
        joins = asked.epoch == JOINING
        if asked.instance_id is None:
            found = find_dynamic(draft.group, member_id, joins=joins)
        else:
            found = find_static(draft, member_id, asked.instance_id, joins=joins, is_classic=False)
        require_epoch(found.member, asked.epoch, asked.owned)
        return found

    def _change(self, draft: Draft, found: Found, new: ConsumerMember) -> RegexStatus:
        """Note what the member asks for now, and how its expression changes."""
        if found.known is None or (new is not found.member and new.asks != found.member.asks):
            draft.changes.append(MemberChange(new.member_id, new.asks))
        if found.member.is_classic:
            draft.actions.append(lambda: stop_classic(draft.group, new.member_id))
        return self._regexes.change(draft, found, new)

    def _next_epoch(
        self, draft: Draft, found: Found, new: ConsumerMember, *, is_due: bool
    ) -> tuple[int, bool]:
        """The group's epoch after this, and whether all members are known to read the same then."""
        group = draft.group
        is_due_now = is_due or self._steps.has_stale_topics(group)
        if not is_due_now and group.epoch <= group.target_epoch:
            # Nearly every heartbeat: nobody assigns, so no topics are counted.
            return group.epoch, False
        names = names_after(group, found.known, new.asks)
        regexes = regexes_after(group, found.known, new.asks)
        epoch = group.epoch
        if is_due_now:
            epoch = self._steps.bump(draft, {*names, *topics_of(group, regexes)}, is_due=is_due)
        count = len(group.members) + (found.known is None)
        return epoch, reads_the_same(names, regexes, count)

    def _answer(self, draft: Draft, member: ConsumerMember, *, tells: bool) -> Reply[Beat]:
        beat = Beat(
            member_id=member.member_id,
            epoch=member.place.epoch,
            interval_ms=self._steps.settings.heartbeat_interval_ms(draft.group.group_id),
            assignment=owned_of(member.place.assigned) if tells else None,
        )
        return _after(self._steps.write(draft), beat)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, asked: BeatAsked) -> Reply[Beat]:
        group = self._steps.table.consumer(asked.group_id)
        if group is None:
            raise Refusal(
                ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {asked.group_id}"
            )
        beat = Beat(member_id=asked.member_id, epoch=asked.epoch)
        if asked.instance_id is None:
            member = member_of(group, asked.member_id)
            return _after(self._fencing.fence(group, (member,)), beat)
        member = static_member_of(group, asked.member_id, asked.instance_id)
        if asked.epoch == LEAVING:
            return _after(self._fencing.fence(group, (member,)), beat)
        draft = Draft(group)
        place = replace(member.place, epoch=LEAVING_FOR_A_WHILE, revoking={})
        draft.changes.append(PlaceChange(member.member_id, place))
        return _after(self._steps.write(draft), beat)


def _is_null_or_said(text: str | None) -> bool:
    return text is None or bool(text.strip())


def _updated(asks: Asks, asked: BeatAsked) -> Asks:
    """What a member asks for once it has said this; the same value where that is nothing new."""
    if _says_nothing_new(asks, asked):
        return asks
    timeout_ms = asked.rebalance_timeout_ms
    return Asks(
        instance_id=asks.instance_id if asked.instance_id is None else asked.instance_id,
        rack_id=asks.rack_id if asked.rack_id is None else asked.rack_id,
        client_id=asked.client_id,
        client_host=asked.client_host,
        rebalance_timeout_ms=asks.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms,
        topics=asks.topics if asked.topics is None else asked.topics,
        regex=asks.regex if asked.regex is None else asked.regex,
        assignor=asks.assignor if asked.assignor is None else asked.assignor,
        classic=None,
    )


def _says_nothing_new(asks: Asks, asked: BeatAsked) -> bool:
    """Nearly every heartbeat: who it is, that it is there, and what it has."""
    return (
        asked.topics is None
        and asked.rebalance_timeout_ms == NO_TIMEOUT
        and asked.regex is None
        and asked.rack_id is None
        and asked.assignor is None
        and asks.classic is None
        and asked.instance_id in (None, asks.instance_id)
        and asked.client_id == asks.client_id
        and asked.client_host == asks.client_host
    )


def _taken_over(classic: ClassicGroup) -> Draft:
    """A group without members becomes one of the new protocol; its offsets stay."""
    group = ConsumerGroup(classic.group_id)
    group.offsets = classic.offsets
    return Draft(group, records=[tombstone(classic.group_id)])


def owned_of(assigned: Assigned) -> Owned:
    """Partitions without their epochs."""
    return {topic: frozenset(numbers) for topic, numbers in assigned.items()}


def _after(written: Reply[ErrorCode], beat: Beat) -> Reply[Beat]:
    """The answer once what it tells is safe."""
    reply: Reply[Beat] = Reply()

    def tell(code: ErrorCode) -> None:
        reply.complete(beat if code is ErrorCode.NONE else Beat(code=code))

    written.then(tell)
    return reply
