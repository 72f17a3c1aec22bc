"""ListOffsets and OffsetForLeaderEpoch: offsets by time, log start and end, ends of leader epochs.

CONTRIBUTING.md ("A version of an API") lists the other places to change for a new version.

Source: Kafka's protocol guide, APIs 2 and 23; KIP-79, KIP-101, KIP-320.
"""

from typing import Final

from tidelog.protocol.messages.shared import PartitionCode
from tidelog.protocol.schema import (
    CONSUMER_REPLICA_ID,
    INT8,
    INT16,
    INT32,
    INT64,
    OWN_TAGS_START,
    message,
    wire,
)
from tidelog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)

# Special times, each with the first version of the request that allows it.
SPECIAL_SINCE: Final = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


@message
class ListOffsetsPartition:
    """Partition in the request, with a timestamp in ms or a special value below 0."""

    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=4, default=-1)
    timestamp: int = wire(INT64)
    max_num_offsets: int = wire(INT32, until=0, default=1)


@message
class ListOffsetsTopic:
    """Topic in the request, with its partitions."""

    name: str = wire()
    partitions: list[ListOffsetsPartition] = wire()


@message
class ListOffsetsRequest:
    """Request for the first record at or after a timestamp. Version 0 requests segments' offsets.

    Attributes:
        by_append_time: If True, timestamps are append times for all topics. If False, the settings
            of each topic determine the clock of the search. This field is a tidelog extension,
            which other brokers ignore.
    """

    replica_id: int = wire(INT32, default=CONSUMER_REPLICA_ID)
    isolation_level: int = wire(INT8, since=2)
    topics: list[ListOffsetsTopic] = wire()
    timeout_ms: int = wire(INT32, since=10)
    by_append_time: bool = wire(since=6, tag=OWN_TAGS_START)


@message
class ListOffsetsPartitionResponse(PartitionCode):
    """Partition in the response; timestamp and offset are -1 if there is no match.

    Version 0 returns the offsets of segments, in descending order.

    Attributes:
        without_append_time: Number of records with unknown append time before the returned offset,
            or in the whole partition if no record matches. The value is -1 if the lookup is not by
            append time, or if the broker is not tidelog. This field is a tidelog extension.
    """

    old_style_offsets: list[int] = wire(INT64, until=0)
    timestamp: int = wire(INT64, since=1, default=-1)
    offset: int = wire(INT64, since=1, default=-1)
    leader_epoch: int = wire(INT32, since=4, default=-1)
    without_append_time: int = wire(INT64, since=6, tag=OWN_TAGS_START, default=-1)


@message
class ListOffsetsTopicResponse:
    """Topic in the response, with its partitions."""

    name: str = wire()
    partitions: list[ListOffsetsPartitionResponse] = wire()


@message
class ListOffsetsResponse:
    """Response with the offset of each partition."""

    throttle_time_ms: int = wire(INT32, since=2)
    topics: list[ListOffsetsTopicResponse] = wire()


@message
class OffsetForLeaderPartition:
    """Partition in the request, with the leader epoch to look up."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=2, default=-1)
    leader_epoch: int = wire(INT32)


@message
class OffsetForLeaderTopic:
    """Topic in the request, with its partitions."""

    topic: str = wire()
    partitions: list[OffsetForLeaderPartition] = wire()


@message
class OffsetForLeaderEpochRequest:
    """Request for the end offset of the largest epoch that is not above the requested epoch."""

    replica_id: int = wire(INT32, since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = wire()


@message
class EpochEndOffset:
    """Partition in the response: largest epoch not above the requested epoch, and its end offset.

    The end offset is exclusive. Epoch and end offset are -1 if the requested epoch is above all
    epochs of the log, or if the log has no epochs. If the requested epoch is below all epochs of
    the log, the response has the requested epoch and the start offset of the first epoch.
    """

    error_code: int = wire(INT16)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=1, default=-1)
    end_offset: int = wire(INT64, default=-1)


@message
class OffsetForLeaderTopicResult:
    """Topic in the response, with its partitions."""

    topic: str = wire()
    partitions: list[EpochEndOffset] = wire()


@message
class OffsetForLeaderEpochResponse:
    """Response with the end offset of an epoch for each partition."""

    throttle_time_ms: int = wire(INT32, since=2)
    topics: list[OffsetForLeaderTopicResult] = wire()
