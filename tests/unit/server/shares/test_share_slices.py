"""Share fetches of many partitions yield the event loop to other clients."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import GROUP, START_MS, World, of, world
from tests.worlds.clocks import BusyClock

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import SHARE_FETCH
from tidelog.protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from tidelog.server.api.context import LargeResponse, RequestContext
from tidelog.server.api.share_fetch import LONG, share_fetch

MANY = 2000


@on_a_loop
async def test_many_partitions_leave_others_their_turn(path: Path) -> None:
    async with world(path, clock=BusyClock(START_MS)) as it:
        one = it.member()
        fetch = asyncio.ensure_future(one.fetch(0, *range(10, 10 + MANY)))
        turn_count = 0
        while not fetch.done():
            await asyncio.sleep(0)
            turn_count += 1
            assert turn_count < 100 * MANY
        assert turn_count > MANY // 10
        told = of(await fetch, 9 + MANY)
        assert told is not None
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def answered(it: World, count: int) -> object:
    """Return the response to a fetch of `count` nonexistent partitions."""
    one = it.member()
    request = ShareFetchRequest(
        group_id=GROUP,
        member_id=one.name,
        max_records=1,
        max_bytes=1 << 20,
        topics=it.topics(range(10, 10 + count)),
    )
    found = share_fetch(RequestContext(it.node, SHARE_FETCH, 2, "test", one.connection), request)
    return await found if isinstance(found, Awaitable) else found


@on_a_loop
async def test_a_response_about_many_partitions_is_encoded_outside_the_loop(path: Path) -> None:
    async with world(path) as it:
        assert isinstance(await answered(it, LONG), ShareFetchResponse)
        told = await answered(it, LONG + 1)
        assert isinstance(told, LargeResponse)
        response = cast("ShareFetchResponse", told.response)
        assert len(response.responses[0].partitions) == LONG + 1
        told.free()
        assert response.responses == []
