"""Rules of OffsetCommit, OffsetDelete, TxnOffsetCommit and DeleteGroups; expiry of offsets.

Source: Kafka 4.3's OffsetMetadataManager and CoordinatorRuntime; KIP-98, KIP-211 (expiry), KIP-447,
KIP-496 (deleted offsets), KIP-848, KIP-1251 (commits with an older epoch).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.error_codes import ErrorCode
from tidelog.protocol.wire import NO_UUID
from tidelog.server.coordinator.state_topic import is_accepted
from tidelog.server.groups.classic_group import ClassicGroup, GroupState
from tidelog.server.groups.classic_rebalance import Rebalances
from tidelog.server.groups.committed_offsets import (
    NO_EXPIRY,
    CommittedOffset,
    OffsetChange,
)
from tidelog.server.groups.offsets_topic import GroupContext
from tidelog.server.groups.records import offset_record, tombstone
from tidelog.server.groups.replay import AnyGroup, LoadedPending
from tidelog.server.groups.requests import CommitRequest
from tidelog.server.partitions.partition import Guard, TransactionEnd
from tidelog.server.runtime.reply import Reply
from tidelog.types import INT64_MAX, MINUTE_MS, NO_LEADER_EPOCH


class Commit(NamedTuple):
    """Offset of one partition in an OffsetCommit or TxnOffsetCommit request."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    topic_id: UUID = NO_UUID


def commit_errors(
    group: AnyGroup | None, request: CommitRequest, commits: Sequence[Commit], config: BrokerConfig
) -> list[ErrorCode]:
    """Validate commits; return one error code for each commit, `NONE` if it is accepted."""
    if group is None:
        codes = [_missing_group_error(request)] * len(commits)
    else:
        codes = [
            group.commit_error(request, commit.topic_id, commit.partition) for commit in commits
        ]
    return [
        _size_error(commit, config) if code is ErrorCode.NONE else code
        for commit, code in zip(commits, codes, strict=True)
    ]


def _missing_group_error(request: CommitRequest) -> ErrorCode:
    """Return the error code of a commit to a missing group; `NONE` if no generation is given."""
    if request.generation < 0:
        return ErrorCode.NONE
    return ErrorCode.GROUP_ID_NOT_FOUND if request.is_late_version else ErrorCode.ILLEGAL_GENERATION


def _size_error(commit: Commit, config: BrokerConfig) -> ErrorCode:
    """Return OFFSET_METADATA_TOO_LARGE for long metadata, otherwise `NONE`."""
    if len(commit.metadata or "") > config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


class Commits:
    """Commits, deletion and expiry of groups' offsets. Used only in the event loop's thread."""

    def __init__(self, context: GroupContext, rebalances: Rebalances) -> None:
        self._context = context
        self._pending = context.pending
        self._table = context.table
        self._topic = context.topic
        self._clock = context.clock
        self._config = context.config
        self._rebalances = rebalances

    # -- committing --------------------------------------------------------------------------

    def commit(self, request: CommitRequest, commits: Sequence[Commit]) -> Reply[list[ErrorCode]]:
        """Commit offsets; return one error code for each of `commits`, in order."""
        group = self._table.get(request.group_id)
        codes = commit_errors(group, request, commits, self._config)
        if isinstance(group, ClassicGroup) and ErrorCode.NONE in codes:
            self._note_sign(group, request)
        accepted = [
            commit for commit, code in zip(commits, codes, strict=True) if code is ErrorCode.NONE
        ]
        return self._keep(request, accepted, codes)

    def _note_sign(self, group: ClassicGroup, request: CommitRequest) -> None:
        """Restart the member's session, because a commit shows that the member is alive."""
        member = group.members.get(request.member_id)
        if member is not None and group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalances.restart_session(group, member)

    def _keep(
        self, request: CommitRequest, commits: Sequence[Commit], codes: list[ErrorCode]
    ) -> Reply[list[ErrorCode]]:
        if not commits:
            return Reply.of(codes)
        now_ms = self._clock.now_ms()
        expire_ms = NO_EXPIRY
        if request.retention_ms >= 0:
            expire_ms = min(now_ms + request.retention_ms, INT64_MAX)
        offsets = [(commit, committed(commit, now_ms, expire_ms)) for commit in commits]
        written = self._topic.append(
            request.group_id,
            [
                offset_record(request.group_id, c.topic, c.partition, offset)
                for c, offset in offsets
            ],
        )
        if is_accepted(written):
            group = self._context.get_or_create(request.group_id)
            for commit, offset in offsets:
                group.offsets.put(commit.topic, commit.partition, offset)
                self._pending.supersede(request.group_id, commit.topic, commit.partition)
        return with_outcome(written, codes)

    # -- committing in a transaction ---------------------------------------------------------

    def commit_in_transaction(
        self,
        request: CommitRequest,
        producer: tuple[int, int],
        guard: Guard | None,
        commits: Sequence[Commit],
    ) -> Reply[list[ErrorCode]]:
        """Commit offsets in a transaction; return one error code for each of `commits`, in order.

        Args:
            request: Group and member of the request.
            producer: Producer id and epoch.
            guard: Guard taken before the transaction was verified; None if no guard was needed.
            commits: Offsets to commit.
        """
        codes = commit_errors(self._table.get(request.group_id), request, commits, self._config)
        now_ms = self._clock.now_ms()
        accepted = [
            OffsetChange(
                request.group_id,
                commit.topic,
                commit.partition,
                committed(commit, now_ms, NO_EXPIRY),
            )
            for commit, code in zip(commits, codes, strict=True)
            if code is ErrorCode.NONE
        ]
        if not accepted:
            return Reply.of(codes)
        records = [offset_record(*each) for each in accepted]
        written = self._topic.append_pending(request.group_id, records, producer, guard)
        if is_accepted(written):
            self._context.get_or_create(request.group_id)
            self._pending.put(self._topic.number_of(request.group_id), producer[0], accepted)
        return with_outcome(written, codes)

    def load_pending(self, number: int, loaded: Sequence[LoadedPending]) -> None:
        """Add pending offsets of a loaded partition of `__consumer_offsets`, in log order."""
        for each in loaded:
            self._pending.put(number, each.producer_id, [each.offset], is_stale=each.is_stale)

    def end_transaction(self, number: int, end: TransactionEnd) -> None:
        """End a producer's transaction in a partition. On commit, pending offsets take effect."""
        for each in self._pending.take(number, end.producer_id, commit=end.commit):
            group = self._context.get_or_create(each.group_id)
            group.offsets.put(each.topic, each.partition, each.offset)

    # -- deleting ----------------------------------------------------------------------------

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode | Reply[list[ErrorCode]]:
        """Delete offsets.

        Return one error code for each partition. If the group does not exist or does not allow the
        deletion of offsets, return a single error code.
        """
        group = self._table.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.offset_deletion_error
        if group is None or error is not ErrorCode.NONE:
            return error
        codes = [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else ErrorCode.NONE
            for topic, _ in partitions
        ]
        deleted = [
            topic_partition
            for topic_partition, code in zip(partitions, codes, strict=True)
            if code is ErrorCode.NONE
            and (
                group.offsets.get(*topic_partition) is not None
                or self._pending.is_pending(group_id, *topic_partition)
            )
        ]
        return with_outcome(self._forget(group, deleted), codes)

    def _forget(
        self, group: AnyGroup, partitions: Sequence[tuple[str, int]], *, whole: bool = False
    ) -> Reply[ErrorCode]:
        """Delete offsets and, if `whole`, the group."""
        records = [
            offset_record(group.group_id, *topic_partition, None) for topic_partition in partitions
        ]
        if whole:
            if isinstance(group, ClassicGroup):
                records.append(tombstone(group.group_id))
            else:
                from tidelog.server.groups.modern_records import end_records

                records += end_records(group)
        if not records:
            return Reply.of(ErrorCode.NONE)
        written = self._topic.append(group.group_id, records)
        if is_accepted(written):
            for topic_partition in partitions:
                group.offsets.remove(*topic_partition)
                self._pending.forget(group.group_id, *topic_partition)
            if whole:
                self._drop(group)
        return written

    def _drop(self, group: AnyGroup) -> None:
        self._table.remove(group.group_id)
        if isinstance(group, ClassicGroup):
            self._rebalances.unload(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            group.unload()

    def delete_group(self, group_id: str) -> Reply[ErrorCode]:
        """Delete an empty group with its offsets."""
        group = self._table.get(group_id)
        if group is None:
            return Reply.of(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            return Reply.of(ErrorCode.NON_EMPTY_GROUP)
        return self._forget(group, self._partitions_of(group), whole=True)

    def _partitions_of(self, group: AnyGroup) -> list[tuple[str, int]]:
        """Return the partitions for which a group has committed or pending offsets."""
        partitions = dict.fromkeys((topic, partition) for topic, partition, _ in group.offsets)
        return list(partitions | dict.fromkeys(self._pending.partitions(group.group_id)))

    def topics(self, group: AnyGroup) -> Iterable[str]:
        """Return the topics for which a group has offsets, pending offsets or delivery state."""
        pending = self._pending.partitions(group.group_id)
        return dict.fromkeys([*group.stored_topics(), *(topic for topic, _ in pending)])

    def forget_topic(
        self, group: AnyGroup, topic: str, owns: Callable[[CommittedOffset], bool]
    ) -> bool:
        """Remove the offsets of a deleted topic.

        The record that deletes a partition's offset also removes the partition's pending offsets.
        So while a transaction has a pending offset for a new topic of the same name, the deleted
        topic's offset is kept. After the transaction has ended, the caller tries again. By then the
        transaction's commit may have replaced the deleted topic's offset.

        Args:
            group: Group to remove offsets from.
            topic: Name of the topic.
            owns: Returns whether an offset was committed for the deleted topic, not for a new topic
                of the same name.

        Returns:
            Whether no offset of the topic is left. If the result is False, the caller must call
            this method again later.
        """
        remaining = [
            topic_partition
            for topic_partition in self._partitions_of(group)
            if topic_partition[0] == topic and self._has_offset(group, topic_partition, owns)
        ]
        ready = [
            topic_partition
            for topic_partition in remaining
            if all(map(owns, self._pending_at(group, topic_partition)))
        ]
        self._forget(group, ready)
        return len(ready) == len(remaining)

    def _has_offset(
        self,
        group: AnyGroup,
        topic_partition: tuple[str, int],
        owns: Callable[[CommittedOffset], bool],
    ) -> bool:
        """Whether any offset of the deleted topic is committed or may still be committed."""
        offset = group.offsets.get(*topic_partition)
        return (
            any(map(owns, self._pending_at(group, topic_partition)))
            if offset is None
            else owns(offset)
        )

    def _pending_at(
        self, group: AnyGroup, topic_partition: tuple[str, int]
    ) -> Sequence[CommittedOffset]:
        return self._pending.offsets(group.group_id, *topic_partition)

    # -- expiry ------------------------------------------------------------------------------

    def expire(self, group: AnyGroup) -> None:
        """Delete expired offsets, and the group if nothing is left.

        A share group is kept, because it may have delivery state, which is stored elsewhere.
        """
        if not group.may_expire:
            return
        expired = self._expired(group)
        is_pending = self._pending.has_group(group.group_id)
        whole = group.is_empty and len(expired) == len(group.offsets) and not is_pending
        self._forget(group, expired, whole=whole)

    def _expired(self, group: AnyGroup) -> list[tuple[str, int]]:
        """Return the partitions with an expired offset, no subscriber and no pending offset."""
        since_ms = group.expiry_start_ms
        if since_ms is None:
            return []
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
    """Convert a commit to its stored form."""
    return CommittedOffset(
        commit.offset,
        commit.leader_epoch,
        commit.metadata or "",
        now_ms,
        expire_ms,
        commit.topic_id,
    )


def with_outcome(written: Reply[ErrorCode], codes: list[ErrorCode]) -> Reply[list[ErrorCode]]:
    """Return the codes once the write has ended.

    If the write fails, its error code replaces each `NONE`.
    """
    return written.derive(
        lambda outcome: [outcome if code is ErrorCode.NONE else code for code in codes]
    )
