"""Topics and group offsets of a standby, synchronized with its leader.

If a local topic and the leader's topic of the same name have different ids, they are different
topics, and the sync raises InconsistentTopicId before it changes anything. Leader settings that
this release doesn't know are omitted and reported. Group offsets are requested from every broker,
because a broker returns only the groups that it coordinates.

Source: Kafka's protocol guide, APIs 9, 10 and 16; KIP-709.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Final
from uuid import UUID

from tidelog.amounts import plural
from tidelog.config import TopicConfig
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    ConfigError,
    CorruptMessage,
    InconsistentTopicId,
    UnknownTopic,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages import FIND_COORDINATOR, LIST_GROUPS, OFFSET_FETCH
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest, ListGroupsRequest
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.remote import client as codes
from tidelog.remote.leader import Leader, LeaderSettings, LeaderTopic
from tidelog.storage.directory.broker_files import GroupOffset
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import PARTITION_COUNT_LIMIT, TopicInfo, unknown_topic
from tidelog.storage.files import check_topic_name, encode_topic_id
from tidelog.types import TopicPartition

_WILD: Final = frozenset("*?[")

# Prefix of Kafka's internal topics, which are followed only if requested.
_INTERNAL: Final = "__"

# Settings that the leader must return. Without these settings, retention would use the defaults of
# this directory, and could delete records that the leader keeps forever.
_DELETING: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})

# Prefix of tidelog's own settings, which a leader possibly does not know.
_OURS: Final = "tidelog."


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """Topics to follow, and the standby's own settings.

    Attributes:
        patterns: Names or patterns (`*`, `?`); if empty, all topics except internal ones.
        overrides: Settings that override the leader's settings, in every topic.
    """

    patterns: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)


def chosen(
    topics: Mapping[str, LeaderTopic], choice: TopicChoice, *, strict: bool
) -> dict[str, LeaderTopic]:
    """Return the topics to follow, by name.

    Raises:
        UnknownTopic: `strict` is true, and a name or pattern matches no topic.
        CorruptMessage: A topic of the leader has an invalid name, invalid partition numbers, or no
            id.
    """
    if not choice.patterns:
        selected = {name: topic for name, topic in topics.items() if not topic.is_internal}
    else:
        selected = {}
        for pattern in choice.patterns:
            fitting = {name: topic for name, topic in topics.items() if _fits(name, pattern)}
            if strict and not fitting:
                raise _no_topic(pattern, topics)
            selected |= fitting
    for topic in selected.values():
        _ensure_possible(topic)
    return dict(sorted(selected.items()))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if _WILD & set(pattern) else name == pattern


def _no_topic(pattern: str, topics: Iterable[str]) -> UnknownTopic:
    if _WILD & set(pattern):
        return UnknownTopic(f"no topic of the leader matches {pattern!r}")
    return unknown_topic(pattern, topics)


def _ensure_possible(topic: LeaderTopic) -> None:
    """Ensure that a leader's topic is valid, since its name becomes a directory name."""
    check_topic_name(topic.name)
    count = len(topic.partitions)
    if sorted(topic.partitions) != list(range(count)) or not 1 <= count <= PARTITION_COUNT_LIMIT:
        raise CorruptMessage(
            f"topic {topic.name}: {plural(count, 'partition')}, numbered"
            f" {str(sorted(topic.partitions)[:5])[1:-1]} ...; expected numbers from 0 on without"
            f" gaps, and at most {PARTITION_COUNT_LIMIT} partitions"
        )
    if topic.topic_id == NO_UUID:
        raise CorruptMessage(f"topic {topic.name} has no id; the leader is too old for a standby")


def has_deletion_settings(settings: LeaderSettings | None) -> bool:
    """Return whether the leader has returned all settings that control deletion of records."""
    return settings is not None and settings.names >= _DELETING


def left_out(
    directory: LogDir, topics: Mapping[str, LeaderTopic], choice: TopicChoice
) -> list[TopicPartition]:
    """Return the local partitions that match the choice and that the leader doesn't list."""
    names = []
    for name, info in directory.topics().items():
        if choice.patterns:
            is_chosen = any(_fits(name, pattern) for pattern in choice.patterns)
        else:
            is_chosen = not name.startswith(_INTERNAL)
        if is_chosen:
            existing = topics[name].partitions if name in topics else {}
            names += [TopicPartition(name, n) for n in info.present if n not in existing]
    return names


def ensure_same_ids(directory: LogDir, topics: Mapping[str, LeaderTopic]) -> None:
    """Check that each local topic has the same id as the leader's topic of that name.

    Raises:
        InconsistentTopicId: The ids of a topic differ; nothing was changed.
    """
    here = directory.topics()
    for name, topic in topics.items():
        own_id = here[name].topic_id if name in here else None
        if own_id is not None and own_id != topic.topic_id:
            raise InconsistentTopicId(
                f"{directory.path}: topic {name} has id {encode_topic_id(own_id)} in this directory"
                f" and id {encode_topic_id(topic.topic_id)} at the leader: the topic was recreated"
                " at the leader; follow into another directory, or delete the topic in this"
                " directory"
            )


def sync_topic(
    directory: LogDir, topic: LeaderTopic, settings: LeaderSettings, choice: TopicChoice
) -> list[str]:
    """Sync a topic, its partitions and settings with the leader.

    Settings that the leader does not return stay as they are.

    Returns:
        One line for each setting of the leader that this release doesn't know.

    Raises:
        InvalidTopic, ConfigError, StorageFailure: The topic can't be created or changed.
    """
    own_settings, notes = _known_settings(topic.name, settings.values)
    own_settings |= choice.overrides
    here = directory.topics().get(topic.name)
    if here is None:
        directory.create_topic(
            topic.name,
            partitions=len(topic.partitions),
            config=own_settings,
            topic_id=topic.topic_id,
        )
        return notes
    if len(topic.partitions) > here.partitions:
        directory.add_partitions(topic.name, len(topic.partitions))
    _sync_settings(directory, here, own_settings, settings)
    return notes


def _known_settings(name: str, settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    own_settings, notes = {}, []
    for key, value in sorted(settings.items()):
        try:
            TopicConfig.parse({key: value})
        except ConfigError as error:
            notes.append(f"topic {name}: setting {key}={value} was not copied: {error.allowed}")
        else:
            own_settings[key] = value
    return own_settings, notes


def _sync_settings(
    directory: LogDir, here: TopicInfo, own_settings: Mapping[str, str], settings: LeaderSettings
) -> None:
    """Change the settings that differ from the leader's settings.

    If a setting has its default at the leader, the local setting is reset, except for settings of
    tidelog and settings that the standby overrides. Settings that the leader does not return stay
    unchanged.
    """
    changes: dict[str, str | None] = {
        key: value for key, value in own_settings.items() if here.given.get(key) != value
    }
    for key in here.given:
        is_default = key in settings.names and key not in settings.values
        if is_default and key not in own_settings and not key.startswith(_OURS):
            changes[key] = None
    if changes or here.foreign:
        directory.alter_config(here.name, changes)


# Protocol types of groups whose offsets are copied: consumers, and groups without members that only
# have committed offsets. Share groups store their offsets elsewhere.
_PROTOCOL: Final = ("consumer", "")

_MANY_GROUPS: Final = 8

# Codes of transient errors of a coordinator that is loading, is not available yet, or has moved.
NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def group_offsets(leader: Leader, topics: Mapping[UUID, str]) -> dict[str, list[GroupOffset]]:
    """Fetch the committed offsets of every group in the followed topics.

    Args:
        leader: The cluster.
        topics: Names of the followed topics by id.

    Raises:
        ClusterFailure: A broker can't be reached, or refuses the request.
    """
    offsets: dict[str, list[GroupOffset]] = {}
    for node_id in leader.node_ids:
        for group in _groups_of(leader, node_id):
            commits = _commits(leader, node_id, group, topics)
            if commits:
                offsets[group] = commits
    return offsets


def merge_commits(
    current: Mapping[str, Sequence[GroupOffset]], previous: Mapping[str, Sequence[GroupOffset]]
) -> dict[str, list[GroupOffset]]:
    """Merge the current commits with previous commits that the leader doesn't return any more.

    A missing group does not prove that the group was deleted, because a coordinator that has not
    loaded its groups yet returns no groups.
    """
    merged = {}
    for group in {**previous, **current}:
        commits = {(each.topic, each.partition): each for each in previous.get(group, ())}
        commits |= {(each.topic, each.partition): each for each in current.get(group, ())}
        merged[group] = list(commits.values())
    return merged


def _groups_of(leader: Leader, node_id: int) -> list[str]:
    """Return the groups that a broker coordinates."""
    client = leader.node(node_id)
    answer = client.request(LIST_GROUPS, ListGroupsRequest())
    if answer.error_code:
        raise _refusal(leader, "list groups", answer.error_code)
    return [group.group_id for group in answer.groups if group.protocol_type in _PROTOCOL]


def coordinator_of(leader: Leader, group: str) -> int:
    """Return the id of the broker that coordinates a group.

    Works with all versions of FindCoordinator.

    Raises ClusterFailure if the bootstrap broker can't be reached or refuses the request.
    """
    question = FindCoordinatorRequest(key=group, coordinator_keys=[group])
    answer = leader.bootstrap.request(FIND_COORDINATOR, question)
    if answer.coordinators:
        coordinator = answer.coordinators[0]
        code, node_id = coordinator.error_code, coordinator.node_id
    else:
        code, node_id = answer.error_code, answer.node_id
    if code:
        raise _refusal(leader, f"find the coordinator of {group}", code)
    return node_id


def _commits(
    leader: Leader, node_id: int, group: str, topics: Mapping[UUID, str]
) -> list[GroupOffset]:
    answer, version = _fetch_offsets(leader, node_id, group)
    if _moved(answer, group):  # the group has moved to another broker since it was listed
        answer, version = _fetch_offsets(leader, coordinator_of(leader, group), group)
    if version < _MANY_GROUPS:
        _ensure_right(leader, group, answer.error_code)
        return _old_commits(answer, set(topics.values()))
    for group_answer in answer.groups:
        _ensure_right(leader, group, group_answer.error_code)
    return [
        GroupOffset(
            name, commit.partition_index, commit.committed_offset, epoch, commit.metadata or ""
        )
        for group_answer in answer.groups
        if group_answer.group_id == group
        for topic in group_answer.topics
        if (name := topics.get(topic.topic_id) or _named(topic.name, topics))
        for commit in topic.partitions
        if commit.committed_offset >= 0 and not commit.error_code
        for epoch in [None if commit.committed_leader_epoch < 0 else commit.committed_leader_epoch]
    ]


def _fetch_offsets(leader: Leader, node_id: int, group: str) -> tuple[OffsetFetchResponse, int]:
    client = leader.node(node_id)
    question = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchGroup(group_id=group, topics=None)]
    )
    answer = client.request(OFFSET_FETCH, question, least=2)
    return answer, client.version_of(OFFSET_FETCH, least=2)


def _moved(answer: OffsetFetchResponse, group: str) -> bool:
    codes = {answer.error_code} | {g.error_code for g in answer.groups if g.group_id == group}
    return ErrorCode.NOT_COORDINATOR in codes


def _named(name: str, topics: Mapping[UUID, str]) -> str | None:
    """Return `name` if a followed topic has this name, else None; for responses without ids."""
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
        raise _refusal(leader, f"fetch offsets of group {group}", code)


def _refusal(leader: Leader, operation: str, code: int) -> ClusterFailure:
    return ClusterFailure(leader.address, operation, codes.named(code), error_code=code)
