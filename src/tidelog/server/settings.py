"""Where a broker's settings come from: server.properties or TOML, `NAME=VALUE`, `--listen`.

Source: java.util.Properties for the first form; TOML has the same names, dotted or in tables.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from tidelog.errors import ConfigError

DEFAULT_PORT: Final = 9092
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:  # a name, which may mean any address, whatever it begins with
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, *, name: str = "--listen") -> Endpoint:
    """`HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `HOST`; raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(DEFAULT_PORT)
    host = host.strip("[]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(name, text, "must be HOST:PORT, with a port from 0 to 65535")
    return Endpoint(host, int(port))


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping; raises ConfigError."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            # What follows may be a password, written as `NAME: VALUE`.
            shown = _NAME.match(name)
            raise ConfigError(shown[0] if shown else "--set", None, "must be NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def read_settings(name: str, content: str) -> dict[str, str]:
    """A file's settings: TOML where its name ends with `.toml`, else properties.

    Raises:
        ConfigError: It can't be read; names the line where that is known.
    """
    if name.endswith(".toml"):
        return _read_toml(name, content)
    return _read_properties(name, content)


def _read_toml(name: str, content: str) -> dict[str, str]:
    import tomllib  # costs a start without such a file 5 ms

    try:
        return dict(_flat("", tomllib.loads(content), name))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(name, None, f"is not TOML: {error}") from error


def _flat(prefix: str, table: Mapping[str, object], name: str) -> Iterable[tuple[str, str]]:
    for key, value in table.items():
        match value:
            case dict():
                yield from _flat(f"{prefix}{key}.", value, name)
            case bool():
                yield f"{prefix}{key}", "true" if value else "false"
            case str() | int() | float():
                yield f"{prefix}{key}", str(value)
            case list():
                yield f"{prefix}{key}", ",".join(map(str, value))
            case _:
                raise ConfigError(f"{prefix}{key}", str(value), f"is no setting ({name})")


def _read_properties(name: str, content: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(_logical_lines(content), start=1):
        key, value = _split_property(line)
        if not key:
            raise ConfigError(name, line, f"setting {number} has no name")
        found[key] = value
    return found


def _logical_lines(content: str) -> Iterable[str]:
    """Lines without comments; a backslash at the end joins a line with the next."""
    joined = ""
    for line in content.splitlines():
        text = line.strip()
        if not joined and (not text or text[0] in "#!"):
            continue
        if text.endswith("\\") and not text.endswith("\\\\"):
            joined += text[:-1]
            continue
        yield joined + text
        joined = ""
    if joined:
        yield joined


def _split_property(line: str) -> tuple[str, str]:
    """Name and value, parted by the first `=`, `:` or white space."""
    for at, character in enumerate(line):
        if character in "=:" or character.isspace():
            rest = line[at:].strip()
            return line[:at], rest[1:].strip() if rest[:1] in {"=", ":"} else rest
    return line, ""
