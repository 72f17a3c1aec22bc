"""ShareGroupHeartbeat rules, topics that a share group reads.

ShareGroupHeartbeat: members of share groups come, say that they are there, and go.

Nothing has to be given up before somebody else may read it, so a member has its target at once. A
topic's partitions are shared from the heartbeat on that names it: their delivery is kept by the
same process, so nobody has to be asked first. Only a new group waits for an assignment interval:
members that start together would else find all records lent to the first of them.

Source: Kafka 4.3's group coordinator; KIP-932, KIP-1263 (assignments at most so often).

Topics of share groups as tools change them: what a group has begun to read, and what it forgets.

Source: Kafka 4.3's group coordinator; KIP-932.

Which partitions a share group has begun to read.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.assignors import assign_simple
from tidelog.server.groups.group_updates import ShareDraft, Steps, no_share_group, write_share
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING,
    NO_TARGET,
    ShareAsks,
    SharedTopic,
    ShareGroup,
    ShareMember,
    SharePlace,
    Target,
)
from tidelog.server.groups.records import (
    SharedTopicsChange,
    ShareEpochChange,
    ShareMemberChange,
    SharePlaceChange,
    ShareTargetChange,
    ShareTargetEpochChange,
)
from tidelog.server.groups.requests import Beat, ShareBeatAsked
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo


def shared_after(
    shared: Mapping[UUID, SharedTopic], names: Iterable[str], topics: Mapping[str, TopicInfo]
) -> Mapping[UUID, SharedTopic]:
    """What is shared once members read these topics: all that was, with all of their partitions."""
    found = dict(shared)
    for info in (topics[name] for name in sorted(names) if name in topics):
        if info.topic_id is not None:
            found[info.topic_id] = SharedTopic(info.name, frozenset(range(info.partitions)))
    return found


class ShareHeartbeats:
    """What members of share groups ask. Belongs to the loop's thread."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def beat(self, asked: ShareBeatAsked) -> Reply[Beat]:
        """One heartbeat."""
        try:
            _require_sense(asked)
            return self._leave(asked) if asked.epoch == LEAVING else self._stay(asked)
        except Refusal as refusal:
            code = ErrorCode(refusal.error_code)
            return Reply.of(Beat(code=code, message=refusal.message))

    # -- staying -----------------------------------------------------------------------------

    def _stay(self, asked: ShareBeatAsked) -> Reply[Beat]:
        draft = self._open(asked)
        group = draft.group
        old = _member(group, asked)
        _require_epoch(old, asked.epoch)
        new = replace(old, asks=_updated(old.asks, asked))
        is_known = asked.member_id in group.members
        if not is_known or new.asks != old.asks:
            draft.changes.append(ShareMemberChange(new.member_id, new.asks))
        has_changed = not is_known or new.asks.topics != old.asks.topics
        epoch = self._next_epoch(draft, old.asks, new.asks, is_due=has_changed)
        aimed = self._aim(draft, epoch, new)
        place = _next_place(new.place, *aimed, self._ids(new.asks), has_changed=has_changed)
        if place != new.place:
            draft.changes.append(SharePlaceChange(new.member_id, place))
        draft.actions.append(lambda: self._await_sign(group, new.member_id))
        is_told = (
            asked.epoch == JOINING
            or asked.topics is not None
            or place.assigned != old.place.assigned
        )
        beat = Beat(
            member_id=new.member_id,
            epoch=place.epoch,
            interval_ms=self._next_beat_ms(group, is_behind=aimed[0] < epoch),
            assignment=place.assigned if is_told else None,
        )
        return _after(write_share(self._steps, draft), beat)

    def _open(self, asked: ShareBeatAsked) -> ShareDraft:
        """The group, which who joins founds.

        Raises:
            Refusal: There is none, or one of another type, or no room in it.
        """
        group = self._steps.table.get(asked.group_id)
        if group is None and asked.epoch == JOINING:
            group = ShareGroup(asked.group_id)
            group.founded_ms = self._steps.clock.now_ms()
        if not isinstance(group, ShareGroup):
            raise no_share_group(asked.group_id, is_there=group is not None)
        limit = self._steps.config.group_share_max_size
        if len(group.members) >= limit and asked.member_id not in group.members:
            text = f"the share group has {limit} members, its maximum"
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        return ShareDraft(group, shared=group.shared)

    def _next_epoch(
        self, draft: ShareDraft, known: ShareAsks, new: ShareAsks | None, *, is_due: bool
    ) -> int:
        """Begin a new epoch where that is due or topics have changed; the epoch then."""
        group, topics = draft.group, self._steps.topics.all()
        if not is_due and group.seen_topics is topics:
            return group.epoch
        names = group.names_after(known, new)
        found = self._steps.facts.metadata_hash(names)
        epoch = group.epoch
        if is_due or found != group.metadata_hash:
            epoch += 1
            draft.changes.append(ShareEpochChange(epoch, found))
        draft.shared = shared_after(group.shared, names, topics)
        if draft.shared != group.shared:
            draft.changes.append(SharedTopicsChange(draft.shared))

        def remember() -> None:
            group.seen_topics = topics

        draft.actions.append(remember)
        return epoch

    def _aim(self, draft: ShareDraft, epoch: int, new: ShareMember) -> tuple[int, Target]:
        """What a member goes to, with the epoch that it was made for; a new target where due."""
        group, now_ms = draft.group, self._steps.clock.now_ms()
        if epoch <= group.target_epoch or self._wait_ms(group, now_ms):
            return group.target_epoch, group.targets.get(new.member_id, NO_TARGET)
        members = {**group.members, new.member_id: new}
        reads = {
            name: frozenset(each for each in self._ids(member.asks) if each in draft.shared)
            for name, member in members.items()
        }
        shared = {topic: each.partitions for topic, each in draft.shared.items()}
        targets = assign_simple(reads, group.targets, shared)
        for name, target in targets.items():
            if target != group.targets.get(name):
                draft.changes.append(ShareTargetChange(name, target))
        draft.changes.append(ShareTargetEpochChange(epoch, now_ms))
        return epoch, targets[new.member_id]

    def _wait_ms(self, group: ShareGroup, now_ms: int) -> int:
        """In how many ms there may be another target; a clock set back doesn't put it off."""
        interval_ms = self._steps.settings.share_assignment_interval_ms(group.group_id)
        since_ms = group.target_ms or group.founded_ms
        is_over = not since_ms or not 0 <= now_ms - since_ms < interval_ms
        return 0 if is_over else since_ms + interval_ms - now_ms

    def _next_beat_ms(self, group: ShareGroup, *, is_behind: bool) -> int:
        """When a member is to come again: sooner where it only waits for a target."""
        beat_ms = self._steps.settings.share_heartbeat_interval_ms(group.group_id)
        wait_ms = self._wait_ms(group, self._steps.clock.now_ms()) if is_behind else 0
        return min(beat_ms, wait_ms) if wait_ms else beat_ms

    def _ids(self, asks: ShareAsks) -> frozenset[UUID]:
        return self._steps.facts.ids(asks.topics)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, asked: ShareBeatAsked) -> Reply[Beat]:
        group = self._steps.table.get(asked.group_id)
        if not isinstance(group, ShareGroup):
            raise no_share_group(asked.group_id, is_there=group is not None)
        if asked.member_id not in group.members:
            raise _no_member(asked)
        beat = Beat(member_id=asked.member_id, epoch=asked.epoch)
        return _after(self._fence(group, asked.member_id), beat)

    def _fence(self, group: ShareGroup, member_id: str) -> Reply[ErrorCode]:
        """Let a member go."""
        draft = ShareDraft(group, shared=group.shared)
        draft.changes.append(SharePlaceChange(member_id, None))
        draft.changes.append(ShareTargetChange(member_id, None))
        draft.changes.append(ShareMemberChange(member_id, None))
        names = group.names_after(group.members[member_id].asks, None)
        draft.changes.append(
            ShareEpochChange(group.epoch + 1, self._steps.facts.metadata_hash(names))
        )
        draft.actions.append(lambda: group.stop(member_id))
        return write_share(self._steps, draft)

    # -- time --------------------------------------------------------------------------------

    def resume(self, group: ShareGroup) -> None:
        """A group was loaded: its members' sessions begin anew."""
        for member_id in group.members:
            self._await_sign(group, member_id)

    def _await_sign(self, group: ShareGroup, member_id: str) -> None:
        """A member gave a sign of life: its session begins anew."""
        ms = self._steps.settings.share_session_timeout_ms(group.group_id)
        if self._steps.timers.put_off(group.sessions.get(member_id), ms):
            return
        group.stop(member_id)

        def act() -> None:
            is_there = self._steps.table.get(group.group_id) is group
            if is_there and member_id in group.members:
                self._fence(group, member_id)

        group.sessions[member_id] = self._steps.timers.after(ms, act)


def _require_sense(asked: ShareBeatAsked) -> None:
    """Refuse what no member may say."""
    rules: Iterable[tuple[bool, str]] = (
        (bool(asked.member_id.strip()), "a member id is needed"),
        (bool(asked.group_id.strip()), "a group id is needed"),
        (asked.rack_id is None or bool(asked.rack_id.strip()), "a rack id can't be empty"),
        (asked.epoch != JOINING or bool(asked.topics), "who joins says which topics it reads"),
        (asked.epoch >= LEAVING, f"there is no epoch {asked.epoch}"),
    )
    for is_kept, why in rules:
        if not is_kept:
            raise Refusal(ErrorCode.INVALID_REQUEST, why)


def _member(group: ShareGroup, asked: ShareBeatAsked) -> ShareMember:
    """The member, new where it joins and is not there."""
    member = group.members.get(asked.member_id)
    if member is None and asked.epoch != JOINING:
        raise _no_member(asked)
    return member or ShareMember(asked.member_id)


def _require_epoch(member: ShareMember, epoch: int) -> None:
    """Refuse another epoch than the member's; the one before is taken: an answer may be lost."""
    place = member.place
    if epoch not in (JOINING, place.epoch, place.previous_epoch):
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id} is in epoch {place.epoch}, not {epoch}:"
            " it has to join again",
        )


def _updated(asks: ShareAsks, asked: ShareBeatAsked) -> ShareAsks:
    """What a member asks for once it has said this."""
    return ShareAsks(
        rack_id=asks.rack_id if asked.rack_id is None else asked.rack_id,
        client_id=asked.client_id,
        client_host=asked.client_host,
        topics=asks.topics if asked.topics is None else asked.topics,
    )


def _next_place(
    place: SharePlace, epoch: int, target: Target, reads: frozenset[UUID], *, has_changed: bool
) -> SharePlace:
    """All of the target, but for topics that the member does not read any more."""
    if place.epoch != epoch:
        assigned = {topic: numbers for topic, numbers in target.items() if topic in reads}
        return SharePlace(epoch=epoch, previous_epoch=place.epoch, assigned=assigned)
    if not has_changed:
        return place
    return replace(
        place, assigned={each: place.assigned[each] for each in place.assigned if each in reads}
    )


def _no_member(asked: ShareBeatAsked) -> Refusal:
    text = f"member {asked.member_id} is not in group {asked.group_id}"
    return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, text)


def _after(written: Reply[ErrorCode], beat: Beat) -> Reply[Beat]:
    """The answer once what it tells is safe."""
    reply = Reply[Beat]()
    written.then(lambda code: reply.complete(beat if code is ErrorCode.NONE else Beat(code=code)))
    return reply


class ShareTopics:
    """Belongs to the loop's thread."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def idle_group(self, group_id: str, *, may_be_new: bool = False) -> ShareGroup:
        """A group without members.

        Raises:
            Refusal: There is none, or one of another type, or it has members.
        """
        group = self._steps.table.get(group_id)
        if group is None and may_be_new:
            return ShareGroup(group_id)
        if not isinstance(group, ShareGroup):
            raise no_share_group(group_id, is_there=group is not None)
        if not group.is_empty:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members.")
        return group

    def share(self, group: ShareGroup, more: Mapping[UUID, SharedTopic]) -> Reply[ErrorCode]:
        """A group begins these partitions, beside those that it has begun; when that is safe."""
        shared = dict(group.shared)
        for topic_id, topic in more.items():
            known = shared.get(topic_id, topic)
            shared[topic_id] = SharedTopic(topic.name, known.partitions | topic.partitions)
        return self._change(group, shared)

    def unshare(self, group: ShareGroup, topic_ids: Collection[UUID]) -> Reply[ErrorCode]:
        """A group has not begun these topics any more; when that is safe."""
        left = {each: topic for each, topic in group.shared.items() if each not in topic_ids}
        return self._change(group, left)

    def forget_topic(self, group: ShareGroup, topic_id: UUID) -> None:
        """A topic was deleted: the group shares it no more."""
        if topic_id in group.shared:
            self.unshare(group, [topic_id])

    def _change(self, group: ShareGroup, shared: Mapping[UUID, SharedTopic]) -> Reply[ErrorCode]:
        changes = [] if shared == group.shared else [SharedTopicsChange(shared)]
        return write_share(self._steps, ShareDraft(group, list(changes)))
