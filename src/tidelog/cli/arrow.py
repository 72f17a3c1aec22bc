"""Records as an Arrow IPC stream on stdout: by columns, for programs.

Needs pyarrow and numba, so it is imported by `read --format arrow` alone.
"""

from collections.abc import Iterable, Iterator
from io import IOBase
from typing import TYPE_CHECKING

from tidelog.cli.problems import UsageProblem
from tidelog.cli.selection import Selection
from tidelog.cli.surroundings import Surroundings
from tidelog.frames import needs_arrow
from tidelog.timespec import OPEN_END, OPEN_START
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

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
) -> int:
    """Write the records wanted as one Arrow stream; how many have no time on the asked clock.

    Raises:
        UsageProblem: Stdout is a terminal.
        MissingDependency: pyarrow or numba is not installed.
    """
    _refuse_terminal(surroundings)
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
    write_stream(surroundings, reader.schema, reader, limit)
    return stats.without_time


def _refuse_terminal(surroundings: Surroundings) -> None:
    if surroundings.stdout.isatty():
        raise UsageProblem("Arrow is not for terminals; send it to a file: > FILE.arrows")


def write_stream(
    surroundings: Surroundings,
    schema: "pa.Schema",
    batches: "Iterable[pa.RecordBatch]",
    limit: int | None,
) -> None:
    """Write batches as one Arrow stream; raises UsageProblem where stdout is a terminal."""
    import pyarrow as pa  # this format's own price

    _refuse_terminal(surroundings)
    buffer = surroundings.stdout.buffer
    assert isinstance(buffer, IOBase)
    with pa.ipc.new_stream(pa.PythonFile(buffer), schema) as out:
        for batch in _limited(batches, limit):
            out.write_batch(batch)


def _limited(reader: "Iterable[pa.RecordBatch]", limit: int | None) -> Iterator["pa.RecordBatch"]:
    for batch in reader:
        if limit is None:
            yield batch
            continue
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
