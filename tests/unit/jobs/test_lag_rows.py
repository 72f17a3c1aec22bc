"""Rows of a lag report: for each hour, and for partitions that a group has read completely."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.worlds.constants import set_constant
from tests.worlds.directories.topics import T0, append, make

from tidelog.cli.jobs.lag import _unread
from tidelog.jobs.lag.job import GroupLag, _group_lag, hour_rows, measure
from tidelog.jobs.lag.work import Cell, Counts, count_fetched_rows, count_split, decode_counts
from tidelog.remote.group_lag import Observation
from tidelog.remote.lag_verdict import lag_sum
from tidelog.remote.view import Count
from tidelog.scan import plan
from tidelog.scan.split import encode_split
from tidelog.spark.places import Place
from tidelog.types import HOUR_MS, NewRecord, TimestampType, TopicPartition

CREATED, STAMPED = TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME


def test_records_without_a_time_precede_the_hour_of_the_epoch() -> None:
    group = GroupLag("readers", hours={("t", "record", 0): 3, ("t", "record", None): 2})
    assert [(row[4], row[5]) for row in hour_rows([group])] == [(None, 2), (0, 3)]


def test_a_partition_that_is_completely_read_has_a_lag_of_zero(tmp_path: Path) -> None:
    path = make(str(tmp_path), "t")
    append(path, "t", 0, [NewRecord(value=b"v")])
    row = {"group": "readers", "topic": "t", "partition": 0, "offset": 1}
    rows = SimpleNamespace(collect=lambda: [row])
    positions = SimpleNamespace(columns=list(row), select=lambda *_names: rows)
    # The session is None, because Spark is not needed if there is nothing to count.
    (group,) = measure(None, Place(path), positions=positions)  # type: ignore[arg-type]
    (lag,) = group.partitions
    assert (lag.seen.partition, lag.offset_lag) == (TopicPartition("t", 0), 0)
    assert lag.seen.left == Count(0, is_exact=True)


def test_partitions_without_a_committed_offset_are_in_no_hour() -> None:
    observations = [
        Observation(
            partition=TopicPartition("t", partition),
            now_ms=HOUR_MS,
            monotonic_ms=0,
            committed=committed,
            start=0,
            end=5,
            left=Count(5, is_exact=True),
            unread=None,
        )
        for partition, committed in enumerate((0, None))
    ]
    counts = {("t", number): Counter({Cell("t", number, 0, "record", 0): 5}) for number in range(2)}
    ends = dict.fromkeys(counts, 5)
    group = _group_lag("readers", observations, dict.fromkeys(counts, (0, 5)), counts, ends)
    assert group.hours == {("t", "record", 0): 5}
    assert [lag.seen.left.records for lag in group.partitions] == [5, 5]
    assert _unread(group) == lag_sum(group.partitions).records == 5


def at_hour(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 9])
def test_rows_of_brokers_are_counted_once_in_any_number_of_batches(batch_rows: int) -> None:
    fetched = [
        ("t", 0, 4, at_hour(1), CREATED),
        ("t", 0, 5, at_hour(1), CREATED),
        ("t", 0, 7, at_hour(2), CREATED),
        ("t", 1, 4, at_hour(1), CREATED),
        ("u", 1, 0, at_hour(3), STAMPED),
        ("u", 1, 1, at_hour(3), STAMPED),
    ]
    names = ["topic", "partition", "offset", "timestamp", "timestampType"]
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in fetched])
    cuts = {("t", 0): (4, 6, 8), ("t", 1): (0, 5), ("u", 1): (0, 2)}
    counts: Counts = Counter()
    for batch in count_fetched_rows(cuts, table.to_batches(max_chunksize=batch_rows)):
        for row in batch.to_pylist():
            counts.update(decode_counts(row["counts"]))
    assert counts == {
        ("t", 0, 0, "record", HOUR_MS): 2,
        ("t", 0, 0, "append", None): 2,
        ("t", 0, 1, "record", 2 * HOUR_MS): 1,
        ("t", 0, 1, "append", None): 1,
        ("t", 1, 0, "record", HOUR_MS): 1,
        ("t", 1, 0, "append", None): 1,
        ("u", 1, 0, "record", 3 * HOUR_MS): 2,
        ("u", 1, 0, "append", 3 * HOUR_MS): 2,
    }


@pytest.mark.parametrize("batch_rows", [1, 2, 9])
def test_rows_of_a_directory_are_counted_once_in_any_number_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    set_constant(monkeypatch, "_ROWS", batch_rows, inside="tidelog.jobs.lag.work")
    path = make(str(tmp_path), "t")
    append(path, "t", 0, [NewRecord(value=b"v", timestamp=ms) for ms in (1, 2, HOUR_MS, 3, 4)])
    (split,) = plan(path, "t")
    (text,) = count_split(Place(path), json.dumps([encode_split(split), (1, 4, 5)]))
    assert isinstance(text, str)
    hour = T0 - T0 % HOUR_MS
    assert decode_counts(text) == {
        ("t", 0, 0, "record", 0): 2,
        ("t", 0, 0, "record", HOUR_MS): 1,
        ("t", 0, 0, "append", hour): 3,
        ("t", 0, 1, "record", 0): 1,
        ("t", 0, 1, "append", hour): 1,
    }
