"""The two sides of an audit before anything is read: topics in pairs, limits, a group's places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.env import Env
from tidelog.errors import InvalidRequest, UnknownGroup, UnknownTopic
from tidelog.spark.jobs.audit_plan import Side, chosen, topics_of
from tidelog.spark.jobs.latency import directory_env
from tidelog.spark.jobs.targets import open_cluster
from tidelog.spark.places import Place
from tidelog.storage.group_offsets import GROUPS_FILE, read_group_offsets
from tidelog.types import TopicPartition

Limits = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A topic on both sides; None where a side does not have it."""

    a: str | None
    b: str | None

    @property
    def name(self) -> str:
        """What it is called in the answer."""
        name = self.a if self.a is not None else self.b
        assert name is not None
        return name

    def on(self, letter: str) -> str | None:
        """Its name on a side."""
        return self.a if letter == "a" else self.b


def pairs_of(
    a: Side, b: Side | None, patterns: Sequence[str] | None, rename: Mapping[str, str]
) -> list[Pair]:
    """The topics that are meant, on both sides.

    Args:
        a: One side.
        b: The other one, if there is one.
        patterns: Names or patterns of names on A; all topics where None.
        rename: Name on A -> name on B, of topics that are not called the same.

    Raises:
        UnknownTopic: No side has a topic that is meant.
        InvalidRequest: What is no pattern, or two topics of A under one name.
    """
    if len(set(rename.values())) < len(rename):
        raise InvalidRequest(f"several topics would have one name on B: {dict(rename)}")
    on_a, on_b = set(topics_of(a)), set() if b is None else set(topics_of(b))
    back = {new: old for old, new in rename.items()}
    # What is renamed has taken its name: a topic of B that is called as A's stands for nothing.
    names_b = {back.get(name, name): name for name in on_b if name in back or name not in rename}
    wanted = chosen(on_a | set(names_b), patterns)
    if not wanted:
        asked = "any topic" if patterns is None else ", ".join(patterns)
        raise UnknownTopic(f"{a.place}: no topic is {asked}; there are: {', '.join(sorted(on_a))}")
    return [Pair(name if name in on_a else None, names_b.get(name)) for name in sorted(wanted)]


def limits_of_map(env: Env, path: str) -> tuple[Limits, Limits]:
    """What a mirror has copied of its sources, and where it has put it, by its offset map.

    Returns:
        Offsets [start, end) of A's partitions that were copied, and of B's that hold the copies.

    Raises:
        CorruptFile, UnsupportedVersion: The map can't be read.
        InvalidRequest: It has several sources with a topic of the same name.
    """
    from tidelog.cluster.offset_map_file import read_map

    found = read_map(env.files, path)
    names = [source.topic for source in found.sources]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"{path}: several sources have topics of the same name")
    copied = {
        TopicPartition(found.sources[place.source].topic, place.partition): (c.start, c.end)
        for place, c in found.copied.items()
    }
    return copied, {name: (0, end) for name, end in found.ends.items()}


def renames_of_map(env: Env, path: str) -> dict[str, str]:
    """Name of a topic at its source -> its name at the target, where they differ."""
    from tidelog.cluster.offset_map_file import read_map

    sources = read_map(env.files, path).sources
    return {one.topic: one.target for one in sources if one.topic != one.target}


def positions_of(place: Place, group: str) -> dict[TopicPartition, int]:
    """The next offset that a group reads of each partition where it has committed something.

    Raises:
        UnknownGroup: No such group, or nothing that it has committed.
        InvalidRequest: A directory that knows of no group.
        ClusterFailure: The brokers can't be asked.
    """
    if place.is_broker:
        with open_cluster(place) as cluster:
            cluster.group(group)
            committed = cluster.committed(group)
        found = {name: one.offset for name, one in committed.items() if one is not None}
    else:
        found = _standby_positions(place, group)
    if not found:
        raise UnknownGroup(f"{place}: group {group} has committed nothing")
    return found


def _standby_positions(place: Place, group: str) -> dict[TopicPartition, int]:
    known = read_group_offsets(directory_env(place).files, place.address.rstrip("/"))
    if known is None:
        raise InvalidRequest(f"{place}: it has no {GROUPS_FILE}, so no group is known")
    if group not in known.groups:
        there = ", ".join(sorted(known.groups))
        raise UnknownGroup(f"{place}: no group {group}; there are: {there}")
    return {TopicPartition(c.topic, c.partition): c.offset for c in known.groups[group]}
