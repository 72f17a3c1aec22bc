"""Settings of single groups: shown for any name, kept whether there is such a group or not.

Source: KIP-848; answers of Kafka 4.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from tidelog.config.group_keys import (
    bounds,
    broker_name,
    ensure_group_texts,
    is_bounded,
    is_group_setting,
)
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.server.config_values import DescribedSetting, described_group_settings
from tidelog.server.errors import Refusal
from tidelog.server.node import Node
from tidelog.server.topic_rules import config_refusal
from tidelog.storage.cluster_file import ClusterState

# So many have settings of their own: all of them lie in one file, written at each change.
GROUPS_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 249

Changes: TypeAlias = Mapping[str, str | None]


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
