"""From an answer of the rules, which may come later, to one that a connection can wait for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.server.groups.reply import Reply

T = TypeVar("T")
R = TypeVar("R")


def respond(reply: Reply[T], response: Callable[[T], R]) -> R | Awaitable[R]:
    """The response to a reply: now where it is there, else as soon as it is."""
    if reply.is_done:
        return response(reply.value)
    return _later(reply, response)


async def _later(reply: Reply[T], response: Callable[[T], R]) -> R:
    return response(await arrival(reply))


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
