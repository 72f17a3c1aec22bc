"""Entries of the fair queue get their turns in order, even if other entries fail or leave."""

import asyncio
from collections.abc import Awaitable, Callable

from tidelog.env import ManualClock
from tidelog.server.net.scheduling import QUEUE_NS, FairQueue

LINE_MS = QUEUE_NS // 1_000_000


class Turns:
    """A fair queue, and the names of its entries in the order of their turns."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.line = FairQueue(self.clock.monotonic_ns)
        self.had = ""

    def take(self, name: str, took_ms: int = 0) -> Callable[[], None]:
        def taken() -> None:
            self.had += name
            self.clock.advance(took_ms)

        return taken


def played(story: Callable[[Turns], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(Turns())

    asyncio.run(run())


def test_all_have_their_turns_in_order() -> None:
    async def story(turns: Turns) -> None:
        for name in "abc":
            turns.line.wait(turns.take(name))
        assert turns.had == ""
        await asyncio.sleep(0)
        assert turns.had == "abc"

    played(story)


def test_the_loop_continues_with_other_work_after_some_time() -> None:
    async def story(turns: Turns) -> None:
        for name in "abcde":
            turns.line.wait(turns.take(name, LINE_MS // 2))
        for had in ("ab", "abcd", "abcde", "abcde"):
            await asyncio.sleep(0)
            assert turns.had == had

    played(story)


def test_an_entry_that_waits_again_is_last_and_waits_for_another_iteration() -> None:
    async def story(turns: Turns) -> None:
        def again() -> None:
            turns.had += "a"
            turns.line.wait(again)

        turns.line.wait(again)
        turns.line.wait(turns.take("b"))
        for had in ("ab", "aba", "abaa"):
            await asyncio.sleep(0)
            assert turns.had == had

    played(story)


def test_a_cancelled_entry_gets_no_turn() -> None:
    async def story(turns: Turns) -> None:
        places = {name: turns.line.wait(turns.take(name)) for name in "abc"}
        places["b"].cancel()
        await asyncio.sleep(0)
        assert turns.had == "ac"
        places["a"].cancel()

    played(story)


def test_a_failing_entry_is_reported_and_others_get_their_turns() -> None:
    async def story(turns: Turns) -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["exception"])
        )
        failure = RuntimeError("planted")

        def fail() -> None:
            raise failure

        turns.line.wait(fail)
        turns.line.wait(turns.take("b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert turns.had == "b"
        assert told == [failure]

    played(story)
