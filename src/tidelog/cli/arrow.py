"""Records as an Arrow IPC stream on stdout: by columns, for programs.

Needs pyarrow and numba, so it is imported by `read --format arrow` alone.
"""

from collections.abc import Iterator
from io import IOBase
from typing import TYPE_CHECKING

from tidelog.cli.problems import UsageProblem
from tidelog.cli.selection import Selection
from tidelog.cli.surroundings import Surroundings
from tidelog.errors import MissingDependency
from tidelog.timespec import OPEN_END, OPEN_START
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = (
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
    if surroundings.stdout.isatty():
        raise UsageProblem("Arrow is not for terminals; send it to a file: > FILE.arrows")
    try:
        import pyarrow as pa  # this format's own price

        from tidelog import scan
    except ImportError as error:
        raise MissingDependency("Arrow needs pyarrow; `pip install 'tidelog[arrow]'`") from error
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
    reader = scan.to_reader(plan, _COLUMNS, options=how, stats=stats)
    buffer = surroundings.stdout.buffer
    assert isinstance(buffer, IOBase)
    with pa.ipc.new_stream(pa.PythonFile(buffer), reader.schema) as out:
        for batch in _limited(reader, limit):
            out.write_batch(batch)
    return stats.without_time


def _limited(reader: "pa.RecordBatchReader", limit: int | None) -> Iterator["pa.RecordBatch"]:
    for batch in reader:
        if limit is None:
            yield batch
            continue
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
