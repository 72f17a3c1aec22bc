"""Ledgers in which tasks record their rows, and how the driver joins the ledgers of a batch."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptData, InvalidRequest, InvalidTimestamp
from tidelog.jobs.mirror.commit import batch_ends, relative_to_batch, with_final_offsets
from tidelog.jobs.mirror.work import (
    RUNS_MAX,
    TASK_ROWS_MAX,
    Ledger,
    LedgerRows,
    Origins,
    Report,
    RoutedRows,
    Routes,
    SentLedger,
    decode_ledger_rows,
    encode_ledger_rows,
    join_ledger_rows,
)
from tidelog.jobs.offset_map import MapRow, Partitioning
from tidelog.record.partitioner import partition_of
from tidelog.storage.directory.attach import AttachedRange
from tidelog.types import TopicPartition

ROUTES = Routes(
    pairs=((0, "orders", "all"), (1, "orders", "all"), (1, "bills", "bills")),
    counts=(("all", 3), ("bills", 1)),
    partitioning=Partitioning.KEPT,
)


def rows(
    offsets: list[int],
    *,
    pair: int = 0,
    partition: int = 0,
    target: int | list[int] = 0,
    ms: int = 5,
) -> RoutedRows:
    count = len(offsets)
    targets = [target] * count if isinstance(target, int) else target
    return RoutedRows(
        source=np.full(count, pair, np.int32),
        partition=np.full(count, partition, np.int32),
        offset=np.array(offsets, np.int64),
        create_ms=np.full(count, ms, np.int64),
        target=np.array(targets, np.int32),
    )


def ledger() -> Ledger:
    return Ledger(ROUTES.target_numbers())


class TestLedger:
    def test_a_run_is_one_dense_row_over_all_record_batches(self) -> None:
        found = ledger()
        for start in range(100, 1_100, 50):
            found.take(rows(list(range(start, start + 50))))
        (row,) = found.rows
        assert row.is_dense
        assert (row.source_start, row.source_end) == (100, 1_100)
        assert (row.target_start, row.target_end) == (0, 1_000)
        assert found.copied == {(0, 0): (100, 1_100)}
        assert found.counts == {(0, 0): 1_000}

    def test_a_gap_parts_runs(self) -> None:
        found = ledger()
        found.take(rows([3, 4, 5, 9, 10]))
        assert [(r.source_start, r.source_end, r.target_start) for r in found.rows] == [
            (3, 6, 0),
            (9, 11, 3),
        ]
        assert all(row.is_dense for row in found.rows)

    def test_too_many_gaps_make_one_row(self) -> None:
        found = ledger()
        found.take(rows(list(range(0, 4 * RUNS_MAX, 2))))
        (row,) = found.rows
        assert not row.is_dense
        assert (row.source_start, row.source_end) == (0, 4 * RUNS_MAX - 1)
        assert (row.target_start, row.target_end) == (0, 2 * RUNS_MAX)

    def test_two_sources_in_one_topic_share_its_offsets(self) -> None:
        found = ledger()
        found.take(rows([0, 1, 2], pair=0))
        found.take(rows([70, 71], pair=1))
        found.take(rows([0], pair=2))
        assert [(r.source, r.target_start, r.target_end) for r in found.rows] == [
            (0, 0, 3),
            (1, 3, 5),
            (2, 0, 1),
        ]

    def test_times_and_none(self) -> None:
        found = ledger()
        batch = rows([1, 2, 3])
        batch.create_ms[:] = [50, -1, 40]
        found.take(batch)
        (row,) = found.rows
        assert (row.create_ms_min, row.create_ms_max) == (40, -1)

    def test_the_rows_of_a_task_are_bounded(self) -> None:
        found = ledger()
        for start in range(0, 40 * TASK_ROWS_MAX, 20):
            found.take(rows([start, start + 2]))
        assert len(found.rows) <= TASK_ROWS_MAX
        assert found.copied == {(0, 0): (0, 40 * TASK_ROWS_MAX - 17)}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=60))
def test_rows_cover_every_record(steps: list[tuple[int, int]]) -> None:
    """For any gaps, targets and repeated offsets, rows of the ledger cover each record."""
    offset, offsets, targets = 0, [], []
    for step, target in steps:
        offset += step
        offsets.append(offset)
        targets.append(target)
    found = ledger()
    found.take(rows(offsets, target=targets))
    counts = [0, 0, 0]
    for source, target in zip(offsets, targets, strict=True):
        at = counts[target]
        counts[target] += 1
        covering = [
            row
            for row in found.rows
            if row.target_partition == target and row.source_start <= source < row.source_end
        ]
        assert any(row.target_start <= at < row.target_end for row in covering)
        for row in covering:
            if row.is_dense:
                assert row.target_start + source - row.source_start == at
    assert found.records == len(steps)


class TestSentLedger:
    def test_target_offsets_are_those_of_delivery_reports_in_order(self) -> None:
        found = SentLedger(ROUTES)
        found.take(rows([5, 6, 7], target=[0, 1, 0]))
        for topic, partition, offset in (
            ("all", 0, 40),
            ("all", 1, 8),
            ("markers", 3, 1),
            ("all", 0, 43),
        ):
            found.sent(topic, partition, offset)
        noted = found.noted(arrival_ms=99)
        places = [(r.target_partition, r.source_start, r.target_start) for r in noted.rows]
        assert places == [(0, 5, 40), (0, 7, 43), (1, 6, 8)]
        assert {row.arrival_ms for row in noted.rows} == {99}
        assert noted.records == 3


class TestOrigins:
    """Conversion of Spark's record batches into ledger rows and rows to write."""

    HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    def batch(self, **more: object) -> pa.RecordBatch:
        columns: dict[str, object] = {
            "source": [0, 1, 1],
            "topic": ["orders", "orders", "bills"],
            "partition": [0, 2, 0],
            "offset": [7, 8, 9],
            "key": [b"a", None, b"b"],
            "value": [b"x", b"y", None],
            "headers": pa.nulls(3),
            "timestamp": pa.array([1_500, None, 2_000_000], pa.timestamp("us", "UTC")),
            "targetPartition": pa.array([2, None, None], pa.int32()),
        } | more
        return pa.RecordBatch.from_pydict(columns)  # type: ignore[arg-type] # lists and arrays

    def origins(self, partitioning: Partitioning) -> Origins:
        routes = dataclasses.replace(ROUTES, partitioning=partitioning)
        return Origins(routes, task=0)

    def test_kept(self) -> None:
        noted, ours = self.origins(Partitioning.KEPT).read(self.batch())
        assert noted.source.tolist() == [0, 1, 2]
        assert noted.target.tolist() == [0, 2, 0]
        assert noted.create_ms.tolist() == [1, -1, 2_000]
        assert ours.column("topic").to_pylist() == ["all", "all", "bills"]
        assert ours.column("partition").to_pylist() == [0, 2, 0]
        # "No time" is -1 ms, not the present.
        assert ours.column("timestamp").to_pylist() == [1, -1, 2_000]

    def test_written_columns_equal_the_columns_read(self) -> None:
        headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []]
        batch = self.batch(headers=pa.array(headers, self.HEADERS))
        _, ours = self.origins(Partitioning.KEPT).read(batch)
        for name in ("key", "value", "headers"):
            assert ours.column(name).to_pylist() == batch.column(name).to_pylist()

    @pytest.mark.parametrize("micros", [-1, -500, -1_000, -1_001, -2_000])
    def test_a_time_before_1970_of_a_transform_is_refused(self, micros: int) -> None:
        """A time just before 1970 must not be rounded down to -1 ms, which means no time."""
        batch = self.batch()
        times = pa.array([micros, None, 2_000_000], pa.timestamp("us", "UTC"))
        at = batch.schema.get_field_index("timestamp")
        moved = batch.set_column(at, "timestamp", times)
        with pytest.raises(InvalidTimestamp, match=r"orders-\d, offset \d+: timestamp -\d ms"):
            self.origins(Partitioning.KEPT).read(moved)

    def test_by_key_as_kafka_does(self) -> None:
        noted, _ = self.origins(Partitioning.KEY).read(self.batch())
        assert noted.target[0] == partition_of(b"a", 3)
        assert 0 <= noted.target[1] < 3
        assert noted.target[2] == 0

    def test_the_target_partition_is_chosen_by_the_transform_or_by_key(self) -> None:
        noted, _ = self.origins(Partitioning.ANY).read(self.batch())
        assert noted.target[0] == 2
        assert noted.target[2] == 0

    def test_a_row_of_another_topic_is_refused(self) -> None:
        with pytest.raises(
            InvalidRequest, match="a row has the topic tides, which is not mirrored"
        ):
            self.origins(Partitioning.KEPT).read(self.batch(topic=["orders", "tides", "bills"]))

    def test_a_row_without_its_source_is_refused(self) -> None:
        with pytest.raises(
            InvalidRequest, match="null in one of the columns source, topic, partition, offset"
        ):
            self.origins(Partitioning.KEPT).read(self.batch(offset=[7, None, 9]))


class TestNotes:
    row = MapRow(0, 0, 0, 1, 10, 20, 0, 10, 1, 2, 0)

    def test_encoded_ledger_rows_are_decoded(self) -> None:
        noted = LedgerRows(rows=(self.row,) * 3, copied={(0, 0): (10, 20)}, records=30)
        assert decode_ledger_rows(encode_ledger_rows(noted)) == noted
        report = Report(task=3, noted=noted, counts=((0, 0, 30),))
        assert Report.decode(report.encode()) == report

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":9}', '{"v":1,"rows":"!!"}'])
    def test_anything_else_is_named(self, text: str) -> None:
        with pytest.raises(CorruptData, match="note"):
            decode_ledger_rows(text)

    def test_rows_of_later_tasks_follow_those_of_earlier_tasks(self) -> None:
        reports = []
        for task in range(3):
            found = ledger()
            found.take(rows(list(range(task * 100, task * 100 + 10)), partition=task % 2))
            counts = tuple((a, b, count) for (a, b), count in found.counts.items())
            noted = LedgerRows(rows=found.rows, copied=found.copied, records=found.records)
            reports.append(Report(task=task, noted=noted, counts=counts))
        noted = relative_to_batch(reports, ROUTES)
        assert [(r.source_start, r.target_start) for r in noted.rows] == [
            (0, 0),
            (100, 10),
            (200, 20),
        ]
        ranges = {TopicPartition("all", 0): AttachedRange(500, 530, 77, 3)}
        placed = with_final_offsets(noted, ranges, ROUTES, now_ms=9)
        assert [(r.target_start, r.arrival_ms) for r in placed.rows] == [
            (500, 77),
            (510, 77),
            (520, 77),
        ]
        assert placed.copied == {(0, 0): (0, 210), (0, 1): (100, 110)}

    def test_copied_offsets_of_tasks_are_joined_in_any_order(self) -> None:
        tasks = [
            LedgerRows(copied={(0, 0): (50, 80), (1, 0): (0, 5)}, records=30),
            LedgerRows(copied={(0, 0): (10, 50)}, records=40),
            LedgerRows(copied={(0, 0): (20, 60)}, records=40),
        ]
        joined = join_ledger_rows(tasks)
        assert joined.copied == {(0, 0): (10, 80), (1, 0): (0, 5)}
        assert joined.records == 110

    def test_a_batch_ends_after_its_last_record_in_each_partition(self) -> None:
        """The end is the largest end of all tasks: a broker may commit the last task first."""
        rows = (
            self.row._replace(target_start=10, target_end=20),
            self.row._replace(source_partition=1, target_start=0, target_end=10),
            self.row._replace(source=2, target_partition=0, target_start=3, target_end=5),
        )
        assert batch_ends(LedgerRows(rows=rows), ROUTES) == {
            TopicPartition("all", 0): 20,
            TopicPartition("bills", 0): 5,
        }

    def test_a_range_that_is_too_short_is_noticed(self) -> None:
        noted = LedgerRows(rows=(self.row,))
        ranges = {TopicPartition("all", 0): AttachedRange(0, 9, -1, 1)}
        with pytest.raises(CorruptData, match="do not match the offsets of the commit"):
            with_final_offsets(noted, ranges, ROUTES, now_ms=9)
