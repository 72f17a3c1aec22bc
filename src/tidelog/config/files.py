"""Reads broker settings from a file: server.properties, or TOML with the same names.

In TOML, a setting's name can be a dotted key, or the names of tables followed by a key.

Source: java.util.Properties for server.properties.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final

from tidelog.errors import ConfigError
from tidelog.lazy_dataclass import dataclass

_BYTE_ORDER_MARK: Final = "\ufeff"
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

# A name ends at the first unescaped separator.
_PROPERTY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SPACE: Final = " \t\f"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Contents of a settings file.

    Attributes:
        name: Name of the file, as given.
        texts: Texts of the settings, by name.
        lines: Maps each setting's name to the line where the setting begins, counted from 1. Empty
            for TOML.
    """

    name: str
    texts: dict[str, str] = field(repr=False)
    lines: dict[str, int] = field(default_factory=dict)

    def location_of(self, setting: str) -> str:
        """Return the file name, with the line number if known."""
        line = self.lines.get(setting)
        return self.name if line is None else f"{self.name}:{line}"


def read_settings(name: str, content: bytes) -> SettingsFile:
    """Read a file's settings: TOML if its name ends with `.toml`, otherwise properties.

    Raises:
        ConfigError: The file is invalid. The message names the line of the error if the line is
            known.
    """
    if name.endswith(".toml"):
        return SettingsFile(name, _read_toml(name, content))
    return read_properties(name, _decoded(content))


def setting_texts(table: Mapping[str, object]) -> dict[str, str]:
    """Convert TOML values to texts.

    Values may be strings, numbers, booleans, lists of these three types, and tables.

    Raises:
        ConfigError: A value has a different type, such as a date, or is a list in a list.
    """
    return dict(_flat("", table))


def _decoded(content: bytes) -> str:
    """Decode a properties file as UTF-8 or, if its bytes are not valid UTF-8, as Latin-1."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.removeprefix(_BYTE_ORDER_MARK)


def _read_toml(name: str, content: bytes) -> dict[str, str]:
    import tomllib  # imported only here, to save 5 ms if no TOML file is read

    try:
        text = content.decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
        return setting_texts(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(name, None, f"is not TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.key}", error.value, error.allowed) from error


def _flat(prefix: str, table: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(f"{name}.", value)
        elif isinstance(value, list | tuple):
            yield name, ",".join(_text(name, item) for item in value)
        else:
            yield name, _text(name, value)


def _text(name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            kind = type(value).__name__
            allowed = f"must be a text, a number, true or false, or a list of these; got a {kind}"
            raise ConfigError(name, None, allowed)


def read_properties(name: str, text: str) -> SettingsFile:
    """Read the settings of a Java properties file; if a name occurs twice, its last value counts.

    Raises:
        ConfigError: A line has no name or an invalid escape; the error names the line.
    """
    settings = SettingsFile(name, {})
    for number, line in _logical_lines(text):
        parts = _PROPERTY.fullmatch(line)
        assert parts is not None
        try:
            key, value = _unescaped(parts[1]), _unescaped(parts[2].rstrip(_SPACE))
        except ValueError as error:
            raise ConfigError(f"{name}:{number}", None, str(error)) from error
        if not key:
            raise ConfigError(f"{name}:{number}", None, "the setting has no name")
        settings.texts[key] = value
        settings.lines[key] = number
    return settings


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield lines, each with its line number, without comments.

    An unescaped backslash at the end of a line joins the next line to it.
    """
    joined, began = "", 0
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_SPACE)
        if not joined and (not line or line[0] in "#!"):
            continue
        began = began if joined else number
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield began, joined
        joined = ""
    if joined:
        yield began, joined


def _unescaped(text: str) -> str:
    """Resolve backslash escapes; raises ValueError for an incomplete Unicode escape."""

    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise ValueError(r"\u must be followed by four hexadecimal digits")
        return _CONTROLS.get(match[2], match[2])

    # As in Java, an escape is a UTF-16 code unit of 16 bits, so two escapes may form one character.
    unescaped = _ESCAPE.sub(plain, text)
    return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
