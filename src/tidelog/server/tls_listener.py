"""A listener whose clients count as soon as they come, not when their handshakes end.

asyncio tells of a TLS client when its handshake is done: who never ends it would be outside of all
limits until then. So connections are accepted here, and handed over to asyncio for their handshakes
once they have been counted.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.server.connection import Connection
from tidelog.server.node import LOGGER, Node
from tidelog.server.security.handshakes import SHAKING, reason_of

if TYPE_CHECKING:
    from tidelog.server.timers import Timer

# A client that does not come to the end of a handshake, or of its good-bye, is sent away.
TLS_TIMEOUT_S: Final = 10
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


class TlsListener:
    """Sockets that TLS clients come to. Belongs to the loop's thread; open -> ... -> close."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        context: ssl.SSLContext,
        node: Node,
        make: Callable[[], Connection],
    ) -> None:
        """Accept from now on.

        Args:
            sockets: They listen, and don't block.
            context: For handshakes.
            node: Its timers, for what is tried again later, and its metrics.
            make: A connection that nobody has made yet.
        """
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._context = context
        self._node = node
        self._make = make
        self._handshakes: set[asyncio.Task[bool]] = set()
        self._pauses: dict[socket.socket, Timer] = {}
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    def is_serving(self) -> bool:
        """Whether it listens."""
        return bool(self._sockets)

    def close(self) -> None:
        """Listen no more, and end what is at its handshake."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            self._loop.remove_reader(each)
            each.close()
        for timer in self._pauses.values():
            timer.cancel()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is left, after `close`."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

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

        def ended(task: "asyncio.Task[bool]") -> None:
            self._handshakes.discard(task)
            if task.cancelled() or not task.result():
                sock.close()  # where it was cancelled before its first step nobody else does
                connection.connection_lost(None)

        shaking = self._loop.create_task(self._shake_hands(sock, connection))
        self._handshakes.add(shaking)
        shaking.add_done_callback(ended)

    async def _shake_hands(self, sock: socket.socket, connection: Connection) -> bool:
        """Have a handshake done, and the connection told of it; whether it came to its end."""
        SHAKING.set(sock)  # for this task alone
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=TLS_TIMEOUT_S,
                ssl_shutdown_timeout=TLS_TIMEOUT_S,
            )
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return False
        except ssl.SSLError as error:
            self._refuse(connection.facts.host, error)
            return False
        except OSError:  # such as a time-out: who comes may go as he likes
            return False
        except Exception:  # noqa: BLE001 - one client's trouble is not the others'
            LOGGER.exception("a TLS handshake of %s failed", connection.facts.host)
            return False
        return True

    def _refuse(self, host: str, error: ssl.SSLError) -> None:
        self._node.metrics.login_failed("TLS")
        LOGGER.warning("a TLS handshake of %s failed: %s", host, reason_of(error))


async def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host, and don't block.

    Raises:
        OSError: An address can't be had; then none is listened on. One that the machine does not
            have is left out, if there is another one.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    refused = OSError(errno.EAFNOSUPPORT, f"no address of {host!r} is of a kind that is known here")
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            sockets.extend(_listening(family, address, backlog))
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


def _listening(family: int, address: object, backlog: int) -> list[socket.socket]:
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
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{address} can't be listened on: {error.strerror}") from error
    return [sock]
