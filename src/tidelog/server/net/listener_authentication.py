"""Authentication that a listener requires, and the principal of each connection.

`ListenerAuthentication` is created once per listener. For a connection with SASL, it creates the
SASL exchange. For other connections, it determines the principal: the owner of the client's
certificate, or anonymous.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.config.listeners import ListenerPlan
from tidelog.errors import ConfigError
from tidelog.server.api.node import Address, Node
from tidelog.server.security.operations import ANONYMOUS

if TYPE_CHECKING:
    from tidelog.server.security.authentication import Rule
    from tidelog.server.security.plain_users import PlainFile
    from tidelog.server.security.sasl import AuthenticatedUser, SaslServer, ScramMechanism
    from tidelog.server.security.tls import TlsContexts
    from tidelog.storage.directory.broker_files import ScramCredential


_KEY_BYTES: Final = 32


class ListenerAuthentication:
    """Authentication of one listener. Used only in the event loop's thread.

    Attributes:
        plan: The listener's settings.
        address: The listener's advertised address, which is set once the listener accepts
            connections.
        mechanisms: Enabled SASL mechanisms, in the order of the settings.
    """

    def __init__(self, node: Node, plan: ListenerPlan) -> None:
        """Read what the listener needs: certificates, users, and keys of tokens.

        Raises:
            ConfigError, CorruptFile, StorageFailure: The certificates, users or keys of tokens
                can't be read, a setting is missing or invalid, or a package is missing.
        """
        config = node.config
        self.plan = plan
        self.address: Address | None = None
        self._tls: TlsContexts | None = None
        self._mapping: tuple[Rule, ...] = ()
        # These modules are imported only if the listener needs them.
        if plan.protocol.has_tls:
            from tidelog.server.security.authentication import parse_rules

            self._mapping = parse_rules(config.ssl_principal_mapping_rules)
            verifies_clients = not plan.protocol.has_sasl
            self._tls = _tls(node, verifies_clients=verifies_clients)
        self.mechanisms: tuple[str, ...] = ()
        self._exchanges: dict[str, Callable[[], SaslServer]] = {}
        if plan.protocol.has_sasl:
            self.mechanisms = config.sasl_enabled_mechanisms
            self._exchanges = _exchanges(node, config, self.mechanisms)

    @property
    def has_sasl(self) -> bool:
        """Whether clients must authenticate with SASL."""
        return self.plan.protocol.has_sasl

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS context; None without TLS."""
        return None if self._tls is None else self._tls.context

    def exchange(self, mechanism: str) -> "SaslServer | None":
        """Return a new SASL exchange; None for a mechanism that is not enabled."""
        create = self._exchanges.get(mechanism)
        return None if create is None else create()

    def principal(self, transport: asyncio.BaseTransport) -> str:
        """Return the client's principal according to its certificate.

        The result is the anonymous principal if the client has no certificate, and empty if clients
        must authenticate with SASL first.

        Raises:
            LoginFailed: No rule maps the certificate's owner to a name.
        """
        if self.has_sasl:
            return ""
        certificate = transport.get_extra_info("peercert") if self._tls is not None else None
        if not certificate:
            return ANONYMOUS
        from tidelog.server.security.authentication import name_of, short_name

        return f"User:{short_name(self._mapping, name_of(certificate.get('subject', ())))}"


def _tls(node: Node, *, verifies_clients: bool) -> "TlsContexts":
    from tidelog.server.security.tls import TlsContexts

    return TlsContexts(node.config, node.env.files, verifies_clients=verifies_clients)


def _exchanges(
    node: Node, config: BrokerConfig, mechanisms: Iterable[str]
) -> "dict[str, Callable[[], SaslServer]]":
    """Return functions that create a SASL exchange, by mechanism."""
    from tidelog.server.security.sasl import BY_SASL_NAME, OAUTHBEARER, PLAIN, PlainExchange

    exchanges: dict[str, Callable[[], SaslServer]] = {}
    pretender_key = node.env.random.randbytes(_KEY_BYTES)
    for name in mechanisms:
        if name == PLAIN:
            exchanges[name] = partial(PlainExchange, _plain_users(node, config).is_user)
        elif name == OAUTHBEARER:
            exchanges[name] = _bearer(node, config)
        else:
            exchanges[name] = _scram(node, BY_SASL_NAME[name], pretender_key)
    return exchanges


def _plain_users(node: Node, config: BrokerConfig) -> "PlainFile":
    from tidelog.server.security.plain_users import SETTING, PlainFile

    path = config.tidelog_sasl_plain_users_file
    if not path:
        raise ConfigError(SETTING, None, "must be set for sasl.enabled.mechanisms=PLAIN")
    return PlainFile(node.env, path)


def _bearer(node: Node, config: BrokerConfig) -> "Callable[[], SaslServer]":
    from importlib.util import find_spec

    from tidelog.server.security.bearer_tokens import SETTING, TokenRules, check_token, open_keys
    from tidelog.server.security.sasl import BearerExchange

    url = config.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        raise ConfigError(SETTING, None, "must be set for sasl.enabled.mechanisms=OAUTHBEARER")
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        text = "OAUTHBEARER needs the packages `PyJWT` and `cryptography`"
        raise ConfigError("sasl.enabled.mechanisms", "OAUTHBEARER", text)
    keys = open_keys(node.env, url, config.sasl_oauthbearer_jwks_endpoint_refresh_ms)
    audiences = config.sasl_oauthbearer_expected_audience.split(",")
    rules = TokenRules(
        algorithms=frozenset(config.tidelog_sasl_oauthbearer_algorithms),
        audiences=frozenset(text.strip() for text in audiences if text.strip()),
        issuer=config.sasl_oauthbearer_expected_issuer,
        skew_s=config.sasl_oauthbearer_clock_skew_seconds,
        user_claim=config.sasl_oauthbearer_sub_claim_name,
    )

    def check(token: str) -> "AuthenticatedUser":
        return check_token(token, keys.find, rules, node.env.clock.now_ms())

    return partial(BearerExchange, check)


def _scram(
    node: Node, mechanism: "ScramMechanism", pretender_key: bytes
) -> "Callable[[], SaslServer]":
    from tidelog.server.security.sasl import NONCE_BYTES, ScramExchange

    rules, random = node.rules, node.env.random

    def find(user: str) -> "ScramCredential | None":
        return rules.credential(mechanism, user)

    def begin() -> "SaslServer":
        return ScramExchange(
            mechanism,
            find,
            nonce=random.randbytes(NONCE_BYTES),
            pretender_key=pretender_key,
            shapes=lambda: rules.shapes(mechanism),
        )

    return begin
