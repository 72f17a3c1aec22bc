"""Loads and checks a segment's offset index and time index, or rebuilds both from batch headers.

Indexes are derived data: a missing or inconsistent index is rebuilt in memory, and the problem is
reported. Reading never writes a file.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from tidelog.config import TopicConfig
from tidelog.env import File
from tidelog.errors import CorruptData, CorruptFile
from tidelog.record.batch_walk import Batch
from tidelog.record.offset_order import in_order, segment_limit
from tidelog.storage import files, log_files
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.types import INT32_MAX, NO_TIMESTAMP

# Minimum of an index's size limit: the size in bytes of an entry of the time index. A smaller index
# would have no room for the closing entry, and the segment's largest time would be lost.
INDEX_BYTES_MIN: Final = 12


def index_limit_bytes(config: TopicConfig) -> int:
    """Return the maximum size in bytes of an index file, from `segment.index.bytes`."""
    return max(config.segment_index_bytes, INDEX_BYTES_MIN)


class IndexBuilder:
    """Builds both indexes from batch headers, with an entry about every `index.interval.bytes`.

    The interval is counted from the position of the last entry, as in Kafka's recovery. An index
    that was built by appends can have other entries, but is valid, too.
    """

    def __init__(self, config: TopicConfig, base_offset: int) -> None:
        self._interval_bytes = config.index_interval_bytes
        limit = index_limit_bytes(config)
        self.offset_index = OffsetIndex(base_offset, size_limit=limit)
        self.time_index = TimeIndex(base_offset, size_limit=limit)
        self._last_position = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    def add(self, batch: Batch, position: int) -> None:
        """Add the batch at `position`; the caller has checked its offsets with `offset_order`.

        An index stores a position in 31 bits. Batches at larger positions get no entry. A scan from
        the last entry finds such batches.
        """
        last_offset = batch.last_offset
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = last_offset
        if INT32_MAX >= position > self._last_position + self._interval_bytes:
            if not self.offset_index.is_full:
                self.offset_index.append(last_offset, position)
            if not self.time_index.is_full:
                self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self._last_position = position

    def finish(self) -> tuple[OffsetIndex, TimeIndex]:
        """Add the closing entry of the time index, and return both indexes."""
        close_time_index(self.time_index, self.max_timestamp, self.max_timestamp_offset)
        return self.offset_index, self.time_index


def rebuild_indexes(
    config: TopicConfig,
    base_offset: int,
    batches: Iterable[tuple[int, Batch]],
    *,
    is_finished: bool = True,
) -> tuple[tuple[OffsetIndex, TimeIndex], CorruptData | None]:
    """Rebuild both indexes of a segment, by Kafka's rule for recovery.

    Args:
        config: The topic's settings.
        base_offset: The segment's base offset.
        batches: The segment's batches with their positions, in order; the iterator raises
            CorruptData at damage.
        is_finished: Whether the time index gets its closing entry.

    Returns:
        The indexes of all batches before the damage, and the damage; None if there is no damage.
    """
    builder, damage = IndexBuilder(config, base_offset), None
    try:
        for position, batch in batches:
            builder.add(batch, position)
    except CorruptData as error:
        damage = error
    indexes = builder.finish() if is_finished else (builder.offset_index, builder.time_index)
    return indexes, damage


def ordered_batches(
    file: File, path: str, base_offset: int, end: int
) -> Iterator[tuple[int, Batch]]:
    """Yield the batches in the bytes [0, end) of a log file, with their positions.

    Raises:
        CorruptData: A frame is invalid, or an offset is out of order; the error has the position.
    """
    return in_order(walk_file(file, path, 0, end), base_offset, segment_limit(base_offset), path)


def close_time_index(index: TimeIndex, timestamp: int, offset: int) -> None:
    """Add the closing entry, for which the index reserves a slot.

    Do nothing if all slots are used, or if `timestamp` is not larger than the timestamp of the last
    entry.
    """
    if timestamp > index.last_entry[0] and index.entry_count < index.entry_limit:
        index.maybe_append(timestamp, offset, ignore_full=True)


def load_indexes(
    context: SegmentContext,
    base_offset: int,
    *,
    mapped: bool,
    log_size: int | None = None,
    on_evict: Callable[[], None] | None = None,
) -> tuple[OffsetIndex, TimeIndex] | None:
    """Load both index files.

    If a file is missing or inconsistent, report this and return None.

    Args:
        context: The partition.
        base_offset: The segment's base offset.
        mapped: Whether the files are mapped. Files that are not mapped are read, and may have a
            tail of zeros.
        log_size: Size of the log file in bytes. If it is None, the file may grow, and its current
            size is read.
        on_evict: Called when the map of an index is evicted from the cache, to drop the index.
    """
    get_map = context.maps.get if on_evict is None else partial(context.maps.get, on_evict=on_evict)
    limit = index_limit_bytes(context.config)
    loaded = []
    for suffix in log_files.INDEX_SUFFIXES:
        path = context.path(base_offset, suffix)
        try:
            data = get_map(path) if mapped else files.read_file(context.env.files, path)
        except FileNotFoundError:
            context.report(f"{path}: missing; rebuilt in memory")
            return None
        except CorruptFile as error:
            context.report(f"{error}; rebuilt in memory")
            return None
        loaded.append((path, data))
    (path, data), (time_path, time_data) = loaded
    # The log's size is read after the indexes; otherwise, the indexes of a growing log could be
    # ahead of the size.
    if log_size is None:
        log_size = context.env.files.stat(context.path(base_offset, log_files.LOG_SUFFIX)).size
    offset_index = OffsetIndex(base_offset, data=data, size_limit=limit)
    time_index = TimeIndex(base_offset, data=time_data, size_limit=limit)
    try:
        # Kafka preallocates a zero tail; in a finished segment such a tail is the sign of a hard
        # stop.
        offset_index.check(log_size, allow_tail=not mapped)
        path = time_path
        time_index.check(allow_tail=not mapped)
    except CorruptData as error:
        context.report(f"{error.located(path)}; rebuilt in memory")
        return None
    return offset_index, time_index
