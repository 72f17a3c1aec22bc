"""One task of the sink: rows to partitions, partitions to staged segments. No object per row."""

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidelog.record.columns.encoder import PER_MS
from tidelog.record.encode import encode_table
from tidelog.spark.routing import Router, by_partition
from tidelog.storage.handles import FilePool
from tidelog.storage.log_dir import LogDir
from tidelog.storage.staging import RowFacts, StagedSegment, StagedWriter
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Codec, TopicPartition

if TYPE_CHECKING:
    from tidelog.config import TopicConfig
    from tidelog.spark.sink_options import SinkOptions

    Column = pa.Array[pa.Scalar[pa.DataType]]

# Rows of a partition wait until there is this much, so that batches are full.
ENCODE_BYTES: Final = 1 << 20
# And all partitions together for no more than this.
WAITING_BYTES_MAX: Final = 64 << 20


class _PartitionRows:
    """Rows of one partition that wait to be encoded, and the writer that they go to."""

    def __init__(self, writer: StagedWriter, config: "TopicConfig", options: "SinkOptions") -> None:
        self.writer = writer
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        target = config.compression_type.target_codec
        self._codec = options.codec if target is None else target
        self._level = None if self._codec is Codec.NONE else config.compression_level(self._codec)
        limit = min(config.max_message_bytes, config.segment_size_limit)
        self._batch_bytes = min(options.batch_bytes, limit)

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
    per_ms = PER_MS.get(column.type.unit, 1) if pa.types.is_timestamp(column.type) else 1
    numbers = column.cast(pa.int64()).combine_chunks()
    known = np.asarray(numbers.drop_null() if numbers.null_count else numbers) // per_ms
    timed = known[known != NO_TIMESTAMP]
    earliest = int(timed.min()) if timed.size else INT64_MAX
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
        count_of = lambda topic: self._log_dir.topic(topic).partitions  # noqa: E731 - one question
        self._router = Router(options.topic, count_of, task=task)

    def take(self, batch: pa.RecordBatch) -> None:
        """Stage rows.

        Raises:
            UnknownTopic, InvalidRequest: A topic or a partition that does not exist, or none.
            MessageTooLarge, InvalidRecord, OSError: The rows can't be staged; `discard`.
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
