"""Substitute for a mirror's DataFrame: rows in memory, which one task processes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from tests.faults.seeded import START_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T0 = START_MS


@dataclass(frozen=True, slots=True)
class Rows:
    """Substitute for a DataFrame, with only the call that a mirror uses; one task has all rows."""

    batches: Iterable[pa.RecordBatch]

    def mapInArrow(
        self, task: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]], _schema: str
    ) -> SimpleNamespace:
        told = [row for batch in task(iter(self.batches)) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in told])


def frame(batches: Iterable[pa.RecordBatch]) -> "DataFrame":
    """Return record batches as a DataFrame."""
    return cast("DataFrame", Rows(batches))


def value(partition: int, offset: int) -> bytes:
    return b"%d/%d" % (partition, offset)


def origin_batch(topic: str, partition: int, offsets: list[int]) -> pa.RecordBatch:
    """Return records of one partition, as a mirror reads them."""
    count = len(offsets)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    micros = [(T0 + offset) * 1_000 for offset in offsets]
    columns: dict[str, object] = {
        "source": pa.array([0] * count, pa.int32()),
        "topic": [topic] * count,
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "key": [b"%d" % offset for offset in offsets],
        "value": [value(partition, offset) for offset in offsets],
        "headers": pa.nulls(count, headers),
        "timestamp": pa.array(micros, pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)  # type: ignore[arg-type] # lists and arrays
