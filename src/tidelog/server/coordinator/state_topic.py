"""A topic with the broker's own state: create, load, lose, reload, write, group commit.

A topic that the broker keeps its own state in: created, loaded, lost and loaded again.

A partition is read before what it keeps is served: in threads, in pieces, those first that somebody
asks for. Requests wait for that, to a bound (`loaded`); behind it they are answered
COORDINATOR_LOAD_IN_PROGRESS, at which clients pause for up to seconds. One that fails, whoever
wrote to it then or did not, is read again when its log works again: only the log can tell what it
has.

Writes that wait until they are safe, without an event loop.

Safe is what readers may see: with `tidelog.durability=fsync` that is what was synced.

Whether the log is still there that something in memory was read from, or written to.

What a topic of the broker's own keeps, by name and by partition, of which one may go at once.

What groups write in one turn of the loop goes into one batch: a group commit.

When a group changes, all its members ask within milliseconds, and each of them is written about.
Whoever writes first in a turn is written at once, so that who is alone doesn't wait. What comes
behind it in the same turn is gathered, and written when some have come together, or the turn is
over; only then is it answered.

Source: Kafka 4.3's coordinator runtime does so for `group.coordinator.append.linger.ms`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
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
from tidelog.server.coordinator.host import Host
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.loop import LoopTurn
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.append import AppendOrigin, AppendResult
from tidelog.types import Buffer, Header, TopicPartition

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


class Awaited:
    """Writes to one partition that are not safe yet, in order. Belongs to the loop's thread."""

    def __init__(self, partition: Partition, on_failure: Callable[[], None]) -> None:
        self.partition = partition
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()

    def add(self, last_offset: int) -> Reply[ErrorCode]:
        """When records up to this offset, inclusive, are safe."""
        reply: Reply[ErrorCode] = Reply()
        if not self._waiting:
            self.partition.watch(self._look)
        self._waiting.append((last_offset, reply))
        return reply

    def settled(self) -> Reply[ErrorCode]:
        """When all of them are."""
        return self.add(self._waiting[-1][0]) if self._waiting else Reply.of(ErrorCode.NONE)

    def _look(self) -> None:
        if self.partition.failure is not None or self.partition.is_gone:
            self._fail()
            return
        end = self.partition.high_watermark
        while self._waiting and self._waiting[0][0] < end:
            self._waiting.popleft()[1].complete(ErrorCode.NONE)
        if not self._waiting:
            self.partition.unwatch(self._look)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.partition.unwatch(self._look)
        for _, reply in waiting:
            reply.complete(ErrorCode.NOT_COORDINATOR)
        self._on_failure()


class LogWatch:
    """One partition's log, until `end`. Belongs to the loop's thread."""

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
        partition.watch(self._look)

    def is_of(self, partition: Partition) -> bool:
        """Whether this is what is watched: the partition, with the log that it has now."""
        return partition is self._partition and partition.log is self._log

    def end(self) -> None:
        """Watch no more."""
        self._partition.unwatch(self._look)

    def _look(self) -> None:
        partition = self._partition
        if partition.failure is not None:
            self._on_lost()
        elif partition.log is not self._log and not partition.is_gone:
            self._on_back()


# A partition that could not be read is tried again at most so often.
RETRY_MS: Final = 30_000


# Rules that a write may break; every other failure is the log's own.
_REFUSALS: Final[dict[type[TidelogError], ErrorCode]] = {
    MessageTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    RecordListTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}


Found = TypeVar("Found")


class PartitionState(Enum):
    """How far a partition is."""

    WAITING = "waiting"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


# What is served, and what is made complete before that.
_TAKING: Final = frozenset({PartitionState.ACTIVE, PartitionState.LOADING})


class InternalTopic(Generic[Found]):
    """All partitions of such a topic. Belongs to the loop's thread.

    Attributes:
        name: The topic's.
        read: Says what a partition's log has.
        completes: Called with a partition's number and what was read, to add what is to be there
            before it is served; False where that can't be written.
        take: Takes in what a partition has, with its number; it is served from then on.
        on_lost: Called with the number of a partition that can't be served any more, None for all.
        after_load: Awaited when nothing waits to be read any more, well or not.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        logger: Logger,
        *,
        partitions: int,
        settings: dict[str, str],
    ) -> None:
        """A topic that may be there already, with nothing of it read.

        Args:
            host: The broker.
            name: The topic's name.
            logger: Where failures are told.
            partitions: How many it gets, should it have to be created.
            settings: Its settings then; one from a Kafka directory gets them, too.
        """
        self.name = name
        self._host = host
        self._logger = logger
        self._count = partitions
        self._settings = settings
        self._states: list[PartitionState] = []
        self._queue: deque[int] = deque()
        self._failed_ms: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        # Resolved when a partition is loaded, or could not be; made for whoever waits for one.
        self._progress: asyncio.Future[None] | None = None
        self._creation: asyncio.Task[ErrorCode] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._awaited: dict[int, Awaited] = {}
        self._watches: dict[int, LogWatch] = {}
        self.read: Callable[[Log], Awaitable[Found]]
        self.completes: Callable[[int, Found], bool] = lambda _number, _found: True
        self.take: Callable[[int, Found], None]
        self.on_lost: Callable[[int | None], None] = lambda _number: None
        self.after_load: Callable[[], Awaitable[None]] | None = None
        host.closers.append(self.close)

    def close(self) -> None:
        """Load no more, and look after nothing any more."""
        self._end_watches()
        for task in (self._task, self._creation, self._settling):
            if task is not None:
                task.cancel()

    def _end_watches(self) -> None:
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()

    # -- questions ---------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """Whether the topic is, as far as it was looked for."""
        return bool(self._states)

    @property
    def count(self) -> int:
        """How many partitions it has."""
        return len(self._states)

    @property
    def is_loading(self) -> bool:
        """Whether some partition waits to be loaded."""
        return self._task is not None and not self._task.done()

    @property
    def is_served(self) -> bool:
        """Whether every partition is."""
        return set(self._states) == {PartitionState.ACTIVE}

    def number_of(self, key: str) -> int:
        """The partition that keeps a group or a transactional id; there must be some."""
        return partition_for(key, len(self._states))

    def code_for(self, key: str) -> ErrorCode:
        """Why a group or a transactional id can't be served now, `NONE` where it can."""
        return self.code_of(self.number_of(key)) if self._states else ErrorCode.NOT_COORDINATOR

    def code_of(self, number: int) -> ErrorCode:
        """Why a partition can't be served now, `NONE` where it can."""
        if number >= len(self._states):
            return ErrorCode.NOT_COORDINATOR
        state = self._states[number]
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
        return number < len(self._states) and self._states[number] is PartitionState.ACTIVE

    def partition(self, number: int) -> Partition | None:
        """A partition, None where it can't be opened."""
        try:
            return self._host.partitions.get(self.name, number)
        except TidelogError as error:
            self._logger.warning("%s-%d can't be opened: %s", self.name, number, error)
            return None

    async def loaded(self, key: str | None, *, wait_s: float) -> None:
        """Return when a key's partition is loaded, well or not, but after some seconds at most.

        Args:
            key: A group or transactional id; all partitions where None.
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
        if not self.is_loading or key is None or not self._states:
            return self.is_loading
        return self.code_for(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _note_progress(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # -- the topic comes and goes ------------------------------------------------------------

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        if self._is_creating:
            return  # it may be found already, and has nothing to read
        info = self._host.topics.find(self.name)
        if info is not None and not self._states:
            self._adopt(info, PartitionState.WAITING)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do something that loads the topic at its end, as its loading."""
        assert not self.is_loading
        self._task = asyncio.get_running_loop().create_task(work)

    async def ensure(self) -> ErrorCode:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        if not self._states:
            self.resume()
        if self._states:
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
        info = self._host.topics.find(self.name)
        if info is not None:
            self._adopt(info, PartitionState.WAITING)
        else:
            await self._create(PartitionState.WAITING)
        await self._load_all()

    async def _create(self, state: PartitionState) -> ErrorCode:
        """Create it; its partitions, which have nothing to read, are in that state."""
        host = self._host
        try:
            async with host.topics.changing:
                info = await host.work.run(self._make)
        except TopicExists:
            info, state = host.log_dir.topic(self.name), PartitionState.WAITING
        except TidelogError as error:
            self._logger.warning("%s can't be created: %s", self.name, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._states:
            self._adopt(info, state)
        self._settling = asyncio.get_running_loop().create_task(self._settle(info))
        return ErrorCode.NONE

    def _make(self) -> TopicInfo:
        log_dir = self._host.log_dir
        info, _ = log_dir.create_topic(self.name, partitions=self._count, config=self._settings)
        return info

    async def _settle(self, info: TopicInfo) -> None:
        """Sync new partitions one by one in a thread: the first client need not wait for all.

        One that is opened before its turn is synced then.
        """
        for number in info.present:
            name = TopicPartition(self.name, number)
            with suppress(TidelogError, OSError):  # its opening tries again
                await self._host.work.run(self._host.log_dir.settle_partition, name)

    def _adopt(self, info: TopicInfo, state: PartitionState) -> None:
        self._states = [state] * info.partitions
        if state is PartitionState.WAITING:
            self._queue.extend(range(info.partitions))
            self._ensure_loading()

    def forget(self) -> None:
        """The topic was deleted: nothing is kept any more."""
        self._states = []
        if self._settling is not None:
            self._settling.cancel()
        self._end_watches()
        self._queue.clear()
        self._failed_ms.clear()
        self._damaged.clear()
        self.on_lost(None)

    def lose(self, number: int) -> None:
        """A partition failed: what it had is read again when it works again."""
        known = self._states[number] if number < len(self._states) else None
        if known in _TAKING:
            self._states[number] = PartitionState.FAILED
            if known is PartitionState.ACTIVE:
                self.on_lost(number)

    def _watch(self, number: int, partition: Partition) -> None:
        """Look after a partition's log from now on, for as long as the topic is there."""
        known = self._watches.get(number)
        if known is not None and known.is_of(partition):
            return
        if known is not None:
            known.end()
        self._watches[number] = LogWatch(
            partition, lambda: self.lose(number), lambda: self._come_back(number)
        )

    def _come_back(self, number: int) -> None:
        """A partition was opened anew: what it has now is read, whether somebody asks or not."""
        self.lose(number)
        if self._states[number] is PartitionState.FAILED and number not in self._damaged:
            self._try_again(number)

    # -- writing -----------------------------------------------------------------------------

    def append(self, number: int, batch: Buffer) -> Reply[ErrorCode]:
        """Write a batch, just built; when it is safe, or why it was not written."""
        own = AppendOrigin.COORDINATOR
        return self.write(number, lambda p: p.append(batch, origin=own, owned=True, trusted=True))

    def write(self, number: int, action: Callable[[Partition], AppendResult]) -> Reply[ErrorCode]:
        """Write; a disk that fails loses the partition, a rule that is broken does not.

        What is lost, or waits to be read, takes nothing: who writes goes by what is no more.
        """
        partition = self.partition(number) if self.takes(number) else None
        if partition is None:
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        self._watch(number, partition)
        try:
            result = action(partition)
        except TidelogError as error:
            if (code := _REFUSALS.get(type(error))) is not None:
                return Reply.of(code)
            self._logger.warning("%s: %s", partition.name, error)
            self.lose(number)
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        return self._await(number, partition, result.last_offset)

    def takes(self, number: int) -> bool:
        """Whether a partition is served, or is made complete before that."""
        return number < len(self._states) and self._states[number] in _TAKING

    def _await(self, number: int, partition: Partition, last_offset: int) -> Reply[ErrorCode]:
        if partition.high_watermark > last_offset:
            return Reply.of(ErrorCode.NONE)
        awaited = self._awaited.get(number)
        if awaited is None or awaited.partition is not partition:
            awaited = self._awaited[number] = Awaited(partition, lambda: self.lose(number))
        return awaited.add(last_offset)

    def settled(self, number: int) -> Reply[ErrorCode]:
        """When all that was written to a partition is safe."""
        if not self.takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        awaited = self._awaited.get(number)
        return Reply.of(ErrorCode.NONE) if awaited is None else awaited.settled()

    # -- loading -----------------------------------------------------------------------------

    def try_again(self) -> None:
        """Read what was lost, whether somebody asks for it or not, but for what is damaged."""
        for number, state in enumerate(self._states):
            if state is PartitionState.FAILED and number not in self._damaged:
                self._try_again(number)

    def _try_again(self, number: int) -> ErrorCode:
        """A partition whose disk failed is read when that works again; a damaged one seldom."""
        now_ms = self._host.env.clock.monotonic_ms()
        if now_ms - self._failed_ms.get(number, now_ms - RETRY_MS) < RETRY_MS:
            return ErrorCode.NOT_COORDINATOR
        partition = self.partition(number)
        if partition is None or partition.failure is not None:
            return ErrorCode.NOT_COORDINATOR
        self._states[number] = PartitionState.WAITING
        self._queue.append(number)
        self._ensure_loading()
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _ensure_loading(self) -> None:
        if self._queue and not self.is_loading and not self._host.work.is_closed:
            self.begin(self._load_all())

    async def _claim(self) -> None:
        """Kafka keeps a topic's settings elsewhere: by default ones states would go in time."""
        host = self._host
        info = host.topics.find(self.name)
        if info is not None and info.foreign:
            async with host.topics.changing:
                await host.work.run(host.log_dir.save_config, self.name, self._settings)
                host.log_dir.follow_config(self.name)

    async def _load_all(self) -> None:
        try:
            await self._claim()
        except TidelogError as error:
            self._logger.error("settings of %s can't be kept: %s", self.name, error)
        while self._queue and not self._host.work.is_closed:
            # Another list stands for another topic, should this one be deleted meanwhile.
            states, number = self._states, self._queue.popleft()
            states[number] = PartitionState.LOADING
            try:
                await self._load(states, number)
            except Exception as error:  # noqa: BLE001 - one partition's trouble is not the others'
                if not self._host.work.is_closed:  # else the broker has stopped in the midst of it
                    self._tell_failure(states, number, error)
            if states[number] is PartitionState.LOADING:
                states[number] = PartitionState.FAILED
                self._failed_ms[number] = self._host.env.clock.monotonic_ms()
            self._note_progress()
            if not self._queue and self.after_load is not None:
                await self.after_load()

    def _tell_failure(self, states: list[PartitionState], number: int, error: Exception) -> None:
        # What was lost meanwhile says nothing: its log is closed, or written anew.
        if isinstance(error, CorruptData) and states[number] is PartitionState.LOADING:
            self._damaged.add(number)
        trace = None if isinstance(error, TidelogError) else error
        self._logger.error("%s-%d can't be loaded: %s", self.name, number, error, exc_info=trace)

    async def _load(self, states: list[PartitionState], number: int) -> None:
        partitions = self._host.partitions
        await partitions.open_beside([TopicPartition(self.name, number)], self._host.work)
        partition = partitions.get(self.name, number)
        if states is not self._states:
            return
        self._watch(number, partition)
        if partition.failure is not None:
            self.lose(number)
            return
        found = await self.read(partition.log)
        if self._may_take(states, number) and self.completes(number, found):
            self._failed_ms.pop(number, None)
            self._damaged.discard(number)
            if self._may_take(states, number):
                states[number] = PartitionState.ACTIVE
                self.take(number, found)

    def _may_take(self, states: list[PartitionState], number: int) -> bool:
        """Whether what is read of a partition still counts; the topic or the log may have gone."""
        return states is self._states and states[number] is PartitionState.LOADING


Kept = TypeVar("Kept")


class ByPartition(Generic[Kept]):
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

    def put(self, name: str, kept: Kept) -> None:
        """One more, or another one in its place."""
        self._put(self._number_of(name), name, kept)

    def put_all(self, number: int, found: Mapping[str, Kept]) -> None:
        """What a partition has that was read."""
        for name, kept in found.items():
            self._put(number, name, kept)

    def _put(self, number: int, name: str, kept: Kept) -> None:
        before = self._numbers.get(name)
        if before is not None and before != number:
            del self._parts[before][name]
        self._all[name] = kept
        self._numbers[name] = number
        self._parts.setdefault(number, {})[name] = kept

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
        found = list(self._all.values())
        for table in (self._all, self._numbers, self._parts):
            table.clear()
        return found


# A batch of these fits wherever a single request's does, and is soon compressed and written.
GATHERED_BYTES_MAX: Final = 32 << 10


# Who is answered early asks on, or lets others, while the broker works on for those behind it.
GATHERED_REPLIES_MAX: Final = 8


# Of a record, beside key and value: more than its lengths, deltas and attributes take.
_RECORD_BYTES: Final = 32


Write = Callable[[int, Sequence[KeyValue]], Reply[ErrorCode]]


class Topic(Protocol):
    """The topic that is written to."""

    def takes(self, number: int) -> bool:
        """Whether a partition may be written to now."""
        ...

    def lose(self, number: int) -> None:
        """What is known of a partition is to be read again."""
        ...


@dataclass(slots=True)
class _Gathered:
    """What waits for a partition: records in order, and who is told of them."""

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


class Gathering:
    """Writes to the partitions of a topic. Belongs to the loop's thread.

    Where no loop runs everything is written at once.
    """

    def __init__(self, topic: Topic, write: Write) -> None:
        """`write` puts records into a partition in one batch."""
        self._topic = topic
        self._write = write
        # Partitions that were written to in this turn, and what waits for its end.
        self._written: LoopTurn[int] = LoopTurn(self.flush_all)
        self._gathered: dict[int, _Gathered] = {}

    def append(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records, now or soon; when they are safe, or why they were not written.

        A failure that is known at once is answered at once: then nothing was written.
        """
        size_bytes = _size_bytes(records)
        if size_bytes > GATHERED_BYTES_MAX or self._written.is_first(number):
            self.flush(number)
            return self._write(number, records)
        if not self._topic.takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        found = self._gathered.get(number)
        if found is not None and found.is_full_for(size_bytes):
            self.flush(number)
            found = self._gathered.get(number)  # who was told may have written on
        if found is None:
            found = self._gathered[number] = _Gathered()
        found.records += records
        found.size_bytes += size_bytes
        return found.reply()

    def pending(self, number: int) -> Reply[ErrorCode] | None:
        """When all that waits for a partition is safe; None where nothing waits."""
        found = self._gathered.get(number)
        return None if found is None else found.reply()

    def flush_all(self) -> None:
        """Write all that waits."""
        for number in tuple(self._gathered):
            self.flush(number)

    def flush(self, number: int) -> None:
        """Write what waits for a partition, before something that is not gathered."""
        found = self._gathered.pop(number, None)
        if found is None:
            return
        written = self._write(number, found.records)
        if written.is_done and written.value is not ErrorCode.NONE:
            # It is taken to be so already: only the log can tell what is.
            self._topic.lose(number)
            found.tell(ErrorCode.NOT_COORDINATOR)
            return
        written.then(found.tell)


def _size_bytes(records: Sequence[KeyValue]) -> int:
    size_bytes = len(records) * _RECORD_BYTES
    for record in records:
        size_bytes += len(record.key) + len(record.value or b"")
    return size_bytes
