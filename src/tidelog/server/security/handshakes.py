"""TLS handshakes whose failure the client is told.

OpenSSL has an alert ready for who is refused, such as one whose certificate nobody vouches for. The
event loops (asyncio's of Python 3.11 to 3.13, uvloop 0.23) drop the connection without sending it,
and a client that hears nothing takes that for a broken network and tries again: Kafka's Java client
only tells of an SslAuthenticationException for an alert.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Final

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
