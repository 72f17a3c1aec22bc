"""Topics of a place, which is a directory or a cluster: reading, planning, creating and dropping.

Jobs read the properties of source topics (`read_topic`), find or plan their target topic
(`find_or_plan`), create it (`make_topic`), and delete it again if the write fails
(`rollback_of_topics`). `target_check` judges whether a target keeps the records.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import TYPE_CHECKING

from tidelog.amounts import plural
from tidelog.config import ConfigNote, TopicConfig, plain_settings
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, TidelogError, UnknownTopic
from tidelog.jobs.target_check import Target
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.broker_settings import request_timeout_s
from tidelog.spark.parts import Listener
from tidelog.spark.places import Place
from tidelog.storage import files
from tidelog.storage.directory.topic_registry import NewTopic, check_new
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.remote.cluster import Cluster
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.storage.directory.log_dir import LogDir


# Value of tidelog's setting that describes the retention of Kafka's brokers: they always measure a
# record's age from its timestamp, even if the timestamp is in the future.
_BROKER_CLOCK = {"tidelog.retention.clock": "record"}


def open_cluster(place: Place) -> "Cluster":
    """Return a client of the brokers of a place.

    Raises:
        MissingDependency, ConfigError: See `tidelog.remote.cluster.connect`.
    """
    from tidelog.remote.client_settings import translate_settings
    from tidelog.remote.cluster import connect

    settings = translate_settings(place.client)
    return connect(place.address, settings, timeout_s=request_timeout_s(place.client))


def open_log_dir(place: Place, env: Env, *, create: bool = False) -> "LogDir":
    """Open the directory of a place, for reading, or with `create` for writing."""
    from tidelog.objects.object_files import env_for
    from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

    env = env_for(place.address, env, place.store)
    options = LogDirOptions(writable=create, create=create)
    return LogDir.open(place.address, env=env, options=options)


def open_topics(place: Place, env: Env) -> "Directory | RemoteDirectory":
    """Open the topics of a place for changes. Errors: see `Directory.open` and `connect`."""
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import connect

    if not place.is_broker:
        return Directory.open(place.address, writable=True, env=env, store_options=place.store)
    timeout_s = request_timeout_s(place.client)
    return connect(place.address, config=place.client, timeout_s=timeout_s, env=env)


def partition_counts(place: Place, env: Env) -> dict[str, int]:
    """Return the number of partitions of each topic in a directory or cluster.

    Raises:
        ClusterFailure: The brokers can't be reached, or refuse a request.
        InvalidRequest: The directory does not exist.
    """
    if place.is_broker:
        with open_cluster(place) as cluster:
            return cluster.topics()
    with open_log_dir(place, env) as log_dir:
        return {name: info.partitions for name, info in log_dir.topics().items()}


def describe(place: Place, topic: str, *, env: Env | None = None) -> Target:
    """Return an existing topic as a target.

    Args:
        place: The directory or cluster.
        topic: Name of the topic.
        env: Files and clock of a local directory; the machine's if None.

    Raises:
        UnknownTopic: The topic does not exist; the message suggests a similar name if there is one.
        InvalidRequest: The directory does not exist, or is in an object store, to which jobs can't
            write.
        ClusterFailure: The brokers can't be reached, or refuse a request.
    """
    if not place.is_broker and "://" in place.address:
        raise InvalidRequest(f"{place}: object stores are read, not written to; name a directory")
    facts = read_topic(place, topic, IsolationLevel.READ_UNCOMMITTED, env or os_env())
    return Target(
        place=str(place),
        topic=topic,
        partitions=facts.partitions,
        config=facts.config,
        end_offset=sum(facts.ends),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """Current properties of a topic.

    Attributes:
        topic_id: Id as Kafka prints it; "" if the topic has no id.
        config: Settings that apply to the topic.
        starts: Log start offset of each partition.
        ends: End offset of each partition at the requested isolation level.
    """

    topic_id: str
    config: TopicConfig
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.ends)


def read_topic(place: Place, topic: str, isolation: IsolationLevel, env: Env) -> TopicFacts:
    """Return the properties of a topic; raises UnknownTopic, ClusterFailure."""
    if place.is_broker:
        with open_cluster(place) as cluster:
            return _of_cluster(cluster, topic, isolation)
    return _of_directory(place, topic, isolation, env)


def _of_cluster(cluster: "Cluster", topic: str, isolation: IsolationLevel) -> TopicFacts:
    from tidelog.remote.topics import await_leaders

    names = sorted(cluster.partitions(topic))
    # Brokers may list a new topic before the leaders of its partitions serve requests.
    await_leaders(cluster, names)
    marks = cluster.watermarks(names, isolation=isolation)
    return TopicFacts(
        topic_id=cluster.topic_id(topic) or "",
        config=config_of_broker(cluster.topic_settings(topic)),
        starts=tuple(marks[name].start for name in names),
        ends=tuple(marks[name].end for name in names),
    )


def _of_directory(place: Place, topic: str, isolation: IsolationLevel, env: Env) -> TopicFacts:
    with open_log_dir(place, env) as log_dir:
        info = log_dir.topic(topic)
        readers = [log_dir.reader(topic, number) for number in range(info.partitions)]
        return TopicFacts(
            topic_id="" if info.topic_id is None else files.encode_topic_id(info.topic_id),
            config=info.config,
            starts=tuple(reader.log_start_offset for reader in readers),
            ends=tuple(
                max(reader.end_offset(isolation), reader.log_start_offset) for reader in readers
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTarget:
    """Description of a topic that a job creates if the topic does not exist.

    Attributes:
        partitions: Number of partitions.
        config: Settings with which the topic is created, in addition to the broker's defaults.
    """

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


def new_target(create: int | None, config: Mapping[str, str] | None) -> NewTarget | None:
    """Return the description of the topic to create; None if `create` is None.

    Raises:
        InvalidRequest: Settings are given without a number of partitions.
        ConfigError: A value with a unit does not fit its setting.
    """
    if create is None:
        if config:
            raise InvalidRequest(
                "settings apply only to a topic that the job creates: give its number of partitions"
            )
        return None
    return NewTarget(partitions=create, config=plain_settings(config or {}))


def find_or_plan(
    place: Place, topic: str, new: NewTarget | None, *, env: Env | None = None
) -> tuple[Target, bool]:
    """Return an existing topic, or the topic that the job would create, as a target.

    Nothing is changed.

    Args:
        place: The directory or cluster.
        topic: Name of the topic.
        new: How to create the topic if it is missing; None if it must exist.
        env: Files and clock of a local directory; the machine's if None.

    Returns:
        The target, and whether it has to be created.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: The topic can't be created as requested.
        InvalidRequest: The topic exists with another number of partitions, or with other values of
            the requested settings.
        UnknownTopic, ClusterFailure: See `describe`.
    """
    if new is None:
        return describe(place, topic, env=env), False
    texts, _ = check_new(NewTopic(topic, new.partitions, new.config))
    planned = TopicConfig.parse(texts, broker=_defaults(place, env or os_env()))[0]
    try:
        if place.is_broker or "://" in place.address or _exists(place, env or os_env()):
            existing = describe(place, topic, env=env)
            _ensure_alike(existing, new.partitions, texts, planned)
            return existing, False
    except UnknownTopic:
        pass
    target = Target(
        place=str(place),
        topic=topic,
        partitions=new.partitions,
        config=planned,
        created_with=new.config,
    )
    return target, True


def _exists(place: Place, env: Env) -> bool:
    return env.files.exists(place.address)


def _defaults(place: Place, env: Env) -> Mapping[str, str]:
    """Return the topic defaults that a broker has stored in its directory.

    The result is empty for a cluster or an object store, and if there are no stored defaults.
    """
    if place.is_broker or "://" in place.address or not _exists(place, env):
        return {}
    from tidelog.storage.directory.broker_files import read_stored_defaults

    return read_stored_defaults(env.files, place.address, lambda _: None)


def _ensure_alike(
    existing: Target, partitions: int, texts: Mapping[str, str], planned: TopicConfig
) -> None:
    """Raise InvalidRequest if an existing topic's partition count or settings are not as requested.

    Only the settings in `texts` are compared.
    """
    if existing.partitions != partitions:
        raise InvalidRequest(
            f"{existing.topic} exists with {plural(existing.partitions, 'partition')}, not"
            f" {partitions}"
        )
    current, requested = existing.config.texts(), planned.texts()
    for name in texts:
        if current.get(name) != requested.get(name):
            raise InvalidRequest(
                f"{existing.topic} exists with {name}={current.get(name)}, not"
                f" {requested.get(name)}: set it (tidelog config), or leave the setting out"
            )


def make_topic(
    place: Place, topic: str, partitions: int, settings: Mapping[str, str], env: Env
) -> list[ConfigNote]:
    """Create a topic, and a local directory if it is missing; return notes on the settings.

    Raises:
        ConfigError, InvalidTopic, ClusterFailure, DirectoryLocked: The topic can't be created.
    """
    if not place.is_broker:
        with open_log_dir(place, env, create=True) as log_dir:
            return log_dir.create_topic(topic, partitions=partitions, config=settings)[1]
    from tidelog.remote.topics import create

    with open_cluster(place) as cluster:
        create(cluster, topic, partitions=partitions, config=settings)
    return []


def make_target(place: Place, topic: str, new: NewTarget, env: Env, listener: Listener) -> None:
    """Create a topic as planned, and report notes on its settings. Errors: see `make_topic`."""
    for note in make_topic(place, topic, new.partitions, new.config, env):
        listener.note(str(note))


def drop_empty_topic(place: Place, topic: str, env: Env) -> bool:
    """Delete a topic that never had a record; return whether it was deleted. Ignores errors.

    Used for a topic that was created for a write that failed or was refused.
    """
    with suppress(TidelogError, OSError), open_topics(place, env) as topics:
        if not any(topics.end_offsets(topics.partitions(topic)).values()):
            topics.delete_topic(topic)
            return True
    return False


@contextmanager
def rollback_of_topics(place: Place, topics: Collection[str], env: Env) -> Iterator[None]:
    """If the block raises an exception, delete the new topics that never had a record.

    For each topic, a note on the error states whether the topic was deleted.

    Args:
        place: The directory or cluster.
        topics: Names of topics created so far; the block may add more.
        env: Files and clock of a local directory.
    """
    try:
        yield
    except BaseException as error:
        for topic in topics:
            end = "was deleted again" if drop_empty_topic(place, topic, env) else "still exists"
            error.add_note(f"topic {topic} had been created at {place} for this write and {end}")
        raise


def config_of_broker(settings: Mapping[str, str]) -> TopicConfig:
    """Return the settings of a topic from a broker's response; unknown names are ignored."""
    # The settings are parsed as broker defaults, because broker defaults may have unknown names. A
    # topic's own settings must not have unknown names, but a broker of a later release returns
    # names that this release does not know.
    return TopicConfig.parse({}, broker=_BROKER_CLOCK | dict(settings))[0]
