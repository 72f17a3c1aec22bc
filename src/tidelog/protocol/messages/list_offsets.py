"""ListOffsets and OffsetForLeaderEpoch: offsets by time, log start and end, ends of leader epochs.

Source: Kafka's protocol guide, APIs 2 and 23; KIP-79, KIP-101, KIP-320.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BOOLEAN,
    CONSUMER_REPLICA_ID,
    INT8,
    INT16,
    INT32,
    INT64,
    OWN_TAGS_START,
    STRING,
    Declaration,
    array,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListOffsetsPartition(Declaration):
    """A partition and a time in ms, or a special value below 0."""

    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=4, default=-1)
    timestamp: int = wire(INT64)
    max_num_offsets: int = wire(INT32, until=0, default=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListOffsetsTopic(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[ListOffsetsPartition] = wire(array(struct(ListOffsetsPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListOffsetsRequest(Declaration):
    """The first offset at or after a time, in each partition; before it in version 0.

    Attributes:
        by_append_time: Whether times are append times, whatever topics say. Ours; other brokers
            step over it.
    """

    replica_id: int = wire(INT32, default=CONSUMER_REPLICA_ID)
    isolation_level: int = wire(INT8, since=2)
    topics: list[ListOffsetsTopic] = wire(array(struct(ListOffsetsTopic)))
    timeout_ms: int = wire(INT32, since=10)
    by_append_time: bool = wire(BOOLEAN, since=6, tag=OWN_TAGS_START)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListOffsetsPartitionResponse(Declaration):
    """The answer: -1 and -1 for nothing; in version 0 offsets of segments, descending.

    Attributes:
        without_append_time: In an answer by append time the number of records before the offset
            found (of all where none was) whose append time is unknown. Ours; -1 where not told.
    """

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    old_style_offsets: list[int] = wire(array(INT64), until=0)
    timestamp: int = wire(INT64, since=1, default=-1)
    offset: int = wire(INT64, since=1, default=-1)
    leader_epoch: int = wire(INT32, since=4, default=-1)
    without_append_time: int = wire(INT64, since=6, tag=OWN_TAGS_START, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListOffsetsTopicResponse(Declaration):
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[ListOffsetsPartitionResponse] = wire(
        array(struct(ListOffsetsPartitionResponse))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListOffsetsResponse(Declaration):
    """The offsets found."""

    throttle_time_ms: int = wire(INT32, since=2)
    topics: list[ListOffsetsTopicResponse] = wire(array(struct(ListOffsetsTopicResponse)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetForLeaderPartition(Declaration):
    """A partition and an epoch of which the asker has records."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=2, default=-1)
    leader_epoch: int = wire(INT32)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetForLeaderTopic(Declaration):
    """A topic's partitions."""

    topic: str = wire(STRING)
    partitions: list[OffsetForLeaderPartition] = wire(array(struct(OffsetForLeaderPartition)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetForLeaderEpochRequest(Declaration):
    """Where does the largest epoch end that is not above the one given?"""

    replica_id: int = wire(INT32, since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = wire(array(struct(OffsetForLeaderTopic)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class EpochEndOffset(Declaration):
    """That epoch and its end, exclusive; -1 and -1 where the epoch given is above all."""

    error_code: int = wire(INT16)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=1, default=-1)
    end_offset: int = wire(INT64, default=-1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetForLeaderTopicResult(Declaration):
    """A topic's partitions."""

    topic: str = wire(STRING)
    partitions: list[EpochEndOffset] = wire(array(struct(EpochEndOffset)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OffsetForLeaderEpochResponse(Declaration):
    """The ends found."""

    throttle_time_ms: int = wire(INT32, since=2)
    topics: list[OffsetForLeaderTopicResult] = wire(array(struct(OffsetForLeaderTopicResult)))
