"""Listeners of a broker by name: endpoint, security protocol and advertised address.

Also parses the address and `NAME=VALUE` options of the command line.

Source: Kafka's `listeners`, `advertised.listeners`, `listener.security.protocol.map`; KIP-103.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import getfqdn
from typing import Final, NamedTuple

from tidelog.config.broker import BrokerConfig
from tidelog.config.unused_keys import CONTROL_PLANE, CONTROLLER_LISTENERS
from tidelog.errors import ConfigError
from tidelog.types import PORT_MAX

LOOPBACK: Final = "127.0.0.1"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - means `*`; `ensure_private` restricts its use
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

# An IPv6 address may also be written without brackets, as in Kafka.
_ENDPOINT: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]/,\s]*?))(?::([0-9]{1,6}))?")


class Endpoint(NamedTuple):
    """Host and port. With port 0, the system chooses a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect: the host is `localhost` or a loopback address."""
        address = _address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Whether the host means all addresses of the machine; clients can't use it to connect."""
        address = _address(self.host)
        return address is not None and address.is_unspecified

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address in a text; None for a host name, which can have any address."""
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
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `:PORT`; the host `*` means all addresses.

    Args:
        text: Text to parse.
        name: Name of the setting or option, for errors.
        host: Host to use if the text has none.

    Raises:
        ConfigError: The text is invalid.
    """
    parts = _ENDPOINT.fullmatch(text.strip())
    if parts is None or not _is_host(parts[1], parts[2]):
        raise _no_endpoint(name, text)
    if parts[3] is None or int(parts[3]) > PORT_MAX:
        raise _no_endpoint(name, text)
    host_text = parts[1] or parts[2] or host
    return Endpoint(ALL_ADDRESSES if host_text == "*" else host_text, int(parts[3]))


def _is_host(in_brackets: str | None, bare: str | None) -> bool:
    """Whether the host is valid.

    A host of digits alone is refused, because it is probably meant as a port.
    """
    if in_brackets is not None or ":" in (bare or ""):
        return isinstance(_address(in_brackets or bare or ""), IPv6Address)
    return not (bare or "").isdigit()


def _no_endpoint(name: str, text: str) -> ConfigError:
    allowed = f"must be HOST:PORT or [IPV6]:PORT, with a port from 0 to {PORT_MAX}"
    return ConfigError(name, text, allowed)


def metrics_endpoint(config: BrokerConfig) -> Endpoint | None:
    """Return the address on which metrics are served; None if disabled; raises ConfigError."""
    text = config.tidelog_metrics_listen
    return parse_endpoint(text, name="tidelog.metrics.listen") if text else None


def data_directory(config: BrokerConfig) -> str:
    """Return the directory of `log.dirs`, or else of `log.dir`; empty if neither is set.

    Raises:
        ConfigError: There are several directories; the broker supports one.
    """
    name, text = ("log.dirs", config.log_dirs) if config.log_dirs else ("log.dir", config.log_dir)
    paths = [path.strip() for path in text.split(",") if path.strip()]
    if len(paths) > 1:
        raise ConfigError(
            name, text, "has several directories, but a broker of tidelog supports only one"
        )
    return paths[0] if paths else ""


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts to a mapping; raises ConfigError if a text has another form."""
    settings = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            # The error shows only the name, because the text after the name may be a password
            # (`NAME: VALUE`).
            match = _NAME.match(name)
            option = f"--set {match[0]}" if match else "--set"
            raise ConfigError(option, None, "write NAME=VALUE, e.g. num.partitions=3")
        settings[name.strip()] = value.strip()
    return settings


LISTENERS_MAX: Final = 64


class SecurityProtocol(StrEnum):
    """Security protocol of a listener, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """Whether clients must authenticate by SASL."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


class ListenerPlan(NamedTuple):
    """Configuration of a listener.

    Attributes:
        name: Name in the settings; clients never see it.
        protocol: Security protocol.
        endpoint: Address to listen on.
        advertised: Address that clients connect to; None if it is `endpoint`. An empty host means
            the machine's name.
    """

    name: str
    protocol: SecurityProtocol
    endpoint: Endpoint
    advertised: Endpoint | None = None

    def client_endpoint(self, port: int, host_name: Callable[[], str] = getfqdn) -> Endpoint:
        """Return the address that clients connect to.

        Args:
            port: Port that the listener uses. It replaces a port of 0 in the settings.
            host_name: Function that returns the machine's name. The name replaces a wildcard or an
                empty host, to which clients can't connect.
        """
        endpoint = self.advertised or self.endpoint
        host = host_name() if endpoint.is_wildcard or not endpoint.host else endpoint.host
        return Endpoint(host, endpoint.port or port)

    def is_safe(self, config: BrokerConfig) -> bool:
        """Whether the listener encrypts and authenticates.

        Only such a listener should be reachable from other machines.
        """
        if not self.protocol.has_tls:
            return False
        return self.protocol.has_sasl or config.ssl_client_auth == "required"

    def ensure_complete(self, config: BrokerConfig) -> None:
        """Check that the listener's required settings are present; raises ConfigError."""
        if self.protocol.has_tls and not config.ssl_keystore_location:
            reason = f"is needed by listener {self.name}: a PEM file with key and certificates"
            raise ConfigError("ssl.keystore.location", None, reason)
        wants_clients = config.ssl_client_auth != "none" and self.protocol is SecurityProtocol.SSL
        if wants_clients and not config.ssl_truststore_location:
            reason = f"is needed by ssl.client.auth={config.ssl_client_auth}"
            raise ConfigError("ssl.truststore.location", None, reason)
        if self.protocol.has_sasl and not config.sasl_enabled_mechanisms:
            reason = f"must name one or more mechanisms for listener {self.name}"
            raise ConfigError("sasl.enabled.mechanisms", None, reason)


def plan_listeners(config: BrokerConfig) -> tuple[ListenerPlan, ...]:
    """Return the listeners in a broker's settings, without a controller's listeners.

    Raises:
        ConfigError: There is no listener, or there are too many. A name has no protocol or occurs
            twice. An address or protocol is invalid. An advertised name has no listener. A setting
            that a protocol requires is missing.
    """
    others = _controllers(config)
    endpoints = _without(others, _endpoints("listeners", config.listeners))
    if not endpoints:
        raise ConfigError("listeners", config.listeners, "must be NAME://HOST:PORT")
    advertised = _without(others, _advertised(_named(config.advertised_listeners, endpoints)))
    protocols = _protocols(config.listener_security_protocol_map)
    for name in advertised:
        if name not in endpoints:
            raise ConfigError("advertised.listeners", name, "is not a name in listeners")
    plans = tuple(
        ListenerPlan(name, _protocol_of(protocols, name), endpoint, advertised.get(name))
        for name, endpoint in endpoints.items()
    )
    for plan in plans:
        plan.ensure_complete(config)
    return plans


def ensure_private(config: BrokerConfig, plans: Iterable[ListenerPlan], way_out: str) -> None:
    """Check that other machines can connect only with TLS and authentication.

    Args:
        config: Settings, which include the address of the metrics.
        plans: Listeners to check.
        way_out: Option that permits unsafe addresses; the error names it.

    Raises:
        ConfigError: Other machines can connect to a listener that lacks TLS or authentication.
            Other machines can connect to the metrics. The address of the metrics is invalid.
    """
    for plan in plans:
        if not plan.is_safe(config) and not plan.endpoint.is_loopback:
            reason = (
                "is reachable from other machines without encryption or authentication; use"
                f" SASL_SSL, listen on 127.0.0.1, or pass {way_out}"
            )
            raise ConfigError("listeners", str(plan.endpoint), reason)
    pages = metrics_endpoint(config)
    if pages is not None and not pages.is_loopback:
        reason = f"is reachable from other machines; listen on 127.0.0.1, or pass {way_out}"
        raise ConfigError("tidelog.metrics.listen", str(pages), reason)


def _controllers(config: BrokerConfig) -> frozenset[str]:
    """Return the names of a Kafka controller's listeners, which serve no clients."""
    texts = (config.without_effect.get(name, "") for name in (CONTROLLER_LISTENERS, CONTROL_PLANE))
    return frozenset(name.strip().upper() for text in texts for name in text.split(","))


def _without(names: frozenset[str], endpoints: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    return {name: endpoint for name, endpoint in endpoints.items() if name not in names}


def _named(text: str, endpoints: Mapping[str, Endpoint]) -> str:
    """Add the listener's name to a HOST:PORT without a name, if there is only one listener."""
    endpoint = text.strip()
    if not endpoint or "://" in endpoint or "," in endpoint or len(endpoints) != 1:
        return text
    (name,) = endpoints
    return f"{name}://{endpoint}"


def _advertised(text: str) -> dict[str, Endpoint]:
    """Parse advertised addresses; refuse a wildcard host, to which clients can't connect."""
    endpoints = _endpoints("advertised.listeners", text, host="")
    for name, endpoint in endpoints.items():
        if endpoint.is_wildcard:
            allowed = "is not an address that clients can connect to; give one that they can reach"
            raise ConfigError("advertised.listeners", f"{name}://{endpoint}", allowed)
    return endpoints


def _endpoints(setting: str, text: str, host: str = LOOPBACK) -> dict[str, Endpoint]:
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
                "listener.security.protocol.map",
                item,
                f"must be NAME:PROTOCOL, where PROTOCOL is one of {names}",
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def _protocol_of(protocols: Mapping[str, str], name: str) -> SecurityProtocol:
    protocol = protocols.get(name)
    if protocol is None:
        reason = f"has no protocol for listener {name}"
        raise ConfigError("listener.security.protocol.map", None, reason)
    return SecurityProtocol(protocol)
