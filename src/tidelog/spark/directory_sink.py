"""Sink to a directory, for batch and stream: tasks stage segments; a commit makes them visible.

Contains the driver's commit, the ids of commits, and the writer of a task (`TaskWriter`).
`TaskWriter` converts rows to staged segments without creating an object for each row.
`storage.directory.staging` defines the names of staged files, and `storage.directory.attach`
attaches the files.

Each task writes staged segment files into the directories of its rows' partitions. A file name
contains the id of the commit and the id of the attempt, so two attempts never write the same file.
If a task has several attempts, Spark chooses one of them. The driver then attaches the files of the
chosen attempts of all tasks together. To attach files, the driver locks the directory. If another
process has the lock, the driver requests through the control channel (`tidelog.control`) that the
other process attaches the files. Another process without a control channel may be a writer that
releases the lock within seconds. So the driver tries to get the lock for up to `lock_wait_ms`.

Invariants: the rows of a write become visible all together or not at all. The commit of a streaming
query contains the batch's number, so a batch that is repeated after a crash adds nothing.
"""

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidelog.control.client import ControlClient, find_holder
from tidelog.env import Env
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.record.columns.encode import PER_MS, encode_table
from tidelog.spark.rows import Router, by_partition
from tidelog.spark.sink_options import (
    SinkOptions,
    StreamBatch,
    log_repeated,
    log_skipped,
    refuse_new_table,
    stream_batch,
    task_number,
)
from tidelog.spark.workers import hides_tracebacks, make_ready
from tidelog.storage import commits
from tidelog.storage.directory.attach import AttachResult, WriterVersion, attach
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.staging import RowFacts, StagedSegment, StagedWriter
from tidelog.storage.log.batch_building import exact_batch_bytes, stored_codec
from tidelog.storage.open_files import FilePool
from tidelog.types import INT64_MAX, NO_TIMESTAMP, TopicPartition

_PAUSE_MS: Final = 50
_Result = TypeVar("_Result")


def attach_staged(
    options: "SinkOptions",
    staged: "Iterable[StagedSegment]",
    *,
    commit_id: str,
    version: WriterVersion | None,
) -> AttachResult:
    """Attach staged segments to the directory, all together, and return the outcome.

    Args:
        options: Options of the write.
        staged: Segments that the chosen attempts of all tasks have staged.
        commit_id: 32 hexadecimal digits.
        version: Name of the writer and number of the write; None for a write without a number.

    Raises:
        DirectoryLocked: Another process has locked the directory, serves no control channel, and
            did not release the lock in time. Nothing was changed.
        InvalidRequest: The option `clock.ms` is given, and another process has locked the
            directory.
        TidelogError: An error of `attach`, raised here or by the process that holds the lock.
    """
    env, segments = options.env(), list(staged)

    def under_lock(log_dir: LogDir) -> AttachResult:
        return attach(log_dir, segments, commit_id=commit_id, version=version)

    def through(holder: ControlClient) -> AttachResult:
        if options.clock_ms is not None:
            raise InvalidRequest(
                f"option clock.ms: another process has {options.path} open for writing, and commits"
                " by its own clock"
            )
        return holder.attach(segments, commit_id=commit_id, version=version)

    return _by_lock_or_holder(options, env, under_lock, through)


def ensure_reachable(options: "SinkOptions") -> None:
    """Check that the driver can commit; called before the tasks run.

    Raises:
        InvalidRequest: The directory does not exist.
        UnknownTopic: The topic does not exist.
        DirectoryLocked: Another process has locked the directory, serves no control channel, and
            did not release the lock in time.
    """
    env = options.env()
    with LogDir.open(options.path, env=env) as log_dir:
        if options.topic is not None:
            log_dir.topic(options.topic)

    from tidelog.storage.files import LOCK_FILE

    for _ in _tries(options.lock_wait_ms):
        try:
            env.files.lock(f"{options.path}/{LOCK_FILE}").close()
            return
        except BlockingIOError:
            holder = find_holder(options.path)
            if holder is not None:
                holder.close()
                return
    raise _locked(options.path)


def is_committed(options: "SinkOptions", version: WriterVersion) -> bool:
    """Return whether all topics of a numbered write already have its number or a later number.

    Returns False if the write is being committed now, or if the write's topics are not known yet.
    """
    marks, topics = commits.read_marks(options.env().files, options.path), version.topics or ()
    done = commits.find_done_topics(marks, version.writer, version.version, topics)
    return bool(topics) and len(done) == len(topics)


def _by_lock_or_holder(
    options: "SinkOptions",
    env: Env,
    under_lock: Callable[[LogDir], _Result],
    through: Callable[[ControlClient], _Result],
) -> _Result:
    for _ in _tries(options.lock_wait_ms):
        try:
            with LogDir.open(
                options.path, env=env, options=LogDirOptions(writable=True)
            ) as log_dir:
                return under_lock(log_dir)
        except DirectoryLocked:
            holder = find_holder(options.path)
        if holder is not None:
            with holder:
                return through(holder)
    raise _locked(options.path)


def _tries(wait_ms: int) -> Iterator[None]:
    """Yield once for each try: at once, and then after each pause, until `wait_ms` have passed."""
    yield
    for _ in range(wait_ms // _PAUSE_MS):
        threading.Event().wait(_PAUSE_MS / 1000)
        yield


def _locked(path: str) -> DirectoryLocked:
    return DirectoryLocked(
        f"{path}: another process has it open for writing and serves no control channel"
        " (see docs/control.md); stop that process, or start it with a control channel"
    )


_ID_BYTES: Final = 16


class StagedMessage(WriterCommitMessage):
    """Message from a task to the driver: the task's staged segments, and a stream's batch."""

    def __init__(self, staged: "Sequence[StagedSegment]", batch: StreamBatch | None = None) -> None:
        self.staged = tuple(staged)
        self.batch = batch


@hides_tracebacks
class DirectoryWriter(DataSourceArrowWriter):
    """Writer of a batch query. Workers stage segments, and the driver commits all of them."""

    def __init__(self, options: SinkOptions, commit_id: str) -> None:
        self._options = options
        self._commit_id = commit_id
        # If all topics already have this write's number or a later number, the tasks write nothing.
        # Otherwise the tasks stage all rows, and the commit leaves out topics that already have
        # this number or a later one.
        self._is_done = (version := self._version(())) is not None and is_committed(
            options, version
        )

    def _version(self, staged: "Sequence[StagedSegment]") -> WriterVersion | None:
        """Return application, number and topics of a numbered write; None without a number."""
        txn, topic = self._options.txn, self._options.topic
        if txn is None:
            return None
        topics = {segment.topic_partition.topic for segment in staged} if topic is None else {topic}
        return WriterVersion(app_writer(txn.app_id), txn.version, topics=tuple(sorted(topics)))

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Stage the rows of one task. After a failure, the staged files are removed."""
        refuse_new_table()
        if self._is_done:
            for _ in iterator:
                pass
            return StagedMessage(())
        return StagedMessage(stage(self._options, iterator, self._commit_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible together. Log the topics that already had the rows."""
        staged = _staged(messages)
        version = self._version(staged)
        attached = attach_staged(self._options, staged, commit_id=self._commit_id, version=version)
        drop_staged(self._options, self._commit_id)
        if self._options.txn is not None:
            log_skipped(self._options.txn, attached.skipped, self._options.path)

    def abort(self, _messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove all files that the tasks staged, including failed and repeated attempts."""
        drop_staged(self._options, self._commit_id)


@hides_tracebacks
class DirectoryStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query. Spark calls its methods in different processes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Stage the rows of one task. After a failure, the staged files are removed."""
        batch = stream_batch()
        return StagedMessage(stage(self._options, iterator, batch_commit_id(batch)), batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make the batch visible, unless it is visible already."""
        batch = _batch_of(messages)
        if batch is None:
            return  # without tasks there are no rows
        assert batch.number == batchId
        commit_id = batch_commit_id(batch)
        version = WriterVersion(f"query/{batch.query_id}", batch.number)
        attached = attach_staged(
            self._options, _staged(messages), commit_id=commit_id, version=version
        )
        if attached.was_done:
            log_repeated(batch, self._options.path)
        drop_staged(self._options, commit_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], _batch_id: int) -> None:
        """Remove all files that the tasks staged, including failed and repeated attempts."""
        batch = _batch_of(messages)
        if batch is not None:
            drop_staged(self._options, batch_commit_id(batch))


def new_commit_id(options: SinkOptions) -> str:
    """Return the commit id of a batch write: random, except for a numbered write to one topic.

    If a numbered write to one topic is repeated, the id is the same as in the first write. So the
    commit of the repeated write also removes staged files of the first write, if the driver of the
    first write crashed. If rows name their topics, several writes with the same number may run at
    the same time, so each of these writes gets a random id.
    """
    if options.txn is not None and options.topic is not None:
        return numbered_commit_id(options.txn.app_id, options.txn.version, options.topic)
    return uuid.UUID(int=options.env().random.getrandbits(128)).hex


def numbered_commit_id(app_id: str, version: int, topic: str) -> str:
    """Return the commit id of a numbered write to a topic."""
    return _stable_id(f"app/{topic}", app_id, version)


def app_writer(app_id: str) -> str:
    """Return the name under which the directory stores an application's numbered writes."""
    return f"app/{app_id}"


def batch_commit_id(batch: StreamBatch) -> str:
    """Return the commit id of a streaming batch. A repeated batch has the same id."""
    return _stable_id("query", batch.query_id, batch.number)


def _stable_id(kind: str, name: str, number: int) -> str:
    text = f"{kind}\0{name}\0{number}".encode()
    return hashlib.blake2b(text, digest_size=_ID_BYTES).hexdigest()


def stage(
    options: SinkOptions, batches: "Iterator[pa.RecordBatch]", commit_id: str
) -> "list[StagedSegment]":
    """Stage the rows of one task. After a failure, the staged files are removed."""
    make_ready(to_write=True)
    from tidelog.record.columns.serdes import encode_fields

    task = task_number()
    # The attempt's name is random. Spark's attempt numbers are not unique, because each driver
    # numbers attempts from 0, and an attempt of an older driver may still be writing.
    attempt = f"{options.env().random.getrandbits(64):016x}"
    writer = TaskWriter(options, name=f"{commit_id}-{task}-{attempt}", task=task)
    try:
        for batch in batches:
            writer.take(encode_fields(batch, options.serdes))
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def drop_staged(options: SinkOptions, commit_id: str) -> None:
    """Remove all files that are still staged for a commit."""
    from tidelog.storage.directory.staging import drop_staging

    drop_staging(options.env().files, options.path, prefix=commit_id, older_than_ms=INT64_MAX)


def _staged_messages(messages: "Iterable[WriterCommitMessage | None]") -> "list[StagedMessage]":
    return [cast("StagedMessage", message) for message in messages if message is not None]


def _staged(messages: "Iterable[WriterCommitMessage | None]") -> "list[StagedSegment]":
    """Return the staged segments in the messages. A message is None if a task sent none."""
    return [segment for message in _staged_messages(messages) for segment in message.staged]


def _batch_of(messages: "Iterable[WriterCommitMessage | None]") -> StreamBatch | None:
    """Return the streaming batch in the tasks' messages; None if there is no message."""
    return next((message.batch for message in _staged_messages(messages)), None)


if TYPE_CHECKING:
    from tidelog.config import TopicConfig

    Column = pa.Array[pa.Scalar[pa.DataType]]


# Number of bytes of rows that are collected for a partition before the rows are encoded. A large
# number ensures that most record batches are full.
ENCODE_BYTES: Final = 1 << 20

# Maximum number of bytes of collected rows in all partitions together. If there are more, the rows
# of all partitions are encoded.
WAITING_BYTES_MAX: Final = 64 << 20


class _PartitionRows:
    """Rows of one partition that wait to be encoded, and the partition's segment writer."""

    def __init__(self, writer: StagedWriter, config: "TopicConfig", options: "SinkOptions") -> None:
        self.writer = writer
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._codec, self._level = stored_codec(config, options.codec)
        self._batch_bytes = exact_batch_bytes(options.batch_bytes, config, self._codec)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows to the collected rows."""
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    def encode(self, now_ms: int) -> None:
        """Encode the collected rows and write them to the segment."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self.waiting_bytes = [], 0
        batches = encode_table(
            table,
            now_ms=now_ms,
            codec=self._codec,
            level=self._level,
            batch_bytes=self._batch_bytes,
        )
        self.writer.append(batches, row_facts(table, now_ms))


def row_facts(table: pa.Table, now_ms: int) -> RowFacts:
    """Return the facts that a topic's rules check: earliest create time, and whether a key is null.

    The earliest create time is in ms; INT64_MAX if no row has a create time.
    """
    keys = table.column("key") if "key" in table.schema.names else None
    has_null_key = table.num_rows > 0 if keys is None else keys.null_count > 0
    return RowFacts(min_timestamp=_earliest(table, now_ms), has_null_key=has_null_key)


def _earliest(table: pa.Table, now_ms: int) -> int:
    if "timestamp" not in table.schema.names:
        return now_ms
    column = table.column("timestamp")
    per_ms = PER_MS.get(column.type.unit, 1) if pa.types.is_timestamp(column.type) else 1
    numbers = column.cast(pa.int64()).combine_chunks()
    milliseconds = np.asarray(numbers.drop_null() if numbers.null_count else numbers) // per_ms
    timed = milliseconds[milliseconds != NO_TIMESTAMP]
    earliest = int(timed.min()) if timed.size else INT64_MAX
    return min(earliest, now_ms) if column.null_count else earliest


class TaskWriter:
    """Writer that stages the rows of one task. Not thread-safe."""

    def __init__(self, options: "SinkOptions", *, name: str, task: int) -> None:
        """Create the writer and open the directory.

        Args:
            options: Options of the write.
            name: Prefix of the names of staged files, different for each attempt of the task.
            task: Index of the task. The segments of all tasks are attached in the order of the
                indexes.
        """
        self._options = options
        self._name = name
        self._task = task
        self._env = options.env()
        self._pool = FilePool(self._env.files)
        self._log_dir = LogDir.open(options.path, env=self._env)
        self._partitions: dict[TopicPartition, _PartitionRows] = {}
        self._router = Router(
            options.topic, lambda topic: self._log_dir.topic(topic).partitions, task=task
        )

    def take(self, batch: pa.RecordBatch) -> None:
        """Stage rows.

        Raises:
            UnknownTopic, InvalidRequest: A row's topic or partition does not exist, or a row has no
                topic.
            InvalidRecord, InvalidTimestamp, OSError: The rows can't be staged; call `discard`.
        """
        for topic, numbers, rows in self._router.route(batch):
            for number, part in by_partition(numbers, rows):
                waiting = self._rows_of(TopicPartition(topic, number))
                waiting.add(part)
                if waiting.waiting_bytes >= ENCODE_BYTES:
                    waiting.encode(self._env.clock.now_ms())
        if sum(rows.waiting_bytes for rows in self._partitions.values()) > WAITING_BYTES_MAX:
            self._encode_all()

    def _rows_of(self, partition: TopicPartition) -> _PartitionRows:
        rows = self._partitions.get(partition)
        if rows is None:
            config = self._log_dir.topic(partition.topic).config
            writer = StagedWriter(
                self._pool,
                self._options.path,
                partition,
                config,
                name=self._name,
                order=(self._task,),
            )
            rows = _PartitionRows(writer, config, self._options)
            self._partitions[partition] = rows
        return rows

    def _encode_all(self) -> None:
        for rows in self._partitions.values():
            rows.encode(self._env.clock.now_ms())

    def finish(self) -> list[StagedSegment]:
        """Write the rows that are still collected, and return all staged segments.

        Raises:
            InvalidRequest, MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp,
                OSError: The format, a topic's rules or the disk refuse the rows; call `discard`.
        """
        self._encode_all()
        now_ms = self._env.clock.now_ms()
        staged = [s for rows in self._partitions.values() for s in rows.writer.finish(now_ms)]
        self._close()
        return staged

    def discard(self) -> None:
        """Remove all staged segments."""
        for rows in self._partitions.values():
            rows.writer.discard(self._env.files)
        self._close()

    def _close(self) -> None:
        self._pool.close()
        self._log_dir.close()
