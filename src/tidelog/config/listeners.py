"""Listeners of a broker by name: endpoint, security protocol and advertised address.

Also parses the address and `NAME=VALUE` options of the command line.

Source: Kafka's `listeners`, `advertised.listeners`, `listener.security.protocol.map`; KIP-103.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import getfqdn
from typing import Final

from tidelog.config.broker import BrokerConfig
from tidelog.config.unused_keys import CONTROL_PLANE, CONTROLLER_LISTENERS
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
    host_text = parts[1] or parts[2] or host
    return Endpoint(ALL_ADDRESSES if host_text == "*" else host_text, int(parts[3]))


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
    settings = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            # What follows may be a password, written as `NAME: VALUE`.
            match = _NAME.match(name)
            raise ConfigError(match[0] if match else "--set", None, "must be NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


LISTENERS_MAX: Final = 64


class SecurityProtocol(StrEnum):
    """What a listener speaks, in Kafka's words."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """Whether clients have to log in."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """One listener as the settings have it.

    Attributes:
        name: As clients never see it, and settings do.
        protocol: What it speaks.
        place: Where it listens.
        advertised: Where its clients are told to connect to, None for where it listens; an empty
            host stands for the machine's name.
    """

    name: str
    protocol: SecurityProtocol
    place: Endpoint
    advertised: Endpoint | None = None

    def told(self, port: int, host_name: Callable[[], str] = getfqdn) -> Endpoint:
        """Where clients are told to connect to.

        Args:
            port: What is listened on, which counts where the settings have 0.
            host_name: Asked for the machine's name where all its addresses are listened on: what
                clients can't use they are not told.
        """
        endpoint = self.advertised or self.place
        host = host_name() if endpoint.is_wildcard or not endpoint.host else endpoint.host
        return Endpoint(host, endpoint.port or port)

    def is_safe(self, config: BrokerConfig) -> bool:
        """Whether it may be reached by other machines: encrypted, and everybody says who he is."""
        if not self.protocol.has_tls:
            return False
        return self.protocol.has_sasl or config.ssl_client_auth == "required"

    def ensure_complete(self, config: BrokerConfig) -> None:
        """Check that there is what it needs; raises ConfigError."""
        if self.protocol.has_tls and not config.ssl_keystore_location:
            reason = f"is needed by listener {self.name}: a PEM file with key and certificates"
            raise ConfigError("ssl.keystore.location", None, reason)
        wants_clients = config.ssl_client_auth != "none" and self.protocol is SecurityProtocol.SSL
        if wants_clients and not config.ssl_truststore_location:
            reason = f"is needed by ssl.client.auth={config.ssl_client_auth}"
            raise ConfigError("ssl.truststore.location", None, reason)
        if self.protocol.has_sasl and not config.sasl_enabled_mechanisms:
            reason = f"has to name one or more for listener {self.name}"
            raise ConfigError("sasl.enabled.mechanisms", None, reason)


def plan_listeners(config: BrokerConfig) -> tuple[ListenerPlan, ...]:
    """The listeners of a broker's settings; those of a controller are left out.

    Raises:
        ConfigError: A name that is not mapped or stands twice, a place that can't be read, an
            advertised name without a listener, something that a protocol needs and is not there.
    """
    others = _controllers(config)
    endpoints = _without(others, _places("listeners", config.listeners))
    if not endpoints:
        raise ConfigError("listeners", config.listeners, "must be NAME://HOST:PORT")
    advertised = _without(others, _advertised(_named(config.advertised_listeners, endpoints)))
    protocols = _protocols(config.listener_security_protocol_map)
    for name in advertised:
        if name not in endpoints:
            raise ConfigError("advertised.listeners", name, "is no name in listeners")
    plans = tuple(
        ListenerPlan(name, _protocol_of(protocols, name), endpoint, advertised.get(name))
        for name, endpoint in endpoints.items()
    )
    for plan in plans:
        plan.ensure_complete(config)
    return plans


def ensure_private(config: BrokerConfig, plans: Iterable[ListenerPlan], way_out: str) -> None:
    """Check that other machines come only where there is TLS and everybody says who he is.

    Args:
        config: The settings, which also say where the metrics are served.
        plans: The listeners.
        way_out: What has to be said to have it all the same.

    Raises:
        ConfigError: They can come in elsewhere.
    """
    for plan in plans:
        if not plan.is_safe(config) and not plan.place.is_loopback:
            reason = (
                "can be reached by other machines, and is not encrypted or asks nobody who he is;"
                f" let it be SASL_SSL, listen on 127.0.0.1, or say {way_out}"
            )
            raise ConfigError("listeners", str(plan.place), reason)
    pages = metrics_place(config)
    if pages is not None and not pages.is_loopback:
        reason = f"can be reached by other machines; let it be on 127.0.0.1, or say {way_out}"
        raise ConfigError("tidelog.metrics.listen", str(pages), reason)


def _controllers(config: BrokerConfig) -> frozenset[str]:
    """Listeners that a Kafka has for its controller, where no client is served."""
    texts = (config.without_effect.get(name, "") for name in (CONTROLLER_LISTENERS, CONTROL_PLANE))
    return frozenset(name.strip().upper() for text in texts for name in text.split(","))


def _without(names: frozenset[str], endpoints: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    return {name: endpoint for name, endpoint in endpoints.items() if name not in names}


def _named(text: str, endpoints: Mapping[str, Endpoint]) -> str:
    """A bare HOST:PORT, as `--listen` takes it, is the only listener's."""
    endpoint = text.strip()
    if not endpoint or "://" in endpoint or "," in endpoint or len(endpoints) != 1:
        return text
    (name,) = endpoints
    return f"{name}://{endpoint}"


def _advertised(text: str) -> dict[str, Endpoint]:
    """What clients are told, of which nobody can use an address that stands for all."""
    endpoints = _places("advertised.listeners", text, host="")
    for name, endpoint in endpoints.items():
        if endpoint.is_wildcard:
            allowed = "is no address to connect to; name one that clients can reach"
            raise ConfigError("advertised.listeners", f"{name}://{endpoint}", allowed)
    return endpoints


def _places(setting: str, text: str, host: str = LOOPBACK) -> dict[str, Endpoint]:
    endpoints: dict[str, Endpoint] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, mark, address = item.partition("://")
        name = name.strip().upper()
        if not mark or not name or len(endpoints) >= LISTENERS_MAX:
            raise ConfigError(setting, item, "must be NAME://HOST:PORT, comma separated")
        if name in endpoints:
            raise ConfigError(setting, text, f"names {name} twice")
        endpoints[name] = parse_endpoint(address, name=setting, host=host)
    return endpoints


def _protocols(text: str) -> dict[str, str]:
    protocols = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.strip().upper() not in SecurityProtocol.__members__:
            names = ", ".join(SecurityProtocol)
            raise ConfigError(
                "listener.security.protocol.map", item, f"must be NAME:PROTOCOL, one of {names}"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def _protocol_of(protocols: Mapping[str, str], name: str) -> SecurityProtocol:
    protocol = protocols.get(name)
    if protocol is None:
        reason = f"has no protocol for listener {name}"
        raise ConfigError("listener.security.protocol.map", None, reason)
    return SecurityProtocol(protocol)
