"""What a Fetch counts for its client's quota: the bytes of its answer, before it is given.

Who is over its quota gets an empty answer, which does not count, and asks again later. Of a
ShareFetch the answer is given and counts, and the silence comes after it: its records are the
member's already, for a time.

Source: KIP-219; Kafka 4.3's KafkaApis.handleFetchRequest.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.protocol.compiler import struct_codec
from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.messages import FETCH, SHARE_FETCH
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.wire import Writer
from tidelog.server.quotas.throttles import FETCHED, most_at_once
from tidelog.server.requests import RequestContext

if TYPE_CHECKING:
    from tidelog.protocol.messages.share_fetch import ShareFetchResponse
    from tidelog.server.quotas.limits import Limit


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
