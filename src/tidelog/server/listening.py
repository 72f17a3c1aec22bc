"""What connections inherit from the socket that they come to: set before it listens, so none pays.

Source: Linux tcp(7), socket(7).
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Final

from tidelog.server.settings import Endpoint

SEND_BUFFER: Final = "socket.send.buffer.bytes"
# Linux alone has it.
_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)
_NAME_BYTES_MAX: Final = 16
# By the estimated rate of a path: what would go at once is sent by timers.
PACING: Final = b"bbr"
# Linux has it always, and lets everybody use it.
WITHOUT_PACING: Final = b"reno"


@contextmanager
def naming(place: Endpoint) -> Iterator[None]:
    """Say of what can't be listened on where that was to be."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"can't listen on {place}: {reason}") from error


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
