"""A share partition in use: its rules, its log, its lock timer, its writes and its waiting fetches.

Acknowledgements apply once they are written. One timer serves all acquisition locks.

Waiting fetches are woken one at a time, in order of arrival. Each event that may make records
available starts a round, and in a round each waiting fetch reads at most once. The next fetch is
woken when the one before has read, or has left, and records remain. Otherwise one record would wake
all fetches, and all but one for nothing. A fetch that is busy with another partition is notified,
and the next one is woken too.

Pure, for one thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.loop import Timer, Timers
from tidelog.server.runtime.reply import Reply
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    Acquired,
    AcquireOptions,
    Limits,
    ReadBatches,
)
from tidelog.server.shares.share_partition import Change, SharePartition
from tidelog.server.shares.state_topic import ShareKey, ShareStates, Update
from tidelog.types import IsolationLevel

_NEVER: Final = 0


class Waiter(Protocol):
    """Who waits for records, of one share partition or of several."""

    @property
    def isolation(self) -> IsolationLevel:
        """Which records of transactions it sees."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether it is in the midst of a look: it looks again afterwards where it was woken."""
        ...

    def wake(self, key: ShareKey) -> None:
        """There may be something: it is to look at that share partition soon, or to leave."""
        ...


class FetchQueue:
    """Who waits for a share partition, and who reads it.

    Attributes:
        key: The share partition's name.
    """

    def __init__(self, key: ShareKey) -> None:
        """Nobody waits."""
        self.key = key
        # The round in which each has looked last.
        self._waiting: dict[Waiter, int] = {}
        self._round = _NEVER + 1
        self._woken: Waiter | None = None
        self._is_read = False

    def has_some(self, isolation: IsolationLevel) -> bool:
        """Whether a look could find something, as far as that can be told without one."""
        raise NotImplementedError

    @property
    def waiting_count(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it now."""
        return self._is_read

    # -- who waits ---------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Wait from now on; who joins looks at once, without being woken."""
        self._waiting[waiter] = _NEVER

    def leave(self, waiter: Waiter) -> None:
        """Wait no more, woken or not; fine where it did not wait."""
        self._waiting.pop(waiter, None)
        self._pass_on(waiter)

    def begin_reading(self, waiter: Waiter) -> bool:
        """Look, and read what there is alone; whether there may be something, and nobody reads.

        Where somebody does, it is woken again when that is over.
        """
        is_free = not self._is_read
        if waiter in self._waiting:
            self._waiting[waiter] = self._round if is_free else _NEVER
        if is_free and self.has_some(waiter.isolation):
            self._is_read = True
            if self._woken is waiter:
                self._woken = None
            return True
        self._pass_on(waiter)
        return False

    def end_reading(self) -> None:
        """Let others read."""
        self._is_read = False
        self._wake_next()

    def _pass_on(self, waiter: Waiter) -> None:
        if self._woken is waiter:
            self._woken = None
        self._wake_next()

    # -- who is woken ------------------------------------------------------------------------

    def notify(self) -> None:
        """There may be more to be had: a new round."""
        self._round += 1
        self._wake_next()

    def wake_all(self) -> None:
        """There is something that concerns everybody who waits."""
        for waiter in tuple(self._waiting):
            waiter.wake(self.key)

    def _wake_next(self) -> None:
        """Wake the first one that has not looked in this round and could find something."""
        if self._is_read or self._woken is not None or not self._waiting:
            return
        has_records: dict[IsolationLevel, bool] = {}
        for waiter, looked in self._waiting.items():
            if looked == self._round:
                continue
            isolation = waiter.isolation
            if isolation not in has_records:
                has_records[isolation] = self.has_some(isolation)
            if not has_records[isolation]:
                continue
            if not waiter.is_busy:
                self._woken = waiter
                waiter.wake(self.key)
                return
            waiter.wake(self.key)


_UNAVAILABLE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a live share partition needs of the broker."""

    clock: Clock
    timers: Timers
    states: ShareStates
    limits: Callable[[str], Limits]


class OpenSharePartition(FetchQueue):
    """Belongs to the loop's thread. Who waits is woken in turn when there is more to acquire.

    Attributes:
        partition: Its log.
        records: What is known of its records.
        is_gone: Nothing can be said of it any more.
    """

    def __init__(
        self, key: ShareKey, partition: Partition, records: SharePartition, around: Surroundings
    ) -> None:
        """A share partition, with all that is known of it."""
        super().__init__(key)
        self.partition = partition
        self.records = records
        self.is_gone = False
        self._around = around
        self._timer: Timer | None = None
        self._writing = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody has a record of it, or waits for something."""
        is_busy = self.is_read or self._writing or self.waiting_count
        return not is_busy and self.records.deadline_ms is None

    def refresh(self) -> None:
        """Let hold what has changed beside it: the group's settings, the log's start."""
        self.records.limits = self._around.limits(self.key.group_id)
        self.records.move_start(self.partition.log.log_start_offset)

    def has_some(self, isolation: IsolationLevel) -> bool:
        """Whether a read of the log could give a member something."""
        end_offset = self.partition.end_offset(isolation)
        if self.records.fetch_offset >= end_offset:
            return False  # mostly: who waits has had what there was
        self.refresh()
        return self.records.can_acquire and self.records.fetch_offset < end_offset

    def join(self, waiter: Waiter) -> None:
        """Wait from now on for what the log gets, and for what comes back."""
        if not self.waiting_count:
            self.partition.watch(self._look_at_log)
        super().join(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Wait no more; fine where it did not wait."""
        super().leave(waiter)
        if not self.waiting_count:
            self.partition.unwatch(self._look_at_log)

    def _look_at_log(self) -> None:
        if self.partition.is_gone:
            self.wake_all()  # at once: the topic's deletion is told when its files are gone, too
        else:
            self.notify()

    def acquire(self, member: str, offered: ReadBatches, wish: AcquireOptions) -> list[Acquired]:
        """Give a member what it may have of what was read."""
        acquired = self.records.acquire(member, offered, wish, self._now_ms())
        self._arm()
        return acquired

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement]
    ) -> Reply[ErrorCode]:
        """Take what a member says; when it is safe, or why it was not taken."""
        self.refresh()
        change = self.records.acknowledge(member, acknowledgements, self._now_ms())
        if isinstance(change, ErrorCode):
            return Reply.of(change)
        return self._write(change)

    def release(self, member: str) -> Reply[ErrorCode]:
        """A member goes; when it is safe that it has nothing any more."""
        return self._write(self.records.release(member))

    def close(self) -> None:
        """Nothing can be said of it any more."""
        self.is_gone = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake_all()

    # -- writing -----------------------------------------------------------------------------

    def _write(self, change: Change) -> Reply[ErrorCode]:
        reply = Reply[ErrorCode]()
        if not change.batches:
            self._settle(change, is_written=True)
            reply.complete(ErrorCode.NONE)
            return reply

        def written(code: ErrorCode) -> None:
            self._writing -= 1
            self._settle(change, is_written=code is ErrorCode.NONE)
            reply.complete(_share_code(code))

        self._writing += 1
        self._around.states.write(self.key, self._update(change)).then(written)
        return reply

    def _update(self, change: Change) -> Update:
        records, epoch = self.records, self.partition.log.leader_epoch
        return Update(records.start, records.complete_count, change.batches, epoch)

    def _settle(self, change: Change, *, is_written: bool) -> None:
        if self.is_gone:
            return
        if is_written:
            self.records.commit(change)
        else:
            self.records.roll_back(change)
        self._arm()
        self.notify()

    # -- time --------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._around.clock.monotonic_ms()

    def _arm(self) -> None:
        """Be woken when the next lock runs out."""
        due_ms = self.records.deadline_ms
        if self._timer is not None:
            if due_ms is not None and self._timer.due_ms <= due_ms and not self._timer.is_cancelled:
                return  # it looks again then
            self._timer.cancel()
            self._timer = None
        if due_ms is not None and not self.is_gone:
            delay_ms = max(due_ms - self._now_ms(), 0)
            self._timer = self._around.timers.after(delay_ms, self._expire)

    def _expire(self) -> None:
        self._timer = None
        batches = self.records.expire(self._now_ms())
        if batches:
            # It holds whether that can be written or not: who reads it again has only lost counts.
            records, epoch = self.records, self.partition.log.leader_epoch
            update = Update(records.start, records.complete_count, batches, epoch)
            self._around.states.write(self.key, update)
            self.notify()
        self._arm()


def _share_code(code: ErrorCode) -> ErrorCode:
    """What a member is told of a write."""
    if code is ErrorCode.NONE:
        return ErrorCode.NONE
    if code in _UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_SERVER_ERROR
