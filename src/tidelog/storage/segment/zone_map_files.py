"""Loads, builds, writes and caches files of zone maps, and compares a map with its log.

A map is used only for the log that it was built from: the topic id, the base offset, the log's
size, and the first bytes of the log's first and last batch must be those stored in the map. File
times are not compared. A damaged or stale map is reported and not used. Without a map, reads are
slower, but return the same results.

Source: docs/decisions/0007-zone-maps.md.
"""

import errno
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tidelog.env import File, FileSystem
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    CorruptIndex,
    UnsupportedCompression,
    UnsupportedVersion,
)
from tidelog.record.coding import crc32c
from tidelog.record.header import HEADER_SIZE
from tidelog.storage import files, log_files
from tidelog.storage.clocks.zone_map import FileSum, Zone, ZoneMap, with_siblings
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment.lost_times import times_loss
from tidelog.storage.segment.segment import Segment, SegmentContext, in_segment, read_optional
from tidelog.storage.segment.zone_map_builder import build_plain, sum_head
from tidelog.types import Buffer, ClockName

NOT_USED: Final = "not used"
_CHUNK_BYTES: Final = 1 << 20

# Log sizes in bytes up to which plain Python code is faster than kernels. `UNLOADED_BYTES` applies
# if the kernels have to be loaded first, `LOADED_BYTES` if they are already loaded.
UNLOADED_BYTES: Final = 256 << 10

LOADED_BYTES: Final = 16 << 10

# Maximum size in bytes of a segment whose map is written at the roll, while an append may wait.
# Writing the map of such a small segment takes a few ms with or without kernels.
MAPPED_AT_ONCE_BYTES: Final = 64 << 10


def load(segment: Segment, *, in_passing: bool = False) -> ZoneMap | None:
    """Load the zone map beside a finished segment; None if it is missing, damaged or stale.

    A damaged or stale map is reported.

    Args:
        segment: The segment.
        in_passing: Whether to compare the zone map with the log without mapping the log; see
            `misfit`.
    """
    context, path = (
        segment.context,
        segment.context.path(segment.base_offset, log_files.ZONES_SUFFIX),
    )
    try:
        return open_map(segment, path, in_passing=in_passing)
    except FileNotFoundError:
        return None
    except CorruptData as error:
        context.report(f"{error.located(path)}; {NOT_USED}")
    except UnsupportedVersion as error:
        context.report(f"{path}: {error}; {NOT_USED}")
    return None


def load_or_build(segment: Segment, cache: "ZoneCache | None" = None) -> ZoneMap | None:
    """Return the map beside a finished segment or in the cache; if there is none, build a map.

    Nothing is written to the log's directory. A new map is added to the cache. If `cache` is None,
    the new map is kept in memory only.

    Returns:
        The map. None if the log is damaged. The damage is reported; reads of the log raise an error
            at the damage.
    """
    zone_map = segment.zones
    if zone_map is not None and zone_map.is_readable and knows_times_of(zone_map, segment):
        return zone_map
    if cache is not None:
        zone_map = cache.load(segment)
        if zone_map is not None:
            return zone_map
    try:
        data = build(segment)
    except (CorruptData, UnsupportedCompression) as error:
        segment.context.report(f"{segment.log_path}: no zone map can be built: {error}")
        return None
    if cache is not None:
        cache.store(segment, data)
    return ZoneMap.decode(data)


def knows_times_of(zone_map: ZoneMap, segment: Segment) -> bool:
    """Return whether a map was built from the segment's current append times."""
    return (
        zone_map.identity.append_rows,
        zone_map.identity.append_crc,
    ) == segment.append_times.digest


def open_map(segment: Segment, path: str, *, in_passing: bool = False) -> ZoneMap:
    """Read a map from a file and compare it with the segment's log.

    `in_passing` is the argument of `misfit`.

    Raises:
        CorruptIndex: The map is damaged or unreadable, or belongs to another log.
        UnsupportedVersion: The map's version is not the version that this release reads.
        FileNotFoundError: There is no such file.
    """
    context = segment.context

    def read(size: int, position: int) -> bytes:
        with _damage_for_failures():
            return context.pool.get(path).pread(size, position)

    if not context.env.files.exists(path):
        raise FileNotFoundError(errno.ENOENT, "no zone map", path)
    with _damage_for_failures():
        # Use the size of the open file, because the name may now refer to a newer file.
        size = context.pool.get(path).size()
    zone_map = ZoneMap(read, size, report=lambda text: context.report(f"{path}: {text}"))
    problem = misfit(segment, zone_map, in_passing=in_passing)
    if problem is not None:
        raise CorruptIndex(problem)
    return zone_map


@contextmanager
def _damage_for_failures() -> Iterator[None]:
    """Raise CorruptIndex instead of OSError, because a map can be rebuilt from the log."""
    try:
        yield
    except OSError as error:
        raise CorruptIndex(f"it can't be read: {error.strerror or error}") from error


def misfit(segment: Segment, zone_map: ZoneMap, *, in_passing: bool = False) -> str | None:
    """Return why a map does not belong to a segment's current log; None if the map belongs to it.

    Args:
        segment: The segment.
        zone_map: The map.
        in_passing: Whether to read the first bytes of the first and last batch with a new file
            handle, not from a memory map, which takes ten times as long to create. A caller that
            reads no other part of the log passes True.
    """
    identity = zone_map.identity
    if identity.topic_id != segment.context.topic_id:
        return f"the map belongs to topic id {identity.topic_id}, not {segment.context.topic_id}"
    if identity.base_offset != segment.base_offset:
        return f"the map belongs to base offset {identity.base_offset}, not {segment.base_offset}"
    if identity.log_size != segment.size_bytes:
        return (
            f"the map was built for a log of {identity.log_size} bytes, but the log has"
            f" {segment.size_bytes} bytes"
        )
    if identity.last_position < 0:
        return None
    positions = (0, identity.last_position)
    heads = _read_heads(segment, positions, in_passing=in_passing and segment.is_mapped)
    expected = (identity.first_fingerprint, identity.last_fingerprint)
    for position, head, fingerprint in zip(positions, heads, expected, strict=True):
        if sum_head(head) != fingerprint:
            return f"the log has another batch at position {position}"
    return None


def _read_heads(segment: Segment, positions: Iterable[int], *, in_passing: bool) -> list[Buffer]:
    """Read the first bytes of the batches at these positions."""
    if not in_passing:
        return [segment.view(position, position + HEADER_SIZE) for position in positions]
    # Use a new handle, because an open handle may belong to a file that had this name earlier.
    file = segment.context.env.files.open(segment.log_path)
    try:
        return [file.pread(HEADER_SIZE, position) for position in positions]
    finally:
        file.close()


def build(
    segment: Segment,
    *,
    by_kernels: bool | None = None,
    check_crc: bool = True,
    old: ZoneMap | None = None,
    renewed: Container[str] = (),
) -> bytes:
    """Build the zone map of a finished segment; return the content of its file.

    Args:
        segment: The segment, which is read from end to end.
        by_kernels: Whether to use kernels. Kernels take 0.5 s to load (several seconds if they are
            not compiled yet) and about 0.3 s for 1 GB. Plain Python code takes 14 us for each
            record. If None, kernels are used if they are installed and the segment is large.
        check_crc: Whether kernels verify checksums. A caller that has just written the batches
            passes False.
        old: Result of `unchanged_map`. The new map keeps the old checksums of files that were
            damaged or lost since, so that readers, checks and rewrites still detect this.
        renewed: Suffixes of files that were rebuilt since; the new map has their new checksums.

    Raises:
        CorruptData: The log is damaged; the error has its position.
        UnsupportedCompression: The codec number is undefined.
    """
    siblings = sum_siblings(segment.context, segment.base_offset)
    if old is not None:
        siblings |= _kept_sums(segment, old, siblings, renewed)
    if by_kernels is None:
        # Both ways of building give the same map, so the choice affects only the duration.
        is_loaded = "numba" in sys.modules
        by_kernels = segment.size_bytes > (LOADED_BYTES if is_loaded else UNLOADED_BYTES)
    built = _build_by_kernels(segment, siblings, check_crc) if by_kernels else None
    return build_plain(segment, siblings) if built is None else built


def _kept_sums(
    segment: Segment, old: ZoneMap, siblings: Mapping[str, FileSum], renewed: Container[str]
) -> dict[str, FileSum]:
    """Return the old checksums of files that were damaged or lost since the old map was built."""
    kept = {}
    for suffix, expected in old.siblings.items():
        if suffix in renewed or siblings.get(suffix) == expected:
            continue
        if suffix == log_files.APPEND_TIME_SUFFIX and not _has_lost_times(segment, old):
            continue  # the file was restored, or rows that nothing proves were removed
        kept[suffix] = expected
    return kept


def _has_lost_times(segment: Segment, old: ZoneMap) -> bool:
    context, base = segment.context, segment.base_offset
    limit = max(segment.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
    try:
        data = read_optional(context, base, log_files.APPEND_TIME_SUFFIX, limit=limit)
    except CorruptData:
        return True
    return times_loss(data, base, context.topic_id, old) is not None


def unchanged_map(segment: Segment) -> ZoneMap | None:
    """Return the current map of a segment whose map will be replaced, if it matches the log.

    Only the old map has the checksums of the bytes that the batches' checksums don't cover. If a
    map has several zones and none of them matches the log, the log was rewritten, and the old map
    is ignored.

    Returns:
        The map beside the log, or the map in memory if the file is missing or damaged. None if
        neither has the log's offsets and size, or if the log was rewritten.

    Raises:
        CorruptData: Bytes of the log have changed since the old map was built.
        OSError: The disk failed.
    """
    old = _old_map(segment)
    if old is None:
        return None
    file = segment.context.env.files.open(segment.log_path)
    try:
        changed = sum(1 for _ in _changed_zones(file, old))
        if changed == 1 or 0 < changed < old.zone_count:
            raise damage_of(segment, file, old)
    finally:
        file.close()
    return None if changed else old


def _old_map(segment: Segment) -> ZoneMap | None:
    """Return the map beside the log, or in memory, if it has the segment's offsets and size.

    The batches and times in the map may differ from the log's.
    """
    context, base = segment.context, segment.base_offset
    limit = segment.size_bytes + files.SMALL_FILE_LIMIT_BYTES
    zone_map = segment.loaded_zones
    try:
        data = read_optional(context, base, log_files.ZONES_SUFFIX, limit=limit)
        if data is not None:
            read = ZoneMap.decode(data)
            read.verify()
            zone_map = read
    except (CorruptData, UnsupportedVersion):
        pass  # damaged; the map in memory was sound when it was read
    if zone_map is None:
        return None
    found = zone_map.topic_id, zone_map.base_offset, zone_map.end_offset, zone_map.log_size
    expected = context.topic_id, base, segment.end_offset, segment.size_bytes
    return zone_map if found == expected else None


def _changed_zones(file: File, zones: ZoneMap) -> Iterator[Zone]:
    """Yield the zones whose bytes have changed since the map was built."""
    for zone in zones.zones():
        if sum_span(file, zone.position, zone.end_position) != zone.crc:
            yield zone


def damage_of(segment: Segment, file: File, zones: ZoneMap) -> CorruptData:
    """Return the error for a log that differs from its zone map: the first damaged batch.

    The checksum of a magic-2 batch does not cover its offset, length, leader epoch and magic. If no
    batch is damaged, the error names the first changed zone.
    """
    path, size = segment.log_path, file.size()
    try:
        walked = walk_file(file, path, 0, size)
        for position, batch in in_segment(segment, walked, 0, size):
            try:
                batch.ensure_valid()
            except CorruptData as error:
                return error.located(path, position - batch.at)
    except CorruptData as error:
        return error
    zone = next(_changed_zones(file, zones), zones.total)
    reason = (
        f"bytes {zone.position} to {zone.end_position - 1} of {size} were changed after the segment"
        " was finished, where the batches' checksums don't cover them"
    )
    return CorruptBatch(reason, path=path, position=zone.position, offset=zone.first_offset)


def has_kernels() -> bool:
    """Return whether numpy and numba are installed, without loading them."""
    from importlib.util import find_spec  # imported here, because a broker's start does not need it

    return all(find_spec(name) is not None for name in ("numpy", "numba"))


def _build_by_kernels(
    segment: Segment, siblings: Mapping[str, FileSum], check_crc: bool
) -> bytes | None:
    """Build with kernels; return None if they are not installed or find damage.

    If None is returned, the caller uses plain Python code, which reports the damage.
    """
    try:
        from tidelog.storage.segment.zone_map_kernels import build_with_kernels
    except ImportError:
        return None
    return build_with_kernels(segment, siblings, check_crc=check_crc)


def write(segment: Segment, *, by_kernels: bool | None = None, check_crc: bool = True) -> bool:
    """Build a map and write it beside the log.

    Return False if the log is damaged, or differs from an old map beside it; this is reported, and
    the old map stays.

    The file is not synced. If a crash leaves the file incomplete, readers detect this, and the map
    is built again. The arguments are those of `build`.

    Raises:
        OSError: The disk failed. A previous file, if there is one, still exists.
    """
    context = segment.context
    try:
        old = unchanged_map(segment)
        _restore_txn_index(segment)
        data = build(segment, by_kernels=by_kernels, check_crc=check_crc, old=old)
    except (CorruptData, UnsupportedCompression) as error:
        context.report(f"{segment.log_path}: no zone map can be built: {error}")
        return False
    path = context.path(segment.base_offset, log_files.ZONES_SUFFIX)
    files.write_atomically(context.env.files, path, data, is_durable=False)
    context.pool.forget(path)
    segment.use_zones(None, loaded=False)
    return True


def _restore_txn_index(segment: Segment) -> None:
    """Restore a missing or empty index of aborted transactions.

    The index is restored before the zone map is built, because the map has the index's checksum.
    """
    fs = segment.context.env.files
    path = segment.context.path(segment.base_offset, log_files.TXN_INDEX_SUFFIX)
    if segment.zones is None and not (fs.exists(path) and fs.stat(path).size):
        index = segment.txn_index
        if index.entries:
            files.write_atomically(fs, path, index.encoded)


def build_missing(segments: Iterable[Segment]) -> list[int]:
    """Write maps for the finished segments without a valid map; return their base offsets.

    Args:
        segments: Segments of a directory that the caller may write to. The active segment and
            segments that only the tier has are skipped.

    Raises:
        OSError: The disk failed.
    """
    finished = (each for each in segments if not each.is_active and not each.is_tiered)
    return [segment.base_offset for segment in finished if write_missing(segment)]


def write_missing(
    segment: Segment, *, by_kernels: bool | None = None, check_crc: bool = True
) -> bool:
    """Write the map of a finished segment unless the segment already has a valid map.

    Another thread may have written the map meanwhile. Return whether this call wrote the map.
    Errors and arguments are those of `write`.
    """
    with segment.zones_lock:
        if segment.zones_on(ClockName.APPEND) is not None:
            return False
        return write(segment, by_kernels=by_kernels, check_crc=check_crc)


def drop(context: SegmentContext, base_offset: int) -> None:
    """Remove a segment's map, for example before the log is changed; raises OSError."""
    path = context.path(base_offset, log_files.ZONES_SUFFIX)
    if context.env.files.exists(path):
        context.pool.forget(path)
        context.env.files.remove(path)


def drop_unfit(context: SegmentContext, base_offset: int) -> None:
    """Remove a map whose checksums of the files beside the log are outdated; raises OSError."""
    path = context.path(base_offset, log_files.ZONES_SUFFIX)
    if not context.env.files.exists(path):
        return
    try:
        size = context.env.files.stat(path).size
        zone_map = ZoneMap(lambda size, at: context.pool.get(path).pread(size, at), size)
        if zone_map.siblings == sum_siblings(context, base_offset):
            return
    except (CorruptData, UnsupportedVersion):
        pass
    drop(context, base_offset)


def renew_sums(context: SegmentContext, base_offset: int, suffixes: Collection[str]) -> None:
    """Store the checksums of rebuilt files beside the log in the segment's map; raises OSError.

    The map keeps the checksums of the log and of all other files.
    """
    path = context.path(base_offset, log_files.ZONES_SUFFIX)
    if not context.env.files.exists(path):
        return
    try:
        log_size = context.env.files.stat(context.path(base_offset, log_files.LOG_SUFFIX)).size
        limit = log_size + files.SMALL_FILE_LIMIT_BYTES
        data = files.read_file(context.env.files, path, limit=limit)
        zone_map = ZoneMap.decode(data)
        old, found = zone_map.siblings, sum_siblings(context, base_offset)
        siblings = {suffix: one for suffix, one in old.items() if suffix not in suffixes}
        siblings |= {suffix: one for suffix, one in found.items() if suffix in suffixes}
        if siblings != old:
            renewed = with_siblings(data, zone_map, siblings)
            files.write_atomically(context.env.files, path, renewed, is_durable=False)
            context.pool.forget(path)
    except (CorruptData, UnsupportedVersion):
        drop(context, base_offset)


def sum_siblings(context: SegmentContext, base_offset: int) -> dict[str, FileSum]:
    """Return, by suffix, the length and checksum of each file beside a log."""
    sums = {}
    for suffix in log_files.SUMMED_SUFFIXES:
        path = context.path(base_offset, suffix)
        if context.env.files.exists(path):
            sums[suffix] = sum_file(context, path)
    return sums


def sum_file(context: SegmentContext, path: str) -> FileSum:
    """Return length and checksum of a file; raises OSError."""
    file = context.env.files.open(path)
    try:
        size = file.size()
        return FileSum(size, sum_span(file, 0, size))
    finally:
        file.close()


def sum_span(file: File, start: int, end: int, crc: int = 0) -> int:
    """Return the CRC-32C of bytes [start, end) of a file, continuing from `crc`; raises OSError.

    If the file is shorter, the missing bytes are left out.
    """
    position = start
    while data := file.pread(min(_CHUNK_BYTES, end - position), position):
        crc = crc32c(data, crc)
        position += len(data)
    return crc


class ZoneCache:
    """A directory that caches zone maps for data directories that must not be written to.

    A map's file name depends on the log's content and never on a path, so copies of a log directory
    share the map. Like any other map, a cached map is compared with the log before it is used. The
    name also has the topic and the partition, because segments of two partitions may have equal
    sizes and equal first batches. The cache contains only maps, so users can delete it at any time.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory

    def path_of(self, segment: Segment) -> str:
        """Return the path of a segment's map, which possibly does not exist."""
        partition = segment.context.topic_partition
        topic = f"{segment.context.topic_id.hex}-{crc32c(partition.topic.encode()):08x}"
        rows, crc = segment.append_times.digest
        head = sum_head(segment.view(0, HEADER_SIZE))
        facts = f"{segment.base_offset:020d}-{segment.size_bytes}-{head:08x}-{rows}-{crc:08x}"
        return f"{self.directory}/{topic}-{partition.partition}-{facts}{log_files.ZONES_SUFFIX}"

    def load(self, segment: Segment) -> ZoneMap | None:
        """Return the map of a segment, None if there is no valid map."""
        try:
            return open_map(segment, self.path_of(segment))
        except (CorruptData, UnsupportedVersion, FileNotFoundError):
            return None

    def store(self, segment: Segment, data: bytes) -> None:
        """Store a map; if the directory is not writable, only report this."""
        path = self.path_of(segment)
        try:
            self._fs.make_dirs(self.directory)
            segment.context.pool.forget(path)
            files.write_atomically(self._fs, path, data)
        except OSError as error:
            segment.context.report(f"{path}: the zone map can't be cached: {error.strerror}")
