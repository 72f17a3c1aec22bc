"""Generational compaction keeps the log correct, however wrong its estimates are.

The log is a list of segments of (offset, key, value or None); a cleaning of this list follows the
rules of the real cleaner exactly. The real planner makes the plans from drawn estimates, so most
estimates are wrong. The delete horizon of a tombstone counts as expired right after the cleaning
that sets it, which is the hardest case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from tests.worlds.repetition import rarely

from tidelog.storage.compaction.generations.estimates import SegmentFacts
from tidelog.storage.compaction.generations.planning import (
    Demand,
    after_cleaning,
    after_merging,
    clean_end,
    measure,
    plan_generation,
    with_drops,
)

Entry = tuple[int, int, str | None]
KEYS = 3


@dataclass
class Segment:
    base: int
    end: int
    entries: list[Entry]
    cleaned_to: int
    is_marked: bool = False  # one cleaning has read the tombstones, so the next one may remove them


@dataclass
class Model:
    """A log, and the expected result of reading all of it."""

    segments: list[Segment] = field(default_factory=list)
    end: int = 0
    last: dict[int, str] = field(default_factory=dict)

    def append(self, keys: Sequence[tuple[int, bool]]) -> None:
        entries: list[Entry] = []
        for key, is_delete in keys:
            value = None if is_delete else f"v{self.end}"
            entries.append((self.end, key, value))
            self.last.pop(key, None)
            if value is not None:
                self.last[key] = value
            self.end += 1
        self.segments.append(Segment(entries[0][0], self.end, entries, entries[0][0]))

    def facts(self, live: Sequence[float]) -> list[SegmentFacts]:
        return [
            SegmentFacts(
                base_offset=each.base,
                end_offset=each.end,
                size_bytes=len(each.entries),
                cleaned_to=each.cleaned_to,
                live_bytes=len(each.entries) * part,
                sum_bytes=len(each.entries) * part,
                keys=len(each.entries) * part,
                has_due=each.is_marked and any(value is None for _, _, value in each.entries),
            )
            for each, part in zip(self.segments, live, strict=True)
        ]

    def clean(
        self, groups: Sequence[tuple[tuple[int, ...], bool]], map_from: int, mapped_to: int
    ) -> None:
        """Clean groups: each has its segments' base offsets, and whether to remove tombstones."""
        latest = {
            key: offset
            for each in self.segments
            for offset, key, _ in each.entries
            if map_from <= offset < mapped_to
        }
        made: dict[int, Segment] = {}
        gone: set[int] = set()
        for bases, drop in groups:
            if bases[0] >= mapped_to:
                continue
            parts = [each for each in self.segments if each.base in bases]
            entries = [
                entry
                for part in parts
                for entry in part.entries
                if self._stays(entry, latest, mapped_to, drop=drop and part.is_marked)
            ]
            proven = after_merging(
                after_cleaning(part.cleaned_to, map_from, mapped_to) for part in parts
            )
            # A merged segment has one horizon for all of its tombstones: that of its new tombstones
            # if it has any.
            made[bases[0]] = Segment(bases[0], parts[-1].end, entries, proven, is_marked=True)
            gone.update(bases)
        kept = [
            made.get(each.base, each) for each in self.segments if each.base not in gone - set(made)
        ]
        self.segments = kept

    def _stays(self, entry: Entry, latest: dict[int, int], mapped_to: int, *, drop: bool) -> bool:
        offset, key, value = entry
        if offset >= mapped_to:
            return True
        return latest.get(key, -1) <= offset and not (drop and value is None)

    def read(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for each in self.segments:
            for _, key, value in each.entries:
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        return found

    def check(self) -> None:
        assert self.read() == self.last
        offsets = [offset for each in self.segments for offset, _, _ in each.entries]
        assert offsets == sorted(set(offsets))
        clean = clean_end(self.facts([1.0] * len(self.segments)), 0)
        below = [key for each in self.segments for offset, key, _ in each.entries if offset < clean]
        assert len(below) == len(set(below))
        for each in self.segments:
            self._check_proof(each)

    def _check_proof(self, segment: Segment) -> None:
        """Assert that no record of a segment has a newer record of its key below `cleaned_to`."""
        newer = [(o, key) for each in self.segments for o, key, _ in each.entries]
        for offset, key, _ in segment.entries:
            assert not any(other == key and offset < at < segment.cleaned_to for at, other in newer)


def _append(model: Model, random: Random) -> None:
    count = random.randint(1, 4)
    model.append([(random.randrange(KEYS), random.random() < 0.5) for _ in range(count)])


def _clean_by_kafka(model: Model, _random: Random) -> None:
    """Clean like Kafka: map keys from the checkpoint, rewrite all, drop all expired tombstones."""
    map_from = clean_end(model.facts([1.0] * len(model.segments)), 0)
    model.clean([((each.base,), True) for each in model.segments], map_from, model.end)
    for each in model.segments:
        each.cleaned_to = model.end  # Kafka's checkpoint is one offset for the whole log


def _clean_by_plan(model: Model, random: Random) -> None:
    demand = Demand(
        cleanable_end=random.choice(model.segments).end,
        active_bytes=0,
        segment_bytes=4,
        space_factor=random.uniform(1.1, 2.0),
        count_error=random.choice([0.0, 0.1]),
        everything="asked" if random.random() < 0.2 else "",
    )
    plan = plan_generation(model.facts([random.random() for _ in model.segments]), demand)
    if plan.is_due:
        groups = [(group.bases, group.drop_expired) for group in plan.groups]
        model.clean(groups, plan.map_from, _full_at(plan.map_from, plan.map_to, random))


def _full_at(map_from: int, map_to: int, random: Random) -> int:
    """Return the end of the mapped offsets: `map_to`, or an earlier end as of a full map."""
    return random.choice([map_to, random.randint(map_from, map_to)])


def _clean_anything(model: Model, random: Random) -> None:
    """Clean random groups of segments, with a random range of mapped offsets.

    A real scheduler would not choose such groups or ranges. Tombstones are removed by the usual
    rules.
    """
    facts = model.facts([1.0] * len(model.segments))
    part = random.random()
    wanted = [each.base for each in model.segments if random.random() < part]
    groups: list[tuple[int, ...]] = []
    for slot, each in enumerate(model.segments):
        if each.base in wanted:
            is_next = groups and slot and model.segments[slot - 1].base == groups[-1][-1]
            if is_next and random.random() < 0.5:
                groups[-1] = (*groups[-1], each.base)
            else:
                groups.append((each.base,))
    map_from = random.choice([0, random.randrange(model.end)])
    map_to = model.segments[-1].end
    planned = with_drops(facts, groups, map_from, map_to)
    mapped_to = _full_at(map_from, map_to, random)
    model.clean([(g.bases, g.drop_expired) for g in planned], map_from, mapped_to)


STEPS = (_append, _append, _clean_anything, _clean_anything, _clean_by_plan, _clean_by_kafka)


@pytest.mark.parametrize("first", [*range(4), *map(rarely, range(4, 8))])
def test_no_deleted_key_returns_and_no_last_value_is_removed(first: int) -> None:
    """Seeds instead of hypothesis draw 200 logs per test: a failure needs many steps in a row."""
    for seed in range(first * 200, first * 200 + 200):
        random, model = Random(seed), Model()
        _append(model, random)
        for _ in range(16):
            step = random.choice(STEPS)
            if model.segments or step is _append:
                step(model, random)
            model.check()


def test_a_tombstone_stays_where_an_older_segment_was_not_cleaned_against_it() -> None:
    first = SegmentFacts(
        base_offset=0,
        end_offset=10,
        size_bytes=100,
        cleaned_to=10,
        live_bytes=100.0,
        sum_bytes=100.0,
        keys=10.0,
    )
    second = replace(first, base_offset=10, end_offset=20, live_bytes=0.0, sum_bytes=0.0)
    demand = Demand(cleanable_end=20, active_bytes=0, segment_bytes=100, space_factor=1.5)
    plan = plan_generation([first, second], demand)
    assert [(g.bases, g.drop_expired) for g in plan.groups] == [((10,), False)]


def _facts(count: int, keys: float) -> list[SegmentFacts]:
    """Return segments of 100 bytes; the last two were never cleaned and are half garbage."""
    whole = SegmentFacts(
        base_offset=0,
        end_offset=10,
        size_bytes=100,
        cleaned_to=10,
        live_bytes=100.0,
        sum_bytes=100.0,
        keys=keys,
    )
    found = [
        replace(whole, base_offset=at * 10, end_offset=at * 10 + 10, cleaned_to=(count - 2) * 10)
        for at in range(count - 2)
    ]
    for at in (count - 2, count - 1):
        dirty = replace(whole, base_offset=at * 10, end_offset=at * 10 + 10, cleaned_to=at * 10)
        found.append(replace(dirty, live_bytes=50.0, sum_bytes=50.0))
    return found


@pytest.mark.parametrize(
    ("count_error", "map_keys_max", "map_from"),
    [(0.0, 100.0, 40), (0.004, 100.0, 40), (0.006, 100.0, 0), (0.006, 65.0, 40)],
)
def test_all_keys_are_mapped_if_their_number_is_uncertain(
    count_error: float, map_keys_max: float, map_from: int
) -> None:
    """Offsets from 0 on are mapped only if the map has room: a full map can't count the keys."""
    demand = Demand(
        cleanable_end=60,
        active_bytes=0,
        segment_bytes=100,
        space_factor=1.1,
        map_keys_max=map_keys_max,
        count_error=count_error,
    )
    plan = plan_generation(_facts(6, keys=10.0), demand)
    assert plan.map_from == map_from
    assert [group.bases for group in plan.groups] == [(40,), (50,)]


def test_the_bound_is_reduced_by_the_uncertainty() -> None:
    demand = Demand(cleanable_end=60, active_bytes=0, segment_bytes=100, space_factor=2.0)
    facts = _facts(6, keys=10.0)
    assert measure(facts, demand).bound_bytes == 2 * 500
    assert measure(facts, replace(demand, live_error=0.01)).bound_bytes == pytest.approx(980)
    assert measure(facts, replace(demand, live_error=0.2)).bound_bytes == pytest.approx(900)


def test_bytes_that_arrive_after_the_active_segment_are_counted() -> None:
    demand = Demand(cleanable_end=60, active_bytes=7, segment_bytes=100, space_factor=2.0)
    assert measure(_facts(6, keys=10.0), demand).log_bytes == 700
    assert measure(_facts(6, keys=10.0), replace(demand, late_bytes=7)).log_bytes == 707
