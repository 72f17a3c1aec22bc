"""Commit records, and the file of the versions that external writers have committed.

A commit record makes files of one or more partitions visible: all of these files, or none. Code
that adds, replaces or merges finished segments writes the segments' files durably under staged
names. Then this code publishes the commit: it renames one small record to `tidelog-commit-ID.json`
at the top of the directory. Before the rename of the record, none of the files is visible; after
the rename, all files are visible. Then the holder of the directory's lock renames the staged files
to their final names, removes old files, and removes the record last. After a crash, the next
opening of the directory for writing completes these renames and removals. If a reader finds a
commit record, it uses each staged file that still exists instead of the file with the final name
(`overlay`).

This module encodes, decodes and carries out commit records, and reads and writes the file of
writers. `directory.publication` owns the order in which a running process publishes a commit and
makes its segments readable.

Carrying out a commit record a second time changes nothing. Files that a compaction moves are staged
under Kafka's suffix, `FINAL.swap`. So if Kafka opens the directory after a crash, Kafka finishes
the swap by its own rules. Kafka removes replaced segments only while a `.swap` file exists, so a
commit that moves such files makes all its removals before its moves.

Text of a record, version 2: `{"version": 2, "moves": [[PARTITION DIRECTORY, STAGED NAME, FINAL
NAME], ...], "removes": [[PARTITION DIRECTORY, NAME], ...], "marks": {WRITER: MARK}}`.

`tidelog-writers.json` at the top of the directory has the last version that each external writer
has committed. Because of this file, a streaming query or a job that numbers its versions does not
add its last batch twice if it restarts after a crash. Only the holder of the directory's lock
writes the file, and replaces it atomically.

The text of the file, version 1: `{"version": 1, "writers": {WRITER: [LAST VERSION, MS OF THE
COMMIT, NOTE, RANGES]}}`; NOTE and RANGES are left out if both are empty. RANGES: `[[TOPIC,
PARTITION, FIRST OFFSET, END OFFSET, APPEND TIME IN MS], ...]`.

A writer may count the versions of each topic separately. It then has one mark for each topic, under
the name that `topic_writer` returns.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.amounts import plural
from tidelog.env import Env, FileSystem
from tidelog.errors import CorruptFile, InvalidRequest, UnsupportedVersion
from tidelog.storage import files, log_files
from tidelog.types import INT64_MAX, TopicPartition

WRITERS_FILE: Final = "tidelog-writers.json"
WRITERS_VERSION: Final = 1

# Maximum length in characters of a writer's name. The name consists of the kind of writer and an id
# that the user chooses.
NAME_CHARACTERS_MAX: Final = 512

NOTE_CHARACTERS_MAX: Final = 1 << 20


class Mark(NamedTuple):
    """The last version that a writer has committed.

    Attributes:
        version: Number of the version, 0 or more. A writer's versions increase.
        committed_ms: Time of the commit in ms, by the directory's clock.
        note: Text that the writer stored with the version.
        ranges: Ranges of the version's records: topic, partition, first offset, end offset
            (exclusive), append time in ms (-1 if the append clock is off).
    """

    version: int
    committed_ms: int
    note: str = ""
    ranges: tuple[tuple[str, int, int, int, int], ...] = ()


def encode_mark(mark: Mark) -> list[object]:
    """Encode a mark as JSON values."""
    start: list[object] = [mark.version, mark.committed_ms]
    return [*start, mark.note, list(mark.ranges)] if mark.note or mark.ranges else start


def decode_mark(fields: list[object]) -> Mark:
    """Decode the result of `encode_mark`; raises TypeError or ValueError if it is invalid."""
    version, committed_ms, *more = fields
    note, ranges = more or ("", ())
    if type(version) is not int or type(committed_ms) is not int or not isinstance(note, str):
        raise TypeError(f"a mark of {str(fields)[:80]}")
    if not isinstance(ranges, list | tuple):
        raise TypeError(f"ranges of {type(ranges).__name__}")
    return Mark(version, committed_ms, note, tuple(map(_decode_range, ranges)))


def _decode_range(fields: object) -> tuple[str, int, int, int, int]:
    match fields:
        case [str(topic), int(partition), int(first), int(end), int(append_ms)]:
            return topic, partition, first, end, append_ms
    raise TypeError(f"a range of {str(fields)[:80]}")


def check_marks(marks: Mapping[str, Mark]) -> None:
    """Raise CorruptFile for an empty name, an invalid version, or a time that is not an int."""
    for name, mark in marks.items():
        is_number = type(mark.version) is int and type(mark.committed_ms) is int
        if not is_number or not 0 <= mark.version <= INT64_MAX or not len(name) > 0:
            raise CorruptFile(
                f"writer {name[:80]!r} with version {mark.version!r} and time"
                f" {mark.committed_ms!r}: invalid name, version or time"
            )


def topic_writer(writer: str, topic: str) -> str:
    """Return the name of a topic's mark, for a writer that counts versions by topic."""
    return f"topic/{topic}/{writer}"  # unambiguous, because a topic's name has no slash


def find_topic_mark(
    marks: Mapping[str, Mark], writer: str, topic: str, version: int
) -> Mark | None:
    """Return a topic's mark if its version is `version` or later; else None."""
    mark = marks.get(topic_writer(writer, topic))
    return None if mark is None or mark.version < version else mark


def find_done_topics(
    marks: Mapping[str, Mark], writer: str, version: int, topics: Iterable[str]
) -> dict[str, int]:
    """Return a writer's last version for each topic whose last version is `version` or later."""
    topic_marks = {topic: find_topic_mark(marks, writer, topic, version) for topic in topics}
    return {topic: mark.version for topic, mark in topic_marks.items() if mark is not None}


def ensure_version(name: str, version: int, note: str = "") -> None:
    """Raise InvalidRequest for an invalid name, version or note of a writer."""
    if len(note) > NOTE_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a note of {len(note)} characters; at most {NOTE_CHARACTERS_MAX} are allowed"
        )
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a writer's name must have 1 to {NAME_CHARACTERS_MAX} characters, got {len(name)}"
        )
    if not 0 <= version <= INT64_MAX:
        raise InvalidRequest(f"version {version} of writer {name} must be 0 to 2^63-1")


def encode_marks(marks: Mapping[str, Mark]) -> bytes:
    """Encode the text of the writers' file, with the writers sorted by name."""
    content = {
        "version": WRITERS_VERSION,
        "writers": {name: encode_mark(mark) for name, mark in sorted(marks.items())},
    }
    return f"{json.dumps(content, indent=1)}\n".encode()


def decode_marks(data: bytes) -> dict[str, Mark]:
    """Decode the text of a writers' file.

    Raises:
        CorruptFile: The text is not a valid result of `encode_marks`.
        UnsupportedVersion: A later release wrote the text.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        marks = {name: decode_mark(mark) for name, mark in content["writers"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"not a list of writers: {error}") from error
    if version != WRITERS_VERSION:
        raise UnsupportedVersion(
            f"{WRITERS_FILE} of version {version}; this release reads version {WRITERS_VERSION}"
        )
    check_marks(marks)
    return marks


def read_marks(fs: FileSystem, directory: str) -> dict[str, Mark]:
    """Read the marks of a directory; return no marks if the file is missing.

    Raises the errors of `decode_marks`, with the path, and OSError.
    """
    return files.read_decoded(fs, f"{directory}/{WRITERS_FILE}", decode_marks, {})


def note(fs: FileSystem, directory: str, marks: Mapping[str, Mark]) -> None:
    """Store marks durably; a mark that is not newer than the writer's stored mark is ignored.

    Raises:
        CorruptFile, UnsupportedVersion: `read_marks` can't read the stored marks; nothing was
            changed.
        OSError: The disk failed.
    """
    stored = read_marks(fs, directory)
    newer = {
        name: mark
        for name, mark in marks.items()
        if name not in stored or stored[name].version < mark.version
    }
    if newer:
        data = encode_marks(stored | newer)
        files.write_atomically(fs, f"{directory}/{WRITERS_FILE}", data)


def forget_topics(fs: FileSystem, directory: str, topics: Iterable[str]) -> None:
    """Drop the marks of deleted topics, durably.

    Otherwise writers would skip the versions of these marks in a later topic of the same name,
    although that topic does not have the versions' records. A file that can't be decoded is not
    changed and causes no error here; the next call of `note` raises the error.

    Raises:
        OSError: The disk failed.
    """
    stale = tuple(topic_writer("", topic) for topic in topics)
    try:
        stored = read_marks(fs, directory)
    except (CorruptFile, UnsupportedVersion):
        return
    remaining = {name: mark for name, mark in stored.items() if not name.startswith(stale)}
    if len(remaining) < len(stored):
        files.write_atomically(fs, f"{directory}/{WRITERS_FILE}", encode_marks(remaining))


COMMIT_VERSION: Final = 2
STAGED_SUFFIX: Final = ".staged"
_COMMIT_FILE: Final = re.compile(r"tidelog-commit-[0-9a-f]{32}\.json", re.ASCII)


class Move(NamedTuple):
    """A staged file and its final name.

    Attributes:
        directory: Name of the partition's directory.
        staged: Name under which the file was written. The staged name ends with `.staged`, or it is
            the final name with `.swap`.
        final: Name of the file when it is part of the partition.
    """

    directory: str
    staged: str
    final: str


class Removal(NamedTuple):
    """A file that a commit removes.

    Attributes:
        directory: Name of the partition's directory.
        name: The file's name in this directory.
    """

    directory: str
    name: str


class Commit(NamedTuple):
    """Contents of one commit record.

    Attributes:
        moves: Staged files that become part of their partitions.
        removes: Files to remove. No file is both the target of a move and removed.
        marks: The writers' new versions.
    """

    moves: tuple[Move, ...] = ()
    removes: tuple[Removal, ...] = ()
    marks: Mapping[str, Mark] = MappingProxyType({})

    @property
    def is_empty(self) -> bool:
        """Whether the commit changes nothing."""
        return not (self.moves or self.removes or self.marks)

    @property
    def directories(self) -> list[str]:
        """Names of the partition directories whose files the commit moves or removes, sorted."""
        names = {move.directory for move in self.moves}
        return sorted(names | {removal.directory for removal in self.removes})

    def of(self, directory: str) -> "Commit":
        """Return the moves and removals of one partition as a commit without marks."""
        return Commit(
            moves=tuple(move for move in self.moves if move.directory == directory),
            removes=tuple(removal for removal in self.removes if removal.directory == directory),
        )

    @property
    def is_swap(self) -> bool:
        """Whether the commit moves files of a compaction, which have Kafka's suffix `.swap`."""
        return any(move.staged.endswith(log_files.SWAP_SUFFIX) for move in self.moves)


def encode_commit(commit: Commit) -> bytes:
    """Encode the text of a commit record."""
    content = {
        "version": COMMIT_VERSION,
        "moves": [[move.directory, move.staged, move.final] for move in commit.moves],
        "removes": [[removal.directory, removal.name] for removal in commit.removes],
        "marks": {name: encode_mark(mark) for name, mark in commit.marks.items()},
    }
    return json.dumps(content).encode()


def decode_commit(data: bytes) -> Commit:
    """Decode a commit record.

    Raises:
        CorruptFile: The text is not a valid result of `encode_commit`. Names that could lead to
            other directories are invalid.
        UnsupportedVersion: A later release wrote the text.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        if version != COMMIT_VERSION:
            reads = f"this release reads version {COMMIT_VERSION}"
            raise UnsupportedVersion(f"commit record of version {version}; {reads}")
        moves = tuple(Move(*row) for row in content["moves"])
        removes = tuple(Removal(*row) for row in content["removes"])
        marks = {n: decode_mark(mark) for n, mark in content["marks"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"not a commit record: {error}") from error
    for move in moves:
        _check_move(move)
    for removal in removes:
        _check_removal(removal)
    check_marks(marks)
    return Commit(moves=moves, removes=removes, marks=marks)


def _check_move(move: Move) -> None:
    parts = (move.directory, move.staged, move.final)
    is_right = (
        all(isinstance(part, str) for part in parts)
        and files.parse_partition_dir(move.directory) is not None
        and _is_staged(move.staged, move.final)
        and "/" not in move.staged
        and log_files.parse_file_name(move.final) is not None
    )
    if not is_right:
        raise CorruptFile(
            f"commit record with the move {parts}; a partition's directory, the name of a staged"
            " file and that of a log's file expected"
        )


def _is_staged(name: str, final: str) -> bool:
    return name.endswith(STAGED_SUFFIX) or name == final + log_files.SWAP_SUFFIX


def _check_removal(removal: Removal) -> None:
    parts = (removal.directory, removal.name)
    is_right = (
        all(isinstance(part, str) for part in parts)
        and files.parse_partition_dir(removal.directory) is not None
        and log_files.parse_file_name(removal.name) is not None
    )
    if not is_right:
        raise CorruptFile(
            f"commit record with the removal {parts}; a partition's directory and the name of a"
            " log's file expected"
        )


def commit_path(directory: str, commit_id: str) -> str:
    """Return the path of a commit's record; the id is 32 hexadecimal digits."""
    name = f"tidelog-commit-{commit_id}.json"
    assert _COMMIT_FILE.fullmatch(name)
    return f"{directory}/{name}"


def find_commits(fs: FileSystem, directory: str) -> list[str]:
    """Return paths of the commit records in a directory."""
    names = (entry.name for entry in fs.list_dir(directory) if not entry.is_dir)
    return [f"{directory}/{name}" for name in names if _COMMIT_FILE.fullmatch(name)]


def read_commit(fs: FileSystem, path: str) -> Commit:
    """Read the record at `path`; raises the errors of `decode_commit`, with the path."""
    try:
        return decode_commit(files.read_file(fs, path))
    except CorruptFile as error:
        raise error.located(path) from error


def publish(fs: FileSystem, directory: str, commit_id: str, commit: Commit) -> None:
    """Make a commit visible: the record is durable on return."""
    data = encode_commit(commit)
    files.write_atomically(fs, commit_path(directory, commit_id), data)


def finish(fs: FileSystem, directory: str, path: str, commit: Commit) -> None:
    """Carry out a published commit and remove its record; repeating this changes nothing."""
    if commit.is_swap:
        _remove(fs, directory, commit)
        _sync(fs, directory, commit)  # a crash must not restore a removed file
        _move(fs, directory, commit)
    else:
        _move(fs, directory, commit)
        _remove(fs, directory, commit)
    conclude(fs, directory, path, commit)


def conclude(fs: FileSystem, directory: str, path: str, commit: Commit) -> None:
    """End a commit whose files are in place: sync directories, store marks, remove the record."""
    _sync(fs, directory, commit)
    if commit.marks:
        note(fs, directory, commit.marks)
    fs.remove(path)
    fs.sync_dir(directory)


def replay(fs: FileSystem, directory: str) -> list[str]:
    """Carry out all commits, then remove the remaining `.staged` files.

    Returns a line for each action.
    """
    done = []
    for path in find_commits(fs, directory):
        commit = read_commit(fs, path)
        finish(fs, directory, path, commit)
        count = len(commit.moves) + len(commit.removes)
        done.append(f"{path}: finished a commit of {plural(count, 'file')}")
    return done + _drop_staged(fs, directory)


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
        # The topic and its staged files may have been deleted meanwhile.
        if fs.exists(f"{directory}/{name}"):
            fs.sync_dir(f"{directory}/{name}")


def _drop_staged(fs: FileSystem, directory: str) -> list[str]:
    """Remove `.staged` files.

    Call this function after all commits: then the remaining `.staged` files are from failed
    jobs.
    """
    dropped = []
    for entry in fs.list_dir(directory):
        if not entry.is_dir or files.parse_partition_dir(entry.name) is None:
            continue
        for item in fs.list_dir(f"{directory}/{entry.name}"):
            if item.name.endswith(STAGED_SUFFIX) and not item.is_dir:
                fs.remove(f"{directory}/{entry.name}/{item.name}")
                dropped.append(f"{directory}/{entry.name}/{item.name}: never committed; removed")
    return dropped


class CommitRecords:
    """The commit records of a directory, cached for opening many of its partitions.

    Not thread-safe, except for `under_way`. The records are read again if the directory has changed
    (`files.settled_stamp`), so that each partition is opened with the current records.

    Attributes:
        under_way: The partitions of each commit record that a thread of this process is carrying
            out, by the record's path. An entry is added before the commit record is published.
            Partitions in this dict must not be reopened. Several threads may change this dict.
    """

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._directory = directory
        self.under_way: dict[str, frozenset[TopicPartition]] = {}
        self._records: tuple[Commit, ...] = ()
        self._stamp: files.FolderStamp | None = None

    def overlay(self, partition: TopicPartition) -> dict[str, str]:
        """Return the current names of the files that published commits move or remove.

        The function `overlay` describes the result. The commit records are read from the cache.
        """
        return _overlay(self._env.files, self._directory, partition, self._read())

    def _read(self) -> tuple[Commit, ...]:
        stamp = files.settled_stamp(self._env, self._directory)
        if stamp is None or stamp != self._stamp:
            self._records = tuple(_commits(self._env.files, self._directory))
            self._stamp = stamp
        return self._records


def overlay(fs: FileSystem, directory: str, partition: TopicPartition) -> dict[str, str]:
    """Return the current names of the files that published commits move or remove in a partition.

    Returns:
        Current names by final names. For a file that is not renamed yet, the current name is its
        staged name. For a file that the commits remove, the current name is a name that does not
        exist (`log_files.REMOVED_SUFFIX`).
    """
    return _overlay(fs, directory, partition, _commits(fs, directory))


def _commits(fs: FileSystem, directory: str) -> Iterator[Commit]:
    for path in find_commits(fs, directory):
        try:
            yield read_commit(fs, path)
        except FileNotFoundError:
            continue  # the commit was carried out meanwhile, so the files have their final names


def _overlay(
    fs: FileSystem, directory: str, partition: TopicPartition, commits: Iterable[Commit]
) -> dict[str, str]:
    name = files.partition_dir_name(partition)
    names = {}
    for commit in commits:
        for move in commit.moves:
            if move.directory == name and fs.exists(f"{directory}/{name}/{move.staged}"):
                names[move.final] = move.staged
        for removal in commit.removes:
            if removal.directory == name:
                names[removal.name] = removal.name + log_files.REMOVED_SUFFIX
    return names
