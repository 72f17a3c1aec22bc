"""Commit of a mirror's batches: each batch is written to the target, then to the offset map.

This module has both kinds of target (`DirectoryTarget`, `BrokerTarget`), the order of the two
writes (`Batches`: first the target, then the map), and the batches of a Spark Connect server
(`ServerBatches`, `ClientBatches`). `work` has the tasks, `run` has the query.

At a directory, one commit attaches the segments of all tasks. The commit contains the batch's
number and the batch's rows of the offset map. The target offsets of these rows are relative to the
first offset that the commit assigns in each partition. If a batch is repeated after a crash, its
segments are not attached again. Instead, the directory returns the offsets and rows of the first
commit. If the target is a cluster, the target offsets in the tasks' reports are already final.

Over Spark Connect, the client makes the plan, starts the query and waits for its end. The server
writes the batches in a separate Python process. The client sends this process a pickled function
that contains the plan and the options. The process reads everything else from the checkpoint. So
the checkpoint must be a folder that client and server see under the same path. Before the server
writes anything to the target, it checks that the checkpoint contains the mirror id that the client
has sent. A process holds `mirror.batch.lock` while it writes a batch, and the client holds this
lock while it stops the query. While one process holds the lock, another process that tries to write
a batch gets DirectoryLocked. Spark repeats the batch of that process later. `batches.json` lists
the last batches, so that the client can report them.

Spark waits at most ten seconds for the start of the Python process of a stream's source. Over Spark
Connect, Spark also waits at most ten seconds for the start of the process that writes batches. No
setting changes this limit. On a busy machine the process may start later, and then the query fails.
The checkpoint stays valid, so `RestartingQuery` starts the query again, and the query continues
from the checkpoint.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Final

from tidelog.env import Env, os_env
from tidelog.errors import CorruptData, InvalidRequest
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
from tidelog.jobs.progress_file import locked
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


# Maximum number of map rows that the commit of a batch stores. If a batch has more rows,
# neighboring rows are merged, but only rows with the same source partition and the same target
# partition. So more rows may remain.
BATCH_ROWS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Outcome of a batch's write.

    Attributes:
        map_batch: Rows and offsets that the batch adds to the offset map.
        records: Number of records that the batch has written to the target.
        was_done: Whether an earlier attempt had already written the whole batch.
    """

    map_batch: MapBatch
    records: int
    was_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryTarget:
    """Directory of topics as target of a mirror. It takes each batch once, in order.

    Attributes:
        options: Options of the sink.
        routes: Target topics of the source topics.
        mirror_id: Id of the mirror, which is a part of the writer's name.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch unless it was written before.

        Either all of the batch's records become visible, or none.
        """
        # A repeated batch has the same commit id as the first attempt. So the repeated batch finds
        # and removes the files that a crashed driver has staged.
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
            # Remove the staged files of failed, repeated and speculative attempts. Attached files
            # have other names, so they remain.
            drop_staged(self.options, commit_id)
        return self._written(result, batch_id)

    def _version(self, batch_id: int, note: str = "") -> WriterVersion:
        return WriterVersion(f"mirror/{self.mirror_id}", batch_id, note)

    def _find(self, batch_id: int) -> AttachResult | None:
        """Return the outcome of an earlier write of the batch; None without an earlier write."""
        from tidelog.storage.directory.attach import find_done
        from tidelog.storage.directory.log_dir import LogDir

        with LogDir.open(self.options.path, env=self.options.env()) as log_dir:
            return find_done(log_dir, self._version(batch_id))

    def _written(self, result: AttachResult, batch_id: int) -> Written:
        now_ms = self.options.env().clock.now_ms()
        noted = decode_ledger_rows(result.note) if result.note else LedgerRows()
        absolute = with_final_offsets(noted, result.partitions, self.routes, now_ms)
        ends = {name: attached.end_offset for name, attached in result.partitions.items()}
        return Written(
            map_batch=map_batch(batch_id, absolute, ends),
            records=noted.records,
            was_done=result.was_done,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTarget:
    """Topics of a cluster as target of a mirror. They take each batch once, in order.

    Attributes:
        options: Options of the sink.
        routes: Target topics of the source topics.
        mirror_id: Id of the mirror, which is a part of the writer's name.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch unless it was written before.

        Each task writes its rows in a transaction of its own, so all rows of a task become visible
        together. The rows of different tasks become visible at different times.
        """
        task = MirrorBrokerTask(
            options=self.options,
            routes=self.routes,
            mirror_id=self.mirror_id,
            batch_id=batch_id,
        )
        reports = _run(rows, task)
        noted = join_ledger_rows(report.noted for report in reports)
        return Written(
            map_batch=map_batch(batch_id, noted, batch_ends(noted, self.routes)),
            records=noted.records,
            was_done=bool(reports) and all(report.was_done for report in reports),
        )


def _run(rows: "DataFrame", task: DirectoryTask | MirrorBrokerTask) -> list[Report]:
    outputs = rows.mapInArrow(task, REPORT_SCHEMA).collect()
    return read_reports([row.report for row in outputs])


def relative_to_batch(reports: Sequence[Report], routes: Routes) -> LedgerRows:
    """Join the map rows of all tasks, and make target offsets relative to the batch.

    In the reports, target offsets are relative to the task's first record in each partition. In the
    result, target offsets are relative to the batch's first record in each partition. Segments are
    attached in the order of the tasks, so a task's records follow the records of all earlier tasks.
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


def with_final_offsets(
    noted: LedgerRows,
    ranges: Mapping[TopicPartition, AttachedRange],
    routes: Routes,
    now_ms: int,
) -> LedgerRows:
    """Return map rows with the target offsets that the directory has assigned.

    Args:
        noted: Map rows with target offsets relative to the batch's first record in each partition.
        ranges: Offsets of the batch's records in each partition, from the commit.
        routes: Target topics of the source topics.
        now_ms: Arrival time in ms for records without an append time.

    Raises:
        CorruptData: Map rows and ranges contradict each other.
    """
    rows = []
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        attached = ranges.get(name)
        if attached is None or attached.first_offset + row.target_end > attached.end_offset:
            raise CorruptData(
                f"the mirror's notes for {name} do not match the offsets of the commit"
            )
        arrival_ms = attached.append_time_ms if attached.append_time_ms >= 0 else now_ms
        rows.append(moved(row, attached.first_offset, arrival_ms))
    return replace(noted, rows=tuple(rows))


def map_batch(batch_id: int, noted: LedgerRows, ends: Mapping[TopicPartition, int]) -> MapBatch:
    """Return the copied ranges, ends and rows that a batch adds to an offset map."""
    copied = {
        SourcePartition(pair, partition): CopiedRange(start, end)
        for (pair, partition), (start, end) in noted.copied.items()
    }
    return MapBatch(batch_id=batch_id, copied=copied, ends=ends, rows=noted.rows)


def batch_ends(noted: LedgerRows, routes: Routes) -> dict[TopicPartition, int]:
    """Return the offset after a batch's last record in each partition.

    Transaction markers that follow this last record are not counted, so the log end may be higher.
    """
    ends: dict[TopicPartition, int] = {}
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        ends[name] = max(ends.get(name, 0), row.target_end)
    return ends


# Maximum number of finished batches in a mirror's list. Older batches are removed from the list.
BATCHES_MAX: Final = 10_000


def ignore_batch(_done: BatchDone) -> None:
    """Ignore a finished batch."""


def routes_of(plan: MirrorPlan, offset_map: OffsetMap) -> Routes:
    """Return the target topics of the source topics, in the form that tasks need."""
    return Routes(
        pairs=tuple((pair.source, pair.topic, pair.target) for pair in plan.pairs),
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
    """Writer of a query's batches; writes them in order.

    Spark calls the writer on the driver, in a separate thread.

    Attributes:
        target: Target that the records are written to.
        offset_map: Current offset map.
        path: Path of the offset map's file.
        env: Files and clock of the driver.
        watch: Function that is called after each finished batch.
        growth: Copies new topics, partitions and settings; None for a mirror that copies only the
            topics and partitions that existed at its start.
        done: The last finished batches.
        busy: Lock that is held while a batch is written.
        is_closed: Whether the writer refuses further batches.
    """

    target: DirectoryTarget | BrokerTarget
    offset_map: OffsetMap
    path: str
    env: Env
    watch: Watcher = ignore_batch
    growth: Growth | None = None
    done: deque[BatchDone] = field(default_factory=lambda: deque(maxlen=BATCHES_MAX))
    busy: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False

    @property
    def grown_plan(self) -> MirrorPlan:
        """The plan, including the topics that were found since the start."""
        assert self.growth is not None
        return self.growth.plan

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write a batch to the target, then add it to the offset map."""
        with self.busy:
            if self.is_closed:
                # An error is needed here: after a normal return, Spark would treat the batch as
                # written.
                raise InvalidRequest(f"stopped before batch {batch_id}, which will be retried")
            self._write(rows, batch_id)

    def close(self) -> None:
        """Wait for the batch that is being written, and refuse all later batches."""
        with self.busy:
            self.is_closed = True

    def release(self) -> None:
        """Do nothing, because this writer holds no lock after the query has ended."""

    def report_done(self) -> None:
        """Do nothing, because each batch was reported when it was finished."""

    def keep_up(self) -> tuple[str, ...]:
        """Copy new topics, partitions and settings of the sources to the target.

        Also add the new topics and partitions to the offset map. Returns notes for the user.
        """
        if self.growth is None:
            return ()
        offset_map, notes = self.growth.look(self.offset_map)
        if offset_map is not self.offset_map:
            write_map(self.env.files, self.path, offset_map)
            self.offset_map = offset_map
            self.target = replace(self.target, routes=routes_of(self.growth.plan, offset_map))
        return notes

    def _write(self, rows: "DataFrame", batch_id: int) -> None:
        if batch_id < self.offset_map.batch_id:
            raise InvalidRequest(
                f"Spark runs batch {batch_id}, but the offset map already has batch"
                f" {self.offset_map.batch_id}: Spark's checkpoint is older than the offset map;"
                " start with a new checkpoint"
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
        self.offset_map = self.offset_map.add(written.map_batch)
        write_map(self.env.files, self.path, self.offset_map)


# Maximum number of successive starts of a query that each fail because a Python process starts
# late.
STARTS: Final = 10

_LATE: Final = (
    "waiting for the Python worker to connect",
    "Python worker failed to connect back",
)


def is_late(error: Exception) -> bool:
    """Return whether Spark has given up waiting for the start of a Python process."""
    return any(text in str(error) for text in _LATE)


class RestartingQuery:
    """Query that is started again if it fails because a Python process has started late.

    Gives up after `STARTS` failed starts in a row. Not thread-safe.

    Attributes:
        current: The query of the last start.
    """

    def __init__(self, start: "Callable[[], StreamingQuery]") -> None:
        """Start the query.

        Args:
            start: Function that starts the query, each time with the same checkpoint.

        Raises:
            pyspark.errors.PySparkException: The query can't be started.
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
        """Wait at most `seconds` for the end of the query; return whether the query has ended.

        Raises:
            pyspark.errors.PySparkException: The query can't be restarted.
            pyspark.errors.StreamingQueryException: The query failed.
        """
        from pyspark.errors import StreamingQueryException

        try:
            has_ended = bool(self.current.awaitTermination(seconds))
            if self.current.lastProgress is not None:
                # the query has made progress, so this start succeeded: reset the count of starts
                self._left = STARTS - 1
            return has_ended
        except StreamingQueryException as error:
            if not (self._left and is_late(error)):
                raise
        self.current = self._started()
        return False


LOCK_FILE: Final = "mirror.batch.lock"
DONE_FILE: Final = "batches.json"

# Maximum number of batches in `batches.json`. Older batches are left out, because the client reads
# the file each second.
_LISTED_MAX: Final = 1_000

_LOOK_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class ServerBatches:
    """Writer of a query's batches on a Spark Connect server.

    The client pickles this object and sends it to the server.

    Attributes:
        plan: Plan of the client.
        options: Options of the mirror, with the absolute path of the checkpoint.
        mirror_id: Id of the mirror. The checkpoint must contain this id.
    """

    plan: MirrorPlan
    options: MirrorOptions
    mirror_id: str
    _batches: Batches | None = field(default=None, repr=False)

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write a batch to the target, then add it to the offset map and to the list of batches."""
        env = os_env()
        self._check_checkpoint(env)
        checkpoint = self.options["checkpoint"]
        reason = (
            f"{checkpoint}: the mirror was stopped, or another query is writing a batch of this"
            f" mirror; batch {batch_id} will be retried"
        )
        with locked(env, f"{checkpoint}/{LOCK_FILE}", reason):
            batches = self._open(env)
            batches(rows, batch_id)
            _write_done(env, checkpoint, batches.done)

    def _check_checkpoint(self, env: Env) -> None:
        """Raise InvalidRequest if this server's checkpoint lacks the client's mirror id."""
        state = read_state(env, self.options["checkpoint"])
        mirror_id = "nothing" if state is None else state.mirror_id
        if mirror_id != self.mirror_id:
            raise InvalidRequest(
                f"{self.options['checkpoint']}/{STATE_FILE}: the Spark Connect server finds"
                f" {mirror_id} in this file, but the client wrote mirror {self.mirror_id}; give a"
                " checkpoint folder that both reach by the same path"
            )

    def _open(self, env: Env) -> Batches:
        """Return the writer of batches, with the current offset map from the map's file.

        The map's file is read again for each batch, because another query may have changed it.
        """
        path = f"{self.options['checkpoint']}/{MAP_FILE}"
        offset_map = read_map(env.files, path)
        batches = self._batches
        if batches is None or len(batches.grown_plan.pairs) != len(offset_map.sources):
            batches = self._batches = self._begin(env, path, offset_map)
        batches.offset_map = offset_map
        return batches

    def _begin(self, env: Env, path: str, offset_map: OffsetMap) -> Batches:
        plan = as_mapped(self.plan, offset_map)
        growth = growth_of(plan, self.options, env)
        target = target_of(plan, self.options["sink_options"] or {}, self.mirror_id, offset_map)
        return Batches(target=target, offset_map=offset_map, path=path, env=env, growth=growth)


def _write_done(env: Env, checkpoint: str, done: "deque[BatchDone]") -> None:
    text = json.dumps([asdict(one) for one in list(done)[-_LISTED_MAX:]])
    files.write_atomically(env.files, f"{checkpoint}/{DONE_FILE}", f"{text}\n".encode())


@dataclass(slots=True, kw_only=True)
class ClientBatches:
    """Client's view of the batches that a Spark Connect server writes. Not thread-safe.

    Attributes:
        plan: Plan of the mirror at its start.
        path: Path of the offset map's file.
        env: Access to the files of the checkpoint.
        watch: Function that is called for each finished batch.
        started: The query; None before the query has started.
        after: Id of the last batch that this client has reported or that an earlier run has
            written; -1 if there is none.
        done: The last finished batches.
    """

    plan: MirrorPlan
    path: str
    env: Env
    watch: Watcher
    started: RestartingQuery | None = None
    after: int = -1
    done: deque[BatchDone] = field(default_factory=lambda: deque(maxlen=BATCHES_MAX))
    _lock: "LockHandle | None" = None

    @property
    def offset_map(self) -> OffsetMap:
        """The current offset map, read from its file."""
        return read_map(self.env.files, self.path)

    @property
    def grown_plan(self) -> MirrorPlan:
        """The plan, including the topics that the server has found since the start."""
        return as_mapped(self.plan, self.offset_map)

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
        """Wait until no batch is being written. Then hold the lock to prevent later batches."""
        while self._lock is None and self.started is not None and self.started.current.isActive:
            try:
                self._lock = self.env.files.lock(f"{self._checkpoint}/{LOCK_FILE}")
            except BlockingIOError:
                wait_seconds(_LOOK_SECONDS)

    def release(self) -> None:
        """Release the lock after the query has ended, so that another query can write batches."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
