"""Consumers of committed records, and consumers of all records."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tests.histories.broker_lives import Died, Lives
from tests.histories.history import Partition, Poll
from tests.histories.processes import FETCH_BYTES, RETRIED, Client

from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tidelog.record.batch_walk import Batch, walk

if TYPE_CHECKING:
    from tidelog.types import Buffer


@dataclass
class Reader(Client):
    """A consumer of one partition at a time.

    Attributes:
        is_committed: Whether it reads committed records only.
        runs: Number of its runs.
    """

    is_committed: bool = True
    runs: int = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Read until `is_over()` holds; sometimes start again at offset 0 of a random partition."""
        partition, at = self._begin()
        while not is_over():
            with suppress(Died):
                at = await self.poll(partition, at)
            if self.random.random() < 0.03:
                partition, at = self._begin()
            for _ in range(self.random.randrange(1, 12)):
                await asyncio.sleep(0)

    def _begin(self) -> tuple[Partition, int]:
        self.runs += 1
        return self.random.choice(self.names.partitions), 0

    async def poll(self, partition: Partition, at: int) -> int:
        """Read once; return the next offset."""
        data = await fetch(self.lives, partition, at, is_committed=self.is_committed)
        if data.error_code:
            assert data.error_code in RETRIED, data
            return at
        records, end = (committed_in if self.is_committed else all_in)(data, at)
        time = self.history.now()
        poll = Poll(self.name, self.runs, time, partition, at, records, end, self.is_committed)
        self.history.polls.append(poll)
        return end


async def fetch(
    lives: Lives, partition: Partition, at: int, *, is_committed: bool = True
) -> PartitionData:
    """Fetch from one partition; return this partition's part of the response."""
    answer = await lives.ask(FETCH, 12, fetch_request(partition, at, is_committed=is_committed))
    return answer.responses[0].partitions[0]


def fetch_request(partition: Partition, at: int, *, is_committed: bool = True) -> FetchRequest:
    """Return a Fetch request for committed records, or for all; the broker responds at once."""
    wanted = FetchPartition(
        partition=partition[1], fetch_offset=at, partition_max_bytes=FETCH_BYTES
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=FETCH_BYTES,
        isolation_level=int(is_committed),
        topics=[FetchTopic(topic=partition[0], partitions=[wanted])],
        rack_id="",
    )


def committed_in(data: PartitionData, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return (offset, value) of each record from `at` on that is not aborted, and the next offset.

    Aborted records are found as by Kafka's consumers: from the list of aborted transactions and
    their markers.
    """
    aborted = sorted(data.aborted_transactions or (), key=lambda each: each.first_offset)
    skipped: set[int] = set()
    found: list[tuple[int, int]] = []
    for batch in _batches(data):
        while aborted and aborted[0].first_offset <= batch.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        if batch.is_control:
            skipped.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in skipped):
            found += _rows(batch, at)
        at = max(at, batch.next_offset)
    return found, at


def all_in(data: PartitionData, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return offsets and values of all records from `at` on, and the next offset."""
    found: list[tuple[int, int]] = []
    for batch in _batches(data):
        if not batch.is_control:
            found += _rows(batch, at)
        at = max(at, batch.next_offset)
    return found, at


def _batches(data: PartitionData) -> Iterator[Batch]:
    # Small responses are buffers, without parts in a file.
    told = cast("list[Buffer] | Buffer | None", data.records)
    parts = told if isinstance(told, list) else [told or b""]
    return walk(b"".join(bytes(part) for part in parts))


def _rows(batch: Batch, at: int) -> list[tuple[int, int]]:
    rows = ((record.offset, int(record.value or b"")) for record in batch.records())
    return [row for row in rows if row[0] >= at]
