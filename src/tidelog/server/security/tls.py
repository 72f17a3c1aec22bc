"""TLS contexts of listeners from PEM files, reloaded when the files change, and handshake alerts.

Every handshake checks whether the files have changed. Sessions are not resumed: a resumed session
would keep the identity that an older certificate proved.

OpenSSL prepares an alert for a refused client, such as one with an untrusted certificate. The event
loops (asyncio of Python 3.11 to 3.13, uvloop 0.23) drop the connection without sending it. A client
without an alert assumes a network failure and retries; Kafka's Java client raises
SslAuthenticationException only for an alert. So the alert is sent here.
"""

import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Final, Generic, TypeVar

from tidelog.config import BrokerConfig
from tidelog.env import FileStat, FileSystem
from tidelog.errors import ConfigError, TidelogError

# Whose handshake the running task begins: a loop says nothing of that to a context, and takes no
# stand-in for one. The socket does not block.
SHAKING: Final[ContextVar[socket.socket | None]] = ContextVar("SHAKING", default=None)


class Handshake(ssl.SSLObject):
    """The server's side of TLS.

    Attributes:
        send_alert: Called where the handshake fails, before anybody hears of it; None once it
            went well.
    """

    send_alert: Callable[[], None] | None = None

    def do_handshake(self) -> None:
        """A step; raises ssl.SSLError as ssl.SSLObject."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.send_alert is not None:
                self.send_alert()
            raise
        # A connection of days needs no way to its socket beside the loop's.
        self.send_alert = None


class HandshakeContext(ssl.SSLContext):
    """A context whose handshakes send alerts to the `SHAKING` socket."""

    sslobject_class = Handshake  # type: ignore[mutable-override]  # ours is one

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As ssl.SSLContext's."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        sock = SHAKING.get()
        if sock is not None and isinstance(made, Handshake):
            made.send_alert = partial(_send, sock, outgoing)
        return made


def _send(sock: socket.socket, outgoing: ssl.MemoryBIO) -> None:
    """Send what is there, some bytes, as far as the system takes it at once."""
    with suppress(OSError):  # he has gone, or takes nothing: then he is not told
        sock.send(outgoing.read())


def reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's words for a failure, in which nothing is what somebody has sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or "unknown").replace("_", " ").lower()


_LOGGER: Final = logging.getLogger("tidelog.server")


Content = TypeVar("Content")


class Watched(Generic[Content]):
    """What files say: read again when one of them has changed. Any thread may ask.

    New files that can't be used are logged once, and what the old ones said goes on to hold: a
    half-written file must not close the door.
    """

    def __init__(
        self, files: FileSystem, *paths: str, what: str, read: Callable[[], Content]
    ) -> None:
        """Read the files.

        Args:
            files: Where they are.
            paths: The files; an empty one is none.
            what: What they hold, for the log.
            read: Reads them; raises TidelogError for those that can't be used.

        Raises:
            TidelogError: As `read`.
        """
        self._files = files
        self._paths = [path for path in paths if path]
        self._what = what
        self._read = read
        self._seen = self._look()
        self._newest = read()

    def newest(self) -> Content:
        """What the newest files that can be used say."""
        stamp = self._look()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._newest = self._read()
            except TidelogError as error:
                _LOGGER.warning("the old %s stay: %s", self._what, error)
            else:
                _LOGGER.info("new %s are used from now on", self._what)
        return self._newest

    def _look(self) -> list[FileStat | None]:
        return [self._stat(path) for path in self._paths]

    def _stat(self, path: str) -> FileStat | None:
        try:
            return self._files.stat(path)
        except OSError:
            return None


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
