"""Columns equal the plain records, for batches of any format and codec, and for any filter."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.records.kernel_logs import logs, times

from tidelog.record.batch_walk import Batch, walk
from tidelog.record.columns.batch_table import DecodeStats, Selection
from tidelog.record.columns.decode import ALL_COLUMNS, decode, tally
from tidelog.record.record import Record
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP

Row = dict[str, object]


def plain_rows(log: bytes) -> Iterator[tuple[Batch, Record]]:
    """Yield every record with its batch, by the plain code."""
    for batch in walk(log):
        for record in batch.records():
            yield batch, record


def as_row(batch: Batch, record: Record) -> Row:
    """Return the expected columns of a record; times are integers."""

    def known(number: int) -> int | None:
        return None if number == -1 else number

    return {
        "offset": record.offset,
        "timestamp": known(record.timestamp),
        "timestampType": record.timestamp_type.value,
        "createTimestamp": record.create_timestamp,
        "appendTimestamp": None,
        "key": record.key,
        "value": record.value,
        "headers": [{"key": header.key, "value": header.value} for header in record.headers],
        "producerId": known(batch.producer_id),
        "producerEpoch": known(batch.producer_epoch),
        "sequence": known(record.sequence),
        "leaderEpoch": known(batch.leader_epoch),
    }


def as_rows(batches: list[pa.RecordBatch]) -> list[Row]:
    """Return the rows of record batches. Times are integers, because some exceed `datetime`."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        names = batch.schema.names
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        lists = [column.to_pylist() for column in columns]
        rows += [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
    return rows


@given(log=logs, rows=st.integers(1, 8) | st.just(10_000), control=st.booleans())
def test_all_columns_equal_the_plain_records(log: bytes, rows: int, control: bool) -> None:
    found = list(decode(log, Selection(include_control=control), rows=rows))
    expected = [as_row(b, r) for b, r in plain_rows(log) if control or not b.is_control]
    assert as_rows(found) == expected
    assert all(0 < batch.num_rows <= rows for batch in found)


@given(log=logs, columns=st.permutations(ALL_COLUMNS), count=st.integers(1, 12))
def test_only_requested_columns_in_their_order_are_decoded(
    log: bytes, columns: list[str], count: int
) -> None:
    chosen = columns[:count]
    expected = [
        {name: row[name] for name in chosen}
        for row in (as_row(b, r) for b, r in plain_rows(log) if not b.is_control)
    ]
    found = list(decode(log, columns=chosen))
    assert as_rows(found) == expected
    assert all(batch.schema.names == chosen for batch in found)


@given(log=logs, start=st.integers(0, 110), length=st.integers(0, 30), rows=st.integers(1, 9))
def test_an_offset_range_has_exactly_its_records(
    log: bytes, start: int, length: int, rows: int
) -> None:
    found = as_rows(list(decode(log, Selection(start, start + length), rows=rows)))
    assert found == [
        as_row(b, r)
        for b, r in plain_rows(log)
        if not b.is_control and start <= r.offset < start + length
    ]


@given(log=logs, start=st.integers(0, 110), rows=st.integers(1, 20))
def test_views_equal_copies(log: bytes, start: int, rows: int) -> None:
    copies = as_rows(list(decode(log, Selection(start), rows=rows)))
    stats, copied = DecodeStats(), DecodeStats()
    viewed = list(decode(log, Selection(start), rows=rows, views=True, stats=stats))
    for batch in viewed:
        batch.validate(full=True)
    assert as_rows(viewed) == copies
    list(decode(log, Selection(start), rows=rows, stats=copied))
    assert stats == copied


@given(log=logs, start=times, end=times)
def test_a_time_range_has_exactly_its_records_and_counts_those_without_a_time(
    log: bytes, start: int, end: int
) -> None:
    stats = DecodeStats()
    found = as_rows(list(decode(log, Selection(record_time=(start, end)), stats=stats)))
    data = [(b, r) for b, r in plain_rows(log) if not b.is_control]
    last = end if end == INT64_MAX else end - 1  # an end of INT64_MAX excludes no time
    assert found == [
        as_row(b, r)
        for b, r in data
        if r.timestamp != NO_TIMESTAMP and start <= r.timestamp <= last
    ]
    assert stats.rows == len(found)
    assert stats.without_time <= sum(r.timestamp == NO_TIMESTAMP for _, r in data)
    counted = DecodeStats()
    tally(log, counted, Selection(record_time=(start, end)))
    assert counted == stats
    all_times = DecodeStats()
    list(decode(log, Selection(record_time=(INT64_MIN, INT64_MAX)), stats=all_times))
    stampless = [r for b, r in data if r.timestamp == NO_TIMESTAMP]
    assert all_times.without_time == len(stampless)


@given(log=logs, start=st.integers(0, 110), length=st.integers(0, 30))
def test_a_tally_of_offsets_equals_the_decoded_records(log: bytes, start: int, length: int) -> None:
    decoded, counted = DecodeStats(), DecodeStats()
    list(decode(log, Selection(start, start + length), stats=decoded))
    tally(log, counted, Selection(start, start + length))
    assert counted == decoded


@given(log=logs, data=st.data())
def test_append_times_are_those_of_their_runs(log: bytes, data: st.DataObject) -> None:
    starts = sorted(data.draw(st.sets(st.integers(0, 110), max_size=5)))
    known = [data.draw(st.sampled_from((-1, 5, 6, 1000))) for _ in starts]
    runs = (np.array(starts, np.int64), np.array(known, np.int64))
    found = as_rows(list(decode(log, columns=("offset", "appendTimestamp"), append_times=runs)))
    assert [row["appendTimestamp"] for row in found] == [
        next(
            (
                t if t >= 0 else None
                for s, t in reversed(list(zip(*runs, strict=True)))
                if s <= offset
            ),
            None,
        )
        for offset in (row["offset"] for row in found)
    ]
