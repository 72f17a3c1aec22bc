"""On real Spark, `tidelog.spark.audit` and `tidelog audit` find exactly the planted differences."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.command_line import Cli
from tests.worlds.directories.topics import T0, make
from tests.worlds.kafka.groups import tidelog

from tidelog import spark as tidelog_spark
from tidelog.directory import Directory
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import InvalidRequest, UnknownGroup, UnknownTopic
from tidelog.jobs.audit.job import measure
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.plan import plan_audit
from tidelog.jobs.audit.results import AuditResults
from tidelog.spark.places import Place
from tidelog.storage.directory.broker_files import GroupOffset, GroupOffsets, write_group_offsets
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "orders"
HOUR_MS = 3_600_000
Logs = list[list[NewRecord]]


def record(key: str | None, value: str | None, minute: int) -> NewRecord:
    return NewRecord(
        key=None if key is None else key.encode(),
        value=None if value is None else value.encode(),
        timestamp=T0 + minute * 60_000,
    )


def updates(keys: int, count: int, partitions: int = 2, seed: int = 1) -> Logs:
    """Return `count` updates of keys at increasing times; a key's updates are in one partition."""
    draw = random.Random(seed)
    logs: Logs = [[] for _ in range(partitions)]
    order = [*range(keys), *(draw.randrange(keys) for _ in range(count - keys))]
    for minute, key in enumerate(order):
        logs[key % partitions].append(record(f"k{key}", f"v{minute}", minute))
    return logs


def make_filled(
    path: Path, logs: Sequence[Sequence[NewRecord]], topic: str = TOPIC, **config: str
) -> str:
    given = {
        "internal_segment_bytes": "4000",
        "index_interval_bytes": "200",
        "message_timestamp_after_max_ms": str(2**62),
    } | config
    place = make(str(path), topic, partitions=len(logs), **given)
    add(place, logs, topic)
    return place


def add(place: str, logs: Sequence[Sequence[NewRecord]], topic: str = TOPIC) -> None:
    with Directory.open(place, writable=True, env=Env(clock=ManualClock(T0))) as directory:
        for number, log in enumerate(logs):
            # Batches have few records, which gives many batches and segments.
            for at in range(0, len(log), 7):
                directory.append(topic, log[at : at + 7], partition=number)


def last_of(log: Sequence[NewRecord], key: str) -> int:
    return max(at for at, one in enumerate(log) if one.key == key.encode())


def kinds(found: AuditResults) -> dict[str, str]:
    """Return the kind of difference by key; asserts that each key occurs once."""
    named = {(one.key or b"?").decode(): one.kind.value for one in found.differences}
    assert len(named) == len(found.differences)
    counted = {kind: number for topic in found.topics for kind, number in topic.kinds.items()}
    assert sum(counted.values()) == len(named)
    return named


def audit(spark: "SparkSession", a: str, b: str | None, **options: object) -> AuditResults:
    other = None if b is None else Place.parse(b)
    given = {"split_bytes": 20_000, **options}
    rows_max = given.pop("rows_max", None)
    plan = plan_audit(os_env(), Place.parse(a), other, **given)  # type: ignore[arg-type] # options by name
    return measure(spark, plan, rows_max=rows_max)  # type: ignore[arg-type] # by each test


def planted(logs: Logs) -> tuple[Logs, dict[str, str]]:
    """Return a copy of logs with planted differences of all kinds, and the kind of each key."""
    copy = [list(log) for log in logs]
    even, odd = copy
    kinds = {"k4": Kind.MISSING, "k6": Kind.STALE, "k7": Kind.CHANGED, "k8": Kind.AHEAD}
    kinds |= {"k9": Kind.DUPLICATED, "k10": Kind.REORDERED, "k11": Kind.VERSIONS}
    kinds["new"] = Kind.EXTRA
    even[:] = [one for one in even if one.key != b"k4"]
    del even[last_of(even, "k6")]
    at = last_of(odd, "k7")
    odd[at] = NewRecord(key=b"k7", value=b"another", timestamp=odd[at].timestamp)
    even.append(record("k8", "later", 5_000))
    odd.insert(last_of(odd, "k9"), odd[last_of(odd, "k9")])
    first, second, *_ = (at for at, one in enumerate(even) if one.key == b"k10")
    even[first], even[second] = even[second], even[first]
    del odd[min(at for at, one in enumerate(odd) if one.key == b"k11")]
    even.append(record("new", None, 90))
    # Swap two adjacent records, each of which is the last record of its key.
    last = {last_of(odd, f"k{key}"): f"k{key}" for key in range(1, 60, 2)}
    at = next(at for at in last if not {last[at], last.get(at + 1, "k4")} & set(kinds))
    odd[at], odd[at + 1] = odd[at + 1], odd[at]
    kinds |= {last[at]: Kind.REORDERED, last[at + 1]: Kind.REORDERED}
    return copy, {key: kind.value for key, kind in kinds.items()}


def test_every_kind_is_found_with_its_key_and_hour(spark: "SparkSession", tmp_path: Path) -> None:
    logs = updates(60, 400)
    a = make_filled(tmp_path / "a", [[*logs[0], record(None, "x", 1)], logs[1]])
    copy, expected = planted(logs)
    b = make_filled(tmp_path / "b", copy)
    answer = tidelog_spark.audit(spark, a, b, split_bytes=20_000)
    assert not answer.is_equal
    assert kinds(answer.found) == expected
    by_key = {bytes(row["key"]).decode(): row for row in answer.differences.collect()}
    stale = by_key["k6"]
    at = last_of(logs[0], "k6")
    assert (stale["a_partition"], stale["a_offset"]) == (0, at)
    assert stale["a_time_ms"] == logs[0][at].timestamp > stale["b_time_ms"]
    assert stale["bucket_ms"] == stale["a_time_ms"] // HOUR_MS * HOUR_MS
    assert by_key["k4"]["b_offset"] is None
    assert by_key["new"]["b_deleted"]
    (topic,) = answer.topics.collect()
    assert (topic["a_keys"], topic["b_keys"], topic["missing"], topic["reordered"]) == (
        60,
        60,
        1,
        3,
    )
    assert (topic["a_without_key"], topic["without_key_equal"]) == (1, False)
    unequal = {row["bucket_ms"] for row in answer.buckets.collect() if not row["equal"]}
    assert unequal >= {row["bucket_ms"] for row in by_key.values() if row["kind"] != "reordered"}
    records = [sum(bucket.records[side] for bucket in answer.found.buckets) for side in (0, 1)]
    assert records == [401, sum(map(len, copy))]
    assert {tuple(row) for row in answer.cuts.collect()} >= {("b", TOPIC, 1, 0, len(copy[1]))}
    assert answer.found.log_bytes < 1.5 * answer.found.all_bytes


def test_other_partitions_splits_and_spills_make_no_difference(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = updates(40, 300)
    a = make_filled(tmp_path / "a", logs)
    by_time = sorted((one for log in logs for one in log), key=lambda one: one.timestamp or 0)
    three: Logs = [[], [], []]
    for one in by_time:
        three[int((one.key or b"k0")[1:]) % 3].append(one)
    b = make_filled(tmp_path / "b", three)
    found = audit(spark, a, b, rows_max=7)
    assert (found.is_equal, found.differences) == (True, [])
    assert {bucket.partition for bucket in found.buckets} == {None}
    assert all(bucket.is_equal for bucket in found.buckets)
    blind = audit(spark, a, b, rows_max=5, keys_max=1, topics=["ord.*"], ignore=frozenset(Kind))
    assert blind.is_equal


def test_compacted_logs_are_compared_by_their_last_records(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = updates(30, 200)
    gone = record("k3", None, 300)
    a = make_filled(tmp_path / "a", [logs[0], [*logs[1], gone]])
    kept = [
        [one for at, one in enumerate(log) if at == last_of(log, (one.key or b"").decode())]
        for log in logs
    ]
    kept[1] = [one for one in kept[1] if one.key != b"k3"]
    b = make_filled(tmp_path / "b", kept, cleanup_policy="compact")
    found = audit(spark, a, b)
    assert (found.is_equal, found.topics[0].deleted, found.topics[0].history) == (True, 1, False)
    assert any("only the last record of each key" in line for line in found.notes)
    strict = audit(spark, a, b, history=True)
    assert {"missing", "versions"} <= set(kinds(strict).values())


def test_a_state_saves_reading_the_same_records_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = updates(50, 900)
    a, b = (make_filled(tmp_path / name, logs) for name in ("a", "b"))
    state = str(tmp_path / "state")
    first = audit(spark, a, b, state=state)
    assert first.is_equal
    again = audit(spark, a, b, state=state)
    assert (again.is_equal, again.log_bytes, again.kept_runs > 0) == (True, 0, True)
    more = [record(f"k{2 * n}", f"more {n}", 1_000 + n) for n in range(9)]
    add(a, [more, []])
    add(b, [more[:-1], []])
    second = audit(spark, a, b, state=state)
    assert kinds(second) == {"k16": "stale"}
    assert second.log_bytes < 0.2 * first.log_bytes
    assert second.topics[0].records == (909, 908)
    # A damaged state file is rebuilt; a recreated log is read from its start.
    (name, *_) = sorted(Path(state).glob("*.rows"))
    name.write_bytes(name.read_bytes()[:100])
    third = audit(spark, a, b, state=state)
    assert kinds(third) == {"k16": "stale"}
    assert any("damaged" in line for line in third.notes)
    other = make_filled(tmp_path / "other", [logs[0][:-1], logs[1]])
    (tmp_path / "b").rename(tmp_path / "old")
    Path(other).rename(tmp_path / "b")
    fourth = audit(spark, a, b, state=state)
    assert fourth.topics[0].records == (909, 899)
    assert set(kinds(fourth).values()) <= {"stale", "missing"}
    with pytest.raises(InvalidRequest, match="a folder of its own"):
        audit(spark, b, a, state=state)
    lock = os_env().files.lock(f"{state}/.lock")
    with pytest.raises(InvalidRequest, match="another audit"):
        audit(spark, a, b, state=state)
    lock.close()


def test_an_audit_of_a_group_and_of_a_range_of_time_reports_their_kinds(
    spark: "SparkSession", tmp_path: Path
) -> None:
    logs = updates(20, 120)
    place = make_filled(tmp_path / "a", logs)
    ends: Mapping[int, int] = {0: len(logs[0]) - 3, 1: len(logs[1])}
    commits = [GroupOffset(TOPIC, number, end) for number, end in ends.items()]
    write_group_offsets(os_env().files, place, GroupOffsets(0, {"loader": commits}))
    found = audit(spark, place, None, group="loader")
    assert kinds(found) == {(one.key or b"").decode(): "undelivered" for one in logs[0][-3:]}
    assert all(one.a is not None and one.b is None for one in found.differences)
    with pytest.raises(UnknownGroup):
        audit(spark, place, None, group="nobody")
    with pytest.raises(InvalidRequest, match="give a second place"):
        audit(spark, place, None)
    with pytest.raises(UnknownTopic):
        audit(spark, place, place, topics=["nothing"])
    with pytest.raises(InvalidRequest, match="time range"):
        audit(spark, place, place, start=1, state=str(tmp_path / "s"))
    # An audit of a time range reports no differences outside of the range.
    other = make_filled(tmp_path / "b", [[*logs[0], record("k0", "late", 500)], logs[1]], "copies")
    inside = audit(spark, place, other, end=T0 + 400 * 60_000, rename={TOPIC: "copies"})
    assert inside.is_equal
    outside = audit(spark, place, other, start=T0, rename={TOPIC: "copies"})
    assert kinds(outside) == {"k0": "ahead"}


def test_the_command(spark: "SparkSession", tmp_path: Path) -> None:
    logs = updates(30, 150)
    a = make_filled(tmp_path / "a", logs)
    b = make_filled(tmp_path / "b", [logs[0][:-1], logs[1]])
    page = tmp_path / "page.html"
    assert spark is not None  # the command uses this session
    equal = tidelog("audit", a, a, "--topic", "ord.*", "-o", "json")
    assert (equal.code, equal.rows) == (0, [])
    assert f"{a} and {a} are equal: 30 keys in 1 topic" in equal.err
    differs = tidelog("audit", a, b, "-o", "json", "--html", str(page))
    (row,) = differs.rows
    key = (logs[0][-1].key or b"").decode()
    assert (differs.code, row["key"], row["kind"], row["a_offset"]) == (
        1,
        key,
        "stale",
        len(logs[0]) - 1,
    )
    assert "the chance that a difference was missed is below" in differs.err
    shown = page.read_text()
    assert shown.count("<svg") >= 2
    assert f">{key}</td>" in shown
    assert tidelog("audit", a, b, "--ignore", "stale").code == 0
    assert tidelog("audit", a, b, "--show", "topics").code == 1
    assert tidelog("audit", a, b, "--show", "buckets", "--show", "cuts").code == 1
    failed = tidelog("audit", a, str(tmp_path / "nowhere"))
    assert (failed.code, failed.out) == (3, "")
    assert tidelog("audit", a, b, "--ignore", "nothing").code == 3


def test_a_tier_and_a_store_are_places_too(spark: "SparkSession", tmp_path: Path) -> None:
    logs = updates(40, 400)
    cli = Cli(tmp_path / "a")
    make_filled(tmp_path / "a", logs, local_retention_bytes="0")
    b = make_filled(tmp_path / "b", [logs[0][1:], logs[1]])
    cli.ok("tier", TOPIC, "--to", (tmp_path / "store").as_uri())
    (status, _) = cli.ok("tier", "--status", "-o", "json").objects
    assert int(str(status["local_start"])) > 0
    first = (logs[0][0].key or b"").decode()
    for other in (b, (tmp_path / "b").as_uri()):
        found = audit(spark, str(tmp_path / "a"), other)
        assert kinds(found) == {first: "versions"}
        assert found.topics[0].records == (400, 399)
