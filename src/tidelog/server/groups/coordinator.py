"""Group coordinator: entry point for handlers, and state machine of `__consumer_offsets`.

The coordinator manages the loaded groups. Other modules have the rules for members and for commits.
When a topic is deleted, loaded groups drop its offsets. The offsets of a deleted topic remain in
groups that are being loaded at that time, and in groups whose partition failed before the removal
was written. So the coordinator remembers the most recently deleted topics, and removes their
offsets from groups that are loaded later.

This module imports the modules for consumer and share groups only at their first use, because a
broker's first client waits until this module is imported.

Source: Kafka 4.3's group coordinator.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.config.group import GroupSettings
from tidelog.error_codes import ErrorCode
from tidelog.server.coordinator.state_topic import PartitionedMap, is_accepted
from tidelog.server.groups.classic_members import ClassicMembers
from tidelog.server.groups.classic_rebalance import Rebalances
from tidelog.server.groups.committed_offsets import DeletedTopic, PendingOffsets
from tidelog.server.groups.modern_group import ConsumerGroup, ShareGroup
from tidelog.server.groups.offset_commits import Commits
from tidelog.server.groups.offsets_topic import LOGGER, GroupContext, OffsetsTopic
from tidelog.server.groups.replay import AnyGroup, LoadedShard, Replay
from tidelog.server.partitions.partition import TransactionEnd
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.types import OFFSETS_TOPIC

if TYPE_CHECKING:
    from tidelog.server.groups.classic_in_consumer import ClassicInConsumer
    from tidelog.server.groups.consumer_heartbeat import ConsumerHeartbeats
    from tidelog.server.groups.consumer_rebalance import ConsumerUpdates
    from tidelog.server.groups.migration import Migration
    from tidelog.server.groups.share_heartbeat import ShareHeartbeats, ShareTopics, ShareUpdates
    from tidelog.server.groups.topic_regexes import Regexes

# Maximum number of deleted topics to remember. Far fewer than 10,000 topics are deleted while a
# partition is loaded, and the names and ids of 10,000 topics take only some megabytes.
TOPICS_MAX: Final = 10_000

# Interval in ms for checking whether transactions that delay a deletion have ended.
PENDING_CHECK_MS: Final = 1000


class GroupFacts(NamedTuple):
    """State of a group for metrics.

    Attributes:
        group_id: Id of the group.
        state: Kafka's name of the group's state.
        members: Number of members.
        offsets: Topic, partition and offset of each committed offset.
    """

    group_id: str
    state: str
    members: int
    offsets: Sequence[tuple[str, int, int]]


class GroupCoordinator:
    """All groups of the broker. Used only in the event loop's thread.

    Attributes:
        members: Rules of JoinGroup, SyncGroup, Heartbeat and LeaveGroup.
        default_assignor: The first of the broker's configured assignors.
        commits: Rules of OffsetCommit, OffsetDelete, TxnOffsetCommit, and of the end of
            transactions.
        pending: Offsets committed in open transactions.
        topic: Partitions of `__consumer_offsets`, where groups are stored.
    """

    def __init__(self, services: Services, group_texts: Callable[[str], Mapping[str, str]]) -> None:
        """Start loading the stored groups.

        Args:
            services: Services of the broker.
            group_texts: Returns the settings of a single group, as texts.
        """
        self._services = services
        self._timers = services.timers
        self._topics = services.topics
        self._clock = services.env.clock
        config = services.config
        self._check_ms = config.offsets_retention_check_interval_ms
        # Last `TOPICS_MAX` topics deleted since the broker started, oldest first.
        self._deleted: deque[DeletedTopic] = deque(maxlen=TOPICS_MAX)
        self.topic = OffsetsTopic(services, self)
        self._table: PartitionedMap[AnyGroup] = PartitionedMap(self.topic.number_of)
        self.pending = PendingOffsets()
        self._context = GroupContext(
            table=self._table,
            topic=self.topic,
            pending=self.pending,
            topics=services.topics,
            timers=services.timers,
            clock=self._clock,
            random=services.env.random,
            config=config,
            settings=GroupSettings(config, group_texts),
        )
        self._rebalances = Rebalances(self._context)
        self.default_assignor = config.group_consumer_assignors[0]
        self.members = ClassicMembers(
            self._context, self._rebalances, lambda: self._in_consumer_groups
        )
        self.commits = Commits(self._context, self._rebalances)
        self.resume()
        services.topics.on_deleted.append(self.forget_topic)
        services.timers.after(self._check_ms, self._expire)

    def resume(self) -> None:
        """Start loading the stored groups; no-op if loading has begun."""
        self.topic.resume()

    # -- consumer and share groups -----------------------------------------------------------

    @cached_property
    def _consumers(self) -> "tuple[ConsumerUpdates, Migration, Regexes]":
        from tidelog.server.groups.consumer_rebalance import ConsumerUpdates
        from tidelog.server.groups.migration import Migration
        from tidelog.server.groups.topic_regexes import Regexes

        updates = ConsumerUpdates(self._context)
        migration = Migration(updates, self._rebalances)
        return updates, migration, Regexes(updates, self._services.work)

    @cached_property
    def _in_consumer_groups(self) -> "ClassicInConsumer":
        from tidelog.server.groups.classic_in_consumer import ClassicInConsumer

        return ClassicInConsumer(*self._consumers)

    @cached_property
    def heartbeats(self) -> "ConsumerHeartbeats":
        """Rules of ConsumerGroupHeartbeat."""
        from tidelog.server.groups.consumer_heartbeat import ConsumerHeartbeats

        return ConsumerHeartbeats(*self._consumers)

    @cached_property
    def _sharers(self) -> "ShareUpdates":
        from tidelog.server.groups.share_heartbeat import ShareUpdates

        return ShareUpdates(self._context)

    @cached_property
    def shares(self) -> "ShareHeartbeats":
        """Rules of ShareGroupHeartbeat."""
        from tidelog.server.groups.share_heartbeat import ShareHeartbeats

        return ShareHeartbeats(self._sharers)

    @cached_property
    def share_topics(self) -> "ShareTopics":
        """Changes the initialized topics of share groups, for tools or after a topic's deletion."""
        from tidelog.server.groups.share_heartbeat import ShareTopics

        return ShareTopics(self._sharers)

    # -- loading and unloading ---------------------------------------------------------------

    def replay(self) -> Replay:
        """Create a replay for one partition of the topic."""
        return Replay(self._clock.now_ms)

    def install(self, number: int, loaded: LoadedShard) -> None:
        """Serve the groups of a loaded partition from now on."""
        for line in loaded.skipped:
            LOGGER.warning("%s-%d: skipped a record: %s", OFFSETS_TOPIC, number, line)
        groups = loaded.groups
        self.commits.load_pending(number, loaded.pending)
        self._table.put_all(number, groups)
        self._sweep(self._resume_group, groups.values())
        self._forget_deleted(groups.values())

    def _resume_group(self, group: AnyGroup) -> None:
        if isinstance(group, ConsumerGroup):
            _, migration, _ = self._consumers
            migration.resume(group)
        elif isinstance(group, ShareGroup):
            self.shares.resume(group)
        else:
            self._rebalances.resume(group)

    def unload(self, number: int | None) -> None:
        """Unload the groups of partition `number`, or all groups if `number` is None."""
        self.pending.unload(number)
        for group in self._table.take_out(number):
            if isinstance(group, ConsumerGroup | ShareGroup):
                group.unload()
            else:
                self._rebalances.unload(group, ErrorCode.NOT_COORDINATOR)

    def forget_topic(self, info: TopicInfo) -> None:
        """Remove the offsets of a deleted topic from all groups.

        The removal runs in the background, so a new topic of the same name may exist meanwhile.
        """
        if info.name == OFFSETS_TOPIC:
            self.topic.forget_topic()
            return
        deleted = DeletedTopic(info.name, info.topic_id, self._clock.now_ms())
        self._deleted.append(deleted)
        # Pending offsets are removed first, within this call. A later removal would also remove
        # pending offsets of a new topic of the same name.
        for group_id in self.pending.groups_of(deleted.name):
            if (group := self.find(group_id)) is not None:
                self._forget_topic(deleted, group)
        self._sweep(partial(self._forget_topic, deleted), self.groups())

    def _forget_deleted(self, groups: Iterable[AnyGroup]) -> None:
        """Remove offsets of topics that were deleted before these groups were loaded.

        Groups with pending offsets are handled first, within this call; the other groups are
        handled in the background.
        """
        if not self._deleted:
            return
        deleted: dict[str, list[DeletedTopic]] = {}
        for topic in self._deleted:
            deleted.setdefault(topic.name, []).append(topic)
        forget = partial(self._forget_those, deleted)
        for group in groups:
            if self.pending.has_group(group.group_id):
                forget(group)
        self._sweep(forget, groups)

    def _forget_those(self, deleted: Mapping[str, Sequence[DeletedTopic]], group: AnyGroup) -> None:
        for name in self.commits.topics(group):
            for topic in deleted.get(name, ()):
                self._forget_topic(topic, group)

    def _forget_topic(self, deleted: DeletedTopic, group: AnyGroup) -> None:
        if not isinstance(group, ShareGroup):
            self._forget_offsets(deleted, group)
        elif deleted.topic_id is not None:
            self.share_topics.forget_topic(group, deleted.topic_id)

    def _forget_offsets(self, deleted: DeletedTopic, group: AnyGroup) -> None:
        info = self._topics.find(deleted.name)
        owns = partial(deleted.owns, present=None if info is None else info.topic_id)
        if not self.commits.forget_topic(group, deleted.name, owns):
            again = partial(self._sweep, partial(self._forget_topic, deleted), [group])
            self._timers.after(PENDING_CHECK_MS, again)

    def end_transaction(self, number: int, end: TransactionEnd) -> Reply[ErrorCode]:
        """End a producer's transaction in a partition. On commit, pending offsets take effect."""
        written = self.topic.end_transaction(number, end)
        if is_accepted(written):
            self.commits.end_transaction(number, end)
        return written

    def _expire(self) -> None:
        self._sweep(self.commits.expire, self.groups())
        self._timers.after(self._check_ms, self._expire)

    def _sweep(self, action: Callable[[AnyGroup], None], groups: Iterable[AnyGroup]) -> None:
        """Apply an action to groups in the background, a few milliseconds at a time.

        If a group has been unloaded before its turn, it is skipped.
        """
        groups = tuple(groups)
        self._timers.sweep(
            (each for each in groups if self._table.get(each.group_id) is each), action
        )

    # -- queries -----------------------------------------------------------------------------

    def find(self, group_id: str) -> AnyGroup | None:
        """Return a loaded group; None if no loaded group has this id."""
        return self._table.get(group_id)

    def groups(self) -> Iterable[AnyGroup]:
        """Return all loaded groups."""
        return self._table.all.values()

    def facts(self) -> Iterator[GroupFacts]:
        """Iterate over the state of all loaded groups for metrics."""
        for group in self._table.all.values():
            offsets = [
                (topic, number, committed.offset) for topic, number, committed in group.offsets
            ]
            yield GroupFacts(group.group_id, group.state.value, len(group.members), offsets)
