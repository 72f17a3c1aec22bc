"""What a target topic is: its partitions and its settings in force, from a directory or brokers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.config import TopicConfig
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest
from tidelog.spark.jobs.checks import Target
from tidelog.spark.places import Place

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

    return connect(place.address, translate_settings(place.client))


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
