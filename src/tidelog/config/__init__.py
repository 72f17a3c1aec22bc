"""Settings: one table of topic configs under Kafka's names, and their typed values.

Owns names, types, defaults, ranges and synonyms; docs/config.md is generated from the table.
Owns no behaviour: what a setting does is the business of those who read it.
"""

from tidelog.config.broker import BROKER_CONFIG_BY_NAME, BrokerConfig
from tidelog.config.broker_keys import BROKER_CONFIGS
from tidelog.config.topic import (
    DEFAULT_TOPIC_CONFIG,
    ConfigNote,
    NoteKind,
    TopicConfig,
    key_names,
    normalize,
    plain_names,
)
from tidelog.config.topic_keys import (
    CLEANUP_COMPACT,
    CLEANUP_DELETE,
    RETIRED,
    TOPIC_CONFIGS,
    TWO_SIDED_LIMITS,
)
from tidelog.config.values import (
    CompressionType,
    ConfigKey,
    ConfigValue,
    Durability,
    RetentionClock,
    Synonym,
    text_of,
)

__all__ = [
    "BROKER_CONFIGS",
    "BROKER_CONFIG_BY_NAME",
    "CLEANUP_COMPACT",
    "CLEANUP_DELETE",
    "DEFAULT_TOPIC_CONFIG",
    "RETIRED",
    "TOPIC_CONFIGS",
    "TWO_SIDED_LIMITS",
    "BrokerConfig",
    "CompressionType",
    "ConfigKey",
    "ConfigNote",
    "ConfigValue",
    "Durability",
    "NoteKind",
    "RetentionClock",
    "Synonym",
    "TopicConfig",
    "key_names",
    "normalize",
    "plain_names",
    "text_of",
]
