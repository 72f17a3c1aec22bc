"""Alterations of settings of the broker, of all brokers and of groups.

Settings of a group are stored and described whether the group exists or not.

Source: KIP-226, KIP-339, KIP-848; responses of Kafka 4.3.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from tidelog.config import BROKER_CONFIG_BY_NAME
from tidelog.config.broker import DYNAMIC_CONFIGS, changed_config
from tidelog.config.group import (
    bounds,
    broker_name,
    ensure_group_texts,
    is_bounded,
    is_group_setting,
)
from tidelog.config.topic import broker_names
from tidelog.config.unused_keys import ONE_BROKERS, WITHOUT_EFFECT
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.server.admin.config_display import DescribedSetting, described_group_settings
from tidelog.server.admin.topic_rules import config_refusal
from tidelog.server.api.node import Node
from tidelog.server.runtime.errors import Refusal
from tidelog.storage.directory.broker_files import ALL_BROKERS, ClusterState, settings_of

Changes: TypeAlias = Mapping[str, str | None]


# From what was given and what holds (texts by name) to what changes; None for back to before.
Changing: TypeAlias = Callable[[Mapping[str, str], Mapping[str, str]], Changes]


class UnknownSettings(Refusal):
    """Settings that no broker has."""


async def alter_broker(
    node: Node, name: str, names: Iterable[str], changes_of: Changing, *, is_trial: bool
) -> None:
    """Change settings; they hold, and are kept, when this returns.

    Args:
        node: The broker.
        name: Its number, or nothing for all brokers.
        names: Settings that are to get a value.
        changes_of: What to change.
        is_trial: Whether nothing is to change in fact.

    Raises:
        Refusal: A setting or a value that can't be had.
        StorageFailure: It could not be kept; nothing was changed.
    """
    asked = list(names)

    def changed(state: ClusterState) -> ClusterState:
        made = _changed_state(node, name, asked, changes_of, state)
        return state if is_trial else made

    try:
        await node.cluster.change(changed)
    except ConfigError as error:  # with a topic's own settings, say
        raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error


def ensure_possible(node: Node, name: str, names: Iterable[str], changes_of: Changing) -> None:
    """What is said of a change before anybody is asked for his rights; as `alter_broker`.

    Kafka takes settings that nobody knows: who may not change anything hears nothing of them.

    Raises:
        Refusal: A setting or a value that can't be had.
    """
    try:
        _changed_state(node, name, list(names), changes_of, node.cluster.state)
    except UnknownSettings:
        return
    except ConfigError as error:
        raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from error


def _changed_state(
    node: Node, name: str, names: Iterable[str], changes_of: Changing, state: ClusterState
) -> ClusterState:
    """What is kept after a change; raises Refusal, ConfigError."""
    who = str(node.node_id) if name else ALL_BROKERS
    given = state.settings.get(who, {})
    changes = changes_of(given, settings_of(state, node.node_id))
    _ensure_dynamic(names)
    if not name:
        _ensure_for_all(names)
    after = {key: text for key, text in given.items() if key not in changes}
    after |= {key: text for key, text in changes.items() if text is not None}
    others = {key: kept for key, kept in state.settings.items() if key != who}
    made = replace(state, settings={**others, who: after} if after else others)
    changed_config(node.started_config, settings_of(made, node.node_id))
    changed_config(node.started_config, made.settings.get(ALL_BROKERS, {}))
    return made


def _ensure_dynamic(names: Iterable[str]) -> None:
    asked = [name for name in names if name not in DYNAMIC_CONFIGS]
    known = BROKER_CONFIG_BY_NAME.keys() | WITHOUT_EFFECT.keys() | broker_names()
    fixed = [name for name in asked if name in known]
    unknown = [name for name in asked if name not in fixed]
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


# So many have settings of their own: all of them lie in one file, written at each change.
GROUPS_MAX: Final = 10_000


NAME_CHARACTERS_MAX: Final = 249


def group_settings(node: Node, group_id: str) -> list[DescribedSetting]:
    """All settings of a group; raises Refusal for an empty name."""
    if not group_id:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    given = node.cluster.state.groups.get(group_id, {})
    return described_group_settings(given, node.started_config)


async def alter_group(
    node: Node,
    group_id: str,
    changes_of: Callable[[Mapping[str, str]], Changes],
    *,
    is_trial: bool,
) -> None:
    """Change a group's settings; they are kept when this returns, and hold from then on.

    Raises:
        Refusal: A setting or a value that can't be had.
        StorageFailure: It could not be kept; nothing was changed.
    """
    if not group_id:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

    def changed(state: ClusterState) -> ClusterState:
        given = state.groups.get(group_id, {})
        changes = changes_of(given)
        after = {name: text for name, text in given.items() if name not in changes}
        after |= {name: text for name, text in changes.items() if text is not None}
        _ensure_valid(node, after)
        others = {name: kept for name, kept in state.groups.items() if name != group_id}
        if after:
            _ensure_room(group_id, len(others))
        return state if is_trial else replace(state, groups=_with(others, group_id, after))

    await node.cluster.change(changed)


def _ensure_room(group_id: str, others: int) -> None:
    if others >= GROUPS_MAX:
        text = f"{GROUPS_MAX} groups have settings of their own; no more can"
        raise Refusal(ErrorCode.POLICY_VIOLATION, text)
    if len(group_id) > NAME_CHARACTERS_MAX:
        text = f"a group with settings has a name of at most {NAME_CHARACTERS_MAX} characters"
        raise Refusal(ErrorCode.POLICY_VIOLATION, text)


def _with(
    others: Mapping[str, Mapping[str, str]], group_id: str, own: Mapping[str, str]
) -> Mapping[str, Mapping[str, str]]:
    return {**others, group_id: own} if own else others


def _ensure_valid(node: Node, texts: Mapping[str, str]) -> None:
    unknown = next((name for name in texts if not is_group_setting(name)), None)
    if unknown is not None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {unknown}")
    try:
        ensure_group_texts(texts)
    except ConfigError as error:
        raise config_refusal(error) from error
    for name in filter(is_bounded, texts):
        low, high = bounds(name, node.config)
        value = int(texts[name])
        if value < low:
            text = f"{name} must be greater than or equal to {broker_name(name, 'min.')}"
            raise Refusal(ErrorCode.INVALID_CONFIG, text)
        if value > high:
            text = f"{name} must be less than or equal to {broker_name(name, 'max.')}"
            raise Refusal(ErrorCode.INVALID_CONFIG, text)
