"""Waiting on the loop for an answer that the rules give without one."""

import asyncio
from typing import TypeVar

from tidelog.server.groups.reply import Reply

T = TypeVar("T")


async def arrival(reply: Reply[T]) -> T:
    """A reply's value, once it is there."""
    if reply.is_done:
        return reply.value
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def tell(value: T) -> None:
        if not future.done():  # the client may have gone meanwhile
            future.set_result(value)

    reply.then(tell)
    return await future
