"""AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings that change.

Source: Kafka's protocol guide, APIs 33, 44 and 74; KIP-133, KIP-339, KIP-1142.
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    STRING,
    array,
    nullable_string,
    struct,
    wire,
)


@dataclass(slots=True, kw_only=True)
class AlterableConfig:
    """A setting and its value."""

    name: str = wire(STRING)
    value: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class AlterConfigsResource:
    """A topic or broker."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[AlterableConfig] = wire(array(struct(AlterableConfig)))


@dataclass(slots=True, kw_only=True)
class AlterConfigsRequest:
    """These are all settings that differ from the defaults."""

    resources: list[AlterConfigsResource] = wire(array(struct(AlterConfigsResource)))
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    """Whether the settings of one topic or broker were changed."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class AlterConfigsResponse:
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    responses: list[AlterConfigsResourceResponse] = wire(
        array(struct(AlterConfigsResourceResponse))
    )


@dataclass(slots=True, kw_only=True)
class IncrementallyAlteredConfig:
    """A setting, what to do with it, and the value to do it with."""

    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsResource:
    """A topic or broker."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[IncrementallyAlteredConfig] = wire(array(struct(IncrementallyAlteredConfig)))


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    """Change these settings and leave the others."""

    resources: list[IncrementalAlterConfigsResource] = wire(
        array(struct(IncrementalAlterConfigsResource))
    )
    validate_only: bool = wire(BOOLEAN)


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsResourceResponse:
    """Whether the settings of one topic or broker were changed."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    """What was changed."""

    throttle_time_ms: int = wire(INT32)
    responses: list[IncrementalAlterConfigsResourceResponse] = wire(
        array(struct(IncrementalAlterConfigsResourceResponse))
    )


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesRequest:
    """What has settings? From version 1 on of these kinds, none for all."""

    resource_types: list[int] = wire(array(INT8), since=1)


@dataclass(slots=True, kw_only=True)
class ConfigResource:
    """One thing that has settings; in version 0 it is for metrics."""

    resource_name: str = wire(STRING)
    resource_type: int = wire(INT8, since=1, default=16)


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesResponse:
    """What has settings."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    config_resources: list[ConfigResource] = wire(array(struct(ConfigResource)))
