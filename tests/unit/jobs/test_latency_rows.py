"""A latency job's summaries of rows that Spark has read from brokers."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from tidelog.jobs.latency.job import reduce_rows

START = datetime(2013, 2, 8, 17, tzinfo=UTC)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 5, 7])
def test_each_partition_has_one_summary_in_any_number_of_batches(batch_rows: int) -> None:
    names = [("t", 0)] * 5 + [("t", 1)] * 3 + [("u", 1)] * 4
    created = [START + timedelta(minutes=7 * number % 20) for number in range(len(names))]
    table = pa.table(
        {
            "topic": [topic for topic, _ in names],
            "partition": [partition for _, partition in names],
            "offset": list(range(len(names))),
            "createTimestamp": created,
            "appendTimestamp": [START + timedelta(hours=1)] * len(names),
        }
    )
    whole = rows(table, len(names))
    assert [(row["topic"], row["partition"]) for row in whole] == [("t", 0), ("t", 1), ("u", 1)]
    assert rows(table, batch_rows) == whole
    alone = [rows(table.slice(start, size), size) for start, size in ((0, 5), (5, 3), (8, 4))]
    assert [row for (row,) in alone] == whole


def rows(table: pa.Table, batch_rows: int) -> list[dict[str, object]]:
    reduced = reduce_rows((0, 60_000), table.to_batches(max_chunksize=batch_rows))
    return [row for batch in reduced for row in batch.to_pylist()]
