"""The broker's partitions: a log, how far its readers may see, and who waits for more."""

from collections.abc import Callable, Iterator
from typing import Final

from tidelog.errors import StorageFailure, TidelogError
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.log import AppendResult, Log
from tidelog.storage.log_dir import LogDir
from tidelog.types import Buffer, IsolationLevel, TopicPartition

Watcher = Callable[[], None]
# Kafka's consumers ask with -1 where they know no epoch.
NO_EPOCH: Final = -1


class Partition:
    """One partition behind the broker. Belongs to the loop's thread.

    Attributes:
        name: Topic and number.
        log: The open log.
        high_watermark: Offset behind the last record that consumers may see.
        is_gone: The topic was deleted; watchers were told.
    """

    def __init__(self, log: Log) -> None:
        self.name: TopicPartition = log.topic_partition
        self.log = log
        self.high_watermark = log.log_end_offset
        self.is_gone = False
        self._watchers: dict[Watcher, None] = {}

    @property
    def failure(self) -> StorageFailure | None:
        """Why it is offline, None while it works."""
        return self.log.failure

    @property
    def last_stable_offset(self) -> int:
        """Offset below which no transaction is open, at most the high watermark."""
        return min(self.log.last_stable_offset, self.high_watermark)

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Offset behind the last record that a reader of that isolation sees."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def append(
        self,
        data: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        owned: bool = False,
    ) -> AppendResult:
        """Append batches and show them; arguments and errors as `Log.append_batches`."""
        result = self.log.append_batches(data, origin=origin, owned=owned)
        self.advance()
        return result

    def advance(self) -> None:
        """Let readers see up to the log end, and tell who waits."""
        end = self.log.log_end_offset
        if end != self.high_watermark:
            self.high_watermark = end
            self.notify()

    # -- watchers ----------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` at every change of what readers may see, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Call it no more; fine where it was not watching."""
        self._watchers.pop(watcher, None)

    def notify(self) -> None:
        """Tell all watchers, which may go by that."""
        for watcher in tuple(self._watchers):
            watcher()


class Partitions:
    """All partitions that were opened. Belongs to the loop's thread."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._open: dict[TopicPartition, Partition] = {}

    def get(self, topic: str, partition: int) -> Partition:
        """One partition, opened at its first use.

        Raises:
            UnknownTopic: No such topic or partition.
            StorageFailure: It could not be opened.
        """
        name = TopicPartition(topic, partition)
        found = self._open.get(name)
        if found is None:
            found = Partition(self._log_dir.log(topic, partition))
            self._open[name] = found
        return found

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch that a partition is led under, -1 where it can't be opened.

        A partition is opened for it: its epoch grows at each start, when it is opened.
        """
        try:
            return self.get(topic, partition).log.leader_epoch
        except TidelogError:
            return NO_EPOCH

    def opened(self) -> Iterator[Partition]:
        """Those that are open now."""
        return iter(tuple(self._open.values()))

    def forget(self, topic: str) -> None:
        """A topic was deleted: let go of its partitions, and tell who waits for them."""
        for name in [name for name in self._open if name.topic == topic]:
            gone = self._open.pop(name)
            gone.is_gone = True
            gone.notify()
