"""ListOffsets: where logs begin and end, and where a time does.

Parts: ListOffsets, OffsetForLeaderEpoch.

Source: Kafka's protocol guide, API 2; KIP-79, KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5),
KIP-1023 (-6); for version 0 Kafka's getOffsetsBefore.

OffsetForLeaderEpoch: where an epoch ends, by which a follower finds where logs part.

Source: Kafka's protocol guide, API 23; KIP-101, KIP-320.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias, cast

from tidelog.error_codes import ErrorCode
from tidelog.errors import OffsetsGone, StorageFailure, TidelogError
from tidelog.protocol.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tidelog.server.api.context import Answer, RequestContext
from tidelog.server.api.leader_epochs import find_partition, opened_first
from tidelog.server.api.node import Node
from tidelog.server.api.table import Asker, then
from tidelog.server.partitions.fetch import tell_failure
from tidelog.server.partitions.offset_lookup import (
    Match,
    Search,
    find_appended,
    find_offset,
    has_no_times,
    may_have_no_times,
)
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.partitions import end_of_epoch, epoch_problem, epochs_of
from tidelog.server.runtime.threads import Work
from tidelog.server.security.operations import Operation
from tidelog.storage.log.log import Log
from tidelog.storage.segment.segment import Segment
from tidelog.types import (
    EARLIEST_TIMESTAMP,
    ISOLATION_LEVELS,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    OffsetAndTimestamp,
)

READ_COMMITTED: Final = 1


EARLIEST_LOCAL: Final = -4


LATEST_TIERED: Final = -5


EARLIEST_PENDING_UPLOAD: Final = -6


# Since which version a special time may be asked for.
SPECIAL_SINCE: Final = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


Found: TypeAlias = ListOffsetsPartitionResponse


# What has to be waited for begins when it is called.
Maybe: TypeAlias = Found | Callable[[], Awaitable[Found]]


def list_offsets(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """One answer for each partition, by topic; a partition that was named twice is refused."""
    if request.isolation_level not in ISOLATION_LEVELS:
        return _all_refused(request, ErrorCode.UNKNOWN_SERVER_ERROR)
    node = context.node
    if len(request.topics) == 1 == len(request.topics[0].partitions):
        asked = request.topics[0].partitions[0]
        name = request.topics[0].name
        # What clients send for one time: nothing can be named twice, nothing is to be opened.
        if node.partitions.find_used(name, asked.partition_index) is not None:
            return _told([(name, [answer_one(context, request, name, asked)])])
    missing = node.partitions.unopened(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    if missing:
        return opened_first(node, missing, lambda: _answers(context, request))
    return _answers(context, request)


def _answers(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    named = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    found: list[tuple[str, list[Maybe]]] = []
    for topic in request.topics:
        answers: list[Maybe] = []
        for asked in topic.partitions:
            count = named.pop((topic.name, asked.partition_index), 0)
            if count == 1:
                answers.append(answer_one(context, request, topic.name, asked))
            elif count:
                answers.append(_refused(asked, ErrorCode.INVALID_REQUEST))
        if answers:
            found.append((topic.name, answers))
    return _told(found if len(found) < 2 else _by_topic(found))


def _by_topic(found: Iterable[tuple[str, list[Maybe]]]) -> list[tuple[str, list[Maybe]]]:
    """The answers about each topic together, however often it was named."""
    topics: dict[str, list[Maybe]] = {}
    for name, answers in found:
        topics.setdefault(name, []).extend(answers)
    return list(topics.items())


def _told(
    found: list[tuple[str, list[Maybe]]],
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    for _, answers in found:
        for one in answers:
            if type(one) is not Found:
                return _later(found)
    return response_of(cast("list[tuple[str, list[Found]]]", found))


async def _later(found: Iterable[tuple[str, list[Maybe]]]) -> ListOffsetsResponse:
    return response_of(
        [
            (name, [await one() if callable(one) else one for one in answers])
            for name, answers in found
        ]
    )


def response_of(found: Iterable[tuple[str, list[Found]]]) -> ListOffsetsResponse:
    """The response that says these answers, by topic."""
    return ListOffsetsResponse(
        topics=[ListOffsetsTopicResponse(name=name, partitions=answers) for name, answers in found]
    )


def _all_refused(request: ListOffsetsRequest, code: int) -> ListOffsetsResponse:
    return response_of(
        [
            (topic.name, [_refused(asked, code) for asked in topic.partitions])
            for topic in request.topics
        ]
    )


def _refused(asked: ListOffsetsPartition, code: int) -> Found:
    return Found(partition_index=asked.partition_index, error_code=code)


def _failed(log: Log, asked: ListOffsetsPartition, error: TidelogError | OSError) -> Found:
    """The answer where a partition can't be read, which is logged with its reason."""
    tell_failure(log, error)
    if not isinstance(error, TidelogError) or isinstance(error, StorageFailure):
        return _refused(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(error, OffsetsGone):
        return _refused(asked, ErrorCode.CORRUPT_MESSAGE)  # its own code would reset consumers
    return _refused(asked, ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code)


def answer_one(
    context: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition
) -> Maybe:
    """What is said of one partition; a call that begins to search where that takes a while."""
    if _is_unknown_time(asked, context.version):
        return _refused(asked, ErrorCode.UNSUPPORTED_VERSION)
    found = find_partition(context.node, topic, asked.partition_index)
    if isinstance(found, int):
        return _refused(asked, found)
    return answer_in(context.node, context.version, request, found, asked)


def answer_in(
    node: Node,
    version: int,
    request: ListOffsetsRequest,
    place: Partition,
    asked: ListOffsetsPartition,
) -> Maybe:
    """The same of a partition that is open."""
    if asked.timestamp < 0 and _is_unknown_time(asked, version):
        return _refused(asked, ErrorCode.UNSUPPORTED_VERSION)
    try:
        code = epoch_problem(place.log, asked.current_leader_epoch)
        if code:
            return _refused(asked, code)
        if version == 0:
            return partial(_old_style, node, request, place, asked)
        if request.by_append_time and asked.timestamp >= 0:
            return partial(_appended, node, place.log, _end_offset(request, place), asked)
        return _found(node, place, _end_offset(request, place), asked)
    except TidelogError as error:
        return _failed(place.log, asked, error)


def find_at_once(
    node: Node, request: ListOffsetsRequest, place: Partition, asked: ListOffsetsPartition
) -> OffsetAndTimestamp | None:
    """The record that a time stands for, where it is found in memory and `answer_in` would say it.

    Most lookups are such. None where anything else is to be said, which `answer_in` finds out.
    """
    log, time = place.log, asked.timestamp
    if time < 0 or epoch_problem(log, asked.current_leader_epoch):
        return None
    try:
        found = find_offset(log, time, node.reads)
        if type(found) is OffsetAndTimestamp and found.offset < _end_offset(request, place):
            return found
    except TidelogError:
        pass  # found again there, and said
    return None


def _is_unknown_time(asked: ListOffsetsPartition, version: int) -> bool:
    """Whether a negative time stands for nothing that the version knows."""
    time = asked.timestamp
    return time < 0 and version < SPECIAL_SINCE.get(time, 1 << 15)


def _end_offset(request: ListOffsetsRequest, partition: Partition) -> int:
    """Offset behind the last record that the asker may see."""
    if request.replica_id >= 0:
        return partition.replica_end_offset
    if request.isolation_level == READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def _found(node: Node, place: Partition, end: int, asked: ListOffsetsPartition) -> Maybe:
    log, work, time = place.log, node.reads, asked.timestamp
    if time < 0 and time != MAX_TIMESTAMP:
        return _answer(asked, _special(log, time, end))
    found = find_offset(log, time, work)
    if callable(found):
        return partial(_searched, found, log, work, end, asked)
    if found is None and time >= 0 and may_have_no_times(log):
        return partial(_searched, None, log, work, end, asked)
    return _answer(asked, _visible(found, end))


async def _searched(
    search: Search | None,
    log: Log,
    work: Work,
    end: int,
    asked: ListOffsetsPartition,
) -> Found:
    """The end of a search that has to be waited for."""
    try:
        found = None if search is None else await search()
        if found is None and asked.timestamp >= 0 and await has_no_times(log, work):
            return _refused(asked, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    except (OSError, TidelogError) as error:
        return _failed(log, asked, error)
    return _answer(asked, _visible(found, end))


async def _appended(node: Node, log: Log, end: int, asked: ListOffsetsPartition) -> Found:
    """The first record appended at a time or later, with how many before it nobody knows."""
    try:
        found, unknown = await node.reads.run(find_appended, log, asked.timestamp, end)
    except (OSError, TidelogError) as error:
        return _failed(log, asked, error)
    answer = _answer(asked, found)
    answer.without_append_time = unknown
    return answer


def _special(log: Log, timestamp: int, end: int) -> Match:
    """What a special time stands for; None where there is no such offset."""
    match timestamp:
        case -1:
            return OffsetAndTimestamp(end, NO_TIMESTAMP, log.leader_epoch)
        case -2:
            return _at(log, log.log_start_offset)
        case -4:
            return _at(log, log.local_start_offset)
    if log.tier is None:
        return None
    uploaded = log.tier.end_offset
    if timestamp == LATEST_TIERED:
        return _at(log, uploaded - 1) if log.tier.record.manifest.segments else None
    return _visible(_at(log, max(uploaded, log.log_start_offset)), end)


def _at(log: Log, offset: int) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(offset, NO_TIMESTAMP, epochs_of(log).epoch_for(offset))


def _visible(found: Match, end: int) -> Match:
    """What the asker may see."""
    return found if found is not None and found.offset < end else None


def _answer(asked: ListOffsetsPartition, found: Match) -> Found:
    if found is None:
        return _refused(asked, 0)
    return Found(
        partition_index=asked.partition_index,
        error_code=0,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=NO_LEADER_EPOCH if found.leader_epoch is None else found.leader_epoch,
    )


# -- version 0 ---------------------------------------------------------------------------------


async def _old_style(
    node: Node,
    request: ListOffsetsRequest,
    partition: Partition,
    asked: ListOffsetsPartition,
) -> Found:
    """Starts of segments that were written before a time, the newest first.

    A segment counts by its file's time; the log end counts as written now.
    """
    log = partition.log
    try:
        starts = await node.reads.run(_starts, log.segments, log.log_start_offset)
    except OSError as error:
        return _failed(log, asked, error)
    if log.segments[-1].size_bytes:
        starts.append((log.log_end_offset, node.env.clock.now_ms()))
    if asked.timestamp == EARLIEST_TIMESTAMP:
        starts = starts[:1]
    elif asked.timestamp != LATEST_TIMESTAMP:
        before = [number for number, (_, ms) in enumerate(starts, 1) if ms <= asked.timestamp]
        starts = starts[: before[-1]] if before else []
    count = max(asked.max_num_offsets, 0)
    offsets = [offset for offset, _ in reversed(starts)][:count]
    end = _end_offset(request, partition)
    if offsets and offsets[0] > end:
        offsets = [end, *(offset for offset in offsets if offset <= end)]
    return Found(
        partition_index=asked.partition_index,
        error_code=0,
        old_style_offsets=sorted(offsets, reverse=True),
    )


def _starts(segments: Iterable[Segment], start: int) -> list[tuple[int, int]]:
    """First offset and file time in ms of each segment."""
    return [(max(segment.base_offset, start), segment.mtime_ms()) for segment in segments]


def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """The largest epoch not above the one asked, and its end."""
    missing = context.node.partitions.unopened(
        (topic.topic, asked.partition) for topic in request.topics for asked in topic.partitions
    )
    if missing:
        return opened_first(context.node, missing, lambda: _epoch_answers(context, request))
    return _epoch_answers(context, request)


def _epoch_answers(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_one(context, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _one(context: RequestContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    found = find_partition(context.node, topic, asked.partition)
    if isinstance(found, int):
        return EpochEndOffset(partition=asked.partition, error_code=found)
    log = found.log
    code = epoch_problem(log, asked.current_leader_epoch)
    if code:
        return EpochEndOffset(partition=asked.partition, error_code=code)
    epoch, end = end_of_epoch(log, asked.leader_epoch)
    return EpochEndOffset(
        partition=asked.partition, error_code=0, leader_epoch=epoch, end_offset=end
    )


def guard_list_offsets(asker: Asker, request: ListOffsetsRequest) -> Answer:
    """DESCRIBE on each topic."""
    request.topics, denied = asker.split(request.topics, Operation.DESCRIBE, lambda t: t.name)

    def add(said: ListOffsetsResponse) -> None:
        for topic in denied:
            partitions = [
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for asked in topic.partitions
            ]
            said.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))

    return then(asker.go_on(request), add)


def guard_offset_for_leader_epoch(asker: Asker, request: OffsetForLeaderEpochRequest) -> Answer:
    """DESCRIBE on each topic; CLUSTER_ACTION is enough for all, which brokers have."""
    if asker.may_cluster(Operation.CLUSTER_ACTION):
        return asker.go_on(request)
    request.topics, denied = asker.split(request.topics, Operation.DESCRIBE, lambda t: t.topic)

    def add(said: OffsetForLeaderEpochResponse) -> None:
        for topic in denied:
            partitions = [
                EpochEndOffset(
                    partition=asked.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                for asked in topic.partitions
            ]
            said.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))

    return then(asker.go_on(request), add)
