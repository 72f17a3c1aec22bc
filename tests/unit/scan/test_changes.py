"""If a log changes between plan and read, offsets are found again or reported as deleted."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog import scan
from tidelog.env import OsFileSystem
from tidelog.errors import CorruptData, OffsetsGone
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import NewRecord, TopicPartition

TOPIC = "tides"
CONFIG = {"internal.segment.bytes": "1000", "index.interval.bytes": "100", "retention.ms": "-1"}
COUNT = 100


def make(path: Path, count: int = COUNT) -> str:
    with LogDir.open(str(path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config=CONFIG)
        for number in range(count):
            log_dir.log(TOPIC, 0).append([NewRecord(value=b"%020d" % number, timestamp=number)])
    return str(path)


def change(path: str, action: Callable[[Log], object]) -> None:
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        action(log_dir.log(TOPIC, 0))


def values(
    plan: scan.ScanPlan, stats: scan.ScanStats | None = None, *, fail_on_data_loss: bool = True
) -> list[int]:
    options = scan.ReadOptions(fail_on_data_loss=fail_on_data_loss)
    table = scan.to_table(plan, ["value"], options=options, stats=stats)
    return [int(value or b"") for value in table.column("value").to_pylist()]


def keep_from(path: str, offset: int) -> None:
    """Move the log start to an offset, and delete the segments before it."""
    change(path, lambda log: (log.delete_records(offset), log.apply_retention()))


@pytest.mark.parametrize("split_bytes", [300, 100_000])
def test_deleted_offsets_are_named_exactly(tmp_path: Path, split_bytes: int) -> None:
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC, split_bytes=split_bytes)
    keep_from(path, 50)
    with pytest.raises(OffsetsGone) as caught:
        values(plan)
    (lost,) = caught.value.lost
    assert lost.start == 0
    stats = scan.ScanStats()
    found = values(plan, stats, fail_on_data_loss=False)
    # A piece is read as planned if its file still exists, even if its offsets are below the new log
    # start.
    assert found == list(range(COUNT - len(found), COUNT))
    assert 0 < COUNT - len(found) <= 50
    assert stats.lost[0].start == 0
    assert stats.lost[-1].end == COUNT - len(found)


def test_segment_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """As in a compaction, a file of the same name and with the same offsets replaces a segment."""
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC)
    first = plan.splits[0].pieces[0].path
    data = Path(first).read_bytes()
    Path(first).unlink()
    Path(first + ".new").write_bytes(data)
    Path(first + ".new").rename(first)
    stats = scan.ScanStats()
    assert values(plan, stats) == list(range(COUNT))
    assert stats.replanned in (0, 1)  # the file system may reuse the inode number


def test_segments_that_were_merged_are_read_again(tmp_path: Path) -> None:
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC, split_bytes=700)
    merge_first_two(path)
    stats = scan.ScanStats()
    assert values(plan, stats) == list(range(COUNT))
    assert stats.replanned > 0


def merge_first_two(path: str) -> None:
    logs = sorted(Path(path, f"{TOPIC}-0").glob("*.log"))
    merged = logs[0].read_bytes() + logs[1].read_bytes()
    for log in logs[:2]:
        for suffix in (".log", ".index", ".timeindex", ".appendtime"):
            log.with_suffix(suffix).unlink()
    Path(str(logs[0]) + ".new").write_bytes(merged)
    Path(str(logs[0]) + ".new").rename(logs[0])


def test_last_segment_that_grows_is_read_as_planned(tmp_path: Path) -> None:
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC)
    change(path, lambda log: [log.append([NewRecord(value=b"9999")]) for _ in range(60)])
    assert values(plan) == list(range(COUNT))


def test_log_that_was_cut_and_written_again(tmp_path: Path) -> None:
    """After the plan, the log's offsets get new records; a read returns only the new ones."""
    path = make(tmp_path, 20)
    plan = scan.plan(path, TOPIC)

    def rewrite(log: Log) -> None:
        log.truncate_to(15)
        for number in range(30):
            log.append([NewRecord(value=b"%031d" % (1000 + number), timestamp=number)])

    change(path, rewrite)
    assert values(plan) == [*range(15), *range(1000, 1005)]


def test_a_truncated_log_names_its_missing_offsets(tmp_path: Path) -> None:
    path = make(tmp_path, 20)
    plan = scan.plan(path, TOPIC)
    change(path, lambda log: log.truncate_to(15))
    with pytest.raises(OffsetsGone, match="15 to 19"):
        values(plan)
    stats = scan.ScanStats()
    assert values(plan, stats, fail_on_data_loss=False) == list(range(15))
    assert [(lost.start, lost.end) for lost in stats.lost] == [(15, 20)]


def test_a_recreated_topic_is_another(tmp_path: Path) -> None:
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC)
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.delete_topic(TOPIC)
        log_dir.create_topic(TOPIC, config=CONFIG)
        log_dir.log(TOPIC, 0).append([NewRecord(value=b"1") for _ in range(COUNT)])
    with pytest.raises(OffsetsGone, match="recreated"):
        values(plan)


def test_topic_that_was_deleted(tmp_path: Path) -> None:
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC)
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.delete_topic(TOPIC)
    with pytest.raises(OffsetsGone, match=f"0 to {COUNT - 1}"):
        values(plan)


def test_damage_is_damage(tmp_path: Path) -> None:
    """A read of a damaged piece returns the rows before the damage, then raises the error."""
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC)
    log = Path(plan.splits[0].pieces[1].path)
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    seen: list[bytes | None] = []
    with pytest.raises(CorruptData) as caught:
        seen.extend(
            value
            for batch in scan.read(plan.splits[0], ["value"])
            for value in batch.column("value").to_pylist()
        )
    assert caught.value.path == str(log)
    assert caught.value.position is not None
    assert [int(value or b"") for value in seen] == list(range(len(seen)))
    assert seen


def test_pieces_are_read_through_any_store(tmp_path: Path) -> None:
    """A store needs only `open` and `read_small` as long as the log's files don't change."""
    path = make(tmp_path)
    plan = scan.plan(path, TOPIC, columns=["value", "appendTimestamp"], split_bytes=700)
    store = Store(path)
    moved = [
        dataclasses.replace(
            split,
            directory="nowhere",
            pieces=tuple(
                dataclasses.replace(
                    piece,
                    path=piece.path.replace(path, "store:"),
                    times_path=piece.times_path and piece.times_path.replace(path, "store:"),
                )
                for piece in split.pieces
            ),
        )
        for split in plan
    ]
    options = scan.ReadOptions(ranges=store)
    columns = ["value", "appendTimestamp"]
    assert scan.to_table(moved, columns, options=options).equals(scan.to_table(plan, columns))
    assert store.requests > len(moved)


class Store:
    """A store that has the files under other names, and reads them in parts of 64 bytes."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.requests = 0

    def open(self, piece: scan.Piece) -> "StoredFile":
        return StoredFile(self, piece.path.replace("store:", self.root))

    def read_small(self, path: str) -> bytes:
        return Path(path.replace("store:", self.root)).read_bytes()


class StoredFile:
    read_bytes = 64

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._file = OsFileSystem().open(path)

    def read(self, start: int, size: int) -> bytes:
        self._store.requests += 1
        return self._file.pread(size, start)

    def close(self) -> None:
        self._file.close()


def test_offsets_decide_and_not_bytes(tmp_path: Path) -> None:
    path = make(tmp_path)
    (split,) = scan.plan(path, TopicPartition(TOPIC, 0))
    shifted = dataclasses.replace(split.pieces[0], start_offset=1)
    wrong = dataclasses.replace(split, pieces=(shifted, *split.pieces[1:]))
    table = scan.to_table([wrong], ["offset"])
    assert table.column("offset").to_pylist() == list(range(1, COUNT))
