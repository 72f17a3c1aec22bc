"""Targets of a replay, which write chunk after chunk: a topic, Parquet files, or a console.

A restart may write a chunk that a killed job has already written. The targets guarantee:

- directory: the commit contains the chunk's number, so the directory stores each chunk only once. A
  reader sees either all records of a chunk, or none of them.
- brokers: each task writes its rows and a marker with the chunk's number in one transaction. Rows
  are divided among tasks by partition and sorted by offset, in the same way in each attempt, so
  each row is written once. The division and the order need the columns `partition` and `offset`,
  which a transform must not remove (`in_order`). If a write is interrupted, a part of the chunk's
  records is visible until the chunk is written again.
- Parquet: each chunk has a folder, which is replaced as a whole.
- console: a replay to a console can't be resumed, because nothing is stored.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


Print: TypeAlias = Callable[[str], None]
CONSOLE: Final = "console"
_PARQUET: Final = "parquet:"

# Maximum number of offsets in a chunk for a console. The number is small, because the rows of a
# chunk for a console pass through the driver.
CONSOLE_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk that a target writes.

    Attributes:
        rows: Rows to write.
        job_id: Id of the replay.
        number: Number of the chunk.
        may_be_there: Whether a killed job may have written the chunk to the target.
    """

    rows: "DataFrame"
    job_id: str
    number: int
    may_be_there: bool = False


class ForeignChunk(InvalidRequest):
    """Raised if another replay has written a chunk's folder; the folder is unchanged."""


class ReplayTarget(Protocol):
    """Protocol of targets, which write chunks in order."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the target writes in addition to the columns that all targets write."""
        ...

    def arrange(self, rows: "DataFrame", tasks: int) -> "DataFrame":
        """Return the rows in the order that the target needs, divided among `tasks` tasks.

        Rows are returned unchanged if the target needs no order.
        """
        ...

    def write(self, chunk: Chunk) -> None:
        """Write a chunk.

        Some targets hide the chunk's records until all of them are written.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTarget:
    """A topic in a directory or a cluster as target.

    Attributes:
        place: The directory or cluster.
        topic: Name of the topic.
        keeps_partitions: Whether records keep the numbers of their partitions; otherwise the key
            chooses the partition.
        options: Further options of the sink, such as compression.
    """

    place: Place
    topic: str
    keeps_partitions: bool
    options: Mapping[str, str]

    columns = ()

    def arrange(self, rows: "DataFrame", tasks: int) -> "DataFrame":
        """Return the rows. For brokers, the rows are divided and sorted by `in_order`."""
        return in_order(rows, tasks) if self.place.is_broker else rows

    def write(self, chunk: Chunk) -> None:
        """Write a chunk once. The sink detects a repeated write by the chunk's number."""
        dropped = ["topic"] if self.keeps_partitions else ["topic", "partition"]
        options = {
            **self.place.options(),
            **self.options,
            "topic": self.topic,
            "txnAppId": f"replay-{chunk.job_id}",
            "txnVersion": str(chunk.number),
        }
        if self.place.is_broker:
            options["delivery"] = "exactly-once"
        writer = chunk.rows.drop(*dropped).write.format("tidelog").mode("append")
        writer.options(**options).save()


def in_order(rows: "DataFrame", tasks: int) -> "DataFrame":
    """Divide rows among tasks by partition and sort them by offset, the same way in each attempt.

    If a transform has removed the column `partition` or `offset`, the rows are returned unchanged.
    """
    if not {"partition", "offset"} <= set(rows.columns):
        return rows
    by_partition = rows.repartition(tasks, "partition")
    return by_partition.sortWithinPartitions("partition", "offset")


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    """Parquet files as target, with a folder `chunk=N` for each chunk."""

    path: str

    columns = ("offset", "timestampType", "appendTimestamp")

    def arrange(self, rows: "DataFrame", _tasks: int) -> "DataFrame":
        """Return the rows unchanged."""
        return rows

    def write(self, chunk: Chunk) -> None:
        """Write a chunk's folder; replace a folder only if a killed job may have written to it.

        Raises ForeignChunk.
        """
        from pyspark.errors import AnalysisException

        mode = "overwrite" if chunk.may_be_there else "errorifexists"
        folder = f"{self.path}/chunk={chunk.number:06d}"
        try:
            chunk.rows.write.mode(mode).parquet(folder)
        except AnalysisException as error:
            if error.getCondition() != "PATH_ALREADY_EXISTS":
                raise
            raise ForeignChunk(
                f"{folder} already exists, from another replay; give each replay a new folder"
            ) from error


@dataclass(frozen=True, slots=True)
class ConsoleTarget:
    """Console as target; prints a line of JSON for each record, see `record_line`."""

    show: Print

    columns = ("offset",)

    def arrange(self, rows: "DataFrame", _tasks: int) -> "DataFrame":
        """Return the rows unchanged."""
        return rows

    def write(self, chunk: Chunk) -> None:
        """Print a line for each row."""
        for row in chunk.rows.toLocalIterator():
            self.show(record_line(row))


def record_line(row: "Row") -> str:
    """Return a record as a line of JSON; bytes that are not UTF-8 become `{"base64": ...}`."""
    return json.dumps({name: _json_cell(cell) for name, cell in row.asDict().items()}, default=str)


def _json_cell(cell: object) -> object:
    if isinstance(cell, bytes | bytearray):
        try:
            return bytes(cell).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(bytes(cell)).decode()}
    if isinstance(cell, list):
        return [[pair.key, _json_cell(pair.value)] for pair in cell]
    return cell


def parse_target(to: Place | str) -> Place | str:
    """Parse a target: a place, `parquet:PATH` or `console`; raises InvalidRequest."""
    if isinstance(to, Place) or to == CONSOLE:
        return to
    if to.startswith(_PARQUET):
        if not to.removeprefix(_PARQUET):
            raise InvalidRequest("parquet: the path is missing; write parquet:PATH")
        return to
    return Place.parse(to)


def parquet_path(to: str) -> str:
    """Return the path in `parquet:PATH`."""
    return to.removeprefix(_PARQUET)
