"""A finished segment whose files are objects of the tier, described by its manifest row.

Sizes, largest times, counts and the zone map's total come from the row, so planning a read of many
segments sends no request to the store. Reads of the log and of the zone map request only byte
ranges, because each batch, and each part of the map, has its own checksum. Other objects are read
completely and compared with the manifest's checksums.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, TypeVar

from tidelog.env import FileStat
from tidelog.errors import CorruptData, CorruptIndex, LostOffsets, MissingFile, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import Entry, ReadBytes, Zone, ZoneMap
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_loading import index_limit_bytes
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.retention import SegmentTimes
from tidelog.storage.segment.roll import SegmentNote
from tidelog.storage.segment.segment import SegmentContext, in_segment
from tidelog.storage.segment.sorted_index import SortedIndex
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.storage.segment.zone_map_files import NOT_USED
from tidelog.storage.tier.manifest import TierSegment
from tidelog.storage.tier.tier_files import VerifiedFile, tier_path
from tidelog.types import ClockName

# Bytes of the log that a walk reads at a time.
WALK_BYTES: Final = 1 << 20

_Index = TypeVar("_Index", bound=SortedIndex)
CheckMap = Callable[[ZoneMap], None]

_OF_FOOTER: Final = frozenset(
    {"identity", "zone_count", "_trailer", "table", "sections", "rows_end"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteContext(SegmentContext):
    """Location of one segment's objects.

    Attributes:
        url: URL of the store.
        folder: Key of the partition's folder.
        row: The segment in the manifest.
    """

    url: str
    folder: str
    row: TierSegment

    def path(self, base_offset: int, suffix: str) -> str:
        """Return the path of one of the segment's objects.

        If the segment has no such object, the returned path is one that no file ever has.
        """
        assert base_offset == self.row.base_offset
        key = f"{self.folder}/{self.row.key(suffix)}"
        return tier_path(self.url, key, self.row.objects.get(suffix))


class RemoteSegment(ClosedSegment):
    """A finished segment in the tier."""

    is_tiered = True

    def __init__(self, context: RemoteContext, lost: LostOffsets | None = None) -> None:
        """Create the segment of a row; `lost` are lost offsets that begin at the row's end."""
        end = context.row.end_offset if lost is None else lost.end
        super().__init__(context, context.row.base_offset, end)
        self.row = context.row
        self.lost_at_end, self.is_whole = lost, lost is None
        self._is_clipped = context.row.clip_bytes is not None

    # -- properties --------------------------------------------------------------------------

    def stat(self) -> FileStat:
        """Return the status of the log object.

        The size is the number of valid bytes. The modification time is copied from the local file.
        """
        if self._facts is None:
            log_stat = self.context.env.files.stat(self.log_path)
            mtime_ms = self.row.times.mtime_ms
            self._facts = dataclasses.replace(log_stat, size=self.row.log_bytes, mtime_ms=mtime_ms)
        return self._facts

    @property
    def size_bytes(self) -> int:
        """Number of valid bytes of the log."""
        return self.row.log_bytes

    def was_replaced(self) -> bool:
        """Return False: objects of a tier never change."""
        return False

    def mtime_ms(self) -> int:
        """Return the modification time, in ms, of the local file that was copied to the tier."""
        return self.row.times.mtime_ms

    def unload(self) -> None:
        """Drop indexes, append times and zone map; blocks stay in the cache."""
        self._forget_indexes()
        self._append_times = None
        self.use_zones(None, loaded=False)

    def largest_record(self) -> tuple[int, int]:
        """Return the largest timestamp, and the last offset of the first batch that has it."""
        if self._is_clipped:
            return super().largest_record()
        return self.row.times.largest_timestamp, self.row.times.largest_at

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, -1 if no record has one."""
        return self.largest_record()[0]

    def noted_times(self, now_ms: int) -> SegmentTimes | None:
        """Return the times stored when the segment was copied to the tier.

        If the segment was truncated after it was copied, the times are upper bounds.
        """
        return self.row.times._replace(now_ms=now_ms)

    @property
    def knows_all_append_times(self) -> bool:
        """Whether all append times are known, according to the manifest row alone."""
        has_rows = log_files.APPEND_TIME_SUFFIX in self.row.objects
        return has_rows and self.row.times.is_append_known and not self._is_clipped

    @property
    def append_span(self) -> tuple[int, int] | None:
        """First and last append time in ms, from the row; None if the row does not prove them."""
        total = self.row.total
        is_plain = total.stamped_records == total.data_records > 0 and not total.control_records
        if not self.knows_all_append_times or not is_plain:
            return None
        return total.min_append_ms, total.max_append_ms

    @property
    def note(self) -> SegmentNote:
        """The note on why and when the segment was rolled, as stored in the segment's row."""
        row, note = self.row, self.row.note
        named = row.last_fingerprint
        return SegmentNote(row.base_offset, row.end_offset, named, *note)

    def may_reach_append_ms(self, append_ms: int) -> bool:
        """Return whether a record may have an append time of `append_ms` or later."""
        times = self.row.times
        return not times.is_append_known or times.largest_append_ms >= append_ms

    # -- bytes -------------------------------------------------------------------------------

    def view(self, start: int, end: int) -> memoryview:
        """Read bytes [start, end) of the log."""
        size = min(end, self.size_bytes) - start
        return memoryview(self.context.pool.get(self.log_path).pread(max(size, 0), start))

    def walk_file(self, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches in bytes [start, end), read piece by piece."""
        file = self.context.pool.get(self.log_path)
        end = min(end, self.size_bytes)
        return walk_file(file, self.log_path, start, end, chunk_bytes=WALK_BYTES)

    def verified_batches(self) -> Iterator[tuple[int, Batch]]:
        """Yield all batches and their positions, and compare the object with the manifest.

        Raises:
            CorruptFile: The object differs from its checksum. Some or all batches may already have
                been yielded.
            CorruptBatch: See `iterate_batches`.
        """
        path, size = self.log_path, self.size_bytes
        file = VerifiedFile(
            self.context.pool.get(path), path, self.row.objects[log_files.LOG_SUFFIX]
        )
        walked = walk_file(file, path, 0, size, chunk_bytes=WALK_BYTES)
        yield from in_segment(self, walked, 0, size)
        file.read_rest(WALK_BYTES)

    def whole(self) -> memoryview:
        """Read all valid bytes of the log."""
        return self.view(0, self.size_bytes)

    @property
    def is_mapped(self) -> bool:
        """Whether the log is mapped: False, because it is read by blocks."""
        return False

    # -- indexes -----------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The uploaded index, or an index rebuilt in memory if the uploaded one can't be used."""
        if self._offset_index is None:
            index = self._read_index(OffsetIndex, log_files.OFFSET_INDEX_SUFFIX)
            self._offset_index = index or self._load_indexes()[0]
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The uploaded index, or an index rebuilt in memory if the uploaded one can't be used."""
        if self._time_index is None:
            index = self._read_index(TimeIndex, log_files.TIME_INDEX_SUFFIX)
            self._time_index = index or self._load_indexes()[1]
        return self._time_index

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        self.replace_indexes(indexes := self.rebuild_indexes())
        return indexes

    def _read_index(self, kind: type[_Index], suffix: str) -> _Index | None:
        """Return the uploaded index; None if it is missing, corrupt, or of a truncated segment."""
        if self._is_clipped:
            return None
        path = self.context.path(self.base_offset, suffix)
        try:
            data = files.read_file(self.context.env.files, path)
        except FileNotFoundError:
            self.context.report(f"{path}: missing; rebuilt in memory")
            return None
        except CorruptData as error:
            self.context.report(f"{error}; rebuilt in memory")
            return None
        return kind(self.base_offset, data=data, size_limit=index_limit_bytes(self.context.config))

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions whose markers are in the segment.

        Raises:
            CorruptFile: The object in the store is not the object that was uploaded.
            MissingFile: The store has lost the index. Without the index, readers of committed
                records would get aborted records.
        """
        if self._txn_index is None:
            index = self.read_txn_index()
            if self._is_clipped:
                index.truncate_to(self.end_offset)
            self._txn_index = index
        return self._txn_index

    @property
    def append_times(self) -> AppendTimes:
        """Append times that were known when the segment was copied."""
        if self._append_times is None:
            times = self.read_append_times()
            if self._is_clipped:
                times.truncate_to(self.end_offset)
            self._append_times = times
        return self._append_times

    # -- zones -------------------------------------------------------------------------------

    @property
    def zones(self) -> ZoneMap | None:
        """The zone map; None if there is none. All but its total is read at first use."""
        if not self._zones_loaded:
            has_map = log_files.ZONES_SUFFIX in self.row.objects and not self._is_clipped
            self.use_zones(self._make_zones() if has_map else None)
        return self._zones

    def zones_on(self, clock: ClockName) -> ZoneMap | None:
        """Return the zone map; None if its times on that clock may differ from the segment's."""
        return self.zones if clock is ClockName.RECORD or self.row.zones_know_append else None

    def passing_zones_on(self, clock: ClockName) -> ZoneMap | None:
        """Return the zone map like `zones_on`, but don't keep a map that only this call loaded."""
        before, zones = self.loaded_zones, self.zones_on(clock)
        if before is None and zones is not None:
            self.use_zones(None, loaded=False)
        return zones

    def _make_zones(self) -> "RemoteZones":
        path = self.context.path(self.base_offset, log_files.ZONES_SUFFIX)

        def read(size: int, position: int) -> bytes:
            return self.context.pool.get(path).pread(size, position)

        def check(zones: ZoneMap) -> None:
            identity = zones.identity
            zones_log = identity.topic_id, identity.base_offset, identity.log_size
            if zones_log != (self.context.topic_id, self.base_offset, self.row.log_bytes):
                raise CorruptIndex(
                    f"zone map of the segment at offset {identity.base_offset} with"
                    f" {identity.log_size} bytes and topic id {identity.topic_id}; offset"
                    f" {self.base_offset}, {self.row.log_bytes} bytes and topic id"
                    f" {self.context.topic_id} expected"
                ).located(path)

        return RemoteZones(self.row, path, read, check, self.context.report)


class RemoteZones(ZoneMap):
    """A zone map in a tier: its total comes from the manifest row, its footer is read at first use.

    If the object is missing or damaged, this is reported, and the whole segment is treated as one
    zone with this total. In this case, reads fetch more data than necessary.
    """

    def __init__(
        self,
        row: TierSegment,
        path: str,
        read: ReadBytes,
        check: CheckMap,
        report: Callable[[str], None],
    ) -> None:
        self.total = row.total
        self.bytes_read = 0
        self._size_bytes = row.objects[log_files.ZONES_SUFFIX].size_bytes
        self._path, self._read_object, self._check, self._say = path, read, check, report

    def __getattr__(self, name: str) -> object:
        """Read the footer at its first use."""
        if name not in _OF_FOOTER:
            raise AttributeError(name)
        total = self.total
        super().__init__(
            self._read_object,
            self._size_bytes,
            report=lambda text: self._say(f"{self._path}: {text}"),
        )
        self.total = total
        self._check(self)
        return self.__dict__[name]

    @cached_property
    def is_readable(self) -> bool:
        """Whether the object exists and its footer is undamaged; if not, this is reported."""
        try:
            self.read_entries()
        except CorruptData as error:
            self._say(f"{error.located(self._path)}; {NOT_USED}")
        except MissingFile as error:
            self._say(f"{error}; {NOT_USED}")
        except UnsupportedVersion as error:
            self._say(f"{self._path}: {error}; {NOT_USED}")
        else:
            return True
        return False

    @cached_property
    def _entries(self) -> list[Entry]:
        return self.read_entries() if self.is_readable else [Entry(self.total, 0, 0, 0)]

    def _zones_of(self, entry: Entry) -> list[Zone]:
        return super()._zones_of(entry) if self.is_readable else [entry.total]
