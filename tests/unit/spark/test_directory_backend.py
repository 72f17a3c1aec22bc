"""A directory as a query's backend: limits, splits by offset, flushed ends, empty ranges."""

import json
import random
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo
from tests.worlds.directories.random_logs import SPAN_MS, T0, TOPIC, make_log_dir

from tidelog.env import FileSystem
from tidelog.errors import InvalidRequest, InvalidTime, MissingFile, UnknownTopic
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.pushdown import NO_LIMITS, NO_PARTITION, NO_RANGE, FilterLimits
from tidelog.spark.source import PushdownReader, TidelogReader, plan_batch, plan_splits
from tidelog.spark.stream_log import StreamLog
from tidelog.spark.stream_offset import Extent
from tidelog.spark.tasks import BatchPlan, WhyEmpty
from tidelog.storage import files, text_files
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import INT64_MAX, ClockName, NewRecord, TopicPartition

COLUMNS = ("partition", "offset", "timestamp", "appendTimestamp")
NAME = TopicPartition(TOPIC, 0)
Rows = list[tuple[int, int, int | None, int | None]]


def plan(path: Path, limits: FilterLimits = NO_LIMITS, /, **options: object) -> BatchPlan:
    given = {"path": str(path), "subscribe": TOPIC, **{k: str(v) for k, v in options.items()}}
    with open_backend(read_source_options(given), COLUMNS) as backend:
        return backend.plan_batch(limits)


def rows(found: BatchPlan) -> Rows:
    batches = [batch for task in found.tasks for batch in task.read()]
    return [
        (row["partition"], row["offset"], ms(row["timestamp"]), ms(row["appendTimestamp"]))
        for batch in batches
        for row in batch.to_pylist()
    ]


def by_partition(values: dict[str, object]) -> str:
    return json.dumps({TOPIC: values})


def ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log")
    make_log_dir(str(path), 31, partitions=2, steps=80)
    return path


@pytest.fixture(scope="module")
def every(root: Path) -> Rows:
    return rows(plan(root))


@pytest.mark.parametrize("seed", range(12))
def test_limits_leave_just_the_rows_that_filters_keep(root: Path, every: Rows, seed: int) -> None:
    draw = random.Random(seed)
    end = max(row[1] for row in every) + 5
    first, last = sorted(draw.sample(range(end), 2))
    start_ms, end_ms = sorted(T0 + draw.randrange(SPAN_MS) for _ in range(2))
    clock = draw.choice(list(ClockName))
    if clock is ClockName.APPEND:
        end_ms += SPAN_MS
    times = draw.choice((None, (start_ms, end_ms), (start_ms, INT64_MAX)))
    limits = FilterLimits(least_offset=first, limit_offset=last, clock=clock, times=times)

    def keeps(row: tuple[int, int, int | None, int | None]) -> bool:
        time = row[2] if clock is ClockName.RECORD else row[3]
        in_time = times is None or (
            time is not None and times[0] <= time and (time < times[1] or times[1] == INT64_MAX)
        )
        return first <= row[1] < last and in_time

    want = [row for row in every if keeps(row)]
    assert rows(plan(root, limits, splitBytes=draw.choice((500, 1 << 20)))) == want
    assert rows(plan(root, limits, maxRecordsPerPartition=draw.choice((1, 3, 50)))) == want


def test_tasks_have_no_more_offsets_than_requested(root: Path, every: Rows) -> None:
    found = plan_splits({"path": str(root), "subscribe": TOPIC, "maxRecordsPerPartition": "7"})
    assert max(split.end_offset - split.start_offset for split in found) <= 7
    assert rows(plan(root, maxRecordsPerPartition=7)) == every
    assert rows(plan(root, maxRecordsPerPartition=7, minPartitions=900, splitBytes=100)) == every
    with open_backend(read_source_options({"path": str(root), "subscribe": TOPIC}), ()) as backend:
        bounds = backend.bounds(backend.partitions())
        cut = open_backend(
            read_source_options(
                {"path": str(root), "subscribe": TOPIC, "maxRecordsPerPartition": "9"}
            ),
            COLUMNS,
        ).plan(bounds)
    assert rows(BatchPlan(tasks=tuple(cut))) == every


def live(path: Path) -> LogDir:
    found = LogDir.open(str(path), options=LogDirOptions(create=True))
    found.create_topic(TOPIC)
    return found


def put(log_dir: LogDir, count: int) -> None:
    log_dir.log(TOPIC, 0).append([NewRecord(value=b"x", timestamp=T0) for _ in range(count)])


def flushed(path: Path, **options: object) -> list[int]:
    return [row[1] for row in rows(plan(path, readUntil="flushed", **options))]


def test_read_until_flushed_ends_at_the_flushed_end(tmp_path: Path) -> None:
    with live(tmp_path) as log_dir:
        put(log_dir, 5)
        assert flushed(tmp_path) == []  # no checkpoint contains a flushed end yet
        log_dir.flush()
        log_dir.checkpoint()
        put(log_dir, 5)
        assert flushed(tmp_path) == list(range(5))
        assert [row[1] for row in rows(plan(tmp_path))] == list(range(10))
        given = {"path": str(tmp_path), "subscribe": TOPIC, "readUntil": "flushed"}
        with open_backend(read_source_options(given), COLUMNS) as backend:
            assert backend.bounds([NAME]) == {NAME: Extent(0, 5)}
            assert [r[1] for r in rows(BatchPlan(tasks=tuple(backend.plan({NAME: (3, 9)}))))] == [
                3,
                4,
            ]
        starts = f'{{"{TOPIC}": {{"0": 7}}}}'
        late = plan(tmp_path, readUntil="flushed", startingOffsets=starts)
        assert (late.tasks, late.empty[0].why) == ((), WhyEmpty.NOT_VISIBLE)
    assert flushed(tmp_path) == list(range(10))  # a clean stop flushes


def test_the_reason_of_an_empty_range_uses_the_flushed_end_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live(tmp_path) as log_dir:
        put(log_dir, 5)
        log_dir.flush()
        log_dir.checkpoint()
        put(log_dir, 5)
        read = text_files.read_offset_checkpoint

        def read_then_flush(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
            ends = read(fs, path)
            log_dir.flush()
            log_dir.checkpoint()
            return ends

        monkeypatch.setattr(text_files, "read_offset_checkpoint", read_then_flush)
        starts = f'{{"{TOPIC}": {{"0": 7}}}}'
        late = plan(tmp_path, readUntil="flushed", startingOffsets=starts)
        assert (late.tasks, late.empty[0].why) == ((), WhyEmpty.NOT_VISIBLE)


def test_with_an_unreadable_checkpoint_no_record_counts_as_flushed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path) as log_dir:
        put(log_dir, 5)
    (tmp_path / files.RECOVERY_POINT_CHECKPOINT_FILE).write_text("nonsense")
    assert flushed(tmp_path) == []
    assert "no records count as flushed" in caplog.text


def test_empty_ranges_have_a_reason(tmp_path: Path) -> None:
    with live(tmp_path) as log_dir:
        assert plan(tmp_path).empty[0].why is WhyEmpty.NEVER_WRITTEN
        put(log_dir, 10)
        early = plan(tmp_path, endingTimestamp=T0)
        assert (early.empty, early.doubtful) == ((), ())  # a late record may still arrive
        log_dir.log(TOPIC, 0).roll()
        early = plan(tmp_path, endingTimestamp=T0)
        assert early.empty[0].why is WhyEmpty.NOT_THERE
        put(log_dir, 2)
        log_dir.log(TOPIC, 0).delete_records(4)
        gone = plan(tmp_path, endingTimestamp=T0)
        assert gone.doubtful[0].why is WhyEmpty.DELETED
        assert "the log starts at offset 4" in str(gone.doubtful[0])
        ends = f'{{"{TOPIC}": {{"0": 3}}}}'
        assert plan(tmp_path, endingOffsets=ends).empty[0].why is WhyEmpty.DELETED
        late = plan(tmp_path, startingTimestamp=T0 + 1)
        assert late.empty[0].why is WhyEmpty.NOT_THERE
        assert plan(tmp_path, FilterLimits(least_offset=99)).empty[0].why is WhyEmpty.NOT_WANTED
        log_dir.log(TOPIC, 0).delete_records(12)
        assert plan(tmp_path).empty[0].why is WhyEmpty.DELETED
    (found,) = plan_batch({"path": str(tmp_path), "subscribe": TOPIC}).empty
    assert (found.name, found.start, found.end) == (NAME, 12, 12)


def test_a_batch_read_warns_of_records_that_it_does_not_find(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = {"path": str(tmp_path), "subscribe": TOPIC, "failOnDataLoss": "false"}

    def warnings(**options: str) -> list[str]:
        caplog.clear()
        TidelogReader(read_source_options(source | options), ("offset",)).partitions()
        return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]

    with live(tmp_path) as log_dir:
        put(log_dir, 6)
        log_dir.log(TOPIC, 0).roll()
        put(log_dir, 6)
        log_dir.log(TOPIC, 0).delete_records(4)
    assert warnings() == []
    (doubtful,) = warnings(endingTimestamp=str(T0))
    assert "the log starts at offset 4" in doubtful
    (lost,) = warnings(startingOffsets=by_partition({"0": 2}))
    assert lost.startswith("not in the log: ")
    reader = PushdownReader(read_source_options(source), ("offset",))
    list(reader.pushFilters([EqualTo(("partition",), 7)]))
    caplog.clear()
    reader.partitions()
    assert len(caplog.records) == 1


def test_a_listed_partition_without_a_directory_is_lost(tmp_path: Path) -> None:
    make_log_dir(str(tmp_path), 31, partitions=2, steps=8)
    shutil.rmtree(tmp_path / f"{TOPIC}-1")
    with pytest.raises(MissingFile, match="partition 1 is listed in"):
        plan(tmp_path)
    (report,) = plan(tmp_path, failOnDataLoss=False).reports
    assert "partition 1 is listed in" in report
    assert plan(tmp_path, NO_LIMITS, startingOffsets="earliest", failOnDataLoss=False).tasks


def test_a_start_after_the_last_record_follows_the_strategy(tmp_path: Path) -> None:
    """The strategy `error` applies with `timeRange=exact` and with `timeRange=positions`."""
    with live(tmp_path) as log_dir:
        put(log_dir, 3)

    def tasks(**options: str) -> int:
        return len(plan(tmp_path, startingTimestamp=T0 + 1, **options).tasks)

    for mode in ("exact", "positions"):
        assert tasks(timeRange=mode, startingOffsetsByTimestampStrategy="latest") == 0
        with pytest.raises(InvalidRequest, match="no record at"):
            tasks(timeRange=mode, startingOffsetsByTimestampStrategy="error")
    with pytest.raises(InvalidRequest, match="no record at"):
        tasks(timeRange="positions")
    assert tasks() == 0


def test_contradicting_limits_give_no_rows(root: Path) -> None:
    found = plan(root, replace(NO_LIMITS, least_offset=5, limit_offset=5))
    assert (found.tasks, found.reports) == ((), (NO_RANGE,))
    nobody = {"path": str(root), "subscribePattern": "nobody.*"}
    assert plan_batch(nobody).reports == (
        "nothing to read: no topic matches subscribePattern=nobody.*",
    )
    elsewhere = replace(NO_LIMITS, names=(EqualTo(("partition",), 77),))
    assert plan(root, elsewhere).reports == (NO_PARTITION,)


@pytest.mark.parametrize("least", [1, 2, 7, 50, 400])
def test_min_partitions_is_a_lower_bound_even_for_a_small_log(
    root: Path, every: Rows, least: int
) -> None:
    found = plan(root, minPartitions=least)
    assert len(found.tasks) >= least
    assert rows(found) == every


def test_times_in_explanations_are_written_as_they_were_given(tmp_path: Path) -> None:
    with live(tmp_path) as log_dir:
        put(log_dir, 10)
        log_dir.log(TOPIC, 0).roll()
    (as_text,) = plan(tmp_path, endingTimestamp="1970-01-01T00:00:01Z").empty
    assert "the range ends at 1970-01-01T00:00:01Z" in as_text.reason
    assert " ms" not in as_text.reason
    (as_number,) = plan(tmp_path, endingTimestamp=1000).empty
    assert "the range ends at 1000 ms" in as_number.reason


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": by_partition({"0": -9})}, f"{TOPIC}-0: offset is -9"),
        (
            {
                "startingOffsets": by_partition({"0": 0, "1": 9}),
                "endingOffsets": by_partition({"0": 1, "1": 3}),
            },
            f"{TOPIC}-1: the offset range starts at 9",
        ),
        ({"startingOffsetsByTimestamp": by_partition({"1": "x"})}, f"{TOPIC}-1"),
    ],
)
def test_errors_about_ranges_name_the_partition(
    root: Path, options: dict[str, str], told: str
) -> None:
    with pytest.raises((InvalidRequest, InvalidTime), match=told):
        plan(root, **options)


def test_a_topic_that_does_not_exist_is_reported_with_those_that_are(root: Path) -> None:
    with pytest.raises(UnknownTopic, match=f"no topic 'zz'; there are: {TOPIC}"):
        plan_batch({"path": str(root), "subscribe": "zz"})


def test_patterns_match_no_internal_topics(tmp_path: Path) -> None:
    """Patterns don't match internal topics, as in the Kafka connector and at brokers."""
    books = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        for topic in (*books, "__mine", TOPIC):
            log_dir.create_topic(topic, partitions=1)
    given = {"path": str(tmp_path), "subscribePattern": ".*"}
    with open_backend(read_source_options(given), COLUMNS) as backend:
        assert {name.topic for name in backend.partitions()} == {"__mine", TOPIC}
    named = {"path": str(tmp_path), "subscribe": ",".join(books)}
    with open_backend(read_source_options(named), COLUMNS) as backend:
        assert {name.topic for name in backend.partitions()} == set(books)


def test_a_stream_of_named_internal_topics_continues_without_a_missing_topic(
    tmp_path: Path,
) -> None:
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("__consumer_offsets", partitions=1)
    given = {"path": str(tmp_path), "subscribe": f"__consumer_offsets,{TOPIC}"}
    stream = StreamLog(read_source_options(given), COLUMNS, open_backend)
    with closing(stream):
        assert set(stream.snapshot().extents) == {TopicPartition("__consumer_offsets", 0)}


def test_the_end_of_a_log_is_its_end_even_if_only_flushed_records_are_read(
    root: Path, tmp_path: Path
) -> None:
    """If the flushed end were used, a lost checkpoint would look like a truncated log."""
    copy = shutil.copytree(root, tmp_path / "copy")
    (copy / "recovery-point-offset-checkpoint").unlink()
    given = {"path": str(copy), "subscribe": TOPIC, "readUntil": "flushed"}
    with closing(StreamLog(read_source_options(given), COLUMNS, open_backend)) as stream:
        names = list(stream.snapshot().extents)
        with LogDir.open(str(copy)) as log_dir:
            readers = {name: log_dir.reader(name.topic, name.partition) for name in names}
            ends = {name: reader.log_end_offset for name, reader in readers.items()}
        assert stream.log_ends(names) == ends
        assert min(ends.values()) > 0


def test_errors_in_times_by_partition_name_the_option(root: Path) -> None:
    given = f'{{"{TOPIC}": {{"0": {T0}}}}}'
    for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(InvalidRequest, match=f"^{name} by partition lacks {TOPIC}-1"):
            plan(root, **{name: given})
    with pytest.raises(InvalidRequest, match="startingOffsetsByTimestampStrategy=latest"):
        plan(root, startingTimestamp="2100-01-01T00:00Z", timeRange="positions")
