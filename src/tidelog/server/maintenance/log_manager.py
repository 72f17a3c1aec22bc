"""Periodic tasks of the broker: retention, checkpoints, flushes, expiry of producers.

A task visits the partitions in slices of a few milliseconds, which bounds the delay of clients.
The logs themselves pass blocking work to threads. As in Kafka, a segment that is older than
`segment.ms` is rolled by the next append, not by a timer.

Source: Kafka's LogManager (log.retention.check.interval.ms and related settings).
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from tidelog.errors import TidelogError
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.loop import SLICE_MS
from tidelog.storage.log.log import Log
from tidelog.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future


PAUSE_MS: Final = 10

# Interval in ms at which logs are checked for `flush.ms`, because appends alone would not flush a
# log after its last append.
FLUSH_CHECK_MS: Final = 1000

RETRY_MS: Final = 1000
NEVER_MS: Final = INT64_MAX


class LogManager:
    """Periodic tasks, from `start` to `stop`. Used only in the event loop's thread.

    `stop` does not cancel the timers. They end together with the broker.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._saving: Future[None] | None = None
        self._openings = set[asyncio.Task[None]]()
        self._is_stopped = False
        # Partitions that have a timer for unlinking files of deleted segments.
        self._unlinking = set[Partition]()

    def start(self) -> None:
        """Start. As in Kafka, retention first runs after `log.initial.task.delay.ms`."""
        config = self._node.config
        first_ms = config.log_initial_task_delay_ms
        self._repeat(first_ms, config.log_retention_check_interval_ms, self._names, self._retain)
        self._repeat(FLUSH_CHECK_MS, FLUSH_CHECK_MS, self._open, self._flush)
        producers_ms = config.producer_id_expiration_check_interval_ms
        self._repeat(producers_ms, producers_ms, self._open, self._forget_producers)
        checkpoints_ms = config.log_flush_offset_checkpoint_interval_ms
        self._node.timers.after(max(first_ms, checkpoints_ms), self._checkpoint)
        self._saving = self._node.work.submit(lambda: _logged(self._node.log_dir.keep_reserve))

    def _repeat(
        self,
        first_ms: int,
        interval_ms: int,
        names: Callable[[], Iterator[TopicPartition]],
        action: Callable[[Partition], None],
    ) -> None:
        """Run an action for each partition, periodically."""
        if interval_ms >= NEVER_MS:
            return

        def begin() -> None:
            self._slice(names(), action, lambda: self._node.timers.after(interval_ms, begin))

        self._node.timers.after(first_ms, begin)

    def _slice(
        self,
        names: Iterator[TopicPartition],
        action: Callable[[Partition], None],
        done: Callable[[], object],
    ) -> None:
        """Run the action for partitions until `SLICE_MS` is over, and continue after a pause."""
        clock = self._node.env.clock
        end_ms = clock.monotonic_ms() + SLICE_MS
        for name in names:
            if self._node.partitions.must_open(name):
                self._open_first(
                    name, lambda remaining: self._slice(remaining, action, done), names
                )
                return
            self._act(name, action)
            if clock.monotonic_ms() >= end_ms:
                self._node.timers.after(PAUSE_MS, lambda: self._slice(names, action, done))
                return
        done()

    def _open_first(
        self,
        name: TopicPartition,
        then: Callable[[Iterator[TopicPartition]], None],
        remaining: Iterator[TopicPartition],
    ) -> None:
        """Open an unused partition and continue with it, or with the next one if opening fails.

        Does nothing after `stop`.
        """
        if self._is_stopped:
            return
        opening = asyncio.ensure_future(self._node.partitions.open_beside([name]))
        self._openings.add(opening)  # keeps a reference to the task

        def opened(ended: asyncio.Task[None]) -> None:
            self._openings.discard(ended)
            if ended.cancelled():
                return
            error = ended.exception()
            if error is not None:
                LOGGER.error("%s could not be opened: %s", name, error, exc_info=error)
            then(remaining if error is not None else chain([name], remaining))

        opening.add_done_callback(opened)

    async def stop(self) -> None:
        """Stop opening partitions for periodic tasks, because the broker stops.

        Returns when all attempts to open a partition have ended.
        """
        self._is_stopped = True
        for opening in self._openings:
            opening.cancel()
        await asyncio.gather(*self._openings, return_exceptions=True)

    def _act(self, name: TopicPartition, action: Callable[[Partition], None]) -> None:
        """Run the action for one partition. A failure doesn't affect other partitions.

        The topic may have been deleted meanwhile.
        """
        info = self._node.topics.find(name.topic)
        if info is None or name.partition >= info.partitions:
            return
        if self._node.partitions.holds.is_locked(name.topic):
            return  # the next run of the task visits the partition
        try:
            partition = self._node.partitions.get(name.topic, name.partition)
            if partition.failure is None:
                action(partition)
        except TidelogError as error:
            LOGGER.warning("%s: %s", name, error)
        except Exception:  # noqa: BLE001 - other partitions are visited
            LOGGER.exception("%s: a periodic task failed", name)

    def _names(self) -> Iterator[TopicPartition]:
        """Iterate over all partitions, also unopened ones, because their records expire, too."""
        for topic in tuple(self._node.topics.names()):
            if self._node.topics.find(topic) is not None:
                yield from self._node.log_dir.partitions(topic)

    def _open(self) -> Iterator[TopicPartition]:
        return (partition.name for partition in self._node.partitions.opened())

    # -- actions -----------------------------------------------------------------------------

    def _retain(self, partition: Partition) -> None:
        name, cleanings = partition.name, self._node.cleanings
        if name in cleanings:
            cleanings.when_ended(name, lambda: self._act(name, self._retain))
            return
        log = partition.log
        if not log.apply_retention():
            return
        partition.last_deletion_ms = self._node.env.clock.now_ms()
        if partition not in self._unlinking:
            self._unlinking.add(partition)
            # The delay until the files are unlinked begins now. It is measured by wall time, but
            # timers use monotonic time, so `_unlink` checks whether the files are due.
            self._unlink_in(log.context.config.file_delete_delay_ms + 1, partition)

    def _unlink_in(self, delay_ms: int, partition: Partition) -> None:
        self._node.timers.after(delay_ms, lambda: self._unlink(partition))

    def _unlink(self, partition: Partition) -> None:
        if not partition.is_deleted and partition.failure is None:
            self._act(partition.name, lambda opened: opened.log.deleter.unlink_due())
            delay_ms = self._next_unlink_ms(partition.log)
            if delay_ms is not None:
                self._unlink_in(delay_ms, partition)
                return
        self._unlinking.discard(partition)

    def _next_unlink_ms(self, log: Log) -> int | None:
        """Return the time in ms until files may be due for unlinking, None for never.

        If some deleted files have not been renamed yet, the result is `RETRY_MS`. Otherwise the
        result is the time until the next file is due, at most `file.delete.delay.ms` (in case the
        wall clock was set back), but always at least `RETRY_MS`.
        """
        due_ms = log.deleter.next_unlink_ms
        if due_ms is None:
            return None if log.guard.is_settled else RETRY_MS
        remaining_ms = due_ms - self._node.env.clock.now_ms() + 1
        return max(min(remaining_ms, log.context.config.file_delete_delay_ms), RETRY_MS)

    def _flush(self, partition: Partition) -> None:
        log = partition.log
        flush_ms = log.context.config.flush_ms
        age_ms = self._node.env.clock.now_ms() - log.last_flush_ms
        if flush_ms < NEVER_MS and age_ms >= flush_ms and log.recovery_point < log.log_end_offset:
            partition.flush_later()

    def _forget_producers(self, partition: Partition) -> None:
        expiration_ms = self._node.config.producer_id_expiration_ms
        now_ms = self._node.env.clock.now_ms()
        partition.log.producer_states().expire(now_ms, expiration_ms)
        partition.transactions.expire(now_ms, expiration_ms)

    def _checkpoint(self) -> None:
        """Write recovery points and log starts in a thread, to shorten recovery after a crash."""
        # At most one write runs at a time, because a disk may be slow.
        if self._saving is None or self._saving.done():
            save = self._node.log_dir.note_checkpoints()
            keep = self._node.log_dir.keep_reserve
            self._saving = self._node.work.submit(lambda: _logged(save, keep))
        interval_ms = max(self._node.config.log_flush_offset_checkpoint_interval_ms, PAUSE_MS)
        self._node.timers.after(interval_ms, self._checkpoint)


def _logged(*saves: Callable[[], None]) -> None:
    for save in saves:
        try:
            save()
        except TidelogError as error:
            LOGGER.warning("%s", error)
