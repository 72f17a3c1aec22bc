"""Where a check looks, and how: files are opened, read, closed, and never written."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.config import TopicConfig
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.storage import files
from tidelog.storage.body_check import BodyCheck, check_body
from tidelog.storage.log_end import RecordedEnd
from tidelog.types import TopicPartition


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
class PartitionPlace:
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
        options: How to work.
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
    options: CheckOptions
    is_refused: bool = False

    def path(self, name: str) -> str:
        """Path of a file in the partition's directory."""
        return f"{self.directory}/{name}"

    def read(self, name: str, *, limit: int = files.SMALL_FILE_LIMIT_BYTES) -> bytes | None:
        """A whole file, None where there is none; raises CorruptFile beyond `limit` bytes."""
        return read_if_there(self.fs, self.path(name), limit=limit)

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
