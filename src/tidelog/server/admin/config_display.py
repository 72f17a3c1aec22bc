"""Settings as DescribeConfigs returns them: value, source and synonyms. Pure.

The value of a topic setting is the topic's own, else the broker's (the first of its synonyms that
is set), else the default. The value of a broker setting is the one set for this broker at run time,
else the one set for all brokers at run time, else the one from the start, else the default.

Source: KIP-226; responses of Kafka 4.3.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tidelog.config import (
    BROKER_CONFIG_BY_NAME,
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigKey,
    TopicConfig,
)
from tidelog.config.broker import DYNAMIC_CONFIGS
from tidelog.config.group import GROUP_CONFIGS
from tidelog.config.unused_keys import WITHOUT_EFFECT
from tidelog.config.values import PASSWORD, Synonym
from tidelog.protocol.messages.configs import ConfigSource

# Kafka's numbers of the types that our table names.
TYPES: Final = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "password": 9,
}


# Not shown, as in Kafka: for tests alone.
HIDDEN: Final = frozenset({"internal.segment.bytes"})


# What was changed while the broker ran, by where that was said, the winning one first.
Changed: TypeAlias = Sequence[tuple[ConfigSource, Mapping[str, str]]]


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
        is_sensitive: It is a secret, whose value is never shown.
    """

    name: str
    value: str | None
    source: ConfigSource
    layers: tuple[SettingLayer, ...]
    kind: int
    doc: str
    is_read_only: bool = False
    is_sensitive: bool = False


def described_topic_settings(
    given: Mapping[str, str],
    config: TopicConfig,
    defaults: Mapping[str, str],
    changed: Changed = (),
) -> list[DescribedSetting]:
    """All settings of a topic.

    Args:
        given: Its own, as texts.
        config: All, as values.
        defaults: The broker's, under its names, as it was started.
        changed: What was changed of them since.
    """
    return [
        _topic_setting(key, given.get(key.name), config.text(key.name), defaults, changed)
        for key in TOPIC_CONFIGS
        if key.name not in HIDDEN
    ]


def _topic_setting(
    key: ConfigKey,
    given: str | None,
    value: str,
    defaults: Mapping[str, str],
    changed: Changed,
) -> DescribedSetting:
    layers = tuple(_below_topic(key, defaults, changed))
    if given is not None:
        layers = (SettingLayer(key.name, given, ConfigSource.TOPIC), *layers)
    source = layers[0].source if layers else ConfigSource.DEFAULT
    return DescribedSetting(key.name, value, source, layers, TYPES[key.kind.type_name], key.doc)


def _below_topic(
    key: ConfigKey, defaults: Mapping[str, str], changed: Changed
) -> Iterator[SettingLayer]:
    """What the broker has for a topic's setting: what is set, then the default behind it."""
    names = key.synonyms or ((Synonym(key.name),) if key.name.startswith("tidelog.") else ())
    is_set = False
    for synonym in names:
        for layer in _changed(synonym.name, changed):
            is_set = True
            yield layer
        if synonym.name in defaults:
            is_set = True
            yield SettingLayer(synonym.name, defaults[synonym.name], ConfigSource.STATIC_BROKER)
    # Of several names the coarsest has the default; Kafka shows it only behind one that is set.
    if names and key.default is not None and (len(names) == 1 or is_set):
        text = _default_text(key, names[-1])
        yield SettingLayer(names[-1].name, text, ConfigSource.DEFAULT)


def _changed(name: str, changed: Changed) -> Iterator[SettingLayer]:
    for source, texts in changed:
        if name in texts:
            yield SettingLayer(name, texts[name], source)


def _default_text(key: ConfigKey, synonym: Synonym) -> str:
    assert key.default is not None
    return key.default if synonym.factor == 1 else str(int(key.default) // synonym.factor)


def described_broker_settings(
    config: BrokerConfig, facts: Mapping[str, str], changed: Changed = ()
) -> list[DescribedSetting]:
    """All settings of the broker, those that give topics their defaults included.

    Args:
        config: Its settings as it was started.
        facts: Names whose value is known better while it runs, such as where it listens.
        changed: What was changed since.
    """
    own = [_broker_setting(key, config, facts, changed) for key in BROKER_CONFIGS]
    known = {setting.name for setting in own}
    topics = _topic_defaults(config.topic_defaults, changed)
    idle = [_idle_setting(key, config, facts, changed) for key in WITHOUT_EFFECT.values()]
    return [*own, *(setting for setting in topics if setting.name not in known), *idle]


def described_group_settings(
    given: Mapping[str, str], config: BrokerConfig
) -> list[DescribedSetting]:
    """All settings of a group: its own, and what the broker has for groups that have none."""
    return [_group_setting(key, given.get(key.name), config) for key in GROUP_CONFIGS]


def _group_setting(key: ConfigKey, given: str | None, config: BrokerConfig) -> DescribedSetting:
    if key.synonyms:
        behind = BROKER_CONFIG_BY_NAME[key.synonyms[0].name]
        is_given = behind.name in config.given_names
        layers = _since_start(behind, config.text(behind.name), is_given=is_given)
    else:
        layers = _since_start(key, key.default or "")
    if given is not None:
        layers.insert(0, SettingLayer(key.name, given, ConfigSource.GROUP))
    kind = TYPES[key.kind.type_name]
    return DescribedSetting(
        key.name, layers[0].value, layers[0].source, tuple(layers), kind, key.doc
    )


def _broker_setting(
    key: ConfigKey, config: BrokerConfig, facts: Mapping[str, str], changed: Changed
) -> DescribedSetting:
    if key.kind is PASSWORD:
        return _secret(key, is_set=bool(config.text(key.name)))
    value = facts.get(key.name, config.text(key.name))
    layers = _since_start(key, value, is_given=key.name in config.given_names)
    return _of_broker(key, key.name, [*_changed(key.name, changed), *layers])


def _since_start(key: ConfigKey, value: str, *, is_given: bool = False) -> list[SettingLayer]:
    """What the broker was started with, and the default where there is one.

    Args:
        key: The setting.
        value: What holds.
        is_given: Whether somebody said so, be it the default.
    """
    default = key.default
    layers = [] if default is None else [SettingLayer(key.name, default, ConfigSource.DEFAULT)]
    if is_given or value != (default or ""):
        layers.insert(0, SettingLayer(key.name, value, ConfigSource.STATIC_BROKER))
    return layers


def _idle_setting(
    key: ConfigKey, config: BrokerConfig, facts: Mapping[str, str], changed: Changed
) -> DescribedSetting:
    """One that has no effect: as it was given, else Kafka's default."""
    if key.kind is PASSWORD:
        return _secret(key, is_set=key.name in config.without_effect)
    value = facts.get(key.name, config.without_effect.get(key.name, key.default or ""))
    layers = _since_start(key, value, is_given=key.name in config.without_effect)
    return _of_broker(key, key.name, [*_changed(key.name, changed), *layers])


def described_changes(texts: Mapping[str, str], source: ConfigSource) -> list[DescribedSetting]:
    """What was changed for all brokers, and nothing else."""
    shown = described_broker_settings(BrokerConfig(), {}, [(source, texts)])
    return [
        replace(setting, layers=setting.layers[:1]) for setting in shown if setting.name in texts
    ]


def _secret(key: ConfigKey, *, is_set: bool) -> DescribedSetting:
    """A secret: whether it was set may be known, nothing else."""
    source = ConfigSource.STATIC_BROKER if is_set else ConfigSource.DEFAULT
    kind = TYPES[key.kind.type_name]
    return DescribedSetting(
        key.name, None, source, (), kind, key.doc, is_read_only=True, is_sensitive=True
    )


def _of_broker(key: ConfigKey, name: str, layers: list[SettingLayer]) -> DescribedSetting:
    return DescribedSetting(
        name,
        layers[0].value if layers else None,
        layers[0].source if layers else ConfigSource.DEFAULT,
        tuple(layers),
        TYPES[key.kind.type_name],
        key.doc,
        is_read_only=name not in DYNAMIC_CONFIGS,
    )


def _topic_defaults(defaults: Mapping[str, str], changed: Changed) -> Iterator[DescribedSetting]:
    """The broker's names of topics' settings, each with what is set under it, or its default."""
    for key in TOPIC_CONFIGS:
        names = key.synonyms or (Synonym(key.name),)
        if not key.synonyms and not key.name.startswith("tidelog."):
            continue
        for number, synonym in enumerate(names):
            layers = list(_changed(synonym.name, changed))
            if synonym.name in defaults:
                value = defaults[synonym.name]
                layers.append(SettingLayer(synonym.name, value, ConfigSource.STATIC_BROKER))
            if number == len(names) - 1 and key.default is not None:
                text = _default_text(key, synonym)
                layers.append(SettingLayer(synonym.name, text, ConfigSource.DEFAULT))
            shown = _of_broker(key, synonym.name, layers)
            # Kafka's coarser units are in smaller numbers.
            yield shown if synonym.factor == 1 else replace(shown, kind=TYPES["int"])


def chosen(
    settings: Iterable[DescribedSetting], names: Iterable[str] | None
) -> list[DescribedSetting]:
    """Those that were asked for by name, in their own order; all where nothing is asked."""
    wanted = set(names or ())
    return [setting for setting in settings if not wanted or setting.name in wanted]
