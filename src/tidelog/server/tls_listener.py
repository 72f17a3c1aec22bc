"""A listener whose clients have a TLS handshake before they are in."""

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.server.connection import Connection
from tidelog.server.listener import Listener
from tidelog.server.node import LOGGER, Node
from tidelog.server.security.handshakes import SHAKING, reason_of

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
