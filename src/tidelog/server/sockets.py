"""The socket below a transport, which takes bytes past it."""

import asyncio
import os
import socket
from typing import Final

from tidelog.types import Buffer

# Buffers that one call of the system takes.
BUFFERS_MAX: Final = 512


def socket_of(transport: asyncio.Transport) -> socket.socket | None:
    """The transport's own socket, None where bytes must not go past the transport."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    found = transport.get_extra_info("socket")
    if found is None or not hasattr(os, "sendfile"):
        return None
    return socket.socket(found.family, found.type, found.proto, fileno=found.fileno())


def send_at_once(to: socket.socket, buffers: list[Buffer], flags: int) -> list[Buffer]:
    """Send buffers at once; what the socket did not take."""
    try:
        if len(buffers) == 1:
            sent = to.send(buffers[0], flags)
            if sent == len(buffers[0]):
                return []
        else:
            sent = to.sendmsg(buffers[:BUFFERS_MAX], (), flags)
    except BlockingIOError:
        return buffers
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[number + 1 :]]
        sent -= len(buffer)
    return []
