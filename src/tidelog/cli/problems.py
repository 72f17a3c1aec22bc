"""From errors to exit codes and to one line that says what to do next."""

import errno
from enum import IntEnum
from typing import Final

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

# Kafka's KAFKA_STORAGE_ERROR.
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
