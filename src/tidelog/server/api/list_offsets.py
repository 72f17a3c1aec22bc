"""ListOffsets and OffsetForLeaderEpoch: the offset of a time, and the end of a leader epoch.

`find_row` answers one partition of a ListOffsets request, for `list_offsets` and for the templates
of repeated requests. `partitions.offset_lookup` resolves times. This module checks requests,
handles versions and makes the response. With OffsetForLeaderEpoch a follower or consumer finds the
offset at which the records that it has read diverge from the leader's log.

Source: Kafka's protocol guide, API 2; KIP-79, KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5), KIP-1023
(-6); for version 0 Kafka's getOffsetsBefore. API 23; KIP-101, KIP-320.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import OffsetsGone, TidelogError
from tidelog.protocol.messages.list_offsets import (
    SPECIAL_SINCE,
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
from tidelog.server.api.node import Node
from tidelog.server.partitions.offset_lookup import (
    Match,
    Search,
    find_appended,
    find_offset,
    has_no_times,
    may_have_no_times,
)
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.partitions import end_of_epoch, epoch_problem
from tidelog.server.partitions.read_failures import log_failure
from tidelog.server.runtime.errors import code_of
from tidelog.server.runtime.threads import Work
from tidelog.server.security.operations import Operation
from tidelog.storage.log.log import Log
from tidelog.storage.segment.segment import Segment
from tidelog.types import (
    EARLIEST_TIMESTAMP,
    ISOLATION_LEVELS,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
)

_NO_MATCH: Final = (0, NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH)

# Result of one partition: error code, timestamp, offset and leader epoch.
Row: TypeAlias = tuple[int, int, int, int]

PartitionResponse: TypeAlias = ListOffsetsPartitionResponse

# Function that makes a long search and returns the row of its result.
RowSearch: TypeAlias = Callable[[], Awaitable[Row]]


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Return one row for each partition, by topic.

    A partition that is named twice gets one row, with the error INVALID_REQUEST.
    """
    if request.isolation_level not in ISOLATION_LEVELS:
        refused = _failure(ErrorCode.UNKNOWN_SERVER_ERROR)
        return response_of(
            (
                topic.name,
                [_partition_response(each.partition_index, refused) for each in topic.partitions],
            )
            for topic in request.topics
        )
    await context.node.partitions.ensure_open(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    topics: dict[str, dict[int, PartitionResponse]] = {}
    for topic in request.topics:
        rows = topics.setdefault(topic.name, {})
        for each in topic.partitions:
            number = each.partition_index
            if number in rows:
                rows[number] = _partition_response(number, _failure(ErrorCode.INVALID_REQUEST))
            else:
                rows[number] = await _find(context, request, topic.name, each)
    return response_of((name, list(rows.values())) for name, rows in topics.items() if rows)


def response_of(rows: Iterable[tuple[str, list[PartitionResponse]]]) -> ListOffsetsResponse:
    """Build the response from rows by topic."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=name, partitions=partitions) for name, partitions in rows
        ]
    )


async def _find(
    context: RequestContext, request: ListOffsetsRequest, topic: str, lookup: ListOffsetsPartition
) -> PartitionResponse:
    node, version, time_ms = context.node, context.version, lookup.timestamp
    number, epoch = lookup.partition_index, lookup.current_leader_epoch
    partition = node.partitions.find(topic, number)
    if isinstance(partition, int):
        is_unknown = _is_unknown_time(time_ms, version)
        code = ErrorCode.UNSUPPORTED_VERSION if is_unknown else partition
        return _partition_response(number, _failure(code))
    if version == 0 or (request.by_append_time and time_ms >= 0):
        end = _end_offset(request, partition)
        code = _problem(partition.log, version, epoch, time_ms)
        if code:
            return _partition_response(number, _failure(code))
        return await (_old_style if version == 0 else _appended)(node, partition.log, end, lookup)
    row = find_row(node, version, request, partition, epoch, time_ms)
    return _partition_response(number, await row() if callable(row) else row)


def find_row(
    node: Node,
    version: int,
    request: ListOffsetsRequest,
    partition: Partition,
    epoch: int,
    time_ms: int,
) -> Row | RowSearch:
    """Return the row of an open partition, or a search for the row if finding it takes long.

    Args:
        node: The broker.
        version: Version of the request, 1 or more.
        request: The request, which has the isolation level and the replica id.
        partition: The partition.
        epoch: Leader epoch that the client expects, NO_LEADER_EPOCH for any.
        time_ms: Time in ms, or a special time.
    """
    log, end = partition.log, _end_offset(request, partition)
    code = _problem(log, version, epoch, time_ms)
    if code:
        return _failure(code)
    try:
        match = find_offset(log, time_ms, end, node.reads)
    except TidelogError as error:
        return _failure(_code_of(log, error))
    if callable(match):
        return partial(_search, match, log, node.reads, time_ms)
    if match is None and time_ms >= 0 and may_have_no_times(log):
        return partial(_search, None, log, node.reads, time_ms)
    return _row_of(match)


def _problem(log: Log, version: int, epoch: int, time_ms: int) -> int:
    """Return the error code for an unknown special time or a wrong leader epoch; 0 for no error."""
    if time_ms < 0 and _is_unknown_time(time_ms, version):
        return ErrorCode.UNSUPPORTED_VERSION
    return epoch_problem(log, epoch)


def _is_unknown_time(time_ms: int, version: int) -> bool:
    """Whether a time is negative, but is not a special time that this version defines."""
    return time_ms < 0 and version < SPECIAL_SINCE.get(time_ms, 1 << 15)


def _end_offset(request: ListOffsetsRequest, partition: Partition) -> int:
    """Return the end (exclusive) of the offsets that the client may read."""
    return partition.end_offset(request.isolation_level, is_follower=request.replica_id >= 0)


def _code_of(log: Log, error: TidelogError | OSError) -> int:
    """Log why a partition can't be read, and return the error code for the client."""
    log_failure(log, error)
    # The error code of OffsetsGone would make consumers reset their offsets.
    return ErrorCode.CORRUPT_MESSAGE if isinstance(error, OffsetsGone) else code_of(error)


async def _search(search: Search | None, log: Log, work: Work, time_ms: int) -> Row:
    """Wait for a search and return the row of its result.

    `search` is None if there is certainly no match. If there is no match, and the log has no times
    at all, the row has the error UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    code, match = 0, None
    try:
        match = None if search is None else await search()
        if match is None and time_ms >= 0 and await has_no_times(log, work):
            code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    except (OSError, TidelogError) as error:
        code = _code_of(log, error)
    return _failure(code) if code else _row_of(match)


def _failure(code: int) -> Row:
    return code, NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH


def _row_of(match: Match) -> Row:
    if match is None:
        return _NO_MATCH
    offset, timestamp, leader_epoch, _ = match
    return 0, timestamp, offset, NO_LEADER_EPOCH if leader_epoch is None else leader_epoch


async def _appended(
    node: Node, log: Log, end: int, lookup: ListOffsetsPartition
) -> PartitionResponse:
    """Find the first record below offset `end` whose append time is at or after the requested time.

    The response has the record's offset, or -1 if there is no such record. The response also has
    the number of records with an unknown append time before the found record, or before `end` if no
    record was found.
    """
    number = lookup.partition_index
    try:
        match, unknown = await node.reads.run(find_appended, log, lookup.timestamp, end)
    except (OSError, TidelogError) as error:
        return _partition_response(number, _failure(_code_of(log, error)))
    response = _partition_response(number, _row_of(match))
    response.without_append_time = unknown
    return response


def _partition_response(number: int, row: Row) -> PartitionResponse:
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
    node: Node, log: Log, end: int, lookup: ListOffsetsPartition
) -> PartitionResponse:
    """Return the log end and the start offsets of segments, largest first.

    Each offset has a time: for a segment's start offset, the modification time of the segment's
    file; for the log end, the present time. The result begins with the largest offset whose time is
    at or before the requested time, and is empty if there is no such offset. The special time
    EARLIEST_TIMESTAMP selects only the smallest offset; LATEST_TIMESTAMP selects all offsets.
    Offsets above `end` are replaced by `end`. The request limits the number of offsets.
    """
    number = lookup.partition_index
    try:
        starts = await node.reads.run(_starts, log.segments, log.log_start_offset)
    except OSError as error:
        return _partition_response(number, _failure(_code_of(log, error)))
    if log.segments[-1].size_bytes:
        starts.append((log.log_end_offset, node.env.clock.now_ms()))
    if lookup.timestamp == EARLIEST_TIMESTAMP:
        starts = starts[:1]
    elif lookup.timestamp != LATEST_TIMESTAMP:
        before = [count for count, (_, ms) in enumerate(starts, 1) if ms <= lookup.timestamp]
        starts = starts[: before[-1]] if before else []
    count = max(lookup.max_num_offsets, 0)
    offsets = [offset for offset, _ in reversed(starts)][:count]
    if offsets and offsets[0] > end:
        offsets = [end, *(offset for offset in offsets if offset <= end)]
    old_style = sorted(offsets, reverse=True)
    return PartitionResponse(partition_index=number, old_style_offsets=old_style)


def _starts(segments: Iterable[Segment], start: int) -> list[tuple[int, int]]:
    """Return each segment's start offset and its file's modification time in ms."""
    return [(max(segment.base_offset, start), segment.mtime_ms()) for segment in segments]


async def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return, by partition, the largest epoch <= the requested epoch, and its end offset.

    The epoch and the offset are -1 if the requested epoch is later than all known epochs, or if no
    epoch is known. If the requested epoch is earlier than all known epochs, return the requested
    epoch and the start offset of the first known epoch.
    """
    node = context.node
    await node.partitions.ensure_open(
        (topic.topic, each.partition) for topic in request.topics for each in topic.partitions
    )
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_epoch_end(node, topic.topic, each) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _epoch_end(node: Node, topic: str, lookup: OffsetForLeaderPartition) -> EpochEndOffset:
    number, epoch, end = lookup.partition, NO_LEADER_EPOCH, NO_OFFSET
    partition = node.partitions.find(topic, number)
    if isinstance(partition, int):
        return EpochEndOffset(partition=number, error_code=partition)
    code = epoch_problem(partition.log, lookup.current_leader_epoch)
    if not code:
        epoch, end = end_of_epoch(partition.log, lookup.leader_epoch)
    return EpochEndOffset(partition=number, error_code=code, leader_epoch=epoch, end_offset=end)


# -- rows of repeated requests -----------------------------------------------------------------


def _may_repeat(version: int, request: ListOffsetsRequest) -> bool:
    is_known_level = request.isolation_level in ISOLATION_LEVELS
    return version > 0 and is_known_level and not request.by_append_time


def _answer_rows(
    context: RequestContext, request: ListOffsetsRequest, topics: Sequence[TopicRows]
) -> RowAnswers | None:
    """Find the result of each row.

    Return None if a search takes long, a partition is named twice, or a partition has not been
    used.
    """
    node, version, facts = context.node, context.version, []
    for name, _, rows in topics:
        if len(rows) > 1 and len({row[0] for row in rows}) < len(rows):
            return None
        topic_facts = []
        for number, epoch, time in rows:
            partition = node.partitions.find_used(name, number)
            if partition is None:
                return None
            row = find_row(node, version, request, partition, epoch, time)
            if type(row) is not tuple:
                return None
            topic_facts.append((number, *row))
        facts.append(topic_facts)
    return facts, None, None


LIST_OFFSETS_ROWS: Final = RowFunctions(Operation.DESCRIBE, _may_repeat, _answer_rows)
