"""Compaction in parts keeps exactly the records that one cleaner keeps.

Tasks run in this process.
"""

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tests.worlds.directories.topics import T0, held, make

import tidelog
from tidelog.control.client import find_holder
from tidelog.control.verbs import compact_arguments, read_lent, take_back
from tidelog.directory import Directory
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import (
    CleaningAborted,
    CorruptBatch,
    CorruptFile,
    CorruptMessage,
    DirectoryLocked,
    InvalidRequest,
)
from tidelog.jobs.compact import job
from tidelog.record.record import Record
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.spark.parts import Work
from tidelog.storage import log_files
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.job import CleaningJob, CleaningResult
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.zone_map_files import build_missing
from tidelog.storage.tier_manager.mover import tier_partition
from tidelog.storage.tier_manager.tier_compaction import Rewritten, TierCleaner, compact_tier
from tidelog.storage.tier_manager.tier_store import verify
from tidelog.types import NewRecord, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "states"
SETTINGS = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "3000",
    "index_interval_bytes": "200",
    "min_cleanable_dirty_ratio": "0",
    "message_timestamp_after_max_ms": str(2**62),
}


def make_keyed(path: Path, count: int = 400, seed: int = 3, **more: str) -> str:
    """Write updates and tombstones of 40 keys to two partitions, and build their zone maps."""
    place, draw = make(str(path), TOPIC, 2, **SETTINGS, **more), random.Random(seed)
    with Directory.open(place, writable=True, env=Env(clock=ManualClock(T0))) as directory:
        for number in range(count):
            value = None if draw.random() < 0.1 else draw.randbytes(40)
            one = NewRecord(key=b"k%d" % draw.randrange(40), value=value, timestamp=T0 + number)
            directory.append(TOPIC, [one], partition=number % 2)
        for number in range(2):
            log = directory.log_dir.log(TOPIC, number)
            log.roll()
            build_missing(log.segments)
    return place


def clean_here(place: str) -> None:
    """Clean both partitions in this process, without dividing the work into parts."""
    with LogDir.open(place, options=LogDirOptions(writable=True)) as log_dir:
        for number in range(2):
            log_dir.log(TOPIC, number).flush()
            name = TopicPartition(TOPIC, number)
            options = CleanerOptions(is_asked=True)
            clean_partition(log_dir, name, InProcess(os_env()), options)


NO_SPARK = cast("SparkSession", None)


class Tasks:
    """Runs parts as Spark's workers do, but in this process, from the last part to the first."""

    def __init__(self) -> None:
        self.parts: list[int] = []

    def do(
        self, _spark: object, parts: Sequence[str], work: Work, schema: str
    ) -> list[dict[str, object]]:
        self.parts.append(len(parts))
        names = [field.split()[0] for field in schema.split(",")]
        rows = [dict(zip(names, work(part), strict=True)) for part in parts[::-1]]
        return rows[::-1]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    found = Tasks()
    monkeypatch.setattr(job, "run_parts", found.do)
    return found


def test_parts_keep_the_records_that_one_cleaner_keeps(tmp_path: Path, tasks: Tasks) -> None:
    place, other = make_keyed(tmp_path / "a"), str(tmp_path / "b")
    shutil.copytree(place, other)
    before = held(place, TOPIC)
    reports = job.run(NO_SPARK, place, part_bytes=6_000)
    clean_here(other)
    assert held(place, TOPIC) == held(other, TOPIC)
    assert all(number > 2 for number in tasks.parts)
    for log, left in zip(before, held(place, TOPIC), strict=True):
        last = {record.key: record.offset for record in log}
        assert [record.offset for record in left] == sorted(last.values())
    assert reports[0].records_before == len(before[0]) > reports[0].records_after
    # No temporary files are left behind, and another run has nothing to do.
    assert not list(Path(place).rglob("*.cleaned"))
    assert not list(Path(place).rglob("*.swap"))
    assert [report.passes for report in job.run(NO_SPARK, place, if_due=True)] == [0, 0]


def fill_tier(path: Path, store: Path, **more: str) -> str:
    """Write a log as `make_keyed` does, with its finished segments in the store only."""
    tier = {"remote_storage_enable": "true", "local_retention_bytes": "0", "retention_ms": "-1"}
    place = make_keyed(path, **{"tidelog_tier_url": store.as_uri(), **tier, **more})  # type: ignore[arg-type] # settings alone
    move(place)
    return place


def move(place: str) -> None:
    with LogDir.open(place, options=LogDirOptions(writable=True)) as log_dir:
        for number in range(2):
            tier_partition(log_dir, TopicPartition(TOPIC, number))
            assert log_dir.log(TOPIC, number).local_start_offset > 0


def compact_tier_here(place: str) -> None:
    """Compact with one process."""
    with LogDir.open(place, options=LogDirOptions(writable=True)) as log_dir:
        for number in range(2):
            log_dir.log(TOPIC, number).flush()
            name = TopicPartition(TOPIC, number)
            compact_tier(log_dir, name, CleanerOptions(is_asked=True))


def last_of_each(log: Sequence[Record]) -> dict[bytes | None, int]:
    """Return each key's last offset in the log."""
    return {record.key: record.offset for record in log}


def test_a_tier_is_compacted_as_by_one_process(tmp_path: Path, tasks: Tasks) -> None:
    place = fill_tier(tmp_path / "a", tmp_path / "store-a")
    other = fill_tier(tmp_path / "b", tmp_path / "store-b")
    before = held(place, TOPIC)
    assert before == held(other, TOPIC)
    reports = job.run(NO_SPARK, place, part_bytes=6_000)
    compact_tier_here(other)
    assert held(place, TOPIC) == held(other, TOPIC)
    assert all(number > 2 for number in tasks.parts)
    for log, left in zip(before, held(place, TOPIC), strict=True):
        assert last_of_each(left) == last_of_each(log)
        assert len(left) < len(log) / 2
    assert len(before[0]) >= reports[0].records_before > reports[0].records_after
    assert not list(tmp_path.rglob("*.cleaned*"))
    assert [report.passes for report in job.run(NO_SPARK, place, if_due=True)] == [0, 0]
    with LogDir.open(place, options=LogDirOptions(writable=True)) as log_dir:
        names = [TopicPartition(TOPIC, number) for number in range(2)]
        assert not list(verify(log_dir, names))


def test_a_tier_compacted_by_timestamp_is_one_part(tmp_path: Path, tasks: Tasks) -> None:
    place = fill_tier(tmp_path / "a", tmp_path / "a-store", tidelog_compaction_strategy="timestamp")
    before = held(place, TOPIC)
    job.run(NO_SPARK, place, part_bytes=6_000)
    assert tasks.parts == [1, 1]
    for log, left in zip(before, held(place, TOPIC), strict=True):
        assert {r.key: r.value for r in left} == {r.key: r.value for r in log}


def test_a_failed_task_leaves_a_tier_unchanged(
    tmp_path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, rewritten = fill_tier(tmp_path / "a", tmp_path / "store"), TierCleaner.rewritten
    before, done = held(place, TOPIC), list[Rewritten]()

    def failing(*given: object) -> Rewritten:
        if done:
            raise CorruptBatch("a batch that does not match its checksum")
        done.append(rewritten(*given))  # type: ignore[arg-type] # as it is called
        return done[0]

    monkeypatch.setattr(TierCleaner, "rewritten", failing)
    with pytest.raises(CorruptBatch):
        job.run(NO_SPARK, place, [TOPIC], part_bytes=6_000)
    monkeypatch.undo()
    assert held(place, TOPIC) == before
    assert not list(tmp_path.rglob("*.cleaned*"))
    compact_tier_here(place)
    assert len(held(place, TOPIC)[0]) < len(before[0]) / 2
    assert tasks.parts


def test_a_late_record_is_held_against_the_whole_tail(tmp_path: Path, tasks: Tasks) -> None:
    """With the strategy "timestamp", a cleaned record wins over later appends with older times."""
    place = make_keyed(tmp_path / "a", tidelog_compaction_strategy="timestamp")
    clean_here(place)
    with Directory.open(place, writable=True, env=Env(clock=ManualClock(T0))) as directory:
        for number in range(400):
            late = NewRecord(key=b"k%d" % (number % 40), value=b"late" * 20, timestamp=T0 - 1)
            directory.append(TOPIC, [late], partition=number % 2)
        for number in range(2):
            log = directory.log_dir.log(TOPIC, number)
            log.roll()
            build_missing(log.segments)
    other = str(tmp_path / "b")
    shutil.copytree(place, other)
    job.run(NO_SPARK, place, part_bytes=6_000)
    clean_here(other)
    assert held(place, TOPIC) == held(other, TOPIC)
    assert tasks.parts


def test_files_left_by_an_earlier_attempt_are_removed(tmp_path: Path, tasks: Tasks) -> None:
    place = make_keyed(tmp_path / "a", count=100, seed=5)
    left = Path(place, f"{TOPIC}-0", "00000000000000000000.log.0011.cleaned")
    left.write_bytes(b"half a segment")
    found = job.run(NO_SPARK, place, [TOPIC], part_bytes=2_000)
    assert [report.stopped for report in found] == [None, None]
    assert len(tasks.parts) == 2
    assert not left.exists()


def test_without_zone_maps_a_partition_is_one_part(tmp_path: Path, tasks: Tasks) -> None:
    place = make_keyed(tmp_path / "a", count=100)
    for zones in Path(place).rglob("*.zones"):
        zones.unlink()
    (report,) = job.run(NO_SPARK, place, [TopicPartition(TOPIC, 1)], part_bytes=2_000)
    assert (tasks.parts, report.segments_after > 0) == ([1], True)


def test_invalid_directories_and_topics_are_refused(tmp_path: Path) -> None:
    place = make_keyed(tmp_path / "a b", count=10)
    with LogDir.open(place, options=LogDirOptions(writable=True)) as log_dir:
        with pytest.raises(DirectoryLocked):
            job.run(NO_SPARK, place)
        assert log_dir.path == place
    make(place, "plain")
    with pytest.raises(InvalidRequest, match=f"not a compacted topic.* --data '{place}' --set"):
        job.run(NO_SPARK, place, ["plain"])
    with pytest.raises(InvalidRequest, match="not written to"):
        job.run(NO_SPARK, "s3://bucket/logs")


def test_lost_append_times_are_accepted_on_request(tmp_path: Path, tasks: Tasks) -> None:
    place, name = make_keyed(tmp_path / "a"), TopicPartition(TOPIC, 0)
    sorted(Path(place, str(name)).glob("*.appendtime"))[1].unlink()
    with pytest.raises(CorruptFile, match="--accept-lost-times"):
        job.run(NO_SPARK, place, [name])
    (report,) = job.run(NO_SPARK, place, [name], accept_lost_times=True)
    assert report.stopped is None
    assert report.records_after < report.records_before


def test_a_row_has_the_figures_of_its_report_in_the_schemas_order(
    tmp_path: Path, tasks: Tasks
) -> None:
    (report,) = job.run(NO_SPARK, make_keyed(tmp_path / "a"), [TopicPartition(TOPIC, 1)])
    names = [field.split()[0] for field in job.SCHEMA.split(",")]
    row = dict(zip(names, job.row_of(report), strict=True))
    assert (row.pop("topic"), row.pop("partition")) == (TOPIC, 1)
    assert row.pop("reason") == report.decision.reason
    assert row == {name: getattr(report, name) for name in row}
    assert report.bytes_read != report.bytes_written


def test_names_of_attempts(tmp_path: Path) -> None:
    one, two = job.AttemptFiles("a1"), job.AttemptFiles("b2")
    path = str(tmp_path / "00.log.cleaned")
    with pytest.raises(FileNotFoundError):
        one.open(path)
    one.open(path, create=True).close()
    assert (one.exists(path), two.exists(path)) == (True, False)
    assert [entry.name for entry in two.list_dir(str(tmp_path))] == ["00.log.a1.cleaned"]
    one.rename(path, str(tmp_path / "00.log"))
    assert two.exists(str(tmp_path / "00.log"))


@pytest.fixture
def held_broker(tmp_path: Path) -> Iterator[tuple[str, Broker]]:
    """Start a broker on the directory, with its own cleaner switched off."""
    place = make_keyed(tmp_path / "a")
    with tidelog.broker(place, settings={"log.cleaner.enable": "false"}) as running:
        yield place, running


def lent(place: str, number: int) -> dict[str, object]:
    """Return a partition's job, as the broker sends it."""
    holder = find_holder(place)
    assert holder is not None
    with holder:
        wanted = compact_arguments(TopicPartition(TOPIC, number), roll=False, is_asked=True)
        return dict(holder.call("lend", wanted))


def give(place: str, told: Mapping[str, object]) -> Mapping[str, object]:
    holder = find_holder(place)
    assert holder is not None
    with holder:
        return holder.call("take_back", told)


def test_a_running_broker_lends_the_job_and_swaps_in(
    held_broker: tuple[str, Broker], tmp_path: Path, tasks: Tasks
) -> None:
    place, running = held_broker
    other = str(tmp_path / "b")
    ignored = (".lock", "*.sock*", "*control*", "tidelog-reserve*")  # files of the running broker
    shutil.copytree(place, other, ignore=shutil.ignore_patterns(*ignored))
    before = held(place, TOPIC)
    reports = job.run(NO_SPARK, place, part_bytes=6_000)
    clean_here(other)
    assert held(place, TOPIC) == held(other, TOPIC)
    assert all(number > 2 for number in tasks.parts)
    assert [report.stopped for report in reports] == [None, None]
    assert reports[0].records_before == len(before[0]) > reports[0].records_after
    assert not list(Path(place).rglob("*.cleaned"))
    # The broker reads the new segments, and another run finds nothing to do.
    seen = running.call(lambda node: len(list(node.partitions.get(TOPIC, 0).log.records())))
    assert seen == len(held(place, TOPIC)[0])
    assert [report.passes for report in job.run(NO_SPARK, place, if_due=True)] == [0, 0]


def test_a_job_of_a_broker_uses_the_memory_of_the_call(
    held_broker: tuple[str, Broker], tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = held_broker
    sizes: list[int] = []
    clean = job.SparkWorker.clean

    def noted(worker: job.SparkWorker, given: CleaningJob) -> CleaningResult:
        sizes.append(given.rules.dedupe_buffer_bytes)
        return clean(worker, given)

    monkeypatch.setattr(job.SparkWorker, "clean", noted)
    job.run(NO_SPARK, place, dedupe_buffer_bytes=3 << 20)
    assert sizes == [3 << 20] * 2


def test_a_running_broker_accepts_no_lost_append_times(held_broker: tuple[str, Broker]) -> None:
    """The broker creates the jobs, and its jobs stop at lost append times."""
    with pytest.raises(DirectoryLocked):
        job.run(NO_SPARK, held_broker[0], accept_lost_times=True)


def test_only_the_first_pass_finishes_the_active_segment(held_broker: tuple[str, Broker]) -> None:
    """If each pass did so, records that arrive during a compaction would make more segments."""
    place, running = held_broker
    holder, name = find_holder(place), TopicPartition(TOPIC, 0)
    assert holder is not None

    def append(node: Node) -> int:
        log = node.partitions.get(name.topic, name.partition).log
        log.append([NewRecord(key=b"k1", value=b"v", timestamp=T0)])
        return log.active.base_offset

    with holder:
        options = CleanerOptions(is_asked=True)
        borrowed = job.BrokerPartition(NO_SPARK, holder, place, name, 10**9, options, roll=True)
        bases = [running.call(append)]
        for _ in range(2):
            assert borrowed.inspect(is_asked=True)[1] is not None
            bases.append(running.call(append))
    assert bases[1] > bases[0]
    assert bases[2] == bases[1]


def test_a_job_that_another_has_taken_over_is_not_taken_back(
    held_broker: tuple[str, Broker], tasks: Tasks
) -> None:
    place, _ = held_broker
    before = held(place, TOPIC)
    _, first = read_lent(lent(place, 0))
    assert first is not None
    made = job.SparkWorker(NO_SPARK, reader_of(place), 10**9).clean(first)
    read_lent(lent(place, 0))
    with pytest.raises(CleaningAborted, match="was not started or has ended"):
        give(place, take_back(first, made))
    assert held(place, TOPIC) == before
    (report,) = job.run(NO_SPARK, place, [TopicPartition(TOPIC, 0)])
    assert report.stopped is None
    assert not list(Path(place).rglob("*.cleaned"))


def no_groups(made: CleaningResult) -> CleaningResult:
    return replace(made, groups=())


def further(made: CleaningResult) -> CleaningResult:
    return replace(made, mapped_to=1 << 40)


def elsewhere(made: CleaningResult) -> CleaningResult:
    first = replace(made.groups[0], suffixes=(".log", "/../../x"))
    return replace(made, groups=(first, *made.groups[1:]))


@pytest.mark.parametrize("spoil", [no_groups, further, elsewhere])
def test_an_impossible_result_of_the_job_is_refused(
    held_broker: tuple[str, Broker], spoil: Callable[[CleaningResult], CleaningResult]
) -> None:
    place, _ = held_broker
    before = held(place, TOPIC)
    _, one = read_lent(lent(place, 0))
    assert one is not None
    made = InProcess(os_env()).clean(one)
    with pytest.raises(CorruptMessage):
        give(place, take_back(one, spoil(made)))
    assert not list(Path(place).rglob("*.cleaned"))
    assert held(place, TOPIC) == before


def test_files_of_another_size_are_not_swapped_in(held_broker: tuple[str, Broker]) -> None:
    place, _ = held_broker
    before = held(place, TOPIC)
    _, one = read_lent(lent(place, 0))
    assert one is not None
    cleaned = InProcess(os_env()).clean(one)
    path = f"{one.directory}/{log_files.log_file_name(cleaned.groups[0].base_offset)}.cleaned"
    Path(path).write_bytes(b"late")
    with pytest.raises(CleaningAborted, match="its size differs from the announced one"):
        give(place, take_back(one, cleaned))
    assert held(place, TOPIC) == before


def reader_of(place: str) -> LogView:
    return LogDir.open(place).reader(TOPIC, 0)
