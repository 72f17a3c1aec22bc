"""Reads topics, offsets and settings of a mirror's sources and target, and copies changes.

Before a mirror starts, this module reads the checkpoint, topics and settings, without Spark. It
finds or creates the topics at the target, checks whether these topics would refuse or lose the
expected records, and creates the first offset map. While the mirror runs, `Growth` copies changes:
new topics that match a pattern, new partitions, and changed settings.

The module `plan` chooses the names at the target, `commit` writes batches, and `offset_map` has the
rules of offset maps.

Invariants: new topics and partitions are looked up before each batch is written. All records of a
batch existed when Spark planned the batch. So all topics and partitions of these records are known
when the batch is written. A new topic gets its number in the offset map before its first row is
written. A restart reads the number from the map, so the number never changes.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, NamedTuple

from tidelog.amounts import plural
from tidelog.config import DEFAULT_TOPIC_CONFIG, TopicConfig
from tidelog.env import Env
from tidelog.errors import CorruptData, InvalidRequest, UnknownTopic
from tidelog.jobs.mirror.options import MirrorOptions, Settings
from tidelog.jobs.mirror.plan import (
    SPARK_DIR,
    STATE_FILE,
    MirrorPlan,
    Pair,
    read_state,
)
from tidelog.jobs.offset_map import (
    CopiedRange,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
)
from tidelog.jobs.place_topics import (
    TopicFacts,
    config_of_broker,
    make_topic,
    open_cluster,
    open_log_dir,
    open_topics,
    partition_counts,
    read_topic,
    rollback_of_topics,
)
from tidelog.jobs.source_ranges import Question, find
from tidelog.jobs.target_check import ExpectedWrite, Finding, Target, check, ensure, lines
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.places import Place
from tidelog.storage.directory.topic_registry import NewTopic, check_new
from tidelog.types import IsolationLevel, TopicPartition


def read_configs(place: Place, topics: Iterable[str], env: Env) -> dict[str, TopicConfig]:
    """Return the settings that apply to each existing topic; raises ClusterFailure."""
    names = set(topics)
    if place.is_broker:
        from tidelog.remote.topics import describe

        with open_cluster(place) as cluster:
            counts = {name: count for name, count in cluster.topics().items() if name in names}
            described = describe(cluster, counts)
        return {name: config_of_broker(topic.settings) for name, topic in described.items()}
    with open_log_dir(place, env) as log_dir:
        return {name: info.config for name, info in log_dir.topics().items() if name in names}


# -- the offset map ------------------------------------------------------------------------------


def first_map(
    plan: MirrorPlan,
    sources: Mapping[int, TopicFacts],
    targets: Mapping[str, TopicFacts],
    starts: Sequence[tuple[int, int, int]],
) -> OffsetMap:
    """Return the offset map of a mirror that has copied nothing yet.

    Args:
        plan: The plan.
        sources: Properties of the source topics, by the pair's index in `plan.pairs`.
        targets: Properties of the target topics, by name.
        starts: Start offsets as (index of the pair, partition, offset).
    """
    return OffsetMap(
        target=str(plan.target),
        target_ids={topic: facts.topic_id for topic, facts in targets.items()},
        partition_counts={topic: facts.partitions for topic, facts in targets.items()},
        sources=tuple(_source_topic(plan, n, facts) for n, facts in sources.items()),
        partitioning=plan.partitioning,
        copied={SourcePartition(a, b): CopiedRange(start, start) for a, b, start in starts},
        ends={
            TopicPartition(topic, number): end
            for topic, facts in targets.items()
            for number, end in enumerate(facts.ends)
        },
    )


def first_offsets(
    plan: MirrorPlan, sources: Mapping[int, TopicFacts]
) -> tuple[tuple[int, int, int], ...]:
    """Return the start offsets of a new mirror as (index of the pair, partition, offset)."""
    return tuple(
        (number, partition, offset)
        for number, facts in sources.items()
        for partition, offset in enumerate(facts.ends if plan.start == "latest" else facts.starts)
    )


def as_mapped(plan: MirrorPlan, offset_map: OffsetMap) -> MirrorPlan:
    """Return the plan with topics in the map's order: named topics, then topics found by patterns.

    Raises:
        CorruptData: The offset map belongs to another mirror.
    """
    numbers = {source.place.address: number for number, source in enumerate(plan.sources)}
    pairs = [
        Pair(numbers.get(source.place, -1), source.topic, source.target)
        for source in offset_map.sources
    ]
    named = pairs[: len(plan.named)]
    if sorted(named) != sorted(plan.named) or any(pair.source < 0 for pair in pairs):
        raise CorruptData(
            f"the offset map belongs to another mirror: the map's sources are {pairs}"
        )
    # The order of the names may differ from the order at the mirror's first start.
    sources = tuple(
        dataclasses.replace(
            source, topics={pair.topic: pair.target for pair in named if pair.source == number}
        )
        for number, source in enumerate(plan.sources)
    )
    return dataclasses.replace(plan, sources=sources, pattern_pairs=tuple(pairs[len(named) :]))


def widened(
    offset_map: OffsetMap,
    plan: MirrorPlan,
    sources: Mapping[int, TopicFacts],
    targets: Mapping[str, TopicFacts],
) -> OffsetMap:
    """Return the map with new topics and partitions added.

    Args:
        offset_map: The map.
        plan: The plan, including the new pairs.
        sources: Properties of source topics that are new or have new partitions, by the pair's
            index in `plan.pairs`.
        targets: Properties of the target topics of all topics in `sources`.

    Raises:
        InvalidRequest: A topic at the target was recreated or has fewer partitions; or keys choose
            the partition, and the topic's number of partitions has changed.
    """
    mapped = {
        topic: facts for topic, facts in targets.items() if topic in offset_map.partition_counts
    }
    new = {topic: facts for topic, facts in targets.items() if topic not in mapped}
    offset_map = grown(offset_map, mapped)
    first = len(offset_map.sources)
    copied = {
        SourcePartition(number, partition): CopiedRange(start, start)
        for number, facts in sources.items()
        for partition, start in enumerate(facts.starts)
    }
    ends = {
        TopicPartition(topic, partition): end
        for topic, facts in new.items()
        for partition, end in enumerate(facts.ends)
    }
    return dataclasses.replace(
        offset_map,
        target_ids={**offset_map.target_ids, **{t: facts.topic_id for t, facts in new.items()}},
        partition_counts={
            **offset_map.partition_counts,
            **{t: f.partitions for t, f in new.items()},
        },
        sources=(
            *offset_map.sources,
            *(_source_topic(plan, n, sources[n]) for n in range(first, len(plan.pairs))),
        ),
        copied={**copied, **offset_map.copied},
        ends={**ends, **offset_map.ends},
    )


def _source_topic(plan: MirrorPlan, number: int, facts: TopicFacts) -> SourceTopic:
    pair = plan.pairs[number]
    return SourceTopic(
        place=plan.sources[pair.source].place.address,
        topic=pair.topic,
        topic_id=facts.topic_id,
        target=pair.target,
    )


def grown(offset_map: OffsetMap, targets: Mapping[str, TopicFacts]) -> OffsetMap:
    """Return the map with new partitions of target topics added.

    Raises:
        InvalidRequest: A topic at the target was recreated or has fewer partitions; or keys choose
            the partition, and the topic's number of partitions has changed.
    """
    ends = dict(offset_map.ends)
    for topic, facts in targets.items():
        mapped_id = offset_map.target_ids.get(topic)
        if mapped_id and facts.topic_id and mapped_id != facts.topic_id:
            raise InvalidRequest(
                f"{topic} at {offset_map.target} was recreated: its id is {facts.topic_id}, but the"
                f" mirror wrote to id {mapped_id}; start with a new checkpoint"
            )
        count = offset_map.partition_counts[topic]
        if facts.partitions < count or (
            facts.partitions != count and offset_map.partitioning is Partitioning.KEY
        ):
            is_less = facts.partitions < count
            reason = "copied records are lost" if is_less else "keys would map to other partitions"
            raise InvalidRequest(
                f"{topic} at {offset_map.target} had {plural(count, 'partition')} and has"
                f" {facts.partitions}: {reason}; start with a new checkpoint"
            )
        for number in range(count, facts.partitions):
            ends[TopicPartition(topic, number)] = 0
    counts = {topic: facts.partitions for topic, facts in targets.items()}
    counts = {**offset_map.partition_counts, **counts}
    return dataclasses.replace(offset_map, partition_counts=counts, ends=ends)


_TIMESTAMP_TYPE: Final = "message.timestamp.type"

# Prefixes of the names of settings that some or all Kafka brokers don't know.
_OURS: Final = ("tidelog.", "internal.")

# Settings that concern a cluster's own brokers and tiers. The mirror does not copy these settings,
# because they have no meaning at another place.
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
    """Find the target topics, and check them; create missing topics if `create` is true.

    Args:
        plan: The plan.
        sources: Properties of the source topics to check, by the pair's index in `plan.pairs`.
        env: Files and clock.
        create: Whether to create missing topics and, if records keep their partition's number,
            missing partitions.
        force: Whether to continue even if records or their times would be lost.
        is_new_from: Index of the first new pair; None if no pair is new. For a new pair, the
            existing records of its source topic are checked, too. A loss of records is an error
            only for a new pair. If an earlier pair would lose records, the user accepted this when
            the pair was new.

    Returns:
        Properties of the target topics by name, and the findings of the checks.

    Raises:
        UnknownTopic: A target topic is missing, and `create` is false.
        InvalidRequest: The target directory is missing, and `create` is false; or a target topic
            has too few partitions for records to keep their partition's number.
        TargetLoses: A target topic would refuse or lose records; nothing was written.
    """
    planned, check_all = _check_planned(
        plan, sources, env, create=create, force=force, is_new_from=is_new_from
    )
    targets: dict[str, TopicFacts] = {}
    notes: list[Finding] = []
    created_topics: list[str] = []
    with rollback_of_topics(plan.target, created_topics, env):
        for topic, one in planned.items():
            targets[topic] = _as_planned(plan, topic, one, env, created_topics)
            # The topic is checked again, because brokers add their defaults to the settings of a
            # created topic.
            notes += check_all(topic, one._replace(facts=targets[topic]))
    return targets, notes


def _check_planned(
    plan: MirrorPlan,
    sources: Mapping[int, TopicFacts],
    env: Env,
    *,
    create: bool,
    force: bool,
    is_new_from: int | None,
) -> "tuple[dict[str, _Planned], Callable[[str, _Planned], list[Finding]]]":
    """Find or plan the target topics, and check them.

    Nothing is changed.

    Returns:
        The target topics by name, and the function that checks a target topic.

    Raises:
        UnknownTopic, InvalidRequest, TargetLoses: See `find_targets`.
    """
    planned = check_targets(plan, sources, env, create=create)
    new = {n for n in sources if is_new_from is not None and n >= is_new_from}
    loads = {n: _load(plan, n, facts, is_new=n in new) for n, facts in sources.items()}
    # With the same time in all texts, topics with the same settings have findings with equal texts.
    now_ms = env.clock.now_ms()

    def check_all(topic: str, one: _Planned) -> list[Finding]:
        reported: list[Finding] = []
        for number in _numbers(plan, topic, sources):
            findings = check_pair(plan, number, sources[number], one, now_ms, loads[number])
            is_forced = force or number not in new
            ensure(_target(plan, number, one), findings, force=is_forced)
            # Records of earlier pairs are not counted by time. So for an earlier pair, a finding
            # other than a loss would only state that the number of records is unknown. Such
            # findings are left out.
            reported += [finding for finding in findings if number in new or finding.is_loss]
        return reported

    for topic, one in planned.items():
        check_all(topic, one)
    return planned, check_all


def check_targets(
    plan: MirrorPlan, sources: Mapping[int, TopicFacts], env: Env, *, create: bool
) -> "dict[str, _Planned]":
    """Find the target topics, or plan to create missing topics; changes nothing.

    Raises:
        UnknownTopic: A target topic is missing, and `create` is false.
        InvalidRequest: The target directory is missing, and `create` is false; or a topic can't be
            created.
    """
    return {
        topic: _find_or_plan(
            plan, topic, [sources[n] for n in _numbers(plan, topic, sources)], env, create=create
        )
        for topic in sorted({plan.pairs[number].target for number in sources})
    }


def _numbers(plan: MirrorPlan, topic: str, sources: Mapping[int, TopicFacts]) -> list[int]:
    """Return the indexes of the pairs in `sources` whose target is `topic`."""
    return [number for number in sorted(sources) if plan.pairs[number].target == topic]


class _Planned(NamedTuple):
    """A target topic as it exists or, if it is missing, as the mirror would create it.

    Attributes:
        facts: Properties of the topic, including partitions that are planned but missing.
        new: How to create the topic; None if it exists.
        is_short: Whether the topic exists, but has fewer partitions than `facts`, so that the
            missing partitions must be added.
    """

    facts: TopicFacts
    new: NewTopic | None = None
    is_short: bool = False


def _find_or_plan(
    plan: MirrorPlan, topic: str, sources: Sequence[TopicFacts], env: Env, *, create: bool
) -> _Planned:
    """Find a topic at the target; if it is missing, plan how to create it. Changes nothing."""
    count = max(source.partitions for source in sources)
    try:
        if _is_missing(plan.target, env):
            if not create:
                raise InvalidRequest(
                    f"{plan.target}: the target directory does not exist; --create (create=True)"
                    " creates it"
                )
            raise UnknownTopic(f"{plan.target}: no such directory")
        existing = read_topic(plan.target, topic, IsolationLevel.READ_UNCOMMITTED, env)
    except UnknownTopic as error:
        if not create:
            error.add_note(
                f"--create (create=True) creates {topic} at {plan.target} with the settings of its"
                " source"
            )
            raise
        new = NewTopic(topic, count, settings_like(sources[0].config, plan.target))
        config = TopicConfig.parse(check_new(new)[0])[0]
        empty = (0,) * count
        return _Planned(TopicFacts(topic_id="", config=config, starts=empty, ends=empty), new)
    if not create or plan.partitioning is not Partitioning.KEPT or existing.partitions >= count:
        return _Planned(existing)
    added = (0,) * (count - existing.partitions)
    return _Planned(
        replace(existing, starts=existing.starts + added, ends=existing.ends + added), is_short=True
    )


def _is_missing(place: Place, env: Env) -> bool:
    """Return whether a place is a missing local directory, which `make_topic` would create."""
    is_local = not place.is_broker and "://" not in place.address
    return is_local and not env.files.exists(place.address)


def _as_planned(
    plan: MirrorPlan, topic: str, planned: _Planned, env: Env, created_topics: list[str]
) -> TopicFacts:
    """Create a topic or its missing partitions as planned; return the topic's properties.

    A created topic is added to `created_topics`.
    """
    new = planned.new
    if new is not None:
        make_topic(plan.target, topic, new.partitions, new.config, env)
        created_topics.append(topic)
    elif planned.is_short:
        with open_topics(plan.target, env) as topics:
            topics.add_partitions(topic, planned.facts.partitions)
    else:
        return planned.facts
    return read_topic(plan.target, topic, IsolationLevel.READ_UNCOMMITTED, env)


def settings_like(config: TopicConfig, target: Place) -> dict[str, str]:
    """Return settings for a copy: the source's settings that are not defaults, and CreateTime.

    Settings that a mirror does not copy to this target are left out.
    """
    defaults = DEFAULT_TOPIC_CONFIG.texts()
    return {
        name: text
        for name, text in config.texts().items()
        if text != defaults.get(name) and _is_copied(name, target)
    } | {_TIMESTAMP_TYPE: "CreateTime"}


def _is_copied(name: str, target: Place) -> bool:
    """Return whether a mirror copies the setting `name` to a topic at `target`."""
    if name == _TIMESTAMP_TYPE or name in _OF_A_CLUSTER:
        return False
    return not (target.is_broker and name.startswith(_OURS))


def different(source: TopicConfig, target: TopicConfig, place: Place) -> dict[str, tuple[str, str]]:
    """Return the copied settings that differ: text at source and at target, by name."""
    ours, theirs = source.texts(), target.texts()
    return {
        name: (ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(ours.keys() | theirs.keys())
        if _is_copied(name, place) and ours.get(name, "") != theirs.get(name, "")
    }


def change_settings(place: Place, topic: str, changes: Mapping[str, str | None], env: Env) -> None:
    """Change settings of a topic. None resets a setting to its default.

    Raises:
        ConfigError, ClusterFailure, DirectoryLocked: The settings can't be changed.
    """
    with open_topics(place, env) as topics:
        topics.alter_config(topic, changes)


def check_pair(
    plan: MirrorPlan,
    number: int,
    source: TopicFacts,
    target: _Planned,
    now_ms: int,
    load: ExpectedWrite,
) -> list[Finding]:
    """Return findings on how a target topic would treat the records of one source.

    Args:
        plan: The plan.
        number: Index of the pair in `plan.pairs`.
        source: Properties of the source topic.
        target: The target topic.
        now_ms: Current time in ms.
        load: Known properties of the records that the mirror will write.

    Raises:
        InvalidRequest: The target has too few partitions for records to keep their partition's
            number.
    """
    pair = plan.pairs[number]
    keeps = plan.partitioning is Partitioning.KEPT
    if keeps and source.partitions > target.facts.partitions:
        raise InvalidRequest(
            f"{pair.topic} has {plural(source.partitions, 'partition')}, but {pair.target} at"
            f" {plan.target} has only {target.facts.partitions}: add partitions, or use"
            " --partitions key (partitions='key')"
        )
    return check(_target(plan, number, target), load, now_ms)


def _target(plan: MirrorPlan, number: int, target: _Planned) -> Target:
    return Target(
        place=str(plan.target),
        topic=plan.pairs[number].target,
        partitions=target.facts.partitions,
        config=target.facts.config,
        end_offset=sum(target.facts.ends),
        created_with=None if target.new is None else target.new.config,
    )


def _load(plan: MirrorPlan, number: int, source: TopicFacts, *, is_new: bool) -> ExpectedWrite:
    """Return what is known about the records that the mirror will write for a pair.

    Existing records are counted only for a new pair, and only if the mirror copies them.
    """
    keeps = plan.partitioning is Partitioning.KEPT
    if plan.start == "latest" or not is_new:
        return ExpectedWrite(
            batch_bytes_max=source.config.max_message_bytes,
            partitions=source.partitions if keeps else None,
        )
    pair = plan.pairs[number]
    question = Question(
        place=plan.sources[pair.source].place, topic=pair.topic, isolation=plan.isolation
    )
    return find(question).load(keeps_partitions=keeps)


# Minimum interval in ms between two reads of all topics' settings. Reading the settings takes
# longer than all other work for a small batch.
SETTINGS_EVERY_MS: Final = 60_000

# The only setting that can have an empty value. An empty `cleanup.policy` means that nothing is
# deleted.
_MAY_BE_EMPTY: Final = "cleanup.policy"


def with_topics(plan: MirrorPlan, env: Env) -> MirrorPlan:
    """Return the plan with all existing topics that match its patterns.

    Raises:
        InvalidRequest: No topic is named, and no topic matches a pattern.
        InvalidTopic: A new topic's name at the target is not valid.
        ClusterFailure: A cluster can't be reached.
    """
    grown_plan = plan.with_pattern_pairs(_new_pairs(plan, _counts(plan, env)))
    if not grown_plan.pairs:
        patterns = ", ".join(f"{one.pattern} at {one.place}" for one in plan.sources)
        raise InvalidRequest(f"nothing to mirror yet: no topic matches {patterns}")
    return grown_plan


def _counts(plan: MirrorPlan, env: Env) -> list[Mapping[str, int]]:
    """Return the numbers of partitions by topic, for each source."""
    return [partition_counts(source.place, env) for source in plan.sources]


def _new_pairs(plan: MirrorPlan, counts: Sequence[Mapping[str, int]]) -> list[Pair]:
    # A topic that is being created may briefly have no partitions.
    source_topics = [[topic for topic, count in one.items() if count] for one in counts]
    return [
        pair for number, topics in enumerate(source_topics) for pair in plan.matches(number, topics)
    ]


@dataclass(slots=True, kw_only=True)
class Growth:
    """Copies new topics, partitions and changed settings to the target. Not thread-safe.

    Attributes:
        plan: The plan with all topics found so far.
        env: Files and clock.
        create: Whether to create missing topics at the target and, if records keep their
            partition's number, missing partitions.
        force: Whether to continue even if the target would lose records or their times.
        settings: REPORT if settings that differ are only reported, SYNC if they are also set at the
            target.
    """

    plan: MirrorPlan
    env: Env
    create: bool = False
    force: bool = False
    settings: Settings = Settings.REPORT
    _reported: dict[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    _compared_ms: int | None = None

    def look(self, offset_map: OffsetMap) -> tuple[OffsetMap, tuple[str, ...]]:
        """Copy new topics, new partitions and changed settings to the target, as configured.

        Returns:
            The map with new topics and partitions added, and notes for the user.

        Raises:
            UnknownTopic: A target topic is missing, and `create` is false.
            InvalidRequest: A target topic has too few partitions for records to keep their
                partition's number.
            TargetLoses: A target topic would refuse or lose records of a new topic.
            ClusterFailure, DirectoryLocked: A place can't be read or changed.
        """
        counts = _counts(self.plan, self.env)
        plan = self.plan.with_pattern_pairs(_new_pairs(self.plan, counts))
        notes: list[str] = []
        if numbers := _changed(plan, counts, offset_map):
            offset_map, notes = self._add(plan, numbers, offset_map)
            self.plan = plan
        return offset_map, (*notes, *self._compare())

    def _add(
        self, plan: MirrorPlan, numbers: Sequence[int], offset_map: OffsetMap
    ) -> tuple[OffsetMap, list[str]]:
        """Find or create the targets of new pairs and partitions.

        Returns the map with these pairs and partitions added, and notes on them.
        """
        sources = {number: _facts(plan, number, self.env) for number in numbers}
        first = len(offset_map.sources)
        targets, findings = find_targets(
            plan, sources, self.env, create=self.create, force=self.force, is_new_from=first
        )
        notes = [_note(plan, number, facts, first) for number, facts in sources.items()]
        notes += lines(finding for finding in findings if finding.is_loss)
        return widened(offset_map, plan, sources, targets), notes

    # -- settings ----------------------------------------------------------------------------

    def _compare(self) -> Iterator[str]:
        """Compare the settings of topics and their copies, at most once a minute; yield notes.

        With `Settings.SYNC`, also change the copies' settings.
        """
        now_ms = self.env.clock.monotonic_ms()
        if self._compared_ms is not None and now_ms - self._compared_ms < SETTINGS_EVERY_MS:
            return
        self._compared_ms = now_ms
        models: dict[str, Pair] = {}
        for pair in self.plan.pairs:
            models.setdefault(pair.target, pair)
        target_configs = read_configs(self.plan.target, models, self.env)
        for number, source in enumerate(self.plan.sources):
            copies = {topic: pair for topic, pair in models.items() if pair.source == number}
            source_configs = read_configs(
                source.place, {pair.topic for pair in copies.values()}, self.env
            )
            for topic, pair in copies.items():
                # A deleted topic is not compared. The next read or write of the topic raises an
                # error.
                if topic in target_configs and pair.topic in source_configs:
                    yield from self._compare_one(
                        topic, pair, source_configs[pair.topic], target_configs[topic]
                    )

    def _compare_one(
        self, topic: str, pair: Pair, source_config: TopicConfig, target_config: TopicConfig
    ) -> Iterator[str]:
        source, target = self.plan.sources[pair.source].place, self.plan.target
        differences = different(source_config, target_config, target)
        is_new = differences != self._reported.get(topic, {})
        self._reported[topic] = differences
        if differences and self.settings is Settings.SYNC:
            changes = {name: _set_to(name, ours) for name, (ours, _) in differences.items()}
            change_settings(target, topic, changes, self.env)
        if differences and is_new:
            verb = "was set like" if self.settings is Settings.SYNC else "differs from"
            texts = [
                f"{name}={theirs} (source: {ours})" for name, (ours, theirs) in differences.items()
            ]
            yield f"{topic} at {target} {verb} {pair.topic} of {source}: {', '.join(texts)}"


def growth_of(plan: MirrorPlan, options: MirrorOptions, env: Env) -> Growth:
    """Return a `Growth` with the mirror's options."""
    return Growth(
        plan=plan,
        env=env,
        create=options["create"],
        force=options["force"],
        settings=Settings(options["settings"]),
    )


def _set_to(name: str, text: str) -> str | None:
    """Return the value for a setting at the target; None if the setting must be reset."""
    return text if text or name == _MAY_BE_EMPTY else None


def _changed(
    plan: MirrorPlan, counts: Sequence[Mapping[str, int]], offset_map: OffsetMap
) -> list[int]:
    """Return the indexes of pairs that are new, or have new partitions, compared with the map."""
    mapped_counts = Counter(name.source for name in offset_map.copied)
    return [
        number
        for number, pair in enumerate(plan.pairs)
        if number >= len(offset_map.sources)
        or counts[pair.source].get(pair.topic, 0) > mapped_counts[number]
    ]


def _facts(plan: MirrorPlan, number: int, env: Env) -> TopicFacts:
    pair = plan.pairs[number]
    return read_topic(plan.sources[pair.source].place, pair.topic, plan.isolation, env)


def _note(plan: MirrorPlan, number: int, facts: TopicFacts, first_new: int) -> str:
    pair = plan.pairs[number]
    what = f"{pair.topic} of {plan.sources[pair.source].place}"
    partitions = plural(facts.partitions, "partition")
    if number < first_new:
        return f"{what} has {partitions} now"
    return f"{what} was found, with {partitions}; copied into {pair.target}"


def read_sources(plan: MirrorPlan, env: Env) -> dict[int, TopicFacts]:
    """Return the properties of source topics, by their pair's index in `plan.pairs`.

    A topic that was found by a pattern and no longer exists is left out.

    Raises:
        UnknownTopic: A topic that was named does not exist.
        ClusterFailure: A cluster can't be reached.
    """
    facts: dict[int, TopicFacts] = {}
    named = len(plan.named)
    for number, pair in enumerate(plan.pairs):
        try:
            place = plan.sources[pair.source].place
            facts[number] = read_topic(place, pair.topic, plan.isolation, env)
        except UnknownTopic:
            if number < named:
                raise
    return facts


def check_start(plan: MirrorPlan, checkpoint: str, env: Env, *, create: bool, force: bool) -> None:
    """Check that a mirror can start; changes nothing.

    If the checkpoint exists, the only check is that it belongs to the same mirror.

    Args:
        plan: The plan.
        checkpoint: Path of the checkpoint's folder.
        env: Files and clock.
        create: Whether the mirror will create missing topics at the target.
        force: Whether the mirror may start even if records or their times would be lost.

    Raises:
        UnknownTopic, InvalidRequest, TargetLoses, CorruptFile, UnsupportedVersion, ClusterFailure:
            The mirror would fail to start with this error.
    """
    state = read_state(env, checkpoint)
    if state is not None:
        state.ensure_same_request(plan)
        return
    check_empty(checkpoint, env)
    plan = with_topics(plan, env)
    sources = read_sources(plan, env)
    _check_planned(plan, sources, env, create=create, force=force, is_new_from=0)


def check_empty(checkpoint: str, env: Env) -> None:
    """Raise InvalidRequest if the folder for a new mirror has a checkpoint of another query."""
    spark_dir = f"{checkpoint}/{SPARK_DIR}"
    if env.files.exists(spark_dir):
        raise InvalidRequest(
            f"{spark_dir} exists without {STATE_FILE}, so it is not the checkpoint of a"
            " mirror; give another folder"
        )
