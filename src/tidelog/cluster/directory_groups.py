"""Where consumer groups stand by the directory of a broker alone: no broker is asked.

Kafka's files and ours alike: offsets are what `__consumer_offsets` holds, transactions of offsets
from their commit markers on; in a standby's directory they are what its leader told last. A broker
holds the groups of its own partitions of that topic, so a directory of one of several brokers knows
some groups, and not others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.cluster import lag as rules
from tidelog.cluster.lag import Observation
from tidelog.cluster.own import first_record
from tidelog.cluster.view import Count
from tidelog.directory import Directory
from tidelog.env import Env
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.partitioning import partition_for
from tidelog.server.groups.replay import LoadedGroup, Replay
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.storage.group_offsets import GROUPS_FILE, read_group_offsets
from tidelog.storage.log_reader import LogReader
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.server.groups.offsets import CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryGroups:
    """What a directory knows of groups.

    Attributes:
        positions: By group, the next offset that it reads of each partition.
        notes: What was left out, and why; one line each.
        missing: Partitions of `__consumer_offsets` that are elsewhere: so are their groups.
        partitions: How many it has, as far as the directory tells; 0 where it has none of it.
    """

    positions: Mapping[str, Mapping[TopicPartition, int]]
    notes: tuple[str, ...] = ()
    missing: frozenset[int] = frozenset()
    partitions: int = 0

    def may_be_elsewhere(self, group: str) -> bool:
        """Whether another broker of the cluster keeps the group, if there is such a group."""
        return bool(self.partitions) and partition_for(group, self.partitions) in self.missing


def read_groups(directory: Directory, env: Env) -> DirectoryGroups | None:
    """What a directory knows of groups, None where it has neither file nor topic for that.

    Args:
        directory: Where to look; refreshed by its owner.
        env: Reads the directory's files.

    Raises:
        CorruptData: The topic's batches are damaged; names file and position.
        CorruptFile, UnsupportedVersion: The standby's file can't be read.
        StorageFailure, OSError: A call failed.
    """
    told = read_group_offsets(env.files, directory.path.rstrip("/"))
    topic = directory.topics().get(OFFSETS_TOPIC)
    if told is None and topic is None:
        return None
    found: dict[str, dict[TopicPartition, int]] = {}
    for group, commits in ({} if told is None else told.groups).items():
        places = {TopicPartition(one.topic, one.partition): one.offset for one in commits}
        found[group] = places
    if topic is None:
        return DirectoryGroups(positions=found)
    notes: list[str] = []
    for number in topic.present:
        loaded = _load(directory.partition(OFFSETS_TOPIC, number), notes)
        for group, one in loaded.items():
            places = _positions(directory, group, one, notes)
            if places:  # the topic is newer than what a leader told once
                found[group] = {**found.get(group, {}), **places}
    return DirectoryGroups(
        positions=found,
        notes=tuple(notes),
        missing=frozenset(range(topic.partitions)) - frozenset(topic.present),
        partitions=topic.partitions,
    )


def _load(log: LogReader, notes: list[str]) -> dict[str, LoadedGroup]:
    """The groups in one partition of the topic."""
    replay = Replay()
    if log.log_end_offset > log.log_start_offset:
        for _ in replay.take(log.slices()):
            pass  # nobody waits here for a turn
    loaded = replay.groups()
    notes += [f"{log.topic_partition}: left out: {line}" for line in replay.skipped]
    return loaded


def _positions(
    directory: Directory, group: str, loaded: LoadedGroup, notes: list[str]
) -> dict[TopicPartition, int]:
    """A group's positions; those of a topic that was made anew since are left out."""
    newest: dict[TopicPartition, CommittedOffset] = {}
    for topic, partition, commit in loaded.offsets:
        name = TopicPartition(topic, partition)
        known = newest.get(name)
        # Old and new keys of one partition are two keys.
        if known is None or known.record_offset < commit.record_offset:
            newest[name] = commit
    found: dict[TopicPartition, int] = {}
    for name, commit in newest.items():
        there = _topic_id(directory, name.topic)
        if NO_UUID not in (there, commit.topic_id) and there != commit.topic_id:
            notes.append(f"group {group}: its offset of {name} is of a former topic of that name")
        else:
            found[name] = commit.offset
    return found


def _topic_id(directory: Directory, topic: str) -> UUID:
    info = directory.topics().get(topic)
    return NO_UUID if info is None or info.topic_id is None else info.topic_id


def observe(
    directory: Directory,
    env: Env,
    name: TopicPartition,
    committed: int,
    isolation: IsolationLevel,
) -> Observation:
    """What a directory says of a group's position, as `lag.observe` says it of a cluster's.

    Args:
        directory: Holds the partition.
        env: What now is.
        name: The partition.
        committed: The next offset that the group reads.
        isolation: What its consumers see.
    """
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


__all__ = ["GROUPS_FILE", "OFFSETS_TOPIC", "DirectoryGroups", "observe", "read_groups"]
