"""The part of an open log that guards its changes, rolls, flushes and closes it.

`WritableLog` holds what every change shares: the active segment, leader epochs, producers, the
append clock, and the rule for failures: after a failed system call the partition is offline for
good. It answers reads of what was acknowledged, never appends again and never repeats a failed
sync (the kernel may have dropped the pages and would report success). Reopening recovers. What
people call is in `log.Log`. Source: Kafka 4.x UnifiedLog, LocalLog; KIP-101 (leader epochs).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from tidelog.errors import Closed, StorageFailure
from tidelog.storage import files
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.log_loader import LogOptions, OpeningLog
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.recovery import mark_unsynced
from tidelog.storage.open_files import as_storage_failure, typed_failures
from tidelog.storage.segment import roll, zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint, fingerprint, last_batch
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.roll import RollReason

if TYPE_CHECKING:
    from tidelog.storage.clocks.append_times import AppendTimes
    from tidelog.storage.segment.time_search_kernels import KernelSearch

__all__ = ["LogOptions", "WritableLog"]


_Result = TypeVar("_Result")


class WritableLog(OpeningLog):
    """A partition that is open for writing, without the calls that change records."""

    # -- state -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Do nothing: the writer's own view is always the present one."""

    @property
    def failure(self) -> StorageFailure | None:
        """Why the partition is offline, None while it works."""
        return self._failure

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """Which epoch wrote which offsets."""
        return self._epochs

    def producer_states(self) -> ProducerStates:
        """Producers and open transactions at the log end."""
        return self._producers

    def accept_clock(self) -> None:
        """Let appends go on although the clock jumped.

        See `tidelog.storage.clocks.append_clock`.
        """
        self._append_clock.accept()

    def _guarded(self, path: str, operation: str, action: Callable[[], _Result]) -> _Result:
        """Run a change, behind all that was left for later; see `_guarded_now`."""
        self._ensure_writable()
        self._deferral.settle()
        return self._guarded_now(path, operation, action)

    def _guarded_now(self, path: str, operation: str, action: Callable[[], _Result]) -> _Result:
        """Run a change; a failed system call, a read too, takes the partition offline."""
        self._ensure_writable()
        self._is_changed = True
        try:
            return action()
        except (OSError, StorageFailure) as error:
            self._give_out(error, path, operation)

    def _give_out(self, error: OSError | StorageFailure, path: str, operation: str) -> NoReturn:
        """A change has met this: the partition is offline, and who asked is told."""
        if isinstance(error, StorageFailure):
            self._fail(error)
            raise error
        raise self._fail(as_storage_failure(error, path, operation)) from error

    def _ensure_writable(self) -> None:
        if self._failure is not None:
            raise self._failure.again()
        if self._is_closed:
            raise Closed(f"{self.topic_partition}: the log is closed")

    def _defer(
        self,
        path: str,
        operation: str,
        work: Callable[[], None],
        done: Callable[[StorageFailure | None], None] | None = None,
    ) -> None:
        """Leave work for later, behind all that was left before.

        Once some of it has failed, the partition is offline and nothing more of it is tried.

        Args:
            path: What it is about, for errors.
            operation: Likewise.
            work: Done in whatever thread; raises OSError or StorageFailure.
            done: Called on the owner's thread, with why the partition is offline if it is.
        """

        def guarded() -> None:
            if self._is_broken:
                return
            try:
                with typed_failures(path, operation):
                    work()
            except StorageFailure as failure:
                self._is_broken = True
                self._mark(failure)  # here: the partition may be offline or given up by now
                raise

        def finish(error: Exception | None) -> None:
            if error is not None and self._failure is None:
                if not isinstance(error, StorageFailure):
                    error = StorageFailure(path, operation, repr(error))
                self._fail(error)
            if done is not None:
                done(self._failure)

        self._deferral.defer(guarded, finish)

    @property
    def last_flush_ms(self) -> int:
        """When it was opened or last flushed as a whole, in ms of wall time."""
        return self._last_flush_ms

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was left for later waits or runs."""
        return self._deferral.is_idle

    # -- rolling and flushing ----------------------------------------------------------------

    def roll(self, reason: RollReason = RollReason.REQUEST) -> bool:
        """Finish the active segment and begin a new one; False where it is empty.

        Args:
            reason: What is remembered of it.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        self._ensure_writable()
        if not self.active.size_bytes:
            return False
        path = self.active.log_path
        self._guarded_now(path, "roll", lambda: self._roll(self.log_end_offset, reason))
        return True

    def _roll(self, new_base: int, reason: RollReason) -> None:
        """Seal and sync the old segment, snapshot the producers, then create the new one."""
        active = self.active
        if not active.size_bytes and new_base == active.base_offset:
            return
        active.close_entries()
        snapshot = self._producers.snapshot()
        save_note = self._notes.rolled(active, new_base, reason)

        def finish() -> None:
            """Make it durable, then what is remembered of it."""
            active.sync()
            self._write_snapshot(new_base, snapshot(), sync_name=False)
            save_note()

        self._defer(active.log_path, "roll", finish)
        created = ActiveSegment.create(self.context, new_base)
        created.append_times.floor_ms = _last_ms(active.append_times)
        directory = self.context.directory
        self._defer(
            directory,
            "sync",
            lambda: self.context.env.files.sync_dir(directory),
            lambda failure: self._rolled(active, new_base, failure),
        )
        closed = ClosedSegment(self.context, active.base_offset, new_base)
        closed.set_append_times(active.append_times)
        if new_base == active.end_offset:
            closed.set_whole(active.size_bytes)
        self._segments = [*self._segments[:-1], closed, created]
        if new_base > active.end_offset:
            self._deferral.settle()  # recovery takes a gap that nothing explains for a loss
        self._unflushed_records = 0
        self._jitter_ms = roll.draw_jitter_ms(self._config, self.context.env.random)
        if reason is not RollReason.RETENTION:  # it is deleted at once
            self._map_zones(closed)

    def _rolled(self, sealed: ActiveSegment, new_base: int, failure: StorageFailure | None) -> None:
        """All below the new segment is durable."""
        if failure is None and not self._is_closed:
            self.recovery_point = max(self.recovery_point, new_base)
            self.context.pool.forget(sealed.log_path)

    def _map_zones(self, segment: ClosedSegment) -> None:
        """Write a finished segment's zone map, or at the close where it takes too long.

        Derived from what is sealed and durable, so it comes last and is not synced.
        """
        is_small = segment.size_bytes <= zone_map_files.MAPPED_AT_ONCE_BYTES
        if not is_small and self._kernels is None:
            self._unmapped.append(segment)
            return
        self._defer(
            segment.log_path,
            "map zones",
            lambda: _write_zones(segment, by_kernels=not is_small),
        )

    def use_kernels(self) -> "KernelSearch":
        """As `OpeningLog`; what waited for kernels to be mapped is mapped with what is left."""
        search = super().use_kernels()
        waiting, self._unmapped = self._unmapped, []
        for segment in waiting:
            if segment in self._segments:
                self._map_zones(segment)
        return search

    def _map_rest(self) -> None:
        """The maps that had to wait: an append must not wait until kernels are loaded."""
        kept = [segment for segment in self._unmapped if segment in self._segments]
        self._unmapped = []
        if zone_map_files.has_kernels():
            zone_map_files.build_missing(kept)

    def build_zones(self) -> list[int]:
        """Write the zone maps of finished segments that have none that fits.

        Returns:
            The base offsets of the segments that have got one.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        self._ensure_writable()
        directory, segments = self.context.directory, self._segments
        return self._guarded(directory, "map zones", lambda: zone_map_files.build_missing(segments))

    def _write_snapshot(self, offset: int, snapshot: bytes, *, sync_name: bool = True) -> None:
        path = self.context.path(offset, files.SNAPSHOT_SUFFIX)
        files.write_atomically(self.context.env.files, path, snapshot, sync_name=sync_name)

    def flush(self) -> None:
        """Make everything that was appended durable: append times first, then records.

        Raises:
            StorageFailure: The sync failed. It is never tried again; the partition is offline.
        """
        self._ensure_writable()
        self._guarded(self.active.log_path, "sync", self._flush)

    def _flush(self) -> None:
        self.active.sync_records()
        self._note_flush(self.context.env.clock.now_ms(), self.log_end_offset)

    def flush_later(self, done: Callable[[StorageFailure | None], None]) -> int:
        """Make what was appended so far durable without waiting for it.

        Args:
            done: Called on the owner's thread when it is, with why the partition is offline if it
                is: then nothing was made durable.

        Returns:
            The log end: all below it will be durable.

        Raises:
            StorageFailure: The partition is offline.
        """
        self._ensure_writable()
        active, end, now_ms = self.active, self.log_end_offset, self.context.env.clock.now_ms()
        self._unflushed_records, self.is_flush_due = 0, False

        def finish(failure: StorageFailure | None) -> None:
            if failure is None and not self._is_closed:
                self._note_flush(now_ms, end, self._unflushed_records)
            done(failure)

        self._is_changed = True
        self._defer(active.log_path, "sync", active.sync_records, finish)
        return end

    def _note_flush(self, now_ms: int, end_offset: int, unflushed_records: int = 0) -> None:
        self.recovery_point = max(self.recovery_point, end_offset)
        self._unflushed_records = unflushed_records
        self._last_flush_ms = now_ms

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Write closing entries, sync everything, leave snapshot and append-time checkpoint.

        An offline log only drops its handles.

        Raises:
            StorageFailure: The disk failed on the way; the log counts as not closed cleanly.
        """
        if self._is_closed:
            return
        self._deferral.settle()
        try:
            if self._failure is None:
                self._close_guarded()
            elif self._is_in_doubt:
                mark_unsynced(self.context)  # the disk may have refused it
        finally:
            self._is_closed = True

    def _close_guarded(self) -> None:
        try:
            with typed_failures(self.active.log_path, "close"):
                self._close_cleanly()
        except StorageFailure as failure:
            self._mark(failure)
            self._failure = failure
            raise

    def _close_cleanly(self) -> None:
        if not self._is_changed:
            return
        self.active.close_entries()
        self.active.sync()
        self._notes.closed(self.active)
        self.recovery_point = self.log_end_offset
        self._write_snapshot(self.log_end_offset, self._producers.encode_snapshot())
        self._drop_old_snapshots()
        unlink = self._bin.take_due()
        if unlink is not None:
            unlink()
        self.checkpoint_append_times().write(self.context.env.files, self.context.directory)
        self._map_rest()

    def abandon(self) -> None:
        """Stop using the log without writing anything, as when its directory is going away."""
        self.give_up()()

    def give_up(self) -> Callable[[], None]:
        """The part of `abandon` that takes no time; what it returns does the rest, in any thread.

        Files may still be touched until that has returned.
        """
        self._forget_maps()  # whoever opens it next may cut the last segment
        wait, self._is_closed = self._deferral.give_up(), True

        def let_go() -> None:
            wait()
            for segment in self._segments:
                self.context.maps.forget(segment.log_path)
            # Where a truncation failed half way, no segment may be left.
            for active in self._segments[-1:]:
                for suffix in files.SEGMENT_SUFFIXES:
                    self.context.pool.forget(self.context.path(active.base_offset, suffix))

        return let_go

    def _reload_after_truncation(self) -> None:
        """What was derived from records that are gone is derived anew.

        Other records may follow at their offsets, so they get another epoch.
        """
        if self._epoch_is_noted:
            self.leader_epoch += 1
            self._epoch_is_noted = False
        self._load_producers()
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self._append_clock.rewind(self._last_known_ms())

    def checkpoint_append_times(self) -> AppendTimeCheckpoint:
        """What proves at the next start that the log was not cut below its present end."""
        last_ms = self._append_clock.last_ms
        for segment in reversed(self.local_segments):
            last = last_batch(segment)
            if last is not None:
                named = last.base_offset, fingerprint(last)
                return AppendTimeCheckpoint(self.log_end_offset, *named, last_ms)
            if segment.size_bytes:
                return AppendTimeCheckpoint(0, -1, 0, last_ms)  # damaged: nothing is vouched for
        return AppendTimeCheckpoint(self.log_end_offset, -1, 0, last_ms)

    def _drop_old_snapshots(self) -> None:
        """Keep the snapshots of segments' bases and the newest one, as Kafka does."""
        kept = {segment.base_offset for segment in self._segments} | {self.log_end_offset}
        for entry in self.context.env.files.list_dir(self.context.directory):
            found = files.parse_file_name(entry.name)
            if found and found[1] == files.SNAPSHOT_SUFFIX and found[0] not in kept:
                self.context.env.files.remove(f"{self.context.directory}/{entry.name}")


def _write_zones(segment: ClosedSegment, *, by_kernels: bool) -> None:
    zone_map_files.write(segment, by_kernels=by_kernels, check_crc=not by_kernels)


def _last_ms(times: "AppendTimes") -> int:
    """The last time that was written, which a coarser granularity must not round below."""
    known = times.last_known_ms
    return times.floor_ms if known is None else max(known, times.floor_ms)
