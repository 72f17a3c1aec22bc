"""What a target topic is: its partitions and its settings in force, from a directory or brokers."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.config import ConfigNote, TopicConfig
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, TidelogError, UnknownTopic
from tidelog.spark.broker_settings import question_timeout_s
from tidelog.spark.jobs.checks import Target
from tidelog.spark.places import Place
from tidelog.storage.topics import NewTopic, check_new

if TYPE_CHECKING:
    from tidelog.cluster.connection import Cluster

# Kafka's brokers know timestamps alone: there the record's own time counts, without a cap.
_BROKER_CLOCK = {"tidelog.retention.clock": "record"}


def open_cluster(place: Place) -> "Cluster":
    """A connection to the brokers of a place.

    Raises:
        MissingDependency, ConfigError: As `tidelog.cluster.connection.connect`.
    """
    from tidelog.cluster.connection import connect
    from tidelog.cluster.properties import translate_settings

    settings = translate_settings(place.client)
    return connect(place.address, settings, timeout_s=question_timeout_s(place.client))


def describe(place: Place, topic: str, *, env: Env | None = None) -> Target:
    """A topic as a target.

    Args:
        place: Where it is.
        topic: Its name.
        env: Files and clock of a local directory; the machine's where None.

    Raises:
        UnknownTopic: No such topic; the text names the nearest one.
        ClusterFailure: The brokers can't be reached, or refuse.
    """
    if place.is_broker:
        with open_cluster(place) as cluster:
            return _of_cluster(cluster, place, topic)
    return _of_directory(place, topic, env or os_env())


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTarget:
    """A topic that a job makes where it is missing.

    Attributes:
        partitions: How many.
        config: Settings of its own.
    """

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


def new_target(create: int | None, config: Mapping[str, str] | None) -> NewTarget | None:
    """How a missing topic is made; raises InvalidRequest for settings of a topic that is not."""
    if create is None:
        if config:
            raise InvalidRequest("settings are for a topic that is made: say how many partitions")
        return None
    return NewTarget(partitions=create, config=dict(config or {}))


def find_or_plan(
    place: Place, topic: str, new: NewTarget | None, *, env: Env | None = None
) -> tuple[Target, bool]:
    """A topic as a target, as it is or as it would be made. Changes nothing.

    Args:
        place: Where it is.
        topic: Its name.
        new: How it is to be made where it is missing; None where it must be there.
        env: As `describe`.

    Returns:
        The target, and whether it has to be made.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: It can't be made so.
        InvalidRequest: It is there, with other partitions or other settings than asked for.
        UnknownTopic, ClusterFailure: As `describe`.
    """
    if new is None:
        return describe(place, topic, env=env), False
    texts, _ = check_new(NewTopic(topic, new.partitions, new.config))
    planned = TopicConfig.parse(texts, broker=_defaults(place, env or os_env()))[0]
    try:
        if place.is_broker or "://" in place.address or _is_there(place, env or os_env()):
            there = describe(place, topic, env=env)
            _ensure_alike(there, new.partitions, texts, planned)
            return there, False
    except UnknownTopic:
        pass
    target = Target(place=str(place), topic=topic, partitions=new.partitions, config=planned)
    return target, True


def _is_there(place: Place, env: Env) -> bool:
    return env.files.exists(place.address)


def _defaults(place: Place, env: Env) -> Mapping[str, str]:
    """Topic defaults of a directory's broker; those of brokers that run are not known."""
    if place.is_broker or "://" in place.address or not _is_there(place, env):
        return {}
    from tidelog.storage.cluster_file import read_kept_defaults

    return read_kept_defaults(env.files, place.address, lambda _: None)


def _ensure_alike(
    there: Target, partitions: int, texts: Mapping[str, str], planned: TopicConfig
) -> None:
    """Refuse a topic that is there and that would not have been made so."""
    if there.partitions != partitions:
        raise InvalidRequest(
            f"{there.topic} is there with {there.partitions} partitions, not {partitions}"
        )
    found, wanted = there.config.texts(), planned.texts()
    for name in texts:
        if found.get(name) != wanted.get(name):
            raise InvalidRequest(
                f"{there.topic} is there with {name}={found.get(name)}, not {wanted.get(name)}:"
                f" set it (tidelog config), or leave the setting out"
            )


def make_topic(
    place: Place, topic: str, partitions: int, settings: Mapping[str, str], env: Env
) -> list[ConfigNote]:
    """Create a topic, and a local directory where it is missing; notes on its settings.

    Raises:
        ConfigError, InvalidTopic, ClusterFailure, DirectoryLocked: It can't be created.
    """
    if not place.is_broker:
        from tidelog.storage.log_dir import LogDir, LogDirOptions

        options = LogDirOptions(writable=True, create=True)
        with LogDir.open(place.address, env=env, options=options) as log_dir:
            return log_dir.create_topic(topic, partitions=partitions, config=settings)[1]
    from tidelog.cluster.topics import create

    with open_cluster(place) as cluster:
        create(cluster, topic, partitions=partitions, config=settings)
    return []


def drop_empty_topic(place: Place, topic: str, env: Env) -> bool:
    """Delete a topic if it is empty; whether it was. Failures are passed over.

    For a topic that was made for a load that has failed, or is refused.
    """
    if place.is_broker:
        return _drop_at_brokers(place, topic)
    from tidelog.storage.log_dir import LogDir, LogDirOptions

    options = LogDirOptions(writable=True)
    with (
        suppress(TidelogError, OSError),
        LogDir.open(place.address, env=env, options=options) as there,
    ):
        if not any(there.end_offsets(there.partitions(topic)).values()):
            there.delete_topic(topic)
            return True
    return False


def _drop_at_brokers(place: Place, topic: str) -> bool:
    from tidelog.cluster.topics import delete

    with suppress(TidelogError), open_cluster(place) as cluster:
        marks = cluster.watermarks(cluster.partitions(topic))
        if not any(mark.end for mark in marks.values()):
            delete(cluster, topic)
            return True
    return False


@contextmanager
def taken_back(place: Place, topics: Collection[str], env: Env) -> Iterator[None]:
    """Delete topics that were just made where the block raises; the error says what became of them.

    Args:
        place: Where they are.
        topics: Those made so far; may grow in the block.
        env: Files and clock of a local directory.
    """
    try:
        yield
    except BaseException as error:
        for topic in topics:
            if drop_empty_topic(place, topic, env):
                error.add_note(f"topic {topic} was made for this at {place} and is deleted again")
            else:
                error.add_note(f"topic {topic} was made for this at {place} and is still there")
        raise


def _of_cluster(cluster: "Cluster", place: Place, topic: str) -> Target:
    partitions = cluster.partitions(topic)
    ends = cluster.watermarks(partitions)
    return Target(
        place=str(place),
        topic=topic,
        partitions=len(partitions),
        config=config_of_broker(cluster.topic_settings(topic)),
        end_offset=sum(marks.end for marks in ends.values()),
    )


def config_of_broker(settings: Mapping[str, str]) -> TopicConfig:
    """A topic's settings as its broker tells them; names of later releases are passed over."""
    # Names unknown here are refused in a topic's own settings, but not in a broker's.
    return TopicConfig.parse({}, broker=_BROKER_CLOCK | dict(settings))[0]


def _of_directory(place: Place, topic: str, env: Env) -> Target:
    from tidelog.storage.log_dir import LogDir

    if "://" in place.address:
        raise InvalidRequest(f"{place}: object stores are read, not written to; name a directory")
    with LogDir.open(place.address, env=env) as log_dir:
        info = log_dir.topic(topic)
        names = log_dir.partitions(topic)
        return Target(
            place=str(place),
            topic=topic,
            partitions=info.partitions,
            config=info.config,
            end_offset=sum(log_dir.end_offsets(names).values()),
        )
