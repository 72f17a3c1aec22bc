"""Append times of our own broker: asked for over the wire, they are those of its directory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.commanding import Shell
from tests.server.conftest import SETTINGS
from tests.server.test_accepted_clock import MovedClock

import tidelog
from tidelog.cluster.connection import connect
from tidelog.cluster.view import Committed
from tidelog.env import os_env
from tidelog.errors import InvalidRequest
from tidelog.server.in_process import Broker
from tidelog.spark.backend import open_backend
from tidelog.spark.source_options import read_source_options
from tidelog.types import NewRecord, TopicPartition

HOUR_MS = 3_600_000
BATCHES = 40
PLACE, EMPTY = TopicPartition("t", 0), TopicPartition("t", 1)
# Records that were created an hour before they were appended.
LATE_MS = HOUR_MS


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Broker]:
    """A broker with batches that were appended a second apart, one partition of two empty."""
    clock = MovedClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(str(tmp_path), settings=SETTINGS, env=env) as broker:
        broker.call(lambda node: node.topics.create("t", partitions=2))
        with tidelog.connect(broker.bootstrap_servers) as log:
            for _ in range(BATCHES):
                made = clock.now_ms() - LATE_MS
                log.append("t", [NewRecord(value=b"v", timestamp=made)] * 3, partition=0)
                clock.ahead_ms += 1000
            log.cluster.commit("g", {PLACE: Committed(6)})
        yield broker


def append_times(broker: Broker) -> list[int]:
    """Of each offset, from the log itself."""

    def read(broker: Broker) -> list[int]:
        def of(offset: int) -> int:
            found = broker.call(lambda node: node.partitions.get("t", 0).log.append_time_of(offset))
            assert found is not None
            return found

        return [of(offset) for offset in range(BATCHES * 3)]

    return read(broker)


def test_lag_goes_by_append_times(late: Broker, tmp_path: Path) -> None:
    shell = Shell(late.bootstrap_servers)
    (row,) = [one for one in shell.rows("lag", "g") if one["partition"] == 0]
    (own,) = [
        one for one in shell.rows("lag", "g", "--data", str(tmp_path)) if one["partition"] == 0
    ]
    assert row["clock"] == own["clock"] == "append"
    assert row["unread_offset"] == own["unread_offset"] == 6


def test_every_search_by_append_time_is_answered(late: Broker) -> None:
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


def test_times_that_nobody_knows_are_still_refused(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path), settings=SETTINGS) as broker:
        broker.call(
            lambda node: node.topics.create("t", 1, {"tidelog.append.time.enable": "false"})
        )
        with tidelog.connect(broker.bootstrap_servers) as log:
            log.append("t", [NewRecord(value=b"v")])
            with pytest.raises(InvalidRequest, match="no known append time"):
                log.offsets_for_times({PLACE: 1}, clock="append")
