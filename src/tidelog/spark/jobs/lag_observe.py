"""Where consumer groups stand: asked of a cluster, or read of a directory that knows of groups."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidelog.cluster import counting
from tidelog.cluster import lag as rules
from tidelog.cluster.directory_groups import (
    GROUPS_FILE,
    OFFSETS_TOPIC,
    observe,
    read_groups,
)
from tidelog.cluster.lag import Observation
from tidelog.cluster.own import OwnLogs
from tidelog.directory import Directory
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, UnknownGroup
from tidelog.spark.jobs.latency import directory_env
from tidelog.spark.jobs.progress import NOBODY, Listener
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.cluster.connection import Cluster

# Positions by group: the next offset that it reads of each partition.
Positions = Mapping[str, Mapping[TopicPartition, int]]


def read_positions(table: "DataFrame") -> Positions:
    """Positions out of a DataFrame; raises InvalidRequest where a column is missing."""
    wanted = ("group", "topic", "partition", "offset")
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise InvalidRequest(f"positions need a column {missing[0]}; there are {table.columns}")
    found: dict[str, dict[TopicPartition, int]] = {}
    for row in table.select(*wanted).collect():
        name = TopicPartition(str(row["topic"]), int(row["partition"]))
        found.setdefault(str(row["group"]), {})[name] = int(row["offset"])
    return found


def check_groups(
    place: Place, groups: Sequence[str] | None, topics: Sequence[str] | None, data: str | None
) -> None:
    """Check that a place knows the groups that are asked for; Spark is not needed.

    Raises:
        UnknownGroup, InvalidRequest, ClusterFailure: As `tidelog.spark.lag`.
    """
    if not place.is_broker:
        check_no_data(place, data)
        env = directory_env(place)
        with Directory.open(place.address, env=env) as directory:
            _check_known(place, groups, _known_positions(directory, env, place, groups, NOBODY))
        return
    from tidelog.spark.jobs.targets import open_cluster

    with open_cluster(place) as cluster:
        for name in groups or ():
            _asked_partitions(cluster, place, name, topics)


def check_no_data(place: Place, data: str | None) -> None:
    """Raise InvalidRequest where a directory comes with another one, which only a cluster has."""
    if data is not None:
        raise InvalidRequest(f"data={data} is for a cluster; {place} is a directory itself")


def observe_cluster(
    place: Place,
    groups: Sequence[str] | None,
    topics: Sequence[str] | None,
    data: str | None,
    positions: Positions | None,
    isolation: IsolationLevel,
) -> tuple[dict[str, list[Observation]], set[TopicPartition]]:
    """Each group's observations, and the partitions that the cluster's own directory holds."""
    from tidelog.cluster.connection import connect
    from tidelog.cluster.properties import translate_settings

    if positions is not None:
        raise InvalidRequest(f"positions are for a directory; {place} knows its groups itself")
    env = os_env()
    with ExitStack() as stack:
        settings = translate_settings(place.client)
        cluster = stack.enter_context(connect(place.address, settings, clock=env.clock))
        own = None
        if data is not None:
            own = OwnLogs(stack.enter_context(Directory.open(data, env=env)), cluster)
        seen = {}
        for name in cluster.groups() if groups is None else groups:
            # A group that was listed may be gone by the time it is asked about.
            if groups is None and not _is_there(cluster, name):
                continue
            if groups is None:
                partitions = _committed_partitions(cluster, name, topics)
            else:
                partitions = _asked_partitions(cluster, place, name, topics)
            if partitions:
                seen[name] = rules.observe(
                    cluster,
                    name,
                    partitions,
                    clock=env.clock,
                    counter=counting.by_offsets,
                    own=own,
                    isolation=isolation,
                )
        wanted = {one.partition for group in seen.values() for one in group}
        return seen, {name for name in wanted if own is not None and own.has(name)}


def _is_there(cluster: "Cluster", group: str) -> bool:
    try:
        cluster.group(group)
    except UnknownGroup:
        return False
    return True


def _asked_partitions(
    cluster: "Cluster", place: Place, group: str, topics: Sequence[str] | None
) -> list[TopicPartition]:
    """The partitions that are meant of a group that is asked for; raises UnknownGroup for none."""
    partitions = _committed_partitions(cluster, group, topics)
    if not partitions:
        raise UnknownGroup(f"{place}: group {group} has committed nothing that was asked for")
    return partitions


def _committed_partitions(
    cluster: "Cluster", group: str, topics: Sequence[str] | None
) -> list[TopicPartition]:
    """All partitions of the topics in which a group has committed something."""
    names = {name.topic for name in cluster.committed(group)}
    if topics is not None:
        names &= set(topics)
    there = cluster.topics()
    return [name for topic in sorted(names & set(there)) for name in cluster.partitions(topic)]


def observe_directory(
    place: Place,
    groups: Sequence[str] | None,
    topics: Sequence[str] | None,
    positions: Positions | None,
    isolation: IsolationLevel,
    listener: Listener = NOBODY,
) -> dict[str, list[Observation]]:
    """Each group's observations; raises UnknownGroup, InvalidRequest where no group is known."""
    env = directory_env(place)
    with Directory.open(place.address, env=env) as directory:
        known = positions
        if positions is None:
            known = _known_positions(directory, env, place, groups, listener)
        assert known is not None
        _check_known(place, groups, known)
        return {
            name: [
                observe(directory, env, partition, offset, isolation)
                for partition, offset in sorted(places.items())
                if topics is None or partition.topic in topics
            ]
            for name, places in known.items()
            if groups is None or name in groups
        }


def _check_known(place: Place, groups: Sequence[str] | None, known: Positions) -> None:
    unknown = set(groups or ()) - set(known)
    if unknown:
        there = ", ".join(sorted(known))
        raise UnknownGroup(f"{place}: no group {min(unknown)}; there are: {there}")


def _known_positions(
    directory: Directory,
    env: Env,
    place: Place,
    groups: Sequence[str] | None,
    listener: Listener,
) -> Positions:
    """What the directory itself knows of groups, in what it holds; groups may read other topics."""
    found = read_groups(directory, env)
    if found is None:
        raise InvalidRequest(
            f"{place}: it has neither {OFFSETS_TOPIC} nor {GROUPS_FILE}, so no group is known; give"
            " the cluster (kafka://...), or positions"
        )
    for note in found.notes:
        listener.note(note)
    for group in groups or ():
        if group not in found.positions and found.may_be_elsewhere(group):
            raise UnknownGroup(
                f"{place}: group {group} is kept by another broker, if there is one: this directory"
                f" has not its partition of {OFFSETS_TOPIC}"
            )
    if found.missing:
        count = f"{len(found.missing)} of {found.partitions} partitions of {OFFSETS_TOPIC}"
        listener.note(f"{count} are not in {place}: their groups are not told")
    return {name: _present(directory, places) for name, places in found.positions.items()}


def _present(
    directory: Directory, places: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Positions in what a directory holds."""
    topics = directory.topics()
    return {
        name: offset
        for name, offset in places.items()
        if name.topic in topics and name.partition in topics[name.topic].present
    }
