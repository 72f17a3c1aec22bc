"""Micro-batches over a real directory, whose epochs, ids and ends reveal changes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.spark.stream_query import at, ranges

from tidelog.env import ManualClock
from tidelog.errors import MissingFile, OffsetsGone
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.micro_batches import MicroBatches
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_offset import Json, Position, StreamOffset
from tidelog.spark.stream_options import read_stream_options
from tidelog.storage import files
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord


def append(root: Path, count: int, topic: str = "t") -> None:
    with LogDir.open(str(root), options=LogDirOptions(create=True)) as log_dir:
        if topic not in log_dir.topics():
            log_dir.create_topic(topic)
        for _ in range(count):
            log_dir.log(topic, 0).append([NewRecord(value=b"v")])


def truncate(root: Path, offset: int) -> None:
    with LogDir.open(str(root), options=LogDirOptions(writable=True)) as log_dir:
        log_dir.log("t", 0).truncate_to(offset)


class Query:
    """Plans batches over the directory; `offset` is the query's checkpoint."""

    def __init__(self, root: Path, **given: str) -> None:
        base = {"path": str(root), "subscribe": "t", "startingOffsets": "earliest"}
        options = read_stream_options(base | given)
        log = StreamLog(options.source, ["offset"], open_backend)
        self.limits = options.limits
        self.batches = MicroBatches(options, log, ManualClock(0))
        self.offset: Json = {}

    def offsets(self) -> list[int]:
        """Run the next batch; return its offsets."""
        start = self.offset or self.batches.initial_offset()
        end = self.batches.next_offset(start, self.limits)
        found: list[int] = []
        for task in self.batches.plan(start, end):
            for batch in task.read():
                found += [offset.as_py() for offset in batch.column(0)]
        self.offset = end
        return found

    def lost(self) -> list[tuple[str, int, int, int]]:
        """Read the next batch, which must fail, and return the lost ranges that the error names."""
        with pytest.raises(OffsetsGone) as caught:
            self.offsets()
        return ranges(caught.value.lost)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    append(tmp_path, 10)
    return tmp_path


def going_on(query: Query, root: Path) -> Query:
    again = Query(root, failOnDataLoss="false")
    again.offset = query.offset
    return again


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_each_opening_for_writing_is_an_epoch_of_its_own(root: Path, scheme: str) -> None:
    query = Query(root, path=f"{scheme}{root}")
    assert query.offsets() == list(range(10))
    append(root, 5)
    assert query.offsets() == list(range(10, 15))
    places = StreamOffset.decode(query.offset).positions
    append(root, 1)
    assert query.offsets() == [15]
    assert StreamOffset.decode(query.offset).positions[at(0)].epoch > places[at(0)].epoch


def test_a_position_has_the_epoch_of_the_last_record_before_it(root: Path) -> None:
    append(root, 5)
    query = Query(root, maxOffsetsPerTrigger="10")
    epochs = []
    for expected in (range(10), range(10, 15)):
        assert query.offsets() == list(expected)
        epochs.append(StreamOffset.decode(query.offset).positions[at(0)].epoch)
    assert epochs[0] < epochs[1]


def test_a_rewritten_tail_of_a_log_is_a_loss(root: Path) -> None:
    query = Query(root)
    query.offsets()
    truncate(root, 6)
    append(root, 8)
    assert query.lost() == [("t", 0, 6, 10)]
    again = going_on(query, root)
    assert again.offsets() == list(range(6, 14))
    assert again.offsets() == []


def test_a_lost_tail_of_a_log_is_a_loss(root: Path) -> None:
    query = Query(root)
    query.offsets()
    truncate(root, 6)
    assert query.lost() == [("t", 0, 6, 10)]
    again = going_on(query, root)
    assert again.offsets() == []
    append(root, 2)
    assert again.offsets() == [6, 7]


def test_an_older_copy_in_place_of_the_log_is_a_loss(tmp_path: Path) -> None:
    live, copy = tmp_path / "live", tmp_path / "copy"
    append(live, 10)
    shutil.copytree(live, copy)
    for _ in range(3):
        append(live, 5)
    query = Query(live)
    assert len(query.offsets()) == 25
    shutil.rmtree(live)
    shutil.copytree(copy, live)
    append(live, 30)
    assert query.lost() == [("t", 0, 0, 25)]
    assert going_on(query, live).offsets() == list(range(25, 40))


def grow(root: Path, partitions: int) -> None:
    """Add partitions, each with one record."""
    with LogDir.open(str(root), options=LogDirOptions(writable=True)) as log_dir:
        before = log_dir.topic("t").partitions
        log_dir.add_partitions("t", partitions)
        for number in range(before, partitions):
            log_dir.log("t", number).append([NewRecord(value=b"v")])


def test_a_lost_partition_directory_is_an_error(root: Path) -> None:
    query = Query(root)
    assert query.offsets() == list(range(10))
    grow(root, 2)
    shutil.rmtree(root / "t-1")
    for failing in (query, Query(root), Query(root, startingOffsets="latest")):
        with pytest.raises(MissingFile, match="partition 1 is listed in"):
            failing.offsets()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_lost_partition_directory_may_be_left_out_until_it_is_restored(
    root: Path, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    grow(root, 2)
    (root / "t-1").rename(root.parent / f"{root.name}-saved")
    query = Query(root, startingOffsets=start, failOnDataLoss="false")
    for _ in range(2):
        query.offsets()
    assert len([1 for one in caplog.records if "partition 1 is listed" in one.message]) == 1
    assert at(1) not in StreamOffset.decode(query.offset).positions
    (root.parent / f"{root.name}-saved").rename(root / "t-1")
    assert query.offsets() == [0]


def test_a_recreated_topic(root: Path) -> None:
    query = Query(root)
    query.offsets()
    with LogDir.open(str(root), options=LogDirOptions(writable=True)) as log_dir:
        log_dir.delete_topic("t")
    assert query.lost() == [("t", 0, 10, 10)]
    append(root, 20)
    assert query.lost() == [("t", 0, 10, 10)]
    assert going_on(query, root).offsets() == list(range(20))


def test_a_flushed_end_before_the_streams_position_loses_no_record(root: Path) -> None:
    """A position without an epoch is compared with the log end, whatever readUntil is."""
    query = Query(root, readUntil="flushed")
    assert query.offsets() == list(range(10))
    reached = StreamOffset.decode(query.offset)
    query.offset = replace(reached, positions={at(0): Position(10)}).encode()
    (root / files.RECOVERY_POINT_CHECKPOINT_FILE).write_text("damaged")
    assert query.offsets() == []
    append(root, 2)
    assert query.offsets() == [10, 11]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_bytes(root: Path, scheme: str) -> None:
    query = Query(root, path=f"{scheme}{root}", maxBytesPerTrigger="250")
    batches = [query.offsets() for _ in range(5)]
    assert [number for batch in batches for number in batch] == list(range(10))
    assert len(batches[0]) == 3
