"""Builds the zone map of a finished segment in one pass, in plain Python.

The checksum of every batch is verified and every record is read, so the values in a map were right
when the map was built. This module defines the correct content of a zone map. If numba is
installed, `zone_map_kernels` builds the same map faster, with compiled functions over arrays.
Memory: one batch, the rows made so far (69 bytes for 16 KB of log) and the latencies.

Opens no file. Source: docs/format.md#zone-maps; docs/decisions/0007-zone-maps.md.
"""

from collections.abc import Iterator, Mapping

from tidelog.errors import CorruptBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.coding import crc32c
from tidelog.record.header import HEADER_SIZE, LENGTH, LENGTH_AT, LOG_OVERHEAD
from tidelog.record.record import Record
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.latency import LatencyByHour, latency_of
from tidelog.storage.clocks.zone_map import (
    LIMITS,
    Block,
    FileSum,
    Identity,
    Limits,
    Zone,
    encode_rows,
    encode_zones,
    no_zones,
    sum_zones,
)
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.slices import checked_records
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP, UINT32_MAX, Buffer, TimestampType


def build_plain(
    segment: Segment, siblings: Mapping[str, FileSum], limits: Limits = LIMITS
) -> bytes:
    """Build the zone map of a finished segment, without numba or numpy.

    Args:
        segment: The segment, which is read to its end. Append times that are unknown at this moment
            are stored as unknown.
        siblings: Checksums of the files beside the log; the map stores them.
        limits: Maximum sizes of zones and blocks.

    Raises:
        CorruptData: A batch or a record is damaged; the error has its position.
        UnsupportedCompression: The codec number is undefined.
    """
    times = segment.append_times
    builder = ZoneBuilder(segment, times, limits)
    for position, batch in iterate_batches(segment, 0, segment.size_bytes):
        builder.add(position, batch, checked_records(segment, position, batch))
    return builder.finish(segment, siblings)


class BatchFacts:
    """Reads the records of a batch one by one, and describes the batch as a zone."""

    def __init__(self, times: AppendTimes, latency: LatencyByHour) -> None:
        self._times = times
        self._latency = latency

    def describe(self, position: int, batch: Batch, records: Iterator[Record]) -> Zone:
        """Read a batch's records; return the batch as a zone of its own, without a checksum."""
        first, last = INT64_MAX, batch.last_offset
        tombstones = count = timed = stamped = 0
        low, high = append_low, append_high = INT64_MAX, INT64_MIN
        for record in records:
            count += 1
            first, last = min(first, record.offset), max(last, record.offset)
            if batch.is_control:
                continue
            tombstones += record.value is None
            if record.timestamp != NO_TIMESTAMP:
                timed += 1
                low, high = min(low, record.timestamp), max(high, record.timestamp)
            append_ms = self._append_ms(record)
            if append_ms is None:
                continue
            stamped += 1
            append_low, append_high = min(append_low, append_ms), max(append_high, append_ms)
            if record.create_timestamp is not None:
                self._latency.add(append_ms, latency_of(append_ms, record.create_timestamp))
        control = batch.is_control
        return Zone(
            position,
            batch.size_bytes,
            min(first, batch.base_offset),
            last,
            0 if control else count,
            count if control else 0,
            tombstones,
            batch.is_transactional and not control,
            timed,
            low,
            high,
            stamped,
            append_low,
            append_high,
            0,
        )

    def _append_ms(self, record: Record) -> int | None:
        """Return a record's append time in ms, None if it is unknown.

        The append time comes from the row of `self._times` that has the record's offset. If no row
        has a time, a LogAppendTime timestamp of the record is used.
        """
        row_ms = self._times.time_at(record.offset)
        if row_ms is None and record.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return None if record.timestamp == NO_TIMESTAMP else record.timestamp
        return row_ms


class ZoneBuilder:
    """Collects batches into zones, and zones into blocks."""

    def __init__(self, segment: Segment, times: AppendTimes, limits: Limits) -> None:
        self._base_offset = segment.base_offset
        self._log_path = segment.log_path
        self._limits = limits
        self._latency = LatencyByHour()
        self._facts = BatchFacts(times, self._latency)
        self._pending: list[Zone] = []  # batches of the zone in progress
        self._zones: list[Zone] = []  # zones of the block in progress
        self._blocks: list[Block] = []
        self._zone_crc = self._block_crc = self._crc = 0
        self._first = self._last = 0
        self._last_position = -1

    def add(self, position: int, batch: Batch, records: Iterator[Record]) -> None:
        """Add the next batch, and check its records; raises CorruptData."""
        zone = self._facts.describe(position, batch, records)
        if not fits_segment(zone.first_offset, zone.last_offset, self._base_offset):
            reason = f"offsets {zone[2]} to {zone[3]} don't fit into segment {self._base_offset}"
            raise CorruptBatch(reason, path=self._log_path, position=position)
        if self._pending and not self._fits(zone):
            self._end_zone()
        view = batch.view
        self._zone_crc = crc32c(view, self._zone_crc)
        self._block_crc = crc32c(view, self._block_crc)
        self._crc = crc32c(view, self._crc)
        self._pending.append(zone)
        self._last, self._last_position = sum_head(view[:HEADER_SIZE]), position
        if position == 0:
            self._first = self._last

    def _fits(self, batch_zone: Zone) -> bool:
        """Return whether the zone in progress has room for a batch."""
        size = batch_zone.end_position - self._pending[0].position
        records = sum(zone.data_records for zone in self._pending) + batch_zone.data_records
        return size <= self._limits.zone_bytes and records <= self._limits.zone_records

    def _end_zone(self) -> None:
        self._zones.append(sum_zones(self._pending, self._zone_crc))
        self._pending, self._zone_crc = [], 0
        if len(self._zones) == self._limits.block_rows:
            self._end_block()

    def _end_block(self) -> None:
        total = sum_zones(self._zones, self._block_crc)
        self._blocks.append(
            Block(total, len(self._zones), encode_rows(self._zones, self._base_offset))
        )
        self._zones, self._block_crc = [], 0

    def finish(self, segment: Segment, siblings: Mapping[str, FileSum]) -> bytes:
        """Return the content of the whole zone-map file."""
        if self._pending:
            self._end_zone()
        if self._zones:
            self._end_block()
        totals = [block.total for block in self._blocks]
        total = sum_zones(totals, self._crc) if totals else no_zones(self._base_offset)
        heads = (self._last_position, self._first, self._last)
        identity = identity_of(segment, *heads)
        return encode_zones(identity, self._blocks, total, siblings, self._latency)


def fits_segment(first_offset: int, last_offset: int, base_offset: int) -> bool:
    """Return whether all offsets, relative to the base offset, fit into the fields of a row.

    In all real segments, all offsets fit.
    """
    return base_offset <= first_offset and last_offset - base_offset <= UINT32_MAX


def sum_head(head: Buffer) -> int:
    """Return a batch's identity in a map: a checksum of its first 61 bytes.

    A legacy message may be shorter; bytes after the message are ignored. This checksum is computed
    without decompressing wrapper messages, unlike `append_time_trust.fingerprint`.
    """
    head = memoryview(head)
    length = int.from_bytes(head[LENGTH_AT : LENGTH_AT + LENGTH.size], "big", signed=True)
    return crc32c(head[: min(HEADER_SIZE, length + LOG_OVERHEAD)])


def identity_of(
    segment: Segment, last_position: int, first_fingerprint: int, last_fingerprint: int
) -> Identity:
    """Return the identity of a segment's log, which the segment's zone map stores."""
    return Identity(
        segment.append_times.topic_id,
        segment.base_offset,
        segment.end_offset,
        segment.size_bytes,
        last_position,
        first_fingerprint,
        last_fingerprint,
        *segment.append_times.digest,
    )
