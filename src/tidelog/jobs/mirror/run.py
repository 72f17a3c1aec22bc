"""A running mirror: one streaming query that reads all sources, and its checkpoint.

The query reads each source as a stream, combines the streams, and selects the columns that tasks
need. The checkpoint is a folder that the driver can write to:

    mirror.json    the request, the mirror's id, its start offsets
    offsets.map    the offset map (`jobs.offset_map`)
    spark/         Spark's own checkpoint: the offsets of each batch
    mirror.lock    lock that a driver holds while it runs the mirror

`commit` writes batches, `plan` makes the plan, and `places` reads the sources and the target.

Invariants: before a batch runs, Spark stores the batch's source offsets in its checkpoint. Then the
mirror writes the batch to the target, and adds the batch's rows to the offset map. After that,
Spark marks the batch as done in its checkpoint. If a process is killed before this mark is stored,
Spark repeats the same batch. The target detects a batch that it already has, so each record is
written once. After a first write and after a repeated write, the target returns the batch's
offsets, so the map gets the batch's rows. Over Spark Connect, the server writes the batches, and
the checkpoint has two more files (see `commit`).
"""

import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest
from tidelog.jobs.mirror.commit import (
    Batches,
    ClientBatches,
    RestartingQuery,
    ServerBatches,
    ignore_batch,
    target_of,
)
from tidelog.jobs.mirror.options import MirrorOptions
from tidelog.jobs.mirror.places import (
    as_mapped,
    check_empty,
    find_targets,
    first_map,
    first_offsets,
    grown,
    growth_of,
    read_sources,
    with_topics,
)
from tidelog.jobs.mirror.plan import (
    MAP_FILE,
    SPARK_DIR,
    MirrorPlan,
    MirrorSource,
    MirrorState,
    Pair,
    read_state,
)
from tidelog.jobs.mirror.work import ORIGIN, RECORD, TARGET_PARTITION
from tidelog.jobs.offset_map import OffsetMap, Partitioning, read_map, write_map
from tidelog.jobs.options import takes_options
from tidelog.jobs.place_topics import TopicFacts
from tidelog.jobs.progress_file import locked
from tidelog.jobs.target_check import Finding
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.session import check_shared_places, is_connect
from tidelog.types import TimestampType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_COLUMNS: Final = (*RECORD, "topic", "partition", "offset", "timestampType")
_CREATE_TIME: Final = "createTimestamp"

# Split size in bytes for mirrors from a directory to brokers. The size is so large that one task
# reads a whole partition. This keeps the order of the partition's records. If the target is a
# directory, several tasks may read a partition, because the commit orders their segments.
_ONE_TASK_BYTES: Final = str(1 << 58)


def source_options(
    plan: MirrorPlan, number: int, state: MirrorState, *, batch_records: int
) -> dict[str, str]:
    """Return the options of the stream that reads one source."""
    source = plan.sources[number]
    place = source.place
    columns = [*_COLUMNS, *([] if place.is_broker else [_CREATE_TIME])]
    options = (
        place.options()
        | _subscribed(source)
        | {
            "isolation": plan.isolation.name.lower(),
            "columns": ",".join(columns),
            "startingOffsets": starting_offsets(plan, number, state),
            "maxOffsetsPerTrigger": str(batch_records),
        }
    )
    if plan.target.is_broker and not place.is_broker:
        options["splitBytes"] = _ONE_TASK_BYTES
    return options


def _subscribed(source: MirrorSource) -> dict[str, str]:
    if source.expression is not None:
        return {"subscribePattern": source.expression}
    return {"subscribe": ",".join(source.topics)}


def starting_offsets(plan: MirrorPlan, number: int, state: MirrorState) -> str:
    """Return the start offsets of one source: `earliest`, or offsets as JSON.

    If the mirror's option `start` is `latest`, the offsets are the log ends at the mirror's first
    start. Topics and partitions that were added later start at the offsets in the offset map.
    """
    if plan.start == "earliest":
        return "earliest"
    pairs: list[Pair] = plan.pairs
    offsets: dict[str, dict[str, int]] = {}
    for pair_number, partition, offset in state.starts:
        pair = pairs[pair_number]
        if pair.source == number:
            offsets.setdefault(pair.topic, {})[str(partition)] = offset
    return json.dumps(offsets)


def read_rows(
    spark: "SparkSession",
    plan: MirrorPlan,
    state: MirrorState,
    *,
    batch_records: int,
    more: Mapping[str, str],
) -> "DataFrame":
    """Return the rows of all sources, with the index of the source in the column `source`.

    The timestamp of a row from a directory is the create time, if the log has it. For topics with
    LogAppendTime, the timestamp of a row from a broker is the append time.
    """
    from pyspark.sql.functions import coalesce, col, lit, when

    parts = []
    for number, source in enumerate(plan.sources):
        options = source_options(plan, number, state, batch_records=batch_records) | dict(more)
        rows = spark.readStream.format("tidelog").options(**options).load()
        if not source.place.is_broker:
            # The log files of a topic with LogAppendTime still have the producers' create times.
            stamped = col("timestampType") == lit(int(TimestampType.LOG_APPEND_TIME))
            created = when(stamped, coalesce(col(_CREATE_TIME), col("timestamp")))
            rows = rows.withColumn("timestamp", created.otherwise(col("timestamp")))
            rows = rows.drop(_CREATE_TIME)
        parts.append(rows.drop("timestampType").withColumn("source", lit(number)))
    return reduce(lambda one, other: one.unionByName(other), parts)


def select(rows: "DataFrame", partitioning: Partitioning) -> "DataFrame":
    """Select the columns that tasks need; raises InvalidRequest if a column is missing."""
    needed = [*ORIGIN, *RECORD]
    if partitioning is Partitioning.ANY:
        needed.append(TARGET_PARTITION)
    if missing := [name for name in needed if name not in rows.columns]:
        raise InvalidRequest(
            f"the transform's result has no column {missing[0]}; the transform must keep the"
            f" columns {', '.join(ORIGIN)} (for the offset map) and {', '.join(RECORD)}"
        )
    return rows.select(*needed)


_ID_BITS: Final = 128


@dataclass(slots=True, kw_only=True)
class Mirror:
    """A started mirror. Life cycle: start -> await_end or stop.

    Attributes:
        started: Spark's query, which may be restarted.
        batches: Writer of the batches, which also has a list of the last batches.
        findings: Findings of the target's checks before the start.
        notes: Notes on new topics and partitions, and on settings that differ, at the start.
        start_map: Offset map at the start.
        was_resumed: Whether the mirror continued from a checkpoint.
    """

    started: RestartingQuery
    batches: Batches | ClientBatches
    findings: Sequence[Finding]
    notes: Sequence[str]
    start_map: OffsetMap
    was_resumed: bool

    @property
    def query(self) -> "StreamingQuery":
        """Spark's query of the last start."""
        return self.started.current

    @property
    def checkpoint(self) -> str:
        """Path of the checkpoint's folder."""
        return self.batches.path.removesuffix(f"/{MAP_FILE}")

    @property
    def plan(self) -> MirrorPlan:
        """The plan with all topics found so far."""
        return self.batches.grown_plan

    @property
    def offset_map(self) -> OffsetMap:
        """The current offset map."""
        return self.batches.offset_map

    def await_end(self, stopped: threading.Event | None = None) -> None:
        """Wait for the end of the mirror; raises the query's error.

        Args:
            stopped: Event that stops the mirror after the batch that is being written.
        """
        while not self.started.has_ended(1):
            self.batches.report_done()
            if stopped is not None and stopped.is_set():
                self.stop()
                return
        self.batches.report_done()

    def stop(self) -> None:
        """Stop the mirror after the batch that is being written."""
        self.batches.close()
        self.query.stop()
        self.batches.release()
        self.batches.report_done()


@contextmanager
@takes_options(MirrorOptions, partitions=Partitioning)
def running(
    spark: "SparkSession", plan: MirrorPlan, **options: Unpack[MirrorOptions]
) -> Iterator[Mirror]:
    """Run a mirror during the block, and stop the mirror when the block ends.

    Args:
        spark: The session.
        plan: The plan, which was made with the same options.
        **options: Options, see `MirrorOptions`.

    Raises:
        DirectoryLocked: Another driver runs this mirror.
        InvalidRequest: A path is relative, and the session is a Spark Connect client, whose server
            can't use relative paths.
        TargetLoses, InvalidRequest, UnknownTopic, ClusterFailure: See `find_targets`.
    """
    check_shared_places(spark, [*(source.place for source in plan.sources), plan.target])
    env, checkpoint = options["env"] or os_env(), options["checkpoint"].rstrip("/")
    if is_connect(spark):
        checkpoint = str(Path(checkpoint).absolute())
    options["checkpoint"] = checkpoint
    env.files.make_dirs(options["checkpoint"])
    reason = f"{checkpoint}: another driver runs this mirror; stop it first"
    with locked(env, f"{checkpoint}/mirror.lock", reason):
        mirror = _start(spark, plan, options, env)
        try:
            yield mirror
        finally:
            mirror.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """Content of a checkpoint that was opened or created.

    Attributes:
        plan: The plan, including every topic that the offset map lists.
        state: State in the checkpoint.
        offset_map: Offset map in the checkpoint.
        findings: Findings of the target's checks.
        was_resumed: Whether the checkpoint existed.
    """

    plan: MirrorPlan
    state: MirrorState
    offset_map: OffsetMap
    findings: Sequence[Finding]
    was_resumed: bool


def _start(
    spark: "SparkSession",
    plan: MirrorPlan,
    options: MirrorOptions,
    env: Env,
) -> Mirror:
    transform, watch = options["transform"], options["watch"] or ignore_batch
    opened = _open(plan, options, env)
    growth = growth_of(opened.plan, options, env)
    path = f"{options['checkpoint']}/{MAP_FILE}"
    mirror_id = opened.state.mirror_id
    batches = Batches(
        target=target_of(opened.plan, options["sink_options"] or {}, mirror_id, opened.offset_map),
        offset_map=opened.offset_map,
        path=path,
        env=env,
        watch=watch,
        growth=growth,
    )
    notes = batches.keep_up()
    plan, start_map = growth.plan, batches.offset_map
    rows = read_rows(
        spark,
        plan,
        opened.state.with_starts(start_map),
        batch_records=options["batch_records"],
        more=options["source_options"] or {},
    )
    rows = select(rows if transform is None else transform(rows), plan.partitioning)
    client_batches: Batches | ClientBatches = batches
    sent: Batches | ServerBatches = batches
    if is_connect(spark):
        client_batches = ClientBatches(
            plan=plan, path=path, env=env, watch=watch, after=start_map.batch_id
        )
        # All options that can be pickled are sent to the server. The options set to None here can't
        # be pickled, and only the client uses them.
        plain: MirrorOptions = {
            **options,
            "stopped": None,
            "transform": None,
            "watch": None,
            "env": None,
        }
        sent = ServerBatches(plan=plan, options=plain, mirror_id=mirror_id)
    started = _query(rows, sent, options, plan.title)
    if isinstance(client_batches, ClientBatches):
        client_batches.started = started
    return Mirror(
        started=started,
        batches=client_batches,
        findings=opened.findings,
        notes=notes,
        start_map=start_map,
        was_resumed=opened.was_resumed,
    )


def _open(plan: MirrorPlan, options: MirrorOptions, env: Env) -> _Opened:
    """Open or create the checkpoint; find or create the topics at the target."""
    state = read_state(env, options["checkpoint"])
    if state is None:
        plan = with_topics(plan, env)
    else:
        state.ensure_same_request(plan)
        offset_map = read_map(env.files, f"{options['checkpoint']}/{MAP_FILE}")
        plan = as_mapped(plan, offset_map)
    sources = read_sources(plan, env)
    targets, findings = find_targets(
        plan,
        sources,
        env,
        create=options["create"],
        force=options["force"],
        is_new_from=0 if state is None else None,
    )
    was_resumed = state is not None
    if state is None:
        state, offset_map = _begin(plan, options, env, sources, targets)
    else:
        offset_map = _go_on(options, env, targets)
    return _Opened(
        plan=plan,
        state=state,
        offset_map=offset_map,
        findings=findings,
        was_resumed=was_resumed,
    )


def _begin(
    plan: MirrorPlan,
    options: MirrorOptions,
    env: Env,
    sources: Mapping[int, TopicFacts],
    targets: Mapping[str, TopicFacts],
) -> tuple[MirrorState, OffsetMap]:
    """Create a checkpoint; return its state and its offset map.

    The state is written last, because a checkpoint without a state counts as new.
    """
    check_empty(options["checkpoint"], env)
    starts = first_offsets(plan, sources)
    offset_map = first_map(plan, sources, targets, starts)
    state = MirrorState(
        mirror_id=uuid.UUID(int=env.random.getrandbits(_ID_BITS)).hex,
        question=plan.question(),
        starts=starts,
    )
    write_map(env.files, f"{options['checkpoint']}/{MAP_FILE}", offset_map)
    state.save(env, options["checkpoint"])
    return state, offset_map


def _go_on(options: MirrorOptions, env: Env, targets: Mapping[str, TopicFacts]) -> OffsetMap:
    """Return the offset map of an existing mirror, with new partitions of the target added."""
    offset_map = grown(read_map(env.files, f"{options['checkpoint']}/{MAP_FILE}"), targets)
    metadata = f"{options['checkpoint']}/{SPARK_DIR}/metadata"
    if offset_map.batch_id >= 0 and not env.files.exists(metadata):
        raise InvalidRequest(
            f"{metadata} is missing, so the mirror's offsets are lost and it would copy everything"
            " again; start with a new checkpoint and an empty topic"
        )
    return offset_map


def _query(
    rows: "DataFrame", batches: Batches | ServerBatches, options: MirrorOptions, title: str
) -> RestartingQuery:
    # The checkpoint is given as a file URI. Otherwise Spark would look for the path in its default
    # file system, which is possibly not the local file system.
    folder = Path(f"{options['checkpoint']}/{SPARK_DIR}").absolute()
    # Spark refuses two active queries with the same name or checkpoint.
    writer = rows.writeStream.foreachBatch(batches).queryName(f"{title} ({folder.parent})")
    writer = writer.option("checkpointLocation", folder.as_uri())
    if options["continuous"]:
        writer = writer.trigger(processingTime=f"{options['trigger_ms']} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    return RestartingQuery(writer.start)
