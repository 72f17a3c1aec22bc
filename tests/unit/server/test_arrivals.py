"""What a reply will bring: awaited in a task, or told of without one."""

import asyncio
from collections.abc import Callable

from tidelog.server.arrivals import Promise
from tidelog.server.groups.reply import Reply


def test_a_promise_is_awaited() -> None:
    async def run() -> tuple[str, str]:
        reply: Reply[int] = Reply()
        waiting = asyncio.ensure_future(Promise(reply, str))
        await asyncio.sleep(0)
        assert not waiting.done()
        reply.complete(5)
        return await waiting, await Promise(reply, str)

    assert asyncio.run(run()) == ("5", "5")


def test_who_is_told_of_a_promise_makes_the_answer_when_he_likes() -> None:
    reply: Reply[int] = Reply()
    made = list[int]()
    told = list[Callable[[], None]]()
    Promise(reply, made.append).when_there(told.append)
    reply.complete(5)
    assert not made
    told[0]()
    assert made == [5]
