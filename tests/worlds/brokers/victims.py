"""Brokers in separate processes, which tests kill and restart on the same directory."""

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

from tests.worlds.kafka.broker import free_port

NURSERY = Path(__file__).with_name("nursery.py")
END_TIMEOUT_S = 60
POLL_S = 0.005
START_TRIES = 12_000
PORT_TRIES = 5


class Nursery:
    """Starts brokers by forking a process that has imported everything.

    Args:
        log: File for the brokers' output.
        faults: Files of Python code that break something in the brokers.
    """

    def __init__(self, log: Path, *faults: Path) -> None:
        self._path = log
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY), *map(str, faults)],
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

    def said(self) -> str:
        """Return the output that all started brokers have written so far."""
        return self._path.read_text()

    def start(self, arguments: Sequence[str]) -> int:
        """Start `tidelog` with these arguments; return the process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(arguments)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Victim:
    """`tidelog serve` on one directory, which tests start and kill repeatedly.

    Attributes:
        bootstrap: The broker's address; the port differs at each `start`.
    """

    def __init__(self, nursery: Nursery, data: Path, *options: str) -> None:
        self._nursery = nursery
        self._data = str(data)
        self._options = options
        self.bootstrap = ""
        self._pid: int | None = None
        self._handle = -1

    def start_at(self, port: int) -> None:
        """Start the broker on this port, to which clients reconnect, and wait until it listens."""
        assert self._start_on(port), self._nursery.said()

    def start(self) -> None:
        """Start the broker and wait until it listens."""
        for _ in range(PORT_TRIES):
            if self._start_on(free_port()):
                return
            # Another process may have taken the free port; any other error is a failure.
            said = self._nursery.said()
            assert "can't listen" in said.splitlines()[-2], said
        raise AssertionError("no port is free")

    def _start_on(self, port: int) -> bool:
        assert self._pid is None
        self.bootstrap = f"127.0.0.1:{port}"
        arguments = ["serve", "--data", self._data, "--listen", self.bootstrap, *self._options]
        self._pid = self._nursery.start(arguments)
        try:
            self._handle = os.pidfd_open(self._pid)
        except ProcessLookupError:  # the process has exited; `said` returns the messages
            self._pid = None
            return False
        for _ in range(START_TRIES):
            if _listens(port):
                return True
            # The process's handle becomes readable when the broker exits; until then, retry to
            # connect.
            if select.select([self._handle], [], [], POLL_S)[0]:
                self._pid = None
                os.close(self._handle)
                return False
        raise AssertionError("the broker never listened")

    def kill(self) -> None:
        """Kill the broker's process, so that it neither flushes nor prints anything more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the broker cleanly if it is running."""
        if self._pid is not None:
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self._pid is not None
        os.kill(self._pid, number)
        assert select.select([self._handle], [], [], END_TIMEOUT_S)[0], "it would not end"
        os.close(self._handle)
        self._pid = None


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
