"""Idempotent loads: a named source has numbered rows, and a load adds no row twice.

A load stages the rows that the directory lacks (`staging`) and attaches them by one commit. The
commit also records how many rows of the source are loaded. So a load adds all its new rows or none,
and a repeated load adds only rows that are new in the source. The commit also stores a digest of
all rows that are loaded so far. If N rows were loaded before, a repeated load computes the digest
of the source's first N rows, and compares this digest with the stored digest.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.amounts import plural
from tidelog.errors import InvalidRequest, RefusedRecords
from tidelog.storage import commits
from tidelog.storage.directory.attach import WriterVersion, attach, marks_of
from tidelog.storage.directory.log_dir import DirectoryAccess
from tidelog.storage.directory.staging import RowFacts, StagedSegment, StagedWriter, drop_staging
from tidelog.storage.log.batch_building import (
    batch_bytes_for,
    batch_limit,
    build_batches,
    stored_codec,
)
from tidelog.storage.log.record_rules import RecordRules
from tidelog.storage.log.validator import check_records
from tidelog.storage.open_files import FilePool, typed_failures
from tidelog.types import INT64_MAX, Codec, NewRecord, TopicPartition

ROWS_AT_ONCE: Final = 5_000
_ID_BITS: Final = 128

# Maximum length of a source's name. A writer's name can be longer, because the writer of a load is
# named after both the source and the topic.
SOURCE_CHARACTERS_MAX: Final = 200


class LoadedRange(NamedTuple):
    """Offsets of the rows that a load appended to one partition.

    Attributes:
        rows: Number of rows. If the load writes to brokers, records of other producers may be
            between the rows.
        first_offset: Offset of the first row.
        last_offset: Offset of the last row, inclusive.
        append_time_ms: Append time of the rows, -1 if unknown.
    """

    rows: int
    first_offset: int
    last_offset: int
    append_time_ms: int


class LoadResult(NamedTuple):
    """Result of a numbered load.

    Attributes:
        partitions: Offsets of the appended rows, by partition.
        rows: Number of rows appended.
        skipped: Number of rows that had been loaded before.
    """

    partitions: Mapping[int, LoadedRange]
    rows: int
    skipped: int


def check_source(source: str) -> None:
    """Raise InvalidRequest if a source's name is invalid."""
    if not 0 < len(source) <= SOURCE_CHARACTERS_MAX or not source.isprintable():
        raise InvalidRequest(
            f"the source's name must have 1 to {SOURCE_CHARACTERS_MAX} printable characters, got"
            f" {source!r:.60}"
        )


def too_few_rows(source: str, topic: str, skipped: int, rows: int) -> InvalidRequest:
    """Return the error for a source that has fewer rows than were loaded from it."""
    return InvalidRequest(
        f"{topic} already has {plural(skipped, 'row')} of source {source!r}, but this input has"
        f" only {rows}; nothing was appended. If this is another source, give it another name"
    )


def loaded_rows(log_dir: DirectoryAccess, topic: str, source: str) -> int:
    """Return the number of rows of a source that `load_once` has appended to a topic.

    Raises:
        InvalidRequest: The source's name is invalid.
        CorruptFile, UnsupportedVersion, StorageFailure: The file of the writers' versions can't be
            read.
    """
    check_source(source)
    mark = marks_of(log_dir).get(commits.topic_writer(f"load/{source}", topic))
    return 0 if mark is None else mark.version


class _Rows:
    """Counts rows and computes their digest, to compare them with the rows of an earlier load."""

    def __init__(self, records: Iterable[NewRecord]) -> None:
        self._records = iter(records)
        self._sum = hashlib.sha256()
        self.count = 0

    def __iter__(self) -> Iterator[NewRecord]:
        for record in self._records:
            self._take(record)
            yield record

    def _take(self, record: NewRecord) -> None:
        self.count += 1
        parts = [record.key, record.value]
        for header in record.headers:
            parts += [header.key.encode(errors="surrogatepass"), header.value]
        self._sum.update(f"{record.timestamp} {len(parts)} ".encode())
        for part in parts:
            self._sum.update(b"-" if part is None else b"%d:%b" % (len(part), part))

    @property
    def digest(self) -> str:
        """Digest of the rows so far."""
        return self._sum.hexdigest()


def load_once(  # noqa: PLR0913 - the keywords of `Directory.load_once`
    log_dir: DirectoryAccess,
    topic: str,
    records: Iterable[NewRecord],
    *,
    source: str,
    group: Callable[[Sequence[NewRecord]], Mapping[int, Sequence[NewRecord]]],
    codec: Codec,
    batch_bytes: int,
) -> LoadResult:
    """Append, by one commit, the rows of a source that are not in the topic yet.

    Args:
        log_dir: The directory, open for writing.
        topic: Name of the topic.
        records: All rows of the source, from the first row on.
        source: Name of the source.
        group: Groups rows by partition.
        codec: Compression codec; a codec that the topic's `compression.type` names has precedence.
        batch_bytes: Size in bytes, before compression, at which a batch is closed.

    Raises:
        InvalidRequest: The source's name is invalid, or the first rows of the source differ from
            the rows that were loaded under this name; nothing was appended.
        RefusedRecords: A rule of the topic refuses rows; nothing was appended. The error's
            `record_errors` have the indexes of these rows in the source.
        StorageFailure: The disk failed. If the error has taken partitions offline, reopening shows
            whether the rows were appended; otherwise nothing was appended.
        TidelogError: Another error, for example of `attach`; nothing was appended.
    """
    check_source(source)
    writer = f"load/{source}"
    mark = marks_of(log_dir).get(commits.topic_writer(writer, topic))
    rows = _Rows(records)
    skipped = 0 if mark is None else mark.version
    for _ in itertools.islice(rows, skipped):
        pass
    if rows.count < skipped:
        raise too_few_rows(source, topic, skipped, rows.count)
    if mark is not None and rows.digest != mark.note:
        rows_text = f"first {skipped:,} rows differ from those"
        first = "first row differs from the one" if skipped == 1 else rows_text
        raise InvalidRequest(
            f"the {first} that {topic} already has of source {source!r}; nothing was appended."
            " If this is another source, give it another name;"
            " if it is the same source, use the same options as before"
        )
    commit_id = f"{log_dir.env.random.getrandbits(_ID_BITS):032x}"
    try:
        with _Stage(log_dir, topic, commit_id, codec, batch_bytes) as stage:
            while chunk := list(itertools.islice(rows, ROWS_AT_ONCE)):
                stage.take_chunk(chunk, rows.count - len(chunk), group(chunk))
            if rows.count == skipped:
                return LoadResult({}, 0, skipped)
            version = WriterVersion(writer, rows.count, rows.digest, topics=(topic,))
            attached = attach(log_dir, stage.finish(), commit_id=commit_id, version=version)
    finally:
        drop_staging(log_dir.env.files, log_dir.path, prefix=commit_id, older_than_ms=INT64_MAX)
    ranges = {
        name.partition: LoadedRange(
            one.end_offset - one.first_offset,
            one.first_offset,
            one.end_offset - 1,
            one.append_time_ms,
        )
        for name, one in attached.partitions.items()
    }
    return LoadResult(ranges, rows.count - skipped, skipped)


def _indexes(some: Sequence[NewRecord], chunk: Sequence[NewRecord], first: int) -> list[int]:
    """Return the indexes of some rows of a chunk; `first` is the index of the chunk's first row."""
    left = iter(enumerate(chunk, first))
    return [next(index for index, row in left if row is one) for one in some]


class _Stage:
    """Staged segments of one load."""

    def __init__(
        self, log_dir: DirectoryAccess, topic: str, name: str, codec: Codec, batch_bytes: int
    ) -> None:
        self._log_dir = log_dir
        self._topic = topic
        self._name = name
        self._config = log_dir.topic(topic).config
        self._batch_bytes = batch_bytes_for(batch_bytes, batch_limit(self._config))
        self._codec, self._level = stored_codec(self._config, codec)
        self._pool = FilePool(log_dir.env.files)
        self._writers: dict[int, StagedWriter] = {}

    def __enter__(self) -> "_Stage":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def take_chunk(
        self,
        chunk: Sequence[NewRecord],
        start: int,
        groups: Mapping[int, Sequence[NewRecord]],
    ) -> None:
        """Write rows of several partitions.

        Args:
            chunk: The rows, in the order of the source.
            start: Index of the first row.
            groups: The same rows, by partition.

        Raises:
            RefusedRecords: The topic's rules refuse rows; the error has their indexes.
        """
        for partition, rows in groups.items():
            try:
                self.take(partition, rows)
            except RefusedRecords as error:
                indexes = _indexes(rows, chunk, start)
                raise error.renumbered(indexes.__getitem__) from None

    def take(self, partition: int, records: Sequence[NewRecord]) -> None:
        """Write rows of one partition; raises RefusedRecords if the topic's rules refuse rows."""
        now_ms = self._log_dir.env.clock.now_ms()
        times = [now_ms if one.timestamp is None else one.timestamp for one in records]
        timestamps = [ms for ms in times if ms >= 0]
        facts = RowFacts(
            min_timestamp=min(timestamps, default=INT64_MAX),
            has_null_key=any(one.key is None for one in records),
        )
        rules = RecordRules(str(TopicPartition(self._topic, partition)), self._config)
        bounds = (facts.min_timestamp, max(timestamps)) if timestamps and not rules.stamps else ()
        if (facts.has_null_key and self._config.is_compacted) or not all(
            rules.is_allowed(ms, now_ms) for ms in bounds
        ):
            # `check_records` raises an error that names the rows.
            check_records(rules.where, self._config, records, self._codec, now_ms)
        batches = build_batches(records, self._codec, self._batch_bytes, now_ms, level=self._level)
        writer = self._writer(partition)
        with typed_failures(self._log_dir.path, "stage"):
            writer.append(rules.sized(batches), facts)

    def _writer(self, partition: int) -> StagedWriter:
        writer = self._writers.get(partition)
        if writer is None:
            name = TopicPartition(self._topic, partition)
            self._log_dir.log(self._topic, partition)  # raises UnknownTopic
            path = self._log_dir.path
            writer = StagedWriter(self._pool, path, name, self._config, name=self._name)
            self._writers[partition] = writer
        return writer

    def finish(self) -> list[StagedSegment]:
        """Finish the staged segments, check them against the topic's rules, and return them."""
        now_ms = self._log_dir.env.clock.now_ms()
        with typed_failures(self._log_dir.path, "stage"):
            return [one for writer in self._writers.values() for one in writer.finish(now_ms)]
