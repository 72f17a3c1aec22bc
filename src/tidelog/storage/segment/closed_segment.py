"""A finished segment, which maps or reads its files at first use."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

from tidelog.env import is_remote
from tidelog.errors import CorruptData, CorruptIndex, UnsupportedCompression
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.offset_order import is_gapless
from tidelog.storage import log_files
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.index_loading import load_indexes, rebuild_indexes
from tidelog.storage.segment.index_proof import index_problem, position_before, txn_problem
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import (
    LastBatches,
    Segment,
    SegmentContext,
    iterate_batches,
    open_log,
)
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX, NO_TIMESTAMP, ClockName

if TYPE_CHECKING:
    from tidelog.env import FileStat


class ClosedSegment(Segment):
    """A finished segment; its files are mapped or read at first use.

    Several threads may read. If two threads load the same file at the same time, the results are
    equal.

    Attributes:
        hides_records: Whether the indexes were rebuilt only up to a damaged batch, so that later
            batches are not indexed.
    """

    is_active = False
    has_known_end = True
    damaged = None
    is_whole: bool = False
    loaded_last_batches: LastBatches | None = None

    def __init__(self, context: SegmentContext, base_offset: int, end_offset: int) -> None:
        super().__init__(context, base_offset, end_offset)
        self._facts: FileStat | None = None
        self._is_mapped: bool | None = None
        self.hides_records = False
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._largest_timestamp: int | None = None
        self._zones: ZoneMap | None = None
        self._zones_loaded = False
        self._zones_stamp: FileStat | None = None
        self._txn_stamp: FileStat | None = None

    def stat(self) -> "FileStat":
        """Return the status that the log file had when it was first used."""
        if self._facts is None:
            self._facts = open_log(self, self.context.env.files.stat)
        return self._facts

    @property
    def size_bytes(self) -> int:
        """Size of the log file in bytes, including a torn tail; reads stop before the torn tail."""
        facts = self._facts
        return self.stat().size if facts is None else facts.size

    def was_replaced(self) -> bool:
        """Return whether the log file was removed or replaced since its first use."""
        if self._facts is None:
            return False
        try:
            return self.context.env.files.stat(self.log_path).identity != self._facts.identity
        except FileNotFoundError:
            return True

    def forget_stale_files(self) -> None:
        """Drop maps and indexes if the log file was removed or replaced.

        Otherwise drop append times, aborted transactions and the zone map if their files have
        changed. If there was no zone map, look for one again, because it is written some time after
        the roll.
        """
        if self.was_replaced():
            self.unload()
            return
        self._forget_changed_times()
        if self.has_txn_index and self._txn_stamp != self._stamp_of(log_files.TXN_INDEX_SUFFIX):
            self._txn_index = None
        if self._zones is None or self._zones_stamp != self._stamp_of(log_files.ZONES_SUFFIX):
            self.use_zones(None, loaded=False)
            self.context.pool.forget(self.context.path(self.base_offset, log_files.ZONES_SUFFIX))

    def go_aside(self) -> None:
        """Read the files under their `.deleted` names from now on, after the files were renamed."""
        names = (
            log_files.file_name(self.base_offset, suffix) for suffix in log_files.SEGMENT_SUFFIXES
        )
        overlay = {name: name + log_files.DELETED_SUFFIX for name in names}
        self.context = replace(self.context, overlay=overlay)

    def unload(self) -> None:
        """Drop maps and indexes, but not append times, which the segment's writer may have set."""
        self._forget_indexes()
        self._largest_timestamp = None
        self.use_zones(None, loaded=False)
        for suffix in (log_files.LOG_SUFFIX, *log_files.INDEX_SUFFIXES):
            self.context.maps.forget(self.context.path(self.base_offset, suffix))
        if not self.is_mapped:
            self.context.pool.forget(self.log_path)

    def _forget_indexes(self) -> None:
        self._offset_index = self._time_index = None

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end) of the log file: a view of the map, or read from the file."""
        if self.is_mapped:
            return open_log(self, self.context.maps.get)[start:end]
        file = open_log(self, self.context.pool.get)
        return memoryview(file.pread(min(end, self.size_bytes) - start, start))

    def whole(self) -> memoryview:
        """Return all bytes of the log file."""
        if self.is_mapped:
            return self.view(0, self.size_bytes)
        # This map is not cached, so it is freed after its last use.
        return open_log(self, self.context.env.files.map)

    @property
    def is_mapped(self) -> bool:
        """Whether the log file is mapped; a file in an object store is read in blocks."""
        if self._is_mapped is None:
            self._is_mapped = not is_remote(self.context.env.files, self.log_path)
        return self._is_mapped

    @property
    def offset_index(self) -> OffsetIndex:
        """The index file's entries, or an index rebuilt in memory if the file is unusable."""
        index = self._offset_index
        return self._load_indexes()[0] if index is None else index

    @property
    def time_index(self) -> TimeIndex:
        """The index file's entries, or an index rebuilt in memory if the file is unusable."""
        index = self._time_index
        return self._load_indexes()[1] if index is None else index

    @property
    def has_indexes(self) -> bool:
        """Whether both indexes are in memory or mapped."""
        return self._offset_index is not None and self._time_index is not None

    @property
    def has_append_times(self) -> bool:
        """Whether the segment's append times are in memory."""
        return self._append_times is not None

    @property
    def has_txn_index(self) -> bool:
        """Whether the index of aborted transactions has been read."""
        return self._txn_index is not None

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        loaded = load_indexes(
            self.context,
            self.base_offset,
            mapped=True,
            log_size=self.size_bytes,
            on_evict=self._forget_indexes,
        )
        if loaded is None or not self._is_believed(loaded):
            loaded = self.rebuild_indexes()
        elif loaded[1].entry_count == 0 and self.size_bytes > 0:
            # An empty time index means either that no record has a timestamp, or that a broker
            # other than tidelog's has lost the index in a crash.
            loaded = self._checked_for_timestamps(loaded)
        self._offset_index, self._time_index = loaded
        return loaded

    def _checked_for_timestamps(
        self, loaded: tuple[OffsetIndex, TimeIndex]
    ) -> tuple[OffsetIndex, TimeIndex]:
        try:
            batches = (batch for _, batch in self._walk(0, self.size_bytes))
            if all(batch.max_timestamp == NO_TIMESTAMP for batch in batches):
                return loaded
        except CorruptData:
            return self.rebuild_indexes()  # the rebuild finds the position of the damage
        self.context.report(f"{self.log_path}: its time index is empty; rebuilt in memory")
        return self.rebuild_indexes()

    def _is_believed(self, loaded: tuple[OffsetIndex, TimeIndex]) -> bool:
        zone_map = self.zones
        problem = index_problem(self, loaded, None if zone_map is None else zone_map.siblings)
        if problem is not None:
            self.context.report(f"{problem}; rebuilt in memory")
        return problem is None

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions whose markers are in the segment. If there are none, no file exists.

        If the file is missing or empty, the zone map shows whether entries were lost. Without a
        zone map, the batches are read to find lost entries.

        Raises:
            CorruptIndex: The index is damaged, or differs from the checksum in the zone map. A
                damaged index must not be ignored, because readers of committed records would get
                aborted records.
        """
        if self._txn_index is None:
            self._txn_stamp = self._stamp_of(log_files.TXN_INDEX_SUFFIX)
            index, zones = super().txn_index, self.zones
            if zones is None and not index.entries and self.find_aborted is not None:
                index = self.find_aborted(self, index)
            problem = None if zones is None else txn_problem(index, zones.siblings)
            if problem is not None:
                self._txn_index = None
                path = self.context.path(self.base_offset, log_files.TXN_INDEX_SUFFIX)
                raise CorruptIndex(problem).located(path)
            self._txn_index = index
        return self._txn_index

    def distrust_indexes(self, problem: str) -> None:
        """Report how an index differs from the log, and rebuild both indexes."""
        self.context.report(problem)
        self.replace_indexes(self.rebuild_indexes())

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Build both indexes from the log's batch headers, by Kafka's recovery rule.

        The indexes end at the first damaged batch; a read of this batch raises an error.
        """
        batches = iterate_batches(self, 0, self.size_bytes)
        indexes, damage = rebuild_indexes(self.context.config, self.base_offset, batches)
        if damage is not None:
            self.context.report(f"{damage}; indexed up to this batch")
            self.hides_records, self._largest_timestamp = True, None
        return indexes

    @property
    def last_batches(self) -> LastBatches:
        """End of the batches with offsets in order, found by a scan from the last index entry."""
        batches = self.loaded_last_batches
        if batches is None:
            batches = self.loaded_last_batches = self._load_last_batches()
        return batches

    def set_whole(self, size_bytes: int) -> None:
        """Store that whole batches fill the segment up to its end, which only the writer can know.

        `size_bytes` is the total size of these batches.
        """
        self.loaded_last_batches, self.is_whole = (
            LastBatches(self.end_offset, size_bytes, None),
            True,
        )

    def _load_last_batches(self) -> LastBatches:
        next_offset, position, error = self.base_offset, 0, None
        if self.size_bytes:
            position = position_before(self, self.end_offset)
        try:
            for at, batch in iterate_batches(self, position, self.size_bytes):
                next_offset, position = batch.last_offset + 1, at + batch.size_bytes
        except CorruptData as damage:
            error = damage
        return LastBatches(next_offset, position, error)

    @cached_property
    def is_dense(self) -> bool:
        """Whether there is a record for each offset from the base offset to the last batch's end.

        The first use reads the headers of all batches, and decompresses legacy wrappers. A wrapper
        that can't be decompressed counts as having all its records.
        """
        next_offset = self.base_offset
        try:
            for _, batch in iterate_batches(self, 0, self.size_bytes):
                with suppress(CorruptData, UnsupportedCompression):
                    if not is_gapless(batch, next_offset):
                        return False
                next_offset = batch.last_offset + 1
        except CorruptData:
            return False  # the rest is unknown; reads raise an error at the damage
        return True

    def _walk(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches in bytes [start, end) and their positions, without checking offsets."""
        if not self.is_mapped:
            yield from self.walk_file(start, end)
            return
        position = start
        for batch in walk(self.view(start, end)):
            yield position, batch
            position += batch.size_bytes

    def replace_indexes(self, indexes: tuple[OffsetIndex, TimeIndex]) -> None:
        """Use these verified indexes instead of the files."""
        self._offset_index, self._time_index = indexes
        self._largest_timestamp = None

    @property
    def zones(self) -> ZoneMap | None:
        """The zone map from the file beside the log; None if it is missing, damaged or stale.

        A damaged or stale map is reported.

        The map has only the append times that were known when it was built; see `zones_on`.
        """
        if not self._zones_loaded:
            self._zones_stamp = self._stamp_of(log_files.ZONES_SUFFIX)
            self.use_zones(zone_map_files.load(self))
        return self._zones

    def zones_on(self, clock: ClockName) -> ZoneMap | None:
        """Return the zone map if its times on `clock` equal the segment's times; else None."""
        return self._knowing(self.zones, clock)

    def passing_zones_on(self, clock: ClockName) -> ZoneMap | None:
        """Return the zone map if its times on `clock` equal the segment's times; else None.

        Unlike `zones_on`, this method does not keep a map that it loads, and does not map the log.
        It is meant for callers that visit very many segments.
        """
        if self._zones_loaded:
            return self.zones_on(clock)
        zone_map = zone_map_files.load(self, in_passing=True)
        if zone_map is None:
            self.use_zones(None)  # so that the next call does not report the problem again
        return self._knowing(zone_map, clock)

    def _knowing(self, zone_map: ZoneMap | None, clock: ClockName) -> ZoneMap | None:
        """Return `zone_map` if its times on `clock` equal the segment's times; else None."""
        if zone_map is None or clock is ClockName.RECORD:
            return zone_map
        return zone_map if zone_map_files.knows_times_of(zone_map, self) else None

    @property
    def loaded_zones(self) -> ZoneMap | None:
        """The zone map if it is in memory; no file is read."""
        return self._zones

    def use_zones(self, zones: ZoneMap | None, *, loaded: bool = True) -> None:
        """Use `zones`; if `loaded` is False, the next use reads the zone map from the file."""
        self._zones, self._zones_loaded = zones, loaded

    def largest_record(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of the first batch that has it."""
        return self.time_index.last_entry

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, which is the timestamp of the time index's last entry.

        If damage hides records, the largest timestamp is unknown, and the result is the largest
        possible value. With this value, a search by time reaches the damage and raises an error
        instead of skipping the damage.
        """
        largest = self._largest_timestamp
        if largest is None:
            largest, _ = self.time_index.last_entry
            if self.hides_records:
                largest = INT64_MAX
            self._largest_timestamp = largest
        return largest


def as_closed(segment: Segment) -> ClosedSegment | None:
    """Return the segment if it is finished, None if it is the last segment of the log."""
    return None if segment.is_active else cast("ClosedSegment", segment)
