"""TLS contexts of listeners, reloaded when their PEM files change, and alerts of handshakes.

Every handshake checks whether the files have changed. Sessions are not resumed, because a resumed
session would keep the identity that an older certificate proved.

OpenSSL prepares an alert for a refused client, such as a client with an untrusted certificate. The
event loops (asyncio of Python 3.11 to 3.13, uvloop 0.23) drop the connection without sending the
alert. A client that gets no alert assumes a network failure and retries. For example, Kafka's Java
client raises SslAuthenticationException only after an alert. So this module sends the alert that
the event loop drops.
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

# Non-blocking socket of the handshake that the running task begins. The socket is passed in a
# context variable, because an event loop does not pass the socket to the TLS context, and accepts
# no wrapper of an `SSLContext`.
SHAKING: Final[ContextVar[socket.socket | None]] = ContextVar("SHAKING", default=None)


class Handshake(ssl.SSLObject):
    """Server side of TLS.

    Attributes:
        send_alert: Called when the handshake fails, before the error is raised; None once the
            handshake has succeeded.
    """

    send_alert: Callable[[], None] | None = None

    def do_handshake(self) -> None:
        """Perform a step of the handshake; raises ssl.SSLError."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.send_alert is not None:
                self.send_alert()
            raise
        # `send_alert` refers to the socket. After the handshake this reference is dropped, so that
        # only the event loop holds the socket.
        self.send_alert = None


class HandshakeContext(ssl.SSLContext):
    """Context whose handshakes send alerts to the socket in `SHAKING`."""

    sslobject_class = Handshake  # type: ignore[mutable-override]  # `Handshake` is an `SSLObject`

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Wrap buffers for a handshake that sends alerts."""
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        sock = SHAKING.get()
        if sock is not None and isinstance(wrapped, Handshake):
            wrapped.send_alert = partial(_send, sock, outgoing)
        return wrapped


def _send(sock: socket.socket, outgoing: ssl.MemoryBIO) -> None:
    """Send as many of the pending bytes as the system accepts at once."""
    with suppress(OSError):  # a client that has disconnected or accepts nothing gets no alert
        sock.send(outgoing.read())


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's message for a failure, which contains no client input."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or "unknown").replace("_", " ").lower()


_LOGGER: Final = logging.getLogger("tidelog.server")
Content = TypeVar("Content")


class WatchedFiles(Generic[Content]):
    """Contents of files, reread when one of them has changed. Thread-safe.

    If new files can't be used, this is logged once and the old contents stay valid, because a
    half-written file must not lock out all clients.
    """

    def __init__(
        self, files: FileSystem, *paths: str, name: str, read: Callable[[], Content]
    ) -> None:
        """Read the files.

        Args:
            files: File system.
            paths: Paths of the files; empty paths are ignored.
            name: Name of the contents, for the log.
            read: Reads the files; raises TidelogError if they can't be used.

        Raises:
            TidelogError: The files can't be used.
        """
        self._files = files
        self._paths = [path for path in paths if path]
        self._name = name
        self._read = read
        self._stamps = self._stat_all()
        self._newest = read()

    def newest(self) -> Content:
        """Return the contents of the newest usable files."""
        stamps = self._stat_all()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._newest = self._read()
            except TidelogError as error:
                _LOGGER.warning(
                    "can't load new %s; the present ones stay in use: %s", self._name, error
                )
            else:
                _LOGGER.info("loaded new %s", self._name)
        return self._newest

    def _stat_all(self) -> list[FileStat | None]:
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


def make_context(config: BrokerConfig, *, verifies_clients: bool) -> ssl.SSLContext:
    """Create the context of a listener.

    Args:
        config: Settings with the paths of keys and certificates.
        verifies_clients: Whether the setting `ssl.client.auth` applies to this listener. If clients
            of the listener use SASL, the setting does not apply.

    Raises:
        ConfigError: A file can't be read or used, or no TLS version is enabled. The message names
            the setting, never the contents of a file.
    """
    context = HandshakeContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    if not versions:
        raise ConfigError("ssl.enabled.protocols", "", "must name at least one version")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    path = config.ssl_keystore_location
    try:
        # With a password given, OpenSSL never prompts on a terminal.
        context.load_cert_chain(path, password=lambda: config.ssl_key_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = f"contains no usable key and certificates: {_reason(error)}"
        raise ConfigError("ssl.keystore.location", path, reason) from error
    if verifies_clients:
        context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    if verifies_clients and config.ssl_truststore_location:
        trusted = config.ssl_truststore_location
        try:
            context.load_verify_locations(cafile=trusted)
        except (OSError, ssl.SSLError) as error:
            reason = f"contains no usable certificates: {_reason(error)}"
            raise ConfigError("ssl.truststore.location", trusted, reason) from error
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class TlsContexts:
    """TLS context that reloads changed certificates. Used only in the event loop's thread.

    Attributes:
        context: Context for the listener. Each handshake switches its connection to the newest
            context.
    """

    def __init__(self, config: BrokerConfig, files: FileSystem, *, verifies_clients: bool) -> None:
        """Read the files.

        Raises:
            ConfigError: A file can't be read or used, or no TLS version is enabled.
        """
        self._contexts = WatchedFiles(
            files,
            config.ssl_keystore_location,
            config.ssl_truststore_location,
            name="certificates",
            read=lambda: make_context(config, verifies_clients=verifies_clients),
        )
        self.context = self._contexts.newest()
        self.context.sni_callback = self._choose

    def _choose(
        self,
        connection: ssl.SSLSocket | ssl.SSLObject,
        _server_name: str | None,
        _context: ssl.SSLContext,
    ) -> None:
        """Continue the handshake with the newest certificates, for any server name."""
        connection.context = self._contexts.newest()
