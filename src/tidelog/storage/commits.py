"""Commit records: several files become visible together, or not at all.

Whoever adds finished segments from outside (the Spark sink, say) writes them beside the others
under staged names, makes them durable, and then renames one small record into place:
`tidelog-commit-ID.json` at the top of the directory. Before that rename nothing of it is visible,
after it all: the lock's holder renames the staged files to their final names and removes the
record, and does so again at the next opening where a crash came between. A reader that meets a
record takes each staged file that is still there for the file it is to become.

Text of a record: `{"version": 1, "moves": [[PARTITION DIRECTORY, STAGED NAME, FINAL NAME], ...]}`.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.types import TopicPartition

COMMIT_VERSION: Final = 1
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


def encode_commit(moves: Iterable[Move]) -> bytes:
    """The text of a commit record."""
    rows = [[move.directory, move.staged, move.final] for move in moves]
    return json.dumps({"version": COMMIT_VERSION, "moves": rows}).encode()


def decode_commit(data: bytes) -> list[Move]:
    """The moves of a commit record.

    Raises:
        CorruptFile: Not what `encode_commit` writes; names that could lead elsewhere are refused.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        content = json.loads(data)
        version, rows = content["version"], content["moves"]
        moves = [Move(*row) for row in rows]
    except (ValueError, TypeError, KeyError, UnicodeDecodeError) as error:
        raise CorruptFile(f"not a commit record: {error}") from error
    if version != COMMIT_VERSION:
        raise UnsupportedVersion(f"commit record of version {version}, {COMMIT_VERSION} is known")
    for move in moves:
        _check_move(move)
    return moves


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


def commit_path(directory: str, commit_id: str) -> str:
    """Path of the record of a commit; the id is 32 hexadecimal digits."""
    name = f"tidelog-commit-{commit_id}.json"
    assert _COMMIT_FILE.fullmatch(name)
    return f"{directory}/{name}"


def find_commits(fs: FileSystem, directory: str) -> list[str]:
    """Paths of the commit records in a directory."""
    names = (entry.name for entry in fs.list_dir(directory) if not entry.is_dir)
    return [f"{directory}/{name}" for name in names if _COMMIT_FILE.fullmatch(name)]


def read_commit(fs: FileSystem, path: str) -> list[Move]:
    """The moves of the record at `path`; errors as `decode_commit`, located."""
    try:
        return decode_commit(files.read_file(fs, path))
    except CorruptFile as error:
        raise error.located(path) from error


def publish(fs: FileSystem, directory: str, commit_id: str, moves: list[Move]) -> None:
    """Make the moves visible: the record is durable when this returns."""
    files.write_atomically(fs, commit_path(directory, commit_id), encode_commit(moves))


def replay(fs: FileSystem, directory: str) -> list[str]:
    """Carry out every commit record, then drop staged files that none names; what was done."""
    done = []
    for path in find_commits(fs, directory):
        moves = read_commit(fs, path)
        apply_moves(fs, directory, moves)
        fs.remove(path)
        fs.sync_dir(directory)
        done.append(f"{path}: finished a commit of {len(moves)} files")
    return done + _drop_staged(fs, directory)


def apply_moves(fs: FileSystem, directory: str, moves: list[Move]) -> None:
    """Rename what is still staged, durably; doing it again changes nothing."""
    for move in moves:
        staged = f"{directory}/{move.directory}/{move.staged}"
        if fs.exists(staged):
            fs.rename(staged, f"{directory}/{move.directory}/{move.final}")
    for name in sorted({move.directory for move in moves}):
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


def overlay(fs: FileSystem, directory: str, partition: TopicPartition) -> dict[str, str]:
    """Final name -> staged name of the committed files of a partition that are not yet renamed."""
    name = files.partition_dir_name(partition)
    found = {}
    for path in find_commits(fs, directory):
        try:
            moves = read_commit(fs, path)
        except FileNotFoundError:
            continue  # the writer has finished it meanwhile: the files have their final names
        for move in moves:
            if move.directory == name and fs.exists(f"{directory}/{name}/{move.staged}"):
                found[move.final] = move.staged
    return found
