"""From the names people write to the table's keys: synonyms, retired names, spelling, ranges.

Within one mapping a key's own name wins over its synonyms, and finer units over coarser ones, as
in Kafka; a topic's mapping wins over the broker's. Everything that was not taken literally is
reported as a `ConfigNote`, so nothing is renamed or dropped in silence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidelog.config.keys import ConfigKey, Synonym
from tidelog.config.topic_keys import (
    RETIRED,
    TOPIC_CONFIG_BY_NAME,
    TOPIC_CONFIGS,
    TWO_SIDED_LIMIT_KEYS,
    TWO_SIDED_LIMITS,
)
from tidelog.config.values import ConfigValue, parse_integer, text_of
from tidelog.errors import ConfigError


class NoteKind(StrEnum):
    """What became of a setting that was not taken literally."""

    RENAMED = "renamed"
    SHADOWED = "shadowed"
    RETIRED = "retired"
    NO_EFFECT = "no effect"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class ConfigNote:
    """Something to tell whoever wrote a setting.

    Attributes:
        kind: What became of it.
        given: The name as written.
        text: One line that says what was done instead, or what follows.
    """

    kind: NoteKind
    given: str
    text: str

    def __str__(self) -> str:
        return f"{self.given}: {self.text}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key's value and the name under which it was given."""

    key: ConfigKey
    value: ConfigValue
    given: str


def _find_synonyms() -> dict[str, tuple[ConfigKey, Synonym]]:
    found = {}
    for key in TOPIC_CONFIGS:
        for synonym in key.synonyms:
            # compression.type and a few others have one name on both levels.
            if synonym.name not in TOPIC_CONFIG_BY_NAME:
                found[synonym.name] = (key, synonym)
    return found


_SYNONYMS: Final = _find_synonyms()
_KNOWN_NAMES: Final = (*TOPIC_CONFIG_BY_NAME, *_SYNONYMS, *TWO_SIDED_LIMITS, *RETIRED)


_BROKER_NAMES: Final = frozenset(
    {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}
    | {name for name in TOPIC_CONFIG_BY_NAME if name.startswith("tidelog.")}
    | {*_SYNONYMS, *TWO_SIDED_LIMITS, *RETIRED}
)


def broker_names() -> frozenset[str]:
    """Names under which a broker's settings give topics their defaults."""
    return _BROKER_NAMES


def resolve(
    given: Mapping[str, str], *, ignore_unknown: bool = False
) -> tuple[dict[str, Setting], list[ConfigNote]]:
    """What a mapping sets, by key name, in the table's order.

    Args:
        given: Names (any that the table knows) and texts.
        ignore_unknown: For a broker's mapping, which holds settings that are not topics'.

    Returns:
        The settings, and what to tell their author.

    Raises:
        ConfigError: An unknown name or a value outside its range.
    """
    settings: dict[str, Setting] = {}
    notes: list[ConfigNote] = []
    for name in given:
        if not ignore_unknown:
            key_names(name)
        if name in RETIRED:
            notes.append(ConfigNote(NoteKind.RETIRED, name, f"has no effect: {RETIRED[name]}"))
    for setting in _candidates(given):
        winner = settings.setdefault(setting.key.name, setting)
        notes.extend(_notes(setting, winner))
    ordered = {key.name: settings[key.name] for key in TOPIC_CONFIGS if key.name in settings}
    return ordered, notes


def plain_names(given: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigNote]]:
    """The same settings for brokers, which know a topic's by the keys' own names alone.

    Args:
        given: Names and texts. What is no older or broker's name passes as it is: brokers may know
            more than our table does.

    Returns:
        Names and texts, and what to tell their author.

    Raises:
        ConfigError: The value of an older name is outside its range.
    """
    older = {name for name in given if name in _SYNONYMS or name in TWO_SIDED_LIMITS}
    plain = {name: text for name, text in given.items() if name not in older}
    meant = older.union(*map(key_names, older))
    settings, notes = resolve({name: text for name, text in given.items() if name in meant})
    found = {name: text_of(setting.value) for name, setting in settings.items()}
    return found | plain, [note for note in notes if note.given in older]


def key_names(name: str) -> tuple[str, ...]:
    """The keys that a name stands for: mostly one, two for KIP-32's limit, none where retired.

    Raises:
        ConfigError: Nobody knows the name.
    """
    if name in TOPIC_CONFIG_BY_NAME:
        return (name,)
    if name in _SYNONYMS:
        return (_SYNONYMS[name][0].name,)
    if name in TWO_SIDED_LIMITS:
        return TWO_SIDED_LIMIT_KEYS
    if name in RETIRED:
        return ()
    raise _unknown(name)


def _candidates(given: Mapping[str, str]) -> Iterator[Setting]:
    """All settings in a mapping; of several for one key the winning one first."""
    for key in TOPIC_CONFIGS:
        if key.name in given:
            yield Setting(key, _read(key, key.name, given[key.name]), key.name)
        for synonym in key.synonyms:
            if synonym.name != key.name and synonym.name in given:
                value = _read(key, synonym.name, given[synonym.name], synonym.factor)
                yield Setting(key, value, synonym.name)
    for name in TWO_SIDED_LIMITS:
        if name in given:
            for key in map(TOPIC_CONFIG_BY_NAME.__getitem__, TWO_SIDED_LIMIT_KEYS):
                yield Setting(key, _read(key, name, given[name]), name)


def _read(key: ConfigKey, given: str, text: str, factor: int = 1) -> ConfigValue:
    """A text's value; ConfigError under the name that was written."""
    try:
        # Negative hours mean what -1 ms means: no limit.
        scaled = text if factor == 1 else str(max(parse_integer(text) * factor, -1))
        return key.kind.parse(scaled)
    except ValueError:
        unit = "" if factor == 1 else f" (times {factor} it is {key.name})"
        raise ConfigError(given, text, f"must be {key.kind.allowed}{unit}") from None


def _notes(setting: Setting, winner: Setting) -> Iterator[ConfigNote]:
    key = setting.key
    if setting is not winner:
        text = f"{winner.given} wins over it for {key.name}"
        yield ConfigNote(NoteKind.SHADOWED, setting.given, text)
    elif setting.given != key.name:
        text = f"taken as {key.name}={text_of(setting.value)}"
        yield ConfigNote(NoteKind.RENAMED, setting.given, text)
    if not key.has_effect and setting.value != key.default_value:
        text = "kept for Kafka's sake, it changes nothing here"
        yield ConfigNote(NoteKind.NO_EFFECT, setting.given, text)


def _unknown(name: str) -> ConfigError:
    """The error for a name that nobody defined, with the nearest one that somebody did."""
    import difflib  # only for errors: it costs 3 ms

    words = difflib.get_close_matches(name.lower().replace("_", "."), _KNOWN_NAMES, n=1)
    hint = f"; did you mean {words[0]}?" if words else ""
    return ConfigError(name, None, f"is not a topic setting{hint}")
