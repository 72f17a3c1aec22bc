"""Parts of messages that several APIs share.

Responses and results inherit from the classes with throttle times and errors. The inherited fields
come first on the wire.
"""

from uuid import UUID

from tidelog.protocol.schema import INT16, INT32, message, wire
from tidelog.types import Buffer


@message
class ThrottledResponse:
    """Response with a throttle time in every version."""

    throttle_time_ms: int = wire(INT32)


@message
class CodeResponse(ThrottledResponse):
    """Response with a throttle time and an error code in every version."""

    error_code: int = wire(INT16)


@message
class ErrorResponse(CodeResponse):
    """Response with a throttle time, an error code and an error text in every version."""

    error_message: str | None = wire()


@message
class ErrorResult:
    """Result with an error code and an error text."""

    error_code: int = wire(INT16)
    error_message: str | None = wire()


@message
class PartitionCode:
    """Result for one partition: an error code."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@message
class PartitionError(PartitionCode):
    """Result for one partition: an error code and an error text."""

    error_message: str | None = wire()


@message
class TopicName:
    """Topic or user by name."""

    name: str = wire()


@message
class TopicPartitions:
    """Topic and numbers of its partitions."""

    topic: str = wire()
    partitions: list[int] = wire(INT32)


@message
class NamedPartitions:
    """Topic and numbers of its partitions, for messages whose topic field is called `name`."""

    name: str = wire()
    partitions: list[int] = wire(INT32)


@message
class NamedIndexes:
    """Topic and its partitions, for messages whose partition field is `partition_indexes`."""

    name: str = wire()
    partition_indexes: list[int] = wire(INT32)


@message
class PartitionIndex:
    """Partition of a topic in a request."""

    partition_index: int = wire(INT32)


@message
class IdPartitions:
    """Topic by its id, and numbers of its partitions."""

    topic_id: UUID = wire()
    partitions: list[int] = wire(INT32)


@message
class DescribedPartitions:
    """Topic by its id and name, and numbers of its partitions."""

    topic_id: UUID = wire()
    topic_name: str = wire()
    partitions: list[int] = wire(INT32)


@message
class GroupProtocol:
    """Assignment protocol that a classic member supports, and the member's metadata for it."""

    name: str = wire()
    metadata: Buffer = wire()


@message
class ConfigValue:
    """Setting and its value. The value null means the setting's default."""

    name: str = wire()
    value: str | None = wire()


@message
class QuotaEntity:
    """Part of a quota's entity: its type, and its name. A null name means the default entity."""

    entity_type: str = wire()
    entity_name: str | None = wire()
