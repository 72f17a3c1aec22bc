"""ShareFetch and ShareAcknowledge: records that a member acquires for a while and acknowledges.

Source: Kafka's protocol guide, APIs 78 and 79; KIP-932, KIP-1206 (number of acquired records),
KIP-1222 (renewed locks).
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORD_PIECES_NEVER_NULL,
    STRING,
    UUID16,
    Declaration,
    Pieces,
    array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import INT32_MAX


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AcknowledgementBatch(Declaration):
    """Offsets from the first to the last, both inclusive.

    A type for each of them, or one for all: 0 a gap, 1 accepted, 2 released, 3 rejected, 4 renewed.
    """

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    acknowledge_types: list[int] = wire(array(INT8))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareFetchPartition(Declaration):
    """A partition, and what became of records of it."""

    partition_index: int = wire(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(struct(AcknowledgementBatch)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareFetchTopic(Declaration):
    """A topic's partitions."""

    topic_id: UUID = wire(UUID16)
    partitions: list[ShareFetchPartition] = wire(array(struct(ShareFetchPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareForgottenTopic(Declaration):
    """Partitions that the session shall leave out from now on."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareFetchRequest(Declaration):
    """Records to hold, at least `min_bytes` or what is there after `max_wait_ms`.

    The session's epoch is 0 to begin one, -1 to end it, and one more with each request between.
    The mode is 0 for about `max_records` by whole batches, 1 for never more than so many.
    """

    group_id: str | None = wire(nullable_string())
    member_id: str | None = wire(nullable_string())
    share_session_epoch: int = wire(INT32)
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, default=INT32_MAX)
    max_records: int = wire(INT32)
    batch_size: int = wire(INT32)
    share_acquire_mode: int = wire(INT8, since=2)
    is_renew_ack: bool = wire(BOOLEAN, since=2)
    topics: list[ShareFetchTopic] = wire(array(struct(ShareFetchTopic)))
    forgotten_topics_data: list[ShareForgottenTopic] = wire(array(struct(ShareForgottenTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LeaderIdAndEpoch(Declaration):
    """Who leads a partition now; -1 where nobody knows."""

    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AcquiredRecords(Declaration):
    """Offsets that the member holds, both inclusive, and how often they were delivered, now too."""

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_count: int = wire(INT16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SharePartitionData(Declaration):
    """Whole batches; the member holds only those of their records that `acquired_records` names."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    acknowledge_error_code: int = wire(INT16)
    acknowledge_error_message: str | None = wire(nullable_string())
    current_leader: LeaderIdAndEpoch = wire(struct(LeaderIdAndEpoch))
    records: Pieces = wire(RECORD_PIECES_NEVER_NULL)
    acquired_records: list[AcquiredRecords] = wire(array(struct(AcquiredRecords)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareFetchableTopicResponse(Declaration):
    """A topic's partitions."""

    topic_id: UUID = wire(UUID16)
    partitions: list[SharePartitionData] = wire(array(struct(SharePartitionData)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareNodeEndpoint(Declaration):
    """Where a broker that `current_leader` names listens."""

    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareFetchResponse(Declaration):
    """Records of the session's partitions, and what became of what was acknowledged."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    acquisition_lock_timeout_ms: int = wire(INT32)
    responses: list[ShareFetchableTopicResponse] = wire(array(struct(ShareFetchableTopicResponse)))
    node_endpoints: list[ShareNodeEndpoint] = wire(array(struct(ShareNodeEndpoint)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareAcknowledgeTopic(Declaration):
    """A topic's partitions."""

    topic_id: UUID = wire(UUID16)
    partitions: list[ShareFetchPartition] = wire(array(struct(ShareFetchPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareAcknowledgeRequest(Declaration):
    """What became of records that the member holds."""

    group_id: str | None = wire(nullable_string())
    member_id: str | None = wire(nullable_string())
    share_session_epoch: int = wire(INT32)
    is_renew_ack: bool = wire(BOOLEAN, since=2)
    topics: list[ShareAcknowledgeTopic] = wire(array(struct(ShareAcknowledgeTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareAcknowledgedPartition(Declaration):
    """Whether a partition took it."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    current_leader: LeaderIdAndEpoch = wire(struct(LeaderIdAndEpoch))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareAcknowledgeTopicResponse(Declaration):
    """A topic's partitions."""

    topic_id: UUID = wire(UUID16)
    partitions: list[ShareAcknowledgedPartition] = wire(array(struct(ShareAcknowledgedPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareAcknowledgeResponse(Declaration):
    """What became of what was acknowledged."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    acquisition_lock_timeout_ms: int = wire(INT32, since=2)
    responses: list[ShareAcknowledgeTopicResponse] = wire(
        array(struct(ShareAcknowledgeTopicResponse))
    )
    node_endpoints: list[ShareNodeEndpoint] = wire(array(struct(ShareNodeEndpoint)))
