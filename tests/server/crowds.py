"""Thousands of nearly idle connections, and their descriptors."""

import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.worlds.waiting import PATIENCE_S

# Number of descriptors that are kept free for files of the test and of other code in this process.
MARGIN: Final = 500
# Hundredths of a second of CPU time that an idle process may use per second.
RESTING_TICKS: Final = 4
# ApiVersions v0, correlation id 1, without a client's name.
QUESTION: Final = bytes.fromhex("0000000a0012000000000001ffff")


@contextmanager
def descriptors(count: int) -> Iterator[bool]:
    """Raise the soft limit of open files for a `with` block; yield whether `count` sockets fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + MARGIN
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            yield False
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Connections that have each sent one request and then nothing more."""

    def __init__(self, bootstrap: str, count: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(socket.create_connection((host, int(port)), PATIENCE_S))
                self._sockets[-1].sendall(QUESTION)
            for each in self._sockets:
                _read_answer(each)
        except BaseException:
            self.close()
            raise

    def is_left_alone(self) -> bool:
        """Whether the broker has neither sent further bytes to any connection nor closed one."""
        return not self._ready(0)

    def await_end(self) -> None:
        """Wait until the broker has closed all connections; raise TimeoutError if it doesn't."""
        for each in self._sockets:
            each.settimeout(PATIENCE_S)
            try:
                assert each.recv(1) == b""
            except ConnectionResetError:
                continue

    def _ready(self, timeout_ms: int) -> list[tuple[int, int]]:
        waiting = select.poll()
        for each in self._sockets:
            waiting.register(each, select.POLLIN)
        return waiting.poll(timeout_ms)

    def close(self) -> None:
        """Close all connections."""
        for each in self._sockets:
            each.close()


class Rest:
    """Detects whether a process has used almost no CPU time for a second; Linux only."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._ticks, self._since = -1, time.monotonic()

    def has_come(self) -> bool:
        """Return whether the last second was almost without CPU time; call this repeatedly."""
        fields = self._stat.read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        now = time.monotonic()
        if ticks - self._ticks > RESTING_TICKS:
            self._ticks, self._since = ticks, now
        return now - self._since >= 1


def memory_bytes(pid: int) -> int:
    """Return the proportional set size of a process; Linux only."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _read_answer(sock: socket.socket) -> None:
    """Receive one response."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        got = sock.recv(1 << 16)
        if not got:
            raise ConnectionError("the broker closed the connection")
        data += got
