"""Number and total size of a split's records in a range, by hour on each clock."""

import pyarrow as pa

from tidelog.jobs.replay.hours import tally

HOUR = 3_600_000


def rows(times: list[int | None], appended: list[int | None] | None = None) -> pa.RecordBatch:
    """Return records of partitions 0 and 1 in turn.

    Values have 3 bytes. Keys of partition 0 are null, and keys of partition 1 have 2 bytes.
    """
    kind = pa.timestamp("us", "UTC")

    def micros(found: list[int | None]) -> list[int | None]:
        return [None if ms is None else ms * 1000 for ms in found]

    columns: dict[str, pa.Array[pa.Scalar[pa.DataType]]] = {
        "key": pa.array([b"kk" if at % 2 else None for at in range(len(times))], pa.binary()),
        "value": pa.array([b"vvv"] * len(times), pa.binary()),
        "partition": pa.array([at % 2 for at in range(len(times))], pa.int32()),
        "timestamp": pa.array(micros(times), pa.int64()).cast(kind),
    }
    if appended is not None:
        columns["appendTimestamp"] = pa.array(micros(appended), pa.int64()).cast(kind)
    return pa.RecordBatch.from_pydict(columns)


def told(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in batch.to_pylist())


def test_both_clocks() -> None:
    found = tally(rows([0, HOUR - 1, HOUR, HOUR], [5 * HOUR] * 4), (None, None), on_append=False)
    assert told(found) == [
        (0, "append", 5, 2),
        (0, "bytes", 2, 6),
        (0, "record", 0, 1),
        (0, "record", 1, 1),
        (1, "append", 5, 2),
        (1, "bytes", 2, 10),
        (1, "record", 0, 1),
        (1, "record", 1, 1),
    ]


def test_only_the_range_counts_on_its_clock() -> None:
    batch = rows([0, 0, 7 * HOUR, 0], [HOUR, 2 * HOUR, 2 * HOUR, None])
    assert told(tally(batch, (2 * HOUR, 3 * HOUR), on_append=True)) == [
        (0, "append", 2, 1),
        (0, "bytes", 1, 3),
        (0, "record", 7, 1),
        (1, "append", 2, 1),
        (1, "bytes", 1, 5),
        (1, "record", 0, 1),
    ]


def test_a_range_begins_with_its_start_and_ends_before_its_end() -> None:
    batch = rows([HOUR - 1, HOUR, 2 * HOUR - 1, 2 * HOUR])
    found = told(tally(batch, (HOUR, 2 * HOUR), on_append=False))
    assert [row for row in found if row[1] == "record"] == [
        (0, "record", 1, 1),
        (1, "record", 1, 1),
    ]


def test_records_without_a_time_lie_in_no_range_and_in_no_hour() -> None:
    batch = rows([-1, 5])
    assert told(tally(batch, (None, HOUR), on_append=False)) == [
        (1, "bytes", 1, 5),
        (1, "record", 0, 1),
    ]
    assert (0, "bytes", 1, 3) in told(tally(batch, (None, None), on_append=False))
    assert told(tally(rows([]), (None, None), on_append=False)) == []
