"""`Reply` and `start`: results that come later."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog.env import ManualClock
from tidelog.errors import Closed
from tidelog.server.api.charges import Stopwatch, Timed
from tidelog.server.runtime.reply import Reply, start


async def _plain(work: Awaitable[str]) -> str:
    return await work


async def _timed(work: Awaitable[str]) -> str:
    return await Timed(work, Stopwatch(ManualClock(0), 0))


@pytest.mark.parametrize("run", [_plain, _timed])
@pytest.mark.parametrize("at", [1, 2])
def test_work_handles_the_failure_of_what_it_waits_for(
    run: Callable[[Awaitable[str]], Awaitable[str]], at: int
) -> None:
    async def story() -> str:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2)]

        async def work() -> str:
            for future in futures:
                try:
                    await future
                except ValueError as error:
                    return f"handled: {error}"
            return "none failed"

        async def outer() -> str:
            return await run(work())

        reply = start(outer())
        assert isinstance(reply, Reply)
        for number, future in enumerate(futures, 1):
            await asyncio.sleep(0)
            if number == at:
                future.set_exception(ValueError(f"future {number}"))
            else:
                future.set_result(None)
        return await reply

    assert asyncio.run(story()) == f"handled: future {at}"


def test_work_that_waits_for_nothing_needs_no_reply() -> None:
    async def work() -> int:
        return 1

    assert start(work()) == 1  # without a loop


def test_a_failure_belongs_to_who_awaits_the_reply() -> None:
    async def story() -> None:
        async def work() -> int:
            await asyncio.sleep(0)
            raise ValueError("no value")

        reply = start(work())
        assert isinstance(reply, Reply)
        mapped = reply.map(lambda number: number + 1)
        assert isinstance(mapped, Reply)
        with pytest.raises(ValueError, match="no value"):
            await mapped

    asyncio.run(story())


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_cancelled_work_ends_whenever_that_is(turns: int) -> None:
    async def story() -> None:
        ended, waits_for = list[str](), asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await waits_for
            finally:
                ended.append("ended")

        reply = start(work())
        assert isinstance(reply, Reply)
        for _ in range(turns):
            await asyncio.sleep(0)
        reply.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert ended == ["ended"]
        assert waits_for.cancelled()
        with pytest.raises(Closed):
            await reply

    asyncio.run(story())
