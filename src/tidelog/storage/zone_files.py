"""Zone maps as files: found, held against their log, built, written, kept elsewhere for readers.

A map is believed only where topic id, base offset, size of the log and the heads of its first and
last batch are as when it was built: no file time counts. One that is missing, damaged or
stale is not used, which is reported, and costs only time.

Source: docs/decisions/0007-zone-maps.md.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from tidelog.env import FileSystem
from tidelog.errors import (
    CorruptData,
    CorruptIndex,
    UnsupportedCompression,
    UnsupportedVersion,
)
from tidelog.record.coding import crc32c
from tidelog.record.header import HEADER_SIZE
from tidelog.storage import files
from tidelog.storage.segment import Segment, SegmentContext
from tidelog.storage.zone_builder import build_plain, sum_head
from tidelog.storage.zones import FileSum, ZoneMap

NOT_USED: Final = "not used"
# The files whose sums a map has; snapshots belong to offsets and come and go.
SIBLING_SUFFIXES: Final = tuple(
    suffix
    for suffix in files.SEGMENT_SUFFIXES
    if suffix not in (files.LOG_SUFFIX, files.ZONES_SUFFIX)
)
_CHUNK_BYTES: Final = 1 << 20
# The plain code is done with this much before kernels are even loaded.
PLAIN_BYTES: Final = 1 << 20


class FinishedSegment(Segment, Protocol):
    """What a `closed.ClosedSegment` offers here."""

    @property
    def context(self) -> SegmentContext:
        """Directory, topic, files."""
        ...


def load(segment: FinishedSegment) -> ZoneMap | None:
    """The map beside a finished segment, None where it is missing, damaged or stale (reported)."""
    context, path = segment.context, segment.context.path(segment.base_offset, files.ZONES_SUFFIX)
    try:
        return open_map(segment, path)
    except FileNotFoundError:
        return None
    except CorruptData as error:
        context.report(f"{error.located(path)}; {NOT_USED}")
    except UnsupportedVersion as error:
        context.report(f"{path}: {error}; {NOT_USED}")
    return None


def load_or_build(segment: FinishedSegment, cache: "ZoneCache | None" = None) -> ZoneMap | None:
    """The map beside a finished segment or in the cache, else one that is built now.

    Nothing is written into the log's directory. A map that was built goes into the cache; without
    one it is in memory only.

    Returns:
        None where the log is damaged, which is reported: who reads the log comes upon it.
    """
    found = segment.zones
    if found is not None and knows_times_of(found, segment):
        return found
    if cache is not None:
        found = cache.load(segment)
        if found is not None:
            return found
    try:
        data = build(segment)
    except (CorruptData, UnsupportedCompression) as error:
        segment.context.report(f"{segment.log_path}: no zone map: {error}")
        return None
    if cache is not None:
        cache.store(segment, data)
    return ZoneMap.decode(data)


def knows_times_of(found: ZoneMap, segment: FinishedSegment) -> bool:
    """Whether a map was built of the same append times as the segment has now."""
    return (found.identity.append_rows, found.identity.append_crc) == segment.append_times.digest


def open_map(segment: FinishedSegment, path: str) -> ZoneMap:
    """The map in a file, held against the segment's log.

    Raises:
        CorruptIndex: It is damaged, can't be read, or belongs to another log.
        UnsupportedVersion: A later release wrote it.
        FileNotFoundError: There is none.
    """
    context = segment.context

    def read(size: int, position: int) -> bytes:
        try:
            return context.pool.get(path).pread(size, position)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CorruptIndex(f"it can't be read: {error.strerror}", at=position) from error

    size = context.env.files.stat(path).size
    found = ZoneMap(read, size, report=lambda text: context.report(f"{path}: {text}"))
    problem = misfit(segment, found)
    if problem is not None:
        raise CorruptIndex(problem)
    return found


def misfit(segment: FinishedSegment, found: ZoneMap) -> str | None:
    """Why a map is not that of a segment's log as it is now, None where it is."""
    identity = found.identity
    if identity.topic_id != segment.context.topic_id:
        return f"it is of topic id {identity.topic_id}, not {segment.context.topic_id}"
    if identity.base_offset != segment.base_offset:
        return f"it is of base offset {identity.base_offset}, not {segment.base_offset}"
    if identity.log_size != segment.size_bytes:
        return f"it is of a log of {identity.log_size} bytes, there are {segment.size_bytes}"
    if identity.last_position < 0:
        return None
    ends = ((0, identity.first_fingerprint), (identity.last_position, identity.last_fingerprint))
    for position, expected in ends:
        if sum_head(segment.view(position, position + HEADER_SIZE)) != expected:
            return f"another batch lies at position {position} of the log"
    return None


def build(segment: FinishedSegment, *, by_kernels: bool | None = None) -> bytes:
    """The zone map of a finished segment as it is now, as the bytes of its file.

    Args:
        segment: Read from end to end.
        by_kernels: Whether to use kernels, which load in 0.5 s (the first time ever they compile
            for some seconds) and need about 0.3 s for 1 GB, the plain code 14 us for a record.
            None uses them where they are installed and the segment is large.

    Raises:
        CorruptData: The log is damaged; located.
        UnsupportedCompression: A codec that nobody defined.
    """
    siblings = sum_siblings(segment.context, segment.base_offset)
    if by_kernels is None:
        by_kernels = segment.size_bytes > PLAIN_BYTES
    found = _build_by_kernels(segment, siblings) if by_kernels else None
    return build_plain(segment, siblings) if found is None else found


def _build_by_kernels(segment: Segment, siblings: Mapping[str, FileSum]) -> bytes | None:
    """None where there are no kernels, and where the plain code must say what is wrong."""
    try:
        from tidelog.storage.zone_kernels import build_with_kernels
    except ImportError:
        return None
    return build_with_kernels(segment, siblings)


def sum_siblings(context: SegmentContext, base_offset: int) -> dict[str, FileSum]:
    """Length and checksum of each file beside a log, by suffix."""
    found = {}
    for suffix in SIBLING_SUFFIXES:
        path = context.path(base_offset, suffix)
        if context.env.files.exists(path):
            found[suffix] = sum_file(context, path)
    return found


def sum_file(context: SegmentContext, path: str) -> FileSum:
    """Length and checksum of a file; raises OSError."""
    file = context.env.files.open(path)
    try:
        size, crc = 0, 0
        while data := file.pread(_CHUNK_BYTES, size):
            crc = crc32c(data, crc)
            size += len(data)
        return FileSum(size, crc)
    finally:
        file.close()


class ZoneCache:
    """A folder for maps of directories that must not be written to.

    A map is named by what it belongs to, never by a path, so copies of a directory share it; and it
    is held against the log like any other. The folder holds nothing else and may be deleted.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory

    def path_of(self, segment: FinishedSegment) -> str:
        """Where the map of a segment is or would be; letters, digits and `-` only."""
        rows, crc = segment.append_times.digest
        head = sum_head(segment.view(0, HEADER_SIZE))
        facts = f"{segment.base_offset:020d}-{segment.size_bytes}-{head:08x}-{rows}-{crc:08x}"
        return f"{self.directory}/{segment.context.topic_id.hex}-{facts}{files.ZONES_SUFFIX}"

    def load(self, segment: FinishedSegment) -> ZoneMap | None:
        """The map of a segment, None where there is none that fits."""
        try:
            return open_map(segment, self.path_of(segment))
        except (CorruptData, UnsupportedVersion, FileNotFoundError):
            return None

    def store(self, segment: FinishedSegment, data: bytes) -> None:
        """Keep a map; a folder that can't be written to is reported, and no more."""
        path = self.path_of(segment)
        try:
            self._fs.make_dirs(self.directory)
            segment.context.pool.forget(path)
            files.write_atomically(self._fs, path, data)
        except OSError as error:
            segment.context.report(f"{path}: the zone map is not kept: {error.strerror}")
