"""The text for Prometheus: escaped labels, bounds, groups of a deleted topic, pieces."""

import asyncio
import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.brokers.groups import World
from tests.worlds.brokers.running import METRICS

from tidelog.error_codes import ErrorCode
from tidelog.record.builder import build_batch
from tidelog.server.api.node import Node
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest
from tidelog.server.metrics.exposition import (
    COMMITS_MAX,
    GROUPS_MAX,
    TOPICS_MAX,
    Exposition,
    PartitionStats,
)
from tidelog.server.metrics.http import NodeMetrics
from tidelog.types import NewRecord, TopicPartition

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"
Labels = frozenset[tuple[str, str]]


def metric_values(node: Node) -> dict[tuple[str, Labels], float]:
    async def collect() -> str:
        return "".join([piece async for piece in Exposition(NodeMetrics(node)).pieces()])

    return {
        (sample.name.removeprefix("tidelog_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(asyncio.run(collect()))
        for sample in family.samples
    }


def commit(world: World, group: str, *commits: Commit) -> None:
    said = world.commits.commit(CommitRequest(group_id=group), commits)
    assert set(said.value) <= {ErrorCode.NONE}


def labels(**given: str) -> Labels:
    return frozenset(given.items())


def test_characters_that_would_end_a_label_are_escaped() -> None:
    world, name = World(), 'a"b\\c\nd'
    commit(world, name, Commit("flights", 0, 1))
    assert metric_values(world.node)["group_members", labels(group=name)] == 0


def test_series_have_a_bound() -> None:
    world = World()
    for number in range(0, COMMITS_MAX + 4, 1000):
        numbers = range(number, min(number + 1000, COMMITS_MAX + 4))
        commit(world, "planes", *[Commit("flights", each, 5) for each in numbers])
    for number in range(GROUPS_MAX + 1):
        commit(world, f"group {number}", Commit("flights", 0, 5))
    for number in range(TOPICS_MAX + 3):
        world.node.metrics.fetched(f"topic-{number}", 1, 1)
    found = metric_values(world.node)
    assert found["metrics_left_out", labels(kind="topics")] == 3
    assert found["metrics_left_out", labels(kind="groups")] == 2
    names = [name for name, _ in found]
    assert names.count("topic_bytes_out_total") == TOPICS_MAX
    assert names.count("group_members") == GROUPS_MAX
    assert names.count("group_committed_offset") == COMMITS_MAX
    assert found["metrics_left_out", labels(kind="commits")] > 0


def test_a_group_is_behind_by_the_append_clock() -> None:
    world = World()
    world.make_topics(flights=1)
    now_ms = world.clock.now_ms()
    for _ in range(3):
        batch = build_batch([NewRecord(value=b"x", timestamp=1)])
        world.node.partitions.get("flights", 0).append(batch)
        world.clock.advance(10_000)
    commit(world, "half", Commit("flights", 0, 1))
    commit(world, "all", Commit("flights", 0, 3))
    commit(world, "lost", Commit("gone", 0, 3))
    found = metric_values(world.node)
    place = {"topic": "flights", "partition": "0"}
    assert found["group_behind_seconds", labels(group="half", **place)] == 20
    assert found["group_lag", labels(group="half", **place)] == 2
    assert found["group_behind_seconds", labels(group="all", **place)] == 0
    lost = labels(group="lost", topic="gone", partition="0")
    assert found["group_committed_offset", lost] == 3
    assert ("group_lag", lost) not in found
    oldest = found["partition_oldest_time_seconds", labels(clock="append", **place)]
    newest = found["partition_newest_time_seconds", labels(clock="append", **place)]
    assert (oldest, newest) == (now_ms / 1000, (now_ms + 20_000) / 1000)
    assert found["partition_newest_time_seconds", labels(clock="record", **place)] == 0.001
    world.node.partitions.get("flights", 0).log.delete_records(2)
    found = metric_values(world.node)
    assert found["group_lag", labels(group="half", **place)] == 2  # counts the deleted record
    assert found["group_behind_seconds", labels(group="half", **place)] == 10


def test_the_largest_timestamp_of_a_replaced_segment_is_read_again() -> None:
    world = World()
    world.make_topics(flights=1)
    partition = world.node.partitions.get("flights", 0)
    stats = PartitionStats()
    for timestamp, value in ((9_000, b"longer"), (2_000, b"short")):
        partition.log.truncate_to(0)
        partition.append(build_batch([NewRecord(value=value, timestamp=timestamp)]))
        partition.log.roll()
        list(stats.examine(partition))
        assert stats.find(partition).newest_record_ms == timestamp


def test_times_of_compactions_are_in_seconds() -> None:
    world, place = World(), labels(topic="t", partition="0")
    tally = world.node.metrics.cleaner
    tally.busy_ms = 1_500
    tally.last_ms[TopicPartition("t", 0)] = 1_700_000_000_250
    found = metric_values(world.node)
    assert found["cleaner_busy_seconds_total", labels()] == 1.5
    assert found["partition_last_compaction_time_seconds", place] == 1_700_000_000.25


def test_the_dashboard_uses_existing_metrics() -> None:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(queries) > 15
    names = {family.full_name for family in METRICS}
    histograms = {family.full_name for family in METRICS if family.kind == "histogram"}
    known = names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    known |= {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
    for query in queries:
        asked = exposition_names(query)
        assert asked, query
        assert asked <= known, query
    assert names - {n for q in queries for n in exposition_names(q)} <= {
        *histograms,
        "tidelog_build_info",
        "tidelog_partition_last_stable_offset",
        "tidelog_partition_open_transactions",
        "tidelog_partition_producers",
        "tidelog_topic_writes_skipped_total",
    }


def exposition_names(query: str) -> set[str]:
    return set(re.findall(r"\b(?:tidelog|process)_[a-z_]+", query))
