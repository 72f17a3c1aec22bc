"""Settings of single consumer groups (KIP-848) and share groups: names, values and bounds.

A value set for a group takes precedence over the broker's value, which applies to all groups of a
protocol. Some settings of share groups have no corresponding broker setting. They have only a
default.

Source: KIP-848, KIP-932, KIP-1222; Kafka 4.3's `GroupConfig`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tidelog.config.broker import BROKER_CONFIG_BY_NAME, BrokerConfig
from tidelog.config.values import (
    FLAG,
    RESET,
    ConfigKey,
    ConfigValue,
    Synonym,
    ValueKind,
    key_value,
    word,
)
from tidelog.errors import ConfigError

SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT: Final = "consumer.assignment.interval.ms"
SHARE_SESSION: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT: Final = "share.heartbeat.interval.ms"
SHARE_ASSIGNMENT: Final = "share.assignment.interval.ms"
SHARE_LOCK_DURATION: Final = "share.record.lock.duration.ms"
SHARE_DELIVERY_LIMIT: Final = "share.delivery.count.limit"
SHARE_LOCKS: Final = "share.partition.max.record.locks"
SHARE_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION: Final = "share.isolation.level"
SHARE_RENEW: Final = "share.renew.acknowledge.enable"


def broker_name(name: str, bound: str = "") -> str:
    """Return the name of the broker setting that is the default of a group setting.

    If `bound` is `min.` or `max.`, return the name of the broker setting that is the lower or upper
    bound of the group setting.
    """
    protocol, _, rest = name.partition(".")
    return f"group.{protocol}.{bound}{rest}"


def _key(name: str) -> ConfigKey:
    behind = BROKER_CONFIG_BY_NAME[broker_name(name)]
    return ConfigKey(
        name=name,
        kind=behind.kind,
        default=behind.default,
        doc=behind.doc,
        synonyms=(Synonym(behind.name),),
    )


def _own(name: str, kind: ValueKind[ConfigValue], default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


_BEHIND_BROKERS: Final = (
    SESSION,
    HEARTBEAT,
    ASSIGNMENT,
    SHARE_SESSION,
    SHARE_HEARTBEAT,
    SHARE_ASSIGNMENT,
    SHARE_LOCK_DURATION,
    SHARE_DELIVERY_LIMIT,
    SHARE_LOCKS,
)

GROUP_CONFIGS: Final = (
    *(_key(name) for name in _BEHIND_BROKERS),
    _own(
        SHARE_RESET,
        RESET,
        "latest",
        "Position at which a share group starts in a partition that it has not read yet.",
    ),
    _own(
        SHARE_ISOLATION,
        word("read_committed", "read_uncommitted"),
        "read_uncommitted",
        "Whether a share group receives records of open and aborted transactions.",
    ),
    _own(SHARE_RENEW, FLAG, "true", "Whether members of a share group may renew locks."),
)

_BY_NAME: Final = {key.name: key for key in GROUP_CONFIGS}

# Maps a group setting to the attribute of `BrokerConfig` that holds the broker's value. Each
# heartbeat reads some of these values, and reading an attribute is faster than parsing a text.
_BROKERS_ATTRIBUTES: Final = {
    name: BROKER_CONFIG_BY_NAME[broker_name(name)].attribute for name in _BEHIND_BROKERS
}


def ensure_group_texts(texts: Mapping[str, str]) -> None:
    """Validate a group's settings; raises ConfigError for an unknown name or invalid value."""
    for name, text in texts.items():
        key = _BY_NAME.get(name)
        if key is None:
            raise ConfigError(name, None, "unknown group setting")
        key_value(key, text)


def is_group_setting(name: str) -> bool:
    """Whether a group setting of this name exists."""
    return name in _BY_NAME


def is_bounded(name: str) -> bool:
    """Whether the broker has bounds for a group setting."""
    return name in _BEHIND_BROKERS


def bounds(name: str, config: BrokerConfig) -> tuple[int, int]:
    """Return the broker's bounds of a group setting, both inclusive."""
    low, high = (int(config.text(broker_name(name, bound))) for bound in ("min.", "max."))
    return low, high


def group_value(name: str, texts: Mapping[str, str], config: BrokerConfig) -> int:
    """Return the effective value of a group setting.

    Args:
        name: Name of a bounded setting in `GROUP_CONFIGS`.
        texts: The group's own settings. If a value is outside the broker's current bounds, the
            nearest bound is returned.
        config: The broker's settings.
    """
    if name not in texts:
        return int(getattr(config, _BROKERS_ATTRIBUTES[name]))
    low, high = bounds(name, config)
    return min(max(int(texts[name]), low), high)


def group_text(name: str, texts: Mapping[str, str]) -> str:
    """Return a group's own value as text, or the setting's default if the group has none.

    Call this only for settings that have no corresponding broker setting.
    """
    return texts.get(name) or _BY_NAME[name].default or ""


class GroupSettings:
    """Effective settings of groups. Each call reads the current settings, so changes apply at once.

    Used only in the event loop's thread.

    Attributes:
        config: The broker's settings.
    """

    def __init__(self, config: BrokerConfig, texts_of: Callable[[str], Mapping[str, str]]) -> None:
        """Store the arguments. `texts_of` returns a group's own settings for a group id."""
        self.config = config
        self._texts_of = texts_of

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of a group's members."""
        return group_value(SESSION, self._texts_of(group_id), self.config)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval of a group's members."""
        return group_value(HEARTBEAT, self._texts_of(group_id), self.config)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the minimum interval between two assignments of a group."""
        return group_value(ASSIGNMENT, self._texts_of(group_id), self.config)

    # -- share groups ------------------------------------------------------------------------

    def share_session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of a share group's members."""
        return group_value(SHARE_SESSION, self._texts_of(group_id), self.config)

    def share_heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval of a share group's members."""
        return group_value(SHARE_HEARTBEAT, self._texts_of(group_id), self.config)

    def share_assignment_interval_ms(self, group_id: str) -> int:
        """Return the minimum interval between two assignments of a share group."""
        return group_value(SHARE_ASSIGNMENT, self._texts_of(group_id), self.config)
