"""InitProducerId: ids for idempotent producers.

A producer without a transactional id gets a new id each time, with epoch 0, whatever it had before
(it raises its epoch itself). Source: Kafka's protocol guide, API 22; KIP-98, KIP-360.
"""

from collections.abc import Awaitable
from typing import Final

from tidelog.errors import TidelogError
from tidelog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from tidelog.server.node import LOGGER
from tidelog.server.requests import RequestContext

COORDINATOR_NOT_AVAILABLE: Final = 15
INVALID_REQUEST: Final = 42
NONE: Final = -1


def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """A new producer id; a transactional one is not to be had without a coordinator."""
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return _refused(INVALID_REQUEST)
    if request.transactional_id is not None:
        return _refused(COORDINATOR_NOT_AVAILABLE if request.transactional_id else INVALID_REQUEST)
    producer_id = context.node.producer_ids.next()
    return _take(context) if producer_id is None else _answer(producer_id)


async def _take(context: RequestContext) -> InitProducerIdResponse:
    try:
        return _answer(await context.node.producer_ids.take())
    except TidelogError as error:
        LOGGER.warning("no producer id: %s", error)
        return _refused(COORDINATOR_NOT_AVAILABLE)  # the client asks again


def _answer(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
