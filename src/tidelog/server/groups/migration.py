"""Conversion of a group between the classic and the consumer protocol, and the removal of members.

When the first member of the consumer protocol joins a classic group of consumers, the group becomes
a consumer group. Pending requests end with REBALANCE_IN_PROGRESS, the generation becomes the
group's epoch, and the members' assignments become their targets. When only classic members are
left, the group becomes classic again: the targets become the assignments, and the members must
rejoin. Exception: if the last member of the consumer protocol is a static member that returns as a
classic member with the same subscription, no member needs to rejoin. A member is removed when it
leaves, when its session expires, or when it does not revoke, rejoin or sync in time.

Source: Kafka 4.3's group coordinator; KIP-848 (online migration).
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.amounts import plural
from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.data_message import VERSION_BYTES
from tidelog.protocol.messages.group_records import (
    ASSIGNMENT,
    SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.messages.shared import TopicPartitions
from tidelog.server.coordinator.state_topic import is_accepted
from tidelog.server.groups.classic_group import CONSUMER_PROTOCOL, ClassicGroup, GroupState, Member
from tidelog.server.groups.classic_rebalance import Rebalances
from tidelog.server.groups.consumer_rebalance import (
    ConsumerUpdate,
    ConsumerUpdates,
    drop_regex,
)
from tidelog.server.groups.group_updates import GroupUpdate
from tidelog.server.groups.modern_group import (
    NO_TARGET,
    ClassicPart,
    ConsumerGroup,
    ConsumerMember,
    MemberAssignment,
    MemberState,
    ModernMember,
    Subscription,
    Target,
    Wait,
)
from tidelog.server.groups.modern_records import (
    AssignmentChange,
    Change,
    EpochChange,
    MemberChange,
    TargetChange,
    TargetEpochChange,
    end_records,
)
from tidelog.server.groups.records import group_record, tombstone
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.reply import Reply

_LAST_VERSION: Final = ASSIGNMENT.last


@dataclass(frozen=True, slots=True)
class MemberReplacement:
    """Static member of the consumer protocol that returned as a classic member.

    Attributes:
        old_id: Id of the replaced member.
        member: The replacement.
        has_changed: Whether the group must rebalance because of the replacement.
    """

    old_id: str
    member: ConsumerMember
    has_changed: bool


class Migration:
    """Converts groups between protocols, and removes members.

    Used only in the event loop's thread.
    """

    def __init__(self, updates: ConsumerUpdates, rebalances: Rebalances) -> None:
        self._updates = updates
        self._rebalances = rebalances
        updates.on_silence = self._silent

    # -- to the new protocol -----------------------------------------------------------------

    def upgrade(self, classic: ClassicGroup) -> ConsumerUpdate:
        """Return an update, not written yet, that converts a classic group and its members.

        The new group keeps the offsets. An empty group is always converted.

        Raises:
            Refusal: The migration policy, protocol type, size or members' data do not allow the
                conversion.
        """
        group = ConsumerGroup(classic.group_id)
        group.offsets = classic.offsets
        update = GroupUpdate(group, records=[tombstone(classic.group_id)])
        if classic.is_empty:
            return update
        self._require_upgradable(classic)
        try:
            members = [self._consumer(classic, member) for member in classic.members.values()]
        except (CorruptMessage, UnsupportedVersion) as error:
            raise self._refusal(classic, f"its members' data can't be read: {error}") from error
        names = {topic for member in members for topic in member.subscription.topics}
        metadata_hash = self._updates.facts.metadata_hash(names)
        for change in _founding(classic.generation, metadata_hash, members):
            change.apply(group)
            # Add the change to the update as well, so that the update writes the change to the log.
            # Later the update applies the change a second time, which has no effect.
            update.changes.append(change)
        update.actions.append(partial(self._dismiss, classic, group))
        return update

    def _require_upgradable(self, classic: ClassicGroup) -> None:
        config = self._updates.config
        if not config.group_consumer_migration_policy.may_upgrade:
            raise self._refusal(classic, "the migration policy forbids it")
        if classic.protocol_type != CONSUMER_PROTOCOL:
            raise self._refusal(classic, f"its protocol type is not `{CONSUMER_PROTOCOL}`")
        if len(classic.members) > config.group_consumer_max_size:
            raise self._refusal(
                classic, f"it has more than {plural(config.group_consumer_max_size, 'member')}"
            )

    @staticmethod
    def _refusal(classic: ClassicGroup, reason: str) -> Refusal:
        return Refusal(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"group {classic.group_id} can't be converted to the consumer protocol: {reason}",
        )

    def _consumer(self, classic: ClassicGroup, member: Member) -> ConsumerMember:
        name = classic.protocol_name or classic.select_protocol()
        written = read_subscription(member.metadata(name))
        subscription = Subscription(
            instance_id=member.instance_id,
            rack_id=written.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=frozenset(written.topics),
            classic=ClassicPart(member.session_timeout_ms, member.protocols),
        )
        target = self._read_assignment(classic, member.assignment)
        epoch = classic.generation
        assigned = {topic: dict.fromkeys(sorted(n), epoch) for topic, n in target.items()}
        assignment = MemberAssignment(epoch=epoch, previous_epoch=epoch, assigned=assigned)
        return ModernMember(member.member_id, subscription, assignment)

    def _read_assignment(self, classic: ClassicGroup, data: bytes) -> Target:
        if not data:
            return NO_TARGET
        written = ASSIGNMENT.read(data)[1]
        if written.user_data:
            raise self._refusal(classic, "its assignor stores user data in assignments")
        return self._updates.facts.by_id(written.assigned_partitions)

    def _dismiss(self, classic: ClassicGroup, group: ConsumerGroup) -> None:
        """Unload the classic group.

        Its members' sessions continue. Members with a pending request must rejoin.
        """
        session_ms = {
            member.member_id: self._rebalances.session_remaining_ms(member)
            for member in classic.members.values()
        }
        self._rebalances.unload(classic, ErrorCode.REBALANCE_IN_PROGRESS)
        for member_id, ms in session_ms.items():
            if member_id in group.members:
                self._updates.wait_for(group, member_id, Wait.SESSION, ms)

    # -- to the classic protocol -------------------------------------------------------------

    def may_downgrade(self, group: ConsumerGroup, leaving: Collection[ConsumerMember]) -> bool:
        """Whether all members except `leaving` are classic, and the group may be downgraded.

        The policy and the maximum size of a classic group must allow the downgrade. If no member is
        left, the result is False.
        """
        remaining = len(group.members) - len(leaving)
        remaining_classic = group.classic_count - sum(member.is_classic for member in leaving)
        return 0 < remaining == remaining_classic and self._may_be_classic(remaining)

    def may_downgrade_replaced(self, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
        """Whether the group may be downgraded when a member is replaced by a classic member.

        This requires that `replaced` is the only member that is not classic, and that the policy
        and the maximum size of a classic group allow a downgrade.
        """
        others = len(group.members) - 1
        classic_others = group.classic_count - replaced.is_classic
        return (
            not replaced.is_classic
            and others == classic_others
            and self._may_be_classic(len(group.members))
        )

    def _may_be_classic(self, count: int) -> bool:
        config = self._updates.config
        policy = config.group_consumer_migration_policy
        return policy.may_downgrade and count <= config.group_max_size

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember]
    ) -> Reply[ErrorCode]:
        """Convert to a classic group without the leaving members. The other members must rejoin."""
        leaving_ids = {member.member_id for member in leaving}
        stay = [member for member in group.members.values() if member.member_id not in leaving_ids]
        targets = {m.member_id: group.targets.get(m.member_id, NO_TARGET) for m in stay}
        return self._replace(
            group, group.epoch, stay, targets, silent=list(targets), rebalances=True
        )

    def downgrade_replaced(
        self, update: ConsumerUpdate, epoch: int, replacement: MemberReplacement
    ) -> Reply[ErrorCode]:
        """Convert to a classic group after a static member has returned as a classic member."""
        group, member = update.group, replacement.member
        stay = [each for each in group.members.values() if each.member_id != replacement.old_id]
        targets = {m.member_id: group.targets.get(m.member_id, NO_TARGET) for m in stay}
        silent = list(targets)
        targets[member.member_id] = group.targets.get(replacement.old_id, NO_TARGET)
        return self._replace(
            group,
            epoch,
            [*stay, member],
            targets,
            silent=silent,
            rebalances=replacement.has_changed,
        )

    def _replace(
        self,
        group: ConsumerGroup,
        epoch: int,
        members: Iterable[ConsumerMember],
        targets: Mapping[str, Target],
        *,
        silent: Iterable[str],
        rebalances: bool,
    ) -> Reply[ErrorCode]:
        """Write and apply the conversion.

        Restart the sessions of all members except the members in `silent`. The request did not come
        from a member in `silent`, so the sessions of these members keep their remaining time.
        """
        classic = self._classic(group, epoch, members, targets)
        records = [*end_records(group), group_record(classic, rebalances=rebalances)]
        written = self._updates.topic.append(group.group_id, records)
        if is_accepted(written):
            session_ms = {name: self._updates.session_remaining_ms(group, name) for name in silent}
            group.unload()
            self._updates.table.put(classic.group_id, classic)
            for member in classic.members.values():
                self._rebalances.restart_session(classic, member, session_ms.get(member.member_id))
            if rebalances:
                self._rebalances.prepare(classic)
        return written

    def _classic(
        self,
        group: ConsumerGroup,
        epoch: int,
        members: Iterable[ConsumerMember],
        targets: Mapping[str, Target],
    ) -> ClassicGroup:
        classic = self._updates.context.new_classic_group(group.group_id)
        classic.offsets = group.offsets
        for member in members:
            classic.add(_classic_member(member), CONSUMER_PROTOCOL)
        classic.generation = epoch
        classic.protocol_name = classic.select_protocol()
        classic.subscribed = classic.find_subscribed()
        for each in classic.members.values():
            version = subscription_version(each.metadata(classic.protocol_name))
            each.assignment = self.assignment_data(targets[each.member_id], version)
        classic.move_to(GroupState.STABLE, self._updates.clock.now_ms())
        return classic

    def assignment_data(self, target: Mapping[UUID, Collection[int]], version: int) -> bytes:
        """Encode an assignment for a classic member. Deleted topics are left out."""
        names = {info.topic_id: name for name, info in self._updates.topics.all().items()}
        parts = [
            TopicPartitions(topic=names[topic], partitions=sorted(numbers))
            for topic, numbers in target.items()
            if topic in names
        ]
        assignment = ConsumerProtocolAssignment(assigned_partitions=parts)
        return ASSIGNMENT.write(min(max(version, 0), _LAST_VERSION), assignment)

    # -- removal of members ------------------------------------------------------------------

    def fence(self, group: ConsumerGroup, members: Collection[ConsumerMember]) -> Reply[ErrorCode]:
        """Remove members. The reply completes when the removal is durable or has failed."""
        if not members:
            return self._updates.write(GroupUpdate(group))
        if self.may_downgrade(group, members):
            return self.downgrade(group, members)
        update = GroupUpdate(group)
        for member in members:
            self._updates.remove(update, member.member_id)
        self._begin_epoch(update, members)
        return self._updates.write(update)

    def _begin_epoch(self, update: ConsumerUpdate, members: Collection[ConsumerMember]) -> None:
        group = update.group
        names = group.names_after(None, None)
        regexes = dict(group.subscribed_regexes)
        for member in members:
            names.subtract(dict.fromkeys(member.subscription.topics, 1))
            if member.subscription.regex:
                regexes[member.subscription.regex] -= 1
        for regex in [each for each, count in regexes.items() if not count]:
            drop_regex(update, regex)
            del regexes[regex]
        self._updates.begin_epoch(update, {*(+names), *group.topics_of(regexes)}, is_due=True)

    def _silent(self, group: ConsumerGroup, member_id: str, wait: Wait) -> None:
        """Remove a member after one of its timeouts (`Wait`) has expired."""
        member = group.members.get(member_id)
        if member is None:
            return
        if (
            wait is Wait.REBALANCE
            and member.assignment.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            return
        self.fence(group, (member,))

    def resume(self, group: ConsumerGroup) -> None:
        """Restart the sessions of the members of a loaded group."""
        for member in group.members.values():
            self._updates.restart_session(group, member)
            if not member.is_classic:
                self._updates.watch_revocation(group, member.member_id)


def _founding(
    epoch: int, metadata_hash: int, members: Iterable[ConsumerMember]
) -> Iterable[Change[ConsumerGroup]]:
    """Iterate over the changes that create a group of these members.

    Each member's current assignment becomes its target.
    """
    listed = list(members)
    for member in listed:
        yield MemberChange(member.member_id, member.subscription)
    yield EpochChange(epoch, metadata_hash)
    for member in listed:
        target = {topic: frozenset(n) for topic, n in member.assignment.assigned.items()}
        yield TargetChange(member.member_id, target)
    yield TargetEpochChange(epoch)
    for member in listed:
        yield AssignmentChange(member.member_id, member.assignment)


def _classic_member(member: ConsumerMember) -> Member:
    classic = member.subscription.classic
    assert classic is not None, "only classic members are in a classic group"
    return Member(
        member_id=member.member_id,
        instance_id=member.subscription.instance_id,
        client_id=member.subscription.client_id,
        client_host=member.subscription.client_host,
        protocols=classic.protocols,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=member.subscription.rebalance_timeout_ms,
    )


def subscription_version(data: bytes) -> int:
    """Return the version declared in a classic member's data."""
    return int.from_bytes(data[:VERSION_BYTES], "big", signed=True)


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Decode a classic member's subscription.

    Raises:
        CorruptMessage: The data is invalid.
        UnsupportedVersion: The version is below the first version.
    """
    return SUBSCRIPTION.read(data)[1]
