"""Computes the disks that a power loss may leave behind, from a journal."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.faults.fate import Note, RestingFile
from tests.faults.journal import (
    ROOT,
    Entry,
    FileChange,
    Link,
    NameChange,
    Rename,
    SetMtime,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    Write,
)
from tests.faults.nodes import Image


class Keep(Enum):
    """Fate of all unsynced changes in a crash, if their fate is not drawn at random."""

    EVERYTHING = "everything kept, as when only the process is killed"
    SYNCED = "everything unsynced lost"


@dataclass(frozen=True, slots=True)
class CrashState:
    """The disk after a crash; `str` names the seed and the moment that reproduce it.

    Attributes:
        image: Content of the disk.
        prefix: Number of the journal's calls before the crash.
        seed: Seed that decided the fate of each unsynced change; None if `Keep` decided it.
    """

    image: Image
    prefix: int
    seed: int | None
    title: str

    def __str__(self) -> str:
        return self.title

    def contents(self) -> dict[str, bytes | None]:
        """Return bytes by path; None for a directory."""
        return dict(_walk(self.image, ROOT, ""))

    def fingerprint(self) -> frozenset[tuple[str, bytes | None]]:
        """Return a value that is equal for two states with the same names and bytes."""
        return frozenset(_walk(self.image, ROOT, ""))


def _walk(image: Image, directory: int, path: str) -> Iterator[tuple[str, bytes | None]]:
    for name, node in image.directories[directory].items():
        below = f"{path}/{name}"
        yield below, image.files.get(node)
        if node in image.directories:
            yield from _walk(image, node, below)


class _Names:
    """Node numbers by directory and name; a node has at most one name."""

    def __init__(self) -> None:
        self.node_of: dict[tuple[int, str], int] = {}
        self.place_of: dict[int, tuple[int, str]] = {}

    def copy(self) -> "_Names":
        other = _Names()
        other.node_of = dict(self.node_of)
        other.place_of = dict(self.place_of)
        return other

    def put(self, node: int, parent: int, name: str) -> None:
        self.drop(node)
        replaced = self.node_of.get((parent, name))
        if replaced is not None:
            self.drop(replaced)
        self.node_of[parent, name] = node
        self.place_of[node] = (parent, name)

    def drop(self, node: int) -> None:
        place = self.place_of.pop(node, None)
        if place is not None:
            del self.node_of[place]

    def apply(self, change: NameChange) -> None:
        match change:
            case Link() | Rename():
                self.put(change.node, change.parent, change.name)
            case Unlink():
                self.drop(change.node)

    def directories(self) -> dict[int, dict[str, int]]:
        """Return nodes by directory and name; of the empty directories, only the root is listed."""
        found: dict[int, dict[str, int]] = {ROOT: {}}
        for (parent, name), node in self.node_of.items():
            found.setdefault(parent, {})[name] = node
        return found


class _UnsyncedName:
    """A change of a name, and the directories that must still be synced to make it durable."""

    __slots__ = ("change", "waiting")

    def __init__(self, change: NameChange) -> None:
        self.change = change
        self.waiting = set(change.directories)


class Timeline:
    """Replays a journal; after each call, knows which changes are durable and which may be lost."""

    def __init__(self, start: Image, journal: Sequence[Entry]) -> None:
        self._start = start
        self._journal = journal
        self._rewind()

    def _rewind(self) -> None:
        start = self._start
        self._done = 0
        self._files = {
            node: RestingFile(node, data, start.mtimes.get(node, 0))
            for node, data in start.files.items()
        }
        self._dirs = set(start.directories)
        self._names = _Names()
        self._unsynced: list[_UnsyncedName] = []
        self._next_node = start.next_node
        for parent, names in start.directories.items():
            for name, node in names.items():
                self._names.put(node, parent, name)

    def state(self, prefix: int, seed: int) -> CrashState:
        """Return the disk after `prefix` calls and a crash; `seed` decides each change's fate."""
        return self._seeded(prefix, seed, None)

    def fixed(self, prefix: int, how: Keep) -> CrashState:
        """Return the disk after `prefix` calls and a crash that keeps all or the synced changes."""
        self._seek(prefix)
        names = self._names.copy()
        if how is Keep.EVERYTHING:
            for unsynced in self._unsynced:
                names.apply(unsynced.change)
            image = self._image(names, lambda file: (file.everything(), file.latest_mtime()))
        else:
            image = self._image(names, lambda file: (file.synced(), file.mtime_ms))
        return CrashState(image, prefix, None, f"{how.value}, {self._moment(prefix)}")

    def explain(self, prefix: int, seed: int) -> list[str]:
        """Return the fate of each unsynced change in `state(prefix, seed)`."""
        notes: list[str] = []
        self._seeded(prefix, seed, notes.append)
        return notes

    def _seeded(self, prefix: int, seed: int, note: Note | None) -> CrashState:
        self._seek(prefix)
        draw = random.Random(seed)
        kept = (0.0, 0.2, 0.5, 0.8, 1.0)[int(draw.random() * 5)]
        names = self._names.copy()
        for unsynced in self._unsynced:
            survives = draw.random() < kept
            if survives:
                names.apply(unsynced.change)
            if note is not None:
                note(f"{unsynced.change}: {'kept' if survives else 'lost'}")
        image = self._image(names, lambda file: file.draw(draw, note))
        return CrashState(image, prefix, seed, f"crash seed {seed}, {self._moment(prefix)}")

    def _moment(self, prefix: int) -> str:
        last = str(self._journal[prefix - 1]) if prefix else "start"
        return f"power lost after call {prefix} of {len(self._journal)} ({last})"

    def _image(self, names: _Names, content: Callable[[RestingFile], tuple[bytes, int]]) -> Image:
        """Return all nodes reachable from the root, with the bytes that `content` returns."""
        listed = names.directories()
        files: dict[int, bytes] = {}
        directories: dict[int, dict[str, int]] = {}
        mtimes: dict[int, int] = {}
        stack = [ROOT]
        while stack:
            directory = stack.pop()
            directories[directory] = listed.get(directory, {})
            for node in directories[directory].values():
                if node in self._dirs:
                    stack.append(node)
                else:
                    files[node], mtimes[node] = content(self._files[node])
        return Image(files, directories, mtimes, self._next_node)

    def _seek(self, prefix: int) -> None:
        assert 0 <= prefix <= len(self._journal), f"{prefix} of {len(self._journal)} calls"
        if prefix < self._done:
            self._rewind()
        for entry in self._journal[self._done : prefix]:
            self._play(entry)
        self._done = prefix

    def _play(self, entry: Entry) -> None:
        match entry.change:
            case Write() | Truncate() | SetMtime() as change:
                self._change_file(change)
            case Sync() as change:
                self._files[change.node].sync(failed=change.failed)
            case SyncDir() as change:
                self._sync_dir(change.node)
            case Link() as change:
                self._create(change)
                self._unsynced.append(_UnsyncedName(change))
            case Unlink() | Rename() as change:
                self._unsynced.append(_UnsyncedName(change))

    def _change_file(self, change: FileChange) -> None:
        file = self._files.get(change.node)  # mtimes of directories are not recorded
        if file is not None:
            file.changes.append(change)

    def _create(self, change: Link) -> None:
        self._next_node = max(self._next_node, change.node + 1)
        if change.is_dir:
            self._dirs.add(change.node)
        else:
            self._files[change.node] = RestingFile(change.node, b"", change.now_ms)

    def _sync_dir(self, directory: int) -> None:
        """Make changes durable in order; a change waits for earlier pending changes of its node."""
        left: list[_UnsyncedName] = []
        blocked: set[int] = set()
        for unsynced in self._unsynced:
            unsynced.waiting.discard(directory)
            if unsynced.waiting or unsynced.change.node in blocked:
                blocked.add(unsynced.change.node)
                left.append(unsynced)
            else:
                self._names.apply(unsynced.change)
        self._unsynced = left
