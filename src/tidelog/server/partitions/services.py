"""Shared services of a broker: settings, directory, clock, threads, partitions, topics.

Producer ids are handed out here, too: the rest of a block in memory, the next one taken in a
thread.
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


_NONE_LEFT: Final = -1


class ProducerIds:
    """Hands out ids, none of them twice. Belongs to the loop's thread."""

    def __init__(self, log_dir: LogDir, work: Work) -> None:
        """Ids for the producers of a directory's broker."""
        self._log_dir = log_dir
        self._work = work
        self._is_new = not log_dir.topics()
        self._ids: Iterator[int] = iter(())
        self._end: int | None = None
        self._is_taking = asyncio.Lock()

    def next(self) -> int | None:
        """The next id of the block at hand; None where it is used up: `take` knows more."""
        producer_id = next(self._ids, _NONE_LEFT)
        return None if producer_id == _NONE_LEFT else producer_id

    async def take(self) -> int:
        """The next id, from a new block where the one at hand is used up.

        Raises:
            UnsupportedVersion: The directory's note is a later release's.
            StorageFailure: The block could not be noted; no id was handed out.
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
            where = f"{path}/{PRODUCER_IDS_FILE}"
            raise as_storage_failure(error, where, "note producer ids") from error


# More than for changes: a slow store must not hold up what lies on a disk.
READ_THREADS: Final = 8


class Services:
    """What every part of one broker shares. Belongs to the loop's thread.

    Attributes:
        config: The broker's settings as they are now.
        env: Clock, files, randomness.
        log_dir: The directory, open for writing.
        timers: Things to do later.
        metrics: What it counts.
        work: Threads for changes: topics, checkpoints, openings.
        reads: Others for what has to be read from a disk or a store, which nothing else waits for.
        partitions: Open logs.
        topics: Topics by name.
        producer_ids: Ids that no producer has.
        closers: Called in reverse order before the directory is closed.
    """

    def __init__(self, log_dir: LogDir, config: BrokerConfig) -> None:
        """What belongs to a directory that is open for writing."""
        self.config = config
        self.env: Env = log_dir.env
        self.log_dir = log_dir
        self.timers = Timers(self.env.clock)
        self.metrics = Counters()
        self.work = Work()
        self.reads = Work(READ_THREADS)
        syncs_all = config.tidelog_durability is Durability.FSYNC
        self.partitions = Partitions(log_dir, syncs_all=syncs_all)
        self.topics = Topics(log_dir, self.partitions, config)
        self.topics.on_deleted.append(lambda info: self.metrics.forget_topic(info.name))
        self.producer_ids = ProducerIds(log_dir, self.work)
        self.closers: list[Callable[[], None]] = []
