"""Fetch: return record batches as soon as enough bytes are available or the wait time is over.

Fetch has no guard: this module checks the rights to each topic, because a session remembers
partitions between requests. A Fetch of very many partitions is processed in slices and gets no
session. With a session, even a later request that names few partitions would read all partitions of
the session at once. Without a session the client names all partitions each time, as with a broker
whose session cache is full.

Source: Kafka's protocol guide, API 1; Kafka 4.x KafkaApis.handleFetchRequest, ReplicaManager;
KIP-74 (limits), KIP-227 (sessions), KIP-320 and KIP-595 (epochs), KIP-516 (topic ids), KIP-951.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, cast
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.fetch import (
    FetchableTopic,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from tidelog.protocol.requests import ReceivedRequest
from tidelog.server.api.context import RequestContext, RowAnswers, RowFunctions, TopicRows
from tidelog.server.api.guards import Access
from tidelog.server.api.node import Node
from tidelog.server.partitions.fetch import (
    CachedPartition,
    PartitionKey,
    PartitionRead,
    Reading,
    ReadOrder,
    Wait,
)
from tidelog.server.partitions.fetch_sessions import (
    LAST_EPOCH,
    NO_SESSION,
    Fetching,
    RequestedPartition,
    SessionRequest,
)
from tidelog.server.partitions.legacy_clients import MAGIC_2_SINCE
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.loop import Slices
from tidelog.server.security.operations import Operation
from tidelog.types import ISOLATION_LEVELS, Buffer

# First version in which topics are named by id.
BY_ID_SINCE: Final = 13

# First version in which the follower's broker id is in `replica_state`, a tagged field.
REPLICA_STATE_SINCE: Final = 15


async def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Wait at most the request's wait time for enough bytes, then return the available records."""
    node = context.node
    now_ms = node.env.clock.monotonic_ms()
    fetching = node.fetch_sessions.open(_session_request(context, request), now_ms)
    if fetching.error_code:
        return response_of(context, fetching, ())
    order = order_of(context, request)
    reads = await _reads(context, fetching.partitions, is_follower=order.is_follower)
    if request.isolation_level not in ISOLATION_LEVELS and any(read.partition for read in reads):
        return _refused(context.version, request)
    reading = Reading(order, reads)
    await reading.finish(node.reads)
    if not reading.is_enough(request.max_wait_ms):
        await Wait(order, reads).wait(node.timers, request.max_wait_ms)
        await Reading(order, reads).finish(node.reads)
    return response_of(context, fetching, reads, is_copy=order.is_follower)


# -- the request -------------------------------------------------------------------------------


def replica_of(version: int, request: FetchRequest) -> int:
    """Return the broker id of the follower that sent the request; negative for a consumer."""
    if version < REPLICA_STATE_SINCE:
        return request.replica_id
    return request.replica_state.replica_id


def order_of(context: RequestContext, request: FetchRequest) -> ReadOrder:
    """Return the options of a request that apply to all its partitions."""
    is_follower = replica_of(context.version, request) >= 0
    max_bytes = limit_bytes(context, request.max_bytes, is_copy=is_follower)
    return ReadOrder(
        context.version,
        request.isolation_level,
        is_follower=is_follower,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        with_append_times=request.with_append_times,
    )


def limit_bytes(context: RequestContext, max_bytes: int, *, is_copy: bool = False) -> int:
    """Return the maximum total size in bytes of the records of all partitions.

    Args:
        context: Context of the request.
        max_bytes: Maximum size that the client requests.
        is_copy: Whether a follower sent the request. A consumer's quota also limits the size, but
            the quota does not apply to followers.
    """
    limit = min(max_bytes, context.node.config.fetch_max_bytes)
    if context.node.throttles is None or is_copy:
        return limit
    from tidelog.server.api.charges import allowed_bytes  # imported only if quotas exist

    allowed = allowed_bytes(context)
    return limit if allowed is None else min(limit, allowed)


def _session_request(context: RequestContext, request: FetchRequest) -> SessionRequest:
    by_id = context.version >= BY_ID_SINCE
    return SessionRequest(
        session_id=request.session_id,
        epoch=request.session_epoch,
        by_id=by_id,
        is_follower=replica_of(context.version, request) >= 0,
        partitions=[
            (_key(topic.topic_id if by_id else topic.topic, partition.partition), partition)
            for topic in request.topics
            for partition in topic.partitions
        ],
        forgotten=[
            _key(topic.topic_id if by_id else topic.topic, number)
            for topic in request.forgotten_topics_data
            for number in topic.partitions
        ],
    )


def _key(topic: str | UUID, partition: int) -> PartitionKey:
    return topic, partition


async def _reads(
    context: RequestContext, partitions: Sequence[CachedPartition], *, is_follower: bool
) -> list[PartitionRead]:
    """Open partitions, and return a read for each partition that the client may read.

    As in Kafka, refused or missing partitions come last.
    """
    node = context.node
    await node.partitions.ensure_open(_unused(node, partitions))
    denied = frozenset[str | UUID]()
    if node.authorizer is not None:
        denied = _denied_topics(context, partitions, is_follower=is_follower)
    reads = [
        _read_of(cached, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if denied and cached.key[0] in denied
        else _read(node, cached)
        for cached in partitions
    ]
    if all(read.partition is not None for read in reads):
        return reads
    return sorted(reads, key=lambda read: read.partition is None)


def _denied_topics(
    context: RequestContext, partitions: Iterable[CachedPartition], *, is_follower: bool
) -> frozenset[str | UUID]:
    """Return the topics that the client is not authorized to read, by name or id as requested.

    A Fetch also reads partitions that its session remembers and the request does not name. So the
    rights to all partitions are checked for each Fetch. A follower may read either all topics or no
    topic. For a consumer, a topic with an unknown id is not denied.
    """
    access = Access(context)
    if is_follower:
        may_follow = access.may_cluster(Operation.CLUSTER_ACTION)
        return frozenset(() if may_follow else (cached.key[0] for cached in partitions))
    names = {cached.key[0]: _name(context.node, cached) for cached in partitions}
    return frozenset(
        topic
        for topic, name in names.items()
        if name is not None and not access.may_topic(Operation.READ, name)
    )


def _unused(node: Node, partitions: Iterable[CachedPartition]) -> Iterator[tuple[str, int]]:
    """Yield the topic name and number of each partition that still has to be looked up.

    These are partitions that were deleted since they were looked up, and partitions that were never
    looked up. Partitions with an unknown topic id are left out.
    """
    for cached in partitions:
        if cached.partition is None or cached.partition.is_deleted:
            topic, number = cached.key
            info = None if isinstance(topic, str) else node.topics.find_by_id(topic)
            name = topic if info is None else info.name
            if isinstance(name, str):
                yield name, number


def _name(node: Node, cached: CachedPartition) -> str | None:
    """Return the topic's name, or None for an unknown id.

    The session keeps a topic's name after the first lookup. So if the topic is deleted later, the
    client gets the error for a missing topic, not the error for an unknown id.
    """
    topic = cached.key[0]
    if isinstance(topic, str):
        return topic
    if cached.topic is None:
        info = node.topics.find_by_id(topic)
        cached.topic = None if info is None else info.name
    return cached.topic


def _read(node: Node, cached: CachedPartition) -> PartitionRead:
    cached_partition = cached.partition
    if cached_partition is not None and not cached_partition.is_deleted:
        return _read_of(cached, cached_partition)
    cached.partition = None  # free the deleted partition
    name = _name(node, cached)
    if name is None:
        return _read_of(cached, None, ErrorCode.UNKNOWN_TOPIC_ID)
    topic, number = cached.key
    partition = node.partitions.find(name, number)
    if isinstance(partition, int):
        return _read_of(cached, None, partition)
    if not isinstance(topic, str) and node.topics.find_by_id(topic) is None:
        return _read_of(cached, None, ErrorCode.INCONSISTENT_TOPIC_ID)
    cached.partition = partition
    return _read_of(cached, partition)


def _read_of(
    cached: CachedPartition, partition: Partition | None, refusal: int = 0
) -> PartitionRead:
    (topic, number), request = cached.key, cached.request
    read = PartitionRead(
        partition,
        number,
        request.fetch_offset,
        request.partition_max_bytes,
        request.current_leader_epoch,
        request.last_fetched_epoch,
        None if isinstance(topic, str) else topic,
        refusal,
    )
    read.cached = cached
    return read


# -- rows of repeated requests -----------------------------------------------------------------


def _may_repeat(version: int, request: FetchRequest) -> bool:
    """Whether later requests like this one may be answered by `_answer_rows`.

    The request must be valid and come from a consumer that needs no converted records. It must name
    topics, and have neither a session nor tidelog's own field `with_append_times`.
    """
    return (
        version >= MAGIC_2_SINCE
        and replica_of(version, request) < 0
        and request.session_id == NO_SESSION
        and request.session_epoch == LAST_EPOCH
        and not request.with_append_times
        and request.isolation_level in ISOLATION_LEVELS
        and request.max_bytes >= 0
        and bool(request.topics)
    )


def _answer_rows(
    context: RequestContext, request: FetchRequest, topics: Sequence[TopicRows]
) -> RowAnswers | None:
    """Read the partitions of a request that matches a template.

    Return None, so that the request is handled without the template, in these cases:

    - A partition is named twice, or was not used since the start of the broker.
    - A partition's result is an error, or reports that the client's log diverges from the broker's
      log.
    - The response would have to wait, or to list aborted transactions.
    - Requested records are not in memory.
    """
    node, order = context.node, order_of(context, request)
    reads: list[PartitionRead] = []
    for name, topic_id, rows in topics:
        if len(rows) > 1 and len({row[0] for row in rows}) < len(rows):
            return None
        for number, epoch, offset, last_epoch, _start, max_bytes in rows:
            partition = node.partitions.find_used(name, number)
            if partition is None:
                return None
            reads.append(
                PartitionRead(partition, number, offset, max_bytes, epoch, last_epoch, topic_id)
            )
    reading = Reading(order, reads)
    if not reading.go() or reading.must_answer or not reading.is_enough(request.max_wait_ms):
        return None
    if order.is_committed and [read for read in reads if read.aborted]:
        return None
    facts, records, at = [], [], 0
    for _, _, rows in topics:
        part = reads[at : at + len(rows)]
        at += len(rows)
        facts.append(
            [
                (r.number, 0, r.high_watermark, r.last_stable_offset, r.log_start_offset)
                for r in part
            ]
        )
        records.append([cast("Buffer", read.records) or None for read in part])
    return facts, records, partial(_accept_rows, context, reads)


def _accept_rows(context: RequestContext, reads: Sequence[PartitionRead], size_bytes: int) -> bool:
    if context.node.throttles is not None and _charge(context, lambda: size_bytes):
        return False
    context.connection.fetches.note(context.node.metrics, reads)
    return True


FETCH_ROWS: Final = RowFunctions(Operation.READ, _may_repeat, _answer_rows)


# -- the response ------------------------------------------------------------------------------


def _refused(version: int, request: FetchRequest) -> FetchResponse:
    """Return the response to a request with an unknown isolation level.

    As in Kafka, the response has the error UNKNOWN_SERVER_ERROR. Before version 13, each partition
    also has this error.
    """
    topics = request.topics if version < BY_ID_SINCE else ()
    return FetchResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR,
        session_id=request.session_id,
        responses=[
            FetchableTopic(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition,
                        error_code=ErrorCode.UNKNOWN_SERVER_ERROR,
                        high_watermark=-1,
                        aborted_transactions=[],
                        records=b"",
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


def response_of(
    context: RequestContext,
    fetching: Fetching,
    reads: Sequence[PartitionRead],
    *,
    is_copy: bool = False,
) -> FetchResponse:
    """Return the response to a Fetch.

    Counts the response's partitions in the metrics, and marks them as sent in the session.

    If this response would exceed the client's quota, the result is a response without partitions.
    """
    node = context.node
    if node.throttles is not None and not is_copy:
        throttle_ms = _charge(context, lambda: _size(context, fetching, reads))
        if throttle_ms:
            empty = fetching.empty_response()
            return FetchResponse(
                throttle_time_ms=throttle_ms,
                error_code=empty.error_code,
                session_id=empty.session_id,
            )
    context.connection.fetches.note(node.metrics, reads)
    result = fetching.respond(reads, node.env.clock.monotonic_ms())
    response = FetchResponse(
        error_code=result.error_code,
        session_id=result.session_id,
        responses=topics_of(result.partitions, node.node_id),
    )
    if any(read.fenced_epoch >= 0 for read in result.partitions):
        response.node_endpoints = [_endpoint(context)]
    return response


def _endpoint(context: RequestContext) -> NodeEndpoint:
    """Return this broker's address, which is sent to clients that named an older leader epoch."""
    node, address = context.node, context.address
    return NodeEndpoint(
        node_id=node.node_id, host=address.host, port=address.port, rack=node.config.broker_rack
    )


def _charge(context: RequestContext, size: Callable[[], int]) -> int:
    """Charge the quota of fetched bytes if the response does not exceed it, and return 0.

    If the response would exceed the quota, charge nothing, have the connection muted after the
    response, and return the throttle time in ms.
    """
    from tidelog.server.api.charges import charge_fetch  # imported only if quotas exist

    throttle_ms = charge_fetch(context, size)
    if throttle_ms:
        context.connection.throttle_ms = throttle_ms
    return throttle_ms


def _size(context: RequestContext, fetching: Fetching, reads: Sequence[PartitionRead]) -> int:
    """Return the response's size in bytes, but don't mark its partitions as sent."""
    from tidelog.server.api.charges import encoded_size

    topics = topics_of(fetching.preview(reads), context.node.node_id)
    return encoded_size(context, FetchResponse(responses=topics))


def topics_of(reads: Iterable[PartitionRead], node_id: int) -> list[FetchableTopic]:
    """Group consecutive partitions of the same topic, as the response lists them."""
    topics: list[FetchableTopic] = []
    last: str | UUID | None = None
    for read in reads:
        topic = read.cached.key[0]
        if topic != last:
            last = topic
            topics.append(
                FetchableTopic(topic=topic)
                if isinstance(topic, str)
                else FetchableTopic(topic_id=topic)
            )
        topics[-1].partitions.append(read.response(node_id))
    return topics


# Maximum number of partitions in one Fetch. The maximum limits memory, because each partition takes
# about 500 bytes while the Fetch waits.
PARTITIONS_MAX: Final = 30_000

_SLICE: Final = 100

# Approximate size in bytes of a partition in the response, without its records. For each partition,
# a long Fetch charges this size and the size of the records to the client's quota.
_PARTITION_BYTES: Final = 40


async def long_fetch(
    context: RequestContext, read: Callable[[], Awaitable[ReceivedRequest]], slices: Slices
) -> AsyncIterator[FetchResponse]:
    """Answer a Fetch of many partitions in parts, each with the next partitions of the response.

    An incremental request gets FETCH_SESSION_ID_NOT_FOUND. The client then sends a full request. If
    the isolation level is unknown, each partition gets UNKNOWN_SERVER_ERROR. If the level is known
    and there are more than `PARTITIONS_MAX` partitions, each partition gets INVALID_REQUEST.

    Args:
        context: Context of the request.
        read: Decodes the request.
        slices: Yields the event loop between slices.
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
        for key, partition in _drain(context, request):
            cached = CachedPartition(key, partition)
            if code:
                refused.append(_read_of(cached, None, code))
            else:
                partitions[key] = cached
            if len(refused) == _SLICE:
                yield _refusal(context, refused)
                refused = []
            await slices.rest()
        if code:
            yield _refusal(context, refused)
            return
    async for part in _answer_long(context, request, list(partitions.values()), slices):
        yield part


def _drain(context: RequestContext, request: FetchRequest) -> Iterator[RequestedPartition]:
    """Yield the request's partitions and remove them one by one.

    In this way no long list is freed at once.
    """
    by_id = context.version >= BY_ID_SINCE
    request.topics.reverse()
    while request.topics:
        topic = request.topics.pop()
        topic.partitions.reverse()
        while topic.partitions:
            partition = topic.partitions.pop()
            yield (topic.topic_id if by_id else topic.topic, partition.partition), partition


def _refusal(context: RequestContext, reads: Sequence[PartitionRead]) -> FetchResponse:
    for read in reads:
        read.refuse(read.refusal)
    return _part(context, reads)


def _part(context: RequestContext, reads: Sequence[PartitionRead]) -> FetchResponse:
    return response_of(context, Fetching(()), reads, is_copy=True)


async def _answer_long(
    context: RequestContext,
    request: FetchRequest,
    partitions: Sequence[CachedPartition],
    slices: Slices,
) -> AsyncIterator[FetchResponse]:
    """Read the partitions, wait for enough bytes, and yield the response in parts."""
    node, order = context.node, order_of(context, request)
    reads: list[PartitionRead] = []
    for start in range(0, len(partitions), _SLICE):
        some = partitions[start : start + _SLICE]
        reads += await _reads(context, some, is_follower=order.is_follower)
        await slices.rest()
    reading = await _read_slice(context, order, reads, slices)
    if not reading.is_enough(request.max_wait_ms):
        await Wait(order, reads).wait(node.timers, request.max_wait_ms)
        await _read_slice(context, order, reads, slices)
    if node.throttles is not None and not order.is_follower:
        throttle_ms = _charge(
            context, lambda: sum(read.size_bytes + _PARTITION_BYTES for read in reads)
        )
        if throttle_ms:
            yield FetchResponse(throttle_time_ms=throttle_ms)
            return
    # The first part sets the fields of the response other than the list of topics.
    yield _head(context, reads)
    for start in range(0, len(reads), _SLICE):
        yield _part(context, reads[start : start + _SLICE])
        await slices.rest()


def _head(context: RequestContext, reads: Sequence[PartitionRead]) -> FetchResponse:
    """Return a part without partitions.

    If a partition in any later part names the current leader, the returned part contains this
    broker's endpoint.
    """
    if all(read.fenced_epoch < 0 for read in reads):
        return FetchResponse()
    return FetchResponse(node_endpoints=[_endpoint(context)])


async def _read_slice(
    context: RequestContext, order: ReadOrder, reads: Sequence[PartitionRead], slices: Slices
) -> Reading:
    reading = Reading(order, reads)
    for end in range(_SLICE, len(reads) + _SLICE, _SLICE):
        await reading.finish(context.node.reads, end)
        await slices.rest()
    return reading
