"""Listening sockets, plain and TLS: connections are accepted in batches and counted at once.

uvloop accepts one connection per loop iteration, so with many clients and long iterations the last
one waits long. And it reports a TLS client after its handshake, so a client that never completes
the handshake would escape all limits. So connections are accepted and counted here, and then handed
to asyncio. Socket options are set on the listening socket and inherited by its connections.

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


# Taken at a time, before others have their turn.
ACCEPTS: Final = 64


# When it is tried again to accept where the system has no room.
PAUSE_MS: Final = 1000


_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


# Of a connection that went while it waited, as Linux tells it. Source: accept(2).
_GONE: Final = frozenset(
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
    """Sockets that clients come to. Belongs to the loop's thread; open -> ... -> close."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        node: Node,
        make: Callable[[], Connection],
    ) -> None:
        """Accept from now on.

        Args:
            sockets: They listen, and don't block.
            node: Its timers, for what is tried again later, and its metrics.
            make: A connection that nobody has made yet.
        """
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._node = node
        self._make = make
        self._coming: set[asyncio.Task[object]] = set()
        self._pauses: dict[socket.socket, Timer] = {}
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    def is_serving(self) -> bool:
        """Whether it listens."""
        return bool(self._sockets)

    def close(self) -> None:
        """Listen no more, and send away who isn't in yet."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            self._loop.remove_reader(each)
            each.close()
        for timer in self._pauses.values():
            timer.cancel()
        for task in self._coming:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until nobody is on the way in, after `close`."""
        await asyncio.gather(*self._coming, return_exceptions=True)

    # -- clients -----------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._pause(listening, error)
                return
            self._take(sock, str(address[0]))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """The system has no room: who waits stays in its queue."""
        if error.errno not in _NO_ROOM:
            LOGGER.error("a connection can't be accepted: %s", error)
        else:
            LOGGER.warning("connections wait, the system has no room for them: %s", error)
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._node.timers.after(PAUSE_MS, lambda: self._go_on(listening))

    def _go_on(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _take(self, sock: socket.socket, host: str) -> None:
        connection = self._make()
        if not connection.come_from(host):
            sock.close()
            return

        coming = self._loop.create_task(self._hand_over(sock, connection))
        self._coming.add(coming)
        coming.add_done_callback(partial(self._end, sock, connection))

    def _hand_over(
        self, sock: socket.socket, connection: Connection
    ) -> "Coroutine[object, object, object]":
        """Let asyncio have the socket; raises what is wrong with it."""
        return self._loop.connect_accepted_socket(lambda: connection, sock)

    def _end(
        self, sock: socket.socket, connection: Connection, coming: "asyncio.Task[object]"
    ) -> None:
        """A client is in, or is none."""
        self._coming.discard(coming)
        error = None if coming.cancelled() else coming.exception()
        if error is None and not coming.cancelled():
            return
        sock.close()  # where it was cancelled before its first step nobody else does
        connection.connection_lost(None)
        if error is not None:
            self._tell(error, connection.facts.host)

    def _tell(self, error: BaseException, host: str) -> None:
        """Log why a client is none, unless he just went: who comes may go as he likes."""
        if not isinstance(error, OSError):
            LOGGER.error("a connection of %s can't be made", host, exc_info=error)


async def listening_sockets(
    host: str, port: int, backlog: int, prepare: Callable[[socket.socket], None] = lambda _: None
) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host, and don't block.

    Args:
        host: A name or an address; all of the machine's where it is empty.
        port: The system chooses where 0.
        backlog: How many may wait until they are taken.
        prepare: Called with each of them before it listens.

    Raises:
        OSError: An address can't be had; then none is listened on. One that the machine does not
            have is left out, if there is another one.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    refused = OSError(errno.EAFNOSUPPORT, f"no address of {host!r} is of a kind that is known here")
    for family, _, _, _, address in dict.fromkeys(addresses):
        try:
            sockets.extend(_listening(family, address, backlog, prepare))
        except OSError as error:
            refused = error
            # One that the machine doesn't have, such as ::1 where IPv6 is off, is no hindrance.
            if error.errno != errno.EADDRNOTAVAIL:
                for each in sockets:
                    each.close()
                raise
    if not sockets:
        raise refused
    return sockets


def _listening(
    family: int, address: object, backlog: int, prepare: Callable[[socket.socket], None]
) -> list[socket.socket]:
    """A socket that listens, none where the system knows no such addresses; raises OSError."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return []  # such as where IPv6 is turned off
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)  # type: ignore[arg-type]  # as getaddrinfo has given it
        prepare(sock)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{address} can't be listened on: {error.strerror}") from error
    return [sock]


SEND_BUFFER: Final = "socket.send.buffer.bytes"


# Linux alone has it.
_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)


_NAME_BYTES_MAX: Final = 16


# By the estimated rate of a path: what would go at once is sent by timers.
PACING: Final = b"bbr"


# Linux has it always, and lets everybody use it.
WITHOUT_PACING: Final = b"reno"


@contextmanager
def naming(endpoint: Endpoint) -> Iterator[None]:
    """Say of what can't be listened on where that was to be."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"can't listen on {endpoint}: {reason}") from error


def prepare(bound: socket.socket, send_buffer_bytes: int, *, is_asked: bool = True) -> None:
    """Set what is inherited from a socket that is bound and doesn't listen yet.

    Args:
        bound: The socket.
        send_buffer_bytes: How much the system holds of what is sent; -1 leaves that to it.
        is_asked: Whether somebody has set it so: a default bounds what is on its way through a
            network, and on the loopback there is none.
    """
    is_loopback = _is_loopback(bound)
    if send_buffer_bytes > 0 and (is_asked or not is_loopback):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if is_loopback:
        _leave_pacing(bound)


def _is_loopback(bound: socket.socket) -> bool:
    """Whether none but this machine can come to it."""
    host = bound.getsockname()[0]
    return ip_address(host.partition("%")[0]).is_loopback


def _leave_pacing(bound: socket.socket) -> None:
    """Send at once where the system would pace: there is no network to be spared.

    Its timers cost as much CPU as all else of a fetch, on a machine that does nothing beside.
    """
    if _CONGESTION is None:
        return
    with suppress(OSError):  # not every system says, or lets itself be told
        if bound.getsockopt(socket.IPPROTO_TCP, _CONGESTION, _NAME_BYTES_MAX).startswith(PACING):
            bound.setsockopt(socket.IPPROTO_TCP, _CONGESTION, WITHOUT_PACING)


# A client that does not come to the end of a handshake, or of its good-bye, is sent away.
TLS_TIMEOUT_S: Final = 10


class TlsListener(Listener):
    """Sockets that TLS clients come to. Belongs to the loop's thread; open -> ... -> close."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        node: Node,
        make: Callable[[], Connection],
        context: ssl.SSLContext,
    ) -> None:
        """Accept from now on; `context` is for handshakes, the others as `Listener`'s."""
        super().__init__(sockets, node, make)
        self._context = context

    async def _hand_over(self, sock: socket.socket, connection: Connection) -> None:
        SHAKING.set(sock)  # for this task alone
        await self._loop.connect_accepted_socket(
            lambda: connection,
            sock,
            ssl=self._context,
            ssl_handshake_timeout=TLS_TIMEOUT_S,
            ssl_shutdown_timeout=TLS_TIMEOUT_S,
        )

    def _tell(self, error: BaseException, host: str) -> None:
        is_over = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if isinstance(error, ssl.SSLError) and not is_over:
            self._node.metrics.login_failed("TLS")
            LOGGER.warning("a TLS handshake of %s failed: %s", host, reason_of(error))
        else:
            super()._tell(error, host)
