"""The target's side of a mirror: its topics are found or made, and held against what is coming."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tidelog.cluster.offset_map import Partitioning
from tidelog.config import DEFAULT_TOPIC_CONFIG, TopicConfig
from tidelog.env import Env
from tidelog.errors import InvalidRequest, UnknownTopic
from tidelog.spark.jobs.checks import Finding, Load, Target, check, ensure
from tidelog.spark.jobs.mirror_places import TopicFacts, read_topic
from tidelog.spark.jobs.mirror_plan import MirrorPlan
from tidelog.spark.jobs.replay_source import Question, find
from tidelog.spark.jobs.targets import make_topic, open_cluster, taken_back
from tidelog.spark.places import Place
from tidelog.storage.topics import NewTopic, check_new
from tidelog.types import IsolationLevel

_TIMESTAMP_TYPE: Final = "message.timestamp.type"
# Settings that Kafka does not know, or not by default.
_OURS: Final = ("tidelog.", "internal.")
# What is about a cluster's own brokers and tiers; it means nothing elsewhere.
_OF_A_CLUSTER: Final = frozenset(
    {
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)


def find_targets(
    plan: MirrorPlan,
    sources: Mapping[int, TopicFacts],
    env: Env,
    *,
    create: bool,
    force: bool,
    is_new_from: int | None,
) -> tuple[dict[str, TopicFacts], list[Finding]]:
    """The topics at the target, made where they are missing and `create` says so.

    Args:
        plan: The mirror.
        sources: Of the pairs that are looked at, by number.
        env: Files and clock.
        create: Make missing topics, and partitions where numbers are kept.
        force: Go on where records or their times would be lost.
        is_new_from: Number of the first pair that is new: what the sources of these hold by now is
            looked at. What was accepted once is not asked again; None for that of all.

    Returns:
        The facts by name, and what is worth knowing before it starts.

    Raises:
        UnknownTopic: A topic is missing and is not to be made.
        InvalidRequest: It has fewer partitions than records keep.
        TargetLoses: It would refuse or lose records; nothing was written.
    """
    topics = sorted({plan.pairs[number].target for number in sources})
    planned: dict[str, _Planned] = {}
    loads: dict[int, Load] = {}
    for topic in topics:
        numbers = _numbers(plan, topic, sources)
        copied = [sources[number] for number in numbers]
        planned[topic] = _find_or_plan(plan, topic, copied, env, create=create)
        for number in numbers:
            is_new = is_new_from is not None and number >= is_new_from
            loads[number] = _load(plan, number, sources[number], is_new=is_new)
            findings = check_pair(
                plan, number, sources[number], planned[topic].facts, env, loads[number]
            )
            ensure(_target(plan, number, planned[topic].facts), findings, force=force or not is_new)
    found: dict[str, TopicFacts] = {}
    notes: list[Finding] = []
    made: list[str] = []
    with taken_back(plan.target, made, env):
        for topic in topics:
            found[topic] = _as_planned(plan, topic, planned[topic], env, made)
            for number in _numbers(plan, topic, sources):
                # Once more: brokers have defaults of their own for a topic that was made.
                is_new = is_new_from is not None and number >= is_new_from
                facts = found[topic]
                findings = check_pair(plan, number, sources[number], facts, env, loads[number])
                ensure(_target(plan, number, facts), findings, force=force or not is_new)
                notes += findings
    return found, notes


def check_targets(
    plan: MirrorPlan, sources: Mapping[int, TopicFacts], env: Env, *, create: bool
) -> None:
    """Check that the topics at the target are there, or can be made. Changes nothing.

    Raises:
        UnknownTopic, InvalidRequest: As `find_targets`.
    """
    for topic in sorted({plan.pairs[number].target for number in sources}):
        copied = [sources[number] for number in _numbers(plan, topic, sources)]
        _find_or_plan(plan, topic, copied, env, create=create)


def _numbers(plan: MirrorPlan, topic: str, sources: Mapping[int, TopicFacts]) -> list[int]:
    """The pairs that are looked at and copy into a topic."""
    return [number for number in sorted(sources) if plan.pairs[number].target == topic]


class _Planned(NamedTuple):
    """A topic of the target as it is, or as it would be.

    Attributes:
        facts: What it is checked by.
        new: How it has to be made; None where it is there.
        is_short: Whether it is there, and needs the partitions of `facts`.
    """

    facts: TopicFacts
    new: NewTopic | None = None
    is_short: bool = False


def _find_or_plan(
    plan: MirrorPlan, topic: str, sources: Sequence[TopicFacts], env: Env, *, create: bool
) -> _Planned:
    """Find a topic, or plan how it is made. Changes nothing."""
    count = max(source.partitions for source in sources)
    try:
        there = read_topic(plan.target, topic, IsolationLevel.READ_UNCOMMITTED, env)
    except UnknownTopic as error:
        if not create:
            error.add_note(f"with create, {topic} is made at {plan.target} like its source")
            raise
        new = NewTopic(topic, count, settings_like(sources[0].config, plan.target))
        config = TopicConfig.parse(check_new(new)[0])[0]
        empty = (0,) * count
        return _Planned(TopicFacts(topic_id="", config=config, starts=empty, ends=empty), new)
    if not create or plan.partitioning is not Partitioning.KEPT or there.partitions >= count:
        return _Planned(there)
    added = (0,) * (count - there.partitions)
    return _Planned(
        replace(there, starts=there.starts + added, ends=there.ends + added), is_short=True
    )


def _as_planned(
    plan: MirrorPlan, topic: str, planned: _Planned, env: Env, made: list[str]
) -> TopicFacts:
    """Make a topic, which is then noted in `made`, or the partitions that it lacks; its facts."""
    new = planned.new
    if new is not None:
        make_topic(plan.target, topic, new.partitions, new.config, env)
        made.append(topic)
    elif planned.is_short:
        add_partitions(plan.target, topic, planned.facts.partitions, env)
    else:
        return planned.facts
    return read_topic(plan.target, topic, IsolationLevel.READ_UNCOMMITTED, env)


def settings_like(config: TopicConfig, target: Place) -> dict[str, str]:
    """The settings of a copy: those of the source that are not default; create times are kept."""
    defaults = DEFAULT_TOPIC_CONFIG.texts()
    return {
        name: text
        for name, text in config.texts().items()
        if text != defaults.get(name) and _is_copied(name, target)
    } | {_TIMESTAMP_TYPE: "CreateTime"}


def _is_copied(name: str, target: Place) -> bool:
    """Whether a setting is one that a copy has from its source."""
    if name == _TIMESTAMP_TYPE or name in _OF_A_CLUSTER:
        return False
    return not (target.is_broker and name.startswith(_OURS))


def different(source: TopicConfig, target: TopicConfig, place: Place) -> dict[str, tuple[str, str]]:
    """Settings in force that differ and that a copy has from its source: name -> both texts."""
    ours, theirs = source.texts(), target.texts()
    return {
        name: (ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(ours.keys() | theirs.keys())
        if _is_copied(name, place) and ours.get(name, "") != theirs.get(name, "")
    }


def change_settings(place: Place, topic: str, changes: Mapping[str, str | None], env: Env) -> None:
    """Set settings of a topic, None for back to the default.

    Raises:
        ConfigError, ClusterFailure, DirectoryLocked: They can't be changed.
    """
    if place.is_broker:
        from tidelog.cluster.topics import alter_config

        with open_cluster(place) as cluster:
            alter_config(cluster, topic, changes)
        return
    from tidelog.storage.log_dir import LogDir, LogDirOptions

    with LogDir.open(place.address, env=env, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.alter_config(topic, changes)


def add_partitions(place: Place, topic: str, partitions: int, env: Env) -> None:
    """Raise a topic's number of partitions.

    Raises:
        InvalidPartitions, ClusterFailure, DirectoryLocked: They can't be added.
    """
    if not place.is_broker:
        from tidelog.storage.log_dir import LogDir, LogDirOptions

        options = LogDirOptions(writable=True)
        with LogDir.open(place.address, env=env, options=options) as log_dir:
            log_dir.add_partitions(topic, partitions)
        return
    from tidelog.cluster.topics import add_partitions as grow

    with open_cluster(place) as cluster:
        grow(cluster, topic, partitions)


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
