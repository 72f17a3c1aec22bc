"""The sink to a directory: staged by the tasks, visible by one commit, batch and stream.

Each task writes log files beside the partitions that its rows go to (`storage.staging`), under
names that carry the commit and the attempt, so attempts never meet. The driver then attaches the
files of the attempts that Spark has chosen, all together (`sink_commit`). A write that fails leaves
nothing visible. A streaming query's commit carries its batch's number, so a batch that comes again
after a crash adds nothing.
"""

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidelog.spark import sink_commit
from tidelog.spark.sink_options import SinkOptions, log_repeated, log_skipped
from tidelog.spark.task_facts import StreamBatch, refuse_new_table, stream_batch, task_number
from tidelog.spark.workers import make_ready, sentences_first
from tidelog.storage.attach import WriterVersion
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.storage.staging import StagedSegment

_ID_BYTES: Final = 16


class StagedMessage(WriterCommitMessage):
    """Message of a task to the driver: the segments that it has staged, and of which batch."""

    def __init__(self, staged: "Sequence[StagedSegment]", batch: StreamBatch | None = None) -> None:
        self.staged = tuple(staged)
        self.batch = batch


@sentences_first
class DirectoryWriter(DataSourceArrowWriter):
    """Stages in the workers, commits on the driver."""

    def __init__(self, options: SinkOptions, commit_id: str) -> None:
        self._options = options
        self._commit_id = commit_id
        # Spares the tasks their work; whether it is so is for the commit to say.
        self._is_done = (version := self._version(())) is not None and sink_commit.is_committed(
            options, version
        )

    def _version(self, staged: "Sequence[StagedSegment]") -> WriterVersion | None:
        """The numbered write, which counts each of its topics separately."""
        txn, topic = self._options.txn, self._options.topic
        if txn is None:
            return None
        found = {segment.topic_partition.topic for segment in staged} if topic is None else {topic}
        return WriterVersion(app_writer(txn.app_id), txn.version, topics=tuple(sorted(found)))

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Stage the rows of one task; removes what it wrote if it fails."""
        refuse_new_table()
        if self._is_done:
            for _ in iterator:
                pass
            return StagedMessage(())
        return StagedMessage(stage(self._options, iterator, self._commit_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible, together; log topics that had them already."""
        staged = _staged(messages)
        version = self._version(staged)
        found = sink_commit.attach_staged(
            self._options, staged, commit_id=self._commit_id, version=version
        )
        drop_staged(self._options, self._commit_id)
        if self._options.txn is not None:
            log_skipped(self._options.txn, found.skipped, self._options.path)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Remove what the tasks have staged, of failed and repeated attempts too."""
        drop_staged(self._options, self._commit_id)


@sentences_first
class DirectoryStreamWriter(DataSourceStreamArrowWriter):
    """The same for each batch of a streaming query; the driver's calls come in other processes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(  # type: ignore[override] # as above
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Stage the rows of one task; removes what it wrote if it fails."""
        batch = stream_batch()
        return StagedMessage(stage(self._options, iterator, batch_commit_id(batch)), batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the batch visible, unless it is already."""
        batch = _batch_of(messages)
        if batch is None:
            return  # no task, no rows
        assert batch.number == batchId
        commit_id = batch_commit_id(batch)
        version = WriterVersion(f"query/{batch.query_id}", batch.number)
        found = sink_commit.attach_staged(
            self._options, _staged(messages), commit_id=commit_id, version=version
        )
        if found.was_done:
            log_repeated(batch, self._options.path)
        drop_staged(self._options, commit_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Remove what the tasks have staged, of failed and repeated attempts too."""
        batch = _batch_of(messages)
        if batch is not None:
            drop_staged(self._options, batch_commit_id(batch))


def new_commit_id(options: SinkOptions) -> str:
    """An id for a batch write, which nobody else has.

    A numbered write to one topic has the same whenever it comes again, so that what a driver that
    died has staged for it goes with its commit. Writes whose rows name their topics may run beside
    each other with one number, and each has an id of its own.
    """
    if options.txn is not None and options.topic is not None:
        return numbered_commit_id(options.txn.app_id, options.txn.version, options.topic)
    return uuid.UUID(int=options.env().random.getrandbits(128)).hex


def numbered_commit_id(app_id: str, version: int, topic: str) -> str:
    """The id of the commit of a numbered write to a topic."""
    return _same_id(f"app/{topic}", app_id, version)


def app_writer(app_id: str) -> str:
    """The name of an application as a writer of the directory."""
    return f"app/{app_id}"


def batch_commit_id(batch: StreamBatch) -> str:
    """The id of a streaming batch's commit, the same whenever the batch comes again."""
    return _same_id("query", batch.query_id, batch.number)


def _same_id(kind: str, name: str, number: int) -> str:
    text = f"{kind}\0{name}\0{number}".encode()
    return hashlib.blake2b(text, digest_size=_ID_BYTES).hexdigest()


def stage(
    options: SinkOptions, batches: "Iterator[pa.RecordBatch]", commit_id: str
) -> "list[StagedSegment]":
    """Stage the rows of one task; removes what it wrote if it fails."""
    make_ready(to_write=True)
    from tidelog.record.columns.serdes import encode_fields
    from tidelog.spark.staging import TaskWriter

    task = task_number()
    # Numbers of attempts begin anew with each driver, and one of an older driver may still write.
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
    """Remove what is still staged for a commit."""
    from tidelog.storage.staging import drop_staging

    drop_staging(options.env().files, options.path, prefix=commit_id, older_than_ms=INT64_MAX)


def _told(messages: "Iterable[WriterCommitMessage | None]") -> "list[StagedMessage]":
    return [cast("StagedMessage", message) for message in messages if message is not None]


def _staged(messages: "Iterable[WriterCommitMessage | None]") -> "list[StagedSegment]":
    """The segments of all tasks; a task without rows may have nothing to say."""
    return [segment for message in _told(messages) for segment in message.staged]


def _batch_of(messages: "Iterable[WriterCommitMessage | None]") -> StreamBatch | None:
    """The batch that the tasks were about; None where no task has told anything."""
    return next((message.batch for message in _told(messages)), None)
