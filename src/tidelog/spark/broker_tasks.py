"""Task that reads a range of offsets of a partition from brokers, in a worker (`BrokerTask`).

A task fetches batches from the leader and decodes them into columns. If the query's settings don't
allow direct fetches, the task reads records through librdkafka instead. Both ways return the same
rows, but librdkafka does not provide some of the columns. `remote.rows` has the functions for both
kinds of read.
"""

from typing import TYPE_CHECKING

from tidelog.amounts import plural
from tidelog.env import os_env
from tidelog.errors import (
    LostOffsets,
    OffsetOutOfRange,
    OffsetsGone,
    UnknownTopic,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.scan import ScanStats, Split
from tidelog.scan.split import ensure_times
from tidelog.spark.broker_settings import _LOG, consume_settings, read_settings
from tidelog.spark.options import SourceOptions
from tidelog.spark.tasks import BATCH_ROWS, freeze_garbage
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tidelog.remote.partition_fetch import FetchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTask:
    """Task that reads the offsets [start, end) of a partition.

    Attributes:
        name: The partition.
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        topic_id: Expected id of the topic as 32 hexadecimal digits, "" if unknown. If a direct
            fetch finds a topic with another id, the task's offsets count as lost, because the topic
            was deleted and recreated. Reads through librdkafka don't check the id.
        columns: Columns of a row, in order.
        options: Options of the query.
        clock: Clock of `time_range`.
        time_range: Time range in ms, [a, b); None for all records.
    """

    name: TopicPartition
    start_offset: int
    end_offset: int
    topic_id: str
    columns: tuple[str, ...]
    options: SourceOptions
    clock: ClockName = ClockName.RECORD
    time_range: tuple[int, int] | None = None

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows. If failOnDataLoss is false, log a warning for lost offsets.

        Raises:
            OffsetsGone: failOnDataLoss is true, and requested offsets are not in the log, for
                example because the topic was deleted or recreated.
            MissingTimestamps: Records have no time on the clock, and `strict` is true.
            ClusterFailure: A broker refuses a request, or does not respond in time.
            CorruptData: A batch is damaged.
            InvalidTimestamp, SerdeError: See `SparkRows.convert`.
        """
        from tidelog.spark.rows import SparkRows

        stats = ScanStats()
        rows = SparkRows(self.columns, self.options.serdes, permissive=self.options.permissive)
        start = self.start_offset
        while start < self.end_offset:
            try:
                for batch in self._batches(start, rows.scanned, stats):
                    freeze_garbage()
                    yield rows.convert(batch, self.name)
                    self._check_times(stats)
                start = self.end_offset
            except OffsetOutOfRange as error:
                start = self._skip(error)
            except UnknownTopic as error:
                self._lose(start, self.end_offset, str(error))
                start = self.end_offset
        self._check_times(stats)
        self._warn(stats)

    def _batches(
        self, start: int, columns: tuple[str, ...], stats: ScanStats
    ) -> "Iterator[pa.RecordBatch]":
        settings = read_settings(self.options)
        if settings.fetch is not None:
            return self._fetched(start, columns, settings.fetch, stats)
        from tidelog.remote.rows import consumed

        librdkafka = consume_settings(self.options, settings)
        return consumed(self.split(start), columns, librdkafka, stats)

    def _fetched(
        self,
        start: int,
        columns: tuple[str, ...],
        settings: "FetchSettings",
        stats: ScanStats,
    ) -> "Iterator[pa.RecordBatch]":
        from functools import partial

        from tidelog.remote.broker_connection import connect_socket
        from tidelog.remote.partition_fetch import FetchSeams, PartitionFetch
        from tidelog.remote.rows import fetched

        connect = partial(connect_socket, timeout_s=settings.timeout_ms / 1000)
        seams = FetchSeams(connect=connect, clock=os_env().clock)
        fetch = PartitionFetch(
            self.options.bootstrap, self.name, seams, topic_id=self.topic_id, settings=settings
        )
        try:
            yield from fetched(self.split(start), columns, fetch, stats, rows=BATCH_ROWS)
        finally:
            fetch.close()

    def split(self, start: int) -> Split:
        """Return the rest of the task's range, from `start` on, as a split of a scan."""
        return Split(
            topic=self.name.topic,
            partition=self.name.partition,
            start_offset=start,
            end_offset=self.end_offset,
            directory="",
            topic_id=self.topic_id,
            clock=self.clock,
            time_range=self.time_range,
            isolation=self.options.isolation,
        )

    # -- lost offsets, and records without a time ------------------------------------------------

    def _skip(self, error: OffsetOutOfRange) -> int:
        """Return the first offset after lost offsets; raises OffsetsGone with failOnDataLoss."""
        if error.offset < error.start:
            reason = f"deleted, the log starts at offset {error.start}"
            self._lose(error.offset, min(error.start, self.end_offset), reason)
            return error.start
        reason = f"not in the log, which ends at offset {error.end}"
        self._lose(error.offset, self.end_offset, reason)
        return self.end_offset

    def _lose(self, start: int, end: int, reason: str) -> None:
        lost = LostOffsets(self.name.topic, self.name.partition, start, end, reason)
        if self.options.fail_on_data_loss:
            raise OffsetsGone((lost,))
        _LOG.warning("not in the log any more: %s", lost)

    def _check_times(self, stats: ScanStats) -> None:
        if self.options.strict:
            ensure_times(stats, self.name, self.clock, self.start_offset, self.end_offset)

    def _warn(self, stats: ScanStats) -> None:
        if stats.without_time and self.options.has_times:
            _LOG.warning(
                "%s: %s without a %s, so in no time range",
                self.name,
                plural(stats.without_time, "record"),
                self.clock.known_time_name,
            )
