"""Where consumer groups stand: asked of a cluster, or read of a directory that knows of groups."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidelog.cluster import counting
from tidelog.cluster import lag as rules
from tidelog.cluster.lag import Observation
from tidelog.cluster.own import OwnLogs, first_record
from tidelog.cluster.view import Count
from tidelog.directory import Directory
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, UnknownGroup
from tidelog.spark.jobs.latency import directory_env
from tidelog.spark.places import Place
from tidelog.storage.group_offsets import GROUPS_FILE, read_group_offsets
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
            partitions = _committed_partitions(cluster, name, topics)
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
            elif groups is not None:
                raise UnknownGroup(
                    f"{place}: group {name} has committed nothing that was asked for"
                )
        wanted = {one.partition for group in seen.values() for one in group}
        return seen, {name for name in wanted if own is not None and own.has(name)}


def _is_there(cluster: "Cluster", group: str) -> bool:
    try:
        cluster.group(group)
    except UnknownGroup:
        return False
    return True


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
) -> dict[str, list[Observation]]:
    """Each group's observations; raises UnknownGroup, InvalidRequest where no group is known."""
    env = directory_env(place)
    known = _standby_positions(env, place) if positions is None else positions
    if groups is not None and (unknown := sorted(set(groups) - set(known))):
        raise UnknownGroup(f"{place}: no group {unknown[0]}; there are: {', '.join(sorted(known))}")
    with Directory.open(place.address, env=env) as directory:
        if positions is None:
            known = {name: _present(directory, places) for name, places in known.items()}
        return {
            name: [
                _observation(directory, env, partition, offset, isolation)
                for partition, offset in sorted(places.items())
                if topics is None or partition.topic in topics
            ]
            for name, places in known.items()
            if groups is None or name in groups
        }


def _present(
    directory: Directory, places: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Positions in what a standby holds; groups may read topics that it does not follow."""
    topics = directory.topics()
    return {
        name: offset
        for name, offset in places.items()
        if name.topic in topics and name.partition in topics[name.topic].present
    }


def _standby_positions(env: Env, place: Place) -> Positions:
    found = read_group_offsets(env.files, place.address.rstrip("/"))
    if found is None:
        raise InvalidRequest(
            f"{place}: it has no {GROUPS_FILE}, so no group is known; give the cluster (kafka://...),"
            " or positions"
        )
    return {
        name: {TopicPartition(one.topic, one.partition): one.offset for one in commits}
        for name, commits in found.groups.items()
    }


def _observation(
    directory: Directory,
    env: Env,
    name: TopicPartition,
    committed: int,
    isolation: IsolationLevel,
) -> Observation:
    """What a directory says of a position."""
    log = directory.partition(name.topic, name.partition)
    start, end = log.log_start_offset, max(log.end_offset(isolation), log.log_start_offset)
    offset = max(committed, start)
    record = first_record(log, offset, isolation) if offset < end else None
    is_seen = record is not None and record.offset < end
    return Observation(
        partition=name,
        now_ms=env.clock.now_ms(),
        monotonic_ms=env.clock.monotonic_ms(),
        committed=committed,
        start=start,
        end=end,
        left=Count(max(end - offset, 0), is_exact=False),
        unread=rules.unread_of(record) if record is not None and is_seen else None,
    )
