"""The text for Prometheus: escaped labels, bounds, groups without their log, pieces."""

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.env import Clock, Env, ManualClock
from tidelog.record.builder import build_batch
from tidelog.server import exposition
from tidelog.server.exposition import FAMILIES, Exposition
from tidelog.server.metrics import Counters
from tidelog.server.partitions import Partition
from tidelog.storage.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord, TopicPartition

NOW = 1_700_000_000_000
DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Group:
    """One group, as the coordinator tells of it."""

    group_id: str
    members: int
    offsets: list[tuple[str, int, int]]


@dataclass(slots=True)
class Facts:
    """What there is to be shown, in memory."""

    counters: Counters = field(default_factory=Counters)
    clock: Clock = field(default_factory=lambda: ManualClock(NOW))
    opened: dict[TopicPartition, Partition] = field(default_factory=dict)
    known_groups: list[Group] = field(default_factory=list)

    def partitions(self) -> Iterable[Partition]:
        return self.opened.values()

    def partition(self, topic: str, number: int) -> Partition | None:
        return self.opened.get(TopicPartition(topic, number))

    def groups(self) -> Iterable[Group]:
        return self.known_groups


def told(facts: Facts) -> dict[tuple[str, Labels], float]:
    async def collect() -> str:
        return "".join([piece async for piece in Exposition(facts).pieces()])

    return {
        (sample.name.removeprefix("tidelog_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(asyncio.run(collect()))
        for sample in family.samples
    }


def labels(**given: str) -> Labels:
    return frozenset(given.items())


def test_what_would_end_a_label_is_escaped() -> None:
    facts = Facts(known_groups=[Group('a"b\\c\nd', 2, [])])
    assert told(facts)["group_members", labels(group='a"b\\c\nd')] == 2


def test_series_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "TOPICS_MAX", 2)
    monkeypatch.setattr(exposition, "COMMITS_MAX", 3)
    monkeypatch.setattr(exposition, "GROUPS_MAX", 1)
    planes = Group("planes", 0, [("flights", n, 5) for n in range(7)])
    facts = Facts(known_groups=[planes, Group("other", 0, [])])
    for number in range(5):
        facts.counters.fetched(f"topic-{number}", 1, 1)
    found = told(facts)
    assert found["metrics_left_out", labels(kind="topics")] == 3
    assert found["metrics_left_out", labels(kind="commits")] == 4
    assert found["metrics_left_out", labels(kind="groups")] == 1
    assert sum(name == "topic_bytes_out_total" for name, _ in found) == 2
    assert sum(name == "group_committed_offset" for name, _ in found) == 3


def test_a_group_is_behind_by_the_append_clock(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    options = LogDirOptions(writable=True, create=True)
    with LogDir.open(str(tmp_path), env=Env(clock=clock), options=options) as log_dir:
        log_dir.create_topic("flights", partitions=1)
        name = TopicPartition("flights", 0)
        partition = Partition(log_dir.log("flights", 0))
        for _ in range(3):
            partition.append(build_batch([NewRecord(value=b"x", timestamp=1)]))
            clock.advance(10_000)
        groups = [
            Group("half", 0, [("flights", 0, 1)]),
            Group("all", 0, [("flights", 0, 3)]),
            Group("lost", 0, [("gone", 0, 3)]),
        ]
        found = told(Facts(clock=clock, opened={name: partition}, known_groups=groups))
    place = {"topic": "flights", "partition": "0"}
    assert found["group_behind_seconds", labels(group="half", **place)] == 20
    assert found["group_lag", labels(group="half", **place)] == 2
    assert found["group_behind_seconds", labels(group="all", **place)] == 0
    lost = labels(group="lost", topic="gone", partition="0")
    assert found["group_committed_offset", lost] == 3
    assert ("group_lag", lost) not in found
    oldest = found["partition_oldest_time_seconds", labels(clock="append", **place)]
    newest = found["partition_newest_time_seconds", labels(clock="append", **place)]
    assert (oldest, newest) == (NOW / 1000, (NOW + 20_000) / 1000)
    assert found["partition_newest_time_seconds", labels(clock="record", **place)] == 0.001


def test_the_dashboard_asks_for_what_there_is() -> None:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(queries) > 15
    names = {family.full_name for family in FAMILIES}
    histograms = {family.full_name for family in FAMILIES if family.kind == "histogram"}
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
