"""Tries one change at a time in a copy of the checkout, with the tests that reach its line.

`./run coverage` has recorded the test functions that run each line, and the seconds of each
function.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import coverage
from tests.mutations.sites import Mutation, modules

_FAILED: Final = "FAILED "
# Seconds by which each change of a file increases its modification time. So Python's caches of
# compiled code notice each change, even if two changes happen within a second.
_STEP_S: Final = 2
# Time limit of a test, in seconds, because a change can make a loop endless.
_TEST_LIMIT_S: Final = 30
_PYTEST: Final = (
    *("--core", "-x", "-q", "-rfE", "--no-header", f"--timeout={_TEST_LIMIT_S}"),
    *("-p", "no:randomly", "-p", "no:cacheprovider"),
)
# Limits of the first pytest process: seconds, and number of tests. Each later process has four
# times the limits of the process before it.
_FIRST_S: Final = 8.0
_FIRST_TESTS: Final = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one change.

    Attributes:
        mutation: The change.
        outcome: `killed`, `survived`, `not reached` (no test runs the line) or `out of time` (the
            time limit was reached before all tests that reach the line).
        by: The test that failed, empty if none did.
        tests: Number of test functions that reach the line.
        seconds: Duration.
    """

    mutation: Mutation
    outcome: str
    by: str = ""
    tests: int = 0
    seconds: float = 0.0


class Reach:
    """The test functions that run each line, from the data of `./run coverage`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        folder = root / ".cache/coverage"
        self._data = coverage.CoverageData(str(folder / "data"))
        self._data.read()
        self._seconds: dict[str, float] = {}
        for line in (folder / "seconds").read_text().splitlines():
            seconds, _, function = line.partition(" ")
            self._seconds[function] = self._seconds.get(function, 0.0) + float(seconds)
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutation: Mutation, end_line: int) -> list[str]:
        """Return the test functions that may reach the change, in the order of `_cost`."""
        lines = self._contexts(mutation.path)
        here = [lines.get(line, []) for line in range(mutation.line, end_line + 1)]
        if "/kernels/" in mutation.path or not _is_in_function(
            self._root / mutation.path, mutation.line
        ):
            # Coverage records no lines of compiled code, and a module's top-level lines only in the
            # first test that imports it.
            users = [mutation.path, *self._importers(mutation.path)]
            here = [names for path in users for names in self._contexts(path).values()]
        found = {name for names in here for name in names if name}
        near = Path(mutation.path).relative_to("src/tidelog").parent
        return sorted(found, key=lambda test: (self._cost(test, near), test))

    def _contexts(self, path: str) -> dict[int, list[str]]:
        if path not in self._lines:
            self._lines[path] = self._data.contexts_by_lineno(path)
        return self._lines[path]

    def _importers(self, path: str) -> list[str]:
        """Return the modules that import a module."""
        name = ".".join(Path(path).relative_to("src").with_suffix("").parts)
        package, _, module = name.rpartition(".")
        from_package = re.compile(rf"from {re.escape(package)} import .*\b{module}\b")
        return [
            str(file.relative_to(self._root))
            for file in modules(self._root, ["src/tidelog"])
            if name in (text := file.read_text()) or from_package.search(text)
        ]

    def seconds(self, test: str) -> float:
        """Return the seconds of a test function while coverage was measured; 1.0 if unknown."""
        return self._seconds.get(test, 1.0)

    def _cost(self, test: str, near: Path) -> float:
        """Return a test's cost: its seconds, divided by 10 for a unit test of the changed package.

        A unit test of this package more likely detects the change, so it runs earlier.
        """
        is_near = Path(test).is_relative_to("tests/unit" / near)
        return self.seconds(test) * (0.1 if is_near else 1)


def _is_in_function(path: Path, line: int) -> bool:
    """Whether a line is in the body of a function."""
    return any(
        node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@dataclass
class Trials:
    """Applies each change in a copy of the checkout and runs its tests there. Not thread-safe.

    Attributes:
        root: The checkout.
        copy: Path of the copy, which `open` creates.
        budget_s: Time limit for the tests of one change.
        without: Folders of tests that are left out.
    """

    root: Path
    copy: Path
    budget_s: float
    without: Sequence[str] = ()
    _fails_anyway: dict[str, bool] = field(default_factory=dict)

    def open(self) -> None:
        """Copy the files that git tracks."""
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=self.root, check=True, capture_output=True
        ).stdout.split(b"\0")
        for name in map(os.fsdecode, filter(None, names)):
            target = self.copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.root / name, target, follow_symlinks=False)
        cache = self.root / ".cache" / "kafka"
        if cache.exists():
            (self.copy / ".cache").mkdir(exist_ok=True)
            (self.copy / ".cache" / "kafka").symlink_to(cache)

    def judge(self, mutation: Mutation, reach: Reach) -> Verdict:
        """Apply the change, run the tests that reach it until one fails, and revert the change."""
        path = self.copy / mutation.path
        source = path.read_bytes()
        end_line = mutation.line + source[mutation.start : mutation.end].count(b"\n")
        tests = [
            test
            for test in reach.tests(mutation, end_line)
            if not test.startswith(tuple(self.without))
        ]
        if not tests:
            return Verdict(mutation, "not reached")
        began = time.monotonic()
        try:
            self._write(path, mutation.applied(source))
            by, is_over = self._run_until_one_fails(_batches(tests, reach))
        finally:
            self._write(path, source)
        outcome = "out of time" if is_over else "survived"
        if by and self._is_to_blame(by):
            outcome = "killed"
        return Verdict(mutation, outcome, by, len(tests), time.monotonic() - began)

    def _write(self, path: Path, content: bytes) -> None:
        stamp = int(path.stat().st_mtime) + _STEP_S
        path.write_bytes(content)
        os.utime(path, (stamp, stamp))

    def _run_until_one_fails(self, batches: Iterable[Sequence[str]]) -> tuple[str, bool]:
        """Return the first failed test ("" if none), and whether the time limit was reached."""
        ends = time.monotonic() + self.budget_s
        for tests in batches:
            left = ends - time.monotonic()
            if left <= 0:
                return "", True
            try:
                done = self._pytest(tests, left)
            except subprocess.TimeoutExpired as error:
                return _first_failure((error.stdout or b"").decode(errors="replace")), True
            if done.returncode not in (0, 5):
                failure = _first_failure(done.stdout.decode(errors="replace"))
                return failure or "pytest itself", False
        return "", False

    def _pytest(self, tests: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "pytest", *_PYTEST, *tests]
        started = subprocess.Popen(
            command,
            cwd=self.copy,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = started.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(started.pid, 9)
            output, _ = started.communicate()
            raise subprocess.TimeoutExpired(command, limit_s, output) from error
        return subprocess.CompletedProcess(command, started.returncode, output)

    def _environment(self) -> Mapping[str, str]:
        wanted = {
            "PYTHONPATH": str(self.copy / "src"),
            "PYTHONPYCACHEPREFIX": str(self.copy / ".cache" / "pyc"),
            "TIDELOG_HYPOTHESIS": "ci",
        }
        kept = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        return kept | wanted

    def _is_to_blame(self, by: str) -> bool:
        """Whether the test passes without the change; a test that fails anyway proves nothing."""
        if by == "pytest itself":
            return True
        if by not in self._fails_anyway:
            self._fails_anyway[by] = self._pytest([by], self.budget_s).returncode != 0
        return not self._fails_anyway[by]


def _batches(tests: Sequence[str], reach: Reach) -> Iterator[Sequence[str]]:
    """Divide tests among pytest processes; the first gets few, because collecting many is slow."""
    limit_s, limit = _FIRST_S, _FIRST_TESTS
    batch: list[str] = []
    for test in tests:
        batch.append(test)
        if len(batch) == limit or sum(map(reach.seconds, batch)) >= limit_s:
            yield batch
            batch, limit_s, limit = [], limit_s * 4, limit * 4
    if batch:
        yield batch


def _first_failure(output: str) -> str:
    for line in output.splitlines():
        for begin in (_FAILED, "ERROR "):
            if line.startswith(begin):
                return line.removeprefix(begin).partition(" - ")[0].strip()
    return ""
