"""Whether the log is still there that something in memory was read from, or written to."""

from collections.abc import Callable

from tidelog.server.partitions import Partition


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
