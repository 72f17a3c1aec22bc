"""One update of a consumer or share group: planned, written to the log, then applied.

A `GroupUpdate` collects the changes of a request. The group stays unchanged until the records of
these changes are accepted; then all changes apply together. The response is sent when the records
are durable. Ids, hashes and partition counts of topics are cached, at most until the topic list
changes. `consumer_rebalance` moves consumer group members towards their target.

Source: Kafka 4.3's group coordinator; KIP-848, KIP-932, KIP-1263 (minimum assignment interval).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from hashlib import blake2b
from typing import Final, Generic, TypeVar
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.group_records import OwnedPartitions
from tidelog.protocol.messages.shared import TopicPartitions
from tidelog.server.coordinator.state_topic import KeyValue, is_accepted
from tidelog.server.groups.modern_group import (
    JOINING,
    ConsumerGroup,
    ShareGroup,
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
)
from tidelog.server.groups.offsets_topic import GroupContext
from tidelog.server.groups.requests import HeartbeatRequest, HeartbeatResult
from tidelog.server.partitions.topics import Topics
from tidelog.server.runtime.errors import Refusal
from tidelog.server.runtime.loop import LoopTurn
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo

ModernGroupT = TypeVar("ModernGroupT", ConsumerGroup, ShareGroup)
HASH_BYTES: Final = 8

# Maximum number of entries in each cache of `TopicFacts` (ids and hashes). When one of these two
# caches is full, both caches are cleared.
CACHE_ENTRIES_MAX: Final = 1024

# Maximum total number of characters in the names of topics in both caches of `TopicFacts`. Above
# this number, both caches are cleared. The maximum limits memory, because members may subscribe to
# long names of topics that do not exist.
CHARACTERS_MAX: Final = 1 << 20


class TopicFacts:
    """Cache of ids, hashes and partition counts of the current topics.

    Used only in the event loop's thread.

    Attributes:
        topics: Topics of the broker.
    """

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self._topics: Mapping[str, TopicInfo] = {}
        self._ids: dict[frozenset[str], frozenset[UUID]] = {}
        self._hashes: dict[frozenset[str], int] = {}
        self._counts: Mapping[UUID, int] | None = None
        self._characters = 0

    def _current_topics(self) -> Mapping[str, TopicInfo]:
        topics = self.topics.all()
        is_full = max(len(self._ids), len(self._hashes)) >= CACHE_ENTRIES_MAX
        if topics is not self._topics or is_full or self._characters > CHARACTERS_MAX:
            self._topics, self._counts, self._characters = topics, None, 0
            self._ids.clear()
            self._hashes.clear()
        return topics

    def ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """Return the ids of the existing topics among `names`."""
        topics, requested = self._current_topics(), frozenset(names)
        topic_ids = self._ids.get(requested)
        if topic_ids is None:
            ids = (topics[name].topic_id for name in requested if name in topics)
            self._characters += sum(map(len, requested))
            topic_ids = self._ids[requested] = frozenset(each for each in ids if each is not None)
        return topic_ids

    def by_id(
        self, parts: Iterable[TopicPartitions | OwnedPartitions]
    ) -> Mapping[UUID, frozenset[int]]:
        """Return the partitions of existing topics, by the topics' ids."""
        topics = self.topics.all()
        infos = ((topics.get(part.topic), part.partitions) for part in parts)
        return {
            info.topic_id: frozenset(numbers)
            for info, numbers in infos
            if info is not None and info.topic_id is not None
        }

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Return a hash of the topics' names, ids and partition counts; 0 if no topic exists."""
        topics, requested = self._current_topics(), frozenset(names)
        combined = self._hashes.get(requested)
        if combined is None:
            self._characters += sum(map(len, requested))
            combined = self._hashes[requested] = _hash_of(
                topics[name] for name in sorted(requested) if name in topics
            )
        return combined

    def partition_counts(self) -> Mapping[UUID, int]:
        """Return the number of partitions of each topic, by topic id."""
        topics = self._current_topics()
        if self._counts is None:
            self._counts = {
                info.topic_id: info.partitions
                for info in topics.values()
                if info.topic_id is not None
            }
        return self._counts


def _hash_of(topics: Iterable[TopicInfo]) -> int:
    infos = list(topics)
    if not infos:
        return 0
    hashed = blake2b(digest_size=HASH_BYTES)
    for info in infos:
        hashed.update(f"{info.name}\0{info.topic_id}\0{info.partitions}\n".encode())
    return int.from_bytes(hashed.digest(), "big", signed=True)


@dataclass(slots=True)
class GroupUpdate(Generic[ModernGroupT]):
    """Changes that one request makes to a group.

    Attributes:
        group: The group before the changes.
        records: Records that delete the group's records of its former protocol. They are written
            before the records of `changes`.
        changes: Changes of the group, in order.
        actions: Calls to make once the records are accepted.
    """

    group: ModernGroupT
    records: list[KeyValue] = field(default_factory=list)
    changes: list[Change[ModernGroupT]] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)


class GroupUpdates(Generic[ModernGroupT]):
    """Steps shared by all requests of one protocol. Used only in the event loop's thread."""

    def __init__(self, context: GroupContext) -> None:
        self.context = context
        self.table = context.table
        self.topic = context.topic
        self.clock = context.clock
        self.config = context.config
        self.settings = context.settings
        self.topics = context.topics
        self.facts = TopicFacts(context.topics)
        # Groups that got a new target in this iteration of the event loop.
        self.assigned: LoopTurn[str] = LoopTurn()
        # Called when a member's timer expires.
        self.on_silence: Callable[[ModernGroupT, str, Wait], object] = lambda *_: None

    # -- writing -----------------------------------------------------------------------------

    def write(self, update: GroupUpdate[ModernGroupT]) -> Reply[ErrorCode]:
        """Write and apply the changes. The reply completes when they are durable or have failed."""
        group: ModernGroupT = update.group
        records = [*update.records, *(change.record(group) for change in update.changes)]
        if not records:
            written = self.topic.settled(group.group_id)
            is_stored = self.table.get(group.group_id) is group
        else:
            written = self.topic.append(group.group_id, records)
            is_stored = False
        if is_accepted(written):
            for change in update.changes:
                change.apply(group)
            if not is_stored:
                self.table.put(group.group_id, group)
            for action in update.actions:
                action()
        return written

    # -- timers ------------------------------------------------------------------------------

    def wait_for(self, group: ModernGroupT, member_id: str, wait: Wait, ms: int) -> None:
        """Call `on_silence` for a member after `ms`, unless the timer is stopped or restarted."""
        if not self.context.timers.put_off(group.waits.get((wait, member_id)), ms):
            group.stop(wait, member_id)
            group.waits[wait, member_id] = self.context.after(
                group, ms, lambda: self.on_silence(group, member_id, wait)
            )

    # -- the group's epoch -------------------------------------------------------------------

    def begin_epoch(
        self, update: GroupUpdate[ModernGroupT], names: Iterable[str], *, is_due: bool
    ) -> int:
        """Begin a new epoch if `is_due` or the topics `names` changed; return the group's epoch."""
        group, topics = update.group, self.topics.all()
        metadata_hash = self.facts.metadata_hash(names)
        epoch = group.epoch
        if is_due or metadata_hash != group.metadata_hash:
            epoch += 1
            update.changes.append(EpochChange(epoch, metadata_hash))

        def remember() -> None:
            group.hashed_topics = topics

        update.actions.append(remember)
        return epoch

    def has_stale_topics(self, group: ModernGroupT) -> bool:
        """Whether topics may have changed since the group last checked them."""
        return group.hashed_topics is not self.topics.all()

    # -- the target --------------------------------------------------------------------------

    def target_wait_ms(self, group: ModernGroupT, since_ms: int, interval_ms: int) -> int:
        """Return the time in ms until another target may be computed.

        The interval begins when the last target was computed. If no target was computed yet, the
        interval begins at `since_ms`, or is already over if `since_ms` is 0. The result is also 0
        if the clock was set back to before the start of the interval.
        """
        now_ms = self.clock.now_ms()
        since_ms = group.target_ms or since_ms
        is_over = not since_ms or not 0 <= now_ms - since_ms < interval_ms
        return 0 if is_over else since_ms + interval_ms - now_ms

    def put_targets(
        self, update: GroupUpdate[ModernGroupT], epoch: int, targets: Iterable[tuple[str, Target]]
    ) -> None:
        """Add to the update the new target assignments of members, and the epoch of the targets.

        A target assignment is left out if the member has the same target assignment already.
        """
        before = update.group.targets
        for member_id, target in targets:
            old_target = before.get(member_id)
            # Most members keep the same object as their target, which is quick to compare.
            if target is not old_target and target != old_target:
                update.changes.append(TargetChange(member_id, target))
        update.changes.append(TargetEpochChange(epoch, self.clock.now_ms()))

    # -- members -----------------------------------------------------------------------------

    @staticmethod
    def remove(update: GroupUpdate[ModernGroupT], member_id: str) -> None:
        """Add the removal of a member to the update."""
        update.changes.append(AssignmentChange(member_id, None))
        update.changes.append(TargetChange(member_id, None))
        update.changes.append(MemberChange(member_id, None))
        update.actions.append(lambda: update.group.stop_all(member_id))


def answer_heartbeat(
    request: HeartbeatRequest,
    check: Callable[[HeartbeatRequest], None],
    stay: Callable[[HeartbeatRequest], Reply[HeartbeatResult]],
    leave: Callable[[HeartbeatRequest], Reply[HeartbeatResult]],
) -> Reply[HeartbeatResult]:
    """Handle one heartbeat of a member of a consumer group or share group.

    Args:
        request: The request.
        check: Raises Refusal if the request is invalid.
        stay: Handles the heartbeat of a member that joins or stays; may raise Refusal.
        leave: Handles the heartbeat of a member that leaves; may raise Refusal.
    """
    try:
        check(request)
        return leave(request) if request.epoch < JOINING else stay(request)
    except Refusal as refusal:
        code = ErrorCode(refusal.error_code)
        return Reply.of(HeartbeatResult(code=code, message=refusal.message))


def require_all(rules: Iterable[tuple[bool, str]]) -> None:
    """Raise Refusal for the first rule that is broken.

    A rule is a pair: a flag, which is False if the rule is broken, and the text of the error.
    """
    for is_met, text in rules:
        if not is_met:
            raise Refusal(ErrorCode.INVALID_REQUEST, text)


def result_after(written: Reply[ErrorCode], result: HeartbeatResult) -> Reply[HeartbeatResult]:
    """Return a reply with the heartbeat's result, or with the error if the write has failed."""
    return written.derive(
        lambda code: result if code is ErrorCode.NONE else HeartbeatResult(code=code)
    )
