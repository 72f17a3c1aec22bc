"""Rows of a table that are read by their offsets."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pytest

from tidelog.errors import OffsetsGone
from tidelog.scan.keyed_table import TableStats, rows_at
from tidelog.scan.split import Split
from tidelog.types import ClockName, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tidelog.scan.source import RecordSource


@dataclass
class Compacted:
    """A source whose partition has only these offsets after a compaction."""

    offsets: tuple[int, ...]
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def read(
        self, splits: "Sequence[Split]", columns: "Sequence[str]", *, stats: object
    ) -> "Iterator[pa.RecordBatch]":
        del stats
        self.ranges += [(split.start_offset, split.end_offset) for split in splits]
        rows: dict[str, pa.Array[pa.Scalar[pa.DataType]]] = {
            "value": pa.array([b"%d" % offset for offset in self.offsets]),
            "offset": pa.array(self.offsets, pa.int64()),
        }
        yield pa.RecordBatch.from_arrays([rows[name] for name in columns], list(columns))


def values(source: Compacted, *wanted: int) -> "Iterator[object]":
    split = Split(
        topic="t",
        partition=0,
        start_offset=0,
        end_offset=100,
        directory="",
        clock=ClockName.RECORD,
        time_range=None,
        isolation=IsolationLevel.READ_UNCOMMITTED,
    )
    offsets = np.asarray(wanted, np.int64)
    there = cast("RecordSource", source)
    for batch in rows_at(there, [split], offsets, ["value"], TableStats()):
        assert batch.schema.names == ["value"]
        yield from batch.column("value").to_pylist()


def test_wanted_rows_alone_are_returned() -> None:
    source = Compacted((1, 4, 5, 9, 12))
    assert list(values(source, 4, 9)) == [b"4", b"9"]
    assert source.ranges == [(4, 10)]


def test_rows_removed_meanwhile_by_a_compaction_are_reported_after_the_others() -> None:
    rows = values(Compacted((1, 4, 9)), 1, 3, 4, 7)
    assert [next(rows), next(rows)] == [b"1", b"4"]
    with pytest.raises(OffsetsGone) as raised:
        next(rows)
    (lost,) = raised.value.lost
    assert (lost.topic, lost.partition, lost.start, lost.end) == ("t", 0, 3, 8)
    assert "2 of these records" in lost.reason
