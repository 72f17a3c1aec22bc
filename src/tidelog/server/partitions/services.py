"""Shared services of a broker: settings, directory, clock, threads, partitions, topics.

This module also assigns producer ids from a block of ids that is reserved on disk. If the block is
used up, a thread reserves the next block.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.config.values import Durability
from tidelog.server.partitions.partitions import Partitions
from tidelog.server.partitions.topics import Topics
from tidelog.server.runtime.counters import Counters
from tidelog.server.runtime.loop import Timers
from tidelog.server.runtime.threads import Work
from tidelog.storage.directory.broker_files import PRODUCER_IDS_FILE, take_block
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.open_files import as_storage_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidelog.env import Env


_NO_ID: Final = -1


class ProducerIds:
    """Assigns producer ids, each id once. Used only in the event loop's thread."""

    def __init__(self, log_dir: LogDir, work: Work) -> None:
        """Create the source of producer ids for the broker of a data directory."""
        self._log_dir = log_dir
        self._work = work
        self._is_new = not log_dir.topics()
        self._ids: Iterator[int] = iter(())
        self._end: int | None = None
        self._is_taking = asyncio.Lock()

    def next(self) -> int | None:
        """Return the next id of the current block; None if the block is used up (see `take`)."""
        producer_id = next(self._ids, _NO_ID)
        return None if producer_id == _NO_ID else producer_id

    async def take(self) -> int:
        """Return the next id, from a new block if the current block is used up.

        Raises:
            UnsupportedVersion: A later release wrote the directory's file of producer ids.
            StorageFailure: The block could not be stored. No id was assigned.
        """
        async with self._is_taking:
            while (producer_id := self.next()) is None:
                block = await self._work.run(self._take_block)
                self._ids, self._end = iter(block), block.stop
        return producer_id

    def _take_block(self) -> range:
        path = self._log_dir.path
        try:
            return take_block(self._log_dir.env, path, is_new=self._is_new, first=self._end)
        except OSError as error:
            file_path = f"{path}/{PRODUCER_IDS_FILE}"
            raise as_storage_failure(error, file_path, "store producer ids") from error


# Number of threads for reads. This number is higher than the number of threads for changes, so that
# some threads are free to read from a disk while a store is slow.
READ_THREADS: Final = 8


class Services:
    """Services shared by all parts of one broker. Used only in the event loop's thread.

    Attributes:
        config: The broker's current settings.
        env: Clock, files, randomness.
        log_dir: The data directory, open for writing.
        timers: Timers on the event loop.
        metrics: Counters for metrics.
        work: Threads for changes: topics, checkpoints, opening partitions.
        reads: Separate threads for reads from a disk or a store, so that other work does not wait
            for slow reads.
        partitions: Open logs.
        topics: Topics by name and id.
        producer_ids: Assigns producer ids.
        closers: Functions that are called, in reverse order, before the directory is closed.
    """

    def __init__(self, log_dir: LogDir, config: BrokerConfig) -> None:
        """Create the services of a data directory that is open for writing."""
        self.config = config
        self.env: Env = log_dir.env
        self.log_dir = log_dir
        self.timers = Timers(self.env.clock)
        self.metrics = Counters()
        self.work = Work()
        self.reads = Work(READ_THREADS)
        syncs_all = config.tidelog_durability is Durability.FSYNC
        self.partitions = Partitions(log_dir, self.work, syncs_all=syncs_all)
        self.topics = Topics(log_dir, self.partitions)
        self.topics.on_deleted.append(lambda info: self.metrics.forget_topic(info.name))
        self.producer_ids = ProducerIds(log_dir, self.work)
        self.closers: list[Callable[[], None]] = []
