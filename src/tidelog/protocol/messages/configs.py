"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources, and client quotas.

Source: Kafka's protocol guide, APIs 32, 33, 44, 48, 49 and 74; KIP-133, KIP-226 (sources of
values), KIP-339, KIP-546 (quotas), KIP-1142.
"""

from enum import IntEnum
from typing import Final

from tidelog.protocol.messages.shared import (
    CodeResponse,
    ConfigValue,
    ErrorResponse,
    ErrorResult,
    QuotaEntity,
    ThrottledResponse,
)
from tidelog.protocol.schema import INT8, message, wire

TOPIC_RESOURCE: Final = 2


class ConfigSource(IntEnum):
    """Source of a setting's value."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@message
class DescribeConfigsResource:
    """Topic, broker or group in the request. Null `configuration_keys` mean all settings."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    configuration_keys: list[str] | None = wire()


@message
class DescribeConfigsRequest:
    """Request for the settings of topics, brokers or groups."""

    resources: list[DescribeConfigsResource] = wire()
    include_synonyms: bool = wire(since=1)
    include_documentation: bool = wire(since=3)


@message
class DescribeConfigsSynonym:
    """Value of a setting at one level, such as the topic's own value or the default."""

    name: str = wire(since=1)
    value: str | None = wire(since=1)
    source: int = wire(INT8, since=1)


@message
class DescribedConfig:
    """Setting in the response; the value of a sensitive setting is null."""

    name: str = wire()
    value: str | None = wire()
    read_only: bool = wire()
    config_source: int = wire(INT8, since=1, default=-1)
    is_sensitive: bool = wire()
    synonyms: list[DescribeConfigsSynonym] = wire(since=1)
    config_type: int = wire(INT8, since=3)
    documentation: str | None = wire(since=3)


@message
class DescribeConfigsResult(ErrorResult):
    """Topic, broker or group in the response, with its settings."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    configs: list[DescribedConfig] = wire()


@message
class DescribeConfigsResponse(ThrottledResponse):
    """Response with the settings of each resource."""

    results: list[DescribeConfigsResult] = wire()


@message
class AlterConfigsResource:
    """Topic, broker or group in the request, with all of its settings."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    configs: list[ConfigValue] = wire()


@message
class AlterConfigsRequest:
    """Request to replace all settings of resources. Settings left out return to their defaults."""

    resources: list[AlterConfigsResource] = wire()
    validate_only: bool = wire()


@message
class AlterConfigsResourceResponse(ErrorResult):
    """Result for one resource."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()


@message
class AlterConfigsResponse(ThrottledResponse):
    """Response with a result for each resource."""

    responses: list[AlterConfigsResourceResponse] = wire()


@message
class IncrementallyAlteredConfig:
    """Setting to change: its name, the operation, and the operand of the operation (`value`).

    The operation is 0 to set the value, 1 to delete it, 2 to append to a list, 3 to remove from a
    list.
    """

    name: str = wire()
    config_operation: int = wire(INT8)
    value: str | None = wire()


@message
class IncrementalAlterConfigsResource:
    """Topic, broker or group in the request, with the settings to change."""

    resource_type: int = wire(INT8)
    resource_name: str = wire()
    configs: list[IncrementallyAlteredConfig] = wire()


@message
class IncrementalAlterConfigsRequest:
    """Request to change single settings of resources; other settings stay as they are."""

    resources: list[IncrementalAlterConfigsResource] = wire()
    validate_only: bool = wire()


@message
class IncrementalAlterConfigsResponse(AlterConfigsResponse):
    """Response with a result for each resource."""


@message
class ListConfigResourcesRequest:
    """Request for the resources that have settings.

    From version 1 the request may name resource types; an empty list means all types. Version 0
    requests only the resources of type client metrics.
    """

    resource_types: list[int] = wire(INT8, since=1)


@message
class ListedConfigResource:
    """Resource in the response. In version 0, the resource's type is always client metrics."""

    resource_name: str = wire()
    resource_type: int = wire(INT8, since=1, default=16)


@message
class ListConfigResourcesResponse(CodeResponse):
    """Response with the resources that have settings."""

    config_resources: list[ListedConfigResource] = wire()


@message
class QuotaFilterComponent:
    """Filter for one part of an entity.

    The match type is 0 for the entity whose name is `match`, 1 for the default entity, and 2 for
    any entity.
    """

    entity_type: str = wire()
    match_type: int = wire(INT8)
    match: str | None = wire()


@message
class DescribeClientQuotasRequest:
    """Request for the quotas of entities that match the filters.

    If `strict` is true, an entity matches only if the request has a filter for each of the entity's
    parts.
    """

    components: list[QuotaFilterComponent] = wire()
    strict: bool = wire()


@message
class QuotaValue:
    """Quota: key and value."""

    key: str = wire()
    value: float = wire()


@message
class DescribedQuotas:
    """Entity in the response, with its quotas."""

    entity: list[QuotaEntity] = wire()
    values: list[QuotaValue] = wire()


@message
class DescribeClientQuotasResponse(ErrorResponse):
    """Response with the matching entities and their quotas; `entries` is null after an error."""

    entries: list[DescribedQuotas] | None = wire()


@message
class QuotaOperation:
    """Quota to set or to remove."""

    key: str = wire()
    value: float = wire()
    remove: bool = wire()


@message
class QuotaAlteration:
    """Entity in the request, with the quotas to change."""

    entity: list[QuotaEntity] = wire()
    ops: list[QuotaOperation] = wire()


@message
class AlterClientQuotasRequest:
    """Request to change quotas of entities or, with `validate_only`, only to check the change."""

    entries: list[QuotaAlteration] = wire()
    validate_only: bool = wire()


@message
class AlteredQuotas(ErrorResult):
    """Result for one entity."""

    entity: list[QuotaEntity] = wire()


@message
class AlterClientQuotasResponse(ThrottledResponse):
    """Response with a result for each entity."""

    entries: list[AlteredQuotas] = wire()
