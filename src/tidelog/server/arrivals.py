"""Waiting on the loop for an answer that the rules give without one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Generic, TypeVar

from tidelog.server.groups.reply import Reply

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


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


class Promise(Awaitable[R_co], Generic[R_co]):
    """What a reply will bring: to be awaited, or, without a task of its own, to be told of."""

    __slots__ = ("_arrive", "when_there")

    def __init__(self, reply: Reply[T], response: "Callable[[T], R_co]") -> None:
        """`response` makes what is promised of the reply's value."""

        async def arrive() -> R_co:
            return response(await arrival(reply))

        def when_there(tell: "Callable[[Callable[[], R_co]], None]") -> None:
            reply.then(lambda value: tell(lambda: response(value)))

        self._arrive = arrive
        # Calls its argument, once, with what makes the answer.
        self.when_there = when_there

    def __await__(self) -> "Generator[object, None, R_co]":
        return self._arrive().__await__()


class Arrivals:
    """Answers that are there, and go out when what has brought them is done. The loop's thread.

    What brings an answer, a request of another member for one, is in the midst of something. Once
    it is through they are sent, and don't wait for all other requests that have come by then.

    Attributes:
        due: What sends them, in order.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()

    def add(self, send: Callable[[], None]) -> None:
        """One more; `send` raises nothing."""
        if not self.due:
            # For what no request has brought, but time or a thread.
            asyncio.get_running_loop().call_soon(self.send)
        self.due.append(send)

    def send(self) -> None:
        """Send all. To be called where nothing is in the midst of anything."""
        due = self.due
        while due:
            due.popleft()()
