"""The loop's time for a request: what it worked, not what it waited."""

import asyncio

import pytest

from tidelog.env import ManualClock
from tidelog.errors import Closed
from tidelog.server.api.charges import Stopwatch
from tidelog.server.runtime.reply import Reply, start

MS = 1_000_000


def test_work_counts_and_waits_do_not() -> None:
    clock = ManualClock(0)
    watch = Stopwatch(clock, clock.monotonic_ns())

    async def said(waited: "asyncio.Future[int]") -> int:
        clock.advance(3)
        found = await waited
        clock.advance(4)
        return found

    async def run() -> int:
        waited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        clock.advance(2)
        reply = start(said(waited))
        watch.pause()
        assert isinstance(reply, Reply)
        reply.measure(watch)
        await asyncio.sleep(0)
        clock.advance(1000)
        waited.set_result(7)
        return await reply

    assert asyncio.run(run()) == 7
    assert watch.used_ns == 9 * MS


def test_what_the_handler_raises_comes_through() -> None:
    clock = ManualClock(0)
    watch = Stopwatch(clock, clock.monotonic_ns())

    async def said() -> None:
        await asyncio.sleep(0)
        clock.advance(5)
        raise ValueError

    async def run() -> None:
        reply = start(said())
        assert isinstance(reply, Reply)
        reply.measure(watch)
        await reply

    watch.pause()
    with pytest.raises(ValueError, match=r"^$"):
        asyncio.run(run())
    assert watch.used_ns == 5 * MS


def test_a_handler_hears_that_nobody_waits() -> None:
    clock = ManualClock(0)
    heard = []

    async def said() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            heard.append("gone")
            raise

    async def run() -> None:
        reply = start(said())
        assert isinstance(reply, Reply)
        reply.measure(Stopwatch(clock, 0))
        await asyncio.sleep(0)
        reply.cancel()
        with pytest.raises(Closed):
            await reply

    asyncio.run(run())
    assert heard == ["gone"]
