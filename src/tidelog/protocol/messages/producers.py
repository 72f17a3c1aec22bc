"""InitProducerId and DescribeProducers: ids of producers, and what a log remembers of them.

Source: Kafka's protocol guide, APIs 22 and 61; KIP-98, KIP-360 (a new epoch), KIP-664.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class InitProducerIdRequest:
    """A producer id, or (from version 3 on) a new epoch for one."""

    transactional_id: str | None = wire(nullable_string())
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, since=3, default=-1)
    producer_epoch: int = wire(INT16, since=3, default=-1)


@dataclass(slots=True, kw_only=True)
class InitProducerIdResponse:
    """The id and its epoch; -1 with an error."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class DescribeProducersTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class DescribeProducersRequest:
    """Which producers have written lately?"""

    topics: list[DescribeProducersTopic] = wire(array(struct(DescribeProducersTopic)))


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """What a log remembers of one producer; -1 for nothing."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@dataclass(slots=True, kw_only=True)
class DescribeProducersPartitionResponse:
    """The producers of one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    active_producers: list[ProducerState] = wire(array(struct(ProducerState)))


@dataclass(slots=True, kw_only=True)
class DescribeProducersTopicResponse:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[DescribeProducersPartitionResponse] = wire(
        array(struct(DescribeProducersPartitionResponse))
    )


@dataclass(slots=True, kw_only=True)
class DescribeProducersResponse:
    """The producers."""

    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeProducersTopicResponse] = wire(
        array(struct(DescribeProducersTopicResponse))
    )
