"""DescribeConfigs: settings of topics and brokers.

Source: Kafka's protocol guide, API 32; KIP-133, KIP-226 (where a value comes from).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    STRING,
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


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResource:
    """A topic or broker, and which of its settings; null for all."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configuration_keys: list[str] | None = wire(nullable_array(STRING))


@dataclass(slots=True, kw_only=True)
class DescribeConfigsRequest:
    """What are the settings?"""

    resources: list[DescribeConfigsResource] = wire(array(struct(DescribeConfigsResource)))
    include_synonyms: bool = wire(BOOLEAN, since=1)
    include_documentation: bool = wire(BOOLEAN, since=3)


@dataclass(slots=True, kw_only=True)
class DescribeConfigsSynonym:
    """The same setting at another level."""

    name: str = wire(STRING, since=1)
    value: str | None = wire(nullable_string(), since=1)
    source: int = wire(INT8, since=1)


@dataclass(slots=True, kw_only=True)
class DescribedConfig:
    """One setting; a sensitive one has no value."""

    name: str = wire(STRING)
    value: str | None = wire(nullable_string())
    read_only: bool = wire(BOOLEAN)
    config_source: int = wire(INT8, since=1, default=-1)
    is_sensitive: bool = wire(BOOLEAN)
    synonyms: list[DescribeConfigsSynonym] = wire(array(struct(DescribeConfigsSynonym)), since=1)
    config_type: int = wire(INT8, since=3)
    documentation: str | None = wire(nullable_string(), since=3)


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResult:
    """The settings of one topic or broker."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: list[DescribedConfig] = wire(array(struct(DescribedConfig)))


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResponse:
    """The settings."""

    throttle_time_ms: int = wire(INT32)
    results: list[DescribeConfigsResult] = wire(array(struct(DescribeConfigsResult)))
