"""Builds zone maps with kernels; the result is the same as that of `zone_map_builder`.

Uncompressed bodies are read in place. Compressed bodies are decompressed into one buffer. Messages
of magic 0 and 1 are processed one by one in plain Python. Memory: a few MB, and 120 bytes for each
zone. If the build finds damage, it returns None; `zone_map_builder` then reports the damage.

Imports numpy and numba. Opens no file.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tidelog.errors import CorruptData, UnsupportedCompression
from tidelog.record.batch_walk import view_batch
from tidelog.record.buffers import BodyBuffer
from tidelog.record.coding import crc32c, crc32c_spans
from tidelog.record.columns.batch_table import (
    GROUP_BYTES,
    SCAN_BATCHES,
    SCRATCH_BYTES,
    lz4_frames,
    open_body,
)
from tidelog.record.header import ATTRIBUTES_AT, CODEC_MASK, HEADER_SIZE, MAGIC_2
from tidelog.record.kernels import layout
from tidelog.record.kernels import zones as kernels
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.checksums import sum_tables
from tidelog.record.kernels.times import flag_overwritten_create_times
from tidelog.record.offset_order import segment_limit
from tidelog.storage.clocks.append_time_columns import offsets_and_times
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.latency import LatencyByHour, LatencyHistogram
from tidelog.storage.clocks.zone_map import (
    LIMITS,
    ROW_FIELDS,
    ROW_SIZE,
    Block,
    FileSum,
    Limits,
    Zone,
    encode_zones,
    no_zones,
)
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import checked_records
from tidelog.storage.segment.zone_map_builder import BatchFacts, fits_segment, identity_of, sum_head
from tidelog.types import NO_TIMESTAMP

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Slots = npt.NDArray[np.intp]
_NUMPY_CODES: Final = {"I": ">u4", "q": ">i8", "?": "?"}
ROW_TYPE: Final = np.dtype([(name, _NUMPY_CODES[code]) for name, _, code in ROW_FIELDS])

assert ROW_TYPE.itemsize == ROW_SIZE


def build_with_kernels(
    segment: Segment,
    siblings: Mapping[str, FileSum],
    limits: Limits = LIMITS,
    *,
    check_crc: bool = True,
) -> bytes | None:
    """Build the zone map of a finished segment as `build_plain` does; return None on damage.

    Args:
        segment: The segment, which is read to its end.
        siblings: Checksums of the files beside the log; the map stores them.
        limits: Maximum sizes of zones and blocks.
        check_crc: Whether to verify the batches' checksums. A caller that has just written or
            checked every batch passes False. The zones' checksums are computed from the checksums
            in the batches, so damage that happens later is still detected.
    """
    builder = KernelBuilder(segment, limits, check_crc=check_crc)
    try:
        is_whole = builder.run()
    except (CorruptData, UnsupportedCompression):
        return None
    return builder.encode(siblings) if is_whole else None


@cache
def _sum_tables() -> kernels.SumTables:
    return kernels.SumTables(*sum_tables())


class KernelBuilder:
    """Builder of one segment's zone map, in one pass."""

    def __init__(self, segment: Segment, limits: Limits, *, check_crc: bool) -> None:
        self._segment = segment
        self._check_crc = check_crc
        self._block_rows = limits.block_rows
        self._log: Bytes = np.frombuffer(segment.whole(), np.uint8)
        self._runs = runs_of(segment.append_times)
        self._zones: Longs = np.empty((256, kernels.ZONE_FIELDS), np.int64)
        self._count = 0
        self._limits: Longs = np.array(limits[:2], np.int64)
        self._latency = LatencyByHour()
        self._buckets: Longs = np.zeros((kernels.SPANS, kernels.BUCKETS), np.int64)
        self._facts: Longs = np.zeros((kernels.SPANS, kernels.SPAN_FIELDS), np.int64)
        self._step_ms, self._used_spans = self._latency.step_ms, 0
        self._last_position = -1

    def run(self) -> bool:
        """Read all batches; return False on damage."""
        at, end, status = 0, self._log.size, layout.FULL
        base, next_offset = self._segment.base_offset, self._segment.base_offset
        limit = segment_limit(base, self._segment.end_offset)
        table: Longs = np.empty((SCAN_BATCHES, layout.BATCH_FIELDS), np.int64)
        while status == layout.FULL:
            count, at, status = scan_batches(self._log, at, end, table, next_offset, limit)
            for group in _groups(table[:count]):
                if not (self._sums_fit(group) and self._take(group)):
                    return False
            if count:
                next_offset = int(table[count - 1, layout.LAST_OFFSET]) + 1
                self._last_position = int(table[count - 1, layout.POSITION])
        self._count_latencies()
        is_torn_tail = status == layout.PARTIAL and next_offset >= self._segment.end_offset
        return status == layout.DONE or is_torn_tail

    def _sums_fit(self, group: Longs) -> bool:
        """Return whether the checksums of all magic-2 batches are right.

        Messages of magic 0 and 1 are checked later.
        """
        if not self._check_crc:
            return True
        rows = group[group[:, layout.MAGIC] == MAGIC_2]
        starts = (rows[:, layout.POSITION] + ATTRIBUTES_AT).tolist()
        ends = (rows[:, layout.POSITION] + rows[:, layout.SIZE]).tolist()
        checksums: list[int] = rows[:, layout.CRC].tolist()
        return crc32c_spans(self._log.data, starts, ends) == checksums

    def _take(self, group: Longs) -> bool:
        """Add a group's batches to the zones; return False if a batch is damaged or doesn't fit."""
        rows: Longs = np.empty((len(group), kernels.ZONE_FIELDS), np.int64)
        is_2 = group[:, layout.MAGIC] == MAGIC_2
        is_plain = is_2 & (group[:, layout.ATTRIBUTES] & CODEC_MASK == 0)
        if not self._describe(self._log, group, rows, np.flatnonzero(is_plain)):
            return False
        for data, table, slots in self._opened(group, np.flatnonzero(is_2 & ~is_plain)):
            if not self._describe(data, table, rows, slots):
                return False
        sums = _sum_tables()
        self._sum(group, rows, is_2)
        for slot in np.flatnonzero(~is_2):
            rows[slot] = self._describe_message(int(group[slot, layout.POSITION]))
        ends = int(rows[:, kernels.ZONE_FIRST].min()), int(rows[:, kernels.ZONE_LAST].max())
        if not fits_segment(*ends, self._segment.base_offset):
            return False
        self._make_room(len(rows))
        self._count = kernels.fold_zones(rows, self._zones, self._count, self._limits, sums.powers)
        return True

    def _describe(
        self, data: Bytes, table: Longs, rows: Longs, slots: npt.NDArray[np.intp]
    ) -> bool:
        """Fill in the rows of uncompressed magic-2 batches; return False on damage."""
        if not len(slots):
            return True
        is_all = len(slots) == len(rows)
        batches = table if is_all else table[slots]
        out = rows if is_all else np.empty((len(slots), kernels.ZONE_FIELDS), np.int64)
        flag_overwritten_create_times(data, batches)
        progress: Longs = np.zeros(kernels.PROGRESS_FIELDS, np.int64)
        first = batches[0, layout.BASE_OFFSET]
        progress[kernels.RUN] = np.searchsorted(self._runs.starts, first, side="right") - 1
        status = layout.FULL
        while status == layout.FULL:
            progress[kernels.USED_SPANS] = self._used_spans
            spans = kernels.Spans(self._step_ms, self._facts, self._buckets)
            status = kernels.describe_batches(data, batches, self._runs, spans, out, progress)
            self._used_spans = int(progress[kernels.USED_SPANS])
            if status == layout.FULL:
                self._count_latencies()
        if not is_all:
            rows[slots] = out
        return status == layout.DONE

    def _count_latencies(self) -> None:
        """Add the kernel's latency counts to the totals, and clear the kernel's counts."""
        used = self._used_spans
        for facts, buckets in zip(self._facts[:used].tolist(), self._buckets[:used], strict=True):
            histogram = LatencyHistogram()
            for bucket in np.flatnonzero(buckets).tolist():
                histogram.add_bucket(bucket - kernels.BUCKET_MAX, int(buckets[bucket]))
            histogram.min_ms, histogram.max_ms = facts[kernels.SPAN_MIN], facts[kernels.SPAN_MAX]
            self._latency.at(facts[kernels.SPAN] * self._step_ms).merge(histogram)
            buckets[:] = 0
        self._step_ms, self._used_spans = self._latency.step_ms, 0

    def _opened(self, group: Longs, slots: Slots) -> Iterator[tuple[Bytes, Longs, Slots]]:
        """Decompress batches in groups; yield the buffer, updated table and slots of each group.

        The bodies of a group are in one buffer. The table has each body's position in the buffer.
        """
        if not len(slots):
            return
        table, start, arena = group.copy(), 0, BodyBuffer(2 * SCRATCH_BYTES)
        while start < len(slots):
            end, data = self._open_some(table, slots[start:], arena)
            yield data, table, slots[start : start + end]
            start += end

    def _open_some(self, table: Longs, slots: Slots, arena: BodyBuffer) -> tuple[int, Bytes]:
        """Decompress some batches, at least one; return how many, and their bodies."""
        ends: list[int] = []
        arena.clear()
        view, rows = self._log.data, table[slots]
        frames = zip(rows[:, layout.POSITION].tolist(), lz4_frames(rows), strict=True)
        for position, frame in frames:
            if arena.used >= SCRATCH_BYTES:
                break
            body = open_body(view, position, frame, arena)
            if not arena.put(body):
                if ends:
                    break
                table[slots[0], layout.BODY_START], table[slots[0], layout.BODY_END] = 0, len(body)
                return 1, np.frombuffer(body, np.uint8)
            ends.append(arena.used)
        opened = slots[: len(ends)]
        table[opened, layout.BODY_START], table[opened, layout.BODY_END] = [0, *ends[:-1]], ends
        return len(ends), np.frombuffer(arena.content, np.uint8)

    def _sum(self, group: Longs, rows: Longs, is_2: npt.NDArray[np.bool_]) -> None:
        if is_2.all():
            kernels.sum_batches(self._log, group, rows, _sum_tables())
        elif is_2.any():
            some = rows[is_2]
            kernels.sum_batches(self._log, group[is_2], some, _sum_tables())
            rows[is_2] = some

    def _describe_message(self, position: int) -> list[int]:
        """Return the row of a message of magic 0 or 1, which can be a wrapper."""
        batch = view_batch(self._log.data, position)
        facts = BatchFacts(self._segment.append_times, self._latency)
        records = checked_records(self._segment, position, batch)
        zone = facts.describe(position, batch, records)
        return [*zone[:-1], crc32c(batch.view)]

    def _make_room(self, rows: int) -> None:
        if self._count + rows > len(self._zones):
            size = max(2 * len(self._zones), self._count + rows)
            zones: Longs = np.empty((size, kernels.ZONE_FIELDS), np.int64)
            zones[: self._count] = self._zones[: self._count]
            self._zones = zones

    def encode(self, siblings: Mapping[str, FileSum]) -> bytes:
        """Return the content of the whole zone-map file."""
        segment, zones = self._segment, self._zones[: self._count]
        step = self._block_rows
        totals = _sums(zones, step)
        rows = _encode_rows(zones, segment.base_offset)
        blocks = [
            Block(total, min(step, len(zones) - at), rows[at * ROW_SIZE : (at + step) * ROW_SIZE])
            for at, total in zip(range(0, len(zones), step), totals, strict=True)
        ]
        total = _sums(zones, len(zones))[0] if len(zones) else no_zones(segment.base_offset)
        first, last = (self._sum_head(position) for position in (0, self._last_position))
        identity = identity_of(segment, self._last_position, first, last)
        return encode_zones(identity, blocks, total, siblings, self._latency)

    def _sum_head(self, position: int) -> int:
        if self._last_position < 0:
            return 0
        batch = view_batch(self._log.data, position)
        return sum_head(batch.view[:HEADER_SIZE])


def runs_of(times: AppendTimes) -> kernels.Runs:
    """Return append times as arrays for the kernel; times before the first row are unknown."""
    offsets, append_ms = offsets_and_times(times)
    return kernels.Runs(
        np.concatenate(([np.iinfo(np.int64).min], offsets)),
        np.concatenate(([NO_TIMESTAMP], append_ms)),
    )


def _groups(table: Longs) -> Iterator[Longs]:
    """Split a table into groups of about `GROUP_BYTES`; a larger batch gets its own group."""
    ends = np.cumsum(table[:, layout.SIZE])
    start = size = 0
    while start < len(table):
        end = max(int(np.searchsorted(ends, size + GROUP_BYTES, side="right")), start + 1)
        yield table[start:end]
        start, size = end, int(ends[end - 1])


def _sums(zones: Longs, width: int) -> list[Zone]:
    """Return the totals of groups of `width` consecutive zones; the last group may be smaller."""
    out: Longs = np.empty((-(-len(zones) // width), kernels.ZONE_FIELDS), np.int64)
    kernels.sum_zones(zones, width, out, _sum_tables().powers)
    at = kernels.ZONE_TRANSACTIONAL
    return [Zone._make([*row[:at], bool(row[at]), *row[at + 1 :]]) for row in out.tolist()]


def _encode_rows(zones: Longs, base_offset: int) -> bytes:
    """Return the rows of all zones as the file has them."""
    rows = np.empty(len(zones), ROW_TYPE)
    for number, (name, _, _) in enumerate(ROW_FIELDS, start=1):
        column = zones[:, number]
        is_offset = number in (kernels.ZONE_FIRST, kernels.ZONE_LAST)
        rows[name] = column - base_offset if is_offset else column
    return rows.tobytes()
