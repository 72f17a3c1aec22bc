"""Opening a partition for writing: recovery where one is needed, then everything that is derived.

After it the active segment takes appends, the files say nothing that the log does not prove, and
the next leader epoch is known. Where the log holds damage that no crash has left (`log_end`), no
file is changed: the partition can be read and takes no appends.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from tidelog.config import TopicConfig
from tidelog.errors import DamagedLog, StorageFailure
from tidelog.storage import files
from tidelog.storage.clocks.append_clock import NEVER, AppendClock, ClockWatch
from tidelog.storage.log import recovery, truncation
from tidelog.storage.log.durability import AT_ONCE, Bin, Deferral
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.log_reader import LogReader
from tidelog.storage.log.producer_loading import (
    expire_producers,
    limit_times,
    linked_file,
    list_bases,
    load_producer_states,
    write_sure_times,
)
from tidelog.storage.log.producers import PRODUCER_ID_EXPIRATION_MS, ProducerStates
from tidelog.storage.log.record_rules import BodyCheck, check_body
from tidelog.storage.log.recovery import leaves_doubt, mark_unsynced, rewrite_marked, sync_unsynced
from tidelog.storage.log.validator import PlainAppends, Validator
from tidelog.storage.open_files import typed_failures
from tidelog.storage.segment import roll, zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.append_time_trust import last_batch
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.log_end import RecordedEnd
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.storage.segment.segment_notes import NoteKeeper
from tidelog.storage.segment.time_search import stamped_ms
from tidelog.storage.tier.tier_record import TierAccess, TierRecord, write_record
from tidelog.types import TimestampType

if TYPE_CHECKING:
    from tidelog.storage.log.message_sets import SetPasses
    from tidelog.storage.segment.time_search_kernels import KernelSearch


_LOGGER: Final = logging.getLogger(__name__)


_TO_REPAIR: Final = "read: restore the file, or let `tidelog doctor --repair` set the damage aside"


def _ignore(*_offsets: int) -> None:
    """The default of callbacks that nobody listens to."""


def _do_nothing() -> None:
    """Likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is opened, beside its settings.

    Attributes:
        watch: The directory's check of the wall clock.
        recovery_point: Offset below which all is on disk; None after a clean stop.
        clean_end: Where the log ended at the clean stop; None where that is not recorded.
        is_own: Whether all appends behind a recovery point are those of a leader, so leave no gap.
        log_start_offset: From the directory's checkpoint.
        body_check: The validator's pass over records, plain or a kernel.
        lower_checkpoints: Called with an offset before a truncation, and with the log end that it
            leaves, so that the directory's checkpoints never lie beyond the log.
        save_log_start: Called with a new log start offset, in whatever thread the deferral works
            in; durable when it returns.
        tiers: How to read what lies in the tier; None where a log has local files only.
        deferral: Does what the log may leave for later; at once unless given.
        leaves_flushes: Whether an append that `flush.messages` or `flush.ms` make durable only
            says so (`Log.is_flush_due`), and its caller calls `flush_later`.
        producer_expiration_ms: How long a producer must be silent to be forgotten at an opening, as
            it is then.
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
        """The recorded end of the log."""
        if self.recovery_point is not None:
            return RecordedEnd(self.recovery_point, is_dense=self.is_own)
        return RecordedEnd(self.clean_end or 0, is_end=self.clean_end is not None)


class OpeningLog(LogReader):
    """A partition that was opened for writing: loaded, recovered, its clock and producers known.

    Attributes:
        on_failure: Called on the owner's thread when the partition has gone offline, but for a
            close that fails; `failure` says why.
        opened_end_offset: The log end when it was opened.
    """

    opened_end_offset = 0

    def __init__(self, context: SegmentContext, options: LogOptions) -> None:
        start = options.log_start_offset
        super().__init__(context, log_start_offset=start, tiers=options.tiers)
        self._options = options
        self.recovery_report = recovery.RecoveryReport()
        self._body_check = options.body_check
        self._set_passes: SetPasses | None = None
        self._failure: StorageFailure | None = None
        self.on_failure: Callable[[], None] = _do_nothing
        self._deferral = options.deferral
        self.is_flush_due = False
        self._is_broken = False  # by deferred work; told once the owner's thread knows
        self._is_in_doubt = False  # what the disk has
        self._bin = Bin(context)
        self._notes = NoteKeeper(context)
        self._unmapped: list[ClosedSegment] = []  # finished, and without a zone map until the close
        self._is_closed = False
        # After a clean stop there is nothing to close again until something was changed.
        self._is_changed = options.recovery_point is not None
        self._epochs = LeaderEpochs()
        self._producers = ProducerStates()
        self.recovery_point = 0
        self.leader_epoch = 0
        self._epoch_is_noted = False
        self._unflushed_records = 0
        self._last_flush_ms = 0
        self.configure(context.config)
        # Drawn once for each active segment, as in Kafka; new settings hold from the next one on.
        self._jitter_ms = roll.draw_jitter_ms(context.config, context.env.random)

    @classmethod
    def open_writable(cls, context: SegmentContext, options: LogOptions) -> Self:
        """Open a partition's directory for writing, after recovery where one is needed.

        Raises:
            StorageFailure: The disk failed; nothing valid was removed.
        """
        log = cls(context, options)
        try:
            with typed_failures(context.directory, "open"):
                log._load()
                log.opened_end_offset = log.log_end_offset
        except StorageFailure as failure:
            if failure.operation == "sync":
                log._mark(failure)
            raise
        return log

    def use_kernels(self) -> "KernelSearch":
        """Search and check appends with kernels from now on; see `LogReader.use_kernels`."""
        search = super().use_kernels()
        if self._body_check is check_body:
            from tidelog.record.kernels.records import check_body as kernel_check
            from tidelog.storage.log.message_set_kernels import KernelPasses

            self._body_check, self._set_passes = kernel_check, KernelPasses()
            self.configure(self._config)
        return search

    def configure(self, config: TopicConfig) -> None:
        """Take new settings of the topic; they hold from the next append on."""
        self._config = config
        self.context = self._notes.context = dataclasses.replace(self.context, config=config)
        # `internal.segment.bytes` stands in for `segment.bytes` where it is set.
        self._roll_config = dataclasses.replace(config, segment_bytes=config.segment_size_limit)
        self._validator = Validator(
            self.topic_partition,
            config,
            body_check=self._body_check,
            set_passes=self._set_passes,
        )
        self._plain = PlainAppends(config, self._body_check)
        is_stamped = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._stamps_alone = is_stamped and not config.tidelog_append_time_enable

    def _fail(self, failure: StorageFailure) -> StorageFailure:
        """Go offline, and tell who looks after the partition; the failure, to be raised."""
        if self._failure is None:
            _LOGGER.error(
                "%s is offline: %s; nothing is appended to it until `tidelog reopen`, or a restart",
                self.topic_partition,
                str(failure),  # the error itself holds the request that has met it
            )
        # One that is never raised: frames of one that is hold the request that has met it.
        self._failure = StorageFailure(failure.path, failure.operation, failure.reason)
        self._mark(failure)
        self.on_failure()
        return failure

    def _mark(self, failure: StorageFailure) -> None:
        """Tell the next opening, by whatever process, where the disk may lack something."""
        if leaves_doubt(failure):
            self._is_in_doubt = True
            mark_unsynced(self.context)

    # -- opening -----------------------------------------------------------------------------

    def _load(self) -> None:
        context = self.context
        report = self.recovery_report
        self._refuse_links()
        if self._failure is None:
            recovery.finish_swaps(context, report)
            self._settle_tier()
        self._epochs = self._read_epochs()
        # Counted before any cut: an epoch whose records were all lost must not be used again.
        self.leader_epoch = self._epochs.latest_epoch + 1
        if self._options.recovery_point is not None and self._failure is None:
            self._failure = rewrite_marked(context, self._options.recovery_point)
            self._refuse(self._recover())
        self._load_segments()
        if isinstance(self._failure, DamagedLog):
            self._load_refused()
            return
        self._load_append_times()
        if self._options.recovery_point is not None:
            # Before the notes: one about a finished segment says that all of it is durable.
            sync_unsynced(context, self._options.recovery_point)
        self._notes.load(self.local_segments, was_clean=self._options.recovery_point is None)
        self._load_producers()
        self._cut_epochs()
        truncation.drop_snapshots(context, self.log_end_offset)
        self.recovery_point = self.log_end_offset
        if self._failure is not None:
            self.recovery_point = self._options.recovery_point or 0
        self._last_flush_ms = context.env.clock.now_ms()

    def _refuse(self, damage: DamagedLog | None, todo: str = _TO_REPAIR) -> None:
        """Take no appends: bytes that nobody may cut can't be read."""
        if damage is None or isinstance(self._failure, DamagedLog):
            return
        self._failure = damage
        self.recovery_report.actions.append(
            f"{damage}; nothing is cut, the partition is only {todo}"
        )

    def _refuse_links(self) -> None:
        """Write through no link: what it leads to may be anybody's."""
        path = linked_file(self.context)
        if path is not None:
            reason = "a symbolic link: no appends, since nothing outside the directory is changed"
            self._refuse(DamagedLog(reason, path=path), "read: put the file itself there")

    def _load_refused(self) -> None:
        """Load the state that reads need; the files stay as they are."""
        active = self.active
        times = active.read_append_times()
        limit_times(active, times, self.trusted_end())
        active.set_append_times(times)
        self._start_append_clock()
        self._load_producers()
        self.recovery_point = self._options.recorded_end.recovery_point
        self._last_flush_ms = self.context.env.clock.now_ms()

    def _load_producers(self) -> None:
        self._producers = load_producer_states(self.context, self._segments, recall=True)
        now_ms = self.context.env.clock.now_ms()
        expiration_ms = self._options.producer_expiration_ms()
        expire_producers(self._producers, now_ms, expiration_ms, self.appended_by_ms)

    def _settle_tier(self) -> None:
        """Finish what the record of the tier says was begun: copies that were to go, a cut."""
        found = list_bases(self.context)
        kept = self._load_tier(found)
        if self._tier is None:
            return
        record = self._tier.record
        self._checkpointed_start = max(self._checkpointed_start, record.log_start_offset)
        gone = [base for base in reversed(found) if base not in kept]
        self._remove_local(gone, "the tier has these offsets, or they were cut")
        if record.restart_offset is not None:
            self._save_record(dataclasses.replace(record, restart_offset=None))

    def _remove_local(self, bases: Sequence[int], reason: str) -> None:
        """Remove segments, one by one: what is left of them never has a hole behind it."""
        for base in bases:
            recovery.remove_segment_files(self.context, base)
            self.context.env.files.sync_dir(self.context.directory)
        if bases:
            self.recovery_report.actions.append(
                f"{self.context.directory}: removed {len(bases)} local segments: {reason}"
            )

    def _save_record(self, record: TierRecord) -> None:
        """Replace the record of the tier, durably, and go by it."""
        assert self._tier is not None
        write_record(self.context.env.files, self.context.directory, record)
        self._tier = self._tier.with_record(record)

    def _recover(self) -> DamagedLog | None:
        before = self._epochs.entries
        damage = recovery.recover(
            self.context,
            self._options.recorded_end,
            self._epochs,
            self.recovery_report,
            log_start_offset=self._checkpointed_start,
        )
        if self._epochs.entries != before and damage is None:
            self._write_epochs()
        self.leader_epoch = max(self.leader_epoch, self._epochs.latest_epoch + 1)
        return damage

    def _cut_epochs(self) -> None:
        """Forget epochs behind the log end; the file keeps one entry so that none is used again."""
        end = self.log_end_offset
        was_stale = any(entry.start_offset > end for entry in self._epochs.entries)
        self._epochs.truncate_from_end(end)
        if was_stale:
            kept = self._epochs.entries
            self._epochs.assign(self.leader_epoch, end)
            self._write_epochs()
            self._epochs = LeaderEpochs(kept)
            self.leader_epoch += 1

    def _load_segments(self) -> None:
        bases = list_bases(self.context)
        end = self._read_end(bases)
        tier_end = 0 if self._tier is None else self._tier.end_offset
        is_refused = isinstance(self._failure, DamagedLog)
        if bases and not is_refused and bases[-1] < tier_end and self._end_of(bases[-1]) < tier_end:
            # Damage took what was copied already: the copy is whole.
            reason = f"they end at {self._end_of(bases[-1])}, the tier goes on to {tier_end}"
            self._remove_local(list(reversed(bases)), reason)
            bases, end = [], tier_end
        is_refused = isinstance(self._failure, DamagedLog)
        if bases and not is_refused and end < self._checkpointed_start:
            self.recovery_report.actions.append(
                f"{self.context.directory}: the log ended at {end}, below its start"
                f" {self._checkpointed_start}; started anew there"
            )
            for base in reversed(bases):
                recovery.remove_segment_files(self.context, base)
                self.context.env.files.sync_dir(self.context.directory)
            self._epochs.clear()
            bases = []
        if bases:
            active = self._load_active(bases[-1])
            if not isinstance(self._failure, DamagedLog):
                zone_map_files.drop(self.context, bases[-1])  # it was finished once, and cut
        else:
            active = ActiveSegment.create(self.context, max(self._checkpointed_start, tier_end))
            self.context.env.files.sync_dir(self.context.directory)
        closed: list[Segment] = [
            self._closed(None, base, next_base) for base, next_base in itertools.pairwise(bases)
        ]
        self._replace_segments([*closed, active])
        if not isinstance(self._failure, DamagedLog):
            self._restore_indexes()

    def _restore_indexes(self) -> None:
        """Write the indexes of finished segments that have gone, as Kafka does at its start."""
        names = {entry.name for entry in self.context.env.files.list_dir(self.context.directory)}
        for segment in self.local_segments[:-1]:
            if isinstance(segment, ClosedSegment):
                self._restore_index(segment, names)
        active, fs = self.active, self.context.env.files
        if files.file_name(active.base_offset, files.TXN_INDEX_SUFFIX) not in names:
            aborted = self._find_aborted(active)
            if aborted.entries:
                path = self.context.path(active.base_offset, files.TXN_INDEX_SUFFIX)
                self.recovery_report.actions.append(f"{path}: missing; rebuilt from the log")
                files.write_atomically(fs, path, aborted.encoded)

    def _restore_index(self, segment: ClosedSegment, names: AbstractSet[str]) -> None:
        suffixes = (files.OFFSET_INDEX_SUFFIX, files.TIME_INDEX_SUFFIX)
        base = segment.base_offset
        missing = [s for s in suffixes if files.file_name(base, s) not in names]
        if not missing:
            return
        rebuilt = dict(zip(suffixes, segment.rebuild_indexes(), strict=True))
        if segment.hides_records:
            return  # on disk, half an index would pass for a whole one
        for suffix in missing:
            path = self.context.path(base, suffix)
            self.recovery_report.actions.append(f"{path}: missing; rebuilt from the log")
            files.write_atomically(self.context.env.files, path, rebuilt[suffix].encoded)
        zone_map_files.drop_unfit(self.context, base)

    def _read_end(self, bases: Sequence[int]) -> int:
        if not bases or bases[-1] >= self._checkpointed_start:
            return self._checkpointed_start
        return self._end_of(bases[-1])

    def _end_of(self, base: int) -> int:
        return self._load_active(base).end_offset

    def _load_active(self, base: int) -> ActiveSegment:
        """The last segment; where it holds damage the partition takes no appends."""
        is_refused = isinstance(self._failure, DamagedLog)
        recorded = self._options.recorded_end
        active = ActiveSegment.load(self.context, base, recorded, is_refused=is_refused)
        self._refuse(active.damaged)
        return active

    def _load_append_times(self) -> None:
        """Limit all times to what is sure, and make the files say just that.

        The next close vouches for the whole log, so what it vouches for must be right.
        """
        active = self.active
        trusted = self.trusted_end()
        for segment in self.local_segments[:-1]:
            if isinstance(segment, ClosedSegment) and segment.end_offset > trusted:
                write_sure_times(segment)
        times = active.read_append_times()
        before = times.encode()
        limit_times(active, times, self.trusted_end())
        on_disk = self._size_on_disk(active)
        active.adopt_append_times(times, file_matches=times.encode() == before and on_disk)
        self._start_append_clock()

    def _start_append_clock(self) -> None:
        limit_ms = self._config.tidelog_max_clock_jump_ms
        last_ms = max(self._last_known_ms(), self._checkpointed_ms)
        self._append_clock = AppendClock(self._options.watch, last_ms=last_ms, limit_ms=limit_ms)

    def _size_on_disk(self, active: ActiveSegment) -> bool:
        """Whether the file holds nothing but the times that were read from it."""
        path = self.context.path(active.base_offset, files.APPEND_TIME_SUFFIX)
        if not self.context.env.files.exists(path):
            return not active.append_times.row_count
        return self.context.env.files.stat(path).size == active.append_times.size_bytes

    def _last_known_ms(self) -> int:
        """The last append time in the log, be it only in a batch; -1 where none is known."""
        stamped = None
        local = self.local_segments
        for segment in reversed(local):
            last = last_batch(segment)
            if last is not None:
                stamped = stamped_ms(last)
                break
        rows = (segment.append_times.last_known_ms for segment in reversed(local))
        known = next((ms for ms in rows if ms is not None), NEVER)
        rows_in_tier = () if self._tier is None else self._tier.record.manifest.segments
        told = max((row.times.largest_append_ms for row in rows_in_tier), default=NEVER)
        return max(known, NEVER if stamped is None else stamped, told)

    def _limit_tail_times(self) -> None:
        """The writer's active segment is limited once, when it is loaded."""

    def _read_epochs(self) -> LeaderEpochs:
        path = f"{self.context.directory}/{files.LEADER_EPOCH_CHECKPOINT_FILE}"
        try:
            return LeaderEpochs.decode(files.read_file(self.context.env.files, path))
        except FileNotFoundError:
            return LeaderEpochs()

    def _write_epochs(self) -> None:
        self._deferral.settle()  # else older ones would come after these
        self._save_epochs(self._epochs.encode())

    def _save_epochs(self, encoded: bytes) -> None:
        path = f"{self.context.directory}/{files.LEADER_EPOCH_CHECKPOINT_FILE}"
        files.write_atomically(self.context.env.files, path, encoded)

    @property
    def active(self) -> ActiveSegment:
        """The segment that takes appends."""
        active = self._segments[-1]
        assert isinstance(active, ActiveSegment)
        return active
