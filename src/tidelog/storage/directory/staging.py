"""Staged log files: files in a partition's directory that later become segments of the partition.

Many writers may stage at the same time, in other processes or on other machines. A writer does not
need the directory's lock, because neither tidelog nor Kafka uses a staged file (`NAME.log.staging`)
as a part of the log. The file's records are visible only after the module `attach` has attached or
exchanged the file, which requires the directory's lock. Staged files of crashed jobs are removed by
the first attach that finds them unmodified for more than 7 days.

This module owns:

- `StagedWriter`, which writes files to attach: any number of `append`, then `finish` or `discard`.
  The writer is not thread-safe. The offsets in each file begin at 0.
- The check of staged files against the topic's rules (`check_staged`).
- `SegmentPass`, the pass over a staged file that makes a segment of it. The pass checks every
  batch, and makes the indexes and append times of the new segment. The pass assigns an offset, a
  leader epoch and, with LogAppendTime, a timestamp to each batch that is attached.

`publication` owns the commit.

Source: docs/spark.md#to-a-directory.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.amounts import plural
from tidelog.config import TopicConfig
from tidelog.env import DirEntry, File, FileSystem
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    RecordListTooLarge,
    times_of,
    with_times,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.header import assign_offset, stamp_append_time
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.record_rules import RecordRules
from tidelog.storage.log.segment_swaps import Adoption
from tidelog.storage.open_files import FilePool
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_loading import IndexBuilder
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    NO_TIMESTAMP,
    UNKNOWN_MS,
    Buffer,
    Codec,
    TimestampType,
    TopicPartition,
)

STAGING_SUFFIX: Final = ".staging"

# A staged file that has not changed for this time in ms counts as left by a crashed job. The time
# is long, because a running job may take days.
STAGING_AGE_MS: Final = 7 * 24 * 3_600_000

# Minimum size of a write to a staged file in bytes, except for the last write. Batches are
# collected until they have this size.
WRITE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """One staged log file, with the properties of its records that the topic's rules check.

    Attributes:
        topic: Topic of the segment.
        partition: Partition number of the segment.
        name: Prefix of the file's name, which is `NAME.log.staging` in the partition's directory.
        order: Key by which the staged segments of the partition are sorted.
        record_count: Number of records; their offsets are 0 to `record_count` - 1.
        size_bytes: Size of the file.
        batch_bytes_max: Size of the largest batch in bytes.
        min_timestamp: Smallest create time in ms other than -1; 2^63-1 if there is none.
        max_timestamp: Largest create time in ms, -1 if there is none.
        has_null_key: Whether there is a record without a key.
    """

    topic: str
    partition: int
    name: str
    order: tuple[int, ...]
    record_count: int
    size_bytes: int
    batch_bytes_max: int
    min_timestamp: int = INT64_MAX
    max_timestamp: int = NO_TIMESTAMP
    has_null_key: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition of the segment."""
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True)
class RowFacts:
    """Properties of records that the headers of the records' batches don't contain."""

    min_timestamp: int = INT64_MAX
    has_null_key: bool = False


def staging_path(directory: str, partition: TopicPartition, name: str) -> str:
    """Return the path of a staged log file."""
    stem = f"{directory}/{files.partition_dir_name(partition)}/{name}"
    return f"{stem}{log_files.LOG_SUFFIX}{STAGING_SUFFIX}"


def check_staged(segment: StagedSegment, config: TopicConfig, now_ms: int) -> None:
    """Check a segment against the topic's rules, as an append would.

    Raises:
        MessageTooLarge: A batch exceeds max.message.bytes.
        RecordListTooLarge: The segment exceeds segment.bytes.
        InvalidRecord: The topic is compacted, and a record has no key.
        InvalidTimestamp: A create time is outside the topic's limits.
    """
    where = str(segment.topic_partition)
    rules = RecordRules(where, config)
    if segment.batch_bytes_max > config.max_message_bytes:
        raise rules.too_large(segment.batch_bytes_max)
    if segment.size_bytes > config.segment_size_limit:
        raise RecordListTooLarge(
            f"{where}: a segment of {segment.size_bytes} bytes,"
            f" but segment.bytes is {config.segment_size_limit}"
        )
    if segment.has_null_key and config.is_compacted:
        raise InvalidRecord(f"{where}: records without a key; a compacted topic requires keys")
    latest = segment.max_timestamp
    for timestamp in (min(segment.min_timestamp, latest), latest):
        if rules.stamps or rules.is_allowed(timestamp, now_ms):
            continue
        error = rules.time_error(timestamp, now_ms)
        raise with_times(InvalidTimestamp(f"{where}: {error}"), *times_of(error))


class StagedWriter:
    """Writes the staged segments of one partition for one task."""

    def __init__(
        self,
        pool: FilePool,
        directory: str,
        partition: TopicPartition,
        config: TopicConfig,
        *,
        name: str,
        order: tuple[int, ...] = (),
    ) -> None:
        """Create a writer; its first write of batches creates the first file.

        Args:
            pool: Open files, for writing.
            directory: The directory of topics; the partition's own directory must exist.
            partition: Partition of the segments.
            config: The topic's settings.
            name: Prefix of the files' names, unique among all writers and attempts.
            order: Key by which the writers of the partition are sorted.
        """
        self._pool = pool
        self._directory = directory
        self._partition = partition
        self._config = config
        self._name = name
        self._order = order
        self._done: list[StagedSegment] = []
        self._begin()

    def _begin(self) -> None:
        self._facts = RowFacts()
        self._pending: list[bytearray] = []
        self._pending_bytes = self._written = self._count = self._batch_bytes_max = 0
        self._max_timestamp = NO_TIMESTAMP

    def append(self, batches: Iterable[bytearray], facts: RowFacts) -> None:
        """Write batches of magic 2, each with base offset 0.

        Args:
            batches: Complete batches; the writer keeps and changes the buffers.
            facts: Facts about the records of all batches in `batches`.

        Raises:
            OSError: The disk failed; call `discard`.
        """
        self._take_facts(facts)
        for batch in batches:
            view = RecordBatch(batch, 0)
            if not self._has_room(len(batch), view.last_offset_delta + 1):
                self._finish_segment()
                self._take_facts(facts)
            assign_offset(batch, 0, self._count, -1)
            self._count += view.last_offset_delta + 1
            self._max_timestamp = max(self._max_timestamp, view.max_timestamp)
            self._batch_bytes_max = max(self._batch_bytes_max, len(batch))
            self._pending.append(batch)
            self._pending_bytes += len(batch)
            if self._pending_bytes >= WRITE_BYTES:
                self._flush()

    def _take_facts(self, facts: RowFacts) -> None:
        total = self._facts
        total.min_timestamp = min(total.min_timestamp, facts.min_timestamp)
        total.has_null_key |= facts.has_null_key

    def _has_room(self, size_bytes: int, count: int) -> bool:
        """Return whether the segment has room for a batch; an empty segment always has room."""
        size = self._written + self._pending_bytes
        fits = size + size_bytes <= self._config.segment_size_limit
        return not size or (fits and self._count + count <= INT32_MAX)

    @property
    def _path(self) -> str:
        return staging_path(self._directory, self._partition, self._segment_name)

    @property
    def _segment_name(self) -> str:
        return f"{self._name}-{len(self._done)}"

    def _flush(self) -> None:
        file = self._pool.get(self._path, create=True)
        self._written += files.writev_fully(file, self._pending, self._written)
        self._pending, self._pending_bytes = [], 0

    def _finish_segment(self) -> None:
        if not self._count:
            return
        self._flush()
        self._pool.forget(self._path)
        self._done.append(
            StagedSegment(
                topic=self._partition.topic,
                partition=self._partition.partition,
                name=self._segment_name,
                order=(*self._order, len(self._done)),
                record_count=self._count,
                size_bytes=self._written,
                batch_bytes_max=self._batch_bytes_max,
                min_timestamp=self._facts.min_timestamp,
                max_timestamp=self._max_timestamp,
                has_null_key=self._facts.has_null_key,
            )
        )
        self._begin()

    def finish(self, now_ms: int) -> list[StagedSegment]:
        """Finish the last segment, check all segments against the topic's rules, and return them.

        Raises:
            MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp: The topic's rules
                refuse a segment (`check_staged`); call `discard`.
            OSError: The disk failed; call `discard`.
        """
        self._finish_segment()
        for segment in self._done:
            check_staged(segment, self._config, now_ms)
        return list(self._done)

    def discard(self, fs: FileSystem) -> None:
        """Remove the written files; ignore a failed removal.

        Callers use this method after another failure, and then raise the error of that failure.
        """
        names = [*(segment.name for segment in self._done), self._segment_name]
        for name in names:
            path = staging_path(self._directory, self._partition, name)
            self._pool.forget(path)
            remove_quietly(fs, path)


def write_staged(fs: FileSystem, path: str, content: Buffer) -> None:
    """Write a whole file durably under a name that no program reads yet; raises OSError.

    A file that an earlier attempt left is replaced. The content is synced, but the directory entry
    is not.
    """
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        files.write_fully(file, content, 0)
        file.sync()
    finally:
        file.close()


def remove_quietly(fs: FileSystem, path: str) -> None:
    """Remove a file; do nothing if there is none or the removal fails."""
    try:
        fs.remove(path)
    except OSError:
        return


def drop_staging(fs: FileSystem, directory: str, *, prefix: str = "", older_than_ms: int) -> int:
    """Remove abandoned staged log files; return the number of abandoned files that were found.

    Keeps a file that can't be inspected or removed. Never raises OSError, because callers call this
    function after a commit or after another failure. Writers may remove their own files at the same
    time.

    Args:
        fs: File system of the directory.
        directory: The directory of topics.
        prefix: Only files whose names begin with this text are removed.
        older_than_ms: Only files that were last modified before this time in ms are removed.
    """
    entries = _list_quietly(fs, directory)
    folders = [entry.name for entry in entries if entry.is_dir]
    paths = [
        f"{directory}/{folder}/{item.name}"
        for folder in folders
        if files.parse_partition_dir(folder) is not None
        for item in _list_quietly(fs, f"{directory}/{folder}")
        if item.name.endswith(STAGING_SUFFIX) and item.name.startswith(prefix)
    ]
    return sum(_drop_older(fs, path, older_than_ms) for path in paths)


def _list_quietly(fs: FileSystem, path: str) -> list[DirEntry]:
    try:
        return fs.list_dir(path)
    except OSError:
        return []


def _drop_older(fs: FileSystem, path: str, older_than_ms: int) -> bool:
    try:
        if fs.stat(path).mtime_ms >= older_than_ms:
            return False
    except OSError:
        return False
    remove_quietly(fs, path)
    return True


CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """A staged log file that replaces finished segments.

    Attributes:
        name: Prefix of the file's name, which is `NAME.log.staging` in the partition's directory.
        base_offset: Base offset of the segment that is made from the file.
        size_bytes: Size of the file.
    """

    name: str
    base_offset: int
    size_bytes: int


class SegmentPass(ABC):
    """One pass over a staged log file, in which the file is checked and its sidecars are made.

    Attributes:
        next_offset: Offset after the last checked batch; at first the base offset.
    """

    _changes_headers = False

    def __init__(self, context: SegmentContext, base_offset: int, size_bytes: int) -> None:
        self._base_offset = base_offset
        self._size_bytes = size_bytes
        self._indexes = IndexBuilder(context.config, base_offset)
        self._times = AppendTimes(base_offset, context.topic_id)
        self._last_batch_crc = 0
        self.next_offset = base_offset

    def run(self, file: File, path: str) -> None:
        """Check every batch, and write back the batches whose headers change.

        Raises:
            CorruptData: The file is damaged, or differs from its writer's description.
            InvalidRequest: The topic's rules refuse a batch.
            OSError: The disk failed.
        """
        size = file.size()
        if size != self._size_bytes or not size:
            raise CorruptData(
                f"the file has {size} bytes, but its writer wrote {self._size_bytes}", path=path
            )
        position, chunk_bytes = 0, CHUNK_BYTES
        while position < size:
            chunk = bytearray(files.read_exactly(file, min(chunk_bytes, size - position), position))
            used = self._take_chunk(chunk, path, position)
            if not used and chunk_bytes >= size - position:
                raise CorruptBatch("an incomplete batch", path=path, position=position)
            if self._changes_headers:
                files.write_fully(file, memoryview(chunk)[:used], position)
            position += used
            chunk_bytes = CHUNK_BYTES if used else chunk_bytes * 2
        self._times.close(self.next_offset, self._last_batch_crc)

    def _take_chunk(self, chunk: bytearray, path: str, position: int) -> int:
        """Process the complete batches of a chunk; return the size of these batches in bytes."""
        used = 0
        try:
            for batch in walk(chunk):
                if not isinstance(batch, RecordBatch):
                    raise CorruptBatch(f"magic {batch.magic}, expected 2", at=batch.at)
                batch.ensure_valid()
                self._check(batch)
                final = self._final(chunk, batch)
                self._indexes.add(final, position + batch.at)
                crc = fingerprint(final)
                self._note_time(final, crc)
                self._last_batch_crc = crc
                self.next_offset = final.next_offset
                used = batch.at + final.size_bytes
        except CorruptData as error:
            raise error.located(path, position) from error
        return used

    @abstractmethod
    def _check(self, batch: RecordBatch) -> None:
        """Raise CorruptBatch or InvalidRequest if a batch must not be the file's next batch."""

    @abstractmethod
    def _note_time(self, batch: RecordBatch, crc: int) -> None:
        """Add the append time of a batch; `crc` is the batch's `fingerprint`."""

    def _final(self, _chunk: bytearray, batch: RecordBatch) -> RecordBatch:
        """Return the batch in its final form."""
        return batch

    def sidecars(self) -> list[tuple[str, Buffer]]:
        """Return suffix and content of each file that belongs beside the log file."""
        offset_index, time_index = self._indexes.finish()
        contents: list[tuple[str, Buffer]] = [
            (log_files.OFFSET_INDEX_SUFFIX, offset_index.encoded),
            (log_files.TIME_INDEX_SUFFIX, time_index.encoded),
        ]
        if self._times.row_count:
            contents.append((log_files.APPEND_TIME_SUFFIX, self._times.encode()))
        return contents


class AppendedPass(SegmentPass):
    """Pass over a file of `StagedWriter` that will be added at the log end."""

    _changes_headers = True

    def __init__(
        self, context: SegmentContext, segment: StagedSegment, base_offset: int, adoption: Adoption
    ) -> None:
        super().__init__(context, base_offset, segment.size_bytes)
        self._segment = segment
        self._adoption = adoption
        self._codec = context.config.compression_type.target_codec
        stamp = context.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._stamp_ms = adoption.stamp_ms if stamp else None

    def run(self, file: File, path: str) -> None:
        """Check the file, including the number of records; see `SegmentPass`."""
        super().run(file, path)
        count = self.next_offset - self._base_offset
        if count != self._segment.record_count:
            reason = f"{plural(count, 'record')}, but its writer wrote {self._segment.record_count}"
            raise CorruptData(reason, path=path)

    def _check(self, batch: RecordBatch) -> None:
        staged_offset = self.next_offset - self._base_offset
        if batch.base_offset != staged_offset or batch.is_control or batch.has_producer_id:
            raise CorruptBatch(
                f"a batch at offset {batch.base_offset}; it must have offset {staged_offset},"
                " must not be a control batch, and must have no producer id",
                at=batch.at,
                offset=batch.base_offset,
            )
        if self._codec is not None and batch.codec is not self._codec:
            raise InvalidRequest(
                f"{self._segment.topic_partition}: staged with codec {batch.codec.config_name},"
                f" but compression.type is now {Codec(self._codec).config_name}"
            )

    def _final(self, chunk: bytearray, batch: RecordBatch) -> RecordBatch:
        """Set a batch's offset, epoch and, for LogAppendTime, timestamp; return the batch."""
        assign_offset(chunk, batch.at, self.next_offset, self._adoption.leader_epoch)
        if self._stamp_ms is not None:
            stamp_append_time(chunk, batch.at, self._stamp_ms)
        return RecordBatch(chunk, batch.at)

    def _note_time(self, batch: RecordBatch, crc: int) -> None:
        """Add the append time only for the first batch: all batches have the same append time."""
        if batch.base_offset == self._base_offset and self._adoption.append_ms != UNKNOWN_MS:
            self._times.note(batch.base_offset, self._adoption.append_ms, crc)


class ReplacementPass(SegmentPass):
    """Pass over a log file that will replace finished segments."""

    def __init__(
        self,
        context: SegmentContext,
        old: Sequence[ClosedSegment],
        segment: NewSegment,
        end_offset: int,
    ) -> None:
        """Create the pass.

        Args:
            context: Shared state of the partition's segments.
            old: Consecutive segments; the file has all or some of their records.
            segment: The file.
            end_offset: Upper bound of the batches' offsets, exclusive.
        """
        super().__init__(context, segment.base_offset, segment.size_bytes)
        self._old = old
        self._end_offset = end_offset

    def _check(self, batch: RecordBatch) -> None:
        if batch.base_offset < self.next_offset or batch.last_offset >= self._end_offset:
            raise CorruptBatch(
                f"offsets {batch.base_offset} to {batch.last_offset}, expected offsets from"
                f" {self.next_offset} to {self._end_offset - 1}",
                at=batch.at,
                offset=batch.base_offset,
            )

    def _note_time(self, batch: RecordBatch, crc: int) -> None:
        """Add the append time that the old segments have for a batch."""
        offset = batch.base_offset
        source = next(segment for segment in self._old if offset < segment.end_offset)
        append_ms = source.append_times.time_at(offset)
        if append_ms is None:
            self._times.mark_unknown(self.next_offset, self._last_batch_crc)
        else:
            self._times.note(offset, append_ms, crc)

    def sidecars(self) -> list[tuple[str, Buffer]]:
        """Return the files; see `SegmentPass`. Aborted transactions come from the old segments."""
        contents, start = super().sidecars(), self._base_offset
        aborted = [
            entry
            for segment in self._old
            for entry in segment.txn_index.entries
            if start <= entry.last_offset < self._end_offset
        ]
        if aborted:
            contents.append((log_files.TXN_INDEX_SUFFIX, TxnIndex(start, aborted).encoded))
        return contents
