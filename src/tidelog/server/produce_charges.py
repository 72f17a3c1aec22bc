"""What a Produce counts for its client's quota: its bytes, once its answer is known.

Source: KIP-219; Kafka 4.3's KafkaApis.handleProduceRequest.
"""

from typing import TYPE_CHECKING, cast

from tidelog.server.requests import RequestContext, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.protocol.messages.produce import ProduceResponse


def charge_of(
    context: RequestContext, size_bytes: int
) -> "Callable[[Response | None], None] | None":
    """What to call with the answer, None where no quota holds for the client.

    Args:
        context: Who asks.
        size_bytes: Of the request, without the length in front of it.
    """
    from tidelog.server.quotas.throttles import PRODUCED  # few have quotas

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
