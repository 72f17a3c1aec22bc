"""Lists, creates, changes and deletes topics of a cluster, through the admin client."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import UUID

from tidelog.config import ConfigNote, RetentionClock, TopicConfig, key_names, plain_names
from tidelog.display import TopicDisplay
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    ConfigError,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    NotAuthorized,
    PolicyViolation,
    TidelogError,
    TopicExists,
    UnknownTopic,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.remote import client as codes
from tidelog.storage.files import decode_topic_id
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin._config import ConfigEntry

    from tidelog.remote.cluster import Cluster


# Maximum number of topics in one request, which bounds the size of the response.
_AT_ONCE: Final = 500

# In a request, this number of replicas means the broker's default. Source: KIP-464.
_BROKERS_DEFAULT: Final = -1

# Error message of a broker for an unknown setting. Source: Kafka 4.3's LogConfig.validateNames.
_UNKNOWN_SETTING: Final = re.compile(r"Unknown topic config name: (\S+)")
_PAUSE_S: Final = 0.02

_REFUSED: Final[dict[int, type[TidelogError]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    17: InvalidTopic,
    36: TopicExists,
    37: InvalidPartitions,
    42: InvalidRequest,
    44: PolicyViolation,
}

_NO_LEADER_YET: Final = codes.LEADER_CHANGES | {codes.NO_LEADERS}

_NOT_AUTHORIZED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)

# Assumed value on brokers that don't have the setting `tidelog.retention.clock`, such as Kafka's
# brokers: they count the retention time from the record's timestamp.
_BROKER_CLOCK: Final = {"tidelog.retention.clock": RetentionClock.RECORD.value}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoteTopic(TopicDisplay):
    """One topic of a cluster.

    Attributes:
        name: Name of the topic.
        topic_id: Id of the topic, None if the cluster has no ids.
        partitions: Number of partitions.
        given: Settings of the topic itself, under Kafka's names.
        settings: All settings that apply to the topic, sorted, as the brokers report them, without
            secrets. Empty if the user may not read the topic's settings.
    """

    # Whether another program than tidelog wrote the topic to a directory, so that its settings are
    # unknown. False for topics of a cluster.
    foreign: ClassVar[bool] = False

    name: str
    topic_id: UUID | None
    partitions: int
    given: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> TopicConfig | None:
        """Parsed values of the settings that tidelog knows.

        Returns None if a value is invalid, if two values conflict, or if the user may not read the
        settings.
        """
        if not self.settings:
            return None
        try:
            return TopicConfig.parse({}, broker=_BROKER_CLOCK | dict(self.settings))[0]
        except ConfigError:
            return None


def describe(
    client: "Cluster", counts: Mapping[str, int], *, skips_denied: bool = False
) -> dict[str, RemoteTopic]:
    """Return the topics by name, sorted.

    Args:
        client: The cluster.
        counts: Number of partitions by topic.
        skips_denied: Whether the settings of a topic are empty if the user may not read them. If
            false, such a topic causes an error.

    Raises:
        ClusterFailure: A broker can't be reached or refuses, or a topic was deleted during the
            call.
    """
    topics: dict[str, RemoteTopic] = {}
    for names in _groups(sorted(counts)):
        ids = client.topic_ids(names)
        configs = client.topic_configs(names, skips_denied=skips_denied)
        for name in names:
            entries, topic_id = configs.get(name, {}), ids[name]
            topics[name] = RemoteTopic(
                name=name,
                topic_id=None if topic_id is None else decode_topic_id(topic_id),
                partitions=counts[name],
                given={k: e.value for k, e in entries.items() if _is_own(e) and e.value},
                settings={k: e.value for k, e in sorted(entries.items()) if e.value is not None},
            )
    return topics


def _groups(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), _AT_ONCE):
        yield names[at : at + _AT_ONCE]


def _is_own(entry: "ConfigEntry") -> bool:
    from confluent_kafka.admin import ConfigSource

    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


# -- changes -------------------------------------------------------------------------------------


def create(client: "Cluster", name: str, *, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic with the brokers' default number of replicas, and wait until it is usable.

    Raises:
        InvalidTopic, TopicExists, InvalidPartitions, InvalidRequest, ConfigError, PolicyViolation:
            The request is refused because of an argument. Nothing was changed.
        NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
    """
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(
        name,
        num_partitions=partitions,
        replication_factor=_BROKERS_DEFAULT,
        config=dict(config),
    )
    with _typed(client, f"create topic {name}", name) as operation:
        futures = client.admin().create_topics([topic], request_timeout=client.timeout_s)
        client.results(operation, futures)
        _await_metadata(client, name, partitions)
        await_leaders(client, [TopicPartition(name, number) for number in range(partitions)])


def _await_metadata(client: "Cluster", name: str, partitions: int) -> None:
    """Wait until the metadata has all partitions of a topic, for at most a request's timeout."""
    left_s = client.deadline()
    while left_s():
        # All topics are requested, because a request for one topic by name may create it.
        topic = client.admin().list_topics(timeout=client.timeout_s).topics.get(name)
        if topic is not None and len(topic.partitions) == partitions:
            return
        client.admin().poll(_PAUSE_S)


def await_leaders(client: "Cluster", partitions: Sequence[TopicPartition]) -> None:
    """Wait until each partition's leader serves the partition.

    Metadata may name the leader before the leader serves the partition.

    A producer that sends records before the leader serves the partition may lose them. The leader
    refuses the first request, accepts the second request, and then treats the retry of the first
    request as a duplicate (KAFKA-15591).

    Raises:
        ClusterFailure: A partition has no leader within a request's timeout, or a broker refuses.
    """
    left_s = client.deadline()
    while True:
        try:
            client.watermarks(partitions)
            return
        except ClusterFailure as error:
            if error.error_code not in _NO_LEADER_YET or left_s() <= 0:
                raise
        client.admin().poll(_PAUSE_S)
        # librdkafka's cached leaders may be outdated; this request refreshes them
        with client.typed("list topics"):
            client.admin().list_topics(timeout=client.timeout_s)


def add_partitions(client: "Cluster", name: str, partitions: int) -> None:
    """Increase a topic's number of partitions to `partitions`.

    Wait until all partitions are usable.

    Raises:
        UnknownTopic, InvalidPartitions: Nothing was changed.
        NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
    """
    from confluent_kafka.admin import NewPartitions

    growth = NewPartitions(name, partitions)
    with _typed(client, f"add partitions to {name}", name) as operation:
        futures = client.admin().create_partitions([growth], request_timeout=client.timeout_s)
        client.results(operation, futures)
        _await_metadata(client, name, partitions)
        await_leaders(client, [TopicPartition(name, number) for number in range(partitions)])


def delete(client: "Cluster", name: str) -> None:
    """Delete a topic with all its records; raises UnknownTopic, NotAuthorized, ClusterFailure."""
    with _typed(client, f"delete topic {name}", name) as operation:
        futures = client.admin().delete_topics([name], request_timeout=client.timeout_s)
        client.results(operation, futures)


def _keys_of(name: str) -> tuple[str, ...]:
    try:
        return key_names(name) or (name,)
    except ConfigError:
        return (name,)  # brokers may know the setting, although this release of tidelog doesn't


def alter_config(
    client: "Cluster", name: str, changes: Mapping[str, str | None]
) -> list[ConfigNote]:
    """Change settings of a topic; None resets a setting. Raises the errors of `create`.

    Returns:
        Notes on the settings, such as on deprecated names.

    Raises:
        ConfigError: A setting or a value is invalid, or a setting to reset is unknown. (Brokers
            would ignore the reset of an unknown setting without an error.)
    """
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    if not changes:
        return []
    cleared = [key for one, value in changes.items() if value is None for key in _keys_of(one)]
    if cleared:
        with _typed(client, f"read the settings of {name}", name):
            existing = client.topic_configs([name])[name]
        for key in cleared:
            if key not in existing or existing[key].value is None:
                raise ConfigError(
                    key, None, f"the brokers don't know this setting for topic {name}"
                )
    plain, notes = plain_names({key: text for key, text in changes.items() if text is not None})
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for key, value in {**dict.fromkeys(cleared), **plain}.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    with _typed(client, f"change the settings of {name}", name) as operation:
        futures = client.admin().incremental_alter_configs(
            [resource], request_timeout=client.timeout_s
        )
        client.results(operation, futures)
    return notes


@contextmanager
def _typed(client: "Cluster", operation: str, topic: str) -> Iterator[str]:
    """Turn ClusterFailure into more specific errors; yields the operation's name."""
    try:
        yield operation
    except ClusterFailure as error:
        code = error.error_code
        if code == ErrorCode.INVALID_CONFIG:
            unknown = _UNKNOWN_SETTING.search(error.reason)
            if unknown is not None:
                key_names(unknown[1])  # this raises ConfigError, which suggests a similar name
            raise ConfigError(f"topic {topic}", None, error.reason) from error
        if code in _NOT_AUTHORIZED:
            raise NotAuthorized(
                error.bootstrap, error.operation, error.reason, error_code=code
            ) from error
        if code in _REFUSED:
            raise _REFUSED[code](f"{client.bootstrap}: {topic}: {error.reason}") from error
        raise
