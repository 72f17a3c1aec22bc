"""Targets of a replay: a topic, Parquet files, or a console; one chunk after the other.

What each promises of a chunk that a killed job may have written already, and writes again:

- directory: the chunk's number is part of its commit, so it is taken once; a chunk is visible as a
  whole or not at all.
- brokers: each task's rows and a marker with the chunk's number are one transaction. Rows go to
  tasks by partition and offset, the same in each attempt, so each is taken once. A chunk that was
  cut short is partly visible until it is written again.
- Parquet: each chunk has a folder, which is written anew as a whole.
- console: nothing is remembered; it can't go on where it stopped.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tidelog.errors import InvalidRequest
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


Print: TypeAlias = Callable[[str], None]


CONSOLE: Final = "console"


_PARQUET: Final = "parquet:"


# On a console a chunk's rows pass through the driver.
CONSOLE_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The rows of one chunk.

    Attributes:
        rows: As the source gives them.
        job_id: Of the replay.
        number: The chunk's.
        may_be_there: A job that died may have written it.
    """

    rows: "DataFrame"
    job_id: str
    number: int
    may_be_there: bool = False


class ReplayTarget(Protocol):
    """Takes chunks in order."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it keeps beyond those that every topic takes."""
        ...

    def arrange(self, rows: "DataFrame", tasks: int) -> "DataFrame":
        """The rows as the target needs them, where that matters by so many tasks."""
        ...

    def write(self, chunk: Chunk) -> None:
        """Write a chunk; whoever reads it may have to wait for its end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTarget:
    """A topic in a directory or at brokers.

    Attributes:
        place: Where.
        topic: Its name.
        keeps_partitions: Records keep the numbers of their partitions; else their keys choose.
        options: More options of the sink, such as compression.
    """

    place: Place
    topic: str
    keeps_partitions: bool
    options: Mapping[str, str]

    columns = ()

    def arrange(self, rows: "DataFrame", tasks: int) -> "DataFrame":
        """See `ReplayTarget`; a directory takes rows in the order in which they are read."""
        return in_order(rows, tasks) if self.place.is_broker else rows

    def write(self, chunk: Chunk) -> None:
        """See `ReplayTarget`."""
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
    """The same rows, in the same tasks in each attempt: whole partitions, by offset.

    What a `transform` has left of the columns decides; without them the rows stay where they are.
    """
    if not {"partition", "offset"} <= set(rows.columns):
        return rows
    by_partition = rows.repartition(tasks, "partition")
    return by_partition.sortWithinPartitions("partition", "offset")


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    """Parquet files, a folder `chunk=N` for each chunk."""

    path: str

    columns = ("offset", "timestampType", "appendTimestamp")

    def arrange(self, rows: "DataFrame", tasks: int) -> "DataFrame":  # noqa: ARG002 - the protocol's
        """See `ReplayTarget`."""
        return rows

    def write(self, chunk: Chunk) -> None:
        """See `ReplayTarget`; what a finished job left there is never replaced."""
        mode = "overwrite" if chunk.may_be_there else "errorifexists"
        chunk.rows.write.mode(mode).parquet(f"{self.path}/chunk={chunk.number:06d}")


@dataclass(frozen=True, slots=True)
class ConsoleTarget:
    """Lines of JSON, a record each: key and value as text where they are, else in base64."""

    show: Print

    columns = ("offset",)

    def arrange(self, rows: "DataFrame", tasks: int) -> "DataFrame":  # noqa: ARG002 - the protocol's
        """See `ReplayTarget`."""
        return rows

    def write(self, chunk: Chunk) -> None:
        """See `ReplayTarget`."""
        for row in chunk.rows.toLocalIterator():
            self.show(record_line(row))


def record_line(row: "Row") -> str:
    """A record as a line of JSON; bytes that are no UTF-8 become `{"base64": ...}`."""
    return json.dumps({name: _shown(cell) for name, cell in row.asDict().items()}, default=str)


def _shown(cell: object) -> object:
    if isinstance(cell, bytes | bytearray):
        try:
            return bytes(cell).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(bytes(cell)).decode()}
    if isinstance(cell, list):
        return [[pair.key, _shown(pair.value)] for pair in cell]
    return cell


def parse_target(to: Place | str) -> Place | str:
    """What `to` names: a place, `parquet:PATH` or `console`; raises InvalidRequest."""
    if isinstance(to, Place) or to == CONSOLE:
        return to
    if to.startswith(_PARQUET):
        if not to.removeprefix(_PARQUET):
            raise InvalidRequest("parquet: a path is missing, parquet:PATH")
        return to
    return Place.parse(to)


def parquet_path(to: str) -> str:
    """The path in `parquet:PATH`."""
    return to.removeprefix(_PARQUET)
