"""Opens a partition for writing: runs recovery if needed, then loads the parts of an open log.

After the opening, the active segment takes appends, and the next leader epoch is known. The files
contain only append times that are proven to be right. Nothing is truncated if the log has damage
that no crash explains (`log_end`), or if a segment's file is a symbolic link. A partition with such
damage or such a link can be read, but takes no appends.
"""

import itertools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Final, NamedTuple

from tidelog.amounts import plural
from tidelog.errors import CorruptData, DamagedLog, StorageFailure
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_clock import AppendClock, ClockWatch
from tidelog.storage.log import recovery
from tidelog.storage.log.durability import AT_ONCE, Deferral, FailureGuard, Flusher
from tidelog.storage.log.leader_epochs import EpochCheckpoint
from tidelog.storage.log.log_reader import LogReader
from tidelog.storage.log.producer_loading import (
    drop_snapshots,
    limit_times,
    linked_file,
    list_bases,
    load_producer_states,
    rebuild_txn_index,
    write_proven_times,
)
from tidelog.storage.log.producers import PRODUCER_ID_EXPIRATION_MS, ProducerStates
from tidelog.storage.log.record_rules import BodyCheck, check_body
from tidelog.storage.log.recovery import RecoveryReport, rewrite_marked, sync_unsynced
from tidelog.storage.log.segment_list import SegmentList
from tidelog.storage.open_files import as_storage_failure, typed_failures
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.log_end import RecordedEnd
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.storage.segment.segment_notes import NoteKeeper
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.storage.tier.log_tier import LogTier
from tidelog.storage.tier.tier_files import TierAccess
from tidelog.types import Buffer

_TO_REPAIR: Final = (
    "restore the file, or run `tidelog doctor --repair`, which moves the damage out of the log"
)


def _ignore(*_offsets: int) -> None:
    """Do nothing; the default of optional callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options for opening a log, besides the topic's settings.

    Attributes:
        watch: Wall clock that detects clock jumps; all logs of the directory share it.
        recovery_point: Offset below which everything is on disk; None after a clean stop.
        clean_end: End of the log at the clean stop; None if it is not recorded.
        is_own: Whether it is certain that the offsets from the recovery point on have no gap. Gaps
            may come from appends by other programs, or from copies of a compacted leader's log.
        log_start_offset: Log start offset, from the directory's checkpoint.
        body_check: Function by which the validator checks records: plain Python, or the kernel.
        lower_checkpoints: Lowers the directory's checkpoints before a truncation, so that no
            checkpoint is beyond the log end. Its arguments are the truncation's offset and the
            resulting log end.
        save_log_start: Stores a new log start offset, and returns when the offset is durable.
            Called in the deferral's thread.
        tiers: Reads segments in the tier; None if a log has local files only.
        deferral: Runs work that the log may do later; the default runs the work immediately.
        leaves_flushes: Whether the caller of an append makes the flush that `flush.messages` or
            `flush.ms` requires. If True, an append only sets `Log.is_flush_due`, and the caller has
            to call `flush_later`. If False, an append itself makes a due flush.
        producer_expiration_ms: Returns the idle time in ms after which a producer is dropped when
            the log is opened.
    """

    watch: ClockWatch
    recovery_point: int | None = None
    clean_end: int | None = None
    is_own: bool = False
    log_start_offset: int = 0
    body_check: BodyCheck = check_body
    lower_checkpoints: Callable[[int, int], None] = field(default=_ignore)
    save_log_start: Callable[[int], None] = field(default=_ignore)
    tiers: TierAccess | None = None
    deferral: Deferral = AT_ONCE
    leaves_flushes: bool = False
    producer_expiration_ms: Callable[[], int] = field(default=lambda: PRODUCER_ID_EXPIRATION_MS)

    @property
    def recorded_end(self) -> RecordedEnd:
        """The recovery point; after a clean stop, the log end that was recorded at the stop."""
        if self.recovery_point is not None:
            return RecordedEnd(self.recovery_point, is_dense=self.is_own)
        return RecordedEnd(self.clean_end or 0, is_end=self.clean_end is not None)


class LogParts(NamedTuple):
    """The parts of an open log that `load_log` loads; `Log` creates its other parts from them."""

    segments: SegmentList
    reader: LogReader
    guard: FailureGuard
    flusher: Flusher
    epochs: EpochCheckpoint
    producers: ProducerStates
    clock: AppendClock
    notes: NoteKeeper
    report: RecoveryReport
    options: LogOptions


class LogPart:
    """Base class of the parts that change an open log; all of them use the log's `LogParts`."""

    def __init__(self, parts: LogParts) -> None:
        self._segments = parts.segments
        self._reader = parts.reader
        self._guard = parts.guard
        self._flusher = parts.flusher
        self._epochs = parts.epochs
        self._producers = parts.producers
        self._clock = parts.clock
        self._notes = parts.notes
        self._options = parts.options


def load_log(context: SegmentContext, options: LogOptions) -> LogParts:
    """Open a partition's directory for writing; see `Log.open_writable` for the errors."""
    loading = _Loading(context, options)
    try:
        with typed_failures(context.directory, "open"):
            return loading.load()
    except StorageFailure as failure:
        if failure.operation == "sync":
            loading.guard.mark(failure)
        raise


class _Loading:
    """One opening of a log."""

    def __init__(self, context: SegmentContext, options: LogOptions) -> None:
        self._context = context
        self._options = options
        self._report = RecoveryReport()
        self._tier = LogTier(options.tiers)
        start = options.log_start_offset
        self._segments = SegmentList(context, self._tier, log_start_offset=start)
        # A log that was opened after a clean stop and has not changed is closed without a write.
        is_changed = options.recovery_point is not None
        self.guard = FailureGuard(context, options.deferral, is_changed=is_changed)
        self._epochs = EpochCheckpoint(context, self.guard.settle)

    @property
    def _is_refused(self) -> bool:
        return isinstance(self.guard.failure, DamagedLog)

    def load(self) -> LogParts:
        """Load the log's parts, in the order that recovery needs."""
        context, segments, guard, options = self._context, self._segments, self.guard, self._options
        self._refuse_links()
        if guard.failure is None:
            recovery.finish_swaps(context, self._report)
            self._settle_tier()
        # The epochs are loaded before any truncation, because an epoch must not be used again, even
        # if all of its records were lost.
        self._epochs.load()
        if options.recovery_point is not None and guard.failure is None:
            guard.failure = rewrite_marked(context, options.recovery_point)
            self._refuse(self._recover())
        self._load_segments()
        notes = NoteKeeper(context)
        flusher = Flusher(segments, guard, leaves_flushes=options.leaves_flushes)
        if self._is_refused:
            # Load only the state that reads need; the files are not changed.
            active = segments.active
            times = active.read_append_times()
            limit_times(active, times, segments.trusted_end())
            active.set_append_times(times)
        else:
            self._load_append_times()
            if options.recovery_point is not None:
                # The sync precedes the notes, because a note on a finished segment states that the
                # whole segment is durable.
                sync_unsynced(context, options.recovery_point)
            notes.load(segments.local, was_clean=options.recovery_point is None)
        clock = self._append_clock()
        reader = LogReader(segments)
        producers = load_for_writing(reader, options.producer_expiration_ms())
        if not self._is_refused:
            self._epochs.cut_unwritten(segments.end_offset)
            drop_snapshots(context, segments.end_offset)
        flusher.start_at(self._recovery_point)
        return LogParts(
            segments,
            reader,
            guard,
            flusher,
            self._epochs,
            producers,
            clock,
            notes,
            self._report,
            options,
        )

    @property
    def _recovery_point(self) -> int:
        if self._is_refused:
            return self._options.recorded_end.recovery_point
        if self.guard.failure is not None:
            return self._options.recovery_point or 0
        return self._segments.end_offset

    def _append_clock(self) -> AppendClock:
        limit_ms = self._context.config.tidelog_max_clock_jump_ms
        last_ms = max(self._segments.last_append_ms(), self._segments.checkpointed_ms)
        return AppendClock(self._options.watch, last_ms=last_ms, limit_ms=limit_ms)

    # -- refusing ----------------------------------------------------------------------------

    def _refuse(self, damage: DamagedLog | None, todo: str = _TO_REPAIR) -> None:
        """Make the log refuse appends, and report the damage.

        Do nothing if `damage` is None or if the log already refuses appends.
        """
        if damage is None or self._is_refused:
            return
        self.guard.failure = damage
        self._report.actions.append(
            f"{damage}; nothing is truncated, and the partition is read-only: {todo}"
        )

    def _refuse_links(self) -> None:
        """Refuse appends if a segment's file is a symbolic link, whose target may be any file."""
        directory = self._context.directory
        name = linked_file(self._context.env.files.list_dir(directory))
        if name is not None:
            reason = "a symbolic link; files outside the directory are never changed"
            damage = DamagedLog(reason, path=f"{directory}/{name}")
            self._refuse(damage, "replace the link by the file")

    # -- recovery ----------------------------------------------------------------------------

    def _settle_tier(self) -> None:
        """Load the tier, and finish removals of local segments that were begun but not finished.

        The file `tidelog-tier.json` shows which removals of local segments were begun.
        """
        bases = list_bases(self._context)
        local_bases = self._tier.load(bases, self._context)
        if self._tier.view is None:
            return
        segments = self._segments
        segments.checkpointed_start = max(segments.checkpointed_start, self._tier.start_offset)
        stale_bases = [base for base in reversed(bases) if base not in local_bases]
        self._remove_local(stale_bases, "their offsets are in the tier, or were truncated")
        self._tier.end_restart()

    def _remove_local(self, bases: Sequence[int], reason: str) -> None:
        """Remove segments one by one, in the order of `bases`, and report how many were removed."""
        self._remove(bases)
        if bases:
            self._report.actions.append(
                f"{self._context.directory}: removed"
                f" {plural(len(bases), 'local segment')}: {reason}"
            )

    def _remove(self, bases: Sequence[int]) -> None:
        for base in bases:
            recovery.remove_segment_files(self._context, base)
            self._context.env.files.sync_dir(self._context.directory)

    def _recover(self) -> DamagedLog | None:
        before = self._epochs.epochs.entries
        damage = recovery.recover(
            self._context,
            self._options.recorded_end,
            self._epochs.epochs,
            self._report,
            log_start_offset=self._segments.checkpointed_start,
            tier_segments=self._tier.segments,
        )
        if self._epochs.epochs.entries != before and damage is None:
            self._epochs.write()
        self._epochs.outgrow()
        return damage

    # -- segments ----------------------------------------------------------------------------

    def _load_segments(self) -> None:
        context, start = self._context, self._segments.checkpointed_start
        tier_end = self._tier.end_offset
        bases = list_bases(context)
        active = self._load_active(bases[-1]) if bases else None
        if active is not None and not self._is_refused:
            end = active.end_offset
            if end < tier_end:
                # The tier has all records that the local segments have lost, so remove the local
                # segments.
                reason = f"the local segments end at offset {end}, the tier at offset {tier_end}"
                self._remove_local(list(reversed(bases)), reason)
                bases, active = [], None
            elif end < start:
                self._report.actions.append(
                    f"{context.directory}: the log ended at offset {end}, below its start {start};"
                    " restarted at its start"
                )
                self._remove(list(reversed(bases)))
                self._epochs.epochs.clear()
                bases, active = [], None
            else:
                # The segment may have been finished before a truncation made it active again; the
                # zone map from that time is outdated.
                zone_map_files.drop(context, active.base_offset)
        if active is None:
            active = ActiveSegment.create(context, max(start, tier_end))
            context.env.files.sync_dir(context.directory)
        closed: list[Segment] = [
            self._segments.closed(None, base, next_base)
            for base, next_base in itertools.pairwise(bases)
        ]
        self._segments.show([*closed, active])
        if not self._is_refused:
            self._restore_indexes()
        if self._is_refused:
            active.find_aborted = self._segments.find_aborted  # the index's file may lack entries

    def _load_active(self, base: int) -> ActiveSegment:
        """Load the last segment; if the segment is damaged, make the log refuse appends."""
        recorded = self._options.recorded_end
        active = ActiveSegment.load(self._context, base, recorded, is_refused=self._is_refused)
        self._refuse(active.damaged)
        return active

    def _restore_indexes(self) -> None:
        """Write missing indexes of finished segments, as a Kafka broker does when it starts."""
        fs, segments = self._context.env.files, self._segments
        names = {entry.name for entry in fs.list_dir(self._context.directory)}
        for segment in segments.finished():
            if not segment.is_tiered:
                self._restore_index(segment, names)
        self._restore_txn_index(names)

    def _restore_index(self, segment: ClosedSegment, names: AbstractSet[str]) -> None:
        suffixes = log_files.INDEX_SUFFIXES
        base = segment.base_offset
        missing = [s for s in suffixes if log_files.file_name(base, s) not in names]
        if not missing:
            return
        rebuilt = dict(zip(suffixes, segment.rebuild_indexes(), strict=True))
        if segment.hides_records:
            return  # the rebuilt index ends at the damaged batch; its file would look complete
        for suffix in missing:
            self._restore(base, suffix, rebuilt[suffix].encoded)
        zone_map_files.renew_sums(self._context, base, missing)
        segment.use_zones(None, loaded=False)

    def _restore_txn_index(self, names: AbstractSet[str]) -> None:
        """Rebuild the active segment's index of aborted transactions if entries are lost.

        The index's file may be damaged, missing or empty. A damaged index must not stay: an abort
        would first write its marker, and then fail because of the index.
        """
        active, name = self._segments.active, log_files.TXN_INDEX_SUFFIX
        path = self._context.path(active.base_offset, name)
        exists = log_files.file_name(active.base_offset, name) in names
        try:
            if not exists or not self._context.env.files.stat(path).size:
                problem: str | None = "empty" if exists else "missing"
                rebuilt = self._segments.find_aborted(active, TxnIndex(active.base_offset))
                if not rebuilt.entries:
                    return
            else:
                problem = _problem_of_txn_index(active)
                if problem is None:
                    return
                rebuilt = rebuild_txn_index(self._context, active, self._segments.all[:-1])
        except CorruptData as error:
            self._refuse(recovery.as_damaged_log(error, active.log_path))
            return
        self._report.actions.append(f"{path}: {problem}; rebuilt from the log")
        try:
            active.adopt_txn_index(rebuilt)
        except OSError as error:
            directory = self._context.directory
            self.guard.failure = as_storage_failure(error, directory, "rebuild an index")

    def _restore(self, base: int, suffix: str, encoded: Buffer) -> None:
        path = self._context.path(base, suffix)
        self._report.actions.append(f"{path}: missing; rebuilt from the log")
        files.write_atomically(self._context.env.files, path, encoded)

    # -- append times ------------------------------------------------------------------------

    def _load_append_times(self) -> None:
        """Keep only the append times that are proven, in memory and in the files.

        The next close writes a checkpoint, which declares that all append times on disk are right.
        So unproven append times must be removed before the next close.
        """
        active, trusted = self._segments.active, self._segments.trusted_end()
        for segment in self._segments.finished():
            if not segment.is_tiered and segment.end_offset > trusted:
                write_proven_times(segment)
        times = active.read_append_times()
        before = times.encode()
        limit_times(active, times, self._segments.trusted_end())
        is_unchanged = times.encode() == before
        is_whole = self._has_all_rows_of_file(active)
        active.adopt_append_times(times, file_matches=is_unchanged and is_whole)

    def _has_all_rows_of_file(self, active: ActiveSegment) -> bool:
        """Whether the append-time file contains only the rows that were read from it."""
        path = self._context.path(active.base_offset, log_files.APPEND_TIME_SUFFIX)
        if not self._context.env.files.exists(path):
            return not active.append_times.row_count
        return self._context.env.files.stat(path).size == active.append_times.size_bytes


def _problem_of_txn_index(active: ActiveSegment) -> str | None:
    """Return the defect of the active segment's index of aborted transactions, None if it is valid.

    An index with a defect can't take an entry for another abort.
    """
    try:
        entries = active.txn_index.entries
    except CorruptData as error:
        return error.reason
    if entries and entries[-1].last_offset >= active.end_offset:
        last, end = entries[-1].last_offset, active.end_offset
        return f"marker offset {last} is not below the log end, offset {end}"
    return None


def load_for_writing(log: LogReader, expiration_ms: int) -> ProducerStates:
    """Return the producers at the log end with their last batches; idle producers are left out."""
    now_ms = log.context.env.clock.now_ms()

    def appended_by_ms(offset: int) -> int | None:
        try:
            return log.appended_by_ms(offset)
        except (CorruptData, StorageFailure):
            return now_ms  # if the time is unreadable, the producer counts as active

    states = load_producer_states(log.context, log.segments, recall=True)
    states.set_arrival_times(now_ms - expiration_ms, appended_by_ms)
    states.expire(now_ms, expiration_ms)
    return states
