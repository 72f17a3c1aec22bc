"""Group offsets from the leading cluster: every broker's groups, and what each committed.

Source: Kafka's protocol guide, APIs 16, 10 and 9; KIP-709.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tidelog.cluster import codes
from tidelog.cluster.follow_leader import Leader
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure
from tidelog.protocol.messages import FIND_COORDINATOR, LIST_GROUPS, OFFSET_FETCH
from tidelog.protocol.messages.groups import (
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.storage.group_offsets import GroupOffset

# Only these belong to a group's offsets; share groups keep theirs elsewhere.
_PROTOCOL: Final = ("consumer", "")
_MANY_GROUPS: Final = 8
# A coordinator that loads, is not there yet, or has moved: soon it answers.
NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def group_offsets(leader: Leader, topics: Mapping[UUID, str]) -> dict[str, list[GroupOffset]]:
    """What every group committed for the topics that are followed.

    Args:
        leader: The cluster.
        topics: Their names by id.

    Raises:
        ClusterFailure: A broker can't be reached or refuses.
    """
    found: dict[str, list[GroupOffset]] = {}
    for node_id in leader.node_ids:
        for group in _groups_of(leader, node_id):
            commits = _commits(leader, node_id, group, topics)
            if commits:
                found[group] = commits
    return found


def with_known(
    found: Mapping[str, Sequence[GroupOffset]], known: Mapping[str, Sequence[GroupOffset]]
) -> dict[str, list[GroupOffset]]:
    """What the leader said now, and of the commits that it left out what it said before.

    A coordinator that has lost or not yet loaded its groups names none of them: that proves no
    deletion.
    """
    merged = {}
    for group in {**known, **found}:
        commits = {(each.topic, each.partition): each for each in known.get(group, ())}
        commits |= {(each.topic, each.partition): each for each in found.get(group, ())}
        merged[group] = list(commits.values())
    return merged


def _groups_of(leader: Leader, node_id: int) -> list[str]:
    """The groups that a broker coordinates."""
    client = leader.node(node_id)
    answer = client.ask(LIST_GROUPS, ListGroupsRequest())
    if answer.error_code:
        raise _refusal(leader, "list groups", answer.error_code)
    return [group.group_id for group in answer.groups if group.protocol_type in _PROTOCOL]


def coordinator_of(leader: Leader, group: str) -> int:
    """The broker that coordinates a group, in any version of the API; raises ClusterFailure."""
    question = FindCoordinatorRequest(key=group, coordinator_keys=[group])
    answer = leader.bootstrap.ask(FIND_COORDINATOR, question)
    if answer.coordinators:
        found = answer.coordinators[0]
        code, node_id = found.error_code, found.node_id
    else:
        code, node_id = answer.error_code, answer.node_id
    if code:
        raise _refusal(leader, f"find the coordinator of {group}", code)
    return node_id


def _commits(
    leader: Leader, node_id: int, group: str, topics: Mapping[UUID, str]
) -> list[GroupOffset]:
    answer, version = _ask(leader, node_id, group)
    if _moved(answer, group):  # the group has moved to another broker since it was listed
        answer, version = _ask(leader, coordinator_of(leader, group), group)
    if version < _MANY_GROUPS:
        _ensure_right(leader, group, answer.error_code)
        return _old_commits(answer, set(topics.values()))
    for found in answer.groups:
        _ensure_right(leader, group, found.error_code)
    return [
        GroupOffset(
            name, commit.partition_index, commit.committed_offset, epoch, commit.metadata or ""
        )
        for found in answer.groups
        if found.group_id == group
        for topic in found.topics
        if (name := topics.get(topic.topic_id) or _named(topic.name, topics))
        for commit in topic.partitions
        if commit.committed_offset >= 0 and not commit.error_code
        for epoch in [None if commit.committed_leader_epoch < 0 else commit.committed_leader_epoch]
    ]


def _ask(leader: Leader, node_id: int, group: str) -> tuple[OffsetFetchResponse, int]:
    client = leader.node(node_id)
    question = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchGroup(group_id=group, topics=None)]
    )
    answer = client.ask(OFFSET_FETCH, question, least=2)
    return answer, client.version_of(OFFSET_FETCH, least=2)


def _moved(answer: OffsetFetchResponse, group: str) -> bool:
    not_coordinator = 16
    codes = {answer.error_code} | {g.error_code for g in answer.groups if g.group_id == group}
    return not_coordinator in codes


def _named(name: str, topics: Mapping[UUID, str]) -> str | None:
    """The topic's name in versions that give names, if it is followed."""
    return name if name in topics.values() else None


def _old_commits(answer: OffsetFetchResponse, names: set[str]) -> list[GroupOffset]:
    return [
        GroupOffset(
            topic.name,
            commit.partition_index,
            commit.committed_offset,
            epoch,
            commit.metadata or "",
        )
        for topic in answer.topics
        if topic.name in names
        for commit in topic.partitions
        if commit.committed_offset >= 0 and not commit.error_code
        for epoch in [None if commit.committed_leader_epoch < 0 else commit.committed_leader_epoch]
    ]


def _ensure_right(leader: Leader, group: str, code: int) -> None:
    if code:
        raise _refusal(leader, f"ask for offsets of group {group}", code)


def _refusal(leader: Leader, operation: str, code: int) -> ClusterFailure:
    return ClusterFailure(leader.place, operation, codes.named(code), error_code=code)


__all__ = ["NOT_READY", "NO_UUID", "coordinator_of", "group_offsets"]
