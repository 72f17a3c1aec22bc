"""Quota charges of a request: bytes produced, bytes fetched, time of the event loop.

This module decides the order of a request's charges and the throttle time that its response
reports. The quotas and rates themselves are in `admin/quotas.py`. `net/connection.py` mutes a
throttled connection.

- Bytes produced (`producer_byte_rate`): the size of the request, counted once its response is
  known.
- Bytes fetched (`consumer_byte_rate`): the size of the response, counted before it is sent. If a
  Fetch response would exceed the quota, an empty response is sent instead, which is not counted. A
  ShareFetch response is sent and counted in full even above the quota, because its records are
  already acquired. If the quota is exceeded, the connection is muted after the response.
- Loop time (`request_percentage`): time of the event loop from the start of a request's processing
  until its response is known. It includes the request's own tasks, and excludes waits, worker
  threads and the tasks of other requests. A quota of 100 allows all of the event loop's time.

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
from tidelog.server.runtime.reply import Reply, Stopwatch

if TYPE_CHECKING:
    from tidelog.protocol.messages.share_fetch import ShareFetchResponse
    from tidelog.server.admin.quotas import Quota, QuotaManager


_PERCENT_PER_NS: Final = 100e-9


class _Throttled(Protocol):
    throttle_time_ms: int


class Charges:
    """Charges of one request to its client's quotas.

    Call `charge` or `finish` once, when the response is known.
    """

    __slots__ = ("_context", "_produced", "_throttles", "_time", "_watch")

    def __init__(
        self,
        context: RequestContext,
        throttles: "QuotaManager",
        watch: Stopwatch,
        time: "Quota | None",
        produced: "tuple[Quota, int] | None",
    ) -> None:
        """Create the charges.

        `time` is the quota of loop time. `produced` is the quota of produced bytes together with
        the number of bytes to charge. Each of these two arguments is None if no such quota applies.
        """
        self._context = context
        self._throttles = throttles
        self._watch = watch
        self._time = time
        self._produced = produced

    def worked(self, response: "Started") -> None:
        """Pause the measurement of loop time, because the handler has returned.

        If the response is still pending, a task computes it. In this case, if a quota of loop time
        applies, the time of this task is also measured.
        """
        self._watch.pause()
        if isinstance(response, Reply) and self._time is not None:
            response.measure(self._watch)

    def add(self, task_ns: int) -> None:
        """Add the time, in ns, that the event loop spent in tasks for parts of the request."""
        self._watch.used_ns += task_ns

    def charge(self, response: "Response | None") -> None:
        """Charge the request to its quotas, and report the throttle time in the response.

        Nothing is reported if the throttle time is 0, or if the response has no field for it.
        """
        throttle_ms = self.finish()
        if throttle_ms and response is not None and hasattr(response, "throttle_time_ms"):
            cast("_Throttled", response).throttle_time_ms = throttle_ms

    def finish(self) -> int:
        """Charge the request to its quotas, and set the time for which its connection is muted.

        Returns:
            The throttle time in ms to set in the response. With 0, the caller does not change the
            response's throttle time.
        """
        self._watch.pause()
        connection, reported_ms = self._context.connection, 0
        if self._produced is not None:
            reported_ms = self._throttles.charge(PRODUCED, *self._produced)
            connection.throttle_ms = reported_ms
        # The broker's last quota may have been removed while the request waited.
        if self._time is not None and self._context.node.throttles is not None:
            used = self._watch.used_ns * _PERCENT_PER_NS
            # Unlike the throttle time for bytes, the throttle time for loop time is at most one
            # window, even after a burst.
            throttle_ms = min(self._throttles.charge(REQUESTS, self._time, used), WINDOW_MS)
            if throttle_ms > connection.throttle_ms:
                connection.throttle_ms = reported_ms = throttle_ms
        return reported_ms


def charges_of(context: RequestContext, size_bytes: int, began_ns: int) -> Charges | None:
    """Return the charges of a request; None if no quota of loop time or produced bytes applies.

    No quota applies before authentication, as in Kafka: clients without credentials must not use up
    a quota of other clients.

    Args:
        context: Context of the request.
        size_bytes: Size of the request in bytes, without its length field.
        began_ns: Monotonic time at which the processing of the request began.
    """
    throttles, connection = context.node.throttles, context.connection
    # The request may have removed the broker's last quota.
    if throttles is None or not connection.principal:
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


def allowed_bytes(context: RequestContext) -> int | None:
    """Return the largest size in bytes of a Fetch response that the client's quota can allow.

    None means that no quota applies.
    """
    limit = _limit(context)
    return None if limit is None else most_at_once(limit)


def charge_fetch(context: RequestContext, size: Callable[[], int]) -> int:
    """Charge the bytes of a Fetch response, unless they would exceed the client's quota.

    Args:
        context: Context of the request.
        size: Returns the response's size in bytes; called only if a quota applies to the client.

    Returns:
        0 if the response may be sent. Otherwise the throttle time in ms, which an empty response
        must report instead.
    """
    limit, throttles = _limit(context), context.node.throttles
    if limit is None or throttles is None:
        return 0
    return throttles.charge_or_throttle(FETCHED, limit, size())


def charge_share(context: RequestContext, response: "ShareFetchResponse") -> None:
    """Charge the bytes of a ShareFetch response, and report the throttle time in the response."""
    limit, throttles = _limit(context), context.node.throttles
    if limit is not None and throttles is not None:
        throttle_ms = throttles.charge(FETCHED, limit, encoded_size(context, response))
        response.throttle_time_ms = context.connection.throttle_ms = throttle_ms


def _limit(context: RequestContext) -> "Quota | None":
    throttles = context.node.throttles
    if throttles is None:
        return None
    return throttles.find(FETCHED, context.connection.principal, context.client_id)


def encoded_size(context: RequestContext, response: "Response") -> int:
    """Return the size of a response in bytes, with its length field and without its header."""
    version, writer = context.version, Writer()
    codec = struct_codec(type(response), version, context.api.is_flexible(version))
    codec.write(writer, response)
    return LENGTH_BYTES + writer.size_bytes
