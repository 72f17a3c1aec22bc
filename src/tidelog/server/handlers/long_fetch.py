"""Fetch of very many partitions: a slice at a time, and without a session.

A session would make each later request of the client read all partitions at once, though its lists
are short. Without one the client names all of them each time, as it does at a broker whose session
cache is full (KIP-227).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.connection import ReceivedRequest
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse, NodeEndpoint
from tidelog.server.fetch_layouts import BY_ID_SINCE
from tidelog.server.fetch_reading import Reading, Wait, finish
from tidelog.server.fetch_sessions import Asked, CachedPartition, Fetching
from tidelog.server.handlers.fetch import (
    denied_topics,
    is_enough,
    order_of,
    reads_of,
    response_of,
    unused,
)
from tidelog.server.partition_reads import PartitionRead, ReadOrder
from tidelog.server.requests import RequestContext
from tidelog.server.slices import Slices
from tidelog.types import ISOLATION_LEVELS

# What one Fetch may name: each partition takes some 500 bytes while the Fetch waits.
PARTITIONS_MAX: Final = 30_000
_SLICE: Final = 100
# Of a partition in the response beside its records, for quotas.
_PARTITION_BYTES: Final = 40


async def long_fetch(
    context: RequestContext, read: Callable[[], Awaitable[ReceivedRequest]], slices: Slices
) -> AsyncIterator[FetchResponse]:
    """Answer in parts: responses whose topics follow each other in the whole response.

    An incremental request gets error 70: the client then makes a full one. A request of more than
    `PARTITIONS_MAX` partitions gets error 42 for each of them.

    Args:
        context: Who asks.
        read: Reads the request.
        slices: Lets others have the loop.
    """
    async with context.node.long_requests:
        request = (await read()).message
        assert isinstance(request, FetchRequest)
        if request.session_epoch > 0:
            yield FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        code = 0
        if request.isolation_level not in ISOLATION_LEVELS:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        elif sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_MAX:
            code = ErrorCode.INVALID_REQUEST
        partitions = {}
        refused: list[PartitionRead] = []
        for key, asked in _taken(context, request):
            cached = CachedPartition(key, asked)
            if code:
                refused.append(PartitionRead(cached, None, code))
            else:
                partitions[key] = cached
            if len(refused) == _SLICE:
                yield _refusal(context, refused)
                refused = []
            await slices.rest()
        if code:
            yield _refusal(context, refused)
            return
    async for part in _answer(context, request, list(partitions.values()), slices):
        yield part


def _taken(context: RequestContext, request: FetchRequest) -> Iterator[Asked]:
    """The partitions, which are taken out of the request one by one: no list is freed at once."""
    by_id = context.version >= BY_ID_SINCE
    request.topics.reverse()
    while request.topics:
        topic = request.topics.pop()
        topic.partitions.reverse()
        while topic.partitions:
            asked = topic.partitions.pop()
            yield (topic.topic_id if by_id else topic.topic, asked.partition), asked


def _refusal(context: RequestContext, reads: Sequence[PartitionRead]) -> FetchResponse:
    for read in reads:
        read.answer = read.refusal(read.error_code)
    return _part(context, reads)


def _part(context: RequestContext, reads: Sequence[PartitionRead]) -> FetchResponse:
    return response_of(context, Fetching(()), reads, is_copy=True)


async def _answer(
    context: RequestContext,
    request: FetchRequest,
    partitions: Sequence[CachedPartition],
    slices: Slices,
) -> AsyncIterator[FetchResponse]:
    """Read, wait for enough, and answer."""
    node, order = context.node, order_of(context, request)
    reads: list[PartitionRead] = []
    for start in range(0, len(partitions), _SLICE):
        some = partitions[start : start + _SLICE]
        missing = node.partitions.unopened(unused(node, some))
        if missing:
            await node.partitions.open_beside(missing, node.work)
        denied = frozenset[str | UUID]()
        if node.authorizer is not None:
            denied = denied_topics(context, some, is_follower=order.is_follower)
        reads += reads_of(node, some, denied)
        await slices.rest()
    await _read(context, order, reads, slices)
    if not is_enough(request, order, reads):
        await Wait(order, reads).wait(node.timers, request.max_wait_ms)
        await _read(context, order, reads, slices)
    if node.throttles is not None and not order.is_follower:
        from tidelog.server.fetch_charges import throttle_bytes_ms  # few have quotas

        size_bytes = sum(read.size_bytes + _PARTITION_BYTES for read in reads)
        waits_ms = throttle_bytes_ms(context, size_bytes)
        if waits_ms:
            context.connection.throttle_ms = waits_ms
            yield FetchResponse(throttle_time_ms=waits_ms)
            return
    # The first part gives the response its fields beside the list.
    yield _head(context, reads)
    for start in range(0, len(reads), _SLICE):
        yield _part(context, reads[start : start + _SLICE])
        await slices.rest()


def _head(context: RequestContext, reads: Sequence[PartitionRead]) -> FetchResponse:
    """No partitions; the endpoint of their leader, where a part names it."""
    if all(read.answer.current_leader.leader_epoch < 0 for read in reads):
        return FetchResponse()
    node, here = context.node, context.here
    leader = NodeEndpoint(
        node_id=node.node_id, host=here.host, port=here.port, rack=node.config.broker_rack
    )
    return FetchResponse(node_endpoints=[leader])


async def _read(
    context: RequestContext, order: ReadOrder, reads: Sequence[PartitionRead], slices: Slices
) -> None:
    reading = Reading(order, reads)
    for end in range(_SLICE, len(reads) + _SLICE, _SLICE):
        await finish(reading, context.node.reads, end)
        await slices.rest()
