"""What is written down with each batch of a mirror: first at the target, then in the offset map."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.cluster.offset_map import OffsetMap
from tidelog.cluster.offset_map_file import write_map
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.spark.jobs.mirror_commit import BrokerTarget, DirectoryTarget, MirrorTarget, Written
from tidelog.spark.jobs.mirror_growth import Growth
from tidelog.spark.jobs.mirror_plan import BatchDone, MirrorPlan
from tidelog.spark.jobs.mirror_tasks import Routes
from tidelog.spark.sink_options import read_sink_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

# What a report can show.
BATCHES_KEPT: Final = 10_000
Watcher: TypeAlias = Callable[[BatchDone], None]


def nobody(_done: BatchDone) -> None:
    """Told to nobody."""


def routes_of(plan: MirrorPlan, found: OffsetMap) -> Routes:
    """Where each topic goes, as tasks need it."""
    return Routes(
        pairs=tuple((pair.place, pair.topic, pair.target) for pair in plan.pairs),
        counts=tuple((topic, found.partition_counts[topic]) for topic in plan.targets),
        partitioning=plan.partitioning,
    )


def target_of(
    plan: MirrorPlan, sink: "Mapping[str, str]", mirror_id: str, found: OffsetMap
) -> MirrorTarget:
    """Who takes the batches; raises InvalidRequest for options that the sink does not know."""
    given, routes = plan.target.options() | dict(sink), routes_of(plan, found)
    if plan.target.is_broker:
        options = read_sink_options(given | {"delivery": "exactly-once"})
        return BrokerTarget(options=options, routes=routes, mirror_id=mirror_id)
    return DirectoryTarget(options=read_sink_options(given), routes=routes, mirror_id=mirror_id)


@dataclass(slots=True)
class Batches:
    """Takes the batches of the query, in order. Called by Spark on the driver, in its own thread.

    Attributes:
        target: Where they go.
        found: The map as it is.
        path: Its file.
        env: Files and clock.
        watch: Told of each.
        growth: Takes up what comes at the places; None for a mirror of what was there.
        done: The last ones.
        busy: Held while one is written.
        is_closed: No more are written.
    """

    target: MirrorTarget
    found: OffsetMap
    path: str
    env: Env
    watch: Watcher = nobody
    growth: Growth | None = None
    done: deque[BatchDone] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    busy: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False

    @property
    def grown_plan(self) -> MirrorPlan:
        """The plan with the topics that were found since."""
        assert self.growth is not None
        return self.growth.plan

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write a batch, then the map."""
        with self.busy:
            if self.is_closed:
                # To return would tell Spark that the batch is done.
                raise InvalidRequest(f"stopped before batch {batch_id}, which comes again")
            self._write(rows, batch_id)

    def close(self) -> None:
        """Finish what is being written, and write nothing any more."""
        with self.busy:
            self.is_closed = True

    def release(self) -> None:
        """The query has ended: nothing to let go of here."""

    def told(self) -> None:
        """Tell of batches done elsewhere: here each was told when it was done."""

    def keep_up(self) -> tuple[str, ...]:
        """Take up what has come at the places, durably; lines for people."""
        if self.growth is None:
            return ()
        found, notes = self.growth.look(self.found)
        if found is not self.found:
            write_map(self.env.files, self.path, found)
            self.found = found
            self.target = self.target.routed(routes_of(self.growth.plan, found))
        return notes

    def _write(self, rows: "DataFrame", batch_id: int) -> None:
        if batch_id < self.found.batch_id:
            raise InvalidRequest(
                f"batch {batch_id} comes after {self.found.batch_id}: Spark's checkpoint is older"
                " than the map beside it, and the target has these batches with other offsets;"
                " begin with a new checkpoint"
            )
        begun_ms = self.env.clock.monotonic_ms()
        notes = self.keep_up()
        written = self.target.write(rows, batch_id)
        self._note(written)
        done = BatchDone(
            batch_id=batch_id,
            records=written.records,
            was_done=written.was_done,
            at_ms=self.env.clock.now_ms(),
            elapsed_ms=self.env.clock.monotonic_ms() - begun_ms,
            notes=notes,
        )
        self.done.append(done)
        self.watch(done)

    def _note(self, written: Written) -> None:
        self.found = self.found.add(written.map_batch)
        write_map(self.env.files, self.path, self.found)
