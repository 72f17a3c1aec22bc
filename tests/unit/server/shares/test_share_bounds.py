"""Limits on what one share fetch reads and acquires, and deletions during the fetch."""

from pathlib import Path

from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import TOPIC, acquired, said, world
from tests.worlds.waiting import turn_until

from tidelog.server.shares.record_runs import (
    AckType,
    AcquiredRange,
    Limits,
    RecordState,
    StateBatch,
)
from tidelog.server.shares.share_partition import SharePartition
from tidelog.server.shares.share_reads import Part, ShareRead, read
from tidelog.types import IsolationLevel


@on_a_loop
async def test_a_huge_batch_is_acquired_in_parts_and_acknowledged_by_record(path: Path) -> None:
    async with world(path) as it:
        it.produce(25_000)
        one = it.member()
        types = [AckType.ACCEPT, AckType.REJECT] * 5000
        assert acquired(await one.fetch(0, records=1)) == [(0, 9_999, 1)]
        assert await one.say(said(0, 9_999, *types)) == 0
        assert acquired(await one.fetch(records=1)) == [(10_000, 19_999, 1)]
        assert await one.say(said(10_000, 19_999, *types)) == 0
        assert acquired(await one.fetch(records=1)) == [(20_000, 24_999, 1)]


@on_a_loop
async def test_only_headers_of_acquired_batches_are_read(path: Path) -> None:
    async with world(path) as it:
        it.produce(*[1] * 300)
        partition = it.node.partitions.get(TOPIC, 0)

        def offered(known: SharePartition, records_max: int) -> ShareRead:
            end = known.acquirable_end(records_max)
            part = Part(known.fetch_offset, end, known.end, max_bytes=1 << 20)
            found = read(partition, part, IsolationLevel.READ_COMMITTED, may_block=True)
            assert found is not None
            return found

        limits = Limits(locks_max=200)
        known = SharePartition(0, (), limits)
        found = offered(known, 5)
        assert found.offered.batches == [(at, at) for at in range(5)]
        assert found.size_bytes == partition.log.segments[0].size_bytes
        assert len(offered(known, 1000).offered.batches) == limits.locks_max
        # Offsets 3 to 9 are acknowledged. The three records before them and all records after them
        # are available.
        known = SharePartition(0, [StateBatch(3, 9, RecordState.ACKNOWLEDGED, 1)], limits)
        assert known.acquirable_end(3) == 3
        assert offered(known, 5).offered.batches == [(at, at) for at in range(12)]


@on_a_loop
async def test_the_end_of_a_fetch_is_kept_for_the_next_one(path: Path) -> None:
    """A fetch stores the position of its end, so that the next fetch needs no index lookup."""
    async with world(path) as it:
        it.produce(*[1] * 30)
        partition = it.node.partitions.get(TOPIC, 0)
        one = it.member()
        for first in (0, 5):
            assert acquired(await one.fetch(0, records=5)) == [(first, first + 4, 1)]
            assert partition.read_ends.position_of(partition.log.segments[0], first + 5) is not None
        await one.fetch()
        assert partition.read_ends.position_of(partition.log.segments[0], 30) is not None


@on_a_loop
async def test_bytes_of_a_read_stay_available_after_retention_deletes_the_segment(
    path: Path,
) -> None:
    """A fetch reads all partitions, some in threads, before it uses the bytes of any partition."""
    async with world(path) as it:
        it.produce(1, 1, 1)
        partition = it.node.partitions.get(TOPIC, 0)
        log = partition.log
        log.roll()
        it.produce(1)
        segment, everything = log.segments[0], [AcquiredRange(0, 2, 1)]
        part = Part(0, 3, 0, max_bytes=1 << 20)
        found = read(partition, part, IsolationLevel.READ_UNCOMMITTED, may_block=False)
        assert found is not None
        data = found.records(everything, may_block=False)
        log.delete_records(3)
        log.apply_retention()
        await turn_until(lambda: not log.context.env.files.exists(segment.log_path))
        assert found.records(everything, may_block=False) == data
        assert found.records(everything, may_block=True) == data
