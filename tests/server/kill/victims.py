"""A broker in a process of its own that is killed and started again on the same directory."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

NURSERY = Path(__file__).with_name("nursery.py")
START_TIMEOUT_S = 60


class Nursery:
    """Where brokers come from: forked from a process that has everything imported."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def start(self, arguments: Sequence[str]) -> int:
        """The process id of a new `tidelog` with these arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(arguments)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Victim:
    """`tidelog serve` on one directory and one port; (start -> kill)*."""

    def __init__(self, nursery: Nursery, data: Path, port: int, *options: str) -> None:
        self._nursery = nursery
        self.bootstrap = f"127.0.0.1:{port}"
        self._arguments = ["serve", "--data", str(data), "--listen", self.bootstrap, *options]
        self._pid: int | None = None
        self._handle = -1

    def start(self) -> None:
        """Return when it listens."""
        assert self._pid is None
        self._pid = self._nursery.start(self._arguments)
        self._handle = os.pidfd_open(self._pid)
        host, port = self.bootstrap.split(":")
        waited = 0
        while not _listens(host, int(port)):
            # A dead broker makes the handle readable; a live one is asked again in a moment.
            waited += 1
            if select.select([self._handle], [], [], 0.005)[0]:
                self._pid = None
                raise AssertionError("the broker ended by itself")
            assert waited < START_TIMEOUT_S / 0.005, "the broker never listened"

    def kill(self) -> None:
        """As a crash of the process: nothing is flushed, nothing is said."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop, if it runs."""
        if self._pid is not None:
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self._pid is not None
        os.kill(self._pid, number)
        assert select.select([self._handle], [], [], START_TIMEOUT_S)[0], "it would not end"
        os.close(self._handle)
        self._pid = None


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True
