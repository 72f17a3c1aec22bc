"""Properties of sources and target that a mirror reads and uses, tested with directories."""

import dataclasses
from pathlib import Path

import pytest
from tests.worlds.directories.topics import append, make

from tidelog.cli.surroundings import describe
from tidelog.config import TopicConfig
from tidelog.env import os_env
from tidelog.errors import InvalidRequest, UnknownTopic
from tidelog.jobs.mirror.places import (
    check_start,
    find_targets,
    first_map,
    first_offsets,
    grown,
    read_sources,
    settings_like,
)
from tidelog.jobs.mirror.plan import MirrorPlan, plan_mirror
from tidelog.jobs.offset_map import OffsetMap, Partitioning
from tidelog.jobs.place_topics import read_topic
from tidelog.jobs.target_check import Effect, TargetLoses, lines
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

LEVEL = IsolationLevel.READ_COMMITTED


@pytest.fixture
def plan(tmp_path: Path) -> MirrorPlan:
    source = make(f"{tmp_path}/a", "orders", 2)
    append(source, "orders", 1, [NewRecord(value=b"%d" % n) for n in range(5)])
    target = make(f"{tmp_path}/b", "orders", 3)
    append(target, "orders", 2, [NewRecord(value=b"there")])
    return plan_mirror([source], ["orders"], target, checkpoint="m")


def mapped(plan: MirrorPlan) -> OffsetMap:
    sources = read_sources(plan, os_env())
    targets, _ = find_targets(plan, sources, os_env(), create=False, force=False, is_new_from=0)
    return first_map(plan, sources, targets, first_offsets(plan, sources))


def test_a_new_mirror_starts_at_the_beginning_or_the_end(plan: MirrorPlan) -> None:
    sources = read_sources(plan, os_env())
    assert first_offsets(plan, sources) == ((0, 0, 0), (0, 1, 0))
    late = dataclasses.replace(plan, start="latest")
    assert first_offsets(late, sources) == ((0, 0, 0), (0, 1, 5))


def test_the_first_map_has_the_facts_of_both_sides(plan: MirrorPlan) -> None:
    found = mapped(plan)
    assert found.partition_counts == {"orders": 3}
    assert found.ends == {TopicPartition("orders", n): (0, 0, 1)[n] for n in range(3)}
    assert [len(one) for one in (found.sources[0].topic_id, found.target_ids["orders"])] == [22] * 2


def test_the_error_for_a_missing_topic_names_the_option_to_create_it(plan: MirrorPlan) -> None:
    other = plan_mirror([plan.sources[0].place], {"orders": "copies"}, plan.target, checkpoint="m")
    sources = read_sources(other, os_env())
    with pytest.raises(UnknownTopic) as caught:
        find_targets(other, sources, os_env(), create=False, force=False, is_new_from=0)
    assert describe(caught.value).hint == (
        f"--create (create=True) creates copies at {plan.target} with the settings of its source"
    )
    targets, _ = find_targets(other, sources, os_env(), create=True, force=False, is_new_from=0)
    assert targets["copies"].partitions == 2


def test_a_missing_directory_is_made_with_create(plan: MirrorPlan, tmp_path: Path) -> None:
    new = Place(f"{tmp_path}/new")
    other = plan_mirror([plan.sources[0].place], ["orders"], new, checkpoint="m")
    with pytest.raises(InvalidRequest, match=r"directory does not exist; --create \(create=True\)"):
        check_start(other, f"{tmp_path}/m", os_env(), create=False, force=False)
    check_start(other, f"{tmp_path}/m", os_env(), create=True, force=False)
    assert not (tmp_path / "new").exists(), "a check changes nothing"
    sources = read_sources(other, os_env())
    find_targets(other, sources, os_env(), create=True, force=False, is_new_from=0)
    assert read_topic(new, "orders", LEVEL, os_env()).partitions == 2


def test_losses_accepted_at_the_beginning_are_not_checked_again(
    plan: MirrorPlan, tmp_path: Path
) -> None:
    stamping = make(f"{tmp_path}/c", "orders", 2, message_timestamp_type="LogAppendTime")
    other = plan_mirror([plan.sources[0].place], ["orders"], stamping, checkpoint="m")
    sources = read_sources(other, os_env())
    _, findings = find_targets(other, sources, os_env(), create=False, force=True, is_new_from=0)
    assert Effect.OVERWRITTEN in {finding.effect for finding in findings}
    find_targets(other, sources, os_env(), create=False, force=False, is_new_from=None)


def test_old_records_are_refused_before_the_start_with_the_topic_that_keeps_them(
    tmp_path: Path,
) -> None:
    source = make(f"{tmp_path}/old", "orders", 2, retention_ms="86400000")
    append(source, "orders", 1, [NewRecord(value=b"old", timestamp=1_000_000_000_000)])
    new = Place(f"{tmp_path}/new")
    plan = plan_mirror([source], ["orders"], new, checkpoint="m")
    with pytest.raises(TargetLoses) as caught:
        check_start(plan, f"{tmp_path}/m", os_env(), create=True, force=False)
    (loss,) = (finding for finding in caught.value.findings if finding.is_loss)
    assert (loss.effect, loss.remedy) == (Effect.DELETED, "retention.ms=-1")
    kept = {"retention.ms": "86400000", "message.timestamp.type": "CreateTime"}
    assert caught.value.target.created_with == kept
    assert not (tmp_path / "new").exists()
    check_start(plan, f"{tmp_path}/m", os_env(), create=True, force=True)


def test_the_same_note_on_several_topics_is_one_line(tmp_path: Path) -> None:
    """A mirror back from B to A begins at the log ends, so it can't count the records."""
    source, target = make(f"{tmp_path}/b", "orders", 1), make(f"{tmp_path}/a", "orders", 1)
    for place in (source, target):
        make(place, "bills", 1)
    plan = plan_mirror([source], ["orders", "bills"], target, checkpoint="m", start="latest")
    sources = read_sources(plan, os_env())
    _, findings = find_targets(plan, sources, os_env(), create=False, force=False, is_new_from=0)
    texts = lines(findings)
    assert texts
    assert [text.split(": ")[:2] for text in texts] == [["note", "bills, orders"]] * len(texts)


def test_a_restart_has_no_notes_on_records_that_it_did_not_count(tmp_path: Path) -> None:
    limit = {"retention_ms": "86400000", "message_timestamp_before_max_ms": "86400000"}
    source = make(f"{tmp_path}/a", "orders", 1, **limit)
    target = make(f"{tmp_path}/b", "orders", 1, **limit)
    plan = plan_mirror([source], ["orders"], target, checkpoint="m")
    sources = read_sources(plan, os_env())
    _, findings = find_targets(plan, sources, os_env(), create=False, force=False, is_new_from=None)
    assert findings == []


def test_settings_of_a_copy() -> None:
    given = {
        "retention.ms": "-1",
        "message.timestamp.type": "LogAppendTime",
        "tidelog.retention.clock": "append",
        "internal.segment.bytes": "1000",
    }
    config, _ = TopicConfig.parse(given)
    kept = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    assert settings_like(config, Place.parse("kafka://west:1")) == kept
    ours = {name: given[name] for name in ("tidelog.retention.clock", "internal.segment.bytes")}
    assert settings_like(config, Place.parse("data")) == kept | ours


class TestGrown:
    def test_a_recreated_topic_is_another_one(self, plan: MirrorPlan) -> None:
        found = mapped(plan)
        facts = read_topic(plan.target, "orders", LEVEL, os_env())
        anew = dataclasses.replace(facts, topic_id="x" * 22)
        with pytest.raises(InvalidRequest, match=r"orders at .* was recreated"):
            grown(found, {"orders": anew})

    def test_further_partitions_are_mirrored_if_partitions_are_kept(self, plan: MirrorPlan) -> None:
        facts = read_topic(plan.target, "orders", LEVEL, os_env())
        more = dataclasses.replace(facts, ends=(*facts.ends, 7))
        found = grown(mapped(plan), {"orders": more})
        assert found.partition_counts == {"orders": 4}
        # Other programs may have written to the new partition, so the mirror searches it from
        # offset 0 on.
        assert found.ends[TopicPartition("orders", 3)] == 0

    def test_fewer_or_other_ones_for_keys_are_refused(self, plan: MirrorPlan) -> None:
        facts = read_topic(plan.target, "orders", LEVEL, os_env())
        more = dataclasses.replace(facts, ends=(*facts.ends, 7))
        fewer = dataclasses.replace(facts, ends=facts.ends[:2])
        by_key = dataclasses.replace(mapped(plan), partitioning=Partitioning.KEY)
        for found, there, reason in (
            (by_key, more, "keys would map to other partitions"),
            (mapped(plan), fewer, "copied records are lost"),
        ):
            with pytest.raises(InvalidRequest, match=reason):
                grown(found, {"orders": there})
