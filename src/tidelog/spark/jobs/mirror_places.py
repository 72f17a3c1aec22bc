"""What a mirror asks the places it copies between before it starts: topics, offsets, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.offset_map import (
    Copied,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
)
from tidelog.config import DEFAULT_TOPIC_CONFIG, TopicConfig
from tidelog.env import Env
from tidelog.errors import InvalidRequest, UnknownTopic
from tidelog.spark.jobs.checks import Finding, Load, Target, check, ensure
from tidelog.spark.jobs.mirror_plan import MirrorPlan
from tidelog.spark.jobs.replay_source import Question, find
from tidelog.spark.jobs.targets import config_of_broker, open_cluster
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.cluster.connection import Cluster

_TIMESTAMP_TYPE: Final = "message.timestamp.type"
# Settings that Kafka does not know, or not by default.
_OURS: Final = ("tidelog.", "internal.")
_BROKERS_CHOOSE: Final = -1


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
    names = sorted(cluster.partitions(topic))
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


# -- the target ----------------------------------------------------------------------------------


def find_targets(
    plan: MirrorPlan,
    sources: Sequence[TopicFacts],
    env: Env,
    *,
    create: bool,
    force: bool,
    is_new: bool,
) -> tuple[dict[str, TopicFacts], list[Finding]]:
    """The topics at the target, made where they are missing and `create` says so.

    Args:
        plan: The mirror.
        sources: Of each pair.
        env: Files and clock.
        create: Make missing topics.
        force: Go on where records or their times would be lost.
        is_new: The mirror begins: what its sources hold by now is looked at. What was accepted
            then is not asked again.

    Returns:
        The facts by name, and what is worth knowing before it starts.

    Raises:
        UnknownTopic: A topic is missing and is not to be made.
        InvalidRequest: It has fewer partitions than records keep.
        TargetLoses: It would refuse or lose records; nothing was written.
    """
    found: dict[str, TopicFacts] = {}
    notes: list[Finding] = []
    for topic in plan.targets:
        numbers = [n for n, pair in enumerate(plan.pairs) if pair.target == topic]
        copied = [sources[number] for number in numbers]
        found[topic] = _find_or_make(plan, topic, copied, env, create=create)
        for number in numbers:
            load = _load(plan, number, sources[number], is_new=is_new)
            findings = check_pair(plan, number, sources[number], found[topic], env, load)
            ensure(_target(plan, number, found[topic]), findings, force=force or not is_new)
            notes += findings
    return found, notes


def _find_or_make(
    plan: MirrorPlan, topic: str, sources: Sequence[TopicFacts], env: Env, *, create: bool
) -> TopicFacts:
    level = IsolationLevel.READ_UNCOMMITTED
    try:
        return read_topic(plan.target, topic, level, env)
    except UnknownTopic as error:
        if not create:
            error.add_note(f"with create, {topic} is made at {plan.target} like its source")
            raise
    count = max(source.partitions for source in sources)
    make_topic(plan.target, topic, count, settings_like(sources[0].config, plan.target), env)
    return read_topic(plan.target, topic, level, env)


def settings_like(config: TopicConfig, target: Place) -> dict[str, str]:
    """The settings of a copy: those of the source that are not default; create times are kept."""
    defaults = DEFAULT_TOPIC_CONFIG.texts()
    return {
        name: text
        for name, text in config.texts().items()
        if text != defaults.get(name)
        and name != _TIMESTAMP_TYPE
        and not (target.is_broker and name.startswith(_OURS))
    } | {_TIMESTAMP_TYPE: "CreateTime"}


def make_topic(
    place: Place, topic: str, partitions: int, settings: Mapping[str, str], env: Env
) -> None:
    """Create a topic.

    Raises:
        ConfigError, InvalidTopic, ClusterFailure, DirectoryLocked: It can't be created.
    """
    if not place.is_broker:
        from tidelog.storage.log_dir import LogDir, LogDirOptions

        options = LogDirOptions(writable=True)
        with LogDir.open(place.address, env=env, options=options) as log_dir:
            log_dir.create_topic(topic, partitions=partitions, config=settings)
        return
    from confluent_kafka.cimpl import NewTopic

    new = NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=_BROKERS_CHOOSE,
        config=dict(settings),
    )
    with open_cluster(place) as cluster, cluster.typed(f"create topic {topic}"):
        cluster.admin().create_topics([new])[topic].result(timeout=cluster.timeout_s)


def check_pair(
    plan: MirrorPlan,
    number: int,
    source: TopicFacts,
    target: TopicFacts,
    env: Env,
    load: Load,
) -> list[Finding]:
    """What a topic of the target would do to the records of one source.

    Raises:
        InvalidRequest: Too few partitions to keep their numbers.
    """
    pair = plan.pairs[number]
    keeps = plan.partitioning is Partitioning.KEPT
    if keeps and source.partitions > target.partitions:
        raise InvalidRequest(
            f"{pair.topic} has {source.partitions} partitions and {pair.target} at {plan.target}"
            f" {target.partitions}: add some, or let keys choose (partitions key)"
        )
    return check(_target(plan, number, target), load, env.clock.now_ms())


def _target(plan: MirrorPlan, number: int, target: TopicFacts) -> Target:
    return Target(
        place=str(plan.target),
        topic=plan.pairs[number].target,
        partitions=target.partitions,
        config=target.config,
        end_offset=sum(target.ends),
    )


def _load(plan: MirrorPlan, number: int, source: TopicFacts, *, is_new: bool) -> Load:
    """What is known of what will come; of records that are not there yet only their limits."""
    keeps = plan.partitioning is Partitioning.KEPT
    if plan.start == "latest" or not is_new:
        return Load(
            batch_bytes_max=source.config.max_message_bytes,
            partitions=source.partitions if keeps else None,
        )
    pair = plan.pairs[number]
    question = Question(
        place=plan.sources[pair.place].place, topic=pair.topic, isolation=plan.isolation
    )
    return find(question).load(keeps_partitions=keeps)


# -- the map -------------------------------------------------------------------------------------


def first_map(
    plan: MirrorPlan,
    sources: Sequence[TopicFacts],
    targets: Mapping[str, TopicFacts],
    starts: Sequence[tuple[int, int, int]],
) -> OffsetMap:
    """The map of a mirror that has copied nothing yet.

    Args:
        plan: The mirror.
        sources: Of each pair.
        targets: By name.
        starts: Where it begins: pair, partition, offset.
    """
    return OffsetMap(
        target=str(plan.target),
        target_ids={topic: facts.topic_id for topic, facts in targets.items()},
        partition_counts={topic: facts.partitions for topic, facts in targets.items()},
        sources=tuple(
            SourceTopic(
                place=plan.sources[pair.place].place.address,
                topic=pair.topic,
                topic_id=facts.topic_id,
                target=pair.target,
            )
            for pair, facts in zip(plan.pairs, sources, strict=True)
        ),
        partitioning=plan.partitioning,
        copied={SourcePartition(a, b): Copied(start, start) for a, b, start in starts},
        ends={
            TopicPartition(topic, number): end
            for topic, facts in targets.items()
            for number, end in enumerate(facts.ends)
        },
    )


def first_offsets(
    plan: MirrorPlan, sources: Sequence[TopicFacts]
) -> tuple[tuple[int, int, int], ...]:
    """Where a new mirror begins: pair, partition, offset."""
    return tuple(
        (number, partition, offset)
        for number, facts in enumerate(sources)
        for partition, offset in enumerate(facts.ends if plan.start == "latest" else facts.starts)
    )


def grown(found: OffsetMap, targets: Mapping[str, TopicFacts]) -> OffsetMap:
    """The map, with partitions that the target was given since.

    Raises:
        InvalidRequest: The target's topic is another one by its id, or has lost partitions; or
            keys choose among another number of partitions now.
    """
    import dataclasses

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
    return dataclasses.replace(found, partition_counts=counts, ends=ends)
