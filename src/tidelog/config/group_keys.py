"""Settings of single groups, each in the place of the broker's for all groups of its protocol.

Source: KIP-848; Kafka 4.3's `GroupConfig`.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.config.broker import BROKER_CONFIG_BY_NAME, BrokerConfig
from tidelog.config.keys import ConfigKey, Synonym
from tidelog.errors import ConfigError

SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT: Final = "consumer.assignment.interval.ms"


def broker_name(name: str, bound: str = "") -> str:
    """The broker's setting behind a group's; `min.` and `max.` for its bounds."""
    return f"group.consumer.{bound}{name.removeprefix('consumer.')}"


def _key(name: str) -> ConfigKey:
    behind = BROKER_CONFIG_BY_NAME[broker_name(name)]
    return ConfigKey(
        name=name,
        kind=behind.kind,
        default=behind.default,
        doc=behind.doc,
        synonyms=(Synonym(behind.name),),
    )


GROUP_CONFIGS: Final = tuple(_key(name) for name in (SESSION, HEARTBEAT, ASSIGNMENT))
_BY_NAME: Final = {key.name: key for key in GROUP_CONFIGS}


def ensure_group_texts(given: Mapping[str, str]) -> None:
    """Raise ConfigError for an unknown name, or a text that is no value of its setting."""
    for name, text in given.items():
        key = _BY_NAME.get(name)
        if key is None:
            raise ConfigError(name, None, "is not a group setting")
        try:
            key.kind.parse(text)
        except ValueError:
            raise ConfigError(name, text, f"must be {key.kind.allowed}") from None


def is_group_setting(name: str) -> bool:
    """Whether there is such a setting."""
    return name in _BY_NAME


def bounds(name: str, config: BrokerConfig) -> tuple[int, int]:
    """The least and the most that the broker allows for a group's setting."""
    low, high = (int(config.text(broker_name(name, bound))) for bound in ("min.", "max."))
    return low, high


def group_value(name: str, given: Mapping[str, str], config: BrokerConfig) -> int:
    """What holds for a group.

    Args:
        name: Of `GROUP_CONFIGS`.
        given: The group's own settings. A value that was kept while the broker allowed other ones
            counts as the nearest that is allowed now.
        config: The broker's.
    """
    if name not in given:
        return int(config.text(broker_name(name)))
    low, high = bounds(name, config)
    return min(max(int(given[name]), low), high)
