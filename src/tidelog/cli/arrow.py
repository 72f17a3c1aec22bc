"""Records as an Arrow IPC stream or as Parquet on stdout: by columns, for programs.

Needs pyarrow and numba, so it is imported by `read --format arrow` and `parquet` alone.
"""

from collections.abc import Iterable, Iterator
from io import IOBase
from typing import TYPE_CHECKING

from tidelog.cli.choices import ReadFormat
from tidelog.cli.problems import UsageProblem
from tidelog.cli.selection import Selection
from tidelog.cli.surroundings import Surroundings
from tidelog.frames import needs_arrow
from tidelog.timespec import OPEN_END, OPEN_START
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "appendTimestamp",
    "createTimestamp",
    "key",
    "value",
    "headers",
)


def write_arrow(
    surroundings: Surroundings,
    path: str,
    partitions: list[TopicPartition],
    wanted: Selection,
    limit: int | None,
    kind: ReadFormat,
) -> int:
    """Write the records wanted by columns; return how many have no time on the asked clock.

    Raises:
        UsageProblem: Stdout is a terminal.
        MissingDependency: pyarrow or numba is not installed.
    """
    _refuse_terminal(surroundings, kind)
    needs_arrow()
    from tidelog import scan

    plan = scan.plan(
        path,
        partitions,
        wanted=scan.Wanted(
            start_offset=wanted.start_offset,
            end_offset=wanted.end_offset,
            start_ms=None if wanted.start_ms == OPEN_START else wanted.start_ms,
            end_ms=None if wanted.end_ms == OPEN_END else wanted.end_ms,
        ),
        clock=wanted.clock,
        isolation=wanted.isolation,
        fail_on_data_loss=False,
        env=surroundings.env,
    )
    stats = scan.ScanStats()
    how = scan.ReadOptions(env=surroundings.env)
    reader = scan.to_reader(plan, COLUMNS, options=how, stats=stats)
    write_columns(surroundings, reader.schema, reader, limit, kind)
    return stats.without_time


def _refuse_terminal(surroundings: Surroundings, kind: ReadFormat) -> None:
    if surroundings.stdout.isatty():
        raise UsageProblem(f"{kind} is not for terminals; send it to a file: > FILE.{kind}")


def write_columns(
    surroundings: Surroundings,
    schema: "pa.Schema",
    batches: "Iterable[pa.RecordBatch]",
    limit: int | None,
    kind: ReadFormat,
) -> None:
    """Write batches as Arrow or Parquet; raises UsageProblem where stdout is a terminal."""
    import pyarrow as pa  # this format's own price

    _refuse_terminal(surroundings, kind)
    buffer = surroundings.stdout.buffer
    assert isinstance(buffer, IOBase)
    sink = pa.PythonFile(buffer, "w")
    with _writer(sink, schema, kind) as out:
        for batch in _limited(batches, limit):
            out.write_batch(batch)


def _writer(
    sink: "pa.PythonFile", schema: "pa.Schema", kind: ReadFormat
) -> "pa.RecordBatchStreamWriter | ParquetWriter":
    if kind is ReadFormat.PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(sink, schema)
    import pyarrow as pa

    return pa.ipc.new_stream(sink, schema)


def _limited(reader: "Iterable[pa.RecordBatch]", limit: int | None) -> Iterator["pa.RecordBatch"]:
    for batch in reader:
        if limit is None:
            yield batch
            continue
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
