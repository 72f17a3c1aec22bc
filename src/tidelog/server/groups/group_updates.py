"""One update of a modern group: find the member, plan, reconcile, write, apply.

One request to a group whose coordinator assigns: planned on paper, written, then applied.

A `Draft` collects what happens. Nothing of the group changes before its records are accepted;
then all of it does at once, and the answer goes out when they are safe.

Source: Kafka 4.3's group coordinator; KIP-848, KIP-1263 (assignments at most so often).

One request to a share group: planned on paper, written, then applied.

What groups ask of topics again and again: ids, hashes, counts; found once and remembered.

The list of topics is another mapping at each change. What was found goes by one, and is forgotten
with it.

Which member a request is from: one that is there, a new one, or a static one that comes back.

Source: Kafka 4.3's group coordinator; KIP-345, KIP-848.

One member's next step towards its target: it gives up first, then it gets what is free.

A member whose target lacks something stays in its epoch until it no longer says that it owns that
(UNREVOKED); what others still have is waited for in the new epoch (UNRELEASED); with nothing
missing it is STABLE. So no partition ever has two members.

Source: Kafka 4.3's reconciliation; KIP-848.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from tidelog.config.group import GroupSettings
from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from tidelog.server.groups.modern_group import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    NO_TARGET,
    Asks,
    Assigned,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Place,
    SharedTopic,
    ShareGroup,
    Target,
    Wait,
)
from tidelog.server.groups.records import (
    ConsumerChange,
    EpochChange,
    MemberChange,
    PartitionMetadataChange,
    PlaceChange,
    RegexChange,
    ShareChange,
    TargetChange,
    TargetEpochChange,
)
from tidelog.server.groups.replay import GroupTable, Journal
from tidelog.server.groups.requests import Owned
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.loop import LoopTurn, Timers
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo

HASH_BYTES: Final = 8


# Sets of names that are remembered, of each kind; then all are found anew.
KNOWN_MAX: Final = 1024


# Of all names that are remembered: members may subscribe to topics that do not exist.
CHARACTERS_MAX: Final = 1 << 20


class TopicList(Protocol):
    """The topics of the broker."""

    def all(self) -> Mapping[str, TopicInfo]:
        """All by name; another mapping at each change."""
        ...


class TopicFacts:
    """Answers about topics as they are now. Belongs to the loop's thread."""

    def __init__(self, topics: TopicList) -> None:
        self._topics = topics
        self._seen: Mapping[str, TopicInfo] = {}
        self._ids: dict[frozenset[str], frozenset[UUID]] = {}
        self._hashes: dict[frozenset[str], int] = {}
        self._counts: Mapping[UUID, int] | None = None
        self._characters = 0

    def _look(self) -> Mapping[str, TopicInfo]:
        topics = self._topics.all()
        is_full = max(len(self._ids), len(self._hashes)) >= KNOWN_MAX
        if topics is not self._seen or is_full or self._characters > CHARACTERS_MAX:
            self._seen, self._counts, self._characters = topics, None, 0
            self._ids.clear()
            self._hashes.clear()
        return topics

    def ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """Ids of those of these topics that there are."""
        topics, asked = self._look(), frozenset(names)
        found = self._ids.get(asked)
        if found is None:
            ids = (topics[name].topic_id for name in asked if name in topics)
            self._characters += sum(map(len, asked))
            found = self._ids[asked] = frozenset(each for each in ids if each is not None)
        return found

    def metadata_hash(self, names: Iterable[str]) -> int:
        """A hash of these topics' names, ids and partitions; 0 where there are none."""
        topics, asked = self._look(), frozenset(names)
        found = self._hashes.get(asked)
        if found is None:
            self._characters += sum(map(len, asked))
            found = self._hashes[asked] = _hash_of(
                topics[name] for name in sorted(asked) if name in topics
            )
        return found

    def partition_counts(self) -> Mapping[UUID, int]:
        """How many partitions each topic has."""
        topics = self._look()
        if self._counts is None:
            self._counts = {
                info.topic_id: info.partitions
                for info in topics.values()
                if info.topic_id is not None
            }
        return self._counts


def _hash_of(topics: Iterable[TopicInfo]) -> int:
    known = list(topics)
    if not known:
        return 0
    hashed = blake2b(digest_size=HASH_BYTES)
    for info in known:
        hashed.update(f"{info.name}\0{info.topic_id}\0{info.partitions}\n".encode())
    return int.from_bytes(hashed.digest(), "big", signed=True)


_NONE: Final[frozenset[int]] = frozenset()


_NOTHING: Final[Mapping[int, int]] = {}


# What a member says that it owns, by topic; None where it doesn't say.
OwnedByTopic: TypeAlias = "dict[UUID, frozenset[int]] | None"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is made with.

    Attributes:
        target_epoch: Epoch of the target assignment.
        target: What the member is to have.
        topic_ids: Topics that it reads: others go even where the target still has them.
        owned: What it says that it owns, None where it says nothing.
        owners: Who has which of a topic's partitions, this member included.
        has_changed: Whether its subscription changes now.
    """

    target_epoch: int
    target: Target
    topic_ids: Set[UUID]
    owned: OwnedByTopic
    owners: Callable[[UUID], Mapping[int, str]]
    has_changed: bool


def next_place(place: Place, step: Step) -> Place:
    """Where the member stands after this step; the same place where it can't go on.

    Raises:
        Refusal: Nobody here knows the state that its records say.
    """
    if place.state is MemberState.UNKNOWN:
        if step.owned is None or step.owned:
            raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is not known here")
        return _towards_target(place, step, step.target_epoch)
    waits = place.state is MemberState.UNREVOKED_PARTITIONS and _owns(step.owned, place.revoking)
    is_there = place.state is MemberState.STABLE and place.epoch == step.target_epoch
    if waits or is_there:
        return _without_unsubscribed(place, step) if step.has_changed else place
    return _towards_target(place, step, place.epoch)


def _owns(owned: OwnedByTopic, revoked: Assigned) -> bool:
    """Whether the member may still have some of this; who says nothing may."""
    if owned is None:
        return True
    return any(not revoked.get(topic, {}).keys().isdisjoint(part) for topic, part in owned.items())


def _without_unsubscribed(place: Place, step: Step) -> Place:
    """Give up topics that are not read any more, without waiting for a new target."""
    gone = {topic: part for topic, part in place.assigned.items() if topic not in step.topic_ids}
    if not gone:
        return place
    kept = {topic: part for topic, part in place.assigned.items() if topic not in gone}
    revoking = {topic: dict(part) for topic, part in place.revoking.items()}
    for topic, part in gone.items():
        revoking.setdefault(topic, {}).update(part)
    if _owns(step.owned, revoking):
        return place.moved(place.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    # It had given them up before it said that it does not read them.
    return place.moved(place.epoch, place.state, kept, place.revoking)


def _towards_target(place: Place, step: Step, epoch: int) -> Place:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    pending: dict[UUID, list[int]] = {}
    is_unreleased = False
    for topic in {**step.target, **place.assigned}:
        target = step.target.get(topic, _NONE) if topic in step.topic_ids else _NONE
        has = place.assigned.get(topic, _NOTHING)
        if has.keys() == target:
            # Nearly always, as the group changes: what a member keeps.
            _put(kept, topic, dict(has))
            continue
        _put(kept, topic, {number: since for number, since in has.items() if number in target})
        _put(revoking, topic, {n: since for n, since in has.items() if n not in target})
        missing = sorted(target - has.keys())
        free = _free(missing, step.owners(topic), place.revoking.get(topic, _NOTHING))
        is_unreleased |= len(free) < len(missing)
        if free:
            pending[topic] = free
    if revoking and _owns(step.owned, revoking):
        return place.moved(epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic, numbers in pending.items():
        kept.setdefault(topic, {}).update(dict.fromkeys(numbers, step.target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_unreleased else MemberState.STABLE
    return place.moved(step.target_epoch, state, kept, {})


def _put(parts: dict[UUID, dict[int, int]], topic: UUID, part: dict[int, int]) -> None:
    if part:
        parts[topic] = part


def _free(
    wanted: Iterable[int], owners: Mapping[int, str], revoking: Mapping[int, int]
) -> list[int]:
    """The partitions that nobody else has; what the member itself gives up is its own."""
    return [number for number in wanted if number not in owners or number in revoking]


Action = Callable[[], None]


_LOGGER = logging.getLogger("tidelog.server")


@dataclass(slots=True)
class Draft:
    """What a request does.

    Attributes:
        group: The group as it is before.
        records: Written first: the end of the group of the other protocol that it was.
        changes: What happens to the group, in order.
        actions: Done when all of that has been accepted.
    """

    group: ConsumerGroup
    records: list[KeyValue] = field(default_factory=list)
    changes: list[ConsumerChange] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Aim:
    """The target that a member goes towards, and the epoch that it was made for."""

    epoch: int
    target: Target


class Steps:
    """The parts that requests are made of. Belongs to the loop's thread."""

    def __init__(
        self,
        table: GroupTable,
        journal: Journal,
        timers: Timers,
        clock: Clock,
        settings: GroupSettings,
        topics: TopicList,
    ) -> None:
        self.table = table
        self.journal = journal
        self.timers = timers
        self.clock = clock
        self.config = settings.config
        self.settings = settings
        self.topics = topics
        self.facts = TopicFacts(topics)
        # Groups that got a target in this turn.
        self._assigned: LoopTurn[str] = LoopTurn()
        # What ends a member that is silent for too long; `Fencing` knows.
        self.on_silence: Callable[[ConsumerGroup, str, Wait], None] = lambda *_: None

    # -- writing -----------------------------------------------------------------------------

    def write(self, draft: Draft) -> Reply[ErrorCode]:
        """Write what happens and let it happen; when it is safe, or why nothing happened."""
        group = draft.group
        records = [*draft.records, *(change.record(group.group_id) for change in draft.changes)]
        if not records:
            written = self.journal.settled(group.group_id)
            is_kept = self.table.get(group.group_id) is group
        else:
            written = self.journal.append(group.group_id, records)
            is_kept = False
        if not written.is_done or written.value is ErrorCode.NONE:
            for change in draft.changes:
                change.apply(group)
            if not is_kept:
                self.table.put(group)
            for action in draft.actions:
                action()
        return written

    # -- time --------------------------------------------------------------------------------

    def wait_for(self, group: ConsumerGroup, member_id: str, wait: Wait, ms: int) -> None:
        """Fence a member after `ms`, unless that is called off or begun anew."""
        if self.timers.put_off(group.waits.get((wait, member_id)), ms):
            return
        group.stop(wait, member_id)

        def act() -> None:
            if self.table.get(group.group_id) is group:
                self.on_silence(group, member_id, wait)

        group.waits[wait, member_id] = self.timers.after(ms, act)

    def await_sign(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member gave a sign of life: its session begins anew."""
        classic = member.asks.classic
        ms = (
            self.settings.session_timeout_ms(group.group_id)
            if classic is None
            else classic.session_timeout_ms
        )
        self.wait_for(group, member.member_id, Wait.SESSION, ms)

    def session_left_ms(self, group: ConsumerGroup, member_id: str) -> int | None:
        """How long a member may still be silent, None where nobody counts."""
        timer = group.waits.get((Wait.SESSION, member_id))
        if timer is None or timer.is_cancelled:
            return None
        return max(timer.due_ms - self.clock.monotonic_ms(), 0)

    # -- topics ------------------------------------------------------------------------------

    def subscribed_ids(self, group: ConsumerGroup, asks: Asks) -> frozenset[UUID]:
        """Ids of the topics that a member reads; an expression not looked up yet means none."""
        resolved = group.regexes.get(asks.regex) if asks.regex else None
        return self.facts.ids(asks.topics if resolved is None else asks.topics | resolved.topics)

    # -- the group's epoch -------------------------------------------------------------------

    def bump(self, draft: Draft, names: Iterable[str], *, is_due: bool) -> int:
        """Begin a new epoch where that is due or these topics have changed; the epoch then."""
        group = draft.group
        topics = self.topics.all()
        found = self.facts.metadata_hash(names)
        epoch = group.epoch
        if is_due or found != group.metadata_hash:
            epoch += 1
            draft.changes.append(EpochChange(epoch, found))
            _LOGGER.info("group %s: epoch %d", group.group_id, epoch)
        if group.has_partition_metadata:
            draft.changes.append(PartitionMetadataChange())

        def remember() -> None:
            group.seen_topics = topics

        draft.actions.append(remember)
        return epoch

    def has_stale_topics(self, group: ConsumerGroup) -> bool:
        """Whether topics may have changed since the group looked at them."""
        return group.seen_topics is not self.topics.all()

    # -- the target --------------------------------------------------------------------------

    def aim(
        self, draft: Draft, epoch: int, known: Asks | None, new: ConsumerMember, *, same: bool
    ) -> Aim:
        """What a member goes towards; a new target is made where the group's epoch asks for it.

        Args:
            draft: The request.
            epoch: The group's epoch after it.
            known: What the member asked for so far, None for a newcomer.
            new: The member after it.
            same: Whether all members read the same topics then.
        """
        group = draft.group
        now_ms = self.clock.now_ms()
        if epoch <= group.target_epoch or not self._may_assign(group, now_ms):
            target = group.target_of(new.member_id, new.asks.instance_id)
            return Aim(group.target_epoch, target)
        spec = GroupSpec(self._specs(group, new), self.facts.partition_counts(), same)
        targets = ASSIGNORS[group.assignor(known, new.asks) or self.default_assignor](spec)
        before = group.targets
        # Who keeps all keeps the very same value: most do.
        targeted = ((each, targets.get(each, NO_TARGET)) for each in spec.members)
        others = [(name, target) for name, target in targeted if target is not before.get(name)]
        for member_id, target in others:
            if target != before.get(member_id):
                draft.changes.append(TargetChange(member_id, target))
        draft.changes.append(TargetEpochChange(epoch, now_ms))
        return Aim(epoch, targets.get(new.member_id, NO_TARGET))

    def _may_assign(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Whether the last target is old enough for a new one; a clock set back doesn't stop it.

        It never is in the same turn: of many that come together each would deal all partitions
        out anew, and members would give up for one what the next gives back to them.
        """
        interval_ms = self.settings.assignment_interval_ms(group.group_id)
        since_ms = now_ms - group.target_ms
        is_old = not group.target_ms or not 0 <= since_ms < interval_ms
        return is_old and self._assigned.is_first(group.group_id)

    def _specs(self, group: ConsumerGroup, new: ConsumerMember) -> dict[str, MemberSpec]:
        ids: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}  # most read the same

        def read_by(asks: Asks) -> frozenset[UUID]:
            reads = (asks.topics, asks.regex)
            if reads not in ids:
                ids[reads] = self.subscribed_ids(group, asks)
            return ids[reads]

        targets, specs = group.targets, dict[str, MemberSpec]()
        last: Asks | None = None
        topics: frozenset[UUID] = frozenset()
        for name, member in group.members.items():
            asks = member.asks
            if last is None or asks.topics != last.topics or asks.regex != last.regex:
                last, topics = asks, read_by(asks)
            specs[name] = MemberSpec(asks.instance_id, topics, targets.get(name, NO_TARGET))
        target = targets.get(new.member_id)
        replaced = group.static_member(new.asks.instance_id)
        if replaced is not None and replaced.member_id != new.member_id:
            specs.pop(replaced.member_id, None)
            target = targets.get(replaced.member_id)
        new_topics = read_by(new.asks)
        specs[new.member_id] = MemberSpec(new.asks.instance_id, new_topics, target or NO_TARGET)
        return specs

    @property
    def default_assignor(self) -> str:
        """The first of the broker's assignors."""
        return self.config.group_consumer_assignors[0]

    # -- one member --------------------------------------------------------------------------

    def reconcile(
        self,
        draft: Draft,
        member: ConsumerMember,
        aim: Aim,
        owned: Owned | None,
        *,
        has_changed: bool,
    ) -> ConsumerMember:
        """Move a member towards its target; the same member where it can't go on."""
        group = draft.group
        if not has_changed and member.is_reconciled(aim.epoch):
            return member
        step = Step(
            aim.epoch,
            aim.target,
            self.subscribed_ids(group, member.asks),
            None if owned is None else dict(owned),
            group.owners,
            has_changed,
        )
        place = next_place(member.place, step)
        if place == member.place:
            return member
        draft.changes.append(PlaceChange(member.member_id, place))
        if not member.is_classic:
            draft.actions.append(lambda: self.watch_revocation(group, member.member_id))
        return ConsumerMember(member.member_id, member.asks, place)

    def watch_revocation(self, group: ConsumerGroup, member_id: str) -> None:
        """Bound the time that a member takes to give partitions up, while it has some to."""
        member = group.members[member_id]
        if member.place.state is MemberState.UNREVOKED_PARTITIONS:
            ms = max(member.asks.rebalance_timeout_ms, 0)
            self.wait_for(group, member_id, Wait.REBALANCE, ms)
        else:
            group.stop(Wait.REBALANCE, member_id)

    @staticmethod
    def remove(draft: Draft, member_id: str) -> None:
        """Let a member go."""
        draft.changes.append(PlaceChange(member_id, None))
        draft.changes.append(TargetChange(member_id, None))
        draft.changes.append(MemberChange(member_id, None))
        draft.actions.append(lambda: draft.group.stop_all(member_id))


def names_after(group: ConsumerGroup, known: Asks | None, new: Asks | None) -> Counter[str]:
    """How many members name each topic once one asks for something else.

    Args:
        group: The group before.
        known: What it asked for so far, itself or as the static member that it replaces; None
            for a newcomer.
        new: What it asks for then; None where it goes.
    """
    counts = Counter(group.topic_counts)
    if known is not None:
        counts.subtract(dict.fromkeys(known.topics, 1))
    if new is not None:
        counts.update(new.topics)
    return +counts


def regexes_after(group: ConsumerGroup, known: Asks | None, new: Asks | None) -> Counter[str]:
    """How many members subscribed to each expression then; as `names_after`."""
    counts = Counter(group.subscribed_regexes)
    if known is not None and known.regex:
        counts[known.regex] -= 1
    if new is not None and new.regex:
        counts[new.regex] += 1
    return +counts


def reads_the_same(names: Mapping[str, int], regexes: Mapping[str, int], count: int) -> bool:
    """Whether all of so many members read the same topics, as far as counting can tell."""
    if regexes:
        return not names and next(iter(regexes.values())) == count
    return all(each == count for each in names.values())


def topics_of(group: ConsumerGroup, regexes: Iterable[str]) -> set[str]:
    """Topics that expressions mean, as far as they were looked up."""
    resolved = (group.regexes[regex] for regex in regexes if regex in group.regexes)
    return {topic for found in resolved for topic in found.topics}


def drop_regex(draft: Draft, regex: str) -> None:
    """Nobody is subscribed to an expression any more."""
    draft.changes.append(RegexChange(regex, None))


def require_room(group: ConsumerGroup, member_id: str, limit: int) -> None:
    """Refuse a newcomer where the group is full."""
    if len(group.members) >= limit and member_id not in group.members:
        raise Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {limit} members, its maximum"
        )


@dataclass(slots=True)
class ShareDraft:
    """What a request does.

    Attributes:
        group: The group as it is before.
        changes: What happens to the group, in order.
        actions: Done when all of that has been accepted.
        shared: The topics that it shares afterwards.
    """

    group: ShareGroup
    changes: list[ShareChange] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)
    shared: Mapping[UUID, SharedTopic] = field(default_factory=dict)


def write_share(steps: Steps, draft: ShareDraft) -> Reply[ErrorCode]:
    """Write what happens and let it happen; when it is safe, or why nothing happened."""
    group = draft.group
    records = [change.record(group.group_id) for change in draft.changes]
    if records:
        written = steps.journal.append(group.group_id, records)
    else:
        written = steps.journal.settled(group.group_id)
    if not written.is_done or written.value is ErrorCode.NONE:
        for change in draft.changes:
            change.apply(group)
        steps.table.put(group)
        for action in draft.actions:
            action()
    return written


def no_share_group(group_id: str, *, is_there: bool) -> Refusal:
    """There is none of that name, or one of another type."""
    what = "is not a share group" if is_there else "not found"
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")


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
