"""What a request counts for its client's quotas, once its answer is known.

Parts: what a request costs its quotas: bytes produced, bytes fetched, loop time.

`request_percentage` counts the time that the loop worked on a request, from its frame on: waits
do not count, nor what threads beside the loop or tasks of their own did. 100 is all of its time.
What a Produce sends counts beside that; what a Fetch brings was counted when it was answered.

Source: KIP-124, KIP-219; Kafka 4.3's ClientRequestQuotaManager.

What a Produce counts for its client's quota: its bytes, once its answer is known.

Source: KIP-219; Kafka 4.3's KafkaApis.handleProduceRequest.

What a Fetch counts for its client's quota: the bytes of its answer, before it is given.

Who is over its quota gets an empty answer, which does not count, and asks again later. Of a
ShareFetch the answer is given and counts, and the silence comes after it: its records are the
member's already, for a time.

Source: KIP-219; Kafka 4.3's KafkaApis.handleFetchRequest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.messages import FETCH, PRODUCE, SHARE_FETCH
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.wire import Writer
from tidelog.server.admin.quotas import FETCHED, REQUESTS, WINDOW_MS, most_at_once
from tidelog.server.api.context import Answer, RequestContext, Response

if TYPE_CHECKING:
    from tidelog.env import Clock
    from tidelog.protocol.messages.produce import ProduceResponse
    from tidelog.protocol.messages.share_fetch import ShareFetchResponse
    from tidelog.server.admin.quotas import Limit


def charge_of(
    context: RequestContext, size_bytes: int
) -> "Callable[[Response | None], None] | None":
    """What to call with the answer, None where no quota holds for the client.

    Args:
        context: Who asks.
        size_bytes: Of the request, without the length in front of it.
    """
    from tidelog.server.admin.quotas import PRODUCED  # few have quotas

    throttles = context.node.throttles
    assert throttles is not None
    limit = throttles.find(PRODUCED, context.connection.principal, context.client_id)
    if limit is None:
        return None

    def charge(response: "Response | None") -> None:
        throttle_ms = throttles.charge(PRODUCED, limit, size_bytes)
        if throttle_ms and response is not None:
            cast("ProduceResponse", response).throttle_time_ms = throttle_ms
        context.connection.throttle_ms = throttle_ms

    return charge


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


def most_bytes(context: RequestContext) -> int | None:
    """How much an answer may bring, so that it is not over the quota for sure; None for no end."""
    limit = _limit(context)
    return None if limit is None else most_at_once(limit)


def throttle_ms(context: RequestContext, answer: Callable[[], FetchResponse]) -> int:
    """How long to be silent in place of an answer; 0 to give it, and then it has been counted.

    Args:
        context: Who asks.
        answer: Makes what would be answered; called where a quota holds for the client.
    """
    limit, throttles = _limit(context), context.node.throttles
    if limit is None or throttles is None:
        return 0
    return throttles.charge_or_not(FETCHED, limit, _size(context.version, answer()))


def throttle_bytes_ms(context: RequestContext, size_bytes: int) -> int:
    """How long to be silent in place of an answer of so many bytes; 0 to give it, once counted."""
    limit, throttles = _limit(context), context.node.throttles
    if limit is None or throttles is None:
        return 0
    return throttles.charge_or_not(FETCHED, limit, size_bytes)


def charge_share(context: RequestContext, answer: "ShareFetchResponse") -> None:
    """Count the answer of a ShareFetch; it tells how long the client is to be silent after it."""
    limit, throttles = _limit(context), context.node.throttles
    if limit is not None and throttles is not None:
        version = context.version
        writer = Writer()
        codec = struct_codec(type(answer), version, SHARE_FETCH.is_flexible(version))
        codec.write(writer, answer)
        waits_ms = throttles.charge(FETCHED, limit, LENGTH_BYTES + writer.size_bytes)
        answer.throttle_time_ms = context.connection.throttle_ms = waits_ms


def _limit(context: RequestContext) -> "Limit | None":
    throttles = context.node.throttles
    if throttles is None:
        return None
    return throttles.find(FETCHED, context.connection.principal, context.client_id)


def _size(version: int, answer: FetchResponse) -> int:
    writer = Writer()
    struct_codec(FetchResponse, version, FETCH.is_flexible(version)).write(writer, answer)
    return LENGTH_BYTES + writer.size_bytes
