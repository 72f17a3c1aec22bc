"""`.ci/run`: its calls of `./run` and its exit status. A stand-in for `./run` records calls."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.tidy.checks import ROOT
from tests.worlds.needs import REQUIRED, need

# Stand-in for `./run`: the file `codes` has the exit code of each call.
STAND_IN = """#!/bin/sh
echo "$*" >>calls
read -r code rest <codes
echo "$rest" >codes
exit "$code"
"""
# The first process that runs test 20 crashes or hangs in it; if the test is run again, it passes.
ONCE_WRONG = """
import os
import pytest
import threading

@pytest.mark.parametrize("number", range(40))
def test_a(number):
    if number == 20 and not os.path.exists("was wrong"):
        open("was wrong", "w").close()
        {wrong}
"""
# Tests for a project of several folders. Each test notes its process. Tests of other folders wait
# until all tests in `spark` and `peers` have run, so that no process takes more than its share.
NOTES_PROCESS = """
import os
import threading
from pathlib import Path
import pytest

def is_done():
    notes = [note for part in PARTS for note in HERE.parent.glob(part + "/*.process")]
    return sum(note.stat().st_size for note in notes) == 4 * 20 * len("gw0 ")

PARTS = "spark", "peers"
HERE = Path(__file__).parent

@pytest.mark.parametrize("number", range(20))
def test_a(number):
    while HERE.name not in PARTS and not is_done():
        threading.Event().wait(0.01)
    with open(__file__ + ".process", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""
# Simulates a library call that never returns.
ENDLESS = "threading.Event().wait()"
ENDLESS_S = 5
CRASH_LIMIT_S = 300
CACHE = ".pytest_cache/v/cache/lastfailed"
CHECK, ALL = "check", "test all"


class Ci:
    """A checkout with only `.ci/run` and stand-ins for the tools that it calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "run", root / ".ci" / "run")
        self._script(root / "run", STAND_IN)
        for tool in ("mvn", "javac", "kcat"):
            self._script(root / "bin" / tool, "#!/bin/sh\n")
        dirname = shutil.which("dirname")
        assert dirname is not None
        (root / "bin" / "dirname").symlink_to(dirname)

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def lacks(self, tool: str, *, user_id: int, apt_code: int) -> None:
        """Remove a tool; the user has this id, and each call of apt-get has this exit code."""
        (self.root / "bin" / tool).unlink()
        self._script(self.root / "bin" / "id", f"#!/bin/sh\necho {user_id}\n")
        apt = f'#!/bin/sh\necho "$*" >>installs\nexit {apt_code}\n'
        self._script(self.root / "bin" / "apt-get", apt)

    def run(self, *codes: int) -> "subprocess.CompletedProcess[str]":
        """Run `.ci/run`; the calls of `./run` exit with `codes`."""
        (self.root / "codes").write_text(" ".join(map(str, codes)) + "\n")
        return subprocess.run(
            [self.root / ".ci" / "run"],
            env={"PATH": str(self.root / "bin")},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self._lines("calls")

    @property
    def installs(self) -> list[str]:
        """Arguments of the calls of apt-get."""
        return self._lines("installs")

    def _lines(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


def test_the_readme_names_the_command_that_ci_runs() -> None:
    assert f"`./run {ALL}`" in (ROOT / "README.md").read_text()


def test_all_well(ci: Ci) -> None:
    assert ci.run(0, 0).returncode == 0
    assert ci.calls == [CHECK, ALL]


def test_a_red_check_is_red_and_the_tests_run(ci: Ci) -> None:
    assert ci.run(1, 0).returncode == 1
    assert ci.calls == [CHECK, ALL]


def test_failed_tests_are_red_and_not_repeated(ci: Ci) -> None:
    assert ci.run(0, 1).returncode == 1
    assert ci.calls == [CHECK, ALL]


def test_failed_tests_after_a_red_check_are_red(ci: Ci) -> None:
    assert ci.run(2, 1).returncode == 1
    assert ci.calls == [CHECK, ALL]


@pytest.mark.parametrize("tool", ["mvn", "javac", "kcat"])
@pytest.mark.parametrize(("user_id", "apt_code"), [(1000, 0), (0, 100)], ids=["user", "no package"])
def test_a_missing_program_that_cannot_be_installed_is_red(
    ci: Ci, tool: str, user_id: int, apt_code: int
) -> None:
    """No test runs. Otherwise the tests that need the program would fail one by one."""
    ci.lacks(tool, user_id=user_id, apt_code=apt_code)
    done = ci.run(0, 0)
    assert (done.returncode, ci.calls) == (1, [])
    [line] = done.stderr.splitlines()
    assert line.startswith(".ci/run: please install ")
    assert tool in line
    assert bool(ci.installs) == (user_id == 0)


@pytest.mark.parametrize(
    ("tool", "package"), [("mvn", "maven"), ("javac", "jdk-headless"), ("kcat", "kcat")]
)
def test_a_missing_program_is_installed_by_root(ci: Ci, tool: str, package: str) -> None:
    ci.lacks(tool, user_id=0, apt_code=0)
    assert ci.run(0, 0).returncode == 0
    assert ci.calls == [CHECK, ALL]
    assert package in ci.installs[-1]


def test_a_test_whose_need_is_missing_is_skipped_but_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert f"{REQUIRED}=1" in (ROOT / ".ci" / "run").read_text()
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs Java"):
        need(False, "Java")
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match=f"needs Java, and {REQUIRED} forbids"):
        need(False, "Java")


@pytest.mark.parametrize("wrong", ["os._exit(1)", ENDLESS], ids=["crashes", "hangs"])
def test_a_process_that_crashes_or_hangs_fails_one_test_only(tmp_path: Path, wrong: str) -> None:
    """If a process crashes or hangs in a test, this test is reported, and all other tests run."""
    (tmp_path / "test_wrong.py").write_text(ONCE_WRONG.format(wrong=wrong))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_exit_on_timeout = true\n")
    assert "1 failed, 39 passed" in all_of(tmp_path, "-o", f"faulthandler_timeout={ENDLESS_S}")
    told = json.loads((tmp_path / CACHE).read_text())
    assert list(told) == ["test_wrong.py::test_a[20]"]


def test_one_process_has_spark_another_one_kafka_and_each_file_is_in_one(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    folders = "spark", "peers", "fault", "unit"
    for folder in folders:
        (tmp_path / "tests" / folder).mkdir(parents=True)
        for name in "ab":
            (tmp_path / "tests" / folder / f"test_{folder}_{name}.py").write_text(NOTES_PROCESS)
    assert "160 passed" in all_of(tmp_path)
    processes = dict.fromkeys(folders, "")
    for file in sorted(tmp_path.rglob("*.process")):
        [process] = set(file.read_text().split())
        processes[file.parent.name] += process
    assert {processes["spark"], processes["peers"]} < {"gw0gw0", "gw1gw1", "gw2gw2"}


def all_of(folder: Path, *more: str) -> str:
    """Return pytest's output for all tests in the folder, called as by `./run test all`."""
    [line] = re.findall(r"TOGETHER='(-n 3 .*)'", (ROOT / "run").read_text())
    without = [part for name in ("hypothesispytest", "randomly") for part in ("-p", f"no:{name}")]
    kept = {name: text for name, text in os.environ.items() if name[:7] != "PYTEST_"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *line.split(), *more, *without],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=CRASH_LIMIT_S,
    ).stdout


def test_a_test_that_ignores_signals_is_ended_after_its_timeout() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert found["faulthandler_exit_on_timeout"]
    assert found["faulthandler_timeout"] > found["timeout"]
