"""The first fetch of a group opens partitions up to the first partition that has records."""

from pathlib import Path

from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import LOCK_MS, acquired, world


@on_a_loop
async def test_a_group_s_first_records_wait_for_one_partition(path: Path) -> None:
    """The first response has only one partition with records, as librdkafka's tests expect."""
    async with world(path) as it:
        it.produce(10, partition=1)
        it.produce(10, partition=2)
        one = it.member()
        response = await one.fetch(0, 1, 2)
        assert [acquired(response, number) for number in (1, 2)] == [[(0, 9, 1)], []]
        assert len(it.node.shares._live) == 2
        assert acquired(await one.fetch(), 2) == [(0, 9, 1)]
        await it.pass_time(LOCK_MS)
        response = await it.member().fetch(0, 1, 2)
        assert [acquired(response, number) for number in (1, 2)] == [[(0, 9, 2)]] * 2


@on_a_loop
async def test_a_fetch_with_a_minimum_of_bytes_waits_for_all_partitions(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        it.produce(10, partition=1)
        response = await it.member().fetch(0, 1, min_bytes=2)
        assert [acquired(response, number) for number in (0, 1)] == [[(0, 9, 1)]] * 2
