"""What a request counts for its client's quotas, once its answer is known.

`request_percentage` counts the time that the loop worked on a request, from its frame on: waits
do not count, nor what threads beside the loop or tasks of their own did. 100 is all of its time.
What a Produce sends counts beside that; what a Fetch brings was counted when it was answered.

Source: KIP-124, KIP-219; Kafka 4.3's ClientRequestQuotaManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from tidelog.protocol.messages import PRODUCE
from tidelog.server.produce_charges import charge_of
from tidelog.server.quotas.rates import WINDOW_MS
from tidelog.server.quotas.throttles import REQUESTS
from tidelog.server.requests import Answer, RequestContext, Response

if TYPE_CHECKING:
    from tidelog.env import Clock
    from tidelog.server.quotas.limits import Limit

_T = TypeVar("_T")
_PERCENT_PER_NS: Final = 100e-9


class Stopwatch:
    """The loop's time for one request; runs from its making to `pause`, and on from `go_on`."""

    __slots__ = ("_clock", "_since_ns", "used_ns")

    def __init__(self, clock: "Clock", began_ns: int) -> None:
        self._clock = clock
        self._since_ns: int | None = began_ns
        self.used_ns = 0

    def go_on(self) -> None:
        """It is being worked on again."""
        self._since_ns = self._clock.monotonic_ns()

    def pause(self) -> None:
        """It waits, or is done; nothing where it waited already."""
        if self._since_ns is not None:
            self.used_ns += self._clock.monotonic_ns() - self._since_ns
            self._since_ns = None


class Timed(Awaitable[_T]):
    """Awaits something; the stopwatch runs while that runs, and pauses while it waits."""

    def __init__(self, said: Awaitable[_T], watch: Stopwatch) -> None:
        self._said = said
        self._watch = watch

    def __await__(self) -> Generator[object, None, _T]:
        steps = self._said.__await__()
        move: Callable[[], object] = partial(next, steps)
        while True:
            self._watch.go_on()
            try:
                waits_for = move()
            except StopIteration as end:
                return cast("_T", end.value)
            finally:
                self._watch.pause()
            try:
                yield waits_for
            except asyncio.CancelledError as gone:
                move = partial(steps.throw, gone)
            else:
                move = partial(next, steps)


class _Throttled(Protocol):
    throttle_time_ms: int


class Charges:
    """The quotas that hold for one request. charge once, behind `timed` where it takes longer."""

    def __init__(
        self,
        context: RequestContext,
        watch: Stopwatch,
        limit: "Limit | None",
        sent: "Callable[[Response | None], None] | None",
    ) -> None:
        """`limit` is that of its time, `sent` counts the bytes that it sends; None for no quota."""
        self._context = context
        self._watch = watch
        self._limit = limit
        self._sent = sent

    def timed(self, said: Awaitable[_T]) -> Awaitable[_T]:
        """An answer on its way, with an eye on the clock where that counts."""
        return said if self._limit is None else Timed(said, self._watch)

    def worked(self, said: "Answer") -> None:
        """The handler has come back: count the request, unless its answer comes later."""
        self._watch.pause()
        if said is None or type(said) is self._context.api.response:
            self.charge(said)

    def charge(self, response: "Response | None") -> None:
        """Count it; the answer, and the connection, hear for how long to be silent."""
        if self._sent is not None:
            self._sent(response)
        if self._limit is not None:
            self._charge_time(self._limit, response)

    def _charge_time(self, limit: "Limit", response: "Response | None") -> None:
        throttles, connection = self._context.node.throttles, self._context.connection
        if throttles is None:  # the last quota went meanwhile
            return
        waits_ms = throttles.charge(REQUESTS, limit, self._watch.used_ns * _PERCENT_PER_NS)
        # Less a bound than for bytes: whoever used much at once is heard again after a window.
        waits_ms = min(waits_ms, WINDOW_MS)
        if waits_ms <= connection.throttle_ms:
            return
        connection.throttle_ms = waits_ms
        if response is not None and hasattr(response, "throttle_time_ms"):
            cast("_Throttled", response).throttle_time_ms = waits_ms


def charges_of(context: RequestContext, size_bytes: int, began_ns: int) -> Charges | None:
    """How to count a request, None where no quota holds for it.

    Args:
        context: Who asks.
        size_bytes: Of the request, without the length in front of it.
        began_ns: When it was looked at, by the monotonic clock.
    """
    node = context.node
    if node.throttles is None:  # the request itself took the last quota
        return None
    sent = charge_of(context, size_bytes) if context.api is PRODUCE else None
    limit = node.throttles.find(REQUESTS, context.connection.principal, context.client_id)
    if sent is None and limit is None:
        return None
    return Charges(context, Stopwatch(node.env.clock, began_ns), limit, sent)
