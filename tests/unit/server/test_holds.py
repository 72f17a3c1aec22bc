"""Locks on topics: which operations wait, and until when."""

import asyncio

from tests.unit.server.loops import turns

from tidelog.server.partitions.partitions import Holds


def test_appends_wait_and_continue() -> None:
    async def life() -> list[str]:
        holds, told = Holds(), list[str]()

        async def append(topic: str) -> None:
            await holds.wait([topic])
            told.append(topic)

        async with holds.hold(["a"], stops_appends=True):
            assert holds
            assert holds.stops_appends(["b", "a"])
            tasks = [asyncio.ensure_future(append(topic)) for topic in ("a", "b")]
            await turns(3)
            assert told == ["b"]
        await asyncio.gather(*tasks)
        assert not holds
        return told

    assert asyncio.run(life()) == ["b", "a"]


def test_a_light_hold_stops_only_other_holds() -> None:
    async def life() -> None:
        holds, told = Holds(), list[str]()

        async def attach() -> None:
            async with holds.hold(["a", "b"], stops_appends=True):
                told.append("attached")

        async with holds.hold(["a"], stops_appends=False):
            task = asyncio.ensure_future(attach())
            await turns(3)
            assert told == []
            assert holds.is_locked("a")
            assert not holds.stops_appends(["a"])
            await holds.wait(["a"])
        await task
        assert told == ["attached"]

    asyncio.run(life())


def test_a_hold_ends_if_its_block_fails() -> None:
    async def life() -> None:
        holds = Holds()
        try:
            async with holds.hold(["a"], stops_appends=True):
                raise RuntimeError
        except RuntimeError:
            pass
        await holds.wait(["a"])
        assert not holds

    asyncio.run(life())
