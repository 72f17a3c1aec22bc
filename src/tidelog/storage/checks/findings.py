"""Findings of a check, and the view of the directory through which checks read.

A finding names one fault. The view opens, reads and closes files and never writes.
"""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tidelog.config import TopicConfig
from tidelog.env import Env, FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.storage.log.record_rules import BodyCheck, check_body
from tidelog.storage.segment.log_end import RecordedEnd
from tidelog.storage.segment.segment import SegmentContext, open_context
from tidelog.types import TopicPartition


class Severity(StrEnum):
    """How bad it is.

    - ERROR: bytes are wrong or gone; somebody gets a wrong answer, or none.
    - WARNING: nothing is lost, but a file is missing, stale, or not what it should be.
    - NOTE: worth knowing; the directory is sound all the same.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that a check has found.

    Attributes:
        path: The file or directory concerned.
        damage: What is wrong, with what was found and what would be right.
        remedy: What to do about it, or what happens by itself.
        severity: How bad it is.
        position: Place in the file in bytes, None where it is about the whole file.
        offset: First logical offset concerned, None where there is none.
        repairable: Whether a repair can build the file anew from what is sound.
    """

    path: str
    damage: str
    remedy: str
    severity: Severity = Severity.ERROR
    position: int | None = None
    offset: int | None = None
    repairable: bool = False

    @property
    def counts(self) -> bool:
        """Whether the directory is not sound because of it."""
        return self.severity is not Severity.NOTE

    def __str__(self) -> str:
        location = self.path
        if self.position is not None:
            location += f", position {self.position}"
        if self.offset is not None:
            location += f", offset {self.offset}"
        return f"{location}: {self.damage}; {self.remedy}"


REPAIR: Final = "--repair builds it anew from the log"


RESTORE_LOG_FIRST: Final = "restore the log first; until then readers do without it"


def derived(
    path: str,
    damage: str,
    *,
    severity: Severity = Severity.ERROR,
    position: int | None = None,
    offset: int | None = None,
    remedy: str = REPAIR,
) -> Finding:
    """A finding on a file that a repair can build anew."""
    return Finding(path, damage, remedy, severity, position, offset, repairable=True)


def note(path: str, damage: str, remedy: str) -> Finding:
    """A finding that leaves the directory sound."""
    return Finding(path, damage, remedy, Severity.NOTE)


def warning(path: str, damage: str, remedy: str) -> Finding:
    """A finding on a file that no repair builds anew, and without which nothing is lost."""
    return Finding(path, damage, remedy, Severity.WARNING)


def error_text(error: CorruptFile | UnsupportedVersion) -> str:
    """Why a file can't be read, without the path that the finding names."""
    return error.reason if isinstance(error, CorruptFile) else str(error)


def later(finding: Finding) -> Finding:
    """The finding, which promises no repair since the log must be put right first.

    Half an index would pass for a whole one, and what is wrong in the log would be taken over.
    """
    if not finding.repairable:
        return finding
    return replace(finding, repairable=False, remedy=RESTORE_LOG_FIRST)


def _pass_over(_value: bytes) -> None:
    """The default where nobody knows what records mean."""


def _ignore(_count: int) -> None:
    """The default of callbacks that nobody listens to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How a check works.

    Attributes:
        body_check: The pass over plain records, plain or a kernel.
        progress: Called with a number of log bytes each time so many more were checked.
        metadata: Makes what is told each record of a broker's metadata log, and raises CorruptFile
            or UnsupportedVersion where it is none.
    """

    body_check: BodyCheck = check_body
    progress: Callable[[int], None] = _ignore
    metadata: Callable[[], Callable[[bytes], object]] = lambda: _pass_over


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPartition:
    """A partition that is checked.

    Attributes:
        fs: Its file system.
        directory: Path of its directory.
        name: Topic and number.
        topic_id: The topic's id, all zero where it has none.
        config: The topic's settings, defaults where they are unknown.
        is_foreign: Whether somebody else wrote it: its settings are unknown, it has no sidecars.
        was_clean: Whether the directory was closed cleanly and is not open now.
        recorded: What is recorded of the log's end.
        log_start: Log start offset of the directory's checkpoint, 0 where it has none.
        is_refused: Whether an opening for writing refuses the partition, and so cuts nothing.
    """

    fs: FileSystem
    directory: str
    name: TopicPartition
    topic_id: uuid.UUID
    config: TopicConfig
    is_foreign: bool
    was_clean: bool
    recorded: RecordedEnd
    log_start: int
    is_refused: bool = False

    def path(self, name: str) -> str:
        """Path of a file in the partition's directory."""
        return f"{self.directory}/{name}"

    def read(self, name: str, *, limit: int = files.SMALL_FILE_LIMIT_BYTES) -> bytes | None:
        """A whole file, None where there is none; raises CorruptFile beyond `limit` bytes."""
        return read_if_there(self.fs, self.path(name), limit=limit)

    def open_context(
        self, env: Env, *, write: bool = False
    ) -> AbstractContextManager[SegmentContext]:
        """A context for reading the partition's segments, or writing them; it closes its files."""
        return open_context(env, self.directory, self.name, self.topic_id, self.config, write=write)

    def file_names(self) -> list[str]:
        """Names of the files in the partition's directory, ascending."""
        return [entry.name for entry in self.fs.list_dir(self.directory) if not entry.is_dir]


def read_if_there(
    fs: FileSystem, path: str, *, limit: int = files.SMALL_FILE_LIMIT_BYTES
) -> bytes | None:
    """A whole file, None where there is none.

    Raises:
        CorruptFile: It has more than `limit` bytes; located.
        OSError: A call failed.
    """
    try:
        return files.read_file(fs, path, limit=limit)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise error.located(path) from error
