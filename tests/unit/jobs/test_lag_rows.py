"""Rows of a lag report: for each hour, and for partitions that a group has read completely."""

from pathlib import Path
from types import SimpleNamespace

from tests.worlds.directories.topics import append, make

from tidelog.jobs.lag.job import GroupLag, hour_rows, measure
from tidelog.remote.view import Count
from tidelog.spark.places import Place
from tidelog.types import NewRecord, TopicPartition


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
