"""The broker's partitions: a log, how far its readers may see, and who waits for more.

Over 400 lines because all that happens to one partition behind the broker goes through it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure, TidelogError, UnknownTopic
from tidelog.server.byte_ranges import ReadEnds
from tidelog.server.holds import Holds
from tidelog.server.open_transactions import OpenTransactions
from tidelog.server.slices import take_as_old
from tidelog.server.watched import Watched
from tidelog.server.work import Work
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.epochs import read_next_epoch
from tidelog.storage.files import partition_dir_name
from tidelog.storage.legacy_sets import PreparedSet
from tidelog.storage.log import AppendResult, Log
from tidelog.storage.log_dir import LogDir
from tidelog.types import Buffer, IsolationLevel, TopicPartition

_Result = TypeVar("_Result")

ALL_REPLICAS: Final = -1
# Partitions that are opened in threads at a time, for whomever.
OPENINGS: Final = 3
# After so many openings their objects count as old: they stay as long as the broker.
OLD_EVERY: Final = 8


class Partition(Watched):
    """One partition behind the broker. Belongs to the loop's thread.

    Attributes:
        name: Topic and number.
        log: The open log.
        high_watermark: Offset behind the last record that consumers may see.
        is_gone: The topic was deleted; watchers were told.
        last_deletion_ms: When retention last took segments since the start; None for never.
        read_ends: Where fetches ended.
        transactions: What is known of them beside the log.
    """

    def __init__(self, log: Log, *, syncs_all: bool = False) -> None:
        """One partition.

        Args:
            log: Its log.
            syncs_all: Readers see only what was synced (`tidelog.durability=fsync`).

        Where what recovery left can't be synced it begins offline, and what is durable is read.
        """
        super().__init__()
        self.name: TopicPartition = log.topic_partition
        self.log = log
        self.high_watermark = _synced_end(log) if syncs_all else log.log_end_offset
        self.is_gone = False
        self.last_deletion_ms: int | None = None
        self._syncs_all = syncs_all
        self._sync_end: int | None = None  # what the running sync makes durable; None without one
        self._is_sync_due = False
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._flushes: dict[asyncio.Future[TidelogError | None], None] = {}
        self.read_ends = ReadEnds()
        self.transactions = OpenTransactions()
        log.on_failure = self.notify

    @property
    def failure(self) -> StorageFailure | None:
        """Why it is offline, None while it works."""
        return self.log.failure

    @property
    def last_stable_offset(self) -> int:
        """Offset below which no transaction is open, at most the high watermark."""
        return self.transactions.stable_end(self.log.last_stable_offset, self.high_watermark)

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Offset behind the last record that a reader of that isolation sees."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    @property
    def replica_end_offset(self) -> int:
        """Offset behind the last record for who says it copies the log, which anybody may say."""
        return self.high_watermark if self._syncs_all else self.log.log_end_offset

    def append(  # noqa: PLR0913 - as `Log.append_batches`
        self,
        data: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        owned: bool = False,
        trusted: bool = False,
        takes_legacy: bool = False,
        is_bounded: bool = False,
        is_checked: bool = False,
    ) -> AppendResult:
        """Append batches and show them; arguments and errors as `Log.append_batches`."""
        result = self.log.append_batches(
            data,
            origin=origin,
            owned=owned,
            trusted=trusted,
            takes_legacy=takes_legacy,
            is_bounded=is_bounded,
            is_checked=is_checked,
        )
        self.advance()
        return result

    def append_set(self, prepared: PreparedSet) -> AppendResult:
        """Append what `Log.check_set` has checked, and show it; errors as `Log.append_set`."""
        result = self.log.append_set(prepared)
        self.advance()
        return result

    def append_plain(self, data: Buffer) -> AppendResult | None:
        """As `append` of what a client has sent, in a buffer of ours; see `Log.append_plain`."""
        result = self.log.append_plain(data)
        if result is not None:
            self.advance_to(result)
        return result

    def advance_to(self, result: AppendResult) -> None:
        """`advance` after an append of which this was said."""
        if self._syncs_all or self._sync_end is not None or self.log.is_flush_due:
            self.advance()
        elif not result.is_duplicate:
            self.high_watermark = result.last_offset + 1
            if self._watchers:
                self.notify()

    def advance(self) -> None:
        """Let readers see up to the log end, and tell who waits; after a sync where one is due."""
        if self._syncs_all or self.log.is_flush_due:
            self._is_sync_due |= self.log.log_end_offset > self.high_watermark
            self._sync()
        elif self._sync_end is None:
            self._show(self.log.log_end_offset)

    def flush_later(self) -> None:
        """Make what was appended durable beside the loop; raises StorageFailure when offline."""
        self._is_sync_due = True
        self._sync()

    async def flushed(self) -> None:
        """Make what was appended durable beside the loop, and return when it is.

        Raises:
            StorageFailure: The partition is offline, or was.
            UnknownTopic: The topic was deleted meanwhile.
        """
        done: asyncio.Future[TidelogError | None] = asyncio.get_running_loop().create_future()
        self.log.flush_later(lambda failure: _settle(done, failure))
        self._flushes[done] = None
        try:
            failure = await done
        finally:
            del self._flushes[done]
        if failure is not None:
            raise failure

    def _show(self, end: int) -> None:
        if end != self.high_watermark:
            self.high_watermark = end
            self.notify()

    # -- group commit ------------------------------------------------------------------------

    def _sync(self) -> None:
        """Begin a sync of all that was appended; while one runs, the next group gathers."""
        if self._sync_end is not None or not self._is_sync_due:
            return
        self._is_sync_due = False
        self._sync_end = self.log.log_end_offset
        self.log.flush_later(self._synced)

    def _synced(self, failure: StorageFailure | None) -> None:
        end, self._sync_end = self._sync_end, None
        assert end is not None
        if failure is not None:
            self._release(ErrorCode.KAFKA_STORAGE_ERROR)
            self.notify()
            return
        is_next_due = self._is_sync_due
        self._sync()
        self._show(end if is_next_due or self._syncs_all else self.log.log_end_offset)
        while self._waiting and self._waiting[0][0] <= self.high_watermark:
            _settle(self._waiting.popleft()[1], 0)

    def must_wait(self, result: AppendResult, acks: int) -> bool:
        """Whether an acknowledgement has to wait until readers may see the records.

        With `fsync` only acks=all waits; a flush that the topic asks for holds up every one.
        """
        if result.last_offset < self.high_watermark:
            return False
        return acks == ALL_REPLICAS or (acks != 0 and not self._syncs_all)

    def when_shown(self, end_offset: int) -> "asyncio.Future[int]":
        """Done with 0 once readers see all below `end_offset`, with an error code if never."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            future.set_result(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._waiting.append((end_offset, future))
        return future

    def _release(self, code: int) -> None:
        """Tell all who wait for their records that they won't be shown."""
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            _settle(future, code)

    def _give_up_flushes(self, reason: TidelogError) -> None:
        """A log that is not used any more never says how its flushes ended."""
        for future in self._flushes:
            _settle(future, reason)

    def close(self) -> None:
        """The topic was deleted: tell who waits."""
        self.is_gone = True
        self._release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._give_up_flushes(UnknownTopic(f"{self.name}: the topic was deleted"))
        self.notify()

    def use(self, log: Log) -> None:
        """Go on with a log that was opened anew."""
        self._release(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.failure is not None:
            self._give_up_flushes(self.failure)
        self.notify()  # who waits for what the old one has not kept learns that by its failure
        self.log, self._sync_end, self._is_sync_due = log, None, False
        self.transactions.clear()
        self.high_watermark = _synced_end(log) if self._syncs_all else log.log_end_offset
        log.on_failure = self.notify
        self.notify()  # who looks after the log itself has another one now


def _settle(future: "asyncio.Future[_Result]", result: _Result) -> None:
    if not future.done():
        future.set_result(result)


def _synced_end(log: Log) -> int:
    """Offset behind what is durable, after a sync of what recovery left."""
    if log.failure is None and log.recovery_point < log.log_end_offset:
        with suppress(StorageFailure):
            log.flush()  # a failure takes it offline, which is said to all who write
    return (
        log.log_end_offset if log.failure is None else max(log.recovery_point, log.log_start_offset)
    )


class Partitions:
    """All partitions that were opened. Belongs to the loop's thread.

    Attributes:
        epoch_changes: Counts up where a leader epoch may be another than was told before.
        holds: Topics that somebody is rebuilding.
        has_kernels: Whether what is opened from now on checks and searches with kernels.
    """

    def __init__(self, log_dir: LogDir, *, syncs_all: bool = False) -> None:
        self._log_dir = log_dir
        self._syncs_all = syncs_all
        self.has_kernels = False
        self._open: dict[TopicPartition, Partition] = {}
        # The same by plain names, for a look in next to no time.
        self._used: dict[tuple[str, int], Partition] = {}
        self._opening_room = asyncio.Semaphore(OPENINGS)
        self._next_epochs: dict[TopicPartition, int] = {}
        self.epoch_changes = 0
        self.holds = Holds()

    def get(self, topic: str, partition: int) -> Partition:
        """One partition, opened at its first use.

        Raises:
            UnknownTopic: No such topic or partition.
            StorageFailure: It could not be opened.
        """
        found = self._used.get((topic, partition))
        return self._use(TopicPartition(topic, partition)) if found is None else found

    def _use(self, name: TopicPartition) -> Partition:
        # Said without the nearest name: looking for it takes long, and requests name many.
        if not self._is_there(name):
            raise UnknownTopic(f"{name}: no such topic or partition")
        log = self._log_dir.log(name.topic, name.partition)
        if self.has_kernels and log.failure is None:
            log.use_kernels()
        found = Partition(log, syncs_all=self._syncs_all)
        self._open[name] = self._used[(name.topic, name.partition)] = found
        if self._next_epochs.pop(name, None) != log.leader_epoch:
            self.epoch_changes += 1
        return found

    def find_used(self, topic: str, partition: int) -> Partition | None:
        """A partition that is open, None where it was not used yet or is not there."""
        return self._used.get((topic, partition))

    # -- opening beside the loop -------------------------------------------------------------

    def unopened(self, names: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """Those of these partitions that are there and that `get` would have to open itself."""
        left = [TopicPartition(*name) for name in names if name not in self._used]
        return [name for name in left if self.must_open(name)]

    def must_open(self, name: TopicPartition) -> bool:
        """Whether `get` would have to open it; False where there is no such partition."""
        if name in self._open or self._log_dir.is_opened(name):
            return False
        return self._is_there(name)

    def _is_there(self, name: TopicPartition) -> bool:
        if (info := self._log_dir.topics().get(name.topic)) is None:
            return False
        return name.partition in (info.present if info.foreign else range(info.partitions))

    async def open_beside(
        self, names: Iterable[TopicPartition], work: Work, *, to_write: bool = False
    ) -> None:
        """Open partitions in threads, several at a time, each once whoever else wants it.

        What could not be opened is said by the next `get`. `to_write` as of `LogDir.open_beside`.
        """
        left = iter(dict.fromkeys(names))

        async def go_on() -> None:
            for number, name in enumerate(left, start=1):
                async with self._opening_room:
                    await self._open_one(name, work, to_write=to_write)
                if number % OLD_EVERY == 0:
                    take_as_old()

        await asyncio.gather(*(go_on() for _ in range(OPENINGS)))

    async def _open_one(self, name: TopicPartition, work: Work, *, to_write: bool) -> None:
        if not self.must_open(name):
            return
        try:
            opening = self._log_dir.open_beside(name, work.submit, to_write=to_write)
        except TidelogError:
            return  # it is gone, or was never there
        if opening is not None:
            opened = asyncio.wrap_future(opening)
            # Where who waits here goes away, the opening goes on: others may wait for it.
            await asyncio.wait([opened])
            if not opened.cancelled() and opened.exception() is None:
                with suppress(TidelogError):  # deleted meanwhile
                    self.get(name.topic, name.partition)

    async def reopen(self, topic: str, partition: int, work: Work) -> bool:
        """Open a partition anew that is offline since its disk failed; whether it was offline.

        Raises:
            UnknownTopic, StorageFailure: As `LogDir.reopen`; it stays offline, and is read still.
        """
        found = self.get(topic, partition)
        if found.failure is None:
            return False
        let_go = found.log.give_up()  # here: what it left for later belongs to this thread
        log = await work.run(self._reopened, let_go, topic, partition)
        if found.is_gone:
            return False
        if self.has_kernels:
            log.use_kernels()
        found.use(log)
        self.epoch_changes += 1
        return True

    def _reopened(self, let_go: Callable[[], None], topic: str, partition: int) -> Log:
        """In a thread: recovery reads all that was not synced, and copies it."""
        let_go()
        log = self._log_dir.reopen(topic, partition)
        log.flush()
        return log

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch that a partition is led under, -1 where that can't be told.

        It grows at each start: one that was not opened yet will go by the epoch behind the last
        one in its checkpoint, or a later one. So thousands can be told without opening any.
        """
        name = TopicPartition(topic, partition)
        found = self._open.get(name)
        if found is not None:
            return found.log.leader_epoch
        if name not in self._next_epochs:
            self._next_epochs[name] = read_next_epoch(
                self._log_dir.env.files, f"{self._log_dir.path}/{partition_dir_name(name)}"
            )
        return self._next_epochs[name]

    def knows_epoch(self, name: TopicPartition) -> bool:
        """Whether `leader_epoch` answers without a look at the disk."""
        return name in self._open or name in self._next_epochs

    def find_open(self, name: TopicPartition) -> Partition | None:
        """A partition that was used already, None where it was not."""
        return self._open.get(name)

    def opened(self) -> Iterator[Partition]:
        """Those that are open now."""
        return iter(tuple(self._open.values()))

    def forget(self, topics: Collection[str]) -> None:
        """Topics were deleted: let go of their partitions, and tell who waits for them."""
        for name in [name for name in self._open if name.topic in topics]:
            self._used.pop((name.topic, name.partition), None)
            self._open.pop(name).close()
        for name in [name for name in self._next_epochs if name.topic in topics]:
            del self._next_epochs[name]
