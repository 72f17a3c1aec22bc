"""Exchanging finished segments of a partition for others of the same offsets, in one step.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.env import File
from tidelog.errors import CorruptBatch, CorruptData, InvalidRequest, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.views import walk
from tidelog.storage import commits, files
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.attach import ensure_finished
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.commits import Commit, Move, Removal
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.index_files import IndexBuilder
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir
from tidelog.storage.segment import SegmentContext
from tidelog.storage.staging import remove_quietly, staging_path, write_staged
from tidelog.storage.trust import fingerprint
from tidelog.storage.txn_index import TxnIndex
from tidelog.types import TopicPartition

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
    log_dir: LogDir,
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
        log_dir, log, log.finished_run(bases), sorted(new, key=lambda n: n.base_offset)
    )
    work.check()
    commit = work.prepare()
    try:
        commits.publish(log_dir.env.files, log_dir.path, commit_id, commit)
        path = commits.commit_path(log_dir.path, commit_id)
        commits.finish(log_dir.env.files, log_dir.path, path, commit)
    except OSError as error:
        failure = as_storage_failure(error, log_dir.path, "exchange")
        log.fail_adoption(failure.reason)
        raise failure from error
    return work.show()


class _Exchange:
    """One exchange on its way."""

    def __init__(
        self,
        log_dir: LogDir,
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
        pass_ = SegmentPass(self._log.context, self._old, segment, end_offset)
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
        self._log.exchange(self._old, list(pairwise([*bases, self._end_offset])))
        return Exchanged(
            len(self._old),
            len(self._new),
            self._bytes_before,
            sum(segment.size_bytes for segment in self._new),
        )


class SegmentPass:
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


__all__ = ["Exchanged", "NewSegment", "SegmentPass", "exchange"]
