"""ShareFetch and ShareAcknowledge: records that a member acquires temporarily and acknowledges.

Source: Kafka's protocol guide, APIs 78 and 79; KIP-932, KIP-1206 (number of acquired records),
KIP-1222 (renewed locks).
"""

from uuid import UUID

from tidelog.protocol.messages.shared import ErrorResponse, IdPartitions, PartitionError
from tidelog.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    RECORD_PIECES_NEVER_NULL,
    Pieces,
    message,
    wire,
)
from tidelog.types import INT32_MAX


@message
class AcknowledgementBatch:
    """Range of offsets (both inclusive), with the acknowledgement types of their records.

    The list `acknowledge_types` has one type for each offset, or a single type for all offsets: 0
    gap, 1 accept, 2 release, 3 reject, 4 renew.
    """

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    acknowledge_types: list[int] = wire(INT8)


@message
class ShareFetchPartition:
    """Partition in the request, with acknowledgements of its records."""

    partition_index: int = wire(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = wire()


@message
class ShareFetchTopic:
    """Topic in the request, with its partitions."""

    topic_id: UUID = wire()
    partitions: list[ShareFetchPartition] = wire()


@message
class ShareFetchRequest:
    """Request to acquire records.

    The broker waits until `min_bytes` are available, but at most `max_wait_ms`.

    The session epoch is 0 in the request that opens a session, then larger by 1 in each request,
    and -1 in the request that closes the session. With acquire mode 0, the member acquires whole
    batches with about `max_records` records. With acquire mode 1, the member acquires at most
    `max_records` records.
    """

    group_id: str | None = wire()
    member_id: str | None = wire()
    share_session_epoch: int = wire(INT32)
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, default=INT32_MAX)
    max_records: int = wire(INT32)
    batch_size: int = wire(INT32)
    share_acquire_mode: int = wire(INT8, since=2)
    is_renew_ack: bool = wire(since=2)
    topics: list[ShareFetchTopic] = wire()
    forgotten_topics_data: list[IdPartitions] = wire()


@message
class LeaderIdAndEpoch:
    """Current leader of a partition. The leader's id and epoch are -1 if the leader is unknown."""

    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)


@message
class AcquiredRecords:
    """Range of acquired offsets (both inclusive). `delivery_count` includes this delivery."""

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_count: int = wire(INT16)


@message
class SharePartitionData(PartitionError):
    """Partition in the response, with whole batches.

    Of the records in these batches, the member has acquired only those at the offsets in
    `acquired_records`.
    """

    acknowledge_error_code: int = wire(INT16)
    acknowledge_error_message: str | None = wire()
    current_leader: LeaderIdAndEpoch = wire()
    records: Pieces = wire(RECORD_PIECES_NEVER_NULL)
    acquired_records: list[AcquiredRecords] = wire()


@message
class ShareFetchableTopicResponse:
    """Topic in the response, with its partitions."""

    topic_id: UUID = wire()
    partitions: list[SharePartitionData] = wire()


@message
class ShareNodeEndpoint:
    """Address of a broker that `current_leader` refers to."""

    node_id: int = wire(INT32)
    host: str = wire()
    port: int = wire(INT32)
    rack: str | None = wire()


@message
class ShareFetchResponse(ErrorResponse):
    """Response with acquired records, and a result for the acknowledgements of each partition."""

    acquisition_lock_timeout_ms: int = wire(INT32)
    responses: list[ShareFetchableTopicResponse] = wire()
    node_endpoints: list[ShareNodeEndpoint] = wire()


@message
class ShareAcknowledgeRequest:
    """Request to acknowledge records that the member has acquired."""

    group_id: str | None = wire()
    member_id: str | None = wire()
    share_session_epoch: int = wire(INT32)
    is_renew_ack: bool = wire(since=2)
    topics: list[ShareFetchTopic] = wire()


@message
class ShareAcknowledgedPartition(PartitionError):
    """Result of the acknowledgements of one partition."""

    current_leader: LeaderIdAndEpoch = wire()


@message
class ShareAcknowledgeTopicResponse:
    """Topic in the response, with its partitions."""

    topic_id: UUID = wire()
    partitions: list[ShareAcknowledgedPartition] = wire()


@message
class ShareAcknowledgeResponse(ErrorResponse):
    """Response with a result for each partition."""

    acquisition_lock_timeout_ms: int = wire(INT32, since=2)
    responses: list[ShareAcknowledgeTopicResponse] = wire()
    node_endpoints: list[ShareNodeEndpoint] = wire()
