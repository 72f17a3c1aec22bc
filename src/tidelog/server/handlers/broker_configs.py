"""Changes of the broker's own settings, and of those for all brokers.

Source: KIP-226, KIP-339; answers of Kafka 4.3.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from tidelog.config import BROKER_CONFIG_BY_NAME
from tidelog.config.dynamic import DYNAMIC_CONFIGS, changed_config
from tidelog.config.resolve import broker_names
from tidelog.config.without_effect import ONE_BROKERS, WITHOUT_EFFECT
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.server.errors import Refusal
from tidelog.server.node import Node
from tidelog.storage.cluster_file import ALL_BROKERS, ClusterState, settings_of

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
