"""Files and directories of `DamageFileSystem`, as the running program sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.faults.journal import ROOT


@dataclass(frozen=True, slots=True)
class Image:
    """A whole disk at rest; everything on it is durable.

    Attributes:
        files: Content by node number.
        directories: Names and node numbers by the directory's node number.
        mtimes: Modification time in ms by node number.
        next_node: The first unused number.
    """

    files: Mapping[int, bytes] = field(default_factory=dict)
    directories: Mapping[int, Mapping[str, int]] = field(default_factory=lambda: {ROOT: {}})
    mtimes: Mapping[int, int] = field(default_factory=dict)
    next_node: int = ROOT + 1


class DirNode:
    """A directory: names and their nodes."""

    __slots__ = ("mtime_ms", "names", "number")

    def __init__(self, number: int, names: dict[str, int], mtime_ms: int) -> None:
        self.number = number
        self.names = names
        self.mtime_ms = mtime_ms


class FileNode:
    """A file's current bytes, and its maps.

    A map is a view of the `bytearray` that has the file's bytes, so the map shows later writes, as
    a shared map does. Python can't resize a `bytearray` that has a view. So if a mapped file grows,
    a longer copy becomes the file's `bytearray`. The old `bytearray` stays as a mirror, because
    existing maps show its bytes: each later write to the file is copied to the mirror, too.
    """

    __slots__ = ("_data", "_mirrors", "handles", "linked", "mtime_ms", "number")

    def __init__(self, number: int, data: bytes, mtime_ms: int) -> None:
        self.number = number
        self.mtime_ms = mtime_ms
        self.handles = 0
        self.linked = True
        # The bytes are immutable until the first change, so that several disks can share them.
        self._data: bytes | bytearray = data
        self._mirrors: list[bytearray] = []

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self._data)

    def read(self, size: int, position: int) -> bytes:
        """Return at most `size` bytes from `position`."""
        return bytes(self._data[position : position + size])

    def write(self, data: bytes, position: int) -> None:
        """Write bytes, filling a gap before them with zeros."""
        end = position + len(data)
        if end > len(self._data):
            self._grow(end)
        self._thawed()[position:end] = data
        for mirror in self._mirrors:
            reach = max(0, min(end, len(mirror)) - position)
            mirror[position : position + reach] = data[:reach]

    def truncate(self, size: int) -> None:
        """Shorten or extend the file; raises AssertionError if a mapped file would lose bytes."""
        if size > len(self._data):
            self._grow(size)
        elif size < len(self._data):
            if self.is_mapped():
                raise AssertionError(f"a mapped file is cut from {self.size} to {size} bytes")
            del self._thawed()[size:]

    def view(self, size: int) -> memoryview:
        """Return a map of the first `size` bytes."""
        return memoryview(self._thawed())[:size].toreadonly()

    def is_mapped(self) -> bool:
        """Whether a map of the file still exists."""
        self._mirrors = [mirror for mirror in self._mirrors if _is_viewed(mirror)]
        return bool(self._mirrors) or _is_viewed(self._thawed())

    def _thawed(self) -> bytearray:
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        return self._data

    def _grow(self, size: int) -> None:
        data = self._thawed()
        zeros = bytes(size - len(data))
        if _is_viewed(data):
            self._mirrors = [mirror for mirror in self._mirrors if _is_viewed(mirror)] + [data]
            self._data = data + zeros
        else:
            data.extend(zeros)


def _is_viewed(data: bytearray) -> bool:
    """Whether a memoryview of a bytearray exists: only then does Python refuse to resize it."""
    try:
        data.append(0)
    except BufferError:
        return True
    data.pop()
    return False
