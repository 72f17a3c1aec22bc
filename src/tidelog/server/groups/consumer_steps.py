"""One request to a group whose coordinator assigns: planned on paper, written, then applied.

A `Draft` collects what happens. Nothing of the group changes before its records are accepted;
then all of it does at once, and the answer goes out when they are safe.

Source: Kafka 4.3's group coordinator; KIP-848, KIP-1263 (assignments at most so often).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.errors import Refusal
from tidelog.server.groups.consumer.assignors import ASSIGNORS, GroupSpec, MemberSpec
from tidelog.server.groups.consumer.changes import (
    Change,
    EpochChange,
    MemberChange,
    PartitionMetadataChange,
    PlaceChange,
    RegexChange,
    TargetChange,
    TargetEpochChange,
)
from tidelog.server.groups.consumer.group import NO_TARGET, ConsumerGroup, Wait
from tidelog.server.groups.consumer.member import Asks, ConsumerMember, MemberState, Target
from tidelog.server.groups.consumer.reconcile import Step, next_place
from tidelog.server.groups.group_settings import GroupSettings
from tidelog.server.groups.loop_turn import LoopTurn
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.results import Owned
from tidelog.server.groups.table import GroupTable, Journal
from tidelog.server.groups.topic_facts import TopicFacts, TopicList
from tidelog.server.timers import Timers

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
    records: list[GroupRecord] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
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
