"""Fetch: record batches as they lie in the log, now or when enough of them are there.

Source: Kafka's protocol guide, API 1; Kafka 4.x ReplicaManager.fetchMessages, DelayedFetch;
KIP-74 (limits), KIP-227 (sessions), KIP-320 and KIP-595 (epochs), KIP-516 (topic ids).
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from tidelog.protocol.messages.fetch import (
    FetchableTopic,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.server.partition_reads import PartitionRead, ReadOrder, read_all
from tidelog.server.requests import RequestContext

BY_ID: Final = 13
HARD_LIMITS_UNTIL: Final = 2


def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """The records that are there, or a wait for more of them."""
    order = ReadOrder.of(context, request)
    reads = list(_wanted(context, request))
    read_all(order, reads)
    if _is_enough(request, order, reads):
        return _response(reads)
    return _later(context, request, order, reads)


def _wanted(context: RequestContext, request: FetchRequest) -> Iterable[PartitionRead]:
    by_id = context.version >= BY_ID
    for topic in request.topics:
        for asked in topic.partitions:
            yield PartitionRead.of(
                context.node, asked, None if by_id else topic.topic, topic.topic_id
            )


def _is_enough(request: FetchRequest, order: ReadOrder, reads: Sequence[PartitionRead]) -> bool:
    return (
        request.max_wait_ms <= 0
        or not reads
        or any(read.must_answer for read in reads)
        or sum(read.size_bytes for read in reads) >= order.min_bytes
    )


async def _later(
    context: RequestContext,
    request: FetchRequest,
    order: ReadOrder,
    reads: Sequence[PartitionRead],
) -> FetchResponse:
    """Wait for enough bytes, an error or the time to pass; then read anew."""
    node = context.node
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def look() -> None:
        if sum(read.available_bytes(order) for read in reads) >= order.min_bytes:
            finish()

    timer = node.timers.after(request.max_wait_ms, finish)
    for read in reads:
        read.watch(look)
    try:
        await done
    finally:
        timer.cancel()
        for read in reads:
            read.unwatch(look)
    read_all(order, reads)
    return _response(reads)


def _response(reads: Iterable[PartitionRead]) -> FetchResponse:
    topics: list[FetchableTopic] = []
    for read in reads:
        last = topics[-1] if topics else None
        if last is None or (last.topic, last.topic_id) != (read.topic or "", read.topic_id):
            last = FetchableTopic(topic=read.topic or "", topic_id=read.topic_id)
            topics.append(last)
        last.partitions.append(read.answer or PartitionData())
    return FetchResponse(error_code=0, session_id=0, responses=topics)
