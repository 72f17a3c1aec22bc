"""Changed settings of a topic after SET, DELETE, APPEND and SUBTRACT. Pure.

Source: KIP-339; Kafka 4.3's ConfigurationControlManager.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog.config import TopicConfig
from tidelog.config.broker import TOPIC_DEFAULTS, is_list
from tidelog.config.topic_keys import TOPIC_CONFIG_BY_NAME
from tidelog.config.values import ensure_tellable
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.server.admin.topic_rules import config_refusal, parsed
from tidelog.server.runtime.errors import Refusal


class ConfigOperation(IntEnum):
    """What to do with a setting. The numbers are the protocol's."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS: Final = frozenset(ConfigOperation)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting, what to do with it, and the value to do it with."""

    name: str
    operation: int
    value: str | None


def changed_settings(
    changes: Sequence[Change], given: Mapping[str, str], config: TopicConfig
) -> dict[str, str | None]:
    """The new texts of the settings that change; None for back to the default.

    Args:
        changes: What is asked.
        given: The topic's own settings as they are.
        config: All its settings, for lists that have only their default.

    Raises:
        Refusal: A change that can't be made; values are not looked at here.
    """
    return _changed(changes, lambda change: _changed_list(change, given, config))


def _changed(
    changes: Sequence[Change], changed_list: Callable[[Change], str]
) -> dict[str, str | None]:
    ensure_sound(changes)
    found: dict[str, str | None] = {}
    for change in changes:
        match change.operation:
            case ConfigOperation.SET:
                found[change.name] = change.value
            case ConfigOperation.DELETE:
                found[change.name] = None
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                found[change.name] = _told(change.name, changed_list(change))
            case _:
                raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
    return found


def _told(name: str, text: str) -> str:
    """A list that has grown, which no request has held to the length of a string."""
    try:
        ensure_tellable(name, text)
    except ConfigError as error:
        raise config_refusal(error) from error
    return text


def _changed_list(change: Change, given: Mapping[str, str], config: TopicConfig) -> str:
    key = TOPIC_CONFIG_BY_NAME.get(change.name)
    if key is None or key.kind.type_name != "list":
        raise _no_list(change)
    return _with_items(change, given.get(change.name, config.text(change.name)))


def _no_list(change: Change) -> Refusal:
    word = ConfigOperation(change.operation).name
    text = f"Can't {word} to key {change.name} because its type is not LIST."
    return Refusal(ErrorCode.INVALID_CONFIG, text)


def _with_items(change: Change, text: str) -> str:
    """The list as Kafka changes it, item by item with their blanks: what is left is judged then."""
    items = _items(text) if text else []
    for item in _items(change.value or ""):
        if change.operation == ConfigOperation.APPEND:
            items += [] if item in items else [item]
        elif item in items:
            items.remove(item)
    return ",".join(items)


def _items(text: str) -> list[str]:
    """As Java splits: empty items count but for those at the end, and nothing is one of them."""
    found = text.rstrip(",")
    return [] if text and not found else found.split(",")


def changed_broker_settings(
    changes: Sequence[Change], given: Mapping[str, str], texts: Mapping[str, str]
) -> dict[str, str | None]:
    """The same for a broker's settings.

    Args:
        changes: What is asked.
        given: What was set there before.
        texts: What holds of those that can be changed, for lists.

    Raises:
        Refusal: A change that can't be made; values are not looked at here.
    """
    ensure_sound(changes)
    for change in changes:
        if change.operation not in _OPERATIONS:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
    return _changed(changes, lambda change: _changed_broker_list(change, given, texts))


def changed_group_settings(changes: Sequence[Change]) -> dict[str, str | None]:
    """The same for a group's settings, none of which is a list; raises Refusal."""

    def refuse(change: Change) -> str:
        raise _no_list(change)

    return _changed(changes, refuse)


def ensure_sound(changes: Sequence[Change]) -> None:
    """What is said of changes before anybody is asked for his rights.

    Raises:
        Refusal: A setting that is named twice, or has no value though it needs one.
    """
    if len({change.name for change in changes}) < len(changes):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    for change in changes:
        if change.value is None and change.operation != ConfigOperation.DELETE:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}"
            )


def _changed_broker_list(change: Change, given: Mapping[str, str], texts: Mapping[str, str]) -> str:
    if not is_list(change.name):
        word = ConfigOperation(change.operation).name.lower()
        text = f"Config value {word} is not allowed for config key: {change.name}"
        raise Refusal(ErrorCode.INVALID_CONFIG, text)
    now = given.get(change.name, texts.get(change.name))
    if now is None and change.name in TOPIC_DEFAULTS:
        now = TOPIC_DEFAULTS[change.name].default
    return _with_items(change, now or "")


def replaced_settings(wanted: Sequence[Change], given: Mapping[str, str]) -> dict[str, str | None]:
    """AlterConfigs: what is not named goes back to its default.

    Raises:
        Refusal: A name given twice, or without a value.
    """
    ensure_sound(wanted)
    found = {change.name: change.value for change in wanted}
    return {**dict.fromkeys(given.keys() - found.keys()), **found}


def ensure_valid(
    changes: Mapping[str, str | None], given: Mapping[str, str], defaults: Mapping[str, str]
) -> None:
    """Refuse values outside their range, and settings that contradict; raises Refusal."""
    after = {name: text for name, text in given.items() if name not in changes}
    after |= {name: text for name, text in changes.items() if text is not None}
    parsed(after, defaults)
