"""Each conversion for other tools returns the records of a plain read, and ends its threads."""

import gc
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tests.worlds.directories.random_logs import (
    SPAN_MS,
    T0,
    TOPIC,
    append_times_of,
    make_log_dir,
    records_of,
)
from tests.worlds.waiting import until_so

from tidelog import scan
from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import (
    CorruptData,
    InvalidRequest,
    MissingDependency,
    MissingTimestamps,
    UnknownTopic,
)
from tidelog.frames import Scan
from tidelog.html_cells import CELL_LIMIT, html_table
from tidelog.scan import count_by_time, parallel
from tidelog.scan.parallel import to_parallel_reader
from tidelog.scan.split import ScanStats
from tidelog.timespec import time_text
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

PARTITIONS = 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIDDLE = (T0 + SPAN_MS // 4, T0 + SPAN_MS // 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("frames"))
    make_log_dir(path, 11, partitions=PARTITIONS, steps=90)
    return path


@pytest.fixture
def directory(path: str) -> Iterator[Directory]:
    with Directory.open(path) as opened:
        yield opened


def expected(
    path: str,
    *,
    times: tuple[int, int] | None = None,
    clock: ClockName = ClockName.RECORD,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return (partition, offset, key, value) of each record in the range, by the plain path."""
    rows = []
    for number in range(PARTITIONS):
        records = records_of(path, number, isolation)
        appended = append_times_of(path, number, records)
        for record, append_ms in zip(records, appended, strict=True):
            time_ms = record.timestamp if clock is ClockName.RECORD else append_ms
            if times is None or (time_ms is not None and times[0] <= time_ms < times[1]):
                rows.append((number, record.offset, record.key, record.value))
    return rows


def plain_rows(table: pa.Table) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (row["partition"], row["offset"], row["key"], row["value"]) for row in table.to_pylist()
    ]


class TestEveryWayGivesTheSame:
    @pytest.mark.parametrize("clock", list(ClockName))
    @pytest.mark.parametrize("isolation", list(IsolationLevel))
    @pytest.mark.parametrize("times", [None, MIDDLE])
    def test_every_form_has_the_rows_of_the_plain_path(
        self,
        path: str,
        directory: Directory,
        clock: ClockName,
        isolation: IsolationLevel,
        times: tuple[int, int] | None,
    ) -> None:
        start, end = times or (None, None)
        found = directory.scan(TOPIC, start=start, end=end, clock=clock, isolation=isolation)
        wanted = expected(path, times=times, clock=clock, isolation=isolation)
        assert wanted
        assert plain_rows(found.to_table()) == wanted
        assert found.count() == len(wanted)
        polars = found.to_polars()
        assert polars.select("partition", "offset", "key", "value").rows() == wanted
        pandas = found.to_pandas()
        assert list(zip(pandas["partition"], pandas["offset"], strict=True)) == [
            row[:2] for row in wanted
        ]
        with duckdb.connect() as connection:
            relation = found.to_duckdb(connection, view="tides")
            query = 'select partition, "offset", key, value from tides order by 1, 2'
            assert connection.sql(query).fetchall() == wanted
            assert relation.aggregate("count(*)").fetchall() == [(len(wanted),)]

    def test_a_range_may_be_one_text(self, path: str, directory: Directory) -> None:
        start, end = (EPOCH + timedelta(milliseconds=ms) for ms in MIDDLE)
        found = directory.scan(TOPIC, during=f"{start.isoformat()}..{end.isoformat()}")
        assert plain_rows(found.to_table()) == expected(path, times=MIDDLE)
        assert directory.scan(TOPIC, during="..").count() == len(expected(path))
        assert directory.scan(TOPIC, during=f"@{MIDDLE[0]}..").requested_range.end_ms is None

    def test_one_partition_and_all_topics(self, path: str, directory: Directory) -> None:
        alone = directory.scan(TopicPartition(TOPIC, 1))
        assert plain_rows(alone.to_table()) == [row for row in expected(path) if row[0] == 1]
        assert directory.scan().count() == directory.scan([TOPIC]).count() == len(expected(path))

    @pytest.mark.parametrize("times", [None, MIDDLE])
    def test_views_show_the_same_to_every_tool(
        self, path: str, directory: Directory, times: tuple[int, int] | None
    ) -> None:
        start, end = times or (None, None)
        chosen = directory.scan(TOPIC, start=start, end=end)
        copies, views = chosen.to_table(), chosen.to_arrow(views=True).read_all()
        assert views.schema.field("value").type == pa.binary_view()
        assert plain_rows(views) == expected(path, times=times)
        assert views.cast(copies.schema).equals(copies)
        assert pl.DataFrame(views).equals(pl.DataFrame(copies))
        assert views.to_pandas().equals(copies.to_pandas())
        with duckdb.connect() as connection:
            relation = connection.from_arrow(views).order('"partition", "offset"')
            assert plain_rows(relation.to_arrow_table()) == plain_rows(copies)

    def test_columns_have_the_requested_order(self, directory: Directory) -> None:
        columns = ["offset", "appendTimestamp", "topic"]
        table = directory.scan(TOPIC, columns=columns).to_table()
        assert table.column_names == columns
        assert table.equals(directory.read(TOPIC, columns=columns).read_all())
        assert table.schema == directory.scan(TOPIC, columns=columns).schema

    def test_any_tool_can_read_a_scan_as_a_stream_repeatedly(self, directory: Directory) -> None:
        found = directory.scan(TOPIC, columns=["offset", "value"])
        table = found.to_table()
        for _ in range(2):
            assert pa.table(found).equals(table)
            assert pl.DataFrame(found).to_arrow().num_rows == table.num_rows
            assert pa.RecordBatchReader.from_stream(found).read_all().equals(table)

    def test_a_log_that_grows_is_read_as_it_is_by_then(self, tmp_path: Path) -> None:
        with Directory.open(str(tmp_path), writable=True) as directory:
            directory.create_topic("t")
            found = directory.scan("t", columns=["value"])
            assert found.count() == found.to_table().num_rows == 0
            directory.append("t", [NewRecord(value=b"1")])
            assert found.to_polars()["value"].to_list() == [b"1"]
            assert found.count() == 1


class TestParallelReading:
    @pytest.mark.parametrize("threads", [1, 2, 5])
    @pytest.mark.parametrize("buffer_bytes", [0, 2000, 64 << 20])
    @pytest.mark.parametrize("split_bytes", [500, 5000, 1 << 20])
    def test_order_and_rows_do_not_depend_on_threads_and_buffers(
        self, path: str, threads: int, buffer_bytes: int, split_bytes: int
    ) -> None:
        planned = scan.plan(path, TOPIC, split_bytes=split_bytes)
        options = scan.ReadOptions(rows=7)
        stats, alone = ScanStats(), ScanStats()
        reader = to_parallel_reader(
            planned, options=options, threads=threads, buffer_bytes=buffer_bytes, stats=stats
        )
        assert reader.read_all().equals(scan.to_table(planned, options=options, stats=alone))
        assert stats == alone
        assert no_reading_threads()

    def test_buffered_batches_are_bounded(self, path: str) -> None:
        planned = scan.plan(path, TOPIC, split_bytes=500)
        assert len(planned) > 30
        limit, threads = 600, 3
        pool = parallel._Pool(planned.splits, ("value",), scan.ReadOptions(rows=5), limit)
        held, largest = 0, 0
        for batch in pool.batches(threads, ScanStats()):
            held, largest = max(held, pool._buffered_bytes), max(largest, batch.nbytes)
        assert held < limit + threads * largest
        assert pool._buffered_bytes == 0

    def test_a_reader_that_is_dropped_ends_its_threads(self, path: str) -> None:
        planned = scan.plan(path, TOPIC, split_bytes=500)
        reader = to_parallel_reader(planned, threads=4, buffer_bytes=0)
        assert no_reading_threads()  # threads start when the first batch is read
        reader.read_next_batch()
        assert not no_reading_threads()
        del reader
        gc.collect()
        assert no_reading_threads()

    def test_threads_that_wait_for_room_end_with_the_reader(self, path: str) -> None:
        planned, threads = scan.plan(path, TOPIC, split_bytes=5000), 3
        pool = parallel._Pool(planned.splits, ("value",), scan.ReadOptions(rows=1), 0)
        batches = pool.batches(threads, ScanStats())
        next(batches)
        waiting = pool._changed._waiters  # type: ignore[attr-defined] # of CPython
        until_so(lambda: len(waiting) == threads, "all threads wait for room")
        del batches
        assert no_reading_threads()

    def test_a_thread_that_cannot_start_is_the_error_and_the_others_end(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = threading.Thread.start

        def start_two(thread: threading.Thread) -> None:
            if thread.name == "tidelog-read-2":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_two)
        planned = scan.plan(path, TOPIC, split_bytes=500)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            to_parallel_reader(planned, threads=4).read_all()
        assert no_reading_threads()

    def test_a_reader_without_tasks_has_no_rows_and_checks_its_arguments(self, path: str) -> None:
        assert to_parallel_reader((), ["offset"]).read_all().num_rows == 0
        for odd in ({"threads": 0}, {"buffer_bytes": -1}):
            with pytest.raises(InvalidRequest):
                to_parallel_reader((), **odd)  # type: ignore[arg-type] # wrong on purpose
        with pytest.raises(InvalidRequest, match="no column 'valeu'"):
            to_parallel_reader((), ["valeu"])


def no_reading_threads() -> bool:
    return not any(thread.name.startswith("tidelog-read") for thread in threading.enumerate())


class TestErrors:
    def test_damage_is_a_typed_error_after_the_records_before_it(self, tmp_path: Path) -> None:
        with Directory.open(str(tmp_path), writable=True) as directory:
            directory.create_topic("t", config={"internal.segment.bytes": "2000"})
            for number in range(100):
                directory.append("t", [NewRecord(value=b"%d" % number * 30)])
        logs = sorted((tmp_path / "t-0").glob("*.log"))
        data = bytearray(logs[3].read_bytes())
        data[len(data) // 2] ^= 1
        logs[3].write_bytes(data)
        base = int(logs[3].stem)
        with Directory.open(str(tmp_path)) as directory:
            planned = scan.plan(directory.log_dir, "t", split_bytes=1)
            reader = to_parallel_reader(planned, ["offset"], threads=4)
            seen: list[int] = []
            with pytest.raises(CorruptData, match=logs[3].name):
                seen.extend(n for batch in reader for n in np.asarray(batch["offset"]).tolist())
            assert seen == list(range(len(seen)))
            assert base <= len(seen) < int(logs[4].stem)
            for take in (Scan.to_table, Scan.to_polars, Scan.to_pandas):
                with pytest.raises(CorruptData):
                    take(directory.scan("t"))
            relation = directory.scan("t", columns=["offset"]).to_duckdb()
            with pytest.raises(duckdb.Error, match="CRC"):
                relation.aggregate("count(*)").fetchall()
        assert no_reading_threads()

    def test_records_without_a_time_under_strict(self, directory: Directory) -> None:
        found = directory.scan(TOPIC, start=MIDDLE[0], end=MIDDLE[1], strict=True)
        for take in (Scan.to_table, Scan.count):
            with pytest.raises(MissingTimestamps):
                take(found)
        everything = directory.scan(TOPIC, strict=True)
        assert everything.count() == everything.to_table().num_rows

    def test_invalid_scans_are_typed_errors(self, directory: Directory) -> None:
        for take in (Scan.to_arrow, Scan.to_table, Scan.to_duckdb, Scan.count):
            with pytest.raises(UnknownTopic):
                take(directory.scan("other"))
        with pytest.raises(InvalidRequest, match="no column"):
            directory.scan(TOPIC, columns=["valeu"]).to_arrow()
        with pytest.raises(InvalidRequest, match="whole range"):
            directory.scan(TOPIC, during="2013-02-08", start=3)

    @pytest.mark.parametrize("name", ["polars", "duckdb", "pandas"])
    def test_a_missing_package_is_named(
        self, directory: Directory, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingDependency, match=f"pip install {name}"):
            getattr(directory.scan(TOPIC), f"to_{name}")()

    def test_without_pyarrow_the_error_names_the_extra(
        self, directory: Directory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "tidelog.scan.reader", None)
        with pytest.raises(MissingDependency, match=r"tidelog\[arrow\]"):
            directory.scan(TOPIC).to_arrow()


class TestNotebooks:
    def test_a_directory_and_its_topics(self, path: str, directory: Directory) -> None:
        shown = directory._repr_html_()
        assert path in shown
        assert "internal.segment.bytes=3000" in shown
        topics = directory.topics()
        assert dict(topics) == dict(directory.log_dir.topics())
        assert "1 topic<" in topics._repr_html_()  # type: ignore[attr-defined] # it has more than a Mapping

    def test_a_scan_shows_its_first_records_and_its_cost(self, directory: Directory) -> None:
        shown = directory.scan(TOPIC, start=MIDDLE[0])._repr_html_()
        assert "first 5 records" in shown
        assert "timestamp 2013-02-08 " in shown
        assert "to be read, in" in shown
        assert "UnknownTopic" not in directory.scan("<b>")._repr_html_()
        assert "&lt;b&gt;" in directory.scan("<b>")._repr_html_()
        assert (
            f"Plan of {len(directory.scan().plan())} split" in directory.scan().plan()._repr_html_()
        )
        assert repr(directory.scan(TOPIC)) == f"Scan({directory.path!r}, tides)"

    def test_record_data_is_escaped_and_cut(self) -> None:
        shown = html_table("a<b", ["x"], [[b"<script>" + b"y" * 999], [None], [1234567], [True]])
        assert "<script>" not in shown
        assert "a&lt;b" in shown
        assert shown.count("y") < CELL_LIMIT
        assert "1,234,567" in shown

    def test_a_time_outside_of_the_calendar_is_shown_as_a_number(
        self, directory: Directory
    ) -> None:
        assert str(2**62) in repr(directory.scan(TOPIC, start=2**62))


def test_a_manual_clock_defines_now(tmp_path: Path) -> None:
    env = Env(clock=ManualClock(T0 + 10_000))
    with Directory.open(str(tmp_path), writable=True, env=env) as directory:
        directory.create_topic("t")
        directory.append("t", [NewRecord(timestamp=T0 + at) for at in (0, 5000, 9000)])
        assert directory.scan("t", during="-6s..now").count() == 2


def test_a_range_with_too_many_hours_is_refused_before_records_are_read(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reads(*_arguments: object, **_options: object) -> None:
        raise AssertionError("records are read")

    wide = directory.scan(TOPIC, start=0, end=2**41)
    monkeypatch.setattr(Scan, "plan", no_reads)
    with pytest.raises(InvalidRequest, match="the range has 610,839 hours, more than 100,000"):
        wide.counts_by("hour")


def test_counts_by_time_are_shown_as_lines(tmp_path: Path) -> None:
    with Directory.open(str(tmp_path), writable=True) as directory:
        directory.create_topic("t", config={"retention.ms": "-1"})
        day = 86_400_000
        times = [T0 + number * 7 * day for number in range(4)]
        directory.append("t", [NewRecord(timestamp=time_ms) for time_ms in times])
        counted = directory.scan("t").counts_by("day")
    lines = repr(counted).splitlines()
    assert lines[0] == "4 records in 22 ranges of time, times in UTC"
    first, second = counted.counts[0], counted.counts[1]
    assert lines[1] == f"  {time_text(first.start_ms)} to {time_text(first.end_ms)}  1"
    assert second.start_ms == first.end_ms
    assert (len(lines), lines[-1]) == (22, "  and 2 more")
    assert "<th>start</th><th>end</th><th>records</th>" in counted._repr_html_()


def test_scattered_times_are_not_tallied_without_a_limit(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_by_time, "_QUARTERS_MAX", 1)
    with pytest.raises(InvalidRequest, match="times in more than 1 quarters of an hour; use a sho"):
        directory.scan(TOPIC).counts_by("hour")
