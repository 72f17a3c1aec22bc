"""Produce: batches go into their partitions' logs; one answer for each partition.

Checks come in Kafka's order: what is wrong with the request, then with each partition's records as
they were framed, then what the log says. A refusal of one partition leaves the others alone. With
acks=0 nothing is answered; a refusal closes the connection, which is all that such a client sees.

Source: Kafka's protocol guide, API 0; KIP-467 (errors by record), KIP-516 (topic ids).
"""

from collections.abc import Awaitable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import CorruptBatch, RefusedRecords, TidelogError
from tidelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.record.batch import (
    ATTRIBUTES_AT,
    MAGIC_2,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from tidelog.record.views import Batch, frame_size, walk
from tidelog.server.errors import Unanswered
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.types import Buffer, Codec, TopicPartition

if TYPE_CHECKING:
    import asyncio

UNKNOWN_SERVER_ERROR: Final = -1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
REQUEST_TIMED_OUT: Final = 7
INVALID_TOPIC: Final = 17
INVALID_REQUIRED_ACKS: Final = 21
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
INVALID_PRODUCER_ID_MAPPING: Final = 49
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
UNSUPPORTED_COMPRESSION: Final = 76
INVALID_RECORD: Final = 87
UNKNOWN_TOPIC_ID: Final = 100

VALID_ACKS: Final = frozenset({-1, 0, 1})
BATCHES_FIRST_VERSION: Final = 3
ZSTD_FIRST_VERSION: Final = 7
TOPIC_IDS_FIRST_VERSION: Final = 13
# Kafka's admin client alone may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"
# What Kafka answers without the log's start: damage, no partition, too large, a failed disk.
_WITHOUT_START: Final = frozenset({2, 3, 10, 18, 56})


class _Request(NamedTuple):
    """What holds for all partitions of a request, and whose answers have to wait."""

    context: RequestContext
    acks: int
    waiting: "list[_Waiting]"


class _Waiting(NamedTuple):
    """A partition's answer that holds once readers may see its records."""

    answer: PartitionProduceResponse
    is_shown: "asyncio.Future[int]"


def produce(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append each partition's records.

    Raises:
        Unanswered: With acks=0, where a partition refused its records.
    """
    holds = context.node.partitions.holds
    if holds and holds.stops_appends(_topic_names(context, request)):
        return _when_free(context, request)
    missing = context.node.partitions.unopened(_names(context, request))
    if missing:
        return _when_open(context, request, missing)
    return _append_all(context, request)


def _append_all(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    common = _Request(context, request.acks, [])
    refusal = _refusal_of_all(request)
    responses = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=_append_topic(common, topic)
            if refusal is None
            else [_refused(data.index, *refusal) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    if request.acks == 0:
        _raise_first_error(context, responses)
        return None
    response = ProduceResponse(responses=responses)
    if not common.waiting:
        return response
    return _when_shown(common, response, request.timeout_ms)


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
    await partitions.open_beside(missing, context.node.work)
    if partitions.holds.stops_appends(_topic_names(context, request)):
        return await _when_free(context, request)
    said = _append_all(context, request)
    return await said if isinstance(said, Awaitable) else said


async def _when_shown(
    common: _Request, response: ProduceResponse, timeout_ms: int
) -> ProduceResponse:
    """The response once all of it holds; what doesn't by the time-out is answered as Kafka does."""

    def time_out() -> None:
        for _, is_shown in common.waiting:
            if not is_shown.done():
                is_shown.set_result(REQUEST_TIMED_OUT)

    timer = common.context.node.timers.after(max(timeout_ms, 0), time_out)
    try:
        for answer, is_shown in common.waiting:
            code = await is_shown
            if code:
                _refuse(answer, code)
    finally:
        timer.cancel()
    return response


def _refusal_of_all(request: ProduceRequest) -> tuple[int, str | None] | None:
    """The error that the whole request gets, and what is said of it; None for none.

    As Kafka's: one frame that can't be, or records of a transaction that nobody named, in whatever
    partition they are.
    """
    try:
        is_transactional = _has_transactional_records(request)
    except CorruptBatch as error:
        return CORRUPT_MESSAGE, str(error)
    if is_transactional and request.transactional_id is None:
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
    return None


def _has_transactional_records(request: ProduceRequest) -> bool:
    """Whether a first batch of format 2 says so; raises CorruptBatch where its frame can't be."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or frame_size(records, 0, len(records)) is None:
                continue
            is_marked = records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
            if is_marked and records[MAGIC_AT] == MAGIC_2:
                return True
    return False


def _append_topic(common: _Request, topic: TopicProduceData) -> list[PartitionProduceResponse]:
    name = _name_of(common.context, topic)
    if name is None:
        return [_refused(data.index, UNKNOWN_TOPIC_ID) for data in topic.partition_data]
    return [_append(common, name, data) for data in topic.partition_data]


def _name_of(context: RequestContext, topic: TopicProduceData) -> str | None:
    """The topic's name, None where its id is nobody's."""
    if context.version < TOPIC_IDS_FIRST_VERSION:
        return topic.name
    info = context.node.topics.find_by_id(topic.topic_id)
    return None if info is None else info.name


def _append(common: _Request, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
    context, index = common.context, data.index
    try:
        partition = context.node.partitions.get(topic, index)
    except TidelogError as error:
        return _refused(index, error.code or UNKNOWN_SERVER_ERROR)
    try:
        code = _refusal_of(context, topic, data.records) or (
            0 if common.acks in VALID_ACKS else INVALID_REQUIRED_ACKS
        )
        if code:
            return _refused(index, code)
        assert data.records is not None
        is_legacy = context.version < BATCHES_FIRST_VERSION
        if is_legacy and not data.records:
            return PartitionProduceResponse(index=index, error_code=0, base_offset=-1)
        result = partition.append(data.records, owned=True, takes_legacy=is_legacy)
        context.node.metrics.produced(topic, data.records, result)
    except TidelogError as error:
        return _failed(partition, index, error)
    answer = PartitionProduceResponse(
        index=index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    if partition.must_wait(result, common.acks):
        common.waiting.append(_Waiting(answer, partition.when_shown(result.last_offset + 1)))
    return answer


def _refusal_of(context: RequestContext, topic: str, records: Buffer | None) -> int:
    """The error that records get before the log sees them; 0 for none.

    Raises:
        CorruptBatch: Their frames can't be right.
    """
    if records is None:
        return UNKNOWN_SERVER_ERROR  # Kafka's code: it comes to nothing there
    if context.version < BATCHES_FIRST_VERSION:
        return _legacy_refusal(context, topic, records)
    batches = walk(records)
    first = next(batches, None)
    if first is None or first.magic != MAGIC_2:
        return INVALID_RECORD
    if context.version < ZSTD_FIRST_VERSION and first.codec is Codec.ZSTD:
        return UNSUPPORTED_COMPRESSION
    if first.size_bytes < len(records) and next(batches, None) is not None:
        return INVALID_RECORD
    return _refusal_to(context, topic, first)


def _legacy_refusal(context: RequestContext, topic: str, records: Buffer) -> int:
    """The same for clients that know no record batches.

    As Kafka took it from them, a set of no messages is no error; a set of batches is one.
    """
    first = next(walk(records), None)
    if first is None:
        return INVALID_RECORD if records else 0
    if first.magic == MAGIC_2:
        return UNSUPPORTED_FOR_MESSAGE_FORMAT
    return _refusal_to(context, topic, first)


def _refusal_to(context: RequestContext, topic: str, batch: Batch) -> int:
    """The error of whoever may not write this batch there; 0 where he may."""
    if batch.is_transactional:
        return INVALID_PRODUCER_ID_MAPPING  # no transaction of that name was begun
    if context.node.topics.is_internal(topic) and context.client_id != ADMIN_CLIENT_ID:
        return INVALID_TOPIC
    return 0


def _refuse(answer: PartitionProduceResponse, code: int) -> None:
    answer.error_code = code
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _refused(index: int, code: int, reason: str | None = None) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=reason
    )


def _failed(partition: Partition, index: int, error: TidelogError) -> PartitionProduceResponse:
    """What the log said, as Kafka tells it: only refused records are explained."""
    code = UNKNOWN_SERVER_ERROR if error.code is None else error.code
    answer = _refused(index, code)
    if code not in _WITHOUT_START:
        answer.log_start_offset = partition.log.log_start_offset
    if isinstance(error, RefusedRecords) and error.record_errors:
        answer.error_message = str(error)
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.index, batch_index_error_message=each.reason)
            for each in error.record_errors
        ]
    return answer


def _raise_first_error(context: RequestContext, topics: Iterable[TopicProduceResponse]) -> None:
    for topic in topics:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise Unanswered(
                    f"{topic.name}-{answer.index}: error {answer.error_code} for"
                    f" {context.client_id}, which wants no answer (acks=0)",
                    answer.error_code,
                )
