"""A request is charged for the loop time that its handling uses, but not for its waiting time."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.brokers.socketless import World, watched

from tidelog.env import Env, ManualClock
from tidelog.errors import Closed
from tidelog.protocol.messages import METADATA
from tidelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from tidelog.protocol.requests import ClientConnection, LongRequest, read_request
from tidelog.server.api.charges import charges_of
from tidelog.server.api.context import RequestContext
from tidelog.server.api.long_requests import answer_long
from tidelog.server.api.node import ClientInfo
from tidelog.server.api.table import items_at_once, served_versions
from tidelog.server.runtime.reply import Reply, Stopwatch, start

if TYPE_CHECKING:
    from tidelog.storage.directory.broker_files import Quotas

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


def test_work_that_maps_a_late_response_counts() -> None:
    clock = ManualClock(0)
    watch = Stopwatch(clock, clock.monotonic_ns())

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    def add(value: int) -> int:
        clock.advance(4)
        return value + 1

    async def run() -> int:
        reply = start(work())
        assert isinstance(reply, Reply)
        mapped = reply.map(add)
        assert isinstance(mapped, Reply)
        watch.pause()
        mapped.measure(watch)
        return await mapped

    assert asyncio.run(run()) == 8
    assert watch.used_ns == 4 * MS


def test_an_exception_of_the_handler_is_raised() -> None:
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


def test_a_handler_is_cancelled_with_its_request() -> None:
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


def test_work_of_parts_after_a_wait_counts(tmp_path: Path) -> None:
    clock, worked_ms = ManualClock(0), 0

    async def answered() -> MetadataResponse:
        nonlocal worked_ms
        clock.advance(1)  # this work is done in the task of the whole request
        await asyncio.sleep(0)
        clock.advance(2)
        worked_ms += 2
        return MetadataResponse(topics=[MetadataTopic(name="t")])

    async def run() -> int:
        with watched() as errors:
            world = World.open(tmp_path, errors, Env(clock=clock))
            topics = [MetadataRequestTopic(name=f"t{number}") for number in range(2000)]
            request = MetadataRequest(topics=topics)
            frame = b"".join(ClientConnection("app").request(METADATA, 9, request))[4:]
            with pytest.raises(LongRequest) as long:
                read_request(memoryview(frame), served_versions(legacy=False), items_at_once)
            context = RequestContext(world.node, METADATA, 9, "app", ClientInfo(1, "here"))
            try:
                written = await answer_long(context, long.value, lambda *_: start(answered()))
            finally:
                await world.close()
            assert written is not None
            return written.task_ns

    assert asyncio.run(run()) == worked_ms * MS > 2 * MS


def test_time_in_tasks_is_charged_to_the_quota_of_requests(tmp_path: Path) -> None:
    quotas: Quotas = {(("client-id", "app"),): {"request_percentage": 1.0}}
    clock = ManualClock(1_000_000)

    async def run() -> list[int]:
        with watched() as errors:
            world = World.open(tmp_path, errors, Env(clock=clock))
            await world.node.cluster.change(lambda state: state._replace(quotas=quotas))
            throttled = []
            for task_ns in (0, 900 * MS):
                context = RequestContext(world.node, METADATA, 9, "app", ClientInfo(1, "here"))
                charges = charges_of(context, 10, clock.monotonic_ns())
                assert charges is not None
                charges.add(task_ns)
                throttled.append(charges.finish())
            await world.close()
            return throttled

    first, second = asyncio.run(run())
    assert first == 0 < second
