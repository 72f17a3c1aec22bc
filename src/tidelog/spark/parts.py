"""Work in parts: a text describes each part, a worker does it, and returns one row.

The texts are plain data (JSON as a rule), so only tidelog's own functions are pickled. Spark gets a
range of numbers, one for each part, and a task for each; this works in local mode, on clusters and
over Spark Connect. `Listener` is the seam between a job and the display of its progress.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.errors import InvalidRequest
from tidelog.spark.places import Place
from tidelog.spark.workers import PromptAck, make_ready

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    from tidelog.env import Env


# From 1900 to 9998, where no time zone leads out of the calendar; of the rest only the ms are told.
_TIMESTAMP_MS_MIN: Final = -2_208_988_800_000


_TIMESTAMP_MS_MAX: Final = 253_370_764_799_999


def timestamp(ms: int) -> object:
    """A time as Spark takes it, None where it is before 1900 or after 9998."""
    if not _TIMESTAMP_MS_MIN <= ms <= _TIMESTAMP_MS_MAX:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


class Listener(Protocol):
    """Who wants to know how a job comes on."""

    def note(self, text: str) -> None:
        """One line for people."""
        ...

    def at(self, done: int, planned: int) -> None:
        """So many of so many offsets are done."""
        ...


class _Nobody:
    def note(self, text: str) -> None:
        """Told to nobody."""

    def at(self, done: int, planned: int) -> None:
        """Told to nobody."""


NOBODY: Final = _Nobody()


PartRow = Mapping[str, object]


# Their descriptions travel with each task's code; more of them are done in rounds.
PARTS_AT_ONCE: Final = 10_000


_LOOK_SECONDS: Final = 0.25


class Work(Protocol):
    """What a worker does with a part. Can be pickled, and is small."""

    def __call__(self, part: str) -> tuple[object, ...]:
        """The row of a part, its cells in the order of the schema."""
        ...


def run_parts(
    spark: "SparkSession",
    parts: Sequence[str],
    work: Work,
    schema: str,
    *,
    listener: Listener = NOBODY,
) -> Sequence[PartRow]:
    """Do all parts on Spark, side by side; a row for each, in the order of the parts.

    Args:
        spark: The session.
        parts: Their descriptions.
        work: What to do with each.
        schema: Names and types of a row, as Spark writes them: `records bigint, facts string`; of
            types there are bigint, string and binary.
        listener: Told now and then how many parts are done; where Spark can't be asked, at the end.

    Raises:
        What Spark raises where a part fails for good; the worker's own error is in its text.
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
    """Tells a listener of the parts done: those of the rounds before, and of this one."""

    listener: Listener
    before: int
    total: int

    def at(self, done: int) -> None:
        """So many of this round are done."""
        self.listener.at(min(self.before + done, self.total), self.total)


@dataclass(frozen=True, slots=True)
class _Mapper:
    """From numbers of parts to their rows, in a worker."""

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
    """The schema that Spark reads in the text; its own parser is not there in a worker."""
    import pyarrow as pa

    types = {"string": pa.string(), "bigint": pa.int64(), "binary": pa.binary()}
    pairs = (field.split() for field in text.split(","))
    return pa.schema([pa.field(name, types[kind]) for name, kind in pairs])


@contextmanager
def _watched(spark: "SparkSession", done: _Done) -> Iterator[None]:
    """Tell of the tasks done while the block runs."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, done, ended), daemon=True)
    if done.listener is NOBODY or _tracker(spark) is None:
        yield
        return
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(spark: "SparkSession", done: _Done, ended: threading.Event) -> None:
    tracker = _tracker(spark)
    assert tracker is not None
    while not ended.wait(_LOOK_SECONDS):
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        done.at(sum(stage.numCompletedTasks for stage in stages if stage is not None))


def _tracker(spark: "SparkSession") -> "StatusTracker | None":
    """Who knows of stages; nobody where the session is at the other end of Spark Connect."""
    try:
        return spark.sparkContext.statusTracker()
    except Exception:  # noqa: BLE001 - each release refuses it by another error
        return None


# A split is read in some seconds; smaller ones would wait for Spark.
JOB_SPLIT_BYTES: Final = 1 << 30


# So many tasks for each that can run at a time, if there is enough to read: they end together.
_TASKS_PER_CORE: Final = 3


def directory_env(place: Place) -> "Env":
    """Surroundings that read a directory; raises InvalidRequest for brokers."""
    from tidelog.objects.object_files import env_for

    if place.is_broker:
        raise InvalidRequest(f"{place}: give a directory of topics, by path or URL")
    return env_for(place.address, None, place.store)


def parallelism(spark: "SparkSession") -> int:
    """How many tasks run side by side; 1 where Spark doesn't say, as over Spark Connect."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - each release refuses it by another error
        return 1
