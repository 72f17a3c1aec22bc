"""What options say of a broker: places where it listens, `NAME=VALUE`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from tidelog.config import BrokerConfig
from tidelog.errors import ConfigError
from tidelog.types import PORT_MAX

LOOPBACK: Final = "127.0.0.1"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - what `*` means; who may listen there is asked
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
# An address of IPv6 may stand without brackets, too, as in Kafka.
_PLACE: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]/,\s]*?))(?::([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        address = _address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of the machine, so that none can connect to it."""
        address = _address(self.host)
        return address is not None and address.is_unspecified

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """None for a name, which may mean any address, whatever it begins with."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def parse_endpoint(
    text: str,
    *,
    name: str = "--listen",
    host: str = LOOPBACK,
) -> Endpoint:
    """`HOST:PORT`, `[IPV6]:PORT` or `:PORT`; the host `*` stands for all addresses.

    Args:
        text: What was given.
        name: Who is told of in an error.
        host: What an empty one means.

    Raises:
        ConfigError: It is something else.
    """
    parts = _PLACE.fullmatch(text.strip())
    if parts is None or not _is_host(parts[1], parts[2]):
        raise _no_endpoint(name, text)
    if parts[3] is None or int(parts[3]) > PORT_MAX:
        raise _no_endpoint(name, text)
    given = parts[1] or parts[2] or host
    return Endpoint(ALL_ADDRESSES if given == "*" else given, int(parts[3]))


def _is_host(in_brackets: str | None, bare: str | None) -> bool:
    """Digits alone are a port without its host."""
    if in_brackets is not None or ":" in (bare or ""):
        return isinstance(_address(in_brackets or bare or ""), IPv6Address)
    return not (bare or "").isdigit()


def _no_endpoint(name: str, text: str) -> ConfigError:
    allowed = f"must be HOST:PORT or [IPV6]:PORT, with a port from 0 to {PORT_MAX}"
    return ConfigError(name, text, allowed)


def metrics_place(config: BrokerConfig) -> Endpoint | None:
    """Where the metrics are served, None for nowhere; raises ConfigError."""
    text = config.tidelog_metrics_listen
    return parse_endpoint(text, name="tidelog.metrics.listen") if text else None


def data_directory(config: BrokerConfig) -> str:
    """What `log.dirs` names, or else `log.dir`; nothing where neither does.

    Raises:
        ConfigError: Several directories: a broker here has one.
    """
    name, text = ("log.dirs", config.log_dirs) if config.log_dirs else ("log.dir", config.log_dir)
    paths = [path.strip() for path in text.split(",") if path.strip()]
    if len(paths) > 1:
        raise ConfigError(name, text, "names several directories; a broker here has one")
    return paths[0] if paths else ""


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
