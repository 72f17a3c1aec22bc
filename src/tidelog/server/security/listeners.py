"""Where a broker listens, by name: what each listener speaks and what its clients are told.

Source: Kafka's `listeners`, `advertised.listeners`, `listener.security.protocol.map`; KIP-103.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidelog.config import BrokerConfig
from tidelog.errors import ConfigError
from tidelog.server.settings import Endpoint, parse_endpoint

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
        advertised: Where its clients are told to connect to, None for where it listens.
    """

    name: str
    protocol: SecurityProtocol
    place: Endpoint
    advertised: Endpoint | None = None

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
    """The listeners of a broker's settings.

    Raises:
        ConfigError: A name that is not mapped or stands twice, a place that can't be read, an
            advertised name without a listener, something that a protocol needs and is not there.
    """
    places = _places("listeners", config.listeners)
    if not places:
        raise ConfigError("listeners", config.listeners, "must be NAME://HOST:PORT")
    told = _places("advertised.listeners", config.advertised_listeners)
    protocols = _protocols(config.listener_security_protocol_map)
    for name in told:
        if name not in places:
            raise ConfigError("advertised.listeners", name, "is no name in listeners")
    plans = tuple(
        ListenerPlan(name, _protocol_of(protocols, name), place, told.get(name))
        for name, place in places.items()
    )
    for plan in plans:
        plan.ensure_complete(config)
    return plans


def _places(setting: str, text: str) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, mark, place = item.partition("://")
        name = name.strip().upper()
        if not mark or not name or len(found) >= LISTENERS_MAX:
            raise ConfigError(setting, item, "must be NAME://HOST:PORT, comma separated")
        if name in found:
            raise ConfigError(setting, text, f"names {name} twice")
        found[name] = parse_endpoint(place or ":", name=setting)
    return found


def _protocols(text: str) -> dict[str, str]:
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.strip().upper() not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol)
            raise ConfigError(
                "listener.security.protocol.map", item, f"must be NAME:PROTOCOL, one of {known}"
            )
        found[name.strip().upper()] = protocol.strip().upper()
    return found


def _protocol_of(protocols: Mapping[str, str], name: str) -> SecurityProtocol:
    found = protocols.get(name)
    if found is None:
        reason = f"has no protocol for listener {name}"
        raise ConfigError("listener.security.protocol.map", None, reason)
    return SecurityProtocol(found)
