"""Who may commit and who may see what was committed.

Source: Kafka 4.3's offset manager; KIP-848, KIP-1251 (members that are a little behind).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.error_codes import ErrorCode
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.consumer.group import ConsumerGroup
from tidelog.server.groups.group import ClassicGroup, GroupState
from tidelog.server.groups.results import NO_GENERATION, CommitAsked
from tidelog.server.groups.share.group import ShareGroup
from tidelog.server.groups.table import AnyGroup
from tidelog.types import NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's part of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    topic_id: UUID = NO_UUID


def commit_errors(
    group: AnyGroup | None, asked: CommitAsked, commits: Sequence[Commit], config: BrokerConfig
) -> list[ErrorCode]:
    """Why commits are not taken, each for itself, `NONE` for those that are."""
    if isinstance(group, ConsumerGroup):
        codes = [_consumer_error(group, asked, commit) for commit in commits]
    elif isinstance(group, ShareGroup):
        codes = [ErrorCode.GROUP_ID_NOT_FOUND] * len(commits)
    else:
        codes = [_classic_error(group, asked)] * len(commits)
    return [
        _size_error(commit, config) if code is ErrorCode.NONE else code
        for commit, code in zip(commits, codes, strict=True)
    ]


def _classic_error(group: ClassicGroup | None, asked: CommitAsked) -> ErrorCode:
    """Why a commit is not taken, `NONE` where it is."""
    if group is None:
        if asked.generation < 0:
            return ErrorCode.NONE
        return (
            ErrorCode.GROUP_ID_NOT_FOUND if asked.is_late_version else ErrorCode.ILLEGAL_GENERATION
        )
    if asked.generation < 0 and group.is_empty:
        return ErrorCode.NONE
    code = _committer_error(group, asked)
    if code is ErrorCode.NONE and not asked.is_transactional:
        is_completing = group.is_in(GroupState.COMPLETING_REBALANCE)
        return ErrorCode.REBALANCE_IN_PROGRESS if is_completing else ErrorCode.NONE
    return code


def _size_error(commit: Commit, config: BrokerConfig) -> ErrorCode:
    """Why one partition's commit is not kept, `NONE` where it is."""
    if len(commit.metadata or "") > config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committer_error(group: ClassicGroup, asked: CommitAsked) -> ErrorCode:
    """Why who commits is none of the group's members in this generation."""
    if asked.generation < 0 and not asked.member_id and asked.instance_id is None:
        # Old transactional commits name nobody.
        return ErrorCode.NONE if asked.is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    code = group.member_error(asked.member_id, asked.instance_id)
    if code is ErrorCode.NONE and asked.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return code


def _consumer_error(group: ConsumerGroup, asked: CommitAsked, commit: Commit) -> ErrorCode:
    """Why a commit to a group whose coordinator assigns is not taken, `NONE` where it is.

    A member that is a little behind may commit what it has had since then. Source: KIP-1251.
    """
    names_nobody = (
        asked.generation == NO_GENERATION and not asked.member_id and asked.instance_id is None
    )
    if (asked.generation < 0 and group.is_empty) or (asked.is_transactional and names_nobody):
        return ErrorCode.NONE
    member = group.members.get(asked.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not (asked.is_transactional or member.is_classic or asked.is_late_version):
        return ErrorCode.UNSUPPORTED_VERSION
    since = member.assignment_epoch(commit.topic_id, commit.partition)
    first = member.place.epoch if since is None else min(since, member.place.epoch)
    if first <= asked.generation <= member.place.epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH


def fetch_error(group: AnyGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Why a member may not see what was committed, `NONE` where it may, as who names nobody."""
    if isinstance(group, ClassicGroup) or (member_id is None and epoch < 0):
        return ErrorCode.NONE
    if isinstance(group, ShareGroup):
        return ErrorCode.GROUP_ID_NOT_FOUND
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.place.epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
