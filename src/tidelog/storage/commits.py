"""Commit records: several files become visible together, or not at all.

Whoever adds finished segments from outside (the Spark sink, say) writes them beside the others
under staged names, makes them durable, and then renames one small record into place:
`tidelog-commit-ID.json` at the top of the directory. Before that rename nothing of it is visible,
after it all: the lock's holder renames the staged files to their final names and removes the
record, and does so again at the next opening where a crash came between. A reader that meets a
record takes each staged file that is still there for the file it is to become.

A commit may also take files away (an exchange of segments) and say that a writer has come to a
version (`storage.writers`): all of it happens, or none.

Text of a record, version 2: `{"version": 2, "moves": [[PARTITION DIRECTORY, STAGED NAME, FINAL
NAME], ...], "removes": [[PARTITION DIRECTORY, NAME], ...], "marks": {WRITER: MARK}}`.
Version 1 has moves alone.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files, writers
from tidelog.storage.writers import Mark
from tidelog.types import TopicPartition

COMMIT_VERSION: Final = 2
STAGED_SUFFIX: Final = ".staged"
_COMMIT_FILE: Final = re.compile(r"tidelog-commit-[0-9a-f]{32}\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Move:
    """One staged file and what it becomes.

    Attributes:
        directory: Name of the partition's directory.
        staged: Name of the file as it was written, ends with `.staged`.
        final: Name of the file once it is part of the partition.
    """

    directory: str
    staged: str
    final: str


@dataclass(frozen=True, slots=True)
class Removal:
    """A file that a commit takes away.

    Attributes:
        directory: Name of the partition's directory.
        name: The file's name in it.
    """

    directory: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one record says.

    Attributes:
        moves: Staged files that become part of their partitions.
        removes: Files that go. No file is both moved to and removed.
        marks: How far writers have come with it.
    """

    moves: tuple[Move, ...] = ()
    removes: tuple[Removal, ...] = ()
    marks: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.moves or self.removes or self.marks)

    @property
    def directories(self) -> list[str]:
        """The partitions' directories that it changes."""
        names = {move.directory for move in self.moves}
        return sorted(names | {removal.directory for removal in self.removes})


def encode_commit(commit: Commit) -> bytes:
    """The text of a commit record."""
    content = {
        "version": COMMIT_VERSION,
        "moves": [[move.directory, move.staged, move.final] for move in commit.moves],
        "removes": [[removal.directory, removal.name] for removal in commit.removes],
        "marks": {name: writers.encode_mark(mark) for name, mark in commit.marks.items()},
    }
    return json.dumps(content).encode()


def decode_commit(data: bytes) -> Commit:
    """What a commit record says.

    Raises:
        CorruptFile: Not what `encode_commit` writes; names that could lead elsewhere are refused.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        content = json.loads(data)
        version, rows = content["version"], content["moves"]
        moves = tuple(Move(*row) for row in rows)
        removes = tuple(Removal(*row) for row in content.get("removes", ()))
        marks = {n: writers.decode_mark(mark) for n, mark in content.get("marks", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(f"not a commit record: {error}") from error
    if version not in (1, COMMIT_VERSION):
        raise UnsupportedVersion(f"commit record of version {version}, {COMMIT_VERSION} is known")
    for move in moves:
        _check_move(move)
    for removal in removes:
        _check_removal(removal)
    writers.check_marks(marks)
    return Commit(moves=moves, removes=removes, marks=marks)


def _check_move(move: Move) -> None:
    parts = (move.directory, move.staged, move.final)
    is_right = (
        all(isinstance(part, str) for part in parts)
        and files.parse_partition_dir(move.directory) is not None
        and move.staged.endswith(STAGED_SUFFIX)
        and "/" not in move.staged
        and files.parse_file_name(move.final) is not None
    )
    if not is_right:
        raise CorruptFile(f"commit record moves {parts}, which is no file of a partition")


def _check_removal(removal: Removal) -> None:
    parts = (removal.directory, removal.name)
    is_right = (
        all(isinstance(part, str) for part in parts)
        and files.parse_partition_dir(removal.directory) is not None
        and files.parse_file_name(removal.name) is not None
    )
    if not is_right:
        raise CorruptFile(f"commit record removes {parts}, which is no file of a partition")


def commit_path(directory: str, commit_id: str) -> str:
    """Path of the record of a commit; the id is 32 hexadecimal digits."""
    name = f"tidelog-commit-{commit_id}.json"
    assert _COMMIT_FILE.fullmatch(name)
    return f"{directory}/{name}"


def find_commits(fs: FileSystem, directory: str) -> list[str]:
    """Paths of the commit records in a directory."""
    names = (entry.name for entry in fs.list_dir(directory) if not entry.is_dir)
    return [f"{directory}/{name}" for name in names if _COMMIT_FILE.fullmatch(name)]


def read_commit(fs: FileSystem, path: str) -> Commit:
    """What the record at `path` says; errors as `decode_commit`, located."""
    try:
        return decode_commit(files.read_file(fs, path))
    except CorruptFile as error:
        raise error.located(path) from error


def publish(fs: FileSystem, directory: str, commit_id: str, commit: Commit) -> None:
    """Make a commit visible: the record is durable when this returns."""
    files.write_atomically(fs, commit_path(directory, commit_id), encode_commit(commit))


def finish(fs: FileSystem, directory: str, path: str, commit: Commit) -> None:
    """Carry out a published commit and remove its record; doing it again changes nothing."""
    apply(fs, directory, commit)
    fs.remove(path)
    fs.sync_dir(directory)


def replay(fs: FileSystem, directory: str) -> list[str]:
    """Carry out every commit record, then drop staged files that none names; what was done."""
    done = []
    for path in find_commits(fs, directory):
        commit = read_commit(fs, path)
        finish(fs, directory, path, commit)
        count = len(commit.moves) + len(commit.removes)
        done.append(f"{path}: finished a commit of {count} files")
    return done + _drop_staged(fs, directory)


def apply(fs: FileSystem, directory: str, commit: Commit) -> None:
    """Rename what is still staged, remove what goes, note the marks; all of it durably."""
    for move in commit.moves:
        staged = f"{directory}/{move.directory}/{move.staged}"
        if fs.exists(staged):
            fs.rename(staged, f"{directory}/{move.directory}/{move.final}")
    for removal in commit.removes:
        path = f"{directory}/{removal.directory}/{removal.name}"
        if fs.exists(path):
            fs.remove(path)
    for name in commit.directories:
        # The topic may have been deleted since; its staged files went with it.
        if fs.exists(f"{directory}/{name}"):
            fs.sync_dir(f"{directory}/{name}")
    if commit.marks:
        writers.note(fs, directory, commit.marks)


def _drop_staged(fs: FileSystem, directory: str) -> list[str]:
    """Staged files that no commit record names are what a failed job left behind."""
    dropped = []
    for entry in fs.list_dir(directory):
        if not entry.is_dir or files.parse_partition_dir(entry.name) is None:
            continue
        for item in fs.list_dir(f"{directory}/{entry.name}"):
            if item.name.endswith(STAGED_SUFFIX) and not item.is_dir:
                fs.remove(f"{directory}/{entry.name}/{item.name}")
                dropped.append(f"{directory}/{entry.name}/{item.name}: never committed; dropped")
    return dropped


def overlay(fs: FileSystem, directory: str, partition: TopicPartition) -> dict[str, str]:
    """What a reader looks for in place of names that published commits have changed.

    Returns:
        Final name -> staged name of files that are not yet renamed, and name -> a name that does
        not exist (`files.REMOVED_SUFFIX`) of files that are not yet removed.
    """
    name = files.partition_dir_name(partition)
    found = {}
    for path in find_commits(fs, directory):
        try:
            commit = read_commit(fs, path)
        except FileNotFoundError:
            continue  # the writer has finished it meanwhile: the files have their final names
        for move in commit.moves:
            if move.directory == name and fs.exists(f"{directory}/{name}/{move.staged}"):
                found[move.final] = move.staged
        for removal in commit.removes:
            if removal.directory == name:
                found[removal.name] = removal.name + files.REMOVED_SUFFIX
    return found
