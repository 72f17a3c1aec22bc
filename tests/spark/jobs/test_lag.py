"""`tidelog.spark.lag` on real Spark: a standby, a broker, and a broker together with its files."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.worlds.directories.random_logs import TOPIC, append_times_of, make_log_dir, records_of
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.groups import tidelog

from tidelog import scan
from tidelog import spark as tidelog_spark
from tidelog.cli.surroundings import ExitCode
from tidelog.env import os_env
from tidelog.errors import InvalidRequest, UnknownGroup
from tidelog.jobs.lag.job import GroupLag, measure
from tidelog.jobs.lag.work import (
    Cell,
    Counts,
    count_rows,
    decode_counts,
    encode_counts,
    unread_by_hour,
)
from tidelog.jobs.latency.job import measure as measure_latency
from tidelog.jobs.reindex.job import Outcome, run
from tidelog.jobs.reindex.options import Mode
from tidelog.remote.group_lag import State
from tidelog.scan.latency import latency as library_latency
from tidelog.scan.latency import lateness
from tidelog.spark.places import Place
from tidelog.storage.directory.broker_files import GroupOffset, GroupOffsets, write_group_offsets
from tidelog.types import HOUR_MS, ClockName, IsolationLevel
from tidelog.types import TopicPartition as Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * HOUR_MS
FAR_MS = 2 * 10**12 * HOUR_MS
START_MS = 1_360_342_800_000
CREATED, STAMPED = "lag-created", "lag-stamped"
KAFKAS = re.compile(
    r"\.(log|index|timeindex|txnindex|snapshot)(\.(deleted|cleaned|swap))?$"
    r"|^(leader-epoch-checkpoint|partition\.metadata)(\.tmp)?$"
)


def positions_of(path: str) -> dict[str, dict[Partition, int]]:
    """Return the offsets of two groups in two partitions; one offset is beyond the log end."""
    ends = {number: len(records_of(path, number)) for number in (0, 1)}
    with_ends = {number: records_of(path, number)[-1].offset + 1 for number in ends}
    return {
        "early": {Partition(TOPIC, 0): 3, Partition(TOPIC, 1): 0},
        "late": {Partition(TOPIC, 0): with_ends[0] // 2, Partition(TOPIC, 1): 10**6},
    }


def expected_hours(
    path: str, places: dict[Partition, int], isolation: IsolationLevel
) -> Counter[tuple[str, str, int | None]]:
    """Count unread records by topic, clock and hour in plain Python; return the counts."""
    found: Counter[tuple[str, str, int | None]] = Counter()
    for name, offset in places.items():
        records = [r for r in records_of(path, name.partition, isolation) if r.offset >= offset]
        appended = append_times_of(path, name.partition, records)
        for record, append_ms in zip(records, appended, strict=True):
            record_ms = None if record.timestamp == -1 else record.timestamp
            for clock, ms in (("record", record_ms), ("append", append_ms)):
                found[TOPIC, clock, None if ms is None else ms - ms % HOUR_MS] += 1
    return found


class TestDirectories:
    @pytest.mark.parametrize("isolation", list(IsolationLevel))
    def test_a_standby_has_its_leaders_groups(
        self, spark: "SparkSession", tmp_path: Path, isolation: IsolationLevel
    ) -> None:
        path = str(tmp_path)
        make_log_dir(path, 8, steps=60)
        with pytest.raises(InvalidRequest, match=r"tidelog-groups\.json"):
            measure(spark, Place(path))
        places = positions_of(path)
        commits = {
            name: [
                GroupOffset("not-followed", 0, 7),
                *(GroupOffset(TOPIC, p.partition, offset) for p, offset in group.items()),
            ]
            for name, group in places.items()
        }
        write_group_offsets(os_env().files, path, GroupOffsets(START_MS, commits))
        with pytest.raises(UnknownGroup, match="early, late"):
            measure(spark, Place(path), ["other"])
        found = {one.group: one for one in measure(spark, Place(path), isolation=isolation)}
        assert found.keys() == places.keys()
        for name, group in places.items():
            assert Counter(found[name].hours) == expected_hours(path, group, isolation)
            for lag in found[name].partitions:
                records = records_of(path, lag.seen.partition.partition, isolation)
                unread = [r for r in records if r.offset >= group[lag.seen.partition]]
                assert (lag.seen.left.records, lag.seen.left.is_exact) == (len(unread), True)
                first = None if lag.seen.unread is None else lag.seen.unread.offset
                assert first == (unread[0].offset if unread else None)
        assert found["late"].partitions[1].state is State.BEYOND_END

    def test_the_command(self, spark: "SparkSession", tmp_path: Path) -> None:
        path, page = str(tmp_path / "data"), tmp_path / "page.html"
        make_log_dir(path, 8, steps=40)
        assert spark is not None  # the command uses this session
        commits = [GroupOffset(TOPIC, 0, 3), GroupOffset(TOPIC, 1, 0)]
        write_group_offsets(os_env().files, path, GroupOffsets(START_MS, {"early": commits}))
        arguments = ("spark", "lag", path, "-o", "json", "--report", str(page))
        ended = tidelog(*arguments, "--show", "hours", "--max-lag", "1000000")
        assert ended.code == 0, ended.err
        expected = expected_hours(
            path,
            {Partition(TOPIC, 0): 3, Partition(TOPIC, 1): 0},
            IsolationLevel.READ_UNCOMMITTED,
        )
        found = {(r["topic"], r["clock"], r["hour_ms"]): r["records"] for r in ended.rows}
        assert found == dict(expected)
        assert "early: unread records by hour" in page.read_text()
        over = tidelog("spark", "lag", path, "--max-lag", "2")
        assert over.code == ExitCode.FINDINGS
        assert "limit 2" in over.err
        assert "EARLY" not in over.out
        assert "early" in over.out

    def test_positions_from_elsewhere(self, spark: "SparkSession", tmp_path: Path) -> None:
        path = str(tmp_path)
        make_log_dir(path, 9, steps=30)
        table = spark.createDataFrame(
            [("job", TOPIC, 0, 2), ("job", TOPIC, 1, 1)],
            "group string, topic string, partition int, offset bigint",
        )
        found = tidelog_spark.lag(spark, path, positions=table)
        rows = {row["partition"]: row for row in found.partitions.collect()}
        assert rows[0]["records_left"] == sum(r.offset >= 2 for r in records_of(path, 0))
        total = found.hours.where("clock = 'append'").groupBy().sum("records").collect()[0][0]
        assert total == sum(row["records_left"] for row in rows.values())
        with pytest.raises(InvalidRequest, match="have no column offset"):
            tidelog_spark.lag(spark, path, positions=table.drop("offset"))
        with pytest.raises(InvalidRequest, match="is for a cluster"):
            tidelog_spark.lag(spark, path, positions=table, data=path)


def test_intervals_and_hours() -> None:
    counts: Counts = Counter()
    offsets = np.array([0, 2, 3, 7, 9], np.int64)
    times = {
        ClockName.RECORD: np.array(
            [5, -1, HOUR_MS, 2 * HOUR_MS - 1, 2 * 10**12 * HOUR_MS], np.int64
        )
    }
    for part in (slice(0, 2), slice(2, 5)):
        chosen = {clock: ms[part] for clock, ms in times.items()}
        count_rows(("t", 1), offsets[part], chosen, np.array([2, 7], np.int64), counts)
    assert decode_counts(encode_counts(counts)) == counts
    assert counts[Cell("t", 1, 0, "record", None)] == 1
    assert unread_by_hour(counts, 1, 2) == {
        ("record", HOUR_MS): 1,
        ("record", FAR_MS): 1,
    }
    assert sum(unread_by_hour(counts, 0, 2).values()) == 4
    assert sum(unread_by_hour(counts, 0, 1).values()) == 2


def send_times(broker: Broker, topic: str, times: Sequence[int], codec: str = "none") -> None:
    producer = Producer(broker.client_config(linger_ms=20, compression_codec=codec))
    for number, ms in enumerate(times):
        key, value = str(number), str(ms)
        producer.produce(topic, partition=number % 2, key=key, value=value, timestamp=ms)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0


def commit(broker: Broker, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer(broker.client_config(group_id=group))
    places = [TopicPartition(*name, offset) for name, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def files_of(folder: Path) -> dict[str, int]:
    """Return every file of this test's partitions, with its size.

    Other tests' partitions are left out, because the broker may delete and compact their segments
    during this test.
    """
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for topic in (CREATED, STAMPED)
        for path in folder.glob(f"{topic}-*/*")
    }


def foreign_to_kafka(folder: Path) -> set[str]:
    """Return the files in partition directories whose names are not names of Kafka's files."""
    return {
        f"{parent}/{name}"
        for parent, _, names in os.walk(folder)
        for name in names
        if parent != str(folder) and not KAFKAS.search(name)
    }


@pytest.mark.kafka
def test_jobs_on_a_live_kafka_and_its_directory(
    spark: "SparkSession", kafka_broker: Broker, tmp_path: Path
) -> None:
    """Check three jobs with the same broker, because a broker takes seconds to start."""
    small = {"segment.bytes": "1048576", "retention.ms": "-1"}
    kafka_broker.create_topic(CREATED, partitions=2, **small)
    stamped = {"message.timestamp.type": "LogAppendTime", **small}
    kafka_broker.create_topic(STAMPED, partitions=2, **stamped)
    times = [START_MS + (n * 7_919_000) % DAY_MS for n in range(400)]
    send_times(kafka_broker, CREATED, times, codec="zstd")
    send_times(kafka_broker, STAMPED, times[:100])
    commit(kafka_broker, "lag-slow", {(CREATED, 0): 5, (CREATED, 1): 150, (STAMPED, 0): 50})
    commit(kafka_broker, "lag-new", {(CREATED, 1): 190})
    place = Place.parse(f"kafka://{kafka_broker.bootstrap}")
    groups = ["lag-new", "lag-slow"]
    expected = Counter(
        (CREATED, "record", ms - ms % HOUR_MS) for ms in [*times[0::2][5:], *times[1::2][150:]]
    )
    data = str(kafka_broker.log_dir)
    for own in (None, data):
        found = {one.group: one for one in measure(spark, place, groups, data=own)}
        slow, new = found["lag-slow"], found["lag-new"]
        assert counts_of(slow, CREATED, "record") == expected
        # Partitions without a committed offset are in no hour: STAMPED-1 and, of `new`, CREATED-0.
        assert total(slow, STAMPED, "record") == total(slow, STAMPED, "append") == 0
        assert total(new, CREATED, "record") == 10
        assert all(lag.seen.left.is_exact for one in found.values() for lag in one.partitions)
        states = {(p.seen.partition.topic, p.seen.partition.partition): p for p in new.partitions}
        assert states[CREATED, 0].state is State.NO_COMMIT
        assert states[CREATED, 1].offset_lag == states[CREATED, 1].seen.left.records == 10
    with pytest.raises(UnknownGroup):
        measure(spark, place, ["lag-other"])
    assert {"lag-new", "lag-slow"} <= {one.group for one in measure(spark, place)}
    check_latency(spark, data, place)
    check_reindex(spark, kafka_broker.log_dir, tmp_path)


def counts_of(found: GroupLag, topic: str, clock: str) -> Counter[tuple[str, str, int | None]]:
    return Counter({key: n for key, n in found.hours.items() if key[:2] == (topic, clock)})


def total(found: GroupLag, topic: str, clock: str) -> int:
    return sum(counts_of(found, topic, clock).values())


def check_latency(spark: "SparkSession", data: str, place: Place) -> None:
    """Compare latencies from a live Kafka's directory and brokers with the library's latencies."""
    topics = [CREATED, STAMPED]
    measured = measure_latency(spark, Place(data), topics).topics
    expected, late = library_latency(data, topics), lateness(data, topics)
    for name in topics:
        assert measured[name].by_append == expected[name].by_hour
        assert measured[name].without == expected[name].without
        assert measured[name].late.lost == late[name].lost
        assert measured[name].late.late == late[name].late
    assert measured[STAMPED].by_append.total().count == 100
    single = [Partition(name, number) for name in topics for number in (0, 1)]
    for chosen in (topics, single):
        asked = measure_latency(spark, place, chosen).topics
        assert {name: asked[name].records for name in topics} == {CREATED: 400, STAMPED: 100}
        assert asked[CREATED].late.late == measured[CREATED].late.late
        assert asked[CREATED].late.lost == measured[CREATED].late.lost
    assert measured[CREATED].without == 400  # all records: Kafka stores no append times
    check_ranges(spark, place)


def check_ranges(spark: "SparkSession", place: Place) -> None:
    """Check latencies in ranges of append times: only a LogAppendTime topic has results."""
    now_ms = os_env().clock.now_ms()
    for start, end, count in ((now_ms - DAY_MS, None, 100), (None, now_ms - 5 * HOUR_MS, 0)):
        found = measure_latency(spark, place, start=start, end=end)
        assert [found.topics[STAMPED].records if STAMPED in found.topics else 0] == [count]
        assert CREATED not in found.topics
        assert (
            f"{CREATED}: left out, because the brokers don't store its append times" in found.notes
        )
    with pytest.raises(Exception, match="don't store append times"):
        measure_latency(spark, place, CREATED, start=now_ms - DAY_MS)


def check_reindex(spark: "SparkSession", data: Path, tmp_path: Path) -> None:
    """Reindex a running Kafka's directory: zone maps go to a cache; Kafka's files don't change."""
    before, strange = files_of(data), foreign_to_kafka(data)
    cache = str(tmp_path / "cache")
    with pytest.raises(InvalidRequest, match="another program"):
        run(spark, Place(str(data)), [CREATED])
    assert run(spark, Place(str(data)), [CREATED], zone_cache=cache).outcome is Outcome.SOUND
    checked = run(spark, Place(str(data)), [CREATED, STAMPED], mode=Mode.VERIFY)
    assert checked.outcome is Outcome.SOUND
    assert scan.count(str(data), CREATED, zone_cache=cache).records == 400
    assert files_of(data) == before
    assert foreign_to_kafka(data) <= strange
