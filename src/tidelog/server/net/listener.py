"""Listening sockets, plain and TLS: connections are accepted in batches and counted when accepted.

uvloop accepts one connection per loop iteration, so with many clients and long iterations the last
connection waits long. Also, uvloop reports a TLS client only after its handshake, so a client that
never completes the handshake would not count towards the limits. Therefore this module accepts and
counts connections, and then passes them to asyncio. Socket options are set on the listening socket
and inherited by its connections.

Source: Linux tcp(7), socket(7).
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from tidelog.config.listeners import Endpoint
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.net.connection import Connection
from tidelog.server.security.tls import SHAKING, reason_of

if TYPE_CHECKING:
    from tidelog.server.runtime.loop import Timer


# Maximum number of connections accepted before other tasks of the event loop may run.
ACCEPTS: Final = 64

# Delay in ms before accepting again after an error, such as a lack of descriptors.
PAUSE_MS: Final = 1000

_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

# Errors of a connection that was closed before it was accepted. Source: accept(2).
_CLOSED_EARLY: Final = frozenset(
    getattr(errno, name)
    for name in (
        "EPERM",
        "EPROTO",
        "ENOPROTOOPT",
        "EOPNOTSUPP",
        "ENETDOWN",
        "ENETUNREACH",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENONET",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)


class Listener:
    """Listening sockets, which accept connections until `close`.

    Used only in the event loop's thread.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        node: Node,
        make: Callable[[], Connection],
    ) -> None:
        """Start accepting.

        Args:
            sockets: Listening sockets, non-blocking.
            node: Provides metrics, and timers for retries.
            make: Creates an unconnected connection.
        """
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._node = node
        self._make = make
        self._setups: set[asyncio.Task[object]] = set()
        self._pauses: dict[socket.socket, Timer] = {}
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    def is_serving(self) -> bool:
        """Whether the sockets are listening."""
        return bool(self._sockets)

    def close(self) -> None:
        """Stop listening, and close connections that are still being set up."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            self._loop.remove_reader(each)
            each.close()
        for timer in self._pauses.values():
            timer.cancel()
        for task in self._setups:
            task.cancel()

    async def wait_closed(self) -> None:
        """After `close`, wait until no connection is being set up any more."""
        await asyncio.gather(*self._setups, return_exceptions=True)

    # -- connections -------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno in _CLOSED_EARLY:
                    continue
                self._pause(listening, error)
                return
            self._take(sock, str(address[0]))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Pause accepting after an error. Meanwhile clients wait in the system's queue."""
        if error.errno not in _NO_ROOM:
            LOGGER.error("can't accept a connection: %s", error)
        else:
            LOGGER.warning("new connections wait because system resources are exhausted: %s", error)
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._node.timers.after(PAUSE_MS, lambda: self._resume(listening))

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _take(self, sock: socket.socket, host: str) -> None:
        connection = self._make()
        if not connection.admit(host):
            sock.close()
            return

        setup = self._loop.create_task(self._hand_over(sock, connection))
        self._setups.add(setup)
        setup.add_done_callback(partial(self._end, sock, connection))

    def _hand_over(
        self, sock: socket.socket, connection: Connection
    ) -> "Coroutine[object, object, object]":
        """Pass the socket to asyncio; raises the errors of asyncio."""
        return self._loop.connect_accepted_socket(lambda: connection, sock)

    def _end(
        self, sock: socket.socket, connection: Connection, setup: "asyncio.Task[object]"
    ) -> None:
        """Finish the setup of a connection; the setup may have failed."""
        self._setups.discard(setup)
        error = None if setup.cancelled() else setup.exception()
        if error is None and not setup.cancelled():
            return
        sock.close()  # if `setup` was cancelled before its first step, nothing else closes it
        connection.connection_lost(None)
        if error is not None:
            self._log_failure(error, connection.facts.host)

    def _log_failure(self, error: BaseException, host: str) -> None:
        """Log why a connection failed, unless the client just disconnected."""
        if not isinstance(error, OSError):
            LOGGER.error("can't set up a connection from %s", host, exc_info=error)


async def listening_sockets(
    host: str, port: int, backlog: int, prepare: Callable[[socket.socket], None] = lambda _: None
) -> list[socket.socket]:
    """Return non-blocking sockets that listen on all addresses of a host.

    Args:
        host: A name or an address; empty for all addresses of the machine.
        port: The port; if 0, the system chooses a port.
        backlog: Maximum number of connections that wait to be accepted.
        prepare: Called with each socket before it listens.

    Raises:
        OSError: The host is unknown, or an address can't be bound. All sockets are closed before
            this error is raised. Addresses that the machine lacks are skipped, unless it lacks all
            addresses of the host.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    refused = OSError(errno.EAFNOSUPPORT, f"{host!r} has no IPv4 or IPv6 address")
    for family, _, _, _, address in dict.fromkeys(addresses):
        try:
            sockets.extend(_listening(family, address, backlog, prepare))
        except OSError as error:
            at = "" if address[0] == host else f"{address[0]}: "
            refused = OSError(error.errno, f"{at}{error.strerror}")
            # An address that the machine lacks is skipped, such as ::1 if IPv6 is disabled.
            if error.errno != errno.EADDRNOTAVAIL:
                for each in sockets:
                    each.close()
                raise refused from error
    if not sockets:
        raise refused
    return sockets


def _listening(
    family: int, address: tuple[object, ...], backlog: int, prepare: Callable[[socket.socket], None]
) -> list[socket.socket]:
    """Return a listening socket in a list, which is empty if the address family is unsupported.

    Raises:
        OSError: The address can't be bound.
    """
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return []  # e.g. IPv6 is disabled
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
        prepare(sock)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return [sock]


SEND_BUFFER: Final = "socket.send.buffer.bytes"

# This option exists only on Linux.
_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)

_NAME_BYTES_MAX: Final = 16

# Name of a congestion control algorithm that delays sends by timers, according to the estimated
# rate of the network path.
PACING: Final = b"bbr"

# Name of a congestion control algorithm that does not delay sends. Linux always has it, and lets
# every process select it.
WITHOUT_PACING: Final = b"reno"


@contextmanager
def naming(endpoint: Endpoint) -> Iterator[None]:
    """Add the endpoint's name to the error if the `with` block fails to listen on it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"can't listen on {endpoint}: {reason}") from error


def prepare(bound: socket.socket, send_buffer_bytes: int, *, is_configured: bool = True) -> None:
    """Set options that connections inherit, on a socket that is bound and not listening yet.

    Args:
        bound: The socket.
        send_buffer_bytes: Size of the system's send buffer; -1 leaves the system's default.
        is_configured: Whether the user configured the size. The default size is meant for networks,
            so it is not set on loopback addresses.
    """
    is_loopback = _is_loopback(bound)
    if send_buffer_bytes > 0 and (is_configured or not is_loopback):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if is_loopback:
        _disable_pacing(bound)


def _is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can connect to the socket."""
    host = bound.getsockname()[0]
    return ip_address(host.partition("%")[0]).is_loopback


def _disable_pacing(bound: socket.socket) -> None:
    """Disable pacing on a loopback address, where no network delays packets.

    On an idle machine the timers of pacing cost as much CPU as the rest of a fetch.
    """
    if _CONGESTION is None:
        return
    with suppress(OSError):  # not every system supports it
        if bound.getsockopt(socket.IPPROTO_TCP, _CONGESTION, _NAME_BYTES_MAX).startswith(PACING):
            bound.setsockopt(socket.IPPROTO_TCP, _CONGESTION, WITHOUT_PACING)


# Timeout in seconds of the TLS handshake, and of the TLS shutdown. After this time the client is
# disconnected.
TLS_TIMEOUT_S: Final = 10


class TlsListener(Listener):
    """Listening TLS sockets, which accept connections until `close`.

    Used only in the event loop's thread.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        node: Node,
        make: Callable[[], Connection],
        context: ssl.SSLContext,
    ) -> None:
        """Start accepting. `context` is for handshakes. See `Listener` for the other arguments."""
        super().__init__(sockets, node, make)
        self._context = context

    async def _hand_over(self, sock: socket.socket, connection: Connection) -> None:
        SHAKING.set(sock)  # for this task only
        await self._loop.connect_accepted_socket(
            lambda: connection,
            sock,
            ssl=self._context,
            ssl_handshake_timeout=TLS_TIMEOUT_S,
            ssl_shutdown_timeout=TLS_TIMEOUT_S,
        )

    def _log_failure(self, error: BaseException, host: str) -> None:
        is_over = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if isinstance(error, ssl.SSLError) and not is_over:
            self._node.metrics.login_failed("TLS")
            LOGGER.warning("TLS handshake with %s failed: %s", host, reason_of(error))
        else:
            super()._log_failure(error, host)
