"""A topic with the broker's own state: create, load, lose, load again, write, group commit.

A `StateTopic` serves one topic whose partitions say what a coordinator has in memory; the
coordinator is its `StateMachine`. A partition is read in threads, piece by piece, before what it
keeps is served; partitions that somebody asks for come first. Requests wait for that, to a bound
(`loaded`); behind it they are answered COORDINATOR_LOAD_IN_PROGRESS, at which clients pause for up
to seconds. A partition whose log fails is unloaded at once, and read again when the log works
again: only the log can tell what it has. A write is answered once readers may see it (with
`tidelog.durability=fsync` that is what was synced), or with NOT_COORDINATOR once its log is lost.

Group commit: whoever writes first in a turn of the loop is written at once, so that who is alone
does not wait; what comes behind it in the same turn goes into one batch, written when that is full
or the turn is over, and is answered then.

What records mean, and who may write what, is the state machine's. All of it belongs to the loop's
thread, a `Replay` aside.

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
from dataclasses import dataclass, field
from enum import Enum
from logging import Logger
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

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
from tidelog.record.builder import build_batch
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.coordinator.log_loader import FindKernels, KernelsOf
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.loop import LoopTurn
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.append import COORDINATED, AppendResult
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import Codec, Header, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.log import Log


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A record to write: its key, and its value or, to forget what the key names, None.

    It can go into a batch as it is, with the batch's time.
    """

    timestamp: ClassVar[int | None] = None
    headers: ClassVar[tuple[Header, ...]] = ()

    key: bytes
    value: bytes | None


def is_accepted(written: Reply[ErrorCode]) -> bool:
    """Whether a write is in the log, durable or not yet; if not, nothing was written.

    If records that are not durable yet are lost later, the whole partition is unloaded.
    """
    return not written.is_done or written.value is ErrorCode.NONE


Loaded = TypeVar("Loaded")


Loaded_co = TypeVar("Loaded_co", covariant=True)


class Replay(Protocol[Loaded_co]):
    """Reads one partition, in a thread."""

    def take(self, slices: Iterable[LogSlice], find_kernels: FindKernels, /) -> Iterator[int]:
        """Take all batches of a log, in order; a pause after each piece of it."""
        ...

    def result(self) -> Loaded_co:
        """What they come to; raises CorruptData where that can't be said."""
        ...


class StateMachine(Protocol[Loaded]):
    """Who has in memory what the topic's records say."""

    def replay(self) -> Replay[Loaded]:
        """A reader for a partition."""
        ...

    def install(self, number: int, loaded: Loaded) -> None:
        """Take in what a partition has; it is served from then on."""
        ...

    def unload(self, number: int | None) -> None:
        """Let go of what a partition has that can't be served any more; of all where None."""
        ...


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that may have to be created.

    Attributes:
        name: Its name.
        logger: Where failures are told.
        partitions: How many it gets then.
        settings: Its settings then; one from a Kafka directory gets them, too.
        codec: How its records are compressed.
    """

    name: str
    logger: Logger
    partitions: int
    settings: Mapping[str, str]
    codec: Codec = Codec.NONE


# A partition that could not be read is tried again at most so often.
RETRY_MS: Final = 30_000


# A batch of these fits wherever a single request's does, and is soon compressed and written.
GATHERED_BYTES_MAX: Final = 32 << 10


# Who is answered early asks on, or lets others, while the broker works on for those behind it.
GATHERED_REPLIES_MAX: Final = 8


# Of a record, beside key and value: more than its lengths, deltas and attributes take.
_RECORD_BYTES: Final = 32


# Rules that a write may break; every other failure is the log's own.
_REFUSALS: Final[dict[type[TidelogError], ErrorCode]] = {
    MessageTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    RecordListTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}


class PartitionState(Enum):
    """How far a partition is."""

    WAITING = "waiting"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


# What is served, and what is made complete before that.
_TAKING: Final = frozenset({PartitionState.ACTIVE, PartitionState.LOADING})


class _LogWatch:
    """One partition's log: whether it is still the one that was read, and what waits for it."""

    def __init__(
        self, partition: Partition, on_lost: Callable[[], None], on_back: Callable[[], None]
    ) -> None:
        """Watch from now on.

        Args:
            partition: The partition, with the log that it has now.
            on_lost: Called when it goes offline; what only memory has may be in the log or not.
            on_back: Called when it has got another log, which was opened anew.
        """
        self._partition = partition
        self._log = partition.log
        self._on_lost = on_lost
        self._on_back = on_back
        self._is_over = False
        # Writes that are not safe yet, by their last offset, in order.
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()
        partition.watch(self._look)

    def is_of(self, partition: Partition) -> bool:
        """Whether this is what is watched: the partition, with the log that it has now."""
        return partition is self._partition and partition.log is self._log

    def end(self) -> None:
        """Watch no more, but for what waits."""
        self._is_over = True
        if not self._waiting:
            self._partition.unwatch(self._look)

    def safe(self, last_offset: int) -> Reply[ErrorCode]:
        """When records up to this offset, inclusive, are safe."""
        if self._partition.high_watermark > last_offset:
            return Reply.of(ErrorCode.NONE)
        reply: Reply[ErrorCode] = Reply()
        self._waiting.append((last_offset, reply))
        return reply

    def all_safe(self) -> Reply[ErrorCode]:
        """When all of them are."""
        return self.safe(self._waiting[-1][0]) if self._waiting else Reply.of(ErrorCode.NONE)

    def _look(self) -> None:
        partition = self._partition
        if partition.failure is not None or partition.is_gone:
            self._fail()
        else:
            if not self._is_over and partition.log is not self._log:
                self._on_back()
            end = partition.high_watermark
            while self._waiting and self._waiting[0][0] < end:
                self._waiting.popleft()[1].complete(ErrorCode.NONE)
        if self._is_over and not self._waiting:
            partition.unwatch(self._look)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        if not self._is_over and (waiting or self._partition.failure is not None):
            self._on_lost()
        for _, reply in waiting:
            reply.complete(ErrorCode.NOT_COORDINATOR)


@dataclass(slots=True)
class _Gathered:
    """What waits for a batch: records in order, and who is told of them."""

    records: list[KeyValue] = field(default_factory=list)
    replies: list[Reply[ErrorCode]] = field(default_factory=list)
    size_bytes: int = 0

    def is_full_for(self, size_bytes: int) -> bool:
        """Whether so much more has to wait for another batch."""
        is_large = self.size_bytes + size_bytes > GATHERED_BYTES_MAX
        return is_large or len(self.replies) >= GATHERED_REPLIES_MAX

    def reply(self) -> Reply[ErrorCode]:
        made: Reply[ErrorCode] = Reply()
        self.replies.append(made)
        return made

    def tell(self, code: ErrorCode) -> None:
        for each in self.replies:
            each.complete(code)


@dataclass(slots=True, eq=False)
class _Part:
    """One partition of a topic that is there.

    Attributes:
        state: How far it is.
        failed_ms: When it could not be read, by the clock that only goes on; None where it was.
        is_damaged: Whether what it has breaks a rule: nothing but another log mends that.
        watch: What looks after its log, from its first reading or writing on.
    """

    state: PartitionState
    failed_ms: int | None = None
    is_damaged: bool = False
    watch: _LogWatch | None = None


class StateTopic(Generic[Loaded]):
    """All partitions of such a topic.

    Attributes:
        name: The topic's.
    """

    def __init__(self, services: Services, machine: StateMachine[Loaded], spec: TopicSpec) -> None:
        """A topic that may be there already, with nothing of it read.

        Args:
            services: The broker's.
            machine: Who has its state.
            spec: The topic.
        """
        self.name = spec.name
        self._services = services
        self._machine = machine
        self._spec = spec
        self._logger = spec.logger
        self._clock = services.env.clock
        # Another list stands for another topic, where it was deleted and made again.
        self._parts: list[_Part] = []
        self._queue: deque[int] = deque()
        self._task: asyncio.Task[None] | None = None
        # Resolved when a partition is loaded, or could not be; made for whoever waits for one.
        self._progress: asyncio.Future[None] | None = None
        self._creation: asyncio.Task[ErrorCode] | None = None
        self._settling: asyncio.Task[None] | None = None
        # Partitions that were written to in this turn, and what waits for its end.
        self._written: LoopTurn[int] = LoopTurn(self._flush_all)
        self._gathered: dict[int, _Gathered] = {}
        services.closers.append(self.close)

    def close(self) -> None:
        """Write what waits, load no more, and look after nothing any more."""
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

    # -- questions ---------------------------------------------------------------------------

    @property
    def has_topic(self) -> bool:
        """Whether the topic is there, as far as it was looked for."""
        return bool(self._parts)

    @property
    def count(self) -> int:
        """How many partitions it has."""
        return len(self._parts)

    @property
    def is_loading(self) -> bool:
        """Whether some partition waits to be loaded."""
        return self._task is not None and not self._task.done()

    @property
    def is_served(self) -> bool:
        """Whether every partition is."""
        return {part.state for part in self._parts} == {PartitionState.ACTIVE}

    def number_of(self, key: str) -> int:
        """The partition that keeps a group, a transactional id and the like; there must be some."""
        return partition_for(key, len(self._parts))

    def error_for(self, key: str) -> ErrorCode:
        """Why what a key names can't be served now, `NONE` where it can."""
        return self.error_of(self.number_of(key)) if self._parts else ErrorCode.NOT_COORDINATOR

    def error_of(self, number: int) -> ErrorCode:
        """Why a partition can't be served now, `NONE` where it can."""
        if number >= len(self._parts):
            return ErrorCode.NOT_COORDINATOR
        state = self._parts[number].state
        if state is PartitionState.ACTIVE:
            return ErrorCode.NONE
        if state is PartitionState.FAILED:
            return self._try_again(number)
        if state is PartitionState.WAITING and self._queue[0] != number:
            # Somebody waits for this one.
            self._queue.remove(number)
            self._queue.appendleft(number)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def is_active(self, number: int) -> bool:
        """Whether a partition is served now."""
        return number < len(self._parts) and self._parts[number].state is PartitionState.ACTIVE

    def partition(self, number: int) -> Partition | None:
        """A partition, None where it can't be opened."""
        try:
            return self._services.partitions.get(self.name, number)
        except TidelogError as error:
            self._logger.warning("%s-%d can't be opened: %s", self.name, number, error)
            return None

    async def loaded(self, key: str | None, *, wait_s: float) -> None:
        """Return when a key's partition is loaded, well or not, but after some seconds at most.

        Args:
            key: What a partition keeps; all partitions where None.
            wait_s: How long to wait.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while self._is_coming(key) and (left_s := end - loop.time()) > 0:
            assert self._task is not None
            if self._progress is None or self._progress.done():
                self._progress = loop.create_future()
            both = (self._progress, self._task)
            await asyncio.wait(both, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def _is_coming(self, key: str | None) -> bool:
        if not self.is_loading or key is None or not self._parts:
            return self.is_loading
        return self.error_for(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _note_progress(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # -- the topic comes and goes ------------------------------------------------------------

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        if self._is_creating:
            return  # it may be found already, and has nothing to read
        info = self._services.topics.find(self.name)
        if info is not None and not self._parts:
            self._adopt(info, PartitionState.WAITING)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do something that loads the topic at its end, as its loading."""
        assert not self.is_loading
        self._task = asyncio.get_running_loop().create_task(work)

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        if not self._parts:
            self.resume()
        if self._parts:
            return ErrorCode.NONE
        if not self._is_creating:
            made = self._create(PartitionState.ACTIVE)
            self._creation = asyncio.get_running_loop().create_task(made)
        assert self._creation is not None
        # Whoever asks meanwhile waits for the same; one that goes away ends it for nobody.
        return await asyncio.shield(self._creation)

    @property
    def _is_creating(self) -> bool:
        return self._creation is not None and not self._creation.done()

    async def load(self) -> None:
        """Create the topic where it is not there, and load all of it; for `begin`."""
        info = self._services.topics.find(self.name)
        if info is not None:
            self._adopt(info, PartitionState.WAITING)
        else:
            await self._create(PartitionState.WAITING)
        await self._load_all()

    async def _create(self, state: PartitionState) -> ErrorCode:
        """Create it; its partitions, which have nothing to read, are in that state."""
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
        """Sync new partitions one by one in a thread: the first client need not wait for all.

        One that is opened before its turn is synced then.
        """
        for number in info.present:
            name = TopicPartition(self.name, number)
            with suppress(TidelogError, OSError):  # its opening tries again
                admin = self._services.log_dir.topic_admin
                await self._services.work.run(admin.settle, name)

    def _adopt(self, info: TopicInfo, state: PartitionState) -> None:
        self._parts = [_Part(state) for _ in range(info.partitions)]
        if state is PartitionState.WAITING:
            self._queue.extend(range(info.partitions))
            self._ensure_loading()

    def forget_topic(self) -> None:
        """The topic was deleted: nothing is kept any more."""
        self._end_watches()
        self._parts = []
        if self._settling is not None:
            self._settling.cancel()
        self._queue.clear()
        self._machine.unload(None)

    def mark_failed(self, number: int) -> None:
        """A partition failed: what it had is read again when it works again."""
        part = self._parts[number] if number < len(self._parts) else None
        if part is not None and part.state in _TAKING:
            previous, part.state = part.state, PartitionState.FAILED
            if previous is PartitionState.ACTIVE:
                self._machine.unload(number)

    def _watch(self, number: int, partition: Partition) -> _LogWatch:
        """What looks after a partition's log, for as long as the topic is there."""
        part = self._parts[number]
        if part.watch is None or not part.watch.is_of(partition):
            if part.watch is not None:
                part.watch.end()
            part.watch = _LogWatch(
                partition, lambda: self.mark_failed(number), lambda: self._come_back(number)
            )
        return part.watch

    def _come_back(self, number: int) -> None:
        """A partition was opened anew: what it has now is read, whether somebody asks or not."""
        self.mark_failed(number)
        self._try_again_if_sound(number)

    # -- writing -----------------------------------------------------------------------------

    def append(self, key: str, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records of what a key names, those of a turn of the loop together.

        The reply comes when they are safe, or says why they were not written. A failure that is
        known at once is answered at once: then nothing was written. Where no loop runs all is
        written at once.
        """
        number = self.number_of(key)
        size_bytes = _size_bytes(records)
        if size_bytes > GATHERED_BYTES_MAX or self._written.is_first(number):
            return self.append_now(number, records)
        if not self._takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        gathered = self._gathered.get(number)
        if gathered is not None and gathered.is_full_for(size_bytes):
            self._flush(number)
            gathered = self._gathered.get(number)  # who was told may have written on
        if gathered is None:
            gathered = self._gathered[number] = _Gathered()
        gathered.records += records
        gathered.size_bytes += size_bytes
        return gathered.reply()

    def append_now(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records to a partition, in a batch of their own; as `append`."""
        self._flush(number)
        return self._append_batch(number, records)

    def write(self, number: int, action: Callable[[Partition], AppendResult]) -> Reply[ErrorCode]:
        """Write; a disk that fails loses the partition, a rule that is broken does not.

        What is lost, or waits to be read, takes nothing: who writes goes by what is no more.
        """
        self._flush(number)
        return self._write(number, action)

    def settled(self, key: str) -> Reply[ErrorCode]:
        """When all that was written to a key's partition is safe."""
        number = self.number_of(key)
        gathered = self._gathered.get(number)
        if gathered is not None:
            return gathered.reply()
        if not self._takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        watch = self._parts[number].watch
        return Reply.of(ErrorCode.NONE) if watch is None else watch.all_safe()

    def _takes(self, number: int) -> bool:
        """Whether a partition is served, or is made complete before that."""
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
        """Write all that was gathered."""
        for number in tuple(self._gathered):
            self._flush(number)

    def _flush(self, number: int) -> None:
        """Write what was gathered for a partition, before something that is not."""
        gathered = self._gathered.pop(number, None)
        if gathered is None:
            return
        written = self._append_batch(number, gathered.records)
        if written.is_done and written.value is not ErrorCode.NONE:
            # It is taken to be so already: only the log can tell what is.
            self.mark_failed(number)
            gathered.tell(ErrorCode.NOT_COORDINATOR)
            return
        written.then(gathered.tell)

    # -- loading -----------------------------------------------------------------------------

    def try_again(self) -> None:
        """Read what was lost, whether somebody asks for it or not, but for what is damaged."""
        for number in range(len(self._parts)):
            self._try_again_if_sound(number)

    def _try_again_if_sound(self, number: int) -> None:
        part = self._parts[number]
        if part.state is PartitionState.FAILED and not part.is_damaged:
            self._try_again(number)

    def _try_again(self, number: int) -> ErrorCode:
        """A partition whose disk failed is read when that works again; a damaged one seldom."""
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
        """Kafka keeps a topic's settings elsewhere: by default ones states would go in time."""
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
        except Exception as error:  # noqa: BLE001 - its partitions are loaded all the same
            self._logger.error("settings of %s can't be kept: %s", self.name, error)
        while self._queue and not self._services.work.is_closed:
            # The topic may be deleted meanwhile; what becomes of this one says nothing then.
            number = self._queue.popleft()
            part = self._parts[number]
            part.state = PartitionState.LOADING
            try:
                await self._load(part, number)
            except Exception as error:  # noqa: BLE001 - one partition's trouble is not the others'
                # Where threads are closed the broker has stopped in the midst of it.
                if not self._services.work.is_closed:
                    self._tell_failure(part, number, error)
            if part.state is PartitionState.LOADING:
                part.state = PartitionState.FAILED
                part.failed_ms = self._clock.monotonic_ms()
            self._note_progress()
            if not self._queue:
                await self.all_loaded()

    def _tell_failure(self, part: _Part, number: int, error: Exception) -> None:
        # What was lost meanwhile says nothing: its log is closed, or written anew.
        if isinstance(error, CorruptData) and part.state is PartitionState.LOADING:
            part.is_damaged = True
        trace = None if isinstance(error, TidelogError) else error
        self._logger.error("%s-%d can't be loaded: %s", self.name, number, error, exc_info=trace)

    async def _load(self, part: _Part, number: int) -> None:
        partitions = self._services.partitions
        await partitions.open_beside([TopicPartition(self.name, number)], self._services.work)
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
        """What a log's records say."""
        replay, work = self._machine.replay(), self._services.work
        if log.log_end_offset <= log.log_start_offset:
            return replay.result()
        pieces = replay.take(log.slices(), KernelsOf(self._services))
        while await work.run(next, pieces, None) is not None:
            pass
        return await work.run(replay.result)

    def complete(self, number: int, loaded: Loaded) -> bool:  # noqa: ARG002
        """Add what is to be there before a partition is served; False where it can't be written."""
        return True

    async def all_loaded(self) -> None:
        """Nothing waits to be read any more: all was loaded, well or not."""

    def _is_of_topic(self, part: _Part, number: int) -> bool:
        return number < len(self._parts) and self._parts[number] is part

    def _may_take(self, part: _Part, number: int) -> bool:
        """Whether what is read of a partition still counts; the topic or the log may have gone."""
        return self._is_of_topic(part, number) and part.state is PartitionState.LOADING


def _size_bytes(records: Sequence[KeyValue]) -> int:
    size_bytes = len(records) * _RECORD_BYTES
    for record in records:
        size_bytes += len(record.key) + len(record.value or b"")
    return size_bytes


Kept = TypeVar("Kept")


class PartitionedMap(Generic[Kept]):
    """Groups or transactional ids by name. Belongs to the loop's thread.

    Attributes:
        all: Every one; only to be read.
    """

    def __init__(self, number_of: Callable[[str], int]) -> None:
        """Nothing yet.

        Args:
            number_of: The partition that keeps a name. It may be another one than where the name
                was read, where the topic has got more partitions since that was written.
        """
        self._number_of = number_of
        self._all: dict[str, Kept] = {}
        self._numbers: dict[str, int] = {}
        self._parts: dict[int, dict[str, Kept]] = {}
        self.all: Mapping[str, Kept] = self._all

    def get(self, name: str) -> Kept | None:
        """Return what is kept under a name, None if there is nothing."""
        return self._all.get(name)

    def put(self, name: str, value: Kept) -> None:
        """One more, or another one in its place."""
        self._put(self._number_of(name), name, value)

    def put_all(self, number: int, values: Mapping[str, Kept]) -> None:
        """What a partition has that was read."""
        for name, value in values.items():
            self._put(number, name, value)

    def _put(self, number: int, name: str, value: Kept) -> None:
        before = self._numbers.get(name)
        if before is not None and before != number:
            del self._parts[before][name]
        self._all[name] = value
        self._numbers[name] = number
        self._parts.setdefault(number, {})[name] = value

    def remove(self, name: str) -> None:
        """One less; fine where it is not there."""
        if self._all.pop(name, None) is not None:
            del self._parts[self._numbers.pop(name)][name]

    def part(self, number: int) -> Collection[Kept]:
        """What one partition keeps."""
        return self._parts.get(number, {}).values()

    def take_out(self, number: int | None) -> list[Kept]:
        """Let go of what a partition keeps, or of all (None); takes as long as that is many."""
        if number is not None:
            part = self._parts.pop(number, {})
            for name in part:
                del self._all[name], self._numbers[name]
            return list(part.values())
        values = list(self._all.values())
        for table in (self._all, self._numbers, self._parts):
            table.clear()
        return values
