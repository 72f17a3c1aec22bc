"""Open share partition: its rules, its log, its lock timer, its writes and its waiting fetches.

Acknowledgements apply once they are written. One timer serves all acquisition locks.

Waiting fetches are woken one at a time, in order of arrival. Each event that may make records
available starts a round, and in a round each waiting fetch reads at most once. The next fetch is
woken when the woken fetch leaves the queue, or when it has read and more records remain. If all
fetches were woken for a single new record, all but one would be woken in vain. If a woken fetch is
busy with another partition, the next fetch is woken at once.

This module is used only in the event loop's thread, and never blocks it.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.errors import NOT_SERVED
from tidelog.server.runtime.loop import Timer, Timers
from tidelog.server.runtime.reply import Reply
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    AcquiredRange,
    AcquireOptions,
    Limits,
    ReadBatches,
    StateBatch,
)
from tidelog.server.shares.share_partition import Change, SharePartition
from tidelog.server.shares.state_topic import ShareKey, ShareStates, Update
from tidelog.types import IsolationLevel

_NEVER: Final = 0


class Waiter(Protocol):
    """Fetch that waits for records of one or more share partitions."""

    @property
    def isolation(self) -> IsolationLevel:
        """Isolation level of the fetch."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether the fetch is reading.

        A fetch that is woken during its read reads again afterwards.
        """
        ...

    def wake(self, key: ShareKey) -> None:
        """Notify the fetch that this share partition may have records.

        The woken fetch reads records, or leaves the queue.
        """
        ...


class FetchQueue:
    """Waiting fetches of a share partition, and the state of the current read.

    Attributes:
        key: Key of the share partition.
    """

    def __init__(self, key: ShareKey) -> None:
        """Create a queue without waiting fetches."""
        self.key = key
        # For each waiting fetch: the number of the round in which it read last.
        self._waiting: dict[Waiter, int] = {}
        self._round = _NEVER + 1
        self._woken: Waiter | None = None
        self._is_read = False

    def may_acquire(self, isolation: IsolationLevel) -> bool:
        """Whether a read of the log may return records, decided without reading the log."""
        raise NotImplementedError

    @property
    def waiting_count(self) -> int:
        """Number of waiting fetches."""
        return len(self._waiting)

    @property
    def is_read(self) -> bool:
        """Whether a fetch is reading the share partition now."""
        return self._is_read

    # -- waiting fetches ---------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Add a waiting fetch. Its first read needs no wake-up: the caller starts it at once."""
        self._waiting[waiter] = _NEVER

    def leave(self, waiter: Waiter) -> None:
        """Remove a fetch, whether it was woken or not; no-op if the fetch does not wait."""
        self._waiting.pop(waiter, None)
        self._pass_on(waiter)

    def begin_reading(self, waiter: Waiter) -> bool:
        """Begin an exclusive read; return False if another fetch reads or nothing can be read.

        If another fetch reads, `waiter` can be woken once that read has ended.
        """
        is_free = not self._is_read
        if waiter in self._waiting:
            self._waiting[waiter] = self._round if is_free else _NEVER
        if is_free and self.may_acquire(waiter.isolation):
            self._is_read = True
            if self._woken is waiter:
                self._woken = None
            return True
        self._pass_on(waiter)
        return False

    def end_reading(self) -> None:
        """End the exclusive read. Another fetch may read."""
        self._is_read = False
        self._wake_next()

    def _pass_on(self, waiter: Waiter) -> None:
        if self._woken is waiter:
            self._woken = None
        self._wake_next()

    # -- wake-ups ----------------------------------------------------------------------------

    def notify(self) -> None:
        """Begin a new round, because there may be more records."""
        self._round += 1
        self._wake_next()

    def wake_all(self) -> None:
        """Wake all waiting fetches."""
        for waiter in tuple(self._waiting):
            waiter.wake(self.key)

    def _wake_next(self) -> None:
        """Wake the first fetch that has not read in this round and may find records."""
        if self._is_read or self._woken is not None or not self._waiting:
            return
        has_records: dict[IsolationLevel, bool] = {}
        for waiter, last_round in self._waiting.items():
            if last_round == self._round:
                continue
            isolation = waiter.isolation
            if isolation not in has_records:
                has_records[isolation] = self.may_acquire(isolation)
            if not has_records[isolation]:
                continue
            if not waiter.is_busy:
                self._woken = waiter
                waiter.wake(self.key)
                return
            waiter.wake(self.key)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Dependencies of open share partitions."""

    clock: Clock
    timers: Timers
    states: ShareStates
    limits: Callable[[str], Limits]


class OpenSharePartition(FetchQueue):
    """Open share partition. Used only in the event loop's thread.

    When more records may be acquired, waiting fetches are woken in turn.

    Attributes:
        partition: Partition with the log.
        records: States of its records.
        is_closed: Whether the share partition is closed. A closed object must not be used.
    """

    def __init__(
        self, key: ShareKey, partition: Partition, records: SharePartition, around: Surroundings
    ) -> None:
        """Open a share partition with its loaded record states."""
        super().__init__(key)
        self.partition = partition
        self.records = records
        self.is_closed = False
        self._around = around
        self._timer: Timer | None = None
        self._writing = 0

    @property
    def is_idle(self) -> bool:
        """Whether no member has acquired records, no fetch waits or reads, and no write runs."""
        is_busy = self.is_read or self._writing or self.waiting_count
        return not is_busy and self.records.deadline_ms is None

    def refresh(self) -> None:
        """Apply changes of the group's settings and of the log start offset."""
        self.records.limits = self._around.limits(self.key.group_id)
        self.records.move_start(self.partition.log.log_start_offset)

    def may_acquire(self, isolation: IsolationLevel) -> bool:
        """Whether a read of the log could return records for a member."""
        end_offset = self.partition.end_offset(isolation)
        if self.records.fetch_offset >= end_offset:
            return False  # the usual case for a waiting fetch
        self.refresh()
        return self.records.can_acquire and self.records.fetch_offset < end_offset

    def join(self, waiter: Waiter) -> None:
        """Add a fetch that waits for new records of the log and for released records."""
        if not self.waiting_count:
            self.partition.watch(self._on_change)
        super().join(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Remove a fetch; no-op if the fetch does not wait."""
        super().leave(waiter)
        if not self.waiting_count:
            self.partition.unwatch(self._on_change)

    def _on_change(self) -> None:
        if self.partition.is_deleted:
            self.wake_all()  # `Topics.on_deleted` closes the share partition, but later
        else:
            self.notify()

    def acquire(
        self, member: str, offered: ReadBatches, options: AcquireOptions
    ) -> list[AcquiredRange]:
        """Acquire records for a member from the batches that were read."""
        acquired = self.records.acquire(member, offered, options, self._now_ms())
        self._arm()
        return acquired

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement]
    ) -> Reply[ErrorCode]:
        """Apply a member's acknowledgements.

        The reply completes with NONE once the acknowledgements are durable, or with an error code.
        """
        self.refresh()
        change = self.records.acknowledge(member, acknowledgements, self._now_ms())
        if isinstance(change, ErrorCode):
            return Reply.of(change)
        return self._write(change)

    def release(self, member: str) -> Reply[ErrorCode]:
        """Release all records of a member. The reply completes when the release is durable."""
        return self._write(self.records.release(member))

    def close(self) -> None:
        """Close the share partition. Waiting fetches are woken."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake_all()

    # -- writing -----------------------------------------------------------------------------

    def _write(self, change: Change) -> Reply[ErrorCode]:
        if not change.batches:
            self._settle(change, is_written=True)
            return Reply.of(ErrorCode.NONE)

        def written(code: ErrorCode) -> ErrorCode:
            self._writing -= 1
            self._settle(change, is_written=code is ErrorCode.NONE)
            return _share_code(code)

        self._writing += 1
        return self._around.states.write(self.key, self._update(change.batches)).derive(written)

    def _update(self, batches: Sequence[StateBatch]) -> Update:
        records, epoch = self.records, self.partition.log.leader_epoch
        return Update(records.start, records.complete_count, batches, epoch)

    def _settle(self, change: Change, *, is_written: bool) -> None:
        if self.is_closed:
            return
        if is_written:
            self.records.commit(change)
        else:
            self.records.roll_back(change)
        self._arm()
        self.notify()

    # -- timers ------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._around.clock.monotonic_ms()

    def _arm(self) -> None:
        """Start the timer for the earliest lock timeout."""
        due_ms = self.records.deadline_ms
        if self._timer is not None:
            if due_ms is not None and self._timer.due_ms <= due_ms and not self._timer.is_cancelled:
                return  # `_expire` starts the next timer
            self._timer.cancel()
            self._timer = None
        if due_ms is not None and not self.is_closed:
            delay_ms = max(due_ms - self._now_ms(), 0)
            self._timer = self._around.timers.after(delay_ms, self._expire)

    def _expire(self) -> None:
        self._timer = None
        batches = self.records.expire(self._now_ms())
        if batches:
            # Expired records are released even if the write fails. If the states are then reloaded,
            # only the increments of the delivery counts are lost.
            self._around.states.write(self.key, self._update(batches))
            self.notify()
        self._arm()


def _share_code(code: ErrorCode) -> ErrorCode:
    """Convert the result of a write to the error code for a member."""
    if code is ErrorCode.NONE:
        return ErrorCode.NONE
    if code in NOT_SERVED:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_SERVER_ERROR
