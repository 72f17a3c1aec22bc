"""Threads of a broker: workers, a log's deferred tasks, and calls from threads to the loop.

- `Work`: blocking calls in a few threads, with a limit on waiting calls.
- `Beside`: tasks that one log defers, in order; tasks of different logs run concurrently
  (`tidelog.storage.log.durability` declares them).
- `LogDirOnLoop`: the directory as other threads use it. A `LogDir` and its logs belong to the event
  loop's thread. Long work (an attach, a copy to the tier) runs in another thread on proxies: each
  call is executed on the loop; plain values are read directly. So the loop stops for single calls,
  never for the work between them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tidelog.env import Env
from tidelog.errors import Closed
from tidelog.record.builder import BATCH_BYTES
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.commits import Commit, CommitRecords
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.append import AppendResult
from tidelog.storage.log.durability import Done
from tidelog.storage.log.durability import Work as Job
from tidelog.storage.log.log import Log, LogAccess, SwapAccess
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.segment_swaps import Adoption, Swap
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.retention import Deletion
from tidelog.storage.segment.roll import RollReason, SegmentNote
from tidelog.storage.segment.segment import Segment
from tidelog.storage.tier.tier_files import TierFiles
from tidelog.types import Codec, NewRecord, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.tier.tier_record import TierRecord

_Result = TypeVar("_Result")


THREADS: Final = 4


# Maximum number of calls handed to the threads; further calls wait, in order.
CALL_LIMIT: Final = 64


# Maximum number of things that a function processes on the event loop.
FEW: Final = 1000


class Work:
    """Threads for syncs, unlinks, maps and cold reads. Belongs to the event loop's thread.

    A broker has several instances, so that slow calls (reads of a disk or a store) block only calls
    of their kind. Calls of clients (`run`) wait until the threads have room, at most one for each
    connection. Calls by `submit` are limited by their callers: one sync for each log, one
    checkpoint, a few partitions being opened.

    Attributes:
        is_closed: Whether no calls are accepted any more, because the broker stops.
    """

    def __init__(self, threads: int = THREADS, *, calls: int = CALL_LIMIT) -> None:
        """Create it; threads start when they are needed.

        Args:
            threads: Number of calls that run at a time.
            calls: Number of calls that `run` hands to them at a time, including running ones.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-work")
        self._room = asyncio.Semaphore(calls)
        self.is_closed = False

    async def run(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in a thread, once there is room.

        Returns its result or raises its error.
        """
        async with self._room:
            return await asyncio.wrap_future(self.submit(partial(function, *arguments)))

    async def run_long(
        self, count: int, function: Callable[..., _Result], *arguments: object
    ) -> _Result:
        """Call a function that processes `count` things: in a thread, or at once if they are few.

        The things must not change meanwhile.
        """
        return function(*arguments) if count <= FEW else await self.run(function, *arguments)

    def submit(self, function: Callable[[], _Result]) -> "Future[_Result]":
        """Call a function in a thread; the future gets its result or error."""
        return self._pool.submit(function)

    def close(self) -> None:
        """Wait for running calls; waiting ones are dropped, and no more are accepted."""
        self.is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Item(NamedTuple):
    """A job and its callback."""

    job: Job
    done: Done


def _await(running: "Future[None]") -> None:
    wait([running])


class Beside:
    """One log's `Deferral`: jobs run in the broker's threads. Belongs to the event loop's thread.

    Without a running loop (while a directory is opened or closed) a job runs at once.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: deque[_Item] = deque()
        self._running: tuple[_Item, Future[None]] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or runs."""
        return self._running is None and not self._waiting

    def defer(self, work: Job, done: Done) -> None:
        """Run `work` in a thread, then call `done` on the event loop."""
        self._waiting.append(_Item(work, done))
        self._go_on()

    def settle(self) -> None:
        """Return when no job waits or runs."""
        while self._running is not None or self._waiting:
            if self._running is None:
                self._do(self._waiting.popleft())
            else:
                # A job that was cancelled when the threads were closed would never end.
                if not self._running[1].cancelled():
                    wait([self._running[1]])
                self._end()

    def detach(self) -> Callable[[], None]:
        """Drop waiting jobs; return a function that waits for the running one, in any thread."""
        self._waiting.clear()
        running, self._running = self._running, None
        if running is None or running[1].cancel():
            return lambda: None
        return lambda: _await(running[1])

    def _go_on(self) -> None:
        """Start the next job, unless one runs."""
        if self._running is not None or not self._waiting:
            return
        try:
            loop = asyncio.get_running_loop()
            future = self._work.submit(self._waiting[0].job)
        except RuntimeError:  # no loop, or the threads were closed
            self.settle()
            return
        self._running = self._waiting.popleft(), future
        future.add_done_callback(lambda ended: self._tell(loop, ended))

    def _tell(self, loop: asyncio.AbstractEventLoop, ended: "Future[None]") -> None:
        """Notify the loop from the job's thread; no-op if the loop was closed."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, ended)

    def _ended(self, future: "Future[None]") -> None:
        """Handle the end of a job, unless `settle` or `detach` already did."""
        if self._running is None or self._running[1] is not future:
            return
        try:
            self._end()
        finally:  # one job's failure must not stop the next
            self._go_on()

    def _end(self) -> None:
        assert self._running is not None
        (item, future), self._running = self._running, None
        try:
            error = future.exception()
        except CancelledError:  # the threads were closed before it ran
            self._do(item)
            return
        assert error is None or isinstance(error, Exception)
        item.done(error)

    @staticmethod
    def _do(item: _Item) -> None:
        try:
            item.job()
        except Exception as error:  # noqa: BLE001 - the log knows what it means
            item.done(error)
        else:
            item.done(None)


class LoopGate:
    """Access to the event loop from other threads, which can be closed: later calls are refused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_closed = False

    def run(self, function: Callable[..., _Result], *args: object, **keywords: object) -> _Result:
        """Call a function on the event loop, from another thread.

        Raises:
            Closed: The access is closed. Otherwise the function's own errors.
        """
        if self.is_closed:
            raise Closed("the broker is stopping")

        async def call() -> _Result:
            return function(*args, **keywords)

        return self.wait(call())

    def wait(self, work: Coroutine[object, object, _Result]) -> _Result:
        """Run a coroutine on the event loop, from another thread.

        Returns its result or raises its error.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class SwapsOnLoop:
    """Proxy for a log's `SegmentSwaps` in another thread: a `SwapAccess`."""

    def __init__(self, swaps: SwapAccess, gate: LoopGate) -> None:
        self._swaps = swaps
        self._gate = gate

    def prepare_adoption(self) -> Adoption:
        """Prepare adopting segments at the log end."""
        return self._gate.run(self._swaps.prepare_adoption)

    def finished_run(self, bases: Sequence[int]) -> list[ClosedSegment]:
        """Return the finished local segments with these base offsets, which must be consecutive."""
        return self._gate.run(self._swaps.finished_run, bases)

    def cleanable_segments(self) -> list[ClosedSegment]:
        """Return the finished segments, oldest first."""
        return self._gate.run(self._swaps.cleanable_segments)

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Whether the log still has exactly these segment objects."""
        return self._gate.run(self._swaps.still_has, segments)

    def show(self, swap: Swap, commit: Commit, operation: str) -> list[str]:
        """Rename the files of new segments, and make the segments visible."""
        return self._gate.run(self._swaps.show, swap, commit, operation)

    def go_offline(self, operation: str, reason: str) -> None:
        """Take the partition offline."""
        self._gate.run(self._swaps.go_offline, operation, reason)


class LogOnLoop(LogAccess):
    """Proxy for a log of the event loop's thread in another thread.

    Calls that change the log or its caches are executed on the loop. The list of segments and the
    log's start and end are read directly.
    """

    def __init__(self, log: Log, gate: LoopGate) -> None:
        super().__init__(log.segment_list)
        self._log = log
        self._gate = gate
        self._swaps = SwapsOnLoop(log.swaps, gate)

    @property
    def swaps(self) -> SwapsOnLoop:
        """Adopts or swaps finished segments."""
        return self._swaps

    def producer_states(self) -> ProducerStates:
        """Return producers and open transactions at the log end."""
        return self._log.producer_states()

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is durable."""
        return self._log.recovery_point

    def trusted_end(self) -> int:
        """Return the offset below which every append time on disk is right."""
        return self._gate.run(self._log.trusted_end)

    def append_times_of(self, segment: Segment) -> AppendTimes:
        """Return a segment's append times, limited to proven ones."""
        return self._gate.run(self._log.append_times_of, segment)

    def append(
        self,
        records: Iterable[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> AppendResult:
        """Append records."""
        return self._gate.run(self._log.append, records, codec=codec, batch_bytes=batch_bytes)

    def flush(self) -> None:
        """Make everything that was appended durable."""
        self._gate.run(self._log.flush)

    def roll(self, reason: RollReason = RollReason.REQUEST) -> bool:
        """Finish the active segment."""
        return self._gate.run(self._log.roll, reason)

    def note_of(self, segment: Segment) -> tuple[SegmentNote | None, int]:
        """Return the note of a local segment, and a time in ms at which its records existed."""
        return self._gate.run(self._log.note_of, segment)

    def apply_retention(self, *, by_age: bool = True) -> list[Deletion]:
        """Delete the segments that the topic's retention allows to delete."""
        return self._gate.run(self._log.apply_retention, by_age=by_age)

    def advance_start(self, offset: int) -> None:
        """Advance the log start, regardless of the topic's cleanup policy."""
        self._gate.run(self._log.advance_start, offset)

    def take_tier(self, record: "TierRecord") -> None:
        """Use a new tier record."""
        self._gate.run(self._log.take_tier, record)


class LogDirOnLoop:
    """Proxy for the broker's directory in another thread: a `DirectoryAccess`.

    Calls that touch logs or topics are executed on the loop. Values that never change, and calls
    that any thread may make (they sync, and need not stop the loop), are direct.
    """

    def __init__(self, log_dir: LogDir, gate: LoopGate) -> None:
        self._log_dir = log_dir
        self._gate = gate

    @property
    def path(self) -> str:
        """Path of the directory."""
        return self._log_dir.path

    @property
    def env(self) -> Env:
        """Files, clock and randomness."""
        return self._log_dir.env

    @property
    def is_writable(self) -> bool:
        """Whether the directory is open for writing; always true for a broker's."""
        return self._log_dir.is_writable

    @property
    def commit_records(self) -> CommitRecords:
        """Commits in progress, for any thread."""
        return self._log_dir.commit_records

    @property
    def tier_files(self) -> TierFiles:
        """Reads files in tiers, in any thread."""
        return self._log_dir.tier_files

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name."""
        return self._gate.run(self._log_dir.topics)

    def topic(self, name: str) -> TopicInfo:
        """Return one topic; raises UnknownTopic."""
        return self._gate.run(self._log_dir.topic, name)

    def knows_age_limit(self, name: str) -> bool:
        """Whether a topic's `retention.ms` is set for the topic or by a broker."""
        return self._gate.run(self._log_dir.knows_age_limit, name)

    def reader(self, topic: str, partition: int) -> LogAccess:
        """Return a proxy for the open log, the same as `log`."""
        return self.log(topic, partition)

    def log(self, topic: str, partition: int) -> LogAccess:
        """Return a proxy for the open log."""
        return LogOnLoop(self._gate.run(self._log_dir.log, topic, partition), self._gate)

    def flush(self) -> None:
        """Make everything that was appended durable."""
        self._gate.run(self._log_dir.flush)

    def accept_clock(self) -> int:
        """Accept a clock jump durably, so that appends can continue."""
        return self._gate.run(self._log_dir.accept_clock)

    def cleaner_offset(self, name: TopicPartition) -> int | None:
        """Return the offset below which a partition was compacted, for any thread."""
        return self._log_dir.cleaner_offset(name)

    def note_cleaned(self, name: TopicPartition, offset: int | None) -> None:
        """Store the offset below which a partition is compacted, for any thread."""
        self._log_dir.note_cleaned(name, offset)
