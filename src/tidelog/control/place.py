"""Where the control channel's socket lies, and how it is reached in a directory of any depth.

An address of a unix socket has room for some hundred bytes. Where a directory's path is longer, the
socket is named through a descriptor of the directory (`/proc/self/fd/N/NAME`), where the system has
that; else it is an error that says the limit.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.errors import InvalidRequest

SOCKET_FILE: Final = "tidelog-control.sock"
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
