"""What a mirror asks the places it copies between: topics and offsets; and its map of them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cluster.offset_map import (
    Copied,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
)
from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.errors import CorruptData, InvalidRequest
from tidelog.spark.jobs.mirror_plan import MirrorPlan, Pair
from tidelog.spark.jobs.targets import config_of_broker, open_cluster
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.cluster.connection import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as it is now.

    Attributes:
        topic_id: As Kafka prints it; empty where there is none.
        config: Its settings in force.
        starts: Log start of each partition.
        ends: End of each partition, exclusive; by the isolation level asked for.
    """

    topic_id: str
    config: TopicConfig
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.ends)


def read_topic(place: Place, topic: str, isolation: IsolationLevel, env: Env) -> TopicFacts:
    """A topic's facts; raises UnknownTopic, ClusterFailure."""
    if place.is_broker:
        with open_cluster(place) as cluster:
            return _of_cluster(cluster, topic, isolation)
    return _of_directory(place, topic, isolation, env)


def _of_cluster(cluster: "Cluster", topic: str, isolation: IsolationLevel) -> TopicFacts:
    from tidelog.cluster.topics import await_leaders

    names = sorted(cluster.partitions(topic))
    await_leaders(cluster, names)  # a topic that was made just now is named before it is served
    marks = cluster.watermarks(names, isolation=isolation)
    return TopicFacts(
        topic_id=cluster.topic_id(topic) or "",
        config=config_of_broker(cluster.topic_settings(topic)),
        starts=tuple(marks[name].start for name in names),
        ends=tuple(marks[name].end for name in names),
    )


def _of_directory(place: Place, topic: str, isolation: IsolationLevel, env: Env) -> TopicFacts:
    from tidelog.objects.environment import env_for
    from tidelog.storage.files import encode_topic_id
    from tidelog.storage.log_dir import LogDir

    there = env_for(place.address, env, place.store)
    with LogDir.open(place.address, env=there) as log_dir:
        info = log_dir.topic(topic)
        readers = [log_dir.reader(topic, number) for number in range(info.partitions)]
        return TopicFacts(
            topic_id="" if info.topic_id is None else encode_topic_id(info.topic_id),
            config=info.config,
            starts=tuple(reader.log_start_offset for reader in readers),
            ends=tuple(
                max(reader.end_offset(isolation), reader.log_start_offset) for reader in readers
            ),
        )


def read_configs(place: Place, topics: Iterable[str], env: Env) -> dict[str, TopicConfig]:
    """Settings in force of those of the topics that are there; raises ClusterFailure."""
    wanted = set(topics)
    if place.is_broker:
        from tidelog.cluster.topics import describe

        with open_cluster(place) as cluster:
            counts = {name: count for name, count in cluster.topics().items() if name in wanted}
            found = describe(cluster, counts)
        return {name: config_of_broker(topic.settings) for name, topic in found.items()}
    from tidelog.objects.environment import env_for
    from tidelog.storage.log_dir import LogDir

    there = env_for(place.address, env, place.store)
    with LogDir.open(place.address, env=there) as log_dir:
        return {name: info.config for name, info in log_dir.topics().items() if name in wanted}


def partition_counts(place: Place, env: Env) -> dict[str, int]:
    """All topics of a place with their numbers of partitions; raises ClusterFailure."""
    if place.is_broker:
        with open_cluster(place) as cluster:
            return cluster.topics()
    from tidelog.objects.environment import env_for
    from tidelog.storage.log_dir import LogDir

    there = env_for(place.address, env, place.store)
    with LogDir.open(place.address, env=there) as log_dir:
        return {name: info.partitions for name, info in log_dir.topics().items()}


# -- the map -------------------------------------------------------------------------------------


def first_map(
    plan: MirrorPlan,
    sources: Mapping[int, TopicFacts],
    targets: Mapping[str, TopicFacts],
    starts: Sequence[tuple[int, int, int]],
) -> OffsetMap:
    """The map of a mirror that has copied nothing yet.

    Args:
        plan: The mirror.
        sources: Of each pair, by number.
        targets: By name.
        starts: Where it begins: pair, partition, offset.
    """
    return OffsetMap(
        target=str(plan.target),
        target_ids={topic: facts.topic_id for topic, facts in targets.items()},
        partition_counts={topic: facts.partitions for topic, facts in targets.items()},
        sources=tuple(_source_topic(plan, n, facts) for n, facts in sources.items()),
        partitioning=plan.partitioning,
        copied={SourcePartition(a, b): Copied(start, start) for a, b, start in starts},
        ends={
            TopicPartition(topic, number): end
            for topic, facts in targets.items()
            for number, end in enumerate(facts.ends)
        },
    )


def first_offsets(
    plan: MirrorPlan, sources: Mapping[int, TopicFacts]
) -> tuple[tuple[int, int, int], ...]:
    """Where a new mirror begins: pair, partition, offset."""
    return tuple(
        (number, partition, offset)
        for number, facts in sources.items()
        for partition, offset in enumerate(facts.ends if plan.start == "latest" else facts.starts)
    )


def as_mapped(plan: MirrorPlan, found: OffsetMap) -> MirrorPlan:
    """The plan with the numbers that its map gives: named topics, then what patterns have found.

    Raises:
        CorruptData: The map is not one of this plan.
    """
    places = {source.place.address: number for number, source in enumerate(plan.sources)}
    pairs = [
        Pair(places.get(source.place, -1), source.topic, source.target) for source in found.sources
    ]
    named = pairs[: len(plan.named)]
    if sorted(named) != sorted(plan.named) or any(pair.place < 0 for pair in pairs):
        raise CorruptData(f"the offset map is not of this mirror: its sources are {pairs}")
    # Names may be given in another order than at the first start.
    sources = tuple(
        dataclasses.replace(
            source, topics={pair.topic: pair.target for pair in named if pair.place == number}
        )
        for number, source in enumerate(plan.sources)
    )
    return dataclasses.replace(plan, sources=sources, found=tuple(pairs[len(named) :]))


def widened(
    found: OffsetMap,
    plan: MirrorPlan,
    sources: Mapping[int, TopicFacts],
    targets: Mapping[str, TopicFacts],
) -> OffsetMap:
    """The map with topics and partitions that came since.

    Args:
        found: The map.
        plan: With all pairs.
        sources: Of pairs that are new or have more partitions, by number.
        targets: Of all topics that these go into.

    Raises:
        InvalidRequest: As `grown`.
    """
    known = {topic: facts for topic, facts in targets.items() if topic in found.partition_counts}
    new = {topic: facts for topic, facts in targets.items() if topic not in known}
    found = grown(found, known)
    first = len(found.sources)
    copied = {
        SourcePartition(number, partition): Copied(start, start)
        for number, facts in sources.items()
        for partition, start in enumerate(facts.starts)
    }
    ends = {
        TopicPartition(topic, partition): end
        for topic, facts in new.items()
        for partition, end in enumerate(facts.ends)
    }
    return dataclasses.replace(
        found,
        target_ids={**found.target_ids, **{t: facts.topic_id for t, facts in new.items()}},
        partition_counts={**found.partition_counts, **{t: f.partitions for t, f in new.items()}},
        sources=(
            *found.sources,
            *(_source_topic(plan, n, sources[n]) for n in range(first, len(plan.pairs))),
        ),
        copied={**copied, **found.copied},
        ends={**ends, **found.ends},
    )


def _source_topic(plan: MirrorPlan, number: int, facts: TopicFacts) -> SourceTopic:
    pair = plan.pairs[number]
    return SourceTopic(
        place=plan.sources[pair.place].place.address,
        topic=pair.topic,
        topic_id=facts.topic_id,
        target=pair.target,
    )


def grown(found: OffsetMap, targets: Mapping[str, TopicFacts]) -> OffsetMap:
    """The map, with partitions that the target was given since.

    Raises:
        InvalidRequest: The target's topic is another one by its id, or has lost partitions; or
            keys choose among another number of partitions now.
    """
    ends = dict(found.ends)
    for topic, facts in targets.items():
        known = found.target_ids.get(topic)
        if known and facts.topic_id and known != facts.topic_id:
            raise InvalidRequest(
                f"{topic} at {found.target} was created anew (id {facts.topic_id}, the mirror wrote"
                f" to {known}): begin with a new checkpoint"
            )
        count = found.partition_counts[topic]
        if facts.partitions < count or (
            facts.partitions != count and found.partitioning is Partitioning.KEY
        ):
            raise InvalidRequest(
                f"{topic} at {found.target} had {count} partitions and has {facts.partitions}: keys"
                " would go elsewhere than before, or copies have gone; begin with a new checkpoint"
            )
        for number in range(count, facts.partitions):
            ends[TopicPartition(topic, number)] = 0
    counts = {topic: facts.partitions for topic, facts in targets.items()}
    counts = {**found.partition_counts, **counts}
    return dataclasses.replace(found, partition_counts=counts, ends=ends)
