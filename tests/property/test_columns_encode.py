"""Batches encoded from tables have the plain builder's bytes, and are decoded to equal columns."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.records.kernel_logs import contents, headers

from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.columns.column_builders import HEADERS
from tidelog.record.columns.decode import decode
from tidelog.record.columns.encode import encode_table
from tidelog.record.header import assign_offset
from tidelog.types import INT64_MAX, Codec, NewRecord, TimestampType

NOW_MS = 77

rows = st.lists(
    st.builds(
        NewRecord,
        key=contents,
        value=contents,
        timestamp=st.none() | st.integers(-1, INT64_MAX),
        headers=st.just(()) | headers,
    ),
    min_size=1,
    max_size=8,
)


def as_table(records: list[NewRecord]) -> pa.Table:
    """Return the records as columns."""
    pairs = [[{"key": h.key, "value": h.value} for h in record.headers] for record in records]
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in records], pa.int64()),
            "headers": pa.array(pairs, HEADERS),
        }
    )


@given(records=rows, codec=st.sampled_from(Codec), stamped=st.booleans(), skip=st.integers(0, 7))
def test_one_batch_equals_that_of_the_plain_builder(
    records: list[NewRecord], codec: Codec, stamped: bool, skip: int
) -> None:
    kind = TimestampType(int(stamped))
    chosen = records[skip:]
    # The input is a slice of a table, because the buffers of a slice begin before its rows.
    table = as_table(records).slice(skip)
    found = list(encode_table(table, now_ms=NOW_MS, codec=codec, timestamp_type=kind))
    assert found == [
        build_batch(
            chosen,
            codec=codec,
            timestamp_type=kind,
            append_time_ms=NOW_MS if stamped else None,
            default_timestamp=NOW_MS,
        )
        for _ in range(1 if chosen else 0)
    ]


@given(records=rows, batch_bytes=st.integers(1, 600))
def test_batches_end_before_they_grow_too_large(records: list[NewRecord], batch_bytes: int) -> None:
    found = [
        RecordBatch(batch)
        for batch in encode_table(as_table(records), now_ms=NOW_MS, batch_bytes=batch_bytes)
    ]
    left = list(records)
    for batch in found:
        count = batch.record_count
        assert batch.view == build_batch(left[:count], default_timestamp=NOW_MS)
        assert batch.size_bytes <= batch_bytes or count == 1
        if left[count:]:  # with one more record, the batch would exceed its size limit
            larger = build_batch(left[: count + 1], default_timestamp=NOW_MS)
            assert len(larger) > batch_bytes
        del left[:count]
    assert not left


@given(records=rows, batch_bytes=st.integers(1, 600))
def test_columns_are_read_back_equal(records: list[NewRecord], batch_bytes: int) -> None:
    table = as_table(records)
    names = ("key", "value", "headers")
    log, offset = bytearray(), 0
    for part in encode_table(table, now_ms=NOW_MS, batch_bytes=batch_bytes):
        at = len(log)
        log += part
        assign_offset(log, at, offset, 0)
        offset += RecordBatch(part).record_count
    found = pa.Table.from_batches(decode(log, columns=names))
    assert found.to_pylist() == table.select(list(names)).to_pylist()
