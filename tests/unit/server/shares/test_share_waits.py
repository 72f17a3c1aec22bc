"""New records wake one of several waiting share fetches, and no fetch waits forever."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path

from tests.faults.hooked import HookedDisk
from tests.unit.server.loops import on_a_loop, turns
from tests.unit.server.shares.share_worlds import (
    EARLIEST,
    LOCK_MS,
    TOPIC,
    World,
    acquired,
    begun,
    of,
    said,
    world,
)
from tests.unit.server.shares.test_isolation import end, write
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.share_fetch import ShareFetchResponse
from tidelog.server.shares.record_runs import AckType
from tidelog.server.shares.share_partitions import SessionKey

Waiting = asyncio.Task[ShareFetchResponse]
WAIT_MS = 2 * LOCK_MS


async def waiting(it: World, count: int = 2, *, most: int = 0, least: int = 1) -> list[Waiting]:
    """Start fetches of `count` members that wait for partition 0, in order.

    `most` is the maximum number of records, 0 for no limit; `least` is the minimum size in bytes.
    """

    def asked() -> Awaitable[ShareFetchResponse]:
        records, mode = most or 1000, int(bool(most))
        member = it.member()
        return member.fetch(
            0, wait_ms=WAIT_MS, records=records, min_bytes=least, share_acquire_mode=mode
        )

    return [await begun(asked(), it) for _ in range(count)]


def done(fetches: Sequence[Waiting]) -> list[bool]:
    return [each.done() for each in fetches]


async def lent(*fetches: Waiting, partition: int = 0) -> list[list[tuple[int, int, int]]]:
    """Return the ranges that these fetches acquire, in order."""
    return [acquired(await each, partition) for each in fetches]


class ColdDisk(HookedDisk):
    """Disk that needs a thread for each read; reads of partition 0 can be blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read, self.may_read = threading.Event(), threading.Event()

    def hold(self) -> None:
        """Block reads until `may_read` is set."""
        self.hook = self._wait

    def _wait(self, call: str, path: str) -> None:
        if call == "pread" and f"/{TOPIC}-0/" in path:
            self.is_read.set()
            assert self.may_read.wait(PATIENCE_S)


@on_a_loop
async def test_single_records_are_acquired_by_members_in_order(path: Path) -> None:
    async with world(path) as it:
        fetches = await waiting(it, 3)
        for at, each in enumerate(fetches):
            it.produce(1)
            assert acquired(await each) == [(at, at, 1)]
            await turns()
            assert done(fetches) == [number <= at for number in range(3)]


@on_a_loop
async def test_records_for_a_cancelled_woken_fetch_are_acquired_by_the_next(path: Path) -> None:
    async with world(path) as it:
        one, two = await waiting(it)
        it.produce(1)
        one.cancel()
        assert await lent(two) == [[(0, 0, 1)]]


@on_a_loop
async def test_records_for_a_fetch_cancelled_during_its_read_are_acquired_by_the_next(
    path: Path,
) -> None:
    disk = ColdDisk()
    async with world(path, files=disk) as it:
        one, two = await waiting(it)
        disk.hold()
        it.produce(1)
        await turn_until(disk.is_read.is_set)
        assert done([one, two]) == [False, False]
        one.cancel()
        disk.may_read.set()
        assert await lent(two) == [[(0, 0, 1)]]


@on_a_loop
async def test_records_left_by_one_fetch_are_acquired_by_the_next(path: Path) -> None:
    async with world(path) as it:
        fetches = await waiting(it, 3, most=1)
        it.produce(2)
        assert await lent(*fetches[:2]) == [[(0, 0, 1)], [(1, 1, 1)]]
        await turns()
        assert not fetches[2].done()


@on_a_loop
async def test_records_below_a_fetchs_minimum_are_acquired_by_the_next(path: Path) -> None:
    async with world(path) as it:
        (one,) = await waiting(it, 1, least=10_000)
        (two,) = await waiting(it, 1)
        it.produce(1)
        assert await lent(two) == [[(0, 0, 1)]]
        assert not one.done()


@on_a_loop
async def test_a_fetch_of_no_records_delays_no_waiting_fetch(path: Path) -> None:
    async with world(path) as it:
        (one,) = await waiting(it, 1)
        assert acquired(await it.member().fetch(0, wait_ms=WAIT_MS, max_bytes=0)) == []
        assert acquired(await it.member().fetch(0, wait_ms=WAIT_MS, records=0)) == []
        assert it.waiting_count() == 1
        it.produce(1)
        assert await lent(one) == [[(0, 0, 1)]]


@on_a_loop
async def test_released_and_expired_records_are_acquired_by_a_waiting_fetch(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        holder = it.member()
        await holder.fetch(0)
        fetches = await waiting(it, 3)
        assert await holder.say(said(3, 4, AckType.RELEASE)) == 0
        assert await lent(fetches[0]) == [[(3, 4, 2)]]
        await it.pass_time(LOCK_MS)
        assert done(fetches) == [True, True, False]
        assert await lent(fetches[1]) == [[(0, 2, 2), (3, 4, 3), (5, 9, 2)]]


@on_a_loop
async def test_records_of_an_ended_session_are_acquired_by_a_waiting_fetch(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        holder = it.member()
        await holder.fetch(0)
        fetches = await waiting(it)
        session = it.node.shares.sessions.find(SessionKey(holder.group, holder.name))
        assert session is not None
        it.node.shares.drop_session(session)
        assert await lent(fetches[0]) == [[(0, 9, 2)]]
        assert not fetches[1].done()


@on_a_loop
async def test_a_waiting_fetch_acquires_records_when_an_acknowledgement_frees_locks(
    path: Path,
) -> None:
    async with world(path) as it:
        await it.set_group({"share.partition.max.record.locks": "100"})
        it.produce(100, 100)
        holder = it.member()
        assert acquired(await holder.fetch(0)) == [(0, 99, 1)]
        fetches = await waiting(it)
        assert await holder.say(said(0, 99, AckType.ACCEPT)) == 0
        assert await lent(fetches[0]) == [[(100, 199, 1)]]
        assert not fetches[1].done()


@on_a_loop
async def test_the_end_of_a_transaction_wakes_fetches_of_committed_records(path: Path) -> None:
    async with world(path) as it:
        await it.set_group(EARLIEST | {"share.isolation.level": "read_committed"})
        committed = await waiting(it)
        await it.set_group(EARLIEST | {"share.isolation.level": "read_uncommitted"})
        (uncommitted,) = await waiting(it, 1, most=1)
        write(it, 5, producer=7)
        assert await lent(uncommitted) == [[(0, 0, 1)]]
        await turns()
        assert done(committed) == [False, False]
        end(it, 7, commit=True)
        assert await lent(committed[0]) == [[(1, 5, 1)]]
        assert not committed[1].done()


@on_a_loop
async def test_a_fetch_that_waits_for_two_partitions_leaves_one_to_the_next(path: Path) -> None:
    async with world(path) as it:
        both = await begun(it.member().fetch(0, 1, wait_ms=WAIT_MS, records=1), it)
        other = await begun(it.member().fetch(0, 1, wait_ms=WAIT_MS), it)
        it.produce(1, partition=0)
        it.produce(1, partition=1)
        first, second = await both, await other
        found = [acquired(each, number) for each in (first, second) for number in (0, 1)]
        assert sorted(found) == [[], [], [(0, 0, 1)], [(0, 0, 1)]]


@on_a_loop
async def test_records_that_are_not_in_memory_are_read_in_threads_alone(path: Path) -> None:
    disk, readers = ColdDisk(), set[bool]()

    def note(call: str, file_path: str) -> None:
        if call == "pread" and f"/{TOPIC}-0/" in file_path:
            readers.add(threading.current_thread() is threading.main_thread())

    async with world(path, files=disk) as it:
        it.produce(1)
        disk.hook = note
        assert acquired(await it.member().fetch(0)) == [(0, 0, 1)]
        assert readers == {False}


@on_a_loop
async def test_a_fetch_that_comes_during_the_first_read_is_next(path: Path) -> None:
    """The end of the first read wakes the second fetch; no new record is needed."""
    disk = ColdDisk()
    async with world(path, files=disk) as it:
        it.produce(2)
        disk.hold()
        fetches = [
            asyncio.ensure_future(
                it.member().fetch(0, wait_ms=WAIT_MS, records=1, share_acquire_mode=1)
            )
            for _ in range(2)
        ]
        await turn_until(lambda: disk.is_read.is_set() and it.waiting_count() == 2)
        disk.may_read.set()
        assert sorted(await lent(*fetches)) == [[(0, 0, 1)], [(1, 1, 1)]]


@on_a_loop
async def test_a_slow_read_of_one_partition_delays_no_fetch_of_another(path: Path) -> None:
    disk = ColdDisk()
    async with world(path, files=disk) as it:
        both = await begun(it.member().fetch(0, 1, wait_ms=WAIT_MS), it)
        task = asyncio.ensure_future(it.member().fetch(1, wait_ms=WAIT_MS))
        await turn_until(lambda: it.waiting_count(1) == 2)
        disk.hold()
        it.produce(1)
        await turn_until(disk.is_read.is_set)
        it.produce(1, partition=1)
        assert await lent(task, partition=1) == [[(0, 0, 1)]]
        assert not both.done()
        disk.may_read.set()
        assert acquired(await both, 0) == [(0, 0, 1)]


@on_a_loop
async def test_enough_is_counted_over_all_partitions(path: Path) -> None:
    async with world(path) as it:
        it.produce(1)
        size_bytes = it.node.partitions.get(TOPIC, 0).log.segments[0].size_bytes
        task = asyncio.ensure_future(
            it.member().fetch(0, 1, wait_ms=WAIT_MS, min_bytes=2 * size_bytes)
        )
        await turn_until(lambda: bool(it.waiting_count() and it.waiting_count(1)))
        await turns()
        assert not task.done()
        it.produce(1, partition=1)
        found = await task
        assert [acquired(found, number) for number in (0, 1)] == [[(0, 0, 1)]] * 2


@on_a_loop
async def test_a_deleted_topic_ends_all_waiting_fetches(path: Path) -> None:
    async with world(path) as it:
        fetches = await waiting(it, 3)
        it.node.topics.hide([TOPIC])  # the topic's files are deleted later
        for each in fetches:
            data = of(await each)
            assert data is not None
            assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_a_loop
async def test_fetches_end_if_the_topic_of_states_is_deleted(path: Path) -> None:
    """If `__share_group_state` is deleted, waiting members get empty responses."""
    async with world(path) as it:
        fetches = await waiting(it, 3)
        delete_topic(it.node, "__share_group_state")
        for each in fetches:
            assert (await each).responses == []


@on_a_loop
async def test_a_log_without_waiting_fetches_is_not_watched(path: Path) -> None:
    async with world(path) as it:
        partition = it.node.partitions.get(TOPIC, 0)
        before = len(partition._watchers)
        fetches = await waiting(it, 3)
        assert len(partition._watchers) == before + 1
        for each in fetches:
            each.cancel()
        await turns()
        assert (len(partition._watchers), it.waiting_count()) == (before, 0)
