"""`./run`: the state after a failed or killed set-up, and calls that need no set-up.

The script is copied into an empty checkout. A stand-in for Python replaces venv and pip. It records
each call in `calls`, fails if the file `fail` requests it, and waits if the file `hang` requests
it. Another stand-in replaces Java.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tidy.checks import ROOT

TOGETHER = "-n 3 --dist load --max-worker-restart 500 -p tests.schedule"
ALL_TESTS = f"run -m pytest --core {TOGETHER}"
STAND_IN = """#!/bin/sh
here={here}
case "$*" in
-c*) exec {python} "$@" ;;
--version) echo "Python 3.12.0" ;;
"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo venv >>"$here/calls" ;;
"-m pip "*)
    for word; do last=$word; done
    echo "pip $last" >>"$here/calls"
    [ ! -e "$here/fail" ] || exit 1
    if [ -e "$here/hang" ]; then echo >"$here/hanging"; read -r line <"$here/hang"; fi
    ;;
*) echo "run $*" >>"$here/calls"; echo "$JAVA_HOME" >"$here/java_home" ;;
esac
"""


class Checkout:
    """A checkout that contains little more than `run`, under a path with a space."""

    def __init__(self, home: Path) -> None:
        self.root = home / "a checkout"
        self.root.mkdir()
        shutil.copy(ROOT / "run", self.root / "run")
        for name in ("pyproject.toml", "constraints.txt"):
            (self.root / name).write_text(f"# {name}\n")
        self.python = home / "python"
        self.python.write_text(STAND_IN.format(here=f"'{home}'", python=sys.executable))
        self.python.chmod(0o755)
        self.home = home
        self.java_home = self.make_java("java", 21)

    def make_java(self, name: str, release: int) -> Path:
        """Create a home of a Java that only prints its version."""
        java = self.home / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"""#!/bin/sh\necho 'openjdk version "{release}.0.1"' >&2\n""")
        java.chmod(0o755)
        return java.parents[1]

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def env(self) -> dict[str, str]:
        ours = {"TIDELOG_PYTHON": str(self.python), "JAVA_HOME": str(self.java_home)}
        rest = {name: value for name, value in os.environ.items() if name[:8] != "TIDELOG_"}
        return rest | ours  # TIDELOG_VENV would name the environment of these tests

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command, env = [str(self.root / "run"), *arguments], self.env() | more
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=60
        )

    def calls(self) -> list[str]:
        """Return the stand-in's calls since the last call of this function."""
        path = self.home / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_call_sets_up_and_second_does_not(checkout: Checkout) -> None:
    assert checkout.run("test", "-k", "a b").returncode == 0
    assert checkout.calls() == ["venv", "pip .[dev]", "run -m pytest -k a b"]
    assert checkout.run("test", "all", "-k", "a b").returncode == 0
    assert checkout.calls() == [f"run -m pytest {TOGETHER} -k a b"]
    assert checkout.run("sweep").returncode == 0
    assert checkout.calls() == ["run -m pytest --sweep --timeout 7200 -o faulthandler_timeout=8000"]


def test_a_failed_setup_is_reported_and_the_next_one_starts_again(checkout: Checkout) -> None:
    (checkout.home / "fail").touch()
    failed = checkout.run("test")
    assert failed.returncode == 1
    assert "setup failed" in failed.stderr
    assert checkout.calls() == ["venv", "pip .[dev]"]
    (checkout.venv / "half-installed").touch()
    (checkout.home / "fail").unlink()
    assert checkout.run("test").returncode == 0
    assert checkout.calls() == ["venv", "pip .[dev]", ALL_TESTS]
    assert not (checkout.venv / "half-installed").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let children receive SIGINT, even if a background shell made this process ignore it.

    If this process ignores a signal, its child processes ignore the signal, too. If this process
    handles a signal, the signal has its default effect in the child processes.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_set_up_does_not_stop_the_next(checkout: Checkout, how: signal.Signals) -> None:
    for fifo in ("hang", "hanging"):
        os.mkfifo(checkout.home / fifo)
    command = [str(checkout.root / "run"), "test"]
    with subprocess.Popen(command, env=checkout.env(), start_new_session=True) as setting_up:
        (checkout.home / "hanging").read_text()  # returns when pip runs
        os.killpg(setting_up.pid, how)
    assert setting_up.returncode != 0
    (checkout.home / "hang").unlink()
    checkout.calls()
    assert checkout.run("test").returncode == 0
    assert checkout.calls() == ["venv", "pip .[dev]", ALL_TESTS]


def test_demo_needs_less_and_dev_includes_it(checkout: Checkout) -> None:
    checkout.run("demo")
    assert checkout.calls()[:2] == ["venv", "pip .[demo]"]
    checkout.run("bench", "decode")
    assert checkout.calls() == ["pip .[dev]", "run -m bench decode"], "added to what is there"
    checkout.run("demo", "--no-report")
    assert checkout.calls() == ["run -m examples.demo --no-report"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_needs_are_installed(checkout: Checkout, name: str) -> None:
    checkout.run("test")
    checkout.calls()
    (checkout.root / name).write_text("# other needs\n")
    checkout.run("test")
    assert checkout.calls() == ["pip .[dev]", ALL_TESTS]


def test_a_moved_checkout_is_set_up_again(checkout: Checkout) -> None:
    checkout.run("test")
    checkout.calls()
    checkout.root = checkout.root.rename(checkout.home / "elsewhere")
    checkout.run("test")
    assert checkout.calls() == ["venv", "pip .[dev]", ALL_TESTS]


def test_a_missing_python_is_replaced(checkout: Checkout) -> None:
    checkout.run("test")
    checkout.calls()
    (checkout.venv / "bin" / "python").unlink()
    checkout.run("test")
    assert checkout.calls() == ["venv", "pip .[dev]", ALL_TESTS]


def test_foreign_environment_is_left_alone(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "mine").touch()
    refused = checkout.run("test")
    assert refused.returncode == 1
    assert "was not made by ./run" in refused.stderr
    assert (checkout.venv / "mine").exists()
    assert checkout.calls() == []


def test_unfit_python_is_refused_in_one_line(checkout: Checkout) -> None:
    checkout.python.write_text("#!/bin/sh\nexit 1\n")
    refused = checkout.run("test")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "Python 3.11" in refused.stderr


def test_the_chosen_java_is_kept_if_it_is_new_enough(checkout: Checkout) -> None:
    assert checkout.run("test").stderr.count("JAVA_HOME") == 0
    assert (checkout.home / "java_home").read_text().strip() == str(checkout.java_home)


@pytest.mark.parametrize("release", [1, 8, 11, 16])
def test_a_java_that_is_too_old_is_reported_and_not_used(checkout: Checkout, release: int) -> None:
    newer, checkout.java_home = checkout.java_home, checkout.make_java("old", release)
    path = f"{newer / 'bin'}{os.pathsep}{os.environ['PATH']}"
    told = checkout.run("test", PATH=path).stderr
    assert f"JAVA_HOME={checkout.java_home} is not Java 17 or newer" in told
    assert (checkout.home / "java_home").read_text().strip() == ""


class BareMachine:
    """A machine with neither Java nor, at first, Python: only the tools of a POSIX system.

    `apt-get` is a stand-in that records its calls and creates the requested programs. In the copied
    script, the usual homes of Java are in the test's folder.
    """

    TOOLS = ("sh", "dirname", "cat", "cksum", "sed", "head", "mv", "rm", "mkdir", "rmdir", "cp")

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.bin = checkout.home / "bin"
        self.bin.mkdir()
        for tool in self.TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        script = (checkout.root / "run").read_text()
        assert script.count("/usr/lib/jvm/*") == 2
        script = script.replace("/usr/lib/jvm/*", f"{checkout.home}/jvm/*")
        (checkout.root / "run").write_text(script)
        self.be(0)

    def be(self, user: int) -> None:
        """Let the following calls run as this user."""
        self._put("id", f"echo {user}")

    def add_apt(self, status: int = 0) -> None:
        """Add an apt-get that installs Java or Python; it fails with `status` if that is not 0."""
        home, bin_ = self.checkout.home, self.bin
        self._put(
            "apt-get",
            f"""echo "apt-get $*" >>"{home}/calls"
[ {status} = 0 ] || exit {status}
case "$*" in
*openjdk-17*) cp "{self.checkout.java_home}/bin/java" "{bin_}/java" ;;
*python3-venv*) cp "{self.checkout.python}" "{bin_}/python3" ;;
esac""",
        )

    def add_python(self) -> None:
        """Add a suitable Python."""
        shutil.copy(self.checkout.python, self.bin / "python3")

    def _put(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.checkout.root / "run"), *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.checkout.home)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def bare(checkout: Checkout) -> BareMachine:
    return BareMachine(checkout)


UPDATE = "apt-get update -qq"
INSTALL = "apt-get install -y -qq"


def test_root_with_apt_installs_missing_packages(bare: BareMachine) -> None:
    bare.add_apt()
    done = bare.run("demo")
    assert done.returncode == 0, done.stderr
    assert bare.checkout.calls() == [
        UPDATE,
        f"{INSTALL} python3 python3-venv",
        "venv",
        "pip .[demo]",
        UPDATE,
        f"{INSTALL} openjdk-17-jre-headless",
        "run -m examples.demo",
    ]
    assert bare.run("demo").returncode == 0
    assert bare.checkout.calls() == ["run -m examples.demo"], "nothing is installed twice"


def test_without_root_one_line_names_the_packages_to_install(bare: BareMachine) -> None:
    bare.be(1000)
    bare.add_apt()
    refused = bare.run("demo")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "apt install python3-venv" in refused.stderr
    bare.add_python()
    refused = bare.run("demo")
    assert refused.returncode == 1
    assert "apt install openjdk-17-jre-headless" in refused.stderr.splitlines()[-1]
    assert bare.checkout.calls() == ["venv", "pip .[demo]"], "apt-get is root's"


def test_apt_that_fails_ends_in_the_same_line(bare: BareMachine) -> None:
    bare.add_apt(status=100)
    bare.add_python()
    refused = bare.run("demo")
    assert refused.returncode == 1
    assert "please install Java 17 or newer" in refused.stderr.splitlines()[-1]
    assert bare.run("test").returncode == 0, "tests go on and skip what needs Java"


def test_help_and_unknown_commands_create_no_environment(checkout: Checkout) -> None:
    assert "usage: ./run" in checkout.run("help").stdout
    assert "usage: ./run" in checkout.run().stdout
    unknown = checkout.run("tset")
    assert unknown.returncode == 1
    assert "no command named tset" in unknown.stderr
    assert not checkout.venv.exists()


def test_script_is_plain_posix_shell() -> None:
    """If dash is available, it must parse the script without a message; bash would accept more."""
    shell = shutil.which("dash") or "/bin/sh"
    for script in ("run", ".ci/run"):
        read = subprocess.run([shell, "-n", ROOT / script], capture_output=True, check=False)
        assert (read.returncode, read.stderr) == (0, b"")
        assert os.access(ROOT / script, os.X_OK)
