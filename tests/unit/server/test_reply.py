"""`Reply` and `start`: results that are available later."""

import asyncio
import gc
from collections.abc import Coroutine, Iterator
from typing import TypeVar
from weakref import ref

import pytest

from tidelog.env import ManualClock
from tidelog.errors import Closed
from tidelog.server.runtime.reply import Reply, Stopwatch, start

T = TypeVar("T")
# Maximum number of iterations of the event loop in a test. No test waits for anything but the loop.
TURNS_MAX = 1_000


def run(story: Coroutine[object, object, T]) -> T:
    """Run a story; fail if it does not end within `TURNS_MAX` iterations of the event loop.

    If a reply is never done, `asyncio.run` would wait without a limit, and would swallow the
    exception by which pytest ends a test after its timeout.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(story)

    def turns() -> Iterator[None]:
        for _ in range(TURNS_MAX):
            loop.call_soon(loop.stop)
            yield loop.run_forever()  # one iteration

    try:
        if any(task.done() for _ in turns()):
            return task.result()
        pytest.fail(f"after {TURNS_MAX} iterations of the loop it still waits: {task.get_stack()}")
    finally:
        for left in asyncio.all_tasks(loop):
            left.cancel()
        any(not asyncio.all_tasks(loop) for _ in turns())
        loop.close()


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize("at", [1, 2])
def test_work_can_handle_the_failure_of_an_awaited_future(at: int, *, is_measured: bool) -> None:
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

        reply = start(work())
        assert isinstance(reply, Reply)
        if is_measured:
            reply.measure(Stopwatch(ManualClock(0), 0))
        for number, future in enumerate(futures, 1):
            await asyncio.sleep(0)
            if number == at:
                future.set_exception(ValueError(f"future {number}"))
            else:
                future.set_result(None)
        return await reply

    assert run(story()) == f"handled: future {at}"


def test_work_that_does_not_wait_needs_no_reply() -> None:
    async def work() -> int:
        return 1

    assert start(work()) == 1  # without a loop


@pytest.mark.parametrize("is_early", [True, False])
def test_a_derived_reply_fails_with_its_source(is_early: bool) -> None:
    source: Reply[int] = Reply()
    if is_early:
        source.fail(Closed("t"))
    derived = source.derive(str)
    if not is_early:
        source.fail(Closed("t"))
    assert derived.is_done
    with pytest.raises(Closed):
        _ = derived.value


def test_a_failure_is_raised_where_the_reply_is_awaited() -> None:
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

    run(story())


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

    run(story())


@pytest.mark.parametrize("is_measured", [False, True])
def test_cancelled_work_releases_its_references(*, is_measured: bool) -> None:
    """If references remained, objects would stay in memory until a late garbage collection."""

    class Held:
        pass

    async def story() -> bool:
        kept: list[ref[Held]] = []

        async def work() -> None:
            held = Held()
            kept.append(ref(held))
            await asyncio.get_running_loop().create_future()

        reply = start(work())
        assert isinstance(reply, Reply)
        if is_measured:
            reply.measure(Stopwatch(ManualClock(0), 0))
        await asyncio.sleep(0)
        reply.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        return reply.is_done and kept[0]() is None

    gc.disable()
    try:
        assert run(story())
    finally:
        gc.enable()


def test_a_mapped_reply_is_done_when_both_works_are_done() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(2)]

        async def work(number: int) -> int:
            return number + await futures[number]

        reply = start(work(0))
        assert isinstance(reply, Reply)
        mapped = reply.map(lambda value: start(work(value)))
        assert isinstance(mapped, Reply)
        futures[0].set_result(1)
        assert await reply == 1
        assert not mapped.is_done
        assert mapped.is_started
        futures[1].set_result(3)
        assert await mapped == 4

    run(story())


def test_cancelling_a_mapped_reply_ends_the_running_work() -> None:
    async def story() -> None:
        waits_for = asyncio.get_running_loop().create_future()

        async def work(future: "asyncio.Future[None]") -> None:
            await future

        first: Reply[None] = Reply()
        mapped = first.map(lambda _: start(work(waits_for)))
        assert isinstance(mapped, Reply)
        first.complete(None)
        mapped.cancel()
        with pytest.raises(Closed):
            await mapped
        assert waits_for.cancelled()

    run(story())


def test_mapping_a_reply_is_measured_and_the_wait_before_is_not() -> None:
    async def story() -> None:
        clock = ManualClock(0)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def wait() -> int:
            return await future

        def make(value: int) -> int:
            clock.advance(value)
            return value

        reply = start(wait())
        assert isinstance(reply, Reply)
        watch = Stopwatch(clock, clock.monotonic_ns())
        watch.pause()
        reply.measure(watch)
        mapped = reply.map(make)
        clock.advance(100)
        future.set_result(3)
        for _ in range(3):
            await asyncio.sleep(0)
        clock.advance(1000)
        assert isinstance(mapped, Reply)
        assert mapped.value == 3
        assert watch.used_ns == 3_000_000

    run(story())


def test_work_started_by_a_mapped_reply_is_measured_and_cancelled_with_it() -> None:
    async def story() -> None:
        loop, clock = asyncio.get_running_loop(), ManualClock(0)
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(3)]

        async def work(*waits_for: "asyncio.Future[None]") -> None:
            for future in waits_for:
                await future
                clock.advance(1)

        reply = start(work(futures[0]))
        assert isinstance(reply, Reply)
        watch = Stopwatch(clock, clock.monotonic_ns())
        watch.pause()
        mapped = reply.map(lambda _: start(work(*futures[1:])))
        assert isinstance(mapped, Reply)
        mapped.measure(watch)
        last = mapped.map(lambda _: "written")
        assert isinstance(last, Reply)
        for future in futures[:2]:
            future.set_result(None)
            for _ in range(3):
                await asyncio.sleep(0)
        assert watch.used_ns == 2_000_000
        last.cancel()
        with pytest.raises(Closed):
            await last
        assert futures[2].cancelled()

    run(story())


def test_work_that_is_cancelled_in_its_first_step_is_abandoned() -> None:
    async def story() -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()

        async def work() -> None:
            await gone

        with pytest.raises(Closed):
            start(work())

    run(story())
