"""Reads from brokers by tasks: ranges of offsets, and the split of large ranges into tasks.

Owns a worker's read of one range of one partition (`BrokerTask`). It has two ways with equal rows:
batches from the leader, decoded by column, or, if settings don't allow that, records through
librdkafka (both in `remote.rows`). Ranges are split by numbers of offsets, as in Spark's Kafka
connector: only the broker knows the number of records or bytes in a range.

Source: minPartitions and maxRecordsPerPartition in the guide of Spark's Kafka connector.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tidelog.env import os_env
from tidelog.errors import (
    LostOffsets,
    MissingTimestamps,
    OffsetOutOfRange,
    OffsetsGone,
    UnknownTopic,
)
from tidelog.scan import ScanStats, Split
from tidelog.spark.broker_settings import _LOG, consume_settings, read_settings
from tidelog.spark.options import SourceOptions
from tidelog.spark.tasks import BATCH_ROWS, freeze_garbage
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.remote.partition_fetch import FetchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTask:
    """Task that reads the offsets [start, end) of a partition.

    Attributes:
        name: The partition.
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        topic_id: Id of the topic, 32 hexadecimal digits, "" if unknown; another topic of the same
            name counts as data loss.
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
        """Yield the rows; lost offsets are an error or a warning.

        Raises:
            OffsetsGone: Offsets are no longer in the log, and failOnDataLoss is true.
            MissingTimestamps: Records have no time, and `strict` is true.
            ClusterFailure: Brokers refuse, or no response came in time.
            CorruptData: A batch is damaged.
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
        self._tell(stats)

    def _batches(
        self, start: int, columns: tuple[str, ...], stats: ScanStats
    ) -> "Iterator[pa.RecordBatch]":
        settings = read_settings(self.options)
        if settings.fetch is not None:
            return self._fetched(start, columns, settings.fetch, stats)
        from tidelog.remote.rows import consumed

        how = consume_settings(self.options, settings)
        return consumed(self.split(start), columns, how, stats)

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
        """Return the rest of the task, from `start` on, as a split of a scan."""
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
        """Return the offset after the lost ones; raises OffsetsGone if failOnDataLoss is true."""
        if error.offset < error.start:
            reason = f"deleted, the log starts at {error.start}"
            self._lose(error.offset, min(error.start, self.end_offset), reason)
            return error.start
        reason = f"not in the log, which ends at {error.end}"
        self._lose(error.offset, self.end_offset, reason)
        return self.end_offset

    def _lose(self, start: int, end: int, reason: str) -> None:
        lost = LostOffsets(self.name.topic, self.name.partition, start, end, reason)
        if self.options.fail_on_data_loss:
            raise OffsetsGone((lost,))
        _LOG.warning("not in the log any more: %s", lost)

    def _check_times(self, stats: ScanStats) -> None:
        if self.options.strict and stats.without_time:
            raise MissingTimestamps(
                f"{self.name}: {stats.without_time} records without a time on the {self.clock}"
                f" clock in offsets {self.start_offset} to {self.end_offset}, and strict was"
                f" asked for"
            )

    def _tell(self, stats: ScanStats) -> None:
        if stats.without_time and self.options.has_times:
            _LOG.warning(
                "%s: %d records without a time on the %s clock lie in no range",
                self.name,
                stats.without_time,
                self.clock,
            )


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    name: TopicPartition
    start: int
    end: int

    @property
    def span(self) -> int:
        """Number of offsets, which may be more than the number of records."""
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_partitions: int = 1, max_records: int | None = None
) -> list[OffsetRange]:
    """Split the ranges into parts, one per task, in order; empty ranges are left out.

    Args:
        ranges: One range for each partition.
        min_partitions: Approximate minimum number of parts, if there are as many offsets; larger
            ranges are split in proportion to their spans.
        max_records: Maximum number of offsets in a part; None for no maximum.
    """
    parts = [one for one in ranges if one.span > 0]
    if max_records is not None:
        parts = [part for one in parts for part in _cut(one, -(-one.span // max_records))]
    if min_partitions <= len(parts):
        return parts
    counts = _shares(parts, min_partitions)
    return [part for one, count in zip(parts, counts, strict=True) for part in _cut(one, count)]


def _shares(ranges: list[OffsetRange], count: int) -> list[int]:
    """Return the number of parts of each range, about `count` in all.

    Ranges too small for two parts stay whole; the others share the remaining parts.
    """
    total = sum(one.span for one in ranges)
    is_whole = [_share(one.span, total, count) == 1 for one in ranges]
    rest = sum(one.span for one, whole in zip(ranges, is_whole, strict=True) if not whole)
    remaining = max(count - sum(is_whole), 1)
    return [
        1 if whole else _share(one.span, rest, remaining)
        for one, whole in zip(ranges, is_whole, strict=True)
    ]


def _share(span: int, total: int, count: int) -> int:
    """Return `span / total` of `count`, halves rounded up, at least 1."""
    return max((2 * span * count + total) // (2 * total), 1)


def _cut(one: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """Split the range into `count` parts; the first ones may be smaller by one."""
    start = one.start
    for number in range(count):
        end = start + (one.end - start) // (count - number)
        if start < end:
            yield OffsetRange(one.name, start, end)
        start = end
