"""A running mirror: one structured streaming query, and what is written down with each batch.

The checkpoint is a folder that the driver can write to:

    mirror.json    what was asked, the mirror's id and where it began
    offsets.map    the offset map (`cluster.offset_map_file`)
    spark/         Spark's own: which offsets belong to which batch
    mirror.lock    held while a driver runs the mirror

Spark notes the offsets of a batch before it is run and that it is done afterwards. Between the two
the batch is written (`mirror_commit`), then the map. Killed anywhere, the same batch comes again:
the target knows whether it has it, and says where it went, so records are there once and the map
gets its rows in any case.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.cluster.offset_map import OffsetMap
from tidelog.cluster.offset_map_file import read_map, write_map
from tidelog.env import Env
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.spark.jobs.checks import Finding
from tidelog.spark.jobs.mirror_commit import BrokerTarget, DirectoryTarget, MirrorTarget, Written
from tidelog.spark.jobs.mirror_places import (
    TopicFacts,
    find_targets,
    first_map,
    first_offsets,
    grown,
    read_topic,
)
from tidelog.spark.jobs.mirror_plan import (
    BatchDone,
    MirrorPlan,
    MirrorState,
    decode_state,
    encode_state,
)
from tidelog.spark.jobs.mirror_read import read_rows, select
from tidelog.spark.jobs.mirror_tasks import Routes
from tidelog.spark.sink_options import read_sink_options
from tidelog.storage import files
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Transform: TypeAlias = Callable[["DataFrame"], "DataFrame"]

STATE_FILE: Final = "mirror.json"
MAP_FILE: Final = "offsets.map"
SPARK_DIR: Final = "spark"
_ID_BITS: Final = 128
# What a report can show.
BATCHES_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """How a mirror runs.

    Attributes:
        checkpoint: Folder that makes it restartable.
        continuous: Go on until it is stopped; else stop at what is there at the start.
        batch_records: About how many records a batch takes, at most, of each place.
        trigger_ms: How often a continuous mirror looks for new records.
        create: Make topics that the target lacks.
        force: Go on where the target would lose records or their times.
        source: More options of the source.
        sink: More options of the sink, such as `compression`.
    """

    checkpoint: str
    continuous: bool = False
    batch_records: int = 1_000_000
    trigger_ms: int = 1_000
    create: bool = False
    force: bool = False
    source: tuple[tuple[str, str], ...] = ()
    sink: tuple[tuple[str, str], ...] = ()


Watcher: TypeAlias = Callable[[BatchDone], None]


def _nobody(_done: BatchDone) -> None:
    """Told to nobody."""


@dataclass(slots=True)
class Batches:
    """Takes the batches of the query, in order. Called by Spark on the driver, in its own thread.

    Attributes:
        target: Where they go.
        found: The map as it is.
        path: Its file.
        env: Files and clock.
        watch: Told of each.
        done: The last ones.
        busy: Held while one is written.
        is_closed: No more are written.
    """

    target: MirrorTarget
    found: OffsetMap
    path: str
    env: Env
    watch: Watcher = _nobody
    done: deque[BatchDone] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    busy: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False

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

    def _write(self, rows: "DataFrame", batch_id: int) -> None:
        if batch_id < self.found.batch_id:
            raise InvalidRequest(
                f"batch {batch_id} comes after {self.found.batch_id}: Spark's checkpoint is older"
                " than the map beside it, and the target has these batches with other offsets;"
                " begin with a new checkpoint"
            )
        begun_ms = self.env.clock.monotonic_ms()
        written = self.target.write(rows, batch_id)
        self._note(written)
        done = BatchDone(
            batch_id=batch_id,
            records=written.records,
            was_done=written.was_done,
            at_ms=self.env.clock.now_ms(),
            elapsed_ms=self.env.clock.monotonic_ms() - begun_ms,
        )
        self.done.append(done)
        self.watch(done)

    def _note(self, written: Written) -> None:
        self.found = self.found.add(written.map_batch)
        write_map(self.env.files, self.path, self.found)


@dataclass(slots=True, kw_only=True)
class Mirror:
    """A mirror that has been started. start -> await_end or stop.

    Attributes:
        plan: What is copied.
        query: Spark's.
        batches: What has been written.
        findings: What was worth knowing before it started.
        start_map: The map as it was at the start.
        was_resumed: It went on from a checkpoint.
    """

    plan: MirrorPlan
    query: "StreamingQuery"
    batches: Batches
    findings: Sequence[Finding]
    start_map: OffsetMap
    was_resumed: bool

    @property
    def found(self) -> OffsetMap:
        """The map as it is."""
        return self.batches.found

    def await_end(self, stopped: threading.Event | None = None) -> None:
        """Wait for the end; raises what ended it.

        Args:
            stopped: Ends a continuous mirror when it is set, once the running batch is written.
        """
        while not self.query.awaitTermination(1):
            if stopped is not None and stopped.is_set():
                self.stop()
                return

    def stop(self) -> None:
        """Stop once the batch that is being written is done."""
        self.batches.close()
        self.query.stop()


@contextmanager
def running(
    spark: "SparkSession",
    plan: MirrorPlan,
    options: MirrorOptions,
    env: Env,
    *,
    transform: Transform | None = None,
    watch: Watcher | None = None,
) -> Iterator[Mirror]:
    """A started mirror, until the block ends.

    Raises:
        DirectoryLocked: Another driver runs it.
        InvalidRequest: A session of Spark Connect.
        TargetLoses, InvalidRequest, UnknownTopic, ClusterFailure: As `find_targets`.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise InvalidRequest(
            "a mirror keeps its checkpoint and its map on the driver: run it in a session of its"
            " own or on the server, not over Spark Connect"
        )
    env.files.make_dirs(options.checkpoint)
    try:
        lock = env.files.lock(f"{options.checkpoint}/mirror.lock")
    except BlockingIOError as error:
        raise DirectoryLocked(
            f"{options.checkpoint}: another driver runs this mirror; stop it first"
        ) from error
    try:
        mirror = _start(spark, plan, options, env, transform, watch or _nobody)
        try:
            yield mirror
        finally:
            mirror.stop()
    finally:
        lock.close()


def _start(
    spark: "SparkSession",
    plan: MirrorPlan,
    options: MirrorOptions,
    env: Env,
    transform: Transform | None,
    watch: Watcher,
) -> Mirror:
    state = read_state(env, options.checkpoint)
    if state is not None:
        state.ensure_asked(plan)
    sources = read_sources(plan, env)
    targets, findings = find_targets(
        plan,
        sources,
        env,
        create=options.create,
        force=options.force,
        is_new=state is None,
    )
    if state is None:
        state, found = _begin(plan, options, env, sources, targets)
        was_resumed = False
    else:
        found, was_resumed = _go_on(options, env, targets), True
    routes = Routes(
        pairs=tuple((pair.place, pair.topic, pair.target) for pair in plan.pairs),
        counts=tuple((topic, targets[topic].partitions) for topic in plan.targets),
        partitioning=plan.partitioning,
    )
    batches = Batches(
        target=_target(plan, options, routes, state.mirror_id),
        found=found,
        path=f"{options.checkpoint}/{MAP_FILE}",
        env=env,
        watch=watch,
    )
    rows = read_rows(
        spark, plan, state, batch_records=options.batch_records, more=dict(options.source)
    )
    rows = select(rows if transform is None else transform(rows), plan.partitioning)
    query = _query(rows, batches, options)
    return Mirror(
        plan=plan,
        query=query,
        batches=batches,
        findings=findings,
        start_map=found,
        was_resumed=was_resumed,
    )


def read_state(env: Env, checkpoint: str) -> MirrorState | None:
    """What the checkpoint says, None where it is new; raises CorruptFile, UnsupportedVersion."""
    try:
        return decode_state(files.read_file(env.files, f"{checkpoint}/{STATE_FILE}"))
    except FileNotFoundError:
        return None


def read_sources(plan: MirrorPlan, env: Env) -> list[TopicFacts]:
    """The facts of each pair's topic; raises UnknownTopic, ClusterFailure."""
    return [
        read_topic(plan.sources[pair.place].place, pair.topic, plan.isolation, env)
        for pair in plan.pairs
    ]


def _begin(
    plan: MirrorPlan,
    options: MirrorOptions,
    env: Env,
    sources: Sequence[TopicFacts],
    targets: dict[str, TopicFacts],
) -> tuple[MirrorState, OffsetMap]:
    """A new mirror's checkpoint; the state comes last, so half of one is none."""
    spark_dir = f"{options.checkpoint}/{SPARK_DIR}"
    if env.files.exists(spark_dir):
        raise InvalidRequest(
            f"{spark_dir} is there without {STATE_FILE}: not the checkpoint of a mirror; name"
            " another folder"
        )
    starts = first_offsets(plan, sources)
    found = first_map(plan, sources, targets, starts)
    state = MirrorState(
        mirror_id=uuid.UUID(int=env.random.getrandbits(_ID_BITS)).hex,
        question=plan.question(),
        starts=starts,
    )
    write_map(env.files, f"{options.checkpoint}/{MAP_FILE}", found)
    path = f"{options.checkpoint}/{STATE_FILE}"
    files.write_atomically(env.files, path, encode_state(state))
    return state, found


def _go_on(options: MirrorOptions, env: Env, targets: dict[str, TopicFacts]) -> OffsetMap:
    """The map of a mirror that ran before."""
    found = grown(read_map(env.files, f"{options.checkpoint}/{MAP_FILE}"), targets)
    metadata = f"{options.checkpoint}/{SPARK_DIR}/metadata"
    if found.batch_id >= 0 and not env.files.exists(metadata):
        raise InvalidRequest(
            f"{metadata} has gone, and with it how far the mirror was: it would copy everything"
            " once more; begin with a new checkpoint, on a topic that is empty"
        )
    return found


def _target(
    plan: MirrorPlan, options: MirrorOptions, routes: Routes, mirror_id: str
) -> MirrorTarget:
    given = plan.target.options() | dict(options.sink)
    if plan.target.is_broker:
        sink = read_sink_options(given | {"delivery": "exactly-once"})
        return BrokerTarget(options=sink, routes=routes, mirror_id=mirror_id)
    return DirectoryTarget(options=read_sink_options(given), routes=routes, mirror_id=mirror_id)


def _query(rows: "DataFrame", batches: Batches, options: MirrorOptions) -> "StreamingQuery":
    writer = rows.writeStream.foreachBatch(batches)
    # The very folder, also where Spark's own file system is another.
    folder = Path(f"{options.checkpoint}/{SPARK_DIR}").absolute()
    writer = writer.option("checkpointLocation", folder.as_uri())
    if options.continuous:
        return writer.trigger(processingTime=f"{options.trigger_ms} milliseconds").start()
    return writer.trigger(availableNow=True).start()


ISOLATIONS: Final = {level.name.lower(): level for level in IsolationLevel}
