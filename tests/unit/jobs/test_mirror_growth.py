"""Changes that a running mirror follows: topics of a pattern, partitions, settings."""

import dataclasses
import json
from pathlib import Path

import pytest
from tests.worlds.directories.topics import T0, append, grow, make

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import CorruptData, InvalidRequest, InvalidTopic, UnknownTopic
from tidelog.jobs.mirror.options import Settings
from tidelog.jobs.mirror.places import (
    SETTINGS_EVERY_MS,
    Growth,
    as_mapped,
    find_targets,
    first_map,
    first_offsets,
    read_sources,
    with_topics,
)
from tidelog.jobs.mirror.plan import (
    MirrorPlan,
    MirrorSource,
    MirrorState,
    Pair,
    excluding,
    plan_mirror,
)
from tidelog.jobs.mirror.run import source_options, starting_offsets
from tidelog.jobs.offset_map import CopiedRange, OffsetMap, SourcePartition, decode_map, encode_map
from tidelog.jobs.target_check import TargetLoses
from tidelog.spark.places import Place
from tidelog.spark.stream_options import read_stream_options
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord, TopicPartition


@pytest.fixture
def env() -> Env:
    return Env(clock=ManualClock(T0))


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Create a directory with three topics, one of which is internal (__consumer_offsets)."""
    path = make(f"{tmp_path}/a", "shop.orders", 2)
    make(path, "__consumer_offsets")
    make(path, "other")
    append(path, "shop.orders", 1, [NewRecord(value=b"%d" % n) for n in range(5)])
    return path


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = f"{tmp_path}/b"
    Directory.open(path, writable=True).close()
    return path


def shop(source: str, target: str, **more: object) -> MirrorPlan:
    given: dict[str, object] = {"pattern": r"shop\..*", "name": "east.{topic}"} | more
    return plan_mirror([source], (), target, checkpoint="m", **given)  # type: ignore[arg-type] # options by name


def begun(plan: MirrorPlan, env: Env) -> tuple[MirrorPlan, OffsetMap]:
    """Run the first steps of a new mirror; return its plan and its map."""
    plan = with_topics(plan, env)
    sources = read_sources(plan, env)
    targets, _ = find_targets(plan, sources, env, create=True, force=False, is_new_from=0)
    return plan, first_map(plan, sources, targets, first_offsets(plan, sources))


def given(path: str, topic: str) -> dict[str, str]:
    with Directory.open(path) as directory:
        return dict(directory.topic(topic).given)


def partitions(path: str, topic: str) -> int:
    with Directory.open(path) as directory:
        return directory.topic(topic).partitions


class TestPattern:
    def test_topics_like_it_are_found_and_named_by_the_template(
        self, source: str, target: str, env: Env
    ) -> None:
        plan = with_topics(shop(source, target, pattern=".*"), env)
        assert plan.pattern_pairs == (
            Pair(0, "other", "east.other"),
            Pair(0, "shop.orders", "east.shop.orders"),
        )
        assert plan.targets == ["east.other", "east.shop.orders"]

    def test_the_stream_reads_the_same_topics(self, source: str, target: str, env: Env) -> None:
        named = MirrorSource(Place.parse(source), {"other": "o"}, excluding(".*", ["x.*", "y"]))
        plan = with_topics(plan_mirror([named], (), target, checkpoint="m"), env)
        assert [pair.topic for pair in plan.pairs] == ["other", "shop.orders"]
        state = MirrorState(mirror_id="f" * 32, question={}, starts=())
        stream = read_stream_options(source_options(plan, 0, state, batch_records=7)).source
        topics = ["other", "shop.orders", "x1", "y", "y1", "__consumer_offsets"]
        topics += ["tidelog-spark-markers", "__x"]
        from tidelog.spark.tasks import matching_topics

        assert matching_topics(stream, topics) == ["other", "shop.orders", "y1", "__x"]
        assert plan.sources[0].matches(topics) == ["__x", "shop.orders", "y1"]

    def test_a_pattern_without_a_topic_is_refused(self, source: str, target: str, env: Env) -> None:
        with pytest.raises(InvalidRequest, match="no topic matches z at"):
            with_topics(shop(source, target, pattern="z"), env)

    def test_invalid_plans_are_refused(self, source: str, target: str) -> None:
        with pytest.raises(InvalidRequest, match=r"pattern '\(' is not"):
            shop(source, target, pattern="(")
        with pytest.raises(InvalidRequest, match="source and target are the same place"):
            shop(source, source)
        with pytest.raises(InvalidTopic, match="a/t"):
            shop(source, target, name="a/{topic}")
        with pytest.raises(InvalidRequest, match="which patterns never match"):
            plan_mirror([source], ["__consumer_offsets"], target, pattern="x", checkpoint="m")

    def test_a_restart_must_ask_for_the_same(self, source: str, target: str) -> None:
        plan = shop(source, target)
        state = MirrorState(mirror_id="f" * 32, question=plan.question(), starts=())
        state.ensure_same_request(plan)
        for more in ({"pattern": "z"}, {"name": "{topic}"}):
            with pytest.raises(InvalidRequest, match="sources was"):
                state.ensure_same_request(shop(source, target, **more))


class TestNew:
    def test_a_new_topic_gets_the_next_number_and_is_created(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(shop(source, target), env)
        growth = Growth(plan=plan, env=env, create=True)
        same, notes = growth.look(found)
        assert same is found
        assert notes == ()
        make(source, "shop.bills", 3)
        append(source, "shop.bills", 2, [NewRecord(value=b"x")])
        later, notes = growth.look(found)
        assert growth.plan.pairs[1] == Pair(0, "shop.bills", "east.shop.bills")
        assert notes[0].startswith(f"shop.bills of {source} was found, with 3 partitions")
        assert partitions(target, "east.shop.bills") == 3
        assert later.copied[SourcePartition(1, 2)] == CopiedRange(0, 0)
        assert later.ends[TopicPartition("east.shop.bills", 2)] == 0
        # After a restart, the stored map gives the same topics and topic numbers as before.
        known = decode_map(encode_map(later))
        assert known == later
        assert as_mapped(shop(source, target), known) == growth.plan

    def test_without_create_the_target_must_have_it(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(shop(source, target), env)
        make(source, "shop.bills", 3)
        growth = Growth(plan=plan, env=env)
        with pytest.raises(UnknownTopic, match=r"east\.shop\.bills"):
            growth.look(found)
        assert growth.plan == plan
        make(target, "east.shop.bills", 3)
        assert len(growth.look(found)[0].sources) == 2

    def test_a_target_that_loses_its_records_is_refused(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(shop(source, target), env)
        make(source, "shop.bills")
        append(source, "shop.bills", 0, [NewRecord(value=b"x", timestamp=T0)])
        make(target, "east.shop.bills", message_timestamp_type="LogAppendTime")
        with pytest.raises(TargetLoses, match="would be overwritten"):
            Growth(plan=plan, env=env).look(found)
        later, notes = Growth(plan=plan, env=env, force=True).look(found)
        assert len(later.sources) == 2
        assert any("would be overwritten" in note for note in notes)

    def test_a_new_mirror_from_the_ends_begins_new_topics_at_their_start(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(shop(source, target, start="latest"), env)
        state = MirrorState(
            mirror_id="f" * 32, question={}, starts=first_offsets(plan, read_sources(plan, env))
        )
        make(source, "shop.bills")
        append(source, "shop.bills", 0, [NewRecord(value=b"x")])
        growth = Growth(plan=plan, env=env, create=True)
        later, _ = growth.look(found)
        told = starting_offsets(growth.plan, 0, state.with_starts(later))
        assert told == '{"shop.orders": {"0": 0, "1": 5}, "shop.bills": {"0": 0}}'

    def test_a_map_of_another_mirror_is_refused(self, source: str, target: str, env: Env) -> None:
        plan, found = begun(shop(source, target), env)
        moved = (dataclasses.replace(found.sources[0], place="elsewhere"),)
        with pytest.raises(CorruptData, match="belongs to another mirror"):
            as_mapped(plan, dataclasses.replace(found, sources=moved))

    def test_names_in_another_order_keep_their_numbers(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(
            plan_mirror([source], ["shop.orders", "other"], target, checkpoint="m"), env
        )
        again = plan_mirror([source], ["other", "shop.orders"], target, checkpoint="m")
        state = MirrorState(
            mirror_id="f" * 32, question=json.loads(json.dumps(plan.question())), starts=()
        )
        state.ensure_same_request(again)
        assert again.pairs != plan.pairs
        assert as_mapped(again, found).pairs == plan.pairs

    def test_a_deleted_topic_of_a_pattern_does_not_end_the_mirror(
        self, source: str, target: str, env: Env
    ) -> None:
        make(source, "shop.bills")
        plan, found = begun(shop(source, target), env)
        with LogDir.open(source, options=LogDirOptions(writable=True)) as log_dir:
            log_dir.delete_topic("shop.bills")
        growth = Growth(plan=plan, env=env, create=True)
        assert growth.look(found)[0] is found
        assert [plan.pairs[n].topic for n in read_sources(plan, env)] == ["shop.orders"]
        named = plan_mirror([source], ["shop.bills"], target, checkpoint="m")
        with pytest.raises(UnknownTopic):
            read_sources(named, env)


class TestPartitions:
    def test_new_partitions_are_added_at_the_target(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(plan_mirror([source], ["shop.orders"], target, checkpoint="m"), env)
        grow(source, "shop.orders", 4)
        with pytest.raises(
            InvalidRequest, match=r"has 4 partitions, but shop\.orders at .* only 2"
        ):
            Growth(plan=plan, env=env).look(found)
        growth = Growth(plan=plan, env=env, create=True)
        later, notes = growth.look(found)
        assert notes == (f"shop.orders of {source} has 4 partitions now",)
        assert partitions(target, "shop.orders") == 4
        assert later.partition_counts == {"shop.orders": 4}
        assert later.copied[SourcePartition(0, 3)] == CopiedRange(0, 0)
        assert later.ends[TopicPartition("shop.orders", 3)] == 0
        assert growth.look(later)[0] is later

    def test_the_target_keeps_its_partition_count_if_keys_choose_partitions(
        self, source: str, target: str, env: Env
    ) -> None:

        asked = plan_mirror([source], ["shop.orders"], target, partitions="key", checkpoint="m")
        plan, found = begun(asked, env)
        grow(source, "shop.orders", 4)
        later, _ = Growth(plan=plan, env=env, create=True).look(found)
        assert partitions(target, "shop.orders") == 2
        assert later.copied[SourcePartition(0, 3)] == CopiedRange(0, 0)


class TestSettings:
    @pytest.mark.parametrize("how", list(Settings))
    def test_different_settings_are_reported_once_or_applied(
        self, source: str, target: str, env: Env, how: Settings
    ) -> None:
        plan, found = begun(plan_mirror([source], ["shop.orders"], target, checkpoint="m"), env)
        growth = Growth(plan=plan, env=env, settings=how)
        assert growth.look(found)[1] == ()
        with Directory.open(source, writable=True, env=env) as directory:
            changes = {"segment.bytes": "1048576", "message.timestamp.type": "LogAppendTime"}
            changes |= {"min.insync.replicas": "2"}
            directory.alter_config("shop.orders", dict(changes))
        clock = env.clock
        assert isinstance(clock, ManualClock)
        clock.advance(SETTINGS_EVERY_MS - 1)
        assert growth.look(found)[1] == ()
        clock.advance(1)
        (note,) = growth.look(found)[1]
        assert "segment.bytes=1073741824 (source: 1048576)" in note
        assert "insync" not in note
        assert "message.timestamp.type" not in note
        changed = given(target, "shop.orders").get("segment.bytes")
        assert changed == ("1048576" if how is Settings.SYNC else None)
        clock.advance(SETTINGS_EVERY_MS)
        assert growth.look(found)[1] == ()

    def test_a_setting_that_the_source_does_not_have_returns_to_its_default(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(plan_mirror([source], ["shop.orders"], target, checkpoint="m"), env)
        with Directory.open(target, writable=True, env=env) as directory:
            directory.alter_config("shop.orders", {"segment.jitter.ms": "1000"})
        growth = Growth(plan=plan, env=env, settings=Settings.SYNC)
        assert "segment.jitter.ms" in growth.look(found)[1][0]
        with Directory.open(target) as directory:
            assert directory.topic("shop.orders").config.segment_jitter_ms == 0

    def test_the_copy_of_a_topic_that_deletes_nothing_deletes_nothing(
        self, source: str, target: str, env: Env
    ) -> None:
        plan, found = begun(plan_mirror([source], ["shop.orders"], target, checkpoint="m"), env)
        with Directory.open(source, writable=True, env=env) as directory:
            directory.alter_config("shop.orders", {"cleanup.policy": ""})
        Growth(plan=plan, env=env, settings=Settings.SYNC).look(found)
        assert given(target, "shop.orders")["cleanup.policy"] == ""


def test_no_topic_is_created_if_any_target_would_lose_records(
    source: str, target: str, env: Env
) -> None:
    make(source, "shop.returns", retention_ms="60000")
    append(source, "shop.returns", 0, [NewRecord(value=b"old", timestamp=T0 - 120_000)])
    plan = with_topics(shop(source, target), env)
    with pytest.raises(TargetLoses):
        find_targets(plan, read_sources(plan, env), env, create=True, force=False, is_new_from=0)
    with Directory.open(target) as directory:
        assert list(directory.topics()) == []
