"""Reads of a topic with a partition that the topics file lists, but that has no directory."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog import scan
from tidelog.directory import Directory
from tidelog.env import DirEntry, FileSystem, os_env
from tidelog.env.layers import LayeredFiles
from tidelog.errors import InvalidPartitions, MissingFile, UnknownTopic
from tidelog.scan.latency import latency, lateness
from tidelog.scan.plan import checked_partitions
from tidelog.storage.checks import DirectoryCheck, Selection, Severity
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import PARTITION_METADATA_FILE, TOPICS_FILE
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
    "partition": lambda log: sum(
        log.partition("t", one.partition).log_end_offset for one in log.partitions("t")
    ),
    "beginning_offsets": lambda log: len(log.beginning_offsets(log.partitions("t"))),
    "end_offsets": lambda log: sum(log.end_offsets(log.partitions("t")).values()),
    "offsets_for_times": lambda log: len(
        log.offsets_for_times(dict.fromkeys(log.partitions("t"), 0))
    ),
    "max_timestamps": lambda log: len(log.max_timestamps(log.partitions("t"))),
    "latency": lambda log: latency(log.log_dir, "t")["t"].total.count,
    "lateness": lambda log: lateness(log.log_dir, "t")["t"].records,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with tidelog.open(tmp_path, writable=True) as log:
        log.create_topic("t", partitions=3)
        for partition in range(3):
            log.append("t", [NewRecord(key=b"a", value=b"1")], partition=partition)
    rmtree(tmp_path / "t-1")
    os.utime(tmp_path, (0, 0))  # nothing suggests that partitions are being added
    return tmp_path


class GrowingFiles(LayeredFiles):
    """Files of a writer that adds partitions; it creates directories after a reader's listing."""

    def __init__(self, below: FileSystem) -> None:
        super().__init__(below)
        self.is_listed = threading.Event()
        self.is_growing = threading.Event()

    def make_dirs(self, path: str) -> None:
        self.is_growing.set()
        assert self.is_listed.wait(PATIENCE_S)
        super().make_dirs(path)


class ListedFiles(LayeredFiles):
    """Files of a reader; sets `is_listed` when a directory has been listed."""

    def __init__(self, below: FileSystem, is_listed: threading.Event) -> None:
        super().__init__(below)
        self.is_listed = is_listed
        self.lists = 0

    def list_dir(self, path: str) -> list[DirEntry]:
        entries = super().list_dir(path)
        self.lists += 1
        self.is_listed.set()
        return entries


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
def test_a_partition_that_is_created_again_is_empty(path: Path, name: str) -> None:
    record = NewRecord(key=b"a", value=b"2")
    with (
        tidelog.open(path, writable=True) as log,
        pytest.raises(MissingFile, match="all records before offset 1"),
    ):
        log.append("t", [record], partition=1)
    (path / "t-1").mkdir()
    with tidelog.open(path, writable=True) as log:
        log.append("t", [record], partition=1)
        assert _READS[name](log) == 3


@pytest.mark.parametrize("name", _READS)
def test_a_read_while_partitions_are_added_waits_for_their_directories(
    tmp_path: Path, name: str
) -> None:
    env = os_env()
    growing = GrowingFiles(env.files)
    growing.is_listed.set()
    reader = replace(env, files=ListedFiles(env.files, growing.is_listed))
    with (
        tidelog.open(tmp_path, writable=True, env=replace(env, files=growing)) as log,
        ThreadPoolExecutor(1) as pool,
    ):
        log.create_topic("t", partitions=2)
        for partition in range(2):
            log.append("t", [NewRecord(key=b"a", value=b"1")], partition=partition)
        log.flush()
        growing.is_listed.clear()
        growing.is_growing.clear()
        grown = pool.submit(log.add_partitions, "t", 3)
        assert growing.is_growing.wait(PATIENCE_S)
        with tidelog.open(tmp_path, env=reader) as beside:
            assert _READS[name](beside) in {2, 3}
        grown.result(PATIENCE_S)


def test_a_lost_partition_of_a_directory_without_changes_is_found_at_once(path: Path) -> None:
    env = os_env()
    files = ListedFiles(env.files, threading.Event())
    with LogDir.open(str(path), env=replace(env, files=files)) as log_dir:
        assert log_dir.topic("t").present == (0, 2)
    assert files.lists == 1


def test_a_lost_partition_of_a_changed_directory_is_an_error(path: Path) -> None:
    (path / "other").touch()
    with tidelog.open(path) as log, pytest.raises(MissingFile, match="partition 1 is listed"):
        log.count("t")


def test_the_other_partitions_can_be_read(path: Path) -> None:
    with tidelog.open(path) as log:
        assert log.scan([TopicPartition("t", n) for n in (0, 2)]).to_table().num_rows == 2
        assert log.table("t", inexact="mark").to_table().num_rows == 2
        assert log.diff("t", 0, inexact="mark").to_table().num_rows == 2


def test_a_named_partition_that_kafka_does_not_keep_here_is_unknown(path: Path) -> None:
    (path / TOPICS_FILE).unlink()
    missing = TopicPartition("t", 1)
    with tidelog.open(path) as log:
        for read in (
            lambda: log.scan(missing).to_table(),
            lambda: log.scan([missing, TopicPartition("t", 0)]).counts(),
            lambda: log.tail(missing, 5),
            lambda: log.end_offsets([missing]),
            lambda: latency(log.log_dir, [missing]),
        ):
            with pytest.raises(UnknownTopic, match="t has no partition 1 here, only 0, 2"):
                read()


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


def test_a_stray_directory_beside_a_topic_changes_no_read_and_is_reported(path: Path) -> None:
    (path / "t-1").mkdir()
    (path / "t-5").mkdir()
    with tidelog.open(path) as log:
        assert log.scan("t").to_table().num_rows == 2
        assert int(log.count("t")) == 2
    with tidelog.open(path, writable=True) as log:
        assert log.topic("t").partitions == 3
    check = DirectoryCheck(os_env().files, str(path), clock=os_env().clock)
    found = [*check.load(), *check.findings()]
    (stray,) = [one for one in found if one.path == str(path / "t-5")]
    assert stray.damage == "topic t has partitions 0 to 2, and this directory has no records"
    assert stray.remedy == "remove it"
    assert (path / "t-5").exists()


@pytest.mark.parametrize("has_id", [True, False])
def test_a_stray_directory_with_records_is_reported_and_never_becomes_a_partition(
    path: Path, caplog: pytest.LogCaptureFixture, *, has_id: bool
) -> None:
    copytree(path / "t-0", path / "t-1")
    copytree(path / "t-0", path / "t-5")
    if not has_id:
        (path / "t-5" / PARTITION_METADATA_FILE).unlink()
    kind = "the topic's id" if has_id else "no topic id"
    text = (
        f"t-5 is ignored: topic t has 3 partitions, and this directory has records and {kind};"
        " move it out of the directory of topics; its records are not read"
    )
    for name, read in _READS.items():
        caplog.clear()
        with tidelog.open(path) as log:
            read(log)
        assert any(text in line for line in caplog.messages), name
    for entry in (None, TopicPartition("t", 5)):
        check = DirectoryCheck(os_env().files, str(path), clock=os_env().clock)
        check.selection = Selection() if entry is None else Selection("t")
        found = [*check.load(), *check.findings()]
        (stray,) = [one for one in found if one.path == str(path / "t-5")]
        assert stray.severity is Severity.WARNING
        assert stray.damage == (
            f"topic t has partitions 0 to 2, and this directory has records and {kind}"
        )
        assert stray.remedy == "move it out of the directory of topics; its records are not read"
    with tidelog.open(path, writable=True) as log:
        assert any(text in line for line in log.reports)
        assert log.topic("t").partitions == 3
        for count in (5, 6, 7):
            with pytest.raises(InvalidPartitions, match=f"t-5 is not a partition .*{kind}"):
                log.add_partitions("t", count)
        log.add_partitions("t", 4)
    with tidelog.open(path, writable=True) as log:
        assert log.topic("t").partitions == 4
    assert (path / "t-5" / f"{0:020}.log").stat().st_size


def test_doctor_does_not_wait_for_partitions_that_are_missing_for_long(path: Path) -> None:
    os.utime(path, (1, 1))
    lists = 0

    class Listed(LayeredFiles):
        def list_dir(self, path: str) -> list[DirEntry]:
            nonlocal lists
            lists += path == root
            return super().list_dir(path)

    root = str(path)
    check = DirectoryCheck(Listed(os_env().files), root, clock=os_env().clock)
    check.load()
    assert lists < 10
    assert any("is missing" in one.damage for one in check.findings())
