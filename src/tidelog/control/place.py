"""Where the control channel's socket lies, and how it is reached in a directory of any depth.

An address of a unix socket has room for some hundred bytes. Where a directory's path is longer, the
socket is named through a descriptor of the directory (`/proc/self/fd/N/NAME`), where the system has
that; else it is an error that says the limit.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tidelog.errors import InvalidRequest

SOCKET_FILE: Final = "tidelog-control.sock"
# Whoever comes when so many are there takes the place of the one that was silent for longest.
CONNECTIONS_MAX: Final = 32
MODE: Final = 0o600
_BACKLOG: Final = 16
# Of the systems we run on: 108 bytes with a closing zero (Linux), 104 (macOS).
ADDRESS_BYTES_MAX: Final = 103
_DESCRIPTORS: Final = "/proc/self/fd"


@contextmanager
def address(directory: str, name: str = SOCKET_FILE) -> Iterator[str]:
    """An address of a socket in a directory, good while the block runs.

    Raises:
        InvalidRequest: The path is too long, and this system knows no shorter one.
        OSError: There is no such directory.
    """
    path = f"{directory}/{name}"
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    if not os.path.isdir(_DESCRIPTORS):  # noqa: PTH112 - paths are str here
        raise InvalidRequest(
            f"{path}: {len(os.fsencode(path))} bytes, a socket's address takes"
            f" {ADDRESS_BYTES_MAX}: open the directory by a shorter path, such as a link to it"
        )
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(directory: str) -> socket.socket:
    """A listening socket that only its owner may use; renamed into place when it is ready.

    Raises:
        InvalidRequest: The directory's path is too long for a socket.
        OSError: It can't be made.
    """
    made = f"{SOCKET_FILE}.tmp"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(OSError):  # not on macOS, where the name has another mode for a moment
            os.fchmod(listener.fileno(), MODE)
        with suppress(FileNotFoundError):
            os.unlink(f"{directory}/{made}")  # noqa: PTH108 - paths are str here
        with address(directory, made) as bound_to:
            listener.bind(bound_to)
        os.chmod(f"{directory}/{made}", MODE)  # noqa: PTH101
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        os.rename(f"{directory}/{made}", f"{directory}/{SOCKET_FILE}")  # noqa: PTH104
    except BaseException:
        listener.close()
        raise
    return listener
