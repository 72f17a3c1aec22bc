"""Converts values of settings that have a unit, such as `retention.ms=7d`, `segment.bytes=1GiB`.

The command line and Python calls accept such amounts, and convert them to Kafka's whole numbers
before a setting is checked or stored. Clients' requests and server.properties accept only numbers,
as in Kafka. The unit of a setting is the last word of its name, except for the settings in
`_BY_NAME`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar, cast

from tidelog.config.topic import TOPIC_CONFIG_BY_NAME, key_names
from tidelog.config.values import INTEGER_MAX, ConfigKey
from tidelog.errors import ConfigError, ConfigErrors

_Text = TypeVar("_Text", bound="str | None")

_SECOND_NS: Final = 1_000_000_000
_TIMES: Final = {
    "ns": 1,
    "us": 1000,
    "ms": 1_000_000,
    "s": _SECOND_NS,
    "m": 60 * _SECOND_NS,
    "min": 60 * _SECOND_NS,
    "h": 3600 * _SECOND_NS,
    "d": 86_400 * _SECOND_NS,
    "w": 604_800 * _SECOND_NS,
}
_PREFIXES: Final = "kmgtp"
_SIZES: Final = (
    {"b": 1}
    | {f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate(_PREFIXES)}
    | {f"{prefix}ib": 1024 ** (power + 1) for power, prefix in enumerate(_PREFIXES)}
)
_PLAIN: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
# Matches a number with letters after it, such as `7d`. A number with an exponent, such as `1e3`,
# does not match.
_AMOUNT: Final = re.compile(r"\s*[+-]?[0-9][0-9.]*\s*(?!e[+-]?[0-9])[A-Za-z].*", re.ASCII)
_PART: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,18})?)\s*([A-Za-z]+)\s*", re.ASCII)


class _Unit(NamedTuple):
    """Unit of a setting.

    Attributes:
        name: Plural name, for errors.
        size: Size of the unit in ns or bytes.
        units: Units that a value may have, by name.
        forms: Valid forms, for errors.
    """

    name: str
    size: int
    units: Mapping[str, int]
    forms: str


_LENGTHS: Final = "a length of time such as 7d, 36h, 90m, 1d12h or 500ms"
_UNITS: Final = {
    "bytes": _Unit("bytes", 1, _SIZES, "a size such as 1GiB (1024 MiB), 500MB (1000 kB) or 64KiB"),
    "us": _Unit("microseconds", _TIMES["us"], _TIMES, _LENGTHS),
    "ms": _Unit("milliseconds", _TIMES["ms"], _TIMES, _LENGTHS),
    "seconds": _Unit("seconds", _TIMES["s"], _TIMES, _LENGTHS),
    "minutes": _Unit("minutes", _TIMES["m"], _TIMES, _LENGTHS),
    "hours": _Unit("hours", _TIMES["h"], _TIMES, _LENGTHS),
}
# Units in which values are printed, in the order in which they are tried. Index 0 has the units of
# time, and index 1 has the units of size.
_PRINTED_UNITS: Final = (
    [(word, _TIMES[word]) for word in ("d", "h", "m", "s")],
    [(f"{letter}iB", 1024**power) for letter, power in (("G", 3), ("M", 2), ("K", 1))]
    + [(f"{letter}B", 1000**power) for letter, power in (("G", 3), ("M", 2), ("k", 1))],
)
_PARTS_MAX: Final = 2
# Numbers above this mean "no limit" and are printed without a unit.
_AMOUNT_MAX: Final = 2**53
# Units of the settings whose name does not end with the unit; None if a setting has no unit.
_BY_NAME: Final = {
    "log.cleaner.dedupe.buffer.size": _UNITS["bytes"],
    "log.cleaner.io.max.bytes.per.second": None,
}


def plain_settings(texts: Mapping[str, _Text]) -> dict[str, _Text]:
    """Return settings with amounts such as `7d` converted to whole numbers of the setting's unit.

    Args:
        texts: Texts by any name of a setting. A text that isn't a number with a unit is returned
            unchanged; later parsing accepts or refuses the text.

    Raises:
        ConfigError: A value has a unit of another kind (`1GiB` for a time), has an ambiguous unit
            (`1g`), is too large, or is no whole number of the setting's unit.
        ConfigErrors: Several values are invalid.
    """
    plain, errors = dict(texts), []
    for name, text in texts.items():
        unit = _unit_of(name)
        if unit is not None and text is not None and _AMOUNT.fullmatch(text):
            try:
                plain[name] = cast("_Text", _plain(name, text, unit))
            except ConfigError as error:
                errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
    return plain


@contextmanager
def amounts_in_errors(given: Mapping[str, str | None]) -> Iterator[None]:
    """Reword ConfigErrors that are raised in the context for values which may have a unit.

    If `plain_settings` has converted the value (`1KB`), the error shows the text as given. If the
    value is neither an amount nor a number, the error also names the valid amounts.

    Args:
        given: The argument of `plain_settings`.
    """
    try:
        yield
    except ConfigErrors as error:
        raise ConfigErrors([_with_amount(one, given) for one in error.errors]) from None
    except ConfigError as error:
        raise _with_amount(error, given) from None


def _with_amount(error: ConfigError, given: Mapping[str, str | None]) -> ConfigError:
    text, unit = given.get(error.key), _unit_of(error.key)
    if text is None or unit is None or error.value is None or _PLAIN.fullmatch(text.strip()):
        return error
    if text.strip() == error.value.strip():
        return ConfigError(error.key, text, f"{error.allowed}, or {unit.forms}")
    return ConfigError(error.key, text, f"is {error.value} {unit.name}; {error.allowed}")


def _unit_of(name: str) -> _Unit | None:
    if name in _BY_NAME:
        return _BY_NAME[name]
    return _UNITS.get(name.rpartition(".")[2])


def _plain(name: str, text: str, unit: _Unit) -> str:
    from fractions import Fraction  # imported only for amounts, because it takes 3 ms

    stripped = text.strip()
    amount, at = Fraction(0), 0
    while match := _PART.match(stripped, at):
        word = match[2].lower() if unit.units is _SIZES else match[2]
        if unit.units is _SIZES and word in _PREFIXES:
            letter = match[2].upper() if word != "k" else "k"
            either = f"{match[1]}{letter}B or {match[1]}{letter.upper()}iB"
            raise ConfigError(name, text, f"is ambiguous (powers of 1000 or 1024); write {either}")
        if word not in unit.units:
            break
        amount += Fraction(match[1]) * unit.units[word]
        at = match.end()
    if at < len(stripped):
        if not _is_known(name):
            return text  # the name is unknown; the code that applies the setting reports the error
        raise ConfigError(name, text, f"must be a whole number of {unit.name}, or {unit.forms}")
    number = amount / unit.size
    if number.denominator != 1:
        raise ConfigError(name, text, f"must be a whole number of {unit.name}")
    key = TOPIC_CONFIG_BY_NAME.get(name) or _broker_keys().get(name)
    most = None if key is None else INTEGER_MAX.get(key.kind.type_name)
    if most is not None and number > most:
        raise ConfigError(name, text, f"is {number} {unit.name}; the maximum is {most}")
    return str(number)


def _broker_keys() -> "Mapping[str, ConfigKey]":
    from tidelog.config.broker import BROKER_CONFIG_BY_NAME  # imported only for amounts

    return BROKER_CONFIG_BY_NAME


def _is_known(name: str) -> bool:
    if name in _broker_keys():
        return True
    try:
        return bool(key_names(name))
    except ConfigError:
        return False


def amount_text(name: str, text: str) -> str | None:
    """Return a setting's value as people write it, such as `7d` for `604800000` of `retention.ms`.

    `plain_settings` converts this text back to the same number.

    Returns:
        The text. The result is None for a setting without a unit, for 0 and special values such as
        -1, and for numbers that no short text represents exactly.
    """
    unit = _unit_of(name)
    if unit is None or not _PLAIN.fullmatch(text) or int(text) <= 0:
        return None
    rest, parts = int(text) * unit.size, []
    for word, size in _PRINTED_UNITS[unit.units is _SIZES]:
        number, below = divmod(rest, size)
        if number and (unit.units is not _SIZES or not below):
            parts.append(f"{number}{word}")
            rest = below
    if rest or not 1 <= len(parts) <= _PARTS_MAX or int(text) > _AMOUNT_MAX:
        return None
    return "".join(parts)
