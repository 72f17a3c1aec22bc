"""Streams, clock, messages and exit codes of a command.

`Surroundings` is passed explicitly, so that tests can replace it. Messages go to stderr: results
and progress without a label, and lines labeled `note:`, `error:` and `hint:`. `describe` converts
an error to an exit code, a message and a hint. Progress bars are shown only on a terminal.
"""

import errno
import io
import os
import posixpath
import re
import resource
import select
import shlex
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final, NamedTuple, TextIO

from tidelog.env import Env, os_env
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    ConfigError,
    CorruptData,
    DamagedLog,
    InvalidPartitions,
    InvalidRequest,
    InvalidTime,
    InvalidTopic,
    MessageTooLarge,
    MissingFile,
    OffsetOutOfRange,
    OffsetsGone,
    StorageFailure,
    TidelogError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    UnsupportedVersion,
)
from tidelog.html_cells import visible
from tidelog.lazy_dataclass import dataclass


class ExitCode(IntEnum):
    """Exit code of a command."""

    OK = 0
    ERROR = 1
    FINDINGS = 2
    USAGE = 3
    # Shells expect 128 + 2 as the exit code of a command that SIGINT ended.
    INTERRUPTED = 130


class UsageProblem(Exception):
    """Error for invalid or contradictory arguments; the text says what would be valid."""


class Interrupted(KeyboardInterrupt):
    """An interrupt of a command; the text says what the command had changed before."""


@contextmanager
def interrupted_as(effect: str) -> Iterator[None]:
    """Convert an interrupt to Interrupted with `effect`, such as `nothing was changed`."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(effect) from error


class InvalidInput(Exception):
    """Error for invalid input. If records of the input were appended, the text says so."""


# Pairs of an error class and the hint for it: what to do next. The first matching class applies.
# An error class is not listed if its texts already name the solution.
_NEXT_STEPS: Final[tuple[tuple[type[TidelogError], str], ...]] = (
    (UnknownTopic, "`tidelog topics` lists topics and partitions"),
    (UnknownGroup, "`tidelog groups list` lists the groups"),
    (TopicExists, "`tidelog describe TOPIC` shows it"),
    (OffsetOutOfRange, "`tidelog describe TOPIC` shows the offsets"),
    (OffsetsGone, "`tidelog read TOPIC --offset A..B` reads other offsets"),
    (DamagedLog, "`tidelog doctor --repair` moves damaged bytes to a separate file"),
    (CorruptData, "`tidelog doctor` lists all damage and what to do"),
    (UnsupportedVersion, "a later release of tidelog may support it"),
    (MissingFile, "`tidelog doctor` lists what else is missing"),
    (StorageFailure, "check the disk: space, permissions, the system's log"),
)

# If a file with one of these suffixes is damaged, `tidelog dump` shows the undamaged part. For
# other damaged files, it prints only the error.
_DUMPED_IN_PART: Final = (".log", ".index", ".timeindex", ".txnindex", ".appendtime")

# Codes of errors of a client that lacks the right for its request.
_LACKING_RIGHTS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

# Errors whose notes are hints: they say how to create or describe the topic, or which partitions
# exist. The notes of other errors state what was changed before the error.
WITH_NOTED_STEPS: Final = (UnknownTopic, TopicExists)

# A keyword in errors of the library, and the option that replaces it in errors of commands.
_INEXACT: Final = ("inexact=mark", "--inexact mark")

# Options that name a cluster, or that say how to connect to the cluster.
_CONNECTION: Final = ("--bootstrap", "--command-config", "--to-command-config", "--timeout")

# Errors of invalid arguments and settings, found by the command line or the library.
USAGE: Final = (UsageProblem, ConfigError, InvalidRequest, InvalidTopic, InvalidPartitions)

# Errors of a path from the user: it does not exist, is a directory instead of a file, or is a file
# instead of a directory. Errors of missing files of a log are TidelogErrors.
_WRONG_PATH: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Failure(NamedTuple):
    """An error for the user.

    Attributes:
        code: Exit code of the command.
        text: What is wrong, on one line.
        hint: What to do next; empty if `text` already says what to do.
    """

    code: ExitCode
    text: str
    hint: str = ""


def describe(error: BaseException, options: Collection[str] = ()) -> Failure:
    """Return an error's exit code, message and hint; raise an error of an unexpected class.

    Args:
        error: The error.
        options: Names of the failed command's options. A hint on connecting mentions only these
            options.
    """
    if isinstance(error, USAGE):
        return Failure(ExitCode.USAGE, _one_line(f"{error}"), _zone_hint(error, options))
    if isinstance(error, _WRONG_PATH) and not isinstance(error, TidelogError):
        return Failure(ExitCode.USAGE, *_os_text(error))
    if isinstance(error, TidelogError):
        is_of_object = _URL.match(str(getattr(error, "path", ""))) is not None
        step = _step_for_object(error) if is_of_object else _next_step(error, options)
        if isinstance(error, StorageFailure):
            step = _storage_step(error.__cause__) or step
        text = _one_line(f"{error}")
        if "--inexact" in options:
            text = text.replace(*_INEXACT)
        return Failure(ExitCode.ERROR, text, step)
    if isinstance(error, InvalidInput):
        hint = _zone_hint(error, options) or _size_hint(error)
        return Failure(ExitCode.ERROR, _one_line(f"{error}"), hint)
    if isinstance(error, OSError):
        return Failure(ExitCode.ERROR, *_os_text(error))
    raise error


# The start of an object's URL; `s3:` alone is what remains of `s3://` without a bucket.
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:(?://|$)")


def _storage_step(cause: BaseException | None) -> str:
    """Return the hint for the error of the operating system behind a StorageFailure, or ""."""
    if isinstance(cause, PermissionError):
        return "check the owner and mode of the file and of its directory"
    if isinstance(cause, NotADirectoryError | FileExistsError):
        return "give the path of a directory"
    return ""


def _zone_hint(error: BaseException, options: Collection[str]) -> str:
    """Return a hint on `--zone` for a time without a zone; empty for other errors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InvalidTime):
        cause = cause.__cause__
    is_missing = cause is not None and cause.is_zone_missing and "--zone" in options
    return "--zone ZONE sets the zone of all times without one" if is_missing else ""


def _size_hint(error: BaseException) -> str:
    """Return a hint on the limit for a record that is too large; empty for other errors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MessageTooLarge):
        cause = cause.__cause__
    step = "`tidelog config TOPIC --set max.message.bytes=SIZE` raises the topic's limit"
    return "" if cause is None else step


def _next_step(error: TidelogError, options: Collection[str]) -> str:
    if isinstance(error, ClusterFailure):
        return _cluster_step(error, options)
    if isinstance(error, WITH_NOTED_STEPS) and hasattr(error, "__notes__"):
        return "; ".join(error.__notes__)
    for kind, step in _NEXT_STEPS:
        if kind is UnknownGroup and "--bootstrap" not in options:
            continue  # `tidelog groups` needs a cluster, but the failed command names none
        if isinstance(error, kind) and step not in str(error):
            return _damage_step(error, step) if kind is CorruptData else step
    return ""


def _cluster_step(error: ClusterFailure, options: Collection[str]) -> str:
    """Return the hint for a cluster that refused a request, or can't be reached."""
    if error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
        return ""  # the broker was reached, and the error's text says what to do
    if error.error_code == ErrorCode.SECURITY_DISABLED:
        return "brokers check ACLs only with authorizer.class.name, see docs/security.md"
    if error.error_code in _LACKING_RIGHTS:
        return "the client's user lacks the right for this; `tidelog acls add` grants rights"
    named = [name for name in _CONNECTION if name in options]
    *others, last = named if "--bootstrap" in named else ["the brokers' address", *named]
    return f"check {', '.join(others)} and {last}" if others else f"check {last}"


def _damage_step(error: TidelogError, step: str) -> str:
    """Return the hint for damaged data: a command for the damaged partition or file, or `step`."""
    if "`tidelog " in f"{error}":
        return ""  # the error's text says what to do
    path = str(getattr(error, "path", None) or "")
    if options := _partition_options(path):
        return f"`tidelog doctor {options}` lists the damage and what to do"
    if path.endswith(_DUMPED_IN_PART):
        return f"`tidelog dump {shlex.quote(path)}` shows the undamaged part"
    return "" if path.endswith(".map") else step  # an offset map is not in a data directory


def _partition_options(path: str) -> str:
    """Return the arguments that name the partition of a file, `t:0 --data DIR`; else ""."""
    from tidelog.storage.files import parse_partition_dir

    folder = posixpath.dirname(path)
    name = parse_partition_dir(posixpath.basename(folder))
    if name is None or not path.endswith(_DUMPED_IN_PART):
        return ""
    data = posixpath.dirname(folder) or "."
    return f"{name.topic}:{name.partition} --data {shlex.quote(data)}"


def _step_for_object(error: TidelogError) -> str:
    """Return the hint for an error about an object of a store, which is not on the local disk."""
    from tidelog.storage.tier.tier_files import is_tier_path

    if "`tidelog " in f"{error}" or not is_tier_path(str(getattr(error, "path", ""))):
        return ""  # the error's text says what to do
    return "`tidelog tier --verify` finds missing and damaged objects"


def _os_text(error: OSError) -> tuple[str, str]:
    """Return the message and the hint for an error of the operating system."""
    file = f"{error.filename}: " if error.filename else ""
    hint = "check its owner and mode" if error.errno == errno.EACCES else ""
    return _one_line(f"{file}{error.strerror or error}"), hint


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Maximum bytes of a file of client settings, certificates included.
_SETTINGS_BYTES_MAX: Final = 1 << 20


def _stdin() -> BinaryIO:
    """Return the process's stdin; an empty stream if the process was started without stdin."""
    return io.BytesIO() if sys.stdin is None else sys.stdin.buffer


@cache
def _nowhere() -> TextIO:
    """Return a stream that drops its output, for a process started without stdout or stderr."""
    return Path(os.devnull).open("w", encoding="utf-8")


def wait_seconds(seconds: float) -> None:
    """Sleep for a number of seconds; a signal can interrupt the sleep."""
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Streams, files, clock and sleep function.

    Attributes:
        env: Files, clock and randomness.
        stdin: Input stream; the file name `-` stands for it.
        stdout: Stream for data.
        stderr: Stream for messages.
        wait: Function that sleeps for a number of seconds, for example between two checks of a
            growing log.
        variables: Environment variables.
        is_wide: Whether tables may be wider than the terminal (`--wide`).
        arguments: Arguments of the command, shown in reports.
        with_place: Function that completes the commands in a message: it adds the options for the
            directory or cluster, so that a user can copy and run the commands.
    """

    env: Env = field(default_factory=os_env)
    stdin: BinaryIO = field(default_factory=_stdin)
    stdout: TextIO = field(default_factory=lambda: sys.stdout or _nowhere())
    stderr: TextIO = field(default_factory=lambda: sys.stderr or _nowhere())
    wait: Callable[[float], None] = wait_seconds
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    is_wide: bool = False
    arguments: Sequence[str] = ()
    with_place: Callable[[str], str] = str
    _reported: set[str] = field(default_factory=set)

    def say(self, text: str) -> None:
        """Print a result or progress on stderr, without a label.

        Control characters are escaped, as in cells. On a terminal, lines are broken between words.
        """
        self._print("", text)

    def note(self, text: str) -> None:
        """Print a remark on stderr, labeled `note:`. A note does not change the exit code."""
        self._print("note", text)

    def report(self, line: str) -> None:
        """Print a line about damage or recovery as a note, unless the command has printed it."""
        if line not in self._reported:
            self._reported.add(line)
            self.note(line)

    def fail(self, text: str, hint: str = "") -> None:
        """Print an error on stderr, labeled `error:`, and a hint on a line of its own."""
        self._print("error", text)
        if hint:
            self.hint(hint)

    def hint(self, text: str) -> None:
        """Print on stderr what to do next, labeled `hint:`."""
        self._print("hint", text)

    def _print(self, label: str, text: str) -> None:
        line = visible(f"{label}: {self.with_place(text)}" if label else text)
        if self.stderr.isatty():
            line = textwrap.fill(
                line,
                _width_of(self.stderr),
                subsequent_indent="  " if label else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
            if label and self._has_color(self.stderr):
                line = _colored(label, line)
        self.stderr.write(f"{line}\n")

    def hand_over(self, text: str = "") -> None:
        """Write the text to stdout and flush stdout.

        Raises:
            OSError: Writing failed; the text names stdout.
        """
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except OSError as error:
            raise OSError(error.errno, f"stdout: {error.strerror}") from error

    @property
    def has_reader(self) -> bool:
        """Whether stdout may still have a reader; false for a pipe whose reader has closed it."""
        try:
            poll = select.poll()
            poll.register(self.stdout.fileno(), 0)
        except (OSError, ValueError):
            return True  # stdout has no file descriptor, so it is no pipe
        return not poll.poll(0)

    @property
    def width(self) -> int | None:
        """Maximum width of tables: COLUMNS, or else the terminal's width.

        None means no limit: `is_wide` is set, or stdout is no terminal and COLUMNS is not set.
        """
        if self.is_wide:
            return None
        columns = self.variables.get("COLUMNS", "")
        if columns.isascii() and columns.isdigit() and int(columns):
            return int(columns)
        return _width_of(self.stdout) if self.stdout.isatty() else None

    @property
    def wants_colour(self) -> bool:
        """Whether stdout is a terminal and its user has not turned off colors."""
        return self._has_color(self.stdout)

    def _has_color(self, stream: TextIO) -> bool:
        """Whether a stream is a terminal and its user has not turned off colors.

        Source: no-color.org.
        """
        if self.variables.get("NO_COLOR") or self.variables.get("TERM") == "dumb":
            return False
        return stream.isatty()


_RED: Final = "\x1b[1;31m"
_DIM: Final = "\x1b[2m"
_CYAN: Final = "\x1b[1;36m"
_RESET: Final = "\x1b[0m"
_WIDTH: Final = 80


def _colored(label: str, line: str) -> str:
    """Return a line with its label in color; a note is dimmed completely."""
    if label == "note":
        return f"{_DIM}{line}{_RESET}"
    end = len(label) + 1
    return f"{_RED if label == 'error' else _CYAN}{line[:end]}{_RESET}{line[end:]}"


def _width_of(stream: TextIO) -> int:
    """Return the width of a terminal in columns; 80 if it reports none."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    return _WIDTH


def read_settings_text(surroundings: Surroundings, path: str) -> str:
    """Return the text of a file of client settings.

    Raises:
        UsageProblem: The file is too large, or not UTF-8.
        OSError: The file can't be read.
    """
    file = surroundings.env.files.open(path)
    try:
        content = file.pread(_SETTINGS_BYTES_MAX + 1, 0)
    finally:
        file.close()
    if len(content) > _SETTINGS_BYTES_MAX:
        raise UsageProblem(
            f"{path}: larger than {_SETTINGS_BYTES_MAX} bytes; not a file of client settings"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{path}: not UTF-8: {error}") from error


@contextmanager
def byte_progress(
    surroundings: Surroundings, title: str, total_bytes: int | None
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr; yields a function that takes the number of bytes done so far.

    Args:
        surroundings: Its stderr gets the bar, if it is a terminal.
        title: Title of the bar.
        total_bytes: Number of bytes; None if unknown.
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


# Time in ms after which `count_progress` shows a bar.
_LONG_MS: Final = 1_000


@contextmanager
def count_progress(
    surroundings: Surroundings, title: str, total: int
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr after `_LONG_MS`, if stderr is a terminal.

    Yields a function that takes the number of items done so far.

    Args:
        surroundings: Its stderr gets the bar, and its clock measures the time.
        title: Title of the bar.
        total: Number of items.
    """
    clock = surroundings.env.clock
    began_ms = clock.monotonic_ms()
    with ExitStack() as stack:
        bars: list[Callable[[int], None]] = []

        def show(done: int) -> None:
            if not bars and clock.monotonic_ms() - began_ms >= _LONG_MS:
                bars.append(stack.enter_context(byte_progress(surroundings, title, total)))
            for bar in bars:
                bar(done)

        yield show


@contextmanager
def stopped_by_signals(stopped: threading.Event, *, again_ends: bool) -> Iterator[None]:
    """Set `stopped` on SIGINT and SIGTERM while the block runs, so that the block can end cleanly.

    Does nothing in a thread other than the main thread.

    Args:
        stopped: Event that the block checks.
        again_ends: Whether a second signal of the same kind has its usual effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.set()
        if again_ends:
            signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt the block as Ctrl-C does, so that the command ends with a message.

    Does nothing in a thread other than the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to its hard limit, if possible.

    A connection takes one descriptor, and the usual soft limit of a process is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS may report that the hard limit is unlimited, but refuse to set an unlimited soft
        # limit.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
