"""The partitions of a fetch, read in order under one limit; and the wait for more of them.

Source: Kafka 4.x ReplicaManager.readFromLog, DelayedFetch; KIP-74.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import TidelogError
from tidelog.server.byte_ranges import Limits, find_range
from tidelog.server.partition_reads import WHOLE_FIRST_SINCE, Found, PartitionRead, ReadOrder
from tidelog.server.partitions import Partition
from tidelog.server.segment_bytes import ColdRead, SegmentBytes
from tidelog.server.timers import Timers
from tidelog.server.work import Work

if TYPE_CHECKING:
    from tidelog.server.watched import Watcher


class Reading:
    """One pass over the partitions. go -> (go_cold -> go)*, until `go` says that all is read."""

    def __init__(self, order: ReadOrder, reads: Sequence[PartitionRead]) -> None:
        self._order = order
        self._reads = reads
        self._at = 0
        self._left = order.max_bytes
        self._whole_first = order.version >= WHOLE_FIRST_SINCE
        self._cold: Limits | None = None

    def go(self, end: int | None = None) -> bool:
        """Read what is in memory; False where the next partition has to be waited for.

        Args:
            end: Stop before the partition of this number; None to read all.
        """
        stop = len(self._reads) if end is None else min(end, len(self._reads))
        while self._at < stop:
            read = self._reads[self._at]
            limits = read.prepare(self._order, self._left, whole_first=self._whole_first)
            try:
                self._take(read, None if limits is None else self._find(read, limits, False))
            except ColdRead:
                self._cold = limits
                return False
        return True

    async def go_cold(self, work: Work) -> None:
        """Read the next partition in a thread."""
        read, limits = self._reads[self._at], self._cold
        assert limits is not None
        self._take(read, await work.run(self._find, read, limits, True))

    def _find(
        self, read: PartitionRead, limits: Limits, may_block: bool
    ) -> Found | Exception | None:
        try:
            return read.find(self._order, limits, may_block=may_block)
        except (OSError, TidelogError) as error:
            return error

    def _take(self, read: PartitionRead, found: Found | Exception | None) -> None:
        if isinstance(found, Exception):
            read.fail(found, self._order)
        else:
            read.take(found, self._order)
        self._at += 1
        if read.size_bytes:
            self._whole_first = False
        self._left = max(self._left - read.size_bytes, 0)


async def finish(reading: Reading, work: Work, end: int | None = None) -> None:
    """Read all, or up to the partition of number `end`, in threads where it has to be."""
    while not reading.go(end):
        await reading.go_cold(work)


class Wait:
    """A wait until the partitions have enough for a fetch, or its time is over.

    A change of one partition costs a look at that one. Where the wait ends, nothing of it is left.
    """

    def __init__(self, order: ReadOrder, reads: Sequence[PartitionRead]) -> None:
        self._order = order
        self._reads = [(read, read.partition) for read in reads if read.partition is not None]
        self._available = [read.size_bytes for read, _ in self._reads]
        self._total = sum(self._available)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, timers: Timers, limit_ms: int) -> None:
        """Wait, at most so long."""
        watchers: list[tuple[Partition, Watcher]] = []
        for number, (read, partition) in enumerate(self._reads):
            watcher: Callable[[], None] = partial(self._look, number)
            partition.watch(watcher)
            watchers.append((partition, watcher))
            if partition.is_gone or self._order.end_offset(partition) != read.seen_end:
                watcher()  # somebody has appended since it was read: nobody else would tell
        timer = timers.after(limit_ms, self._finish)
        try:
            await self._done
        finally:
            timer.cancel()
            for partition, watcher in watchers:
                partition.unwatch(watcher)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _look(self, number: int) -> None:
        """A partition has changed."""
        available = self._available_bytes(*self._reads[number])
        self._total += available - self._available[number]
        self._available[number] = available
        if self._total >= self._order.min_bytes:
            self._finish()

    def _available_bytes(self, read: PartitionRead, partition: Partition) -> int:
        """How many bytes a read would give now; enough, where it would give an error."""
        enough = max(self._order.min_bytes, 1)
        asked = read.cached.asked
        if partition.is_gone:
            return enough
        end = self._order.end_offset(partition)
        if end <= asked.fetch_offset:
            # Between what is seen and the log's end it waits for what is seen to come so far.
            return 0 if asked.fetch_offset <= partition.log.log_end_offset else enough
        if enough == 1:
            return 1
        limits = Limits(end_offset=end, max_bytes=asked.partition_max_bytes, whole_first=False)
        try:
            return available_bytes(partition, asked.fetch_offset, limits)
        except (ColdRead, OSError, TidelogError):
            return enough


def available_bytes(partition: Partition, offset: int, limits: Limits) -> int:
    """Bytes from an offset on that a reader may see, as many as the limits allow.

    Raises:
        ColdRead, OSError, TidelogError: As `find_range`.
    """
    source = SegmentBytes(partition.log.context.pool, may_block=False)
    found = find_range(partition.log.segments, offset, limits, source)
    return 0 if found is None else found.size_bytes
