"""Changes of the settings of one topic, broker or group: SET, DELETE, APPEND and SUBTRACT.

This module computes the new overrides from the old overrides, without input or output. Overrides
are the texts of the settings that were set explicitly. The resource (`api/configs.py`) defines
which settings exist and which values they accept.

Source: KIP-133, KIP-339; Kafka 4.3's ConfigurationControlManager.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TypeAlias

from tidelog.config.values import ensure_tellable
from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.lazy_dataclass import dataclass
from tidelog.server.admin.topic_rules import config_refusal
from tidelog.server.runtime.errors import Refusal


class ConfigOperation(IntEnum):
    """Operation on a setting, with the operation's number in Kafka's protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change: the name of a setting, an operation and its operand."""

    name: str
    operation: int
    value: str | None


# New texts of settings by name; None restores the default.
NewTexts: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Changes of one resource's settings in a request.

    Attributes:
        changes: Changes of single settings.
        replaces_all: Whether settings that the request does not name return to their defaults
            (AlterConfigs).
    """

    changes: tuple[ConfigChange, ...]
    replaces_all: bool = False

    @property
    def set_names(self) -> list[str]:
        """Names of the settings in all changes whose operation is not DELETE."""
        return [each.name for each in self.changes if each.operation != ConfigOperation.DELETE]

    def check(self) -> None:
        """Make the checks that need neither the client's rights nor the resource.

        Raises:
            Refusal: A setting is named twice, or a change other than DELETE has no value.
        """
        if len({change.name for change in self.changes}) < len(self.changes):
            raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        for change in self.changes:
            if change.value is None and change.operation != ConfigOperation.DELETE:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}"
                )

    def apply(
        self, overrides: Mapping[str, str], list_text: Callable[[ConfigChange], str]
    ) -> dict[str, str | None]:
        """Return the new texts of the settings that change. The values are not validated.

        Args:
            overrides: Texts of the settings that were set before the changes.
            list_text: Returns the current text of a list setting; raises Refusal if the setting is
                not a list.

        Raises:
            Refusal: `check` or `list_text` raises it, an operation is unknown, or a new list is too
                long.
        """
        self.check()
        texts: dict[str, str | None] = dict.fromkeys(overrides) if self.replaces_all else {}
        for change in self.changes:
            match change.operation:
                case ConfigOperation.SET:
                    texts[change.name] = change.value
                case ConfigOperation.DELETE:
                    texts[change.name] = None
                case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                    texts[change.name] = _changed_list(change, list_text(change))
                case _:
                    raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
        return texts


def not_a_list(change: ConfigChange) -> Refusal:
    """Build the error for APPEND or SUBTRACT on a setting that is not a list."""
    word = ConfigOperation(change.operation).name
    text = f"Can't {word} to key {change.name} because its type is not LIST."
    return Refusal(ErrorCode.INVALID_CONFIG, text)


def merged(overrides: Mapping[str, str], new_texts: NewTexts) -> dict[str, str]:
    """Return the overrides with new texts in place of old ones; None removes an override."""
    after = {name: text for name, text in overrides.items() if name not in new_texts}
    return after | {name: text for name, text in new_texts.items() if text is not None}


def _changed_list(change: ConfigChange, text: str) -> str:
    """Apply a change to the text of a list setting, and return the new text.

    APPEND adds the change's items that the list lacks. SUBTRACT removes one occurrence of each of
    the change's items from the list. Kafka changes lists in the same way. Blanks are part of an
    item. The new list is validated later.

    Raises:
        Refusal: The new list is longer than a string of the protocol may be.
    """
    items = _items(text) if text else []
    for item in _items(change.value or ""):
        if change.operation == ConfigOperation.APPEND:
            items += [] if item in items else [item]
        elif item in items:
            items.remove(item)
    changed = ",".join(items)
    try:
        ensure_tellable(change.name, changed)
    except ConfigError as error:
        raise config_refusal(error) from error
    return changed


def _items(text: str) -> list[str]:
    """Split a list as Java does: drop trailing empty items, but keep one item of an empty text."""
    stripped = text.rstrip(",")
    return [] if text and not stripped else stripped.split(",")
