"""Staged segments join partitions behind their end, or replace finished ones.

`attach` takes what `StagedWriter` has written: every partition is made ready
(`SegmentSwaps.prepare_adoption`: its last segment is finished, the leader epoch is on disk, one
append time is drawn), each staged file becomes a segment (`AppendedPass`), and all of them, of all
partitions, are published by one commit, which also says how far the writer has come. A version that
a writer has committed before adds nothing.

`exchange` puts new segments in the place of finished ones that cover the same offsets, for whoever
rewrites segments (an erasure takes records out, many small segments become a large one). The new
log files are staged beside the partition with the offsets that their batches are to have. Indexes,
append times and aborted transactions are made here, as the old segments have them. That the new
records are those that should be left is the caller's word.

Owns what both check and make; the order of publishing is `publication`'s. A disk that fails before
the commit record is there fails the call alone; later it takes the partitions offline.

Needs the directory's lock (a `LogDir` open for writing). Source: docs/spark.md#commit; Kafka 4.x
LogCleaner, LocalLog.replaceSegments.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.errors import CorruptData, InvalidRequest, ReadOnly, StorageFailure
from tidelog.storage import commits, files
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
from tidelog.storage.log.log_access import LogAccess
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.segment_swaps import Adoption


@dataclass(frozen=True, slots=True)
class AttachedRange:
    """What became of a partition's staged segments.

    Attributes:
        first_offset: Offset of the first record.
        end_offset: Offset behind the last one.
        append_time_ms: Append time of them all, -1 where the append clock is off.
        segments: How many there were.
    """

    first_offset: int
    end_offset: int
    append_time_ms: int
    segments: int


@dataclass(frozen=True, slots=True)
class AttachResult:
    """What an attach has made visible.

    Attributes:
        commit_id: Of its record.
        partitions: What became of each partition's segments.
        record_count: Records.
        size_bytes: Of log files.
        was_done: The writer had committed this version, or a later one, before: nothing was done.
            Of this very version `partitions` tells what became of it then (without segments).
        note: What the writer noted with it; of what was done before, where it was this version.
        skipped: Topics that had this version, or a later one, before (`WriterVersion.topics`), and
            the last version of each. Nothing was added to them.
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
    """A version of a writer's, which is attached at most once.

    Attributes:
        writer: Its name.
        version: From 0 on; a writer's versions grow.
        note: To be remembered with it, such as what the records were made of.
        topics: Topics of the write, each of which counts versions by itself; None where the
            writer counts all topics of the directory together.
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
    """Make staged segments part of their partitions, all together.

    Args:
        log_dir: Open for writing.
        staged: Each once, in any order; `order` tells their place in the partition.
        commit_id: 32 hexadecimal digits; drawn where None.
        version: Whose version it is. Where the directory has it already, or a later one of that
            writer, nothing is done; the staged files stay, and are the caller's to drop. With
            `topics` that goes for each topic.

    Raises:
        UnknownTopic, ReadOnly: As their names say; nothing is visible.
        MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp, InvalidRequest: The
            topic's rules refuse a segment, or its file has gone; nothing is visible.
        CorruptData: A staged file is not what its writer said; nothing is visible.
        ClockJump: The clock jumped; nothing is visible.
        StorageFailure: The disk failed. Where partitions are offline then, reopening tells
            whether the segments are visible; else they are not.
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
    marks = {} if version is None else _marks(log_dir, version, partitions, skipped)
    publish(log_dir, changes, "attach", commit_id=commit_id, marks=marks)
    # Files that jobs staged which ended long ago without attaching them.
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
    """Look whether the directory takes another commit.

    What a thread of this process is swapping in on another topic is no hindrance.

    Raises:
        ReadOnly: It was opened for reading.
        StorageFailure: A commit was left unfinished by a failure; only reopening finishes it.
    """
    if not log_dir.is_writable:
        raise ReadOnly(f"{log_dir.path}: opened for reading; open it with writable=True")
    try:
        # One that is not under way any more is either carried out by now, or was left.
        unfinished = [
            path
            for path in commits.find_commits(log_dir.env.files, log_dir.path)
            if path not in log_dir.commit_records.under_way and log_dir.env.files.exists(path)
        ]
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "attach") from error
    if unfinished:
        raise StorageFailure(unfinished[0], "attach", "an earlier commit is unfinished; reopen")


def find_done(log_dir: DirectoryAccess, version: WriterVersion) -> AttachResult | None:
    """What became of a version that the writer has committed before; None where it has not.

    Raises:
        InvalidRequest: A name, version or note that can't be kept.
        CorruptFile, UnsupportedVersion, StorageFailure: What is known can't be read.
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
    """Return how far writers have come; raises CorruptFile, UnsupportedVersion, StorageFailure."""
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
    skipped: Mapping[str, int],
) -> dict[str, writers.Mark]:
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
        if topic not in skipped
    }


def _group(log_dir: DirectoryAccess, staged: Iterable[StagedSegment]) -> "list[_Attachment]":
    """The attachment to each partition, in order of their names."""
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
    """A change whose log files lie staged beside the partition."""

    def __init__(self, root: str, log: LogAccess, old: Sequence[ClosedSegment] = ()) -> None:
        super().__init__(log, old)
        self._root = root

    @property
    @abstractmethod
    def _names(self) -> list[str]:
        """Names of the staged files."""

    @abstractmethod
    def _passes(self) -> Iterator[SegmentPass]:
        """The pass over each of them, in order; made one at a time, since each holds indexes."""

    def stage(self) -> list[Move]:
        """See `Change`."""
        staged = zip(self._names, self.bases, self._passes(), strict=True)
        moves = [move for each in staged for move in self._stage(*each)]
        self._fs.sync_dir(self._directory)
        return moves

    def _stage(self, name: str, base_offset: int, segment_pass: SegmentPass) -> Iterator[Move]:
        path = staging_path(self._root, self.log.topic_partition, name)
        try:
            file = self._fs.open(path, write=True)
        except FileNotFoundError as error:
            raise InvalidRequest(f"{path}: the staged file has gone") from error
        try:
            segment_pass.run(file, path)
            file.sync()
        finally:
            file.close()
        move = self._move(name, base_offset, files.LOG_SUFFIX)
        self._fs.rename(path, f"{self._directory}/{move.staged}")
        yield move
        for suffix, content in segment_pass.sidecars():
            move = self._move(name, base_offset, suffix)
            write_staged(self._fs, f"{self._directory}/{move.staged}", content)
            yield move

    def _move(self, name: str, base_offset: int, suffix: str) -> Move:
        staged = f"{name}{suffix}{commits.STAGED_SUFFIX}"
        return Move(self._partition_dir, staged, files.file_name(base_offset, suffix))

    def discard(self) -> None:
        """See `Change`: no opening takes what may be left for a part of the log."""
        for name in self._names:
            for suffix in files.SEGMENT_SUFFIXES:
                staged = f"{name}{suffix}{commits.STAGED_SUFFIX}"
                remove_quietly(self._fs, f"{self._directory}/{staged}")


class _Attachment(_StagedChange):
    """The staged segments of one partition on their way behind its end."""

    def __init__(self, root: str, log: LogAccess, segments: Sequence[StagedSegment]) -> None:
        super().__init__(root, log)
        self.segments = segments
        self._adoption: Adoption | None = None
        self._config = log.context.config

    def check(self) -> None:
        """Hold every segment against the topic's rules, before anything is changed."""
        now_ms = self.log.context.env.clock.now_ms()
        for segment in self.segments:
            check_staged(segment, self._config, now_ms)
            self._check_file(segment)

    def _check_file(self, segment: StagedSegment) -> None:
        path = staging_path(self._root, segment.topic_partition, segment.name)
        try:
            size = self._fs.stat(path).size
        except FileNotFoundError as error:
            raise InvalidRequest(f"{path}: the staged file has gone") from error
        if size != segment.size_bytes:
            raise CorruptData(
                f"{size} bytes, its writer has written {segment.size_bytes}", path=path
            )

    def prepare(self) -> None:
        """Make the partition ready, and give every segment its offsets."""
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
        """Where the records go, once they are published."""
        assert self._adoption is not None
        return AttachedRange(
            self._adoption.base_offset,
            self.end_offset,
            self._adoption.append_ms,
            len(self.segments),
        )


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an exchange has done: segments, and bytes of log files, before and after."""

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
) -> Exchanged:
    """Put new segments in the place of old ones.

    Args:
        log_dir: Open for writing.
        partition: Which partition.
        bases: Base offsets of finished segments that follow each other.
        new: What comes in their place: the first has the base offset of the first old one, and
            no batch reaches beyond the old ones' end.
        commit_id: 32 hexadecimal digits; drawn where None.

    Raises:
        UnknownTopic, ReadOnly: As their names say; nothing was changed.
        InvalidRequest: No such run of finished segments, some of them lie in a tier, or the new
            ones do not fit into their place; nothing was changed.
        CorruptData: A staged file is not sound, or what is known of old ones can't be read;
            nothing was changed.
        StorageFailure: The disk failed. Where the partition is offline then, reopening tells
            which segments are there; else the old ones.
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
    """One exchange on its way."""

    def __init__(
        self, root: str, log: LogAccess, old: Sequence[ClosedSegment], new: Sequence[NewSegment]
    ) -> None:
        super().__init__(root, log, old)
        self._new = new
        self.bases = [segment.base_offset for segment in new]

    def check(self) -> None:
        """Look whether the new segments have the old ones' place; raises InvalidRequest."""
        where, first = self.log.topic_partition, self.old[0].base_offset
        if not self.bases or self.bases[0] != first:
            raise InvalidRequest(f"{where}: the first new segment has to begin at offset {first}")
        if len(set(self.bases)) != len(self.bases) or self.bases[-1] >= self.end_offset:
            raise InvalidRequest(
                f"{where}: new segments at {self.bases}, offsets {first} to {self.end_offset} are"
                " exchanged"
            )

    @property
    def _names(self) -> list[str]:
        return [segment.name for segment in self._new]

    def _passes(self) -> Iterator[SegmentPass]:
        ends = [*self.bases[1:], self.end_offset]
        for segment, end in zip(self._new, ends, strict=True):
            yield ReplacementPass(self.log.context, self.old, segment, end)

    def result(self) -> Exchanged:
        """What it does."""
        return Exchanged(
            len(self.old),
            len(self._new),
            sum(segment.size_bytes for segment in self.old),
            sum(segment.size_bytes for segment in self._new),
        )
