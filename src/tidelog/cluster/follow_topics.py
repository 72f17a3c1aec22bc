"""Topics of a standby as its leader has them: names, ids, partitions, settings.

A topic whose id differs from the leader's is another topic: its directory is refused before
anything is changed. Settings of the leader that this release does not know are left out and named.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from tidelog.cluster.follow_leader import LeaderSettings, LeaderTopic
from tidelog.config import TopicConfig
from tidelog.errors import ConfigError, CorruptMessage, InconsistentTopicId, UnknownTopic
from tidelog.protocol.wire import NO_UUID
from tidelog.storage.files import check_topic_name, encode_topic_id
from tidelog.storage.log_dir import LogDir
from tidelog.storage.topic_info import TopicInfo
from tidelog.storage.topics import unknown_topic
from tidelog.storage.topics_file import PARTITION_COUNT_LIMIT
from tidelog.types import TopicPartition

_WILD: Final = frozenset("*?[")
# Kafka's own topics are followed where they are asked for.
_INTERNAL: Final = "__"
# Without these, records that the leader keeps for ever could be deleted here by defaults.
_DELETING: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
# Settings that the leader can't know.
_OURS: Final = "tidelog."


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """Which topics are followed, and what the standby sets on its own.

    Attributes:
        patterns: Names or patterns (`*`, `?`); all but internal topics where empty.
        overrides: Settings that win over the leader's, in every topic.
    """

    patterns: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)


def chosen(
    topics: Mapping[str, LeaderTopic], choice: TopicChoice, *, strict: bool
) -> dict[str, LeaderTopic]:
    """The topics to follow, by name.

    Raises:
        UnknownTopic: A name or pattern that fits none, if `strict`.
        CorruptMessage: The leader names a topic or partition that can't be.
    """
    if not choice.patterns:
        found = {name: topic for name, topic in topics.items() if not topic.is_internal}
    else:
        found = {}
        for pattern in choice.patterns:
            fitting = {name: topic for name, topic in topics.items() if _fits(name, pattern)}
            if strict and not fitting:
                raise _no_topic(pattern, topics)
            found |= fitting
    for topic in found.values():
        _ensure_possible(topic)
    return dict(sorted(found.items()))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if _WILD & set(pattern) else name == pattern


def _no_topic(pattern: str, topics: Iterable[str]) -> UnknownTopic:
    if _WILD & set(pattern):
        return UnknownTopic(f"the leader has no topic that fits {pattern!r}")
    return unknown_topic(pattern, topics)


def _ensure_possible(topic: LeaderTopic) -> None:
    """A leader's word is not taken for what becomes names of directories."""
    check_topic_name(topic.name)
    count = len(topic.partitions)
    if sorted(topic.partitions) != list(range(count)) or not 1 <= count <= PARTITION_COUNT_LIMIT:
        raise CorruptMessage(
            f"topic {topic.name}: partitions {sorted(topic.partitions)[:5]}..., they must count"
            f" from 0 without a hole, at most {PARTITION_COUNT_LIMIT}"
        )
    if topic.topic_id == NO_UUID:
        raise CorruptMessage(f"topic {topic.name} has no id; the leader is too old for a standby")


def says_what_is_deleted(settings: LeaderSettings | None) -> bool:
    """Whether the leader has named the settings by which records are deleted."""
    return settings is not None and settings.names >= _DELETING


def left_out(
    directory: LogDir, topics: Mapping[str, LeaderTopic], choice: TopicChoice
) -> list[TopicPartition]:
    """Partitions that are here, and would be followed, and that the leader does not name."""
    found = []
    for name, info in directory.topics().items():
        if choice.patterns:
            is_wanted = any(_fits(name, pattern) for pattern in choice.patterns)
        else:
            is_wanted = not name.startswith(_INTERNAL)
        if is_wanted:
            known = topics[name].partitions if name in topics else {}
            found += [TopicPartition(name, n) for n in info.present if n not in known]
    return found


def ensure_same_ids(directory: LogDir, topics: Mapping[str, LeaderTopic]) -> None:
    """Compare the ids of the topics that both have.

    Raises:
        InconsistentTopicId: One differs; nothing was changed.
    """
    here = directory.topics()
    for name, topic in topics.items():
        known = here[name].topic_id if name in here else None
        if known is not None and known != topic.topic_id:
            raise InconsistentTopicId(
                f"{directory.path}: topic {name} has id {encode_topic_id(known)} here and"
                f" {encode_topic_id(topic.topic_id)} at the leader: it was created anew there, so"
                " this is not its copy; follow into another directory, or delete the topic here"
            )


def sync_topic(
    directory: LogDir, topic: LeaderTopic, settings: LeaderSettings, choice: TopicChoice
) -> list[str]:
    """Make a topic, its partitions and settings as the leader has them.

    Settings of which the leader says nothing stay as they are.

    Returns:
        One line for each setting that was left out.

    Raises:
        InvalidTopic, ConfigError, StorageFailure: It can't be.
    """
    wanted, notes = _known_settings(topic.name, settings.values)
    wanted |= choice.overrides
    here = directory.topics().get(topic.name)
    if here is None:
        directory.create_topic(
            topic.name, partitions=len(topic.partitions), config=wanted, topic_id=topic.topic_id
        )
        return notes
    if len(topic.partitions) > here.partitions:
        directory.add_partitions(topic.name, len(topic.partitions))
    _sync_settings(directory, here, wanted, settings)
    return notes


def _known_settings(name: str, settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    known, notes = {}, []
    for key, value in sorted(settings.items()):
        try:
            TopicConfig.parse({key: value})
        except ConfigError as error:
            notes.append(f"topic {name}: setting {key}={value} was not copied: {error.allowed}")
        else:
            known[key] = value
    return known, notes


def _sync_settings(
    directory: LogDir, here: TopicInfo, wanted: Mapping[str, str], settings: LeaderSettings
) -> None:
    """Set what differs; what is ours alone, and what the leader does not name, stays."""
    changes: dict[str, str | None] = {
        key: value for key, value in wanted.items() if here.given.get(key) != value
    }
    for key in here.given:
        is_default = key in settings.names and key not in settings.values
        if is_default and key not in wanted and not key.startswith(_OURS):
            changes[key] = None
    if changes or here.foreign:
        directory.alter_config(here.name, changes)
