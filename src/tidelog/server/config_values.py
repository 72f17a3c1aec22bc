"""Settings as DescribeConfigs shows them: value, where it comes from, what stands behind it.

A topic's setting comes from the topic, else from the broker's settings (under the broker's names,
the first of which that is set wins), else it is the default. Pure.

Source: KIP-226; behaviour of Kafka 4.3, read off its answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.config import BROKER_CONFIGS, TOPIC_CONFIGS, BrokerConfig, ConfigKey, TopicConfig
from tidelog.config.keys import Synonym
from tidelog.protocol.messages.configs import ConfigSource

# Kafka's numbers of the types that our table names.
TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
# Not shown, as in Kafka: for tests alone.
HIDDEN: Final = frozenset({"internal.segment.bytes"})


@dataclass(frozen=True, slots=True)
class SettingLayer:
    """A setting's value at one level: name there, text, source."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One setting as it is shown.

    Attributes:
        name: Kafka's.
        value: As text; None where there is none.
        source: Where the value comes from.
        layers: What was found at each level, the winning one first.
        kind: Kafka's number of its type.
        doc: What it does.
        is_read_only: It can't be changed while the broker runs.
    """

    name: str
    value: str | None
    source: ConfigSource
    layers: tuple[SettingLayer, ...]
    kind: int
    doc: str
    is_read_only: bool = False


def described_topic_settings(
    given: Mapping[str, str], config: TopicConfig, defaults: Mapping[str, str]
) -> list[DescribedSetting]:
    """All settings of a topic.

    Args:
        given: Its own, as texts.
        config: All, as values.
        defaults: The broker's, under its names.
    """
    return [
        _topic_setting(key, given.get(key.name), config.text(key.name), defaults)
        for key in TOPIC_CONFIGS
        if key.name not in HIDDEN
    ]


def _topic_setting(
    key: ConfigKey, given: str | None, value: str, defaults: Mapping[str, str]
) -> DescribedSetting:
    layers = tuple(_below_topic(key, defaults))
    if given is not None:
        layers = (SettingLayer(key.name, given, ConfigSource.TOPIC), *layers)
    source = layers[0].source if layers else ConfigSource.DEFAULT
    return DescribedSetting(key.name, value, source, layers, TYPES[key.kind.type_name], key.doc)


def _below_topic(key: ConfigKey, defaults: Mapping[str, str]) -> Iterator[SettingLayer]:
    """What the broker has for a topic's setting: what is set, then the default behind it."""
    names = key.synonyms or ((Synonym(key.name),) if key.name.startswith("tidelog.") else ())
    is_set = False
    for synonym in names:
        if synonym.name in defaults:
            is_set = True
            yield SettingLayer(synonym.name, defaults[synonym.name], ConfigSource.STATIC_BROKER)
    # Of several names the coarsest has the default; Kafka shows it only behind one that is set.
    if names and key.default is not None and (len(names) == 1 or is_set):
        text = _default_text(key, names[-1])
        yield SettingLayer(names[-1].name, text, ConfigSource.DEFAULT)


def _default_text(key: ConfigKey, synonym: Synonym) -> str:
    assert key.default is not None
    return key.default if synonym.factor == 1 else str(int(key.default) // synonym.factor)


def described_broker_settings(
    config: BrokerConfig, facts: Mapping[str, str]
) -> list[DescribedSetting]:
    """All settings of the broker, those that give topics their defaults included.

    Args:
        config: Its settings.
        facts: Names whose value is known better while it runs, such as where it listens.
    """
    own = [_broker_setting(key, config, facts) for key in BROKER_CONFIGS]
    known = {setting.name for setting in own}
    return own + [s for s in _topic_defaults(config.topic_defaults) if s.name not in known]


def _broker_setting(
    key: ConfigKey, config: BrokerConfig, facts: Mapping[str, str]
) -> DescribedSetting:
    value = facts.get(key.name, config.text(key.name))
    default = key.default or ""
    layers = [SettingLayer(key.name, default, ConfigSource.DEFAULT)]
    if value != default:
        layers.insert(0, SettingLayer(key.name, value, ConfigSource.STATIC_BROKER))
    return _of_broker(key, key.name, layers)


def _of_broker(key: ConfigKey, name: str, layers: list[SettingLayer]) -> DescribedSetting:
    return DescribedSetting(
        name,
        layers[0].value if layers else None,
        layers[0].source if layers else ConfigSource.DEFAULT,
        tuple(layers),
        TYPES[key.kind.type_name],
        key.doc,
        is_read_only=True,
    )


def _topic_defaults(defaults: Mapping[str, str]) -> Iterator[DescribedSetting]:
    """The broker's names of topics' settings, each with what is set under it, or its default."""
    for key in TOPIC_CONFIGS:
        names = key.synonyms or (Synonym(key.name),)
        if not key.synonyms and not key.name.startswith("tidelog."):
            continue
        for number, synonym in enumerate(names):
            layers = []
            if synonym.name in defaults:
                value = defaults[synonym.name]
                layers.append(SettingLayer(synonym.name, value, ConfigSource.STATIC_BROKER))
            if number == len(names) - 1 and key.default is not None:
                text = _default_text(key, synonym)
                layers.append(SettingLayer(synonym.name, text, ConfigSource.DEFAULT))
            yield _of_broker(key, synonym.name, layers)


def chosen(
    settings: Iterable[DescribedSetting], names: Iterable[str] | None
) -> list[DescribedSetting]:
    """Those that were asked for by name, in their own order; all where nothing is asked."""
    wanted = set(names or ())
    return [setting for setting in settings if not wanted or setting.name in wanted]
