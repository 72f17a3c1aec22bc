"""Commit records: several files become visible together, or not at all.

Whoever adds finished segments from outside (the Spark sink, say) writes them beside the others
under staged names, makes them durable, and then renames one small record into place:
`tidelog-commit-ID.json` at the top of the directory. Before that rename nothing of it is visible,
after it all: the lock's holder renames the staged files to their final names and removes the
record, and does so again at the next opening where a crash came between. A reader that meets a
record takes each staged file that is still there for the file it is to become.

A commit may also take files away (an exchange of segments) and say that a writer has come to a
version (`storage.writers`): all of it happens, or none. What a compaction moves is staged under
Kafka's suffix, `FINAL.swap`: where Kafka itself opens the directory after a crash, it finishes the
swap by its own rules. So that this goes well at every step, a commit that moves such files takes
away first and moves then.

Text of a record, version 2: `{"version": 2, "moves": [[PARTITION DIRECTORY, STAGED NAME, FINAL
NAME], ...], "removes": [[PARTITION DIRECTORY, NAME], ...], "marks": {WRITER: MARK}}`.
Version 1 has moves alone.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.env import Env, FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files, writers
from tidelog.storage.writers import Mark
from tidelog.types import TopicPartition

COMMIT_VERSION: Final = 2
STAGED_SUFFIX: Final = ".staged"
# Longer than any clock of a file system stands still between two ticks: FAT's for two seconds.
# Where a time is no whole second, the system's own clock has made it, which ticks each 10 ms.
SETTLED_MS: Final = 3_000
SETTLED_FINE_MS: Final = 100
_COMMIT_FILE: Final = re.compile(r"tidelog-commit-[0-9a-f]{32}\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Move:
    """One staged file and what it becomes.

    Attributes:
        directory: Name of the partition's directory.
        staged: Name of the file as it was written: it ends with `.staged`, or is the final name
            with `.swap`.
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

    @property
    def is_swap(self) -> bool:
        """Whether it moves what a compaction has left under Kafka's suffix."""
        return any(move.staged.endswith(files.SWAP_SUFFIX) for move in self.moves)


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
        and _is_staged(move.staged, move.final)
        and "/" not in move.staged
        and files.parse_file_name(move.final) is not None
    )
    if not is_right:
        raise CorruptFile(f"commit record moves {parts}, which is no file of a partition")


def _is_staged(name: str, final: str) -> bool:
    return name.endswith(STAGED_SUFFIX) or name == final + files.SWAP_SUFFIX


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
    if commit.is_swap:
        _remove(fs, directory, commit)
        _sync(fs, directory, commit)  # else what went might come back beside what takes its place
        _move(fs, directory, commit)
    else:
        _move(fs, directory, commit)
        _remove(fs, directory, commit)
    _sync(fs, directory, commit)
    if commit.marks:
        writers.note(fs, directory, commit.marks)


def _move(fs: FileSystem, directory: str, commit: Commit) -> None:
    for move in commit.moves:
        staged = f"{directory}/{move.directory}/{move.staged}"
        if fs.exists(staged):
            fs.rename(staged, f"{directory}/{move.directory}/{move.final}")


def _remove(fs: FileSystem, directory: str, commit: Commit) -> None:
    for removal in commit.removes:
        path = f"{directory}/{removal.directory}/{removal.name}"
        if fs.exists(path):
            fs.remove(path)


def _sync(fs: FileSystem, directory: str, commit: Commit) -> None:
    for name in commit.directories:
        # The topic may have been deleted since; its staged files went with it.
        if fs.exists(f"{directory}/{name}"):
            fs.sync_dir(f"{directory}/{name}")


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


class CommitRecords:
    """The commit records of a directory, for those who open many of its partitions. One thread.

    They are read anew as soon as the directory has changed, so that each partition is opened by
    what was there at that moment. The directory's modification time tells of changes, but for one
    in the same moment as an earlier one: what was read so soon after a change is used once.
    """

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._directory = directory
        self._known: tuple[Commit, ...] = ()
        self._stamp: tuple[int, tuple[int, int]] | None = None

    def overlay(self, partition: TopicPartition) -> dict[str, str]:
        """As `commits.overlay`."""
        return _overlay(self._env.files, self._directory, partition, self._read())

    def _read(self) -> tuple[Commit, ...]:
        found = self._env.files.stat(self._directory)
        stamp = found.mtime_ms, found.identity
        if self._stamp == stamp:
            return self._known
        commits = tuple(_commits(self._env.files, self._directory))
        # A store's folder has no time. Clocks that differ make a time look new, or ahead.
        age_ms = SETTLED_FINE_MS if found.mtime_ms % 1_000 else SETTLED_MS
        is_settled = 0 < found.mtime_ms <= self._env.clock.now_ms() - age_ms
        self._known, self._stamp = commits, stamp if is_settled else None
        return commits


def overlay(fs: FileSystem, directory: str, partition: TopicPartition) -> dict[str, str]:
    """What a reader looks for in place of names that published commits have changed.

    Returns:
        Final name -> staged name of files that are not yet renamed, and name -> a name that does
        not exist (`files.REMOVED_SUFFIX`) of files that are not yet removed.
    """
    return _overlay(fs, directory, partition, _commits(fs, directory))


def _commits(fs: FileSystem, directory: str) -> Iterator[Commit]:
    for path in find_commits(fs, directory):
        try:
            yield read_commit(fs, path)
        except FileNotFoundError:
            continue  # the writer has finished it meanwhile: the files have their final names


def _overlay(
    fs: FileSystem, directory: str, partition: TopicPartition, commits: Iterable[Commit]
) -> dict[str, str]:
    name = files.partition_dir_name(partition)
    found = {}
    for commit in commits:
        for move in commit.moves:
            if move.directory == name and fs.exists(f"{directory}/{name}/{move.staged}"):
                found[move.final] = move.staged
        for removal in commit.removes:
            if removal.directory == name:
                found[removal.name] = removal.name + files.REMOVED_SUFFIX
    return found
