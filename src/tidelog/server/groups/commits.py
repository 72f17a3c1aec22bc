"""OffsetCommit, OffsetFetch, OffsetDelete, and the end of offsets and groups.

Source: Kafka 4.3's offset manager; KIP-211 (expiry), KIP-496 (deleting offsets).
"""

from collections.abc import Callable, Iterable, Sequence

from tidelog.config import BrokerConfig
from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.groups.commit_checks import Commit, commit_errors
from tidelog.server.groups.consumer.group import ConsumerGroup
from tidelog.server.groups.conversion import end_records
from tidelog.server.groups.group import CONSUMER_PROTOCOL, ClassicGroup, GroupState
from tidelog.server.groups.offsets import NO_EXPIRY, CommittedOffset
from tidelog.server.groups.pending import PendingOffsets
from tidelog.server.groups.rebalance import Rebalances
from tidelog.server.groups.records import offset_record, tombstone
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.results import CommitAsked
from tidelog.server.groups.share.changes import share_end_records
from tidelog.server.groups.share.group import ShareGroup
from tidelog.server.groups.table import AnyGroup, GroupTable, Journal
from tidelog.types import MINUTE_MS


class Commits:
    """What groups have committed. Belongs to the loop's thread."""

    def __init__(
        self,
        table: GroupTable,
        rebalances: Rebalances,
        journal: Journal,
        clock: Clock,
        config: BrokerConfig,
        pending: PendingOffsets | None = None,
    ) -> None:
        self._pending = PendingOffsets() if pending is None else pending
        self._table = table
        self._rebalances = rebalances
        self._journal = journal
        self._clock = clock
        self._config = config

    # -- committing --------------------------------------------------------------------------

    def commit(self, asked: CommitAsked, commits: Sequence[Commit]) -> Reply[list[ErrorCode]]:
        """Keep offsets; one code for each, in their order."""
        group = self._table.get(asked.group_id)
        codes = commit_errors(group, asked, commits, self._config)
        if isinstance(group, ClassicGroup) and ErrorCode.NONE in codes:
            self._note_sign(group, asked)
        kept = [
            commit for commit, code in zip(commits, codes, strict=True) if code is ErrorCode.NONE
        ]
        return self._keep(asked, kept, codes)

    def _note_sign(self, group: ClassicGroup, asked: CommitAsked) -> None:
        """A commit says that the member is there."""
        member = group.members.get(asked.member_id)
        if member is not None and group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalances.await_sign(group, member)

    def _keep(
        self, asked: CommitAsked, commits: Sequence[Commit], codes: list[ErrorCode]
    ) -> Reply[list[ErrorCode]]:
        if not commits:
            return Reply.of(codes)
        now_ms = self._clock.now_ms()
        expire_ms = NO_EXPIRY if asked.retention_ms < 0 else now_ms + asked.retention_ms
        kept = [(commit, committed(commit, now_ms, expire_ms)) for commit in commits]
        written = self._journal.append(
            asked.group_id,
            [offset_record(asked.group_id, c.topic, c.partition, found) for c, found in kept],
        )
        if not written.is_done or written.value is ErrorCode.NONE:
            group = self._table.get_or_create(asked.group_id)
            for commit, found in kept:
                group.offsets.put(commit.topic, commit.partition, found)
                self._pending.supersede(asked.group_id, commit.topic, commit.partition)
        return with_outcome(written, codes)

    # -- deleting ----------------------------------------------------------------------------

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode | Reply[list[ErrorCode]]:
        """Forget offsets: one code for each, or one for the request."""
        group = self._table.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None or isinstance(group, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.NON_EMPTY_GROUP
        codes = [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else ErrorCode.NONE
            for topic, _ in partitions
        ]
        gone = [
            place
            for place, code in zip(partitions, codes, strict=True)
            if code is ErrorCode.NONE
            and (
                group.offsets.get(*place) is not None or self._pending.is_pending(group_id, *place)
            )
        ]
        return with_outcome(self._forget(group, gone), codes)

    def _forget(
        self, group: AnyGroup, places: Sequence[tuple[str, int]], *, whole: bool = False
    ) -> Reply[ErrorCode]:
        """Forget offsets and, where `whole`, the group with them."""
        records = [offset_record(group.group_id, *place, None) for place in places]
        if whole:
            if isinstance(group, ConsumerGroup):
                records += end_records(group)
            elif isinstance(group, ShareGroup):
                records += share_end_records(group)
            else:
                records.append(tombstone(group.group_id))
        if not records:
            return Reply.of(ErrorCode.NONE)
        written = self._journal.append(group.group_id, records)
        if not written.is_done or written.value is ErrorCode.NONE:
            for place in places:
                group.offsets.remove(*place)
                self._pending.forget(group.group_id, *place)
            if whole:
                self._drop(group)
        return written

    def _drop(self, group: AnyGroup) -> None:
        self._table.remove(group.group_id)
        if isinstance(group, ConsumerGroup | ShareGroup):
            group.unload()
        else:
            self._rebalances.unload(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def delete_group(self, group_id: str) -> Reply[ErrorCode]:
        """Delete a group that has no members, with its offsets."""
        group = self._table.get(group_id)
        if group is None:
            return Reply.of(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            return Reply.of(ErrorCode.NON_EMPTY_GROUP)
        return self._forget(group, self._places(group), whole=True)

    def _places(self, group: AnyGroup) -> list[tuple[str, int]]:
        """What a group has committed, also in transactions that are open."""
        places = dict.fromkeys((topic, partition) for topic, partition, _ in group.offsets)
        return list(places | dict.fromkeys(self._pending.places(group.group_id)))

    def topics(self, group: AnyGroup) -> Iterable[str]:
        """What a group has committed for, also in transactions that are open, or shares."""
        if isinstance(group, ShareGroup):
            return {topic.name for topic in group.shared.values()}
        pending = self._pending.places(group.group_id)
        return dict.fromkeys([*group.offsets.topics(), *(topic for topic, _ in pending)])

    def forget_topic(
        self, group: AnyGroup, topic: str, had: Callable[[CommittedOffset], bool]
    ) -> bool:
        """A topic was deleted: its offsets are not kept.

        A record that forgets a partition takes along what is pending for it. Where that is a new
        topic's its transaction has to end first: it may bring what is kept instead.

        Args:
            group: Whose offsets.
            topic: The topic's name.
            had: Whether an offset was committed for it, not for a new one of its name.

        Returns:
            Whether nothing of it is left; else this is to be tried again.
        """
        left = [
            place
            for place in self._places(group)
            if place[0] == topic and self._is_left(group, place, had)
        ]
        ready = [place for place in left if all(map(had, self._pending_at(group, place)))]
        self._forget(group, ready)
        return len(ready) == len(left)

    def _is_left(
        self, group: AnyGroup, place: tuple[str, int], had: Callable[[CommittedOffset], bool]
    ) -> bool:
        """Whether something of a deleted topic counts, or may yet: nothing newer stands there."""
        found = group.offsets.get(*place)
        return any(map(had, self._pending_at(group, place))) if found is None else had(found)

    def _pending_at(self, group: AnyGroup, place: tuple[str, int]) -> Sequence[CommittedOffset]:
        return self._pending.offsets(group.group_id, *place)

    # -- expiry ------------------------------------------------------------------------------

    def expire(self, group: AnyGroup) -> None:
        """Forget what is past its time, and the group where it has nothing left.

        A share group stays: what it has read is kept elsewhere.
        """
        if isinstance(group, ShareGroup):
            return
        gone = self.expired(group)
        is_pending = self._pending.has_group(group.group_id)
        whole = group.is_empty and len(gone) == len(group.offsets) and not is_pending
        self._forget(group, gone, whole=whole)

    def expired(self, group: ClassicGroup | ConsumerGroup) -> list[tuple[str, int]]:
        """Partitions whose offsets are past their time.

        A group without members counts from when it became empty, one that never had any from each
        commit; of a stable group of consumers what nobody reads any more counts from its commit,
        and of one whose coordinator assigns at any time.
        """
        if isinstance(group, ConsumerGroup):
            return self._past_time(group, -1)
        is_simple = group.protocol_type is None
        knows_topics = group.subscribed is not None and group.protocol_type == CONSUMER_PROTOCOL
        if not (is_simple or group.is_empty or (knows_topics and group.is_in(GroupState.STABLE))):
            return []
        return self._past_time(group, group.state_ms if group.is_empty and not is_simple else -1)

    def _past_time(self, group: AnyGroup, since_ms: int) -> list[tuple[str, int]]:
        """What nobody reads and is past its time since then, or since its commit where -1."""
        now_ms = self._clock.now_ms()
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        return [
            (topic, partition)
            for topic, partition, offset in group.offsets
            if not group.is_subscribed(topic)
            and not self._pending.is_pending(group.group_id, topic, partition)
            and offset.is_expired(
                now_ms, offset.commit_ms if since_ms < 0 else since_ms, retention_ms
            )
        ]


def committed(commit: Commit, now_ms: int, expire_ms: int) -> CommittedOffset:
    """What is kept of a commit."""
    return CommittedOffset(
        commit.offset,
        commit.leader_epoch,
        commit.metadata or "",
        now_ms,
        expire_ms,
        commit.topic_id,
    )


def with_outcome(written: Reply[ErrorCode], codes: list[ErrorCode]) -> Reply[list[ErrorCode]]:
    """Codes of single partitions once the records are safe; the failure for all that had none."""
    answer: Reply[list[ErrorCode]] = Reply()

    def tell(outcome: ErrorCode) -> None:
        answer.complete([code if code is not ErrorCode.NONE else outcome for code in codes])

    written.then(tell)
    return answer
