"""ListOffsets and OffsetForLeaderEpoch: the offset of a time, and the end of a leader epoch.

`find_row` answers one partition of a ListOffsets request, for this API and for the templates of
repeated requests. What a time stands for is `partitions.offset_lookup`'s; here are checks, versions
and the response. A follower learns from OffsetForLeaderEpoch where its log and the leader's part.

Source: Kafka's protocol guide, API 2; KIP-79, KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5),
KIP-1023 (-6); for version 0 Kafka's getOffsetsBefore. API 23; KIP-101, KIP-320.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
from tidelog.server.api.context import RequestContext, RowAnswers, RowFunctions, TopicRows
from tidelog.server.api.guards import Access, Denied, Guarded
from tidelog.server.api.leader_epochs import find_partition, opened_first
from tidelog.server.api.node import Node
from tidelog.server.partitions.fetch import tell_failure
from tidelog.server.partitions.offset_lookup import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    Match,
    Search,
    find_appended,
    find_offset,
    has_no_times,
    may_have_no_times,
)
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.partitions import end_of_epoch, epoch_problem
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
    NO_OFFSET,
    NO_TIMESTAMP,
)

READ_COMMITTED: Final = 1

_NO_MATCH: Final = (0, NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH)

# Since which version a special time may be asked for.
SPECIAL_SINCE: Final = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}

# Error code, timestamp, offset and leader epoch: what a response states of a partition.
Row: TypeAlias = tuple[int, int, int, int]

PartitionResponse: TypeAlias = ListOffsetsPartitionResponse

# A search that has to be waited for; it begins when this is called with the partition's number.
RowSearch: TypeAlias = Callable[[int], Awaitable[PartitionResponse]]


def list_offsets(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """One row for each partition, by topic; a partition that is named twice is refused."""
    if request.isolation_level not in ISOLATION_LEVELS:
        return response_of(
            (
                topic.name,
                [_refused(asked, ErrorCode.UNKNOWN_SERVER_ERROR) for asked in topic.partitions],
            )
            for topic in request.topics
        )
    missing = context.node.partitions.unopened(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    if missing:
        return opened_first(context.node, missing, lambda: _answer(context, request))
    return _answer(context, request)


def _answer(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    topics: dict[str, dict[int, PartitionResponse | RowSearch]] = {}
    must_wait = False
    for topic in request.topics:
        rows = topics.setdefault(topic.name, {})
        for asked in topic.partitions:
            if asked.partition_index in rows:
                rows[asked.partition_index] = _refused(asked, ErrorCode.INVALID_REQUEST)
            else:
                row = _find(context, request, topic.name, asked)
                rows[asked.partition_index] = row
                must_wait = must_wait or callable(row)
    if must_wait:
        return _wait(topics)
    answered = cast("Mapping[str, Mapping[int, PartitionResponse]]", topics)
    return response_of((name, list(rows.values())) for name, rows in answered.items() if rows)


async def _wait(
    topics: Mapping[str, Mapping[int, PartitionResponse | RowSearch]],
) -> ListOffsetsResponse:
    return response_of(
        [
            (name, [await row(number) if callable(row) else row for number, row in rows.items()])
            for name, rows in topics.items()
            if rows
        ]
    )


def response_of(rows: Iterable[tuple[str, list[PartitionResponse]]]) -> ListOffsetsResponse:
    """Make the response of rows by topic."""
    return ListOffsetsResponse(
        topics=[ListOffsetsTopicResponse(name=name, partitions=found) for name, found in rows]
    )


def _refused(asked: ListOffsetsPartition, code: int) -> PartitionResponse:
    return PartitionResponse(partition_index=asked.partition_index, error_code=code)


def _find(
    context: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition
) -> PartitionResponse | RowSearch:
    """The row of a partition, or a search where that takes a while."""
    version, time_ms = context.version, asked.timestamp
    partition = find_partition(context.node, topic, asked.partition_index)
    if isinstance(partition, int):
        is_unknown = _is_unknown_time(time_ms, version)
        return _refused(asked, ErrorCode.UNSUPPORTED_VERSION if is_unknown else partition)
    code = _problem(partition.log, version, asked.current_leader_epoch, time_ms)
    if code:
        return _refused(asked, code)
    if version == 0:
        return partial(_old_style, context.node, request, partition, asked)
    if request.by_append_time and time_ms >= 0:
        return partial(
            _appended, context.node, partition.log, _end_offset(request, partition), time_ms
        )
    row = find_row(context.node, version, request, partition, asked.current_leader_epoch, time_ms)
    return row if callable(row) else _response_row(asked.partition_index, row)


def find_row(
    node: Node,
    version: int,
    request: ListOffsetsRequest,
    partition: Partition,
    epoch: int,
    time_ms: int,
) -> Row | RowSearch:
    """The row of an open partition from version 1 on, or a search where that takes a while.

    Args:
        node: The broker.
        version: Of the request, 1 or more.
        request: The request, for its isolation and replica.
        partition: The partition.
        epoch: Leader epoch that the client expects, NO_LEADER_EPOCH for any.
        time_ms: Time in ms, or a special time.
    """
    log = partition.log
    code = _problem(log, version, epoch, time_ms)
    if code:
        return code, NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH
    end = _end_offset(request, partition)
    try:
        match = find_offset(log, time_ms, end, node.reads)
    except TidelogError as error:
        return _code_of(log, error), NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH
    if match is None:
        if time_ms >= 0 and may_have_no_times(log):
            return partial(_search, None, log, node.reads, time_ms)
        return _NO_MATCH
    if callable(match):
        return partial(_search, match, log, node.reads, time_ms)
    offset, timestamp, leader_epoch, _ = match
    return 0, timestamp, offset, NO_LEADER_EPOCH if leader_epoch is None else leader_epoch


def _problem(log: Log, version: int, epoch: int, time_ms: int) -> int:
    """The error code of a time that the version has not, or of another leader epoch; else 0."""
    if time_ms < 0 and _is_unknown_time(time_ms, version):
        return ErrorCode.UNSUPPORTED_VERSION
    return epoch_problem(log, epoch)


def _is_unknown_time(time_ms: int, version: int) -> bool:
    """Whether a negative time stands for nothing that the version knows."""
    return time_ms < 0 and version < SPECIAL_SINCE.get(time_ms, 1 << 15)


def _end_offset(request: ListOffsetsRequest, partition: Partition) -> int:
    """Offset behind the last record that the client may see."""
    if request.replica_id >= 0:
        return partition.replica_end_offset
    if request.isolation_level == READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def _code_of(log: Log, error: TidelogError | OSError) -> int:
    """The error code for a partition that can't be read; the reason is logged."""
    tell_failure(log, error)
    if not isinstance(error, TidelogError) or isinstance(error, StorageFailure):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(error, OffsetsGone):
        return ErrorCode.CORRUPT_MESSAGE  # its own code would reset consumers
    return ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code


async def _search(
    search: Search | None, log: Log, work: Work, time_ms: int, number: int
) -> PartitionResponse:
    """Wait for a search, or, without one, only find out why there is no match."""
    try:
        match = None if search is None else await search()
        if match is None and time_ms >= 0 and await has_no_times(log, work):
            code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
            return PartitionResponse(partition_index=number, error_code=code)
    except (OSError, TidelogError) as error:
        return PartitionResponse(partition_index=number, error_code=_code_of(log, error))
    return _match_row(number, match)


async def _appended(node: Node, log: Log, end: int, time_ms: int, number: int) -> PartitionResponse:
    """The first record appended at a time or later, and how many before it have unknown times."""
    try:
        match, unknown = await node.reads.run(find_appended, log, time_ms, end)
    except (OSError, TidelogError) as error:
        return PartitionResponse(partition_index=number, error_code=_code_of(log, error))
    row = _match_row(number, match)
    row.without_append_time = unknown
    return row


def _match_row(number: int, match: Match) -> PartitionResponse:
    if match is None:
        return PartitionResponse(partition_index=number, error_code=0)
    epoch = NO_LEADER_EPOCH if match.leader_epoch is None else match.leader_epoch
    return _response_row(number, (0, match.timestamp, match.offset, epoch))


def _response_row(number: int, row: Row) -> PartitionResponse:
    error_code, timestamp, offset, leader_epoch = row
    return PartitionResponse(
        partition_index=number,
        error_code=error_code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


# -- version 0 ---------------------------------------------------------------------------------


async def _old_style(
    node: Node,
    request: ListOffsetsRequest,
    partition: Partition,
    asked: ListOffsetsPartition,
    number: int,
) -> PartitionResponse:
    """Starts of segments that were written before a time, the newest first.

    A segment counts by its file's time; the log end counts as written now.
    """
    log = partition.log
    try:
        starts = await node.reads.run(_starts, log.segments, log.log_start_offset)
    except OSError as error:
        return PartitionResponse(partition_index=number, error_code=_code_of(log, error))
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
    return PartitionResponse(
        partition_index=number,
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


# -- rows of requests that repeat --------------------------------------------------------------


def _may_repeat(version: int, request: ListOffsetsRequest) -> bool:
    is_known_level = request.isolation_level in ISOLATION_LEVELS
    return version > 0 and is_known_level and not request.by_append_time


def _answer_rows(
    context: RequestContext, request: ListOffsetsRequest, topics: Sequence[TopicRows]
) -> RowAnswers | None:
    """What is found for each row; None where it takes a while, or a partition is named twice."""
    node, version, facts = context.node, context.version, []
    for name, _, rows in topics:
        if len(rows) > 1 and len({row[0] for row in rows}) < len(rows):
            return None
        found = []
        for number, epoch, time in rows:
            place = node.partitions.find_used(name, number)
            if place is None:
                return None
            row = find_row(node, version, request, place, epoch, time)
            if type(row) is not tuple:
                return None
            found.append((number, *row))
        facts.append(found)
    return facts, None, None


LIST_OFFSETS_ROWS: Final = RowFunctions(Operation.DESCRIBE, _may_repeat, _answer_rows)


def guard_list_offsets(access: Access, request: ListOffsetsRequest) -> Guarded[ListOffsetsRequest]:
    """DESCRIBE on each topic."""
    allowed, denied = access.split(request.topics, Operation.DESCRIBE, lambda t: t.name)
    if not denied:
        return request, None
    refusals = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(
                    partition_index=each.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for each in topic.partitions
            ],
        )
        for topic in denied
    ]
    return replace(request, topics=allowed), Denied.rows("topics", refusals)


def guard_offset_for_leader_epoch(
    access: Access, request: OffsetForLeaderEpochRequest
) -> Guarded[OffsetForLeaderEpochRequest]:
    """DESCRIBE on each topic; CLUSTER_ACTION is enough for all, which brokers have."""
    if access.may_cluster(Operation.CLUSTER_ACTION):
        return request, None
    allowed, denied = access.split(request.topics, Operation.DESCRIBE, lambda t: t.topic)
    refusals = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                EpochEndOffset(
                    partition=each.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                for each in topic.partitions
            ],
        )
        for topic in denied
    ]
    return replace(request, topics=allowed), Denied.rows("topics", refusals)
