"""Findings and options of a check, and `CheckedPartition`, through which checks read files.

A finding names one fault. Checks never write; repairs write through `open_context(write=True)`.
"""

import posixpath
import shlex
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tidelog.config import TopicConfig
from tidelog.env import Env, FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files
from tidelog.storage.log.record_rules import BodyCheck, check_body
from tidelog.storage.segment.log_end import RecordedEnd
from tidelog.storage.segment.segment import SegmentContext, open_context
from tidelog.types import TopicPartition


class Severity(StrEnum):
    """Severity of a finding.

    - ERROR: bytes are wrong or missing; some read fails or gets a wrong result.
    - WARNING: no stored record is lost, but a file is missing, stale, or not as expected.
    - NOTE: information; the directory is sound.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that a check has found.

    Attributes:
        path: Path of the file or directory.
        damage: The fault, with the value found and the right value.
        remedy: The user's action, the automatic repair, or the consequence of the fault.
        severity: Severity of the fault.
        position: Position of the fault in the file in bytes, None if it concerns the whole file.
        offset: First affected log offset, None if there is none.
        repairable: Whether a repair can rebuild the file from sound data, or remove the damage.
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
        """Whether the finding means that the directory is not sound."""
        return self.severity is not Severity.NOTE

    def __str__(self) -> str:
        location = self.path
        if self.position is not None:
            location += f", position {self.position}"
        if self.offset is not None:
            location += f", offset {self.offset}"
        return f"{location}: {self.damage}; {self.remedy}"


# The command that repairs; `tidelog doctor` adds the checked directory to it.
REPAIR_COMMAND: Final = "`tidelog doctor --repair`"
REPAIR: Final = f"{REPAIR_COMMAND} rebuilds it from the log"
RESTORE_LOG_FIRST: Final = "restore the log first; until then readers don't use this file"


def derived(
    path: str,
    damage: str,
    *,
    severity: Severity = Severity.ERROR,
    position: int | None = None,
    offset: int | None = None,
    remedy: str = REPAIR,
) -> Finding:
    """Create a finding on a file that a repair can rebuild or remove."""
    return Finding(path, damage, remedy, severity, position, offset, repairable=True)


def note(path: str, damage: str, remedy: str) -> Finding:
    """Create a finding that is only information: the directory is sound."""
    return Finding(path, damage, remedy, Severity.NOTE)


def warning(path: str, damage: str, remedy: str) -> Finding:
    """Create a finding of severity WARNING on a file or directory that no repair rebuilds."""
    return Finding(path, damage, remedy, Severity.WARNING)


ENDS: Final = "a read ends at the damage"


def dumps(log_path: str) -> str:
    """Return the command that prints the records of a log file, also the records after damage."""
    return f"`tidelog dump --deep {shlex.quote(log_path)}`"


def reads_on(log_path: str, offset: int) -> str:
    """Return how to read the records after damage in a log file.

    Args:
        log_path: Path of the damaged file.
        offset: First readable offset after the damage.
    """
    directory, partition_dir = posixpath.split(posixpath.dirname(log_path))
    name = files.parse_partition_dir(partition_dir)
    if name is None:
        return f"{ENDS}, but can start again at offset {offset}"
    place = shlex.quote(directory or ".")
    target = shlex.quote(f"{name.topic}:{name.partition}")
    return (
        f"{ENDS}; `tidelog read {target} --data {place} --offset {offset}..` reads on at {offset}"
    )


def error_text(error: CorruptFile | UnsupportedVersion) -> str:
    """Return the reason why a file can't be read, without the path: the finding has the path."""
    return error.reason


def later(finding: Finding) -> Finding:
    """Return the finding without the advice to repair, because the log must be repaired first.

    An index rebuilt from a damaged log would look complete, although it lacks the damaged batches.
    """
    if not finding.repairable:
        return finding
    return replace(finding, repairable=False, remedy=RESTORE_LOG_FIRST)


def _pass_over(_value: bytes) -> None:
    """Ignore a record of the metadata log. Default for callers that don't decode these records."""


def _ignore(_count: int) -> None:
    """Do nothing. Default of optional callbacks that receive a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of a check.

    Attributes:
        body_check: Function that checks uncompressed records in one pass: plain Python, or the
            kernel.
        progress: Called with the number of log bytes checked since the last call.
        metadata: Creates a callback that receives the value of each record of a broker's metadata
            log. The callback raises CorruptFile or UnsupportedVersion if it can't decode the value.
    """

    body_check: BodyCheck = check_body
    progress: Callable[[int], None] = _ignore
    metadata: Callable[[], Callable[[bytes], object]] = lambda: _pass_over


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPartition:
    """A partition to check.

    Attributes:
        fs: File system of the partition's directory.
        directory: Path of the partition's directory.
        name: Topic and partition number.
        topic_id: The topic's id, all zero if the topic has none.
        config: The topic's settings, defaults if they are unknown.
        is_foreign: True if `TOPICS_FILE` does not list the topic or can't be read. In this case,
            the topic's settings are unknown, and zone maps may be missing.
        was_clean: Whether the data directory was closed cleanly and is not open now.
        recorded: End of the log according to the data directory's checkpoints.
        log_start: Log start offset in the data directory's checkpoint, 0 if the checkpoint has no
            line for the partition.
        is_refused: True if damage prevents opening the partition for writing. A failed
            attempt to open it truncates nothing.
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
        """Return the path of a file in the partition's directory."""
        return f"{self.directory}/{name}"

    def read(self, name: str, *, limit: int = files.SMALL_FILE_LIMIT_BYTES) -> bytes | None:
        """Return a file's bytes, or None if the file is missing.

        Raises CorruptFile if the file has more than `limit` bytes.
        """
        return files.read_decoded(self.fs, self.path(name), bytes, None, limit=limit)

    def open_context(
        self, env: Env, *, write: bool = False
    ) -> AbstractContextManager[SegmentContext]:
        """Create a context for reading or writing segments; its exit closes the segments' files."""
        return open_context(env, self.directory, self.name, self.topic_id, self.config, write=write)

    def file_names(self) -> list[str]:
        """Return names of the files in the partition's directory, ascending."""
        return [entry.name for entry in self.fs.list_dir(self.directory) if not entry.is_dir]
