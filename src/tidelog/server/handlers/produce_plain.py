"""Produce: a request for many partitions in which nothing is out of the ordinary.

Nearly all are such, and what Python does for each partition counts. So one pass finds out that it
is so, and whose logs they are; then the batches go into their logs, each step with several of them.
Whatever is not plain is left to `produce` and `produce_appends`, which say what is wrong: nothing
was changed by then.
"""

from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.record.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_2, TRANSACTIONAL_BIT
from tidelog.server.handlers.produce_appends import (
    VALID_ACKS,
    ZSTD_FIRST_VERSION,
    Request,
    append,
    appended,
    failed,
)
from tidelog.server.partitions import Partition, Partitions
from tidelog.server.requests import RequestContext
from tidelog.storage.stepping import PlainAppend, append_together

TOPIC_IDS_FIRST_VERSION: Final = 13
# So many are appended to together, one at least: what takes next to no time.
GROUP_PARTITIONS: Final = 16
GROUP_BYTES: Final = 1 << 20
# Length, magic, the lower byte of the attributes.
_LOOK: Final = Struct(">8xi4xb5xB")


class Part(NamedTuple):
    """What is to be appended to one partition.

    Attributes:
        topic: As it was named.
        name: The topic's.
        partition: An open one.
        data: Its records seem to be one batch of format 2, and no transaction's.
        answers: Where its answer goes.
    """

    topic: TopicProduceData
    name: str
    partition: Partition
    data: PartitionProduceData
    answers: list[PartitionProduceResponse]


def plain_parts(
    context: RequestContext, request: ProduceRequest, responses: list[TopicProduceResponse]
) -> list[Part] | None:
    """All that is to be appended, in the request's order; None where it has to be looked at.

    Args:
        context: Who asks.
        request: What.
        responses: Gets one for each topic.
    """
    if context.version < ZSTD_FIRST_VERSION or request.acks not in VALID_ACKS:
        return None
    if context.node.partitions.holds:
        return None
    parts: list[Part] = []
    for topic in request.topic_data:
        name = _name_of(context, topic)
        if name is None or not _take(context.node.partitions, topic, name, parts, responses):
            return None
    topic_count = len(responses)
    if topic_count > 1 and len({(each.name, each.topic_id) for each in responses}) < topic_count:
        return None
    return parts


def _name_of(context: RequestContext, topic: TopicProduceData) -> str | None:
    """Its name; None where there is no such topic, or it is the broker's own."""
    name, topics = topic.name, context.node.topics
    if context.version >= TOPIC_IDS_FIRST_VERSION:
        info = topics.find_by_id(topic.topic_id)
        if info is None:
            return None
        name = info.name
    return None if topics.is_internal(name) else name


def _take(
    partitions: Partitions,
    topic: TopicProduceData,
    name: str,
    parts: list[Part],
    responses: list[TopicProduceResponse],
) -> bool:
    """Add a topic's parts and its response; False where one of them is not plain."""
    answers: list[PartitionProduceResponse] = []
    responses.append(
        TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
    )
    find, look = partitions.find_used, _LOOK.unpack_from
    named = set()
    for data in topic.partition_data:
        partition, records = find(name, data.index), data.records
        if partition is None or records is None or len(records) < HEADER_SIZE:
            return False
        length, magic, attributes = look(records)
        if (
            length + LOG_OVERHEAD != len(records)
            or magic != MAGIC_2
            or attributes & TRANSACTIONAL_BIT
        ):
            return False
        named.add(data.index)
        parts.append(Part(topic, name, partition, data, answers))
    return 0 < len(named) == len(topic.partition_data)


def append_parts(common: Request, parts: list[Part], slice_ms: int) -> int:
    """Append, some partitions together, until a slice is over; how many were answered.

    Args:
        common: What holds for all of them.
        parts: In order, of as many logs.
        slice_ms: How long others may have to wait.
    """
    now_ms = common.context.node.env.clock.monotonic_ms
    end_ms, done = now_ms() + slice_ms, 0
    while done < len(parts):
        count = _group_size(parts, done)
        _append_group(common, parts[done : done + count])
        done += count
        if done < len(parts) and now_ms() >= end_ms:
            break
    return done


def _group_size(parts: list[Part], first: int) -> int:
    """How many from one on are appended together."""
    size_bytes = count = 0
    for part in islice(parts, first, first + GROUP_PARTITIONS):
        size_bytes += len(part.data.records or b"")
        if count and size_bytes > GROUP_BYTES:
            break
        count += 1
    return count


def _append_group(common: Request, parts: list[Part]) -> None:
    """Each step with all of them; whom nobody told of anything yet is told at the end.

    So who waits for records, and does something at once when they come, finds every log at rest.
    """
    appends = append_together([(part.partition.log, part.data.records or b"") for part in parts])
    common.context.node.metrics.produced_together(
        (part.name, made) for part, made in zip(parts, appends, strict=True) if made is not None
    )
    for part, made in zip(parts, appends, strict=True):
        part.answers.append(_answer(common, part, made))


def _answer(common: Request, part: Part, made: PlainAppend | None) -> PartitionProduceResponse:
    """What is answered; what is not plain is appended now, or refused."""
    partition, index = part.partition, part.data.index
    if made is None:
        return append(common, part.name, part.data)
    said = made.said
    assert said is not None
    if isinstance(said, TidelogError):
        return failed(partition, index, said)
    try:
        partition.advance_to(said)
    except TidelogError as error:
        return failed(partition, index, error)
    return appended(common, partition, index, said)
