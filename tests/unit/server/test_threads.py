"""The number of concurrent calls in threads is bounded; further calls wait."""

import asyncio
import threading

import pytest
from tests.worlds.waiting import PATIENCE_S

from tidelog.server.runtime.threads import Work


def test_calls_beyond_the_bound_wait_outside() -> None:
    work, gate, begun = Work(8, calls=2), threading.Event(), list[int]()
    both = threading.Barrier(3)

    def call(number: int) -> int:
        begun.append(number)
        if not gate.is_set():
            both.wait(PATIENCE_S)
        assert gate.wait(PATIENCE_S)
        return number

    async def story() -> list[int]:
        calls = [asyncio.ensure_future(work.run(call, number)) for number in range(5)]
        assert await asyncio.to_thread(both.wait, PATIENCE_S) >= 0
        calls[2].cancel()
        await asyncio.sleep(0)
        assert sorted(begun) == [0, 1]
        gate.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(done.pop(2), asyncio.CancelledError)
        return [number for number in done if isinstance(number, int)]

    assert asyncio.run(story()) == [0, 1, 3, 4]
    assert 2 not in begun
    work.close()


def test_an_exception_of_a_call_is_raised() -> None:
    work = Work(1, calls=1)

    async def story() -> None:
        for _ in range(2):  # the failed first call must release its slot
            with pytest.raises(ZeroDivisionError):
                await work.run(divmod, 1, 0)

    asyncio.run(story())
    work.close()
