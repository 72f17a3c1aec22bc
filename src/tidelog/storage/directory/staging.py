"""Staged log files, and the one pass that makes a segment of one (two `SegmentPass` today).

Writing finished log files beside a partition, for `attach` to take in later.

Many writers may stage at once, in other processes or on other machines, without the directory's
lock: a staged file is called `NAME.log.staging`, which neither we nor Kafka take for a part of the
log, and holds batches with offsets from 0 on. Nothing is visible until `attach` has given them
their place. What a job that died has left behind is dropped when it is old.

Life cycle: open -> append* -> finish or discard. Not safe for two threads.

One walk over a staged log file that becomes a segment: checks, patches, what lies beside it.

Owned by `attach`, which says where the records begin and when they were appended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.config import TopicConfig
from tidelog.env import File, FileSystem
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.header import assign_offset, stamp_append_time
from tidelog.storage import files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.log import Log
from tidelog.storage.log.segment_swaps import Adoption
from tidelog.storage.open_files import FilePool
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.derived_files import IndexBuilder
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

__all__ = [
    "STAGING_AGE_MS",
    "STAGING_SUFFIX",
    "RowFacts",
    "StagedSegment",
    "StagedWriter",
    "check_staged",
    "drop_staging",
    "remove_quietly",
    "staging_path",
]


STAGING_SUFFIX: Final = ".staging"


# A job may run for days; what is older than this was left behind by one that died.
STAGING_AGE_MS: Final = 7 * 24 * 3_600_000


# Batches are gathered to writes of this size.
WRITE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """One staged log file and what the topic's rules need to know of its records.

    Attributes:
        topic: Where it belongs.
        partition: Where it belongs.
        name: Its file is `NAME.log.staging` in the partition's directory.
        order: Its place among the staged segments of the partition.
        record_count: Records; their offsets are 0 to that, exclusive.
        size_bytes: Size of the file.
        batch_bytes_max: Size of the largest batch.
        min_timestamp: Smallest create time in ms other than -1; 2^63-1 where there is none.
        max_timestamp: Largest create time in ms, -1 where there is none.
        has_null_key: Whether any record has no key.
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
        """Where it belongs."""
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True)
class RowFacts:
    """What batch headers don't say of their records."""

    min_timestamp: int = INT64_MAX
    has_null_key: bool = False


def staging_path(directory: str, partition: TopicPartition, name: str) -> str:
    """Path of a staged log file."""
    stem = f"{directory}/{files.partition_dir_name(partition)}/{name}"
    return f"{stem}{files.LOG_SUFFIX}{STAGING_SUFFIX}"


def check_staged(segment: StagedSegment, config: TopicConfig, now_ms: int) -> None:
    """Hold a segment against the topic's rules, as an append would.

    Raises:
        MessageTooLarge: A batch over max.message.bytes.
        RecordListTooLarge: A segment over segment.bytes.
        InvalidRecord: A record without a key in a compacted topic.
        InvalidTimestamp: A create time outside the topic's limits.
    """
    where, limit = str(segment.topic_partition), config.max_message_bytes
    if segment.batch_bytes_max > limit:
        raise MessageTooLarge(
            f"{where}: a batch of {segment.batch_bytes_max} bytes, max.message.bytes is {limit}"
        )
    if segment.size_bytes > config.segment_size_limit:
        raise RecordListTooLarge(
            f"{where}: a segment of {segment.size_bytes} bytes,"
            f" segment.bytes is {config.segment_size_limit}"
        )
    if segment.has_null_key and config.is_compacted:
        raise InvalidRecord(f"{where}: records without a key, which a compacted topic needs")
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        _check_times(segment, config, now_ms)


def _check_times(segment: StagedSegment, config: TopicConfig, now_ms: int) -> None:
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    for timestamp in (segment.min_timestamp, segment.max_timestamp):
        if timestamp in (NO_TIMESTAMP, INT64_MAX):
            continue
        if now_ms - timestamp > before or timestamp - now_ms > after:
            raise InvalidTimestamp(
                f"{segment.topic_partition}: timestamp {timestamp} is {timestamp - now_ms} ms from"
                f" the log's clock ({now_ms}), allowed are -{before} to +{after}"
            )


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
        """Begin; no file is made before there are records.

        Args:
            pool: Open files, for writing.
            directory: The directory of topics; the partition's own must exist.
            partition: Where the segments belong.
            config: The topic's settings.
            name: Beginning of the files' names, not used by any other writer or attempt.
            order: Place of this writer among those of the partition.
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
            batches: Sealed; the buffers are kept and changed.
            facts: Of all their records together.

        Raises:
            MessageTooLarge, RecordListTooLarge: A batch that the topic does not take.
            OSError: The disk failed; `discard` what was written.
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
        mine = self._facts
        mine.min_timestamp = min(mine.min_timestamp, facts.min_timestamp)
        mine.has_null_key |= facts.has_null_key

    def _has_room(self, size_bytes: int, count: int) -> bool:
        """Whether the segment takes another batch; an empty one takes any, the check judges it."""
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
        """The staged segments, held against the topic's rules as they are now.

        Raises:
            MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp: As
                `check_staged`; `discard` what was written.
        """
        self._finish_segment()
        for segment in self._done:
            check_staged(segment, self._config, now_ms)
        return list(self._done)

    def discard(self, fs: FileSystem) -> None:
        """Remove what was written; never raises, since it runs when something else failed."""
        names = [*(segment.name for segment in self._done), self._segment_name]
        for name in names:
            path = staging_path(self._directory, self._partition, name)
            self._pool.forget(path)
            remove_quietly(fs, path)


def write_staged(fs: FileSystem, path: str, content: Buffer) -> None:
    """Write a file whole and durably under a name that nobody reads yet; raises OSError.

    What stood there of an earlier attempt is gone. The name itself is not synced.
    """
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        files.write_fully(file, content, 0)
        file.sync()
    finally:
        file.close()


def remove_quietly(fs: FileSystem, path: str) -> None:
    """Remove a file if it is there and can be removed."""
    try:
        fs.remove(path)
    except OSError:
        return


def drop_staging(fs: FileSystem, directory: str, *, prefix: str = "", older_than_ms: int) -> int:
    """Remove staged log files that nobody will attach any more; how many there were.

    Args:
        fs: Files.
        directory: The directory of topics.
        prefix: Only files whose names begin so.
        older_than_ms: Only files whose last change lies before this, in ms.
    """
    dropped = 0
    for entry in fs.list_dir(directory):
        if not entry.is_dir or files.parse_partition_dir(entry.name) is None:
            continue
        paths = _staged_paths(fs, f"{directory}/{entry.name}", prefix)
        dropped += sum(_drop_older(fs, path, older_than_ms) for path in paths)
    return dropped


def _staged_paths(fs: FileSystem, folder: str, prefix: str) -> list[str]:
    try:
        names = [item.name for item in fs.list_dir(folder)]
    except FileNotFoundError:
        return []  # its topic was deleted meanwhile
    return [
        f"{folder}/{name}"
        for name in names
        if name.endswith(STAGING_SUFFIX) and name.startswith(prefix)
    ]


def _drop_older(fs: FileSystem, path: str, older_than_ms: int) -> bool:
    try:
        if fs.stat(path).mtime_ms >= older_than_ms:
            return False
    except FileNotFoundError:
        return False  # its writer has removed it meanwhile
    remove_quietly(fs, path)
    return True


CHUNK_BYTES: Final = 4 << 20


class SegmentPass:
    """One walk over a staged log file: checks it, patches it, and makes what lies beside it."""

    def __init__(
        self, segment: StagedSegment, base_offset: int, adoption: Adoption, log: Log
    ) -> None:
        self._segment = segment
        self._base_offset = base_offset
        self._adoption = adoption
        self._config = log.context.config
        self._topic_id = log.context.topic_id
        self._indexes = IndexBuilder(self._config, base_offset)
        self._next = 0
        self._first_named = self._last_named = 0

    def run(self, file: File, path: str) -> None:
        """Patch every batch in place.

        Raises:
            CorruptData: Not the batches that the writer has said.
            OSError: The disk failed.
        """
        position, size = 0, self._segment.size_bytes
        wanted = CHUNK_BYTES
        while position < size:
            chunk = bytearray(files.read_exactly(file, min(wanted, size - position), position))
            used = self._patch(chunk, path, position)
            if not used and wanted >= size - position:
                raise CorruptBatch("an incomplete batch", path=path, position=position)
            files.write_fully(file, memoryview(chunk)[:used], position)
            position += used
            wanted = CHUNK_BYTES if used else wanted * 2
        if self._next != self._segment.record_count:
            reason = f"{self._next} records, its writer has written {self._segment.record_count}"
            raise CorruptData(reason, path=path)

    def _patch(self, chunk: bytearray, path: str, position: int) -> int:
        """Patch the whole batches of a chunk; the bytes that they take."""
        used = 0
        try:
            for batch in walk(chunk):
                self._check(batch)
                used = self._patch_batch(chunk, batch.at, position)
        except CorruptData as error:
            raise error.located(path, position) from error
        return used

    def _check(self, batch: object) -> None:
        assert isinstance(batch, RecordBatch), "staged batches are of magic 2"
        batch.ensure_valid()
        if batch.base_offset != self._next or batch.is_control or batch.has_producer_id:
            raise CorruptBatch(
                f"a batch at offset {batch.base_offset} where {self._next} is next, or one that"
                " belongs to a producer",
                at=batch.at,
                offset=batch.base_offset,
            )
        target = self._config.compression_type.target_codec
        if target is not None and batch.codec is not target:
            raise InvalidRequest(
                f"{self._segment.topic_partition}: staged with codec {batch.codec.config_name},"
                f" but compression.type is {Codec(target).config_name} by now"
            )

    def _patch_batch(self, chunk: bytearray, at: int, position: int) -> int:
        """Give a batch its final header and note it in the indexes; the place behind it."""
        offset = self._base_offset + self._next
        assign_offset(chunk, at, offset, self._adoption.leader_epoch)
        if self._config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            stamp_append_time(chunk, at, self._adoption.stamp_ms)
        final = RecordBatch(chunk, at)
        self._indexes.add(final, position + at)
        if not self._next:
            self._first_named = fingerprint(final)
        self._last_named = fingerprint(final)
        self._next += final.last_offset_delta + 1
        return at + final.size_bytes

    def sidecars(self) -> list[tuple[str, bytes | memoryview]]:
        """Suffix and content of the files beside the log file."""
        offset_index, time_index = self._indexes.finish()
        found: list[tuple[str, bytes | memoryview]] = [
            (files.OFFSET_INDEX_SUFFIX, offset_index.encoded),
            (files.TIME_INDEX_SUFFIX, time_index.encoded),
        ]
        if self._adoption.append_ms != UNKNOWN_MS:
            found.append((files.APPEND_TIME_SUFFIX, self._append_times()))
        return found

    def _append_times(self) -> bytes:
        """One row for all records, and one that ends it."""
        times = AppendTimes(self._base_offset, self._topic_id)
        times.note(self._base_offset, self._adoption.append_ms, self._first_named)
        times.close(self._base_offset + self._segment.record_count, self._last_named)
        return times.encode()
