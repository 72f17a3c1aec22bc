"""Measures the CPU time of tests and fixtures; `-p tests.costs` loads it into pytest.

CPU time, unlike elapsed time, hardly depends on other work on the machine. The measured time is
that of the test's process and of all processes that it has started (Java's, too), running or ended.
Each process of a run appends lines to a file in the directory TIDELOG_COSTS: one line per test, and
per fixture that takes at least 0.05 s. A line has the seconds, the kind (`test`, or a fixture's
scope) and the name. The command `python -m tests.costs DIRECTORY` prints each folder's total time,
and the most expensive tests and fixtures. The cost of a fixture is also part of the cost of the
first test that requests it.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

DIRECTORY: Final = "TIDELOG_COSTS"
DEAREST: Final = 150
# CPU time in seconds below which a fixture is not recorded.
LEAST_S: Final = 0.05


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test, including the setup and teardown of its fixtures."""
    before = processor_time()
    result = yield
    _write(processor_time() - before, "test", item.nodeid)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Measure one fixture, without the fixtures that it requests."""
    before = processor_time()
    result = yield
    if (taken := processor_time() - before) >= LEAST_S:
        _write(taken, fixturedef.scope, f"{request.node.nodeid}::{fixturedef.argname}")
    return result


def processor_time() -> float:
    """Return the CPU seconds of this process and of all its descendants."""
    ticks, processes = 0, [str(os.getpid())]
    while processes:
        process = processes.pop()
        # If a process ends during this loop, its time may be missing from the sum: it is then part
        # of its parent's time, which may already have been read.
        with suppress(OSError):
            stat = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, stat[11:15]))
            for thread in Path("/proc", process, "task").iterdir():
                processes += (thread / "children").read_text().split()
    return ticks / os.sysconf("SC_CLK_TCK")


def _write(seconds: float, kind: str, name: str) -> None:
    process = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    with Path(os.environ[DIRECTORY], f"{process}.{os.getpid()}.tsv").open("a") as lines:
        lines.write(f"{seconds:.2f}\t{kind}\t{name}\n")


def main(directory: str) -> None:
    """Print the folders' totals, and the most expensive tests and fixtures, of all processes."""
    folders: defaultdict[str, list[float]] = defaultdict(list)
    each: list[tuple[float, str, str]] = []
    functions: defaultdict[str, list[float]] = defaultdict(list)
    for path in Path(directory).glob("*.tsv"):
        for line in path.read_text().splitlines():
            seconds, kind, name = line.split("\t", 2)
            # If Spark's workers end during a test, their earlier time is no longer counted for any
            # process. So a test's time can be negative.
            each.append((max(float(seconds), 0.0), kind, name))
            if kind == "test":
                folders["/".join(name.split("/")[:2])].append(each[-1][0])
                functions[name.partition("[")[0]].append(each[-1][0])
    for folder, costs in sorted(folders.items()):
        print(f"{sum(costs):10.1f} {len(costs):6} {folder}")
    print("\nTest functions, all their cases")
    ranked = sorted(functions.items(), key=lambda entry: -sum(entry[1]))
    for name, costs in ranked[:DEAREST]:
        print(f"{sum(costs):10.1f} {len(costs):6} {name}")
    print("\nTests and fixtures")
    for cost, kind, name in sorted(each, reverse=True)[:DEAREST]:
        print(f"{cost:10.1f} {kind:8} {name}")


if __name__ == "__main__":
    main(sys.argv[1])
