"""A command's environment and its end: streams, clock, messages, exit codes.

`Surroundings` is passed explicitly, so that a test brings its own. `describe` makes an exit code
and one line that says what to do next out of an error. Progress is shown on a terminal, nothing
elsewhere.
"""

import errno
import io
import os
import resource
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from tidelog.env import Env, os_env
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    ConfigError,
    CorruptData,
    DamagedLog,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    MissingFile,
    OffsetOutOfRange,
    StorageFailure,
    TidelogError,
    TopicExists,
    UnknownTopic,
    UnsupportedVersion,
)

NO_DATA: Final = "which directory? Give --data DIR, or set TIDELOG_DATA"


class ExitCode(IntEnum):
    """What a command's end says to a script."""

    OK = 0
    ERROR = 1
    FINDINGS = 2
    USAGE = 3
    # What a shell expects of a command that SIGINT ended: 128 + 2.
    INTERRUPTED = 130


class UsageProblem(Exception):
    """Arguments that can't be, or contradict each other; the text says what would be right."""


class Refused(Exception):
    """Input that can't be taken; nothing of it was appended unless the text says so."""


# The first class that fits counts. Errors that name the way out themselves have no line here.
_NEXT_STEPS: Final[tuple[tuple[type[TidelogError], str], ...]] = (
    (UnknownTopic, "`tidelog topics` lists what there is"),
    (TopicExists, "`tidelog describe TOPIC` shows it"),
    (OffsetOutOfRange, "`tidelog describe TOPIC` shows the offsets"),
    (DamagedLog, "`tidelog doctor --repair` sets the damage aside"),
    (CorruptData, "`tidelog dump FILE` shows what is whole"),
    (UnsupportedVersion, "a later release of tidelog may know it"),
    (ClusterFailure, "are --bootstrap, --command-config and --timeout right?"),
    (MissingFile, "`tidelog doctor` tells what else is gone"),
    (StorageFailure, "look at the disk: space, permissions, the system's log"),
)


# Errors of invalid arguments and settings, whether the command line or the library finds them.
USAGE: Final = (UsageProblem, ConfigError, InvalidRequest, InvalidTopic, InvalidPartitions)


# A file or folder that was named and is not there. Files of a log that are gone have typed errors.
_NOT_THERE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def describe(error: BaseException) -> tuple[ExitCode, str]:
    """The exit code of an error, and its line; raises it where it is none of ours."""
    if isinstance(error, USAGE):
        return ExitCode.USAGE, _one_line(f"{error}")
    if isinstance(error, _NOT_THERE) and not isinstance(error, TidelogError):
        return ExitCode.USAGE, _one_line(_os_text(error))
    if isinstance(error, TidelogError):
        return ExitCode.ERROR, _one_line(f"{error}{_next_step(error)}")
    if isinstance(error, Refused):
        return ExitCode.ERROR, _one_line(f"{error}")
    if isinstance(error, OSError):
        return ExitCode.ERROR, _one_line(_os_text(error))
    raise error


def _next_step(error: TidelogError) -> str:
    if isinstance(error, ClusterFailure) and error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
        return ""  # the brokers were reached, and the text says what to do there
    for kind, step in _NEXT_STEPS:
        if isinstance(error, kind) and step not in str(error):
            return f" {step}" if str(error).endswith("?") else f"; {step}"
    return ""


def _os_text(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    step = "; look at its owner and mode" if error.errno == errno.EACCES else ""
    return f"{place}{error.strerror or error}{step}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


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
    def has_reader(self) -> bool:
        """Whether somebody may still read stdout; false for a pipe whose reader has closed it."""
        try:
            poll = select.poll()
            poll.register(self.stdout.fileno(), 0)
        except (OSError, ValueError):
            return True  # no descriptor
        return not poll.poll(0)

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


@contextmanager
def byte_progress(
    surroundings: Surroundings, title: str, total_bytes: int | None
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; the function takes the number of bytes done so far.

    Args:
        surroundings: Whose stderr; without a terminal nothing is shown.
        title: What is being done.
        total_bytes: None where nobody knows.
    """
    if not surroundings.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=surroundings.stderr)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda done: bar.update(task, completed=done)


def raise_file_limit() -> None:
    """Let this process open as many files as its hard limit says; fine where that can't be.

    A connection takes one, and where nobody has said otherwise a process may have 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says that there is no limit, and refuses to set it so.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
