"""Internal topic with a broker's own state: creation, loading, failure, batched writes.

A `StateTopic` serves one topic whose partitions contain the state that a coordinator has in memory.
The coordinator is its `StateMachine`. A partition is loaded in threads, piece by piece, before its
keys are served. Partitions for which requests wait are loaded first. A request waits until its
partition is loaded. After a time limit (`loaded`), the request gets the error
COORDINATOR_LOAD_IN_PROGRESS, after which clients may pause for seconds. A partition whose log fails
is unloaded at once and loaded again when the log works again, because only the log has the valid
state. The response to a write is sent once consumers may read the records (with
`tidelog.durability=fsync`, once the records are synced). If the log fails before the response is
sent, the response has the error NOT_COORDINATOR.

The first write to a partition in an iteration of the event loop is appended at once, so that a lone
client does not wait. Later small writes of the same iteration are gathered in a batch. This batch
is appended when it is full, and at the latest at the end of the iteration.

The state machine defines what records mean and decides which records may be written. All objects of
this module are used only in the event loop's thread, except a `Replay`.

Source: Kafka 4.3's CoordinatorRuntime; `group.coordinator.append.linger.ms`.
"""

import asyncio
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import field
from enum import Enum
from logging import Logger
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    CorruptData,
    InvalidProducerEpoch,
    InvalidTxnState,
    MessageTooLarge,
    RecordListTooLarge,
    TidelogError,
    TopicExists,
    TransactionCoordinatorFenced,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.builder import build_batch
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.coordinator.log_loader import FindKernels, KernelsOf
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.loop import LoopTurn
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.append_types import COORDINATED, AppendResult
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import Codec, Header, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.log import Log


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Record to write: a key, and a value or None for a tombstone.

    It has no timestamp and no headers. All records of a batch have the time of the batch.
    """

    timestamp: ClassVar[int | None] = None
    headers: ClassVar[tuple[Header, ...]] = ()

    key: bytes
    value: bytes | None


def is_accepted(written: Reply[ErrorCode]) -> bool:
    """Whether a write was not refused and has not failed so far.

    If the result is True, the write may still be part of a gathered batch, or not be durable yet.
    If the write fails later, before it is durable, the whole partition is unloaded.
    """
    return not written.is_done or written.value is ErrorCode.NONE


Loaded = TypeVar("Loaded")
Loaded_co = TypeVar("Loaded_co", covariant=True)


class Replay(Protocol[Loaded_co]):
    """Reader of one partition. It runs in a thread."""

    def take(self, slices: Iterable[LogSlice], find_kernels: FindKernels, /) -> Iterator[int]:
        """Read all batches of a log in order; yield the size of each piece in bytes."""
        ...

    def result(self) -> Loaded_co:
        """Return the loaded state; raises CorruptData if it is invalid."""
        ...


class StateMachine(Protocol[Loaded]):
    """Owner of the state that the topic's records contain."""

    def replay(self) -> Replay[Loaded]:
        """Create a reader for one partition."""
        ...

    def install(self, number: int, loaded: Loaded) -> None:
        """Install the state of a loaded partition. The partition is served from then on."""
        ...

    def unload(self, number: int | None) -> None:
        """Unload the state of partition `number`, or of all partitions if `number` is None."""
        ...


class TopicSpec(NamedTuple):
    """Specification of an internal topic.

    Attributes:
        name: Name of the topic.
        logger: Logger for failures.
        partitions: Number of partitions at creation.
        settings: Settings at creation. A topic from a Kafka directory gets these settings, too.
        codec: Compression of the topic's records.
    """

    name: str
    logger: Logger
    partitions: int
    settings: Mapping[str, str]
    codec: Codec = Codec.NONE


# Minimum time in ms between two attempts to load a partition that failed to load.
RETRY_MS: Final = 30_000

# Maximum size of a gathered batch, in bytes. This size is far below the default of
# `max.message.bytes`, so logs accept the batch. A batch of this size is also compressed and written
# quickly.
GATHERED_BYTES_MAX: Final = 32 << 10

# Maximum number of writes in a gathered batch. The number is low so that responses are sent early,
# and clients continue while the broker works on other requests.
GATHERED_REPLIES_MAX: Final = 8

# Maximum size of a record without its key and value, in bytes: lengths, deltas and attributes.
_RECORD_BYTES: Final = 32

# Errors of a write that is itself invalid, so that only this write is refused. Every other error of
# a write counts as a failure of the log.
_REFUSALS: Final[dict[type[TidelogError], ErrorCode]] = {
    MessageTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    RecordListTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}


class PartitionState(Enum):
    """State of a partition."""

    WAITING = "waiting"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


# States in which a partition accepts writes. LOADING is one of these states, because `complete` may
# write records before the partition is served.
_TAKING: Final = frozenset({PartitionState.ACTIVE, PartitionState.LOADING})


class _LogWatch:
    """Watches a partition for failure, deletion or a new log, and completes replies to writes."""

    def __init__(
        self, partition: Partition, on_lost: Callable[[], None], on_back: Callable[[], None]
    ) -> None:
        """Start watching.

        Args:
            partition: Partition with its current log.
            on_lost: Called when the partition goes offline, or is deleted while writes wait. It is
                then unknown whether the waiting writes are in the log.
            on_back: Called when the partition has another log, because it was reopened.
        """
        self._partition = partition
        self._log = partition.log
        self._on_lost = on_lost
        self._on_back = on_back
        self._is_over = False
        # Writes that are not durable yet, by last offset, ascending.
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()
        partition.watch(self._on_change)

    def is_of(self, partition: Partition) -> bool:
        """Whether `partition` is the watched partition, and still has the watched log."""
        return partition is self._partition and partition.log is self._log

    def end(self) -> None:
        """Stop watching once the pending writes are completed."""
        self._is_over = True
        if not self._waiting:
            self._partition.unwatch(self._on_change)

    def safe(self, last_offset: int) -> Reply[ErrorCode]:
        """Return a reply that completes when records up to this offset (inclusive) are durable."""
        if self._partition.high_watermark > last_offset:
            return Reply.of(ErrorCode.NONE)
        reply: Reply[ErrorCode] = Reply()
        self._waiting.append((last_offset, reply))
        return reply

    def all_safe(self) -> Reply[ErrorCode]:
        """Return a reply that completes when all pending writes are durable."""
        return self.safe(self._waiting[-1][0]) if self._waiting else Reply.of(ErrorCode.NONE)

    def _on_change(self) -> None:
        partition = self._partition
        if partition.failure is not None or partition.is_deleted:
            self._fail()
        else:
            if not self._is_over and partition.log is not self._log:
                self._on_back()
            end = partition.high_watermark
            while self._waiting and self._waiting[0][0] < end:
                self._waiting.popleft()[1].complete(ErrorCode.NONE)
        if self._is_over and not self._waiting:
            partition.unwatch(self._on_change)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        if not self._is_over and (waiting or self._partition.failure is not None):
            self._on_lost()
        for _, reply in waiting:
            reply.complete(ErrorCode.NOT_COORDINATOR)


@dataclass(slots=True, eq=False)
class _Gathered:
    """Records gathered for the next batch, in order, with the replies to their writers."""

    records: list[KeyValue] = field(default_factory=list)
    replies: list[Reply[ErrorCode]] = field(default_factory=list)
    size_bytes: int = 0

    def is_full_for(self, size_bytes: int) -> bool:
        """Whether a write of this size does not fit into this batch, and so needs a new batch."""
        is_large = self.size_bytes + size_bytes > GATHERED_BYTES_MAX
        return is_large or len(self.replies) >= GATHERED_REPLIES_MAX

    def reply(self) -> Reply[ErrorCode]:
        reply: Reply[ErrorCode] = Reply()
        self.replies.append(reply)
        return reply

    def complete(self, code: ErrorCode) -> None:
        for each in self.replies:
            each.complete(code)


@dataclass(slots=True, eq=False)
class _Part:
    """One partition of an existing topic.

    Attributes:
        state: Current state.
        failed_ms: Monotonic time of the last failed load; None if no load has failed since the
            last successful load.
        is_damaged: Whether the partition's records are invalid. Such a partition is loaded again
            only if a request needs it.
        watch: Watch of the partition's log, from the first load or write on.
    """

    state: PartitionState
    failed_ms: int | None = None
    is_damaged: bool = False
    watch: _LogWatch | None = None


class StateTopic(Generic[Loaded]):
    """All partitions of an internal topic.

    Attributes:
        name: Name of the topic.
    """

    def __init__(self, services: Services, machine: StateMachine[Loaded], spec: TopicSpec) -> None:
        """Create an instance for a topic that may exist already. Nothing is loaded yet.

        Args:
            services: Services of the broker.
            machine: Owner of the state.
            spec: Specification of the topic.
        """
        self.name = spec.name
        self._services = services
        self._machine = machine
        self._spec = spec
        self._logger = spec.logger
        self._clock = services.env.clock
        # Partitions of the existing topic. If the topic is deleted and recreated, a new list
        # replaces this list.
        self._parts: list[_Part] = []
        self._queue: deque[int] = deque()
        self._task: asyncio.Task[None] | None = None
        # Completed when a partition has been loaded or has failed; created by the first waiter.
        self._progress: asyncio.Future[None] | None = None
        self._creation: asyncio.Task[ErrorCode] | None = None
        self._settling: asyncio.Task[None] | None = None
        # `_written` has the partitions that were written to in this iteration of the event loop.
        # `_gathered` has the writes that wait for the end of the iteration.
        self._written: LoopTurn[int] = LoopTurn(self._flush_all)
        self._gathered: dict[int, _Gathered] = {}
        services.closers.append(self.close)

    def close(self) -> None:
        """Write gathered records, stop loading and end all watches."""
        self._flush_all()
        self._end_watches()
        for task in (self._task, self._creation, self._settling):
            if task is not None:
                task.cancel()

    def _end_watches(self) -> None:
        for part in self._parts:
            if part.watch is not None:
                part.watch.end()
                part.watch = None

    # -- queries -----------------------------------------------------------------------------

    @property
    def has_topic(self) -> bool:
        """Whether the topic was found or created, so that it is known to exist."""
        return bool(self._parts)

    @property
    def count(self) -> int:
        """Number of partitions."""
        return len(self._parts)

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being loaded or waits to be loaded."""
        return self._task is not None and not self._task.done()

    @property
    def is_served(self) -> bool:
        """Whether every partition is loaded and served; False if the topic doesn't exist."""
        return {part.state for part in self._parts} == {PartitionState.ACTIVE}

    def number_of(self, key: str) -> int:
        """Return the partition number of a key such as a group id. The topic must exist."""
        return partition_for(key, len(self._parts))

    def error_for(self, key: str) -> ErrorCode:
        """Return the error code if a key can't be served now, `NONE` if it can."""
        return self.error_of(self.number_of(key)) if self._parts else ErrorCode.NOT_COORDINATOR

    def error_of(self, number: int) -> ErrorCode:
        """Return the error code if a partition can't be served now, `NONE` if it can."""
        if number >= len(self._parts):
            return ErrorCode.NOT_COORDINATOR
        state = self._parts[number].state
        if state is PartitionState.ACTIVE:
            return ErrorCode.NONE
        if state is PartitionState.FAILED:
            return self._try_again(number)
        if state is PartitionState.WAITING and self._queue[0] != number:
            # A request waits for this partition, so it is loaded next.
            self._queue.remove(number)
            self._queue.appendleft(number)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def is_active(self, number: int) -> bool:
        """Whether a partition is served now."""
        return number < len(self._parts) and self._parts[number].state is PartitionState.ACTIVE

    def partition(self, number: int) -> Partition | None:
        """Return a partition, None if it can't be opened."""
        try:
            return self._services.partitions.get(self.name, number)
        except TidelogError as error:
            self._logger.warning("%s-%d can't be opened: %s", self.name, number, error)
            return None

    async def loaded(self, key: str | None, *, wait_s: float) -> None:
        """Wait until a key's partition has been loaded or has failed, or until `wait_s` is over.

        Args:
            key: Key of the partition; None for all partitions.
            wait_s: Maximum time to wait, in seconds.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while self._is_loading_key(key) and (remaining_s := end - loop.time()) > 0:
            assert self._task is not None
            if self._progress is None or self._progress.done():
                self._progress = loop.create_future()
            both = (self._progress, self._task)
            await asyncio.wait(both, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)

    def _is_loading_key(self, key: str | None) -> bool:
        if not self.is_loading or key is None or not self._parts:
            return self.is_loading
        return self.error_for(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _note_progress(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # -- the topic ---------------------------------------------------------------------------

    def resume(self) -> None:
        """Start loading an existing topic; no-op if it is being created or loading has begun."""
        if self._is_creating:
            # A topic that is still being created may already be registered, but has nothing to
            # load.
            return
        info = self._services.topics.find(self.name)
        if info is not None and not self._parts:
            self._adopt(info, PartitionState.WAITING)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Start `work`, whose last step loads the topic. `is_loading` is True until `work` ends."""
        assert not self.is_loading
        self._task = asyncio.get_running_loop().create_task(work)

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic if it is missing; return `NONE`, or the error code of the failure."""
        if not self._parts:
            self.resume()
        if self._parts:
            return ErrorCode.NONE
        if not self._is_creating:
            creation = self._create(PartitionState.ACTIVE)
            self._creation = asyncio.get_running_loop().create_task(creation)
        assert self._creation is not None
        # Several requests may wait for the same creation, so a canceled request must not cancel the
        # creation.
        return await asyncio.shield(self._creation)

    @property
    def _is_creating(self) -> bool:
        return self._creation is not None and not self._creation.done()

    async def load(self) -> None:
        """Create the topic if it is missing, and load all of it. `begin` runs this as a task."""
        info = self._services.topics.find(self.name)
        if info is not None:
            self._adopt(info, PartitionState.WAITING)
        else:
            await self._create(PartitionState.WAITING)
        await self._load_all()

    async def _create(self, state: PartitionState) -> ErrorCode:
        """Create the topic with its empty partitions in the given state."""
        services = self._services
        try:
            async with services.topics.changing:
                info = await services.work.run(self._make)
        except TopicExists:
            info, state = services.log_dir.topic(self.name), PartitionState.WAITING
        except TidelogError as error:
            self._logger.warning("%s can't be created: %s", self.name, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._parts:
            self._adopt(info, state)
        self._settling = asyncio.get_running_loop().create_task(self._settle(info))
        return ErrorCode.NONE

    def _make(self) -> TopicInfo:
        log_dir = self._services.log_dir
        spec = self._spec
        info, _ = log_dir.create_topic(self.name, partitions=spec.partitions, config=spec.settings)
        return info

    async def _settle(self, info: TopicInfo) -> None:
        """Sync new partitions one by one in a thread.

        If a client uses a partition before its turn, the partition is synced while it is opened. So
        the client waits only for the sync of this one partition.
        """
        for number in info.present:
            name = TopicPartition(self.name, number)
            with suppress(TidelogError, OSError):  # the sync is repeated at opening
                admin = self._services.log_dir.topic_admin
                await self._services.work.run(admin.settle, name)

    def _adopt(self, info: TopicInfo, state: PartitionState) -> None:
        self._parts = [_Part(state) for _ in range(info.partitions)]
        if state is PartitionState.WAITING:
            self._queue.extend(range(info.partitions))
            self._ensure_loading()

    def forget_topic(self) -> None:
        """Forget the state of the deleted topic."""
        self._end_watches()
        self._parts = []
        if self._settling is not None:
            self._settling.cancel()
        self._queue.clear()
        self._machine.unload(None)

    def mark_failed(self, number: int) -> None:
        """Unload a failed partition. It is loaded again when its disk works."""
        part = self._parts[number] if number < len(self._parts) else None
        if part is not None and part.state in _TAKING:
            previous, part.state = part.state, PartitionState.FAILED
            if previous is PartitionState.ACTIVE:
                self._machine.unload(number)

    def _watch(self, number: int, partition: Partition) -> _LogWatch:
        """Return the watch of a partition's current log; create a watch if the log has none."""
        part = self._parts[number]
        if part.watch is None or not part.watch.is_of(partition):
            if part.watch is not None:
                part.watch.end()
            part.watch = _LogWatch(
                partition, lambda: self.mark_failed(number), lambda: self._on_reopened(number)
            )
        return part.watch

    def _on_reopened(self, number: int) -> None:
        """Load a reopened, undamaged partition again, even if no request waits for it."""
        self.mark_failed(number)
        self._try_again_if_sound(number)

    # -- writing -----------------------------------------------------------------------------

    def append(self, key: str, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records of a key.

        The partition's first write of a loop iteration is appended at once, as is a large write.
        Other writes are gathered in a batch. If no event loop is running, each write is appended at
        once.

        The reply completes when the records are durable, or with the reason why they were not
        written. If the write is refused at once, the returned reply is already complete with an
        error, and the caller must not change the state in memory.
        """
        number = self.number_of(key)
        size_bytes = size_of(records)
        if size_bytes > GATHERED_BYTES_MAX or self._written.is_first(number):
            return self.append_now(number, records)
        if not self._takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        gathered = self._gathered.get(number)
        if gathered is not None and gathered.is_full_for(size_bytes):
            self._flush(number)
            gathered = self._gathered.get(number)  # completing replies may cause a write
        if gathered is None:
            gathered = self._gathered[number] = _Gathered()
        gathered.records += records
        gathered.size_bytes += size_bytes
        return gathered.reply()

    def append_now(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records to a partition at once, in a batch of their own.

        The reply completes when the records are durable, or with the reason why they were not
        written.
        """
        self._flush(number)
        return self._append_batch(number, records)

    def write(self, number: int, action: Callable[[Partition], AppendResult]) -> Reply[ErrorCode]:
        """Call `action` to write to a partition.

        A disk failure during the write unloads the partition. An invalid write is refused and does
        not unload the partition.

        A partition that is neither served nor being loaded refuses the write, because the writer's
        state is outdated.
        """
        self._flush(number)
        return self._write(number, action)

    def settled(self, key: str) -> Reply[ErrorCode]:
        """Return a reply that completes when earlier writes to a key's partition are durable."""
        number = self.number_of(key)
        gathered = self._gathered.get(number)
        if gathered is not None:
            return gathered.reply()
        if not self._takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        watch = self._parts[number].watch
        return Reply.of(ErrorCode.NONE) if watch is None else watch.all_safe()

    def _takes(self, number: int) -> bool:
        """Whether a partition accepts writes: it does if it is served or is being loaded."""
        return number < len(self._parts) and self._parts[number].state in _TAKING

    def _append_batch(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        batch = build_batch(records, codec=self._spec.codec, default_timestamp=self._clock.now_ms())
        return self._write(number, lambda partition: partition.append(batch, COORDINATED))

    def _write(self, number: int, action: Callable[[Partition], AppendResult]) -> Reply[ErrorCode]:
        partition = self.partition(number) if self._takes(number) else None
        if partition is None:
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        watch = self._watch(number, partition)
        try:
            result = action(partition)
        except TidelogError as error:
            if (code := _REFUSALS.get(type(error))) is not None:
                return Reply.of(code)
            self._logger.warning("%s: %s", partition.name, error)
            self.mark_failed(number)
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        return watch.safe(result.last_offset)

    def _flush_all(self) -> None:
        """Write all gathered records."""
        for number in tuple(self._gathered):
            self._flush(number)

    def _flush(self, number: int) -> None:
        """Write the records gathered for a partition.

        A write that is not gathered calls this method first. So records reach the log in the order
        of their writes.
        """
        gathered = self._gathered.pop(number, None)
        if gathered is None:
            return
        written = self._append_batch(number, gathered.records)
        if written.is_done and written.value is not ErrorCode.NONE:
            # The state in memory already contains these records, but the log does not. So the
            # partition is unloaded and loaded again from the log.
            self.mark_failed(number)
            gathered.complete(ErrorCode.NOT_COORDINATOR)
            return
        written.then(gathered.complete)

    # -- loading -----------------------------------------------------------------------------

    def try_again(self) -> None:
        """Load failed, undamaged partitions again, even if no request waits for them."""
        for number in range(len(self._parts)):
            self._try_again_if_sound(number)

    def _try_again_if_sound(self, number: int) -> None:
        part = self._parts[number]
        if part.state is PartitionState.FAILED and not part.is_damaged:
            self._try_again(number)

    def _try_again(self, number: int) -> ErrorCode:
        """Load a failed partition again if its disk works; return the error code for its requests.

        No-op within `RETRY_MS` after a failed load.
        """
        part, now_ms = self._parts[number], self._clock.monotonic_ms()
        if part.failed_ms is not None and now_ms - part.failed_ms < RETRY_MS:
            return ErrorCode.NOT_COORDINATOR
        partition = self.partition(number)
        if partition is None or partition.failure is not None:
            return ErrorCode.NOT_COORDINATOR
        part.state = PartitionState.WAITING
        self._queue.append(number)
        self._ensure_loading()
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _ensure_loading(self) -> None:
        if self._queue and not self.is_loading and not self._services.work.is_closed:
            self.begin(self._load_all())

    async def _claim(self) -> None:
        """Set the topic's settings if Kafka created the topic.

        With the default settings of topics, retention could delete records of the state.
        """
        services = self._services
        info = services.topics.find(self.name)
        if info is not None and info.foreign:
            async with services.topics.changing:
                log_dir, settings = services.log_dir, self._spec.settings
                await services.work.run(log_dir.topic_admin.alter, self.name, settings)
                log_dir.open_partitions.follow_settings(self.name)

    async def _load_all(self) -> None:
        try:
            await self._claim()
        except Exception as error:  # noqa: BLE001 - the topic's partitions are loaded anyway
            self._logger.error("can't store the settings of %s: %s", self.name, error)
        while self._queue and not self._services.work.is_closed:
            # If the topic is deleted while this partition is loaded, the result of the load is
            # ignored.
            number = self._queue.popleft()
            part = self._parts[number]
            part.state = PartitionState.LOADING
            try:
                await self._load(part, number)
            except Exception as error:  # noqa: BLE001 - the other partitions are loaded anyway
                # If the threads are closed, the broker has stopped during the load, so the load has
                # not failed.
                if not self._services.work.is_closed:
                    self._log_failure(part, number, error)
            if part.state is PartitionState.LOADING:
                part.state = PartitionState.FAILED
                part.failed_ms = self._clock.monotonic_ms()
            self._note_progress()
            if not self._queue:
                await self.all_loaded()

    def _log_failure(self, part: _Part, number: int, error: Exception) -> None:
        # If the partition is no longer LOADING, it was marked as failed during the load, because
        # its log was closed or rewritten. Then the error does not prove that records are damaged.
        if isinstance(error, CorruptData) and part.state is PartitionState.LOADING:
            part.is_damaged = True
        trace = None if isinstance(error, TidelogError) else error
        self._logger.error("%s-%d can't be loaded: %s", self.name, number, error, exc_info=trace)

    async def _load(self, part: _Part, number: int) -> None:
        partitions = self._services.partitions
        await partitions.open_beside([TopicPartition(self.name, number)])
        partition = partitions.get(self.name, number)
        if not self._is_of_topic(part, number):
            return
        self._watch(number, partition)
        if partition.failure is not None:
            self.mark_failed(number)
            return
        loaded = await self._read(partition.log)
        if self._may_take(part, number) and self.complete(number, loaded):
            part.failed_ms, part.is_damaged = None, False
            if self._may_take(part, number):
                part.state = PartitionState.ACTIVE
                self._machine.install(number, loaded)

    async def _read(self, log: "Log") -> Loaded:
        """Load the state from a log."""
        replay, work = self._machine.replay(), self._services.work
        if log.log_end_offset <= log.log_start_offset:
            return replay.result()
        pieces = replay.take(log.slices(), KernelsOf(self._services))
        while await work.run(next, pieces, None) is not None:
            pass
        return await work.run(replay.result)

    def complete(self, number: int, loaded: Loaded) -> bool:  # noqa: ARG002 - for subclasses
        """Called before a loaded partition is served. A subclass can override it to write records.

        Returns False if a write fails.
        """
        return True

    async def all_loaded(self) -> None:
        """Called when no partition waits to be loaded any more. Some partitions may have failed."""

    def _is_of_topic(self, part: _Part, number: int) -> bool:
        return number < len(self._parts) and self._parts[number] is part

    def _may_take(self, part: _Part, number: int) -> bool:
        """Whether a loaded state is valid: topic and log have not been replaced during the load."""
        return self._is_of_topic(part, number) and part.state is PartitionState.LOADING


def size_of(records: Sequence[KeyValue]) -> int:
    """Return an upper bound for the size of these records in a batch, in bytes."""
    size_bytes = len(records) * _RECORD_BYTES
    for record in records:
        size_bytes += len(record.key) + len(record.value or b"")
    return size_bytes


Value = TypeVar("Value")


class PartitionedMap(Generic[Value]):
    """Values such as groups, by name and by partition. Used only in the event loop's thread.

    Attributes:
        all: All values by name; read-only.
    """

    def __init__(self, number_of: Callable[[str], int]) -> None:
        """Create an empty map.

        Args:
            number_of: Returns the number of the partition to which a name belongs. If partitions
                were added to the topic after a name's record was written, the record may be in a
                partition with another number.
        """
        self._number_of = number_of
        self._all: dict[str, Value] = {}
        self._numbers: dict[str, int] = {}
        self._parts: dict[int, dict[str, Value]] = {}
        self.all: Mapping[str, Value] = self._all

    def get(self, name: str) -> Value | None:
        """Return the value of a name; None if the name has no value."""
        return self._all.get(name)

    def put(self, name: str, value: Value) -> None:
        """Add or replace a value."""
        self._put(self._number_of(name), name, value)

    def put_all(self, number: int, values: Mapping[str, Value]) -> None:
        """Add the values of a loaded partition."""
        for name, value in values.items():
            self._put(number, name, value)

    def _put(self, number: int, name: str, value: Value) -> None:
        before = self._numbers.get(name)
        if before is not None and before != number:
            del self._parts[before][name]
        self._all[name] = value
        self._numbers[name] = number
        self._parts.setdefault(number, {})[name] = value

    def remove(self, name: str) -> None:
        """Remove a name; no-op if it is unknown."""
        if self._all.pop(name, None) is not None:
            del self._parts[self._numbers.pop(name)][name]

    def part(self, number: int) -> Collection[Value]:
        """Return the values of one partition."""
        return self._parts.get(number, {}).values()

    def take_out(self, number: int | None) -> list[Value]:
        """Remove and return the values of partition `number`, or all values if `number` is None."""
        if number is not None:
            part = self._parts.pop(number, {})
            for name in part:
                del self._all[name], self._numbers[name]
            return list(part.values())
        values = list(self._all.values())
        for table in (self._all, self._numbers, self._parts):
            table.clear()
        return values
