"""Quota charges of a request: bytes produced, bytes fetched, time of the event loop.

Owns the order of a request's charges and the throttle time that its response reports. The quotas
and rates themselves are in `admin/quotas.py`; `net/connection.py` mutes a throttled connection.

- Bytes produced (`producer_byte_rate`) are the request's, counted once its response is known.
- Bytes fetched (`consumer_byte_rate`) are the response's, counted before it is sent. Over its quota
  a consumer gets an empty response, which is not counted. A ShareFetch response is sent and counted
  in full, and the connection is muted after it: its records are acquired already.
- Loop time (`request_percentage`) runs from the frame to the response, without waits, worker
  threads and tasks of their own. 100 is all of one thread's time.

Source: KIP-124, KIP-219; Kafka 4.3's ClientRequestQuotaManager, KafkaApis.handleProduceRequest and
KafkaApis.handleFetchRequest.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.wire import Writer
from tidelog.server.admin.quotas import FETCHED, PRODUCED, REQUESTS, WINDOW_MS, most_at_once
from tidelog.server.api.context import RequestContext, Response, Started
from tidelog.server.runtime.reply import Reply

if TYPE_CHECKING:
    from tidelog.env import Clock
    from tidelog.protocol.messages.share_fetch import ShareFetchResponse
    from tidelog.server.admin.quotas import Limit, Throttles


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


class _Throttled(Protocol):
    throttle_time_ms: int


class Charges:
    """Quotas that hold for one request: `charge` or `finish` once, when its response is known."""

    __slots__ = ("_context", "_produced", "_throttles", "_time", "_watch")

    def __init__(
        self,
        context: RequestContext,
        throttles: "Throttles",
        watch: Stopwatch,
        time: "Limit | None",
        produced: "tuple[Limit, int] | None",
    ) -> None:
        """`time`: the quota of loop time. `produced`: that of bytes produced, and the bytes."""
        self._context = context
        self._throttles = throttles
        self._watch = watch
        self._time = time
        self._produced = produced

    def worked(self, answer: "Started") -> None:
        """The handler has come back, with its response or with one that comes later."""
        self._watch.pause()
        if isinstance(answer, Reply) and self._time is not None:
            answer.measure(self._watch)

    def charge(self, response: "Response | None") -> None:
        """Count the request, and report the throttle time in its response."""
        throttle_ms = self.finish()
        if throttle_ms and response is not None and hasattr(response, "throttle_time_ms"):
            cast("_Throttled", response).throttle_time_ms = throttle_ms

    def finish(self) -> int:
        """Count the request, and note for how long its connection is to be muted.

        Returns:
            The throttle time that its response has to report in place of its own; 0 for none.
        """
        self._watch.pause()
        connection, reported_ms = self._context.connection, 0
        if self._produced is not None:
            reported_ms = self._throttles.charge(PRODUCED, *self._produced)
            connection.throttle_ms = reported_ms
        # The last quota may have been removed while the request waited.
        if self._time is not None and self._context.node.throttles is not None:
            used = self._watch.used_ns * _PERCENT_PER_NS
            # Less a bound than for bytes: after much use at once a client waits one window.
            throttle_ms = min(self._throttles.charge(REQUESTS, self._time, used), WINDOW_MS)
            if throttle_ms > connection.throttle_ms:
                connection.throttle_ms = reported_ms = throttle_ms
        return reported_ms


def charges_of(context: RequestContext, size_bytes: int, began_ns: int) -> Charges | None:
    """How to count a request, None where no quota holds for it.

    Args:
        context: Who asks.
        size_bytes: Of the request, without the length in front of it.
        began_ns: When it was looked at, by the monotonic clock.
    """
    throttles, connection = context.node.throttles, context.connection
    if throttles is None:  # the request itself took the last quota
        return None
    time = throttles.find(REQUESTS, connection.principal, context.client_id)
    produced = None
    if context.api is PRODUCE:
        limit = throttles.find(PRODUCED, connection.principal, context.client_id)
        produced = None if limit is None else (limit, size_bytes)
    if time is None and produced is None:
        return None
    watch = Stopwatch(context.node.env.clock, began_ns)
    return Charges(context, throttles, watch, time, produced)


def most_bytes(context: RequestContext) -> int | None:
    """How much an answer may bring, so that it is not over the quota for sure; None for no end."""
    limit = _limit(context)
    return None if limit is None else most_at_once(limit)


def charge_fetch(context: RequestContext, size: Callable[[], int]) -> int:
    """Count the bytes of a Fetch response, unless that takes its client over the quota.

    Args:
        context: Who asks.
        size: Tells how many there are; called where a quota holds for the client.

    Returns:
        The throttle time of the empty response in its place; 0 where it is to be sent.
    """
    limit, throttles = _limit(context), context.node.throttles
    if limit is None or throttles is None:
        return 0
    return throttles.charge_or_not(FETCHED, limit, size())


def charge_share(context: RequestContext, answer: "ShareFetchResponse") -> None:
    """Count the answer of a ShareFetch; it tells how long the client is to be silent after it."""
    limit, throttles = _limit(context), context.node.throttles
    if limit is not None and throttles is not None:
        waits_ms = throttles.charge(FETCHED, limit, encoded_size(context, answer))
        answer.throttle_time_ms = context.connection.throttle_ms = waits_ms


def _limit(context: RequestContext) -> "Limit | None":
    throttles = context.node.throttles
    if throttles is None:
        return None
    return throttles.find(FETCHED, context.connection.principal, context.client_id)


def encoded_size(context: RequestContext, response: "Response") -> int:
    """The bytes of a response, its length in front and without its header."""
    version, writer = context.version, Writer()
    codec = struct_codec(type(response), version, context.api.is_flexible(version))
    codec.write(writer, response)
    return LENGTH_BYTES + writer.size_bytes
