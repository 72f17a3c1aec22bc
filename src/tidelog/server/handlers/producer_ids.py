"""InitProducerId: ids for idempotent producers, ids and epochs for transactional ones.

A producer without a transactional id gets a new id each time, with epoch 0, whatever it had before
(it raises its epoch itself). Source: Kafka's protocol guide, API 22; KIP-98, KIP-360.
"""

from collections.abc import Awaitable
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from tidelog.server.node import LOGGER
from tidelog.server.requests import RequestContext

FENCED_FIRST_VERSION: Final = 4
NONE: Final = -1


def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """A new producer id; with a transactional id its own, and an epoch that nobody has."""
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _init(context, request, request.transactional_id)
    producer_id = context.node.producer_ids.next()
    return _take(context) if producer_id is None else _answer(producer_id)


async def _init(
    context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    # Producers without transactions need none of this.
    from tidelog.server.transactions.steps import InitAsked, ProducerRef

    expected = None
    if request.producer_id != NONE:
        expected = ProducerRef(request.producer_id, request.producer_epoch)
    asked = InitAsked(
        transactional_id=transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        expected=expected,
    )
    said = await context.node.transactions.init_producer_id(asked)
    if said.code:
        is_unknown = (
            said.code == ErrorCode.PRODUCER_FENCED and context.version < FENCED_FIRST_VERSION
        )
        return _refused(ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else said.code)
    return InitProducerIdResponse(
        error_code=0, producer_id=said.producer_id, producer_epoch=said.producer_epoch
    )


async def _take(context: RequestContext) -> InitProducerIdResponse:
    try:
        return _answer(await context.node.producer_ids.take())
    except TidelogError as error:
        LOGGER.warning("no producer id: %s", error)
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # the client asks again


def _answer(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
