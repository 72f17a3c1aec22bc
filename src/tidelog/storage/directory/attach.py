"""Attaches staged segments at the end of partitions, or replaces finished segments.

`attach` adds the segments that `StagedWriter` has written, in three steps:

1. Prepare every partition (`SegmentSwaps.prepare_adoption`): the last segment is finished, the
   leader epoch is on disk, and one append time is chosen for all records that are added to the
   partition.
2. Make a segment of each staged file (`AppendedPass`).
3. Publish all segments of all partitions by one commit.

A caller can pass a writer's name and a version: a number by which the writer identifies the commit.
The commit then also records this version. If the writer has already committed this version or a
later version, `attach` adds nothing.

`exchange` replaces finished segments by new segments that cover the same offsets, for code that
rewrites segments (an erasure removes records, a merge makes a large segment of many small ones).
The caller has to stage the new log files in the partition's directory, with batches at their final
offsets. `exchange` makes the indexes from the new files, and takes append times and aborted
transactions from the old segments. `exchange` does not compare the new records with the old
records: the caller guarantees that the new records are correct.

This module owns the checks and files of both operations; `publication` owns the order of
publishing. If a disk fails while a partition is prepared, this partition goes offline. If a disk
fails while files are staged, the call fails, and the partitions stay online. If the commit record
exists, or may exist, a failure takes all partitions of the commit offline.

Both functions need the directory's lock (a `LogDir` open for writing). Source:
docs/spark.md#to-a-directory; Kafka 4.x LogCleaner, LocalLog.replaceSegments.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from tidelog.errors import CorruptData, InvalidRequest, ReadOnly, StorageFailure
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import commits, log_files
from tidelog.storage import commits as writers
from tidelog.storage.commits import Move
from tidelog.storage.directory.log_dir import DirectoryAccess
from tidelog.storage.directory.publication import Change, draw_commit_id, publish
from tidelog.storage.directory.staging import (
    STAGING_AGE_MS,
    AppendedPass,
    NewSegment,
    ReplacementPass,
    SegmentPass,
    StagedSegment,
    check_staged,
    drop_staging,
    remove_quietly,
    staging_path,
    write_staged,
)
from tidelog.storage.log.log import LogAccess
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.segment_swaps import Adoption


@dataclass(frozen=True, slots=True)
class AttachedRange:
    """Offsets of the records that were attached to one partition.

    Attributes:
        first_offset: Offset of the first record.
        end_offset: Offset after the last record.
        append_time_ms: Append time of all records, -1 if the append clock is off.
        segments: Number of segments that this call attached.
    """

    first_offset: int
    end_offset: int
    append_time_ms: int
    segments: int


@dataclass(frozen=True, slots=True)
class AttachResult:
    """Result of an attach.

    Attributes:
        commit_id: Id of the commit record; empty if `was_done`.
        partitions: Attached range of each partition.
        record_count: Number of attached records.
        size_bytes: Size of the attached log files.
        was_done: True if the writer had already committed this version or a later version, so
            nothing was attached. If `WriterVersion.topics` is given, this holds for each of these
            topics. If `topics` is None and the writer's last version equals this version,
            `partitions` holds the ranges of the earlier commit, with 0 segments.
        note: The note of the commit that attached the ranges in `partitions`; this may be an
            earlier commit. Empty if there is no such commit.
        skipped: The writer's last version for each topic to which nothing was added, because the
            writer had already committed this version or a later one to the topic. Empty unless the
            writer counts versions by topic (`WriterVersion.topics`).
    """

    commit_id: str
    partitions: Mapping[TopicPartition, AttachedRange] = field(default_factory=dict)
    record_count: int = 0
    size_bytes: int = 0
    was_done: bool = False
    note: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriterVersion:
    """Version of a writer's commit. Records of the same version are attached at most once.

    Attributes:
        writer: Name of the writer.
        version: 0 or more; a writer's versions increase.
        note: Text stored with the version, for example the source of the records.
        topics: Topics of the write, if the writer counts the versions of each topic separately;
            None if the writer counts versions for all topics of the directory together.
    """

    writer: str
    version: int
    note: str = ""
    topics: tuple[str, ...] | None = None


def attach(
    log_dir: DirectoryAccess,
    staged: Iterable[StagedSegment],
    *,
    commit_id: str | None = None,
    version: WriterVersion | None = None,
) -> AttachResult:
    """Attach staged segments to their partitions by one commit.

    Args:
        log_dir: The directory, open for writing.
        staged: The segments, each once, in any order; `StagedSegment.order` gives their order in
            the partition.
        commit_id: 32 hexadecimal digits; a random id if None.
        version: The writer's version. If the writer has committed this version or a later one to
            the directory before, nothing is attached, and the caller has to drop the staged files.
            If `WriterVersion.topics` is given, each topic is checked separately.

    Raises:
        UnknownTopic, ReadOnly: Nothing became visible.
        MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp, InvalidRequest: The
            topic's rules refuse a segment, a staged file is missing, or the writer's name, version
            or note is invalid; nothing is visible.
        CorruptData: A staged file differs from the description by its writer, or the file of the
            writers' versions is damaged; nothing is visible.
        UnsupportedVersion: A later release wrote the file of the writers' versions; nothing is
            visible.
        ClockJump: The clock jumped; nothing is visible.
        Closed: The directory or a log was closed.
        StorageFailure: The disk failed, a partition is offline, or an earlier commit is unfinished.
            If the error has taken all partitions offline, reopening shows whether the segments are
            visible; otherwise the segments are not visible.
    """
    commit_id = commit_id or draw_commit_id(log_dir)
    ensure_finished(log_dir)
    if version is not None and (done := find_done(log_dir, version)) is not None:
        return done
    skipped = {} if version is None else _done_topics(marks_of(log_dir), version)
    changes = _group(log_dir, (one for one in staged if one.topic_partition.topic not in skipped))
    try:
        for change in changes:
            change.check()
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "attach") from error
    for change in changes:
        change.prepare()
    partitions = {change.log.topic_partition: change.result() for change in changes}
    marks = {} if version is None else _marks(log_dir, version, partitions)
    publish(log_dir, changes, "attach", commit_id=commit_id, marks=marks)
    # Remove staged files of jobs that ended long ago without attaching these files.
    oldest_ms = log_dir.env.clock.now_ms() - STAGING_AGE_MS
    drop_staging(log_dir.env.files, log_dir.path, older_than_ms=oldest_ms)
    return AttachResult(
        commit_id,
        partitions,
        sum(segment.record_count for change in changes for segment in change.segments),
        sum(segment.size_bytes for change in changes for segment in change.segments),
        note="" if version is None else version.note,
        skipped=skipped,
    )


def ensure_finished(log_dir: DirectoryAccess) -> None:
    """Check that the directory is writable and that no failure has left an unfinished commit.

    Commits that threads of this process are carrying out are ignored.

    Raises:
        ReadOnly: The directory was opened for reading.
        StorageFailure: A failure has left an unfinished commit, and reopening the directory
            finishes it; or the disk failed.
    """
    if not log_dir.is_writable:
        raise ReadOnly(f"{log_dir.path}: opened for reading; open it with writable=True")
    try:
        # A commit that ended after the listing has removed its record. If a record still exists and
        # its commit is not in progress, a failure has left it.
        unfinished = [
            path
            for path in commits.find_commits(log_dir.env.files, log_dir.path)
            if path not in log_dir.commit_records.under_way and log_dir.env.files.exists(path)
        ]
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "attach") from error
    if unfinished:
        raise StorageFailure(
            unfinished[0], "attach", "an earlier commit is unfinished; reopen the directory"
        )


def find_done(log_dir: DirectoryAccess, version: WriterVersion) -> AttachResult | None:
    """Return a result if the writer has already committed this or a later version; else None.

    With `WriterVersion.topics`, the writer must have committed this or a later version to each of
    these topics.

    Raises:
        InvalidRequest: The name, version or note is invalid.
        CorruptFile, UnsupportedVersion, StorageFailure: The file of the writers' versions is
            unreadable.
    """
    writers.ensure_version(version.writer, version.version, version.note)
    marks = marks_of(log_dir)
    if version.topics is not None:
        done = _done_topics(marks, version)
        is_all = bool(done) and len(done) == len(set(version.topics))
        return AttachResult("", was_done=True, skipped=done) if is_all else None
    mark = marks.get(version.writer)
    if mark is None or mark.version < version.version:
        return None
    if mark.version > version.version:
        return AttachResult("", was_done=True)
    ranges = {
        TopicPartition(topic, partition): AttachedRange(first, end, append_ms, 0)
        for topic, partition, first, end, append_ms in mark.ranges
    }
    return AttachResult("", ranges, was_done=True, note=mark.note)


def marks_of(log_dir: DirectoryAccess) -> dict[str, writers.Mark]:
    """Return the last version that each writer has committed, by the writer's name.

    Raises:
        CorruptFile, UnsupportedVersion, StorageFailure: The file of the writers' versions can't be
            read.
    """
    try:
        return writers.read_marks(log_dir.env.files, log_dir.path)
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "attach") from error


def _done_topics(marks: Mapping[str, writers.Mark], version: WriterVersion) -> dict[str, int]:
    return writers.find_done_topics(marks, version.writer, version.version, version.topics or ())


def _marks(
    log_dir: DirectoryAccess,
    version: WriterVersion,
    partitions: Mapping[TopicPartition, AttachedRange],
) -> dict[str, writers.Mark]:
    """Return the marks to store for a version; `commits.note` ignores marks of skipped topics."""
    ranges = tuple(
        (
            name.topic,
            name.partition,
            attached.first_offset,
            attached.end_offset,
            attached.append_time_ms,
        )
        for name, attached in sorted(partitions.items())
    )
    now_ms = log_dir.env.clock.now_ms()
    mark = writers.Mark(version.version, now_ms, version.note, ranges)
    if version.topics is None:
        return {version.writer: mark}
    return {
        writers.topic_writer(version.writer, topic): mark._replace(
            ranges=tuple(one for one in ranges if one[0] == topic)
        )
        for topic in version.topics
    }


def _group(log_dir: DirectoryAccess, staged: Iterable[StagedSegment]) -> "list[_Attachment]":
    """Return one attachment for each partition, in order of topic and partition."""
    by_partition: dict[TopicPartition, list[StagedSegment]] = defaultdict(list)
    for segment in staged:
        by_partition[segment.topic_partition].append(segment)
    changes = []
    for name, segments in sorted(by_partition.items()):
        log = log_dir.log(name.topic, name.partition)
        in_order = sorted(segments, key=lambda segment: segment.order)
        changes.append(_Attachment(log_dir.path, log, in_order))
    return changes


class _StagedChange(Change):
    """A change whose log files are already staged in the partition's directory."""

    def __init__(self, root: str, log: LogAccess, old: Sequence[ClosedSegment] = ()) -> None:
        super().__init__(log, old)
        self._root = root

    @property
    @abstractmethod
    def _names(self) -> list[str]:
        """Names of the staged files."""

    @abstractmethod
    def _passes(self) -> Iterator[SegmentPass]:
        """Yield a pass for each staged file, in the order of `_names`.

        Each pass is created when it is needed, which saves memory.
        """

    def stage(self) -> list[Move]:
        """Stage the files; see `Change`."""
        staged = zip(self._names, self.bases, self._passes(), strict=True)
        moves = [move for each in staged for move in self._stage(*each)]
        self._fs.sync_dir(self._directory)
        return moves

    def _stage(self, name: str, base_offset: int, segment_pass: SegmentPass) -> Iterator[Move]:
        path = staging_path(self._root, self.log.topic_partition, name)
        try:
            file = self._fs.open(path, write=True)
        except FileNotFoundError as error:
            raise InvalidRequest(f"{path}: the staged file is missing") from error
        try:
            segment_pass.run(file, path)
            file.sync()
        finally:
            file.close()
        move = self._move(name, base_offset, log_files.LOG_SUFFIX)
        self._fs.rename(path, f"{self._directory}/{move.staged}")
        yield move
        for suffix, content in segment_pass.sidecars():
            move = self._move(name, base_offset, suffix)
            write_staged(self._fs, f"{self._directory}/{move.staged}", content)
            yield move

    def _move(self, name: str, base_offset: int, suffix: str) -> Move:
        staged = f"{name}{suffix}{commits.STAGED_SUFFIX}"
        return Move(self._partition_dir, staged, log_files.file_name(base_offset, suffix))

    def discard(self) -> None:
        """Discard the files; see `Change`. The next open for writing removes files that remain."""
        for name in self._names:
            for suffix in log_files.SEGMENT_SUFFIXES:
                staged = f"{name}{suffix}{commits.STAGED_SUFFIX}"
                remove_quietly(self._fs, f"{self._directory}/{staged}")


class _Attachment(_StagedChange):
    """Attaching of staged segments at the end of one partition."""

    def __init__(self, root: str, log: LogAccess, segments: Sequence[StagedSegment]) -> None:
        super().__init__(root, log)
        self.segments = segments
        self._adoption: Adoption | None = None
        self._config = log.context.config

    def check(self) -> None:
        """Check each segment against the topic's rules, and the size of its file."""
        now_ms = self.log.context.env.clock.now_ms()
        for segment in self.segments:
            check_staged(segment, self._config, now_ms)
            self._check_file(segment)

    def _check_file(self, segment: StagedSegment) -> None:
        path = staging_path(self._root, segment.topic_partition, segment.name)
        try:
            size = self._fs.stat(path).size
        except FileNotFoundError as error:
            raise InvalidRequest(f"{path}: the staged file is missing") from error
        if size != segment.size_bytes:
            raise CorruptData(f"{size} bytes, but its writer wrote {segment.size_bytes}", path=path)

    def prepare(self) -> None:
        """Prepare the partition, and choose every segment's base offset."""
        self._adoption = self.log.swaps.prepare_adoption()
        self.end_offset = self._adoption.base_offset
        for segment in self.segments:
            self.bases.append(self.end_offset)
            self.end_offset += segment.record_count

    @property
    def _names(self) -> list[str]:
        return [segment.name for segment in self.segments]

    def _passes(self) -> Iterator[SegmentPass]:
        assert self._adoption is not None
        for segment, base in zip(self.segments, self.bases, strict=True):
            yield AppendedPass(self.log.context, segment, base, self._adoption)

    def result(self) -> AttachedRange:
        """Return the result for the partition, valid after the segments are published."""
        assert self._adoption is not None
        return AttachedRange(
            self._adoption.base_offset,
            self.end_offset,
            self._adoption.append_ms,
            len(self.segments),
        )


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """Result of an exchange: number of segments, and size of log files, before and after."""

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int


def exchange(
    log_dir: DirectoryAccess,
    partition: TopicPartition,
    bases: Sequence[int],
    new: Iterable[NewSegment],
    *,
    commit_id: str | None = None,
) -> ExchangeResult:
    """Replace finished segments of a partition by new segments for the same offsets.

    Args:
        log_dir: The directory, open for writing.
        partition: The partition.
        bases: Base offsets of consecutive finished segments.
        new: The new segments. The first new segment has the base offset of the first old segment,
            and no batch reaches beyond the end of the last old segment.
        commit_id: 32 hexadecimal digits; a random id if None.

    Raises:
        UnknownTopic, ReadOnly: Nothing was changed.
        InvalidRequest: `bases` are not consecutive finished segments, the tier has copies of some
            of them, the new base offsets are invalid, or a staged file is missing; nothing was
            changed.
        CorruptData: A staged file is damaged or has batches at other offsets, or files of the old
            segments are unreadable; nothing was changed.
        Closed: The directory or the log was closed.
        StorageFailure: The disk failed, the partition was offline, an earlier commit is unfinished,
            or the log truncated, removed or replaced an old segment during the call. If the error
            has taken the partition offline, reopening shows which segments it has; otherwise
            nothing was changed.
    """
    ensure_finished(log_dir)
    log = log_dir.log(partition.topic, partition.partition)
    in_order = sorted(new, key=lambda segment: segment.base_offset)
    change = _Exchange(log_dir.path, log, log.swaps.finished_run(bases), in_order)
    change.check()
    result = change.result()
    publish(log_dir, [change], "exchange", commit_id=commit_id)
    return result


class _Exchange(_StagedChange):
    """One exchange in progress."""

    def __init__(
        self, root: str, log: LogAccess, old: Sequence[ClosedSegment], new: Sequence[NewSegment]
    ) -> None:
        super().__init__(root, log, old)
        self._new = new
        self.bases = [segment.base_offset for segment in new]

    def check(self) -> None:
        """Check that the new base offsets are distinct and lie within the old segments.

        The first new base offset must be the base offset of the first old segment. Raises
        InvalidRequest.
        """
        where, first = self.log.topic_partition, self.old[0].base_offset
        if not self.bases or self.bases[0] != first:
            raise InvalidRequest(f"{where}: the first new segment must begin at offset {first}")
        if len(set(self.bases)) != len(self.bases) or self.bases[-1] >= self.end_offset:
            raise InvalidRequest(
                f"{where}: the base offsets of new segments, {self.bases}, must differ and be from"
                f" {first} to {self.end_offset - 1}, inclusive"
            )

    @property
    def _names(self) -> list[str]:
        return [segment.name for segment in self._new]

    def _passes(self) -> Iterator[SegmentPass]:
        ends = [*self.bases[1:], self.end_offset]
        for segment, end in zip(self._new, ends, strict=True):
            yield ReplacementPass(self.log.context, self.old, segment, end)

    def result(self) -> ExchangeResult:
        """Return the result of the exchange."""
        return ExchangeResult(
            len(self.old),
            len(self._new),
            sum(segment.size_bytes for segment in self.old),
            sum(segment.size_bytes for segment in self._new),
        )
