"""Access of a stream to its log: snapshots, leader epochs, and limits of batches by bytes.

In a batch query, named topics must exist. Once a stream has started, it continues even if a named
topic is missing. The stream reads the named topics that exist, including topics that are created
later.

For directories, `cut_by_bytes` computes the number of bytes of log in a range of offsets, and the
offset at which a limit in bytes is reached. Ranges end after whole batches, because readers read
whole batches. The function reads only indexes and batch headers.

`stream_offset` has the offsets and the check for lost records. `micro_batches` plans the batches.
"""

import dataclasses
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import ClusterFailure, RequestError, UnknownTopic
from tidelog.spark.options import SourceOptions
from tidelog.spark.stream_offset import Extent, LogSnapshot, StreamOffset
from tidelog.spark.stream_options import share_limit
from tidelog.spark.tasks import Backend
from tidelog.types import NO_LEADER_EPOCH, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster
    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.log.log_reader import LogView
    from tidelog.storage.segment.segment import Segment
    from tidelog.storage.segment.slices import LogSlice


_LOG: Final = logging.getLogger("tidelog.spark")

# Maximum number of attempts to take a snapshot. An attempt fails if a topic is deleted between two
# requests of the attempt. Several consecutive failures are unlikely.
_TRIES: Final = 5


def tolerant(options: SourceOptions) -> SourceOptions:
    """Return options that choose the same topics, and ignore topics that don't exist."""
    if options.pattern is not None:
        return options
    names = options.topics or tuple(sorted({name.topic for name in options.assigned}))
    return dataclasses.replace(options, topics=names, assigned=(), if_there=True)


class StreamLog:
    """Access of a stream to its log, on the driver. Not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[str],
        open_backend: Callable[[SourceOptions, Sequence[str]], Backend],
    ) -> None:
        """Open the backend.

        Args:
            options: Options of the stream's reads.
            columns: Columns of a row.
            open_backend: Function that opens a backend for these options and columns.
        """
        self._options = options
        self._columns = columns
        self._open = open_backend
        self.backend = open_backend(options, columns)
        self._tolerant: Backend | None = None
        self._cluster: Cluster | None = None

    def snapshot_named(self) -> LogSnapshot:
        """Return a snapshot of all chosen partitions, which must exist.

        Raises:
            UnknownTopic: A named topic or partition does not exist.
        """
        return self._snapshot(self.backend)

    def snapshot(self) -> LogSnapshot:
        """Return a snapshot of the chosen partitions that exist."""
        for _ in range(_TRIES - 1):
            with suppress(UnknownTopic):
                return self.snapshot_named()
            with suppress(UnknownTopic):
                return self._snapshot(self._tolerant_backend())
        return self._snapshot(self._tolerant_backend())

    def _tolerant_backend(self) -> Backend:
        if self._tolerant is None:
            self._tolerant = self._open(tolerant(self._options), self._columns)
        return self._tolerant

    def _snapshot(self, backend: Backend) -> LogSnapshot:
        names = backend.partitions()
        if assigned := set(self._options.assigned):
            names = [name for name in names if name in assigned]
        bounds = backend.bounds(names)
        # The ids are read after the bounds. So if a topic is recreated between these two reads, the
        # check finds that its id has changed. If the ids were read first, the check would take the
        # offsets of the new topic for offsets of the old topic.
        ids = backend.topic_ids({name.topic for name in names})
        return LogSnapshot(extents=bounds, topic_ids=ids)

    def log_ends(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends, regardless of isolation level and `readUntil`."""
        options = dataclasses.replace(
            self._options, isolation=IsolationLevel.READ_UNCOMMITTED, until_flushed=False
        )
        with self._open(options, self._columns) as unlimited:
            return {name: bounds.end for name, bounds in unlimited.bounds(names).items()}

    def epochs_at(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the last batch below each offset; -1 if unknown.

        If the ends of a partition's epochs are unknown, this function requests no epoch of the
        partition, because a later check could not use the epoch, and the request would read
        records.
        """
        epoch_ends = self.backend.epoch_ends(dict.fromkeys(ends, 0)) if ends else {}
        useful = {name: end for name, end in ends.items() if epoch_ends[name][0] >= 0}
        epochs = self.backend.leader_epochs(useful) if useful else {}
        return {name: epochs.get(name, NO_LEADER_EPOCH) for name in ends}

    def cut_by_bytes(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], max_bytes: int
    ) -> dict[TopicPartition, int]:
        """Return end offsets, chosen so that all ranges have about `max_bytes` in total."""
        from tidelog.spark.directory_backend import source_env
        from tidelog.storage.directory.log_dir import LogDir

        with LogDir.open(self._options.path, env=source_env(self._options)) as log_dir:
            return cut_by_bytes(log_dir, ranges, max_bytes)

    def commit(self, group: str, offset: StreamOffset) -> None:
        """Commit the query's progress to a consumer group.

        The commit is only for monitoring, so a failure is only logged, and the query continues from
        its checkpoint.
        """
        from tidelog.remote.view import Committed

        offsets = {
            name: Committed(position.offset, None if position.epoch < 0 else position.epoch)
            for name, position in offset.positions.items()
        }
        try:
            self._connect().commit(group, offsets)
        except (ClusterFailure, RequestError) as error:
            _LOG.warning("offsets not committed to group %s: %s", group, error)

    def _connect(self) -> "Cluster":
        from tidelog.remote.cluster import connect
        from tidelog.spark.broker_settings import read_settings

        if self._cluster is None:
            settings = read_settings(self._options)
            self._cluster = connect(
                self._options.bootstrap, settings.client, timeout_s=settings.timeout_s
            )
        return self._cluster

    def close(self) -> None:
        """Close files and connections."""
        self.backend.close()
        if self._tolerant is not None:
            self._tolerant.close()
        if self._cluster is not None:
            self._cluster.close()


def freeze(now: LogSnapshot, then: LogSnapshot) -> LogSnapshot:
    """Return the snapshot `now`, limited to records, partitions and topics that are in `then`.

    The topic ids are from `now`, so that the check finds topics that were deleted or recreated
    after `then`.
    """
    extents = {}
    for name, (start, end) in now.extents.items():
        old = then.extents.get(name)
        if old is None or _is_other(name, now.topic_ids, then.topic_ids):
            continue
        extents[name] = Extent(start, max(min(end, old.end), start))
    return LogSnapshot(extents=extents, topic_ids=now.topic_ids)


def _is_other(name: TopicPartition, now: Mapping[str, str], then: Mapping[str, str]) -> bool:
    """Return whether the topic's id in `now` differs from its id in `then`; False if unknown."""
    ids = now.get(name.topic, ""), then.get(name.topic, "")
    return all(ids) and ids[0] != ids[1]


def cut_by_bytes(
    log_dir: "LogDir", ranges: Mapping[TopicPartition, tuple[int, int]], max_bytes: int
) -> dict[TopicPartition, int]:
    """Return each range's end offset, chosen so that all ranges have about `max_bytes` in total.

    Args:
        log_dir: The directory, opened after the ranges were computed.
        ranges: Offsets [start, end) of each partition, inside its log.
        max_bytes: Limit of the bytes in all ranges together. Each range gets a share of the limit
            in proportion to its size in bytes.

    Returns:
        The exclusive end offset of each range: the range's own end if the range fits completely,
        otherwise the offset after the last batch that fits. If not even the first batch fits, the
        result is the offset after the first batch, so that every partition makes progress.
    """
    readers = {name: log_dir.reader(name.topic, name.partition) for name in ranges}
    sizes = {name: _size(readers[name], *ranges[name]) for name in ranges}
    shares = share_limit(sizes, max_bytes)
    return {
        name: end if shares[name] >= sizes[name] else _cut(readers[name], start, end, shares[name])
        for name, (start, end) in ranges.items()
    }


class _Part(NamedTuple):
    """Batches of one segment that have offsets of a range, as positions in the log file."""

    segment: "Segment"
    start_position: int
    end_position: int

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.end_position - self.start_position


def _parts(reader: "LogView", start: int, end: int) -> Iterator[_Part]:
    """Yield the range's part of each segment, in order.

    Segments that were deleted meanwhile are left out.
    """
    first, last = max(start, reader.log_start_offset), min(end, reader.log_end_offset)
    for part in reader.slices(first, last) if first < last else ():
        # The index is sparse, so the slice may also have batches before and after the range.
        begin = next((position for position, _ in part.batches()), None)
        if begin is not None:
            yield _Part(part.segment, begin, _end_position(part, begin))


def _end_position(part: "LogSlice", begin: int) -> int:
    """Return the position after the slice's last batch that has an offset of the range."""
    from tidelog.storage.segment.index_proof import position_floor

    segment, end = part.segment, part.end_offset
    if end >= segment.end_offset:
        return part.end_position
    close = part._replace(start_position=max(begin, position_floor(segment, end)), start_offset=0)
    ends = [position + batch.size_bytes for position, batch in close.batches()]
    return max(ends, default=close.start_position)


def _size(reader: "LogView", start: int, end: int) -> int:
    return sum(part.size_bytes for part in _parts(reader, start, end))


def _cut(reader: "LogView", start: int, end: int, max_bytes: int) -> int:
    """Return the offset after the last batch within `max_bytes`, but include at least one batch."""
    remaining = max_bytes
    reached: int | None = None
    for part in _parts(reader, start, end):
        if part.size_bytes > remaining:
            last_offset = _last_offset(
                part, part.start_position + remaining, is_first=reached is None
            )
            return end if last_offset is None else min(last_offset + 1, end)
        remaining -= part.size_bytes
        reached = part.segment.end_offset
    return end


def _last_offset(part: _Part, limit: int, *, is_first: bool) -> int | None:
    """Return the last offset of the last batch that ends at or before the position `limit`.

    Return None if the part has no batches. If all its batches end after `limit`, the result depends
    on `is_first`: for the range's first part, the last offset of the part's first batch; for later
    parts, the offset before the segment's base offset.
    """
    from tidelog.storage.segment.segment import iterate_batches

    last: int | None = None
    begin = max(part.start_position, _indexed(part.segment, limit))
    for position, batch in iterate_batches(part.segment, begin, part.end_position):
        fits = position + batch.size_bytes <= limit
        if fits or (last is None and is_first):
            last = batch.last_offset
        elif last is None:
            last = part.segment.base_offset - 1
        if not fits:
            break
    return last


def _indexed(segment: "Segment", position: int) -> int:
    """Return the position of a batch before `position`, from the index; 0 without an entry.

    Uses the second to last index entry at or below `position`; `position_floor` compares the entry
    with the log.
    """
    from tidelog.storage.segment.index_proof import position_floor

    index = segment.offset_index
    slot = bisect_right(range(index.entry_count), position, key=lambda n: index.entry(n)[1]) - 2
    floor = position_floor(segment, index.entry(slot)[0]) if slot >= 0 else 0
    return floor if floor < position else 0
