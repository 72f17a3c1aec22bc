"""An answer that may come later, without an event loop: the rules of groups make them.

Parts: one value, now or later; observers.

Waiting on the loop for an answer that the rules give without one.

Something whose changes others wait for. Belongs to the loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Reply(Generic[T]):
    """One value, now or later. Completed once; who asks for it is told at once or then."""

    __slots__ = ("_listeners", "_value")

    def __init__(self) -> None:
        self._value: tuple[T] | None = None
        self._listeners: list[Callable[[T], None]] = []

    @classmethod
    def of(cls, value: T) -> "Reply[T]":
        """An answer that is there."""
        made = cls()
        made.complete(value)
        return made

    @property
    def is_done(self) -> bool:
        """Whether the value is there."""
        return self._value is not None

    @property
    def value(self) -> T:
        """The value, which must be there."""
        assert self._value is not None, "not answered yet"
        return self._value[0]

    def complete(self, value: T) -> None:
        """Give the value, once."""
        assert self._value is None, "answered twice"
        self._value = (value,)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(value)

    def then(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the value as soon as it is there."""
        if self._value is None:
            self._listeners.append(listener)
        else:
            listener(self._value[0])


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


Watcher = Callable[[], None]


class Watched:
    """Whom to tell of changes."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` at every change of what readers may see, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Call it no more; fine where it was not watching."""
        self._watchers.pop(watcher, None)

    @property
    def watcher_count(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def notify(self) -> None:
        """Tell all watchers, which may go by that."""
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher()
