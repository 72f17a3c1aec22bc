"""Commit of a mirror's batch: from the tasks' reports to the target, then to the offset map.

Owns both targets (`DirectoryTarget`, `BrokerTarget`), the order of the two writes (`Batches`: first
the target, then the map), and how batches run on a Spark Connect server (`ServerBatches`,
`ClientBatches`). Not owned: what the tasks write (`work`) and the query (`run`).

At a directory the segments of all tasks are attached by one commit. It carries the batch's number
and the tasks' notes, counted from the first offset that the commit gives each partition. A batch
that comes again after a crash is not attached again: the directory returns where it went and what
was noted then. With brokers the reports contain all of this.

Over Spark Connect the client plans, starts the query and waits. The server runs each batch in a
Python process of its own, which finds plan and options in what was sent and everything else in the
checkpoint: so the checkpoint must be a folder that both see under one path. The server compares it
with what the client wrote before it writes anything to the target. `mirror.batch.lock` is held
while a batch is written, and by a client that stops the query: anybody else is refused meanwhile,
and its batch comes again. `batches.json` holds the last batches, so that the client can report
them.

Spark gives the Python process of a stream's source, and over Spark Connect that of its batches, ten
seconds to start. No setting changes that, and a busy machine may take longer. The checkpoint stays
valid, so the same query continues from there (`RestartingQuery`).
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
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
    decode_state,
)
from tidelog.jobs.mirror.work import (
    REPORT_SCHEMA,
    BrokerTask,
    DirectoryTask,
    LedgerRows,
    Report,
    Routes,
    decode_ledger_rows,
    encode_ledger_rows,
    join_ledger_rows,
    moved,
    read_reports,
)
from tidelog.jobs.offset_map import (
    Copied,
    MapBatch,
    OffsetMap,
    SourcePartition,
    read_map,
    thin,
    write_map,
)
from tidelog.spark.directory_sink import attach_staged, batch_commit_id, drop_staged
from tidelog.spark.sink_options import SinkOptions, StreamBatch, read_sink_options
from tidelog.storage import files
from tidelog.storage.directory.attach import AttachedRange, AttachResult, WriterVersion
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tidelog.env import LockHandle


# What a batch notes at most, of all its tasks, but for one row for each pair of partitions.
BATCH_ROWS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a batch.

    Attributes:
        map_batch: For the offset map.
        records: How many records it has at the target.
        was_done: All of it was there already.
    """

    map_batch: MapBatch
    records: int
    was_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryTarget:
    """A directory of topics: takes the batches of a mirror, in order, each once.

    Attributes:
        options: Of the sink.
        routes: Where topics go.
        mirror_id: Names the writer.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch, or find it written; all of the batch is visible, or nothing."""
        # The same whenever the batch comes again: what a dead driver staged for it goes, too.
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
            # Of failed, repeated and speculative attempts; what was attached has other names.
            drop_staged(self.options, commit_id)
        return self._written(result, batch_id)

    def _version(self, batch_id: int, note: str = "") -> WriterVersion:
        return WriterVersion(f"mirror/{self.mirror_id}", batch_id, note)

    def _find(self, batch_id: int) -> AttachResult | None:
        """What the directory knows of the batch; spares the tasks their work."""
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
    """Topics of a cluster: takes the batches of a mirror, in order, each once.

    Attributes:
        options: Of the sink.
        routes: Where topics go.
        mirror_id: Names the writer.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch, or find it written; the tasks' rows become visible one after the other."""
        task = BrokerTask(
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


def _run(rows: "DataFrame", task: DirectoryTask | BrokerTask) -> list[Report]:
    outputs = rows.mapInArrow(task, REPORT_SCHEMA).collect()
    return read_reports([row.report for row in outputs])


def relative_to_batch(reports: Sequence[Report], routes: Routes) -> LedgerRows:
    """What all tasks noted, counted from the batch's first record of each partition.

    The tasks' segments are put in the order of the tasks, so a task's records lie behind those of
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
    """What was noted, with the offsets that the directory has given.

    Args:
        noted: Counted from the batch's first record of each partition.
        ranges: Where the commit put each partition's records.
        routes: Where topics go.
        now_ms: Arrival where the directory knows no append time.

    Raises:
        CorruptData: The two don't fit together.
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
    """What an offset map gains by a batch."""
    copied = {
        SourcePartition(pair, partition): Copied(start, end)
        for (pair, partition), (start, end) in noted.copied.items()
    }
    return MapBatch(batch_id=batch_id, copied=copied, ends=ends, rows=noted.rows)


def _ends(noted: LedgerRows, routes: Routes) -> dict[TopicPartition, int]:
    """Ends of the partitions that were written to; markers of transactions lie behind them."""
    ends: dict[TopicPartition, int] = {}
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        ends[name] = max(ends.get(name, 0), row.target_end)
    return ends


# What a report can show.
BATCHES_KEPT: Final = 10_000


def nobody(_done: BatchDone) -> None:
    """Told to nobody."""


def routes_of(plan: MirrorPlan, offset_map: OffsetMap) -> Routes:
    """Where each topic goes, as tasks need it."""
    return Routes(
        pairs=tuple((pair.place, pair.topic, pair.target) for pair in plan.pairs),
        counts=tuple((topic, offset_map.partition_counts[topic]) for topic in plan.targets),
        partitioning=plan.partitioning,
    )


def target_of(
    plan: MirrorPlan, sink: "Mapping[str, str]", mirror_id: str, offset_map: OffsetMap
) -> DirectoryTarget | BrokerTarget:
    """Who takes the batches; raises InvalidRequest for options that the sink does not know."""
    texts, routes = plan.target.options() | dict(sink), routes_of(plan, offset_map)
    if plan.target.is_broker:
        options = read_sink_options(texts | {"delivery": "exactly-once"})
        return BrokerTarget(options=options, routes=routes, mirror_id=mirror_id)
    return DirectoryTarget(options=read_sink_options(texts), routes=routes, mirror_id=mirror_id)


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

    def report_done(self) -> None:
        """Tell of batches done elsewhere: here each was told when it was done."""

    def keep_up(self) -> tuple[str, ...]:
        """Take up what has come at the places, durably; lines for people."""
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
    """Whether Spark gave a Python process up that did not come up in time."""
    return any(text in str(error) for text in _LATE)


class RestartingQuery:
    """One query, by as many starts as it needs, `STARTS` in a row at most. For one thread.

    Attributes:
        current: The query of the last start.
    """

    def __init__(self, start: "Callable[[], StreamingQuery]") -> None:
        """Start it.

        Args:
            start: Starts it, also again, with one checkpoint.

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
        """Wait so long for the end; whether it came.

        Raises:
            pyspark.errors.StreamingQueryException: What ended it before.
        """
        from pyspark.errors import StreamingQueryException

        try:
            has_ended = bool(self.current.awaitTermination(seconds))
            if self.current.lastProgress is not None:
                self._left = STARTS - 1  # it came up: what comes later is another trouble
            return has_ended
        except StreamingQueryException as error:
            if not (self._left and is_late(error)):
                raise
        self.current = self._started()
        return False


LOCK_FILE: Final = "mirror.batch.lock"


DONE_FILE: Final = "batches.json"


# The client looks every second.
_DONE_KEPT: Final = 1_000


_LOOK_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class ServerBatches:
    """Writes the batches of a query, on the server. Sent there; keeps what it has found.

    Attributes:
        plan: What is copied, as the client knew it.
        options: How; the checkpoint's path is absolute.
        mirror_id: What the checkpoint must say.
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
        """Raise InvalidRequest where the server sees another folder than the client."""
        path = f"{self.options['checkpoint']}/{STATE_FILE}"
        try:
            mirror_id = decode_state(files.read_file(env.files, path)).mirror_id
        except FileNotFoundError:
            mirror_id = "nothing"
        if mirror_id != self.mirror_id:
            raise InvalidRequest(
                f"{path}: the Spark Connect server finds {mirror_id} there, the client has written"
                f" mirror {self.mirror_id}: name a checkpoint that both see at one path"
            )

    def _open(self, env: Env) -> Batches:
        """What writes the batch; its map is that on disk: another query may have been here."""
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
    """Hold the lock of batches; raises DirectoryLocked."""
    try:
        lock = env.files.lock(f"{checkpoint}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise DirectoryLocked(
            f"{checkpoint}: the mirror was stopped, or another query writes a batch of it; batch"
            f" {batch_id} comes again"
        ) from error
    with closing(lock):
        yield


def _write_done(env: Env, checkpoint: str, done: "deque[BatchDone]") -> None:
    text = json.dumps([asdict(one) for one in list(done)[-_DONE_KEPT:]])
    files.write_atomically(env.files, f"{checkpoint}/{DONE_FILE}", f"{text}\n".encode())


@dataclass(slots=True, kw_only=True)
class ClientBatches:
    """What the client sees of batches that the server writes. For one thread.

    Attributes:
        plan: What is copied, as it was at the start.
        path: The map's file.
        env: Files of the checkpoint.
        watch: Told of each batch.
        started: Spark's query, once it is started.
        after: Batches up to this one are of earlier runs.
        done: The last ones.
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
        """The map as it is."""
        return read_map(self.env.files, self.path)

    @property
    def grown_plan(self) -> MirrorPlan:
        """The plan with the topics that the server has found since."""
        return as_mapped(self.plan, self.found)

    @property
    def _checkpoint(self) -> str:
        return self.path.removesuffix(f"/{MAP_FILE}")

    def report_done(self) -> None:
        """Tell of the batches that were done since the last call."""
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
        """Wait until the running batch is written, and let none begin."""
        while self._lock is None and self.started is not None and self.started.current.isActive:
            try:
                self._lock = self.env.files.lock(f"{self._checkpoint}/{LOCK_FILE}")
            except BlockingIOError:
                wait_seconds(_LOOK_SECONDS)

    def release(self) -> None:
        """The query has ended: let the next one begin."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
