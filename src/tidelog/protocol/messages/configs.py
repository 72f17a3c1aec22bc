"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources, and client quotas.

Source: Kafka's protocol guide, APIs 32, 33, 44, 48, 49 and 74; KIP-133, KIP-226 (sources of
values), KIP-339, KIP-546 (quotas), KIP-1142.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog.protocol.schema import (
    BOOLEAN,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    STRING,
    Declaration,
    array,
    nullable_array,
    nullable_string,
    struct,
    wire,
)

TOPIC_RESOURCE: Final = 2


class ConfigSource(IntEnum):
    """Where a setting's value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeConfigsResource(Declaration):
    """A topic or broker, and which of its settings; null for all."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configuration_keys: list[str] | None = wire(nullable_array(STRING))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeConfigsRequest(Declaration):
    """What are the settings?"""

    resources: list[DescribeConfigsResource] = wire(array(struct(DescribeConfigsResource)))
    include_synonyms: bool = wire(BOOLEAN, since=1)
    include_documentation: bool = wire(BOOLEAN, since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeConfigsSynonym(Declaration):
    """The same setting at another level."""

    name: str = wire(STRING, since=1)
    value: str | None = wire(nullable_string(), since=1)
    source: int = wire(INT8, since=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedConfig(Declaration):
    """One setting; a sensitive one has no value."""

    name: str = wire(STRING)
    value: str | None = wire(nullable_string())
    read_only: bool = wire(BOOLEAN)
    config_source: int = wire(INT8, since=1, default=-1)
    is_sensitive: bool = wire(BOOLEAN)
    synonyms: list[DescribeConfigsSynonym] = wire(array(struct(DescribeConfigsSynonym)), since=1)
    config_type: int = wire(INT8, since=3)
    documentation: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeConfigsResult(Declaration):
    """The settings of one topic or broker."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[DescribedConfig] = wire(array(struct(DescribedConfig)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeConfigsResponse(Declaration):
    """The settings."""

    throttle_time_ms: int = wire(INT32)
    results: list[DescribeConfigsResult] = wire(array(struct(DescribeConfigsResult)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterableConfig(Declaration):
    """A setting and its value."""

    name: str = wire(STRING)
    value: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterConfigsResource(Declaration):
    """A topic or broker."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[AlterableConfig] = wire(array(struct(AlterableConfig)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterConfigsRequest(Declaration):
    """These are all settings that differ from the defaults."""

    resources: list[AlterConfigsResource] = wire(array(struct(AlterConfigsResource)))
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterConfigsResourceResponse(Declaration):
    """Whether the settings of one topic or broker were changed."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterConfigsResponse(Declaration):
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = wire(
        array(struct(AlterConfigsResourceResponse))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class IncrementallyAlteredConfig(Declaration):
    """A setting, what to do with it, and the value to do it with."""

    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class IncrementalAlterConfigsResource(Declaration):
    """A topic or broker."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[IncrementallyAlteredConfig] = wire(array(struct(IncrementallyAlteredConfig)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class IncrementalAlterConfigsRequest(Declaration):
    """Change these settings and leave the others."""

    resources: list[IncrementalAlterConfigsResource] = wire(
        array(struct(IncrementalAlterConfigsResource))
    )
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class IncrementalAlterConfigsResourceResponse(Declaration):
    """Whether the settings of one topic or broker were changed."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class IncrementalAlterConfigsResponse(Declaration):
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    responses: list[IncrementalAlterConfigsResourceResponse] = wire(
        array(struct(IncrementalAlterConfigsResourceResponse))
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListConfigResourcesRequest(Declaration):
    """What has settings? From version 1 on of these kinds, none for all."""

    resource_types: list[int] = wire(array(INT8), since=1)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListedConfigResource(Declaration):
    """One thing that has settings; in version 0 it is for metrics."""

    resource_name: str = wire(STRING)
    resource_type: int = wire(INT8, since=1, default=16)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ListConfigResourcesResponse(Declaration):
    """What has settings."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    config_resources: list[ListedConfigResource] = wire(array(struct(ListedConfigResource)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuotaFilterComponent(Declaration):
    """Which names of an entity's kind: 0 this one, 1 the default, 2 any."""

    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeClientQuotasRequest(Declaration):
    """Whose quotas? With `strict` no entity that has other parts too."""

    components: list[QuotaFilterComponent] = wire(array(struct(QuotaFilterComponent)))
    strict: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuotaEntity(Declaration):
    """One part of an entity: `user`, `client-id` or `ip`, and its name; null for the default."""

    entity_type: str = wire(STRING)
    entity_name: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuotaValue(Declaration):
    """One quota."""

    key: str = wire(STRING)
    value: float = wire(FLOAT64)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribedQuotas(Declaration):
    """An entity's quotas."""

    entity: list[QuotaEntity] = wire(array(struct(QuotaEntity)))
    values: list[QuotaValue] = wire(array(struct(QuotaValue)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DescribeClientQuotasResponse(Declaration):
    """Entities with quotas; null with an error."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    entries: list[DescribedQuotas] | None = wire(nullable_array(struct(DescribedQuotas)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuotaOperation(Declaration):
    """One quota to set, or to forget."""

    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuotaAlteration(Declaration):
    """What is to change of an entity's quotas."""

    entity: list[QuotaEntity] = wire(array(struct(QuotaEntity)))
    ops: list[QuotaOperation] = wire(array(struct(QuotaOperation)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterClientQuotasRequest(Declaration):
    """Change quotas, or see whether they could be changed."""

    entries: list[QuotaAlteration] = wire(array(struct(QuotaAlteration)))
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlteredQuotas(Declaration):
    """Whether an entity's quotas were changed."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    entity: list[QuotaEntity] = wire(array(struct(QuotaEntity)))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AlterClientQuotasResponse(Declaration):
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    entries: list[AlteredQuotas] = wire(array(struct(AlteredQuotas)))
