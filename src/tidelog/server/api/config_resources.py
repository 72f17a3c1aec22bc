"""Topics, brokers and groups as resources whose settings can be described and altered.

One class for each resource type. The settings of a group are stored and described whether the group
exists or not.

Source: KIP-133, KIP-226, KIP-339, KIP-848; responses of Kafka 4.3.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tidelog.config import BROKER_CONFIG_BY_NAME, TopicConfig
from tidelog.config.broker import DYNAMIC_CONFIGS, TOPIC_DEFAULTS, changed_config, is_list
from tidelog.config.group import (
    bounds,
    broker_name,
    ensure_group_texts,
    is_bounded,
    is_group_setting,
)
from tidelog.config.topic import TOPIC_CONFIG_BY_NAME, broker_names
from tidelog.config.unused_keys import ONE_BROKERS, WITHOUT_EFFECT
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.protocol.messages.configs import ConfigSource
from tidelog.server.admin.config_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    NewTexts,
    merged,
    not_a_list,
)
from tidelog.server.admin.config_display import (
    ConfigEntry,
    describe_broker,
    describe_changes,
    describe_group,
    describe_topic,
)
from tidelog.server.admin.topic_rules import config_refusal, ensure_name, parsed
from tidelog.server.api import topic_changes
from tidelog.server.api.node import Node
from tidelog.server.runtime.errors import Refusal
from tidelog.storage.directory.broker_files import ALL_BROKERS, ClusterState, settings_of
from tidelog.storage.directory.topic_registry import TopicInfo

# Kafka's codes of resource types.
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

# Maximum number of groups with settings of their own: one file holds all of them, and each change
# rewrites it.
GROUPS_MAX: Final = 10_000

NAME_CHARACTERS_MAX: Final = 249

# Java's int has at most ten digits.
_INTEGER: Final = re.compile("-?[0-9]{1,10}")


class ConfigResource(ABC):
    """A topic, a broker or a group that a request names."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name

    @abstractmethod
    def describe(self) -> list[ConfigEntry]:
        """Return all settings. Raises Refusal if the resource can't be described."""

    def check(self, changes: ConfigChanges) -> None:
        """Make the checks that Kafka makes before it checks the client's rights. Raises Refusal."""
        changes.check()

    @abstractmethod
    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """Change settings; they are in force and durable when this returns.

        Args:
            changes: The changes.
            is_trial: Only validate the changes.

        Raises:
            Refusal: A setting or a value is invalid.
            StorageFailure: The change could not be stored; nothing was changed.
        """


class TopicResource(ConfigResource):
    """A topic's settings."""

    def describe(self) -> list[ConfigEntry]:
        """See `ConfigResource`."""
        ensure_name(self.name)
        info = self.node.topics.find(self.name)
        if info is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        defaults = self.node.started_config.topic_defaults
        return describe_topic(info.given, info.config, defaults, self.node.changed)

    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """See `ConfigResource`."""
        if not self.name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        ensure_name(self.name)
        defaults = self.node.config.topic_defaults

        def new_texts(overrides: Mapping[str, str], config: TopicConfig) -> NewTexts:
            texts = topic_texts(changes, overrides, config)
            parsed(merged(overrides, texts), defaults)
            return texts

        if self.node.topics.find(self.name) is None:
            # As in Kafka, a change that is invalid for any topic gets its own error.
            new_texts({}, parsed({}, defaults))
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{self.name}' does not exist."
            )

        def checked(info: TopicInfo) -> NewTexts:
            texts = new_texts(info.given, info.config)
            if is_trial:
                return {}
            # A setting of the topic's own can be reset to its default, even if its name is unknown.
            return {n: text for n, text in texts.items() if text is not None or n in info.given}

        await topic_changes.alter(self.node, self.name, checked)


def topic_texts(
    changes: ConfigChanges, overrides: Mapping[str, str], config: TopicConfig
) -> dict[str, str | None]:
    """Return the new texts of a topic's settings; raises the errors of `ConfigChanges.apply`.

    Args:
        changes: The changes.
        overrides: The topic's own settings before the change.
        config: All its settings, for lists that have only their default.
    """

    def list_text(change: ConfigChange) -> str:
        key = TOPIC_CONFIG_BY_NAME.get(change.name)
        if key is None or key.kind.type_name != "list":
            raise not_a_list(change)
        return overrides.get(change.name, config.text(change.name))

    return changes.apply(overrides, list_text)


class BrokerResource(ConfigResource):
    """Settings of this broker, or of all brokers if the name is empty."""

    def describe(self) -> list[ConfigEntry]:
        """See `ConfigResource`."""
        node = self.node
        if not self.name:
            texts = node.cluster.state.settings.get(ALL_BROKERS, {})
            return describe_changes(texts, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        self._ensure_here("Broker", " or empty string")
        return describe_broker(node.started_config, _facts(node), node.changed)

    def _ensure_this_node(self) -> None:
        if self.name:
            self._ensure_here("Node")

    def _ensure_here(self, word: str, also: str = "") -> None:
        name, node_id = self.name, self.node.node_id
        if _INTEGER.fullmatch(name) is None:
            text = f"{word} id must be an integer, but it is: {name}"
            raise Refusal(ErrorCode.INVALID_REQUEST, text)
        if int(name) != node_id:
            text = f"Unexpected broker id, expected {node_id}{also}, but received {name}"
            raise Refusal(ErrorCode.INVALID_REQUEST, text)

    def check(self, changes: ConfigChanges) -> None:
        """See `ConfigResource`.

        Unknown settings pass, as in Kafka: a client without rights doesn't learn which settings
        exist.
        """
        self._ensure_this_node()
        try:
            self._changed_state(self.node.cluster.state, changes)
        except UnknownSettings:
            return
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error

    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """See `ConfigResource`."""
        self._ensure_this_node()

        def change(state: ClusterState) -> ClusterState:
            changed = self._changed_state(state, changes)
            return state if is_trial else changed

        try:
            await self.node.cluster.change(change)
        except ConfigError as error:  # e.g. a conflict with a topic's own settings
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error

    def _changed_state(self, state: ClusterState, changes: ConfigChanges) -> ClusterState:
        """Return the state after a change. Raises Refusal or ConfigError."""
        node = self.node
        broker = str(node.node_id) if self.name else ALL_BROKERS
        overrides = state.settings.get(broker, {})
        effective = {**settings_of(state, node.node_id), **overrides}

        def list_text(change: ConfigChange) -> str:
            if not is_list(change.name):
                word = ConfigOperation(change.operation).name.lower()
                text = f"Config value {word} is not allowed for config key: {change.name}"
                raise Refusal(ErrorCode.INVALID_CONFIG, text)
            if change.name not in effective and change.name in TOPIC_DEFAULTS:
                return TOPIC_DEFAULTS[change.name].default or ""
            return effective.get(change.name, "")

        changes.check()
        for each in changes.changes:
            if each.operation not in frozenset(ConfigOperation):
                text = f"Unknown operations type {each.operation}"
                raise Refusal(ErrorCode.INVALID_REQUEST, text)
        own = merged(overrides, changes.apply(overrides, list_text))
        _ensure_dynamic(changes.set_names)
        if not self.name:
            _ensure_for_all(changes.set_names)
        changed = replace(state, settings=_with(state.settings, broker, own))
        changed_config(node.started_config, settings_of(changed, node.node_id))
        changed_config(node.started_config, changed.settings.get(ALL_BROKERS, {}))
        return changed


class UnknownSettings(Refusal):
    """A change of settings that no broker has."""


def _facts(node: Node) -> Mapping[str, str]:
    """Return the settings whose values are known only while the broker runs."""
    advertised = node.listeners or {"PLAINTEXT": node.address}
    facts = {
        "broker.id": str(node.node_id),
        "log.dirs": node.log_dir.path,
        "advertised.listeners": _by_name(advertised),
    }
    # An address from the command line, or a port that the system chose, overrides the setting.
    return facts | {"listeners": _by_name(node.places)} if node.places else facts


def _by_name(addresses: Mapping[str, object]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


def _ensure_dynamic(names: Iterable[str]) -> None:
    fixed = [name for name in names if name not in DYNAMIC_CONFIGS]
    known_names = BROKER_CONFIG_BY_NAME.keys() | WITHOUT_EFFECT.keys() | broker_names()
    unknown = [name for name in fixed if name not in known_names]
    if unknown:
        raise UnknownSettings(
            ErrorCode.INVALID_REQUEST, f"Unknown broker configs: [{', '.join(unknown)}]"
        )
    if fixed:
        text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
        raise Refusal(ErrorCode.INVALID_REQUEST, text)


def _ensure_for_all(names: Iterable[str]) -> None:
    single = [name for name in names if name in ONE_BROKERS]
    if single:
        text = "Cannot update these configs at default cluster level, broker id must be specified"
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(single)}]")


class GroupResource(ConfigResource):
    """A group's settings."""

    def describe(self) -> list[ConfigEntry]:
        """See `ConfigResource`."""
        if not self.name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        overrides = self.node.cluster.state.groups.get(self.name, {})
        return describe_group(overrides, self.node.started_config)

    async def alter(self, changes: ConfigChanges, *, is_trial: bool) -> None:
        """See `ConfigResource`; no setting of a group is a list."""
        if not self.name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

        def list_text(change: ConfigChange) -> str:
            raise not_a_list(change)

        def change(state: ClusterState) -> ClusterState:
            overrides = state.groups.get(self.name, {})
            own = merged(overrides, changes.apply(overrides, list_text))
            self._ensure_valid(own)
            if own:
                self._ensure_room(len(state.groups.keys() - {self.name}))
            return state if is_trial else replace(state, groups=_with(state.groups, self.name, own))

        await self.node.cluster.change(change)

    def _ensure_room(self, other_groups: int) -> None:
        if other_groups >= GROUPS_MAX:
            text = f"{GROUPS_MAX} groups have settings of their own, which is the maximum"
            raise Refusal(ErrorCode.POLICY_VIOLATION, text)
        if len(self.name) > NAME_CHARACTERS_MAX:
            text = f"a group with settings has a name of at most {NAME_CHARACTERS_MAX} characters"
            raise Refusal(ErrorCode.POLICY_VIOLATION, text)

    def _ensure_valid(self, texts: Mapping[str, str]) -> None:
        unknown = next((name for name in texts if not is_group_setting(name)), None)
        if unknown is not None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {unknown}")
        try:
            ensure_group_texts(texts)
        except ConfigError as error:
            raise config_refusal(error) from error
        for name in filter(is_bounded, texts):
            low, high = bounds(name, self.node.config)
            value = int(texts[name])
            if value < low:
                text = f"{name} must be greater than or equal to {broker_name(name, 'min.')}"
                raise Refusal(ErrorCode.INVALID_CONFIG, text)
            if value > high:
                text = f"{name} must be less than or equal to {broker_name(name, 'max.')}"
                raise Refusal(ErrorCode.INVALID_CONFIG, text)


def _with(
    settings: Mapping[str, Mapping[str, str]], name: str, own: Mapping[str, str]
) -> Mapping[str, Mapping[str, str]]:
    """Return `settings` with those of one resource replaced, or removed if `own` is empty."""
    others = {each: texts for each, texts in settings.items() if each != name}
    return {**others, name: own} if own else others


# Resource types that have settings here.
_CLASSES: Final[Mapping[int, type[ConfigResource]]] = {
    TOPIC: TopicResource,
    BROKER: BrokerResource,
    GROUP: GroupResource,
}


def find_resource(node: Node, kind: int, name: str) -> ConfigResource | None:
    """Return the resource of a type and name, or None for a type without settings here."""
    resource_class = _CLASSES.get(kind)
    return None if resource_class is None else resource_class(node, name)
