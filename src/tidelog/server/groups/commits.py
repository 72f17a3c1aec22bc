"""OffsetCommit, OffsetFetch, OffsetDelete, and the end of offsets and groups.

Source: Kafka 4.3's offset manager; KIP-211 (expiry), KIP-496 (deleting offsets).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.env import Clock
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.codes import Code
from tidelog.server.groups.group import CONSUMER_PROTOCOL, ClassicGroup, GroupState
from tidelog.server.groups.offsets import NO_EPOCH, NO_EXPIRY, CommittedOffset
from tidelog.server.groups.rebalance import GroupTable, Journal, Rebalances
from tidelog.server.groups.records import offset_record, tombstone
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.results import CommitAsked

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's part of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None
    topic_id: UUID = NO_UUID


class Commits:
    """What groups have committed. Belongs to the loop's thread."""

    def __init__(
        self,
        table: GroupTable,
        rebalances: Rebalances,
        journal: Journal,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._table = table
        self._rebalances = rebalances
        self._journal = journal
        self._clock = clock
        self._config = config

    # -- committing --------------------------------------------------------------------------

    def commit(self, asked: CommitAsked, commits: Sequence[Commit]) -> Reply[list[Code]]:
        """Keep offsets; one code for each, in their order."""
        group = self._table.get(asked.group_id)
        code = self._commit_error(group, asked)
        if code is not Code.NONE:
            return Reply.of([code] * len(commits))
        if group is not None:
            self._note_sign(group, asked)
        codes = [self._size_error(commit) for commit in commits]
        kept = [commit for commit, code in zip(commits, codes, strict=True) if code is Code.NONE]
        return self._keep(asked, kept, codes)

    @staticmethod
    def _commit_error(group: ClassicGroup | None, asked: CommitAsked) -> Code:
        """Why a commit is not taken, `NONE` where it is."""
        if group is None:
            if asked.generation < 0:
                return Code.NONE
            return Code.GROUP_ID_NOT_FOUND if asked.is_late_version else Code.ILLEGAL_GENERATION
        if asked.generation < 0 and group.is_empty:
            return Code.NONE
        code = _committer_error(group, asked)
        if code is Code.NONE and not asked.is_transactional:
            is_completing = group.is_in(GroupState.COMPLETING_REBALANCE)
            return Code.REBALANCE_IN_PROGRESS if is_completing else Code.NONE
        return code

    def _note_sign(self, group: ClassicGroup, asked: CommitAsked) -> None:
        """A commit says that the member is there."""
        member = group.members.get(asked.member_id)
        if member is not None and group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalances.await_sign(group, member)

    def _size_error(self, commit: Commit) -> Code:
        if len(commit.metadata or "") > self._config.offset_metadata_max_bytes:
            return Code.OFFSET_METADATA_TOO_LARGE
        return Code.NONE

    def _keep(
        self, asked: CommitAsked, commits: Sequence[Commit], codes: list[Code]
    ) -> Reply[list[Code]]:
        if not commits:
            return Reply.of(codes)
        now_ms = self._clock.now_ms()
        expire_ms = NO_EXPIRY if asked.retention_ms < 0 else now_ms + asked.retention_ms
        kept = [(commit, _committed(commit, now_ms, expire_ms)) for commit in commits]
        written = self._journal.append(
            asked.group_id,
            [offset_record(asked.group_id, c.topic, c.partition, found) for c, found in kept],
        )
        if not written.is_done or written.value is Code.NONE:
            group = self._table.get_or_create(asked.group_id)
            for commit, found in kept:
                group.offsets.put(commit.topic, commit.partition, found)
        return _with_outcome(written, codes)

    # -- deleting ----------------------------------------------------------------------------

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> Code | Reply[list[Code]]:
        """Forget offsets: one code for each, or one for the request."""
        group = self._table.get(group_id)
        if not group_id:
            return Code.INVALID_GROUP_ID
        if group is None:
            return Code.GROUP_ID_NOT_FOUND
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            return Code.NON_EMPTY_GROUP
        codes = [
            Code.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else Code.NONE
            for topic, _ in partitions
        ]
        gone = [
            place
            for place, code in zip(partitions, codes, strict=True)
            if code is Code.NONE and group.offsets.get(*place) is not None
        ]
        return _with_outcome(self._forget(group, gone), codes)

    def _forget(
        self, group: ClassicGroup, places: Sequence[tuple[str, int]], *, whole: bool = False
    ) -> Reply[Code]:
        """Forget offsets and, where `whole`, the group with them."""
        records = [offset_record(group.group_id, *place, None) for place in places]
        if whole:
            records.append(tombstone(group.group_id))
        if not records:
            return Reply.of(Code.NONE)
        written = self._journal.append(group.group_id, records)
        if not written.is_done or written.value is Code.NONE:
            for place in places:
                group.offsets.remove(*place)
            if whole:
                self._drop(group)
        return written

    def _drop(self, group: ClassicGroup) -> None:
        self._table.groups.pop(group.group_id, None)
        self._rebalances.unload(group, Code.COORDINATOR_NOT_AVAILABLE)

    def delete_group(self, group_id: str) -> Reply[Code]:
        """Delete a group that has no members, with its offsets."""
        group = self._table.get(group_id)
        if group is None:
            return Reply.of(Code.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            return Reply.of(Code.NON_EMPTY_GROUP)
        places = [(topic, partition) for topic, partition, _ in group.offsets]
        return self._forget(group, places, whole=True)

    def forget_topic(self, group: ClassicGroup, topic: str) -> None:
        """A topic was deleted: its offsets are not kept."""
        self._forget(group, [(topic, number) for number in group.offsets.of_topic(topic)])

    # -- expiry ------------------------------------------------------------------------------

    def expire(self, group: ClassicGroup) -> None:
        """Forget what is past its time, and the group where it has nothing left."""
        gone = self.expired(group)
        whole = group.is_empty and len(gone) == len(group.offsets)
        self._forget(group, gone, whole=whole)

    def expired(self, group: ClassicGroup) -> list[tuple[str, int]]:
        """Partitions whose offsets are past their time.

        A group without members counts from when it became empty, one that never had any from each
        commit; of a stable group of consumers what nobody reads any more counts from its commit.
        """
        is_simple = group.protocol_type is None
        knows_topics = group.subscribed is not None and group.protocol_type == CONSUMER_PROTOCOL
        if not (is_simple or group.is_empty or (knows_topics and group.is_in(GroupState.STABLE))):
            return []
        now_ms = self._clock.now_ms()
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        since_ms = group.state_ms if group.is_empty and not is_simple else -1
        return [
            (topic, partition)
            for topic, partition, offset in group.offsets
            if not group.is_subscribed(topic)
            and offset.is_expired(
                now_ms, offset.commit_ms if since_ms < 0 else since_ms, retention_ms
            )
        ]


def _committer_error(group: ClassicGroup, asked: CommitAsked) -> Code:
    """Why who commits is none of the group's members in this generation."""
    if asked.generation < 0 and not asked.member_id and asked.instance_id is None:
        # Old transactional commits name nobody.
        return Code.NONE if asked.is_transactional else Code.UNKNOWN_MEMBER_ID
    code = group.member_error(asked.member_id, asked.instance_id)
    if code is Code.NONE and asked.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    return code


def _committed(commit: Commit, now_ms: int, expire_ms: int) -> CommittedOffset:
    return CommittedOffset(
        commit.offset,
        commit.leader_epoch,
        commit.metadata or "",
        now_ms,
        expire_ms,
        commit.topic_id,
    )


def _with_outcome(written: Reply[Code], codes: list[Code]) -> Reply[list[Code]]:
    """Codes of single partitions once the records are safe; the failure for all that had none."""
    answer = Reply[list[Code]]()

    def tell(outcome: Code) -> None:
        answer.complete([code if code is not Code.NONE else outcome for code in codes])

    written.then(tell)
    return answer
