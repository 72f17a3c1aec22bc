"""`DamageFileSystem`: the running file system. Its rules are in the package's docstring."""

import errno
from collections.abc import Iterable, Iterator

from tests.faults.crash import CrashState, Keep, Timeline
from tests.faults.journal import Link, Rename, SetMtime, SyncDir, Unlink
from tests.faults.machine import DamageFile, DamageLock, Machine
from tests.faults.meter import Fault, os_error
from tests.faults.nodes import DirNode, FileNode
from tests.faults.tree import parts_of

from tidelog.env import Clock, DirEntry, File, FileStat, LockHandle

_DIRECTORY_SIZE = 4096  # size of a directory on ext4; no code may rely on this number


class DamageFileSystem(Machine):
    """A `FileSystem` in memory. The package's docstring has the rules; `Machine` has the fields.

    Only one thread at a time may write. Handles, maps and locks end with the simulated power loss.
    They do not work with the new file system that `reopen` of a crash state returns.
    """

    # ---- crashes

    @property
    def calls(self) -> int:
        """Number of changing calls so far, and so the index (`Fault.call`) of the next one."""
        return self.writes.calls

    def settle(self) -> None:
        """Make everything so far durable and drop it from the journal.

        Then simulated crashes can lose only later changes. Calls that other threads make during
        `settle` stay in the journal.
        """
        moment = len(self.journal)
        self._image = self.crash(Keep.EVERYTHING, moment).image
        del self.journal[:moment]

    def crash(self, keep: Keep, prefix: int | None = None) -> CrashState:
        """Return the disk after a crash that follows `prefix` calls (None: all calls).

        `keep` decides which unsynced changes remain; nothing is random.
        """
        moment = len(self.journal) if prefix is None else prefix
        return Timeline(self._image, self.journal).fixed(moment, keep)

    def prefixes(self, keep: Keep) -> Iterator[CrashState]:
        """Yield the disk after a crash at each point of the journal.

        `keep` decides which unsynced changes remain; nothing is random. The first crash is
        before the first call, the second after the first call, the last after the last call.
        """
        timeline = Timeline(self._image, self.journal)
        for prefix in range(len(self.journal) + 1):
            yield timeline.fixed(prefix, keep)

    def crash_states(
        self, seeds: Iterable[int], *, prefix: int | None = None
    ) -> Iterator[CrashState]:
        """Yield the disk after a crash for each seed, in the order in which the crashes happen.

        The crash happens after the first `prefix` calls of the journal; if `prefix` is None, the
        seed decides when. The seed also decides the fate of each unsynced change. So the same
        journal and seed give the same disk.
        """
        timeline = Timeline(self._image, self.journal)
        for moment, seed in sorted((self._moment(seed, prefix), seed) for seed in seeds):
            yield timeline.state(moment, seed)

    def _moment(self, seed: int, prefix: int | None) -> int:
        if prefix is not None:
            return prefix
        # Multiplying by this constant (Knuth's hash) spreads the crashes of successive seeds evenly
        # over the journal.
        return (seed * 2_654_435_761 % 2**32) * (len(self.journal) + 1) >> 32

    def explain(self, state: CrashState) -> str:
        """Return a state's name, then one line per change that was unsynced, with its fate."""
        if state.seed is None:
            return str(state)
        lines = Timeline(self._image, self.journal).explain(state.prefix, state.seed)
        return "\n".join([str(state), *lines])

    # ---- the protocol

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; create it if requested and missing."""
        if create:
            node = self._create(path)
            return DamageFile(self, node, path, writable=True)
        self.reads.enter("open", path)
        found = self._tree.find_file(path) if write else self._tree.find(path)
        return DamageFile(self, found, path, writable=write)

    def _create(self, path: str) -> FileNode:
        parent, name = self._tree.place(path)
        node = self._tree.child(parent, name)
        if isinstance(node, DirNode):
            raise os_error(errno.EISDIR, path)
        if node is None:
            self.writes.enter("create", path)
            now_ms = self.clock.now_ms()
            node = self._tree.add_file(parent, name, now_ms)
            parent.mtime_ms = now_ms
            self.record(path, Link(node.number, parent.number, name, False, now_ms))
        return node

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Return a read-only view of the first `size` bytes; the view shows later writes."""
        self.reads.enter("map", path)
        node = self._tree.find(path)
        if isinstance(node, DirNode):
            raise os_error(errno.ENODEV, path)
        wanted = node.size if size is None else min(size, node.size)
        return node.view(wanted) if wanted else memoryview(b"")

    def stat(self, path: str) -> FileStat:
        """Return size, modification time, kind and identity of a file or directory."""
        self.reads.enter("stat", path)
        node = self._tree.find(path)
        is_dir = isinstance(node, DirNode)
        size = _DIRECTORY_SIZE if isinstance(node, DirNode) else node.size
        return FileStat(size, node.mtime_ms, is_dir, (1, node.number))

    def exists(self, path: str) -> bool:
        """Whether the name exists."""
        try:
            self._tree.find(path)
        except OSError:
            return False
        return True

    def list_dir(self, path: str) -> list[DirEntry]:
        """Return the names in a directory, sorted."""
        self.reads.enter("list_dir", path)
        names = self._tree.find_dir(path).names
        return [DirEntry(name, names[name] in self._tree.dirs) for name in sorted(names)]

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, one recorded call each."""
        parts = parts_of(path)
        for depth in range(1, len(parts) + 1):
            self._make_dir("/" + "/".join(parts[:depth]), last=depth == len(parts))

    def _make_dir(self, path: str, *, last: bool) -> None:
        parent, name = self._tree.place(path)
        there = self._tree.child(parent, name)
        if there is None:
            self.writes.enter("mkdir", path)
            now_ms = self.clock.now_ms()
            node = self._tree.add_dir(parent, name, now_ms)
            parent.mtime_ms = now_ms
            self.record(path, Link(node.number, parent.number, name, True, now_ms))
        elif isinstance(there, FileNode) and last:
            raise os_error(errno.EEXIST, path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._tree.find_file(path)
        parent, name = self._tree.place(path)
        self.writes.enter("remove", path)
        node = self._tree.unlink(parent, name)
        parent.mtime_ms = self.clock.now_ms()
        self.record(path, Unlink(node.number, parent.number, name))

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        parent, name = self._tree.place(path)
        if self._tree.find_dir(path).names:
            raise os_error(errno.ENOTEMPTY, path)
        self.writes.enter("remove_dir", path)
        node = self._tree.unlink(parent, name)
        parent.mtime_ms = self.clock.now_ms()
        self.record(path, Unlink(node.number, parent.number, name))

    def rename(self, source: str, target: str) -> None:
        """Rename. A file may replace a file, and a directory may replace an empty directory."""
        self._tree.check_rename(source, target)
        self.writes.enter("rename", source)
        old_parent, old_name = self._tree.place(source)
        parent, name = self._tree.place(target)
        if (old_parent, old_name) == (parent, name):
            return
        if name in parent.names:
            self._tree.unlink(parent, name)
        number = parent.names[name] = old_parent.names.pop(old_name)
        parent.mtime_ms = old_parent.mtime_ms = self.clock.now_ms()
        self.record(source, Rename(number, old_parent.number, parent.number, name))

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        node = self._tree.find_dir(path)
        self.writes.enter("sync_dir", path)
        self.record(path, SyncDir(node.number))

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set a modification time."""
        node = self._tree.find(path)
        self.writes.enter("set_mtime", path)
        node.mtime_ms = mtime_ms
        self.record(path, SetMtime(node.number, mtime_ms))

    def lock(self, path: str) -> LockHandle:
        """Lock a file, until a power loss; raises BlockingIOError if the file is locked."""
        node = self._create(path)
        if node.number in self._held:
            raise os_error(errno.EWOULDBLOCK, path)
        return DamageLock(self._held, node.number)


def reopen(
    state: CrashState,
    *,
    clock: Clock | None = None,
    fault: Fault | None = None,
    limit_bytes: int | None = None,
) -> DamageFileSystem:
    """Return the file system after the power is back: everything in `state` is durable."""
    return DamageFileSystem(state.image, clock=clock, fault=fault, limit_bytes=limit_bytes)
