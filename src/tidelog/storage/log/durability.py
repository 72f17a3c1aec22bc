"""Durability of a log's changes, and the log's reaction to a failing disk.

- `FailureGuard` handles the failures of changes. After a failed system call the partition is
  offline until it is reopened with recovery. An offline partition serves reads of acknowledged
  records, but refuses appends. A failed sync is never repeated: the operating system may have
  dropped the unwritten pages, and the next sync would report success.
- `Deferral` runs work that may be done later, such as a flush, an unlink, or the syncs, snapshots
  and zone maps of a roll. Work of one log runs in the order in which it was deferred, because later
  work depends on earlier work. `AtOnce`, the default, runs the work immediately. A server uses an
  implementation that runs the work in another thread, and then calls a callback on the owner's
  thread (the thread that appends to the log).
- `Flusher` owns the recovery point and applies `flush.messages` and `flush.ms`.

Source: Kafka 4.x UnifiedLog, LocalLog.
"""

import logging
from collections.abc import Callable
from typing import Final, NoReturn, Protocol, TypeAlias, TypeVar

from tidelog.config import TopicConfig
from tidelog.errors import Closed, CorruptData, StorageFailure, TidelogError
from tidelog.storage import log_files
from tidelog.storage.log.recovery import leaves_doubt, mark_unsynced
from tidelog.storage.log.segment_list import SegmentList
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.segment import SegmentContext
from tidelog.types import INT64_MAX

_LOGGER: Final = logging.getLogger(__name__)

_Result = TypeVar("_Result")

Work: TypeAlias = Callable[[], None]

# Callback; its argument is the error that the work raised, None on success.
Done: TypeAlias = Callable[[Exception | None], None]


class Deferral(Protocol):
    """Runs one log's deferred work, in order."""

    @property
    def is_idle(self) -> bool:
        """Whether no work is waiting or running."""
        ...

    def defer(self, work: Work, done: Done) -> None:
        """Run `work` in any thread, then call `done` on the owner's thread.

        Raises:
            OSError, StorageFailure: The work ran immediately and raised this error; `done` is not
                called.
        """
        ...

    def settle(self) -> None:
        """Wait until no work is waiting or running and each `done` was called."""
        ...

    def detach(self) -> Callable[[], None]:
        """Drop the waiting work. No `done` is called any more.

        Returns:
            A function, for any thread, that waits for the running work to end.
        """
        ...


class AtOnce:
    """Deferral that runs everything immediately."""

    is_idle: Final = True

    def defer(self, work: Work, done: Done) -> None:
        """Run `work` now; see `Deferral`."""
        work()
        done(None)

    def settle(self) -> None:
        """Return at once, because no work is ever waiting."""

    def detach(self) -> Callable[[], None]:
        """Do nothing, because no work is ever waiting."""
        return self.settle


AT_ONCE: Final = AtOnce()


def _do_nothing() -> None:
    """Do nothing; the default of `FailureGuard.call_on_failure`."""


def _as_failure(error: OSError | TidelogError, path: str, operation: str) -> StorageFailure:
    if isinstance(error, OSError):
        return as_storage_failure(error, path, operation)
    return StorageFailure(path, operation, str(error))


def _run_typed(path: str, operation: str, work: Work) -> None:
    """Run deferred work or a close; raise its OSError or TidelogError as a StorageFailure."""
    try:
        work()
    except StorageFailure:
        raise
    except (OSError, TidelogError) as error:
        raise _as_failure(error, path, operation) from error


class FailureGuard:
    """Failure handling of one open log. Only deferred work runs outside the owner's thread.

    Attributes:
        failure: Why the partition is offline, None while it is online.
        is_closed: Whether the log was closed or abandoned.
        is_changed: Whether a close has to write. True if the log has changed, or was opened after a
            hard stop.
        deferred_calls: During `log.append_together`, a list that collects the callbacks of
            failures; `append_together` calls them at its end. None otherwise.
    """

    def __init__(
        self, context: SegmentContext, deferral: Deferral, *, is_changed: bool = False
    ) -> None:
        self._context = context
        self._deferral = deferral
        self.failure: StorageFailure | None = None
        self._on_failure: Callable[[], None] = _do_nothing
        self.deferred_calls: list[Callable[[], None]] | None = None
        self.is_closed = False
        self.is_changed = is_changed
        # `_is_broken`: whether deferred work has failed, even if the owner's thread does not know
        # this yet. `_is_in_doubt`: whether the disk may lack data that was written.
        self._is_broken = False
        self._is_in_doubt = False

    def call_on_failure(self, call: Callable[[], None]) -> None:
        """Set the callback that runs on the owner's thread when the partition goes offline.

        A failed close does not call the callback.
        """
        self._on_failure = call

    @property
    def is_settled(self) -> bool:
        """Whether no deferred work is waiting or running."""
        return self._deferral.is_idle

    def settle(self) -> None:
        """Wait until no deferred work is waiting or running."""
        self._deferral.settle()

    def ensure_writable(self) -> None:
        """Raise the stored failure if the partition is offline, or Closed if the log is closed."""
        if self.failure is not None:
            raise self.failure.again()
        if self.is_closed:
            raise Closed(f"{self._context.topic_partition}: the log is closed")

    def run(self, path: str, operation: str, action: Callable[[], _Result]) -> _Result:
        """Run a change after all deferred work; see `run_now`."""
        self.ensure_writable()
        self._deferral.settle()
        return self.run_now(path, operation, action)

    def run_now(self, path: str, operation: str, action: Callable[[], _Result]) -> _Result:
        """Run a change of the log, and return the result of `action`.

        If a system call fails or data is damaged, even in a read, the partition goes offline,
        because `action` may have made only a part of its changes. An `action` that raises a
        `RequestError` must raise it before the first change.

        Raises:
            StorageFailure: The disk failed, or data is damaged; the partition is offline.
            Closed: The log is closed.
            RequestError: `action` refuses the request; nothing was changed.
        """
        self.ensure_writable()
        self.is_changed = True
        try:
            return action()
        except (OSError, StorageFailure, CorruptData) as error:
            self.fail(error, path, operation)

    def fail(self, error: OSError | TidelogError, path: str, operation: str) -> NoReturn:
        """Take the partition offline, and raise the failure."""
        if isinstance(error, StorageFailure):
            self.go_offline(error)
            raise error
        # Don't store the failure in a local variable: its traceback refers to this frame, so the
        # variable would make a reference cycle.
        raise self.go_offline(_as_failure(error, path, operation)) from error

    def go_offline(self, failure: StorageFailure) -> StorageFailure:
        """Take the partition offline, and call the callback of `call_on_failure`.

        Return `failure`, so that the caller can raise it.
        """
        if self.failure is None:
            _LOGGER.error(
                "%s is offline: %s; appends are refused until `tidelog reopen` or a restart",
                self._context.topic_partition,
                str(failure),  # an error object would keep the request in memory
            )
        # Keep a copy that is never raised, because the traceback of a raised error keeps the
        # request in memory.
        self.failure = StorageFailure(failure.path, failure.operation, failure.reason)
        self.mark(failure)
        if self.deferred_calls is None:
            self._on_failure()
        else:
            self.deferred_calls.append(self._on_failure)
        return failure

    def mark(self, failure: StorageFailure) -> None:
        """Mark the directory if the disk may lack data; the next opening then rewrites the data."""
        if leaves_doubt(failure):
            self._is_in_doubt = True
            mark_unsynced(self._context)

    def defer(
        self,
        path: str,
        operation: str,
        work: Callable[[], None],
        done: Callable[[StorageFailure | None], None] | None = None,
    ) -> None:
        """Defer work. It runs after all work that earlier calls have deferred.

        If deferred work fails, the partition goes offline, and later deferred work is not run.

        Args:
            path: File or directory of the work, for errors.
            operation: Name of the work, for errors.
            work: Function to run, in any thread. Each OSError and TidelogError that the function
                raises is a failure.
            done: Called on the owner's thread after the work. The callback's argument is the
                failure if the partition is offline, else None.

        Raises:
            StorageFailure: The deferral ran the work immediately, and the work failed.
        """

        def guarded() -> None:
            if self._is_broken:
                return
            try:
                _run_typed(path, operation, work)
            except StorageFailure as failure:
                self._is_broken = True
                # Mark the failure here: if the partition is already offline or abandoned when
                # `finish` runs, `finish` does not mark it.
                self.mark(failure)
                raise

        def finish(error: Exception | None) -> None:
            if error is not None and self.failure is None:
                if not isinstance(error, StorageFailure):
                    error = StorageFailure(path, operation, repr(error))
                self.go_offline(error)
            if done is not None:
                done(self.failure)

        self._deferral.defer(guarded, finish)

    def close(self, action: Callable[[], None]) -> None:
        """Run the writes of a close, unless the partition is offline or nothing has changed.

        Raises:
            StorageFailure: The disk failed, or data is damaged; the log counts as not closed
                cleanly.
        """
        if self.is_closed:
            return
        self._deferral.settle()
        try:
            if self.failure is not None:
                if self._is_in_doubt:
                    mark_unsynced(self._context)  # again: the disk may have lost the earlier mark
            elif self.is_changed:
                _run_typed(self._context.directory, "close", action)
        except StorageFailure as failure:
            self.mark(failure)
            self.failure = failure
            raise
        finally:
            self.is_closed = True

    def abandon(self) -> Callable[[], None]:
        """Drop deferred work and refuse further changes.

        Returns:
            A function, for any thread, that waits for the running work.
        """
        wait, self.is_closed = self._deferral.detach(), True
        return wait


class Flusher:
    """The recovery point of an open log, and the rule that decides when an append is flushed.

    Attributes:
        recovery_point: Offset below which everything is durable.
        last_flush_ms: Wall time in ms when the log was opened or last flushed. A roll syncs the old
            segment, but does not change this time.
        is_flush_due: Whether the caller of an append has to call `flush_later`.
        has_policy: Whether `flush.messages` or `flush.ms` is set. If False, the writer need not
            call `acknowledge`, and makes appends visible itself.
    """

    def __init__(self, segments: SegmentList, guard: FailureGuard, *, leaves_flushes: bool) -> None:
        """Start with the recovery point 0, until `start_at` sets the recovery point.

        Args:
            segments: Segments of the log.
            guard: Runs the syncs.
            leaves_flushes: Whether the caller of an append makes the flush; see `LogOptions`.
        """
        self._segments = segments
        self._guard = guard
        self._leaves_flushes = leaves_flushes
        self.recovery_point = 0
        self.last_flush_ms = 0
        self.is_flush_due = False
        self._flushed_end = 0  # `flush.messages` counts records from this offset on
        self.configure(segments.context.config)

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic from the next append on."""
        self._flush_messages, self._flush_ms = config.flush_messages, config.flush_ms
        self.has_policy = min(config.flush_messages, config.flush_ms) < INT64_MAX

    def start_at(self, recovery_point: int) -> None:
        """Set the recovery point when the log is opened."""
        self.recovery_point = recovery_point
        self._flushed_end = self._segments.end_offset
        self.last_flush_ms = self._segments.context.env.clock.now_ms()

    def cut(self, end_offset: int) -> None:
        """Lower the recovery point to at most `end_offset`, the log end after a truncation.

        The truncation begins after this call.
        """
        self.recovery_point = min(self.recovery_point, end_offset)
        self._flushed_end = min(self._flushed_end, end_offset)

    def note_durable(self, end_offset: int) -> None:
        """Raise the recovery point to `end_offset`, because everything below it is durable."""
        self.recovery_point = max(self.recovery_point, end_offset)

    def began_segment(self) -> None:
        """Count records for `flush.messages` from a new active segment's start on."""
        self._flushed_end = self._segments.end_offset

    def acknowledge(self, active: ActiveSegment, end_offset: int, now_ms: int) -> None:
        """Flush if `flush.messages` or `flush.ms` requires it; then make an append visible.

        If `LogOptions.leaves_flushes` is true, this method does not flush, but sets `is_flush_due`.
        The caller of the append then has to call `flush_later`.

        Args:
            active: Segment of the append.
            end_offset: Offset after the append's last record.
            now_ms: Wall time in ms.
        """
        is_due = (
            end_offset - self._flushed_end >= self._flush_messages
            or now_ms - self.last_flush_ms >= self._flush_ms
        )
        is_left = is_due and self._leaves_flushes
        if is_due and not is_left:
            active.sync_records()
        active.acknowledge()
        if is_left:
            self.is_flush_due = True
        elif is_due:
            self._note_flush(now_ms, end_offset)

    def flush(self) -> None:
        """Make all appends durable: append times first, then records.

        Raises:
            StorageFailure: The sync failed, and the partition is offline. A failed sync is never
                repeated.
        """
        self._guard.ensure_writable()
        self._guard.run(self._segments.active.log_path, "sync", self._flush)

    def _flush(self) -> None:
        self._segments.active.sync_records()
        now_ms = self._segments.context.env.clock.now_ms()
        self._note_flush(now_ms, self._segments.end_offset)

    def flush_later(self, done: Callable[[StorageFailure | None], None]) -> int:
        """Make all appends so far durable, without waiting.

        Args:
            done: Called on the owner's thread after the sync. The callback's argument is the
                failure if the partition is offline, else None. If there is a failure, the appended
                records are possibly not durable.

        Returns:
            The log end at the time of the call. After a successful sync, everything below this
            offset is durable.

        Raises:
            StorageFailure: The partition is offline, or a sync that ran immediately failed.
        """
        self._guard.ensure_writable()
        active, end = self._segments.active, self._segments.end_offset
        now_ms = self._segments.context.env.clock.now_ms()
        self._flushed_end, self.is_flush_due = end, False

        def finish(failure: StorageFailure | None) -> None:
            if failure is None and not self._guard.is_closed:
                self._note_flush(now_ms, end)
            done(failure)

        self._guard.is_changed = True
        self._guard.defer(active.log_path, "sync", active.sync_records, finish)
        return end

    def _note_flush(self, now_ms: int, end_offset: int) -> None:
        self.note_durable(end_offset)
        self._flushed_end = max(self._flushed_end, end_offset)
        self.last_flush_ms = now_ms


def set_aside(context: SegmentContext, base_offset: int) -> list[str]:
    """Rename a segment's files to `.deleted`; return their new paths.

    The log file is renamed first. If a crash follows, the segment's other files have no log file,
    and the next opening removes them. May run in any thread; raises OSError.
    """
    fs, renamed = context.env.files, []
    for suffix in log_files.LOG_FIRST:
        path = context.path(base_offset, suffix)
        if fs.exists(path):
            context.pool.forget(path)
            context.maps.forget(path)
            fs.rename(path, path + log_files.DELETED_SUFFIX)
            renamed.append(path + log_files.DELETED_SUFFIX)
    return renamed
