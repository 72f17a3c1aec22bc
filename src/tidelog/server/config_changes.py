"""What a change of a topic's settings makes of them: SET, DELETE, APPEND, SUBTRACT. Pure.

Source: KIP-339; Kafka 4.3's ConfigurationControlManager.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tidelog.config import TopicConfig
from tidelog.config.topic_keys import TOPIC_CONFIG_BY_NAME
from tidelog.server.errors import UNKNOWN_SERVER_ERROR, Refusal
from tidelog.server.topic_rules import INVALID_CONFIG, INVALID_REQUEST, parsed


class Operation(IntEnum):
    """What to do with a setting. The numbers are the protocol's."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One setting, what to do with it, and the value to do it with."""

    name: str
    operation: int
    value: str | None


def changed_settings(
    changes: Iterable[Change], given: Mapping[str, str], config: TopicConfig
) -> dict[str, str | None]:
    """The new texts of the settings that change; None for back to the default.

    Args:
        changes: What is asked.
        given: The topic's own settings as they are.
        config: All its settings, for lists that have only their default.

    Raises:
        Refusal: A change that can't be made; values are not looked at here.
    """
    found: dict[str, str | None] = {}
    for change in changes:
        if change.name in found:
            raise Refusal(INVALID_REQUEST, "Error due to duplicate config keys")
        if change.value is None and change.operation != Operation.DELETE:
            raise Refusal(INVALID_REQUEST, f"Null value not supported for : {change.name}")
        found[change.name] = _new_text(change, given, config)
    return found


def _new_text(change: Change, given: Mapping[str, str], config: TopicConfig) -> str | None:
    match change.operation:
        case Operation.SET:
            return change.value
        case Operation.DELETE:
            return None
        case Operation.APPEND | Operation.SUBTRACT:
            return _changed_list(change, given, config)
    raise Refusal(UNKNOWN_SERVER_ERROR)


def _changed_list(change: Change, given: Mapping[str, str], config: TopicConfig) -> str:
    key = TOPIC_CONFIG_BY_NAME.get(change.name)
    if key is None or key.kind.type_name != "list":
        word = Operation(change.operation).name
        text = f"Can't {word} to key {change.name} because its type is not LIST."
        raise Refusal(INVALID_CONFIG, text)
    now = _items(given.get(change.name, config.text(change.name)))
    items = _items(change.value or "")
    if change.operation == Operation.APPEND:
        return ",".join([*now, *(item for item in items if item not in now)])
    return ",".join(item for item in now if item not in items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def replaced_settings(
    wanted: Iterable[tuple[str, str | None]], given: Mapping[str, str]
) -> dict[str, str | None]:
    """AlterConfigs: what is not named goes back to its default.

    Raises:
        Refusal: A name given twice, or without a value.
    """
    found: dict[str, str | None] = {}
    for name, value in wanted:
        if name in found:
            raise Refusal(INVALID_REQUEST, "Error due to duplicate config keys")
        if value is None:
            raise Refusal(INVALID_REQUEST, f"Null value not supported for : {name}")
        found[name] = value
    return {**dict.fromkeys(given.keys() - found.keys()), **found}


def ensure_valid(
    changes: Mapping[str, str | None], given: Mapping[str, str], defaults: Mapping[str, str]
) -> None:
    """Refuse values outside their range, and settings that contradict; raises Refusal."""
    after = {name: text for name, text in given.items() if name not in changes}
    after |= {name: text for name, text in changes.items() if text is not None}
    parsed(after, defaults)
