"""Append times that our broker sends equal those in its directory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.contracts.broker_commands import Shell
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clocks import WallAheadClock
from tests.worlds.records.legacy_sets import build_legacy_set

import tidelog
from tidelog.env import os_env
from tidelog.errors import InvalidRequest, times_of
from tidelog.remote.cluster import connect
from tidelog.remote.time_lookup import first_known_appended
from tidelog.remote.view import Committed
from tidelog.server.embedded import Broker
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.storage.log.append_types import AppendTerms
from tidelog.types import Codec, NewRecord, TopicPartition

HOUR_MS = 3_600_000
BATCHES = 40
PLACE, EMPTY = TopicPartition("t", 0), TopicPartition("t", 1)
# Records were created an hour before they were appended.
LATE_MS = HOUR_MS


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Broker]:
    """Run a broker whose partition 0 has batches appended a second apart; partition 1 is empty."""
    clock = WallAheadClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(str(tmp_path), settings=SETTINGS, env=env) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=2))
        with tidelog.connect(broker.bootstrap_servers) as log:
            for _ in range(BATCHES):
                made = clock.now_ms() - LATE_MS
                log.append("t", [NewRecord(value=b"v", timestamp=made)] * 3, partition=0)
                clock.ahead_ms += 1000
            log.cluster.commit("g", {PLACE: Committed(6)})
        yield broker


def append_times(broker: Broker) -> list[int]:
    """Return the append time of each offset, from the log itself."""

    def read(broker: Broker) -> list[int]:
        def of(offset: int) -> int:
            found = broker.call(lambda node: node.partitions.get("t", 0).log.append_time_of(offset))
            assert found is not None
            return found

        return [of(offset) for offset in range(BATCHES * 3)]

    return read(broker)


def test_lag_uses_append_times(late: Broker, tmp_path: Path) -> None:
    shell = Shell(late.bootstrap_servers)
    (row,) = [one for one in shell.rows("lag", "g") if one["partition"] == 0]
    (own,) = [
        one for one in shell.rows("lag", "g", "--data", str(tmp_path)) if one["partition"] == 0
    ]
    assert row["clock"] == own["clock"] == "append"
    assert row["unread_offset"] == own["unread_offset"] == 6


def test_every_search_by_append_time_gets_a_result(late: Broker) -> None:
    times = append_times(late)
    moments = [0, times[0], times[5] + 1, times[60], times[61] + 1, times[-1], times[-1] + 1]
    with tidelog.connect(late.bootstrap_servers) as log:
        for moment in moments:
            at = max(moment, 1)
            expected = next((n for n, ms in enumerate(times) if ms >= at), None)
            found = log.offsets_for_times({PLACE: at, EMPTY: at}, clock="append")
            hit = found[PLACE]
            assert (None if hit is None else hit.offset) == expected
            assert found[EMPTY] is None
            if hit is not None and expected is not None:
                assert hit.timestamp == times[expected]
        count = log.count("t", start=times[60], end=times[90], clock="append")
    assert count == sum(times[60] <= ms < times[90] for ms in times)


def test_commands_that_choose_by_append_time(late: Broker) -> None:
    times = append_times(late)
    shell = Shell(late.bootstrap_servers)
    (row,) = [
        one
        for one in shell.rows("offsets", "t", "--at", str(times[60]), "--clock", "append")
        if one["partition"] == 0
    ]
    assert row["offset"] == 60
    options = ("--group", "g", "--to", str(times[3]), "--clock", "append", "--execute")
    shell.rows("rewind", *options)
    with connect(late.bootstrap_servers) as cluster:
        committed = cluster.committed("g")[PLACE]
    assert committed is not None
    assert committed.offset == 3


def test_spark_s_offsets_by_append_time(late: Broker) -> None:
    times = append_times(late)
    given = {
        "kafka.bootstrap.servers": late.bootstrap_servers,
        "subscribe": "t",
        "clock": "append",
    }
    with open_backend(read_source_options(given), ("value",)) as backend:
        assert backend.offsets_for_times({PLACE: times[60]}) == {PLACE: 60}


def test_unknown_append_times_are_counted_and_move_no_group(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path), settings=SETTINGS) as broker:
        broker.call(
            lambda node: node.log_dir.create_topic(
                "t", partitions=1, config={"tidelog.append.time.enable": "false"}
            )
        )
        with tidelog.connect(broker.bootstrap_servers) as log:
            log.append("t", [NewRecord(value=b"v")])
            assert log.offsets_for_times({PLACE: 1}, clock="append") == {PLACE: None}
            assert log.without_append_time(PLACE) == 1
            marks = log.cluster.watermarks([PLACE])
            with pytest.raises(InvalidRequest, match="no known append time") as refused:
                first_known_appended(log.cluster, marks, 1)
            assert "appended at 1970-01-01T00:00:00.001Z or later" in str(refused.value)
            assert times_of(refused.value) == (1,)


@pytest.fixture
def partly_known(tmp_path: Path) -> Iterator[Broker]:
    """Run a broker with five batches of 10 records, a second apart.

    Only the append times of the 2nd and 4th batch are known.
    """
    clock = WallAheadClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(str(tmp_path), settings=SETTINGS, env=env) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
        with tidelog.connect(broker.bootstrap_servers) as log:
            for knows in (False, True, False, True, False):
                log.alter_config("t", {"tidelog.append.time.enable": str(knows).lower()})
                clock.ahead_ms += 1000
                log.append("t", [NewRecord(value=b"v")] * 10)
        yield broker


def test_unknown_append_times_are_counted_as_in_the_directory(
    partly_known: Broker, tmp_path: Path
) -> None:
    with (
        tidelog.connect(partly_known.bootstrap_servers) as cluster,
        tidelog.open(tmp_path) as directory,
    ):
        first = directory.offsets_at("t", 1, clock="append")[PLACE]
        assert first is not None
        last = directory.partition("t", 0).append_time_of(30)
        assert last is not None
        assert (first.offset, first.without_time) == (10, 10)
        for moment in (1, first.timestamp, first.timestamp + 1, last, last + 1):
            expected = directory.offsets_at("t", moment, clock="append")[PLACE]
            found = cluster.offsets_at("t", moment, clock="append")[PLACE]
            assert (expected is None) == (found is None)
            if expected is not None and found is not None:
                assert found[:2] == expected[:2]
                assert found.without_time == expected.without_time
        assert cluster.without_append_time(PLACE) == directory.without_append_time(PLACE) == 30
        for start, end in ((1, last), (1, last + 1), (first.timestamp + 1, last + 1), (1, 2)):
            expected_count = directory.count("t", start=start, end=end, clock="append")
            count = cluster.count("t", start=start, end=end, clock="append")
            assert (count, count.without_time) == (expected_count, expected_count.without_time)
            rows = [
                home.read("t", start=start, end=end, clock="append", columns=["offset"]).read_all()
                for home in (cluster, directory)
            ]
            assert rows[0] == rows[1]


def test_commands_tell_how_many_records_have_no_append_time(
    partly_known: Broker, tmp_path: Path
) -> None:
    shell = Shell(partly_known.bootstrap_servers)
    (row,) = shell.rows("offsets", "t", "--at", "1970-01-02Z", "--clock", "append")
    assert (row["offset"], row["without_time"]) == (10, 10)
    options = ("--from", "1970-01-02Z", "--clock", "append")
    (row,) = shell.rows("count", "t", *options)
    assert (row["records"], row["without_time"]) == (20, 30)
    code, out, err = shell.run("read", "t", *options, "-o", "json")
    assert (code, len(out.splitlines())) == (0, 20)
    assert "30 records" in err


@pytest.mark.parametrize("magic", [0, 1])
def test_append_times_of_old_compressed_messages_are_known(tmp_path: Path, magic: int) -> None:
    """The frame of a wrapper contains only the last record's offset.

    All records of the wrapper have the same append time. The wrapper begins a segment, so a
    response begins with it.
    """
    records = [NewRecord(key=b"k", value=b"v", timestamp=5)] * 4
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", config={"retention.ms": "-1"})
        log = directory.log("t", 0)
        for _ in range(2):
            old = build_legacy_set(records, magic=magic, codec=Codec.GZIP)
            log.append_batches(old, AppendTerms(takes_legacy=True))
            log.roll()
        times = [log.append_time_of(offset) for offset in range(8)]
    assert None not in times
    with (
        tidelog.broker(str(tmp_path), settings=SETTINGS) as broker,
        tidelog.connect(broker.bootstrap_servers) as cluster,
    ):
        rows = cluster.read("t", start=1, clock="append", columns=["appendTimestamp"]).read_all()
        assert rows["appendTimestamp"].cast(pa.int64()).to_pylist() == times
        assert cluster.count("t", start=1, clock="append") == 8
        assert [record.append_timestamp for _, record in cluster.records("t")] == times


def test_a_count_that_librdkafka_cannot_see_is_none_and_not_zero(tmp_path: Path) -> None:
    """Unknown append times can't be counted through librdkafka: the count is None, not 0."""
    with tidelog.broker(str(tmp_path), settings=SETTINGS) as broker:
        broker.call(
            lambda node: node.log_dir.create_topic(
                "t", partitions=1, config={"tidelog.lookup.clock": "append"}
            )
        )
        config = {"reconnect.backoff.ms": "50"}
        with tidelog.connect(broker.bootstrap_servers, config=config) as log:
            log.append("t", [NewRecord(value=b"v")])
            found = log.offsets_at("t", 1, clock="append")[PLACE]
            assert found is not None
            assert found.without_time is None
            assert log.without_append_time(PLACE) is None
            count = log.count("t", start=1, clock="append")
            assert (count, count.without_time) == (1, None)
