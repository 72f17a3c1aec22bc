"""One partition's folder in a store: manifest, and the copying, checking and removal of objects.

- The manifest is the only object that changes (`PartitionTier`). A change reads the manifest, and
  writes it only if no other write came in between. If another write came in between, the change is
  repeated on the newer manifest. Only the holder of the directory's lock changes the manifest, so
  such a write means that a second copy of the directory exists. Changes that contradict the
  manifest are refused (`TierConflict`).
- A finished segment is verified before it is copied, then written and read back. The checksum of
  the log's bytes must equal the checksum in the zone map, and the object must have the log's bytes.
  So the object has exactly the bytes that were sound when the zone map was built. A damaged segment
  is not copied: it stays local, where `tidelog doctor` can find the damage. A segment whose last
  offsets are lost is not copied either, because its manifest row would hide the loss. The objects
  are in a folder with a new unique name. The files of indexes, append times and aborted
  transactions are not copied: new files are written, with only the trusted entries. Each object is
  read back completely and compared with length and checksum. Readers ignore the folder until a
  manifest names it, so a failed copy is an orphan.
- A check compares a tier with its manifest. The check reads every object, or only requests the
  objects' lengths.
- Garbage (segments that the manifest no longer has) is removed after a grace period for readers.
"""

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import (
    CorruptData,
    CorruptFile,
    CorruptIndex,
    InvalidRequest,
    OffsetsGone,
    TierConflict,
    UnsupportedVersion,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.storage import files, log_files
from tidelog.storage.clocks.zone_map import FileSum, ZoneMap
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.gaps import lost_at_end
from tidelog.storage.segment.index_proof import index_problem
from tidelog.storage.segment.retention import SegmentTimes
from tidelog.storage.segment.segment import read_optional
from tidelog.storage.segment.segment_notes import last_fingerprint
from tidelog.storage.text_files import read_meta_properties
from tidelog.storage.tier.manifest import (
    Manifest,
    TierNote,
    TierSegment,
    decode_manifest,
    encode_manifest,
)
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.objects.store import ObjectStore
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.segment.closed_segment import ClosedSegment


MANIFEST_KEY: Final = "manifest.json"

# Maximum number of attempts if another writer changes the manifest each time.
_TRIES: Final = 10

READ_BYTES: Final = 8 << 20

# Returns the next manifest, given the manifest in the store (None if there is none yet).
Change = Callable[[Manifest | None], Manifest]


@dataclass(frozen=True, slots=True)
class PartitionTier:
    """The folder of one partition in a store."""

    store: "ObjectStore"
    folder: str

    def key(self, name: str) -> str:
        """Return the key of an object in the folder."""
        return f"{self.folder}/{name}"

    def read(self) -> tuple[Manifest | None, str | None]:
        """Return the manifest and its etag; None and None if there is no manifest.

        Raises:
            CorruptFile, UnsupportedVersion: The manifest can't be read.
            StorageFailure: The store failed.
        """
        key = self.key(MANIFEST_KEY)
        try:
            data, info = self.store.read_with_info(key)
        except FileNotFoundError:
            return None, None
        try:
            return decode_manifest(bytes(data)), info.etag
        except CorruptFile as error:
            raise error.located(f"{self.store.url}/{key}") from error
        except UnsupportedVersion as error:
            raise UnsupportedVersion(f"{self.store.url}/{key}: {error}") from error

    def update(self, change: Change) -> Manifest:
        """Replace the manifest by the result of `change`; return the new manifest.

        Args:
            change: Returns the next manifest. Called again if another writer changes the manifest
                between the read and the write. If `change` raises an error, nothing is written.

        Raises:
            TierConflict: Another writer has changed the manifest at each attempt.
            CorruptFile, UnsupportedVersion: The current manifest can't be read.
            StorageFailure: The store failed; the new manifest may have been written anyway.
        """
        for _ in range(_TRIES):
            stored, etag = self.read()
            changed = change(stored)
            if changed == stored:
                return changed
            written = _next(changed, stored)
            key = self.key(MANIFEST_KEY)
            if self.store.put_if(key, encode_manifest(written), etag=etag) is not None:
                return written
        raise TierConflict(
            f"{self.store.url}/{self.folder}: another process changed the manifest at each"
            " attempt; a broker may be running on a copy of this directory"
        )

    def sum(self, key: str, size_limit: int) -> FileSum:
        """Read an object; return its length and CRC-32C, or length -1 if it is missing.

        Args:
            key: Name of the object below the folder.
            size_limit: Expected number of bytes; reading stops as soon as more bytes were read.
        """
        size, crc = 0, 0
        while size <= size_limit:
            try:
                data = self.store.read(self.key(key), size, READ_BYTES)
            except FileNotFoundError:
                return FileSum(-1, 0)
            crc = crc32c(data, crc)
            size += len(data)
            if len(data) < READ_BYTES:
                break
        return FileSum(size, crc)


def _next(changed: Manifest, stored: Manifest | None) -> Manifest:
    generation = 0 if stored is None else stored.generation
    return dataclasses.replace(changed, generation=generation + 1)


def folder_of(name: TopicPartition, topic_id: uuid.UUID) -> str:
    """Return the key of a partition's folder; a topic that is created again gets another folder."""
    return f"{name.topic}-{files.encode_topic_id(topic_id)}/{name.partition}"


def writer_of(log_dir: "DirectoryAccess") -> str:
    """Return a directory's id in manifests: `directory.id` of `meta.properties`, or ""."""
    properties = read_meta_properties(log_dir.env.files, log_dir.path) or {}
    return properties.get("directory.id", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """A finished local segment to copy to the tier, with data for the copy's manifest row."""

    segment: "ClosedSegment"
    times: SegmentTimes
    note: TierNote
    uid: str


def copy_segment(tier: PartitionTier, source: CopySource) -> TierSegment:
    """Copy a segment; return its row for a manifest.

    Raises:
        CorruptData: The segment is damaged, or the data read back differs from the data written.
        OffsetsGone: Offsets at the segment's end are lost (`storage.segment.gaps`).
        InvalidRequest: The segment has no zone map. The manifest row is made from the map.
        StorageFailure: Disk or store failed. An orphan may be left in the store.
    """
    segment = source.segment
    zones = segment.zones
    if zones is None:
        raise InvalidRequest(
            f"{segment.log_path}: no zone map; `tidelog doctor --repair` builds it"
        )
    log_sum = _sum_sound_log(segment, zones)
    lost = lost_at_end(segment)
    if lost is not None:
        raise OffsetsGone((lost,))
    small = dict(_small_objects(segment, zones))
    sums = {suffix: FileSum(len(data), crc32c(data)) for suffix, data in small.items()}
    row = TierSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        uid=source.uid,
        objects={**sums, log_files.LOG_SUFFIX: log_sum},
        total=zones.total,
        times=source.times._replace(now_ms=0),
        zones_know_append=segment.zones_on(ClockName.APPEND) is not None,
        last_fingerprint=last_fingerprint(segment),
        note=source.note,
    )
    for suffix, data in small.items():
        tier.store.put(tier.key(row.key(suffix)), data)
    # The log is written last, so that a folder with a log is complete.
    fs, log_path = segment.context.env.files, segment.log_path
    tier.store.put_file(tier.key(row.key(log_files.LOG_SUFFIX)), fs, log_path)
    check_objects(tier, row)
    return row


def _sum_sound_log(segment: "ClosedSegment", zones: ZoneMap) -> FileSum:
    """Return length and checksum of a log file, after comparing its bytes with the zone map.

    The zone map has the checksum of all bytes of all batches, which were verified when the map was
    built. So if the log's checksum equals the zone map's, every batch is sound, and no batch has to
    be decoded. The file is not read through a memory map, because a map may show older content.

    Raises:
        CorruptData: A batch is damaged, or other bytes have changed since the zone map was built.
        OSError: The disk failed.
    """
    end = zones.total.end_position
    file = segment.context.env.files.open(segment.log_path)
    try:
        size = file.size()
        crc = zone_map_files.sum_span(file, 0, end)
        if (size, crc) != (zones.log_size, zones.total.crc):
            raise zone_map_files.damage_of(segment, file, zones)
        return FileSum(size, zone_map_files.sum_span(file, end, size, crc))  # includes a torn tail
    finally:
        file.close()


def _sound_zones(segment: "ClosedSegment", zones: ZoneMap) -> bytes:
    """Return the content of the zone map's file.

    If the zone map's file was damaged or removed after `zones` was loaded, build the map again. The
    caller must have compared the log with `zones` before this call.

    Raises:
        CorruptData: The new zone map differs from `zones`.
        OSError: The disk failed.
    """
    context = segment.context
    fs, path = context.env.files, context.path(segment.base_offset, log_files.ZONES_SUFFIX)
    try:
        return _read_zones(fs, path, zones)
    except (CorruptData, FileNotFoundError, UnsupportedVersion) as error:
        context.report(f"{path}: {error}; built again")
    zone_map_files.write(segment)
    return _read_zones(fs, path, zones)


def _read_zones(fs: FileSystem, path: str, zones: ZoneMap) -> bytes:
    data = files.read_file(fs, path, limit=zones.log_size + files.SMALL_FILE_LIMIT_BYTES)
    read = ZoneMap.decode(data)
    read.verify()
    if read.total != zones.total:
        raise CorruptIndex("it is the zone map of other batches", path=path)
    return data


def _small_objects(segment: "ClosedSegment", zones: ZoneMap) -> Iterator[tuple[str, bytes]]:
    """Yield suffix and content of each object except the log."""
    problem = index_problem(segment, (segment.offset_index, segment.time_index), zones.siblings)
    if problem is not None:  # the mapped files were damaged after they were loaded
        segment.distrust_indexes(f"{problem}; rebuilt in memory")
    yield log_files.OFFSET_INDEX_SUFFIX, bytes(segment.offset_index.encoded)
    yield log_files.TIME_INDEX_SUFFIX, bytes(segment.time_index.encoded)
    if segment.txn_index.size_bytes:
        yield log_files.TXN_INDEX_SUFFIX, bytes(segment.txn_index.encoded)
    if segment.append_times.row_count:
        yield log_files.APPEND_TIME_SUFFIX, segment.append_times.encode()
    snapshot = read_optional(segment.context, segment.base_offset, log_files.SNAPSHOT_SUFFIX)
    if snapshot is not None:
        yield log_files.SNAPSHOT_SUFFIX, snapshot
    yield log_files.ZONES_SUFFIX, _sound_zones(segment, zones)


def check_objects(tier: PartitionTier, row: TierSegment) -> None:
    """Read every object of a row and compare it with the row's length and checksum.

    Raises:
        CorruptFile: An object is missing or differs from the row; the error names the object.
        StorageFailure: The store failed.
    """
    for suffix, expected in row.objects.items():
        problem = object_problem(tier, row, suffix, expected)
        if problem is not None:
            raise CorruptFile(problem, path=f"{tier.store.url}/{tier.key(row.key(suffix))}")


def object_problem(
    tier: PartitionTier, row: TierSegment, suffix: str, expected: FileSum
) -> str | None:
    """Return how an object differs from its row, None if it does not."""
    actual = tier.sum(row.key(suffix), expected.size_bytes)
    if actual == expected:
        return None
    if actual.size_bytes < 0:
        return "the object is missing"
    return (
        f"the object has {actual.size_bytes} bytes with checksum {actual.crc32c:08x}, but"
        f" {expected.size_bytes} with {expected.crc32c:08x} were written"
    )


class Problem(NamedTuple):
    """A difference between a tier and its manifest.

    Attributes:
        topic_partition: The partition.
        first_offset: First affected offset.
        end_offset: Offset after the last affected offset.
        where: URL of the object, or the partition's folder.
        text: Description of the difference.
        is_local: Whether local files still have these offsets.
    """

    topic_partition: TopicPartition
    first_offset: int
    end_offset: int
    where: str
    text: str
    is_local: bool


def verify(
    log_dir: "DirectoryAccess", names: Iterable[TopicPartition], *, sizes_only: bool = False
) -> Iterator[Problem]:
    """Yield the problems of these partitions' tiers. Changes nothing, and needs no lock.

    Args:
        log_dir: The directory, open for reading or writing.
        names: Partitions; partitions without a tier are skipped.
        sizes_only: Whether to compare lengths only, with one request for each object and no
            download.

    Raises:
        UnknownTopic: No such partition.
        CorruptFile, UnsupportedVersion: A manifest or a tier record can't be read.
        StorageFailure: A store failed.
    """
    for name in names:
        yield from _verify(log_dir, name, sizes_only=sizes_only)


def _verify(
    log_dir: "DirectoryAccess", name: TopicPartition, *, sizes_only: bool
) -> Iterator[Problem]:
    reader = log_dir.reader(name.topic, name.partition)
    if reader.tier is None:
        return
    record, local_start = reader.tier.record, reader.local_start_offset
    tier = PartitionTier(log_dir.tier_files.store(record.url), record.folder)
    manifest, _ = tier.read()
    where = f"{record.url}/{record.folder}"
    if manifest is None:
        first, end = record.log_start_offset, record.manifest.end_offset
        yield Problem(name, first, end, where, "the manifest is missing", is_local=False)
        return
    for row in manifest.segments:
        for suffix, expected in row.objects.items():
            key = tier.key(row.key(suffix))
            if sizes_only:
                info = tier.store.head(key)
                text = _size_problem(None if info is None else info.size, expected.size_bytes)
            else:
                text = object_problem(tier, row, suffix, expected)
            if text is not None:
                is_local = row.base_offset >= local_start
                object_url = f"{record.url}/{key}"
                yield Problem(name, row.base_offset, row.end_offset, object_url, text, is_local)


def _size_problem(size: int | None, expected: int) -> str | None:
    if size is None:
        return "the object is missing"
    return None if size == expected else f"{size} bytes, but {expected} were written"


def remove_garbage(tier: PartitionTier, manifest: Manifest, before_ms: int) -> set[str]:
    """Remove the objects of segments that left the manifest at or before `before_ms`.

    The log is removed first, because a folder with a log counts as complete.

    Returns:
        Folders that `manifest` still lists as garbage, but that need no further removal. Either the
        objects are removed, or a truncated segment still uses the folder.

    Raises:
        StorageFailure: The store failed; objects that were already removed stay removed.
    """
    live = {row.folder for row in manifest.segments}
    due = [one.segment for one in manifest.garbage if one.since_ms <= before_ms]
    removed = set()
    for row in due:
        if row.folder in live:  # a truncated segment still uses the folder, so its objects stay
            removed.add(row.folder)
            continue
        remove_all(tier, (row.key(suffix) for suffix in sorted(row.objects, key=_log_first)))
        removed.add(row.folder)
    return removed


def remove_all(tier: PartitionTier, keys: Iterable[str]) -> None:
    """Remove objects of a folder; missing objects are ignored."""
    for key in keys:
        tier.store.delete(tier.key(key))


def _log_first(suffix: str) -> bool:
    return suffix != ".log"
