"""Settings of topics, groups and the broker under Kafka's names, and their typed values.

The package defines names, types, defaults, ranges and synonyms of settings. docs/config.md and
docs/serve.md are generated from these definitions. The effect of a setting is implemented where the
setting is used, not in this package.
"""

from typing import TYPE_CHECKING

from tidelog.config.topic import (
    CLEANUP_COMPACT,
    CLEANUP_DELETE,
    DEFAULT_TOPIC_CONFIG,
    RETIRED,
    TOPIC_CONFIGS,
    TWO_SIDED_LIMITS,
    ConfigNote,
    NoteKind,
    TopicConfig,
    key_names,
    normalize,
    plain_names,
)
from tidelog.config.units import amount_text, amounts_in_errors, plain_settings
from tidelog.config.values import (
    CompressionType,
    ConfigKey,
    ConfigValue,
    Durability,
    RetentionClock,
    Synonym,
    text_of,
)

if TYPE_CHECKING:
    from tidelog.config.broker import BROKER_CONFIG_BY_NAME, BROKER_CONFIGS, BrokerConfig


_OF_BROKERS = ("BROKER_CONFIGS", "BROKER_CONFIG_BY_NAME", "BrokerConfig")


def __getattr__(name: str) -> object:
    """Import broker settings at their first use, because a directory needs only topic settings."""
    if name not in _OF_BROKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidelog.config import broker

    return getattr(broker, name)
