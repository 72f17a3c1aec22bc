"""Produce: batches go into their partitions' logs; one answer for each partition.

Checks come in Kafka's order: what is wrong with the request, then with each partition's records
(`produce_appends`). A refusal of one partition leaves the others alone. With acks=0 nothing is
answered; a refusal closes the connection, which is all that such a client sees.

A request for many partitions, or for some that take long to check, is worked on a slice at a time;
what is one partition's is done at once.

Source: Kafka's protocol guide, API 0; KIP-467 (errors by record), KIP-516 (topic ids).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptBatch
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.server.errors import Unanswered
from tidelog.server.handlers.produce_appends import (
    Request,
    append,
    append_long,
    is_refused,
    refused,
)
from tidelog.server.handlers.produce_once import named_once
from tidelog.server.handlers.produce_plain import (
    TOPIC_IDS_FIRST_VERSION,
    Part,
    append_parts,
    plain_parts,
)
from tidelog.server.handlers.produce_transactions import (
    Refusal,
    TwoProducers,
    Verdicts,
    Wanted,
    ask,
    begin,
    has_transactional_records,
    wanted_in,
)
from tidelog.server.requests import RequestContext
from tidelog.types import TopicPartition

# What most requests need is far less.
SLICE_MS: Final = 20

Said: TypeAlias = "ProduceResponse | Awaitable[ProduceResponse | None] | None"
# What is left to be appended: of which topic, what, and where the answer goes.
_Left: TypeAlias = deque[
    tuple[TopicProduceData, PartitionProduceData, list[PartitionProduceResponse]]
]


def produce(context: RequestContext, request: ProduceRequest) -> Said:
    """Append each partition's records.

    Raises:
        Unanswered: With acks=0, where a partition refused its records.
    """
    if _names_many(request):
        responses: list[TopicProduceResponse] = []
        parts = plain_parts(context, request, responses)
        if parts is not None:
            return _answer_parts(context, request, responses, parts)
        request = _named_once(context, request)
    holds = context.node.partitions.holds
    if holds and holds.stops_appends(_topic_names(context, request)):
        return _when_free(context, request)
    missing = context.node.partitions.unopened(_names(context, request))
    if missing:
        return _when_open(context, request, missing)
    return _append_all(context, request)


def _append_all(context: RequestContext, request: ProduceRequest) -> Said:
    try:
        is_transactional = has_transactional_records(request)
    except CorruptBatch as error:
        return _answer_all(context, request, None, Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)))
    if not is_transactional:
        return _answer_all(context, request, None)
    if request.transactional_id is None:
        refusal = Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return _answer_all(context, request, None, refusal)
    try:
        verdicts = begin(context.node, _wanted(context, request), context.version)
    except TwoProducers as error:
        refusal = Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, str(error))
        return _answer_all(context, request, None, refusal)
    if verdicts.guards:
        return _when_verified(context, request, request.transactional_id, verdicts)
    return _answer_all(context, request, verdicts)


def _answer_all(
    context: RequestContext,
    request: ProduceRequest,
    verdicts: Verdicts | None,
    refusal: Refusal | None = None,
) -> Said:
    """Append what may be; what is said of it.

    Args:
        context: Who asks.
        request: What.
        verdicts: What is known of transactions, None where there are none.
        refusal: Why nothing of it is taken.
    """
    common = Request(context, request.acks, [], verdicts, [])
    if refusal is None and _names_many(request):
        return _answer_many(common, request)
    responses = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[_append(common, topic, data) for data in topic.partition_data]
            if refusal is None
            else [refused(data.index, *refusal) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return said_once_shown(common, request, responses)


def said_once_shown(
    common: Request, request: ProduceRequest, responses: list[TopicProduceResponse]
) -> Said:
    """What is said once all is appended; acks=0 raises Unanswered, or says nothing."""
    if common.long:
        return _when_checked(common, request, responses)
    if request.acks == 0:
        _raise_first_error(common.context, responses)
        return None
    response = ProduceResponse(responses=responses)
    if not common.waiting:
        return response
    return _when_shown(common, response, request.timeout_ms)


async def _when_checked(
    common: Request, request: ProduceRequest, responses: list[TopicProduceResponse]
) -> ProduceResponse | None:
    """The response once what takes long to check is appended, too."""
    await append_long(common)
    common.long.clear()
    said = said_once_shown(common, request, responses)
    return await said if isinstance(said, Awaitable) else said


# -- more than one partition -----------------------------------------------------------------


def _names_many(request: ProduceRequest) -> bool:
    """Or none, of a topic: it is left out then."""
    topics = request.topic_data
    return len(topics) > 1 or (len(topics) == 1 and len(topics[0].partition_data) != 1)


def _named_once(context: RequestContext, request: ProduceRequest) -> ProduceRequest:
    def is_so(topic: TopicProduceData, data: PartitionProduceData) -> bool:
        return is_refused(context, _name_of(context, topic) or "", data.records)

    return named_once(request, is_so)


def _answer_parts(
    context: RequestContext,
    request: ProduceRequest,
    responses: list[TopicProduceResponse],
    parts: list[Part],
) -> Said:
    common = Request(context, request.acks, [], None, [])
    done = append_parts(common, parts, SLICE_MS)
    if done == len(parts):
        return said_once_shown(common, request, responses)
    left = deque((part.topic, part.data, part.answers) for part in parts[done:])
    return _append_rest(common, request, responses, left)


def _answer_many(common: Request, request: ProduceRequest) -> Said:
    responses = [
        TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[])
        for topic in request.topic_data
    ]
    left: _Left = deque(
        (topic, data, said.partition_responses)
        for topic, said in zip(request.topic_data, responses, strict=True)
        for data in topic.partition_data
    )
    if _append_some(common, left):
        return said_once_shown(common, request, responses)
    return _append_rest(common, request, responses, left)


def _append_some(common: Request, left: _Left) -> bool:
    """Append until a slice is over; whether nothing is left."""
    now_ms = common.context.node.env.clock.monotonic_ms
    end_ms = now_ms() + SLICE_MS
    while left:
        topic, data, answers = left.popleft()
        answers.append(_append(common, topic, data))
        if now_ms() >= end_ms:
            break
    return not left


async def _append_rest(
    common: Request, request: ProduceRequest, responses: list[TopicProduceResponse], left: _Left
) -> ProduceResponse | None:
    """Go on, others first; topics may be held up, deleted or made anew meanwhile."""
    holds = common.context.node.partitions.holds
    is_done = False
    while not is_done:
        await asyncio.sleep(0)
        while holds and holds.stops_appends(_topic_names(common.context, request)):
            await holds.wait(_topic_names(common.context, request))
        is_done = _append_some(common, left)
    said = said_once_shown(common, request, responses)
    return await said if isinstance(said, Awaitable) else said


# -- before anything is appended -------------------------------------------------------------


def _topic_names(context: RequestContext, request: ProduceRequest) -> list[str]:
    """The topics of a request, those that are named by their ids included."""
    by_id = context.version >= TOPIC_IDS_FIRST_VERSION
    find = context.node.topics.find_by_id
    found = (find(topic.topic_id) for topic in request.topic_data) if by_id else ()
    names = [topic.name for topic in request.topic_data]
    return [info.name for info in found if info is not None] if by_id else names


async def _when_free(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append once segments that are being taken in are in their place."""
    await context.node.partitions.holds.wait(_topic_names(context, request))
    said = produce(context, request)
    return await said if isinstance(said, Awaitable) else said


def _names(context: RequestContext, request: ProduceRequest) -> Iterator[tuple[str, int]]:
    for topic in request.topic_data:
        name = _name_of(context, topic)
        if name is not None:
            for data in topic.partition_data:
                yield name, data.index


async def _when_open(
    context: RequestContext, request: ProduceRequest, missing: Iterable[TopicPartition]
) -> ProduceResponse | None:
    """Append once partitions are open that nobody has used yet."""
    partitions = context.node.partitions
    await partitions.open_beside(missing, context.node.work, to_write=True)
    if partitions.holds.stops_appends(_topic_names(context, request)):
        return await _when_free(context, request)
    said = _append_all(context, request)
    return await said if isinstance(said, Awaitable) else said


def _wanted(context: RequestContext, request: ProduceRequest) -> Iterator[Wanted]:
    """Records that are part of a transaction, of those that a log would look at."""
    for topic in request.topic_data:
        name = _name_of(context, topic)
        for data in topic.partition_data if name is not None else ():
            if name is None or not data.records or is_refused(context, name, data.records):
                continue
            wanted = wanted_in(data.records, (name, data.index))
            if wanted is not None:
                yield wanted


async def _when_verified(
    context: RequestContext, request: ProduceRequest, transactional_id: str, verdicts: Verdicts
) -> ProduceResponse | None:
    """Append once the coordinator of transactions has answered."""
    await ask(context.node, transactional_id, verdicts, context.version)
    holds = context.node.partitions.holds
    while holds and holds.stops_appends(_topic_names(context, request)):
        await holds.wait(_topic_names(context, request))
    said = _answer_all(context, request, verdicts)
    return await said if isinstance(said, Awaitable) else said


async def _when_shown(
    common: Request, response: ProduceResponse, timeout_ms: int
) -> ProduceResponse:
    """The response once all of it holds; what doesn't by the time-out is answered as Kafka does."""

    def time_out() -> None:
        for _, is_shown in common.waiting:
            if not is_shown.done():
                is_shown.set_result(ErrorCode.REQUEST_TIMED_OUT)

    timer = common.context.node.timers.after(max(timeout_ms, 0), time_out)
    try:
        for answer, is_shown in common.waiting:
            code = await is_shown
            if code:
                _refuse(answer, code)
    finally:
        timer.cancel()
    return response


def _append(
    common: Request, topic: TopicProduceData, data: PartitionProduceData
) -> PartitionProduceResponse:
    name = _name_of(common.context, topic)
    return (
        refused(data.index, ErrorCode.UNKNOWN_TOPIC_ID)
        if name is None
        else append(common, name, data)
    )


def _name_of(context: RequestContext, topic: TopicProduceData) -> str | None:
    """The topic's name, None where its id is nobody's."""
    if context.version < TOPIC_IDS_FIRST_VERSION:
        return topic.name
    info = context.node.topics.find_by_id(topic.topic_id)
    return None if info is None else info.name


def _refuse(answer: PartitionProduceResponse, code: int) -> None:
    answer.error_code = code
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _raise_first_error(context: RequestContext, topics: Iterable[TopicProduceResponse]) -> None:
    for topic in topics:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise Unanswered(
                    f"{topic.name}-{answer.index}: error {answer.error_code} for"
                    f" {context.client_id}, which wants no answer (acks=0)",
                    answer.error_code,
                )
