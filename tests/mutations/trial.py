"""One change at a time in a copy of the checkout, against the tests that reach its line.

Which those are says the data of `./run coverage`: for each line the files of tests that run it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import coverage
from tests.mutations.sites import Mutation

_FAILED: Final = "FAILED "
# A file that changes twice in a second has to look new to whatever keeps compiled code.
_STEP_S: Final = 2
_PYTEST: Final = ("-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header", "-rfE")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one change.

    Attributes:
        mutation: The change.
        outcome: `killed`, `survived`, `not reached` (no test runs the line) or `out of time`, where
            tests that reach it were left when the time was up.
        by: The test that failed, or nothing.
        tests: How many files of tests reach the line.
        seconds: How long it took.
    """

    mutation: Mutation
    outcome: str
    by: str = ""
    tests: int = 0
    seconds: float = 0.0


class Reach:
    """Which files of tests run a line. From the data of `./run coverage`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._data = coverage.CoverageData(str(root / ".cache/coverage/data"))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutation: Mutation, end_line: int) -> list[str]:
        """Files of tests, those of the same package first, then those that reach fewest files."""
        lines = self._lines.get(mutation.path)
        if lines is None:
            lines = self._lines[mutation.path] = self._data.contexts_by_lineno(mutation.path)
        here = [lines.get(line, []) for line in range(mutation.line, end_line + 1)]
        if any("" in names for names in here):  # it runs at import: all that use the module count
            here = list(lines.values())
        found = {name for names in here for name in names if name}
        near = Path(mutation.path).relative_to("src/tidelog").parent
        return sorted(
            found,
            key=lambda test: (not Path(test).is_relative_to("tests/unit" / near), *_cost(test)),
        )


def _cost(test: str) -> tuple[int, str]:
    """Cheap tests first, by what kind of evidence their folder gives."""
    order = ("unit", "contracts", "corpus", "vectors", "property", "fault", "server", "histories")
    folder = Path(test).parts[1]
    return (order.index(folder) if folder in order else len(order)), test


@dataclass
class Trials:
    """Runs changes in a copy of the checkout of its own. For one thread.

    Attributes:
        root: The checkout.
        copy: Where the copy lies; made by `open`.
        budget_s: How long tests may run against one change.
        without: Folders of tests that are left out.
    """

    root: Path
    copy: Path
    budget_s: float
    without: Sequence[str] = ()
    _fails_anyway: dict[str, bool] = field(default_factory=dict)

    def open(self) -> None:
        """Copy what git knows."""
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
        """Make the change, run the tests that reach it until one fails, take the change back."""
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
            by, is_over = self._run_until_one_fails(tests)
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

    def _run_until_one_fails(self, tests: Sequence[str]) -> tuple[str, bool]:
        """The name of the first that failed, and whether the time was up before all had run."""
        try:
            done = self._pytest(tests, self.budget_s)
        except subprocess.TimeoutExpired as error:
            text = (error.stdout or b"").decode(errors="replace")
            # A change may make a loop endless: what hangs has noticed it, unless it is merely long.
            return _first_failure(text), True
        if done.returncode in (0, 5):
            return "", False
        return _first_failure(done.stdout.decode(errors="replace")) or "pytest itself", False

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
        """Whether the test passes without the change; what fails anyway has shown nothing."""
        if by == "pytest itself":
            return True
        if by not in self._fails_anyway:
            self._fails_anyway[by] = self._pytest([by], self.budget_s).returncode != 0
        return not self._fails_anyway[by]


def _first_failure(output: str) -> str:
    for line in output.splitlines():
        for begin in (_FAILED, "ERROR "):
            if line.startswith(begin):
                return line.removeprefix(begin).partition(" - ")[0].strip()
    return ""
