"""Assigns tests to the processes of a run; `./run test` loads this module into pytest.

One process runs the Spark tests and another one the tests with Kafka, so that the session and the
brokers start only once. Both processes then run other tests. Folders with long tests come first,
so that all processes end at about the same time. The tests of a file run in one process, because
they share fixtures. A process that replaces a crashed one takes over the crashed process's part.
"""

from functools import cache
from itertools import count
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScheduling
from xdist.workermanage import WorkerController

# Folders of each part. The tests of a part share a session or brokers that take seconds to start.
PARTS: Final = (("tests/spark/",), ("tests/peers/", "tests/server/clients/"))
# Order of the other folders with long tests; short tests come last.
LONG: Final = (
    "tests/corpus/",
    "tests/histories/",
    "tests/fault/",
    "tests/property/",
    "tests/server/",
    "tests/examples/",
    "tests/tidy/",
    "tests/contracts/",
)
# A process starts a test only when it knows which test is next. Each process gets this number of
# tests in advance, so that it never waits for the scheduler.
AHEAD: Final = 8


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScheduling:
    """Let xdist distribute tests by this module's schedule."""
    return Schedule(config, log)


class Schedule(LoadScheduling):  # type: ignore[misc] # xdist has no hints
    """xdist's schedule, except that `_rank` decides which tests a process gets next."""

    collection: list[str] | None

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._parts: dict[WorkerController, int] = {}
        self._left: dict[str, list[int]] = {}

    def schedule(self) -> None:
        """Assign the first tests once all processes have collected; later, supply new processes."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                self.log("different tests collected, aborting run")
                return
            self.collection = next(iter(self.node2collection.values()))
            self._put_back(list(range(len(self.collection))))
        for node in self.nodes:
            self.check_schedule(node)

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Send more tests to a process that has few, or shut it down if there are no more."""
        if node.shutting_down:
            return
        while self.pending and len(self.node2pending[node]) < AHEAD:
            self._send_file(node)
        if not self.pending:
            node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        """Take back the tests of a process that ended; its part becomes free.

        Returns:
            The test during which the process ended; None if it had no tests left.
        """
        self._parts.pop(node, None)
        undone = self.node2pending.pop(node)
        if not undone:
            return None
        assert self.collection is not None
        ended_in: str = self.collection[undone.pop(0)]
        self._put_back(undone)
        for other in self.nodes:
            self.check_schedule(other)
        return ended_in

    def mark_test_pending(self, item: str) -> None:
        """Schedule a test once more, if a plugin requests it."""
        assert self.collection is not None
        self._put_back([self.collection.index(item)])
        for node in self.nodes:
            self.check_schedule(node)

    def _put_back(self, tests: list[int]) -> None:
        assert self.collection is not None
        for test in tests:
            file = self.collection[test].partition("::")[0]
            self._left.setdefault(file, []).append(test)
        self.pending.extend(tests)

    def _send_file(self, node: WorkerController) -> None:
        if node not in self._parts:
            taken = set(self._parts.values())
            self._parts[node] = next(part for part in count() if part not in taken)
        part = self._parts[node]
        file = min(self._left, key=lambda file: _rank(file, part))
        tests = self._left.pop(file)
        sent = set(tests)
        self.pending[:] = [test for test in self.pending if test not in sent]
        self.node2pending[node].extend(tests)
        node.send_runtest_some(tests)


@cache
def _rank(file: str, part: int) -> int:
    """Return a test file's rank for the process that runs part `part`; low ranks run first."""
    homes = [home for home, folders in enumerate(PARTS) if file.startswith(folders)]
    if part in homes:
        return -1
    if homes:
        return len(LONG) + 1
    return next((rank for rank, folder in enumerate(LONG) if file.startswith(folder)), len(LONG))
