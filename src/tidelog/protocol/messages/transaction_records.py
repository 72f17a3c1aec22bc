"""Keys and values of the records in `__transaction_state`, each behind an int16 with its version.

Source: Kafka's own records in that topic; KIP-890 (version 1: ids before and after, the version of
transactions that the client speaks).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    array,
    nullable_array,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class TransactionLogKey:
    """A transactional id."""

    transactional_id: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class PartitionsSchema:
    """A topic's partitions that are in the transaction."""

    topic: str = wire(STRING)
    partition_ids: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class TransactionLogValue:
    """What is known of it; times in ms, -1 for none."""

    producer_id: int = wire(INT64)
    previous_producer_id: int = wire(INT64, since=1, tag=0, default=-1)
    next_producer_id: int = wire(INT64, since=1, tag=1, default=-1)
    producer_epoch: int = wire(INT16)
    transaction_timeout_ms: int = wire(INT32)
    transaction_status: int = wire(INT8)
    transaction_partitions: list[PartitionsSchema] | None = wire(
        nullable_array(struct(PartitionsSchema))
    )
    transaction_last_update_timestamp_ms: int = wire(INT64)
    transaction_start_timestamp_ms: int = wire(INT64)
    client_transaction_version: int = wire(INT16, since=1, tag=2)
