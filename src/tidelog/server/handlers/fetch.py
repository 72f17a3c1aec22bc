"""Fetch: record batches as they lie in the log, now or when enough of them are there.

Source: Kafka's protocol guide, API 1; Kafka 4.x KafkaApis.handleFetchRequest, ReplicaManager;
KIP-74 (limits), KIP-227 (sessions), KIP-320 and KIP-595 (epochs), KIP-516 (topic ids), KIP-951.
"""

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

from tidelog.protocol.messages.fetch import (
    FetchableTopic,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from tidelog.server.asked_partitions import find_partition, opened_first
from tidelog.server.fetch_reading import Reading, Wait, finish
from tidelog.server.fetch_sessions import (
    CachedPartition,
    Fetching,
    PartitionKey,
    SessionRequest,
)
from tidelog.server.node import Node
from tidelog.server.partition_reads import PartitionRead, ReadOrder
from tidelog.server.requests import RequestContext
from tidelog.types import IsolationLevel

BY_ID_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
UNKNOWN_TOPIC_ID: Final = 100


def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """The records that are there, or a wait for more of them."""
    node, order = context.node, _order(context, request)
    now_ms = node.env.clock.monotonic_ms()
    fetching = node.fetch_sessions.open(_session_request(context, request), now_ms)
    if fetching.error_code:
        return _response(context, fetching, ())
    missing = node.partitions.unopened(_unused(node, fetching.partitions))
    if missing:
        return opened_first(node, missing, lambda: _answer(context, request, order, fetching))
    return _answer(context, request, order, fetching)


def _answer(
    context: RequestContext, request: FetchRequest, order: ReadOrder, fetching: Fetching
) -> FetchResponse | Awaitable[FetchResponse]:
    node = context.node
    reads = _reads(node, fetching.partitions)
    reading = Reading(order, reads)
    if not reading.go() or not _is_enough(request, order, reads):
        return _later(context, request, _Fetch(order, fetching, reads), reading)
    return _response(context, fetching, reads)


class _Fetch:
    """What belongs together while a fetch waits."""

    __slots__ = ("fetching", "order", "reads")

    def __init__(
        self, order: ReadOrder, fetching: Fetching, reads: Sequence[PartitionRead]
    ) -> None:
        self.order = order
        self.fetching = fetching
        self.reads = reads


async def _later(
    context: RequestContext, request: FetchRequest, asked: _Fetch, reading: Reading
) -> FetchResponse:
    """Read what is not in memory; wait for enough bytes, an error or the time to pass."""
    node = context.node
    await finish(reading, node.reads)
    if not _is_enough(request, asked.order, asked.reads):
        await Wait(asked.order, asked.reads).wait(node.timers, request.max_wait_ms)
        await finish(Reading(asked.order, asked.reads), node.reads)
    return _response(context, asked.fetching, asked.reads)


# -- the request -------------------------------------------------------------------------------


def _order(context: RequestContext, request: FetchRequest) -> ReadOrder:
    replica_id = request.replica_id
    if context.version >= _REPLICA_STATE_SINCE:
        replica_id = request.replica_state.replica_id
    most = min(request.max_bytes, context.node.config.fetch_max_bytes)
    return ReadOrder(
        context.version,
        IsolationLevel(1 if request.isolation_level == 1 else 0),
        replica_id >= 0,
        min(request.min_bytes, most),
        most,
        request.with_append_times,
    )


def _session_request(context: RequestContext, request: FetchRequest) -> SessionRequest:
    by_id = context.version >= BY_ID_SINCE
    return SessionRequest(
        session_id=request.session_id,
        epoch=request.session_epoch,
        by_id=by_id,
        is_follower=request.replica_id >= 0 or request.replica_state.replica_id >= 0,
        asked=[
            (_key(topic.topic_id if by_id else topic.topic, asked.partition), asked)
            for topic in request.topics
            for asked in topic.partitions
        ],
        forgotten=[
            _key(topic.topic_id if by_id else topic.topic, number)
            for topic in request.forgotten_topics_data
            for number in topic.partitions
        ],
    )


def _key(topic: str | UUID, partition: int) -> PartitionKey:
    return topic, partition


def _reads(node: Node, partitions: Iterable[CachedPartition]) -> list[PartitionRead]:
    """All partitions, those that are not there behind the others, as Kafka answers."""
    reads = [_read(node, cached) for cached in partitions]
    if all(read.partition is not None for read in reads):
        return reads
    return sorted(reads, key=lambda read: read.partition is None)


def _unused(node: Node, partitions: Iterable[CachedPartition]) -> Iterator[tuple[str, int]]:
    """Those that no request of this session has found yet, by name."""
    for cached in partitions:
        if cached.partition is None or cached.partition.is_gone:
            topic, number = cached.key
            info = None if isinstance(topic, str) else node.topics.find_by_id(topic)
            name = topic if info is None else info.name
            if isinstance(name, str):
                yield name, number


def _read(node: Node, cached: CachedPartition) -> PartitionRead:
    known = cached.partition
    if known is not None and not known.is_gone:
        return PartitionRead(cached, known)
    topic, number = cached.key
    if not isinstance(topic, str):
        info = node.topics.find_by_id(topic)
        if info is None:
            return PartitionRead(cached, None, UNKNOWN_TOPIC_ID)
        topic = info.name
    found = find_partition(node, topic, number)
    if isinstance(found, int):
        return PartitionRead(cached, None, found)
    cached.partition = found
    return PartitionRead(cached, found)


def _is_enough(request: FetchRequest, order: ReadOrder, reads: Sequence[PartitionRead]) -> bool:
    """Whether there is no reason to wait."""
    return (
        request.max_wait_ms <= 0
        or all(read.partition is None for read in reads)
        or any(read.must_answer for read in reads)
        or sum(read.size_bytes for read in reads) >= order.min_bytes
    )


# -- the response ------------------------------------------------------------------------------


def _response(
    context: RequestContext, fetching: Fetching, reads: Iterable[PartitionRead]
) -> FetchResponse:
    node = context.node
    context.connection.fetches.note(node.metrics, reads)
    said = fetching.answer(
        [(read.cached, read.answer) for read in reads], node.env.clock.monotonic_ms()
    )
    response = FetchResponse(
        error_code=said.error_code, session_id=said.session_id, responses=_topics(said.partitions)
    )
    if any(data.current_leader.leader_epoch >= 0 for _, data in said.partitions):
        for _, data in said.partitions:
            if data.current_leader.leader_epoch >= 0:
                data.current_leader.leader_id = node.node_id
        here = node.address
        response.node_endpoints = [
            NodeEndpoint(node_id=node.node_id, host=here.host, port=here.port, rack=None)
        ]
    return response


def _topics(told: Iterable[tuple[CachedPartition, PartitionData]]) -> list[FetchableTopic]:
    """Partitions as the response has them: those of a topic together where they follow."""
    topics: list[FetchableTopic] = []
    last: str | UUID | None = None
    for cached, data in told:
        topic = cached.key[0]
        if topic != last:
            last = topic
            topics.append(
                FetchableTopic(topic=topic)
                if isinstance(topic, str)
                else FetchableTopic(topic_id=topic)
            )
        topics[-1].partitions.append(data)
    return topics
