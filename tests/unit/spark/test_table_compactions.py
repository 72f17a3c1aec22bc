"""Tasks of tables, without Spark: a compaction after the plan is an error by default."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidelog.directory import Directory
from tidelog.errors import OffsetsGone
from tidelog.scan.split import Split, encode_split
from tidelog.spark.options import read_source_options
from tidelog.spark.tables import TableRequest, TableTask, _Reduce, open_records
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.types import NewRecord, TopicPartition

NAME = TopicPartition("t", 0)
COLUMNS = ("key", "value")
Read = Callable[[str, str, list[Split]], Iterator[pa.RecordBatch]]


def append(path: str, values: str) -> None:
    with Directory.open(path, writable=True) as directory:
        directory.create_topic("t", config={"cleanup.policy": "compact"}, exist_ok=True)
        rows = [NewRecord(key=b"k%d" % n, value=text.encode()) for n, text in enumerate(values)]
        directory.append("t", rows)


def compact(path: str) -> None:
    with Directory.open(path, writable=True) as directory:
        directory.log("t", 0).roll()
        options = CleanerOptions(is_asked=True)
        clean_partition(directory.log_dir, NAME, InProcess(directory.log_dir.env), options)


def by_job(path: str, inexact: str, splits: list[Split]) -> Iterator[pa.RecordBatch]:
    """Return the rows of the task of `table` and `diff`."""
    request = TableRequest.make(path, "t", None, "record", inexact, 1 << 20)
    parts = tuple(encode_split(split) for split in splits)
    return _Reduce(parts, request, COLUMNS, {})(iter([pa.record_batch({"id": [0]})]))


def by_source(path: str, inexact: str, splits: list[Split]) -> Iterator[pa.RecordBatch]:
    """Return the rows of the task of the source's option `table`."""
    given = {"path": path, "subscribe": "t", "table": "true", "inexact": inexact}
    return TableTask(NAME, tuple(splits), COLUMNS, read_source_options(given)).read()


@pytest.mark.parametrize("read", [by_job, by_source])
def test_a_compaction_beyond_the_plan_is_an_error(read: Read, tmp_path: Path) -> None:
    path = str(tmp_path)
    append(path, "ab")
    request = TableRequest.make(path, "t", None, "record", "refuse", 1 << 20)
    with open_records(request.place) as source:
        splits = request.table(source, COLUMNS).plan()[NAME]
    compact(path)
    # The compaction read only records of the plan.
    rows = [row["value"] for batch in read(path, "refuse", splits) for row in batch.to_pylist()]
    assert rows == [b"a", b"b"]
    append(path, "c")
    compact(path)
    with pytest.raises(OffsetsGone, match=r"compacted up to offset 3 after the table was planned"):
        list(read(path, "refuse", splits))
    marked = [row["value"] for batch in read(path, "mark", splits) for row in batch.to_pylist()]
    assert marked == [b"b"]
