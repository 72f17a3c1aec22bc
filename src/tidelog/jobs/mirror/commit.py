"""Commit of a mirror's batch: from the tasks' reports to the target, then to the offset map.

Owns both targets (`DirectoryTarget`, `BrokerTarget`), the order of the two writes (`Batches`: first
the target, then the map), and how batches run on a Spark Connect server (`ServerBatches`,
`ClientBatches`). Not owned: the rows that tasks write (`work`) and the query (`run`).

At a directory the segments of all tasks are attached by one commit. It carries the batch's number
and the tasks' notes, relative to the first offset that the commit gives each partition. A batch
that is repeated after a crash is not attached again: the directory returns its offsets and notes of
the first time. With brokers the reports contain all of this.

Over Spark Connect the client plans, starts the query and waits. The server runs each batch in a
Python process of its own, which gets plan and options from the pickled function and everything else
from the checkpoint. So the checkpoint must be a folder that both see under one path. The server
compares it with what the client wrote before it writes anything to the target. A process holds
`mirror.batch.lock` while it writes a batch, and the client while it stops the query; any other
process is refused meanwhile, and its batch is repeated later. `batches.json` holds the last
batches, so that the client can report them.

Spark gives the Python process of a stream's source, and over Spark Connect that of its batches, ten
seconds to start. No setting changes that, and a busy machine may take longer. The checkpoint stays
valid, so the same query continues from there (`RestartingQuery`).
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Final

from tidelog.env import Env, os_env
from tidelog.errors import CorruptData, DirectoryLocked, InvalidRequest
from tidelog.jobs.chunks import wait_seconds
from tidelog.jobs.mirror.options import BatchDone, MirrorOptions, Watcher
from tidelog.jobs.mirror.places import Growth, as_mapped, growth_of
from tidelog.jobs.mirror.plan import (
    MAP_FILE,
    STATE_FILE,
    MirrorPlan,
    read_state,
)
from tidelog.jobs.mirror.work import (
    REPORT_SCHEMA,
    DirectoryTask,
    LedgerRows,
    MirrorBrokerTask,
    Report,
    Routes,
    decode_ledger_rows,
    encode_ledger_rows,
    join_ledger_rows,
    moved,
    read_reports,
)
from tidelog.jobs.offset_map import (
    CopiedRange,
    MapBatch,
    OffsetMap,
    SourcePartition,
    read_map,
    thin,
    write_map,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.directory_sink import attach_staged, batch_commit_id, drop_staged
from tidelog.spark.sink_options import SinkOptions, StreamBatch, read_sink_options
from tidelog.storage import files
from tidelog.storage.directory.attach import AttachedRange, AttachResult, WriterVersion
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tidelog.env import LockHandle


# Maximum number of rows in a batch's note; one row for each pair of partitions is kept in any case.
BATCH_ROWS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Outcome of a batch.

    Attributes:
        map_batch: Additions to the offset map.
        records: Number of its records at the target.
        was_done: Whether all of it had been written before.
    """

    map_batch: MapBatch
    records: int
    was_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryTarget:
    """Directory of topics as the target of a mirror; writes each batch once, in order.

    Attributes:
        options: Options of the sink.
        routes: Target topics of the sources.
        mirror_id: Id of the mirror, part of the writer's name.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch unless it is there already; all of it becomes visible, or nothing."""
        # The id is equal whenever the batch is repeated, so files that a crashed driver staged are
        # removed.
        commit_id = batch_commit_id(StreamBatch(self.mirror_id, batch_id))
        earlier = self._find(batch_id)
        if earlier is not None:
            drop_staged(self.options, commit_id)
            return self._written(earlier, batch_id)
        task = DirectoryTask(options=self.options, routes=self.routes, commit_id=commit_id)
        try:
            reports = _run(rows, task)
            noted = relative_to_batch(reports, self.routes)
            result = attach_staged(
                self.options,
                [segment for report in reports for segment in report.staged],
                commit_id=commit_id,
                version=self._version(batch_id, encode_ledger_rows(noted)),
            )
        finally:
            # Removes files of failed, repeated and speculative attempts; attached files have other
            # names.
            drop_staged(self.options, commit_id)
        return self._written(result, batch_id)

    def _version(self, batch_id: int, note: str = "") -> WriterVersion:
        return WriterVersion(f"mirror/{self.mirror_id}", batch_id, note)

    def _find(self, batch_id: int) -> AttachResult | None:
        """Return the outcome of an earlier write of the batch, which saves the tasks their work."""
        from tidelog.storage.directory.attach import find_done
        from tidelog.storage.directory.log_dir import LogDir

        with LogDir.open(self.options.path, env=self.options.env()) as log_dir:
            return find_done(log_dir, self._version(batch_id))

    def _written(self, result: AttachResult, batch_id: int) -> Written:
        now_ms = self.options.env().clock.now_ms()
        noted = decode_ledger_rows(result.note) if result.note else LedgerRows()
        placed = place(noted, result.partitions, self.routes, now_ms)
        ends = {name: attached.end_offset for name, attached in result.partitions.items()}
        return Written(
            map_batch=map_batch(batch_id, placed, ends),
            records=noted.records,
            was_done=result.was_done,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTarget:
    """Topics of a cluster as the target of a mirror; writes each batch once, in order.

    Attributes:
        options: Options of the sink.
        routes: Target topics of the sources.
        mirror_id: Id of the mirror, part of the writer's name.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch unless it is already there; each task's rows become visible separately."""
        task = MirrorBrokerTask(
            options=self.options,
            routes=self.routes,
            mirror_id=self.mirror_id,
            batch_id=batch_id,
        )
        reports = _run(rows, task)
        noted = join_ledger_rows(report.noted for report in reports)
        return Written(
            map_batch=map_batch(batch_id, noted, _ends(noted, self.routes)),
            records=noted.records,
            was_done=bool(reports) and all(report.was_done for report in reports),
        )


def _run(rows: "DataFrame", task: DirectoryTask | MirrorBrokerTask) -> list[Report]:
    outputs = rows.mapInArrow(task, REPORT_SCHEMA).collect()
    return read_reports([row.report for row in outputs])


def relative_to_batch(reports: Sequence[Report], routes: Routes) -> LedgerRows:
    """Join the notes of all tasks, relative to the batch's first record of each partition.

    The tasks' segments are attached in the order of the tasks, so a task's records follow those of
    all tasks before it.
    """
    before: dict[tuple[int, int], int] = {}
    numbers = routes.target_numbers()
    parts = []
    for report in reports:
        rows = tuple(
            moved(row, before.get((numbers[row.source], row.target_partition), 0), 0)
            for row in report.noted.rows
        )
        parts.append(replace(report.noted, rows=rows))
        for topic, partition, count in report.counts:
            before[topic, partition] = before.get((topic, partition), 0) + count
    joined = join_ledger_rows(parts)
    return replace(joined, rows=thin(joined.rows, BATCH_ROWS_MAX))


def place(
    noted: LedgerRows,
    ranges: Mapping[TopicPartition, AttachedRange],
    routes: Routes,
    now_ms: int,
) -> LedgerRows:
    """Return notes with the offsets that the directory has assigned.

    Args:
        noted: Notes relative to the batch's first record of each partition.
        ranges: Offsets of each partition's records, by the commit.
        routes: Target topics of the sources.
        now_ms: Arrival time for records without an append time.

    Raises:
        CorruptData: Notes and ranges contradict each other.
    """
    rows = []
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        attached = ranges.get(name)
        if attached is None or attached.first_offset + row.target_end > attached.end_offset:
            raise CorruptData(f"what the mirror noted for {name} does not fit the commit's range")
        arrival_ms = attached.append_time_ms if attached.append_time_ms >= 0 else now_ms
        rows.append(moved(row, attached.first_offset, arrival_ms))
    return replace(noted, rows=tuple(rows))


def map_batch(batch_id: int, noted: LedgerRows, ends: Mapping[TopicPartition, int]) -> MapBatch:
    """Return the additions of a batch to an offset map."""
    copied = {
        SourcePartition(pair, partition): CopiedRange(start, end)
        for (pair, partition), (start, end) in noted.copied.items()
    }
    return MapBatch(batch_id=batch_id, copied=copied, ends=ends, rows=noted.rows)


def _ends(noted: LedgerRows, routes: Routes) -> dict[TopicPartition, int]:
    """Return the end offsets of the written partitions; transaction markers follow them."""
    ends: dict[TopicPartition, int] = {}
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        ends[name] = max(ends.get(name, 0), row.target_end)
    return ends


# Maximum number of batches that a report shows.
BATCHES_KEPT: Final = 10_000


def nobody(_done: BatchDone) -> None:
    """Ignore a finished batch."""


def routes_of(plan: MirrorPlan, offset_map: OffsetMap) -> Routes:
    """Return the target topics of the sources, in the form that tasks need."""
    return Routes(
        pairs=tuple((pair.place, pair.topic, pair.target) for pair in plan.pairs),
        counts=tuple((topic, offset_map.partition_counts[topic]) for topic in plan.targets),
        partitioning=plan.partitioning,
    )


def target_of(
    plan: MirrorPlan, sink: "Mapping[str, str]", mirror_id: str, offset_map: OffsetMap
) -> DirectoryTarget | BrokerTarget:
    """Return the plan's target; raises InvalidRequest for an unknown option of the sink."""
    texts, routes = plan.target.options() | dict(sink), routes_of(plan, offset_map)
    if plan.target.is_broker:
        options = read_sink_options(texts | {"delivery": "exactly-once"})
        return BrokerTarget(options=options, routes=routes, mirror_id=mirror_id)
    return DirectoryTarget(options=read_sink_options(texts), routes=routes, mirror_id=mirror_id)


@dataclass(slots=True)
class Batches:
    """Writes the batches of a query, in order. Spark calls it on the driver, in its own thread.

    Attributes:
        target: Target of the records.
        found: The current offset map.
        path: Path of the map's file.
        env: Files and clock.
        watch: Called after each batch.
        growth: Finds new topics, partitions and settings; None for a mirror that doesn't grow.
        done: The last batches.
        busy: Lock, held while a batch is written.
        is_closed: Whether further batches are refused.
    """

    target: DirectoryTarget | BrokerTarget
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
        """The plan with all topics found since the start."""
        assert self.growth is not None
        return self.growth.plan

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write a batch, then the map."""
        with self.busy:
            if self.is_closed:
                # A return would tell Spark that the batch is done.
                raise InvalidRequest(f"stopped before batch {batch_id}, which will be retried")
            self._write(rows, batch_id)

    def close(self) -> None:
        """Wait for the batch that is being written; refuse all later ones."""
        with self.busy:
            self.is_closed = True

    def release(self) -> None:
        """Do nothing: there is no lock to release when the query has ended."""

    def report_done(self) -> None:
        """Do nothing: each batch was reported when it was done."""

    def keep_up(self) -> tuple[str, ...]:
        """Apply changes at sources and target, and write the map; return notes for the user."""
        if self.growth is None:
            return ()
        offset_map, notes = self.growth.look(self.found)
        if offset_map is not self.found:
            write_map(self.env.files, self.path, offset_map)
            self.found = offset_map
            self.target = replace(self.target, routes=routes_of(self.growth.plan, offset_map))
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


STARTS: Final = 10


_LATE: Final = (
    "waiting for the Python worker to connect",
    "Python worker failed to connect back",
)


def is_late(error: Exception) -> bool:
    """Whether Spark gave up a Python process that did not start in time."""
    return any(text in str(error) for text in _LATE)


class RestartingQuery:
    """A query that is restarted after late Python processes, `STARTS` times in a row at most.

    For one thread.

    Attributes:
        current: The query of the last start.
    """

    def __init__(self, start: "Callable[[], StreamingQuery]") -> None:
        """Start the query.

        Args:
            start: Function that starts it with the same checkpoint each time.

        Raises:
            pyspark.errors.PySparkException: It can't be started.
        """
        self._start = start
        self._left = STARTS
        self.current = self._started()

    def _started(self) -> "StreamingQuery":
        from pyspark.errors import PySparkException

        while True:
            self._left -= 1
            try:
                return self._start()
            except PySparkException as error:
                if not (self._left and is_late(error)):
                    raise

    def has_ended(self, seconds: int) -> bool:
        """Wait for the end for some seconds; return whether the query has ended.

        Raises:
            pyspark.errors.StreamingQueryException: The query failed.
        """
        from pyspark.errors import StreamingQueryException

        try:
            has_ended = bool(self.current.awaitTermination(seconds))
            if self.current.lastProgress is not None:
                self._left = STARTS - 1  # it started: a later failure has another cause
            return has_ended
        except StreamingQueryException as error:
            if not (self._left and is_late(error)):
                raise
        self.current = self._started()
        return False


LOCK_FILE: Final = "mirror.batch.lock"


DONE_FILE: Final = "batches.json"


# Enough: the client reads the list every second.
_DONE_KEPT: Final = 1_000


_LOOK_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class ServerBatches:
    """Writes the batches of a query on a Spark Connect server. Pickled by the client.

    Attributes:
        plan: The client's plan.
        options: Options of the mirror; the checkpoint's path is absolute.
        mirror_id: Id that the checkpoint must contain.
    """

    plan: MirrorPlan
    options: MirrorOptions
    mirror_id: str
    _batches: Batches | None = field(default=None, repr=False)

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write a batch, then the map, then the list of batches."""
        env = os_env()
        self._check_checkpoint(env)
        with _alone(env, self.options["checkpoint"], batch_id):
            batches = self._open(env)
            batches(rows, batch_id)
            _write_done(env, self.options["checkpoint"], batches.done)

    def _check_checkpoint(self, env: Env) -> None:
        """Raise InvalidRequest if the server sees another folder than the client."""
        state = read_state(env, self.options["checkpoint"])
        mirror_id = "nothing" if state is None else state.mirror_id
        if mirror_id != self.mirror_id:
            raise InvalidRequest(
                f"{self.options['checkpoint']}/{STATE_FILE}: the Spark Connect server finds"
                f" {mirror_id} there, the client has written mirror {self.mirror_id}: name a"
                " checkpoint that both see at one path"
            )

    def _open(self, env: Env) -> Batches:
        """Return the writer of batches; its map is read again, as another query may have run."""
        path = f"{self.options['checkpoint']}/{MAP_FILE}"
        offset_map = read_map(env.files, path)
        batches = self._batches
        if batches is None or len(batches.grown_plan.pairs) != len(offset_map.sources):
            batches = self._batches = self._begin(env, path, offset_map)
        batches.found = offset_map
        return batches

    def _begin(self, env: Env, path: str, offset_map: OffsetMap) -> Batches:
        plan = as_mapped(self.plan, offset_map)
        growth = growth_of(plan, self.options, env)
        target = target_of(plan, self.options["sink_options"] or {}, self.mirror_id, offset_map)
        return Batches(target=target, found=offset_map, path=path, env=env, growth=growth)


@contextmanager
def _alone(env: Env, checkpoint: str, batch_id: int) -> Iterator[None]:
    """Hold the lock of batches; raises DirectoryLocked if another process has it."""
    try:
        lock = env.files.lock(f"{checkpoint}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise DirectoryLocked(
            f"{checkpoint}: the mirror was stopped, or another query writes a batch of it; batch"
            f" {batch_id} will be retried"
        ) from error
    with closing(lock):
        yield


def _write_done(env: Env, checkpoint: str, done: "deque[BatchDone]") -> None:
    text = json.dumps([asdict(one) for one in list(done)[-_DONE_KEPT:]])
    files.write_atomically(env.files, f"{checkpoint}/{DONE_FILE}", f"{text}\n".encode())


@dataclass(slots=True, kw_only=True)
class ClientBatches:
    """The client's view of batches that the server writes. For one thread.

    Attributes:
        plan: The plan as of the start.
        path: Path of the map's file.
        env: Files of the checkpoint.
        watch: Called for each finished batch.
        started: Spark's query, None before its start.
        after: Last batch that is reported already, or was written by an earlier run.
        done: The last batches.
    """

    plan: MirrorPlan
    path: str
    env: Env
    watch: Watcher
    started: RestartingQuery | None = None
    after: int = -1
    done: deque[BatchDone] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    _lock: "LockHandle | None" = None

    @property
    def found(self) -> OffsetMap:
        """The current map, from its file."""
        return read_map(self.env.files, self.path)

    @property
    def grown_plan(self) -> MirrorPlan:
        """The plan with all topics that the server has found since the start."""
        return as_mapped(self.plan, self.found)

    @property
    def _checkpoint(self) -> str:
        return self.path.removesuffix(f"/{MAP_FILE}")

    def report_done(self) -> None:
        """Report the batches that were finished since the last call."""
        try:
            data = files.read_file(self.env.files, f"{self._checkpoint}/{DONE_FILE}")
        except FileNotFoundError:
            return
        for one in json.loads(data):
            done = BatchDone(**one | {"notes": tuple(one["notes"])})
            if done.batch_id > self.after:
                self.after = done.batch_id
                self.done.append(done)
                self.watch(done)

    def close(self) -> None:
        """Wait for the batch that is being written, and block later ones."""
        while self._lock is None and self.started is not None and self.started.current.isActive:
            try:
                self._lock = self.env.files.lock(f"{self._checkpoint}/{LOCK_FILE}")
            except BlockingIOError:
                wait_seconds(_LOOK_SECONDS)

    def release(self) -> None:
        """Release the lock after the query has ended, so that another query can write."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
