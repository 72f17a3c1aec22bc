"""State of a simulated disk: names and files, journal of changes, call counts, open handles."""

import errno
from collections.abc import Sequence

from tests.faults.journal import Change, Entry, Sync, Truncate, Write
from tests.faults.meter import Fault, FaultKind, Meter, os_error
from tests.faults.nodes import DirNode, FileNode, Image
from tests.faults.tree import Tree

from tidelog.env import MAX_BUFFERS_PER_WRITE, Clock, ManualClock
from tidelog.types import Buffer


class Machine:
    """State that a file system and its handles share.

    Attributes:
        clock: Clock of modification times.
        journal: Every call that changed something, in order.
        writes: Counts the changing calls; `writes.fault` chooses which of them fails.
        reads: Counts the reading calls; `reads.fault` chooses which of them fails.
        limit_bytes: Size of the disk, None for no limit. Holes count as bytes, names don't count.
    """

    def __init__(
        self,
        image: Image | None = None,
        *,
        clock: Clock | None = None,
        fault: Fault | None = None,
        read_fault: Fault | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        self.clock: Clock = clock if clock is not None else ManualClock()
        self.journal: list[Entry] = []
        self.writes = Meter(fault)
        self.reads = Meter(read_fault)
        self.limit_bytes = limit_bytes
        self._image = image if image is not None else Image()
        self._tree = Tree(self._image)
        self._held: set[int] = set()

    def record(self, path: str, change: Change) -> None:
        """Add a call that changed something to the journal."""
        self.journal.append(Entry(path, change))

    def release(self, node: FileNode) -> None:
        """Free the file if it has neither a name nor a handle."""
        self._tree.forget(node)

    def used_bytes(self) -> int:
        """Return the number of bytes in files that have a name or an open handle."""
        return sum(node.size for node in self._tree.files.values())

    def room_for(self, node: FileNode, end: int) -> int:
        """Return the largest size up to `end` that the disk allows for a file."""
        if self.limit_bytes is None or end <= node.size:
            return end
        return min(end, node.size + max(0, self.limit_bytes - self.used_bytes()))


class DamageFile:
    """An open file. Closing frees the bytes of a removed file."""

    __slots__ = ("_closed", "_machine", "_node", "_path", "_sync_failed", "_writable")

    def __init__(
        self, machine: Machine, node: FileNode | DirNode, path: str, *, writable: bool
    ) -> None:
        self._machine = machine
        self._node = node
        self._path = path
        self._writable = writable
        self._closed = False
        self._sync_failed = False
        if isinstance(node, FileNode):
            node.handles += 1

    def _file(self) -> FileNode:
        if self._closed:
            raise os_error(errno.EBADF, self._path)
        if isinstance(self._node, DirNode):
            raise os_error(errno.EISDIR, self._path)
        return self._node

    def pread(self, size: int, position: int) -> bytes:
        node = self._file()
        self._machine.reads.enter("read", self._path)
        if size < 0 or position < 0:
            raise os_error(errno.EINVAL, self._path)
        return node.read(size, position)

    def pwrite(self, data: Buffer, position: int) -> int:
        return self.pwritev([data], position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        node = self._file()
        if not self._writable:
            raise os_error(errno.EBADF, self._path)
        if position < 0 or len(buffers) > MAX_BUFFERS_PER_WRITE:
            raise os_error(errno.EINVAL, self._path)
        return self._write(node, b"".join(buffers), position)

    def _write(self, node: FileNode, data: bytes, position: int) -> int:
        machine = self._machine
        short = machine.writes.enter("write", self._path) is FaultKind.SHORT_WRITE
        data = data[: max(1, len(data) // 2)] if short else data
        taken = data[: max(0, machine.room_for(node, position + len(data)) - position)]
        if not data:
            return 0
        if not taken:
            raise os_error(errno.ENOSPC, self._path)
        node.mtime_ms = machine.clock.now_ms()
        node.write(taken, position)
        machine.record(self._path, Write(node.number, position, taken, node.mtime_ms))
        return len(taken)

    def size(self) -> int:
        node = self._file()
        self._machine.reads.enter("size", self._path)
        return node.size

    def truncate(self, size: int) -> None:
        node, machine = self._file(), self._machine
        if size < 0 or not self._writable:
            raise os_error(errno.EINVAL, self._path)
        machine.writes.enter("truncate", self._path)
        if machine.room_for(node, size) < size:
            raise os_error(errno.ENOSPC, self._path)
        node.truncate(size)
        node.mtime_ms = machine.clock.now_ms()
        machine.record(self._path, Truncate(node.number, size, node.mtime_ms))

    def sync(self) -> None:
        if self._closed:
            raise os_error(errno.EBADF, self._path)
        if self._sync_failed:
            raise AssertionError(f"{self._path} is synced again after a sync that failed")
        try:
            self._machine.writes.enter("sync", self._path)
        except OSError:
            self._sync_failed = True
            self._machine.record(self._path, Sync(self._node.number, failed=True))
            raise
        self._machine.record(self._path, Sync(self._node.number))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if isinstance(self._node, FileNode):
            self._node.handles -= 1
            self._machine.release(self._node)


class DamageLock:
    """A held lock of a file; a power loss releases it."""

    __slots__ = ("_held", "_number")

    def __init__(self, held: set[int], number: int) -> None:
        self._held = held
        self._number = number
        held.add(number)

    def close(self) -> None:
        if self._number:
            self._held.discard(self._number)
            self._number = 0
