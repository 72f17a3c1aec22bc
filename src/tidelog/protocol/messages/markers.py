"""WriteTxnMarkers: the end of transactions, told to the partitions in them.

Source: Kafka's protocol guide, API 27; KIP-98, KIP-1228 (the version of transactions).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import BOOLEAN, INT8, INT16, INT32, INT64, STRING, array, struct, wire


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerTopic:
    """A topic's partitions."""

    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@dataclass(slots=True, kw_only=True)
class WritableTxnMarker:
    """One producer's transaction, and how it ends."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    transaction_result: bool = wire(BOOLEAN)
    topics: list[WritableTxnMarkerTopic] = wire(array(struct(WritableTxnMarkerTopic)))
    coordinator_epoch: int = wire(INT32)
    transaction_version: int = wire(INT8, since=2)


@dataclass(slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    """End these transactions."""

    markers: list[WritableTxnMarker] = wire(array(struct(WritableTxnMarker)))


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerPartitionResult:
    """Whether a partition has its marker."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerTopicResult:
    """A topic's partitions."""

    name: str = wire(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = wire(
        array(struct(WritableTxnMarkerPartitionResult))
    )


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerResult:
    """One producer's."""

    producer_id: int = wire(INT64)
    topics: list[WritableTxnMarkerTopicResult] = wire(array(struct(WritableTxnMarkerTopicResult)))


@dataclass(slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    """How it went."""

    markers: list[WritableTxnMarkerResult] = wire(array(struct(WritableTxnMarkerResult)))
