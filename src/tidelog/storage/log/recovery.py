"""Recovers a partition before it is opened for writing: finish swaps, scan, truncate, sync.

`finish_swaps` completes or drops interrupted cleanings and deletions, in Kafka's order. After a
hard stop `recover` scans the segment with the recovery point and all later segments. `recover`
checks the batches one by one, truncates the log at the first bad batch, removes the segments after
this batch, and rebuilds the indexes, including the index of aborted transactions. The transactions
that were open before the scan are unknown if a snapshot is missing and earlier batches are damaged.
In this case the scan can't rebuild an index of aborted transactions. The old index is kept if its
entries fit the scanned abort markers (`_keep_txn_index`). If they do not fit, the partition can be
read, but takes no appends. After a clean stop nothing is scanned.

Only bytes that may be an unfinished write are truncated. Nothing is truncated if `log_end` proves
that the bytes were complete batches, or if a sound batch follows the bytes. In both cases, the
partition can be read, but takes no appends.

Later segments are removed before the truncation. Otherwise a crash between these steps could leave
a hole in the log that looks like a compaction. To truncate a finished segment, a new file is
written and renamed over the old file, because readers in other processes may have mapped the old
file.

This module also makes data beyond the recovery point durable before the data is trusted.

When a process is killed, its unsynced writes remain with the operating system. Some unsynced writes
may belong to a finished segment, if the roll's sync was deferred. No later operation would sync
such a segment. But flushes, rolls and a clean close move the recovery point past this segment, and
a note states that the whole segment is on disk. Therefore opening a partition after a hard stop
syncs its files. If a sync has failed, reopening the partition rewrites the files. If another
process opens the partition next, that process finds a mark and rewrites the files, too.

Holds no state. Source: docs/recovery.md, "Opening for writing".
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Final

from tidelog.amounts import offsets_text, plural
from tidelog.errors import CorruptData, DamagedLog, StorageFailure
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch
from tidelog.storage import files, log_files
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.producer_loading import list_bases, snapshot_at, states_at
from tidelog.storage.log.producers import ProducerStates, is_abort_marker
from tidelog.storage.open_files import as_storage_failure, sync_file, walk_file
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.active_segment import TailSegment
from tidelog.storage.segment.compaction_history import cleaned_end
from tidelog.storage.segment.index_loading import load_indexes, ordered_batches, rebuild_indexes
from tidelog.storage.segment.log_end import (
    RecordedEnd,
    SoundPart,
    damaged,
    find_damage,
    sound_batches,
)
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.storage.segment.segment_notes import has_notes, read_notes
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX

COPY_CHUNK_BYTES: Final = 1 << 20
# End of the name of an unfinished copy of a log file.
_COPY_SUFFIX: Final = f"{log_files.LOG_SUFFIX}{files.TMP_SUFFIX}"


@dataclass(slots=True)
class RecoveryReport:
    """Actions of a recovery, and how much of the log was scanned.

    Attributes:
        actions: One readable line for each action; empty if nothing had to be done.
        scanned_segments: Number of segments that were read from end to end.
        truncated_bytes: Number of bytes removed from log files, whole segments included.
    """

    actions: list[str] = field(default_factory=list)
    scanned_segments: int = 0
    truncated_bytes: int = 0


def finish_swaps(context: SegmentContext, report: RecoveryReport) -> None:
    """Finish interrupted renames, and remove files of segments without a log file.

    `.deleted`, `.cleaned` and `.log.tmp` files are removed, and `.swap` files get their final
    names. A `.log.tmp` file is an unfinished copy of a log file (`copy_range`). If there are
    `.cleaned` files, their cleaning is unfinished. In this case, the `.swap` files at or above the
    smallest base offset of the `.cleaned` files are removed, too.
    """
    fs = context.env.files
    names = [entry.name for entry in fs.list_dir(context.directory) if not entry.is_dir]
    copies = [name for _, name in _with_suffix(names, files.TMP_SUFFIX) if _COPY_SUFFIX in name]
    deleted = [name for name in names if name.endswith(log_files.DELETED_SUFFIX)]
    changed = _remove_all(context, [*deleted, *copies])
    cleaned = _with_suffix(names, log_files.CLEANED_SUFFIX)
    swapped = _with_suffix(names, log_files.SWAP_SUFFIX)
    if cleaned:
        smallest = min(base for base, _ in cleaned)
        unfinished = [name for base, name in swapped if base >= smallest]
        changed |= _remove_all(context, [*unfinished, *(name for _, name in cleaned)])
        swapped = [(base, name) for base, name in swapped if base < smallest]
        report.actions.append(f"{context.directory}: dropped an unfinished compaction")
    if swapped:
        _apply_swap(context, names, swapped)
        report.actions.append(f"{context.directory}: finished the renames of a compaction")
    changed |= _remove_orphans(context, report)
    if changed or swapped:
        fs.sync_dir(context.directory)


def _with_suffix(names: Sequence[str], suffix: str) -> list[tuple[int, str]]:
    matches = []
    for name in names:
        parsed = (
            log_files.parse_file_name(name.removesuffix(suffix)) if name.endswith(suffix) else None
        )
        if parsed is not None:
            matches.append((parsed[0], name))
    return matches


def _remove_all(context: SegmentContext, names: Sequence[str]) -> bool:
    for name in names:
        context.env.files.remove(f"{context.directory}/{name}")
    return bool(names)


def _apply_swap(
    context: SegmentContext, names: Sequence[str], swapped: list[tuple[int, str]]
) -> None:
    """Remove the old segments in the offset range of `.swap` files; rename the `.swap` files."""
    logs = [
        base for base, name in swapped if f"{log_files.LOG_SUFFIX}{log_files.SWAP_SUFFIX}" in name
    ]
    if logs:
        first = min(logs)
        end = max(_next_offset(context, base) for base in logs)
        for name in names:
            parsed = log_files.parse_file_name(name)
            if parsed is not None and first <= parsed[0] < end and parsed[1] in log_files.LOG_FIRST:
                context.env.files.remove(f"{context.directory}/{name}")
        # The removals are synced before the renames. Otherwise a crash could bring back an old
        # segment beside the new segments, and offsets would exist twice.
        context.env.files.sync_dir(context.directory)
    for _, name in swapped:
        final = name.removesuffix(log_files.SWAP_SUFFIX)
        context.env.files.rename(f"{context.directory}/{name}", f"{context.directory}/{final}")


def _next_offset(context: SegmentContext, base: int) -> int:
    """Return the offset after the last batch of a `.log.swap` file; base + 1 if it has no batch."""
    path = f"{context.directory}/{log_files.log_file_name(base)}{log_files.SWAP_SUFFIX}"
    file = context.env.files.open(path)
    try:
        end = base + 1
        for _, batch in walk_file(file, path, 0, file.size()):
            end = batch.next_offset
    finally:
        file.close()
    return end


def _remove_orphans(context: SegmentContext, report: RecoveryReport) -> bool:
    """Remove files of segments without a log, except snapshots; return whether any were found."""
    bases = set(list_bases(context))
    orphans = []
    for entry in context.env.files.list_dir(context.directory):
        parsed = None if entry.is_dir else log_files.parse_file_name(entry.name)
        if parsed is None or parsed[1] not in log_files.SEGMENT_SUFFIXES:
            continue
        if parsed[1] != log_files.LOG_SUFFIX and parsed[0] not in bases:
            orphans.append(entry.name)
    if orphans:
        report.actions.append(
            f"{context.directory}: dropped {plural(len(orphans), 'orphaned file')}"
        )
    return _remove_all(context, orphans)


def recover(
    context: SegmentContext,
    recorded: RecordedEnd,
    epochs: LeaderEpochs,
    report: RecoveryReport,
    *,
    log_start_offset: int,
    tier_segments: Callable[[int], Sequence[Segment]],
) -> DamagedLog | None:
    """Scan the segments that may hold unsynced bytes, and repair inconsistent files.

    Args:
        context: The partition.
        recorded: Recorded end of the log.
        epochs: The leader epochs. The scan adds later epochs that it finds in batches.
        report: Receives the actions.
        log_start_offset: Log start. Gaps below the log start are not damage: they come from an
            interrupted deletion.
        tier_segments: Returns the segments that only the tier has, ascending. The function's
            argument is the first offset of the local segments.

    Returns:
        Why nothing may be truncated, or why the aborted transactions can't be known; None if the
        log is sound or was repaired.

    Raises:
        OSError, StorageFailure: The disk failed; no valid data was removed.
    """
    bases = list_bases(context)
    first = _first_scanned(bases, recorded)
    # The producers' states are passed on from segment to segment. Loading the states for each
    # segment would, without snapshots, read all earlier segments again.
    states, unknown = _states_before(context, bases, first, tier_segments)
    for number in range(first, len(bases)):
        base = bases[number]
        snapshot = None if unknown is None or number == first else snapshot_at(context, base)
        if snapshot is not None:
            states, unknown = snapshot, None
        elif number > first:
            _take_ends(context, base, states)
        scan = _scan(context, base, states, epochs)
        report.scanned_segments += 1
        later = bases[number + 1 :]
        has_hole = _has_hole(context, base, scan, later, log_start_offset)
        damage = _damage(context, base, scan, later, recorded, has_hole=has_hole)
        if damage is None and unknown is not None:
            damage = _keep_txn_index(context, base, scan, unknown)
        if damage is not None:
            return damage
        if scan.problem is not None:
            _drop_segments(context, later, report)
            _cut_log(context, base, scan, is_last=not later, report=report)
        if has_hole:
            unsynced = offsets_text(scan.sound_part.end_offset, later[0] - 1)
            report.actions.append(
                f"{context.path(base, log_files.LOG_SUFFIX)}: ends at offset"
                f" {scan.sound_part.end_offset}, but the next segment begins at offset {later[0]}:"
                f" {unsynced} never reached the disk"
            )
            _drop_segments(context, later, report)
        _write_derived(context, base, scan)
        if has_hole or scan.problem is not None:
            break
    return None


def _states_before(
    context: SegmentContext,
    bases: Sequence[int],
    first: int,
    tier_segments: Callable[[int], Sequence[Segment]],
) -> tuple[ProducerStates, CorruptData | None]:
    """Return the producers' states before the segment `bases[first]`, and an error or None.

    None means that the states are known. Otherwise the states are empty, and the error is the
    reason.
    """
    states = ProducerStates()
    if not bases:
        return states, None
    try:
        return states_at(context, bases[first], tier_segments(bases[0]), is_strict=True), None
    except CorruptData as error:
        return states, error


def _keep_txn_index(
    context: SegmentContext, base: int, scan: "_Scan", unknown: CorruptData
) -> DamagedLog | None:
    """Keep the entries of the `.txnindex` file, because the scan's entries are uncertain.

    Return the damage in three cases: the file is damaged, it has no entry for the last abort
    marker, or it has an entry whose abort marker is not in the log. `unknown` is the reason why the
    producers' states at the start of the segment are unknown.
    """
    tail, markers = TailSegment.empty(context, base), scan.abort_markers
    tail.size_bytes = scan.file_bytes
    damage = as_damaged_log(unknown, context.path(base, log_files.LOG_SUFFIX))
    try:
        index = tail.read_txn_index()
    except CorruptData:
        return damage
    index.truncate_to(scan.sound_part.end_offset)
    if any(markers.get(entry.last_offset) != entry.producer_id for entry in index.entries):
        return damage
    if max(markers, default=-1) > (index.entries[-1].last_offset if index.entries else -1):
        return damage
    scan.aborted = index
    return None


def as_damaged_log(error: CorruptData, path: str) -> DamagedLog:
    """Convert `error` to a DamagedLog, the error with which a partition refuses appends.

    `path` is used if `error` has no path.
    """
    where = {"at": error.at, "offset": error.offset, "position": error.position}
    return DamagedLog(error.reason, path=error.path or path, **where)


def _damage(
    context: SegmentContext,
    base: int,
    scan: "_Scan",
    later: Sequence[int],
    recorded: RecordedEnd,
    *,
    has_hole: bool,
) -> DamagedLog | None:
    """Return the damage that forbids a truncation after the scan, None if there is none."""
    path, sound_part = context.path(base, log_files.LOG_SUFFIX), scan.sound_part
    if scan.problem is None and not has_hole and later:
        return None
    if not later:
        indexes = load_indexes(context, base, mapped=False)
        tail = TailSegment(context, base, indexes or (OffsetIndex(base), TimeIndex(base)))
        tail.has_index_files, tail.sound_part = indexes is not None, sound_part
        damage = tail.settle_end(recorded)
        return None if damage is None else damage.error
    damage = find_damage(
        context.pool.get(path),
        path,
        base,
        sound_part,
        recorded,
        jump_is_proven=sound_part.problem is None,
    )
    if damage is not None:
        return damage.error
    sound = next((each for each in later if _has_sound_batch(context, each)), None)
    if sound is None:
        return None
    reason = sound_part.problem or f"the next segment begins at offset {later[0]}"
    reason = f"{reason}; the later segment with base offset {sound} begins with a sound batch"
    return damaged(path, sound_part.size_bytes, sound_part.end_offset, reason)


def _has_sound_batch(context: SegmentContext, base: int) -> bool:
    """Return whether a segment begins with a whole, valid batch, which can't be a torn write."""
    path = context.path(base, log_files.LOG_SUFFIX)
    file = context.pool.get(path)
    for _, batch in sound_batches(file, path, base, 0, file.size()):
        return batch.is_valid()
    return False


def find_refusal(
    context: SegmentContext, recorded: RecordedEnd, log_start_offset: int
) -> DamagedLog | None:
    """Return the damage at which `recover` would stop, None if there is none; change nothing."""
    bases = list_bases(context)
    first = _first_scanned(bases, recorded)
    for number in range(first, len(bases)):
        base, later = bases[number], bases[number + 1 :]
        scan = _scan(context, base, ProducerStates(), LeaderEpochs())
        has_hole = _has_hole(context, base, scan, later, log_start_offset)
        damage = _damage(context, base, scan, later, recorded, has_hole=has_hole)
        if damage is not None or scan.problem is not None or has_hole:
            return damage
    return None


def build_derived(
    context: SegmentContext, base: int, states: ProducerStates, epochs: LeaderEpochs
) -> None:
    """Rebuild a segment's indexes; raises OSError.

    Args:
        context: The partition.
        base: The segment's base offset.
        states: States of the producers before the segment. The segment's batches update the states.
        epochs: The leader epochs. Later epochs in the segment's batches are added.
    """
    _write_derived(context, base, _scan(context, base, states, epochs))


def _first_scanned(bases: Sequence[int], recorded: RecordedEnd) -> int:
    """Return the index of the segment with the recovery point; 0 if all segments begin after it."""
    point = recorded.recovery_point
    return max((number for number, base in enumerate(bases) if base <= point), default=0)


def _has_hole(
    context: SegmentContext,
    base: int,
    scan: "_Scan",
    later: Sequence[int],
    log_start_offset: int,
) -> bool:
    is_open = scan.problem is None and bool(later) and later[0] > log_start_offset
    return is_open and _ends_early(context, base, scan, later)


def _take_ends(context: SegmentContext, base: int, states: ProducerStates) -> None:
    """End the transactions that are open in `states`, but not in the segment's snapshot.

    The log has no marker for such a transaction. A standby ends such a transaction if its leader no
    longer has the marker. The standby then begins a new segment. The snapshot at this segment's
    base shows that the transaction has ended.
    """
    snapshot = snapshot_at(context, base) if states.open_transactions else None
    if snapshot is not None:
        states.take_ends(snapshot)


def _ends_early(context: SegmentContext, base: int, scan: "_Scan", later: Sequence[int]) -> bool:
    """Return whether a power loss removed records between a segment's end and the next segment.

    A power loss can remove these records if the next segment's name was already on disk, and the
    earlier segment's deferred sync was not done yet. A legitimate gap (after a compaction, or in a
    copy of a compacted log) is recorded in the segment's note, which is written after the segment's
    sync. A gap below the end of a compaction is legitimate, too. If the directory has no file of
    notes, any gap is accepted.
    """
    fs, directory = context.env.files, context.directory
    if scan.sound_part.end_offset >= later[0] or not has_notes(fs, directory):
        return False
    if later[0] <= cleaned_end(fs, directory):
        return False  # compaction left this gap; all records below it were durable
    note = read_notes(context)[0].get(base)
    return note is None or note.end_offset != later[0]


@dataclass(slots=True, eq=False)
class _Scan:
    """Result of a scan of one segment.

    Attributes:
        indexes: Indexes of the segment's sound part.
        aborted: Aborted transactions whose markers are in the sound part.
        abort_markers: Producer id by the offset of each abort marker in the sound part.
        sound_part: Part of the file with sound batches.
        file_bytes: Size of the file.
        problem: Description of the damage after the sound part, None if there is no damage.
    """

    indexes: tuple[OffsetIndex, TimeIndex]
    aborted: TxnIndex
    abort_markers: dict[int, int]
    sound_part: SoundPart
    file_bytes: int
    problem: str | None


def _scan(
    context: SegmentContext,
    base: int,
    states: ProducerStates,
    epochs: LeaderEpochs,
) -> _Scan:
    path = context.path(base, log_files.LOG_SUFFIX)
    file = context.pool.get(path)
    sound_part, aborted, file_bytes = SoundPart(0, base), TxnIndex(base), file.size()
    markers: dict[int, int] = {}

    def checked_batches() -> Iterator[tuple[int, Batch]]:
        for position, batch in ordered_batches(file, path, base, file_bytes):
            try:
                batch.ensure_valid()
                _replay(states, batch, aborted)
                if is_abort_marker(batch):
                    markers[batch.base_offset] = batch.producer_id
            except CorruptData as error:
                raise error.located(path, position - batch.at) from error
            sound_part.take(batch, position)
            yield position, batch
            if batch.leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.leader_epoch, batch.base_offset)

    indexes, damage = rebuild_indexes(context.config, base, checked_batches())
    problem = None if damage is None else str(damage)
    if damage is not None:
        sound_part.problem = damage.reason
    elif sound_part.size_bytes < file_bytes:
        problem = f"{path}: an incomplete batch at position {sound_part.size_bytes}"
    return _Scan(indexes, aborted, markers, sound_part, file_bytes, problem)


def _replay(states: ProducerStates, batch: Batch, aborted: TxnIndex) -> None:
    if not batch.has_producer_id:
        return
    completed = states.replay(batch)
    if completed is not None and completed.is_aborted:
        aborted.append(states.aborted_entry(completed))


def _drop_segments(context: SegmentContext, bases: Sequence[int], report: RecoveryReport) -> None:
    """Remove whole segments, newest first, durably."""
    for base in reversed(bases):
        path = context.path(base, log_files.LOG_SUFFIX)
        report.truncated_bytes += context.env.files.stat(path).size
        report.actions.append(f"{path}: dropped, because records before it are damaged or missing")
        remove_segment_files(context, base)
        # Each removal is synced before the next removal. Otherwise a crash could keep only the
        # removal of an older segment, and the log would have a hole.
        context.env.files.sync_dir(context.directory)


def remove_segment_files(context: SegmentContext, base: int) -> None:
    """Remove a segment's files, the log last, because the other files are orphans without it."""
    for suffix in log_files.LOG_LAST:
        path = context.path(base, suffix)
        context.pool.forget(path)
        context.maps.forget(path)
        if context.env.files.exists(path):
            context.env.files.remove(path)


def _cut_log(
    context: SegmentContext, base: int, scan: _Scan, *, is_last: bool, report: RecoveryReport
) -> None:
    path = context.path(base, log_files.LOG_SUFFIX)
    zone_map_files.drop(context, base)
    lost_bytes = scan.file_bytes - scan.sound_part.size_bytes
    report.truncated_bytes += lost_bytes
    report.actions.append(f"{scan.problem}; cut {lost_bytes} bytes from {path}")
    if is_last:
        file = context.pool.get(path)
        file.truncate(scan.sound_part.size_bytes)
        sync_file(file, path)
    else:
        copy_range(context, path, path, 0, scan.sound_part.size_bytes)


def copy_range(context: SegmentContext, source: str, target: str, start: int, end: int) -> None:
    """Replace the file `target` by the bytes [start, end) of `source`, durably.

    Both paths may be equal. A new file is renamed over the target, so after a crash the target has
    the old or the new content.
    """
    fs = context.env.files
    temporary = target + files.TMP_SUFFIX
    reading, writing = context.pool.get(source), fs.open(temporary, create=True)
    try:
        writing.truncate(0)
        for position in range(start, end, COPY_CHUNK_BYTES):
            chunk = files.read_exactly(reading, min(COPY_CHUNK_BYTES, end - position), position)
            files.write_fully(writing, chunk, position - start)
        writing.sync()
    finally:
        writing.close()
    context.pool.forget(target)
    context.maps.forget(target)
    fs.rename(temporary, target)
    fs.sync_dir(context.directory)


def _write_derived(context: SegmentContext, base: int, scan: _Scan) -> None:
    """Write each rebuilt index that differs from its file."""
    offset_index, time_index = scan.indexes
    for suffix, content in (
        (log_files.OFFSET_INDEX_SUFFIX, offset_index.encoded),
        (log_files.TIME_INDEX_SUFFIX, time_index.encoded),
        (log_files.TXN_INDEX_SUFFIX, scan.aborted.encoded),
    ):
        path = context.path(base, suffix)
        if suffix == log_files.TXN_INDEX_SUFFIX and not len(content):
            if context.env.files.exists(path):
                context.env.files.remove(path)
            continue
        if not _is_equal(context, path, content):
            context.maps.forget(path)
            context.pool.forget(path)
            files.write_atomically(context.env.files, path, content)
    rebuilt = (*log_files.INDEX_SUFFIXES, log_files.TXN_INDEX_SUFFIX)
    zone_map_files.renew_sums(context, base, rebuilt)
    zone_map_files.drop_unfit(context, base)  # a hard stop may have lost append times


def _is_equal(context: SegmentContext, path: str, content: memoryview) -> bool:
    try:
        return files.read_file(context.env.files, path) == content
    except FileNotFoundError:
        return False


# Empty file that marks that a sync has failed, so that unsynced data may be missing on the disk.
UNSYNCED_FILE: Final = "tidelog-unsynced"

# A failure with one of these operations is certainly not a failed sync of records: a sync that
# fails within such an operation is reported with the operation `sync` instead.
_WITHOUT_SYNC: Final = frozenset(
    {"append", "roll", "map zones", "unlink", "delete", "move start", "read"}
)


def sync_unsynced(context: SegmentContext, recovery_point: int) -> None:
    """Sync the files of the segments that end after `recovery_point`, and the directory.

    Raises:
        OSError: The disk failed. The partition can't be opened, and is marked for the next opening.
    """
    try:
        _sync_all(context, recovery_point)
    except OSError:
        mark_unsynced(context)
        raise


def _sync_all(context: SegmentContext, recovery_point: int) -> None:
    for base in _unsynced(context, recovery_point):
        sync_files(context, base, log_files.SYNCED_SUFFIXES)
    context.env.files.sync_dir(context.directory)


def leaves_doubt(failure: StorageFailure) -> bool:
    """Return whether the disk may lack data that the operating system reports as written.

    The result is False if the failed operation neither was nor included a sync. If the result is
    True, the next opening rewrites segments. A full disk has no space for a rewrite, so the result
    is False for a write that failed on a full disk.
    """
    return failure.operation not in _WITHOUT_SYNC


def mark_unsynced(context: SegmentContext) -> None:
    """Mark the partition's directory, so that other processes know that the disk has failed.

    The mark is not synced. A power loss may remove the mark, but it also clears the operating
    system's cache. The next opening then reads what is really on disk, and needs no mark. If the
    disk can't store the mark, the error is ignored, and there is no mark.
    """
    with suppress(OSError):
        context.env.files.open(_mark(context), write=True, create=True).close()


def rewrite_marked(context: SegmentContext, recovery_point: int) -> StorageFailure | None:
    """If there is a mark, rewrite the data that may be missing on disk.

    Returns:
        The error of a failed rewrite, for example because of a full disk. After a failed rewrite
        the partition can be read but takes no appends, and the mark is kept. None if the rewrite
        succeeded or there is no mark.
    """
    try:
        if context.env.files.exists(_mark(context)):
            rewrite_unsynced(context, recovery_point)
    except OSError as error:
        return as_storage_failure(error, context.directory, "rewrite unsynced data")
    return None


def rewrite_unsynced(context: SegmentContext, recovery_point: int) -> None:
    """Rewrite, durably, each file with records or append times that may be unsynced.

    After a failed sync the operating system may treat pages that never reached the disk as written,
    so a later sync would not write these pages again. Segments that end at or before
    `recovery_point` are skipped. Finally, the mark that a sync has failed is removed.

    Raises:
        OSError: The disk still fails. After this error, each file has its old content or was
            completely rewritten.
    """
    for base in _unsynced(context, recovery_point):
        for suffix in log_files.PRIMARY_SUFFIXES:
            path = context.path(base, suffix)
            if context.env.files.exists(path):
                _rewrite(context, path)
    with suppress(FileNotFoundError):
        context.env.files.remove(_mark(context))


def _mark(context: SegmentContext) -> str:
    return f"{context.directory}/{UNSYNCED_FILE}"


def _unsynced(context: SegmentContext, recovery_point: int) -> list[int]:
    """Return base offsets of segments that end after a recovery point, and of the last segment."""
    spans = itertools.pairwise([*list_bases(context), INT64_MAX])
    return [base for base, end in spans if end > recovery_point]


def sync_files(context: SegmentContext, base: int, suffixes: Iterable[str]) -> None:
    """Sync the existing files of a segment, in the order of the suffixes."""
    fs = context.env.files
    for suffix in suffixes:
        path = context.path(base, suffix)
        if not fs.exists(path):
            continue
        file = fs.open(path, write=True)
        try:
            file.sync()
        finally:
            file.close()


def _rewrite(context: SegmentContext, path: str) -> None:
    fs = context.env.files
    try:
        copy_range(context, path, path, 0, fs.stat(path).size)
    except OSError:
        with suppress(OSError):  # remove the partial copy, because it takes space on the disk
            fs.remove(path + files.TMP_SUFFIX)
        raise
