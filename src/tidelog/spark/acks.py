"""Has a worker's system acknowledge a task's code at once, so that its input follows at once.

Spark sends a task to a worker's Python over TCP as two small messages: the code, then what to work
on. Nagle's algorithm keeps the second back until the first is acknowledged, and the worker's
system, which hopes to send an answer along, puts that off for 40 ms. That is as long as it takes to
read 5 MB of log, for every task. What is sent as code and carries an `Arrival` ends the wait: the
code is unpickled between the two messages.

Source: RFC 896 and RFC 1122, 4.2.3.2; tcp(7), TCP_QUICKACK.
"""

import ctypes
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_DESCRIPTORS: Final = "/proc/self/fd"
# A worker has a handful, those of its task among the first.
_DESCRIPTORS_MAX: Final = 64


class Arrival:
    """Acknowledges what has arrived when it is unpickled; does nothing else."""

    def __reduce__(self) -> "tuple[Callable[[], Arrival], tuple[()]]":
        return arrived, ()


def arrived() -> Arrival:
    """An `Arrival` in the process that it was sent to."""
    acknowledge_now()
    return Arrival()


def acknowledge_now() -> int:
    """Send the acknowledgements that this process's TCP connections put off.

    Returns:
        For how many connections the system was asked; 0 where it knows no such request.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return 0
    return sum(_ask(number, option) for number in _sockets())


def _sockets() -> list[int]:
    """Descriptors of this process's sockets; none where the system does not say."""
    found = []
    with suppress(OSError):
        paths = sorted(Path(_DESCRIPTORS).iterdir(), key=lambda path: int(path.name))
        for path in paths[:_DESCRIPTORS_MAX]:
            with suppress(OSError):  # the one that the listing itself had open is gone
                if str(path.readlink()).startswith("socket:"):
                    found.append(int(path.name))
    return found


def _ask(descriptor: int, option: int) -> bool:
    """Ask for one socket; whether it is a TCP connection.

    By the system's own call: a Python socket over a descriptor sets the process's default timeout,
    if there is one, and with it makes the connection non-blocking for its owner, too.
    """
    on = ctypes.c_int(1)
    call = ctypes.CDLL(None).setsockopt
    failed = call(descriptor, socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on))
    return not failed
