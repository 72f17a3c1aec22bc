"""Erases a key: appends a tombstone, and rewrites files and tier objects without the key's records.

1. Every file of the topic's partitions is read from end to end to find the records of the key,
   including records of aborted transactions. The receipt has the SHA-256 of each file, which shows
   which bytes were read.
2. Each partition with records of the key gets a tombstone, and the partition's active segment is
   rolled. A tombstone that is the key's only record in its partition stays, so a repeated erasure
   changes nothing there.
3. Each segment with records of the key is rewritten without these records. A separate step for each
   segment exchanges the old segment for the new one (`attach`). Batches without records of the key
   are copied unchanged. A batch that loses all records becomes an empty batch, so offsets and
   sequences are kept. Before the first exchange, a time is stored in the compaction history: a
   table of the topic's keys is exact only as of this time or later.
4. In a tier, objects with records of the key are replaced before local segments. The replacement
   takes one segment at a time, with one compare-and-swap for each segment. The replaced objects,
   and all other objects that the manifest does not name, are removed without the grace period. A
   reader whose plan names a removed object reads the manifest again, and makes a new plan. The
   tier's copies of local segments are dropped before the local segments are exchanged. A later tier
   run copies the new local segments.
5. Files that wait for deletion are removed if they contain the key. Then all of the partitions'
   files are searched for the key again. The receipt lists the files that still contain the key, and
   the places that no program on this machine can reach.

If a crash interrupts an erasure, some segments may already be rewritten; a repeated erasure does
the rest. The key's bytes stay in the tombstone until compaction or retention removes the tombstone.
An erasure needs the directory's lock. A search without an erasure needs no lock.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, TypedDict

from tidelog.amounts import duration_text, plural, verb
from tidelog.config import CLEANUP_DELETE, TopicConfig
from tidelog.errors import (
    CorruptData,
    CorruptFile,
    InvalidRequest,
    MissingFile,
    UnsupportedForMessageFormat,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.builder import build_empty_batch
from tidelog.record.record import Record
from tidelog.storage import files, log_files
from tidelog.storage.commits import STAGED_SUFFIX
from tidelog.storage.compaction.cleaning_plan import is_whole
from tidelog.storage.directory.attach import exchange
from tidelog.storage.directory.broker_files import GROUPS_FILE
from tidelog.storage.directory.staging import (
    STAGING_SUFFIX,
    NewSegment,
    remove_quietly,
    staging_path,
)
from tidelog.storage.directory.topic_registry import absent_error
from tidelog.storage.directory.topic_retention import applied_config
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.closed_segment import as_closed
from tidelog.storage.segment.compaction_history import (
    ALWAYS_MS,
    HISTORY_FILE,
    CompactionHistory,
    read_history,
    write_history,
)
from tidelog.storage.segment.lost_times import ACCEPT, ensure_times, lost_times
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.slices import checked_records, slices
from tidelog.storage.tier.remote_segment import RemoteSegment
from tidelog.storage.tier.tier_files import object_url, verified
from tidelog.storage.tier_manager.mover import MoveOptions, Mover
from tidelog.storage.tier_manager.orphans import collect_orphans
from tidelog.storage.tier_manager.tier_compaction import (
    Workplace,
    copy_rewritten,
    drop_rewritten,
    write_rewritten,
)
from tidelog.storage.tier_manager.tier_store import remove_garbage
from tidelog.types import (
    INT64_MAX,
    NO_OFFSET,
    NO_TIMESTAMP,
    UNKNOWN_MS,
    NewRecord,
    TimestampType,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.env import File
    from tidelog.storage.directory.log_dir import DirectoryAccess
    from tidelog.storage.log.log import LogAccess
    from tidelog.storage.log.log_reader import LogView


_CHUNK_BYTES: Final = 8 << 20

# Name suffixes of files that may hold copies of a segment's records.
_ASIDE: Final = (
    log_files.DELETED_SUFFIX,
    log_files.CLEANED_SUFFIX,
    log_files.SWAP_SUFFIX,
    STAGING_SUFFIX,
    STAGED_SUFFIX,
)


_DAMAGED: Final = "damaged, so it can't be searched; remove the file once it is not needed"


class FileEntry(TypedDict):
    """Entry of a file in a receipt."""

    partition: int
    file: str
    bytes: int
    sha256: str
    offsets: list[int]


class TombstoneEntry(TypedDict):
    """Entry of a tombstone in a receipt."""

    partition: int
    offset: int


class Receipt(TypedDict):
    """Outcome of an erasure as JSON values. Times are in ms."""

    version: int
    topic: str
    key_sha256: str
    executed: bool
    complete: bool
    started_ms: int
    ended_ms: int
    records: int
    found: list[FileEntry]
    tombstones: list[TombstoneEntry]
    searched: list[FileEntry]
    removed_files: list[str]
    not_reached: list[str]
    out_of_reach: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """A log file that was read from end to end.

    Attributes:
        partition: The file's partition.
        path: The file's path; for an object of a tier, its tier path.
        base_offset: Base offset of the file's segment; -1 if the file no longer belongs to a
            segment.
        size_bytes: Number of bytes that were read.
        sha256: SHA-256 of the bytes that were read, in hexadecimal digits.
        offsets: Offsets of the key's records, ascending.
        is_tiered: Whether the file is an object of the tier.
    """

    partition: TopicPartition
    path: str
    base_offset: int
    size_bytes: int
    sha256: str
    offsets: tuple[int, ...]
    is_tiered: bool = False

    def to_receipt(self) -> FileEntry:
        """Return the file's entry in a receipt."""
        return {
            "partition": self.partition.partition,
            "file": object_url(self.path),
            "bytes": self.size_bytes,
            "sha256": self.sha256,
            "offsets": list(self.offsets),
        }


def search(
    log_dir: "DirectoryAccess", name: TopicPartition, key: bytes, unsearched: list[str]
) -> list[SearchedFile]:
    """Search all log files of a partition, including files in a tier, for records of the key.

    `unsearched` receives a line for each file beside the log that is damaged.
    """
    reader = _reader(log_dir, name)
    searched = [
        _search_file(name, each.log_path, each.base_offset, key, log_dir, is_tiered=each.is_tiered)
        for each in reader.segments
    ]
    directory = f"{log_dir.path}/{files.partition_dir_name(name)}"
    for entry in log_dir.env.files.list_dir(directory):
        path = f"{directory}/{entry.name}"
        if entry.name.endswith(log_files.ASIDE_SUFFIX):
            unsearched.append(f"{path}: {_DAMAGED}")
        elif log_files.LOG_SUFFIX in entry.name and entry.name.endswith(_ASIDE):
            try:
                searched.append(_search_file(name, path, -1, key, log_dir))
            except CorruptData as error:
                unsearched.append(f"{path}: {_DAMAGED} ({error.reason})")
    return searched


def _lone_tombstone(
    log_dir: "DirectoryAccess", name: TopicPartition, searched: Sequence[SearchedFile]
) -> int | None:
    """Return the offset of the key's only record if this record is a tombstone, else None.

    Three kinds of tombstones are erased like other records: a tombstone in a transaction, which may
    be aborted; a tombstone with headers, which contains more than the key; and a tombstone below
    the log start, which can't be read.
    """
    offsets = {at for one in searched if one.base_offset >= 0 for at in one.offsets}
    if len(offsets) != 1:
        return None
    (offset,) = offsets
    log = _reader(log_dir, name)
    if offset < log.log_start_offset:
        return None
    for part in slices(log.segments, offset, offset + 1):
        for position, batch in part.batches():
            if isinstance(batch, RecordBatch) and not batch.is_transactional:
                records = checked_records(part.segment, position, batch)
                if any(one.offset == offset and _is_bare_tombstone(one) for one in records):
                    return offset
    return None


def _is_bare_tombstone(record: Record) -> bool:
    return record.value is None and not record.headers


def _reader(log_dir: "DirectoryAccess", name: TopicPartition) -> "LogView":
    if log_dir.is_writable:
        return log_dir.log(name.topic, name.partition)
    return log_dir.reader(name.topic, name.partition)


def _search_file(
    name: TopicPartition,
    path: str,
    base_offset: int,
    key: bytes,
    log_dir: "DirectoryAccess",
    *,
    is_tiered: bool = False,
) -> SearchedFile:
    fs = log_dir.tier_files if is_tiered else log_dir.env.files
    file = verified(fs.open(path), path)
    try:
        digest, size, offsets = _search_bytes(file, path, key)
    finally:
        file.close()
    return SearchedFile(
        partition=name,
        path=path,
        base_offset=base_offset,
        size_bytes=size,
        sha256=digest,
        offsets=tuple(offsets),
        is_tiered=is_tiered,
    )


def _search_bytes(file: "File", path: str, key: bytes) -> tuple[str, int, list[int]]:
    """Return digest and size of a log file, and the offsets of the key's records.

    Raises CorruptData with the path and the position if a batch is damaged.
    """
    from tidelog.record.columns.batch_table import DecodeStats
    from tidelog.record.columns.decode import decode

    size, digest, offsets = file.size(), hashlib.sha256(), list[int]()
    position, read_bytes = 0, _CHUNK_BYTES
    while position < size:
        chunk = files.read_exactly(file, min(read_bytes, size - position), position)
        stats = DecodeStats()
        try:
            for batch in decode(chunk, columns=("offset", "key"), stats=stats):
                offsets += _offsets_of(batch, key)
        except CorruptData as error:
            raise error.located(path, position) from error
        if not stats.end_at and read_bytes < size - position:
            read_bytes *= 2
            continue
        used = stats.end_at or len(chunk)  # the rest is a torn batch, without a whole record
        digest.update(memoryview(chunk)[:used])
        position, read_bytes = position + used, _CHUNK_BYTES
    return digest.hexdigest(), size, offsets


def _offsets_of(batch: object, key: bytes) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert isinstance(batch, pa.RecordBatch)
    is_it = pc.equal(batch.column("key"), pa.scalar(key, pa.binary()))
    return [int(cell.as_py()) for cell in batch.column("offset").filter(is_it)]


UNREACHABLE: Final = (
    "other topics of this directory",
    "other replicas of the topic, and followers of this directory",
    "mirrors and copies in other clusters, directories and object stores",
    "backups and snapshots of the disk, and blocks that the disk has not yet written over",
    "earlier versions of objects, if a bucket keeps versions",
    "tier blocks that are cached in other folders and on other machines",
    "data that consumers have read: their state, tables, caches and sinks",
    "records that hold the key in their value or headers, under another key",
)

# Prefix of the names of files that an erasure stages.
_STAGED: Final = "erase-"


@dataclass(slots=True, kw_only=True)
class Erasure:
    """Outcome of an erasure.

    Attributes:
        topic: The topic.
        key: The key.
        started_ms: Start time in ms.
        ended_ms: End time in ms.
        is_executed: Whether the key was to be erased; False if it was only searched for.
        removal: Part of a sentence on how long a tombstone stays in this topic.
        searched: All log files, as they were before the erasure.
        tombstones: Partition and offset of each tombstone that stays. A tombstone stays if the
            erasure appended it, or if it is the key's only record in its partition.
        left: All log files, as they are after the erasure.
        absent: Sentence on partitions that have no directory, so that they could not be searched;
            None if every partition has one.
        lost_times: A sentence on each segment that the erasure would rewrite or has rewritten, and
            whose append times are damaged or lost.
        removed: Removed files and tier objects that contained the key. Each removed file was
            waiting for deletion.
        not_reached: Files that still contain records of the key to erase, with up to 10 offsets of
            these records for each file, and files of damaged bytes, which can't be searched.
    """

    topic: str
    key: bytes
    started_ms: int
    ended_ms: int = 0
    is_executed: bool = False
    removal: str
    searched: list[SearchedFile] = field(default_factory=list)
    tombstones: list[tuple[int, int]] = field(default_factory=list)
    left: list[SearchedFile] = field(default_factory=list)
    absent: str | None = None
    lost_times: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the key was erased, so that log files contain only tombstones of the key."""
        return self.is_executed and not self.not_reached

    def tombstones_in(self, name: TopicPartition) -> Set[int]:
        """Return offsets of the tombstones that stay in a partition."""
        return {offset for number, offset in self.tombstones if number == name.partition}

    def receipt(self) -> Receipt:
        """Return the outcome as JSON values, with the key's digest instead of the key."""
        searched = self.left if self.is_executed else self.searched
        matches = [one for one in map(self._without_tombstone, self.searched) if one.offsets]
        return {
            "version": 1,
            "topic": self.topic,
            "key_sha256": hashlib.sha256(self.key).hexdigest(),
            "executed": self.is_executed,
            "complete": self.is_complete,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "records": sum(len(one.offsets) for one in matches),
            "found": [one.to_receipt() for one in matches],
            "tombstones": [{"partition": n, "offset": offset} for n, offset in self.tombstones],
            "searched": [one.to_receipt() for one in searched],
            "removed_files": self.removed,
            "not_reached": self.not_reached,
            "out_of_reach": list(UNREACHABLE),
            "notes": self._notes({one.partition.partition for one in matches}),
        }

    def _without_tombstone(self, one: SearchedFile) -> SearchedFile:
        """Return a file's entry without the offsets of the tombstones that stay.

        The entry of a file that belongs to no segment is returned unchanged.
        """
        if one.base_offset < 0:
            return one
        stays = self.tombstones_in(one.partition)
        return replace(one, offsets=tuple(at for at in one.offsets if at not in stays))

    def _notes(self, partitions: Set[int]) -> list[str]:
        """Return sentences on missing partitions, lost times, tombstones that stay, inexact tables.

        `partitions` are the numbers of the partitions that have records to erase.
        """
        notes = [*([self.absent] if self.absent else []), *self.lost_times]
        if self.tombstones:
            locations = ", ".join(f"{self.topic}-{n} at {offset}" for n, offset in self.tombstones)
            notes.append(
                f"the key stays in {plural(len(self.tombstones), 'tombstone')} ({locations}), from"
                f" which consumers and followers learn of the deletion: {self.removal}"
            )
        if not partitions:
            return notes
        names = ", ".join(f"{self.topic}-{number}" for number in sorted(partitions))
        if not self.is_executed:
            notes.append(
                f"--execute appends a tombstone with the key to {names}, from which consumers and"
                f" followers learn of the deletion: {self.removal}"
            )
        when = "from now on" if self.is_executed else "after --execute"
        notes.append(
            f"tables of {names} as of earlier times, and differences between them, are inexact"
            f" {when}: they lack the key"
        )
        return notes


def erasure_verdict(receipt: Receipt) -> str:
    """Return a sentence on the records that an erasure found or erased, from its receipt."""
    topic, count = receipt["topic"], receipt["records"]
    files, searched = len(receipt["found"]), len(receipt["searched"])
    left = len(receipt["not_reached"])
    reached = f"; {plural(left, 'place')} not reached" if left else ""
    if not count:
        only = ", only its tombstone," if receipt["tombstones"] else ""
        return f"no record of the key{only} in {plural(searched, 'file')} of {topic}{reached}"
    records = f"{plural(count, 'record')} of the key"
    if not receipt["executed"]:
        it = verb(count, "it", "them")
        return (
            f"{records} in {files:,} of {plural(searched, 'file')} of {topic}; --execute erases"
            f" {it}{reached}"
        )
    if left:
        return f"{topic} may still contain the key: {records} found{reached}"
    return f"{records} erased from {plural(files, 'file')} of {topic}"


def erase(
    log_dir: "DirectoryAccess",
    topic: str,
    key: bytes,
    *,
    execute: bool,
    accepts_lost_times: bool = False,
) -> Erasure:
    """Erase a key, or only search for its records.

    Args:
        log_dir: The directory; it must be open for writing if `execute` is set.
        topic: The topic.
        key: The key's bytes.
        execute: Whether to erase. If False, only search.
        accepts_lost_times: Whether a segment is rewritten although its append times are damaged or
            lost. If True, the append times that can't be read become unknown. If False, such a
            segment is an error before any change; a search lists the segment in `lost_times`.

    Raises:
        UnknownTopic, ReadOnly: Nothing was changed.
        InvalidRequest: The directory is a standby, which copies its leader; nothing was changed.
        TierConflict: Another directory, or a copy of this one, writes a tier. If such a writer is
            found before the erasure begins, nothing was changed. If it is found during the erasure,
            some files may already be changed.
        UnsupportedForMessageFormat: Records of the key are in batches of format 0 or 1, which can't
            be rewritten; nothing was changed.
        CorruptData: A batch that has to be read is damaged.
        CorruptFile, MissingFile: Append times are damaged or lost, and `accepts_lost_times` is
            False; nothing was changed.
        StorageFailure: The disk failed; a repeated erasure does the rest.
    """
    work = Erasure(
        topic=topic,
        key=key,
        started_ms=log_dir.env.clock.now_ms(),
        is_executed=execute,
        removal=_removal(applied_config(log_dir, topic)),
        absent=_absent(log_dir, topic),
    )
    try:
        if execute:
            _refuse_standby(log_dir)
            _refuse_others_tiers(log_dir, topic)
            _remove_staged(log_dir, topic)
        searches: dict[TopicPartition, list[SearchedFile]] = {}
        for number in log_dir.topic(topic).present:
            name = TopicPartition(topic, number)
            unsearched: list[str] = []
            searches[name] = searched = search(log_dir, name, key, unsearched)
            if not execute:
                work.not_reached += unsearched
            work.searched += searched
            tombstone = _lone_tombstone(log_dir, name, searched)
            if tombstone is not None:
                work.tombstones.append((number, tombstone))
        for name, searched in searches.items():
            hits = _hits(searched, name, work)
            if execute:
                _refuse_old_formats(log_dir.log(name.topic, name.partition), hits)
            _check_times(_reader(log_dir, name), hits, work, accepts_loss=accepts_lost_times)
        if execute:
            for name, searched in searches.items():
                _erase_from(log_dir, name, searched, work)
    except OSError as error:
        raise as_storage_failure(error, log_dir.path, "erase") from error
    work.ended_ms = log_dir.env.clock.now_ms()
    return work


def _removal(config: TopicConfig) -> str:
    """Return a part of a sentence on how long a tombstone stays in a topic."""
    ways = []
    if config.is_compacted:
        delay = duration_text(config.delete_retention_ms / 1000)
        ways.append(f"compaction (at least {delay} later, see delete.retention.ms)")
    is_limited = config.retention_ms >= 0 or config.retention_bytes >= 0
    if CLEANUP_DELETE in config.cleanup_policy and is_limited:
        ways.append("retention")
    if ways:
        return f"it stays until {' or '.join(ways)} removes it"
    return "nothing removes it, since the topic has neither compaction nor a limit of retention"


def _remove_staged(log_dir: "DirectoryAccess", topic: str) -> None:
    """Remove the files that an interrupted erasure has staged; a power loss may have torn them."""
    fs = log_dir.env.files
    for number in log_dir.topic(topic).present:
        directory = f"{log_dir.path}/{files.partition_dir_name(TopicPartition(topic, number))}"
        for entry in fs.list_dir(directory):
            if entry.name.startswith(_STAGED) and entry.name.endswith(STAGING_SUFFIX):
                fs.remove(f"{directory}/{entry.name}")


def _refuse_standby(log_dir: "DirectoryAccess") -> None:
    """Raise InvalidRequest for a standby.

    An erasure would append a tombstone that the standby's leader does not have.
    """
    if log_dir.env.files.exists(f"{log_dir.path}/{GROUPS_FILE}"):
        raise InvalidRequest(
            f"{log_dir.path} is a standby (it has {GROUPS_FILE}): erase the key at its leader;"
            " after `tidelog serve` it is no longer a standby"
        )


def _absent(log_dir: "DirectoryAccess", topic: str) -> str | None:
    error = absent_error(log_dir.path, log_dir.topic(topic))
    return None if error is None else f"{topic}: {error.reason}; not searched"


def _refuse_others_tiers(log_dir: "DirectoryAccess", topic: str) -> None:
    for number in log_dir.topic(topic).present:
        if log_dir.log(topic, number).tier is not None:
            Mover.open(log_dir, TopicPartition(topic, number), MoveOptions()).settle()


# -- execution -----------------------------------------------------------------------------------


def _erase_from(
    log_dir: "DirectoryAccess",
    name: TopicPartition,
    searched: Sequence[SearchedFile],
    work: Erasure,
) -> None:
    log = log_dir.log(name.topic, name.partition)
    purger = _Purger(log_dir, name, log, work)
    if hits := _hits(searched, name, work):
        purger.run(hits)
    purger.remove_aside(searched)
    if log.tier is not None:
        work.removed += [f"{log.tier.record.url}/{key}" for key in remove_unnamed(log_dir, name)]
    remaining = search(log_dir, name, work.key, work.not_reached)
    stays = work.tombstones_in(name)  # includes the tombstone that the run appended
    for one in remaining:
        if rest := [offset for offset in one.offsets if offset not in stays]:
            work.not_reached.append(f"{object_url(one.path)}: offsets {rest[:10]}")
    work.left += remaining


def _hits(
    searched: Sequence[SearchedFile], name: TopicPartition, work: Erasure
) -> dict[int, frozenset[int]]:
    """Return the offsets to erase, by the base offset of their segment."""
    stays = work.tombstones_in(name)
    return {
        one.base_offset: offsets
        for one in searched
        if one.base_offset >= 0 and (offsets := frozenset(one.offsets) - stays)
    }


def _refuse_old_formats(log: "LogAccess", hits: Mapping[int, Set[int]]) -> None:
    for segment in log.segments:
        if segment.base_offset not in hits:
            continue
        for _, batch in iterate_batches(segment, 0, segment.size_bytes):
            if not isinstance(batch, RecordBatch):
                raise UnsupportedForMessageFormat(
                    f"{segment.log_path}: format {batch.magic} at offset {batch.last_offset}; only"
                    " batches of format 2 can be rewritten, so the key can't be erased there"
                )


def _check_times(
    log: "LogView", hits: Mapping[int, Set[int]], work: Erasure, *, accepts_loss: bool
) -> None:
    """Check the append times of the segments to rewrite, and of copies that the tier will lose.

    The erasure deletes the tier's copies of the first local segment that it rewrites, and of all
    later segments. Later segments without the key are not rewritten, but their append times might
    be intact only in the tier's copy.
    """
    first_dropped = _first_dropped(log, hits)
    dropped_from = INT64_MAX if first_dropped is None else first_dropped
    tier_end = NO_OFFSET if log.tier is None else log.tier.record.manifest.end_offset
    for segment in map(as_closed, log.segments):
        if segment is None:
            continue
        is_dropped = dropped_from < segment.end_offset and segment.base_offset < tier_end
        if segment.base_offset not in hits and not is_dropped:
            continue
        if accepts_loss:
            if (loss := lost_times(segment)) is not None:
                work.lost_times.append(f"{loss}; append times that can't be read become unknown")
            continue
        try:
            ensure_times(segment, "an erasure", f"repeat the erasure with {ACCEPT}")
        except (CorruptFile, MissingFile) as error:
            if work.is_executed:
                raise
            work.lost_times.append(f"--execute is refused: {error}")


class _Purger:
    """Erasure in one partition."""

    def __init__(
        self, log_dir: "DirectoryAccess", name: TopicPartition, log: "LogAccess", work: Erasure
    ) -> None:
        self._log_dir = log_dir
        self._name = name
        self._log = log
        self._work = work
        self._fs = log_dir.env.files

    def run(self, hits: Mapping[int, Set[int]]) -> None:
        """Append the tombstone, then rewrite the segments that contain the key."""
        answer = self._log.append([NewRecord(key=self._work.key, value=None)])
        self._work.tombstones.append((self._name.partition, answer.base_offset))
        self._log.roll()
        self._log.flush()
        # The tombstone is in the segment that was active before the roll. If this segment is
        # rewritten, the tombstone stays, because its offset is not in `hits`.
        bases = {each.base_offset: each for each in self._log.segments if not each.is_tiered}
        here = [base for base in sorted(hits) if base in bases]
        staged: list[NewSegment] = []
        try:
            staged.extend(self._stage(bases[base], hits[base]) for base in here)
            self._note_history(staged, answer.append_time_ms)
            if self._log.tier is not None:
                purge_tier(self._log_dir, self._name, hits)
            for new in staged:
                exchange(self._log_dir, self._name, [new.base_offset], [new])
        finally:
            for new in staged:
                remove_quietly(self._fs, self._staging(new.name))

    def _staging(self, name: str) -> str:
        return staging_path(self._log_dir.path, self._name, name)

    def _stage(self, segment: Segment, offsets: Set[int]) -> NewSegment:
        """Write the segment without the records at `offsets`, durably, under a staged name."""
        drawn = uuid.UUID(int=self._log_dir.env.random.getrandbits(128)).hex
        name = f"{_STAGED}{drawn}"
        file = self._fs.open(self._staging(name), create=True)
        position = 0
        try:
            for _, batch in iterate_batches(segment, 0, segment.size_bytes):
                data = without_records(batch, offsets)
                files.write_fully(file, data, position)
                position += len(data)
            file.sync()
        finally:
            file.close()
        return NewSegment(name=name, base_offset=segment.base_offset, size_bytes=position)

    def _note_history(self, staged: Sequence[NewSegment], append_ms: int) -> None:
        """Store the times from which tables are exact.

        Tables as of earlier times lack the erased key.

        If it is unknown which records an earlier cleaning dropped, -1 (unknown) is stored for the
        timestamp and for the append time.
        """
        directory = self._log.context.directory
        before = read_history(self._fs, directory)
        is_known = before is not None or self._was_whole(directory)
        now_ms = self._log_dir.env.clock.now_ms()
        record_ms = append = UNKNOWN_MS
        if is_known:
            old = CompactionHistory(end_offset=0, record_exact_ms=ALWAYS_MS, append_exact_ms=0)
            earlier = before or old
            record_ms = _later(earlier.record_exact_ms, now_ms)
            append = _later(earlier.append_exact_ms, append_ms if append_ms >= 0 else now_ms)
        sizes = {(each.base_offset, each.size_bytes) for each in self._log.segments[:-1]}
        sizes |= {(new.base_offset, new.size_bytes) for new in staged}
        history = CompactionHistory(
            end_offset=self._log.log_end_offset,
            record_exact_ms=record_ms,
            append_exact_ms=append,
            run_ms=now_ms,
            horizons_ms=() if before is None else before.horizons_ms,
            segments=frozenset(sizes),
        )
        write_history(self._fs, directory, history)
        if self._log_dir.cleaner_offset(self._name) is None:
            # A history is valid only with a cleaner checkpoint. A partition that was never
            # compacted has no cleaner checkpoint.
            self._log_dir.note_cleaned(self._name, self._log.log_start_offset)

    def _was_whole(self, directory: str) -> bool:
        if self._fs.exists(f"{directory}/{HISTORY_FILE}"):
            return False
        return is_whole(self._log.segments, self._log.log_start_offset)

    def remove_aside(self, searched: Sequence[SearchedFile]) -> None:
        """Remove files that wait for deletion and contain the key."""
        for one in searched:
            if one.offsets and one.path.endswith(log_files.DELETED_SUFFIX):
                if self._fs.exists(one.path):  # a segment's exchange may have removed the file
                    self._fs.remove(one.path)
                self._work.removed.append(one.path)


def _later(earlier_ms: int, ms: int) -> int:
    return UNKNOWN_MS if earlier_ms == UNKNOWN_MS else max(earlier_ms, ms)


def without_records(batch: Batch, offsets: Set[int]) -> bytes | bytearray | memoryview:
    """Return a batch's bytes without the records at `offsets`.

    If the batch has no record at any of these offsets, the batch's bytes are returned unchanged.

    Offsets, sequences, times and codec of the remaining records are kept. If no record remains, the
    result is an empty batch with the same offsets and sequences.
    """
    assert isinstance(batch, RecordBatch)
    if batch.is_control:
        return batch.view
    # Iterate over the shorter of `offsets` and the batch's range: a key may have most of a
    # segment's records, or a batch many records.
    shorter, longer = sorted((range(batch.base_offset, batch.last_offset + 1), offsets), key=len)
    if not any(at in longer for at in shorter):
        return batch.view
    records = [record for record in batch.records() if record.offset not in offsets]
    if len(records) == batch.record_count:
        return batch.view
    if not records:
        return build_empty_batch(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            # Without a timestamp, no time index contains an entry for this empty batch.
            max_timestamp=NO_TIMESTAMP,
            timestamp_type=batch.timestamp_type,
            leader_epoch=batch.leader_epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
        )
    is_stamped = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return batch.rebuilt(
        [_as_written(record, is_stamped=is_stamped) for record in records],
        [record.offset for record in records],
        default_timestamp=batch.max_timestamp,
    )


def _as_written(record: Record, *, is_stamped: bool) -> NewRecord:
    """Return a record to write with the same create time, even if the batch has LogAppendTime."""
    ms = record.create_timestamp if is_stamped else record.timestamp
    return NewRecord.of_log(
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp=None if ms is None and is_stamped else (NO_TIMESTAMP if ms is None else ms),
    )


def purge_tier(
    log_dir: "DirectoryAccess", name: TopicPartition, hits: Mapping[int, Set[int]]
) -> None:
    """Rewrite the tier's segments without the records in `hits`, and drop copies of local segments.

    Args:
        log_dir: Log directory, open for writing. During the call, no other job may move the
            partition's segments to the tier.
        name: The partition.
        hits: Offsets of records to remove, by the base offset of their segment. If some of these
            segments are local, the tier's copies of the first of them and of all later segments are
            dropped.

    Raises:
        CorruptData: A batch or object is damaged; the error has its path. Earlier segments were
            already rewritten.
        TierConflict: Another directory writes this tier.
        StorageFailure: The disk or the store failed; a repeated erasure does the rest.
    """
    mover = Mover.open(log_dir, name, MoveOptions())
    mover.settle()
    for segment in mover.log.tiered_segments():
        if segment.base_offset in hits:
            _purge(mover, segment, hits[segment.base_offset])
    first_dropped = _first_dropped(mover.log, hits)
    if first_dropped is not None:
        mover.forget_copies(first_dropped)


def _first_dropped(log: "LogView", hits: Mapping[int, Set[int]]) -> int | None:
    """Return the offset from which the tier's copies of local segments are dropped.

    Returns None if no copies are dropped.

    The log start may lie within the first local segment, and local segments below the log start
    have no copies.
    """
    for segment in log.local_segments:
        if segment.base_offset in hits and segment.end_offset > log.local_start_offset:
            return max(segment.base_offset, log.local_start_offset)
    return None


def _purge(mover: Mover, segment: RemoteSegment, offsets: Set[int]) -> None:
    workplace, now_ms = Workplace.beside(mover.log), mover.log.context.env.clock.now_ms()
    batches = (without_records(batch, offsets) for _, batch in segment.verified_batches())
    try:
        write_rewritten(workplace, [segment], batches)
        row = copy_rewritten(workplace, mover.tier, mover.draw_uid(), [segment])
    finally:
        drop_rewritten(workplace, segment.base_offset)
    mover.swap(lambda manifest: manifest.with_exchanged([segment.row], [row], now_ms))


def remove_unnamed(log_dir: "DirectoryAccess", name: TopicPartition) -> list[str]:
    """Remove all objects of a partition, of any age, that the partition's manifest does not name.

    Returns:
        Keys of the removed folders.

    Raises:
        StorageFailure: The store failed. Some objects may already be removed; a repeated erasure
            removes the rest.
        TierConflict: Another directory or a copy of this directory has written the manifest.
        CorruptFile, UnsupportedVersion: The manifest can't be read.
    """
    mover = Mover.open(log_dir, name, MoveOptions())
    manifest = mover.settle()
    removed = remove_garbage(mover.tier, manifest, INT64_MAX)
    if removed:
        mover.swap(lambda manifest: manifest.without_garbage(removed))
    orphans = collect_orphans(mover)
    # Earlier runs may have removed objects with the key whose blocks are still cached.
    log_dir.tier_files.clear_cache()
    return sorted({*map(mover.tier.key, removed), *orphans})
