"""What comes at a running mirror's places: topics that a pattern finds, partitions, settings.

It is looked at before each batch is written. What a batch holds was there when the batch was
planned, so whatever its rows name is known by then. New topics get their number in the offset map
before the first row of theirs is written; a restart reads it there, so numbers never change.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidelog.cluster.offset_map import OffsetMap
from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.spark.jobs.checks import lines
from tidelog.spark.jobs.mirror_places import (
    TopicFacts,
    partition_counts,
    read_configs,
    read_topic,
    widened,
)
from tidelog.spark.jobs.mirror_plan import MirrorPlan, Pair
from tidelog.spark.jobs.mirror_targets import change_settings, different, find_targets

# Asking every topic's settings at every batch would be most of what a small batch costs.
SETTINGS_EVERY_MS: Final = 60_000
# No policy at all is one: nothing is deleted.
_MAY_BE_EMPTY: Final = "cleanup.policy"


class Settings(StrEnum):
    """Treatment of settings that differ between a topic and its copy."""

    REPORT = "report"
    SYNC = "sync"


def with_topics(plan: MirrorPlan, env: Env) -> MirrorPlan:
    """The plan with what its patterns find now.

    Raises:
        InvalidRequest: There is nothing to copy.
        InvalidTopic, ClusterFailure: As their names say.
    """
    found = plan.with_found(_new_pairs(plan, _counts(plan, env)))
    if not found.pairs:
        patterns = ", ".join(f"{one.pattern} at {one.place}" for one in plan.sources)
        raise InvalidRequest(f"nothing to mirror yet: no topic is like {patterns}")
    return found


def _counts(plan: MirrorPlan, env: Env) -> list[Mapping[str, int]]:
    """Partitions of the topics of each place."""
    return [partition_counts(source.place, env) for source in plan.sources]


def _new_pairs(plan: MirrorPlan, counts: Sequence[Mapping[str, int]]) -> list[Pair]:
    # A topic that is being made has no partitions for a moment.
    there = [[topic for topic, count in one.items() if count] for one in counts]
    return [pair for place, topics in enumerate(there) for pair in plan.matches(place, topics)]


@dataclass(slots=True, kw_only=True)
class Growth:
    """Takes up what comes. For one thread.

    Attributes:
        plan: What is copied, with all that was found so far.
        env: Files and clock.
        create: Make topics that the target lacks, and partitions where numbers are kept.
        force: Go on where the target would lose records or their times.
        settings: What becomes of settings that differ.
    """

    plan: MirrorPlan
    env: Env
    create: bool = False
    force: bool = False
    settings: Settings = Settings.REPORT
    _told: dict[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    _asked_ms: int | None = None

    def look(self, found: OffsetMap) -> tuple[OffsetMap, tuple[str, ...]]:
        """The map with what is new, the same one where nothing is; and lines for people.

        Raises:
            UnknownTopic: The target lacks a topic, and it is not to be made.
            InvalidRequest: It has fewer partitions than numbers are kept.
            TargetLoses: It would refuse or lose records of a new topic.
            ClusterFailure, DirectoryLocked: A place can't be asked, or changed.
        """
        counts = _counts(self.plan, self.env)
        plan = self.plan.with_found(_new_pairs(self.plan, counts))
        notes: list[str] = []
        if numbers := _changed(plan, counts, found):
            found, notes = self._take_up(plan, numbers, found)
            self.plan = plan
        return found, (*notes, *self._compare())

    def _take_up(
        self, plan: MirrorPlan, numbers: Sequence[int], found: OffsetMap
    ) -> tuple[OffsetMap, list[str]]:
        sources = {number: _facts(plan, number, self.env) for number in numbers}
        first = len(found.sources)
        targets, findings = find_targets(
            plan, sources, self.env, create=self.create, force=self.force, is_new_from=first
        )
        notes = [_note(plan, number, facts, first) for number, facts in sources.items()]
        notes += lines(finding for finding in findings if finding.is_loss)
        return widened(found, plan, sources, targets), notes

    # -- settings ----------------------------------------------------------------------------

    def _compare(self) -> Iterator[str]:
        """Hold each copy's settings against those of its (first) source, now and then."""
        now_ms = self.env.clock.monotonic_ms()
        if self._asked_ms is not None and now_ms - self._asked_ms < SETTINGS_EVERY_MS:
            return
        self._asked_ms = now_ms
        models: dict[str, Pair] = {}
        for pair in self.plan.pairs:
            models.setdefault(pair.target, pair)
        there = read_configs(self.plan.target, models, self.env)
        for number, source in enumerate(self.plan.sources):
            mine = {topic: pair for topic, pair in models.items() if pair.place == number}
            wanted = read_configs(source.place, {pair.topic for pair in mine.values()}, self.env)
            for topic, pair in mine.items():
                # Who reads or writes what was deleted says so.
                if topic in there and pair.topic in wanted:
                    yield from self._compare_one(topic, pair, wanted[pair.topic], there[topic])

    def _compare_one(
        self, topic: str, pair: Pair, wanted: TopicConfig, there: TopicConfig
    ) -> Iterator[str]:
        source, target = self.plan.sources[pair.place].place, self.plan.target
        apart = different(wanted, there, target)
        is_news = apart != self._told.get(topic, {})
        self._told[topic] = apart
        if apart and self.settings is Settings.SYNC:
            changes = {name: _set_to(name, ours) for name, (ours, _) in apart.items()}
            change_settings(target, topic, changes, self.env)
        if apart and is_news:
            verb = "set like" if self.settings is Settings.SYNC else "differs from"
            texts = [f"{name}={theirs} ({ours})" for name, (ours, theirs) in apart.items()]
            yield f"{topic} at {target} {verb} {pair.topic} of {source}: {', '.join(texts)}"


def _set_to(name: str, text: str) -> str | None:
    """Return the value to set, None for back to the default where the source has none."""
    return text if text or name == _MAY_BE_EMPTY else None


def _changed(plan: MirrorPlan, counts: Sequence[Mapping[str, int]], found: OffsetMap) -> list[int]:
    """Numbers of pairs that the map lacks, or lacks partitions of."""
    known = Counter(place.source for place in found.copied)
    return [
        number
        for number, pair in enumerate(plan.pairs)
        if number >= len(found.sources) or counts[pair.place].get(pair.topic, 0) > known[number]
    ]


def _facts(plan: MirrorPlan, number: int, env: Env) -> TopicFacts:
    pair = plan.pairs[number]
    return read_topic(plan.sources[pair.place].place, pair.topic, plan.isolation, env)


def _note(plan: MirrorPlan, number: int, facts: TopicFacts, first_new: int) -> str:
    pair = plan.pairs[number]
    what = f"{pair.topic} of {plan.sources[pair.place].place}"
    if number < first_new:
        return f"{what} has {facts.partitions} partitions now"
    return f"{what} was found, with {facts.partitions} partitions; copied into {pair.target}"
