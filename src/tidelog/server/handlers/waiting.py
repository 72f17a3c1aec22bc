"""From an answer of the rules, which may come later, to one that a connection can wait for."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.server.arrivals import Promise, arrival
from tidelog.server.groups.reply import Reply

__all__ = ["arrival", "respond"]

T = TypeVar("T")
R = TypeVar("R")


def respond(reply: Reply[T], response: Callable[[T], R]) -> R | Awaitable[R]:
    """The response to a reply: now where it is there, else as soon as it is."""
    if reply.is_done:
        return response(reply.value)
    return Promise(reply, response)
