"""Options of a write by `format("tidelog")`, and the index and batch of the current task.

Spark passes a batch's number only to those methods of a sink that run on the driver. So tasks read
the number from Spark's local properties.
"""

import logging
from collections.abc import Mapping
from dataclasses import field
from typing import Final, NamedTuple

from pyspark import TaskContext

from tidelog.config import plain_settings
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.options import WRITE_OPTIONS, Options, not_of_directories, read_serdes
from tidelog.types import INT64_MAX, Codec

# Size in bytes, before compression, at which a batch is closed by default. The size is four times
# the default batch size of Kafka's producer, because a bulk write doesn't wait for records, and the
# overhead of a batch equals the work for several hundred records.
BATCH_BYTES: Final = 65_536
LOCK_WAIT_MS: Final = 10_000
MARKER_TOPIC: Final = "tidelog-spark-markers"
TRANSACTIONAL_ID_PREFIX: Final = "tidelog"
IDEMPOTENT: Final = "idempotent"
EXACTLY_ONCE: Final = "exactly-once"

_LOG: Final = logging.getLogger("tidelog.spark")
_NOT_OF_BROKERS: Final = {
    "clock.ms": "applies to directories only: brokers have their own clock; leave it out",
    "lockWaitMs": "applies to directories only: brokers have no lock; leave it out",
}
_NOT_OF_DIRECTORIES: Final = {
    "transactionalIdPrefix": "applies to brokers only: a directory needs no transactions;"
    " leave it out",
    "markerTopic": "applies to brokers only: a directory records its writers itself; leave it out",
}
_REFUSED_CLIENT: Final = {
    "key.serializer": "give keyAs",
    "value.serializer": "give valueAs",
    "interceptor.classes": "there are no interceptors outside of Java",
    "transactional.id": "give delivery=exactly-once; the id begins with transactionalIdPrefix",
    "enable.idempotence": "writes are always idempotent",
    "compression.type": "give compression",
    "batch.size": "give batchBytes",
    "partitioner": "rows are partitioned as by Java clients, or by the column partition",
    "partitioner.class": "rows are partitioned as by Java clients, or by the column partition",
}


@dataclass(frozen=True, slots=True)
class AppVersion:
    """Application and number of a write, which skips topics that have this or a later number."""

    app_id: str
    version: int


def log_skipped(txn: AppVersion, skipped: Mapping[str, int], target: str) -> None:
    """Log each topic that a numbered write has skipped.

    Args:
        txn: The write.
        skipped: Last number of each topic that already had a write of this application with the
            same number or a later number.
        target: The directory or brokers, for the log line.
    """
    for topic, last in sorted(skipped.items()):
        what = f"txnVersion {txn.version} of txnAppId {txn.app_id!r} to topic {topic} ({target})"
        if last == txn.version:
            _LOG.warning("%s was committed before, so nothing was written now", what)
            continue
        _LOG.error(
            "%s WROTE NOTHING: version %d was committed before, and smaller versions are treated as"
            " repeats. After a new checkpoint, batch numbers begin at 0 again: give a new txnAppId,"
            " or these rows are missing from the topic",
            what,
            last,
        )


def log_repeated(batch: "StreamBatch", target: str) -> None:
    """Log that this batch or a later batch of a streaming query was written before."""
    _LOG.warning(
        "batch %d of query %s to %s, or a later batch, was committed before, so nothing was"
        " written now",
        *(batch.number, batch.query_id, target),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a write.

    Attributes:
        path: Directory of topics; "" for a write to brokers.
        bootstrap: Brokers; "" for a write to a directory.
        client: Settings of the client under Kafka's names; may contain passwords.
        topic: Topic of all rows; None if each row has a topic.
        create: Number of partitions with which a missing `topic` is created; None if the topic must
            exist.
        create_config: Settings of the created topic.
        codec: Codec for topics whose `compression.type` is `producer`.
        batch_bytes: Size in bytes, before compression, at which a batch is closed.
        clock_ms: Append time of the rows in ms; None for the time of the machine's clock.
        exactly_once: Whether rows are written exactly once. If so, each task of a write to brokers
            uses one transaction.
        transactional_id_prefix: Prefix of the transactional ids.
        marker_topic: Topic for the markers of written batches.
        txn: `txnAppId` and `txnVersion` of a numbered write; None for a write without these
            options.
        lock_wait_ms: Maximum time in ms that a commit waits for the directory's lock.
        serdes: Names of serializers of the columns `key` and `value`, if given.
    """

    path: str = ""
    bootstrap: str = ""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    topic: str | None = None
    create: int | None = None
    create_config: Mapping[str, str] = field(default_factory=dict)
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES
    clock_ms: int | None = None
    exactly_once: bool = False
    transactional_id_prefix: str = TRANSACTIONAL_ID_PREFIX
    marker_topic: str = MARKER_TOPIC
    txn: AppVersion | None = None
    lock_wait_ms: int = LOCK_WAIT_MS
    serdes: Mapping[str, str] = field(default_factory=dict)

    def env(self) -> Env:
        """Return the environment of the write: files and clock."""
        return os_env() if self.clock_ms is None else Env(clock=ManualClock(self.clock_ms))


def read_sink_options(texts: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write; raises InvalidRequest or ConfigError for an invalid option."""
    options = Options(texts, WRITE_OPTIONS)
    path, bootstrap = options.location(_NOT_OF_BROKERS, _NOT_OF_DIRECTORIES)
    if not bootstrap:
        _check_directory(path, options)
    txn = _txn(options)
    return SinkOptions(
        path=path,
        bootstrap=bootstrap,
        client=options.client(_REFUSED_CLIENT) if bootstrap else {},
        topic=options.text("topic"),
        create=_create(options),
        create_config=_create_config(options),
        codec=options.choice("compression", {c.config_name: c for c in Codec}, "none"),
        batch_bytes=options.number("batchBytes", BATCH_BYTES),
        clock_ms=options.number("clock.ms", 0) if options.text("clock.ms") else None,
        exactly_once=_is_exactly_once(options, txn) if bootstrap else True,
        transactional_id_prefix=options.text("transactionalIdPrefix") or TRANSACTIONAL_ID_PREFIX,
        marker_topic=options.text("markerTopic") or MARKER_TOPIC,
        txn=txn,
        lock_wait_ms=options.number("lockWaitMs", LOCK_WAIT_MS, at_least=0),
        serdes=read_serdes(options),
    )


def _create(options: Options) -> int | None:
    if options.text("createPartitions") is None:
        if options.text("createConfig") is not None:
            raise InvalidRequest("option createConfig applies only with createPartitions")
        return None
    if options.text("topic") is None:
        raise InvalidRequest(
            "option createPartitions needs the option topic: topics that rows name must exist"
        )
    return options.number("createPartitions", 1)


def _create_config(options: Options) -> dict[str, str]:
    if options.text("createConfig") is None:
        return {}
    settings = options.json("createConfig")
    for name, value in settings.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise InvalidRequest(
                f"option createConfig: {name} is {value!r}; it must be text or a number"
            )
    return plain_settings({name: str(value) for name, value in settings.items()})


def _check_directory(path: str, options: Options) -> None:
    if "://" in path:
        raise InvalidRequest(
            f"option path={path}: only local directories can be written to; a directory in an"
            " object store is read-only (docs/tiers.md)"
        )
    if others := options.prefixed("kafka."):
        raise InvalidRequest(not_of_directories(f"kafka.{min(others)}"))
    if (options.text("delivery") or EXACTLY_ONCE).strip().lower() != EXACTLY_ONCE:
        raise InvalidRequest(
            f"option delivery={options.text('delivery')}: a directory is always written exactly"
            " once; leave the option out"
        )


def _txn(options: Options) -> AppVersion | None:
    app_id, version = options.text("txnAppId"), options.text("txnVersion")
    if app_id is None and version is None:
        return None
    if not app_id or version is None:
        raise InvalidRequest("txnAppId and txnVersion belong together: give both, or neither")
    number = options.number("txnVersion", 0, at_least=0)
    assert number <= INT64_MAX
    return AppVersion(app_id, number)


def _is_exactly_once(options: Options, txn: AppVersion | None) -> bool:
    """Return whether a write to brokers uses transactions; by default, a numbered write does."""
    words = {IDEMPOTENT: False, EXACTLY_ONCE: True}
    is_exactly_once = options.choice("delivery", words, IDEMPOTENT if txn is None else EXACTLY_ONCE)
    if txn is not None and not is_exactly_once:
        raise InvalidRequest("txnAppId and txnVersion need delivery=exactly-once")
    return is_exactly_once


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_EXECUTION: Final = "spark.sql.execution.id"
_ROOT_EXECUTION: Final = "spark.sql.execution.root.id"


class StreamBatch(NamedTuple):
    """A batch of a streaming query. The query's id is stored in the query's checkpoint."""

    query_id: str
    number: int


def task_number() -> int:
    """Return the index of the Spark task that calls this function; 0 outside of a task."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def stream_batch() -> StreamBatch:
    """Return the streaming batch of the calling task; raises InvalidRequest outside of a stream."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(QUERY_ID)
    number = None if context is None else context.getLocalProperty(BATCH_ID)
    if not query_id or not number:
        raise InvalidRequest(
            "this streaming write does not run in a streaming query: its task has no query id"
            " and batch number"
        )
    return StreamBatch(query_id, int(number))


def refuse_new_table() -> None:
    """Raise InvalidRequest if this task's batch write fills a new table of Spark's catalog.

    Spark calls a sink for `saveAsTable` and `writeTo(...).create()` in the same way as for `save`.
    But for a new table, Spark runs the write as an inner execution of the execution that creates
    the table. So this check refuses inner executions. In `foreachBatch`, every write is an inner
    execution, so the check accepts all writes there.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(BATCH_ID):
        return
    root = context.getLocalProperty(_ROOT_EXECUTION)
    if root and root != context.getLocalProperty(_EXECUTION):
        raise InvalidRequest(
            "saveAsTable and writeTo(...).create() make a table of Spark's catalog that could not"
            " be read: Spark does not pass its options to Python data sources. Nothing was written."
            " Use save(), and CREATE TEMPORARY VIEW ... USING tidelog OPTIONS (path '...', topic"
            " '...') for SELECT and INSERT"
        )
