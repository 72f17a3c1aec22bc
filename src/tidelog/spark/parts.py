"""Runs a job's work on many parts in parallel.

Each part is described by a text. A worker processes the part and returns one row for it. The texts
are plain data (usually JSON), so only tidelog's own functions are pickled. Spark gets a range of
numbers, one for each part, and runs a task for each number. Such a range of numbers works in local
mode, on clusters and over Spark Connect. A job reports its progress to a `Listener`, which displays
the progress.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.places import Place
from tidelog.spark.session import context_of
from tidelog.spark.workers import PromptAck, make_ready

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    from tidelog.env import Env


# Earliest and latest time in ms that `timestamp` converts. Times from 1900 to 9998 are inside
# Python's calendar in every time zone. Earlier and later times appear in results only as a number
# of ms.
_TIMESTAMP_MS_MIN: Final = -2_208_988_800_000

_TIMESTAMP_MS_MAX: Final = 253_370_764_799_999


def timestamp(ms: int) -> object:
    """Return a time as a datetime that Spark accepts; None if it is before 1900 or after 9998."""
    if not _TIMESTAMP_MS_MIN <= ms <= _TIMESTAMP_MS_MAX:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


class Listener(Protocol):
    """Receiver of a job's progress."""

    def note(self, text: str) -> None:
        """Receive a line of text for the user."""
        ...

    def at(self, done: int, planned: int) -> None:
        """Receive the progress: `done` of `planned` units."""
        ...


class _Nobody:
    def note(self, text: str) -> None:
        """Ignore the line."""

    def at(self, done: int, planned: int) -> None:
        """Ignore the progress report."""


NOBODY: Final = _Nobody()
PartRow = Mapping[str, object]

# Maximum number of parts that one Spark job (a round) processes. The number is limited because each
# task's code contains the texts of all parts of the round.
PARTS_AT_ONCE: Final = 10_000

_LOOK_SECONDS: Final = 0.25


# Function that processes a part in a worker, and returns its row as a tuple of values, in the order
# of the schema. The function must be picklable, and small when pickled.
Work: TypeAlias = Callable[[str], tuple[object, ...]]


def run_parts(
    spark: "SparkSession",
    parts: Sequence[str],
    work: Work,
    schema: str,
    *,
    listener: Listener = NOBODY,
) -> Sequence[PartRow]:
    """Process all parts on Spark in parallel; return one row per part, in the order of the parts.

    Args:
        spark: The session.
        parts: Descriptions of the parts.
        work: Function that processes one part in a worker.
        schema: Names and types of a row in Spark's notation: `records bigint, facts string`. The
            supported types are bigint, string and binary.
        listener: Receives the number of finished parts from time to time. If Spark reports no
            progress, `listener` receives the number only at the end of each round.

    Raises:
        Spark's exception if a part fails after its retries; the exception's text contains the
        worker's error.
    """
    rows: list[PartRow] = []
    for start in range(0, len(parts), PARTS_AT_ONCE):
        batch = tuple(parts[start : start + PARTS_AT_ONCE])
        numbers = spark.range(0, len(batch), 1, len(batch))
        done = numbers.mapInArrow(_Mapper(batch, work, schema), f"part bigint, {schema}")
        with _watched(spark, _Done(listener, start, len(parts))):
            rows += done.toArrow().sort_by("part").to_pylist()
        listener.at(start + len(batch), len(parts))
    return rows


@dataclass(frozen=True, slots=True)
class _Done:
    """Reports to a listener how many parts are finished, in this round and all earlier rounds."""

    listener: Listener
    before: int
    total: int

    def at(self, done: int) -> None:
        """Report that `done` parts of this round are finished."""
        self.listener.at(min(self.before + done, self.total), self.total)


@dataclass(frozen=True, slots=True)
class _Mapper:
    """Function that processes numbered parts in a worker and returns their rows."""

    parts: tuple[str, ...]
    work: Work
    schema: str
    arrival: PromptAck = field(default_factory=PromptAck)

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        make_ready()
        import numpy as np
        import pyarrow as pa

        from tidelog.spark.tasks import freeze_garbage

        kind = _arrow_schema(f"part bigint, {self.schema}")
        for batch in batches:
            for number in map(int, np.asarray(batch.column(0))):
                freeze_garbage()
                cells = (number, *self.work(self.parts[number]))
                columns = [
                    pa.array([cell], field.type) for cell, field in zip(cells, kind, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=kind)


def _arrow_schema(text: str) -> "pa.Schema":
    """Parse a schema in Spark's notation; Spark's own parser is not available in a worker."""
    import pyarrow as pa

    types = {"string": pa.string(), "bigint": pa.int64(), "binary": pa.binary()}
    pairs = (field.split() for field in text.split(","))
    return pa.schema([pa.field(name, types[kind]) for name, kind in pairs])


@contextmanager
def _watched(spark: "SparkSession", done: _Done) -> Iterator[None]:
    """Report finished parts while the block runs."""
    context = None if done.listener is NOBODY else context_of(spark)
    if context is None:
        yield
        return
    ended = threading.Event()
    arguments = (context.statusTracker(), done, ended)
    watcher = threading.Thread(target=_watch, args=arguments, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(tracker: "StatusTracker", done: _Done, ended: threading.Event) -> None:
    while not ended.wait(_LOOK_SECONDS):
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        done.at(sum(stage.numCompletedTasks for stage in stages if stage is not None))


# Number of tasks for each core; fewer if there is little to read. With several short tasks per
# core, all cores finish at about the same time.
_TASKS_PER_CORE: Final = 3


def directory_env(place: Place) -> "Env":
    """Return the environment for reading a directory; raises InvalidRequest for brokers."""
    from tidelog.objects.object_files import env_for

    if place.is_broker:
        raise InvalidRequest(f"{place}: give a directory of topics, by path or URL")
    return env_for(place.address, None, place.store)


def parallelism(spark: "SparkSession") -> int:
    """Return the number of tasks that run in parallel; 1 if unknown, as over Spark Connect."""
    context = context_of(spark)
    return 1 if context is None else context.defaultParallelism
