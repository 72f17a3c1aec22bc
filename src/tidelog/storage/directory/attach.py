"""Staged segments join a partition or replace finished ones.

Attaching staged segments to a directory: all of them become visible together, or none.

1. Every partition is made ready (`SegmentSwaps.prepare_adoption`): its last segment is finished,
   the leader epoch is on disk, one append time is drawn.
2. Every staged log file is walked once: checksums and counts are checked, each batch gets its
   offset, leader epoch and, on LogAppendTime topics, its time, in place. Beside it the indexes and
   the append times are written. All is synced under names that end with `.staged`.
3. One commit record is renamed into place (`commits`): from here on every segment is visible, and
   the writer's version is known, where it has one (`writers`).
4. The files get their final names and the partitions show them.

Before 3 nothing is visible, and the next opening for writing drops what lies there. After it the
next opening finishes what was left to do. A disk that fails before 3 fails the attach alone; one
that fails at 3 or later takes the partitions offline, since only reopening can tell.

Needs the directory's lock (a `LogDir` open for writing). Source: docs/spark.md#commit.

Exchanging finished segments of a partition for others of the same offsets, in one step.

For whoever rewrites segments (a cleaner drops records, many small ones become a large one): the
new log files are staged beside the partition (`NAME.log.staging`, as for `attach`), with the
offsets that their batches are to have. Then one commit record (`commits`) moves them into place
and takes the old ones away: before it a reader sees the old segments alone, after it the new ones
alone. What lies beside a log file is made here: indexes; append times and aborted transactions as
the old segments have them. That the new records are those that should be left is the caller's word.

A disk that fails before the record is renamed fails the exchange alone; later it takes the
partition offline, since only reopening can tell.

Needs the directory's lock. Source: Kafka 4.x LogCleaner, LocalLog.replaceSegments.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tidelog.env import File
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    InvalidRequest,
    ReadOnly,
    StorageFailure,
    TidelogError,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.storage import commits, files
from tidelog.storage import commits as writers
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.commits import Commit, Move, Removal
from tidelog.storage.directory.log_dir import DirectoryAccess
from tidelog.storage.directory.staging import (
    STAGING_AGE_MS,
    SegmentPass,
    StagedSegment,
    check_staged,
    drop_staging,
    remove_quietly,
    staging_path,
    write_staged,
)
from tidelog.storage.log.log import Log
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.derived_files import IndexBuilder
from tidelog.storage.segment.index import TxnIndex
from tidelog.storage.segment.segment import SegmentContext
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.segment_swaps import Adoption

__all__ = ["Exchanged", "NewSegment", "SegmentPass", "exchange"]


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
    commit_id = commit_id or uuid.UUID(int=log_dir.env.random.getrandbits(128)).hex
    ensure_finished(log_dir)
    if version is not None and (known := find_done(log_dir, version)) is not None:
        return known
    skipped = {} if version is None else _done_topics(marks_of(log_dir), version)
    works = _group(log_dir, (one for one in staged if one.topic_partition.topic not in skipped))
    _check(log_dir, works)
    for work in works:
        work.adoption = work.log.swaps.prepare_adoption()
    moves = _finish_files(log_dir, works)
    partitions = {work.log.topic_partition: work.result() for work in works}
    marks = {} if version is None else _marks(log_dir, version, partitions, skipped)
    commit = commits.Commit(moves=tuple(moves), marks=marks)
    if not commit.is_empty:
        _publish(log_dir, commit_id, commit, works)
        _show(works)
    _drop_forgotten(log_dir)
    return AttachResult(
        commit_id,
        partitions,
        sum(segment.record_count for work in works for segment in work.segments),
        sum(segment.size_bytes for work in works for segment in work.segments),
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
        left = [
            path
            for path in commits.find_commits(log_dir.env.files, log_dir.path)
            if path not in log_dir.commit_records.under_way and log_dir.env.files.exists(path)
        ]
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "attach") from error
    if left:
        raise StorageFailure(left[0], "attach", "an earlier commit is unfinished; reopen")


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
    known = marks.get(version.writer)
    if known is None or known.version < version.version:
        return None
    if known.version > version.version:
        return AttachResult("", was_done=True)
    ranges = {
        TopicPartition(topic, partition): AttachedRange(first, end, append_ms, 0)
        for topic, partition, first, end, append_ms in known.ranges
    }
    return AttachResult("", ranges, was_done=True, note=known.note)


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
        (name.topic, name.partition, found.first_offset, found.end_offset, found.append_time_ms)
        for name, found in sorted(partitions.items())
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


def _group(log_dir: DirectoryAccess, staged: Iterable[StagedSegment]) -> "list[_PartitionWork]":
    """The work of each partition, in order of their names."""
    by_partition: dict[TopicPartition, list[StagedSegment]] = defaultdict(list)
    for segment in staged:
        by_partition[segment.topic_partition].append(segment)
    works = []
    for name, segments in sorted(by_partition.items()):
        log = log_dir.log(name.topic, name.partition)
        in_order = sorted(segments, key=lambda segment: segment.order)
        works.append(_PartitionWork(log_dir.path, log, in_order))
    return works


def _check(log_dir: DirectoryAccess, works: "list[_PartitionWork]") -> None:
    try:
        for work in works:
            work.check()
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "attach") from error


def _finish_files(log_dir: DirectoryAccess, works: "list[_PartitionWork]") -> list[Move]:
    """Make all files ready; what is ready is dropped where one of them fails."""
    try:
        return [move for work in works for move in work.finish_files()]
    except (OSError, TidelogError) as error:
        for work in works:
            work.discard()
        if isinstance(error, OSError):
            raise as_storage_failure(error, log_dir.path, "attach") from error
        raise


def _drop_forgotten(log_dir: DirectoryAccess) -> None:
    """What jobs that died long ago have staged; that it can't be dropped is no failure of ours."""
    oldest_ms = log_dir.env.clock.now_ms() - STAGING_AGE_MS
    with suppress(OSError):
        drop_staging(log_dir.env.files, log_dir.path, older_than_ms=oldest_ms)


def _publish(
    log_dir: DirectoryAccess, commit_id: str, commit: commits.Commit, works: "list[_PartitionWork]"
) -> None:
    fs = log_dir.env.files
    try:
        commits.publish(fs, log_dir.path, commit_id, commit)
        commits.finish(fs, log_dir.path, commits.commit_path(log_dir.path, commit_id), commit)
    except OSError as error:
        failure = as_storage_failure(error, log_dir.path, "attach")
        for work in works:
            work.log.swaps.fail_adoption(failure.reason)
        raise failure from error


def _show(works: "list[_PartitionWork]") -> None:
    """Let every partition show its segments.

    Where one fails, those behind it go offline too: an append of theirs would go to a file whose
    name has become another's.
    """
    try:
        for work in works:
            work.log.swaps.adopt(work.bases, work.end_offset)
    except StorageFailure as failure:
        for work in works:
            if work.log.log_end_offset < work.end_offset:
                work.log.swaps.fail_adoption(failure.reason)
        raise


class _PartitionWork:
    """The staged segments of one partition on their way in."""

    def __init__(self, directory: str, log: Log, segments: Sequence[StagedSegment]) -> None:
        self.log = log
        self.segments = segments
        self.bases: list[int] = []
        self.end_offset = log.log_end_offset
        self.adoption: Adoption | None = None
        self._directory = directory
        self._config = log.context.config

    def check(self) -> None:
        """Hold every segment against the topic's rules, before anything is changed."""
        now_ms = self.log.context.env.clock.now_ms()
        for segment in self.segments:
            check_staged(segment, self._config, now_ms)
            self._check_file(segment)

    def _check_file(self, segment: StagedSegment) -> None:
        path = staging_path(self._directory, segment.topic_partition, segment.name)
        try:
            size = self.log.context.env.files.stat(path).size
        except FileNotFoundError as error:
            raise InvalidRequest(f"{path}: the staged file has gone") from error
        if size != segment.size_bytes:
            raise CorruptData(
                f"{size} bytes, its writer has written {segment.size_bytes}", path=path
            )

    def finish_files(self) -> list[Move]:
        """Give every segment its place, durably; what has to be renamed once all are ready."""
        moves: list[Move] = []
        for segment in self.segments:
            moves += self._finish(segment, self.end_offset)
            self.bases.append(self.end_offset)
            self.end_offset += segment.record_count
        self.log.context.env.files.sync_dir(self.log.context.directory)
        return moves

    def _finish(self, segment: StagedSegment, base_offset: int) -> list[Move]:
        assert self.adoption is not None
        fs = self.log.context.env.files
        path = staging_path(self._directory, segment.topic_partition, segment.name)
        pass_ = SegmentPass(segment, base_offset, self.adoption, self.log)
        file = fs.open(path, write=True)
        try:
            pass_.run(file, path)
            file.sync()
        finally:
            file.close()
        moves = [self._move(segment, base_offset, files.LOG_SUFFIX)]
        fs.rename(path, f"{self.log.context.directory}/{moves[0].staged}")
        for suffix, content in pass_.sidecars():
            move = self._move(segment, base_offset, suffix)
            context = self.log.context
            write_staged(context.env.files, f"{context.directory}/{move.staged}", content)
            moves.append(move)
        return moves

    def _move(self, segment: StagedSegment, base_offset: int, suffix: str) -> Move:
        directory = files.partition_dir_name(segment.topic_partition)
        staged = f"{segment.name}{suffix}{commits.STAGED_SUFFIX}"
        return Move(directory, staged, files.file_name(base_offset, suffix))

    def discard(self) -> None:
        """Remove what was made ready, as far as the disk allows."""
        for segment in self.segments:
            for suffix in files.SEGMENT_SUFFIXES:
                name = f"{segment.name}{suffix}{commits.STAGED_SUFFIX}"
                remove_quietly(self.log.context.env.files, f"{self.log.context.directory}/{name}")

    def result(self) -> AttachedRange:
        """What became of it."""
        assert self.adoption is not None
        return AttachedRange(
            self.adoption.base_offset,
            self.end_offset,
            self.adoption.append_ms,
            len(self.segments),
        )


CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """A staged log file that takes part in an exchange.

    Attributes:
        name: Its file is `NAME.log.staging` in the partition's directory.
        base_offset: Of the segment that it becomes.
        size_bytes: Size of the file.
    """

    name: str
    base_offset: int
    size_bytes: int


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
    commit_id = commit_id or uuid.UUID(int=log_dir.env.random.getrandbits(128)).hex
    ensure_finished(log_dir)
    log = log_dir.log(partition.topic, partition.partition)
    work = _Exchange(
        log_dir, log, log.swaps.finished_run(bases), sorted(new, key=lambda n: n.base_offset)
    )
    work.check()
    commit = work.prepare()
    try:
        commits.publish(log_dir.env.files, log_dir.path, commit_id, commit)
        path = commits.commit_path(log_dir.path, commit_id)
        commits.finish(log_dir.env.files, log_dir.path, path, commit)
    except OSError as error:
        failure = as_storage_failure(error, log_dir.path, "exchange")
        log.swaps.fail_adoption(failure.reason)
        raise failure from error
    return work.show()


class _Exchange:
    """One exchange on its way."""

    def __init__(
        self,
        log_dir: DirectoryAccess,
        log: Log,
        old: Sequence[ClosedSegment],
        new: Sequence[NewSegment],
    ) -> None:
        self._root = log_dir.path
        self._fs = log_dir.env.files
        self._log = log
        self._old = old
        self._new = new
        self._end_offset = old[-1].end_offset
        self._bytes_before = sum(segment.size_bytes for segment in old)

    def check(self) -> None:
        """Look whether the new segments have the old ones' place; raises InvalidRequest."""
        bases = [segment.base_offset for segment in self._new]
        where, first = self._log.topic_partition, self._old[0].base_offset
        if not bases or bases[0] != first:
            raise InvalidRequest(f"{where}: the first new segment has to begin at offset {first}")
        if len(set(bases)) != len(bases) or bases[-1] >= self._end_offset:
            raise InvalidRequest(
                f"{where}: new segments at {bases}, offsets {first} to {self._end_offset} are"
                " exchanged"
            )

    def prepare(self) -> Commit:
        """Make everything ready under staged names, durably; what is to be committed."""
        try:
            ends = [segment.base_offset for segment in self._new[1:]] + [self._end_offset]
            passes = [
                self._prepare(segment, end) for segment, end in zip(self._new, ends, strict=True)
            ]
            self._fs.sync_dir(self._log.context.directory)
            moves = [move for moved in passes for move in moved]
            return Commit(moves=tuple(moves), removes=tuple(self._removals(moves)))
        except (OSError, TidelogError) as error:
            self._discard()
            if isinstance(error, OSError):
                raise as_storage_failure(error, self._root, "exchange") from error
            raise

    def _prepare(self, segment: NewSegment, end_offset: int) -> list[Move]:
        path = staging_path(self._root, self._log.topic_partition, segment.name)
        try:
            file = self._fs.open(path, write=True)
        except FileNotFoundError as error:
            raise InvalidRequest(f"{path}: the staged file has gone") from error
        pass_ = ReplacementPass(self._log.context, self._old, segment, end_offset)
        try:
            pass_.run(file, path)
            file.sync()
        finally:
            file.close()
        log_move = self._move(segment, files.LOG_SUFFIX)
        self._fs.rename(path, f"{self._log.context.directory}/{log_move.staged}")
        moves = [log_move]
        for suffix, content in pass_.sidecars():
            moves.append(self._move(segment, suffix))
            directory = self._log.context.directory
            write_staged(self._fs, f"{directory}/{moves[-1].staged}", content)
        return moves

    def _move(self, segment: NewSegment, suffix: str) -> Move:
        return Move(
            files.partition_dir_name(self._log.topic_partition),
            f"{segment.name}{suffix}{commits.STAGED_SUFFIX}",
            files.file_name(segment.base_offset, suffix),
        )

    def _removals(self, moves: Iterable[Move]) -> Iterable[Removal]:
        """The old segments' files whose names the new ones don't take."""
        taken = {move.final for move in moves}
        kept = {segment.base_offset for segment in self._new}
        directory = files.partition_dir_name(self._log.topic_partition)
        for segment in self._old:
            base = segment.base_offset
            suffixes = files.SEGMENT_SUFFIXES
            for suffix in suffixes if base in kept else (*suffixes, files.SNAPSHOT_SUFFIX):
                name = files.file_name(base, suffix)
                if name not in taken and self._fs.exists(f"{self._log.context.directory}/{name}"):
                    yield Removal(directory, name)

    def _discard(self) -> None:
        for segment in self._new:
            for suffix in files.SEGMENT_SUFFIXES:
                name = f"{segment.name}{suffix}{commits.STAGED_SUFFIX}"
                remove_quietly(self._fs, f"{self._log.context.directory}/{name}")

    def show(self) -> Exchanged:
        """Let the open log show the new segments."""
        bases = [segment.base_offset for segment in self._new]
        self._log.swaps.exchange(self._old, list(pairwise([*bases, self._end_offset])))
        return Exchanged(
            len(self._old),
            len(self._new),
            self._bytes_before,
            sum(segment.size_bytes for segment in self._new),
        )


class ReplacementPass:
    """One walk over a log file that was written anew: checks it, and makes what lies beside it."""

    def __init__(
        self,
        context: SegmentContext,
        old: Sequence[ClosedSegment],
        segment: NewSegment,
        end_offset: int,
    ) -> None:
        self._old = old
        self._segment = segment
        self._end_offset = end_offset
        self._indexes = IndexBuilder(context.config, segment.base_offset)
        self._times = AppendTimes(segment.base_offset, context.topic_id)
        self._next = segment.base_offset
        self._last_named = 0

    def run(self, file: File, path: str) -> None:
        """Look at every batch.

        Raises:
            CorruptData: It is not sound, or its offsets are not in order and in their place.
            OSError: The disk failed.
        """
        size = file.size()
        if size != self._segment.size_bytes or not size:
            raise CorruptData(f"{size} bytes, {self._segment.size_bytes} were announced", path=path)
        position, wanted = 0, CHUNK_BYTES
        while position < size:
            chunk = files.read_exactly(file, min(wanted, size - position), position)
            used = self._look(chunk, path, position)
            if not used and wanted >= size - position:
                raise CorruptBatch("an incomplete batch", path=path, position=position)
            position += used
            wanted = CHUNK_BYTES if used else wanted * 2
        self._times.close(self._next, self._last_named)

    def _look(self, chunk: bytes, path: str, position: int) -> int:
        used = 0
        try:
            for batch in walk(chunk):
                if not isinstance(batch, RecordBatch):
                    raise CorruptBatch(f"magic {batch.magic}, 2 is expected", at=batch.at)
                batch.ensure_valid()
                self._take(batch, position + batch.at)
                used = batch.at + batch.size_bytes
        except CorruptData as error:
            raise error.located(path, position) from error
        return used

    def _take(self, batch: RecordBatch, position: int) -> None:
        if batch.base_offset < self._next or batch.last_offset >= self._end_offset:
            raise CorruptBatch(
                f"offsets {batch.base_offset} to {batch.last_offset} where {self._next} to"
                f" {self._end_offset - 1} have their place",
                at=batch.at,
                offset=batch.base_offset,
            )
        self._indexes.add(batch, position)
        self._note_time(batch)
        self._next = batch.last_offset + 1
        self._last_named = fingerprint(batch)

    def _note_time(self, batch: RecordBatch) -> None:
        """When the batch was appended, as the old segments know it."""
        offset = batch.base_offset
        source = next(segment for segment in self._old if offset < segment.end_offset)
        append_ms = source.append_times.time_at(offset)
        if append_ms is None:
            self._times.mark_unknown(self._next, self._last_named)
        else:
            self._times.note(offset, append_ms, fingerprint(batch))

    def sidecars(self) -> list[tuple[str, bytes | memoryview]]:
        """Suffix and content of the files beside the log file."""
        offset_index, time_index = self._indexes.finish()
        found: list[tuple[str, bytes | memoryview]] = [
            (files.OFFSET_INDEX_SUFFIX, offset_index.encoded),
            (files.TIME_INDEX_SUFFIX, time_index.encoded),
        ]
        if self._times.row_count:
            found.append((files.APPEND_TIME_SUFFIX, self._times.encode()))
        start, end = self._segment.base_offset, self._end_offset
        aborted = [
            entry
            for segment in self._old
            for entry in segment.txn_index.entries
            if start <= entry.last_offset < end
        ]
        if aborted:
            found.append((files.TXN_INDEX_SUFFIX, TxnIndex(start, aborted).encoded))
        return found
