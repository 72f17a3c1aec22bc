"""TLS of listeners: contexts from PEM files, read again when those change.

Every handshake looks whether the files are still the same.

Sessions are not resumed: a resumed one would keep what an older certificate has proven.
"""

import ssl
from typing import Final

from tidelog.config import BrokerConfig
from tidelog.env import FileSystem
from tidelog.errors import ConfigError
from tidelog.server.security.handshakes import HandshakeContext
from tidelog.server.security.watched import Watched

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def make_context(config: BrokerConfig, *, asks_clients: bool) -> ssl.SSLContext:
    """A server's context.

    Args:
        config: Where key, certificates and trust are.
        asks_clients: Whether `ssl.client.auth` counts; it does not where clients log in by SASL.

    Raises:
        ConfigError: A file can't be read or used. Names the setting; never shows what is in it.
    """
    context = HandshakeContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    if not versions:
        raise ConfigError("ssl.enabled.protocols", "", "must name one version or more")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    path = config.ssl_keystore_location
    try:
        # With a password at hand OpenSSL never asks a terminal for one.
        context.load_cert_chain(path, password=lambda: config.ssl_key_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = f"holds no key with certificates that can be used: {_said(error)}"
        raise ConfigError("ssl.keystore.location", path, reason) from error
    if asks_clients:
        context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    if asks_clients and config.ssl_truststore_location:
        trusted = config.ssl_truststore_location
        try:
            context.load_verify_locations(cafile=trusted)
        except (OSError, ssl.SSLError) as error:
            reason = f"holds no certificates that can be used: {_said(error)}"
            raise ConfigError("ssl.truststore.location", trusted, reason) from error
    return context


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class TlsDoor:
    """A context whose certificates follow their files. Belongs to the loop's thread.

    Attributes:
        context: For the listener; each handshake goes on with the newest one.
    """

    def __init__(self, config: BrokerConfig, files: FileSystem, *, asks_clients: bool) -> None:
        """Read the files.

        Raises:
            ConfigError: As `make_context`.
        """
        self._contexts = Watched(
            files,
            config.ssl_keystore_location,
            config.ssl_truststore_location,
            what="certificates",
            read=lambda: make_context(config, asks_clients=asks_clients),
        )
        self.context = self._contexts.newest()
        self.context.sni_callback = self._choose

    def _choose(
        self,
        connection: ssl.SSLSocket | ssl.SSLObject,
        server_name: str | None,  # noqa: ARG002 - one certificate for all names
        context: ssl.SSLContext,  # noqa: ARG002 - the first one's, for all
    ) -> None:
        """Let a handshake go on with the newest certificates."""
        connection.context = self._contexts.newest()
