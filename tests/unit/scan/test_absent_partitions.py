"""Reads of a topic with a partition that the topics file lists, but that has no directory."""

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest

import tidelog
from tidelog import scan
from tidelog.directory import Directory
from tidelog.errors import MissingFile, UnknownTopic
from tidelog.scan.plan import checked_partitions
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import TOPICS_FILE
from tidelog.types import NewRecord, TopicPartition

_READS: dict[str, Callable[[Directory], object]] = {
    "count": lambda log: int(log.count("t")),
    "scan.count": lambda log: int(log.scan("t").count()),
    "scan.counts": lambda log: log.scan("t").counts().records,
    "scan.counts_by": lambda log: sum(one.records for one in log.scan("t").counts_by("day").counts),
    "scan.counts_by_key": lambda log: log.scan("t").counts_by_key().records,
    "scan.repeated": lambda log: log.scan("t").repeated().records,
    "scan.plan": lambda log: len(log.scan("t").plan().bounds),
    "scan.to_arrow": lambda log: log.scan("t").to_arrow().read_all().num_rows,
    "scan.to_table": lambda log: log.scan("t").to_table().num_rows,
    "scan of all topics": lambda log: log.scan().to_table().num_rows,
    "read": lambda log: log.read("t").read_all().num_rows,
    "records": lambda log: len(list(log.records("t"))),
    "tail": lambda log: len(log.tail("t", 5)),
    "offsets_at": lambda log: len(log.offsets_at("t", 0)),
    "time_spans": lambda log: len(log.time_spans("t")),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with tidelog.open(tmp_path, writable=True) as log:
        log.create_topic("t", partitions=3)
        for partition in range(3):
            log.append("t", [NewRecord(key=b"a", value=b"1")], partition=partition)
    rmtree(tmp_path / "t-1")
    return tmp_path


@pytest.mark.parametrize("name", _READS)
def test_a_lost_partition_is_an_error(path: Path, name: str) -> None:
    with tidelog.open(path) as log, pytest.raises(MissingFile, match="partition 1 is listed"):
        _READS[name](log)


@pytest.mark.parametrize("name", _READS)
def test_a_directory_of_some_replicas_of_kafka_is_read(path: Path, name: str) -> None:
    (path / TOPICS_FILE).unlink()
    with tidelog.open(path) as log:
        assert _READS[name](log) == 2


@pytest.mark.parametrize("name", _READS)
def test_a_partition_that_a_writer_creates_again_is_empty(path: Path, name: str) -> None:
    with tidelog.open(path, writable=True) as log:
        log.append("t", [NewRecord(key=b"a", value=b"2")], partition=1)
        assert _READS[name](log) == 3


def test_the_other_partitions_can_be_read(path: Path) -> None:
    with tidelog.open(path) as log:
        assert log.scan([TopicPartition("t", n) for n in (0, 2)]).to_table().num_rows == 2
        assert log.table("t", inexact="mark").to_table().num_rows == 2
        assert log.diff("t", 0, inexact="mark").to_table().num_rows == 2


def test_a_plan_that_allows_lost_records_reports_the_partition(path: Path) -> None:
    planned = scan.plan(str(path), "t", fail_on_data_loss=False)
    assert len(planned.bounds) == 2
    assert any("partition 1 is listed in" in report for report in planned.reports)


@pytest.mark.parametrize("name", ["backup-2147483647", "t-2147483647"])
def test_a_stray_directory_of_any_number_makes_no_partitions(path: Path, name: str) -> None:
    (path / "t-1").mkdir()
    (path / name).mkdir()
    with tidelog.open(path) as log:
        assert log.scan("t").to_table().num_rows == 2
        assert int(log.scan().count()) == 2


def test_partitions_are_chosen_once_and_sorted(path: Path) -> None:
    (path / "t-1").mkdir()
    both: list[str | TopicPartition] = [
        TopicPartition("t", 2),
        "t",
        TopicPartition("t", 0),
        TopicPartition("t", 2),
    ]
    with LogDir.open(str(path)) as log_dir:
        every = [TopicPartition("t", number) for number in range(3)]
        assert checked_partitions(log_dir, both) == every
        assert checked_partitions(log_dir, both[::2]) == [every[0], every[2]]
        assert checked_partitions(log_dir, None) == every
        with pytest.raises(UnknownTopic, match="t has partitions 0 to 2, not 3"):
            checked_partitions(log_dir, [TopicPartition("t", 3), TopicPartition("t", 0)])
        mixed: list[str | TopicPartition] = ["t", TopicPartition("t", 3)]
        for chosen in (mixed, mixed[::-1]):
            with pytest.raises(UnknownTopic, match="not 3"):
                checked_partitions(log_dir, chosen)
