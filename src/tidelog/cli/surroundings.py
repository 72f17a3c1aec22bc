"""What a command takes from its surroundings, passed explicitly so that a test brings its own."""

import io
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from tidelog.cli.problems import UsageProblem
from tidelog.env import Env, os_env

# Client settings, certificates included, are smaller than this.
_SETTINGS_BYTES_MAX: Final = 1 << 20


def _stdin() -> BinaryIO:
    """The process's own; empty where it was started without one."""
    return io.BytesIO() if sys.stdin is None else sys.stdin.buffer


@cache
def _nowhere() -> TextIO:
    """Takes what is written where the process was started without a stream for it, as by `>&-`."""
    return Path(os.devnull).open("w", encoding="utf-8")


def wait_seconds(seconds: float) -> None:
    """Wait without work; a signal ends it."""
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Streams, files, clock and the way to wait.

    Attributes:
        env: Files, clock and randomness.
        stdin: What `-` reads.
        stdout: Data.
        stderr: Messages.
        wait: Called with a number of seconds between two looks at a growing log.
        variables: Environment variables.
    """

    env: Env = field(default_factory=os_env)
    stdin: BinaryIO = field(default_factory=_stdin)
    stdout: TextIO = field(default_factory=lambda: sys.stdout or _nowhere())
    stderr: TextIO = field(default_factory=lambda: sys.stderr or _nowhere())
    wait: Callable[[float], None] = wait_seconds
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def say(self, text: str) -> None:
        """One line for people, on stderr; control characters as escapes, as in cells."""
        self.stderr.write(f"tidelog: {printable(text)}\n")

    def hand_over(self, text: str = "") -> None:
        """Write that and all that was written before.

        Raises:
            OSError: stdout does not take it; says that it is about stdout.
        """
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except OSError as error:
            raise OSError(error.errno, f"stdout: {error.strerror}") from error

    @property
    def wants_colour(self) -> bool:
        """Whether stdout is a terminal that takes colours. Source: no-color.org."""
        if self.variables.get("NO_COLOR") or self.variables.get("TERM") == "dumb":
            return False
        return self.stdout.isatty()


def printable(content: str) -> str:
    """The text on one line: control characters as escapes, so that no record moves the cursor."""
    if content.isprintable():
        return content
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in content)


def read_settings_text(surroundings: Surroundings, path: str) -> str:
    """Return the text of a file of client settings.

    Raises:
        UsageProblem: The file is too large, or not UTF-8.
        OSError: It can't be read.
    """
    file = surroundings.env.files.open(path)
    try:
        content = file.pread(_SETTINGS_BYTES_MAX + 1, 0)
    finally:
        file.close()
    if len(content) > _SETTINGS_BYTES_MAX:
        raise UsageProblem(f"{path}: over {_SETTINGS_BYTES_MAX} bytes, no file of settings")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{path}: not UTF-8: {error}") from error
