"""An audit reads records after the compared ranges only in compacted partitions."""

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import pytest
from tests.worlds.directories.topics import append, make

from tidelog.env import os_env
from tidelog.errors import MissingFile
from tidelog.jobs.audit.plan import ReadPart, ReadScope, Side, plan_side
from tidelog.jobs.audit.run import Times, read_later_records
from tidelog.jobs.audit.state import Run
from tidelog.spark.places import Place
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import TOPICS_FILE
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

NAMES = [TopicPartition("t", number) for number in range(2)]
COMPARED = 3
SCOPE = ReadScope(
    start_ms=None,
    end_ms=None,
    isolation=IsolationLevel.READ_COMMITTED,
    split_bytes=1 << 20,
    tasks=1,
)


def test_a_partition_that_lost_its_directory_is_not_left_out(tmp_path: Path) -> None:
    path = make(str(tmp_path), "t", len(NAMES))
    rmtree(tmp_path / "t-1")
    with pytest.raises(MissingFile, match="partition 1 is listed"):
        plan_side(Side(letter="a", place=Place(path), limits={}), ["t"], SCOPE, ())
    (tmp_path / TOPICS_FILE).unlink()
    planned = plan_side(Side(letter="a", place=Place(path), limits={}), ["t"], SCOPE, ())
    assert planned.cuts == {NAMES[0]: (0, 0)}


def test_a_partition_that_was_not_compacted_is_not_read(tmp_path: Path) -> None:
    path = make(str(tmp_path), "t", len(NAMES), cleanup_policy="compact")
    for name in NAMES:
        append(path, "t", name.partition, [NewRecord(key=b"%d" % (n % 2)) for n in range(8)])
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        log = log_dir.log("t", 1)
        log.roll()
        log.flush()
        clean_partition(log_dir, NAMES[1], InProcess(os_env()), CleanerOptions(is_asked=True))
    side = Side(letter="a", place=Place(path), limits=dict.fromkeys(NAMES, (0, COMPARED)))
    found: list[tuple[int, int, int]] = []

    def read(parts: Sequence[ReadPart], times: Times) -> list[Run]:
        assert times == (None, None)
        found.extend((part.run.partition, part.run.start, part.run.end) for part in parts)
        return []

    read_later_records(side, plan_side(side, ["t"], SCOPE, ()), ["t"], SCOPE, read)
    assert found == [(1, COMPARED, 8)]
