"""A scan returns the rows of a record-by-record read, for any splits, times and transactions."""

import pickle  # noqa: TID251 - as Spark sends splits to its workers
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.constants import set_constant
from tests.worlds.directories.random_logs import (
    SPAN_MS,
    T0,
    TOPIC,
    append_times_of,
    make_log_dir,
    records_of,
)

from tidelog import scan
from tidelog.errors import InvalidRequest, LostOffsets, MissingTimestamps
from tidelog.record.record import Record
from tidelog.types import ClockName, IsolationLevel, TopicPartition

SEEDS = range(4)
PARTITIONS = 2
LEVELS = list(IsolationLevel)
SPLIT_BYTES = (300, 1_000, 5_000, 1 << 20)
COLUMNS = scan.ALL_COLUMNS


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Create a directory for each seed.

    In the first directory, every third file of append times is missing. The last directory has
    LogAppendTime, and no files of append times.
    """
    found = []
    for seed in SEEDS:
        path = tmp_path_factory.mktemp(f"log{seed}")
        stamped = {"message.timestamp.type": "LogAppendTime"} if seed == SEEDS[-1] else {}
        make_log_dir(str(path), seed, partitions=PARTITIONS, config=stamped)
        found.append(str(path))
    for sidecar in Path(found[-1]).glob("*/*.appendtime"):
        sidecar.unlink()
    for sidecar in sorted(Path(found[0]).glob("*/*.appendtime"))[::3]:
        sidecar.unlink()
    return found


def row_of(record: Record, partition: int, append_ms: int | None) -> dict[str, object]:
    """Return the expected row of a record, with times in ms."""
    return {
        "key": record.key,
        "value": record.value,
        "topic": TOPIC,
        "partition": partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp == -1 else record.timestamp,
        "timestampType": int(record.timestamp_type),
        "createTimestamp": record.create_timestamp,
        "appendTimestamp": append_ms,
        "headers": [{"key": h.key, "value": h.value} for h in record.headers],
    }


def row_dicts(table: pa.Table) -> list[dict[str, object]]:
    """Return the rows of a scan, with times in ms."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(pa.int64()))
    return table.to_pylist()


@cache
def expected(
    root: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> list[dict[str, object]]:
    found = []
    for number in range(PARTITIONS):
        records = records_of(root, number, isolation)
        times = append_times_of(root, number, records)
        found += [row_of(r, number, ms) for r, ms in zip(records, times, strict=True)]
    return found


ROW_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "createTimestamp",
    "appendTimestamp",
    "headers",
)


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_records_are_read_with_any_splits(
    roots: list[str], seed: int, isolation: IsolationLevel
) -> None:
    want = expected(roots[seed], isolation)
    for split_bytes in SPLIT_BYTES:
        plan = scan.plan(roots[seed], TOPIC, isolation=isolation, split_bytes=split_bytes)
        stats = scan.ScanStats()
        table = scan.to_table(plan, ROW_COLUMNS, stats=stats)
        assert row_dicts(table) == want
        assert stats.rows == len(want)
        assert stats.splits == len(plan)
        assert stats.replanned == 0
    assert len(scan.plan(roots[seed], TOPIC, split_bytes=300)) > 2 * PARTITIONS


times = st.integers(0, SPAN_MS).map(lambda ms: T0 + ms) | st.sampled_from(
    [0, T0 + 500_000, T0 + 500_001, 2**62]
)


@pytest.mark.parametrize("clock", list(ClockName))
@given(
    seed=st.sampled_from(SEEDS),
    ends=st.tuples(st.none() | times, st.none() | times),
    split_bytes=st.sampled_from(SPLIT_BYTES),
    isolation=st.sampled_from(LEVELS),
)
def test_time_range_is_exact(
    roots: list[str],
    clock: ClockName,
    seed: int,
    ends: tuple[int | None, int | None],
    split_bytes: int,
    isolation: IsolationLevel,
) -> None:
    start, end = sorted(ends, key=lambda ms: -1 if ms is None else ms)
    if end is not None and start is None and ends[1] is None:
        start, end = end, None
    column = "timestamp" if clock is ClockName.RECORD else "appendTimestamp"

    def is_inside(row: dict[str, object]) -> bool:
        ms = row[column]
        if start is None and end is None:
            return True
        if not isinstance(ms, int):
            return False
        return (start is None or ms >= start) and (end is None or ms < end)

    want = [row for row in expected(roots[seed], isolation) if is_inside(row)]
    plan = scan.plan(
        roots[seed],
        TOPIC,
        requested_range=scan.RequestedRange(start_ms=start, end_ms=end),
        clock=clock,
        isolation=isolation,
        split_bytes=split_bytes,
    )
    assert row_dicts(scan.to_table(plan, ROW_COLUMNS)) == want


@given(
    seed=st.sampled_from(SEEDS),
    start=st.integers(0, 400),
    count=st.integers(0, 400),
    split_bytes=st.sampled_from(SPLIT_BYTES),
)
def test_offset_range_is_exact(
    roots: list[str], seed: int, start: int, count: int, split_bytes: int
) -> None:
    records = records_of(roots[seed], 0)
    last = records[-1].offset
    start = min(start, last)
    end = min(start + count, last + 1)
    plan = scan.plan(
        roots[seed],
        TopicPartition(TOPIC, 0),
        requested_range=scan.RequestedRange(start_offset=start, end_offset=end),
        split_bytes=split_bytes,
    )
    offsets = scan.to_table(plan, ["offset"]).column("offset").to_pylist()
    assert offsets == [r.offset for r in records if start <= r.offset < end]


def test_any_columns_in_any_order(roots: list[str]) -> None:
    plan = scan.plan(roots[1], TOPIC)
    whole = scan.to_table(plan, COLUMNS)
    for columns in (["value"], ["partition", "key"], ["topic"], list(reversed(COLUMNS))):
        table = scan.to_table(plan, columns)
        assert table.schema == scan.schema(columns)
        assert table.equals(whole.select(columns))


def test_unknown_and_repeated_columns_are_refused_at_once(roots: list[str]) -> None:
    (split, *_) = scan.plan(roots[1], TOPIC)
    with pytest.raises(InvalidRequest, match="valeu"):
        scan.read(split, ["valeu"])
    with pytest.raises(InvalidRequest, match="twice"):
        scan.read(split, ["value", "value"])


def test_mapped_and_copied_pieces_read_equal(
    roots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for root in roots:
        copied = scan.to_table(scan.plan(root), COLUMNS)
        set_constant(monkeypatch, "MAP_BYTES_MIN", 0, inside="tidelog.scan")
        assert scan.to_table(scan.plan(root), COLUMNS) == copied
        monkeypatch.undo()


def test_splits_travel(roots: list[str]) -> None:
    plan = scan.plan(roots[1], TOPIC, split_bytes=1_000, isolation=IsolationLevel.READ_COMMITTED)
    there = [pickle.loads(pickle.dumps(split)) for split in plan]
    assert there == list(plan)
    assert scan.to_table(there).equals(scan.to_table(plan))


def test_record_batches_have_the_requested_rows(roots: list[str]) -> None:
    (split, *_) = scan.plan(roots[1], TOPIC)
    options = scan.ReadOptions(rows=7)
    sizes = [batch.num_rows for batch in scan.read(split, options=options)]
    assert max(sizes) <= 7
    assert sum(sizes) == len(records_of(roots[1], 0))


# -- records without a time ----------------------------------------------------------------------


@pytest.mark.parametrize("clock", list(ClockName))
def test_records_without_a_time_are_counted(roots: list[str], clock: ClockName) -> None:
    """A start of 0 excludes no batch, so all records without a time are counted."""
    column = "timestamp" if clock is ClockName.RECORD else "appendTimestamp"
    want = sum(row[column] is None for row in expected(roots[0]))
    assert want > 0
    for split_bytes in SPLIT_BYTES:
        plan = scan.plan(
            roots[0],
            TOPIC,
            requested_range=scan.RequestedRange(start_ms=0),
            clock=clock,
            split_bytes=split_bytes,
        )
        stats = scan.ScanStats()
        scan.to_table(plan, stats=stats)
        assert stats.without_time == want


@pytest.mark.parametrize("clock", list(ClockName))
def test_with_strict_records_without_a_time_are_an_error(
    roots: list[str], clock: ClockName
) -> None:
    plan = scan.plan(roots[0], TOPIC, requested_range=scan.RequestedRange(start_ms=0), clock=clock)
    with pytest.raises(MissingTimestamps, match=clock.value):
        scan.to_table(plan, options=scan.ReadOptions(strict=True))
    everything = scan.plan(roots[0], TOPIC, clock=clock)
    scan.to_table(everything, options=scan.ReadOptions(strict=True))


def test_the_total_of_several_statistics_adds_each_field_and_joins_lost_offsets() -> None:
    lost = LostOffsets("t", 0, 1, 3, "deleted")
    parts = [
        scan.ScanStats(rows=2, batches=1, lost=[lost]),
        scan.ScanStats(rows=3, log_bytes=7),
        scan.ScanStats(),
    ]
    total = scan.ScanStats.total(iter(parts))
    assert total == scan.ScanStats(rows=5, batches=1, log_bytes=7, lost=[lost])
    assert scan.ScanStats.total([]) == scan.ScanStats()
