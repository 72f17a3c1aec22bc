"""Partitions of the broker: lookup, opening in threads, reopening, leader epochs, topic locks.

- Leader epochs: functions that check a client's epoch, and that find the end of an epoch.
- Locks on topics: a thread prepares new segments for an attach or swap. These segments continue or
  replace a part of the log, which must not change until the new segments are visible. So
  conflicting changes wait for the lock. Reads continue. The lock for copying segments to a tier
  delays retention and other locks of the topic, but not appends. The lock of a compaction that
  swaps in segments also delays the topic's deletion.
- Cleanings: a cleaning needs its source segments until its result is swapped in. So retention of a
  partition waits for the partition's cleaning and runs right after it. If retention could delete
  source segments during the cleaning, a large log might never be compacted.

Source: KIP-101, KIP-320; Kafka 4.x Partition.checkCurrentLeaderEpoch, LeaderEpochFileCache,
LogCleanerManager (cleaning and deletion of a log exclude each other).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError, UnknownTopic
from tidelog.gc_pauses import take_as_old
from tidelog.server.partitions.partition import (
    OLD_EVERY,
    Partition,
)
from tidelog.server.runtime.errors import code_of
from tidelog.server.runtime.loop import Slices
from tidelog.server.runtime.threads import Work
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.files import partition_dir_name
from tidelog.storage.log.leader_epochs import LeaderEpochs, read_next_epoch
from tidelog.storage.log.log import Log
from tidelog.types import NO_LEADER_EPOCH, TopicPartition


class Hold:
    """A lock on topics that one change holds."""

    def __init__(self, *, stops_appends: bool, stops_deletion: bool) -> None:
        self.stops_appends = stops_appends
        self.stops_deletion = stops_deletion
        self.ended = asyncio.Event()


class Holds:
    """Locks on topics. Used only in the event loop's thread."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def __bool__(self) -> bool:
        """Whether any topic is locked."""
        return bool(self._holds)

    def is_locked(self, topic: str) -> bool:
        """Whether a topic is locked, so that its segments must not change."""
        return topic in self._holds

    def stops_appends(self, topics: Iterable[str]) -> bool:
        """Whether appends to one of these topics have to wait."""
        holds = (self._holds.get(topic) for topic in topics)
        return any(hold is not None and hold.stops_appends for hold in holds)

    async def wait(self, topics: Iterable[str]) -> None:
        """Return when no lock stops appends to these topics."""
        await self._wait(topics, lambda hold: hold.stops_appends)

    def stops_deletion(self, topic: str) -> bool:
        """Whether a lock stops the topic's deletion."""
        hold = self._holds.get(topic)
        return hold is not None and hold.stops_deletion

    async def wait_for_deletion(self, topics: Iterable[str]) -> None:
        """Return when no lock stops the deletion of these topics."""
        await self._wait(topics, lambda hold: hold.stops_deletion)

    async def _wait(self, topics: Iterable[str], counts: Callable[[Hold], bool]) -> None:
        names = list(topics)
        holds = self._holds
        while matches := [holds[name] for name in names if name in holds and counts(holds[name])]:
            await matches[0].ended.wait()

    @asynccontextmanager
    async def hold(
        self, topics: Iterable[str], *, stops_appends: bool, stops_deletion: bool | None = None
    ) -> AsyncIterator[None]:
        """Wait until none of the topics is locked, and lock them during a `with` block.

        Args:
            topics: Names of the topics.
            stops_appends: Whether appends to the topics wait.
            stops_deletion: Whether the topics' deletion waits; None means the value of
                `stops_appends`.
        """
        names = set(topics)
        await self._wait(names, lambda _: True)
        stops = stops_appends if stops_deletion is None else stops_deletion
        hold = Hold(stops_appends=stops_appends, stops_deletion=stops)
        self._holds |= dict.fromkeys(names, hold)
        try:
            yield
        finally:
            for name in names:
                del self._holds[name]
            hold.ended.set()


# Maximum number of partitions that are being opened in threads.
OPENINGS: Final = 3

_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def numbers_of(info: TopicInfo) -> Collection[int]:
    """Return a topic's partition numbers.

    Exception: for a topic that the directory's topic file does not list (a foreign topic), only the
    numbers of partitions with a directory are returned.
    """
    return info.present if info.foreign else range(info.partitions)


class Partitions:
    """All partitions that were opened. Used only in the event loop's thread.

    Attributes:
        epoch_changes: Counter, incremented when a leader epoch may differ from the epoch that was
            reported before.
        holds: Locks on topics.
        has_kernels: Whether newly opened logs use kernels for checks and searches.
    """

    def __init__(self, log_dir: LogDir, work: Work, *, syncs_all: bool) -> None:
        self._log_dir = log_dir
        self._work = work
        self._syncs_all = syncs_all
        self.has_kernels = False
        self._open: dict[TopicPartition, Partition] = {}
        # Partitions by topic and number in a plain tuple, for fast lookups.
        self._used: dict[tuple[str, int], Partition] = {}
        self._opening_room = asyncio.Semaphore(OPENINGS)
        self._next_epochs: dict[TopicPartition, int] = {}
        self.epoch_changes = 0
        self.holds = Holds()

    def get(self, topic: str, partition: int) -> Partition:
        """Return one partition, opened at its first use.

        Raises:
            UnknownTopic: No such topic or partition.
            StorageFailure: The partition could not be opened.
        """
        used = self._used.get((topic, partition))
        return self._use(TopicPartition(topic, partition)) if used is None else used

    def _use(self, name: TopicPartition) -> Partition:
        # The error suggests no similar name, because the search for a similar name takes long, and
        # a request may name very many topics.
        if not self._is_there(name):
            raise UnknownTopic(f"{name}: no such topic or partition")
        log = self._log_dir.log(name.topic, name.partition)
        if self.has_kernels and log.failure is None:
            log.use_kernels()
        opened = Partition(log, syncs_all=self._syncs_all)
        self._open[name] = self._used[(name.topic, name.partition)] = opened
        if self._next_epochs.pop(name, None) != log.leader_epoch:
            self.epoch_changes += 1
        return opened

    def find(self, topic: str, number: int) -> Partition | int:
        """Return a partition, opened at its first use, or Kafka's error code.

        The lookup of a missing partition must be fast, because a request may name very many missing
        partitions.
        """
        partition = self._used.get((topic, number))
        if partition is not None:
            return partition
        name = TopicPartition(topic, number)
        try:
            return self._use(name) if self._is_there(name) else _UNKNOWN
        except TidelogError as error:
            return code_of(error)

    def find_used(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that has been used; None if it hasn't been used or doesn't exist."""
        return self._used.get((topic, partition))

    # -- opening in threads ------------------------------------------------------------------

    def unopened(self, names: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """Return the existing partitions among `names` that `get` would have to open."""
        unused = [TopicPartition(*name) for name in names if name not in self._used]
        return [name for name in unused if self.must_open(name)]

    def must_open(self, name: TopicPartition) -> bool:
        """Whether `get` would have to open the partition; False for a missing partition."""
        if name in self._open or self._log_dir.open_partitions.is_opened(name):
            return False
        return self._is_there(name)

    def _is_there(self, name: TopicPartition) -> bool:
        if (info := self._log_dir.topics().get(name.topic)) is None:
            return False
        return name.partition in numbers_of(info)

    async def ensure_open(self, names: Iterable[tuple[str, int]]) -> None:
        """Open the existing partitions among `names` in threads, as `open_beside` does."""
        missing = self.unopened(names)
        if missing:
            await self.open_beside(missing)

    async def open_beside(self, names: Iterable[TopicPartition], *, to_write: bool = False) -> None:
        """Open partitions in threads, several at a time.

        A partition that several callers need is opened only once. If a partition can't be opened,
        the next `get` of it raises the error. If `to_write` is true, the threads also do the writes
        and syncs that the first append would otherwise do.
        """
        remaining = iter(dict.fromkeys(names))

        async def open_next() -> None:
            for number, name in enumerate(remaining, start=1):
                async with self._opening_room:
                    await self._open_one(name, to_write=to_write)
                if number % OLD_EVERY == 0:
                    take_as_old()

        await asyncio.gather(*(open_next() for _ in range(OPENINGS)))

    async def _open_one(self, name: TopicPartition, *, to_write: bool) -> None:
        if not self.must_open(name):
            return
        try:
            opening = self._log_dir.open_partitions.open_in_thread(
                name, self._work.submit, to_write=to_write
            )
        except TidelogError:
            return  # the partition was deleted, or never existed
        if opening is not None:
            opened = asyncio.wrap_future(opening)
            # If the caller is cancelled, the opening continues, because other callers may wait for
            # it.
            await asyncio.wait([opened])
            if not opened.cancelled() and opened.exception() is None:
                with suppress(TidelogError):  # deleted meanwhile
                    self.get(name.topic, name.partition)

    async def reopen(self, topic: str, partition: int) -> bool:
        """Reopen a partition that is offline after a disk failure; return whether it was reopened.

        Raises:
            UnknownTopic, StorageFailure: See `LogDir.reopen`. The partition stays offline and
                readable.
        """
        offline = self.get(topic, partition)
        if offline.failure is None:
            return False
        # `detach` runs on the event loop, because the log's deferred work belongs to this thread.
        release_files = offline.log.detach()
        log = await self._work.run(self._reopened, release_files, topic, partition)
        if offline.is_deleted:
            return False
        if self.has_kernels:
            log.use_kernels()
        offline.use(log)
        self.epoch_changes += 1
        return True

    def _reopened(self, release_files: Callable[[], None], topic: str, partition: int) -> Log:
        """Reopen a log in a thread, because recovery reads and copies all that was not synced."""
        release_files()
        log = self._log_dir.reopen(topic, partition)
        log.flush()
        return log

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return a partition's leader epoch, -1 if it is unknown.

        Each start of the broker increases the epoch by one. So for a partition that was not opened
        yet, the result is the last epoch in the partition's checkpoint plus one. In this way the
        epochs of thousands of partitions are known without opening the partitions.
        """
        name = TopicPartition(topic, partition)
        opened = self._open.get(name)
        if opened is not None:
            return opened.log.leader_epoch
        if name not in self._next_epochs:
            self._next_epochs[name] = read_next_epoch(
                self._log_dir.env.files, f"{self._log_dir.path}/{partition_dir_name(name)}"
            )
        return self._next_epochs[name]

    def unread_epochs(self, topics: Iterable[TopicInfo]) -> list[TopicPartition]:
        """Return the partitions of these topics for which `leader_epoch` has to read the disk."""
        return [
            name
            for info in topics
            for name in (TopicPartition(info.name, number) for number in numbers_of(info))
            if name not in self._open and name not in self._next_epochs
        ]

    async def read_epochs(self, names: Iterable[TopicPartition], clock: Clock) -> None:
        """Read leader epochs in slices, so that a long list does not block the event loop."""
        slices = Slices(clock)
        for name in names:
            self.leader_epoch(name.topic, name.partition)
            await slices.rest()

    def find_open(self, name: TopicPartition) -> Partition | None:
        """Return a partition that is open; None if it is not open."""
        return self._open.get(name)

    def opened(self) -> Iterator[Partition]:
        """Iterate over the partitions that are open now."""
        return iter(tuple(self._open.values()))

    def forget(self, topics: Collection[str]) -> None:
        """Close the partitions of deleted topics. This notifies their watchers."""
        for name in [name for name in self._open if name.topic in topics]:
            self._used.pop((name.topic, name.partition), None)
            self._open.pop(name).close()
        for name in [name for name in self._next_epochs if name.topic in topics]:
            del self._next_epochs[name]


def epoch_problem(log: Log, epoch: int) -> int:
    """Return the error code for a client's leader epoch, 0 if the epoch is valid.

    Epoch -1 means that the client does not know the epoch. It is always valid.
    """
    if epoch in (NO_LEADER_EPOCH, log.leader_epoch):
        return 0
    return (
        ErrorCode.FENCED_LEADER_EPOCH
        if epoch < log.leader_epoch
        else ErrorCode.UNKNOWN_LEADER_EPOCH
    )


def epochs_of(log: Log) -> LeaderEpochs:
    """Return all epochs of a log, including the current epoch.

    A log stores an epoch only with the epoch's first record, so the current epoch is possibly not
    stored yet. In Kafka, an epoch is stored when it begins.
    """
    noted = log.leader_epochs
    if noted.latest_epoch >= log.leader_epoch:
        return noted
    epochs = LeaderEpochs(noted.entries)
    epochs.assign(log.leader_epoch, log.log_end_offset)
    return epochs


def end_of_epoch(log: Log, epoch: int) -> tuple[int, int]:
    """Return the largest known epoch <= `epoch`, and its end offset.

    For an unknown epoch, see `LeaderEpochs.end_offset_for`.
    """
    return epochs_of(log).end_offset_for(epoch, log.log_end_offset)


class Cleanings:
    """Partitions that are being cleaned. Used only in the event loop's thread."""

    def __init__(self) -> None:
        self._names: set[TopicPartition] = set()
        self._waiting: dict[TopicPartition, Callable[[], None]] = {}

    def __contains__(self, name: object) -> bool:
        """Whether a partition is being cleaned, by this broker or by a client on its behalf."""
        return name in self._names

    def add(self, name: TopicPartition) -> None:
        """Remember that a cleaning begins."""
        self._names.add(name)

    def discard(self, name: TopicPartition) -> None:
        """Remember that a cleaning has ended or failed; run the action that waits for this."""
        self._names.discard(name)
        action = self._waiting.pop(name, None)
        if action is not None:
            action()

    def when_ended(self, name: TopicPartition, action: Callable[[], None]) -> None:
        """Run an action when the partition's cleaning ends.

        The action replaces an earlier action for the same cleaning.
        """
        assert name in self._names
        self._waiting[name] = action
