"""`df.write.format("tidelog").mode("append")`: staged by the tasks, visible by one commit.

Each task writes log files beside the partitions that its rows go to (`storage.staging`), under
names that carry the job and the attempt, so attempts never meet. The driver then takes the
directory's lock and attaches the files of the attempts that Spark has chosen, all together
(`storage.attach`). A job that fails leaves nothing visible.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.spark.options import nearest
from tidelog.spark.sink_options import SinkOptions, read_sink_options
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.storage.staging import StagedSegment

# What a read gives beside what a write takes: a topic can be copied without naming columns.
_READ_ONLY: Final = frozenset(
    {
        "offset",
        "timestampType",
        "appendTimestamp",
        "createTimestamp",
        "producerId",
        "producerEpoch",
        "sequence",
        "leaderEpoch",
    }
)
_Kinds: TypeAlias = tuple[type[DataType], ...]
_COLUMNS: Final[Mapping[str, _Kinds]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "headers": (ArrayType, MapType),
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, LongType),
    "timestamp": (TimestampType, LongType),
}


def make_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "TidelogWriter":
    """The writer of a job, on the driver.

    Raises:
        InvalidRequest: Options or columns that can't be written.
        UnknownTopic: No such topic.
        DirectoryLocked: Another process has the directory open for writing.
    """
    if overwrite:
        raise InvalidRequest('a log is only appended to: use mode("append")')
    options = read_sink_options(given)
    check_columns(schema, options.topic)
    _check_directory(options)
    job_id = f"{options.env().random.getrandbits(128):032x}"
    return TidelogWriter(options, job_id)


def check_columns(schema: StructType, topic: str | None) -> None:
    """Make sure that rows of this type can be written; raises InvalidRequest."""
    names = schema.fieldNames()
    for field in schema:
        if field.name in _READ_ONLY:
            continue
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise InvalidRequest(f"column {field.name}: {nearest(field.name, _COLUMNS)}")
        if not isinstance(field.dataType, kinds):
            allowed = " or ".join(kind.typeName() for kind in kinds)
            found = field.dataType.simpleString()
            raise InvalidRequest(f"column {field.name} is {found}, {allowed} is needed")
    if "value" not in names:
        raise InvalidRequest(f"there is no column value, only {', '.join(names)}")
    if topic is None and "topic" not in names:
        raise InvalidRequest("give the option topic, or a column topic")


def _check_directory(options: SinkOptions) -> None:
    """Fail before the work, not after it."""
    from tidelog.storage import files
    from tidelog.storage.log_dir import LogDir

    env = options.env()
    with LogDir.open(options.path, env=env) as log_dir:
        if options.topic is not None:
            log_dir.topic(options.topic)
    try:
        env.files.lock(f"{options.path}/{files.LOCK_FILE}").close()
    except BlockingIOError as error:
        raise DirectoryLocked(
            f"{options.path}: another process has it open for writing; stop it first"
        ) from error


class StagedMessage(WriterCommitMessage):
    """What a task tells the driver: the segments that it has staged."""

    def __init__(self, staged: "Sequence[StagedSegment]") -> None:
        self.staged = tuple(staged)


class TidelogWriter(DataSourceArrowWriter):
    """Stages in the workers, commits on the driver."""

    def __init__(self, options: SinkOptions, job_id: str) -> None:
        self._options = options
        self._job_id = job_id

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Stage the rows of one task; removes what it wrote if it fails."""
        from tidelog.spark.staging import TaskWriter

        context = TaskContext.get()
        task, attempt = (0, 0) if context is None else _numbers(context)
        name = f"{self._job_id}-{task}-{attempt}"
        writer = TaskWriter(self._options, name=name, task=task)
        try:
            for batch in iterator:
                writer.take(batch)
            return StagedMessage(writer.finish())
        except BaseException:
            writer.discard()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible, together."""
        from tidelog.storage.attach import attach
        from tidelog.storage.log_dir import LogDir, LogDirOptions

        options = LogDirOptions(writable=True)
        with LogDir.open(self._options.path, env=self._options.env(), options=options) as log_dir:
            attach(log_dir, _staged(messages), commit_id=self._job_id)
        self._drop_staging()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Remove what the tasks have staged, of failed and repeated attempts too."""
        self._drop_staging()

    def _drop_staging(self) -> None:
        from tidelog.storage.staging import drop_staging

        fs = self._options.env().files
        drop_staging(fs, self._options.path, prefix=self._job_id, older_than_ms=INT64_MAX)


def _numbers(context: TaskContext) -> tuple[int, int]:
    """Number of the task in its job, and of the attempt in the whole session."""
    return context.partitionId(), context.taskAttemptId()


def _staged(messages: "Iterable[WriterCommitMessage | None]") -> "list[StagedSegment]":
    """The segments of all tasks; a task without rows may have nothing to say."""
    told = [cast("StagedMessage", message) for message in messages if message is not None]
    return [segment for message in told for segment in message.staged]
