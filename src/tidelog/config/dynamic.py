"""Settings of a broker that can be changed while it runs, and what such changes make of the others.

Of the names that give topics their defaults these are Kafka's own of the finest unit; coarser ones
(`log.retention.hours`) stay as they were at the start, as in Kafka. A broker's own value wins over
the one for all brokers, and both over what it was started with.

Source: KIP-226; Kafka 4.3's DynamicBrokerConfig.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from tidelog.config.broker import BROKER_CONFIG_BY_NAME, BrokerConfig, key_value
from tidelog.config.topic import TopicConfig
from tidelog.config.topic_keys import TOPIC_CONFIG_BY_NAME, TOPIC_CONFIGS
from tidelog.config.without_effect import CHANGEABLE, WITHOUT_EFFECT
from tidelog.errors import ConfigError

if TYPE_CHECKING:
    from tidelog.config.values import ConfigValue

_OF_BROKERS: Final = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "producer.id.expiration.ms",
    }
)
_FIXED: Final = frozenset({"log.flush.scheduler.interval.ms"})
# Names of topics' defaults, each with the setting that it is the default of.
TOPIC_DEFAULTS: Final = {
    synonym.name: key
    for key in TOPIC_CONFIGS
    for synonym in key.synonyms
    if synonym.factor == 1 and synonym.name not in _FIXED
} | {name: key for name, key in TOPIC_CONFIG_BY_NAME.items() if name.startswith("tidelog.")}
DYNAMIC_CONFIGS: Final = _OF_BROKERS | TOPIC_DEFAULTS.keys() | CHANGEABLE


def changed_config(started: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """What holds once a broker that was started with some settings has got others.

    Args:
        started: What it was started with.
        settings: What was changed since, names of `DYNAMIC_CONFIGS` and texts.

    Raises:
        ConfigError: A name that can't be changed, a value outside its range, two that contradict.
    """
    values: dict[str, ConfigValue] = {}
    topics = dict(started.topic_defaults)
    for name, text in settings.items():
        if name in TOPIC_DEFAULTS:
            topics[name] = text
        elif name in _OF_BROKERS:
            key = BROKER_CONFIG_BY_NAME[name]
            values[key.attribute] = key_value(key, text)
        elif name in CHANGEABLE:
            key_value(WITHOUT_EFFECT[name], text)  # shown, and nothing else
        else:
            raise ConfigError(name, text, "can't be changed while the broker runs")
    TopicConfig.parse({}, broker=topics)
    made = cast("Callable[..., BrokerConfig]", replace)(started, **values, topic_defaults=topics)
    made.ensure_consistent()
    return made


def is_list(name: str) -> bool:
    """Whether a broker's setting has a list for its value."""
    key = TOPIC_DEFAULTS.get(name) or BROKER_CONFIG_BY_NAME.get(name) or WITHOUT_EFFECT.get(name)
    return key is not None and key.kind.type_name == "list"
