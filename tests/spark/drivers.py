"""Drivers that tests kill: a session for the driver's program, and its process for the test."""

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.worlds.spark.settings import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
STEP_S = 0.005
LIMIT_S = 300


def open_session(master: str, conf: Mapping[str, str] | None = None) -> "SparkSession":
    """Return the Spark session of a driver program."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tidelog tests")
    for name, value in {**SETTINGS, **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def with_tests(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a program that imports test modules."""
    there = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": os.pathsep.join([str(ROOT), *([there] if there else [])])}


class Driver:
    """A driver in a process group of its own.

    Its stderr is a file, because a pipe could become full and block the driver.

    Attributes:
        process: The driver's Python process, whose child is the JVM.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *command],
            start_new_session=True,
            env=with_tests(os.environ if env is None else env),
            stderr=self._stderr,
        )

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return False if the process ends first.

        Raises:
            AssertionError: The condition doesn't hold in time. The message has the end of stderr
                with the stacks of the driver's threads.
        """
        for _ in range(int(LIMIT_S / STEP_S)):
            if is_so():
                return True
            if self.ends_within(STEP_S):
                return False
        self.process.send_signal(signal.SIGABRT)  # the fault handler writes the stacks
        raise AssertionError(f"not within {LIMIT_S} s: {self.finish()}")

    def ends_within(self, seconds: float) -> bool:
        """Let the driver run for some seconds; return whether it has ended."""
        return ends_within(self.process, seconds)

    def kill(self) -> None:
        """Kill Python and the JVM at once; Spark's workers end with them."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=LIMIT_S)

    def end(self) -> None:
        """Kill the driver unless it has ended."""
        if self.process.poll() is None:
            self.kill()
        self._stderr.close()

    def finish(self) -> tuple[int, str]:
        """Wait until the driver has ended; return its exit status and its last stderr output."""
        self.process.wait(timeout=LIMIT_S)
        self._stderr.seek(0)
        return self.process.returncode, self._stderr.read().decode(errors="replace")[-8000:]


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Let a process run for some seconds; return whether it has ended."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found: list[int] = []
    with suppress(OSError):  # the process ends while it is read
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                children = [int(text) for text in task.read_text().split()]
            except OSError:
                continue
            for child in children:
                found += [child, *descendants(child)]
    return sorted(found)


def command_of(pid: int) -> str:
    """Return a process's command line, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
