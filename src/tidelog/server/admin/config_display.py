"""Settings as DescribeConfigs returns them: value, source and synonyms. No input or output.

The value of a topic setting is the first of these values that exists:

- the value set for the topic;
- the value of a broker setting that is a synonym of the topic setting; if several synonyms are set,
  the value of the first one;
- the default.

The value of a broker setting is the first of these values that exists: the value set at run time
for this broker, the value set at run time for all brokers, the value given at the start, the
default.

Source: KIP-226; responses of Kafka 4.3.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.configs import ConfigSource

# Numbers that stand for the types of settings in Kafka's protocol.
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

# Settings that are not shown, as in Kafka, because only tests use them.
HIDDEN: Final = frozenset({"internal.segment.bytes"})

# Settings changed at run time, by source. The source with the highest precedence is first.
Changed: TypeAlias = Sequence[tuple[ConfigSource, Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """Value of a setting at one level: name of the setting at this level, text, source."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """Setting in a DescribeConfigs response.

    Attributes:
        name: Kafka's name of the setting.
        value: Value as text; None if the setting has no value.
        source: Source of the value.
        synonyms: Values at the levels that have a value, by descending precedence.
        kind: Number that stands for the setting's type in Kafka's protocol.
        doc: Description of the setting.
        is_read_only: Whether the setting can't be changed at run time.
        is_sensitive: Whether the value is a secret, which is never shown.
    """

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    kind: int
    doc: str
    is_read_only: bool = False
    is_sensitive: bool = False


def _entry(
    key: ConfigKey, synonyms: Sequence[ConfigSynonym], name: str | None = None
) -> ConfigEntry:
    """Return a setting's entry, with the value and the source of its first synonym."""
    value, source = None, ConfigSource.DEFAULT
    if synonyms:
        value, source = synonyms[0].value, synonyms[0].source
    kind = TYPES[key.kind.type_name]
    return ConfigEntry(name or key.name, value, source, tuple(synonyms), kind, key.doc)


def describe_topic(
    overrides: Mapping[str, str],
    config: TopicConfig,
    defaults: Mapping[str, str],
    changed: Changed = (),
) -> list[ConfigEntry]:
    """Return all settings of a topic.

    Args:
        overrides: Texts of the topic's own settings.
        config: Values of all settings of the topic.
        defaults: The broker's settings at its start, under the broker's names.
        changed: Settings that were changed at run time, including changes before the last start.
    """
    entries = []
    for key in TOPIC_CONFIGS:
        if key.name not in HIDDEN:
            synonyms = _below_topic(key, defaults, changed)
            if key.name in overrides:
                own = ConfigSynonym(key.name, overrides[key.name], ConfigSource.TOPIC)
                synonyms.insert(0, own)
            entries.append(replace(_entry(key, synonyms), value=config.text(key.name)))
    return entries


def _below_topic(
    key: ConfigKey, defaults: Mapping[str, str], changed: Changed
) -> list[ConfigSynonym]:
    """Return the values set at the broker for a topic's setting, followed by the default."""
    names = _broker_names(key)
    synonyms = [each for name in names for each in _set_at_broker(name.name, defaults, changed)]
    # The broker can have several names for the setting, one for each unit. In this case, as in
    # Kafka, the default is shown under the name with the coarsest unit, and only if a value is set
    # under one of the names.
    if names and key.default is not None and (len(names) == 1 or synonyms):
        synonyms.append(_default(key, names[-1]))
    return synonyms


def _broker_names(key: ConfigKey) -> Sequence[Synonym]:
    """Return the broker's names of a topic's setting."""
    return key.synonyms or ((Synonym(key.name),) if key.name.startswith("tidelog.") else ())


def _set_at_broker(
    name: str, defaults: Mapping[str, str], changed: Changed
) -> Iterator[ConfigSynonym]:
    yield from _changed(name, changed)
    if name in defaults:
        yield ConfigSynonym(name, defaults[name], ConfigSource.STATIC_BROKER)


def _changed(name: str, changed: Changed) -> Iterator[ConfigSynonym]:
    for source, texts in changed:
        if name in texts:
            yield ConfigSynonym(name, texts[name], source)


def _default(key: ConfigKey, synonym: Synonym) -> ConfigSynonym:
    assert key.default is not None
    text = key.default if synonym.factor == 1 else str(int(key.default) // synonym.factor)
    return ConfigSynonym(synonym.name, text, ConfigSource.DEFAULT)


def describe_broker(
    config: BrokerConfig, facts: Mapping[str, str], changed: Changed = ()
) -> list[ConfigEntry]:
    """Return all settings of the broker, including the defaults of topics.

    Args:
        config: Settings at the start.
        facts: Settings whose values are known only at run time, such as the listeners.
        changed: Settings that were changed at run time, including changes before the last start.
    """
    own, unused = (
        [_broker_entry(key, config, facts, changed) for key in keys]
        for keys in (BROKER_CONFIGS, WITHOUT_EFFECT.values())
    )
    own_names = {entry.name for entry in own}
    topics = _topic_defaults(config.topic_defaults, changed)
    return [*own, *(entry for entry in topics if entry.name not in own_names), *unused]


def _broker_entry(
    key: ConfigKey, config: BrokerConfig, facts: Mapping[str, str], changed: Changed
) -> ConfigEntry:
    """Return a setting's entry.

    For a setting that has no effect in tidelog, the value is the configured value, or Kafka's
    default.
    """
    if key.name in WITHOUT_EFFECT:
        is_explicit = key.name in config.without_effect
        value = config.without_effect.get(key.name, key.default or "")
    else:
        is_explicit, value = key.name in config.explicit_names, config.text(key.name)
    if key.kind is PASSWORD:  # the response shows only whether a password was set
        source = ConfigSource.STATIC_BROKER if is_explicit or value else ConfigSource.DEFAULT
        return replace(_entry(key, ()), source=source, is_read_only=True, is_sensitive=True)
    value = facts.get(key.name, value)
    synonyms = [*_changed(key.name, changed), *_since_start(key, value, is_explicit=is_explicit)]
    return replace(_entry(key, synonyms), is_read_only=key.name not in DYNAMIC_CONFIGS)


def _since_start(key: ConfigKey, value: str, *, is_explicit: bool = False) -> list[ConfigSynonym]:
    """Return two values, if they exist: the one set at the broker's start, and the default.

    Args:
        key: Setting to describe.
        value: Value without the changes at run time.
        is_explicit: Whether the setting was set explicitly, even to the default.
    """
    default = key.default
    synonyms = [] if default is None else [ConfigSynonym(key.name, default, ConfigSource.DEFAULT)]
    if is_explicit or value != (default or ""):
        synonyms.insert(0, ConfigSynonym(key.name, value, ConfigSource.STATIC_BROKER))
    return synonyms


def _topic_defaults(defaults: Mapping[str, str], changed: Changed) -> Iterator[ConfigEntry]:
    """Yield the broker's entries for topic settings: one entry for each name of a setting."""
    for key in TOPIC_CONFIGS:
        names = _broker_names(key)
        for synonym in names:
            synonyms = list(_set_at_broker(synonym.name, defaults, changed))
            if synonym is names[-1] and key.default is not None:
                synonyms.append(_default(key, synonym))
            entry = _entry(key, synonyms, synonym.name)
            # For a name with a coarser unit (log.retention.hours), Kafka reports the type int.
            kind = entry.kind if synonym.factor == 1 else TYPES["int"]
            yield replace(entry, kind=kind, is_read_only=synonym.name not in DYNAMIC_CONFIGS)


def describe_changes(texts: Mapping[str, str], source: ConfigSource) -> list[ConfigEntry]:
    """Return an entry for each setting in `texts`.

    The only synonym of an entry is the setting's text in `texts`, with the source `source`.
    """
    entries = describe_broker(BrokerConfig(), {}, [(source, texts)])
    return [replace(entry, synonyms=entry.synonyms[:1]) for entry in entries if entry.name in texts]


def describe_group(overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigEntry]:
    """Return all settings of a group.

    The value of a setting is the first of these values that exists: the group's own value, the
    broker's value, the default.
    """
    return [_group_entry(key, overrides.get(key.name), config) for key in GROUP_CONFIGS]


def _group_entry(key: ConfigKey, override: str | None, config: BrokerConfig) -> ConfigEntry:
    if key.synonyms:
        behind = BROKER_CONFIG_BY_NAME[key.synonyms[0].name]
        is_explicit = behind.name in config.explicit_names
        synonyms = _since_start(behind, config.text(behind.name), is_explicit=is_explicit)
    else:
        synonyms = _since_start(key, key.default or "")
    if override is not None:
        synonyms.insert(0, ConfigSynonym(key.name, override, ConfigSource.GROUP))
    return _entry(key, synonyms)
