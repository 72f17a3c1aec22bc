"""What every kind of dump shares: the file, what was found in it, the log beside it."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.cli.output import Column, Row
from tidelog.env import FileSystem
from tidelog.errors import CorruptData
from tidelog.record.views import Batch
from tidelog.storage import files
from tidelog.storage.handles import walk_file
from tidelog.storage.trust import fingerprint


class Dumped(NamedTuple):
    """A file's content as rows; iterating over them adds to the file's findings."""

    columns: list[Column]
    rows: Iterator[Row]


@dataclass(slots=True)
class DumpFile:
    """A file that is dumped.

    Attributes:
        path: Where it is.
        file_system: How it is read.
        base_offset: From its name; 0 where the name has none.
        findings: What is damaged in it, one line each.
        notes: What could not be checked, and why.
    """

    path: str
    file_system: FileSystem
    base_offset: int = 0
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, text: str) -> None:
        """Note damage."""
        self.findings.append(f"{self.path}: {text}")

    def find_error(self, error: CorruptData) -> None:
        """Note damage that a decoder met."""
        located = error if error.path else error.located(self.path)
        self.findings.append(str(located))

    def note(self, text: str) -> None:
        """Note something that is no damage."""
        self.notes.append(f"{self.path}: {text}")

    def read(self) -> bytes:
        """The whole file, which is small."""
        return files.read_file(self.file_system, self.path)

    def beside(self, name: str) -> str:
        """The path of another file in its directory."""
        return posixpath.join(posixpath.dirname(self.path), name)

    def log_batches(self) -> list["BatchFacts"] | None:
        """The batches of the log file of the same segment, None where there is none."""
        path = self.beside(files.log_file_name(self.base_offset))
        if not self.file_system.exists(path):
            self.note("no log file beside it: its entries are not checked against one")
            return None
        try:
            return [_facts(position, batch) for position, batch in walk_log(self, path)]
        except CorruptData as error:
            self.note(f"the log beside it is damaged, checked up to there: {error}")
            return None


class BatchFacts(NamedTuple):
    """What index entries say about a batch, as the log itself has it."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    fingerprint: int


def _facts(position: int, batch: Batch) -> BatchFacts:
    return BatchFacts(
        position, batch.base_offset, batch.last_offset, batch.max_timestamp, fingerprint(batch)
    )


def walk_log(dump: DumpFile, path: str) -> Iterator[tuple[int, Batch]]:
    """The batches of a log file with their positions; the file is closed at the end.

    Raises:
        CorruptBatch: A frame that can't be; located.
    """
    file = dump.file_system.open(path)
    try:
        yield from walk_file(file, path, 0, file.size())
    finally:
        file.close()
