"""One task of the sink: rows to partitions, partitions to staged segments. No object per row."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import InvalidRequest
from tidelog.record.encode import encode_table
from tidelog.record.partitions import choose_partitions
from tidelog.storage.handles import FilePool
from tidelog.storage.log_dir import LogDir
from tidelog.storage.staging import RowFacts, StagedSegment, StagedWriter
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Codec, TopicPartition

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.config import TopicConfig
    from tidelog.spark.sink_options import SinkOptions

    Column = pa.Array[pa.Scalar[pa.DataType]]

# Rows of a partition wait until there is this much, so that batches are full.
ENCODE_BYTES: Final = 1 << 20
# And all partitions together for no more than this.
WAITING_BYTES_MAX: Final = 64 << 20
_RECORD: Final = ("key", "value", "timestamp", "headers")


class _PartitionRows:
    """Rows of one partition that wait to be encoded, and the writer that they go to."""

    def __init__(self, writer: StagedWriter, config: "TopicConfig", options: "SinkOptions") -> None:
        self.writer = writer
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        target = config.compression_type.target_codec
        self._codec = options.codec if target is None else target
        self._level = None if self._codec is Codec.NONE else config.compression_level(self._codec)
        self._batch_bytes = min(options.batch_bytes, config.max_message_bytes)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows, in order."""
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    def encode(self, now_ms: int) -> None:
        """Write what waits."""
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
    """What the topic's rules ask of rows: their earliest create time, and keys that are null."""
    keys = table.column("key") if "key" in table.schema.names else None
    has_null_key = table.num_rows > 0 if keys is None else keys.null_count > 0
    return RowFacts(min_timestamp=_earliest(table, now_ms), has_null_key=has_null_key)


def _earliest(table: pa.Table, now_ms: int) -> int:
    if "timestamp" not in table.schema.names:
        return now_ms
    column = table.column("timestamp")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    known = column.cast(pa.int64()).drop_null()
    timed = known.filter(pc.not_equal(known, pa.scalar(NO_TIMESTAMP, pa.int64())))
    earliest = INT64_MAX if not len(timed) else int(np.asarray(timed).min())
    return min(earliest, now_ms) if column.null_count else earliest


class TaskWriter:
    """Takes the rows of one task. Not safe for two threads."""

    def __init__(self, options: "SinkOptions", *, name: str, task: int) -> None:
        """Begin.

        Args:
            options: Of the write.
            name: Beginning of the files' names, of this attempt alone.
            task: Number of the task, by which segments are put in order.
        """
        self._options = options
        self._name = name
        self._task = task
        self._env = options.env()
        self._pool = FilePool(self._env.files)
        self._log_dir = LogDir.open(options.path, env=self._env)
        self._partitions: dict[TopicPartition, _PartitionRows] = {}
        self._counts: dict[str, int] = {}
        self._turn = task

    def take(self, batch: pa.RecordBatch) -> None:
        """Stage rows.

        Raises:
            UnknownTopic, InvalidRequest: A topic or a partition that does not exist, or none.
            MessageTooLarge, InvalidRecord, OSError: The rows can't be staged; `discard`.
        """
        if not batch.num_rows:
            return
        self._turn += 1
        for topic, rows in self._by_topic(batch):
            for number, part in self._by_partition(topic, rows):
                waiting = self._rows_of(TopicPartition(topic, number))
                waiting.add(part)
                if waiting.waiting_bytes >= ENCODE_BYTES:
                    waiting.encode(self._env.clock.now_ms())
        if sum(rows.waiting_bytes for rows in self._partitions.values()) > WAITING_BYTES_MAX:
            self._encode_all()

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidRequest("a row without a topic: fill the column, or give the option topic")
        names = topics.unique()
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, name))
            yield str(name), rows

    def _by_partition(
        self, topic: str, batch: pa.RecordBatch
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order, with the columns of a record alone."""
        numbers = self._numbers(topic, batch)
        record = batch.select([name for name in _RECORD if name in batch.schema.names])
        first = int(numbers[0])
        if (numbers == first).all():
            yield first, record
            return
        order = np.argsort(numbers, kind="stable")
        ordered = record.take(order)
        found, starts = np.unique(numbers[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        for number, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            yield number, ordered.slice(start, end - start)

    def _numbers(self, topic: str, batch: pa.RecordBatch) -> "npt.NDArray[np.int32]":
        """The partition of each row: its own word, else by its key as Kafka's clients do."""
        count = self._count(topic)
        if "key" in batch.schema.names:
            # Rows without a key take turns by record batch, so that batches get full.
            keyless = self._turn % count
            numbers = choose_partitions(batch.column("key"), count, keyless=keyless)
        else:
            numbers = np.full(batch.num_rows, self._turn % count, np.int32)
        if "partition" not in batch.schema.names:
            return numbers
        given = batch.column("partition")
        is_given = np.asarray(given.is_valid())
        asked = np.asarray(given.fill_null(0)).astype(np.int64)
        wrong = is_given & ((asked < 0) | (asked >= count))
        if wrong.any():
            raise InvalidRequest(
                f"partition {asked[wrong][0]}: topic {topic} has partitions 0 to {count - 1}"
            )
        return np.where(is_given, asked.astype(np.int32), numbers)

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self._log_dir.topic(topic).partitions
        return self._counts[topic]

    def _rows_of(self, partition: TopicPartition) -> _PartitionRows:
        found = self._partitions.get(partition)
        if found is None:
            config = self._log_dir.topic(partition.topic).config
            writer = StagedWriter(
                self._pool,
                self._options.path,
                partition,
                config,
                name=self._name,
                order=(self._task,),
            )
            found = _PartitionRows(writer, config, self._options)
            self._partitions[partition] = found
        return found

    def _encode_all(self) -> None:
        for rows in self._partitions.values():
            rows.encode(self._env.clock.now_ms())

    def finish(self) -> list[StagedSegment]:
        """Write what waits; the staged segments.

        Raises:
            MessageTooLarge, InvalidRecord, InvalidTimestamp, OSError: As the topic's rules and
                the disk say; `discard`.
        """
        self._encode_all()
        now_ms = self._env.clock.now_ms()
        staged = [s for rows in self._partitions.values() for s in rows.writer.finish(now_ms)]
        self._close()
        return staged

    def discard(self) -> None:
        """Remove what was staged."""
        for rows in self._partitions.values():
            rows.writer.discard(self._env.files)
        self._close()

    def _close(self) -> None:
        self._pool.close()
        self._log_dir.close()
