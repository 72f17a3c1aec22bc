"""What one line of the settings table holds.

Source: Kafka 4.3's `TopicConfig`, `LogConfig` and `ServerTopicConfigSynonyms`.
"""

from dataclasses import dataclass
from typing import Final

from tidelog.config.values import ConfigValue, ValueKind
from tidelog.errors import ConfigError

# Clients are told settings in strings of Kafka's protocol, which are no longer.
TEXT_BYTES_MAX: Final = 32_767


def is_tellable(text: str) -> bool:
    """Whether a text fits into a string of Kafka's protocol."""
    return len(text) <= TEXT_BYTES_MAX and len(text.encode(errors="replace")) <= TEXT_BYTES_MAX


def ensure_tellable(name: str, text: str) -> None:
    """Raise ConfigError for a value that no client could be told."""
    if not is_tellable(text):
        raise ConfigError(name, text, f"must be at most {TEXT_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class Synonym:
    """Another name of a key whose values are in another unit.

    Attributes:
        name: The broker's name, e.g. `log.retention.hours`.
        factor: How many of the key's units one of the synonym's is, e.g. 3,600,000.
    """

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One topic setting.

    Attributes:
        name: Kafka's topic-level name, or `tidelog.*`.
        kind: How its value is read and what is allowed.
        default: As a text; None where a missing value means something of its own.
        doc: What it does, what follows from it.
        synonyms: The broker's names of it, the winning one first.
        has_effect: False for what is accepted and kept for Kafka's sake only.
    """

    name: str
    kind: ValueKind
    default: str | None
    doc: str
    synonyms: tuple[Synonym, ...] = ()
    has_effect: bool = True

    @property
    def attribute(self) -> str:
        """The field of `TopicConfig`: the name with underscores."""
        return self.name.replace(".", "_")

    @property
    def default_value(self) -> ConfigValue | None:
        """The default as a value."""
        return None if self.default is None else self.kind.parse(self.default)
